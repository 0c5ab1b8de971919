"""The InstanceProvider contract against the test hypervisors inside the libvirt library."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import libvirt
import pytest

from backfill.core.model.devices import Holding, Region
from backfill.core.model.fleet import InstanceState
from backfill.core.model.quantities import Resources
from backfill.drivers.libvirt.binding import bound
from backfill.drivers.libvirt.connection.domains import Domain
from backfill.drivers.libvirt.connection.states import DomainState
from backfill.drivers.libvirt.provider import LibvirtProvider
from backfill.drivers.libvirt.settings import NumaTerms
from backfill.drivers.store.host_book import WrittenHostBook
from backfill.ports.errors import (
    AlreadyThereError,
    BusyError,
    DriverError,
    NoCapacityError,
    RefusedError,
    UnreachableError,
    UnreadableError,
)
from tests.contract.hiding import unnoticed
from tests.contract.instance_numa import InstanceNumaContract
from tests.contract.instance_provider import InstanceProviderContract
from tests.contract.instance_rig import CLUSTER, SMALL, born, known, spec, state
from tests.contract.libvirt_testdriver import TestDriverRig, TestHypervisor, WithoutWeights
from tests.unit.test_save_image import stream


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TestDriverRig]:
    made = TestDriverRig(tmp_path)
    yield made
    made.end()


class TestLibvirtTestDriver(InstanceProviderContract):
    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[TestDriverRig]:
        made = TestDriverRig(tmp_path)
        yield made
        made.end()


class TestBoundLibvirtTestDriver(InstanceNumaContract):
    """libvirt's own test host has two NUMA nodes of different size."""

    @pytest.fixture
    def rig(self, tmp_path: Path) -> Iterator[TestDriverRig]:
        made = TestDriverRig(tmp_path, numa=NumaTerms())
        yield made
        made.end()


def bound_in(rig: TestDriverRig, host: str, name: str = "vn1") -> tuple[str | None, str | None]:
    """The CPUs and the NUMA node in the document of a domain."""
    document = fromstring(rig.provider._pool.on(host).live_document(name))
    cpus, memory = document.find("vcpu"), document.find("numatune/memory")
    assert cpus is not None
    return cpus.get("cpuset"), None if memory is None else memory.get("nodeset")


def test_binding_is_made_anew_where_an_instance_is_restored(tmp_path: Path) -> None:
    """Its NUMA node is taken meanwhile, or its host is another one, of which nothing is known."""
    rig = TestDriverRig(tmp_path, numa=NumaTerms())
    host = born(rig)
    assert bound_in(rig, host) == ("8-15", "1")
    rig.provider.suspend(host, "vn1")
    rig.provider.create(replace(spec(rig, "vn2"), flavour=replace(SMALL, memory_mb=3900)))
    rig.provider.restore(host, "vn1")
    assert known(rig, host).numa == 0
    assert bound_in(rig, host) == ("0-7", "0")
    rig.provider.suspend(host, "vn1")
    rig.provider.migrate(host, "vn1", "hv2")
    rig.provider.restore("hv2", "vn1")
    assert bound_in(rig, "hv2") == (None, None)
    assert known(rig, "hv2").numa is None
    rig.provider.delete("hv2", "vn1")
    rig.end()


def test_what_was_bound_is_known_to_the_next_daemon(tmp_path: Path) -> None:
    """It stands in the domain: a new process counts the same, and one that binds nothing unbinds."""
    rig = TestDriverRig(tmp_path, numa=NumaTerms())
    host = born(rig)
    rig.provider.create(replace(spec(rig, "vn2"), flavour=replace(SMALL, memory_mb=2000)))
    again = LibvirtProvider(rig.config, None, rig._hypervisor)
    assert {name: one.numa for name, one in again.observe(host).instances.items()} == {"vn1": 1, "vn2": 0}
    with pytest.raises(NoCapacityError, match="none of its NUMA nodes has 3900 MB left for vn3"):
        again.create(replace(spec(rig, "vn3"), flavour=replace(SMALL, memory_mb=3900)))
    again.close()
    rig.provider.suspend(host, "vn1")
    unbound = LibvirtProvider(replace(rig.config, numa=None), None, rig._hypervisor)
    unbound.restore(host, "vn1")
    assert bound_in(rig, host) == (None, None)
    assert unbound.observe(host).host.numa == ()
    unbound.close()
    rig.end()


