"""Own machines of a heterogeneous job: its components get theirs together, or none has any."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model.job_machines import MachinesState
from backfill.core.model.lifecycle import Phase
from backfill.core.policies.own_machines import MachineNetwork, OwnMachines
from backfill.core.policies.scale import Scale
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import ended, running
from tests.simulation.test_own_machines import OWN, WORD, begin, nothing_left, state, why_not
from tests.simulation.test_own_turns import few

SMALL: dict[str, object] = {"comment": f"{WORD}:cpus=1"}


def given_back(run: Rehearsal, *jobs: str) -> bool:
    return all(state(run, job) is MachinesState.GIVEN_BACK for job in jobs)


def told(sim: SimulatedWorld, job: str) -> str:
    return sim.slurm.admin_comment(job)


def nothing_made(run: Rehearsal, sim: SimulatedWorld) -> bool:
    """Of what failed, its name is remembered."""
    left = [node for node in run.world.managed.values() if node.phase is not Phase.FAILED or node.fleet]
    return not left and not run.world.fleets and not any(h.instances for h in sim.hosts.values())


def test_components_begin_when_all_have_their_machines() -> None:
    """And nothing of them stays after the job."""
    sim, run = begin()
    jobs = sim.submit_components("htc", 20.0, SMALL, SMALL | {"num_nodes": 2, "cpus": 2})
    run.until(lambda: running(sim, *jobs), 60)
    run.until(lambda: ended(sim, *jobs) and nothing_left(run, sim), 100)
    assert sim.audit() == []


def test_where_one_component_can_never_have_them_none_has() -> None:
    """All are given back with its reason, and stay so."""
    sim, run = begin()
    first, second, third = sim.submit_components("htc", 20.0, SMALL, {"comment": f"{WORD}:cpus=64"}, SMALL)
    run.until(lambda: given_back(run, first, second, third) and nothing_made(run, sim), 60)
    run.run(600)
    assert given_back(run, first, second, third)
    for job in (first, third):
        assert f"component {second} has none: " in told(sim, job)
        assert "has none: component" not in told(sim, job)
        assert sim.job(job).reason == "JobHeldAdmin"
    assert sim.audit() == []


TWO: dict[str, object] = {"comment": f"{WORD}:cpus=1", "num_nodes": 2, "cpus": 2}
IN_LAN = TWO | {"comment": f"{WORD}:cpus=1,network=lan"}


def lan(*nodes: str) -> OwnMachines:
    return replace(OWN, networks=(MachineNetwork("lan", bridge="br-lan", nodes=nodes),))


def wired(own: OwnMachines, names: int) -> tuple[SimulatedWorld, Rehearsal]:
    """Either host has the network, and there are so many names for instances."""
    sim, run = begin(own_machines=own, instances=few(names))
    for host in sim.hosts.values():
        host.networks = ("lan",)
    return sim, run


@pytest.mark.parametrize(
    ("own", "parts", "count"),
    [(OWN, (TWO, TWO), 3), (lan("vn1", "vn2", "vn3"), (IN_LAN, IN_LAN), 6), (lan(), (TWO, IN_LAN), 3)],
)
def test_components_that_share_too_few_names_are_given_back_at_once(
    own: OwnMachines, parts: tuple[dict[str, object], ...], count: int
) -> None:
    """For each alone there are enough; and nobody waits for what can never be."""
    sim, run = wired(own, count)
    jobs = sim.submit_components("htc", 20.0, *parts)
    run.until(lambda: given_back(run, *jobs) and nothing_made(run, sim), 60)
    why = "4 machines for all components of its job can never be had: names for them in instances.names = 3"
    run.until(lambda: why in told(sim, jobs[0]), 5)
    plain = [sim.submit("htc", 30.0, user="bob") for _ in range(3)]
    run.until(lambda: ended(sim, *plain), 300)
    assert sim.audit() == []


def test_components_whose_names_are_apart_get_theirs() -> None:
    """Two names are for machines in a network, two for all others."""
    sim, run = wired(lan("vn1", "vn2"), 4)
    jobs = sim.submit_components("htc", 20.0, TWO, IN_LAN)
    run.until(lambda: running(sim, *jobs), 60)
    assert sim.audit() == []


def test_a_component_that_fails_at_last_takes_the_others_along() -> None:
    """Their machines were there already: they go."""
    sim, run = begin(own_machines=replace(OWN, respawns=0), scale=Scale(boot_within_s=20, give_up_after=1))
    for number in range(2, 13):
        sim.faults.never_boots(f"vn{number}", -1)
    first, second = sim.submit_components("htc", 20.0, SMALL, SMALL)
    run.until(lambda: state(run, first) is MachinesState.SPAWNED, 60)
    run.until(lambda: given_back(run, first, second) and nothing_made(run, sim), 200)
    run.until(lambda: f"component {second} has none: its machines failed" in told(sim, first), 5)
    assert sim.audit() == []


@pytest.mark.parametrize(
    ("key", "rule"), [("most", replace(OWN, most=2)), ("most_per_user", replace(OWN, most_per_user=2))]
)
def test_the_caps_are_those_of_the_whole_job(key: str, rule: OwnMachines) -> None:
    """Each component would be within them."""
    sim, run = begin(own_machines=rule)
    two = SMALL | {"num_nodes": 2, "cpus": 2}
    jobs = sim.submit_components("htc", 20.0, two, SMALL)
    run.until(lambda: given_back(run, *jobs), 60)
    never = f"3 machines for all components of its job can never be had: own_machines.{key} = 2"
    run.until(lambda: all(never in told(sim, job) for job in jobs), 5)
    assert nothing_made(run, sim)


def test_two_jobs_do_not_take_half_of_the_cap_each() -> None:
    """Then neither could ever begin: the second waits until the first is over."""
    sim, run = begin(own_machines=replace(OWN, most=4))
    two = SMALL | {"num_nodes": 2, "cpus": 2}
    first = sim.submit_components("htc", 20.0, two, two)
    second = sim.submit_components("htc", 20.0, two, two)
    run.until(lambda: running(sim, *first), 60)
    assert any("own_machines.most = 4" in why for why in why_not(run, second[0]))
    run.until(lambda: ended(sim, *first, *second) and nothing_left(run, sim), 200)
    assert sim.audit() == []


def test_machines_do_not_wait_without_end_for_a_component_that_finds_no_room() -> None:
    """They fail after start_within_s, as if the job had not begun, and at last the job is given back.

    `scontrol release` tries all of it again.
    """
    own = replace(OWN, start_within_s=30.0, respawns=1)
    sim, run = begin(own_machines=own)
    high = sim.submit("batch", 86400.0, required_nodes=("bm2",))
    jobs = sim.submit_components("htc", 20.0, SMALL, {"comment": f"{WORD}:cpus=4"})
    run.until(lambda: given_back(run, *jobs) and nothing_made(run, sim), 300)
    run.until(lambda: f"component {jobs[1]} has no room for its own" in told(sim, jobs[0]), 5)
    sim.user_cancel(high)
    sim.slurm.release_job(jobs[0])
    run.until(lambda: running(sim, *jobs), 100)
    assert sim.audit() == []


def test_machines_that_were_pushed_off_before_their_job_came_have_not_failed() -> None:
    """However often that happens: the job gets them at last."""
    sim, run = begin(own_machines=replace(OWN, start_within_s=3600.0, respawns=1))
    block = sim.submit("batch", 86400.0, required_nodes=("bm2",))
    jobs = sim.submit_components("htc", 20.0, SMALL, {"comment": f"{WORD}:cpus=4"})
    for _ in range(3):
        run.until(lambda: any(state(run, job) is MachinesState.SPAWNED for job in jobs), 100)
        high = sim.submit("batch", 5.0, required_nodes=("bm1",))
        run.until(lambda high=high: ended(sim, high), 60)  # type: ignore[misc]
    assert not any(own.failures for own in run.world.machines.values())
    sim.user_cancel(block)
    run.until(lambda: running(sim, *jobs), 200)
    assert sim.audit() == []
