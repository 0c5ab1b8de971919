"""The main job in simulated time: fill, evict, bring back, and never break a promise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import Flavour, InstanceState, Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.model.refusals import Code, Goal
from backfill.core.policies.budgets import Budget, Budgets
from backfill.core.policies.comeback import Comeback
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.limits import Limits
from backfill.core.policies.scale import Scale
from backfill.core.policy import PolicySet, Priorities, Proof, Template
from backfill.drivers.simulated.costs import StepCosts
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.ports.errors import RefusedError, UnreachableError
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.deaths import Death

HOSTS = ("bm1", "bm2")


def policies(ladder: Ladder | None = None) -> PolicySet:
    names = tuple(f"vn{i}" for i in range(1, 9))
    return PolicySet(
        cluster="sim",
        priorities=Priorities(low=("htc",), high=("batch",)),
        instances=Template(
            names=names,
            addresses=tuple(f"10.77.1.{i}/16" for i in range(1, 9)),
            flavour=Flavour(cpus=1, memory_mb=256),
        ),
        hosts=HOSTS,
        ladder=ladder if ladder is not None else Ladder(),
        scale=Scale(idle_s=60),
    )


def cluster(hosts: tuple[str, ...] = HOSTS, cpus: int = 2) -> SimulatedWorld:
    sim = SimulatedWorld()
    sim.add_partition("htc", tier=1, feature="backfill")
    sim.add_partition("batch", tier=10, feature="metal")
    for host in hosts:
        sim.add_host(host, cpus=cpus, features=("metal",))
    return sim


def ready(run: Rehearsal, count: int) -> bool:
    return sum(1 for m in run.world.managed.values() if m.phase is Phase.READY) == count


def running(run: Rehearsal, *jobs: str) -> bool:
    """Whether the scripts of these jobs run: a job whose prolog runs is CONFIGURING as well."""
    seen = [run.sim.job(j) for j in jobs]
    return all(j.state is JobState.RUNNING and "CONFIGURING" not in j.flags for j in seen)


def test_waiting_jobs_get_instances_and_idle_ones_go() -> None:
    """Two waiting jobs lead to two instances; when all is done and idle, nothing is left."""
    sim = cluster()
    run = Rehearsal(sim, policies(), MemoryJournal())
    jobs = [sim.submit("htc", 30.0) for _ in range(2)]
    run.until(lambda: running(run, *jobs), 30)
    assert len(run.world.managed) == 2
    run.until(lambda: not run.world.managed, 200)
    assert [sim.job(j).state for j in jobs] == [JobState.COMPLETED] * 2
    assert sim.audit() == []


def test_pause_and_return_on_the_same_host() -> None:
    """A high-priority job gets its host in milliseconds; the paused job goes on afterwards."""
    sim = cluster(hosts=("bm1",))
    run = Rehearsal(sim, replace(policies(), hosts=("bm1",)), MemoryJournal())
    low = sim.submit("htc", 100.0)
    run.until(lambda: running(run, low), 30)
    high = sim.submit("batch", 20.0)
    run.until(lambda: running(run, high), 5)
    assert sim.instance("vn1").state is InstanceState.PAUSED
    run.until(lambda: run.world.managed["vn1"].phase is Phase.PARKED, 5)
    assert sim.job(low).state is JobState.SUSPENDED
    run.until(lambda: sim.job(high).state is JobState.COMPLETED, 60)
    run.until(lambda: ready(run, 1), 5)
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 200)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


@pytest.mark.parametrize("pause_s", [1.0, 1.05, 1.4])
@pytest.mark.parametrize("move", [False, True])
def test_a_pause_that_works_late_is_a_pause(pause_s: float, move: bool) -> None:
    """Its rung was given up, and the next one could not begin yet: nobody starts over for that."""
    last = (RungRule(Rung.MIGRATE, 30.0),) if move else ()
    ladder = Ladder((RungRule(Rung.PAUSE, 1.0), *last, RungRule(Rung.REQUEUE)))
    rules = replace(policies(ladder), hosts=("bm1",), limits=Limits(destroys_per_min=1))
    sim = cluster(hosts=("bm1",))
    run = Rehearsal(sim, rules, MemoryJournal(), StepCosts(pause_s=pause_s))
    lows = [sim.submit("htc", 100.0) for _ in range(2)]
    run.until(lambda: running(run, *lows), 30)
    high = sim.submit("batch", 200.0)
    run.until(lambda: sim.job(high).state is JobState.COMPLETED, 300)
    run.until(lambda: all(sim.job(low).state is JobState.COMPLETED for low in lows), 300)
    # Of both one may have been given up before its pause had worked.
    assert sum(sim.job(low).restarts for low in lows) <= (pause_s > 1.05)
    assert [v for v in sim.audit() if v.kind != "room"] == []


def test_slurm_hears_of_it_when_the_job_that_took_the_host_has_started() -> None:
    """Between a hook's word and the job's first command nothing but the stop keeps slurmctld."""
    sim = cluster(hosts=("bm1",))
    run = Rehearsal(sim, replace(policies(), hosts=("bm1",)), MemoryJournal())
    lows = [sim.submit("htc", 100.0) for _ in range(2)]
    run.until(lambda: running(run, *lows), 30)
    high = sim.submit("batch", 20.0)
    run.until(lambda: sim.job(high).state is JobState.COMPLETED, 60)
    steps = {r.body["t"]: r.at_s for r in reversed([*run.journal.read()]) if r.kind == "intent"}
    claimed_s = max(r.at_s for r in run.journal.read() if r.body.get("t") == "Claimed")
    assert steps["PauseInstance"] == claimed_s
    assert steps["AnswerClaim"] < claimed_s + 0.1
    assert steps["DrainNode"] == pytest.approx(claimed_s + 0.1, abs=0.01)
    assert steps["SetAddress"] > steps["DrainNode"]


def test_who_sits_at_a_terminal_hears_of_the_pause_and_of_the_return() -> None:
    """Before Slurm suspends the job, since then nothing is passed on; a batch job hears nothing."""
    sim = cluster(hosts=("bm1",))
    run = Rehearsal(sim, replace(policies(), hosts=("bm1",)), MemoryJournal())
    shell = sim.submit("htc", 100.0, interactive=True)
    batch = sim.submit("htc", 100.0)
    run.until(lambda: running(run, shell, batch), 30)
    high = sim.submit("batch", 20.0)
    run.until(lambda: sim.job(high).state is JobState.COMPLETED, 60)
    run.until(lambda: running(run, shell, batch), 10)
    run.until(lambda: ready(run, 2), 5)
    run.until(lambda: len(sim.slurm.heard(shell)) == 2, 5)
    paused, back = sim.slurm.heard(shell)
    assert paused.startswith("backfill: paused, because its node's hardware is needed")
    assert back.startswith("backfill: went on after a pause of ")
    assert sim.slurm.heard(batch) == ()


def test_who_sits_at_a_terminal_hears_it_once_however_often_slurm_has_to_be_asked() -> None:
    """Hiding the node is tried again and again meanwhile; the sentence is not."""
    sim = cluster(hosts=("bm1",))
    run = Rehearsal(sim, replace(policies(), hosts=("bm1",)), MemoryJournal())
    shell = sim.submit("htc", 100.0, interactive=True)
    run.until(lambda: running(run, shell), 30)
    sim.faults.fail("set_address", UnreachableError("slurmctld", "did not answer"), times=3)
    sim.submit("batch", 20.0)
    run.until(lambda: sim.job(shell).state is JobState.SUSPENDED, 30)
    assert len(sim.slurm.heard(shell)) == 1


def test_without_hooks_the_same_comes_of_watching() -> None:
    """Slower, and the high-priority job does not wait for it; nothing else is different."""
    sim = cluster(hosts=("bm1",))
    run = Rehearsal(sim, replace(policies(), hosts=("bm1",)), MemoryJournal(), hooks=False)
    low = sim.submit("htc", 100.0)
    run.until(lambda: running(run, low), 30)
    high = sim.submit("batch", 20.0)
    run.until(lambda: running(run, high), 5)
    assert sim.instance("vn1").state is InstanceState.RUNNING
    run.until(lambda: run.world.managed["vn1"].phase is Phase.PARKED, 10)
    assert sim.instance("vn1").state is InstanceState.PAUSED
    assert sim.job(low).state is JobState.SUSPENDED
    run.until(lambda: sim.job(high).state is JobState.COMPLETED, 60)
    run.until(lambda: ready(run, 1), 10)
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 200)
    assert sim.job(low).restarts == 0
    # The one thing that only a hook can give: room before the high-priority job starts.
    assert [violation.kind for violation in sim.audit()] == ["room"]


def test_parked_work_moves_to_a_host_that_became_free() -> None:
    """With `migrate` in the ladder a paused instance goes on elsewhere."""
    ladder = Ladder(
        (
            RungRule(Rung.PAUSE, within_s=1.0, for_s=5.0),
            RungRule(Rung.MIGRATE, within_s=30.0),
            RungRule(Rung.SUSPEND, within_s=60.0, for_s=3600.0),
            RungRule(Rung.REQUEUE, within_s=60.0),
        )
    )
    sim = cluster()
    run = Rehearsal(sim, policies(ladder), MemoryJournal())
    blocker = sim.submit("batch", 60.0, required_nodes=("bm2",))
    low = sim.submit("htc", 200.0)
    run.until(lambda: running(run, low, blocker), 30)
    assert run.world.managed["vn1"].host == "bm1"
    high = sim.submit("batch", 500.0, required_nodes=("bm1",))
    run.until(lambda: running(run, high), 5)
    run.until(lambda: sim.job(blocker).state is JobState.COMPLETED, 100)
    run.until(lambda: ready(run, 1), 30)
    assert run.world.managed["vn1"].host == "bm2"
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 300)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def back_at_work(run: Rehearsal, host: str) -> bool:
    """Whether the first instance works on this host."""
    node = run.world.managed["vn1"]
    return (node.phase, node.host) == (Phase.READY, host)


def test_a_move_of_parked_work_that_came_to_nothing_is_tried_again() -> None:
    """It waits for its next try, and does not begin and end a move at each look meanwhile."""
    ladder = Ladder((RungRule(Rung.PAUSE, within_s=1.0, for_s=600.0), RungRule(Rung.MIGRATE, within_s=30.0)))
    sim = cluster()
    run = Rehearsal(sim, policies(ladder), MemoryJournal())
    low = sim.submit("htc", 200.0)
    run.until(lambda: running(run, low), 30)
    sim.faults.fail("migrate", UnreachableError("vn1", "the connection broke"), times=3)
    sim.submit("batch", 500.0, required_nodes=("bm1",))
    run.until(lambda: back_at_work(run, "bm2"), 120)
    told = [r.body for r in run.journal.read()]
    tries = [body for body in told if str(body.get("key")).startswith("MigrateInstance:vn1:")]
    nodes = [body["node"] for body in told if body.get("t") == "SetNode"]
    moves = [n for n in nodes if isinstance(n, dict) and (n["name"], n["phase"]) == ("vn1", "moving")]
    assert len([body for body in tries if "elapsed_s" in body]) == len(moves) == 4
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 300)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_a_move_that_one_host_refuses_is_tried_on_another() -> None:
    """The guest does not fit the first one's CPU, and the next one has room as well."""
    ladder = Ladder(
        (
            RungRule(Rung.PAUSE, within_s=1.0, for_s=60.0),
            RungRule(Rung.MIGRATE, within_s=30.0),
            RungRule(Rung.REQUEUE),
        )
    )
    hosts = (*HOSTS, "bm3")
    sim = cluster(hosts)
    rules = replace(policies(ladder), hosts=hosts, comeback=Comeback(move_after_s=10.0))
    run = Rehearsal(sim, rules, MemoryJournal())
    low = sim.submit("htc", 400.0)
    run.until(lambda: running(run, low), 30)
    sim.faults.fail("migrate", RefusedError("vn1", "its CPU is older"), times=1)
    sim.submit("batch", 900.0, required_nodes=("bm1",))
    run.until(lambda: back_at_work(run, "bm2") or back_at_work(run, "bm3"), 90)
    asked = {r.body["target"] for r in run.journal.read() if r.body.get("t") == "MigrateInstance"}
    assert asked == {"bm2", "bm3"}
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 500)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_a_live_move_has_its_time_again_after_a_gap_without_a_daemon() -> None:
    """It dies between the intent and the call, and a rung's time does not run while nobody can act."""
    sim = cluster()
    ladder = Ladder((RungRule(Rung.MIGRATE, within_s=30.0), RungRule(Rung.REQUEUE)))
    run = Rehearsal(sim, policies(ladder), MemoryJournal())
    low = sim.submit("htc", 200.0)
    run.until(lambda: running(run, low), 30)
    run.run(5.0)
    sim.faults.fail("migrate", UnreachableError("vn1", "the daemon died before"), times=1)
    run.on_step = lambda what: what.startswith("intent MigrateInstance")
    sim.submit("batch", 500.0, required_nodes=("bm1",))
    run.until(lambda: not run.alive, 10)
    run.on_step = None
    run.run(60.0)
    run.start()
    run.until(lambda: back_at_work(run, "bm2"), 30)
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 300)
    assert sim.job(low).restarts == 0


