"""A job whose own machines find no room: others pass it for a while, and for as long as it gains nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from backfill.core.model.lifecycle import Phase, Retry
from backfill.core.policies.budgets import Budget, Budgets
from backfill.core.policies.environments import Environments, ImageRule
from backfill.core.policies.limits import Limits
from backfill.core.policies.own_machines import OwnMachines
from backfill.core.policies.scale import Scale
from backfill.core.policy import Template
from backfill.core.reconcile.planner import enact
from backfill.core.world import World
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import TWELVE, cluster, ended, play, policies, running
from tests.simulation.test_own_machines import why_not

PASSED_S = 60.0
DAY_S = 86400.0
OWN = OwnMachines(enabled=True, passed_over_s=PASSED_S)


def begin(**rules: object) -> tuple[SimulatedWorld, Rehearsal]:
    sim = cluster(2)
    return sim, play(sim, policies(**{"own_machines": OWN, "scale": Scale(idle_s=5), **rules}))


def spread(sim: SimulatedWorld) -> str:
    """It needs a machine on either host."""
    word = "backfill-vm:cpus=2,place=spread"
    return sim.submit("htc", 10.0, user="eve", num_nodes=2, cpus=4, comment=word)


def stream(sim: SimulatedWorld) -> None:
    """More jobs of others than there is room for, each with a machine of its own."""
    for number in range(60):
        sim.submit("htc", 50.0, user="bob", at_s=sim.now_s + 20.0 * number, comment="backfill-vm:cpus=1")


def given_away(sim: SimulatedWorld) -> None:
    sim.submit("batch", DAY_S, required_nodes=("bm2",), time_limit_s=DAY_S)


def given_away_for_ever(sim: SimulatedWorld) -> None:
    sim.submit("batch", DAY_S, required_nodes=("bm2",))


def dead(sim: SimulatedWorld) -> None:
    sim.kill_host("bm2")


def drained(sim: SimulatedWorld) -> None:
    sim.admin_drain("bm2", "a fan")


def spoilt(sim: SimulatedWorld) -> None:
    sim.spoil_host("bm2", "its disk is slow")


@pytest.mark.parametrize("lost", [given_away, given_away_for_ever, dead, drained, spoilt])
def test_nobody_waits_for_an_order_that_lacks_a_host_for_long(lost: Callable[[SimulatedWorld], None]) -> None:
    """Neither shared instances nor machines of other jobs: room that is kept free would serve nobody."""
    sim, run = begin()
    lost(sim)
    run.run(5)
    eve = spread(sim)
    run.run(PASSED_S + 30)
    plain = [sim.submit("htc", 30.0, user="bob") for _ in range(4)]
    own = sim.submit("htc", 30.0, user="ann", comment="backfill-vm:cpus=1")
    run.until(lambda: ended(sim, *plain, own), 400)
    assert not running(sim, eve)


@pytest.mark.parametrize("left_s", [PASSED_S / 2, 400.0])
def test_it_comes_first_once_its_host_is_soon_free_again(left_s: float) -> None:
    """Although others come all the time: from passed_over_s before the end of the host's job, or at once."""
    sim, run = begin()
    sim.submit("batch", PASSED_S + 30 + left_s, required_nodes=("bm2",), time_limit_s=PASSED_S + 30 + left_s)
    run.run(5)
    eve = spread(sim)
    stream(sim)
    run.run(PASSED_S + 25)
    assert any(node.job != eve for node in run.world.managed.values())
    run.until(lambda: running(sim, eve), left_s + 100)
    run.until(lambda: ended(sim, eve), 60)


def test_a_host_that_comes_back_by_itself_is_kept_for_it_at_once() -> None:
    """Its job ended long before its time."""
    sim, run = begin()
    high = sim.submit("batch", DAY_S, required_nodes=("bm2",), time_limit_s=DAY_S)
    run.run(5)
    eve = spread(sim)
    stream(sim)
    run.run(400)
    sim.finish_job(high)
    run.until(lambda: running(sim, eve), 100)


