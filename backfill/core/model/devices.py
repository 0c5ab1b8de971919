"""Devices that instances hold alone or share: virtual functions and shared memory, and who may.

The three ways in which jobs meet devices are those of Slurm-V (Zhang, Lu, Panda; Euro-Par 2016):
exclusive allocation with sequential jobs (EASJ), exclusive allocation with concurrent jobs (EACJ),
shared allocation with concurrent jobs (SACJ).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from backfill.core.model.keys import Option
from backfill.core.model.refusals import Code, Reason, because


class Sharing(Option):
    """Who may hold devices of one host at the same time."""

    ONE_JOB = "one-job", "EASJ: one job after the other"
    ONE_OWNER = "one-owner", "EACJ: several jobs of one user"
    ANYONE = "anyone", "SACJ"


@dataclass(frozen=True, slots=True)
class VirtualFunction:
    """One function of an SR-IOV card. `address`: PCI, such as 0000:3b:02.1."""

    host: str
    address: str
    card: str = ""  # address of the physical function


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one instance of a job asks for. `region_mb` 0: no memory shared with its fellows."""

    instance: str
    host: str
    job: str
    owner: str
    functions: int = 0
    region_mb: int = 0


@dataclass(frozen=True, slots=True)
class Holding:
    """What one instance holds. `region`: id of the memory that it shares, empty for none.

    `plugged`: it is all in the guest.
    """

    instance: str
    host: str
    job: str
    owner: str
    functions: tuple[str, ...] = ()
    region: str = ""
    region_mb: int = 0
    plugged: bool = False


def region_id(cluster: str, job: str, host: str) -> str:
    """Instances of one job on one host share one region, and nobody else ever has its id.

    Slurm counts jobs up, so an id does not come again while anything of it may be left.
    """
    return f"backfill-{cluster}-{job}-{host}"


def allocate(
    wanted: Wanted, pool: Iterable[VirtualFunction], held: Iterable[Holding], sharing: Sharing, cluster: str
) -> Holding | Reason:
    """Return what the instance gets, or why it gets nothing.

    All or nothing: a job that expects a device must not start without it. The same question again
    has the same answer.
    """
    holdings = list(held)
    known = next((h for h in holdings if h.instance == wanted.instance), None)
    if known is not None:
        return (
            known
            if _fits(known, wanted)
            else because(Code.DEVICES_HELD, job=known.job, host=known.host, instance=known.instance)
        )
    there = [h for h in holdings if h.host == wanted.host]
    refusal = _refusal(wanted, there, sharing)
    if refusal:
        return refusal
    taken = {address for h in there for address in h.functions}
    every = sorted(vf.address for vf in pool if vf.host == wanted.host)
    free = [address for address in every if address not in taken]
    if len(free) < wanted.functions:
        counts = {"free": len(free), "every": len(every), "functions": wanted.functions}
        return because(Code.FUNCTIONS_FREE, host=wanted.host, **counts)
    region = region_id(cluster, wanted.job, wanted.host) if wanted.region_mb else ""
    return Holding(
        wanted.instance,
        wanted.host,
        wanted.job,
        wanted.owner,
        tuple(free[: wanted.functions]),
        region,
        wanted.region_mb,
    )


def _fits(known: Holding, wanted: Wanted) -> bool:
    return (known.host, known.job, len(known.functions), known.region_mb) == (
        wanted.host,
        wanted.job,
        wanted.functions,
        wanted.region_mb,
    )


def _refusal(wanted: Wanted, there: list[Holding], sharing: Sharing) -> Reason | None:
    others = [h for h in there if h.job != wanted.job]
    if sharing is Sharing.ONE_JOB and others:
        return because(Code.DEVICES_HELD, job=others[0].job, host=wanted.host)
    strangers = [h for h in there if h.owner != wanted.owner]
    if sharing is Sharing.ONE_OWNER and strangers:
        return because(Code.DEVICES_TAKEN, holder=strangers[0].owner, host=wanted.host)
    sizes = {h.region_mb for h in there if h.job == wanted.job and h.region} - {wanted.region_mb}
    if wanted.region_mb and sizes:
        return because(Code.SHARED_OTHERWISE, job=wanted.job, host=wanted.host, region_mb=sizes.pop())
    return None
