"""The shapes of the API's answers: what OpenAPI tells, and what tests hold the daemon's answers to.

Answers are passed on as the daemon made them, and are not made anew from these types: that would
cost more than the answers themselves. Times are epoch seconds of the daemon, units stand in names.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class _Exact(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Open(BaseModel):
    """With further fields that depend on its kind."""

    model_config = ConfigDict(extra="allow")


class Trouble(_Exact):
    """Why there is no answer: one sentence."""

    error: str


class ReadyAnswer(_Exact):
    """Return True if the daemon can do its work; `why` it cannot."""

    ready: bool
    why: str


class CallerAnswer(_Exact):
    """Who asks. `role`: reader, operator, admin, or empty; `by`: token or session."""

    user: str
    role: str
    by: str


class MeAnswer(CallerAnswer):
    """And what of others Slurm's PrivateData keeps from them: `jobs`, `nodes`."""

    hidden: list[str]
    csrf: str = Field(description="With a session: to be sent as X-CSRF-Token with each act; else empty.")


class SessionAnswer(CallerAnswer):
    """A session that has begun: `csrf` is to be sent as X-CSRF-Token with each act."""

    csrf: str
    until_s: float


class RefusalTold(_Open):
    """Something that was wanted and is not done."""

    code: str = Field(description="Stable: programs go by it.")
    subject: str
    what: str
    reason: str
    sentence: str


class CallTold(_Exact):
    """A call to Slurm or a hypervisor: under way, or waiting for its next try."""

    key: str
    host: str
    running: bool
    since_s: float
    attempts: int
    not_before_s: float
    problem: str
    final: bool
    finals: int = Field(description="How often in a row it was found that trying again cannot help.")


class ClaimTold(_Exact):
    """A job to which Slurm gave hosts of ours."""

    job_id: str
    hosts: list[str]
    since_s: float
    waiting: bool
    nodes: list[str]


class SourceTold(_Exact):
    """How fresh the picture of Slurm or of a host is."""

    seen_s: float
    failed_s: float
    problem: str
    odd_s: float


class HooksRefusedTold(_Open):
    """Hooks that were not believed."""

    why: str
    count: int


class WorkLostTold(_Exact):
    """Runs of jobs that came to nothing, of one day (UTC), workload and cause."""

    day: str
    workload: str
    cause: str
    runs: int
    core_s: float


class PayloadsLostTold(_Exact):
    """Runs of payloads that came to nothing, and the seconds that they had worked."""

    runs: int
    s: float


class PayloadSumsTold(_Exact):
    """Payloads that are done, and what was lost, by cause: of one day (UTC), or of one pilot's job."""

    day: str = ""
    pilot: str = ""
    done: int
    worked_s: float
    lost: dict[str, PayloadsLostTold]


class PayloadsTold(_Exact):
    """What pilots have brought, by the account of their pool."""

    days: list[PayloadSumsTold]
    pilots: list[PayloadSumsTold]


class PoolTold(_Exact):
    """The pool outside; `seen_s` 0: it has not answered yet."""

    seen_s: float
    idle: int
    problem: str
    silent: list[str] = Field(description="Access points without an answer: more may wait there.")


class StatusAnswer(_Exact):
    """The cluster on one page."""

    cluster: str
    policy: dict[str, Any]
    now_s: float
    clock: str
    sentence: str
    phases: dict[str, int]
    low_priority_jobs_waiting: int
    planner: dict[str, int]
    work_lost: list[WorkLostTold]
    payloads: PayloadsTold
    pool: PoolTold | None
    hooks_not_believed: list[HooksRefusedTold]
    sources: dict[str, SourceTold]
    claims: list[ClaimTold]
    refusals: list[RefusalTold]
    operations: list[CallTold]


class HostTold(_Exact):
    """A machine that carries instances."""

    name: str
    node: str | None
    cpus: int
    memory_mb: int
    reachable: bool
    problem: str
    busy: float | None
    parents: list[dict[str, Any]]
    numa: list[dict[str, Any]] = Field(
        description="Its NUMA nodes, to one of which each instance is bound; empty: to none."
    )
    given_to: list[str]
    instances: list[str]
    closed: str


