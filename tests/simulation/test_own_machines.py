"""A job's own machines in simulated time: held, spawned, pinned, let go, reclaimed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from backfill.core.model.cluster import JobState, MachineRequest
from backfill.core.model.fleet import CloneMethod, Flavour
from backfill.core.model.job_machines import MachinesState
from backfill.core.model.lifecycle import Phase
from backfill.core.model.records import decode
from backfill.core.model.sentences import why
from backfill.core.policies.cloning import Choice, Cloning
from backfill.core.policies.environments import Environment, Environments, ImageRule
from backfill.core.policies.own_machines import Hopeless, OwnMachines
from backfill.core.policies.scale import Scale
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.engine.narrate import story_line
from backfill.ports.errors import UnreachableError
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.deaths import Death, nothing
from tests.simulation.policy_cluster import TWELVE, cluster, ended, play, policies, running

OWN = OwnMachines(enabled=True)
WORD = "backfill-vm"
STEPS = (MachinesState.QUEUED, MachinesState.SPAWNING, MachinesState.SPAWNED, MachinesState.ALLOCATED)


def begin(cpus: int = 4, **rules: object) -> tuple[SimulatedWorld, Rehearsal]:
    sim = cluster(cpus)
    return sim, play(sim, policies(**{"own_machines": OWN, **rules}))


def state(run: Rehearsal, job: str) -> MachinesState | None:
    own = run.world.machines.get(job)
    return None if own is None else own.state


def theirs(run: Rehearsal, job: str) -> set[str]:
    return {m.name for m in run.world.managed.values() if m.job == job}


def lives(run: Rehearsal) -> set[tuple[str, int]]:
    return {(node.name, node.generation) for node in run.world.managed.values()}


def nothing_left(run: Rehearsal, sim: SimulatedWorld) -> bool:
    """No record, order or node is left, nor anything that keeps a node or a job."""
    world = run.world
    outside = any(host.instances for host in sim.hosts.values())
    return not (world.machines or world.fleets or world.managed or outside)


def why_not(run: Rehearsal, job: str) -> list[str]:
    return [why(r) for r in run.cycle.last.refusals if r.subject == f"job {job}"]


def intruders(sim: SimulatedWorld, run: Rehearsal) -> list[str]:
    """Jobs that Slurm shows on a machine that is another job's own."""
    return [
        job.id
        for node in run.world.managed.values()
        for job in run.world.jobs_on(node.name)
        if node.job and job.active and job.id != node.job
    ]


def test_a_job_gets_a_machine_of_its_own_size_and_it_goes_with_the_job() -> None:
    """Held, made as it asks, let go, and reclaimed: each state is passed once, in order."""
    sim, run = begin()
    job = sim.submit("htc", 20.0, comment=f"{WORD}:cpus=2,mem=512,disk=6")
    seen: list[MachinesState] = []

    def over() -> bool:
        now = state(run, job)
        if now is not None and now not in seen[-1:]:
            seen.append(now)
        return ended(sim, job) and nothing_left(run, sim)

    run.until(over, 120)
    assert seen == [*STEPS, MachinesState.RECLAIMED]
    (made,) = [decode(r.body).spec for r in run.journal.read() if r.body.get("t") == "CreateInstance"]
    assert made.flavour == Flavour(cpus=2, memory_mb=512, disk_gb=6, memory_margin_mb=56)
    assert "its own is there: a machine of 2 CPUs" in sim.slurm.admin_comment(job)
    assert sim.audit() == []


def test_what_a_jobs_machines_took_is_told_with_its_account() -> None:
    """Of both, from the first one's begin to the job's end: what a cloud charges for them."""
    sim, run = begin(cpus=8)
    job = sim.submit("htc", 1800.0, cpus=4, num_nodes=2, comment=f"{WORD}:cpus=2,mem=512")
    run.until(lambda: state(run, job) is MachinesState.RECLAIMED, 3600)
    own = run.world.machines[job]
    assert own.spawning_s is not None
    hours = 2 * (own.since_s - own.spawning_s) / 3600
    assert 1.0 < hours < 1.02
    took = f"its machines took {hours:.2f} instance hours, {2 * hours:.2f} core hours"
    assert own.reason == f"its job is over; {took}"
    assert any(took in story_line(r) for r in run.journal.read() if r.subject == job)


