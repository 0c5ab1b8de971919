"""What every WorkloadManager must do; a test class inherits this and provides `rig`."""

from __future__ import annotations

from collections.abc import Callable

from backfill.core.model.cluster import NOWHERE, JobState, NodeBase
from backfill.ports.errors import UnreachableError
from backfill.ports.workload import WorkloadManager
from tests.contract.lacking import lacking
from tests.contract.workload_jobs import JobContract
from tests.contract.workload_machines import OwnMachinesContract
from tests.contract.workload_nodes import NodeContract
from tests.contract.workload_pilots import PilotContract
from tests.contract.workload_rig import CUT, REASON, STRANGE, TASKS, TEXT, Rig, job, node, running, spec


class ReadingContract:
    """Reading: everything is seen as it is, and what is not there is absent, not an error."""

    def test_observe_shows_the_bare_metal_nodes(self, rig: Rig) -> None:
        """Idle nodes are IDLE, responding, undrained, and have resources and an address."""
        seen = rig.manager.observe()
        assert seen.seen_s > 0
        for name in rig.hosts:
            host = seen.nodes[name]
            assert host.base is NodeBase.IDLE
            assert host.responding
            assert not host.drained
            assert host.cpus >= 2
            assert host.memory_mb > 0
            assert host.address
            assert host.slurmd_start_s > 0

    def test_a_job_is_seen_from_queue_to_end(self, rig: Rig) -> None:
        """It is PENDING without nodes, RUNNING on its node, then ended and holding nothing."""
        held = rig.submit(rig.hosts[0], hold=True)
        seen = rig.manager.observe().jobs[held]
        assert (seen.state, seen.nodes, seen.restarts) == (JobState.PENDING, (), 0)
        assert seen.required_nodes == (rig.hosts[0],)
        assert seen.raw_id == int(held)
        going = running(rig, rig.hosts[0])
        seen = rig.manager.observe().jobs[going]
        assert seen.nodes == (rig.hosts[0],)
        assert seen.active
        assert seen.holds_nodes
        assert seen.start_s >= seen.submit_s > 0
        assert node(rig, rig.hosts[0]).cpus_allocated == seen.cpus
        rig.finish(going)
        rig.until(lambda: not job(rig, going).holds_nodes)
        assert job(rig, going).state is JobState.COMPLETED

    def test_the_two_ways_of_reading_agree(self, rig: Rig) -> None:
        """A targeted read shows the same node and job as reading everything."""
        going = running(rig, rig.hosts[0])
        everything = rig.manager.observe()
        assert rig.manager.read_jobs([going]) == {going: everything.jobs[going]}
        assert rig.manager.read_nodes(rig.hosts) == {n: everything.nodes[n] for n in rig.hosts}

    def test_what_slurm_does_not_know_is_absent(self, rig: Rig) -> None:
        """Unknown ids and names are missing from the answer beside the known ones."""
        held = rig.submit(rig.hosts[0], hold=True)
        assert set(rig.manager.read_jobs([held, "99999"])) == {held}
        assert rig.manager.read_jobs(["99999"]) == {}
        assert rig.manager.read_jobs([]) == {}
        assert set(rig.manager.read_nodes([rig.hosts[1], "vn250"])) == {rig.hosts[1]}
        assert rig.manager.read_nodes(["vn250"]) == {}
        assert rig.manager.read_nodes([]) == {}

    def test_any_job_name_is_read_back(self, rig: Rig) -> None:
        """A name with separators, line breaks, quotes and non-ASCII changes nothing else."""
        if TEXT not in rig.abilities:
            lacking(TEXT)
        strange = rig.submit(rig.hosts[0], name=STRANGE, hold=True)
        plain = rig.submit(rig.hosts[0], name="plain", hold=True)
        seen = rig.manager.observe().jobs
        assert seen[strange].name == STRANGE
        assert seen[plain].name == "plain"
        assert {strange, plain} <= set(seen)

    def test_tasks_of_an_array_are_jobs_of_their_own(self, rig: Rig) -> None:
        """Pending tasks are expanded, and each can be read and acted on by its id."""
        if TASKS not in rig.abilities:
            lacking(TASKS)
        array = rig.submit(rig.hosts[0], tasks=3, hold=True)
        ids = {f"{array}_{task}" for task in (1, 2, 3)}
        assert ids <= set(rig.manager.observe().jobs)
        rig.manager.cancel_job(f"{array}_2")

        def waiting() -> set[str]:  # Slurm may forget a task that never started
            seen = rig.manager.read_jobs(sorted(ids)).values()
            return {j.id for j in seen if j.state is JobState.PENDING}

        rig.until(lambda: waiting() == {f"{array}_1", f"{array}_3"})
        assert job(rig, f"{array}_1").raw_id == int(array)

    def test_settings(self, rig: Rig) -> None:
        """Version, cluster and what decides about adding nodes can be read."""
        settings = rig.manager.settings()
        assert settings.version.major >= (22, 5)
        assert settings.cluster
        assert settings.partitions
        assert settings.max_node_count > 2
        assert settings.slurmd_timeout_s >= 0


class FailureContract:
    """Failure: a controller that does not answer is an error of its own, for every call."""

    def test_every_call_says_that_the_controller_does_not_answer(self, rig: Rig) -> None:
        """Each call raises UnreachableError instead of hanging or reporting emptiness."""
        if CUT not in rig.abilities:
            lacking(CUT)
        host = rig.hosts[0]
        calls: dict[str, Callable[[WorkloadManager], object]] = {
            "observe": lambda m: m.observe(),
            "observe_nodes": lambda m: m.observe_nodes([host]),
            "settings": lambda m: m.settings(),
            "read_jobs": lambda m: m.read_jobs(["1"]),
            "read_nodes": lambda m: m.read_nodes(["vn1"]),
            "create_node": lambda m: m.create_node(spec()),
            "delete_node": lambda m: m.delete_node("vn1"),
            "drain": lambda m: m.drain(host, REASON),
            "undrain": lambda m: m.undrain(host),
            "nudge": lambda m: m.nudge(host),
            "set_address": lambda m: m.set_address(host, NOWHERE),
            "vouch": lambda m: m.vouch(host),
            "set_down": lambda m: m.set_down(host, REASON),
            "suspend_job": lambda m: m.suspend_job("1"),
            "resume_job": lambda m: m.resume_job("1"),
            "set_time_limit": lambda m: m.set_time_limit("1", 600.0),
            "requeue_job": lambda m: m.requeue_job("1"),
            "cancel_job": lambda m: m.cancel_job("1"),
            "tell": lambda m: m.tell("1", "hello"),
            "hold_job": lambda m: m.hold_job("1"),
            "release_job": lambda m: m.release_job("1"),
            "pin_job": lambda m: m.pin_job("1", [host]),
            "pin_inside": lambda m: m.pin_inside("1", [host]),
            "unpin_job": lambda m: m.unpin_job("1"),
            "revoke_job": lambda m: m.revoke_job("1", "it is too big"),
            "signal_job": lambda m: m.signal_job("1", "TERM"),
        }
        assert calls.keys() == {name for name in vars(WorkloadManager) if not name.startswith("_")}
        answered = []
        with rig.cut() as manager:
            for name, call in calls.items():
                try:
                    call(manager)
                except UnreachableError:
                    continue
                answered.append(name)
        assert answered == []


class WorkloadManagerContract(
    ReadingContract, NodeContract, JobContract, OwnMachinesContract, PilotContract, FailureContract
):
    """All of it."""
