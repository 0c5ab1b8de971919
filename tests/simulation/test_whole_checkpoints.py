"""Checkpoints of jobs on several nodes: all parts or none, and a lost host's job goes on from one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.cluster import JobState
from backfill.core.model.fleet import Checkpoint, InstanceState
from backfill.core.model.lifecycle import Phase
from backfill.core.model.refusals import Goal
from backfill.core.model.sentences import why as why_not
from backfill.core.policies.checkpoints import Checkpoints
from backfill.core.policies.scale import Scale
from backfill.core.policies.workloads import ReadyMade, Workload, Workloads
from backfill.drivers.store.memory import MemoryJournal
from backfill.engine.checkpoint_order import CommandError, checkpoint_order
from backfill.ports.errors import DriverError, RefusedError, UnreachableError
from backfill.sim.scenarios.rehearsal import Rehearsal
from tests.simulation.deaths import Death
from tests.simulation.test_checkpoints import order, put_back, seen_running
from tests.simulation.test_eviction import cluster, policies, running

MEMBERS = ("vn1", "vn2")


HOSTS = ("bm1", "bm2", "bm3")


def wide(run_s: float = 60.0, **rules: object) -> tuple[Rehearsal, str]:
    """A job on two instances, each on a host of its own; one host has room for another."""
    rules = {"scale": Scale(warm=2, idle_s=1000.0), "hosts": HOSTS, **rules}
    policy = replace(policies(), **rules)  # type: ignore[arg-type]  # its own fields
    run = Rehearsal(cluster(hosts=HOSTS), policy, MemoryJournal())
    job = run.sim.submit("htc", run_s, num_nodes=2)
    run.until(lambda: running(run, job), 60)
    assert len({run.world.managed[name].host for name in MEMBERS}) == 2
    return run, job


def kept(run: Rehearsal, job: str) -> str:
    """A whole checkpoint of the job, which works again."""
    identity = order(run, job)
    run.until(lambda: not any(m.order for m in run.world.managed.values()), 60)
    run.until(lambda: seen_running(run, job), 60)
    run.sim.provider.verify(identity)
    return identity


def lose(run: Rehearsal, name: str) -> str:
    """The instance's host loses its power, and a person says that it stays off."""
    host = dark(run, name)
    said_off(run, host)
    return host


def dark(run: Rehearsal, name: str) -> str:
    host = run.world.managed[name].host
    run.sim.kill_host(host)
    run.until(lambda: not run.world.hosts[host].reachable, 30)
    return host


def said_off(run: Rehearsal, host: str) -> None:
    run.cycle.take([ch.HoldSet(host, run.sim.now_s, on=True, reason="burnt", off=True)])


def ends_well(run: Rehearsal, job: str, restarts: int = 0) -> None:
    run.until(lambda: run.sim.job(job).state is JobState.COMPLETED, 900)
    assert run.sim.job(job).restarts == restarts
    assert run.sim.audit() == []


# --- all are kept, or none ------------------------------------------------------------------------


def test_none_goes_on_before_the_last_is_kept() -> None:
    """One part is late: the other one, which is kept already, stands still until then."""
    run, job = wide()
    sim = run.sim
    sim.faults.fail("suspend", UnreachableError("vn2", "its disk hangs"), subject="vn2", times=3)
    order(run, job)
    run.until(lambda: bool(sim.provider.checkpoints()), 30)
    while len(sim.provider.checkpoints()) < len(MEMBERS):
        assert sim.instance("vn1").state is InstanceState.SUSPENDED
        assert sim.next_s is not None
        sim.step_to(sim.next_s)
    run.until(lambda: seen_running(run, job), 60)
    ends_well(run, job)


