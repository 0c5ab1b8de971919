"""The phases of a managed node, and the one table of which may follow which."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from backfill.core.model.fleet import Flavour, Rung
from backfill.core.model.keys import Option
from backfill.core.model.readiness import GuestReport


class Phase(StrEnum):
    """Where one of our nodes is in its life. Ours, unlike the states that others report."""

    BOOTING = "booting"  # being made, or made and not yet proven
    READY = "ready"  # proven; Slurm may give it jobs
    DRAINING = "draining"  # no new jobs; goes when the last one ends
    EVICTING = "evicting"  # its host is wanted: stop it, then tell Slurm
    THROTTLED = "throttled"  # its host is wanted, and it goes on with next to no CPU
    PARKED = "parked"  # stopped; its jobs are suspended in Slurm and wait
    MOVING = "moving"  # on its way to another host
    RETURNING = "returning"  # being brought back to work, step by step
    REMOVING = "removing"  # instance and node are being taken away
    FAILED = "failed"  # taken away after a failure; tried again after a back-off
    GIVEN_UP = "given-up"  # failed too often; tried again once others work, or after a long rest


# One table: from each phase, the phases that may follow. Absent pairs are programmer's errors.
TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.BOOTING: frozenset({Phase.READY, Phase.EVICTING, Phase.REMOVING}),
    Phase.READY: frozenset({Phase.DRAINING, Phase.EVICTING, Phase.REMOVING}),
    Phase.DRAINING: frozenset({Phase.READY, Phase.EVICTING, Phase.REMOVING}),
    Phase.EVICTING: frozenset({Phase.THROTTLED, Phase.PARKED, Phase.MOVING, Phase.RETURNING, Phase.REMOVING}),
    Phase.THROTTLED: frozenset({Phase.EVICTING, Phase.RETURNING, Phase.REMOVING}),
    Phase.PARKED: frozenset({Phase.MOVING, Phase.RETURNING, Phase.REMOVING}),
    Phase.MOVING: frozenset({Phase.PARKED, Phase.RETURNING, Phase.EVICTING}),
    Phase.RETURNING: frozenset({Phase.READY, Phase.EVICTING, Phase.PARKED, Phase.REMOVING}),
    Phase.REMOVING: frozenset({Phase.FAILED, Phase.GIVEN_UP, Phase.EVICTING}),
    Phase.FAILED: frozenset({Phase.BOOTING}),  # with the next generation
    # The same; or a person has its record dropped; or it failed for an order alone, which goes.
    Phase.GIVEN_UP: frozenset({Phase.BOOTING, Phase.FAILED}),
}


# Phases in which the instance may be using its host's CPUs with our consent.
ON_CPU = frozenset({Phase.BOOTING, Phase.READY, Phase.DRAINING, Phase.RETURNING})


# Of these nothing is left outside.
OVER = (Phase.FAILED, Phase.GIVEN_UP)


# Phases in which no instance exists, or none will in a moment.
ABSENT = frozenset({Phase.REMOVING, Phase.FAILED, Phase.GIVEN_UP})


class EvictionCause(StrEnum):
    """For whom or what a node is pushed off its host's CPUs."""

    JOB = "job"  # Slurm gave the host to a job
    MAINTENANCE = "maintenance"  # the host's maintenance is near
    OPERATOR = "operator"  # a person closed the host or the node
    BUDGET = "budget"  # a budget allows fewer at work now
    CHECKPOINT = "checkpoint"  # a checkpoint of it was ordered, or ordered back
    PUT_OFF = "put-off"  # its return came to nothing, and is tried later
    FELLOW = "fellow"  # another machine of its job stands still
    STOPPED = "stopped"  # it was found standing still, or stopped in Slurm


@dataclass(frozen=True, slots=True)
class JobLimit:
    """The time limit of a job, or of one component of it, as it was before we raised it."""

    id: str
    limit_s: float = field(metadata={"span": True})


@dataclass(frozen=True, slots=True)
class RefusedSuspend:
    """Slurm would not suspend a job that stands still: its time limit runs meanwhile."""

    words: str  # Slurm's
    since_s: float  # since when it stands still all the same
    limits: tuple[JobLimit, ...] = ()  # its own, and those of its other components


