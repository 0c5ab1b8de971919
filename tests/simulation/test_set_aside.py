"""A defect that one instance meets: it is set aside and said, and the rest of the cluster goes on."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from backfill.core import placement
from backfill.core.model.actions import PauseInstance, ThawInstance
from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import Flavour, InstanceState, Rung
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.quantities import Resources
from backfill.core.model.refusals import Code
from backfill.core.model.sentences import line
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.own_machines import OwnMachines
from backfill.core.policies.spread import Spread
from backfill.core.policies.victims import Extent, Victims
from backfill.core.policy import PolicySet, Template
from backfill.core.queue import SCALE, Entity, Kind, Result
from backfill.core.reconcile import planner
from backfill.core.reconcile.builder import PlanBuilder
from backfill.core.reconcile.planner import plan
from backfill.core.reconcile.sparing import Looks
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.engine import cycle
from backfill.sim.replay.journal import replay_journal
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import cluster, ended, one_host, phases, policies, running

BAD = "vn1"


class BadTemplate(Template):
    """Has no shape for one instance, whoever asks: what that is taken for, and its host's room with it."""

    def flavour_of(self, node: ManagedNode) -> Flavour:
        if node.name == BAD:
            raise KeyError(node.name)
        return super().flavour_of(node)


def bad(given: PolicySet) -> PolicySet:
    known = given.instances
    return replace(given, instances=BadTemplate(known.names, known.addresses, known.flavour))


def at_work(
    given: PolicySet, sim: SimulatedWorld | None = None
) -> tuple[SimulatedWorld, Rehearsal, list[str]]:
    """Two instances, each with a job; on a host each unless `sim` is given."""
    sim = sim or cluster(1)
    run = Rehearsal(sim, given, MemoryJournal(), spare=True)
    lows = [sim.submit("htc", 400.0) for _ in range(2)]
    run.until(lambda: running(sim, *lows), 60)
    run.run(5.0)
    return sim, run, lows


def now(run: Rehearsal, rules: PolicySet) -> None:
    """From now on these policies are in force."""
    run.policies = run.cycle.policies = rules


def said(run: Rehearsal) -> dict[str, str]:
    """What an admin reads of those that are set aside."""
    return {r.subject: line(r) for r in run.cycle.last.refusals if r.code is Code.STEP_FAILED}


