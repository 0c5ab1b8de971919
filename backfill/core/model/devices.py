"""Devices that instances hold alone or share: virtual functions and shared memory, and who may.

The three ways in which jobs meet devices are those of Slurm-V (Zhang, Lu, Panda; Euro-Par 2016):
exclusive allocation with sequential jobs (EASJ), exclusive allocation with concurrent jobs (EACJ),
shared allocation with concurrent jobs (SACJ).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

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
    """What one instance of a job asks for. `regions`: memory that it shares with its fellows, MB each."""

    instance: str
    host: str
    job: str
    owner: str
    functions: int = 0
    regions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceLoan:
    """What each instance of a job gets while the job has it. `regions`: MB of each.

    `name`: by what the job asks for it.
    """

    name: str
    functions: int = 0
    regions: tuple[int, ...] = ()
    sharing: Sharing = Sharing.ANYONE

    @property
    def region_mb(self) -> int:
        """Memory that the job's instances on one host share, all of it."""
        return sum(self.regions)


@dataclass(frozen=True, slots=True)
class Region:
    """Memory that the instances of one job share on one host. `id`: see `region_id`."""

    id: str
    size_mb: int


@dataclass(frozen=True, slots=True)
class Holding:
    """What one instance holds. `plugged`: it is all in the guest."""

    instance: str
    host: str
    job: str
    owner: str
    functions: tuple[str, ...] = ()
    regions: tuple[Region, ...] = ()
    plugged: bool = False

    @property
    def region_mb(self) -> int:
        """All of the memory that it shares."""
        return sum(region.size_mb for region in self.regions)

    def wanted_on(self, host: str) -> Wanted:
        """Return the same request for another host."""
        sizes = tuple(region.size_mb for region in self.regions)
        return Wanted(self.instance, host, self.job, self.owner, len(self.functions), sizes)


def region_id(cluster: str, job: str, host: str, number: int, secret: str) -> str:
    """Instances of one job on one host share its regions, and nobody else ever has their ids.

    With a `secret`, nobody can put a file of that name there before.
    """
    which = job if number == 1 else f"{job}.{number}"
    return f"backfill-{cluster}-{which}-{host}-{secret}"


def allocate(
    wanted: Wanted,
    pool: Iterable[VirtualFunction],
    held: Iterable[Holding],
    sharing: Sharing,
    cluster: str,
    secret: str,
) -> Holding | Reason:
    """Return what the instance gets, or why it gets nothing.

    All or nothing: a job that expects a device must not start without it. The same question again
    has the same answer. `secret`: what nobody can guess, for the ids of regions that are new.
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
    fellows = (h.regions for h in there if h.job == wanted.job and h.regions and wanted.regions)
    regions = next(fellows, None) or tuple(
        Region(region_id(cluster, wanted.job, wanted.host, number, secret), size_mb)
        for number, size_mb in enumerate(wanted.regions, 1)
    )
    functions = tuple(free[: wanted.functions])
    return Holding(wanted.instance, wanted.host, wanted.job, wanted.owner, functions, regions)


def _fits(known: Holding, wanted: Wanted) -> bool:
    return replace(known.wanted_on(known.host), owner=wanted.owner) == wanted


def _refusal(wanted: Wanted, there: list[Holding], sharing: Sharing) -> Reason | None:
    others = [h for h in there if h.job != wanted.job]
    if sharing is Sharing.ONE_JOB and others:
        return because(Code.DEVICES_HELD, job=others[0].job, host=wanted.host)
    strangers = [h for h in there if h.owner != wanted.owner]
    if sharing is Sharing.ONE_OWNER and strangers:
        return because(Code.DEVICES_TAKEN, holder=strangers[0].owner, host=wanted.host)
    fellows = [h.wanted_on(h.host) for h in there if h.job == wanted.job and h.regions]
    others_mb = [sum(h.regions) for h in fellows if h.regions != wanted.regions]
    if wanted.regions and others_mb:
        return because(Code.SHARED_OTHERWISE, job=wanted.job, host=wanted.host, region_mb=others_mb[0])
    return None