def test_one_part_that_cannot_be_kept_costs_the_checkpoint_and_not_the_job() -> None:
    """Both go back to work, and what is there of it is never taken for a checkpoint."""
    run, job = wide()
    sim = run.sim
    original = sim.provider.keep

    def full(host: str, wanted: Checkpoint, quota_mb: float | None) -> Checkpoint:
        if wanted.name == "vn2":
            raise DriverError("vn2", "its disk is full")
        return original(host, wanted, quota_mb)

    sim.provider.keep = full  # type: ignore[method-assign]
    identity = order(run, job)
    run.until(lambda: run.world.managed["vn1"].phase is not Phase.READY, 30)
    run.until(lambda: not any(m.order for m in run.world.managed.values()), 60)
    assert [run.world.managed[name].saved for name in MEMBERS] == [None, None]
    with pytest.raises(DriverError, match=f"{identity}|complete|no such"):
        sim.provider.verify(identity)
    ends_well(run, job)


def test_nodes_of_one_workload_may_stop_further_apart_than_of_others() -> None:
    """Ranks of MPI bear a minute; the policy's window for all others is two seconds here."""
    mpi = Workloads((Workload("mpi", like=ReadyMade.MPI, min_nodes=2),))
    for rules, whole in ((Workloads(), 0), (mpi, 2)):
        run, job = wide(checkpoints=Checkpoints(window_s=2.0), workloads=rules)
        run.sim.faults.fail("pause", UnreachableError("vn2", "silence"), subject="vn2", times=4)
        order(run, job)
        run.until(lambda: not any(m.order for m in run.world.managed.values()), 90)  # noqa: B023 - used at once
        assert len(run.sim.provider.checkpoints()) == whole
        ends_well(run, job)


def test_a_checkpoint_is_given_up_before_the_jobs_patience_is_over() -> None:
    """A part cannot be written for long: the job goes on in time instead of being started anew."""
    short = Workloads((Workload("solver", like=ReadyMade.MPI, min_nodes=2, stand_still_s=40.0),))
    run, job = wide(workloads=short)
    run.sim.faults.fail("suspend", UnreachableError("vn2", "its disk hangs"), subject="vn2", times=60)
    order(run, job)
    run.until(lambda: run.world.managed["vn1"].phase is not Phase.READY, 30)
    run.until(lambda: not any(m.order for m in run.world.managed.values()), 60)
    run.sim.faults.clear()
    ends_well(run, job)


def test_a_job_of_which_a_host_keeps_no_checkpoints_is_refused() -> None:
    """Before anything is stopped; and so is one that shares a node with another job."""
    run, job = wide()
    host = run.world.managed["vn2"].host
    run.until(lambda: seen_running(run, job), 10)
    run.world.apply(ch.HostSeen(replace(run.world.hosts[host], keeps=False), run.now_s + 1))
    with pytest.raises(CommandError, match=f"{host} keeps no checkpoints"):
        checkpoint_order(run.world, job)


def test_old_and_new_states_never_meet() -> None:
    """One part is in place and the other one cannot be: the job starts over instead."""
    run, job = wide()
    identity = kept(run, job)
    original = run.sim.provider.put_back

    def half(host: str, name: str, identity: str) -> None:
        if name == "vn2":
            raise RefusedError(name, "its disk is broken")
        original(host, name, identity)

    run.sim.provider.put_back = half  # type: ignore[method-assign]
    put_back(run, job, identity)
    run.until(lambda: run.sim.job(job).restarts == 1, 300)
    run.sim.provider.put_back = original  # type: ignore[method-assign]
    run.until(lambda: run.sim.job(job).state is JobState.COMPLETED, 900)
    stale = [v for v in run.sim.audit() if v.kind in ("stale", "twice")]
    assert stale == []


# --- a host is lost -------------------------------------------------------------------------------


def test_the_job_of_a_lost_host_goes_on_from_its_checkpoint_elsewhere() -> None:
    """Its other node is put back to the same moment, and Slurm's run is the same one."""
    run, job = wide(300.0)
    identity = kept(run, job)
    run.run(20.0)
    lost = lose(run, "vn1")
    run.until(lambda: run.world.managed["vn1"].host != lost, 60)
    run.until(lambda: seen_running(run, job), 120)
    assert run.sim.job(job).nodes == MEMBERS
    assert not any(m.order for m in run.world.managed.values())
    run.sim.provider.verify(identity)
    ends_well(run, job)


