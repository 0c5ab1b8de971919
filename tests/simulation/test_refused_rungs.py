"""A rung that fails: tried again while its time lasts, or given up at once where it is refused for good."""

from __future__ import annotations

from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import InstanceState, Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.model.refusals import Goal
from backfill.core.model.sentences import line
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.limits import Limits
from backfill.core.policy import Proof
from backfill.drivers.simulated.costs import StepCosts
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.ports.errors import BusyError, RefusedError
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import cluster, one_host, phases, play, policies, running

MOVE = RungRule(Rung.MIGRATE, within_s=30.0)
PAUSE = RungRule(Rung.PAUSE, within_s=5.0)
BUSY = BusyError("vn1", "another instance moves between these hosts")
OLDER = RefusedError("vn1", "its CPU is older")


def moving(
    *rungs: RungRule, hosts: int = 2, costs: StepCosts | None = None
) -> tuple[SimulatedWorld, Rehearsal, str]:
    """A job at work on bm1, whose ladder begins with a move, while the other hosts are empty."""
    sim = cluster()
    names = tuple(f"bm{number}" for number in range(1, hosts + 1))
    for name in names[2:]:
        sim.add_host(name, cpus=4, features=("metal",))
    rules = policies(hosts=names, ladder=Ladder((MOVE, *rungs)))
    run = Rehearsal(sim, rules, MemoryJournal(), costs or StepCosts())
    low = sim.submit("htc", 300.0)
    run.until(lambda: running(sim, low), 60)
    run.run(10.0)
    return sim, run, low


def claimed_s(run: Rehearsal) -> float:
    """When the hook of the job that got its host spoke."""
    return max(r.at_s for r in run.journal.read() if r.body.get("t") == "Claimed")


def story(run: Rehearsal) -> list[tuple[float, str]]:
    """When the instance took another rung, and why."""
    found = [(r.at_s, str(r.body.get("reason"))) for r in run.journal.read() if r.kind == "phase"]
    return sorted((at_s, said) for at_s, said in found if "next rung" in said)


def test_a_live_move_that_fails_is_tried_again_and_the_job_never_stands_still() -> None:
    """As where moves between two hosts take turns, and its turn comes a little later."""
    sim, run, low = moving(PAUSE)
    sim.faults.fail("migrate", BUSY, times=4)
    host = run.world.managed["vn1"].host
    sim.submit("batch", 500.0, required_nodes=(host,))
    waits: set[str] = set()

    def there() -> bool:
        waits.update(line(r) for r in run.cycle.last.refusals if r.wanted is Goal.MOVE)
        node = run.world.managed["vn1"]
        return node.phase is Phase.READY and node.host != host

    run.until(there, 30)
    assert waits == {"vn1: move refused: vn1: another instance moves between these hosts"}
    assert story(run) == []
    assert [r for r in run.journal.read() if r.body.get("t") == "PauseInstance"] == []
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 400)
    assert sim.job(low).restarts == 0


def test_a_live_move_that_fails_on_and_on_holds_the_host_for_no_longer_than_its_rung() -> None:
    """All tries share the time of the rung: the last one is called back when it is over."""
    sim, run, low = moving(PAUSE, costs=StepCosts(migrate_s=12.0))
    sim.faults.fail("migrate", BUSY, times=2)
    sim.submit("batch", 500.0, required_nodes=(run.world.managed["vn1"].host,))
    run.until(lambda: sim.instance("vn1").state is InstanceState.PAUSED, 60)
    assert 30.0 <= sim.now_s - claimed_s(run) < 30.5
    assert [said for _, said in story(run)] == [
        "the move to bm2 is too slow: migrate did not work within 30 s; next rung: pause"
    ]
    assert sim.job(low).restarts == 0


def test_a_live_move_that_never_works_says_what_kept_it() -> None:
    """When the rung's time is over."""
    sim, run, low = moving(PAUSE, costs=StepCosts(migrate_s=0.1, migrate_s_per_mb=0.0))
    sim.faults.fail("migrate", BUSY, times=-1)
    sim.submit("batch", 500.0, required_nodes=(run.world.managed["vn1"].host,))
    run.until(lambda: bool(phases(run, Phase.PARKED)), 60)
    ((at_s, said),) = story(run)
    assert said == (
        "migrate did not work within 30 s: vn1: another instance moves between these hosts; next rung: pause"
    )
    assert 30.0 <= at_s - claimed_s(run) < 30.5
    assert sim.job(low).restarts == 0


def test_a_live_move_that_is_refused_for_good_takes_the_next_rung_at_once() -> None:
    """To ask again would only keep whoever waits for the host."""
    sim, run, low = moving(PAUSE)
    sim.faults.fail("migrate", OLDER, times=-1)
    sim.submit("batch", 60.0, required_nodes=(run.world.managed["vn1"].host,))
    run.until(lambda: sim.instance("vn1").state is InstanceState.PAUSED, 20)
    ((at_s, said),) = story(run)
    assert said == "vn1: its CPU is older; next rung: pause"
    assert at_s - claimed_s(run) < 5.0
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 600)
    assert sim.job(low).restarts == 0


