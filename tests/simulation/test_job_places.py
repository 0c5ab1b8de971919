"""Where a job's own machines can be, in simulated time: networks, sizes and shared memory that hosts lack."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backfill.core.model.fleet import Rung
from backfill.core.model.job_machines import MachinesState
from backfill.core.model.quantities import Resources
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.own_machines import Hopeless, MachineNetwork, OwnMachines
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.policy_cluster import ended, running
from tests.simulation.test_job_devices import made
from tests.simulation.test_own_machines import WORD, begin, nothing_left, state, why_not

LAN = MachineNetwork("lan", bridge="br-lan")
OURS = MachineNetwork("ours", bridge="br-ours", nodes=("vn1", "vn2"), users=("ada",), accounts=("physics",))


@pytest.fixture
def wired() -> Iterator[tuple[SimulatedWorld, Rehearsal]]:
    """Both hosts have one network, one of them has another one."""
    sim, run = begin(own_machines=OwnMachines(enabled=True, networks=(LAN, OURS)))
    sim.hosts["bm1"].networks = ("lan", "ours")
    sim.hosts["bm2"].networks = ("lan",)
    yield sim, run
    assert sim.audit() == []


def test_machines_are_made_in_the_network_that_their_job_asks_for(
    wired: tuple[SimulatedWorld, Rehearsal],
) -> None:
    """On a host that has it; a job that says nothing gets the usual one."""
    sim, run = wired
    jobs = [
        sim.submit("htc", 10.0, comment=f"{WORD}:cpus=1,network=ours", user="ada"),
        sim.submit("htc", 10.0, comment=f"{WORD}:cpus=1,network=lan", user="bob"),
        sim.submit("htc", 10.0, comment=f"{WORD}:cpus=1", user="bob"),
        sim.submit("htc", 10.0, user="bob"),
    ]
    run.until(lambda: ended(sim, *jobs), 200)
    where = {spec.name: (spec.network, spec.host) for spec in made(run)}
    assert sorted(network for network, _ in where.values()) == ["", "", "lan", "ours"]
    (name,) = [name for name, (network, _) in where.items() if network == "ours"]
    assert (name, where[name][1]) == ("vn1", "bm1")
    assert "vn2" not in where, "its address is in the network that nobody else has asked for"


def test_a_job_over_two_nodes_waits_for_the_host_that_has_its_network(
    wired: tuple[SimulatedWorld, Rehearsal],
) -> None:
    """However much room others have."""
    sim, run = wired
    high = sim.submit("batch", 60.0, required_nodes=("bm1",))
    run.until(lambda: running(sim, high), 30)
    job = sim.submit("htc", 10.0, num_nodes=2, comment=f"{WORD}:cpus=1,network=ours", user="ada")
    run.run(20.0)
    assert state(run, job) is MachinesState.QUEUED
    assert made(run) == []
    run.until(lambda: ended(sim, job), 200)
    assert {spec.host for spec in made(run)} == {"bm1"}


@pytest.mark.parametrize(
    ("word", "user", "words"),
    [
        ("network=wan", "ada", "it asks for network wan, and there is none of that name: use lan, ours"),
        ("network=ours", "bob", "may not have network ours: it is for user ada, account physics"),
        ("network=ours,cpus=3,place=spread", "ada", "can never be had"),
    ],
)
def test_a_network_that_it_may_not_have_is_told_at_once(
    wired: tuple[SimulatedWorld, Rehearsal], word: str, user: str, words: str
) -> None:
    """The job stays held, and no machine is begun."""
    sim, run = wired
    job = sim.submit("htc", 10.0, num_nodes=2, comment=f"{WORD}:{word}", user=user)
    run.until(lambda: state(run, job) is MachinesState.GIVEN_BACK, 10)
    run.until(lambda: words in sim.slurm.admin_comment(job), 10)
    assert made(run) == []


def test_where_there_are_none_it_says_so() -> None:
    """The policy file names no network."""
    sim, run = begin()
    job = sim.submit("htc", 10.0, comment=f"{WORD}:network=lan")
    run.until(lambda: "there is none of that name; scontrol" in sim.slurm.admin_comment(job), 10)


def test_machines_on_a_jobs_nodes_need_the_network_on_each_of_them() -> None:
    """One of its nodes lacks it: the job goes on without machines, and is told why."""
    own = OwnMachines(enabled=True, inside=("batch",), networks=(LAN,))
    sim, run = begin(own_machines=own)
    sim.hosts["bm1"].networks = ("lan",)
    word = f"{WORD}:cpus=1,mem=256,network=lan"
    job = sim.submit("batch", 30.0, num_nodes=2, cpus=8, exclusive=True, comment=word)
    run.until(lambda: "machines on bm2 cannot have network lan" in sim.slurm.admin_comment(job), 20)
    run.until(lambda: ended(sim, job), 60)
    sim.hosts["bm2"].networks = ("lan",)
    again = sim.submit("batch", 30.0, num_nodes=2, cpus=8, exclusive=True, comment=word)
    run.until(lambda: ended(sim, again) and nothing_left(run, sim), 120)
    assert {(spec.host, spec.network) for spec in made(run)} == {("bm1", "lan"), ("bm2", "lan")}
    assert sim.audit() == []


def cloudy(sim: SimulatedWorld, *hosts: str) -> None:
    """These hosts are as a cloud is: they share nothing, and make two sizes."""
    for host in hosts:
        sim.hosts[host].shares = False
        sim.hosts[host].sizes = (Resources(1, 1024), Resources(2, 512))


def test_a_cloud_lends_no_memory_to_share() -> None:
    """Told at once where there is nothing else; otherwise they are made on the host that can."""
    sim, run = begin()
    cloudy(sim, "bm1")
    job = sim.submit("htc", 10.0, num_nodes=2, comment=f"{WORD}:cpus=1,mem=256,ivshmem=16")
    run.until(lambda: ended(sim, job), 100)
    assert {spec.host for spec in made(run)} == {"bm2"}
    cloudy(sim, "bm2")
    other = sim.submit("htc", 10.0, comment=f"{WORD}:cpus=1,mem=256,ivshmem=16")
    run.until(lambda: "cannot share memory (--ivshmem)" in sim.slurm.admin_comment(other), 10)
    assert state(run, other) is MachinesState.GIVEN_BACK
    functions = sim.submit("htc", 10.0, comment=f"{WORD}:cpus=1,mem=256,sriov=1")
    run.until(lambda: "no host has more than 0" in sim.slurm.admin_comment(functions), 10)
    assert sim.audit() == []


def test_a_machine_fits_into_one_of_a_clouds_sizes_or_is_never_made() -> None:
    """Neither by all of one's CPUs with another one's memory."""
    sim, run = begin()
    cloudy(sim, "bm1", "bm2")
    fits = sim.submit("htc", 10.0, comment=f"{WORD}:cpus=2,mem=500")
    never = sim.submit("htc", 10.0, comment=f"{WORD}:cpus=2,mem=800")
    run.until(lambda: ended(sim, fits), 60)
    run.until(lambda: "bm1 has no flavour with 2 CPUs and 800 MB" in sim.slurm.admin_comment(never), 10)
    assert [spec.flavour.memory_mb for spec in made(run)] == [500]
    assert sim.audit() == []


def test_a_cloud_has_room_for_as_many_as_its_flavours_leave() -> None:
    """A machine takes all of its flavour, although it asks for less."""
    sim, run = begin(cpus=2)
    cloudy(sim, "bm1", "bm2")
    many = sim.submit("htc", 10.0, num_nodes=6, cpus=6, comment=f"{WORD}:cpus=1,mem=256")
    few = sim.submit("htc", 10.0, num_nodes=2, cpus=2, comment=f"{WORD}:cpus=1,mem=256,place=together")
    run.until(lambda: "can never be had" in sim.slurm.admin_comment(many), 20)
    run.until(lambda: ended(sim, few), 60)
    sim.hosts["bm1"].sizes = sim.hosts["bm2"].sizes = (Resources(2, 512),)
    never = sim.submit("htc", 10.0, num_nodes=2, cpus=2, comment=f"{WORD}:cpus=1,mem=256,place=together")
    run.until(lambda: "on one host can never be had" in sim.slurm.admin_comment(never), 20)
    assert len(made(run)) == 2
    assert sim.audit() == []


def test_hosts_that_do_not_answer_take_nobody_his_hope() -> None:
    """What they can carry is not known: the job waits for them, and is not cancelled."""
    sim, run = begin(own_machines=OwnMachines(enabled=True, hopeless=Hopeless.CANCEL))
    run.run(5.0)
    for host in ("bm1", "bm2"):
        sim.cut_host(host)
    run.run(5.0)
    job = sim.submit("htc", 10.0, comment=f"{WORD}:cpus=2,mem=512,ivshmem=16")
    run.run(120.0)
    assert state(run, job) is MachinesState.QUEUED
    assert why_not(run, job) == [] or "can never be had" not in why_not(run, job)[0]
    for host in ("bm1", "bm2"):
        sim.join_host(host)
    run.until(lambda: ended(sim, job), 200)
    assert sim.audit() == []


@pytest.mark.parametrize("there", [(), ("lan",)])
def test_it_moves_only_where_its_network_is(there: tuple[str, ...]) -> None:
    """Its host is wanted: it does not go to one where it would be cut off."""
    own = OwnMachines(enabled=True, networks=(LAN,))
    ladder = Ladder((RungRule(Rung.MIGRATE, within_s=60.0), RungRule(Rung.REQUEUE)))
    sim, run = begin(own_machines=own, ladder=ladder)
    sim.hosts["bm1"].networks = ("lan",)
    job = sim.submit("htc", 60.0, comment=f"{WORD}:cpus=1,network=lan")
    run.until(lambda: running(sim, job), 60)
    sim.hosts["bm2"].networks = there
    run.run(3.0)
    high = sim.submit("batch", 30.0, required_nodes=("bm1",))
    run.until(lambda: running(sim, high), 90)
    run.until(lambda: ended(sim, high, job), 400)
    assert (sim.job(job).restarts == 0) is bool(there)
    # A guest that runs takes longer to leave than a hook waits: such is this ladder.
    assert {violation.kind for violation in sim.audit()} <= {"room"}
