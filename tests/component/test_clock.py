"""The daemon's time goes on as it did, whatever the machine's clock is set to."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill.core.model.changes import NodeManaged
from backfill.core.model.cluster import Job, JobState
from backfill.core.model.lifecycle import ManagedNode, NodeProof, Phase, Retry
from backfill.core.model.records import encode, remembered
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.engine.almanac import Almanac
from backfill.engine.clock import SteadyClock
from backfill.engine.looking import Outside, guests_now, observe_cluster, observe_host, observe_nodes
from backfill.engine.queries import Queries
from backfill.ports.workload import ClusterObservation
from tests.component.living_daemon import LivingDaemon, a_gate, parked


class Machine:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.wall_s, self.passed_s = 1_000_000.0, 5.0
        self.clock = SteadyClock(lambda: self.wall_s, lambda: self.passed_s, lambda: "boot 1")

    def passes(self, by_s: float) -> float:
        """Time goes by; what the daemon's clock says then."""
        self.wall_s += by_s
        self.passed_s += by_s
        return self.clock.now() - 1_000_000.0


@pytest.mark.parametrize("by_s", [21600.0, -21600.0, 0.5, 315360000.0])
def test_a_clock_that_is_set_is_no_time_that_passes(by_s: float) -> None:
    """Time goes on as before, and how far it is from the machine's clock is known."""
    machine = Machine()
    assert machine.passes(2.0) == 2.0
    machine.wall_s += by_s
    assert machine.passes(1.0) == 3.0
    assert machine.clock.ahead() == -by_s
    assert machine.passes(0.0) == 3.0
    machine.wall_s -= by_s
    assert machine.clock.ahead() == 0.0
    assert machine.clock.reading() == ("boot 1", 8.0)


def test_two_clocks_that_are_not_read_in_one_instant_have_not_been_set() -> None:
    """A thread may have to wait between the two: by so much nobody set anything."""
    machine = Machine()
    machine.clock = SteadyClock(lambda: machine.passes(0.004) + 1_000_000.0, lambda: machine.passed_s)
    for _ in range(20):
        machine.passes(1.0)
        assert machine.clock.ahead() == 0.0


def test_the_machines_own_clocks_agree() -> None:
    """The real ones, read ten times."""
    clock = SteadyClock()
    before_s = clock.now()
    assert {clock.ahead() for _ in range(10)} == {0.0}
    assert clock.now() >= before_s
    boot, uptime_s = clock.reading()
    assert uptime_s > 0.0
    assert boot == SteadyClock().reading()[0]


class Ahead:
    """The clock of a daemon whose machine's clock went back by half a minute."""

    def __init__(self, sim: SimulatedWorld) -> None:
        self._sim = sim
        self.ahead_s = 30.0

    def now(self) -> float:
        return self._sim.now_s + self.ahead_s

    def ahead(self) -> float:
        return self.ahead_s

    def reading(self) -> tuple[str, float]:
        return "boot 1", self._sim.now_s


def test_a_daemon_that_is_ahead_believes_what_it_reads(tmp_path: Path) -> None:
    """Eviction and return go on, and guests get the time that Slurm and munge go by."""
    daemon = LivingDaemon(tmp_path, clock=Ahead)
    try:
        low, high = parked(daemon)
        daemon.sim.user_cancel(high)
        daemon.until(lambda: daemon.phase("vn1") is Phase.READY)
        assert daemon.sim.job(low).state is JobState.RUNNING
        woken = [r.body for r in daemon.journal.read() if r.body.get("t") == "Woken"]
        assert abs(float(str(woken[0]["correction_s"]))) < 10.0
        assert daemon.sim.audit() == []
    finally:
        daemon.stop()


def test_pictures_are_told_in_the_daemons_time() -> None:
    """Drivers go by the machine's clock; compared with what was seen before it would be old."""
    sim = SimulatedWorld()
    sim.add_host("bm1", cpus=1)
    outside = Outside(sim.slurm, {"bm1": sim.provider}, Ahead(sim))
    seen = (observe_cluster(outside), observe_nodes(outside, ["bm1"]), observe_host(outside, "bm1"))
    assert [picture.seen_s for picture in seen] == [sim.now_s + 30.0] * 3
    assert guests_now(outside) == sim.now_s


def test_slurms_times_are_told_in_the_daemons_time() -> None:
    """What was a minute ago is so whatever the machine's clock says; and none stays none."""
    sim = SimulatedWorld()
    sim.add_partition("htc")
    sim.add_host("bm1", cpus=1)
    job = sim.submit("htc", 500.0)
    sim.step_to(sim.now_s + 60.0)
    outside = Outside(sim.slurm, {}, sim.clock)
    before = observe_cluster(outside)
    sim.set_clock(6 * 3600.0)
    sim.slurm.announce("bm1", planned_s=sim.now_s + 30.0)
    late = sim.submit("htc", 5.0)
    after = observe_cluster(outside)
    # As Slurm reckons: it wrote down what the clock showed then, and takes it for so long ago.
    assert after.jobs[job].start_s == before.jobs[job].start_s - 6 * 3600.0
    assert after.seen_s == sim.now_s
    assert after.jobs[late].submit_s == sim.now_s
    assert after.jobs[late].start_s == 0.0
    assert after.nodes["bm1"].planned_s == sim.now_s + 30.0
    assert after.nodes["bm1"].maintenance_s == 0.0


