"""Runs Slurm's own test suite on bare nodes and on virtual ones, from a checkout that you name.

`make conformance SUITE=DIR SLURM=22.05`. DIR is a checkout of Slurm's sources of that release; nothing
is written into it, and nothing of it is in this repository. The suite takes the cluster as it is (its
local-config mode): what it would have to configure is skipped. What it finds on both is told, and kept
in reports/. The exit status is 1 where a test fails on virtual nodes alone.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from backfill.lab import roots
from backfill.lab.cluster import Lab
from backfill.lab.spec import LabError
from tests.conformance import clusters, verdicts
from tests.conformance.verdicts import Told, Verdict

ROOT = Path(__file__).parents[2]
_LIMIT_S = 3600.0  # of one file
_CLUSTERS: Mapping[str, Callable[[str], AbstractContextManager[tuple[Lab, str]]]] = {
    "bare": clusters.bare,
    "virtual": clusters.virtual,
    "lines": clusters.lines,
}
# The suite becomes other users by sudo, of which it needs this much.
_SUDO = """#!/bin/bash
user=root
while [[ $1 == -* ]]; do
    case $1 in
        -l*) echo '(ALL : ALL) NOPASSWD: ALL'; exit ;;
        -*u) user=$2; shift ;;
    esac
    shift
done
exec runuser -u "$user" -- "$@"
"""
_PYTESTS = "/tmp/pytest-of-root"
_CONF = """SlurmSourceDir={suite}
SlurmBuildDir={suite}
SlurmInstallDir=/usr
SlurmConfigDir=/etc/slurm
"""


class SuiteError(Exception):
    """The suite cannot be run; the message is one sentence."""


def python() -> str:
    """Return the Python of the environment that the suite needs, made on first use from its lock file."""
    argv = [sys.executable, str(ROOT / "packaging/tools.py"), "conformance"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}  # with the way to the package index
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SuiteError(f"the suite's environment cannot be made: {done.stderr.strip()}")
    return done.stdout.strip()


def files(tests: Path, only: Sequence[str]) -> list[Path]:
    """Return the files, each to be run by itself: after each, the suite asks for all jobs since its start."""
    named = [tests / name for name in only or ("tests",)]
    found = [sorted(path.rglob("test_*.py")) if path.is_dir() else [path] for path in named]
    return [file for below in found for file in below]


def run(suite: Path, release: str, kind: str, only: Sequence[str]) -> dict[str, Told]:
    """Run the suite on a cluster of this kind; what it said of each test."""
    tests = suite / "testsuite/python"
    if not (tests / "conftest.py").is_file():
        raise SuiteError(f"{tests} is no test suite of Slurm: name a checkout of Slurm's sources")
    runner = python()
    out = ROOT / "reports" / f"conformance-{release}-{kind}"
    out.mkdir(parents=True, exist_ok=True)
    with _CLUSTERS[kind](release) as (lab, common):
        own = lab.shared / "suite"
        (own / "bin").mkdir(parents=True)
        own.chmod(0o755)
        (own / "bin/sudo").write_text(_SUDO)
        (own / "bin/sudo").chmod(0o755)
        if lab.tools:  # where a login shell finds them, too
            lab.run("ctl", ["mount", "--bind", str(lab.tools), "/usr/local/bin"], check=True)
        # The suite opens all that pytest has there, which may be another run's that is just being removed.
        script = f"mkdir -p {_PYTESTS}; mount -t tmpfs none {_PYTESTS}"
        lab.run("ctl", ["sh", "-euc", script], check=True)
        (own / "testsuite.conf").write_text(_CONF.format(suite=suite))
        environment = {
            "PATH": f"{own}/bin:{lab.path}",
            "SLURM_TESTSUITE_CONF": str(own / "testsuite.conf"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "USER": "root",
        }
        argv = [runner, "-m", "pytest", "-p", "no:cacheprovider", "--local-config", "-rfE", "--tb=short"]
        argv += [f"--rootdir={tests}", f"--junitxml={own}/told.xml"]
        told: dict[str, Told] = {}
        with (out / "output").open("w") as output:
            for file in files(tests, only):
                # Guests still have the directory of before, by its name, where one is made anew over NFS.
                work = f"--basetemp={common}/suite-{file.stem}"
                process = lab.popen(
                    "ctl", [*argv, work, str(file)], env=environment, stdout=output, stderr=output
                )
                process.wait(_LIMIT_S)
                if not (own / "told.xml").is_file():
                    raise SuiteError(f"{file.name} ended without a report; see {out}/output")
                told |= verdicts.read(own / "told.xml")
                (own / "told.xml").unlink()
                _keep(out, told)
    return told


def _keep(out: Path, told: Mapping[str, Told]) -> None:
    """Write down what was found so far: a run takes long, and may be ended."""
    lines = {name: [one.verdict.value, one.why] for name, one in sorted(told.items())}
    (out / "told.json").write_text(json.dumps(lines, indent=1) + "\n")


def _end(number: int, _: object) -> None:
    """Leave by the usual way, which ends the cluster."""
    raise SystemExit(128 + number)


def tell(told: Mapping[str, Mapping[str, Told]]) -> int:
    """Print what came of it; 1 where something fails on virtual nodes alone."""
    for kind, found in told.items():
        print(f"{kind}: {verdicts.counted(found)}")
    if "bare" not in told or len(told) < 2:
        for found in told.values():
            for name, one in found.items():
                if one.verdict is Verdict.FAILED:
                    print(f"  {name}: {one.why}")
        return 0
    worse = False
    for kind in (kind for kind in told if kind != "bare"):
        pairs = verdicts.differences(told["bare"], told[kind])
        for name, (bare, other) in pairs.items():
            print(
                f"  {name}: {bare.verdict.value} -> {other.verdict.value} ({kind}): {other.why or bare.why}"
            )
        worse = worse or bool(verdicts.worse(pairs))
    return 1 if worse else 0


def main() -> int:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("suite", type=Path, metavar="DIR", help="a checkout of Slurm's sources")
    parser.add_argument("--slurm", default=roots.INSTALLED, choices=roots.RELEASES, help="of this release")
    kinds = "the first two if left out"
    parser.add_argument("--on", default=["bare", "virtual"], nargs="+", choices=_CLUSTERS, help=kinds)
    parser.add_argument("--only", default=[], nargs="+", metavar="TEST", help="such as tests/test_102_1.py")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, _end)
    try:
        return tell({kind: run(args.suite.resolve(), args.slurm, kind, args.only) for kind in args.on})
    except (SuiteError, LabError) as error:
        print(f"conformance: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
