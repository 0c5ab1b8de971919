"""The journal is last night's copy, or gone: what runs and stands still is taken over, intact."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import InstanceState, Rung
from backfill.core.model.lifecycle import HeldJob, ManagedNode, Phase, RefusedSuspend
from backfill.core.model.sentences import why
from backfill.core.policies.ladder import RungRule
from backfill.core.policies.scale import Scale
from backfill.core.policies.workloads import AtEnd, Workload, Workloads
from backfill.core.reconcile.held_jobs import mark
from backfill.drivers.simulated.faults import Odd
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.ports.errors import UnreachableError
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.property.days import Day, policies
from tests.simulation.policy_cluster import TWELVE

PAUSE = (RungRule(Rung.PAUSE, within_s=1.0), RungRule(Rung.REQUEUE))


def _running(sim: SimulatedWorld, jobs: list[str]) -> bool:
    return all(sim.job(j).state is JobState.RUNNING for j in jobs)


def _phases(run: Rehearsal) -> list[str]:
    return sorted(m.phase.value for m in run.world.managed.values())


def _copy(run: Rehearsal) -> MemoryJournal:
    backup = MemoryJournal()
    backup.append(list(run.journal.read()))
    return backup


def _site(requeue: bool = True, jobs: int = 4) -> tuple[Day, list[str]]:
    """Jobs at work, their instances of the second generation, and those of one host aside."""
    day = Day(policies(PAUSE, scale=Scale(idle_s=5.0)))
    early = [day.sim.submit("htc", 20.0) for _ in range(jobs)]
    day.run.until(lambda: _running(day.sim, early), 120.0)
    return day, [
        day.sim.submit("htc", 600.0, requeue=requeue, at_s=day.sim.now_s + 120.0) for _ in range(jobs)
    ]


def _restored(day: Day, journal: MemoryJournal) -> Rehearsal:
    day.run.kill()
    # To lay a copy in its place takes a person some seconds; calls that were under way end then.
    day.sim.step_to(day.sim.now_s + 5.0)
    return Rehearsal(day.sim, day.run.policies, journal)


@pytest.mark.parametrize("requeue", [True, False])
@pytest.mark.parametrize("known", [True, False], ids=["last night's", "none"])
def test_instances_that_the_journal_does_not_know_go_on(requeue: bool, known: bool) -> None:
    """Those at work and those that stand still, of jobs that may begin anew and of others."""
    day, lows = _site(requeue)
    backup = _copy(day.run) if known else MemoryJournal()
    day.run.until(lambda: not day.run.world.managed, 300.0)
    day.run.until(lambda: _running(day.sim, lows), 300.0)
    assert {m.generation for m in day.run.world.managed.values()} == {2}
    host = sorted(m.host for m in day.run.world.managed.values())[0]
    day.sim.submit("batch", 120.0, required_nodes=(host,))
    day.run.until(lambda: "parked" in _phases(day.run), 60.0)
    aside = _phases(day.run).count("parked")
    run = _restored(day, backup)
    run.run(20.0)
    assert _phases(run).count("parked") == aside
    assert set(_phases(run)) == {"parked", "ready"}
    assert {m.generation for m in run.world.managed.values()} == {2}
    run.run(1500.0)
    assert all(day.sim.job(j).state is JobState.COMPLETED for j in lows)
    assert sum(day.sim.job(j).restarts for j in lows) == 0
    assert day.sim.audit() == []


def test_generations_go_on_above_the_highest_that_was_seen() -> None:
    """A name's next instance is told from the one that the journal did not know."""
    day, lows = _site()
    backup = _copy(day.run)
    day.run.until(lambda: _running(day.sim, lows), 500.0)
    run = _restored(day, backup)
    run.run(800.0)
    assert not run.world.managed
    more = [day.sim.submit("htc", 30.0) for _ in lows]
    run.until(lambda: _running(day.sim, more), 200.0)
    assert {m.generation for m in run.world.managed.values()} == {3}
    assert day.sim.audit() == []


