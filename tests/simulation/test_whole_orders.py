"""Orders that need more boots at once than limits allow: they come to an end, and hold up nobody."""

from __future__ import annotations

import pytest

from backfill.core.model.changes import FleetSet, SourceSeen, Tick
from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import Fleet, FleetState
from backfill.core.model.job_machines import MachinesState
from backfill.core.model.lifecycle import Phase
from backfill.core.model.refusals import Code
from backfill.core.policies.budgets import Budget, Budgets
from backfill.core.policies.cloning import Cloning
from backfill.core.policies.limits import Limits
from backfill.core.policies.own_machines import OwnMachines
from backfill.core.policies.scale import Scale
from backfill.core.reconcile.planner import enact
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import cluster, ended, play, policies, ready, running
from tests.simulation.test_policies import EIGHT

OWN = OwnMachines(enabled=True, partitions=("own",), inside=("batch",))
WORD = "backfill-vm"


def refused(run: Rehearsal, subject: str) -> set[Code]:
    return {r.code for r in run.cycle.last.refusals if r.subject == subject}


@pytest.mark.parametrize(
    "rules",
    [
        {"limits": Limits(boots_at_once=2)},
        {"limits": Limits(boots_at_once=12), "cloning": Cloning(at_once_per_host=2)},
    ],
)
def test_more_machines_than_may_boot_at_once_are_made_one_after_the_other(rules: dict[str, object]) -> None:
    """One that waits only for its fellows does not boot: the others of its job begin, and so do strangers."""
    sim = cluster(cpus=8)
    sim.add_partition("own", tier=1, feature="backfill")
    run = play(sim, policies(own_machines=OWN, hosts=("bm1",), **rules))
    own = sim.submit("own", 30.0, num_nodes=5, cpus=5)
    run.run(5.0)
    other = sim.submit("htc", 10.0)
    most = 0
    while not ended(sim, own, other) and sim.now_s < 1_700_000_600.0:
        run.run(1.0)
        booting = [m for m in run.world.managed.values() if m.phase is Phase.BOOTING]
        most = max(most, sum(1 for m in booting if not m.woken_since))
    assert ended(sim, own, other)
    assert most == 2
    assert sim.audit() == []


def test_more_machines_within_an_allocation_than_may_boot_at_once() -> None:
    """They are made one after the other on the nodes of the job."""
    sim = cluster(cpus=6)
    run = play(sim, policies(own_machines=OWN, limits=Limits(boots_at_once=2)))
    job = sim.submit(
        "batch", 500.0, num_nodes=2, cpus=12, exclusive=True, comment=f"{WORD}:per_node=3,mem=256"
    )
    run.until(lambda: job in run.world.machines and state(run, job) is MachinesState.ALLOCATED, 200)
    assert ready(run) == 6


def state(run: Rehearsal, job: str) -> MachinesState:
    return run.world.machines[job].state


def test_no_member_is_begun_unless_all_may_be() -> None:
    """limits.max_instances is no reason to stop in the middle, and to hold what was begun for nobody."""
    sim = cluster(cpus=8)
    run = play(sim, policies(limits=Limits(max_instances=4)))
    lows = [sim.submit("htc", 300.0) for _ in range(2)]
    run.until(lambda: running(sim, *lows), 60)
    run.cycle.take([FleetSet(Fleet("f1", 3, FleetState.WAITING, run.now_s))])
    run.run(100.0)
    assert run.world.fleets["f1"].members == ()
    assert refused(run, "f1") == {Code.LIMIT}
    run.until(lambda: run.world.fleets["f1"].state is FleetState.READY, 600)


def test_an_order_waits_while_a_budget_has_no_room_for_all_of_it() -> None:
    """No member is begun only to be let go of at once."""
    sim = cluster(cpus=8, start_s=EIGHT - 40)
    three = Budget("3", schedule="0 8 * * *", duration_s=600.0)
    run = play(sim, policies(budgets=Budgets((three,))))
    lows = [sim.submit("htc", 300.0) for _ in range(2)]
    run.until(lambda: running(sim, *lows), 30)
    run.run(EIGHT + 10 - sim.now_s)
    run.cycle.take([FleetSet(Fleet("f1", 2, FleetState.WAITING, run.now_s))])
    run.run(100.0)
    assert run.world.fleets["f1"].members == ()
    assert refused(run, "f1") == {Code.BUDGET}
    run.until(lambda: run.world.fleets["f1"].state is FleetState.READY, 900)
    assert all(m.retry.failures == 0 for m in run.world.managed.values())


def test_members_that_are_there_are_not_late_because_others_are() -> None:
    """The time to register is theirs: neither their fellows' nor that of what opens them."""
    sim = cluster(cpus=12)
    sim.add_partition("own", tier=1, feature="backfill")
    rules = {"limits": Limits(boots_at_once=1), "scale": Scale(boot_within_s=20.0)}
    run = play(sim, policies(own_machines=OWN, hosts=("bm1",), **rules))
    own = sim.submit("own", 30.0, num_nodes=8, cpus=8)
    failures = set()
    while not ended(sim, own) and sim.now_s < 1_700_000_600.0:
        run.run(1.0)
        failures |= {m.name for m in run.world.managed.values() if m.phase is Phase.FAILED or m.fail}
    assert ended(sim, own)
    assert failures == set()


def test_an_order_that_cannot_be_completed_ends() -> None:
    """Its first members do not wait for ever for fellows for which there is no room any more."""
    sim = cluster(cpus=2)
    sim.add_partition("own", tier=1, feature="backfill")
    run = play(sim, policies(own_machines=OWN, limits=Limits(boots_at_once=1)))
    own = sim.submit("own", 30.0, num_nodes=4, cpus=4)
    run.until(lambda: len(run.world.managed) == 2, 60)
    for host in ("bm1", "bm2"):
        sim.admin_drain(host, "admin: look")
    run.run(60.0)
    fleet = run.world.machines[own].fleet
    assert run.world.fleets[fleet].state is FleetState.MAKING
    later_s = run.now_s + 40_000.0
    run.world.apply(Tick(later_s))
    for source in ("slurm", "bm1", "bm2"):
        run.world.apply(SourceSeen(source, later_s))
    enact(run.world, run.policies)
    assert run.world.fleets[fleet].state is FleetState.UNDOING
    machines = run.world.machines[own]
    assert (machines.state, machines.after) == (MachinesState.RECLAIMED, MachinesState.QUEUED)
    assert machines.failures == 0  # it waits for room once more
    assert sim.job(own).state is JobState.PENDING
