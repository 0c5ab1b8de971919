"""Ways of reading that fail, hang or are too slow for ten thousand jobs: text takes over."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import sqrt
from pathlib import Path

import pytest

from backfill.core.model.cluster import Job, JobState
from backfill.drivers.slurm.commands import SlurmTools
from backfill.drivers.slurm.reading.json_path import JsonPath
from backfill.drivers.slurm.reading.paths import REST_S, Failover, ReadPath
from backfill.drivers.slurm.reading.rest_path import RestPath
from backfill.drivers.slurm.reading.text_path import TextPath
from backfill.lab.cluster import Lab
from backfill.lab.roots import RELEASES, SUITES
from backfill.ports.errors import UnreachableError
from tests.real.many_jobs import JOBS, ROOM, fill
from tests.real.slurm_lab import commands_of, manager_of, slurm_lab, until
from tests.real.slurm_rest import Restd, slurmrestd

pytestmark = [pytest.mark.real, pytest.mark.soak]
PATIENT_S = 120.0
# What happens to a tool that is asked for JSON; `$real` is the tool itself.
_FAULTS = {
    "is cut short": '"$real" "$@" | head -c 300000; exit 0',
    "has no memory": 'ulimit -v 250000; exec "$real" "$@"',
    "is killed": "kill -9 $$",
}
_HANGS = "exec sleep 3600"
_TOOL = """#!/bin/sh
real={real}
case " $* " in *" --json "*) {fault} ;; esac
exec "$real" "$@"
"""


@dataclass
class Crowd:
    """A cluster with that many jobs, all held, and its picture as text gives it in peace."""

    lab: Lab
    jobs: dict[str, Job]
    now_s: float = field(default=0.0)

    @property
    def patient(self) -> SlurmTools:
        return commands_of(self.lab, PATIENT_S)

    def behind(self, first: ReadPath, patience_s: float = PATIENT_S) -> Failover:
        """As the policy file puts it: this way first, and text where it fails."""
        return Failover([first, TextPath(commands_of(self.lab, patience_s))], lambda: self.now_s)

    def sees(self, ways: Failover) -> bool:
        """Whether the daemon's question brings the whole picture; False where it brings none."""
        try:
            seen = manager_of(self.lab, PATIENT_S, path=ways).observe()
        except UnreachableError:
            return False
        assert waiting(seen.jobs) == self.jobs
        assert seen.nodes.keys() == {*self.lab.hosts}
        return True

    def faulty(self, fault: str) -> Path:
        """A directory with tools of which those that are asked for JSON behave like that."""
        tools = self.lab.shared / "tools"
        tools.mkdir(exist_ok=True)
        for name in ("squeue", "scontrol"):
            real = self.lab.tools / name if self.lab.tools else shutil.which(name)
            new = tools / f"{name}.new"
            new.write_text(_TOOL.format(real=real, fault=fault))
            new.chmod(0o755)
            new.rename(tools / name)
        return tools


@pytest.fixture(scope="module", params=RELEASES)
def crowd(request: pytest.FixtureRequest) -> Iterator[Crowd]:
    with slurm_lab("slurm-crowd", release=request.param, extra_conf=ROOM) as lab:
        fill(lab)
        jobs = waiting(TextPath(commands_of(lab, PATIENT_S)).all_jobs())
        assert len(jobs) == JOBS
        yield Crowd(lab, jobs)


@pytest.fixture
def restd(crowd: Crowd) -> Iterator[Restd]:
    with slurmrestd(crowd.lab) as found:
        yield found


with_rest = pytest.mark.parametrize("crowd", SUITES, indirect=True, scope="module")


@pytest.mark.parametrize("fault", _FAULTS)
def test_json_that_fails_costs_no_picture(crowd: Crowd, fault: str) -> None:
    """The same question is answered by text; a minute later JSON is tried, and then it works."""
    tools = crowd.faulty(_FAULTS[fault])
    ways = crowd.behind(JsonPath(replace(crowd.patient, bin_dir=tools)))
    assert crowd.sees(ways)
    assert ways.name == "text"
    crowd.faulty(":")
    crowd.now_s += REST_S
    assert ways.name == "json"
    assert crowd.sees(ways)
    assert ways.name == "json"


def test_json_that_hangs_costs_one_picture(crowd: Crowd) -> None:
    """The question that met it ends in time, the next one is answered by text."""
    tools = crowd.faulty(_HANGS)
    commands = replace(commands_of(crowd.lab, 3.0), bin_dir=tools)
    ways = crowd.behind(JsonPath(commands))
    assert not crowd.sees(ways)
    assert ways.name == "text"
    assert crowd.sees(ways)


def test_json_that_is_too_slow_here_is_left(crowd: Crowd) -> None:
    """With a limit that text keeps and JSON does not, whatever the machine."""
    patience_s = between(TextPath(crowd.patient), JsonPath(crowd.patient))
    ways = crowd.behind(JsonPath(commands_of(crowd.lab, patience_s)), patience_s)
    until(lambda: crowd.sees(ways) and ways.name == "text")


@with_rest
def test_slurmrestd_that_is_too_slow_here_is_left(crowd: Crowd, restd: Restd) -> None:
    """With a limit that text keeps and slurmrestd does not, whatever the machine."""
    patience_s = between(TextPath(crowd.patient), RestPath(crowd.patient, restd.socket))
    ways = crowd.behind(RestPath(commands_of(crowd.lab, patience_s), restd.socket), patience_s)
    until(lambda: crowd.sees(ways) and ways.name == "text")


@with_rest
def test_slurmrestd_that_hangs_costs_one_picture(crowd: Crowd, restd: Restd) -> None:
    """And once it goes on it is used again after its rest."""
    ways = crowd.behind(RestPath(commands_of(crowd.lab, 3.0), restd.socket))
    os.kill(restd.pid, signal.SIGSTOP)
    assert not crowd.sees(ways)
    assert crowd.sees(ways)
    assert ways.name == "text"
    os.kill(restd.pid, signal.SIGCONT)
    ways = crowd.behind(RestPath(crowd.patient, restd.socket))
    assert crowd.sees(ways)
    assert ways.name == "rest"


@with_rest
def test_slurmrestd_that_dies_over_its_answer_costs_no_picture(crowd: Crowd, restd: Restd) -> None:
    """The question under way is answered by text, and so are those after it."""
    ways = crowd.behind(RestPath(crowd.patient, restd.socket))
    seen: list[bool] = []
    asking = threading.Thread(target=lambda: seen.append(crowd.sees(ways)))
    before = restd.cpu_ticks()
    asking.start()
    until(lambda: restd.cpu_ticks() > before + 20)  # a fifth of a second of its work
    os.kill(restd.pid, signal.SIGKILL)
    asking.join()
    assert seen == [True]
    assert crowd.sees(ways)
    assert ways.name == "text"


def waiting(jobs: dict[str, Job]) -> dict[str, Job]:
    """Those that wait; the one that was cancelled is forgotten by Slurm some time later."""
    return {job_id: job for job_id, job in jobs.items() if job.state is JobState.PENDING}


def between(quick: ReadPath, slow: ReadPath) -> float:
    """A limit between what both take here, seconds."""
    # The least of several: only that is theirs, the rest is what else the machine did.
    quick_s, slow_s = (min(_took_s(path) for _ in range(5)) for path in (quick, slow))
    assert quick_s < slow_s
    return sqrt(quick_s * slow_s)


def _took_s(path: ReadPath) -> float:
    began_s = time.monotonic()
    path.all_jobs()
    return time.monotonic() - began_s