def _aside(restarted: bool) -> tuple[Day, str]:
    """One job that was begun anew before, if so, and is aside now."""
    day = Day(policies(PAUSE))
    low = day.sim.submit("htc", 300.0)
    day.run.until(lambda: _running(day.sim, [low]), 120.0)
    if restarted:
        day.sim.requeue_behind(low, delay_s=1.0)
        day.run.run(5.0)
        day.run.until(lambda: _running(day.sim, [low]), 120.0)
    day.run.run(5.0)
    (node,) = day.sim.job(low).nodes
    day.sim.submit("batch", 60.0, required_nodes=(day.run.world.managed[node].host,))
    day.run.until(lambda: "parked" in _phases(day.run), 60.0)
    return day, low


def test_which_run_stands_still_is_known_without_a_journal() -> None:
    """The drain of its node says it, and the job goes on."""
    day, low = _aside(restarted=True)
    restarts = day.sim.job(low).restarts
    assert restarts > 0
    run = _restored(day, MemoryJournal())
    run.run(900.0)
    assert day.sim.job(low).state is JobState.COMPLETED
    assert day.sim.job(low).restarts == restarts
    assert day.sim.audit() == []


def _drained_by_hand(day: Day, low: str) -> None:
    """The drain does not tell any more of which run the copy is."""
    (name,) = day.sim.job(low).nodes
    seen = day.sim.slurm.read_nodes([name])[name]
    day.sim.slurm.undrain(name)
    day.sim.slurm.drain(name, seen.reason.partition(" [")[0])


def test_where_nobody_knows_the_run_the_instance_waits_as_it_is() -> None:
    """Neither thawed nor destroyed, however long it takes, and it says what to do."""
    day, low = _aside(restarted=True)
    _drained_by_hand(day, low)
    run = _restored(day, MemoryJournal())
    run.run(3600.0)
    assert _phases(run) == ["parked"]
    assert day.sim.job(low).state is JobState.SUSPENDED
    refused = [why(r) for r in run.cycle.last.refusals if "nobody can tell" in why(r)]
    assert any(f"scontrol requeue {low}" in reason for reason in refused)
    run.kill()
    run.start()  # and it is not forgotten by a restart
    run.run(600.0)
    assert _phases(run) == ["parked"]
    day.sim.requeue_behind(low, delay_s=1.0)
    run.run(900.0)
    assert day.sim.job(low).state is JobState.COMPLETED


def test_a_job_of_another_run_makes_the_copy_stale() -> None:
    """What the drain tells is compared with Slurm's word: the old copy is never thawed."""
    day, low = _aside(restarted=True)
    before = day.sim.job(low).restarts
    day.run.kill()
    day.sim.requeue_behind(low, delay_s=1.0)
    run = Rehearsal(day.sim, day.run.policies, MemoryJournal())
    run.run(900.0)
    assert day.sim.job(low).state is JobState.COMPLETED
    assert day.sim.job(low).restarts > before
    assert [v for v in day.sim.audit() if v.kind == "twice"] == []


@pytest.mark.parametrize("known", [True, False], ids=["of before the stop", "none"])
def test_a_job_given_back_from_beside_another_never_runs_on_in_their_copy(known: bool) -> None:
    """Two stood still in one memory, and one was put back into the queue: only the drain still tells."""
    two = replace(TWELVE, flavour=replace(TWELVE.flavour, cpus=2))
    ladder = (RungRule(Rung.PAUSE, within_s=1.0, for_s=120.0), RungRule(Rung.REQUEUE))
    day = Day(policies(ladder, instances=two))
    lows = [day.sim.submit("htc", 300.0) for _ in range(2)]
    day.run.until(lambda: _running(day.sim, lows), 120.0)
    day.run.run(5.0)
    ((node,),) = {day.sim.job(low).nodes for low in lows}
    backup = _copy(day.run) if known else MemoryJournal()
    day.sim.submit("batch", 60.0, required_nodes=(day.run.world.managed[node].host,))
    day.run.until(lambda: day.run.world.managed[node].phase is Phase.PARKED, 60.0)
    day.run.kill()
    day.sim.requeue_behind(lows[0], delay_s=1.0)
    run = Rehearsal(day.sim, day.run.policies, backup)
    run.run(60.0)
    apart = [why(r) for r in run.cycle.last.refusals if r.subject == node]
    assert any(f"job {lows[0]} " in reason for reason in apart), apart
    run.run(1500.0)
    assert all(day.sim.job(low).state is JobState.COMPLETED for low in lows)
    assert day.sim.audit() == []