def test_the_whole_ladder_ends_in_the_queue() -> None:
    """Pause, then suspend, then requeue: the job starts over and ends once."""
    ladder = Ladder(
        (
            RungRule(Rung.PAUSE, within_s=1.0, for_s=10.0),
            RungRule(Rung.SUSPEND, within_s=60.0, for_s=30.0),
            RungRule(Rung.REQUEUE, within_s=60.0),
        )
    )
    sim = cluster(hosts=("bm1",))
    run = Rehearsal(sim, replace(policies(ladder), hosts=("bm1",)), MemoryJournal())
    low = sim.submit("htc", 50.0)
    run.until(lambda: running(run, low), 30)
    high = sim.submit("batch", 120.0)
    run.until(lambda: running(run, high), 5)
    run.until(lambda: sim.instance("vn1").state is InstanceState.SUSPENDED, 20)
    run.until(lambda: sim.job(low).restarts == 1, 60)
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 400)
    assert sim.audit() == []


def refused(run: Rehearsal, name: str) -> set[tuple[Goal, Code]]:
    """Return what is refused of a node now, and why."""
    return {(r.wanted, r.code) for r in run.cycle.last.refusals if r.subject == name}


@pytest.mark.parametrize(("proof", "after_s"), [(Proof.MEMORY, 10.0 + 30.0), (Proof.CPU, 10.0 + 100.0)])
def test_memory_that_cannot_be_written_leaves_the_rung_in_time(proof: Proof, after_s: float) -> None:
    """Where it is in the way, after `within_s`; else a file server that is out costs no work so soon."""
    ladder = Ladder(
        (
            RungRule(Rung.PAUSE, within_s=1.0, for_s=10.0),
            RungRule(Rung.SUSPEND, within_s=30.0, for_s=100.0),
            RungRule(Rung.REQUEUE),
        )
    )
    sim = cluster(hosts=("bm1",))
    run = Rehearsal(sim, replace(policies(ladder), hosts=("bm1",), proof=proof), MemoryJournal())
    low = sim.submit("htc", 500.0)
    run.until(lambda: running(run, low), 30)
    run.run(5.0)
    sim.faults.fail("suspend", UnreachableError("vn1", "the file server is out"), times=1000)
    sim.submit("batch", 5000.0)
    over_s = sim.now_s + after_s
    run.until(lambda: (Goal.SUSPEND, Code.CALL_FAILED) in refused(run, "vn1"), after_s)
    run.run(over_s - 1.0 - sim.now_s)
    assert sim.job(low).restarts == 0
    run.until(lambda: sim.job(low).restarts == 1, 40)


