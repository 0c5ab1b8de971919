"""Why something wanted is not done: a code, who it is about, and the facts; no sentence."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import Enum

# Of more than so many reasons, those with the same code are told by one example.
_MOST_LISTED = 8


# A number that stands for itself, with a unit or without: not that of a name such as bm1.
_NUMBER = re.compile(r"(?<![\w.-])\d+(?:\.\d+)?(?=(?:ms|s|min|h|MB|GB|%)?(?:[\s,;:.()]|$))")


class Goal(Enum):
    """What was wanted. Some goals name one thing more, which `Refusal.about` has."""

    ANY_STEP = "any_step"
    ANY_CHANGE = "any_change"
    BELIEF = "belief"
    WORK_AS_USUAL = "work_as_usual"
    CARE = "care"
    PHASE = "phase"  # about: the phase
    INSTANCE = "instance"
    NEW_INSTANCE = "new_instance"
    NEW_INSTANCE_OF = "new_instance_of"  # about: the image
    NEW_INSTANCE_WITH = "new_instance_with"  # about: the device
    PARENT = "parent"  # about: the image
    FIRST_MEMBER = "first_member"
    FURTHER_MEMBER = "further_member"
    RETRY = "retry"
    TAKE_OVER = "take_over"
    RELEASE = "release"
    NEW_JOBS = "new_jobs"
    DRAIN = "drain"
    UNDRAIN = "undrain"
    SET_DOWN = "set_down"
    HOST_RELEASE = "host_release"
    ALL_CPUS = "all_cpus"
    SUSPEND = "suspend"
    SUSPEND_JOB = "suspend_job"  # about: the job
    JOB_LIMIT = "job_limit"  # about: the job
    JOB_GOES_ON = "job_goes_on"  # about: the job
    DEVICES = "devices"  # about: the job
    UNPLUG = "unplug"
    CHECKPOINT = "checkpoint"
    RETURN = "return"
    RETURN_TO = "return_to"  # about: the host
    MOVE = "move"
    MOVE_TO = "move_to"  # about: the host
    REQUEUE = "requeue"
    REQUEUE_JOB = "requeue_job"  # about: the job
    PLACE = "place"  # about: the node
    PILOT = "pilot"
    PILOT_TOLD = "pilot_told"  # about: the job
    REMOVAL = "removal"
    MACHINES = "machines"
    OTHER = "other"  # of a journal from before there were goals; about: its words


class Code(Enum):
    """Why. `core/model/sentences.py` has the words for people, and names the facts of each."""

    # What we can see, and may do.
    NEVER_READ = "never_read"
    STALE = "stale"
    BARRED = "barred"
    NOT_BELIEVED = "not_believed"
    READ_MORE_OFTEN = "read_more_often"
    SEEN_LONGER = "seen_longer"
    TAKEN_OVER_LATELY = "taken_over_lately"
    READ_LATELY = "read_lately"
    LIMIT = "limit"
    RAMP = "ramp"
    BUDGET = "budget"
    BUDGET_DISRUPTIONS = "budget_disruptions"
    CALL_FAILED = "call_failed"
    UNSETTLED = "unsettled"
    STEP_FAILED = "step_failed"
    # Hosts.
    HOST_UNSEEN = "host_unseen"
    HOST_UNREACHABLE = "host_unreachable"
    HOST_UNPROVEN = "host_unproven"
    HOST_NOT_NAMED = "host_not_named"
    HOST_TAKEN = "host_taken"
    HOST_CLAIMED = "host_claimed"
    HOST_MAINTENANCE = "host_maintenance"
    HOST_FULL = "host_full"
    HOST_KEEPS = "host_keeps"
    HOST_FAILS = "host_fails"
    HOST_UNSETTLED = "host_unsettled"
    HOST_BUSY_LONG = "host_busy_long"
    HOST_SHUT = "host_shut"
    MOVES_LATER = "moves_later"
    MOVES_NOT = "moves_not"
    NO_HOST = "no_host"
    NODE_UNKNOWN = "node_unknown"
    NODE_SHUT = "node_shut"
    GAP = "gap"
    WANTED_NOW = "wanted_now"
    WANTED_SOON = "wanted_soon"
    DEVICES_ONE_JOB = "devices_one_job"
    DEVICES_ONE_USER = "devices_one_user"
    DEVICES_FEW = "devices_few"
    DEVICES_TAKEN = "devices_taken"
    FUNCTIONS_FREE = "functions_free"
    SHARED_MEMORY = "shared_memory"
    NO_SHARING = "no_sharing"
    NO_NETWORK = "no_network"
    NO_IMAGE = "no_image"
    NO_SIZE = "no_size"
    NUMA_FULL = "numa_full"
    NUMA_SMALL = "numa_small"
    MEMORY_TO_DISK = "memory_to_disk"
    CLOSED = "closed"
    # What is on a host.
    ARRIVING = "arriving"
    COMING = "coming"
    PARENT_IN_MAKING = "parent_in_making"
    STILL_RUNS = "still_runs"
    STILL_IN_MEMORY = "still_in_memory"
    MAY_RUN = "may_run"
    NOT_SHOWN = "not_shown"
    MAY_BE_THERE = "may_be_there"
    MAY_BE_ON = "may_be_on"
    LEFT_OVER = "left_over"
    LEFT_OVER_STILL = "left_over_still"
    UNPLACED = "unplaced"
    UNREAD_SINCE = "unread_since"
    # Instances.
    INSTANCE_GONE = "instance_gone"
    INSTANCE_OFF = "instance_off"
    INSTANCE_RESTARTED = "instance_restarted"
    INSTANCE_UNKNOWN = "instance_unknown"
    INSTANCE_ODD = "instance_odd"
    JOURNAL_BEHIND = "journal_behind"
    SEVERAL_COPIES = "several_copies"
    NOT_NAMED = "not_named"
    NOT_NAMED_BUSY = "not_named_busy"
    NOT_IN_SLURM = "not_in_slurm"
    RUN_UNKNOWN = "run_unknown"
    COPY_UNSURE = "copy_unsure"
    COPY_REQUEUED = "copy_requeued"
    COPY_ELSEWHERE = "copy_elsewhere"
    COPY_BESIDE = "copy_beside"
    PATIENCE_OVER = "patience_over"
    # What is chosen by how long a host is expected to be wanted.
    STAYS_SHORT = "stays_short"
    STAYS_PERHAPS = "stays_perhaps"
    STAYS_MOVE = "stays_move"
    STAYS_ROOM = "stays_room"
    STAYS_THROTTLE = "stays_throttle"
    STAYS_REQUEUE = "stays_requeue"
    STAYS_LONG = "stays_long"
    ROOM_PROMISED = "room_promised"
    ROOM_FOR_STOPPED = "room_for_stopped"
    NOT_PROVEN = "not_proven"
    NO_RUNG_WORKED = "no_rung_worked"
    DISK_QUEUE = "disk_queue"
    HOLDS_DEVICES = "holds_devices"
    CAME_TO_NOTHING = "came_to_nothing"
    UNDER_WAY = "under_way"
    FAILED_BEFORE = "failed_before"
    MANY_SILENT = "many_silent"
    GUEST_ANSWERS = "guest_answers"
    BROKEN_NETWORK = "broken_network"
    DRAINED_BY_OTHERS = "drained_by_others"
    # Making.
    IMAGE_CPUS = "image_cpus"
    IMAGE_MEMORY = "image_memory"
    IMAGE_RATE = "image_rate"
    IMAGE_FAILS = "image_fails"
    NO_NAME = "no_name"
    NO_HOST_FOR_MORE = "no_host_for_more"
    EARLIER_ORDER = "earlier_order"
    FEW_NAMES = "few_names"
    FEW_PLACES = "few_places"
    FELLOWS_APART = "fellows_apart"
    FELLOWS_TOGETHER = "fellows_together"
    MEMBER_GIVEN_UP = "member_given_up"
    MEMBER_REMOVED = "member_removed"
    FLEET_LATE = "fleet_late"
    # Jobs.
    JOB_TOO_BIG = "job_too_big"
    JOB_APART = "job_apart"
    QUOTA = "quota"
    ENVIRONMENT = "environment"
    LEFT_TO_END = "left_to_end"
    MAY_HAVE_JOBS = "may_have_jobs"
    SHOWN_BUSY = "shown_busy"
    HIDDEN_BUSY = "hidden_busy"
    JOB_RUNS = "job_runs"
    JOBS_GO_ON = "jobs_go_on"
    JOB_WAITS = "job_waits"
    JOB_NOT_SHOWN = "job_not_shown"
    JOB_MISSING = "job_missing"
    JOB_UNSEEN = "job_unseen"
    JOB_STILL_SEEN = "job_still_seen"
    JOB_RESUMED = "job_resumed"
    FELLOWS_STAND = "fellows_stand"
    SEVERAL_JOBS = "several_jobs"
    NODES_NOT_READY = "nodes_not_ready"
    KEEPS_NONE = "keeps_none"
    NO_REQUEUE = "no_requeue"
    NO_REQUEUE_AWAITED = "no_requeue_awaited"
    NO_REQUEUE_UNLOST = "no_requeue_unlost"
    SUSPENDED_BY_OTHERS = "suspended_by_others"
    SLURM_REFUSES = "slurm_refuses"
    WILL_NOT_SUSPEND = "will_not_suspend"
    DEADLINE = "deadline"
    NO_DEVICES_YET = "no_devices_yet"
    DEVICES_HELD = "devices_held"
    SHARED_OTHERWISE = "shared_otherwise"
    # A job's word for machines of its own.
    MACHINES_KEY = "machines_key"
    MACHINES_VALUE = "machines_value"
    MACHINES_TWICE = "machines_twice"
    # A job's own machines.
    MACHINES_UNABLE = "machines_unable"
    MACHINES_IMAGE = "machines_image"
    MACHINES_NETWORK = "machines_network"
    NETWORK_OF_OTHERS = "network_of_others"
    MACHINES_SMALL = "machines_small"
    MACHINES_MANY = "machines_many"
    MACHINES_BEYOND = "machines_beyond"
    MACHINES_DISK = "machines_disk"
    MACHINES_ELSEWHERE = "machines_elsewhere"
    MACHINES_CLAIMED = "machines_claimed"
    MACHINES_FUNCTIONS = "machines_functions"
    MACHINES_NEVER = "machines_never"
    MACHINES_FIRST = "machines_first"
    MACHINES_UNUSED = "machines_unused"
    MACHINES_GIVEN_BACK = "machines_given_back"
    MACHINE_LOST = "machine_lost"
    MACHINE_OF_JOB = "machine_of_job"
    FELLOW_KEPT_OFF = "fellow_kept_off"
    # Pilots that are sent on demand.
    POOL_SILENT = "pool_silent"
    POOL_UNREAD = "pool_unread"
    POOL_EMPTY = "pool_empty"
    NO_IDLE_ROOM = "no_idle_room"
    PILOT_GAP = "pilot_gap"
    PILOTS_FAIL = "pilots_fail"
    PILOT_NAME = "pilot_name"
    # What is asked directly before something is destroyed.
    ANOTHER_LIFE = "another_life"
    SHOWN_AS = "shown_as"
    JOB_ON_IT = "job_on_it"
    JOB_SHOWN = "job_shown"
    NO_REQUEUE_JOB = "no_requeue_job"
    HEARD_AGAIN = "heard_again"
    NO_OTHER_RUN = "no_other_run"
    HOST_FREE_AGAIN = "host_free_again"
    HOST_NOT_OFF = "host_not_off"
    ROOM_NOT_WANTED = "room_not_wanted"
    RUN_NOT_SHOWN = "run_not_shown"
    # Readings.
    FEW_JOBS = "few_jobs"
    FEW_JOBS_TORN = "few_jobs_torn"
    NO_INSTANCES = "no_instances"
    # Of a journal from before there were codes; and whatever has words only.
    OTHER = "other"


class Weight(Enum):
    """What a change of a fact alone means to whoever is told of refusals."""

    NAME = "name"  # it is news
    AMOUNT = "amount"  # it is none: ages and counts change all the time
    WORDS = "words"  # those of somebody else: news, but for the numbers in them


@dataclass(frozen=True, slots=True)
class Detail:
    """One fact, by name. Amounts have their unit last in the name, as everywhere."""

    name: str
    value: str | int | float | tuple[str, ...] | Reason | tuple[Reason, ...]
    weight: Weight = Weight.NAME


class Words(str):
    """A fact that is a text of somebody else's: of a driver, of Slurm, of a record."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Aside:
    """A fact that is a name or a reason, and whose change alone is no news."""

    value: str | tuple[str, ...] | Reason


