"""The ways of reading Slurm behind one interface, and the turning to another when one fails."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeVar

from backfill.core.model.cluster import Job, Node
from backfill.ports.errors import BusyError, DriverError, NotFoundError, UnreachableError

_LOG = logging.getLogger("backfill.slurm")
# For how long a way that failed is left alone; at most, after it was silent again and again.
REST_S = 60.0
LONGEST_REST_S = 3600.0
# The way that asks the controller for the least: where it hears nothing, no other would.
_PLAINEST = "text"
_Answer = TypeVar("_Answer")


class BrokenPathError(UnreachableError):
    """The way of reading itself does not work (no such program, no socket): ask another way."""


class ReadPath(Protocol):
    """One way of reading. Safe from several threads; raises DriverError only; never hangs.

    All ways answer with the same values. Names and ids have been checked by the caller.
    """

    @property
    def name(self) -> str:
        """As in the policy file."""

    def everything(self) -> tuple[dict[str, Node], dict[str, Job]]:
        """All nodes, those that never registered included, and all jobs, by name and id."""

    def all_jobs(self) -> dict[str, Job]:
        """Every job that Slurm knows, one for each task of an array, by id."""

    def jobs(self, ids: Collection[str]) -> dict[str, Job]:
        """Read these jobs; unknown ids are absent."""

    def jobs_on(self, names: Collection[str]) -> dict[str, Job]:
        """Every job on these nodes, all of which have registered. NotFoundError: one is gone."""

    def nodes(self, names: Collection[str]) -> dict[str, Node]:
        """Read these nodes; unknown names are absent."""

    def close(self) -> None:
        """Give back processes and connections; the next question opens them again."""


class Failover:
    """The first way that works. A way that failed is left alone for a minute.

    Where an answer cannot be read, a way does not work at all or is refused (a permission, a crash
    of its tool), the next way is asked at once. Silence is passed on, because it may be the
    controller's and asking again would take as long again; the next question goes the next way. A
    way that is too slow for this cluster is silent every time it is tried, which costs a picture:
    it rests twice as long after each time. Where text is silent it is the controller that is, and
    text is asked again.
    """

    def __init__(self, paths: Sequence[ReadPath], now: Callable[[], float] = time.monotonic) -> None:
        self._paths = tuple(paths)
        self._now = now
        # Until when each way rests; a plain assignment, so that threads need no lock.
        self._rests: Mapping[str, float] = {}
        self._silences: Mapping[str, int] = {}  # of each way, one after the other

    @property
    def name(self) -> str:
        """The way that is gone at present."""
        return self._awake()[0].name

    def everything(self) -> tuple[dict[str, Node], dict[str, Job]]:
        """See ReadPath."""
        return self._ask(lambda path: path.everything())

    def all_jobs(self) -> dict[str, Job]:
        """See ReadPath."""
        return self._ask(lambda path: path.all_jobs())

    def jobs(self, ids: Collection[str]) -> dict[str, Job]:
        """See ReadPath."""
        return self._ask(lambda path: path.jobs(ids))

    def jobs_on(self, names: Collection[str]) -> dict[str, Job]:
        """See ReadPath."""
        return self._ask(lambda path: path.jobs_on(names))

    def nodes(self, names: Collection[str]) -> dict[str, Node]:
        """See ReadPath."""
        return self._ask(lambda path: path.nodes(names))

    def close(self) -> None:
        """See ReadPath."""
        for path in self._paths:
            path.close()

    def _awake(self) -> list[ReadPath]:
        """Return the ways to try, best first; all of them when all rest."""
        now_s = self._now()
        return [p for p in self._paths if self._rests.get(p.name, 0.0) <= now_s] or [*self._paths]

    def _ask(self, question: Callable[[ReadPath], _Answer]) -> _Answer:
        paths = self._awake()
        for path, following in itertools.pairwise(paths):
            try:
                return self._heard(path, question(path))
            except (NotFoundError, BusyError):
                raise  # these are answers: another way would only be told the same
            except DriverError as error:
                if not isinstance(error, UnreachableError) or isinstance(error, BrokenPathError):
                    self._rest(path, following, error, REST_S)
                    continue
                if path.name != _PLAINEST:
                    silences = self._silences.get(path.name, 0)
                    self._silences = {**self._silences, path.name: silences + 1}
                    rest_s = min(LONGEST_REST_S, REST_S * 2.0**silences)
                    self._rest(path, following, error, rest_s)
                raise
        return self._heard(paths[-1], question(paths[-1]))

    def _heard(self, path: ReadPath, answer: _Answer) -> _Answer:
        if path.name in self._silences:
            self._silences = {n: s for n, s in self._silences.items() if n != path.name}
        return answer

    def _rest(self, path: ReadPath, following: ReadPath, error: Exception, rest_s: float) -> None:
        self._rests = {**self._rests, path.name: self._now() + rest_s}
        _LOG.warning(
            "reading Slurm by %s failed (%s); it is read by %s for the next %.0f s",
            path.name,
            error,
            following.name,
            rest_s,
        )
