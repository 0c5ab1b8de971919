"""`backfill run`: waits for the machines of a job, and asks Slurm for a job of its own there."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import backfill

_ROOT = Path(backfill.__file__).parents[1]
_NODE = "NodeName={0} Arch=x86_64 CPUAlloc=0 CPUTot=2 NodeAddr=10.77.1.{1} Partitions=htc,any State=IDLE"
_NODES = "\n".join(_NODE.format(f"vn{number}", number) for number in (1, 2))
_THERE = "backfill: 2 machines of 2 CPUs and 256 MB on its nodes: vn1, vn2 backfill-vm:at=vn1+vn2"
# A Slurm of four scripts: what it shows stands in files, and salloc tells how it was called.
_SCONTROL = """case "$1 $2 $3" in
"show job "*) echo "JobId=7 JobName=x"; echo "   AdminComment=$(cat {dir}/said)"; echo "   WorkDir=/tmp" ;;
*) cat {dir}/nodes ;;
esac
"""
_SALLOC = """exec {python} -c 'import json, os, sys
json.dump({{"argv": sys.argv[1:], "env": dict(os.environ)}}, open("{dir}/called", "w"))
sys.exit(7)' "$@"
"""


class Site:
    """The directory of these scripts, first in the path of the command."""

    def __init__(self, directory: Path) -> None:
        self.dir = directory
        scripts = {"scontrol": _SCONTROL, "squeue": "cat {dir}/left\n", "salloc": _SALLOC}
        for name, text in scripts.items():
            path = directory / name
            path.write_text("#!/bin/sh\n" + text.format(dir=directory, python=sys.executable))
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        self.say(_THERE)
        (directory / "nodes").write_text(_NODES)
        (directory / "left").write_text("1-02:03:04\n")

    def say(self, text: str) -> None:
        """What the daemon has told the job."""
        (self.dir / "said").write_text(text)

    def run(self, *argv: str, **more: str) -> subprocess.CompletedProcess[str]:
        """The command in a job with the number 7."""
        path = f"{self.dir}:{os.environ['PATH']}"
        env = {"PATH": path, "PYTHONPATH": str(_ROOT), "SLURM_JOB_ID": "7", **more}
        line = [sys.executable, "-m", "backfill", "run", *argv]
        return subprocess.run(line, env=env, capture_output=True, text=True, check=False)

    @property
    def argv(self) -> list[str]:
        return list(json.loads((self.dir / "called").read_text())["argv"])

    @property
    def environment(self) -> dict[str, str]:
        return dict(json.loads((self.dir / "called").read_text())["env"])


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_program_gets_all_machines_and_the_rest_of_the_jobs_time(site: Site) -> None:
    """Its ranks are started in the first machine; its exit status is the command's."""
    done = site.run("./a.out", "-np", "x y")
    assert (done.returncode, done.stderr) == (7, "")
    before, _, behind = " ".join(site.argv).partition(" sh -c ")
    assert before.startswith("--quiet --reservation=backfill-inside-7 --partition=htc --time=1-02:03:04 ")
    assert "--nodelist=vn1,vn2 --nodes=2 --ntasks=4" in before
    assert behind.endswith("exec srun --overlap --mpi=pmix --nodes=2 --ntasks=4 ./a.out -np 'x y'")


def test_fewer_ranks_take_as_few_machines_as_carry_them(site: Site) -> None:
    """The others stay free for the next program."""
    assert site.run("-np", "2", "--mpi", "none", "-p", "any", "--", "true").returncode == 7
    assert {"--nodelist=vn1", "--nodes=1", "--ntasks=2", "--partition=any"} <= set(site.argv)
    assert "--mpi=none --nodes=1 --ntasks=2 true" in site.argv[-1]