@dataclass(frozen=True, slots=True)
class JobPatience:
    """Whoever a job answers to outside Slurm waits for so long, from when it was stopped."""

    since_s: float
    left_s: float = field(metadata={"span": True})
    # What it owed then of its patience for earlier stops; None: that was not kept.
    owed_s: float | None = field(default=None, metadata={"span": True})

    def of(self, patience_s: float) -> JobPatience:
        """Return what it is where the policy file gives it so long in all."""
        left_s = min(self.left_s, patience_s) if self.owed_s is None else max(0.0, patience_s - self.owed_s)
        return replace(self, left_s=left_s)

    @property
    def over_s(self) -> float:
        """From when on the job may not run any more."""
        return self.since_s + self.left_s


@dataclass(frozen=True, slots=True)
class Stood:
    """For how long a job had stood still when it went on: time at work pays that back."""

    id: str
    restarts: int
    spent_s: float = field(metadata={"span": True})
    at_s: float

    def owed_s(self, now_s: float) -> float:
        """Return how much of that is left by now."""
        return max(0.0, self.spent_s - max(0.0, now_s - self.at_s))


@dataclass(frozen=True, slots=True)
class Setback:
    """How often a run of a job was pushed aside here."""

    id: str
    restarts: int
    times: int


class Way(Option):
    """What is done for a job that stands still while Slurm's clock goes on for it."""

    EXTEND = "extend", "the stop is added to its time limit"
    MOVE = "move", "the same, and it continues elsewhere as soon as another host has room"
    REQUEUE = "requeue", "it starts again at once, unless it is a --no-requeue job"
    WAIT = "wait", "nothing: its time limit runs, and Slurm may end it"


@dataclass(frozen=True, slots=True)
class HeldJob:
    """A job frozen together with its instance: the fence compares Slurm's word with this."""

    id: str
    restarts: int
    ours: bool = True  # we suspended it in Slurm, or will; False: somebody else had, before us
    refused: RefusedSuspend | None = None
    # False: of which run of the job the copy is was lost with the journal; it waits as it is.
    sure: bool = True
    patience: JobPatience | None = None  # None: it has no end
    # Slurm gave it to the node when the instance stood still already: there may be no copy of it.
    late: bool = False
    # A later run of it, which Slurm showed before it forgot the job: what stands still is stale for good.
    later_run: int | None = None

    def overdue(self, now_s: float) -> bool:
        """Return True if it has stood still for longer than it could."""
        return self.patience is not None and now_s >= self.patience.over_s

    def standing_since(self, since_s: float) -> HeldJob:
        """Return it with a patience, if it has one, that counts from then on."""
        return replace(self, patience=self.patience and replace(self.patience, since_s=since_s))


