"""The tally's judgement of what jobs did, and the counting job that feeds it."""

from __future__ import annotations

import io
import socket
import subprocess
import time
from pathlib import Path

import pytest

from backfill.lab.tally import Collector, check_tally

COUNTER = Path(__file__).parents[2] / "backfill/lab/jobs/counter.sh"


def lines(*items: str, job: str = "7", restart: int = 0, connection: int = 1) -> list[str]:
    """A log of one connection."""
    return [f"100.0 {connection} {job} {restart} {item} 99.9 vn1" for item in items]


def kinds(log: list[str]) -> list[tuple[str, str]]:
    """What was found, without the sentences."""
    return [(finding.job, finding.kind) for finding in check_tally(log)]


def test_clean_log_has_no_findings() -> None:
    """Jobs that count in order and end once are well, however their lines mix."""
    mixed = [
        x for pair in zip(lines("1", "2", "end"), lines("1", "2", "end", job="8"), strict=True) for x in pair
    ]
    assert check_tally(mixed) == []


def test_requeued_job_may_start_again() -> None:
    """A requeue raises the restart count and the count begins anew; the earlier run has no end."""
    log = lines("1", "2") + lines("1", "2", "3", "end", restart=1, connection=2)
    assert check_tally(log) == []


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (lines("1", "3", "end"), "gap"),
        (lines("1", "2", "2", "end"), "duplicate"),
        (lines("1", "end", "end"), "ended twice"),
        (lines("1", "2"), "never ended"),
        (lines("1") + lines("2", "end", connection=2), "two connections"),
        (lines("one", "end"), "garbage"),
    ],
)
def test_each_fault_is_found(log: list[str], expected: str) -> None:
    """Every way in which a job can be lost or doubled has its own finding."""
    assert kinds(log) == [("7", expected)]


def test_stale_copy_is_found() -> None:
    """A run that speaks after its job was requeued is a job that runs twice."""
    log = lines("1") + lines("1", restart=1, connection=2) + lines("2")
    log += lines("2", "end", restart=1, connection=2)
    assert kinds(log) == [("7", "two connections")]


def test_unreadable_line_is_reported() -> None:
    """A line that is no count is not passed over in silence."""
    assert kinds(["100.0 1 hello"]) == [("?", "garbage")]


def test_empty_log_is_clean() -> None:
    """No job, no fault: whoever expects jobs must count them."""
    assert check_tally([]) == []


def test_counter_and_collector_agree() -> None:
    """The job that the demo submits sends, over one connection, exactly what the check wants."""
    log = io.StringIO()
    collector = Collector(("127.0.0.1", 0), log)
    environment = {
        "BACKFILL_TALLY": f"127.0.0.1/{collector.port}",
        "SLURM_JOB_ID": "42",
        "PATH": "/usr/bin:/bin",
    }
    deadline_s = time.monotonic() + 120
    with subprocess.Popen([str(COUNTER), "5", "0.01"], env=environment) as job:
        while "end" not in log.getvalue() and time.monotonic() < deadline_s:
            collector.step(0.1)
        assert job.wait(120) == 0
    collector.close()
    received = log.getvalue().splitlines()
    assert [line.split()[4] for line in received] == ["1", "2", "3", "4", "5", "end"]
    assert check_tally(received) == []


def test_a_line_has_the_time_of_its_arrival() -> None:
    """A collector that gets to a line late tells when the kernel had it."""
    log = io.StringIO()
    collector = Collector(("127.0.0.1", 0), log)
    waited_s: list[float] = []
    with socket.create_connection(("127.0.0.1", collector.port)) as job:
        collector.step(10)
        # The kernel begins to stamp a moment after it was asked to.
        for item in range(1, 200):
            job.sendall(f"42 0 {item} 1.0 vn1\n".encode())
            time.sleep(0.005)
            late_s = time.time()
            collector.step(10)
            waited_s.append(late_s - float(log.getvalue().splitlines()[-1].split()[0]))
            if waited_s[-1] > 0:
                break
    collector.close()
    assert waited_s[-1] > 0