def test_a_live_move_that_one_host_refuses_is_tried_on_another() -> None:
    """It has room as well, and takes it."""
    sim, run, low = moving(PAUSE, hosts=3)
    sim.faults.fail("migrate", OLDER, times=1)
    host = run.world.managed["vn1"].host
    sim.submit("batch", 500.0, required_nodes=(host,))
    run.until(lambda: phases(run, Phase.READY) != set() and run.world.managed["vn1"].host != host, 30)
    asked = {r.body["target"] for r in run.journal.read() if r.body.get("t") == "MigrateInstance"}
    assert len(asked) == 2
    assert story(run) == []
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 400)
    assert sim.job(low).restarts == 0


SAVED = Ladder(
    (
        RungRule(Rung.PAUSE, within_s=1.0, for_s=10.0),
        RungRule(Rung.SUSPEND, within_s=30.0, for_s=100.0),
        RungRule(Rung.REQUEUE),
    )
)
NO_RIGHT = RefusedError("vn1", "libvirt may not write to /shared", "let it into that directory")


def unsaved(proof: Proof) -> tuple[SimulatedWorld, Rehearsal, str]:
    """A job stands still in the memory of its host, and that memory may never be written to disk."""
    sim = one_host()
    run = play(sim, policies(hosts=("bm1",), ladder=SAVED, proof=proof, limits=Limits()))
    low = sim.submit("htc", 300.0)
    run.until(lambda: running(sim, low), 60)
    run.run(10.0)
    sim.faults.fail("suspend", NO_RIGHT, times=-1)
    sim.submit("batch", 5000.0, required_nodes=("bm1",))
    run.until(lambda: bool(phases(run, Phase.EVICTING)), 10)
    return sim, run, low


def test_memory_that_may_never_be_written_stays_while_it_is_in_nobodys_way() -> None:
    """As long as on disk: what was refused may be put right by a person, and is tried again by itself."""
    sim, run, low = unsaved(Proof.CPU)
    began_s = sim.now_s
    run.run(60.0)
    (said,) = [line(r) for r in run.cycle.last.refusals if r.wanted is Goal.SUSPEND]
    assert said.endswith("libvirt may not write to /shared; let it into that directory")
    assert (sim.job(low).state, sim.job(low).restarts) == (JobState.SUSPENDED, 0)
    run.until(lambda: sim.job(low).restarts == 1, 120)
    assert 108.0 < sim.now_s - began_s < 125.0
    assert [said for _, said in story(run)][-1] == (
        "suspend did not work within 100 s: vn1: libvirt may not write to /shared; "
        "let it into that directory; next rung: requeue"
    )


def test_memory_is_written_once_a_person_has_put_that_right() -> None:
    """Its work is kept."""
    sim, run, low = unsaved(Proof.CPU)
    run.run(20.0)
    sim.faults.clear()
    run.until(lambda: sim.instance("vn1").state is InstanceState.SUSPENDED, 60)
    assert sim.job(low).restarts == 0


def test_memory_that_has_to_be_free_takes_the_next_rung_at_once_where_it_may_not_be_written() -> None:
    """The job that got the host waits for it."""
    sim, run, low = unsaved(Proof.MEMORY)
    began_s = sim.now_s
    run.until(lambda: sim.job(low).restarts == 1, 60)
    assert sim.now_s - began_s < 20.0
    assert [said for _, said in story(run)][-1] == (
        "suspend was refused: vn1: libvirt may not write to /shared; let it into that directory; "
        "next rung: requeue"
    )


def test_a_running_instance_that_can_never_be_saved_takes_the_next_rung_and_says_why() -> None:
    """A provider that saves from running only: nobody reads of seconds that were never waited."""
    sim = one_host()
    sim.hosts["bm1"].saves_paused = False
    ladder = Ladder((RungRule(Rung.SUSPEND, within_s=30.0), PAUSE))
    run = play(sim, policies(hosts=("bm1",), ladder=ladder))
    low = sim.submit("htc", 300.0)
    run.until(lambda: running(sim, low), 60)
    run.run(10.0)
    sim.faults.fail("suspend", NO_RIGHT, times=-1)
    sim.submit("batch", 60.0, required_nodes=("bm1",))
    run.until(lambda: sim.instance("vn1").state is InstanceState.PAUSED, 20)
    ((_, said),) = story(run)
    assert said == (
        "suspend was refused: vn1: libvirt may not write to /shared; let it into that directory; "
        "next rung: pause"
    )
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 600)
    assert sim.job(low).restarts == 0
