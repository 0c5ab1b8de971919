"""What users of like systems complain about most: the fifteen complaints, each one lived through.

Sources: issue trackers of such systems, 2019 to 2026, by how often it comes up again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from backfill.core.model.actions import CreateInstance
from backfill.core.model.cluster import JobState, NodeBase
from backfill.core.model.fleet import Rung
from backfill.core.model.lifecycle import Phase
from backfill.core.model.quantities import Resources
from backfill.core.policies.comeback import Comeback
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.scale import Scale
from backfill.core.policies.victims import Victims
from backfill.core.policy import PolicySet
from backfill.drivers.simulated.faults import Odd
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.ports.errors import NoCapacityError, UnreachableError
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import cluster, ended, phases, play, policies, ready, running

KILL = Ladder((RungRule(Rung.REQUEUE),))


def at_work(
    jobs: int = 2, run_s: float = 300.0, rules: PolicySet | None = None, cpus: int = 4
) -> tuple[SimulatedWorld, Rehearsal, list[str]]:
    """Low jobs that run, each in an instance of its own."""
    sim = cluster(cpus)
    run = play(sim, rules or policies())
    lows = [sim.submit("htc", run_s) for _ in range(jobs)]
    run.until(lambda: running(sim, *lows), 60)
    return sim, run, lows


def all_run(sim: SimulatedWorld, *jobs: str) -> Callable[[], bool]:
    return lambda: running(sim, *jobs)


def all_end(sim: SimulatedWorld, *jobs: str) -> Callable[[], bool]:
    return lambda: ended(sim, *jobs)


def restarted(sim: SimulatedWorld, job: str, restarts: int) -> Callable[[], bool]:
    return lambda: sim.job(job).restarts == restarts


def begins(run: Rehearsal) -> None:
    """Wait until one instance boots."""
    run.until(lambda: len(phases(run, Phase.BOOTING)) == 1, 30)


def node_of(sim: SimulatedWorld, job: str) -> str:
    (name,) = sim.job(job).nodes
    return name


def told(run: Rehearsal, kind: str) -> list[tuple[str, dict[str, object]]]:
    """Subjects and bodies of the journal's records of this kind."""
    return [(r.subject, r.body) for r in run.journal.read() if r.kind == kind]


def created(run: Rehearsal) -> list[str]:
    """Names of the instances that were asked for, in order."""
    name = CreateInstance.__name__
    return [subject for subject, body in told(run, "intent") if body["t"] == name]


def test_01_the_manager_undoes_the_admins_own_drain() -> None:
    """slurm-operator #3: neither while its node works, nor while it is pushed aside and returns."""
    sim, run, lows = at_work()
    name = node_of(sim, lows[0])

    def drained() -> bool:
        return sim.slurm.read_nodes([name])[name].reason == "a disk is being changed"

    sim.admin_drain(name, "a disk is being changed")
    run.run(30.0)
    assert drained()
    for host in ("bm1", "bm2"):
        sim.submit("batch", 30.0, required_nodes=(host,))
    run.until(lambda: bool(phases(run, Phase.PARKED)), 30)
    assert drained()
    run.until(lambda: running(sim, *lows), 300)
    while not ended(sim, *lows):
        assert drained()
        run.run(10.0)
    assert [sim.job(low).restarts for low in lows] == [0, 0]
    assert sim.audit() == []


def test_02_a_failed_look_up_is_read_as_drained_and_jobs_are_killed() -> None:
    """slurm-operator #79: Slurm answers nothing, or without its nodes; everybody works on."""
    sim, run, lows = at_work()
    error = UnreachableError("slurmctld", "socket timed out")
    orders = [
        sim.faults.fail(call, error, times=-1)
        for call in ("observe", "observe_nodes", "read_jobs", "read_nodes")
    ]
    run.run(120.0)
    for order in orders:
        order.end()
    run.run(10.0)
    sim.faults.misread(Odd.NO_NODES, times=2)
    run.run(30.0)
    assert ready(run) == 2
    run.until(lambda: ended(sim, *lows), 400)
    assert [sim.job(low).restarts for low in lows] == [0, 0]
    assert sim.audit() == []