def test_without_a_word_the_machine_is_as_the_job_is() -> None:
    """In a partition for that: its CPUs, and its memory with what the guest itself needs."""
    sim, run = begin(own_machines=OwnMachines(enabled=True, partitions=("htc",)))
    job = sim.submit("htc", 10.0, cpus=3, memory_mb=300)
    run.until(lambda: running(sim, job), 60)
    (name,) = theirs(run, job)
    node = run.world.nodes[name]
    assert (node.cpus, node.memory_mb) == (3, 301)
    run.until(lambda: nothing_left(run, sim), 100)
    assert sim.audit() == []


def test_nobody_else_gets_in_whatever_their_priority() -> None:
    """A crowd of higher priority waits for room all the time; none of it is ever on the machine."""
    sim, run = begin(cpus=2)
    job = sim.submit("htc", 30.0, cpus=1, comment=f"{WORD}:cpus=2", priority=1)
    others = [sim.submit("htc", 60.0, priority=1000) for _ in range(4)]
    strange: list[str] = []

    def over() -> bool:
        strange.extend(intruders(sim, run))
        return ended(sim, job)

    run.until(over, 400)
    run.until(lambda: ended(sim, *others) and nothing_left(run, sim), 600)
    assert strange == []
    assert sim.audit() == []


def stranger_on(sim: SimulatedWorld, run: Rehearsal, job: str, away_s: float) -> str:
    """Somebody opens a job's own machine before it is kept for it, and no daemon is there for so long."""
    run.until(lambda: bool(theirs(run, job) & sim.nodes), 60)
    (own,) = theirs(run, job)
    run.kill()
    sim.admin_drain(own, "")
    stranger = sim.submit("htc", 300.0, user="eve", required_nodes=(own,))
    run.until(lambda: running(sim, stranger), 60)
    run.run(away_s)
    run.start()
    return stranger


def test_a_stranger_who_has_just_begun_on_it_is_put_back() -> None:
    """As on nodes that are for some people only: it has done nothing yet, and the job has waited."""
    sim, run = begin()
    job = sim.submit("htc", 20.0, comment=WORD, user="ada")
    stranger = stranger_on(sim, run, job, away_s=20.0)
    run.until(lambda: running(sim, job), 60)
    assert sim.job(stranger).restarts == 1
    sim.user_cancel(stranger)
    run.until(lambda: ended(sim, job) and nothing_left(run, sim), 300)
    assert sim.audit() == []


def test_a_stranger_who_has_been_on_it_for_long_is_left_to_its_end() -> None:
    """Its work is intact; nobody follows it there, and the job begins after it."""
    sim, run = begin()
    job = sim.submit("htc", 20.0, comment=WORD, user="ada")
    stranger = stranger_on(sim, run, job, away_s=90.0)
    run.until(lambda: ended(sim, stranger, job) and nothing_left(run, sim), 1500)
    assert sim.job(stranger).restarts == 0
    assert sim.audit() == []


def test_a_job_over_two_nodes_gets_both_or_none() -> None:
    """While there is room for one only, none is made."""
    sim, run = begin(cpus=2)
    blocker = sim.submit("batch", 30.0, required_nodes=("bm2",))
    run.until(lambda: running(sim, blocker), 10)
    job = sim.submit("htc", 20.0, num_nodes=2, cpus=4, comment=WORD)
    run.run(20.0)
    assert not run.world.managed
    assert state(run, job) is MachinesState.QUEUED
    run.until(lambda: running(sim, job), 60)
    assert theirs(run, job) == set(sim.job(job).nodes)
    assert len(theirs(run, job)) == 2
    run.until(lambda: nothing_left(run, sim), 100)
    assert sim.audit() == []