def test_without_a_checkpoint_of_this_run_it_starts_anew() -> None:
    """After a requeue what is kept is only data."""
    run, job = wide(300.0)
    kept(run, job)
    run.sim.slurm.requeue_job(job)
    run.until(lambda: run.sim.job(job).restarts == 1 and running(run, job), 400)
    nodes = run.sim.job(job).nodes
    lose(run, nodes[0])
    run.until(lambda: run.sim.job(job).restarts == 2, 120)


def test_where_the_policy_says_so_it_starts_anew() -> None:
    """`checkpoints.go_on: false`."""
    run, job = wide(300.0, checkpoints=Checkpoints(go_on=False))
    kept(run, job)
    lose(run, "vn1")
    run.until(lambda: run.sim.job(job).restarts == 1, 60)


def test_a_damaged_checkpoint_starts_the_lost_job_anew() -> None:
    """Nothing of the old state goes on beside what is lost."""
    run, job = wide(300.0)
    run.sim.provider.damaged.add(kept(run, job))
    lose(run, "vn1")
    run.until(lambda: run.sim.job(job).restarts == 1, 300)
    run.until(lambda: run.sim.job(job).state is JobState.COMPLETED, 900)
    assert [v for v in run.sim.audit() if v.kind in ("stale", "twice")] == []


def narrow(run_s: float) -> tuple[Rehearsal, str]:
    """A job on one instance; two other hosts have room for another."""
    policy = replace(policies(), scale=Scale(warm=1, idle_s=1000.0), hosts=HOSTS)
    run = Rehearsal(cluster(hosts=HOSTS), policy, MemoryJournal())
    job = run.sim.submit("htc", run_s)
    run.until(lambda: running(run, job), 60)
    return run, job


def out_for(run: Rehearsal, outage_s: float, *names: str) -> list[str]:
    """Let each first call that puts one of these back fail, and all for so long from then on."""
    original, tried, began_s = run.sim.provider.put_back, [], dict[str, float]()

    def out(host: str, name: str, identity: str) -> None:
        tried.append(name)
        first = name not in began_s
        if name in names and (first or run.sim.now_s < began_s[name] + outage_s):
            began_s.setdefault(name, run.sim.now_s)
            raise UnreachableError(name, f"libvirt on {host} did not answer")
        original(host, name, identity)

    run.sim.provider.put_back = out  # type: ignore[method-assign]
    return tried


def told_of(run: Rehearsal, name: str) -> list[str]:
    """What is said of why its checkpoint is not in place."""
    refusals = run.cycle.last.refusals
    return [why_not(r) for r in refusals if r.wanted is Goal.CHECKPOINT and r.subject == name]


@pytest.mark.parametrize("outage_s", [0.0, 60.0])
@pytest.mark.parametrize("names", [("vn1",), ("vn2",), MEMBERS])
def test_a_passing_failure_never_costs_a_lost_job_its_checkpoint(
    names: tuple[str, ...], outage_s: float
) -> None:
    """A libvirtd that restarts, or a file server that is out: it is tried on, and said why it waits."""
    run, job = wide(300.0)
    kept(run, job)
    tried = out_for(run, outage_s, *names)
    lose(run, "vn1")
    run.until(lambda: tried.count(names[0]) == 1, 60)
    if outage_s:
        run.run(30.0)
        assert any("did not answer" in said for said in told_of(run, names[0]))
    run.until(lambda: seen_running(run, job), 300)
    ends_well(run, job)


@pytest.mark.parametrize("outage_s", [0.0, 60.0])
def test_nor_does_it_that_of_a_job_on_one_node(outage_s: float) -> None:
    run, job = narrow(300.0)
    kept(run, job)
    (name,) = run.sim.job(job).nodes
    tried = out_for(run, outage_s, name)
    lose(run, name)
    run.until(lambda: len(tried) > 1, 120)
    ends_well(run, job)


def test_nor_when_a_part_is_in_place_already() -> None:
    """Nothing was lost: by a person's order one part has the new state, and the other can have it later."""
    run, job = wide(300.0)
    identity = kept(run, job)
    tried = out_for(run, 60.0, "vn2")
    put_back(run, job, identity)
    run.until(lambda: tried.count("vn2") > 5, 60)
    ends_well(run, job)


