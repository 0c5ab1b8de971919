"""A daemon whose right is in doubt gives hosts back and does no more; one that lost it ends."""

from __future__ import annotations

from pathlib import Path

from backfill.core.model.lifecycle import Phase
from tests.component.living_daemon import LivingDaemon


class Disputed:
    """A right as the test wants it."""

    lost = ""
    why = ""

    def doubt(self) -> str:
        """Why it is in doubt."""
        return self.why


def test_in_doubt_hosts_are_given_back_and_nothing_else_is_done(tmp_path: Path) -> None:
    """Evictions pause; a boot and a return wait until the doubt is over; then all goes on."""
    right = Disputed()
    daemon = LivingDaemon(tmp_path, right=right)
    try:
        blocker = daemon.sim.submit("batch", 5000.0, required_nodes=("bm2",), name="blocker")
        daemon.until(lambda: daemon.sim.job(blocker).nodes == ("bm2",))
        low = daemon.sim.submit("htc", 5000.0, name="counting")
        daemon.until(lambda: daemon.phase("vn1") is Phase.READY and bool(daemon.sim.job(low).nodes))
        right.why = "the shared directory does not answer"
        daemon.until(lambda: daemon.daemon.world.barred == {"lease": right.why})
        high = daemon.sim.submit("batch", 5000.0, required_nodes=("bm1",), name="urgent")
        daemon.until(lambda: "vn1" in paused(daemon))
        daemon.sim.finish_job(high)
        at_s = daemon.sim.now_s
        daemon.until(lambda: daemon.sim.now_s > at_s + 30.0)
        daemon.until(lambda: "vn1" in paused(daemon))
        right.why = ""
        daemon.until(lambda: not paused(daemon) and daemon.phase("vn1") is Phase.READY)
        assert not daemon.daemon.world.barred
    finally:
        daemon.stop()


def test_a_lost_right_ends_the_daemon_before_it_decides(tmp_path: Path) -> None:
    """The journal says why."""
    right = Disputed()
    daemon = LivingDaemon(tmp_path, right=right)
    try:
        daemon.until(lambda: "slurm" in daemon.daemon.world.sources)
        right.lost = "the lease of this cluster was taken over by another"
        assert daemon.ended() == right.lost
        last = list(daemon.journal.read())[-1]
        assert last.body == {"event": "stop", "why": right.lost}
    finally:
        daemon.stop()


def paused(daemon: LivingDaemon) -> set[str]:
    """Instances that stand still, as the daemon sees them."""
    found = daemon.daemon.world.instances.values()
    return {i.name for i in found if str(i.state) == "paused"}