def test_each_task_of_an_array_gets_its_own() -> None:
    """And never more machines than may belong to jobs at the same time."""
    sim, run = begin(own_machines=OwnMachines(enabled=True, most=2))
    array = sim.submit_array("htc", 20.0, 4, comment=WORD)
    tasks = [f"{array}_{number}" for number in range(1, 5)]
    most = 0

    def over() -> bool:
        nonlocal most
        most = max(most, sum(m.job != "" for m in run.world.managed.values()))
        return ended(sim, *tasks)

    run.until(over, 400)
    run.until(lambda: nothing_left(run, sim), 60)
    assert most == 2
    assert sim.audit() == []


@pytest.mark.parametrize("step", STEPS)
def test_cancelled_at_any_step_nothing_of_it_stays(step: MachinesState) -> None:
    """Its machines go, and the next job gets its own."""
    sim, run = begin()
    job = sim.submit("htc", 60.0, comment=f"{WORD}:cpus=2")
    run.until(lambda: state(run, job) is step, 60)
    sim.user_cancel(job)
    run.until(lambda: nothing_left(run, sim), 60)
    after = sim.submit("htc", 5.0, comment=f"{WORD}:cpus=3")
    run.until(lambda: ended(sim, after) and nothing_left(run, sim), 60)
    assert sim.audit() == []


@pytest.mark.parametrize("step", STEPS[1:])
def test_where_a_machine_dies_the_job_gets_new_ones(step: MachinesState) -> None:
    """All of them are made anew, as often as the policy says; the job runs in the end."""
    sim, run = begin()
    job = sim.submit("htc", 30.0, num_nodes=2, cpus=2, comment=WORD)
    run.until(lambda: state(run, job) is step, 60)
    run.until(lambda: any(h.instances for h in sim.hosts.values()), 10)
    sim.crash_instance(next(name for h in sim.hosts.values() for name in h.instances))
    run.until(lambda: ended(sim, job), 900)
    run.until(lambda: nothing_left(run, sim), 60)
    assert [v for v in sim.audit() if v.kind != "twice"] == []


@pytest.mark.parametrize("step", STEPS)
def test_a_high_priority_job_takes_the_host_at_any_step(step: MachinesState) -> None:
    """The machines are victims like all others; the job runs in the end, and once."""
    sim, run = begin(cpus=2)
    job = sim.submit("htc", 40.0, num_nodes=2, cpus=2, comment=WORD)
    run.until(lambda: state(run, job) is step, 60)
    high = sim.submit("batch", 30.0, required_nodes=("bm1",))
    run.until(lambda: ended(sim, high), 90)
    run.until(lambda: ended(sim, job), 400)
    run.until(lambda: nothing_left(run, sim), 60)
    assert sim.job(job).restarts == 0
    assert sim.audit() == []


def test_machines_of_a_job_stand_still_together_and_go_on_together() -> None:
    """One host is wanted: the other machine is stopped as well, although its host is free."""
    sim, run = begin(cpus=2)
    job = sim.submit("htc", 60.0, num_nodes=2, cpus=4, comment=WORD)
    run.until(lambda: running(sim, job), 60)
    high = sim.submit("batch", 20.0, required_nodes=("bm1",))
    run.until(lambda: running(sim, high), 10)

    def parked() -> bool:
        return all(run.world.managed[name].phase is Phase.PARKED for name in theirs(run, job))

    run.until(parked, 10)
    run.run(10.0)
    assert parked()
    run.until(lambda: ended(sim, job), 200)
    assert sim.job(job).restarts == 0
    assert sim.audit() == []