def _late_beside(day: Day, low: str, marked: bool) -> str:
    """A job that Slurm gives to the stopped instance of another; the daemon ends as soon as it knows."""
    (node,) = day.sim.job(low).nodes
    error = UnreachableError("slurmctld", "socket timed out")
    reads = ("observe", "observe_nodes", "read_jobs", "read_nodes") if marked else ()
    orders = [day.sim.faults.fail(call, error, times=-1) for call in reads]
    if marked:
        day.run.run(day.run.policies.limits.stale_after_s + 10.0)
    day.sim.submit("batch", 60.0, required_nodes=(day.run.world.managed[node].host,))
    day.run.until(lambda: day.sim.instance(node).state is InstanceState.PAUSED, 60.0)
    day.run.run(5.0)
    if not marked:
        day.run.kill()
        day.sim.admin_drain(node, "")
    late = day.sim.submit("htc", 20.0)
    day.sim.step_to(day.sim.now_s + 3.0)
    assert day.sim.job(late).nodes == (node,)
    for order in orders:
        order.end()
    if marked:
        mark = f" {low}:0 {late}:0?]"
        day.run.until(lambda: day.sim.slurm.read_nodes([node])[node].reason.endswith(mark), 30.0)
        day.run.kill()
    return late


@pytest.mark.parametrize("marked", [True, False], ids=["drained anew", "open"])
def test_a_job_beside_one_that_came_to_a_stopped_instance_is_kept_without_a_journal(marked: bool) -> None:
    """Nothing of that one is in the instance, which only the lost journal could prove.

    Once its host is free, the other does not begin anew because time is over, nor does it go on
    because Slurm has forgotten the one that came late: it waits for a person.
    """
    two = replace(TWELVE, flavour=replace(TWELVE.flavour, cpus=2))
    ladder = (RungRule(Rung.PAUSE, within_s=1.0, for_s=120.0), RungRule(Rung.REQUEUE))
    day = Day(policies(ladder, instances=two))
    low = day.sim.submit("htc", 300.0)
    day.run.until(lambda: _running(day.sim, [low]), 120.0)
    day.run.run(5.0)
    (node,) = day.sim.job(low).nodes
    late = _late_beside(day, low, marked)
    run = Rehearsal(day.sim, day.run.policies, MemoryJournal())
    run.until(lambda: day.sim.job(late).state is JobState.COMPLETED, 600.0)
    assert day.sim.job(late).restarts == 1
    run.run(600.0)
    assert late not in run.world.jobs
    assert (day.sim.job(low).state, day.sim.job(low).restarts) == (JobState.SUSPENDED, 0)
    apart = [why(r) for r in run.cycle.last.refusals if r.subject == node]
    assert any(f"scontrol requeue {low}" in reason for reason in apart), apart
    day.sim.requeue_behind(low, delay_s=1.0)
    run.until(lambda: day.sim.job(low).state is JobState.COMPLETED, 900.0)
    assert day.sim.audit() == []


@pytest.mark.parametrize("first", [0, 1])
def test_a_node_whose_job_stands_still_elsewhere_is_not_opened_by_an_old_journal(first: int) -> None:
    """It is of before the stop: no other job gets a CPU there, whichever of the two is looked at first."""
    day = Day(policies(PAUSE, scale=Scale(warm=2)))
    low = day.sim.submit("htc", 200.0, num_nodes=2, cpus=2)
    day.run.until(lambda: _running(day.sim, [low]), 120.0)
    day.run.run(5.0)
    backup = _copy(day.run)
    away, open_ = sorted(day.sim.job(low).nodes, reverse=bool(first))
    hosts = {name: day.run.world.managed[name].host for name in (away, open_)}
    assert hosts[away] != hosts[open_]
    day.sim.submit("batch", 100.0, required_nodes=(hosts[away],))
    day.run.until(lambda: day.run.world.managed[away].phase is Phase.PARKED, 60.0)
    day.run.run(5.0)
    before = len(list(backup.read()))
    run = _restored(day, backup)
    more = [day.sim.submit("htc", 20.0) for _ in range(12)]
    run.run(20.0)
    assert run.world.managed[away].phase is Phase.PARKED
    asked = [r.body for r in list(run.journal.read())[before:] if r.kind == "intent"]
    assert [b for b in asked if (b["t"], b["subject"]) == ("UndrainNode", open_)] == []
    run.run(900.0)
    assert all(day.sim.job(j).state is JobState.COMPLETED for j in (low, *more))
    assert [v for v in day.sim.audit() if v.kind != "room"] == []


