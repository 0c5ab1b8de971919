"""`backfill run`: starts a program on the machines within the allocation of the job that it is called in."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from backfill.core.model.job_machines import NONE_THERE, asked
from backfill.drivers.slurm.commands import SlurmTools
from backfill.drivers.slurm.job_pins import inside_pin
from backfill.ports.errors import DriverError
from backfill.ui.parser import BAD_DATA, NO, OK, UNAVAILABLE, USAGE, say, whole

_FIRST_LOOK_S, _LOOK_EVERY_S = 0.25, 2.0
_COMMENT = re.compile(r"^ *AdminComment=(.*)$", re.MULTILINE)
_FIELD = re.compile(r"(\w+)=(\S*)")
_LIMIT = re.compile(r"(\d+-)?(\d+:)?\d+:\d+")
# What the job that calls says of itself, and what would steer srun, is not for the job that is begun.
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT")
_OTHERS = ("SLURM_", "SALLOC_", "SRUN_", "SBATCH_", "PMI_", "PMIX_", "OMPI_")
_UNSET = "unset $(env | sed -n 's/^\\(SLURM_[A-Z_]*\\)=.*/\\1/p' | grep -vx -e SLURM_JOB_ID -e SLURM_CONF)"


_MPIRUN = "mpirun"
# By these Open MPI finds the machines. Its daemons are a step beside that in which it runs itself.
_BESIDE = "OMPI_MCA_plm_slurm_args='--overlap --mpi=none'"


class RunError(Exception):
    """The program cannot be started. `str()` is the sentence, `code` the exit status."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


@dataclass(frozen=True, slots=True)
class MachineSeen:
    """One machine, as Slurm shows its node."""

    name: str
    address: str
    cpus: int
    partitions: tuple[str, ...]


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Options come before the program; all behind it is the program's."""
    parser.add_argument(
        "-np", type=whole(1), default=0, metavar="N", help="ranks; one for each CPU, if left out"
    )
    parser.add_argument(
        "--per-machine", type=whole(1), default=0, metavar="N", help="ranks in each machine (its CPUs)"
    )
    parser.add_argument(
        "--mpi",
        default="pmix",
        metavar="TYPE",
        help="as for srun, in the machines (pmix); none: no MPI; mpirun: by the machines' own mpirun",
    )
    parser.add_argument("-p", "--partition", default="", metavar="NAME", help="one that has the machines")
    parser.add_argument(
        "--wait", type=whole(0), default=600, metavar="S", help="so long for the machines (600)"
    )
    parser.add_argument("--hostfile", default="", metavar="FILE", help="write the machines for mpirun there")
    parser.add_argument("--job", default="", metavar="ID", help="the job whose machines are meant (this one)")
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="PROGRAM", help="with its arguments")


def run_run(args: argparse.Namespace) -> int:
    """Wait for the machines and become `salloc`, so that signals and the exit status are its own."""
    program = args.program[1:] if args.program[:1] == ["--"] else args.program
    try:
        line, environment = _prepared(args, program)
        if line:
            os.execvpe(line[0], line, environment)  # noqa: S606  # it takes our place
    except RunError as error:
        say(str(error))
        return error.code
    except DriverError as error:
        say(str(error))
        return UNAVAILABLE
    except OSError as error:
        say(f"cannot start salloc: {error.strerror}")
        return UNAVAILABLE
    return OK


def _prepared(args: argparse.Namespace, program: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Wait for the machines; the command line and environment of what runs there, if anything is to."""
    if not program and not args.hostfile:
        raise RunError("name a program, as in: backfill run -np 8 ./a.out; or a --hostfile", USAGE)
    job = args.job or os.environ.get("SLURM_JOB_ID", "")
    if not job.isdigit():
        raise RunError("call it in a job, or name the job with --job", USAGE)
    tools = SlurmTools(env={k: os.environ[k] for k in _KEPT if k in os.environ})
    run = None if args.job else int(os.environ.get("SLURM_RESTART_COUNT", "0"))
    places = _places(tools, _names(tools, job, run, args.wait))
    if args.hostfile:
        _write(Path(args.hostfile), places)
    line = launch(job, places, args, program, _left(tools, job)) if program else []
    return line, surroundings(os.environ, places)


def _names(tools: SlurmTools, job: str, run: int | None, wait_s: float) -> tuple[str, ...]:
    """Names of the machines, once the daemon has told this run of the job of them; None: whichever."""
    over_s, every_s = time.monotonic() + wait_s, _FIRST_LOOK_S
    while True:
        found = _COMMENT.search(tools.run(["scontrol", "show", "job", job], f"job {job}"))
        said = "" if found is None else found[1]
        machines, _ = asked(said)
        if machines is not None and machines.at and run in (None, machines.run):
            return machines.at
        if NONE_THERE in said:
            raise RunError(said.removeprefix("backfill: "), NO)
        if time.monotonic() >= over_s:
            told = f": {said}" if said else "; does its comment ask for any (backfill-vm)?"
            raise RunError(f"job {job} has no machines after {wait_s:g} s{told}", NO)
        time.sleep(every_s)
        every_s = min(2 * every_s, _LOOK_EVERY_S)


def _places(tools: SlurmTools, names: Sequence[str]) -> list[MachineSeen]:
    lines = tools.run(["scontrol", "-o", "show", "node", ",".join(names)], f"node {names[0]}").splitlines()
    shown = [dict(_FIELD.findall(line)) for line in lines]
    return [
        MachineSeen(
            node["NodeName"],
            node.get("NodeAddr", ""),
            int(node.get("CPUTot", "1")),
            tuple(filter(None, node.get("Partitions", "").split(","))),
        )
        for node in shown
        if node
    ]


def _left(tools: SlurmTools, job: str) -> str:
    """Return the rest of the job's time limit as Slurm writes it; empty: it has none."""
    said = tools.run(["squeue", "-h", "-j", job, "-o", "%L"], f"job {job}").strip()
    return said if _LIMIT.fullmatch(said) else ""


def _write(path: Path, places: Sequence[MachineSeen]) -> None:
    """As mpirun reads it: by address, which needs no name server."""
    text = "".join(f"{place.address} slots={place.cpus}  # {place.name}\n" for place in places)
    try:
        path.write_text(text)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}", BAD_DATA) from error