def test_a_requeued_job_gets_machines_anew() -> None:
    """The run before has nothing any more; the new run is a run of its own."""
    sim, run = begin()
    job = sim.submit("htc", 30.0, comment=WORD)
    run.until(lambda: state(run, job) is MachinesState.ALLOCATED, 60)
    before = lives(run)
    sim.requeue_behind(job, delay_s=5.0)
    run.until(lambda: state(run, job) is MachinesState.RECLAIMED, 20)
    run.until(lambda: state(run, job) is MachinesState.ALLOCATED, 200)
    assert lives(run).isdisjoint(before)
    assert run.world.machines[job].restarts == 1
    run.until(lambda: ended(sim, job) and nothing_left(run, sim), 100)
    assert [v for v in sim.audit() if v.kind != "twice"] == []


def test_what_can_never_be_is_told_as_soon_as_it_is_known() -> None:
    """The job stays held with the reason; whoever releases it has it tried again."""
    sim, run = begin()
    wide = sim.submit("htc", 5.0, comment=f"{WORD}:cpus=64")
    odd = sim.submit("htc", 5.0, comment=f"{WORD}:cpus=many")
    small = sim.submit("htc", 5.0, cpus=4, comment=f"{WORD}:cpus=2")
    several = sim.submit("htc", 5.0, comment=f"{WORD}:per_node=2")
    huge = sim.submit("htc", 5.0, comment=f"{WORD}:disk=20000")
    jobs = [wide, odd, small, several, huge]
    run.until(lambda: all(state(run, job) is MachinesState.GIVEN_BACK for job in jobs), 30)
    assert all(sim.job(job).reason == "JobHeldAdmin" for job in jobs)
    run.until(lambda: all("scontrol release" in sim.slurm.admin_comment(job) for job in jobs), 10)
    assert "can never be had" in sim.slurm.admin_comment(wide)
    assert "cpus='many'" in sim.slurm.admin_comment(odd)
    assert "ask for larger machines" in sim.slurm.admin_comment(small)
    assert "several machines for each node outside an allocation" in sim.slurm.admin_comment(several)
    assert "own_machines.most_disk_gb allows 20" in sim.slurm.admin_comment(huge)
    assert any("can never be had" in said for said in why_not(run, wide))
    sim.slurm.release_job(wide)
    run.run(10.0)
    assert state(run, wide) is MachinesState.GIVEN_BACK
    assert not run.world.managed
    for job in jobs:
        sim.user_cancel(job)
    run.until(lambda: nothing_left(run, sim), 30)


def test_what_can_never_be_is_cancelled_where_the_policy_says_so() -> None:
    """With the reason for its owner."""
    sim, run = begin(own_machines=OwnMachines(enabled=True, hopeless=Hopeless.CANCEL))
    job = sim.submit("htc", 5.0, comment=f"{WORD}:mem=1000000")
    run.until(lambda: sim.job(job).state is JobState.CANCELLED, 30)
    assert "can never be had" in sim.slurm.admin_comment(job)
    run.until(lambda: nothing_left(run, sim), 30)


def test_machines_that_never_boot_are_given_back_after_so_many_tries() -> None:
    """The job is not started without them, and waits for nobody any more."""
    own = OwnMachines(enabled=True, respawns=1)
    sim, run = begin(own_machines=own, scale=Scale(boot_within_s=20, give_up_after=1))
    for number in range(1, 13):
        sim.faults.never_boots(f"vn{number}", -1)
    job = sim.submit("htc", 5.0, comment=WORD)
    run.until(lambda: state(run, job) is MachinesState.GIVEN_BACK, 300)
    assert sim.job(job).reason == "JobHeldAdmin"
    run.until(lambda: "failed 2 times" in sim.slurm.admin_comment(job), 10)
    assert sim.audit() == []


def test_small_ones_pass_a_large_one_for_a_while_only() -> None:
    """It needs both hosts; after passed_over_s nobody begins before it, anonymous instances neither."""
    own = OwnMachines(enabled=True, passed_over_s=60.0)
    sim, run = begin(cpus=2, own_machines=own, scale=Scale(idle_s=5))
    first = sim.submit("htc", 50.0, comment=f"{WORD}:cpus=2")
    run.until(lambda: running(sim, first), 60)
    large = sim.submit("htc", 10.0, num_nodes=2, cpus=4, comment=WORD)
    small = [sim.submit("htc", 50.0, comment=f"{WORD}:cpus=2") for _ in range(8)]
    plain = [sim.submit("htc", 50.0) for _ in range(8)]
    run.until(lambda: ended(sim, large), 400)
    assert any(sim.job(job).start_s > 0 for job in small)
    assert not all(ended(sim, job) for job in [*small, *plain])
    run.until(lambda: ended(sim, *small, *plain) and nothing_left(run, sim), 1500)
    assert sim.audit() == []