def test_a_node_that_an_old_journal_has_booting_returns_before_others_come() -> None:
    """Its instance had just been thawed, and its job is still suspended: nobody else gets its CPU."""
    day = Day(policies(PAUSE))
    low = day.sim.submit("htc", 300.0)
    day.run.until(lambda: bool(day.run.world.managed), 30.0)
    (name,) = day.run.world.managed
    assert day.run.world.managed[name].phase is Phase.BOOTING
    backup = _copy(day.run)
    day.run.until(lambda: _running(day.sim, [low]), 120.0)
    day.sim.submit("batch", 20.0, required_nodes=(day.run.world.managed[name].host,))
    day.run.until(lambda: day.run.world.managed[name].phase is Phase.PARKED, 60.0)
    day.run.until(lambda: day.sim.instance(name).state is InstanceState.RUNNING, 120.0)
    assert day.sim.job(low).state is JobState.SUSPENDED
    run = _restored(day, backup)
    more = [day.sim.submit("htc", 20.0) for _ in range(12)]
    run.run(900.0)
    assert all(day.sim.job(j).state is JobState.COMPLETED for j in (low, *more))
    assert day.sim.job(low).restarts == 0
    assert day.sim.audit() == []


@pytest.mark.parametrize("hidden", [True, False])
def test_slurm_forgets_jobs_as_a_daemon_with_an_old_journal_begins(hidden: bool) -> None:
    """By its copy the node is at work; who is suspended there is shown by nobody for some seconds."""
    day, (low, *_) = _site(requeue=False, jobs=1)
    day.run.until(lambda: _running(day.sim, [low]), 300.0)
    day.run.run(5.0)
    backup = _copy(day.run)
    (name,) = day.sim.job(low).nodes
    day.sim.submit("batch", 60.0, required_nodes=(day.run.world.managed[name].host,))
    day.run.until(lambda: day.run.world.managed[name].phase is Phase.PARKED, 60.0)
    day.run.kill()
    if not hidden:  # as when it ends while the instance is on its way back
        day.sim.slurm.set_address(name, day.run.world.managed[name].address.split("/")[0])
    order = day.sim.faults.misread(Odd.NO_JOBS, times=-1, everywhere=True)
    run = Rehearsal(day.sim, day.run.policies, backup)
    run.run(7.0)
    assert run.world.managed[name].phase is Phase.EVICTING
    order.end()
    run.run(1500.0)
    assert (day.sim.job(low).state, day.sim.job(low).restarts) == (JobState.COMPLETED, 0)
    assert day.sim.audit() == []


def test_a_job_of_an_admin_is_left_alone_by_a_journal_that_has_its_node_booting() -> None:
    """The daemon drains the node until it has proven itself: that is no stop of ours."""
    day = Day(policies(PAUSE))
    low = day.sim.submit("htc", 100.0)
    day.run.until(lambda: _phases(day.run) == ["booting"], 30.0)
    backup = _copy(day.run)
    day.run.until(lambda: _running(day.sim, [low]), 120.0)
    day.run.run(5.0)
    day.sim.admin_suspend(low)
    run = _restored(day, backup)
    run.run(60.0)
    assert _phases(run) == ["ready"]
    assert day.sim.job(low).state is JobState.SUSPENDED
    day.sim.admin_resume(low)
    run.until(lambda: day.sim.job(low).state is JobState.COMPLETED, 200.0)
    assert day.sim.job(low).restarts == 0
    assert day.sim.audit() == []


