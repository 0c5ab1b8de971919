"""What every InstanceProvider must do; a test class inherits this and provides `rig`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model.fleet import InstanceSpec, InstanceState, Tag
from backfill.ports.errors import (
    AlreadyThereError,
    BusyError,
    DriverError,
    NotFoundError,
    RefusedError,
    UnreadableError,
)
from tests.contract.instance_checkpoints import InstanceCheckpointsContract
from tests.contract.instance_clones import InstanceClonesContract
from tests.contract.instance_devices import InstanceDevicesContract
from tests.contract.instance_memory import InstanceMemoryContract
from tests.contract.instance_moves import InstanceMovesContract
from tests.contract.instance_rig import (
    CLUSTER,
    EVERYTHING,
    HIDE,
    IMAGES,
    NETWORK,
    SAVE_PAUSED,
    SMALL,
    STRANGERS,
    WAKE,
    Rig,
    born,
    known,
    spec,
    state,
)
from tests.contract.instance_sight import InstanceSightContract
from tests.contract.instance_throttle import InstanceThrottleContract
from tests.contract.lacking import lacking

__all__ = [
    "CLUSTER",
    "EVERYTHING",
    "SMALL",
    "InstancePortContract",
    "InstanceProviderContract",
    "born",
    "spec",
    "state",
]


class InstancePortContract(InstanceClonesContract, InstanceMovesContract):
    """The port itself: what every provider must do, a cloud's as well; a test class that inherits
    this provides `rig`.
    """

    # --- reading ---------------------------------------------------------------------------

    def test_a_host_shows_its_name_and_room(self, rig: Rig) -> None:
        """An empty host is reachable, has CPUs and memory, and carries nothing of ours."""
        for host in rig.provider.hosts:
            seen = rig.provider.observe(host)
            assert seen.host.name == host
            assert seen.host.reachable
            assert seen.host.problem == ""
            assert seen.host.capacity.cpus >= 1
            assert seen.host.capacity.memory_mb >= SMALL.memory_mb
            assert seen.instances == {}
            assert seen.seen_s > 0

    def test_reading_what_is_not_there_gives_nothing(self, rig: Rig) -> None:
        """An unknown name is an answer, not an error."""
        assert rig.provider.read(rig.provider.hosts[0], "vn9") is None

    def test_an_unknown_host_is_an_error_that_names_it(self, rig: Rig) -> None:
        """A typing error in the configuration must not look like an empty host."""
        for call in (
            lambda: rig.provider.observe("nowhere"),
            lambda: rig.provider.read("nowhere", "vn1"),
            lambda: rig.provider.pause("nowhere", "vn1"),
            lambda: rig.provider.delete("nowhere", "vn1"),
        ):
            with pytest.raises(NotFoundError, match="nowhere"):
                call()

    def test_an_unreachable_host_is_an_observation(self, rig: Rig) -> None:
        """observe() answers for a silent host, with the reason; the other host is not affected."""
        first, second = rig.provider.hosts[:2]
        with rig.unreachable(first):
            seen = rig.provider.observe(first)
            assert not seen.host.reachable
            assert seen.host.problem
            assert seen.instances == {}
            assert rig.provider.observe(second).host.reachable
        rig.until(lambda: rig.provider.observe(first).host.reachable)

    def test_a_silent_host_fails_every_change(self, rig: Rig) -> None:
        """Whoever wants to change something on a silent host is told so."""
        host = born(rig)
        with rig.unreachable(host):
            for call in (rig.provider.pause, rig.provider.thaw, rig.provider.suspend):
                with pytest.raises(DriverError):
                    call(host, "vn1")
        rig.until(lambda: rig.provider.observe(host).host.reachable)
        assert state(rig) is InstanceState.RUNNING

    # --- birth and death -------------------------------------------------------------------

    def test_a_created_instance_is_seen_with_its_tag(self, rig: Rig) -> None:
        """Tag and size come back from the provider itself: orphans are found by them."""
        host = born(rig)
        seen = rig.provider.observe(host).instances["vn1"]
        assert seen.name == "vn1"
        assert seen.tag == Tag(CLUSTER, "vn1", 1)
        assert seen.host == host
        assert seen.resources == SMALL.resources
        assert seen.boot_s > 0
        assert rig.provider.read(rig.provider.hosts[1], "vn1") is None

    def test_creating_the_same_again_changes_nothing(self, rig: Rig) -> None:
        """A repeated call after a crash neither fails nor makes a second one."""
        host = born(rig)
        before = rig.provider.read(host, "vn1")
        rig.provider.create(spec(rig))
        after = rig.provider.read(host, "vn1")
        assert before is not None
        assert after is not None
        assert (after.boot_s, after.state) == (before.boot_s, before.state)

    def test_creating_again_leaves_a_paused_one_paused(self, rig: Rig) -> None:
        """create() is not a thaw."""
        host = born(rig)
        rig.provider.pause(host, "vn1")
        rig.provider.create(spec(rig))
        assert state(rig) is InstanceState.PAUSED

    def test_another_generation_is_not_overwritten(self, rig: Rig) -> None:
        """A living instance of the same name with another tag may hold a job."""
        born(rig)
        with pytest.raises(AlreadyThereError, match="vn1"):
            rig.provider.create(spec(rig, generation=2))
        assert state(rig) is InstanceState.RUNNING

    def test_an_unknown_image_is_refused(self, rig: Rig) -> None:
        """Nothing is left behind by a creation that cannot succeed."""
        if IMAGES not in rig.abilities:
            lacking(IMAGES)
        wanted = spec(rig)
        wrong = InstanceSpec(wanted.name, wanted.host, wanted.tag, SMALL, "nothing-like-it", wanted.address)
        with pytest.raises(RefusedError, match="nothing-like-it"):
            rig.provider.create(wrong)
        assert state(rig) is None
        assert rig.provider.observe(wanted.host).instances == {}

    def test_an_instance_is_made_in_the_network_that_is_asked_for(self, rig: Rig) -> None:
        """One that the host says it has; another one is refused, and nothing of that is left."""
        wanted = spec(rig)
        with pytest.raises(RefusedError, match="no network nowhere"):
            rig.provider.create(replace(wanted, network="nowhere"))
        assert state(rig) is None
        assert rig.provider.observe(wanted.host).host.networks == (NETWORK,)
        rig.provider.create(replace(wanted, network=NETWORK))
        rig.until(lambda: state(rig) is InstanceState.RUNNING)

    def test_only_the_life_that_is_meant_ends(self, rig: Rig) -> None:
        """One of the same name that was made after it was looked at, or came back, stays as it is."""
        host = rig.provider.hosts[0]
        rig.provider.create(spec(rig, generation=2))
        rig.until(lambda: state(rig) is InstanceState.RUNNING)
        for other in (1, 3):
            rig.provider.delete(host, "vn1", generation=other)
            assert known(rig, host).tag.generation == 2
            assert state(rig) is InstanceState.RUNNING
        for _ in range(2):
            rig.provider.delete(host, "vn1", generation=2)
            assert rig.provider.read(host, "vn1") is None
        assert rig.provider.observe(host).instances == {}

    def test_a_deleted_instance_is_gone(self, rig: Rig) -> None:
        """From every state; deleting twice is fine; the next generation may be made."""
        host = rig.provider.hosts[0]
        for generation, prepare in enumerate((None, rig.provider.pause, rig.provider.suspend), 1):
            rig.provider.create(spec(rig, generation=generation))
            rig.until(lambda: state(rig) is InstanceState.RUNNING)
            if prepare is not None:
                prepare(host, "vn1")
            rig.provider.delete(host, "vn1")
            rig.provider.delete(host, "vn1")
            assert rig.provider.observe(host).instances == {}
            assert rig.provider.read(host, "vn1") is None

    # --- pause, suspend --------------------------------------------------------------------

    def test_pause_and_thaw(self, rig: Rig) -> None:
        """Both are visible at once and may be repeated."""
        host = born(rig)
        for _ in range(2):
            rig.provider.pause(host, "vn1")
            assert state(rig) is InstanceState.PAUSED
        for _ in range(2):
            rig.provider.thaw(host, "vn1")
            assert state(rig) is InstanceState.RUNNING

    @pytest.mark.parametrize("paused", [False, True])
    def test_suspend_and_restore(self, rig: Rig, paused: bool) -> None:
        """Memory leaves RAM, comes back paused; from running as well as from paused."""
        host = born(rig)
        assert rig.provider.observe(host).host.saves_paused is (SAVE_PAUSED in rig.abilities)
        if paused:
            rig.provider.pause(host, "vn1")
        if paused and SAVE_PAUSED not in rig.abilities:
            with pytest.raises(RefusedError, match="vn1"):
                rig.provider.suspend(host, "vn1")
            assert state(rig) is InstanceState.PAUSED
            return
        for _ in range(2):
            rig.provider.suspend(host, "vn1")
            seen = rig.provider.observe(host).instances["vn1"]
            assert seen.state is InstanceState.SUSPENDED
            assert not seen.occupies_cpu
            assert not seen.occupies_memory
            assert not seen.rss_mb
        for _ in range(2):
            rig.provider.restore(host, "vn1")
            assert state(rig) is InstanceState.PAUSED
        rig.provider.thaw(host, "vn1")
        assert state(rig) is InstanceState.RUNNING

    def test_a_second_suspend_saves_anew(self, rig: Rig) -> None:
        """An image that was restored is used up."""
        host = born(rig)
        for _ in range(2):
            rig.provider.suspend(host, "vn1")
            rig.provider.restore(host, "vn1")
            rig.provider.thaw(host, "vn1")
        assert state(rig) is InstanceState.RUNNING

    def test_a_suspended_instance_cannot_be_paused_or_thawed(self, rig: Rig) -> None:
        """Nothing runs that could be stopped, and thaw() must never start a saved image."""
        host = born(rig)
        rig.provider.suspend(host, "vn1")
        for call in (rig.provider.pause, rig.provider.thaw):
            with pytest.raises(BusyError, match="suspended"):
                call(host, "vn1")
        assert state(rig) is InstanceState.SUSPENDED

    def test_creating_again_leaves_a_suspended_one_suspended(self, rig: Rig) -> None:
        """create() is not a restore."""
        host = born(rig)
        rig.provider.suspend(host, "vn1")
        rig.provider.create(spec(rig))
        assert state(rig) is InstanceState.SUSPENDED
        assert host == rig.provider.hosts[0]

    def test_what_cannot_be_read_is_unknown_and_left_alone(self, rig: Rig) -> None:
        """It is neither "off" nor gone: the place is named, nothing is done, and it comes back."""
        if HIDE not in rig.abilities:
            lacking(HIDE)
        host, other = born(rig), rig.provider.hosts[1]
        rig.provider.suspend(host, "vn1")
        with rig.hidden(host, "vn1") as place:
            for seen in (known(rig, host), rig.provider.observe(host).instances["vn1"]):
                assert seen.state is InstanceState.UNKNOWN
                assert place in seen.problem
            for call in (
                rig.provider.suspend,
                rig.provider.restore,
                rig.provider.thaw,
                lambda h, n: rig.provider.migrate(h, n, other),
                lambda _h, _n: rig.provider.create(spec(rig)),
                lambda _h, _n: rig.provider.create(spec(rig, generation=2)),
            ):
                with pytest.raises(UnreadableError, match=place):
                    call(host, "vn1")
        assert not known(rig, host).problem
        assert state(rig) is InstanceState.SUSPENDED
        rig.provider.restore(host, "vn1")
        rig.provider.thaw(host, "vn1")
        assert state(rig) is InstanceState.RUNNING

    def test_what_is_not_there_cannot_be_changed(self, rig: Rig) -> None:
        """NotFoundError, whose `retry` says that trying again is no use."""
        host, other = rig.provider.hosts[:2]
        for call in (
            rig.provider.pause,
            rig.provider.thaw,
            rig.provider.suspend,
            rig.provider.restore,
            rig.provider.console,
            lambda h, n: rig.provider.migrate(h, n, other),
            lambda h, n: rig.provider.wake(h, n, 1.7e9),
            rig.provider.job_processes,
        ):
            with pytest.raises(NotFoundError, match="vn9") as caught:
                call(host, "vn9")
            assert not caught.value.retry

    # --- the guest -------------------------------------------------------------------------

    def test_waking_corrects_the_clock(self, rig: Rig) -> None:
        """The answer is by how much the guest's clock was moved."""
        if WAKE not in rig.abilities:
            lacking(WAKE)
        host = born(rig)
        rig.booted("vn1")
        known_s = rig.provider.observe(host).seen_s
        rig.provider.wake(host, "vn1", known_s)
        given_s = rig.provider.observe(host).seen_s
        moved_s = rig.provider.wake(host, "vn1", given_s + 1e5)
        # A call takes its time on its way, and an emulated guest that was starved as it booted has
        # taken a wrong measure of its processor's cycles: its clock runs too fast or too slow.
        assert abs(moved_s - 1e5) < 1e3

    def test_a_sleeping_guest_cannot_be_woken(self, rig: Rig) -> None:
        """Its clock is set when it runs again, not before."""
        host = born(rig)
        rig.provider.pause(host, "vn1")
        with pytest.raises(BusyError):
            rig.provider.wake(host, "vn1", 1.7e9)

    def test_a_guest_without_jobs_has_no_job_processes(self, rig: Rig) -> None:
        """Counted inside the guest."""
        if WAKE not in rig.abilities:
            lacking(WAKE)
        host = born(rig)
        rig.booted("vn1")
        assert rig.provider.job_processes(host, "vn1") == (0, 0)

    def test_job_processes_of_a_sleeping_guest_are_not_counted(self, rig: Rig) -> None:
        """It refuses: no answer is not the same as none."""
        host = born(rig)
        rig.provider.pause(host, "vn1")
        with pytest.raises(BusyError):
            rig.provider.job_processes(host, "vn1")

    def test_the_console_is_readable(self, rig: Rig) -> None:
        """People can see what the guest wrote."""
        host = born(rig)
        rig.booted("vn1")
        assert isinstance(rig.provider.console(host, "vn1"), str)

    # --- strangers -------------------------------------------------------------------------

    def test_strangers_are_invisible_and_untouchable(self, rig: Rig) -> None:
        """Other people's instances are neither shown nor changed, whatever their names."""
        host = rig.provider.hosts[0]
        if STRANGERS not in rig.abilities:
            lacking(STRANGERS)
        with rig.stranger(host, "vn5"):
            assert rig.provider.observe(host).instances == {}
            assert rig.provider.read(host, "vn5") is None
            for call in (rig.provider.pause, rig.provider.suspend, rig.provider.restore):
                with pytest.raises(NotFoundError):
                    call(host, "vn5")
            rig.provider.delete(host, "vn5")
            with pytest.raises(AlreadyThereError):
                rig.provider.create(spec(rig, "vn5"))


class InstanceProviderContract(
    InstancePortContract,
    InstanceCheckpointsContract,
    InstanceThrottleContract,
    InstanceDevicesContract,
    InstanceMemoryContract,
    InstanceSightContract,
):
    """With the abilities beside the port: simulated, libvirt's test driver and real libvirt."""