def test_two_calls_at_once_do_not_choose_the_same_room(tmp_path: Path) -> None:
    """The second one sees what the first one is about to take, though no domain shows it yet."""
    rig = TestDriverRig(tmp_path, numa=NumaTerms())
    pool = rig.provider._pool
    with bound(pool, "hv1", "vn1", Resources(1, 3000)) as first:
        with pytest.raises(NoCapacityError), bound(pool, "hv1", "vn2", Resources(1, 3000)):
            pass
        with bound(pool, "hv1", "vn3", Resources(1, 2000)) as third:
            assert (first and first.number, third and third.number) == (1, 0)
    with bound(pool, "hv1", "vn2", Resources(1, 3000)) as second:
        assert second is not None
        assert second.cpuset == "8-15"
    rig.end()


def test_a_host_knows_its_slurm_node(rig: TestDriverRig) -> None:
    """A host of a harvest pool is a Slurm node itself; one of a burst pool is none."""
    assert rig.provider.observe("hv1").host.node == "bm1"
    assert rig.provider.observe("hv2").host.node is None


def test_changes_are_reported_as_hints(rig: TestDriverRig) -> None:
    """Whoever asked for events hears of a change without looking."""
    host = born(rig)
    rig.until(lambda: (host, "vn1") in rig.events)
    rig.events.clear()
    rig.keeper.lookupByName("vn1").suspend()
    rig.until(lambda: (host, "vn1") in rig.events)
    assert state(rig) is InstanceState.PAUSED


