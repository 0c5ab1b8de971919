"""The part of the WorkloadManager contract that is about jobs with machines of their own."""

from __future__ import annotations

import pytest

from backfill.core.model.cluster import ENDED, OUR_REASON, JobState, MachineRequest
from backfill.core.model.sentences import sentence
from backfill.ports.errors import BusyError, NotFoundError, RefusedError
from tests.contract.workload_rig import REASON, Rig, await_state, job, node, running, spec

ADMIN, OWNER = "JobHeldAdmin", "JobHeldUser"


class OwnMachinesContract:
    """A job is held, pinned to nodes that nobody else gets, released, and told or revoked."""

    def test_what_a_job_asks_for_is_read(self, rig: Rig) -> None:
        """From its comment; what cannot be read is told, and both stand in every reading."""
        asking, wrong, plain = (rig.submit(rig.hosts[0], hold=True) for _ in range(3))
        rig.ask_for_machines(asking, "my run; backfill-vm:per_node=2,mem=2G")
        rig.ask_for_machines(wrong, "backfill-vm:cpus=none")
        seen = rig.manager.observe().jobs
        assert seen[asking].machines == MachineRequest(per_node=2, memory_mb=2048)
        assert (seen[plain].machines, seen[plain].machines_fault) == (None, None)
        assert seen[wrong].machines is None
        fault = job(rig, wrong).machines_fault
        assert fault is not None
        assert "cpus='none': use a number" in sentence(fault)

    def test_the_word_outlasts_what_the_owner_is_told(self, rig: Rig) -> None:
        """Once it stands in AdminComment, the owner's own comment counts no more."""
        held = rig.submit(rig.hosts[0], hold=True)
        rig.manager.tell(held, f"{OUR_REASON} its machines boot backfill-vm:cpus=2")
        rig.ask_for_machines(held, "backfill-vm:cpus=64")
        assert job(rig, held).machines == MachineRequest(cpus=2)
        rig.manager.tell(held, f"{OUR_REASON} its machines are there")
        assert job(rig, held).machines == MachineRequest(cpus=2)
        rig.manager.tell(held, "", over=f"{OUR_REASON} its machines are there")
        assert job(rig, held).machines == MachineRequest(cpus=2)

    def test_the_word_is_put_behind_what_the_site_has_written(self, rig: Rig) -> None:
        """That stays, and a text without the word is refused."""
        held = rig.submit(rig.hosts[0], hold=True)
        rig.comment_as_site(held, "jobstats: v2")
        rig.manager.tell(held, f"{OUR_REASON} held backfill-vm:cpus=2,held=1")
        assert job(rig, held).machines == MachineRequest(cpus=2, held=True)
        rig.manager.tell(held, f"{OUR_REASON} let go backfill-vm:cpus=2")
        assert job(rig, held).machines == MachineRequest(cpus=2)
        with pytest.raises(RefusedError, match="somebody else's"):
            rig.manager.tell(held, f"{OUR_REASON} it waits")

    def test_a_held_job_waits_until_it_is_released(self, rig: Rig) -> None:
        """Its owner cannot undo that, whoever held it before; both calls can be repeated."""
        held = rig.submit(rig.hosts[0], hold=True)
        assert job(rig, held).reason == OWNER
        for _ in range(2):
            rig.manager.hold_job(held)
            rig.release_as_owner(held)
            seen = job(rig, held)
            assert (seen.state, seen.reason, seen.priority) == (JobState.PENDING, ADMIN, 0)
        rig.manager.release_job(held)
        await_state(rig, held, JobState.RUNNING)
        rig.manager.release_job(held)
        with pytest.raises(BusyError):
            rig.manager.hold_job(held)
        assert job(rig, held).state is JobState.RUNNING

    def test_one_task_is_held_and_released_alone(self, rig: Rig) -> None:
        """The others of its array stay as they are."""
        array = rig.submit(rig.hosts[0], tasks=2, hold=True)
        one, other = f"{array}_1", f"{array}_2"
        rig.manager.hold_job(one)
        assert [job(rig, i).reason for i in (one, other)] == [ADMIN, OWNER]
        rig.manager.release_job(one)
        await_state(rig, one, JobState.RUNNING)
        assert job(rig, other).reason == OWNER

    def test_a_pinned_job_alone_gets_its_nodes(self, rig: Rig) -> None:
        """A competitor that came first waits although the node is idle; then it has its turn."""
        mine = rig.submit(rig.hosts[0], hold=True)
        rig.manager.hold_job(mine)
        for _ in range(2):
            rig.manager.pin_job(mine, rig.hosts[:1])
        before = node(rig, rig.hosts[0])
        assert (before.planned_s, before.maintenance_s) == (0.0, 0.0)
        other = rig.submit(rig.hosts[0])
        witness = rig.submit(rig.hosts[1])
        await_state(rig, witness, JobState.RUNNING)
        assert job(rig, other).state is JobState.PENDING
        rig.manager.release_job(mine)
        assert await_state(rig, mine, JobState.RUNNING).nodes == rig.hosts[:1]
        assert job(rig, other).state is JobState.PENDING
        with pytest.raises(BusyError):
            rig.manager.unpin_job(mine)
        rig.finish(mine)
        rig.until(lambda: not job(rig, mine).holds_nodes)
        rig.manager.unpin_job(mine)
        rig.manager.unpin_job(mine)
        await_state(rig, other, JobState.RUNNING)

    def test_one_task_is_pinned_alone(self, rig: Rig) -> None:
        """The others of its array are as before, and none of them gets in."""
        array = rig.submit(rig.hosts[0], tasks=2, hold=True)
        one, other = f"{array}_1", f"{array}_2"
        for task in (one, other):
            rig.manager.hold_job(task)
        rig.manager.pin_job(one, rig.hosts[:1])
        rig.manager.release_job(other)
        witness = rig.submit(rig.hosts[1])
        await_state(rig, witness, JobState.RUNNING)
        assert job(rig, other).state is JobState.PENDING
        rig.manager.release_job(one)
        await_state(rig, one, JobState.RUNNING)
        assert job(rig, other).state is JobState.PENDING
        rig.manager.cancel_job(one)
        rig.until(lambda: not job(rig, one).holds_nodes)
        rig.manager.unpin_job(one)
        await_state(rig, other, JobState.RUNNING)

    def test_a_requeued_job_keeps_its_pin(self, rig: Rig) -> None:
        """It can be held again, and starts nowhere else."""
        mine = rig.submit(rig.hosts[0], hold=True)
        rig.manager.hold_job(mine)
        rig.manager.pin_job(mine, rig.hosts[:1])
        rig.manager.release_job(mine)
        await_state(rig, mine, JobState.RUNNING)
        rig.manager.requeue_job(mine)
        rig.until(lambda: job(rig, mine).restarts == 1 and not job(rig, mine).flags)
        other = rig.submit(rig.hosts[0])
        witness = rig.submit(rig.hosts[1])
        await_state(rig, witness, JobState.RUNNING)
        assert job(rig, other).state is JobState.PENDING
        assert await_state(rig, mine, JobState.RUNNING).nodes == rig.hosts[:1]
        rig.finish(mine)
        rig.until(lambda: not job(rig, mine).holds_nodes)
        rig.manager.unpin_job(mine)
        await_state(rig, other, JobState.RUNNING)

    def test_another_node_takes_the_place_of_one(self, rig: Rig) -> None:
        """The first is open to others again; a job that waits can be unpinned as well."""
        mine = rig.submit(rig.hosts[1], hold=True)
        rig.manager.hold_job(mine)
        rig.manager.pin_job(mine, rig.hosts[:1])
        rig.manager.pin_job(mine, rig.hosts[1:])
        running(rig, rig.hosts[0])
        rig.manager.unpin_job(mine)
        running(rig, rig.hosts[1])
        rig.manager.release_job(mine)
        assert await_state(rig, mine, JobState.RUNNING).nodes == rig.hosts[1:]

    def test_a_pinned_node_goes_with_its_pin(self, rig: Rig) -> None:
        """It was never open to others; the other nodes of the job stay its own."""
        for name in ("vn1", "vn2"):
            rig.manager.create_node(spec(name))
            rig.register(spec(name))
        rig.until(lambda: all(node(rig, name).slurmd_start_s for name in ("vn1", "vn2")))
        # One that names a node itself cannot be changed any more on 26.05 when that node is gone.
        mine = rig.submit(rig.hosts[0], hold=True)
        rig.manager.hold_job(mine)
        rig.manager.pin_job(mine, ("vn1", "vn2"))
        other = rig.submit("vn2")
        rig.manager.delete_node("vn1")
        assert set(rig.manager.read_nodes(["vn1", "vn2"])) == {"vn2"}
        rig.manager.undrain("vn2")
        rig.until(lambda: not node(rig, "vn2").drained and node(rig, "vn2").responding)
        running(rig, rig.hosts[0])
        assert job(rig, other).state is JobState.PENDING
        rig.manager.drain("vn2", REASON)
        rig.manager.delete_node("vn2")
        assert rig.manager.read_nodes(["vn2"]) == {}
        rig.manager.unpin_job(mine)
        assert job(rig, mine).state is JobState.PENDING

    def test_nodes_within_an_allocation_take_its_owners_jobs_that_name_it(self, rig: Rig) -> None:
        """And no others; the job itself stays where it is. They are open again once these have ended."""
        outer = running(rig, rig.hosts[0])
        for _ in range(2):
            rig.manager.pin_inside(outer, rig.hosts[1:])
        other = rig.submit(rig.hosts[1])
        inner = rig.submit(rig.hosts[1], within=outer)
        assert await_state(rig, inner, JobState.RUNNING).nodes == rig.hosts[1:]
        assert job(rig, other).state is JobState.PENDING
        assert job(rig, outer).nodes == rig.hosts[:1]
        with pytest.raises(BusyError):
            rig.manager.unpin_job(outer)
        rig.manager.cancel_job(inner)
        rig.until(lambda: not job(rig, inner).holds_nodes)
        rig.manager.unpin_job(outer)
        rig.manager.unpin_job(outer)
        await_state(rig, other, JobState.RUNNING)

    def test_a_node_within_an_allocation_goes_with_its_pin(self, rig: Rig) -> None:
        """The others stay kept; the last one takes the pin with it."""
        for name in ("vn1", "vn2"):
            rig.manager.create_node(spec(name))
        outer = running(rig, rig.hosts[0])
        rig.manager.pin_inside(outer, ("vn1", "vn2"))
        for name in ("vn1", "vn2"):
            rig.manager.delete_node(name)
        assert rig.manager.read_nodes(["vn1", "vn2"]) == {}
        rig.manager.unpin_job(outer)
        assert job(rig, outer).state is JobState.RUNNING

    def test_only_a_job_that_runs_has_an_allocation(self, rig: Rig) -> None:
        """One that waits or has ended keeps nothing."""
        held = rig.submit(rig.hosts[0], hold=True)
        with pytest.raises(BusyError):
            rig.manager.pin_inside(held, rig.hosts[1:])
        rig.manager.cancel_job(held)
        rig.until(lambda: job(rig, held).state in ENDED)
        with pytest.raises(NotFoundError):
            rig.manager.pin_inside(held, rig.hosts[1:])
        going = running(rig, rig.hosts[0])
        with pytest.raises(NotFoundError):
            rig.manager.pin_inside(going, ("vn250",))

    def test_a_revoked_job_ends_and_its_owner_is_told(self, rig: Rig) -> None:
        """One that has begun is left alone."""
        held = rig.submit(rig.hosts[0], hold=True)
        rig.manager.hold_job(held)
        rig.manager.revoke_job(held, "no host has 999 CPUs")
        rig.until(lambda: job(rig, held).state in ENDED)
        assert job(rig, held).state is JobState.CANCELLED
        with pytest.raises(NotFoundError):
            rig.manager.revoke_job(held, "once more")
        going = running(rig, rig.hosts[0])
        with pytest.raises(BusyError):
            rig.manager.revoke_job(going, "no")
        assert job(rig, going).state is JobState.RUNNING

    def test_what_is_unknown_or_no_id(self, rig: Rig) -> None:
        """One error for each, and nothing is changed."""
        held = rig.submit(rig.hosts[0], hold=True)
        before = job(rig, held)
        with pytest.raises(NotFoundError):
            rig.manager.pin_job(held, ("vn250",))
        for call in (rig.manager.hold_job, rig.manager.release_job):
            with pytest.raises(NotFoundError):
                call("99999")
        with pytest.raises(NotFoundError):
            rig.manager.pin_job("99999", rig.hosts)
        with pytest.raises(RefusedError):
            rig.manager.unpin_job("all")
        rig.manager.unpin_job("99999")
        assert job(rig, held) == before