class NodeTold(_Open):
    """One of our nodes, what it does and why."""

    name: str
    phase: str
    since_s: float
    reason: str
    host: str
    target: str
    address: str
    generation: int
    slurm_state: str
    slurm_reason: str
    jobs: list[str]
    held: list[dict[str, Any]]
    still_since_s: float | None = Field(
        description="Since when its jobs stand still, over all phases of a stop; null: it is not stopped."
    )
    closed: str = Field(description="Why a person has closed it; empty: nobody has.")
    failures: int
    evictions: int


class InstanceTold(_Exact):
    """An instance as its hypervisor shows it."""

    name: str
    host: str
    state: str
    generation: int
    cpus: int
    memory_mb: int
    rss_mb: int | None
    numa: int | None = Field(description="The NUMA node to which it is bound; null: to none.")
    problem: str
    phase: str


class _Page(_Exact):
    next: str | None = Field(
        description="Give it as `after` for the following entries; null: there are no further pages."
    )
    total: int = Field(description="How many there are on all pages.")


class _Ranked(_Page):
    in_trouble: int = Field(description="How many on all pages are in trouble.")


class HostsAnswer(_Ranked):
    """Hosts in order of their names, or those in trouble first."""

    hosts: list[HostTold]


class NodesAnswer(_Ranked):
    """Our nodes in order of their names, or those in trouble first."""

    now_s: float
    nodes: list[NodeTold]


class InstancesAnswer(_Page):
    """Instances in order of their hosts and names."""

    instances: list[InstanceTold]


class StepTold(_Open):
    """A step that would begin now."""

    t: str
    sentence: str


class PlanAnswer(_Exact):
    """What would be done now, and what not; nothing begins by asking."""

    actions: list[StepTold]
    refusals: list[RefusalTold]
    under_way: list[CallTold]
    awaited: list[str]


class MineTold(_Exact):
    """A job of the one who asks."""

    id: str
    name: str
    state: str
    partition: str
    nodes: list[str]
    phase: str = Field(description="Of its node; empty: it is on none of ours.")
    paused_since_s: float | None = Field(
        description="Since when it stands still because of us; null: it does not, or somebody else's doing."
    )
    why: str
    host_free_s: float | None = Field(description="When its host is free at the latest, by time limits.")


class MineAnswer(_Exact):
    """The jobs of the one who asks that have to do with instances."""

    now_s: float
    jobs: list[MineTold]


class OperationsAnswer(_Page):
    """Calls to Slurm and hypervisors that are under way, or wait for their next try."""

    now_s: float
    operations: list[CallTold]


class HarvestHourTold(_Exact):
    """Core seconds of one hour."""

    from_s: float
    room: float = Field(description="Of all hosts that answered.")
    metal: float = Field(description="Of the room, given to jobs on the hosts' own nodes.")
    worked: float = Field(description="By jobs on instances.")
    lost: float = Field(description="Work on instances that came to nothing in this hour.")


class HarvestAnswer(_Exact):
    """The harvest of the latest eight days, the oldest hour first; a minute old at most."""

    now_s: float
    hours: list[HarvestHourTold]


class FleetTold(_Open):
    """One order for instances that are made all or not at all."""

    id: str
    size: int
    state: str
    reason: str
    ready: int


class FleetsAnswer(_Exact):
    """All orders, the oldest first."""

    now_s: float
    fleets: list[FleetTold]


class EventTold(_Exact):
    """A line of the journal as a sentence."""

    id: int
    at_s: float
    kind: str
    subject: str
    body: dict[str, Any]
    text: str


class EventsAnswer(_Exact):
    """Events, oldest first; `more`: reading goes on at `read_to`, or before `read_from`.

    `newest`: the journal's last id; lower than `after` where an older copy of the journal was put back.
    """

    events: list[EventTold]
    read_from: int
    read_to: int
    newest: int
    more: bool


