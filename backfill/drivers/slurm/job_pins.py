"""Nodes that are one job's own: a reservation that keeps every other job off, whatever it asks for.

A feature alone guarantees nothing: whoever asks for it may come first. The reservation names the
job's owner, and the job names the reservation. A node in it cannot be deleted, and once it is taken
out the next job may have it at once: so it is taken out only by the call that deletes the node, or when
it is drained.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from backfill.core.model.cluster import Job
from backfill.core.model.quantities import fold_hostlist, parse_hostlist
from backfill.drivers.slurm.access import ReservationTools, nodes_of, reservation_call
from backfill.ports.errors import BusyError, DriverError, NotFoundError

PIN_PREFIX = "backfill-job-"
INSIDE_PREFIX = "backfill-inside-"


def pin_of(job_id: str) -> str:
    """Return the name of a job's reservation; scontrol takes no `+` in it."""
    return PIN_PREFIX + job_id.replace("+", ".")


def inside_pin(job_id: str) -> str:
    """Return the name of the reservation of machines within a job's allocation, for jobs of its owner."""
    return INSIDE_PREFIX + job_id.replace("+", ".")


def reserve(tools: ReservationTools, name: str, job: Job, nodes: Sequence[str]) -> None:
    """Keep the nodes for the job's owner by a reservation of this name."""
    listed = f"Nodes={fold_hostlist(nodes)}"
    subject = f"job {job.id}"
    try:
        reservation_call(tools, subject, "update", f"ReservationName={name}", listed)
    except NotFoundError:
        flags = "Flags=IGNORE_JOBS,OVERLAP"
        who = (f"ReservationName={name}", f"Users={job.user}", listed)
        ever = ("StartTime=now", "Duration=UNLIMITED", flags)
        reservation_call(tools, subject, "create", "reservation", *who, *ever)


def release_pin(tools: ReservationTools, job_id: str) -> None:
    """Take the job's reservations away; BusyError while it, or a job of its owner, is there."""
    found = _pins(tools)
    for pin in (pin_of(job_id), inside_pin(job_id)):
        if pin in found:
            _delete(tools, f"job {job_id}", pin)


def release_node(tools: ReservationTools, name: str) -> bool:
    """Take the node out of the reservation of a job; True: it was in one."""
    for pin, nodes in _pins(tools).items():
        if name not in nodes:
            continue
        if len(nodes) == 1 and pin.startswith(INSIDE_PREFIX):
            _delete(tools, name, pin)
        elif len(nodes) == 1:
            job_id = pin.removeprefix(PIN_PREFIX).replace(".", "+")
            with contextlib.suppress(DriverError):  # it has ended; otherwise 26.05 calls it in use
                tools.scontrol(name, "update", f"JobId={job_id}", "ReservationName=")
            _delete(tools, name, pin)
        else:
            rest = fold_hostlist(other for other in nodes if other != name)
            reservation_call(tools, name, "update", f"ReservationName={pin}", f"Nodes={rest}")
        return True
    return False


def _delete(tools: ReservationTools, subject: str, pin: str) -> None:
    try:
        reservation_call(tools, subject, "delete", f"ReservationName={pin}")
    except NotFoundError:
        return
    except BusyError as error:
        raise BusyError(subject, f"a job of its reservation {pin} is still there") from error


def _pins(tools: ReservationTools) -> dict[str, tuple[str, ...]]:
    found = map(nodes_of, tools.reservation_lines())
    ours = (PIN_PREFIX, INSIDE_PREFIX)
    return {name: parse_hostlist(nodes) for name, nodes in found if name.startswith(ours)}
