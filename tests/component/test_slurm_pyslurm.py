"""pyslurm in its own process: what it tells, and every way in which it can fail, none ours."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from backfill.core.model.cluster import JobState
from backfill.drivers.slurm.commands import SlurmTools
from backfill.drivers.slurm.reading.paths import REST_S, BrokenPathError, Failover
from backfill.drivers.slurm.reading.pyslurm_path import PyslurmPath
from backfill.ports.errors import BadOutputError, UnreachableError
from tests.unit.test_slurm_records import Way

JOB: dict[str, Any] = {
    "id": 7,
    "name": "a=b\n\"c'é",
    "state": "RUNNING",
    "state_reason": "None",
    "partition": "htc",
    "qos": None,
    "account": None,
    "comment": None,
    "admin_comment": None,
    "user_name": "eve",
    "allocated_nodes": "vn[1-2]",
    "required_nodes": None,
    "cpus": 4,
    "num_nodes": 2,
    "memory_per_node": None,
    "memory_per_cpu": 100,
    "constraints": [],
    "array_id": None,
    "array_task_id": None,
    "array_tasks_waiting": None,
    "time_limit": None,
    "submit_time": 100,
    "start_time": 102,
    "eligible_time": 101,
    "end_time": None,
    "requeue_count": 1,
    "is_requeueable": True,
    "priority": 9,
    "heterogeneous_id": None,
    "heterogeneous_offset": None,
    "deadline": None,
    "scheduled_nodes": None,
    "resource_sharing": "OK",
}
Make = Callable[..., PyslurmPath]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """A path whose process finds the fake under pyslurm's name, with this plan."""
    made: list[PyslurmPath] = []
    shutil.copy(Path(__file__).with_name("fake_pyslurm.py"), tmp_path / "pyslurm.py")

    def build(timeout_s: float = 20.0, **plan: Any) -> PyslurmPath:
        plan_file = tmp_path / "plan.json"
        plan_file.write_text(json.dumps({"jobs": [JOB], **plan}))
        env = {"PYTHONPATH": str(tmp_path), "FAKE_PYSLURM": str(plan_file)}
        made.append(PyslurmPath(SlurmTools(env=env, timeout_s=timeout_s), sys.executable))
        return made[-1]

    yield build
    for path in made:
        path.close()


def test_pyslurm_is_never_imported_here(make: Make) -> None:
    """Neither by the way of reading nor by the question."""
    assert make().all_jobs().keys() == {"7"}
    assert "pyslurm" not in sys.modules
    assert "backfill.drivers.slurm.reading.pyslurm_child" not in sys.modules


def test_its_words_and_units_become_ours(make: Make) -> None:
    """MB, minutes, epochs, 'None' as a text, UNLIMITED as a word, and any name."""
    path = make(
        jobs=[
            JOB,
            {
                **JOB,
                "id": 8,
                "state": "PENDING",
                "time_limit": 5,
                "memory_per_node": 300,
                "allocated_nodes": None,
                "start_time": 999,
                "state_reason": "JobHeldUser",
                "constraints": ["a&b", "c"],
                "scheduled_nodes": "bm[1-2]",
                "deadline": 2000,
                "resource_sharing": "NO",
            },
            {**JOB, "id": 9, "state": "COMPLETING", "end_time": 500, "memory_per_cpu": "UNLIMITED"},
        ]
    )
    jobs = path.all_jobs()
    seven, eight, nine = jobs["7"], jobs["8"], jobs["9"]
    assert (seven.nodes, seven.memory_mb, seven.time_limit_s) == (("vn1", "vn2"), 200, None)
    assert (seven.name, seven.reason, seven.restarts, seven.qos) == ("a=b\n\"c'é", "", 1, "")
    assert [job.exclusive for job in (seven, eight, nine)] == [False, True, False]
    assert (seven.memory_by_cpu, eight.memory_by_cpu) == (True, False)
    assert (eight.state, eight.time_limit_s, eight.memory_mb) == (JobState.PENDING, 300.0, 300)
    assert (eight.start_s, eight.nodes, eight.reason) == (0.0, (), "JobHeldUser")
    assert (eight.features, seven.features, eight.deadline_s) == ("a&b,c", "", 2000.0)
    assert (eight.planned_nodes, eight.planned_s) == (("bm1", "bm2"), 999.0)
    assert (nine.state, nine.flags, nine.memory_mb) == (JobState.COMPLETED, frozenset({"COMPLETING"}), 0)


