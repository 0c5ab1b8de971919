"""Reads what squeue and scontrol print, whatever users and administrators put into free text."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, fields
from functools import lru_cache

from backfill.core.model.cluster import Job, JobState, Node
from backfill.core.model.job_machines import asked
from backfill.core.model.quantities import MOST_NODES, parse_hostlist
from backfill.drivers.slurm.reading.states import is_exclusive, job_state, node_state
from backfill.ports.errors import BadOutputError

# Fields whose text is Slurm's own, then fields into which users can put anything at all.
_FIXED = (
    "jobarrayid",
    "jobid",
    "partition",
    "state",
    "username",
    "nodelist",
    "numnodes",
    "numcpus",
    "tres",
    "minmemory",
    "prioritylong",
    "submittime",
    "eligibletime",
    "starttime",
    "endtime",
    "timelimit",
    "restartcnt",
    "schednodes",
    "deadline",
    "batchflag",
    "requeue",
    # Of these two one tells; a column that a release does not have is empty there (up to 25.11 the second).
    "oversubscribe",
    "exclusive",
)
_FREE = ("account", "qos", "reason", "reqnodes", "feature", "comment", "admin_comment", "name")
_UNIT = "\x1f"
_MOST_TASKS = 4_000_001  # the largest MaxArraySize
# Of the waiting tasks of an array the first ones stand for all, and so they do of all arrays where
# there are many: each is a job to us, and a user can submit a million with one line.
MOST_OF_AN_ARRAY, MOST_OF_ARRAYS = 10_000, 200_000
_LONGEST_ASKED = 255  # characters of what is no hostlist
_UNREADABLE = (ValueError, LookupError, OverflowError)
_SLACK_S = 2.0  # whole seconds on Slurm's side, and the time that the question took
_MEMORY_MB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
_CLOCK = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)$")
# Jobs by the record that squeue printed of them.
Records = dict[str, tuple[Job, ...]]


@dataclass(frozen=True, slots=True)
class JobFormat:
    """A squeue format (its environment variable SQUEUE_FORMAT2) and the reader of its output.

    `mark` is a secret of this process: with it between them, no job name, account or constraint
    can imitate a field or a job, whatever bytes it contains.
    """

    mark: str

    @property
    def text(self) -> str:
        """The value of SQUEUE_FORMAT2."""
        fixed = ",".join(f"{name}:{_UNIT}" for name in _FIXED[:-1])
        last = f"{_FIXED[-1]}:{self._free}"
        free = ",".join(f"{name}:{self._free}" for name in _FREE[:-1])
        return f"{fixed},{last},{free},{_FREE[-1]}:{self._end}"

    @property
    def _free(self) -> str:
        return f"\x1d{self.mark}"

    @property
    def _end(self) -> str:
        return f"\x1e{self.mark}"

    def read(self, output: str, known: Records, now_s: float) -> Records:
        """All jobs of a squeue output, by their printed record: several where an array's tasks
        wait together.

        `known` is an earlier answer: a record that has not changed is not parsed again.
        `now_s` is when it was printed, epoch seconds. Raises BadOutputError naming the record
        that cannot be read.
        """
        records = output.split(self._end + "\n")
        if records.pop() != "":
            raise BadOutputError("squeue", f"its output ends in the middle: {output[-80:]!r}")
        found: Records = {}
        left = MOST_OF_ARRAYS
        for record in records:
            most = max(1, min(left, MOST_OF_AN_ARRAY))
            jobs = found[record] = known.get(record) or self._jobs(record, now_s, most)
            left -= len(jobs) - 1
        return found

    def _jobs(self, record: str, now_s: float, most: int) -> tuple[Job, ...]:
        head, *free = record.split(self._free)
        fixed = head.split(_UNIT)
        try:
            own, users = (zip(_FIXED, fixed, strict=True), zip(_FREE, free, strict=True))
            job = _job(dict(own), dict(users), now_s)
            array, bracket, waiting = job.id.partition("_[")
            if not bracket:
                return (job,)
            # An array may have a hundred thousand of them, and `replace` takes its time.
            _, *rest = (getattr(job, field.name) for field in fields(Job))
            return tuple(Job(f"{array}_{n}", *rest) for n in tasks(waiting.removesuffix("]"), most))
        except _UNREADABLE as error:
            raise BadOutputError("squeue", f"cannot read the job {head!r}: {error}") from error


def _job(fixed: dict[str, str], free: dict[str, str], now_s: float) -> Job:
    # What has not ended shows no end time, or the one that its limit allows.
    ended = 0 < _time_s(fixed["endtime"]) <= now_s + _SLACK_S
    state, flags = job_state(fixed["state"], ended)
    num_nodes = int(fixed["numnodes"])
    planned = hosts(fixed["schednodes"]) if state is JobState.PENDING else ()
    machines, fault = asked(free["admin_comment"], free["comment"])
    memory_mb, by_cpu = job_memory(fixed["minmemory"], fixed["tres"], num_nodes)
    return Job(
        id=fixed["jobarrayid"],
        raw_id=int(fixed["jobid"]),
        partition=fixed["partition"],
        state=state,
        flags=flags,
        qos=given(free["qos"]),
        user=fixed["username"],
        account=given(free["account"]),
        name=free["name"],
        nodes=hosts(fixed["nodelist"]),
        num_nodes=num_nodes,
        cpus=int(fixed["numcpus"]),
        memory_mb=memory_mb,
        memory_by_cpu=by_cpu,
        priority=int(fixed["prioritylong"]),
        submit_s=_time_s(fixed["submittime"]),
        eligible_s=_time_s(fixed["eligibletime"]),
        # Of a pending job squeue shows when it might start, which is not when it started.
        start_s=0.0 if state is JobState.PENDING else _time_s(fixed["starttime"]),
        time_limit_s=_limit_s(fixed["timelimit"]),
        restarts=int(fixed["restartcnt"]),
        requeue=fixed["requeue"] != "0",
        reason="" if free["reason"] == "None" else free["reason"],
        required_nodes=asked_hosts(free["reqnodes"]),
        features=given(free["feature"]),
        deadline_s=_time_s(fixed["deadline"]),
        interactive=fixed["batchflag"] == "0",
        exclusive=is_exclusive(fixed["oversubscribe"], fixed["exclusive"]),
        comment=given(free["comment"]),
        machines=machines,
        machines_fault=fault,
        planned_s=_time_s(fixed["starttime"]) if planned else 0.0,
        planned_nodes=planned,
    )


def tasks(text: str, most: int = MOST_OF_AN_ARRAY) -> list[int]:
    """Read the first `most` numbers in `1,3-7:2%2`; ValueError when Slurm has cut the text short."""
    if text.endswith("..."):
        raise ValueError("its tasks are cut short; set SLURM_BITSTR_LEN=0 where slurmrestd runs")
    found: list[int] = []
    for part in filter(None, text.partition("%")[0].split(",")):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        numbers = range(int(first), int(last or first) + 1, int(step or 1))
        if len(numbers) > _MOST_TASKS:
            raise ValueError(f"it has more tasks than Slurm can have: {text[:80]}")
        found += numbers[: most - len(found)]
        if len(found) >= most:
            break
    return found


def asked_hosts(text: str) -> tuple[str, ...]:
    """Nodes as a user has written them; what is no hostlist is one name, that no node has.

    Slurm keeps ReqNodeList as it was typed, with spaces or line breaks between the names.
    """
    try:
        return hosts(",".join(text.split()))
    except ValueError:
        return (text[:_LONGEST_ASKED],)


def given(text: str) -> str:
    return "" if text == "(null)" else text


@lru_cache(maxsize=4096)
def hosts(text: str) -> tuple[str, ...]:
    return parse_hostlist(text, MOST_NODES)


def _time_s(text: str) -> float:
    """Epoch seconds; 0 for every way in which Slurm says that there is no such time."""
    if text in ("N/A", "NONE", "None", "Unknown", "(null)", ""):
        return 0.0
    seconds = float(text)
    if not math.isfinite(seconds):
        raise ValueError(f"time '{text}' is not known")
    return seconds


def _limit_s(text: str) -> float | None:
    """`[days-][hours:]minutes:seconds` as seconds; None where there is no limit."""
    if text in ("UNLIMITED", "NOT_SET", "Partition_Limit", "INVALID"):
        return None
    match = _CLOCK.match(text)
    if match is None:
        raise ValueError(f"time limit '{text}' is not known")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


# Slurm rounds what it shows as a text.
_SHOWN_WITHIN = 0.01


def job_memory(minimum: str, tres: str, num_nodes: int) -> tuple[int, bool]:
    """Memory per node in MB, 0 where the job asked for none; and whether it is by the CPU.

    `minimum` may be per CPU and does not say so; the job's total in `tres` settles it where the
    site counts memory.
    """
    wanted = _memory_mb(minimum)
    if wanted == 0:
        return 0, False
    for item in tres.split(","):
        key, _, value = item.partition("=")
        if key == "mem":
            per_node = -(-_memory_mb(value) // max(num_nodes, 1))
            return per_node, abs(per_node - wanted) > wanted * _SHOWN_WITHIN
    return wanted, False


def _memory_mb(text: str) -> int:
    number, unit = text.rstrip("KMGTP"), text[-1:]
    return round(float(number) * _MEMORY_MB.get(unit, 1))


_NODE = re.compile(
    r"(?:^| )(NodeName|CPUAlloc|CPUTot|AvailableFeatures|NodeAddr|RealMemory|AllocMem|Partitions|BootTime"
    r"|SlurmdStartTime)=(\S*)"
)
_NODE_STATE = re.compile(r" State=(\S+) ThreadsPerCore=")
# Everything that may stand behind the reason (Slurm 22.05 to 26.05).
_BEHIND_REASON = re.compile(
    r"\s+(?:Comment|Extra|InstanceId|InstanceType|ReservationName|TLSCertTokenSet|Topology"
    r"|Parameters)="
)
# Name and time stand behind the first line; further lines follow after an indentation.
_SIGNED = re.compile(r"(.*?) \[([^\[\]\s]+)@(?:\d+|Unknown)\]((?:\s{4}.*)?)$", re.DOTALL)
# What differs in almost every answer and is of no interest here.
_FLICKERS = re.compile(r" (?:CPULoad|FreeMem|LastBusyTime|CurrentWatts|AveWatts)=\S*")
_NOT_FOUND = re.compile(r"Node \S+ not found$")


def read_nodes(output: str) -> dict[str, Node]:
    """Read the nodes in the output of `scontrol --oneliner show node`, by name.

    Lines that say that a node was not found are no nodes. A comment may contain line breaks, so a
    line that does not begin a node belongs to the node above it. BadOutputError otherwise, and
    where the output ends in the middle of a line.
    """
    return {node.name: node for node in read_node_records(output, {}).values()}


def read_node_records(output: str, known: dict[str, Node]) -> dict[str, Node]:
    """Read the nodes by printed record, without what flickers in it.

    `known` is an earlier answer: a record that has not changed is not parsed again.
    """
    records: list[str] = []
    *lines, rest = output.split("\n")
    if rest:
        raise BadOutputError("scontrol", f"its output ends in the middle: {rest[-80:]!r}")
    for line in lines:
        if line.startswith("NodeName="):
            records.append(line)
        elif _NOT_FOUND.match(line) or line.startswith("No nodes in the system") or not line:
            continue
        elif records:
            records[-1] += "\n" + line
        else:
            raise BadOutputError("scontrol", f"cannot read the node {line!r}")
    found: dict[str, Node] = {}
    for record in records:
        head, reason, tail = record.partition(" Reason=")
        key = _FLICKERS.sub("", head) + reason + tail
        found[key] = known.get(key) or _node(record)
    return found


def _node(record: str) -> Node:
    head, found, tail = record.partition(" Reason=")
    plain = _BEHIND_REASON.split(head, maxsplit=1)[0]
    if plain != head:  # no reason is set, and what looks like one stands in a comment
        head, found = plain, ""
    values: dict[str, str] = {}
    for key, value in _NODE.findall(head):
        values.setdefault(key, value)
    try:
        base, flags = node_state(_state_word(head))
        reason, by = _reason(tail) if found else ("", "")
        return Node(
            name=values["NodeName"],
            base=base,
            flags=flags,
            reason=reason,
            reason_by=by,
            address=values.get("NodeAddr", ""),
            cpus=int(values["CPUTot"]),
            cpus_allocated=int(values["CPUAlloc"]),
            memory_mb=int(values["RealMemory"]),
            memory_allocated_mb=int(values.get("AllocMem", "0")),
            partitions=_words(values.get("Partitions", "")),
            features=_words(values["AvailableFeatures"]),
            boot_time_s=_time_s(values["BootTime"]),
            slurmd_start_s=_time_s(values["SlurmdStartTime"]),
        )
    except _UNREADABLE as error:
        raise BadOutputError("scontrol", f"cannot read the node {head[:200]!r}: {error}") from error


def _state_word(head: str) -> str:
    match = _NODE_STATE.search(head)
    if match is None:
        raise ValueError("it has no state")
    return match[1]


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in text.split(",") if word and word != "(null)")


def _reason(tail: str) -> tuple[str, str]:
    """Return the reason and who set it: name and time follow the first line."""
    text = _BEHIND_REASON.split(tail, maxsplit=1)[0]
    signed = _SIGNED.match(text)
    if signed is None:
        return text.strip(), ""
    first, by, others = signed.groups()
    return "\n".join(part.strip() for part in (first, others) if part.strip()), by