def test_idle_instances_make_room_for_machines_of_a_job() -> None:
    """The hosts are full of instances that nobody uses."""
    sim, run = begin(cpus=2, scale=Scale(idle_s=5, warm=4))
    run.until(lambda: len(run.world.managed) == 4, 60)
    job = sim.submit("htc", 10.0, comment=f"{WORD}:cpus=2")
    run.until(lambda: ended(sim, job), 200)
    assert sim.audit() == []


def test_idle_instances_make_room_for_a_machine_that_is_tried_again() -> None:
    """Its fellow is there; before its own time comes a spare instance takes the room."""
    scale = Scale(idle_s=20, boot_within_s=30, retry_after_s=30)
    sim, run = begin(cpus=2, scale=scale)
    sim.faults.never_boots("vn2", 1)
    job = sim.submit("htc", 20.0, num_nodes=2, cpus=4, comment=f"{WORD}:cpus=2")
    run.until(lambda: any(m.phase is Phase.FAILED for m in run.world.managed.values()), 90)
    run.policies = run.cycle.policies = replace(run.policies, scale=replace(scale, warm=2))
    run.until(lambda: any(not m.job for m in run.world.managed.values()), 25)
    run.until(lambda: ended(sim, job), 300)
    assert sim.audit() == []


@pytest.mark.parametrize("acts", [False, True])
def test_a_pin_that_cannot_be_taken_away_is_tried_again_by_the_next_daemon(acts: bool) -> None:
    """The record stays until Slurm has said that it is gone, whether the calls before did it or not."""
    sim, run = begin()
    job = sim.submit("htc", 10.0, comment=WORD)
    run.until(lambda: running(sim, job), 60)
    order = sim.faults.fail("unpin_job", UnreachableError("slurm", "no answer"), times=-1, acts=acts)
    run.until(lambda: "UnpinJob" in {r.body.get("t") for r in run.journal.read()}, 90)
    run.run(10.0)
    assert state(run, job) is MachinesState.RECLAIMED
    run.kill()
    run.start()
    run.run(10.0)
    assert state(run, job) is MachinesState.RECLAIMED
    order.end()
    run.until(lambda: nothing_left(run, sim), 60)
    other = sim.submit("htc", 5.0, comment=WORD)
    run.until(lambda: ended(sim, other) and nothing_left(run, sim), 90)
    assert sim.audit() == []


def test_machines_whose_job_does_not_come_are_given_up_and_at_last_the_job() -> None:
    """It was let go, and something else holds it up: held once each time, and told."""
    rule = OwnMachines(enabled=True, start_within_s=20.0, respawns=1)
    sim, run = begin(own_machines=rule)
    job = sim.submit("htc", 20.0, comment=WORD, required_nodes=("bm1",))
    run.until(lambda: state(run, job) is MachinesState.GIVEN_BACK, 200)
    run.until(lambda: "did not begin on them within 20 s" in sim.slurm.admin_comment(job), 5)
    holds = [r for r in run.journal.read() if r.kind == "intent" and r.body["t"] == "HoldJob"]
    assert 2 <= len(holds) <= 4
    sim.user_cancel(job)
    run.until(lambda: nothing_left(run, sim), 60)
    assert sim.audit() == []


def test_a_job_that_somebody_holds_is_left_alone() -> None:
    """Until it is released: then it gets its machines."""
    sim, run = begin()
    job = sim.submit("htc", 5.0, comment=WORD, held=True, held_by_owner=True)
    run.run(20.0)
    assert not run.world.machines
    sim.owner_releases(job)
    run.until(lambda: ended(sim, job) and nothing_left(run, sim), 100)