class StoryLine(_Exact):
    """A line of one subject's story."""

    id: int
    at_s: float
    text: str


class MachinesTold(_Open):
    """What a job has as its own machines."""

    state: str
    since_s: float
    what: str
    members: list[str]
    reason: str
    use: dict[str, float] = Field(description="Instance hours and core hours so far, from their first begin.")
    steps_s: dict[str, float | None] = Field(description="What each step took, seconds; null: not yet.")


class ExplainAnswer(_Exact):
    """Everything known about one node, host, job or fleet: now, refused, and its story."""

    subject: str
    clock: str
    node: NodeTold | None
    job: dict[str, Any] | None
    for_instances: bool = Field(description="It is a job that our nodes may take while it waits.")
    machines: MachinesTold | None
    host: HostTold | None
    fleet: FleetTold | None
    slurm: str | None
    refusals: list[RefusalTold]
    operations: list[CallTold]
    story: list[StoryLine]


class RunTold(_Exact):
    """Rows (name, lanes), names, and five numbers for each stretch, times in tenths of a second."""

    title: str
    rows: list[tuple[str, int]]
    names: list[str]
    spans: list[int]


class TimelineAnswer(_Exact):
    """The latest hours as the page draws them."""

    start_s: float
    now_s: float
    length_s: float
    kinds: list[str]
    labels: dict[str, str] = Field(description="Names of jobs by their ids.")
    looks: list[tuple[str, str, str]]
    runs: list[RunTold]


class CheckpointTold(_Exact):
    """One instance's part of a checkpoint. Those of a job on several nodes share an `id`."""

    id: str
    name: str
    job: str
    restarts: int
    generation: int
    host: str
    members: list[str]
    created_s: float
    expires_s: float
    size_mb: float
    checksum: str
    compression: str
    compression_why: str
    where: str
    problem: str
    whole: str


class CheckpointsAnswer(_Page):
    """Parts of checkpoints in order of their ids and instances."""

    quota_mb: int | None
    checkpoints: list[CheckpointTold]


class ErrandAnswer(_Exact):
    """How far it has come. `state`: running, done, or failed, for the `problems`."""

    id: str
    state: str
    problems: list[str]
    found: dict[str, Any] | None


class FamilyTold(_Exact):
    """A family of samples: (suffix of the name, labels, value; "+Inf" is no number of JSON's)."""

    name: str
    help: str
    type: str
    samples: list[tuple[str, dict[str, str], float | str]]


class MetricsAnswer(_Exact):
    """What Prometheus would read, as JSON."""

    families: list[FamilyTold]


class OrderAnswer(_Exact):
    """An order that was taken: what comes of it is seen under `follow`."""

    answer: dict[str, Any]
    follow: str


class ReloadAnswer(_Open):
    """Return True if the policy file is in force now: `problems` say why not, `changed` what is another."""

    source: str
    problems: list[str]
    changed: list[str]


class CheckAnswer(_Exact):
    """Everything that is wrong with a policy file; empty: nothing is."""

    problems: list[str]


class DayFiguresTold(_Exact):
    """What a day came to: core hours, counts, and seconds until a hook was told that its room is free."""

    metal_core_h: float
    worked_core_h: float
    lost_core_h: float
    low_completed: int
    evictions: int
    room_median_s: float | None
    room_worst_s: float | None
    steps: dict[str, int]


class DayTold(_Exact):
    """A day of the journal: what was done, and what policies would have made of its work.

    `figures`: `was done`, `policy` (the file in force, replayed) and `against` (the text). How far the first
    two are apart is how far the third may be trusted.
    """

    start_s: float
    end_s: float
    hosts: int
    cpus: int
    high_jobs: int
    low_jobs: int
    notes: list[str]
    changed: list[str]
    figures: dict[str, DayFiguresTold]


class PreviewAnswer(_Exact):
    """How far a preview has come. `state`: running, done, or failed, for the `problems`."""

    id: str
    state: str
    problems: list[str]
    found: DayTold | None