class Cause(StrEnum):
    """Why the work on a node may be destroyed. There is no other reason (core/reconcile/condemn.py)."""

    STALE = "stale"  # Slurm shows another run of a job than the one that stands still here
    ENDED = "ended"  # Slurm shows that every job that stands still here has ended
    MISSING = "missing"  # Slurm shows none of these jobs, and never showed that they ended
    FORGOTTEN = "forgotten"  # Slurm does not know the node
    LOST = "lost"  # its hypervisor shows that nothing of it runs or is kept
    VANISHED = "vanished"  # its hypervisor does not show it at all, and no other does
    REBOOTED = "rebooted"  # somebody booted its guest anew while its memory was on disk
    SILENT = "silent"  # neither Slurm nor its hypervisor gets an answer from the guest
    HALF = "half"  # a checkpoint was put back here, and could not be put back elsewhere
    OLD = "old"  # an earlier generation of a node that was removed
    LADDER = "ladder"  # the policy's ladder names requeue
    UNSTOPPED = "unstopped"  # the same, because nothing before that has stopped it in time
    RECLAIMED = "reclaimed"  # its room's owner wants it back, for scale.reclaim_within_s
    STRANGER = "stranger"  # a job that has just begun is not its owner's to run on this image
    HOST_OFF = "host-off"  # a person says that its host is off for good
    PATIENCE = "patience"  # the policy says how long its jobs may stand still, and that is over


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What was found against the work on a node, since when, and how often it was read again."""

    cause: Cause
    since_s: float
    read_s: float | None = None  # when the latest of these readings began
    times: int = 0


@dataclass(frozen=True, slots=True)
class Condemned:
    """The work on a node is given up. In REMOVING, or PARKED while its jobs go to the queue."""

    cause: Cause
    since_s: float
    before: str = ""  # the node's reason until then: who wanted its host


@dataclass(frozen=True, slots=True)
class NodeStop:
    """How a node is pushed aside, or drained: from DRAINING or EVICTING until it is READY again."""

    since_s: float  # when the drain, or this rung, began
    rung: int = 0  # index into the ladder
    kind: Rung | None = None  # what that rung was; the ladder may change meanwhile
    drained_s: float | None = None  # when it was first seen drained, and stopped where it is to be
    doomed: bool = False  # once stopped it is not brought back: it is removed
    target: str | None = None  # host it moves to
    cause: EvictionCause | None = None  # of an eviction; None: it is drained, or nobody knows
    workload: str = ""  # whose ladder it is; empty: that of all jobs
    first: int = 0  # the rung with which it began
    foreseen: bool = False  # that was chosen by how long its host is expected to be wanted
    warned_s: float | None = None  # when its jobs were told that they have to go
    ran_s: float | None = None  # until when its jobs ran, where that is known: a stop may take many tries
    told: str | None = None  # why it was stopped, as the drain of its node tells; None: it does not
    counted_s: float | None = None  # up to here, time without a daemon was left out of the rung's


@dataclass(frozen=True, slots=True)
class JobCheck:
    """Do its jobs go on after a stop? From PARKED until their processes were seen to."""

    suspended_s: float  # when they were last suspended in Slurm
    probed_s: float | None = None  # when their processes were last looked at
    stuck_s: float | None = None  # since when they were all found stopped; None: they go on
    kicked: tuple[str, ...] = ()  # jobs that we suspend for that reason, only to resume them


@dataclass(frozen=True, slots=True)
class NodeProof:
    """What a node has shown of itself since it was made."""

    proven_s: float | None = None  # when it last proved itself
    first_s: float | None = None  # when the first report of this phase came
    report: GuestReport | None = None  # the last one
    woken_s: float | None = None  # when clock and slurmd were last set right


@dataclass(frozen=True, slots=True)
class CheckpointOrder:
    """A checkpoint that was ordered and is not kept yet, or that is to be put back."""

    id: str
    members: tuple[str, ...]  # all nodes of the order
    restoring: bool = False  # it is to be put back, not made
    put_back: bool = False  # that has been done here
    kept: bool = False  # it has been kept here
    failed: str = ""  # why a part of the job has the old state and can never have the new one


@dataclass(frozen=True, slots=True)
class SavedRun:
    """The last whole checkpoint of the job on a node, and the run of the job that it holds."""

    id: str
    job: str
    restarts: int
    members: tuple[str, ...]  # all nodes of the job


@dataclass(frozen=True, slots=True)
class Retry:
    """What came to nothing, and when it is tried again."""

    failures: int = 0  # boots in a row
    returns: int = 0  # returns in a row
    not_before_s: float | None = None  # of the next try of a boot, or of a return
    cleared: bool = False  # others have become ready since it was given up; its next try is to tell
    blamed: int = 0  # such tries that failed while nobody else was in trouble


@dataclass(frozen=True, slots=True)
class ManagedNode:
    """A Slurm node that we own together with its instance. Times in epoch seconds.

    A part that does not apply in the present phase is None, and so is a time that has not come.
    """

    name: str
    address: str  # CIDR
    host: str
    generation: int
    phase: Phase
    since_s: float  # when the phase began
    created_s: float
    reason: str = ""
    held: tuple[HeldJob, ...] = ()
    stop: NodeStop | None = None
    check: JobCheck | None = None
    proof: NodeProof = NodeProof()
    order: CheckpointOrder | None = None
    ordered_s: float | None = None  # when a checkpoint of it was last ordered
    retry: Retry = Retry()
    suspicion: Suspicion | None = None
    condemned: Condemned | None = None
    # Why it was not destroyed: what Slurm or its hypervisor said when asked directly before.
    unconfirmed: str | None = None
    fail: bool = False  # removal counts as a failure
    idle_since_s: float | None = None  # since when no job was on it; None while one is
    evictions: int = 0
    fleet: str = ""  # id of the order of which it is a member
    image: str = ""  # master image; empty: that of the policy file
    devices: tuple[str, ...] = ()  # what it offers of that of which its host has few
    # The shape with which it was made. None, in old records: that of the policy file, as far as is known.
    flavour: Flavour | None = None
    job: str = ""  # whose own machine it is, and nobody else's; empty: everybody's
    inside: bool = False  # that job has the host itself: it is within the allocation
    stood: tuple[Stood, ...] = ()  # of its jobs that do not wait for ever
    saved: SavedRun | None = None
    left: str = ""  # a host that is off for good, from which its job went on elsewhere
    found: bool = False  # it was taken over: for whom it was made is in no record
    setbacks: tuple[Setback, ...] = ()  # of the jobs that were on it when it was last pushed aside

    @property
    def stopping(self) -> NodeStop:
        """Its stop; where no record of that exists, it began with the phase, at the first rung."""
        return self.stop if self.stop is not None else NodeStop(self.since_s)

    @property
    def target(self) -> str | None:
        """The host it moves to."""
        return None if self.stop is None else self.stop.target

    @property
    def hosts(self) -> tuple[str, ...]:
        """Its host, and the one it moves to."""
        target = self.target
        return (self.host,) if target is None else (self.host, target)

    @property
    def doomed(self) -> bool:
        """Return True if it is removed once it is stopped, and not brought back."""
        return self.stop is not None and self.stop.doomed

    @property
    def woken_since(self) -> bool:
        """Return True if its clock and slurmd were set right in this phase."""
        return self.proof.woken_s is not None and self.proof.woken_s >= self.since_s


# Of what the record of a node is made, so far as it has times of ours.
PARTS = (
    ManagedNode,
    HeldJob,
    JobPatience,
    Stood,
    RefusedSuspend,
    NodeStop,
    JobCheck,
    NodeProof,
    Retry,
    Suspicion,
    Condemned,
)


def inherit(node: ManagedNode, known: ManagedNode | None) -> ManagedNode:
    """Give the record the report that the one before has: a report is never taken back."""
    if known is None or known.generation != node.generation or node.proof.report is not None:
        return node
    if known.proof.report is None:
        return node
    return with_report(node, known.proof.report)


def disinherit(node: ManagedNode, known: ManagedNode | None) -> ManagedNode:
    """Take out of the record the report that `inherit` puts in again, if it is that of the one before."""
    if known is None or known.generation != node.generation or node.proof.report is None:
        return node
    return with_report(node, None) if node.proof.report == known.proof.report else node


def with_report(node: ManagedNode, report: GuestReport | None) -> ManagedNode:
    """Put this report into the record, or take out the one that is there."""
    return replace(node, proof=replace(node.proof, report=report))


def stood_since(node: ManagedNode, ran_s: float) -> ManagedNode:
    """Return the record when its jobs are known to have run until then."""
    return node if node.stop is None else replace(node, stop=replace(node.stop, ran_s=ran_s))


def set_back(node: ManagedNode, runs: Iterable[tuple[str, int]]) -> tuple[Setback, ...]:
    """Count one more for each of these runs of jobs, by id and restarts, and forget the others."""
    known = {(one.id, one.restarts): one.times for one in node.setbacks}
    return tuple(Setback(*run, known.get(run, 0) + 1) for run in runs)


def still_since_s(node: ManagedNode) -> float | None:
    """Return since when its jobs stand still, over all phases of its stop; None: they do not.

    Each rung counts its time anew, so its beginning is only right until the node was seen to be stopped.
    """
    stop = node.stop
    if stop is None or node.phase is Phase.DRAINING:
        return None
    known = (stop.ran_s, stop.drained_s, stop.since_s)
    return next(at_s for at_s in known if at_s is not None)


def woken(node: ManagedNode, at_s: float) -> ManagedNode:
    """Note in the record that its guest's clock was set and its slurmd told to register."""
    return replace(node, proof=replace(node.proof, woken_s=at_s))


