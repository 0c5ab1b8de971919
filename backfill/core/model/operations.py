"""Claims on hosts, calls in flight, and how fresh what is known is."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

_FIRST_BACKOFF_S = 0.25


_LONGEST_BACKOFF_S = 60.0


# Whoever wants the host has a hook that waits for seconds only: so often these are tried each second.
_STOPS = ("PauseInstance:", "ThrottleInstance:")
_TRIES_EACH_SECOND = 10


# What was refused for good can only succeed when a person has changed something.
_FIRST_FINAL_S = 15.0


_LONGEST_FINAL_S = 600.0


@dataclass(frozen=True, slots=True)
class HostAllocation:
    """A job to which Slurm gave hosts of ours. `waiting`: a hook stands until it is answered.

    `nodes`: those of ours on which it begins, where it may need devices.
    """

    job_id: str
    hosts: tuple[str, ...]
    since_s: float
    waiting: bool
    nodes: tuple[str, ...] = ()

    def without(self, hosts: Collection[str]) -> HostAllocation:
        """Return it when its job has left these hosts."""
        return replace(self, hosts=tuple(host for host in self.hosts if host not in hosts))


@dataclass(frozen=True, slots=True)
class Operation:
    """An action in flight, or one that failed and waits for its next try."""

    key: str
    host: str
    running: bool
    since_s: float
    attempts: int = 0
    not_before_s: float = 0.0
    problem: str = ""
    final: bool = False  # trying again cannot help
    finals: int = 0  # how often in a row it was found so

    def failed(self, done: OperationDone) -> Operation:
        """Count a failure of the operation: it waits, twice as long after every further one."""
        first_s, longest_s, doublings = _FIRST_BACKOFF_S, _LONGEST_BACKOFF_S, self.attempts
        if self.key.startswith(_STOPS):
            doublings = max(min(doublings, 2), doublings - _TRIES_EACH_SECOND)
        if not done.retry:
            first_s, longest_s = _FIRST_FINAL_S, _LONGEST_FINAL_S
        wait_s = min(longest_s, first_s * 2 ** min(doublings, 30))
        return replace(
            self,
            running=False,
            attempts=self.attempts + 1,
            not_before_s=done.at_s + wait_s,
            problem=done.problem,
            final=not done.retry,
            finals=0 if done.retry else self.finals + 1,
        )


@dataclass(frozen=True, slots=True)
class UncertainOutcome:
    """A call that failed may have acted: until these hosts were read, the instance may be there."""

    at_s: float
    hosts: frozenset[str]


@dataclass(frozen=True, slots=True)
class Source:
    """How fresh our picture of an outside system is."""

    seen_s: float = 0.0
    failed_s: float = 0.0  # the last time; 0: never
    problem: str = ""
    odd_s: float = 0.0  # since when what it shows is not believed; 0: it is


@dataclass(frozen=True, slots=True)
class OperationStarted:
    """Note that an action was handed to a driver."""

    key: str
    at_s: float
    host: str  # the host whose CPUs it may bring to use, or ""


@dataclass(frozen=True, slots=True)
class AlreadySuspended:
    """A call of ours, by its key, was to suspend a job on this node; somebody had suspended it before."""

    name: str
    generation: int
    key: str
    job_id: str


@dataclass(frozen=True, slots=True)
class OperationDone:
    """A driver finished an action. `problem` is empty on success."""

    key: str
    at_s: float
    problem: str = ""
    retry: bool = True
    begun: bool = True  # False: it never reached the driver