def test_a_host_without_cpu_weights_is_used_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The instance runs at ordinary weight, and the operator is told what that means."""
    rig = TestDriverRig(tmp_path, WithoutWeights)
    born(rig)
    assert "hv1 has no CPU weights" in caplog.text
    rig.end()


def test_deletion_leaves_no_file(rig: TestDriverRig) -> None:
    """Disk, seed, memory, console and claims go with the instance."""
    host = born(rig)
    rig.provider.suspend(host, "vn1")
    folder = Path(rig.config.directory, CLUSTER)
    assert {file.name for file in (folder / "vn1").iterdir()} >= {"disk.qcow2", "memory.save"}
    rig.provider.delete(host, "vn1")
    assert list(folder.iterdir()) == []


def test_an_interrupted_creation_is_begun_anew(rig: TestDriverRig) -> None:
    """A defined but never started domain, or files alone, do not stand in the way."""
    host = born(rig)
    rig.keeper.lookupByName("vn1").destroy()
    assert state(rig) is InstanceState.OFF
    rig.provider.create(spec(rig, generation=2))
    assert state(rig) is InstanceState.RUNNING
    domain = rig.keeper.lookupByName("vn1")
    domain.destroy()
    domain.undefine()
    rig.provider.create(spec(rig, generation=3))
    seen = rig.provider.read(host, "vn1")
    assert seen is not None
    assert seen.tag.generation == 3


def test_a_failed_creation_leaves_nothing(rig: TestDriverRig) -> None:
    """When the hypervisor refuses, definition and files are removed again."""
    Path(rig.config.surroundings.munge_key).unlink()
    with pytest.raises(Exception, match=r"munge\.key"):
        rig.provider.create(spec(rig))
    assert state(rig) is None
    assert not Path(rig.config.directory, CLUSTER, "vn1").exists()


def test_a_restore_is_refused_while_it_runs_elsewhere(rig: TestDriverRig) -> None:
    """The same instance must never be active on two hosts."""
    host, other = born(rig), "hv2"
    rig.provider.suspend(host, "vn1")
    document = rig.keeper.lookupByName("vn1").XMLDesc()
    twin = rig.provider._pool.hypervisors[other]
    twin.define("vn1", document)
    twin.start("vn1")
    with pytest.raises(BusyError, match="active on hv2"):
        rig.provider.restore(host, "vn1")
    assert state(rig) is InstanceState.SUSPENDED
    twin.destroy("vn1")
    twin.undefine("vn1")
    rig.provider.restore(host, "vn1")


def test_a_start_by_hand_of_what_is_on_disk_is_noticed(rig: TestDriverRig) -> None:
    """`virsh start` boots it anew: what was in its memory is lost, and no job goes on there."""
    host = born(rig)
    rig.provider.suspend(host, "vn1")
    assert not known(rig, host).restarted
    rig.keeper.lookupByName("vn1").create()
    assert known(rig, host).restarted
    assert rig.provider.observe(host).instances["vn1"].restarted
    rig.provider.delete(host, "vn1")
    born(rig)
    rig.provider.suspend(host, "vn1")
    rig.provider.restore(host, "vn1")
    rig.provider.thaw(host, "vn1")
    assert not known(rig, host).restarted


def test_a_silent_host_forbids_a_start_only_if_it_may_have_it(rig: TestDriverRig) -> None:
    """A dead host must not stop everybody, but one that took part in a migration must."""
    host = born(rig)
    claims = Path(rig.config.directory, CLUSTER, "vn1", "claims")
    rig.provider.suspend(host, "vn1")
    with rig.unreachable("hv2"):
        rig.provider.restore(host, "vn1")
        rig.provider.suspend(host, "vn1")
        claims.write_text("hv1\nhv2\n")
        with pytest.raises(UnreachableError, match="may still be on hv2"):
            rig.provider.restore(host, "vn1")
        rig.provider.create(spec(rig, "vn2"))
    rig.provider.restore(host, "vn1")
    assert claims.read_text() == "hv1\n"


def test_what_was_on_a_host_that_is_off_for_good_can_be_made_elsewhere(rig: TestDriverRig) -> None:
    """Its claim keeps the name from being used until people say that the host is off."""
    host = born(rig)
    with pytest.raises(BusyError, match="answers, so it is not off"):
        rig.provider.abandon(host, "vn1")
    claims = Path(rig.config.directory, CLUSTER, "vn1", "claims")
    assert claims.read_text() == "hv1\n"
    with rig.unreachable(host):
        with pytest.raises(UnreachableError, match="may still be on hv1"):
            rig.provider.create(spec(rig, host="hv2", generation=2))
        for _ in range(2):
            rig.provider.abandon(host, "vn1")
        rig.provider.create(spec(rig, host="hv2", generation=2))
    rig.provider.delete("hv2", "vn1")


def test_a_host_that_fails_but_answers_is_not_off(rig: TestDriverRig) -> None:
    """An error without a code is no proof that nobody is there: the instance keeps its files."""
    host = born(rig)
    hypervisor = rig.provider._pool.hypervisors[host]

    def fail(name: str) -> None:
        hypervisor._link.call(name, raise_without_code)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hypervisor, "find", fail)
        with pytest.raises(UnreachableError, match="virDomainLookupByName"):
            rig.provider.abandon(host, "vn1")
    assert Path(rig.config.directory, CLUSTER, "vn1", "claims").read_text() == "hv1\n"


def raise_without_code(connection: object) -> None:
    """What the binding raises when it has lost libvirt's own error."""
    raise libvirt.libvirtError("virDomainLookupByName() failed")