def test_a_job_beyond_its_users_own_cap_stops_nobody_else() -> None:
    """It waits for the user's other job, not for room."""
    sim, run = begin(own_machines=replace(OWN, most_per_user=1))
    first = sim.submit("htc", DAY_S, user="eve", comment="backfill-vm:cpus=1")
    run.until(lambda: running(sim, first), 60)
    second = sim.submit("htc", 10.0, user="eve", comment="backfill-vm:cpus=1")
    run.run(PASSED_S + 30)
    other = sim.submit("htc", 10.0, user="bob", comment="backfill-vm:cpus=1")
    run.until(lambda: ended(sim, other), 100)
    assert any("most_per_user" in why for why in why_not(run, second))


def test_orders_that_wait_cost_nothing_while_no_host_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many orders and hosts: who has a host is not asked with each reading of each other one."""
    sim = SimulatedWorld(start_s=1_700_000_000.0)
    sim.add_partition("htc", tier=1, feature="backfill")
    sim.add_partition("batch", tier=10, feature="metal")
    hosts = tuple(f"bm{number}" for number in range(1, 21))
    for host in hosts:
        sim.add_host(host, cpus=4, features=("metal",))
    own = OwnMachines(enabled=True, passed_over_s=PASSED_S, most=100)
    run = play(sim, policies(own_machines=own, hosts=hosts))
    run.run(2)
    for host in hosts:
        sim.submit("batch", DAY_S, required_nodes=(host,), time_limit_s=DAY_S)
    run.run(5)
    for number in range(5):
        sim.submit("htc", 10.0, user=f"u{number}", comment="backfill-vm:cpus=2")
    run.run(PASSED_S + 5)
    asked: list[str] = []
    takers = World.takers

    def counted(world: World, host: str) -> tuple[str, ...]:
        asked.append(host)
        return takers(world, host)

    monkeypatch.setattr(World, "takers", counted)
    monkeypatch.setattr("backfill.engine.cycle.enact", enact)  # once each, and not from scratch as well
    run.run(10)
    assert len(asked) <= 10 * len(hosts)


def few(count: int, *, image: str = "default") -> Template:
    """So many names are all that instances can have."""
    names, addresses = TWELVE.names[:count], TWELVE.addresses[:count]
    return replace(TWELVE, names=names, addresses=addresses, image=image)


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"limits": Limits(max_instances=2)}, "limits.max_instances = 2"),
        ({"instances": few(2)}, "names for them in instances.names = 2"),
        (
            {"environments": Environments(rules=(ImageRule("default", most_cpus=3),))},
            "CPUs for image default = 3",
        ),
        (
            {"environments": Environments(rules=(ImageRule("default", most_memory_mb=1000),))},
            "MB for image default = 1000",
        ),
    ],
)
def test_what_can_never_be_had_is_given_back_at_once(rules: dict[str, object], said: str) -> None:
    """Its owner is told by what; and it holds up nobody, however long it is held after that."""
    sim, run = begin(**rules)
    eve = sim.submit("htc", 10.0, user="eve", num_nodes=3, cpus=6, comment="backfill-vm:cpus=2,mem=500")
    run.run(10)
    assert [why for why in why_not(run, eve) if said in why]
    run.run(PASSED_S)
    other = sim.submit("htc", 10.0, user="bob", comment="backfill-vm:cpus=1,mem=200")
    run.until(lambda: ended(sim, other), 60)


def silent_name(sim: SimulatedWorld, run: Rehearsal) -> None:
    """vn1 has been given up, and no instance is wanted to try it again."""
    sim.faults.never_boots("vn1", 1)
    first = sim.submit("htc", 10.0)
    run.until(lambda: bool(run.world.fleet.in_phase(Phase.GIVEN_UP)), 300)
    sim.user_cancel(first)


def strange_name(sim: SimulatedWorld, run: Rehearsal) -> None:
    """vn1 is somebody else's."""
    sim.add_host("vn1", cpus=1, features=("metal",))


def full_budget(sim: SimulatedWorld, run: Rehearsal) -> None:
    """No more than two instances may be at work, at any time."""
    allowed = Budgets((Budget("2", schedule="0 * * * *", duration_s=3600.0),))
    run.cycle.policies = replace(run.cycle.policies, budgets=allowed)