def test_arrays(make: Make) -> None:
    """Waiting tasks are one record; the task number 0 is read as None there."""
    array = {**JOB, "array_id": 7}
    path = make(
        jobs=[
            {**array, "state": "PENDING", "array_tasks_waiting": "3-4%1"},
            {**array, "id": 8, "array_task_id": None},
            {**array, "id": 9, "array_task_id": 2},
            {**JOB, "id": 11, "heterogeneous_id": 10, "heterogeneous_offset": 1},
        ]
    )
    assert list(path.all_jobs()) == ["7_3", "7_4", "7_0", "7_2", "10+1"]
    assert set(path.jobs(["7_0", "7_3", "99"])) == {"7_0", "7_3"}


def test_questions_for_some(make: Make) -> None:
    """By number where the id is one; absent ones are absent; one process answers them all."""
    path = make()
    assert set(path.jobs(["7", "99"])) == {"7"}
    process = path._child._process
    assert set(path.jobs(["7", "1", "2", "3"])) == {"7"}
    assert path.jobs_on(["vn2"]).keys() == {"7"}
    assert path.jobs_on(["vn3"]) == {}
    assert path._child._process is process


@pytest.mark.parametrize(
    ("plan", "error", "said"),
    [
        ({"load": "exit"}, BrokenPathError, "configuration source"),
        ({"load": "segfault"}, BrokenPathError, "SIGSEGV"),
        ({"import": "exit"}, BrokenPathError, "status 1"),
        ({"import": "version mismatch"}, BrokenPathError, "version mismatch"),
        ({"load": [1007, "Protocol authentication error"]}, BrokenPathError, "does not fit"),
        ({"load": [1010, "Socket timed out on send/recv"]}, UnreachableError, "Socket timed out"),
        ({"load": "no such attribute"}, BadOutputError, "no such attribute"),
        ({"ping": [-1, "Unspecified error"]}, UnreachableError, "does not answer the ping"),
        ({"ping": [1007, "Protocol authentication error"]}, BrokenPathError, "does not fit"),
        ({"ping": "exit"}, BrokenPathError, "configuration source"),
        ({"jobs": [{**JOB, "state": "DANCING"}]}, BadOutputError, "DANCING"),
        ({"jobs": [{"id": 7}]}, BadOutputError, "AttributeError"),
    ],
)
def test_every_failure_is_a_typed_error(
    make: Make, plan: dict[str, Any], error: type[Exception], said: str
) -> None:
    """And after the cause is gone the same path works again."""
    path = make(**plan)
    with pytest.raises(error, match=said):
        path.all_jobs()
    make()  # writes a good plan into the same file
    path.close()
    assert path.all_jobs().keys() == {"7"}


def test_text_takes_over_and_pyslurm_is_tried_again(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """A crash in libslurm costs one sentence in the log; the cycle gets its answer."""
    now = [0.0]
    library, text = make(load="segfault"), Way("text")
    ways = Failover([library, text], lambda: now[0])
    assert ways.all_jobs() == {}
    (sentence,) = caplog.messages
    assert sentence == (
        "reading Slurm by pyslurm failed (pyslurm: it ended (SIGSEGV): slurm: error: chatter); "
        "it is read by text for the next 60 s"
    )
    make()  # writes a good plan into the same file
    now[0] = REST_S
    assert ways.all_jobs().keys() == {"7"}
    assert text.asked == 1


def test_a_call_that_hangs_ends_with_its_process(make: Make) -> None:
    """Within the limit, also for a second thread that waits for its turn."""
    path = make(timeout_s=0.5, load="hang")
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            path.all_jobs()
        except UnreachableError as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(errors) == 2
    assert path._child._process is None


def test_an_interpreter_without_pyslurm_or_none_at_all(tmp_path: Path) -> None:
    """One sentence each, so that another way can take over."""
    without = PyslurmPath(SlurmTools(env={"PYTHONPATH": str(tmp_path)}), sys.executable)
    with pytest.raises(BrokenPathError, match="No module named 'pyslurm'"):
        without.all_jobs()
    with pytest.raises(BrokenPathError, match="cannot start"):
        PyslurmPath(SlurmTools(), str(tmp_path / "python")).all_jobs()


def test_a_missing_slurm_conf_is_said_before_libslurm_waits_for_it(tmp_path: Path) -> None:
    """It would wait a minute and then end the process."""
    path = PyslurmPath(SlurmTools(conf=tmp_path / "slurm.conf"), sys.executable)
    with pytest.raises(UnreachableError, match="there is no file"):
        path.all_jobs()
