"""An older backfill gives way to this one and back: twenty instances stand still, or it is killed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backfill.lab.layout import daemon_socket
from backfill.lab.spec import lab_root
from tests.real.daemon_rig import PATIENT, PAUSE, REQUEUE, SUSPEND, DaemonRig, lab_name, rig_in_lab
from tests.real.older import Older, older

pytestmark = [pytest.mark.real, pytest.mark.soak]

MANY, PERIOD_S = 20, 1.0
FLEET: dict[str, Any] = {
    "instances": {"names": f"vn[1-{MANY}]"},
    "limits": {"max_instances": MANY, "max_per_host": MANY // 2, "boots_at_once": 4, "keep_memory_mb": 0},
    "placement": {"cpu_overcommit": MANY},
    "ladder": [PAUSE, REQUEUE],
}
ONE: dict[str, Any] = {**FLEET, "limits": {"max_instances": 1}}
# The phase in which an instance stands still had another name.
STILL = ("parked", "displaced")
# Moments at which the older one dies: while it gives the host up, and while it brings the work back.
GIVING = (
    (PAUSE, "after intent PauseInstance"),
    (PAUSE, "before outcome SuspendJob"),
    (SUSPEND, "before outcome SuspendInstance"),
)
TAKING = (
    (PAUSE, "after intent ThawInstance"),
    (PAUSE, "before outcome ResumeJob"),
    (SUSPEND, "before outcome RestoreInstance"),
)


class TwoVersions(DaemonRig):
    """A rig whose daemon is the older one while `before` is set."""

    before: Older | None = None

    def command(self, policy: Path, module: str = "backfill") -> list[str]:
        if self.before is None:
            return super().command(policy, module)
        return [*self.before.command("-m", module), "daemon", "--config", str(policy)]

    def picture(self) -> str:
        """The journal of the older one is not to be read: its log has to do."""
        return super().picture() if self.before is None else self.log.read_text()[-20_000:]

    @property
    def phases(self) -> set[str]:
        """The phases of all managed nodes."""
        return {node["phase"] for node in self.nodes().values()}

    def give_up(self) -> list[str]:
        """Jobs take all hosts, and all instances stand still; the jobs."""
        jobs = [self.high(host, start=False) for host in self.lab.hosts]
        for job in jobs:
            self.started(job)
        self.until(lambda: self.phases <= {*STILL}, what="all instances standing still")
        return jobs

    def all_count(self, jobs: list[str]) -> None:
        """Wait until each of these jobs goes on where it was, without a new start."""
        for job in jobs:
            self.counting(job)
            assert self.show(job)["Restarts"] == "0", self.picture()

    def keep_journal(self, place: Path) -> None:
        """Copy the journal of a daemon that has ended, as docs/operations.md tells it."""
        for name in self._journal():
            shutil.copy2(name, place)

    def _journal(self) -> list[Path]:
        return sorted((self.lab.dir / "daemon").glob("journal.db*"))

    def put_journal(self, place: Path | None) -> None:
        """Move the journal away, and put such a copy there if one is named."""
        for name in self._journal():
            name.unlink()
        for copy in sorted(place.glob("journal.db*")) if place else ():
            shutil.copy2(copy, self.lab.dir / "daemon")


@pytest.fixture(scope="module")
def before() -> Older:
    return older()


@pytest.fixture(scope="module")
def bed(before: Older, open_path: Path) -> Iterator[TwoVersions]:
    """The older hook stays in place, and guests are of the older image: an upgrade changes neither."""
    hook = open_path / "hook"
    socket = daemon_socket(lab_root() / lab_name("upgrade"))
    before.build_hook(hook, f"unix:{socket}", PATIENT["hook_timeout_ms"])
    shape = {"cpus": MANY, "memory_mb": MANY * 300, "hook": str(hook), "hook_epilog": str(hook)}
    with rig_in_lab(TwoVersions, "upgrade", before.image(), **shape) as rig:
        yield rig


@pytest.fixture
def rig(bed: TwoVersions, before: Older) -> Iterator[TwoVersions]:
    """The older daemon is at work, with nothing on the hosts; this one clears up."""
    bed.begin()
    bed.before = before
    yield bed
    bed.before = None
    bed.settle()
    bed.clear()
    bed.put_journal(None)


def test_twenty_that_stand_still_go_on(rig: TwoVersions) -> None:
    """They are found as they were, on their hosts, and none begins anew."""
    rig.start(**FLEET)
    lows = [rig.low(start=False, period_s=PERIOD_S) for _ in range(MANY)]
    rig.all_count(lows)
    highs = rig.give_up()
    where = rig.instances()
    assert len(where) == MANY
    rig.stop()

    rig.before = None
    assert "fits the cluster" in rig.with_policy("daemon", "--check")
    rig.start(**FLEET)
    assert rig.phases == {"parked"}
    assert rig.instances() == where
    assert {rig.state(job) for job in lows} == {"SUSPENDED"}
    rig.release(*highs)
    rig.all_count(lows)
    rig.finish(*lows)


def test_the_way_back(rig: TwoVersions, before: Older, tmp_path: Path) -> None:
    """The older one refuses the newer journal; with the copy from before the upgrade it takes over."""
    rig.start(**ONE)
    low = rig.low()
    name, host = rig.where(low)
    rig.stop()
    rig.keep_journal(tmp_path)

    rig.before = None
    rig.start(**ONE)
    high = rig.high(host)
    rig.becomes(name, "parked")
    rig.stop()

    rig.before = before
    refused = rig.run_daemon(rig.lab.dir / "policy.yaml")
    assert refused.returncode == 69
    assert "newer backfill" in refused.stderr
    rig.put_journal(tmp_path)
    rig.start(**ONE)
    rig.becomes(name, *STILL)
    rig.release(high)
    rig.all_count([low])

    rig.stop()
    rig.before = None
    rig.start(**ONE)
    rig.becomes(name, "ready")
    rig.finish(low)
    assert rig.show(low)["Restarts"] == "0"


@pytest.mark.parametrize(("rung", "moment"), GIVING, ids=[moment for _, moment in GIVING])
def test_the_older_one_was_killed_while_it_gave_a_host_up(
    rig: TwoVersions, rung: dict[str, Any], moment: str
) -> None:
    """What it had begun is finished by this one."""
    policy = {**ONE, "ladder": [rung, REQUEUE]}
    rig.start(**policy)
    low = rig.low()
    name, host = rig.where(low)
    rig.restart(crash=moment, **policy)
    high = rig.high(host, start=False)
    rig.crashed()
    rig.before = None
    rig.start(**policy)
    rig.becomes(name, "parked")
    rig.started(high)
    rig.release(high)
    rig.finish(low)
    assert rig.show(low)["Restarts"] == "0"


@pytest.mark.parametrize(("rung", "moment"), TAKING, ids=[moment for _, moment in TAKING])
def test_the_older_one_was_killed_while_it_brought_work_back(
    rig: TwoVersions, rung: dict[str, Any], moment: str
) -> None:
    """What it had begun is finished by this one, once."""
    policy = {**ONE, "ladder": [rung, REQUEUE]}
    rig.start(**policy)
    low = rig.low()
    name, host = rig.where(low)
    high = rig.high(host)
    rig.becomes(name, *STILL)
    rig.restart(crash=moment, **policy)
    rig.release(high)
    rig.crashed()
    rig.before = None
    rig.start(**policy)
    rig.becomes(name, "ready")
    rig.finish(low)
    assert rig.show(low)["Restarts"] == "0"