@dataclass(frozen=True, slots=True)
class Reason:
    """Why not, as long as it is not known for whom and what: a code and its facts."""

    code: Code
    facts: tuple[Detail, ...] = ()

    def after(self, found: str) -> Reason:
        """Add why it was wanted: `found`, a sentence."""
        return self.plus(found=Words(found))

    def plus(self, **facts: Given) -> Reason:
        """Add further facts."""
        return Reason(self.code, (*self.facts, *_details(facts)))

    @property
    def gist(self) -> Hashable:
        """Return what it says beside amounts: a reason with the same gist is no news."""
        return (self.code, tuple((f.name, _gist(f)) for f in self.facts if f.weight is not Weight.AMOUNT))


Given = str | int | float | tuple[str, ...] | Aside | Reason | tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something that was wanted and is not done, and why. `subject`: node, host, job, `cluster`."""

    code: Code
    subject: str
    wanted: Goal
    facts: tuple[Detail, ...] = ()
    about: str = ""

    @property
    def key(self) -> tuple[str, Goal, str]:
        """Return what is refused at most once in a plan."""
        return (self.subject, self.wanted, self.about)

    @property
    def reason(self) -> Reason:
        """Why it is not done."""
        return Reason(self.code, self.facts)

    def is_news_after(self, other: Refusal | None) -> bool:
        """Return True if it says something else than `other`, which was told before."""
        if other is None:
            return True
        return self is not other and self != other and self.reason.gist != other.reason.gist


def because(code: Code, **facts: Given) -> Reason:
    """Make a reason of these facts: numbers are amounts, Words are words, all others are names."""
    return Reason(code, _details(facts))


def refusal(subject: str, wanted: Goal, reason: Reason, about: str = "") -> Refusal:
    """Refuse what was wanted for the subject, for this reason."""
    return Refusal(reason.code, subject, wanted, reason.facts, about)


def limit(key: str, most: int, host: str = "") -> Reason:
    """Say that a limit of the policy file, by its key, is reached, on this host or in all."""
    return because(Code.LIMIT, key=key, most=most, host=host)


def call_failed(problem: str) -> Reason:
    """Say that a call failed before and is not tried again now; `problem` is its driver's."""
    return because(Code.CALL_FAILED, said=Words(problem))