def test_memory_that_nobody_wants_may_stay_where_it_is() -> None:
    """A budget has stopped it, and its host is free: a file server that is out costs it nothing."""
    ladder = Ladder(
        (
            RungRule(Rung.PAUSE, within_s=1.0, for_s=10.0),
            RungRule(Rung.SUSPEND, within_s=30.0, for_s=1000.0),
            RungRule(Rung.REQUEUE),
        )
    )
    sim = cluster(hosts=("bm1",))
    nobody = Budgets((Budget("0"),))
    rules = replace(policies(ladder), hosts=("bm1",), proof=Proof.MEMORY)
    run = Rehearsal(sim, rules, MemoryJournal())
    low = sim.submit("htc", 100.0)
    run.until(lambda: running(run, low), 30)
    sim.faults.fail("suspend", UnreachableError("vn1", "the file server is out"), times=1000)
    run.cycle.policies = replace(rules, budgets=nobody)
    run.until(lambda: (Goal.SUSPEND, Code.CALL_FAILED) in refused(run, "vn1"), 60)
    run.run(200.0)
    assert sim.job(low).restarts == 0
    run.cycle.policies = rules
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 200)
    assert sim.job(low).restarts == 0


def test_a_job_requeued_behind_our_back_is_never_thawed() -> None:
    """The stale copy is destroyed; the job runs again once, from its new start."""
    sim = cluster(hosts=("bm1",))
    run = Rehearsal(sim, replace(policies(), hosts=("bm1",)), MemoryJournal())
    low = sim.submit("htc", 50.0)
    run.until(lambda: running(run, low), 30)
    high = sim.submit("batch", 30.0)
    run.until(lambda: running(run, high), 5)
    run.until(lambda: run.world.managed["vn1"].phase is Phase.PARKED, 5)
    sim.requeue_behind(low, delay_s=5.0)
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 300)
    assert sim.job(low).restarts == 1
    assert sim.audit() == []