def test_a_job_of_an_admin_on_a_throttled_node_is_left_alone_without_a_journal() -> None:
    """The node is drained by us, for a stop that was only slow: who is suspended there is not so by us."""
    ladder = (RungRule(Rung.THROTTLE, within_s=1.0, for_s=600.0), RungRule(Rung.REQUEUE))
    day = Day(replace(policies(ladder), hosts=("bm1",)))
    low = day.sim.submit("htc", 200.0)
    day.run.until(lambda: _running(day.sim, [low]), 120.0)
    (name,) = day.sim.job(low).nodes
    day.sim.submit("batch", 20.0, required_nodes=("bm1",))
    day.run.until(lambda: _phases(day.run) == ["throttled"], 60.0)
    day.run.run(5.0)
    day.sim.admin_suspend(low)
    day.run.kill()
    day.sim.step_to(day.sim.now_s + 20.0)
    run = Rehearsal(day.sim, day.run.policies, MemoryJournal())
    run.run(60.0)
    assert _phases(run) == ["ready"]
    assert not day.sim.instance(name).machine.throttled
    assert not day.sim.slurm.read_nodes([name])[name].drained
    assert day.sim.job(low).state is JobState.SUSPENDED
    day.sim.admin_resume(low)
    run.until(lambda: day.sim.job(low).state is JobState.COMPLETED, 600.0)
    assert day.sim.audit() == []


def test_the_next_run_that_begins_where_an_old_journal_has_the_one_before_goes_on() -> None:
    """By its copy a run stands still there that is over, and then the host is taken once more."""
    day = Day(replace(policies(PAUSE), hosts=("bm1",)))
    low = day.sim.submit("htc", 300.0)
    day.run.until(lambda: _running(day.sim, [low]), 120.0)
    high = _taken(day, 30.0)
    backup = _copy(day.run)
    day.run.until(lambda: day.sim.job(high).state is JobState.COMPLETED and _running(day.sim, [low]), 90.0)
    day.run.run(20.0)
    day.sim.requeue_behind(low, delay_s=8.0)
    run = _restored(day, backup)
    run.until(lambda: _running(day.sim, [low]), 60.0)
    run.run(10.0)
    high = day.sim.submit("batch", 30.0, required_nodes=("bm1",))
    run.until(lambda: day.sim.job(high).state is JobState.COMPLETED, 120.0)
    run.until(lambda: day.sim.job(low).state is JobState.COMPLETED, 1000.0)
    assert day.sim.job(low).restarts == 1
    assert day.sim.audit() == []


def test_few_words_are_added_to_a_drain() -> None:
    """None where one job is in its first run and nobody else's; where there are too many, of those alone."""
    node = ManagedNode("vn1", "10.0.0.1/8", "bm1", 3, Phase.EVICTING, 1.0, 1.0)
    job, again = HeldJob("7", 0), HeldJob("8_2", 2)
    will_not = RefusedSuspend("no", 1.0, ())
    assert mark(node, [job]) == ""
    assert mark(node, [again]) == " [3 holds 8_2:2]"
    assert mark(node, [replace(job, ours=False)]) == " [3 holds 7:0*]"
    assert mark(node, [replace(job, ours=False, refused=will_not)]) == ""
    assert mark(node, [job, again]) == " [3 holds 7:0 8_2:2]"
    assert mark(node, [replace(job, ours=False), again]) == " [3 holds 7:0* 8_2:2]"
    assert mark(node, [job, replace(again, late=True)]) == " [3 holds 7:0 8_2:2?]"
    assert mark(node, [*[job] * 64, again]) == " [3 holds 8_2:2]"
    assert mark(node, [again] * 65) == ""


def test_a_job_on_an_instance_that_the_policy_file_does_not_name_is_kept() -> None:
    """A lost journal and a shorter list of names: it works on, and is named as a refusal."""
    day = Day(policies(PAUSE))
    lows = [day.sim.submit("htc", 300.0) for _ in range(3)]
    day.run.until(lambda: _running(day.sim, lows), 120.0)
    (name,) = day.sim.job(lows[0]).nodes
    day.run.kill()
    template = day.run.policies.instances
    pairs = zip(template.names, template.addresses, strict=True)
    names, addresses = zip(*(pair for pair in pairs if pair[0] != name), strict=True)
    fewer = replace(template, names=names, addresses=addresses)
    rules = replace(day.run.policies, instances=fewer)
    run = Rehearsal(day.sim, rules, MemoryJournal())
    run.run(120.0)
    assert any(r.subject == name and "name it in" in why(r) for r in run.cycle.last.refusals)
    run.run(600.0)
    assert all(day.sim.job(j).state is JobState.COMPLETED for j in lows)
    assert sum(day.sim.job(j).restarts for j in lows) == 0