def launch(
    job: str, places: Sequence[MachineSeen], args: argparse.Namespace, program: Sequence[str], left: str
) -> list[str]:
    """Make the command line of a job of its own in the machines, whose ranks the first of them starts.

    The hosts may have no PMI library, or not that of the machines.
    """
    used, ranks = _used(places, args.np, args.per_machine)
    partition = args.partition or (used[0].partitions[0] if used[0].partitions else "")
    size = [f"--nodes={len(used)}", f"--ntasks={ranks}"]
    if args.per_machine:
        size.append(f"--ntasks-per-node={args.per_machine}")
    if args.mpi == _MPIRUN:
        start = _mpirun(used, ranks, args.per_machine, program)
    else:
        start = f"exec {shlex.join(['srun', '--overlap', f'--mpi={args.mpi}', *size, *program])}"
    return [
        "salloc",
        "--quiet",
        f"--reservation={inside_pin(job)}",
        *([f"--partition={partition}"] if partition else []),
        *([f"--time={left}"] if left else []),
        f"--nodelist={','.join(place.name for place in used)}",
        *size,
        f"--job-name=in-{job}",
        *("srun", "--overlap", "--mpi=none", "--nodes=1", "--ntasks=1", f"--nodelist={used[0].name}"),
        *("sh", "-c", f"{_UNSET}; {start}"),
    ]


def _mpirun(used: Sequence[MachineSeen], ranks: int, per_machine: int, program: Sequence[str]) -> str:
    """Return the command for the first machine, where mpirun starts a daemon in each other one by srun.

    Neither Slurm nor the program needs a common PMI, and the machines need no sshd.
    """
    names = ",".join(place.name for place in used)
    slots = ",".join(str(per_machine or place.cpus) for place in used)
    found = f"SLURM_JOBID=$SLURM_JOB_ID SLURM_NODELIST={names} SLURM_TASKS_PER_NODE={slots}"
    spread = ["--map-by", f"ppr:{per_machine}:node"] if per_machine else []
    line = [_MPIRUN, "-np", str(ranks), *spread, *program]
    return f"export {found} {_BESIDE}; exec {shlex.join(line)}"


def _used(places: Sequence[MachineSeen], ranks: int, per_machine: int) -> tuple[list[MachineSeen], int]:
    """Choose machines for so many ranks (0: as many as there is room for); return the ranks, too."""
    smallest = min(place.cpus for place in places)
    if not 0 <= per_machine <= smallest:
        raise RunError(f"--per-machine {per_machine}: use a number from 1 to {smallest}, its CPUs", USAGE)
    room = sum(per_machine or place.cpus for place in places)
    if not 1 <= (ranks or room) <= room:
        what = "its machines have room for so many" if per_machine else "the CPUs of its machines"
        raise RunError(f"-np {ranks}: use a number from 1 to {room}, {what}", USAGE)
    used, carried = [], 0
    for place in places:
        if carried < (ranks or room):
            used.append(place)
            carried += per_machine or place.cpus
    return used, ranks or room


def surroundings(environment: Mapping[str, str], places: Sequence[MachineSeen]) -> dict[str, str]:
    """Return the program's environment: the caller's, without what is about the caller's job."""
    kept = {k: v for k, v in environment.items() if k in _KEPT or not k.startswith(_OTHERS)}
    return {**kept, "BACKFILL_MACHINES": ",".join(place.name for place in places)}