def killed_after(number: int) -> bool:
    """A day with an eviction, the daemon killed after one step; return True if there was such a step."""
    sim = cluster()
    run = Rehearsal(sim, policies(), MemoryJournal())
    death = Death(run, number)
    blocker = sim.submit("batch", 45.0, required_nodes=("bm2",))
    lows = [sim.submit("htc", 60.0) for _ in range(2)]
    high = sim.submit("batch", 30.0, at_s=sim.now_s + 20.0, required_nodes=("bm1",))
    everything = [blocker, high, *lows]
    run.until(lambda: all(sim.job(j).state is JobState.COMPLETED for j in everything), 600)
    run.until(lambda: not run.world.managed, 300)
    assert sim.slurm.observe().nodes.keys() == {"bm1", "bm2"}
    assert all(not sim.hosts[h].instances for h in HOSTS)
    # With the daemon dead nobody evicts, so only then may a job start beside a running instance.
    down = [v for v in sim.audit() if v.kind == "room"]
    assert [v for v in sim.audit() if v.kind != "room"] == []
    died_s = death.at_s
    assert all(died_s is not None and died_s <= v.at_s <= died_s + 4.0 for v in down)
    return died_s is not None


@pytest.mark.parametrize("number", range(1, 5))
def test_killed_after_any_step_the_end_is_the_same(number: int) -> None:
    """SIGKILL after the n-th intent or effect, restart 3 s later: nothing lost, nothing twice."""
    while killed_after(number):
        number += 4
    assert number > 70


