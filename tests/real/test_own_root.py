"""Root file systems of a user's own on real guests: asked for by the job's script, run as its user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backfill.lab.extras import exported, mounts
from backfill.lab.policyfile import policy
from tests.real.daemon_rig import DaemonRig, daemon_lab
from tests.real.own_root import MOST_MB, OTHER, OWNER, SPOILT, make_root

pytestmark = [pytest.mark.real, pytest.mark.soak]

_SHOWN = tuple(mount.split()[1][1:] for mount in mounts())
_PROGRAM = "/usr/local/bin/backfill-root"
# What a job tells from within: which tree it is in, who it is, and what it can and cannot do.
_TELL = """
cat /etc/release
id -u
touch /etc/new 2>/dev/null || echo unchanged
[ -e /usr/sbin/slurmd ] || echo apart
while read -r name value; do [ "$name" != CapEff: ] || echo $value; done </proc/self/status
exit 5
"""


def own_roots(rig: DaemonRig, most_mb: int) -> dict[str, Any]:
    plain: dict[str, Any] = policy(rig.lab, rig.image)["libvirt"]["images"]["default"]
    images = {"default": {**plain, "own_root_mb": most_mb}}
    return {
        "libvirt": {"images": images},
        "readiness": {"files_within_s": 600},
        "limits": {"max_instances": 1},
    }


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("own-root", files=True) as rig:
        rig.start(**own_roots(rig, MOST_MB))
        yield rig


@pytest.fixture
def home(rig: DaemonRig) -> Path:
    """The user's home as the file server has it; guests see it as /home/ada."""
    made = exported(rig.lab.dir) / "home/ada"
    made.mkdir(exist_ok=True)
    os.chown(made, OWNER, OWNER)
    return made


def run(rig: DaemonRig, home: Path, text: str) -> tuple[str, str, str]:
    """Run a job's script; return its state, its exit code and what it wrote."""
    script = rig.lab.shared / "jobs/own-root.sh"
    script.write_text(text)
    script.chmod(0o755)
    job = rig.user("sbatch", "--parsable", "-p", "htc", "-D", "/tmp", "-o", "/home/ada/out-%j", str(script))
    over = ("COMPLETED", "FAILED")
    rig.until(lambda: rig.state(job) in over, what=f"end of job {job}")
    return rig.state(job), rig.show(job)["ExitCode"], (home / f"out-{job}").read_text()


def test_a_jobs_script_runs_in_a_root_of_its_users_own(rig: DaemonRig, home: Path) -> None:
    """By its first line; a step of a usual script by naming the program. Its output goes to its home."""
    make_root(home / "root6", *_SHOWN)
    state, code, said = run(rig, home, f"#!{_PROGRAM} /home/ada/root6{_TELL}")
    assert said.split() == ["root6", str(OWNER), "unchanged", "apart", "0" * 16]
    assert (state, code) == ("FAILED", "5:0")
    step = f"#!/bin/bash\nsrun {_PROGRAM} /home/ada/root6 cat /etc/release\n"
    assert run(rig, home, step) == ("COMPLETED", "0:0", "root6\n")


def test_what_is_not_his_alone_is_refused_and_the_job_fails(rig: DaemonRig, home: Path) -> None:
    """Each with its sentence in the job's output; nothing of the script was run, and Slurm shows it."""
    for number, (spoil, _) in enumerate(SPOILT.values()):
        spoil(make_root(home / f"spoilt-{number}/tree", *_SHOWN))
    trees = range(len(SPOILT))
    each = "\n".join(f"{_PROGRAM} /home/ada/spoilt-{n}/tree sh -c 'echo ran'; echo $?" for n in trees)
    _, _, said = run(rig, home, f"#!/bin/bash\n{each}\n")
    lines = said.splitlines()
    assert lines[1::2] == ["125"] * len(SPOILT), said
    for line, (_, words) in zip(lines[::2], SPOILT.values(), strict=True):
        assert words in line
    state, code, said = run(rig, home, f"#!{_PROGRAM} /home/ada/spoilt-0/tree\necho ran\n")
    assert (state, code) == ("FAILED", "125:0")
    assert "ran" not in said.split()


def test_nobody_runs_another_users_tree_and_root_runs_none(rig: DaemonRig, home: Path) -> None:
    """Neither where everybody may read it, nor as root, whom a tree could make do anything."""
    others = make_root(exported(rig.lab.dir) / "home/bob/root6", *_SHOWN, owner=OTHER)
    _, _, said = run(rig, home, f"#!{_PROGRAM} /home/bob/root6\necho ran\n")
    assert f"/home/bob/root6 belongs to user {OTHER}, not to you" in said
    assert others.exists()
    ((name, (host, _)),) = rig.instances().items()
    assert "for users alone" in rig.out_of_guest(host, name, f"{_PROGRAM} /home/bob/root6 sh 2>&1 || true")


def test_a_node_whose_image_allows_none_runs_none(rig: DaemonRig, home: Path) -> None:
    """As all do until an admin sets own_root_mb."""
    make_root(home / "plain", *_SHOWN)
    rig.restart(**own_roots(rig, 0), scale={"idle_s": 0, "boot_within_s": 600})
    rig.until(lambda: not rig.nodes(), what="the removal of the instance")
    rig.restart(**own_roots(rig, 0))
    state, code, said = run(rig, home, f"#!{_PROGRAM} /home/ada/plain\necho ran\n")
    assert (state, code) == ("FAILED", "125:0")
    assert "own_root_mb of its image is 0" in said