@pytest.mark.parametrize("taken_s", [22.0, 200.0], ids=["its host is free", "its host is taken"])
def test_what_booted_in_the_copy_and_stands_still_by_now_goes_on(taken_s: float) -> None:
    """The journal is from before its first job: what waits in it is found, and goes on."""
    day = Day(policies(PAUSE))
    low = day.sim.submit("htc", 100.0)
    day.run.until(lambda: _phases(day.run) == ["booting"], 30.0)
    backup = _copy(day.run)
    day.run.until(lambda: _running(day.sim, [low]), 30.0)
    (host,) = (m.host for m in day.run.world.managed.values())
    day.sim.submit("batch", taken_s, required_nodes=(host,))
    day.run.until(lambda: "parked" in _phases(day.run), 30.0)
    day.run.run(20.0)
    run = _restored(day, backup)
    run.until(lambda: day.sim.job(low).state is JobState.COMPLETED, 500.0)
    assert day.sim.job(low).restarts == 0
    assert [v for v in day.sim.audit() if v.kind != "room"] == []


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(1, 60), st.integers(1, 200), st.booleans())
def test_a_copy_of_any_moment_destroys_nothing_at_any_later_one(
    copied_s: int, after_s: int, requeue: bool
) -> None:
    """Evictions, returns, ends and new instances lie between the copy and its return."""
    day = Day(policies(PAUSE, scale=Scale(idle_s=4.0)))
    for at_s in (1, 2, 30, 31, 80, 81, 150):
        start_s = day.sim.now_s + at_s
        day.jobs.append(day.sim.submit("htc", 45.0, requeue=requeue, at_s=start_s))
    for at_s in (25, 70, 120):
        day.submit("batch", 15.0, at_s)
    day.run.run(float(copied_s))
    backup = _copy(day.run)
    day.run.run(float(after_s))
    run = _restored(day, backup)
    run.run(700.0)
    assert all(day.sim.job(j).state is JobState.COMPLETED for j in day.jobs)
    assert sum(day.sim.job(j).restarts for j in day.jobs) == 0
    assert [v for v in day.sim.audit() if v.kind != "room"] == []


AN_HOUR = (RungRule(Rung.PAUSE, within_s=1.0, for_s=3600.0), RungRule(Rung.REQUEUE))


def _one_aside(for_s: float) -> tuple[Day, str, str]:
    """A job on the only host, and the one for which it stands still."""
    rules = replace(policies(AN_HOUR), hosts=("bm1",))
    day = Day(rules)
    low = day.sim.submit("htc", 2000.0)
    day.run.until(lambda: _running(day.sim, [low]), 120.0)
    return day, low, _taken(day, for_s)


def _taken(day: Day, for_s: float) -> str:
    high = day.sim.submit("batch", for_s, required_nodes=("bm1",))
    day.run.until(lambda: _phases(day.run) == ["parked"], 60.0)
    return high


def test_a_rung_of_an_earlier_stop_is_not_over_by_its_copy() -> None:
    """An hour is allowed; by the copy it has stood still for longer, and it has worked in between."""
    day, low, high = _one_aside(600.0)
    backup = _copy(day.run)
    day.run.until(lambda: day.sim.job(high).state is JobState.COMPLETED, 700.0)
    day.run.until(lambda: _phases(day.run) == ["ready"], 60.0)
    day.run.run(1000.0)
    high = _taken(day, 3000.0)
    day.run.run(600.0)
    run = _restored(day, backup)
    run.until(lambda: day.sim.job(high).state is JobState.COMPLETED, 3000.0)
    run.until(lambda: day.sim.job(low).state is JobState.COMPLETED, 2000.0)
    assert day.sim.job(low).restarts == 0
    assert day.sim.audit() == []