def without(node: ManagedNode, jobs: Collection[str]) -> ManagedNode:
    """Return the record after its guest ended what stood still in it of these jobs."""
    return replace(node, held=tuple(one for one in node.held if one.id not in jobs))


def outrun(node: ManagedNode, job_id: str, run: int) -> ManagedNode:
    """Return the record after Slurm forgot the job, whose last run there was this one."""
    held = (
        replace(one, later_run=run) if one.id == job_id and one.restarts < run else one for one in node.held
    )
    return replace(node, held=tuple(held))


def left_to_others(node: ManagedNode, job_id: str) -> ManagedNode:
    """Return the record after our call found the job suspended: to let it go on is not ours."""
    return replace(node, held=tuple(replace(h, ours=h.ours and h.id != job_id) for h in node.held))


def unwoken(node: ManagedNode) -> NodeProof:
    """Its proof when it is to be woken once more."""
    return replace(node.proof, woken_s=None)


def reported(node: ManagedNode, at_s: float, report: GuestReport) -> ManagedNode:
    """Note in the record what its guest reported when it had to prove itself."""
    first_s = node.proof.first_s
    if first_s is None or first_s <= node.since_s:
        first_s = at_s
    return replace(node, proof=replace(node.proof, first_s=first_s, report=report))


def probed(node: ManagedNode, at_s: float, stuck: bool) -> ManagedNode:
    """Note in the record that its guest was looked into, and whether its jobs are stuck."""
    check = node.check
    if check is None:
        return node  # that has been settled meanwhile
    since_s = at_s if check.stuck_s is None else check.stuck_s
    return replace(node, check=replace(check, probed_s=at_s, stuck_s=since_s if stuck else None))


