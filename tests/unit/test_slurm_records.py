"""Slurm's JSON in its dialects, answers that are none, and turning to another way of reading."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import pytest

from backfill.core.model.cluster import Job, JobState, Node, NodeBase
from backfill.drivers.slurm.reading.parse import tasks
from backfill.drivers.slurm.reading.paths import LONGEST_REST_S, REST_S, BrokenPathError, Failover
from backfill.drivers.slurm.reading.records import jobs_of, nodes_of, read_document
from backfill.ports.errors import (
    BadOutputError,
    BusyError,
    DriverError,
    NotFoundError,
    RefusedError,
    UnreachableError,
)

OLD: dict[str, Any] = {
    "job_id": 7,
    "array_job_id": 0,
    "array_task_id": None,
    "array_task_string": "",
    "het_job_id": 0,
    "het_job_offset": 0,
    "partition": "htc",
    "job_state": "RUNNING",
    "qos": "",
    "user_name": "eve",
    "account": "",
    "name": "a=b\n\"c'",
    "nodes": "vn[1-2]",
    "node_count": 2,
    "cpus": 4,
    "memory_per_node": None,
    "memory_per_cpu": 100,
    "priority": 9,
    "tres_alloc_str": "cpu=4,mem=400M,node=2,billing=4",
    "tres_req_str": "",
    "time_limit": None,
    "submit_time": 100,
    "eligible_time": 101,
    "start_time": 102,
    "end_time": 0,
    "deadline": 0,
    "restart_cnt": 1,
    "requeue": True,
    "state_reason": "None",
    "required_nodes": "",
    "features": "virt",
    "batch_flag": True,
    "comment": "",
}
WRAPPED = (
    "array_job_id",
    "het_job_id",
    "het_job_offset",
    "node_count",
    "cpus",
    "memory_per_cpu",
    "priority",
    "submit_time",
    "eligible_time",
    "start_time",
    "end_time",
    "deadline",
)
NONE = {"set": False, "infinite": False, "number": 0}
NODE: dict[str, Any] = {
    "name": "vn1",
    "state": ["IDLE", "DRAIN", "DYNAMIC_NORM"],
    "reason": "disk",
    "cpus": 2,
    "address": "10.77.1.1",
    "alloc_cpus": 1,
    "real_memory": 500,
    "alloc_memory": 300,
    "partitions": ["htc"],
    "features": ["virt"],
    "boot_time": 5,
    "slurmd_start_time": 6,
}


def new(entry: dict[str, Any]) -> dict[str, Any]:
    """The same job as newer releases write it."""
    wrapped = {k: {"set": True, "infinite": False, "number": entry[k]} for k in WRAPPED}
    state = entry["job_state"]
    return {
        **entry,
        **wrapped,
        "job_state": [state] if isinstance(state, str) else state,
        "memory_per_node": NONE,
        "time_limit": {"set": False, "infinite": True, "number": 0},
        "array_task_id": NONE,
        "scheduled_nodes": "",
    }


def jobs(*entries: dict[str, Any]) -> list[Job]:
    return list(jobs_of({"jobs": list(entries)}, "squeue", 1000.0).values())


def test_the_dialects_mean_the_same() -> None:
    """Plain and wrapped numbers, no limit and not set, one state and a list of it."""
    (old,), (fresh,) = jobs(OLD), jobs(new(OLD))
    assert old == fresh
    assert (old.id, old.raw_id, old.nodes, old.num_nodes) == ("7", 7, ("vn1", "vn2"), 2)
    assert (old.memory_mb, old.time_limit_s, old.restarts, old.reason) == (200, None, 1, "")
    assert old.name == "a=b\n\"c'"


@pytest.mark.parametrize(
    ("shared", "alone"),
    [
        ("none", True),
        (["none"], True),
        (["topo"], True),
        (None, False),
        ([], False),
        ("shared", False),
        (["oversubscribe"], False),
        ("user", False),
        (["mcs"], False),
    ],
)
def test_an_exclusive_job_shares_with_none(shared: object, alone: bool) -> None:
    """One word in 22.05, a list of them later; v0.0.45 does not tell, and there it is not known."""
    (job,), (mute,) = jobs({**OLD, "shared": shared}), jobs(OLD)
    assert job.exclusive is alone
    assert not mute.exclusive


def test_a_state_beside_flags_is_the_base() -> None:
    """Where the base is told, COMPLETING hides it no more."""
    (seen,) = jobs(new({**OLD, "job_state": ["COMPLETING", "CANCELLED"]}))
    assert (seen.state, seen.flags) == (JobState.CANCELLED, frozenset({"COMPLETING"}))
    (hidden,) = jobs({**OLD, "job_state": "COMPLETING", "end_time": 500})
    assert (hidden.state, hidden.flags) == (JobState.COMPLETED, frozenset({"COMPLETING"}))


def test_tasks_of_arrays() -> None:
    """Waiting tasks are one record, started ones have their own; task 0 is a task."""
    array = {**OLD, "array_job_id": 7, "job_state": "PENDING", "array_task_string": "0,3-7:2%2"}
    assert [job.id for job in jobs(array)] == ["7_0", "7_3", "7_5", "7_7"]
    assert [j.id for j in jobs({**OLD, "array_job_id": 7, "array_task_id": 0})] == ["7_0"]
    assert [j.id for j in jobs({**OLD, "het_job_id": 7, "het_job_offset": 1})] == ["7+1"]
    with pytest.raises(ValueError, match="SLURM_BITSTR_LEN"):
        tasks("1-3,5,...")


def test_nodes() -> None:
    """Words and lists, and states as words or with flags apart."""
    (fresh,) = nodes_of({"nodes": [NODE]}, "scontrol").values()
    older = {**NODE, "state": "idle", "state_flags": ["DRAIN", "DYNAMIC_NORM"], "features": "virt"}
    (old,) = nodes_of({"nodes": [older]}, "scontrol").values()
    assert fresh == old
    assert (fresh.base, fresh.flags) == (NodeBase.IDLE, frozenset({"DRAIN", "DYNAMIC_NORM"}))
    assert (fresh.memory_mb, fresh.memory_allocated_mb) == (500, 300)
    assert fresh.drained_by_others


@pytest.mark.parametrize(
    "text",
    [
        "",
        "slurm_load_jobs error",
        "[]",
        "7",
        "\x00\xff",
        '{"jobs": 3}',
        '{"jobs": [3]}',
        '{"jobs": [{}]}',
        '{"jobs": [',
        json.dumps({"jobs": [{**OLD, "name": 7}]}),
        json.dumps({"jobs": [{**OLD, "shared": 7}]}),
        json.dumps({"jobs": [{**OLD, "job_state": "DANCING"}]}),
    ],
)
def test_malformed_answers_are_errors_of_their_own(text: str) -> None:
    """Never half a picture, never another kind of error."""
    with pytest.raises(BadOutputError, match="squeue"):
        jobs_of(read_document(text, "squeue", "slurmctld"), "squeue", 1.0)


def test_malformed_nodes() -> None:
    """The node that cannot be read is named."""
    with pytest.raises(BadOutputError, match="vn1"):
        nodes_of({"nodes": [{**NODE, "cpus": None}]}, "scontrol")


def test_errors_inside_an_answer_keep_their_meaning() -> None:
    """As if the tool had said so on its standard error."""
    said = {"errors": [{"error": "Invalid job id specified", "error_number": 2017}], "jobs": []}
    with pytest.raises(NotFoundError):
        read_document(json.dumps(said), "slurmrestd", "job 7")


@dataclass
class Way:
    """A way of reading that does what it is told."""

    name: str
    fails: DriverError | None = None
    asked: int = 0
    closed: bool = False
    answer: dict[str, Job] = field(default_factory=dict)

    def all_jobs(self) -> dict[str, Job]:
        self.asked += 1
        if self.fails:
            raise self.fails
        return self.answer

    def everything(self) -> tuple[dict[str, Node], dict[str, Job]]:
        return {}, self.all_jobs()

    def jobs(self, ids: Collection[str]) -> dict[str, Job]:
        return self.all_jobs()

    def jobs_on(self, names: Collection[str]) -> dict[str, Job]:
        return self.all_jobs()

    def nodes(self, names: Collection[str]) -> dict[str, Node]:
        return self.everything()[0]

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    "error",
    [
        BadOutputError("rest", "garbage"),
        BrokenPathError("rest", "no socket"),
        RefusedError("rest", "Access denied"),
        DriverError("rest", "ended with status 137"),
    ],
)
def test_the_next_way_answers_for_a_broken_one(error: DriverError, caplog: pytest.LogCaptureFixture) -> None:
    """At once, with one sentence; the broken one rests for a minute and is then tried again."""
    now = [0.0]
    rest, text = Way("rest", error), Way("text")
    ways = Failover([rest, text], lambda: now[0])
    with caplog.at_level(logging.WARNING):
        assert ways.all_jobs() == {}
        assert ways.jobs(["7"]) == {}
    assert (rest.asked, text.asked, ways.name) == (1, 2, "text")
    (sentence,) = caplog.messages
    assert sentence.startswith(f"reading Slurm by rest failed ({error}); it is read by text")
    now[0], rest.fails = REST_S, None
    assert ways.everything() == ({}, {})
    assert (rest.asked, text.asked, ways.name) == (2, 2, "rest")
    ways.close()
    assert rest.closed
    assert text.closed


def test_silence_is_passed_on_but_not_asked_for_twice() -> None:
    """The controller itself may be silent; a cycle waits once, and the next goes another way."""
    rest, text = Way("rest", UnreachableError("slurmctld", "no answer")), Way("text")
    ways = Failover([rest, text])
    with pytest.raises(UnreachableError):
        ways.jobs_on(["vn1"])
    assert text.asked == 0
    assert ways.nodes(["vn1"]) == {}
    assert (rest.asked, text.asked) == (1, 1)


def test_a_way_that_is_too_slow_here_is_tried_ever_more_seldom() -> None:
    """Each try costs a picture: after one, two, four minutes; an answer makes it one again."""
    now = [0.0]
    slow, text = Way("json", UnreachableError("slurmctld", "no answer")), Way("text")
    ways = Failover([slow, text], lambda: now[0])
    for rest_s in (REST_S, 2 * REST_S, 4 * REST_S):
        with pytest.raises(UnreachableError):
            ways.all_jobs()
        now[0] += rest_s - 1
        assert ways.name == "text"
        assert ways.all_jobs() == {}
        now[0] += 1
    slow.fails = None
    assert ways.all_jobs() == {}
    assert ways.name == "json"
    slow.fails = UnreachableError("slurmctld", "no answer")
    with pytest.raises(UnreachableError):
        ways.all_jobs()
    now[0] += REST_S
    assert ways.name == "json"
    now[0] += 10 * LONGEST_REST_S
    for _ in range(20):
        with pytest.raises(UnreachableError):
            ways.all_jobs()
        now[0] += LONGEST_REST_S
    assert ways.name == "json"


def test_where_text_hears_nothing_nothing_dearer_is_asked() -> None:
    """The controller is silent, and JSON would only load it more."""
    text, dear = Way("text", UnreachableError("slurmctld", "no answer")), Way("json")
    ways = Failover([text, dear])
    for _ in range(2):
        with pytest.raises(UnreachableError):
            ways.all_jobs()
    assert (text.asked, dear.asked) == (2, 0)
    text.fails = BadOutputError("squeue", "new columns")
    assert ways.all_jobs() == {}
    assert ways.name == "json"


def test_when_all_ways_rest_all_are_tried() -> None:
    """A controller that was away is found again by the first question after its return."""
    silent = UnreachableError("slurmctld", "no answer")
    rest, text = Way("rest", silent), Way("text", BadOutputError("text", "garbage"))
    ways = Failover([rest, text])
    with pytest.raises(UnreachableError):
        ways.all_jobs()
    with pytest.raises(BadOutputError):
        ways.all_jobs()
    assert (rest.asked, text.asked) == (1, 1)
    text.fails = None
    assert ways.all_jobs() == {}


def test_answers_that_are_no_failure_of_the_way_pass_through() -> None:
    """A job that is not there is not there by any way."""
    for answer in (NotFoundError("job 7", "gone"), BusyError("slurmctld", "Rate limit exceeded")):
        rest, text = Way("rest", answer), Way("text")
        with pytest.raises(type(answer)):
            Failover([rest, text]).jobs(["7"])
        assert text.asked == 0


def test_restarts_that_are_not_set_are_not_taken_for_none() -> None:
    """By them one run of a job is told from another: a stale copy would pass for the newest."""
    with pytest.raises(BadOutputError, match="restarts"):
        jobs({**OLD, "restart_cnt": NONE})
    (seen,) = jobs({**OLD, "restart_cnt": {"set": True, "infinite": False, "number": 3}})
    assert seen.restarts == 3
