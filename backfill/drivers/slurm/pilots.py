"""Pilots through sbatch, as an ordinary user: by root, or by SlurmUser, whom slurmctld believes as much."""

from __future__ import annotations

import os
import pwd
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

from backfill.drivers.slurm.checks import JOB_ID, checked, one_line
from backfill.drivers.slurm.commands import SlurmTools
from backfill.ports.errors import BadOutputError, DriverError, NotFoundError, RefusedError
from backfill.ports.workload import PilotSpec

# slurmctld takes from SlurmUser what it takes from root, but sbatch itself lets only root name another
# user. It takes itself for root's in a user namespace; credentials are still SlurmUser's.
_AS_ROOT = ("unshare", "--user", "--map-root-user", "--")
_NO_NAMESPACE = "unshare: "


def submit(commands: SlurmTools, pilot: PilotSpec) -> str:
    """See PilotSender. Of the same name only one works at a time: that is a singleton for Slurm."""
    person = _person(pilot.user)
    found = _living(commands, pilot, person.pw_uid)
    if found is not None:
        return found
    argv = [
        "sbatch",
        "--parsable",
        f"--job-name={pilot.name}",
        f"--comment={one_line(pilot.comment)}",
        "--dependency=singleton",
        f"--partition={pilot.partition}",
        "--nodes=1",
        "--ntasks=1",
        f"--cpus-per-task={pilot.cpus}",
        f"--time={max(1, int(pilot.limit_s // 60))}",
        f"--chdir={pilot.directory or person.pw_dir}",
        f"--uid={person.pw_uid}",
        f"--gid={person.pw_gid}",  # otherwise it would have the group of who submits it
        *pilot.options,
    ]
    # The daemon's own surroundings are none of a job's business.
    env = {"HOME": person.pw_dir, "USER": pilot.user, "LOGNAME": pilot.user, "SHELL": person.pw_shell}
    said = _sent(commands, [*argv, pilot.script], pilot.name, env).strip()
    job_id = said.partition(";")[0]  # a cluster's name may follow
    if not job_id.isdecimal():
        raise BadOutputError(pilot.name, f"sbatch has said {said[:80]!r} instead of a job's number")
    return job_id


def _living(commands: SlurmTools, pilot: PilotSpec, uid: int) -> str | None:
    """Return the first pilot of this slot that waits, runs, or is just ending; None: there is none.

    Another job of the user that has its name is in its way, as Slurm lets one of a name work at a time:
    RefusedError. The user is looked for here: squeue shows nothing, and ends well, where it does not like
    one's name. %A: of an array that waits the number alone. Anybody's job may have this name, and squeue
    prints a line's end in its comment as one: a secret word tells which lines are squeue's own.
    """
    secret = secrets.token_hex(8)
    argv = ["squeue", "-h", "-a", f"--name={pilot.name}"]
    shown = {"SQUEUE_FORMAT": f"{secret} %U %A %k"}  # command lines are seen by all
    found = commands.run(argv, pilot.name, shown).split("\n")
    lines = (line.split(" ", 3)[1:] for line in found if line.startswith(secret))
    theirs = [line for line in lines if line[0] == str(uid) and len(line) == 3 and line[1].isdecimal()]
    ours = [job_id for _, job_id, comment in theirs if comment.rstrip() == one_line(pilot.comment)]
    if ours:
        return min(ours, key=int)
    if theirs:
        said = (
            f"job {theirs[0][1]} of user {pilot.user} has its name, and Slurm would let the pilot wait for it"
        )
        raise RefusedError(pilot.name, said, f"scancel {theirs[0][1]}")
    return None


def withdraw(commands: SlurmTools, job_id: str) -> None:
    """See PilotSender. What has begun meanwhile goes on: Slurm itself looks at that."""
    argv = ["scancel", "--state=PENDING", checked(job_id, JOB_ID, "job id")]
    try:
        commands.run(argv, f"job {job_id}")
    except NotFoundError:
        return


def _person(user: str) -> pwd.struct_passwd:
    try:
        person = pwd.getpwnam(user)
    except KeyError:
        raise RefusedError(
            f"user {user}", "this machine knows no such user", "name an ordinary one in supply.user"
        ) from None
    if person.pw_uid == 0:
        raise RefusedError(f"user {user}", "it is root", "name an ordinary user in supply.user")
    return person


def _sent(commands: SlurmTools, argv: Sequence[str], subject: str, env: Mapping[str, str]) -> str:
    if os.geteuid() == 0:
        return commands.run(argv, subject, env)
    try:
        return replace(commands, prefix=(*commands.prefix, *_AS_ROOT)).run(argv, subject, env)
    except DriverError as error:
        if _NO_NAMESPACE not in str(error):
            raise
        said = "its daemon gets no user namespace here, so that only root could send it"
        remedy = "allow them to SlurmUser (docs/htcondor.md), or run the daemon as root"
        raise RefusedError(subject, said, remedy) from error