@pytest.mark.parametrize("lost", [silent_name, strange_name, full_budget])
def test_nobody_waits_for_an_order_that_lacks_what_does_not_come_by_itself(
    lost: Callable[[SimulatedWorld, Rehearsal], None],
) -> None:
    """As little as for hosts that are away; once it comes all the same, it is the order's turn."""
    sim, run = begin(instances=few(3), scale=Scale(idle_s=5, give_up_after=1))
    run.run(5)
    lost(sim, run)
    eve = sim.submit("htc", 10.0, user="eve", num_nodes=3, cpus=3, comment="backfill-vm:cpus=1")
    run.run(PASSED_S + 30)
    plain = sim.submit("htc", 30.0, user="bob")
    own = sim.submit("htc", 30.0, user="ann", comment="backfill-vm:cpus=1")
    run.until(lambda: ended(sim, plain, own), 200)
    assert not running(sim, eve)


@pytest.mark.parametrize("most", [1, 3])
def test_a_name_that_has_failed_serves_again(most: int) -> None:
    """All names are needed, and under one a boot has failed; or it was given up, and then others worked."""
    sim, run = begin(instances=few(3), scale=Scale(idle_s=5, boot_within_s=30.0, give_up_after=most))
    sim.faults.never_boots("vn1", 1)
    first = sim.submit("htc", 10.0)
    run.until(lambda: bool(run.world.fleet.in_phase(Phase.FAILED, Phase.GIVEN_UP)), 300)
    run.until(lambda: most > 1 or ended(sim, first), 1000)
    sim.user_cancel(first)
    assert "vn1" in run.world.managed
    eve = sim.submit("htc", 10.0, user="eve", num_nodes=3, cpus=3, comment="backfill-vm:cpus=1")
    run.until(lambda: ended(sim, eve), 1000)


def test_a_bad_name_sends_no_job_back_while_others_are_free() -> None:
    """The first order goes, and its name is kept as one that has failed: the next takes others first."""
    sim, run = begin(instances=few(3), scale=Scale(idle_s=5, boot_within_s=30.0, give_up_after=2))
    sim.faults.never_boots("vn1", -1)
    for _ in range(2):
        job = sim.submit("htc", 10.0, user="eve", num_nodes=2, cpus=2, comment="backfill-vm:cpus=1")
        run.until(lambda own=job: ended(sim, own), 1000)  # type: ignore[misc]
        assert run.world.managed["vn1"].phase is Phase.FAILED
        assert run.world.managed["vn1"].retry == Retry()
        run.until(lambda: len(run.world.managed) == 1, 100)
    assert run.world.generations["vn1"] == 2  # both of the first order


def test_what_an_order_fails_of_keeps_nobody_else_waiting() -> None:
    """It may be the order's own doing: names that failed for it alone are no sign that the site is ill."""
    own = replace(OWN, respawns=0)
    scale = Scale(idle_s=5, boot_within_s=30.0, give_up_after=1)
    sim, run = begin(instances=few(2), scale=scale, own_machines=own)
    for name in ("vn1", "vn2"):
        sim.faults.never_boots(name, 1)
    sim.submit("htc", 10.0, user="eve", num_nodes=2, cpus=2, comment="backfill-vm:cpus=1")
    run.until(lambda: len(run.world.fleet.in_phase(Phase.FAILED)) == 2 and all_plain(run), 1000)
    plain = sim.submit("htc", 10.0, user="bob")
    run.until(lambda: ended(sim, plain), 100)


def test_a_name_that_failed_for_an_order_serves_anybody_like_a_new_one() -> None:
    """After all others; and a boot that fails there is its first failure."""
    sim, run = begin(instances=few(1), scale=Scale(idle_s=5, boot_within_s=30.0, retry_after_s=10.0))
    sim.faults.never_boots("vn1", 3)
    own = replace(OWN, respawns=0)
    run.cycle.policies = replace(run.cycle.policies, own_machines=own)
    sim.submit("htc", 10.0, user="eve", comment="backfill-vm:cpus=1")
    run.until(lambda: bool(run.world.fleet.in_phase(Phase.FAILED)) and all_plain(run), 1000)
    run.cycle.policies = replace(run.cycle.policies, instances=few(2))
    for name, again in (("vn2", 0), ("vn1", 1)):
        sim.faults.never_boots("vn1", again)
        plain = sim.submit("htc", 500.0, user="bob")
        run.until(lambda job=plain: running(sim, job), 100)  # type: ignore[misc]
        assert sim.job(plain).nodes == (name,)


def all_plain(run: Rehearsal) -> bool:
    """No record belongs to an order any more."""
    return not any(node.fleet or node.job for node in run.world.managed.values())