def test_one_reading_of_damage_is_not_believed() -> None:
    """Nor two; nor do those from before a file server was out count for those that come after."""
    run, job = narrow(300.0)
    identity = kept(run, job)
    (name,) = run.sim.job(job).nodes
    damaged, tried = run.sim.provider.damaged, out_for(run, 0.0)
    damaged.add(identity)
    lose(run, name)
    run.until(lambda: len(tried) == 2, 120)
    assert any("is damaged" in said for said in told_of(run, name))
    damaged.clear()
    ends_well(run, job)


def cut_off(run: Rehearsal, name: str) -> list[str]:
    """The daemon dies in the middle of putting this one back; the next one begins 3 s later."""
    original, tried = run.sim.provider.put_back, []
    run.sim.provider.cut_off.add(name)

    def dies(host: str, name: str, identity: str) -> None:
        tried.append(name)
        try:
            original(host, name, identity)
        except UnreachableError:
            run.kill()
            run.sim.at(run.sim.now_s + 3.0, run.start)
            raise

    run.sim.provider.put_back = dies  # type: ignore[method-assign]
    return tried


@pytest.mark.parametrize("name", MEMBERS)
def test_a_return_that_was_cut_off_in_the_middle_is_finished(name: str) -> None:
    """On a new host or on its own: what is there has no state, and nobody takes it for lost."""
    run, job = wide(300.0)
    kept(run, job)
    tried = cut_off(run, name)
    lose(run, "vn1")
    run.until(lambda: tried.count(name) == 2, 120)
    ends_well(run, job)


def test_so_is_one_that_a_person_ordered() -> None:
    """No other part has the new state yet, but this one has the old state no more."""
    run, job = wide(300.0)
    identity = kept(run, job)
    tried = cut_off(run, "vn1")
    put_back(run, job, identity)
    run.until(lambda: tried.count("vn1") == 2, 120)
    ends_well(run, job)


def test_a_return_that_fails_in_the_middle_is_finished_as_well() -> None:
    """With a daemon that lives on: to leave the order would lose what has no state."""
    run, job = narrow(300.0)
    identity = kept(run, job)
    (name,) = run.sim.job(job).nodes
    run.sim.provider.cut_off.add(name)
    put_back(run, job, identity)
    run.until(lambda: not run.sim.provider.cut_off, 120)
    ends_well(run, job)


def test_what_a_lost_host_has_when_it_is_back_is_removed() -> None:
    """Its copy has the same name and generation as the one that went on elsewhere."""
    run, job = wide(300.0)
    kept(run, job)
    lost = lose(run, "vn1")
    run.until(lambda: run.world.managed["vn1"].host != lost, 60)
    run.until(lambda: seen_running(run, job), 120)
    run.sim.power_host(lost)
    run.until(lambda: "vn1" not in run.sim.hosts[lost].instances, 120)
    assert run.world.managed["vn1"].phase is Phase.READY
    ends_well(run, job)


@pytest.mark.parametrize("begin", ["keep", "lose"])
def test_a_daemon_killed_after_any_step_loses_nothing(begin: str) -> None:
    """A checkpoint of two instances, and the return from one after a host was lost."""
    number = 1
    while _killed_after(begin, number):
        number += 1
    assert number > 40


def _killed_after(begin: str, number: int) -> bool:
    run, job = wide(120.0)
    if begin == "keep":
        order(run, job)
    else:
        kept(run, job)
        said_off(run, dark(run, "vn1"))
    death = Death(run, number, down_s=0.0)
    works = _works_again(run, job)
    run.until(lambda: not works(), 60)
    run.until(works, 300)
    run.on_step = None
    if begin == "keep":
        (identity,) = {part.id for part in run.sim.provider.checkpoints()}
        run.sim.provider.verify(identity)
    ends_well(run, job)
    return death.at_s is not None


def _works_again(run: Rehearsal, job: str) -> Callable[[], bool]:
    def holds() -> bool:
        idle = not any(m.order for m in run.world.managed.values())
        return idle and all(run.world.managed[n].saved for n in MEMBERS) and seen_running(run, job)

    return holds