def test_files_stay_while_another_host_has_the_instance(rig: TestDriverRig) -> None:
    """Deleting a left-over definition must not take the disk from under the real one."""
    host = born(rig)
    rig.provider.suspend(host, "vn1")
    document = rig.keeper.lookupByName("vn1").XMLDesc()
    rig.provider._pool.hypervisors["hv2"].define("vn1", document)
    rig.provider._pool.store.claim("vn1", {"hv1", "hv2"})
    rig.provider.delete("hv2", "vn1")
    assert state(rig) is InstanceState.SUSPENDED
    rig.provider.restore(host, "vn1")


def test_a_half_done_move_is_finished_by_the_next_call(rig: TestDriverRig) -> None:
    """Defined on both hosts, as after a crash between two steps: the same call tidies up."""
    host = born(rig)
    rig.provider.suspend(host, "vn1")
    document = rig.keeper.lookupByName("vn1").XMLDesc()
    rig.provider._pool.hypervisors["hv2"].define("vn1", document)
    rig.provider._pool.store.claim("vn1", {"hv1", "hv2"})
    rig.provider.migrate(host, "vn1", "hv2")
    assert state(rig) is None
    assert state(rig, host="hv2") is InstanceState.SUSPENDED
    rig.provider.delete("hv2", "vn1")


class SentAll(TestHypervisor):
    """Its machines have sent their memory once, as when libvirtd died just then."""

    def _has_sent_all(self, domain: Any) -> bool:
        return True


class SlowToFree(TestHypervisor):
    """Its emulators still have the memory of a region for some questions after it has left."""

    questions = 0

    def _keeps_region(self, domain: Any) -> bool:
        self.questions -= 1
        return self.questions >= 0


def test_a_region_has_left_only_when_its_emulator_has_freed_it(tmp_path: Path) -> None:
    """Before, a saved memory would name it, and could never be read: it is not written."""
    rig = TestDriverRig(tmp_path, SlowToFree)
    host = born(rig)
    region = Region("backfill-c1-7-hv1", 4)
    holding = Holding("vn1", host, "7", "ann", regions=(region,), plugged=True)
    rig.provider._pool.devices.decide("vn1", lambda _: holding)
    hypervisor = rig.provider._pool.on(host)
    assert isinstance(hypervisor, SlowToFree)
    hypervisor.questions = 1
    with pytest.raises(RefusedError, match="devices are plugged"):
        rig.provider.suspend(host, "vn1")
    hypervisor.questions = 3
    rig.provider.unplug(host, "vn1")
    assert hypervisor.questions < 0
    assert [held.plugged for held in rig.provider.holdings()] == [False]
    rig.provider.suspend(host, "vn1")
    assert state(rig) is InstanceState.SUSPENDED
    rig.end()