def test_03_a_rolling_update_drains_the_whole_set() -> None:
    """slurm-operator, changelog 1.2.1: another image is for new instances; who works, works on."""
    sim, run, lows = at_work(jobs=4)
    rules = run.policies
    newer = replace(rules, instances=replace(rules.instances, image="newer"))
    run.policies = run.cycle.policies = newer
    while not ended(sim, *lows):
        going = phases(run, Phase.DRAINING) | phases(run, Phase.REMOVING)
        busy = {node_of(sim, low) for low in lows if sim.job(low).state is JobState.RUNNING}
        assert not going & busy
        run.run(5.0)
    assert [sim.job(low).restarts for low in lows] == [0] * 4
    run.until(lambda: not run.world.managed, 300)
    later = sim.submit("htc", 10.0)
    run.until(lambda: running(sim, later), 60)
    assert sim.instance(node_of(sim, later)).spec.image == "newer"
    assert sim.audit() == []


def test_04_no_capacity_once_leaves_nodes_down_for_good() -> None:
    """cluster-toolkit #4940, #5776: for ten minutes nobody has room, then all is as ever."""
    sim = cluster()
    run = play(sim, policies())
    order = sim.faults.fail("create", NoCapacityError("bm1", "out of stock"), times=-1)
    lows = [sim.submit("htc", 60.0) for _ in range(3)]
    run.run(600.0)
    assert not running(sim, lows[0])
    order.end()
    run.until(lambda: ended(sim, *lows), 900)
    nodes = sim.slurm.observe().nodes.values()
    assert not [n.name for n in nodes if n.base is NodeBase.DOWN]
    assert phases(run, Phase.GIVEN_UP) == set()
    assert sim.audit() == []


def test_05_a_booting_node_is_taken_for_an_orphan_and_removed() -> None:
    """slurm-gcp #54, #70: a slow boot outlives a restart of the daemon, and even its journal."""
    for forgets in (False, True):
        sim = cluster()
        sim.provider.boot_s = 100.0
        run = play(sim, policies(scale=Scale(idle_s=60, boot_within_s=300.0)))
        low = sim.submit("htc", 60.0)
        begins(run)
        run.run(20.0)
        (name,) = phases(run, Phase.BOOTING)
        born_s = sim.instance(name).created_s
        run.kill()
        run.run(10.0)
        if forgets:
            run.journal = MemoryJournal()
        run.start()
        run.until(all_end(sim, low), 400)
        assert sim.job(low).nodes == (name,)
        assert sim.instance(name).created_s == born_s
        assert sim.audit() == []


def test_06_no_graceful_end_for_jobs_on_a_node_that_goes() -> None:
    """slurm-gcp #182: room that its owner wants back is drained first; who is late is told why."""
    sim = SimulatedWorld()
    sim.add_partition("htc", tier=1, feature="backfill")
    sim.add_host("east", cpus=2, node=False)
    rules = policies(hosts=("east",), scale=Scale(idle_s=60, reclaim_within_s=60.0))
    run = play(sim, rules)
    short, long = sim.submit("htc", 40.0), sim.submit("htc", 1000.0)
    run.until(lambda: running(sim, short, long), 60)
    sim.hosts["east"].capacity = Resources(0, 0)
    run.until(lambda: len(phases(run, Phase.DRAINING)) == 2, 20)
    run.until(lambda: ended(sim, short), 60)
    assert sim.job(short).restarts == 0
    assert running(sim, long)
    run.until(lambda: sim.job(long).restarts == 1, 120)
    assert "starts over" in sim.slurm.admin_comment(long)
    assert "is wanted back" in sim.slurm.admin_comment(long)
    assert sim.audit() == []


def test_07_a_node_with_a_running_job_is_replaced() -> None:
    """parallelcluster #4874: two minutes without network are no reason for another instance."""
    sim, run, lows = at_work()
    name = node_of(sim, lows[0])
    born_s = sim.instance(name).created_s
    sim.cut_node(name)
    run.run(120.0)
    sim.cut_node(name, connected=True)
    run.until(lambda: ended(sim, *lows), 500)
    assert sim.instance(name).created_s == born_s
    assert [sim.job(low).restarts for low in lows] == [0, 0]
    assert created(run) == sorted(created(run))
    assert len(created(run)) == 2
    assert sim.audit() == []