def kicked(node: ManagedNode, at_s: float) -> ManagedNode:
    """Note in the record that a job was suspended and resumed. Its signal may come late as well."""
    jobs = () if node.check is None else node.check.kicked
    return replace(node, check=JobCheck(at_s, probed_s=at_s, kicked=jobs))


def unconfirmed(node: ManagedNode, reason: str) -> ManagedNode:
    """Note that Slurm or the hypervisor did not bear out why the node's work was to end."""
    return replace(node, unconfirmed=reason)


def kept_here(node: ManagedNode) -> ManagedNode:
    """Note in the record that the checkpoint that was ordered was kept here."""
    return node if node.order is None else replace(node, order=replace(node.order, kept=True))


def in_place(node: ManagedNode) -> ManagedNode:
    """Note in the record that the checkpoint that was ordered back was put in place here."""
    return node if node.order is None else replace(node, order=replace(node.order, put_back=True))


def stood_still(node: ManagedNode, going: Iterable[HeldJob], at_s: float) -> tuple[Stood, ...]:
    """Return what its jobs owe of their patience, now that these have gone on since `at_s`."""
    going = tuple(one for one in going if one.patience is not None)
    runs = {(one.id, one.restarts) for one in going}
    before = {(one.id, one.restarts): one for one in node.stood}
    kept = [one for run, one in before.items() if run not in runs and one.owed_s(at_s) > 0.0]
    for held in going:
        assert held.patience is not None
        last = before.get((held.id, held.restarts))
        owed_s = 0.0 if last is None else last.owed_s(held.patience.since_s)
        spent_s = owed_s + max(0.0, at_s - held.patience.since_s)
        kept.append(Stood(held.id, held.restarts, spent_s, float(at_s)))
    return tuple(kept)


def back_at_work(node: ManagedNode, going: Collection[HeldJob], at_s: float) -> tuple[Stood, ...]:
    """Return what its jobs owe of their patience at the end of a return that took until `at_s`.

    Jobs that Slurm would not suspend have worked since their guest answered, however long all else took.
    """
    answered_s = _answered_s(node)
    ran = [one for one in going if one.refused is not None]
    resumed = [one for one in going if one.refused is None]
    node = replace(node, stood=stood_still(node, ran, at_s if answered_s is None else answered_s))
    return stood_still(node, resumed, at_s)


def _answered_s(node: ManagedNode) -> float | None:
    """Return since when its guest has answered in this phase; None: it has not."""
    first_s, woken_s = node.proof.first_s, node.proof.woken_s
    if woken_s is None or woken_s < node.since_s:
        return None
    return first_s if first_s is not None and first_s >= node.since_s else woken_s


def checkpointed(node: ManagedNode) -> bool:
    """Return True if a checkpoint of it is made or put back, or it returns from one, or returned badly."""
    if node.order is not None or node.stop is None:
        return node.order is not None
    back = node.phase is Phase.RETURNING and node.stop.since_s == node.ordered_s
    return back or node.stop.cause is EvictionCause.PUT_OFF


def interrupted(node: ManagedNode) -> dict[str, object]:
    """Fields of a node whose return is broken off: what its jobs did meanwhile counts for them.

    Only after its guest has answered is it known that they have gone on.
    """
    since_s = _answered_s(node)
    if since_s is None:
        return {}
    held = tuple(replace(one, patience=None) for one in node.held)
    return {"held": held, "stood": stood_still(node, node.held, since_s)}


def given_up_for(node: ManagedNode, cause: Cause) -> str:
    """Name why the work on a node was given up; its ladder may have been left at the beginning."""
    stop = node.stopping
    return "foreseen" if cause is Cause.LADDER and stop.foreseen and stop.rung == stop.first else cause.value


class InvalidTransitionError(AssertionError):
    """A phase followed another that the table does not allow: a programmer's error."""

    def __init__(self, node: ManagedNode, to: Phase) -> None:
        super().__init__(
            f"{node.name} (generation {node.generation}) may not go from {node.phase} to {to}; "
            f"it was {node.phase} because: {node.reason or 'no reason was kept'}"
        )


def check_transition(node: ManagedNode, to: Phase) -> None:
    """Raise InvalidTransitionError unless the table allows `node` to become `to`."""
    if to is not node.phase and to not in TRANSITIONS[node.phase]:
        raise InvalidTransitionError(node, to)