def step_failed(error: Exception, host: str = "") -> Reason:
    """Say that nothing can be decided about it; each time the same as long as it is the same defect."""
    return because(Code.STEP_FAILED, host=host, said=Words(defect(error)))


def defect(error: Exception) -> str:
    """Return what was raised, and where. Not its text: that may tell a time, or an object's address."""
    frame = error.__traceback__
    if frame is None:
        return type(error).__name__
    while frame.tb_next is not None:
        frame = frame.tb_next
    place = "/".join(frame.tb_frame.f_code.co_filename.split("/")[-2:])
    return f"{type(error).__name__} at {place}:{frame.tb_lineno}"


def words(text: str) -> Reason:
    """Make a reason for which there are words only."""
    return because(Code.OTHER, said=Words(text))


def older(subject: str, what: str, reason: str) -> Refusal:
    """Read a refusal as journals had them before there were codes."""
    return refusal(subject, Goal.OTHER, words(reason), what)


def no_host(reasons: Iterable[Reason]) -> Reason:
    """No host will do, for all of these reasons. Of many those with one code share an example."""
    every = tuple(reasons)
    if len(every) <= _MOST_LISTED:
        return because(Code.NO_HOST, reasons=every)
    kinds: dict[Code, Reason] = {}
    for reason in every:
        kinds.setdefault(reason.code, reason)
    codes = tuple(code.value for code in kinds)
    examples = tuple(kinds.values())
    facts = (
        Detail("codes", codes),
        Detail("reasons", examples, Weight.AMOUNT),
        Detail("others", len(every) - len(examples), Weight.AMOUNT),
    )
    return Reason(Code.NO_HOST, facts)


def _details(facts: dict[str, Given]) -> tuple[Detail, ...]:
    return tuple(_detail(name, value) for name, value in facts.items())


def _detail(name: str, value: Given) -> Detail:
    if isinstance(value, Words):
        return Detail(name, str(value), Weight.WORDS)
    if isinstance(value, Aside):
        return Detail(name, value.value, Weight.AMOUNT)
    if isinstance(value, float):
        return Detail(name, float(value), Weight.AMOUNT)
    return Detail(name, value, Weight.AMOUNT if isinstance(value, int) else Weight.NAME)


def _gist(fact: Detail) -> Hashable:
    value = fact.value
    if isinstance(value, Reason):
        return value.gist
    if isinstance(value, tuple):
        return tuple(one.gist if isinstance(one, Reason) else one for one in value)
    return _NUMBER.sub("N", value) if isinstance(value, str) and fact.weight is Weight.WORDS else value