def test_08_instances_with_jobs_are_terminated() -> None:
    """parallelcluster #1145, #1150: jobs that come just as their node is let go for being idle."""
    sim = cluster()
    run = play(sim, policies(scale=Scale(idle_s=10)))
    first = sim.submit("htc", 5.0)
    run.until(lambda: ended(sim, first), 60)
    since_s = sim.now_s
    # One at each tenth of a second around the moment of the drain, each on a cluster of its own.
    lows = [sim.submit("htc", 30.0, at_s=since_s + 9.0 + i / 5) for i in range(20)]
    run.until(lambda: ended(sim, *lows), 900)
    assert {sim.job(low).restarts for low in lows} == {0}
    run.until(lambda: not run.world.managed, 200)
    assert sim.audit() == []


def test_09_a_preempted_job_never_starts_again() -> None:
    """parallelcluster #5731, #6641 (BadConstraints): it asks for what it asked for at first."""
    sim = cluster(cpus=1)
    run = play(sim, policies(ladder=KILL))
    low = sim.submit("htc", 60.0, features="backfill")
    run.until(lambda: running(sim, low), 60)
    for _ in range(3):
        anew = sim.job(low).restarts + 1
        highs = [sim.submit("batch", 40.0, required_nodes=(h,)) for h in ("bm1", "bm2")]
        run.until(restarted(sim, low, anew), 60)
        assert sim.job(low).state is JobState.PENDING
        assert sim.job(low).features == "backfill"
        run.until(lambda: not sim.job(low).nodes, 30)
        run.until(all_end(sim, *highs), 100)
        run.until(lambda: running(sim, low), 60)
    run.until(lambda: ended(sim, low), 100)
    assert sim.job(low).restarts == 3
    assert sim.audit() == []


def test_10_zombies_and_resume_loops() -> None:
    """cyclecloud #230, #267: guests that never come up are tried ever more seldom, alone."""
    sim = cluster()
    scale = Scale(idle_s=60, boot_within_s=30.0, retry_after_s=10.0, give_up_after=3)
    run = play(sim, policies(scale=scale))
    for name in run.policies.instances.names:
        sim.faults.never_boots(name, -1)
    low = sim.submit("htc", 60.0)
    run.run(3600.0)
    tries = len(created(run))
    assert 3 <= tries <= 3 * 12
    run.run(3600.0)
    assert len(created(run)) <= tries + 3
    given_up = phases(run, Phase.GIVEN_UP)
    assert given_up
    assert all("given up after 3 failures" in run.world.managed[n].reason for n in given_up)
    there = {name for host in sim.hosts.values() for name in host.instances}
    assert there == set()
    assert sim.nodes == {"bm1", "bm2"}
    assert sim.job(low).state is JobState.PENDING


def test_11_an_array_scales_one_node_at_a_time() -> None:
    """cyclecloud #9: eight tasks wait, and eight instances boot at once."""
    sim = cluster()
    run = play(sim, policies())
    array = sim.submit_array("htc", 60.0, 8)
    tasks = [f"{array}_{i}" for i in range(1, 9)]
    run.until(lambda: bool(created(run)), 10)
    run.run(0.1)
    assert len(created(run)) == 8
    began_s = sim.now_s
    run.until(lambda: running(sim, *tasks), 60)
    assert sim.now_s - began_s < 2 * sim.provider.boot_s
    run.until(lambda: ended(sim, *tasks), 100)
    assert len(created(run)) == 8
    assert sim.audit() == []


def test_12_the_late_report_of_a_preempted_run_ends_the_requeued_run() -> None:
    """spur #474: hooks, readings and outcomes of the first run come once the second one is on.

    Ten thousand times: tests/property/test_run_identity.py.
    """
    sim = cluster(cpus=1)
    run = play(sim, policies(ladder=KILL))
    low = sim.submit("htc", 100.0)
    run.until(lambda: running(sim, low), 60)
    old = sim.job(low)
    highs = [sim.submit("batch", 20.0, required_nodes=(h,)) for h in ("bm1", "bm2")]
    run.until(lambda: sim.job(low).restarts == 1, 60)
    run.until(lambda: ended(sim, *highs) and running(sim, low), 200)
    began_s = sim.job(low).start_s
    late = replace(old, state=JobState.PREEMPTED)
    sim.end_hook_again(late, late.nodes)
    run.run(10.0)
    assert running(sim, low)
    assert run.world.jobs[low].restarts == 1
    run.until(lambda: ended(sim, low), 200)
    assert (sim.job(low).restarts, sim.job(low).start_s) == (1, began_s)
    assert sim.gaps() == []
    assert sim.audit() == []