def test_ranks_can_be_spread_over_all_machines(site: Site) -> None:
    """So that another program finds a CPU in each of them, too."""
    assert site.run("-np", "2", "--per-machine", "1", "true").returncode == 7
    assert {"--nodelist=vn1,vn2", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1"} <= set(site.argv)
    assert "--nodes=2 --ntasks=2 --ntasks-per-node=1 true" in site.argv[-1]
    for wrong in (("--per-machine", "3"), ("-np", "3", "--per-machine", "1")):
        done = site.run(*wrong, "true")
        assert done.returncode == 64
        assert "use a number from 1 to 2" in done.stderr


def test_mpirun_finds_the_machines_and_needs_no_pmi(site: Site) -> None:
    """It runs in the first machine, and its daemons beside it in the others."""
    assert site.run("--mpi", "mpirun", "-np", "3", "./a.out", "x y").returncode == 7
    assert {"--nodelist=vn1,vn2", "--nodes=2", "--ntasks=3"} <= set(site.argv)
    found = "SLURM_JOBID=$SLURM_JOB_ID SLURM_NODELIST=vn1,vn2 SLURM_TASKS_PER_NODE=2,2"
    assert f"export {found} OMPI_MCA_plm_slurm_args='--overlap --mpi=none'; " in site.argv[-1]
    assert site.argv[-1].endswith("exec mpirun -np 3 ./a.out 'x y'")
    site.run("--mpi", "mpirun", "--per-machine", "1", "./a.out")
    assert "SLURM_TASKS_PER_NODE=1,1 " in site.argv[-1]
    assert site.argv[-1].endswith("exec mpirun -np 2 --map-by ppr:1:node ./a.out")


def test_what_is_about_the_callers_own_job_is_kept_from_the_program(site: Site) -> None:
    """All else of the environment is the program's, and where Slurm's configuration is."""
    given = {"SLURM_NNODES": "2", "SLURM_CONF": "/x/slurm.conf", "SALLOC_PARTITION": "p", "MINE": "1"}
    Path(site.dir, "slurm.conf").touch()
    site.run("true", **{**given, "SLURM_CONF": str(site.dir / "slurm.conf")})
    found = site.environment
    assert not {"SLURM_NNODES", "SALLOC_PARTITION", "SLURM_JOB_ID"} & found.keys()
    assert (found["MINE"], found["BACKFILL_MACHINES"]) == ("1", "vn1,vn2")
    assert found["SLURM_CONF"].endswith("slurm.conf")


def test_the_hostfile_has_addresses_and_cpus(site: Site) -> None:
    """With it alone nothing is started."""
    path = site.dir / "hosts"
    assert site.run("--hostfile", str(path)).returncode == 0
    assert path.read_text() == "10.77.1.1 slots=2  # vn1\n10.77.1.2 slots=2  # vn2\n"
    assert not (site.dir / "called").exists()
    done = site.run("--hostfile", str(site.dir / "no" / "hosts"))
    assert done.returncode == 65
    assert "No such file or directory" in done.stderr


def test_an_endless_job_has_no_limit_to_hand_on(site: Site) -> None:
    """What Slurm shows then is no time."""
    (site.dir / "left").write_text("UNLIMITED\n")
    site.run("true")
    assert not any(word.startswith("--time") for word in site.argv)


def test_names_of_an_earlier_run_are_not_this_ones(site: Site) -> None:
    """A requeued job keeps its AdminComment until it is told of its new machines."""
    done = site.run("--wait", "0", "true", SLURM_RESTART_COUNT="1")
    assert done.returncode == 1
    assert not (site.dir / "called").exists()
    site.say(f"{_THERE},run=1")
    assert site.run("true", SLURM_RESTART_COUNT="1").returncode == 7


@pytest.mark.parametrize(
    ("said", "argv", "status", "why"),
    [
        (_THERE, (), 64, "name a program"),
        (_THERE, ("-np", "5", "true"), 64, "-np 5: use a number from 1 to 4"),
        (_THERE, ("-np", "-1", "true"), 64, "-1 is less than 1; give at least 1"),
        (_THERE, ("--job", "x", "true"), 64, "call it in a job, or name the job"),
        ("", ("--wait", "0", "true"), 1, "does its comment ask for any"),
        ("backfill: they boot", ("--wait", "0", "true"), 1, "no machines after 0 s: backfill: they boot"),
        (
            "backfill: no machines on its nodes: too large",
            ("true",),
            1,
            "no machines on its nodes: too large",
        ),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(
    site: Site, said: str, argv: tuple[str, ...], status: int, why: str
) -> None:
    """Nothing is started."""
    site.say(said)
    done = site.run(*argv)
    assert done.returncode == status
    assert why in done.stderr
    assert not (site.dir / "called").exists()


def test_a_silent_slurm_is_said_so(site: Site) -> None:
    """Not a traceback."""
    (site.dir / "scontrol").write_text("#!/bin/sh\necho Unable to contact slurm controller >&2; exit 1\n")
    done = site.run("true")
    assert done.returncode == 69
    assert "Unable to contact slurm controller" in done.stderr