def test_where_a_paused_instance_cannot_be_saved_it_is_suspended_from_running() -> None:
    """A provider that would have to let it run again: straight to disk, and no job runs twice."""
    sim = cluster(hosts=())
    sim.add_host("east", node=False)
    sim.hosts["east"].saves_paused = False
    ladder = Ladder((RungRule(Rung.SUSPEND, within_s=30.0),))
    run = Rehearsal(sim, replace(policies(ladder), hosts=("east",)), MemoryJournal())
    low = sim.submit("htc", 100.0)
    run.until(lambda: running(run, low), 30)
    run.cycle.take([ch.HoldSet("east", sim.now_s, True, "its owner wants it")])
    run.until(lambda: sim.job(low).state is JobState.SUSPENDED, 60)
    assert [i.state for i in run.world.fleet.instances_on("east")] == [InstanceState.SUSPENDED]
    (aside,) = run.world.managed.values()
    assert aside.reason == "host east was closed by hand: its owner wants it"
    assert run.world.taken("east")
    assert run.world.takers("east") == ()  # a person is no job
    run.cycle.take([ch.HoldSet("east", sim.now_s, False, "")])
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 400)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


@pytest.mark.parametrize("pause_s", [0.9, 1.0, 1.1, 1.2])
def test_a_stop_that_works_in_the_last_moment_keeps_its_job_from_the_next_rung(pause_s: float) -> None:
    """The ladder goes on to requeue after a second: what stands still by then is not destroyed."""
    sim = cluster(hosts=("bm1",))
    ladder = Ladder((RungRule(Rung.PAUSE, within_s=1.0), RungRule(Rung.REQUEUE)))
    rules = replace(policies(ladder), hosts=("bm1",))
    run = Rehearsal(sim, rules, MemoryJournal(), replace(StepCosts(), pause_s=pause_s))
    low = sim.submit("htc", 100.0)
    run.until(lambda: running(run, low), 60)
    high = sim.submit("batch", 30.0, required_nodes=("bm1",))
    run.until(lambda: sim.job(high).state is JobState.COMPLETED, 60)
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 300)
    assert sim.job(low).restarts == 0
    assert sim.audit() == []


def test_an_instance_that_is_let_go_before_it_is_made_has_not_failed() -> None:
    """Its host was given away while the call that makes it was still to come: that is nobody's fault."""
    sim = cluster(hosts=("bm1",))
    rules = replace(policies(), hosts=("bm1",), scale=Scale(idle_s=60, give_up_after=1))
    run = Rehearsal(sim, rules, MemoryJournal())
    order = sim.faults.fail("create", UnreachableError("bm1", "libvirtd is just starting"), times=-1)
    low = sim.submit("htc", 20.0)
    run.until(lambda: "vn1" in run.world.managed, 30)
    high = sim.submit("batch", 20.0, at_s=sim.now_s + 0.4)
    run.until(lambda: running(run, high), 10)
    order.end()
    run.until(lambda: sim.job(low).state is JobState.COMPLETED, 200)
    went = [r.body["node"] for r in run.journal.read() if r.body.get("t") == "SetNode"]
    assert {str(node["phase"]) for node in went if isinstance(node, dict)}.isdisjoint({"failed", "given-up"})
    told = [str(record.body.get("reason")) for record in run.journal.read() if record.kind == "phase"]
    assert any(why.endswith("was given to job 2; it was not made yet") for why in told)
    assert sim.audit() == []
