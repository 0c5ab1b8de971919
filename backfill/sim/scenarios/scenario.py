"""A scenario: hosts, a policy, jobs that come one after another, and what must be true at the end.

The keys of the file are the fields of these classes; `policy:` has the keys of a policy file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from backfill.core.model.fleet import Rung
from backfill.core.policy import PolicySet
from backfill.drivers.simulated.costs import StepCosts
from backfill.sim.schedulers.reservations import ReservationEntry


class JobMoment(StrEnum):
    """The progress of a job that another one waits for."""

    WAITING = "waiting"  # Slurm has it
    RUNNING = "running"  # its script has begun, or it is over already
    ENDED = "ended"


class Mishap(StrEnum):
    """A mishap of the cluster in simulated time."""

    DAEMON_KILLED = "daemon-killed"  # SIGKILL; it is started again after `for_s`
    SLURM_SILENT = "slurm-silent"  # slurmctld does not answer for `for_s`; jobs go on
    HOST_CUT = "host-cut"  # the hypervisor of `host` cannot be reached for `for_s`
    HOST_DEAD = "host-dead"  # `host` loses power for `for_s`, and then it boots
    CALL_FAILS = "call-fails"  # the next `times` calls of `call` fail, of `host` if it is given
    NEVER_BOOTS = "never-boots"  # the next `times` guests called `node` start, and no more
    JOBS_UNSEEN = "jobs-unseen"  # the next `times` readings of all of Slurm have no jobs in them
    NODES_UNSEEN = "nodes-unseen"  # nor nodes
    HALF_UNSEEN = "half-unseen"  # half of both are missing
    INSTANCES_UNSEEN = "instances-unseen"  # the next `times` readings of `host` have no domains
    FILES_OUT = "files-out"  # the file server is out for `for_s`: no guest can prove itself
    CLOCK_SET = "clock-set"  # the controller's clock is set forward by `by_s`, or back


class Assertion(StrEnum):
    """An assertion about a scenario that was played."""

    COUNTERS_WHOLE = "counters-whole"  # every counter reached its number: no gap, no duplicate
    ENDED_ONCE = "ended-once"  # every job completed, and none was started a second time
    # `job` started at most `within_s` later than `than` did, or `times` as long as that one waited.
    WAITED_LONGER = "waited-longer"
    BEGAN_WITHIN = "began-within"  # every copy of `job` began `within_s` after it was submitted
    MOVED = "moved"  # every copy of `job` was evicted and went on at host `to`
    PUSHED_ASIDE = "pushed-aside"  # every copy of `job` was stopped by the rung `by`
    NEVER_STOPPED = "never-stopped"  # no copy of `job` was stopped by any rung
    RESTARTED_AT_MOST = "restarted-at-most"  # every copy of `job` completed, with so many restarts
    NOTHING_LEFT = "nothing-left"  # no instance and no node of ours is there any more
    PAYLOADS_ONCE = "payloads-once"  # every payload is done, once, and none was at work twice
    # Of all that payloads have computed at most `percent` was in vain.
    PAYLOADS_KEPT = "payloads-kept"


@dataclass(frozen=True, slots=True)
class HostGroup:
    """Equal machines that carry instances and are Slurm nodes themselves."""

    names: tuple[str, ...]
    cpus: int = 2
    memory_mb: int = 2000


@dataclass(frozen=True, slots=True)
class When:
    """A moment: every copy of a job has been in this state for so long."""

    job: str = field(metadata={"form": "name"})
    state: JobMoment = JobMoment.RUNNING
    for_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FaultEntry:
    """A mishap, so long after the beginning, or after `when`; `Mishap` tells what it needs."""

    what: Mishap
    at_s: float = 0.0
    when: When | None = None
    for_s: float = 0.0
    host: str = field(default="", metadata={"form": "name"})
    node: str = field(default="", metadata={"form": "name"})
    call: str = field(default="", metadata={"form": "name"})
    times: int = 1
    by_s: float = 0.0


@dataclass(frozen=True, slots=True)
class JobEntry:
    """One kind of job. It runs for `run_s`, or counts to `count`, or goes on until `ends`."""

    name: str = field(metadata={"form": "name"})
    partition: str = field(metadata={"form": "name"})
    # A sentence for people.
    about: str = ""
    copies: int = 1
    cpus: int = 1
    memory_mb: int = 0
    # Nodes that it insists on.
    nodes: tuple[str, ...] = ()
    # So many copies for each of these nodes, of which each copy insists on one.
    each_of: tuple[str, ...] = ()
    # Submitted so long after the beginning, or so long after `when`.
    at_s: float = 0.0
    when: When | None = None
    run_s: float = 0.0
    # Each copy's run time is drawn between run_s and this; 0: all run for run_s.
    run_most_s: float = 0.0
    # Or from a lognormal distribution with the median run_s and this deviation, up to its limit; 0: none.
    spread: float = 0.0
    # Its time limit; 0: none.
    limit_s: float = 0.0
    # Copies arrive one by one with random (exponential) gaps of this mean; 0: all at once. With
    # `each_of`: those of each node by themselves.
    gap_s: float = 0.0
    count: int = 0
    ends: When | None = None

    @property
    def all_names(self) -> tuple[str, ...]:
        """The names of its copies."""
        return tuple(name for _, names in self.streams for name in names)

    @property
    def streams(self) -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
        """Return the nodes that copies insist on, and the names of those copies as they arrive."""
        if not self.each_of:
            return ((self.nodes, self._numbered(self.name)),)
        return tuple(((node,), self._numbered(f"{self.name}-{node}")) for node in self.each_of)

    def _numbered(self, name: str) -> tuple[str, ...]:
        return (name,) if self.copies == 1 else tuple(f"{name}-{i}" for i in range(1, self.copies + 1))


@dataclass(frozen=True, slots=True)
class PayloadsEntry:
    """A pool outside the cluster, with payloads for pilots on demand, one for each run of a pilot."""

    copies: int
    run_s: float
    # Each payload's run time is drawn between run_s and this; 0: all run for run_s.
    run_most_s: float = 0.0
    # The pool gives up a pilot that has been silent for so long; 0: only one that has ended.
    gives_up_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Expectation:
    """One assertion; which fields it needs is told at `Assertion`."""

    check: Assertion
    job: str = field(default="", metadata={"form": "name"})
    than: str = field(default="", metadata={"form": "name"})
    within_s: float = 0.5
    to: str = field(default="", metadata={"form": "name"})
    by: Rung | None = None
    times: int = 0
    percent: float = 0.0

    @property
    def title(self) -> str:
        """Name the assertion, the same before it is judged and afterwards, as a test is named."""
        parts = ((self.job, ""), (self.than, "than "), (self.to, "to "), (self.by or "", "by "))
        return " ".join([self.check, *(f"{word}{name}" for name, word in parts if name)])


class Measure(StrEnum):
    """A measure of a play that can be set beside a figure of a paper."""

    PROVISION = "provision"  # from the decision until the instance takes jobs, mean, s
    LAUNCH = "launch"  # from the first submission until every low-priority job has begun, s
    WAIT = "wait"  # from submission to the start of low-priority jobs, mean, s
    MAKESPAN = "makespan"  # from the first submission to the last end, s
    THROUGHPUT = "throughput"  # jobs ended per hour
    UTILISATION = "utilisation"  # CPU seconds of jobs, share of all hosts over the makespan


@dataclass(frozen=True, slots=True)
class PaperFigure:
    """A figure that a paper gives, or says nothing about, for one variant."""

    measure: Measure
    variant: str = field(metadata={"form": "name"})
    # What is shown is the ratio to this variant.
    against: str = field(default="", metadata={"form": "name"})
    # As the paper has it, for people; empty: no figure is known.
    paper: str = ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A checked scenario. `policy_keys`: the file's policy section as plain data, for a daemon."""

    name: str
    hosts: tuple[HostGroup, ...]
    jobs: tuple[JobEntry, ...]
    policies: PolicySet
    about: str = ""
    payloads: PayloadsEntry | None = None
    reservations: tuple[ReservationEntry, ...] = ()
    faults: tuple[FaultEntry, ...] = ()
    expect: tuple[Expectation, ...] = ()
    # A scenario that takes longer has failed.
    limit_s: float = 600.0
    # Pause between two numbers of a counting job.
    count_every_s: float = 0.1
    # The daemon reads everything so often, beside what it is told of.
    poll_s: float = 1.0
    costs: StepCosts = field(default_factory=StepCosts)
    # The same story with other costs, by name; and what a paper says of them.
    variants: dict[str, StepCosts] = field(default_factory=dict)
    paper: tuple[PaperFigure, ...] = ()
    # Of everything that is drawn.
    seed: int = 1
    policy_keys: dict[str, Any] = field(default_factory=dict)

    @property
    def host_names(self) -> tuple[str, ...]:
        """All hosts, in the order of the file."""
        return tuple(name for group in self.hosts for name in group.names)

    def entry(self, name: str) -> JobEntry:
        """Return the kind of job called `name`. KeyError if there is none."""
        for entry in self.jobs:
            if entry.name == name:
                return entry
        raise KeyError(name)

    def copies(self) -> Iterator[tuple[str, JobEntry]]:
        """Every single job with its name, and with the nodes that it insists on."""
        for entry in self.jobs:
            for nodes, names in entry.streams:
                one = entry if nodes == entry.nodes else replace(entry, nodes=nodes, each_of=())
                for name in names:
                    yield name, one
