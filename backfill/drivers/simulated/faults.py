"""Failures that are ordered in advance: calls that fail, and readings that lack what is there."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from backfill.ports.errors import DriverError, UnreachableError

_FINE: AbstractContextManager[None] = nullcontext()
_Seen = TypeVar("_Seen")
_Other = TypeVar("_Other")


class Odd(StrEnum):
    """An error of a reading: it lacks things that are still there."""

    NO_JOBS = "no-jobs"  # slurmctld tells of nodes only
    NO_NODES = "no-nodes"  # slurmctld tells of jobs only
    HALF = "half"  # half of the nodes and half of the jobs are missing
    NO_INSTANCES = "no-instances"  # libvirt tells of no domain
    FEW_INSTANCES = "few-instances"  # libvirt tells of half of its domains


# Of which readings what is missing.
_JOBLESS = frozenset({Odd.NO_JOBS, Odd.HALF})
_NODELESS = frozenset({Odd.NO_NODES, Odd.HALF})
_BLIND = frozenset({Odd.NO_INSTANCES, Odd.FEW_INSTANCES})


@dataclass(slots=True)
class Misreading:
    """Readings that are odd. `everywhere`: not only of everything, but each question's answer."""

    odd: Odd
    subject: str | None
    times: int
    everywhere: bool

    def end(self) -> None:
        """From now on it is read as it is."""
        self.times = 0


@dataclass(slots=True)
class Fault:
    """One ordered failure; `subject` None means any, `times` below 0 means for ever."""

    call: str
    error: DriverError
    subject: str | None
    times: int
    acts: bool
    hang_s: float
    rate: float

    def end(self) -> None:
        """Let such calls work again."""
        self.times = 0


class Faults:
    """The failures in force. The same seed gives the same failures."""

    def __init__(self, seed: int) -> None:
        # Repeatable failures are the point here, not secrets.
        self._random = random.Random(seed)  # noqa: S311 - a seed that replays, nothing secret
        self._orders: list[Fault] = []
        self._dead_boots: dict[str, int] = {}
        self._misreadings: list[Misreading] = []

    def fail(
        self,
        call: str,
        error: DriverError,
        *,
        subject: str | None = None,
        times: int = 1,
        acts: bool = False,
        rate: float = 1.0,
    ) -> Fault:
        """Let the next `times` calls of the port method `call` raise an error like `error`.

        `subject`: only for this host, instance, node or job. `acts`: the call does its work first,
        as when an answer is lost. `rate`: share of the calls that fail, drawn from the seed.
        """
        order = Fault(call, error, subject, times, acts, 0.0, rate)
        self._orders.append(order)
        return order

    def misread(
        self, odd: Odd, *, subject: str | None = None, times: int = 1, everywhere: bool = False
    ) -> Misreading:
        """Let the next `times` readings (-1: all) lack what `odd` says, of host `subject` if given.

        Of Slurm it is the reading of everything; `everywhere`: what is asked about single jobs and
        nodes as well, as of a slurmctld that does not know them itself for a while.
        """
        order = Misreading(odd, subject, times, everywhere)
        self._misreadings.append(order)
        return order

    def misread_slurm(
        self, nodes: dict[str, _Seen], jobs: dict[str, _Other], *, all_of_it: bool = False
    ) -> tuple[dict[str, _Seen], dict[str, _Other]]:
        """Return the nodes or jobs that are shown. `all_of_it`: everything was asked for."""
        order = self._odd(frozenset(_JOBLESS | _NODELESS), None, all_of_it)
        if order is None:
            return nodes, jobs
        half = order.odd is Odd.HALF
        if order.odd in _NODELESS:
            nodes = self._some(nodes) if half else {}
        if order.odd in _JOBLESS:
            jobs = self._some(jobs) if half else {}
        return nodes, jobs

    def misread_host(self, host: str, instances: dict[str, _Seen]) -> dict[str, _Seen]:
        """Return the instances that are shown of a host."""
        order = self._odd(_BLIND, host, all_of_it=True)
        if order is None:
            return instances
        return self._some(instances) if order.odd is Odd.FEW_INSTANCES else {}

    def _some(self, seen: dict[str, _Seen]) -> dict[str, _Seen]:
        return {name: one for name, one in seen.items() if self._random.random() < 0.5}

    def _odd(self, kinds: frozenset[Odd], subject: str | None, all_of_it: bool) -> Misreading | None:
        for order in self._misreadings:
            meant = order.subject is None or order.subject == subject
            if order.odd in kinds and order.times and meant and (all_of_it or order.everywhere):
                order.times -= all_of_it and order.times > 0
                return order
        return None

    def hang(self, call: str, hang_s: float, *, subject: str | None = None, times: int = 1) -> Fault:
        """Let the call do nothing for `hang_s` and then raise UnreachableError.

        The call itself returns at once in simulated time; a runner adds `hang_s(...)`.
        """
        error = UnreachableError(subject or call, f"'{call}' did not answer for {hang_s:g} s")
        order = Fault(call, error, subject, times, False, hang_s, 1.0)
        self._orders.append(order)
        return order

    def hang_s(self, call: str, *subjects: str) -> float:
        """Return seconds for which the next such call would hang; 0 if it would not."""
        order = self._find(call, subjects)
        return order.hang_s if order is not None else 0.0

    def never_boots(self, name: str, times: int = 1) -> None:
        """Let the next `times` guests of this name, image or host never reach slurmd (-1: for ever)."""
        self._dead_boots[name] = times

    def boots(self, *names: str) -> bool:
        """Tell whether a guest of this name, image and host that starts now will boot, and count it."""
        dead = [name for name in names if self._dead_boots.get(name)]
        for name in dead:
            if self._dead_boots[name] > 0:
                self._dead_boots[name] -= 1
        return not dead

    def clear(self) -> None:
        """Let everything work again."""
        self._orders.clear()
        self._misreadings.clear()
        self._dead_boots.clear()

    @property
    def none(self) -> bool:
        """Return True if nothing is ordered."""
        return not self._orders

    def around(self, call: str, *subjects: str) -> AbstractContextManager[None]:
        """Run the body of a port call with the failure that is ordered for it, if any."""
        return self._around(call, subjects) if self._orders else _FINE

    @contextmanager
    def _around(self, call: str, subjects: tuple[str, ...]) -> Iterator[None]:
        order = self._find(call, subjects)
        if order is not None and order.rate < 1.0 and self._random.random() >= order.rate:
            order = None
        if order is None:
            yield
            return
        if order.times > 0:
            order.times -= 1
        if order.acts:
            yield
        old = order.error
        raise type(old)(old.subject, old.problem, old.remedy)

    def _find(self, call: str, subjects: tuple[str, ...]) -> Fault | None:
        for order in self._orders:
            wanted = order.subject is None or order.subject in subjects
            if order.call == call and order.times != 0 and wanted:
                return order
        return None
