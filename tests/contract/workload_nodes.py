"""The part of the WorkloadManager contract that is about nodes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from backfill.core.model.cluster import NOWHERE, JobState, NodeBase
from backfill.ports.errors import AlreadyThereError, BusyError, NotFoundError, RefusedError
from backfill.ports.workload import NodeSpec
from tests.contract.workload_rig import REASON, Rig, await_state, first_seen, job, node, running, spec


class NodeContract:
    """Nodes: made drained, drained and released by their own reason only, removed when empty."""

    def test_a_new_node_waits_drained_for_its_slurmd(self, rig: Rig) -> None:
        """It is known at once, with what was asked for, and does not respond."""
        rig.manager.create_node(spec())
        seen = rig.manager.observe().nodes["vn1"]
        assert seen.base is rig.fresh_base
        assert not seen.responding
        assert seen.drained_by_us
        assert (seen.address, seen.cpus, seen.memory_mb) == ("10.77.1.1", 2, 500)
        assert seen.features == ("backfill",)
        assert seen.slurmd_start_s == 0

    def test_creating_twice_is_creating_once(self, rig: Rig) -> None:
        """The second call changes nothing."""
        rig.manager.create_node(spec())
        before = node(rig, "vn1")
        rig.manager.create_node(spec())
        assert node(rig, "vn1") == before

    def test_a_node_that_is_not_ours_is_left_alone(self, rig: Rig) -> None:
        """A name that another node has is refused: a bare-metal one, or one made otherwise."""
        rig.manager.create_node(spec())
        other = NodeSpec("vn1", "10.77.1.9", 2, 500, ("backfill",))
        before = rig.manager.read_nodes(["vn1", rig.hosts[0]])
        with pytest.raises(AlreadyThereError):
            rig.manager.create_node(other)
        with pytest.raises(AlreadyThereError):
            rig.manager.create_node(NodeSpec(rig.hosts[0], "10.77.1.9", 2, 500, ()))
        assert rig.manager.read_nodes(["vn1", rig.hosts[0]]) == before

    @pytest.mark.parametrize(
        "bad",
        [
            NodeSpec("vn1", "vn1.example", 2, 500, ()),
            NodeSpec("vn1 State=IDLE", "10.77.1.1", 2, 500, ()),
            NodeSpec("vn[1-3]", "10.77.1.1", 2, 500, ()),
            NodeSpec("vn1", "10.77.1.1", 0, 500, ()),
            NodeSpec("vn1", "10.77.1.1", 2, 500, ("a b",)),
        ],
    )
    def test_a_bad_specification_changes_nothing(self, rig: Rig, bad: NodeSpec) -> None:
        """A name for an address, or a name that is several nodes, is refused."""
        before = set(rig.manager.observe().nodes)
        with pytest.raises(RefusedError):
            rig.manager.create_node(bad)
        assert set(rig.manager.observe().nodes) == before

    def test_a_registered_node_takes_jobs_only_when_released(self, rig: Rig) -> None:
        """After registration it responds but stays drained; after undrain the job comes."""
        rig.manager.create_node(spec())
        rig.register(spec())
        rig.until(lambda: node(rig, "vn1").responding)
        seen = node(rig, "vn1")
        assert seen.drained_by_us
        assert seen.boot_time_s > 0
        assert seen.slurmd_start_s > 0
        waiting = rig.submit("vn1")
        running(rig, rig.hosts[0])  # so the scheduler has looked at both
        assert job(rig, waiting).state is JobState.PENDING
        rig.manager.undrain("vn1")
        assert await_state(rig, waiting, JobState.RUNNING).nodes == ("vn1",)

    def test_deleting(self, rig: Rig) -> None:
        """A deleted node is gone; deleting what is gone is no error."""
        rig.manager.create_node(spec())
        rig.manager.delete_node("vn1")
        assert rig.manager.read_nodes(["vn1"]) == {}
        rig.manager.delete_node("vn1")
        rig.manager.create_node(spec())
        assert node(rig, "vn1").base is rig.fresh_base

    def test_a_node_may_offer_something_else_each_time_it_is_made(self, rig: Rig) -> None:
        """More than before, which its slurmd's registering does not change, and less again."""
        more = replace(spec(), features=("backfill", "vf"))
        for wanted in (spec(), more):
            rig.manager.create_node(wanted)
            assert sorted(node(rig, "vn1").features) == sorted(wanted.features)
            rig.manager.delete_node("vn1")
        rig.manager.create_node(more)
        rig.register(more)
        rig.until(lambda: node(rig, "vn1").responding)
        rig.manager.undrain("vn1")
        assert sorted(node(rig, "vn1").features) == ["backfill", "vf"]
        rig.manager.delete_node("vn1")
        rig.manager.create_node(spec())
        assert node(rig, "vn1").features == ("backfill",)

    def test_many_come_and_go_at_once(self, rig: Rig) -> None:
        """Each gets an answer of its own: one with a job and one of others keep nobody back."""
        names = [f"vn{number}" for number in range(1, 9)]

        def delete(name: str) -> type[Exception] | None:
            try:
                rig.manager.delete_node(name)
            except (BusyError, RefusedError) as error:
                return type(error)
            return None

        with ThreadPoolExecutor(len(names) + 1) as pool:
            list(pool.map(rig.manager.create_node, map(spec, names)))
            for name in names:  # 22.05, restarted for the second batch, forgets the first's drain
                rig.manager.create_node(spec(name))
            assert all(node(rig, name).drained_by_us for name in names)
            rig.register(spec("vn3"))
            rig.until(lambda: node(rig, "vn3").responding)
            rig.manager.undrain("vn3")
            going = running(rig, "vn3")
            asked = [*names, rig.hosts[0]]
            ended = dict(zip(asked, pool.map(delete, asked), strict=True))
        wanted = {"vn3": BusyError, rig.hosts[0]: RefusedError}
        assert ended == {**dict.fromkeys(names), **wanted}
        assert set(rig.manager.observe().nodes) == {*rig.hosts, "vn3"}
        assert job(rig, going).active

    def test_a_node_of_the_configuration_is_never_deleted(self, rig: Rig) -> None:
        """Bare-metal nodes are refused, whatever the Slurm release would do."""
        with pytest.raises(RefusedError):
            rig.manager.delete_node(rig.hosts[0])
        assert node(rig, rig.hosts[0]).responding

    @pytest.mark.parametrize("suspended", [False, True])
    def test_a_node_is_not_deleted_under_its_job(self, rig: Rig, suspended: bool) -> None:
        """A running and also a suspended job, with which the node looks idle, protect it."""
        rig.manager.create_node(spec())
        rig.register(spec())
        rig.until(lambda: node(rig, "vn1").responding)
        rig.manager.undrain("vn1")
        going = running(rig, "vn1")
        if suspended:
            rig.manager.suspend_job(going)
        with pytest.raises(BusyError):
            rig.manager.delete_node("vn1")
        assert node(rig, "vn1").name == "vn1"
        assert job(rig, going).active

    def test_drain_keeps_new_jobs_away_and_running_ones_running(self, rig: Rig) -> None:
        """Draining is about the future only, and can be repeated and taken back."""
        host, other = rig.hosts
        going = running(rig, host)
        rig.manager.drain(host, REASON)
        rig.manager.drain(host, REASON)
        seen = node(rig, host)
        assert seen.drained_by_us
        assert seen.reason == REASON
        waiting = rig.submit(host)
        running(rig, other)  # so the scheduler has looked at both
        assert job(rig, waiting).state is JobState.PENDING
        assert job(rig, going).state is JobState.RUNNING
        rig.manager.undrain(host)
        rig.manager.undrain(host)
        assert not node(rig, host).drained
        await_state(rig, waiting, JobState.RUNNING)

    def test_a_node_that_was_just_heard_is_open_at_once(self, rig: Rig) -> None:
        """It need not be heard again, and the scheduler looks at it without another word."""
        rig.manager.create_node(spec())
        rig.register(spec())
        rig.until(lambda: node(rig, "vn1").responding)
        waiting = rig.submit("vn1")
        assert rig.manager.undrain("vn1", heard=True)
        seen = node(rig, "vn1")
        assert seen.responding
        assert not seen.drained
        await_state(rig, waiting, JobState.RUNNING)
        rig.manager.drain("vn1", REASON)
        assert not rig.manager.undrain("vn1")

    def test_other_peoples_drains_are_never_touched(self, rig: Rig) -> None:
        """We neither lift such a drain nor put our reason in its place."""
        host = rig.hosts[0]
        with rig.drained_by_admin(host, "disk=broken, see ticket 7"):
            assert node(rig, host).drained_by_others
            with pytest.raises(RefusedError):
                rig.manager.undrain(host)
            with pytest.raises(RefusedError):
                rig.manager.drain(host, REASON)
            seen = node(rig, host)
            assert seen.drained
            assert seen.reason == "disk=broken, see ticket 7"

    def test_our_drains_carry_our_mark(self, rig: Rig) -> None:
        """A reason that would look like somebody else's is refused."""
        with pytest.raises(RefusedError):
            rig.manager.drain(rig.hosts[0], "no mark")
        assert not node(rig, rig.hosts[0]).drained

    @pytest.mark.parametrize("suspended", [False, True])
    def test_down_takes_the_jobs_away(self, rig: Rig, suspended: bool) -> None:
        """The node is DOWN; its job is back in the queue, once more restarted and not held."""
        host = rig.hosts[0]
        going = running(rig, host)
        if suspended:
            rig.manager.suspend_job(going)
        with rig.silent(host):  # one that answers may be back in service at once
            rig.manager.set_down(host, REASON)
            rig.manager.set_down(host, REASON)
            assert node(rig, host).base is NodeBase.DOWN
            waiting = first_seen(rig, going, JobState.PENDING)
            assert waiting.restarts == 1
            assert waiting.priority > 0

    def test_down_keeps_other_peoples_drains(self, rig: Rig) -> None:
        """With our reason the drain would count as ours, and be lifted when the node is back."""
        host = rig.hosts[0]
        with rig.silent(host), rig.drained_by_admin(host, "disk=broken, see ticket 7"):
            rig.manager.set_down(host, REASON)
            seen = node(rig, host)
            assert (seen.base, seen.reason) == (NodeBase.DOWN, "disk=broken, see ticket 7")
            assert seen.drained_by_others

    def test_what_is_sent_to_a_hidden_node_does_not_wait_for_it(self, rig: Rig) -> None:
        """Hidden and suspended while silent, shown again and resumed: the job goes on, the same."""
        rig.manager.create_node(spec())
        rig.register(spec())
        rig.until(lambda: node(rig, "vn1").responding)
        rig.manager.undrain("vn1")
        rig.manager.nudge("vn1")
        going = running(rig, "vn1")
        with rig.silent("vn1"):
            rig.manager.set_address("vn1", NOWHERE)
            rig.manager.set_address("vn1", NOWHERE)
            assert node(rig, "vn1").hidden
            rig.manager.suspend_job(going)
            assert job(rig, going).state is JobState.SUSPENDED
            rig.manager.set_address("vn1", spec().address)
        assert node(rig, "vn1").address == spec().address
        rig.manager.resume_job(going)
        assert await_state(rig, going, JobState.RUNNING).restarts == 0

    def test_an_address_is_a_bare_ip(self, rig: Rig) -> None:
        """A name would have to be looked up, and wedges slurmctld where it cannot be."""
        before = node(rig, rig.hosts[0])
        with pytest.raises(RefusedError):
            rig.manager.set_address(rig.hosts[0], "bm1.example")
        assert node(rig, rig.hosts[0]) == before

    def test_an_unknown_node_is_an_error(self, rig: Rig) -> None:
        """Draining, releasing or downing what is not there says so."""
        with pytest.raises(NotFoundError):
            rig.manager.drain("vn250", REASON)
        with pytest.raises(NotFoundError):
            rig.manager.undrain("vn250")
        with pytest.raises(NotFoundError):
            rig.manager.set_address("vn250", NOWHERE)
        with pytest.raises(NotFoundError):
            rig.manager.set_down("vn250", REASON)