def test_an_emulator_that_dies_in_its_save_leaves_no_older_memory(
    rig: TestDriverRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An image of before would be taken for what it just wrote, and its jobs would run twice."""
    host = born(rig)
    image = stream(rig.provider._pool.store.memory("vn1"), b"LibvirtQemudSave")
    there_as_it_began: list[bool] = []

    def die(name: str, path: Path) -> None:
        there_as_it_began.append(path.exists())
        rig.keeper.lookupByName(name).destroy()
        raise DriverError(name, "its emulator died")

    monkeypatch.setattr(rig.provider._pool.on(host), "save", die)
    with pytest.raises(DriverError, match="its emulator died"):
        rig.provider.suspend(host, "vn1")
    assert there_as_it_began == [False]
    assert not image.exists()
    assert state(rig) is InstanceState.OFF


@pytest.mark.parametrize("fails", [False, True])
def test_a_save_of_which_our_file_client_has_not_heard_is_one(rig: TestDriverRig, fails: bool) -> None:
    """An NFS client remembers that there was no image, also where libvirtd told of an error."""
    host = born(rig)
    hypervisor, image = rig.provider._pool.on(host), rig.provider._pool.store.memory("vn1")
    real = hypervisor.save
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:

        def save(name: str, path: Path) -> None:
            real(name, path)
            stack.enter_context(unnoticed(image))
            if fails:
                raise DriverError(name, "libvirt said something at the end")

        patch.setattr(hypervisor, "save", save)
        assert rig.provider.suspend(host, "vn1") > 0
    assert state(rig) is InstanceState.SUSPENDED
    rig.provider.restore(host, "vn1")


def test_a_saved_memory_that_is_gone_is_not_taken_for_an_end(rig: TestDriverRig) -> None:
    """libvirtd knows that it saved it, and cannot say where it is: nobody touches the instance."""
    host = born(rig)
    rig.provider.suspend(host, "vn1")
    image = rig.provider._pool.store.memory("vn1")
    aside = image.rename(image.with_name("aside"))
    seen = rig.provider.observe(host).instances["vn1"]
    assert seen.state is InstanceState.UNKNOWN
    assert f"hv1 says it saved it, but {image} is not a complete image as seen from here" in seen.problem
    with pytest.raises(UnreadableError, match="not known"):
        rig.provider.restore(host, "vn1")
    aside.rename(image)
    assert state(rig) is InstanceState.SUSPENDED


@pytest.mark.parametrize("target", ["", "hv2"])
def test_a_save_that_only_libvirtd_did_not_see_end_is_finished(tmp_path: Path, target: str) -> None:
    """What QEMU wrote is sealed and used; the next suspend finds nothing to do."""
    rig = TestDriverRig(tmp_path, SentAll)
    host = born(rig)
    rig.provider.pause(host, "vn1")
    image = rig.provider._pool.store.memory("vn1")
    size_mb = stream(image).stat().st_size / 1_000_000
    with unnoticed(image):
        if target:
            rig.provider.migrate(host, "vn1", target)
        else:
            assert rig.provider.suspend(host, "vn1") == size_mb
            assert rig.provider.suspend(host, "vn1") == 0.0
    assert state(rig, host=target or host) is InstanceState.SUSPENDED
    assert image.read_bytes().startswith(b"LibvirtQemudSave")
    rig.provider.delete(target or host, "vn1")
    rig.end()


@pytest.mark.parametrize("cut", [None, 10])
def test_memory_that_was_sent_and_lost_is_told_and_stays_in_memory(tmp_path: Path, cut: int | None) -> None:
    """It is refused for good, so that the ladder goes on; thawed, it goes on itself."""
    rig = TestDriverRig(tmp_path, SentAll)
    host = born(rig)
    rig.provider.pause(host, "vn1")
    if cut is not None:
        image = stream(rig.provider._pool.store.memory("vn1"), cut=cut)
        with pytest.raises(BusyError, match="still being written"):
            rig.provider.suspend(host, "vn1")
        os.utime(image, (1.0, 1.0))
    for call in (rig.provider.suspend, lambda h, n: rig.provider.migrate(h, n, "hv2")):
        with pytest.raises(RefusedError, match="what was sent is lost"):
            call(host, "vn1")
    assert state(rig) is InstanceState.PAUSED
    rig.provider.thaw(host, "vn1")
    assert state(rig) is InstanceState.RUNNING
    rig.end()


class BeingSaved(TestHypervisor):
    """Its machines show, while they stand still, that their memory is being written."""

    saving = True

    def find(self, name: str) -> Domain | None:
        """One domain, in the middle of a save."""
        found = super().find(name)
        return found and replace(found, saving=self.saving and found.state == DomainState.PAUSED)


def test_what_is_being_saved_is_not_thawed(tmp_path: Path) -> None:
    """It shows as paused; it goes on when the save has ended in one way or another."""
    rig = TestDriverRig(tmp_path, BeingSaved)
    host = born(rig)
    rig.provider.pause(host, "vn1")
    with pytest.raises(BusyError, match="it is being saved, not paused"):
        rig.provider.thaw(host, "vn1")
    assert state(rig) is InstanceState.PAUSED
    hypervisor = rig.provider._pool.on(host)
    assert isinstance(hypervisor, BeingSaved)
    hypervisor.saving = False
    rig.provider.thaw(host, "vn1")
    assert state(rig) is InstanceState.RUNNING
    rig.end()


def test_a_silent_host_forbids_a_thaw_if_it_may_have_it(rig: TestDriverRig) -> None:
    """A move broke off: it may run there by now. One that never had it is not waited for."""
    host = born(rig)
    rig.provider.pause(host, "vn1")
    with rig.unreachable("hv2"):
        rig.provider._pool.store.claim("vn1", {"hv1", "hv2"})
        with pytest.raises(UnreachableError, match="may still be on hv2"):
            rig.provider.thaw(host, "vn1")
        assert state(rig) is InstanceState.PAUSED
        rig.provider._pool.store.claim("vn1", {"hv1"})
        rig.provider.thaw(host, "vn1")
    assert state(rig) is InstanceState.RUNNING


def test_only_who_may_have_jobs_to_end_goes_on_without_its_network(
    rig: TestDriverRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cable is pulled before the CPUs go on; a guest that runs already keeps its own."""
    host = born(rig)
    pulled: list[tuple[bool, InstanceState | None]] = []
    hypervisor = rig.provider._pool.on(host)
    monkeypatch.setattr(hypervisor, "set_link", lambda _name, up: pulled.append((up, state(rig))))
    for shut in (False, True):
        rig.provider.pause(host, "vn1")
        rig.provider.thaw(host, "vn1", shut=shut)
    rig.provider.thaw(host, "vn1", shut=True)
    assert pulled == [(False, InstanceState.PAUSED)]


def test_only_one_change_at_a_time(rig: TestDriverRig) -> None:
    """A second change of the same instance is told to come back; a pause is not held up."""
    host = born(rig)
    with rig.provider._pool.changing("vn1"):
        with pytest.raises(BusyError, match="under way"):
            rig.provider.suspend(host, "vn1")
        with pytest.raises(BusyError, match="under way"):
            rig.provider.delete(host, "vn1")
        rig.provider.pause(host, "vn1")
    assert state(rig) is InstanceState.PAUSED


def test_a_living_old_generation_is_named_in_the_refusal(rig: TestDriverRig) -> None:
    """The operator learns which generation stands in the way and what to do."""
    born(rig)
    with pytest.raises(AlreadyThereError, match=r"generation 1 of it is running.*delete"):
        rig.provider.create(spec(rig, generation=2))
    assert state(rig) is InstanceState.RUNNING


def test_another_machine_behind_a_host_is_not_believed(tmp_path: Path) -> None:
    """All instances would seem gone from it; nothing is, and nothing is done there."""
    rig = TestDriverRig(tmp_path)
    born(rig)
    path = tmp_path / "hosts.json"
    path.write_text('{"hv1": "elsewhere"}')
    book = WrittenHostBook(path)
    turned = LibvirtProvider(rig.config, None, rig._hypervisor, book=book)
    host = turned.observe("hv1").host
    assert not host.reachable
    assert "a machine that calls itself default.site, but until now it was elsewhere" in host.problem
    for call in (turned.read, turned.pause, turned.delete):
        with pytest.raises(UnreachableError, match="elsewhere"):
            call("hv1", "vn1")
    assert state(rig) is InstanceState.RUNNING
    book.hold(())
    assert turned.observe("hv1").host.reachable
    turned.close()
    rig.end()


def test_who_only_looks_lets_no_host_prove_itself(tmp_path: Path) -> None:
    """A command that looks leaves nothing behind, neither there nor in the shared directory."""
    rig = TestDriverRig(tmp_path)
    looking = LibvirtProvider(rig.config, None, rig._hypervisor)
    assert looking.observe("hv1").host.unproven == ""
    assert "just being proven" in rig.provider.observe("hv1").host.unproven
    looking.close()
    rig.end()