def test_all_others_are_evicted_and_come_back_and_its_host_is_given_back_as_well(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing else is done with it, and what it has is not lost: mended, it goes on."""
    good = policies()
    sim, run, lows = at_work(good)
    mine = next(job for job in lows if sim.job(job).nodes == (BAD,))
    (other,) = set(lows) - {mine}
    hosts = {name: run.world.managed[name].host for name in (BAD, *sim.job(other).nodes)}
    with caplog.at_level(logging.ERROR, "backfill.cycle"):
        now(run, bad(good))
        highs = [sim.submit("batch", 30.0, required_nodes=(host,)) for host in hosts.values()]
        run.until(lambda: running(sim, *highs), 10)
        assert {sim.instance(name).state for name in hosts} == {InstanceState.PAUSED}
        run.until(lambda: ended(sim, *highs), 60)
        run.run(30.0)
    assert running(sim, other)
    assert sim.instance(BAD).state is InstanceState.PAUSED
    told = re.sub(r":[0-9]+", ":7", said(run)[BAD])
    assert told == (
        "vn1: any step refused: deciding about it failed with KeyError at simulation/test_set_aside.py:7: "
        "until that is over it is left alone, but for a pause where its host is wanted; this is a "
        "defect, please report it with the daemon's log"
    )
    assert run.world.queue.failures > 0
    errors = [
        record for record in caplog.records if record.getMessage().startswith("deciding about node vn1")
    ]
    assert 1 <= len(errors) <= 3  # once a minute
    assert errors[0].exc_info is not None
    now(run, good)
    run.until(lambda: ended(sim, *lows), 900)
    assert said(run) == {}
    assert [sim.job(low).restarts for low in lows] == [0, 0]
    assert sim.audit() == []


def test_new_instances_are_made_on_all_other_hosts(caplog: pytest.LogCaptureFixture) -> None:
    """What the host of the one has room for cannot be told, and that is no reason for none at all."""
    sim = cluster(1)
    for number in (3, 4):
        sim.add_host(f"bm{number}", cpus=1, features=("metal",))
    rules = policies(hosts=("bm1", "bm2", "bm3", "bm4"))
    run = Rehearsal(sim, rules, MemoryJournal(), spare=True)
    first = sim.submit("htc", 400.0)
    run.until(lambda: running(sim, first), 60)
    run.run(5.0)
    now(run, bad(rules))
    more = [sim.submit("htc", 100.0) for _ in range(3)]
    with caplog.at_level(logging.ERROR, "backfill.cycle"):
        run.until(lambda: running(sim, *more), 90)
    assert {r.getMessage() for r in caplog.records} == {
        f"deciding about host {run.world.managed[BAD].host} failed: it is left alone; please report this"
    }
    assert sim.audit() == []


def odd_for(host: str, known: Callable[..., object]) -> Callable[..., object]:
    """The same, but for one host."""

    def odd(*given: object) -> object:
        if host in given:
            raise KeyError(host)
        return known(*given)

    return odd


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("broken", ["_look", "_opening", "places_ever"])
def test_what_an_order_asks_of_each_host_fails_for_that_host_alone(
    broken: str, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked between the looks as well, where nobody could be set aside for it."""
    sim = cluster(2)
    rules = policies(own_machines=OwnMachines(enabled=True, passed_over_s=60.0))
    run = Rehearsal(sim, rules, MemoryJournal(), spare=True)
    run.run(5.0)
    sim.submit("batch", 4000.0, required_nodes=("bm1",))
    run.run(5.0)
    odd = odd_for("bm2", getattr(placement, broken))
    if early:
        monkeypatch.setattr(placement, broken, odd)
        run.world.queue.everything()
    sim.submit("htc", 10.0, user="eve", num_nodes=3, cpus=3, comment="backfill-vm:cpus=1")
    run.run(100.0)
    monkeypatch.setattr(placement, broken, odd)
    high = sim.submit("batch", 40.0, required_nodes=("bm2",))
    run.run(100.0)
    assert ended(sim, high)
    assert said(run) == {}
    assert len(run.world.fleets) == 1  # nobody says of it that it can never be had
    assert run.world.queue.failures > 0
    assert sim.audit() == []


class NoRank(Spread):
    """Cannot say how good a host is on which nobody is at work."""

    def rank(self, left: Resources, busy: float | None) -> tuple[float, int]:
        if left.cpus == 3:
            raise KeyError(busy)
        return super().rank(left, busy)


def test_a_host_that_has_no_rank_takes_nobody() -> None:
    """The others are compared without it."""
    sim = cluster(1)
    sim.add_host("bm3", cpus=3, features=("metal",))
    rules = policies(hosts=("bm1", "bm2", "bm3"), placement=NoRank())
    run = Rehearsal(sim, rules, MemoryJournal(), spare=True)
    lows = [sim.submit("htc", 40.0) for _ in range(2)]
    run.until(lambda: ended(sim, *lows), 200)
    assert run.world.queue.failures > 0
    assert said(run) == {}


def test_the_journal_of_such_a_day_replays() -> None:
    """Whoever is set aside depends on what is known, and on nothing else."""
    rules = bad(policies())
    sim = cluster(1)
    run = Rehearsal(sim, rules, MemoryJournal(), spare=True)
    lows = [sim.submit("htc", 100.0) for _ in range(2)]
    run.run(100.0)
    sim.submit("batch", 30.0)
    run.run(300.0)
    assert any(ended(sim, low) for low in lows)
    found = replay_journal(run.journal.read(), rules)
    assert (found.differences, found.lives) == ([], 1)
    assert found.plans > 10


Step = Callable[[PlanBuilder, ManagedNode], None]


def half_a_step(step: Step) -> Step:
    """A step that begins a call and a phase for one instance, and then raises."""

    def raising(builder: PlanBuilder, node: ManagedNode) -> None:
        if node.name != BAD:
            step(builder, node)
            return
        head = {"subject": node.name, "generation": node.generation, "reason": "half a step"}
        builder.do(PauseInstance(**head, host=node.host))  # type: ignore[arg-type]
        builder.become(node, Phase.EVICTING, "half a step")
        raise ZeroDivisionError

    return raising


def test_no_action_comes_from_a_step_that_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had begun is taken back, with all that was decided beside it, and that is decided anew."""
    sim, run, _ = at_work(policies())
    (other,) = phases(run, Phase.READY) - {BAD}
    host = run.world.managed[other].host
    monkeypatch.setitem(planner._STEPS, Phase.READY, half_a_step(planner._STEPS[Phase.READY]))
    run.world.queue.everything()
    before = dict(run.world.managed)
    run.kill()
    sim.submit("batch", 30.0, required_nodes=(host,))
    run.world.queue.full_pass()
    with pytest.raises(ZeroDivisionError):
        plan(run.world, run.policies)
    assert dict(run.world.managed) == before
    found = plan(run.world, run.policies, spare=True)
    assert [action for action in found.actions if action.subject == BAD] == []
    assert {r.subject for r in found.refusals if r.code is Code.STEP_FAILED} == {BAD}
    assert dict(run.world.managed) == before
    assert found == plan(run.world, run.policies, from_scratch=True, spare=True)


@pytest.mark.parametrize("extent", list(Extent))
@pytest.mark.parametrize("broken", [(Phase.READY,), (Phase.READY, Phase.EVICTING)])
def test_what_is_paused_so_is_suspended_in_slurm_as_well(
    broken: tuple[Phase, ...], extent: Extent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its job would reach its time limit, for nothing that it has done."""
    sim = cluster(1)
    run = Rehearsal(sim, policies(victims=Victims(extent=extent)), MemoryJournal(), spare=True)
    lows = [sim.submit("htc", 400.0, time_limit_s=600.0) for _ in range(2)]
    run.until(lambda: running(sim, *lows), 60)
    run.run(5.0)
    mine = next(job for job in lows if sim.job(job).nodes == (BAD,))
    with monkeypatch.context() as patched:
        for phase in broken:
            patched.setitem(planner._STEPS, phase, half_a_step(planner._STEPS[phase]))
        run.world.queue.everything()
        high = sim.submit("batch", 2000.0, required_nodes=(run.world.managed[BAD].host,))
        run.until(lambda: running(sim, high), 10)
        assert sim.instance(BAD).state is InstanceState.PAUSED
        run.run(1500.0)
        assert sim.instance(BAD).state is InstanceState.PAUSED
        assert sim.job(mine).state is JobState.SUSPENDED
        assert [held.id for held in run.world.managed[BAD].held] == [mine]
    run.world.queue.everything()
    run.until(lambda: ended(sim, *lows, high), 1500)
    assert [sim.job(low).restarts for low in lows] == [0, 0]
    assert sim.audit() == []


@pytest.fixture
def made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are not compared with those from scratch: these see at once that the code is mended."""
    monkeypatch.setattr(cycle, "enact", planner.enact)


@pytest.mark.usefixtures("made_once")
def test_it_is_looked_at_again_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing about it changes, and no full pass is made, within a minute: the defect may be over."""
    _, run, _ = at_work(policies())
    with monkeypatch.context() as patched:
        patched.setitem(planner._STEPS, Phase.READY, half_a_step(planner._STEPS[Phase.READY]))
        run.world.queue.everything()
        run.run(70.0)
        assert set(said(run)) == {BAD}
        failures = run.world.queue.failures
    run.run(70.0)
    assert said(run) == {}
    assert run.world.queue.failures == failures <= 3


@pytest.mark.usefixtures("made_once")
def test_a_host_is_looked_at_again_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """So is one whose room could not be told: jobs wait for it."""
    sim = cluster(1)
    run = Rehearsal(sim, policies(), MemoryJournal(), spare=True)
    with monkeypatch.context() as patched:
        patched.setattr(placement, "_look", odd_for("bm2", placement._look))
        run.world.queue.everything()
        lows = [sim.submit("htc", 400.0) for _ in range(2)]
        run.until(lambda: any(running(sim, low) for low in lows), 60)
        run.run(30.0)
        assert not running(sim, *lows)
    run.until(lambda: running(sim, *lows), 100.0)


def beside(**others: object) -> tuple[SimulatedWorld, Rehearsal, list[str]]:
    """Two jobs on one host of four CPUs, from which only so many make way as have to."""
    given = policies(**{"hosts": ("bm1",), "victims": Victims(extent=Extent.NEEDED), **others})
    return at_work(given, one_host())


def count(run: Rehearsal, action: type) -> int:
    """How many such calls were begun for it."""
    begun = [record.body for record in run.journal.read() if record.body.get("t") == action.__name__]
    return sum(1 for body in begun if body["subject"] == BAD)


def test_what_may_stay_beside_a_job_is_not_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paused, it came back by the usual steps to where its own step raises, and so on without end."""
    sim, run, lows = beside()
    with monkeypatch.context() as patched:
        patched.setitem(planner._STEPS, Phase.READY, half_a_step(planner._STEPS[Phase.READY]))
        run.world.queue.everything()
        small = sim.submit("batch", 600.0, cpus=2, memory_mb=100)
        run.until(lambda: running(sim, small), 10)
        run.run(60.0)
        assert count(run, PauseInstance) == 0
        assert set(said(run)) == {BAD}
        high = sim.submit("batch", 100.0, cpus=2, memory_mb=100)  # and the host is full
        run.until(lambda: running(sim, high), 10)
        assert count(run, PauseInstance) == 1
        run.until(lambda: ended(sim, *lows), 600)
        assert (count(run, PauseInstance), count(run, ThawInstance)) == (1, 1)
    assert [sim.job(low).restarts for low in lows] == [0, 0]
    assert sim.audit() == []


def test_what_is_on_its_way_back_beside_a_job_is_not_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is room for it: that its step raises is no reason to put it aside once more."""
    sim, run, lows = beside()
    sim.submit("batch", 60.0, cpus=4, memory_mb=100)
    run.until(lambda: BAD in phases(run, Phase.PARKED), 30)
    run.until(lambda: BAD in phases(run, Phase.RETURNING), 90)
    with monkeypatch.context() as patched:
        patched.setitem(planner._STEPS, Phase.RETURNING, half_a_step(planner._STEPS[Phase.RETURNING]))
        run.world.queue.everything()
        small = sim.submit("batch", 600.0, cpus=1, memory_mb=100)
        run.until(lambda: running(sim, small), 10)
        run.run(60.0)
        assert (run.world.managed[BAD].evictions, count(run, PauseInstance)) == (1, 1)
        assert BAD in phases(run, Phase.RETURNING)
    run.world.queue.everything()
    run.until(lambda: ended(sim, *lows), 900)
    assert [sim.job(low).restarts for low in lows] == [0, 0]
    assert sim.audit() == []


@pytest.mark.parametrize("extent", list(Extent))
def test_what_is_throttled_goes_on_so(extent: Extent, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has given its CPUs back: a pause would give nobody more, and count as another eviction."""
    slow = Ladder((RungRule(Rung.THROTTLE, within_s=1.0), RungRule(Rung.PAUSE)))
    sim, run, lows = beside(ladder=slow, victims=Victims(extent=extent))
    high = sim.submit("batch", 200.0, cpus=4, memory_mb=100)
    run.until(lambda: BAD in phases(run, Phase.THROTTLED), 30)
    with monkeypatch.context() as patched:
        patched.setitem(planner._STEPS, Phase.THROTTLED, half_a_step(planner._STEPS[Phase.THROTTLED]))
        run.world.queue.everything()
        run.run(60.0)
        assert (run.world.managed[BAD].evictions, count(run, PauseInstance)) == (1, 0)
        assert BAD in phases(run, Phase.THROTTLED)
        assert set(said(run)) == {BAD}
    run.world.queue.everything()
    run.until(lambda: ended(sim, high, *lows), 900)
    assert sim.audit() == []


def test_the_usual_steps_go_on_with_the_next_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else need happen to it before."""
    _, run, _ = at_work(policies())
    monkeypatch.setitem(planner._STEPS, Phase.READY, half_a_step(planner._STEPS[Phase.READY]))
    run.kill()
    run.world.closed[run.world.managed[BAD].host] = "a new fan"
    run.world.queue.everything()
    found = plan(run.world, run.policies, spare=True)
    assert BAD in {action.subject for action in found.actions}
    assert found.wake_at_s is not None
    assert found.wake_at_s < run.world.now_s + 0.001


def test_where_slurm_cannot_be_told_it_is_paused_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host is given back, whatever else fails."""
    sim, run, _ = at_work(policies())
    monkeypatch.setitem(planner._STEPS, Phase.READY, half_a_step(planner._STEPS[Phase.READY]))
    monkeypatch.setattr("backfill.core.reconcile.sparing.begin_eviction", fail)
    run.world.queue.everything()
    high = sim.submit("batch", 30.0, required_nodes=(run.world.managed[BAD].host,))
    run.until(lambda: running(sim, high), 10)
    assert sim.instance(BAD).state is InstanceState.PAUSED
    assert phases(run, Phase.READY) >= {BAD}


def test_the_same_defect_is_said_once_whatever_its_text_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text with a time or an object's address made a refusal in the journal with each look."""
    _, run, _ = at_work(policies())

    def odd(builder: PlanBuilder, node: ManagedNode) -> None:
        raise ValueError(f"{node.name} at {builder.now_s}: {object()}")

    monkeypatch.setitem(planner._STEPS, Phase.READY, odd)
    run.world.queue.everything()
    run.run(1.0)
    told = said(run)
    assert set(told) == {"vn1", "vn2"}
    before = len(list(run.journal.read()))
    for _ in range(5):
        run.world.queue.everything()
        run.run(1.0)
    assert said(run) == told
    late = list(run.journal.read())[before:]
    assert [record for record in late if record.kind == "refusal"] == []


def fail(*_: object) -> None:
    raise OverflowError("too many")


def test_where_nothing_can_be_decided_about_growth_evictions_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what concerns all there is one: it is left alone, and said."""
    sim, run, lows = at_work(policies())
    monkeypatch.setitem(planner._LOOKS, Kind.SCALE, fail)
    run.world.queue.everything()
    high = sim.submit("batch", 30.0)
    run.until(lambda: ended(sim, high), 60)
    assert set(said(run)) == {"cluster"}
    run.until(lambda: ended(sim, *lows), 600)
    assert [sim.job(low).restarts for low in lows] == [0, 0]
    assert sim.audit() == []


def test_a_mark_of_what_is_set_aside_has_nothing_else_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a large cluster each such plan would else look at everything, twice."""
    _, run, _ = at_work(policies())
    monkeypatch.setitem(planner._LOOKS, Kind.SCALE, fail)
    run.world.queue.everything()
    run.run(5.0)
    run.kill()
    looked: list[Entity] = []
    look_at = PlanBuilder.look_at

    def counting(self: PlanBuilder, looks: Looks, entity: Entity, settled: bool) -> tuple[Result, bool]:
        looked.append(entity)
        return look_at(self, looks, entity, settled)

    plan(run.world, run.policies, spare=True)
    monkeypatch.setattr(PlanBuilder, "look_at", counting)
    run.world.queue.mark(SCALE)
    found = plan(run.world, run.policies, spare=True)
    assert looked == [SCALE, SCALE]
    assert {r.subject for r in found.refusals if r.code is Code.STEP_FAILED} == {"cluster"}


def test_one_whose_host_cannot_even_be_told_is_only_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause fails as well: all others go on all the same."""
    sim, run, lows = at_work(policies())
    monkeypatch.setitem(planner._STEPS, Phase.READY, half_a_step(planner._STEPS[Phase.READY]))
    monkeypatch.setattr("backfill.core.reconcile.sparing.stop_where_wanted", fail)
    run.world.queue.everything()
    run.run(10.0)
    assert set(said(run)) == {BAD}
    other = next(job for job in lows if sim.job(job).nodes != (BAD,))
    run.until(lambda: ended(sim, other), 600)


def test_where_ever_more_fail_it_is_no_matter_of_one_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try meets another one: then the first error is raised, and nothing is begun."""
    sim = cluster()
    run = Rehearsal(sim, policies(), MemoryJournal(), spare=True)
    lows = [sim.submit("htc", 400.0) for _ in range(8)]
    run.until(lambda: running(sim, *lows), 60)
    run.kill()
    tried: list[PlanBuilder] = []

    def look(builder: PlanBuilder, name: str) -> None:
        if builder not in tried:
            tried.append(builder)
            raise OverflowError(f"{len(tried)}: {name}")

    monkeypatch.setitem(planner._LOOKS, Kind.NODE, look)
    run.world.queue.full_pass()
    with pytest.raises(OverflowError, match="1: vn"):
        plan(run.world, run.policies, spare=True)
    assert len(tried) == 5


def test_without_being_asked_to_spare_anybody_a_plan_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in simulations and replays, which are to find such defects."""
    monkeypatch.setitem(planner._LOOKS, Kind.SCALE, fail)
    with pytest.raises(OverflowError):
        Rehearsal(cluster(1), policies(), MemoryJournal())