def test_an_owner_does_not_undo_an_admins_hold() -> None:
    """Not by words in his comment that only we and job_submit.lua may write."""
    sim, run = begin()
    job = sim.submit("htc", 5.0)
    sim.slurm.hold_job(job)
    sim.owner_comments(job, f"{WORD}:held=1")
    run.run(30.0)
    assert not run.world.machines
    assert sim.job(job).reason == "JobHeldAdmin"
    sim.slurm.release_job(job)
    run.until(lambda: ended(sim, job) and nothing_left(run, sim), 100)


@pytest.mark.parametrize("comment", ["", "jobstats: v2"])
def test_a_hold_that_comes_after_it_was_let_go_is_left_alone(comment: str) -> None:
    """Its machines go after a while; whoever holds it lets it go when he wants to, and it gets new ones."""
    sim, run = begin(own_machines=OwnMachines(enabled=True, start_within_s=20.0))
    job = sim.submit("htc", 5.0, comment=WORD, admin_comment=comment, required_nodes=("bm1",))
    run.until(lambda: state(run, job) is MachinesState.SPAWNED, 100)
    run.until(lambda: run.world.machines[job].released_s is not None, 10)
    sim.slurm.hold_job(job)
    run.until(lambda: nothing_left(run, sim), 100)
    run.run(60.0)
    assert sim.job(job).reason == "JobHeldAdmin"
    assert sim.job(job).machines == MachineRequest()
    assert not run.world.machines
    releases = [r for r in run.journal.read() if r.kind == "intent" and r.body["t"] == "ReleaseJob"]
    assert len(releases) == 1
    sim.slurm.release_job(job)
    run.until(lambda: state(run, job) is MachinesState.SPAWNED, 100)
    assert sim.slurm.admin_comment(job).startswith(comment)


def test_a_daemon_without_its_journal_knows_its_hold_beside_what_the_site_has_written() -> None:
    """The word is put behind it."""
    sim, run = begin()
    job = sim.submit("htc", 5.0, comment=WORD, admin_comment="jobstats: v2")
    run.until(lambda: sim.slurm.admin_comment(job) == f"jobstats: v2 {WORD}:held=1", 20)
    run.kill()
    run.journal = MemoryJournal()
    run.start()
    run.until(lambda: ended(sim, job) and nothing_left(run, sim), 100)
    assert sim.slurm.admin_comment(job) == f"jobstats: v2 {WORD}"


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("image=8c56a0a7-3c0f-4a5e-9d8a-0f1d5a2b3c4d", "use one of default, gold"),
        ("image=gold", "may not have environment au: it is for user ada"),
        ("image=au", "may not have environment au: it is for user ada"),
    ],
)
def test_a_job_gets_no_image_but_those_that_are_named_and_its_owner_may_have(word: str, words: str) -> None:
    """Neither by an id of the cloud's nor by the name of somebody else's."""
    sim, run = begin(
        environments=Environments((Environment("au", "gold", ("ada",)),), (), ("default", "gold"))
    )
    job = sim.submit("htc", 10.0, comment=f"{WORD}:{word}", user="eve")
    run.until(lambda: state(run, job) is MachinesState.GIVEN_BACK, 10)
    run.until(lambda: words in sim.slurm.admin_comment(job), 10)
    assert not run.world.managed


