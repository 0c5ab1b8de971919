"""docs/install.md, followed to the letter from plain Slurm; then a job's day, as the pages tell it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import pytest

from tests.real.install_page import PageAdmin, page_followed, steps

pytestmark = [pytest.mark.real, pytest.mark.soak]

_POLICY = "/etc/backfill/policy.yaml"
# Usage is charged once a minute (PriorityCalcPeriod of the site).
_TICK_S = 60.0


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageAdmin]:
    with page_followed("page", tmp_path_factory.mktemp("dist")) as made:
        yield made


def test_the_page_ends_in_an_ordinary_users_first_job(rig: PageAdmin) -> None:
    """On a virtual node; the doctor found nothing on the way, and a second setup has nothing to do."""
    assert list(rig.took_s) == [step.title for step in steps()]
    where = rig.show(rig.job)["NodeList"]
    assert where.startswith("vn")
    proof, first = (text for title, text in rig.told.items() if title[0] in "67")
    assert "sound" in proof
    assert where in first
    rig.until(lambda: rig.state(rig.job) == "COMPLETED", what="the end of the first job")
    assert rig.booked(rig.job, "user", "state", "nodelist") == [f"ada|COMPLETED|{where}"]


def test_it_stands_aside_and_comes_back(rig: PageAdmin) -> None:
    """In memory, as the policy file of setup has it first; nothing of it is lost or done twice."""
    low = rig.low()
    name, host = rig.where(low)
    high = rig.takes("bob", host)
    rig.becomes(name, "parked")
    assert rig.state(low) == "SUSPENDED"
    rig.release(high)
    rig.counting(low)
    assert rig.where(low) == (name, host)
    rig.finish(low)


def test_it_goes_to_disk_and_comes_back(rig: PageAdmin) -> None:
    """With the ladder's first rung taken out, and the daemon told to read its file again."""
    rig.sh("ctl", f"sed -i '/rung: pause/,+2d' {_POLICY}")
    rig.backfill("policy", "reload")
    low = rig.low()
    name, host = rig.where(low)
    high = rig.takes("bob", host)
    rig.becomes(name, "parked")
    rig.until(lambda: rig.instance(name)["state"] == "suspended", what="its memory on disk")
    rig.release(high)
    rig.counting(low)
    assert rig.show(low)["Restarts"] == "0"
    rig.finish(low)


def test_it_goes_on_at_another_host(rig: PageAdmin) -> None:
    """With that rung put first; a shared directory that is no NFS takes one capability more."""
    more = "[Service]\nAmbientCapabilities=CAP_CHOWN\nCapabilityBoundingSet=CAP_CHOWN\n"
    rig.write("/etc/systemd/system/backfill.service.d/with-moves.conf", more)
    rig.sh("ctl", f"sed -i 's/^ladder:/ladder:\\n- rung: migrate\\n  within_s: 300/' {_POLICY}")
    rig.sh("ctl", "systemctl daemon-reload; systemctl restart backfill")
    rig.until(rig.sees_all, what="the daemon's first picture")
    low = rig.low()
    name, host = rig.where(low)
    there = next(other for other in rig.lab.hosts if other != host)
    high = rig.takes("bob", host)
    rig.until(partial(_is_at, rig, low, (name, there)), what=f"its move to {there}")
    rig.becomes(name, "ready")
    rig.counting(low)
    rig.release(high)
    assert rig.show(low)["Restarts"] == "0"
    rig.finish(low)


def _is_at(rig: PageAdmin, job: str, place: tuple[str, str]) -> bool:
    return rig.where(job) == place


def test_the_books_say_what_the_pages_say(rig: PageAdmin) -> None:
    """Elapsed leaves a stop out and fair-share charges it: the owner is told so, with the figure."""
    rig.sh("ctl", f"sed -i '/rung: migrate/,+1d' {_POLICY}")
    rig.backfill("policy", "reload")
    low = rig.low()
    name, host = rig.where(low)
    before_s = _charged_s(rig)
    high = rig.takes("bob", host)
    rig.becomes(name, "parked")
    stopped_s = time.time()
    rig.until(lambda: time.time() > stopped_s + _TICK_S, what="a stop of some length")
    assert "stood still are charged as if it had run" in " ".join(rig.backfill("explain", low).split())
    rig.release(high)
    rig.counting(low)
    still_s = time.time() - stopped_s
    rig.until(lambda: "fair-share counts it" in rig.ctl("scontrol", "show", "job", low))
    rig.finish(low)
    rig.until(lambda: _charged_s(rig) - before_s > still_s / 2, what="its charge")
    ((state, elapsed, suspended),) = [
        line.split("|") for line in rig.booked(low, "state", "elapsedraw", "suspended")
    ]
    assert state == "COMPLETED"
    assert suspended >= "00:01:00"
    assert int(elapsed) >= 0
    rig.judge()


def _charged_s(rig: PageAdmin) -> float:
    lines = rig.ctl("sshare", "-anPU", "-u", "ada", "--format=RawUsage").splitlines()
    return sum(float(line) for line in lines if line)