@pytest.mark.parametrize("decided", [True, False])
def test_a_ladder_that_an_old_journal_has_at_its_end_is_not_at_its_end_in_a_later_stop(decided: bool) -> None:
    """Its job was to start over, or soon, and Slurm could not be told; it went on, and stands still again.

    The journal tells the time every five minutes: it did so just before the copy was made.
    """
    ladder = (RungRule(Rung.PAUSE, within_s=1.0, for_s=60.0), RungRule(Rung.REQUEUE))
    day = Day(replace(policies(ladder), hosts=("bm1",)))
    low = day.sim.submit("htc", 600.0)
    day.run.until(lambda: _running(day.sim, [low]), 120.0)
    (node,) = day.sim.job(low).nodes
    day.run.run(240.0)
    _taken(day, 64.0)
    order = day.sim.faults.fail("requeue_job", UnreachableError("slurmctld", "socket timed out"), times=-1)
    day.run.run(57.0)
    early = _copy(day.run)
    day.run.until(lambda: day.run.world.managed[node].condemned is not None, 100.0)
    backup = _copy(day.run) if decided else early
    day.run.until(lambda: _phases(day.run) == ["ready"], 60.0)
    order.end()
    day.run.run(20.0)
    high = _taken(day, 55.0)
    run = _restored(day, backup)
    run.until(lambda: day.sim.job(high).state is JobState.COMPLETED, 80.0)
    run.until(lambda: day.sim.job(low).state is JobState.COMPLETED, 1000.0)
    assert day.sim.job(low).restarts == 0
    assert day.sim.audit() == []


def test_patience_that_is_over_by_an_old_journal_is_not_over_in_a_later_stop() -> None:
    """A pilot that can do so for two minutes stood still for 80 s, made up for it, and stands still again."""
    ladder = (RungRule(Rung.PAUSE, within_s=1.0, for_s=118.0), RungRule(Rung.REQUEUE))
    pilots = Workload("pilots", stand_still_s=120.0, at_end=AtEnd.REQUEUE, ladder=ladder)
    day = Day(replace(policies(ladder), hosts=("bm1",), workloads=Workloads((pilots,))))
    low = day.sim.submit("htc", 600.0)
    day.run.until(lambda: _running(day.sim, [low]), 120.0)
    day.run.run(5.0)
    _taken(day, 80.0)
    day.run.run(70.0)
    backup = _copy(day.run)
    day.run.until(lambda: _phases(day.run) == ["ready"], 60.0)
    day.run.run(150.0)
    high = _taken(day, 80.0)
    day.run.run(5.0)
    run = _restored(day, backup)
    run.until(lambda: day.sim.job(high).state is JobState.COMPLETED, 100.0)
    run.until(lambda: day.sim.job(low).state is JobState.COMPLETED, 1000.0)
    assert day.sim.job(low).restarts == 0
    assert day.sim.audit() == []


def test_a_ladder_at_its_end_waits_only_for_as_long_as_there_was_no_daemon() -> None:
    """One minute aside and then the queue, which could not be told: a daemon that is back ends it soon."""
    ladder = (RungRule(Rung.PAUSE, within_s=1.0, for_s=60.0), RungRule(Rung.REQUEUE))
    day = Day(replace(policies(ladder), hosts=("bm1",)))
    low = day.sim.submit("htc", 300.0)
    day.run.until(lambda: _running(day.sim, [low]), 120.0)
    (node,) = day.sim.job(low).nodes
    _taken(day, 2000.0)
    order = day.sim.faults.fail("requeue_job", UnreachableError("slurmctld", "socket timed out"), times=-1)
    day.run.until(lambda: day.run.world.managed[node].condemned is not None, 100.0)
    day.run.kill()
    day.run.run(10.0)
    order.end()
    day.run.start()
    day.run.run(5.0)
    assert day.sim.job(low).restarts == 0
    day.run.until(lambda: day.sim.job(low).restarts == 1, 20.0)
    assert day.sim.audit() == []


def test_time_without_a_daemon_does_not_use_up_a_rung() -> None:
    """Two long outages do not end its hour; with the daemon there it ends."""
    day, low, _ = _one_aside(20_000.0)
    run = day.run
    for _ in range(2):
        run.run(1200.0)
        run.kill()
        run.run(4000.0)
        run.start()
        run.run(10.0)
        assert day.sim.job(low).restarts == 0
    run.run(400.0)
    assert day.sim.job(low).restarts == 0
    run.run(1500.0)
    assert day.sim.job(low).restarts == 1
    assert day.sim.audit() == []