def test_what_slurm_shows_as_before_is_the_same_object_again() -> None:
    """Ten thousand jobs are not compared one by one because somebody set a clock."""
    jobs = {"7": Job("7", 7, "htc", JobState.PENDING, submit_s=100.0)}
    almanac = Almanac()
    first = almanac.jobs(jobs, -60.0)
    assert first["7"].submit_s == 40.0
    assert almanac.jobs(dict(jobs), -60.0)["7"] is first["7"]
    assert almanac.jobs(jobs, 10.0)["7"].submit_s == 110.0
    assert almanac.jobs(jobs, 0.0)["7"] is jobs["7"]
    almanac.forget_others((), ())
    again = almanac.jobs(jobs, -60.0)["7"]
    assert again == first["7"]
    assert again is not first["7"]


class SetMeanwhile:
    """A manager that takes its time: the machine's clock is set while it reads."""

    def __init__(self, sim: SimulatedWorld, by_s: float) -> None:
        self._sim, self._by_s = sim, by_s

    def observe(self) -> ClusterObservation:
        seen = self._sim.slurm.observe()
        self._sim.set_clock(self._by_s)
        self._sim.step_to(self._sim.now_s + 2.0)
        return seen


@pytest.mark.parametrize("by_s", [21600.0, -21600.0])
def test_a_picture_that_was_begun_before_the_clock_was_set_is_not_newer(by_s: float) -> None:
    """Were it from the future, nothing would be believed until then."""
    sim = SimulatedWorld()
    began_s = sim.now_s
    outside = Outside(SetMeanwhile(sim, by_s), {}, sim.clock)  # type: ignore[arg-type]  # it reads
    assert observe_cluster(outside).seen_s == began_s


@pytest.mark.parametrize("by_s", [21600.0, -21600.0])
def test_a_daemon_whose_machine_is_set_goes_on_and_says_so(
    tmp_path: Path, by_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    """It reads on, decides as before, and tells it in the log, the story, status and explain."""
    daemon = LivingDaemon(tmp_path)
    try:
        low, high = parked(daemon)
        daemon.sim.set_clock(by_s)
        daemon.until(lambda: daemon.daemon.world.ahead_s == -by_s)
        seen_s = daemon.sim.now_s
        daemon.until(lambda: daemon.daemon.world.sources["slurm"].seen_s > seen_s + 1.0)
        assert daemon.phase("vn1") is Phase.PARKED
        daemon.sim.user_cancel(high)
        daemon.until(lambda: daemon.phase("vn1") is Phase.READY)
        assert daemon.sim.job(low).restarts == 0
        assert daemon.sim.audit() == []
        questions = Queries(daemon.daemon, a_gate(daemon.daemon))
        told = [
            questions.answer({"ask": "status"}, 0)["clock"],
            questions.answer({"ask": "explain", "subject": "vn1"}, 0)["clock"],
        ]
        events = questions.answer({"ask": "events"}, 0)["events"]
    finally:
        daemon.stop()
    way = "6 h ahead of" if by_s > 0 else "6 h behind"
    assert all(f"it is {way} the times told here" in str(one) for one in told)
    assert isinstance(events, list)
    assert [e for e in events if f"was set: it is now {way} our time" in e["text"]] != []
    way = "forward" if by_s > 0 else "back"
    logged = [r.getMessage() for r in caplog.records if r.name == "backfill.clock"]
    assert [text.partition(";")[0] for text in logged] == [f"the machine's clock was set {way} by 6 h"]


def test_a_restarted_daemon_waits_for_no_moment_that_was_never_to_come() -> None:
    """Written while the clock was a year ahead: the order of things stays, from now back."""
    year_s, now_s = 365 * 86400.0, 1_000_000.0
    node = ManagedNode(
        "vn1",
        "10.77.1.1/16",
        "bm1",
        1,
        Phase.RETURNING,
        now_s + year_s - 9,
        now_s - 500,
        proof=NodeProof(woken_s=now_s + year_s - 2),
        retry=Retry(not_before_s=now_s + year_s + 5),
    )
    (change,) = remembered([encode(NodeManaged(node))], now_s)
    assert isinstance(change, NodeManaged)
    found = change.node
    assert (found.since_s, found.proof.woken_s, found.created_s) == (now_s - 7, now_s, now_s - 500)
    assert found.retry.not_before_s == now_s + 7
    assert remembered([encode(NodeManaged(found))], now_s) == [change]