def test_13_reason_or_author_of_a_preemption_is_lost() -> None:
    """armada #4832, #4839: the owner reads it, the node has it, the journal keeps who took it."""
    sim, run, (low,) = at_work(jobs=1)
    name = node_of(sim, low)
    host = run.world.managed[name].host
    high = sim.submit("batch", 60.0, required_nodes=(host,))
    run.until(lambda: name in phases(run, Phase.PARKED), 30)
    why = f"host {host} was given to job {high}"
    assert why in run.world.managed[name].reason
    run.until(lambda: "its node's hardware is needed" in sim.slurm.admin_comment(low), 10)
    assert any(why in str(body) for subject, body in told(run, "phase") if subject == name)
    run.kill()
    run.start()
    run.run(2.0)
    assert why in run.world.managed[name].reason
    run.until(lambda: ended(sim, low, high), 500)
    # One that has to start over keeps who took its host as well.
    run.policies = run.cycle.policies = replace(run.policies, ladder=KILL)
    low = sim.submit("htc", 100.0)
    run.until(lambda: running(sim, low), 60)
    host = run.world.managed[node_of(sim, low)].host
    high = sim.submit("batch", 30.0, required_nodes=(host,))
    run.until(lambda: sim.job(low).restarts == 1, 60)
    run.until(lambda: f"given to job {high}" in sim.slurm.admin_comment(low), 10)


def test_14_no_minimum_run_time_and_a_stuck_victim_blocks_the_queue() -> None:
    """kueue #12791, #6489: a young job is spared, and one that cannot be stopped stops nobody."""
    sim, run, lows = at_work(jobs=4, run_s=900.0, cpus=2)
    stuck = node_of(sim, lows[0])
    host = run.world.managed[stuck].host
    error = UnreachableError(stuck, "no answer")
    orders = [sim.faults.fail(c, error, subject=stuck, times=-1) for c in ("pause", "suspend")]
    other = "bm2" if host == "bm1" else "bm1"
    high = sim.submit("batch", 30.0, required_nodes=(other,))
    run.until(lambda: ended(sim, high), 60)
    blocked = sim.submit("batch", 30.0, required_nodes=(host,))
    late = sim.submit("batch", 30.0, required_nodes=(other,))
    run.until(lambda: ended(sim, late), 90)
    run.until(lambda: running(sim, blocked), 30)
    for order in orders:
        order.end()
    run.until(lambda: ended(sim, blocked), 100)
    run.until(lambda: ended(sim, *lows), 3000)
    # A minimum run time: who was started anew three times waits aside instead, and ends.
    sim = cluster(cpus=1)
    spared = replace(policies(ladder=KILL), victims=Victims(protect_after=3), hosts=("bm1",))
    run = play(sim, spared)
    low = sim.submit("htc", 60.0)
    for _ in range(8):
        run.until(lambda: running(sim, low) or ended(sim, low), 400)
        sim.submit("batch", 20.0, required_nodes=("bm1",))
        run.run(30.0)
    run.until(lambda: ended(sim, low), 600)
    assert sim.job(low).restarts == 3


def test_15_het_jobs_and_preemption_thrash_for_hours() -> None:
    """SchedMD/slurm #203: a component that Slurm will not suspend is not tried for ever."""
    sim = cluster(cpus=1)
    run = play(sim, policies(comeback=Comeback(settle_s=5.0)))
    low = sim.submit("htc", 300.0, het=True, time_limit_s=900.0)
    run.until(lambda: running(sim, low), 60)
    host = run.world.managed[node_of(sim, low)].host
    for _ in range(4):
        high = sim.submit("batch", 300.0, required_nodes=(host,))
        run.until(all_end(sim, high), 600)
        run.run(60.0)
    run.until(lambda: ended(sim, low), 2000)
    tries = [s for s, body in told(run, "intent") if body["t"] == "SuspendJob"]
    assert len(tries) <= 4 * 10
    assert sim.audit() == []