def test_an_instant_clone_is_as_large_as_the_closest_parent_that_covers_it() -> None:
    """A job that wants more than any parent has gets a linked one of its exact size instead."""
    warm = Environments(rules=(ImageRule("default", warm_parents=1),))
    shape = replace(TWELVE, flavour=Flavour(cpus=2, memory_mb=512))
    clones = Cloning(method=Choice.INSTANT)
    sim, run = begin(instances=shape, environments=warm, cloning=clones)
    run.until(lambda: all(h.view().has_parent("default", shape.flavour) for h in sim.hosts.values()), 60)
    small = sim.submit("htc", 5.0, comment=f"{WORD}:cpus=1,mem=300")
    run.until(lambda: ended(sim, small), 60)
    large = sim.submit("htc", 5.0, comment=f"{WORD}:cpus=3,mem=300")
    run.until(lambda: ended(sim, large) and nothing_left(run, sim), 60)
    made = [decode(r.body).spec for r in run.journal.read() if r.body.get("t") == "CreateInstance"]
    assert [(m.method, m.flavour.cpus, m.flavour.memory_mb) for m in made] == [
        (CloneMethod.INSTANT, 2, 512),
        (CloneMethod.LINKED, 3, 300),
    ]
    assert sim.audit() == []


def test_a_daemon_without_its_journal_lets_go_what_it_held_and_knows_how_large_machines_are() -> None:
    """The word in AdminComment says whose hold it is; a machine that is taken over keeps its size."""
    sim, run = begin()
    first = sim.submit("htc", 40.0, num_nodes=2, cpus=8, comment=WORD)
    run.until(lambda: running(sim, first), 60)
    waits = sim.submit("htc", 5.0, comment=f"{WORD}:cpus=4")
    admins = sim.submit("htc", 5.0, comment=WORD, held=True)
    run.until(lambda: sim.job(waits).reason == "JobHeldAdmin", 10)
    run.kill()
    run.journal = MemoryJournal()
    run.start()
    run.until(lambda: len(run.world.managed) == 2, 30)
    assert {run.policies.instances.flavour_of(m).cpus for m in run.world.managed.values()} == {4}
    run.until(lambda: ended(sim, first, waits), 300)
    assert sim.job(admins).reason == "JobHeldAdmin"
    sim.user_cancel(admins)
    run.until(lambda: nothing_left(run, sim), 100)
    assert sim.audit() == []


def test_a_machine_whose_owner_is_in_no_record_goes_when_it_is_idle() -> None:
    """Slurm keeps it for a job that has ended, whoever else waits; the spare ones do not count it."""
    sim, run = begin(cpus=2, scale=Scale(idle_s=20, warm=1))
    job = sim.submit("htc", 10.0, comment=WORD)
    run.until(lambda: running(sim, job), 60)
    (theirs_,) = theirs(run, job)
    run.kill()
    run.until(lambda: ended(sim, job), 60)
    run.journal = MemoryJournal()
    run.start()
    run.until(lambda: theirs_ in run.world.managed and run.world.managed[theirs_].found, 60)
    run.until(lambda: theirs_ not in sim.nodes, 200)
    other = sim.submit("htc", 5.0, num_nodes=1)
    run.until(lambda: ended(sim, other), 200)
    assert sim.audit() == []


def killed_after(number: int, *, cancel: bool = False) -> bool:
    """A job with two machines, the daemon killed after one step; return True if there was such a step."""
    sim, run = begin(cpus=2)
    job = sim.submit("htc", 15.0, num_nodes=2, cpus=2, comment=WORD)
    other = sim.submit("htc", 5.0, priority=1000)
    death = Death(run, number, meanwhile=partial(sim.user_cancel, job) if cancel else nothing)
    strange: list[str] = []

    def over() -> bool:
        strange.extend(intruders(sim, run))
        done = ended(sim, job) or sim.job(job).state is JobState.CANCELLED
        return done and ended(sim, other) and run.alive and nothing_left(run, sim)

    run.until(over, 400)
    assert strange == []
    assert sim.audit() == []
    assert sim.job(job).restarts == 0
    return death.at_s is not None


@pytest.mark.parametrize("cancel", [False, True])
def test_a_daemon_killed_after_any_step_leaves_nothing(cancel: bool) -> None:
    """Nothing is held for ever, nothing orphaned, and no other job gets in; cancelled meanwhile or not."""
    number = 1
    while killed_after(number, cancel=cancel):
        number += 1
    assert number > 25
