"""Devices in words, the book of who holds them, and a move with its way back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from backfill.core.model.devices import Holding, Region, Sharing, VirtualFunction, Wanted, allocate
from backfill.core.model.fleet import Flavour, InstanceSpec, Tag
from backfill.core.model.refusals import Code, Reason, because
from backfill.core.model.sentences import sentence
from backfill.drivers.libvirt.devices.book import DeviceBook
from backfill.drivers.libvirt.devices.device_xml import (
    free_port,
    from_node_device,
    hostdev_xml,
    present_in,
    shmem_xml,
)
from backfill.drivers.libvirt.store import Store
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.engine.execute.devices import move_with_devices, put_in, take_out
from backfill.ports.errors import BusyError, DriverError, NotFoundError, UnreachableError

# As `virsh nodedev-dumpxml` of libvirt 9.0 showed a function of QEMU's igb and its card.
FUNCTION = """
<device>
  <name>pci_0000_01_10_2</name>
  <path>/sys/devices/pci0000:00/0000:00:03.0/0000:01:10.2</path>
  <parent>pci_0000_00_03_0</parent>
  <driver><name>igbvf</name></driver>
  <capability type='pci'>
    <class>0x020000</class>
    <domain>0</domain> <bus>1</bus> <slot>16</slot> <function>2</function>
    <product id='0x10ca'/> <vendor id='0x8086'/>
    <capability type='phys_function'>
      <address domain='0x0000' bus='0x01' slot='0x00' function='0x0'/>
    </capability>
    <iommuGroup number='7'>
      <address domain='0x0000' bus='0x01' slot='0x10' function='0x2'/>
    </iommuGroup>
    <pci-express>
      <link validity='cap' port='0' speed='2.5' width='1'/>
      <link validity='sta' speed='2.5' width='1'/>
    </pci-express>
  </capability>
</device>
"""
CARD = """
<device>
  <name>pci_0000_01_00_0</name>
  <path>/sys/devices/pci0000:00/0000:00:03.0/0000:01:00.0</path>
  <parent>pci_0000_00_03_0</parent>
  <driver><name>igb</name></driver>
  <capability type='pci'>
    <class>0x020000</class>
    <domain>0</domain> <bus>1</bus> <slot>0</slot> <function>0</function>
    <product id='0x10c9'/> <vendor id='0x8086'/>
    <capability type='virt_functions' maxCount='7'>
      <address domain='0x0000' bus='0x01' slot='0x10' function='0x0'/>
      <address domain='0x0000' bus='0x01' slot='0x10' function='0x2'/>
    </capability>
    <iommuGroup number='5'>
      <address domain='0x0000' bus='0x01' slot='0x00' function='0x0'/>
    </iommuGroup>
  </capability>
</device>
"""


def test_functions_are_found_among_node_devices() -> None:
    """A card is none, and neither is what cannot be read."""
    assert from_node_device("bm1", FUNCTION) == VirtualFunction("bm1", "0000:01:10.2", "0000:01:00.0")
    assert from_node_device("bm1", CARD) is None
    assert from_node_device("bm1", "<device>") is None


def test_what_is_asked_for_is_found_again_in_the_domain() -> None:
    """The documents for attach and what a running domain shows mean the same."""
    inside = hostdev_xml("0000:3b:02.1") + shmem_xml("backfill-c1-7-bm1", 4)
    domain = f"<domain><devices>{inside}</devices></domain>"
    assert present_in(domain) == ({"0000:3b:02.1"}, {"backfill-c1-7-bm1"})
    assert present_in("<domain/>") == (set(), set())
    with pytest.raises(ValueError, match="no PCI address"):
        hostdev_xml("eth0")


def test_a_region_is_put_on_a_port_that_is_free() -> None:
    """libvirt finds none by itself for a plain PCI device; without ports it is left to it."""
    ports = "".join(
        f"<controller type='pci' index='{i}' model='pcie-root-port'>"
        f"<address type='pci' domain='0x0' bus='0x00' slot='0x01' function='0x{i}'/></controller>"
        for i in (1, 2, 16)
    )
    used = "<disk><address type='pci' domain='0x0' bus='0x01' slot='0x00' function='0x0'/></disk>"
    domain = f"<domain><devices>{ports}{used}{hostdev_xml('0000:02:00.1')}</devices></domain>"
    assert free_port(domain) == 2  # what a function is on the host says nothing about the guest
    where = '<address type="pci" domain="0x0" bus="0x10" slot="0x0" function="0x0"'
    assert where in shmem_xml("backfill-c1-7-bm1", 4, 16)
    assert free_port("<domain><devices/></domain>") is None
    assert "address" not in shmem_xml("backfill-c1-7-bm1", 4)
    assert '<alias name="ua-1f" />' in shmem_xml("backfill-c1-7-bm1", 4, 16, "1f")


def test_the_book_survives_and_goes_with_the_instance(tmp_path: Path) -> None:
    """Another process reads the same; what is removed with the folder is free again."""
    store = Store(str(tmp_path), "c1")
    for name in ("vn1", "vn2"):
        store.home(name).mkdir(parents=True)
    pool = [VirtualFunction("bm1", "0000:3b:02.1")]

    def choose(name: str) -> Callable[[list[Holding]], Holding | Reason]:
        wanted = Wanted(name, "bm1", "7", "ann", functions=1)
        return lambda held: allocate(wanted, pool, held, Sharing.ANYONE, "c1", "s1")

    given = DeviceBook(store).decide("vn1", choose("vn1"))
    assert isinstance(given, Holding)
    book = DeviceBook(store)
    assert book.of("vn1") == given
    free = because(Code.FUNCTIONS_FREE, host="bm1", free=0, every=1, functions=1)
    assert book.decide("vn2", choose("vn2")) == free
    assert sentence(free) == "bm1 has 0 of 1 virtual functions free, 1 are asked for"
    assert book.of("vn2") is None
    store.remove("vn1")
    assert isinstance(book.decide("vn2", choose("vn2")), Holding)
    book.forget("vn2")
    book.forget("vn2")
    assert book.all() == []


def test_what_a_region_is_called_is_for_nobody_but_its_job(tmp_path: Path) -> None:
    """Who could guess it, or read it before there is a file, would put something of that name there."""
    secrets = iter(("s1", "s2", "s3", "s4"))

    def given(name: str, host: str, held: list[Holding]) -> Holding:
        wanted = Wanted(name, host, "7", "ann", regions=(4, 8))
        found = allocate(wanted, [], held, Sharing.ANYONE, "c1", next(secrets))
        assert isinstance(found, Holding)
        return found

    first = given("vn1", "bm1", [])
    assert [one.id for one in first.regions] == ["backfill-c1-7-bm1-s1", "backfill-c1-7.2-bm1-s1"]
    assert given("vn2", "bm1", [first]).regions == first.regions
    there = given("vn3", "bm2", [first])
    assert [one.id for one in there.regions] == ["backfill-c1-7-bm2-s3", "backfill-c1-7.2-bm2-s3"]
    assert given("vn1", "bm1", [there]).regions != first.regions
    store = Store(str(tmp_path), "c1")
    store.home("vn1").mkdir(parents=True)
    older = store.home("vn1") / "devices.new"
    older.write_text("half")  # by an older version, which let everybody read it
    older.chmod(0o644)
    DeviceBook(store).decide("vn1", lambda _: first)
    assert (store.home("vn1") / "devices.json").stat().st_mode & 0o777 == 0o600


def test_a_book_of_an_older_daemon_is_read(tmp_path: Path) -> None:
    """An instance had one region at most then."""
    store = Store(str(tmp_path), "c1")
    store.home("vn1").mkdir(parents=True)
    old = {"instance": "vn1", "host": "bm1", "job": "7", "owner": "ann", "functions": [], "plugged": True}
    path = store.home("vn1") / "devices.json"
    path.write_text(json.dumps({**old, "region": "backfill-c1-7-bm1", "region_mb": 4}))
    plain = Holding("vn1", "bm1", "7", "ann", plugged=True)
    assert DeviceBook(store).of("vn1") == replace(plain, regions=(Region("backfill-c1-7-bm1", 4),))
    path.write_text(json.dumps({**old, "region": "", "region_mb": 0}))
    assert DeviceBook(store).of("vn1") == plain
    several = replace(plain, regions=(Region("a", 4), Region("b", 8)))
    assert DeviceBook(store).decide("vn1", lambda _: several) == DeviceBook(store).of("vn1") == several


class _Overtaken(DeviceBook):
    """Another process is quicker to the lock, once."""

    meanwhile: Callable[[], object] | None = None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        overtakes, self.meanwhile = self.meanwhile, None
        if overtakes is not None:
            overtakes()
        with super()._alone():
            yield


def test_what_was_given_back_meanwhile_is_not_held_again_by_a_note(tmp_path: Path) -> None:
    """Nor is what another job was given meanwhile written over."""
    store = Store(str(tmp_path), "c1")
    store.home("vn1").mkdir(parents=True)
    theirs, book = DeviceBook(store), _Overtaken(store)
    first, second = (Holding("vn1", "bm1", job, "ann", ("0000:3b:02.1",)) for job in ("7", "8"))
    theirs.decide("vn1", lambda _: first)
    book.meanwhile = lambda: theirs.decide("vn1", lambda _: second)
    book.note("vn1", plugged=True)
    assert book.of("vn1") == replace(second, plugged=True)
    book.meanwhile = lambda: theirs.forget("vn1")
    book.note("vn1", plugged=False)
    assert book.all() == []


def test_an_instance_that_is_gone_meanwhile_holds_nothing(tmp_path: Path) -> None:
    """A typed error, as for any instance that is not there."""
    book = DeviceBook(Store(str(tmp_path), "c1"))
    with pytest.raises(NotFoundError, match="no such instance"):
        book.decide("vn1", lambda _: Holding("vn1", "bm1", "7", "ann"))
    book.note("vn1", plugged=True)
    assert book.all() == []


@pytest.mark.parametrize(
    ("sharing", "job", "owner", "refused"),
    [
        (Sharing.ONE_JOB, "8", "ann", "job 7 holds"),
        (Sharing.ONE_OWNER, "8", "ann", ""),
        (Sharing.ONE_OWNER, "8", "bob", "ann holds"),
        (Sharing.ANYONE, "8", "bob", ""),
    ],
)
def test_the_three_ways_of_sharing(sharing: Sharing, job: str, owner: str, refused: str) -> None:
    """EASJ, EACJ and SACJ: who may come while job 7 of ann has the host."""
    pool = [VirtualFunction("bm1", f"0000:3b:02.{i}") for i in range(4)]
    first = allocate(Wanted("vn1", "bm1", "7", "ann", 1, (4,)), pool, [], sharing, "c1", "s1")
    assert isinstance(first, Holding)
    second = allocate(Wanted("vn2", "bm1", job, owner, 1, (4,)), pool, [first], sharing, "c1", "s1")
    if refused:
        assert isinstance(second, Reason)
        assert refused in sentence(second)
    else:
        assert isinstance(second, Holding)
        assert second.regions != first.regions
        assert not set(second.functions) & set(first.functions)


# --- the way over and the way back ---


def world() -> SimulatedWorld:
    """Two hosts with one function each; vn1 runs on the first and holds its function."""
    sim = SimulatedWorld(cluster="c1")
    for host in ("hv1", "hv2"):
        sim.add_host(host, node=False)
        sim.provider.functions.append(VirtualFunction(host, f"0000:0{host[-1]}:00.1"))
    sim.provider.create(InstanceSpec("vn1", "hv1", Tag("c1", "vn1", 1), Flavour(1, 64), "own", "10.0.0.1/8"))
    sim.provider.hold(Wanted("vn1", "hv1", "7", "ann", functions=1), Sharing.ANYONE)
    return sim


def test_a_move_takes_the_steps_in_order() -> None:
    """The guest is told before and after, and has the other host's function."""
    sim = world()
    move_with_devices(sim.provider, "hv1", "vn1", "hv2")
    assert sim.provider.hooks == [("hv1", "vn1", "before-move"), ("hv2", "vn1", "after-move")]
    assert sim.provider.plugged == {"vn1": "hv2"}
    assert [h.functions for h in sim.provider.holdings()] == [("0000:02:00.1",)]


@pytest.mark.parametrize("broken", ["hook", "unplug", "migrate"])
def test_what_fails_before_it_has_left_is_undone(broken: str) -> None:
    """It works on at the source with its device, and the guest has been told so."""
    sim = world()
    sim.faults.fail(broken, UnreachableError("vn1", "no answer"), times=1)
    with pytest.raises(DriverError, match="no answer"):
        move_with_devices(sim.provider, "hv1", "vn1", "hv2")
    assert sim.provider.plugged == {"vn1": "hv1"}
    assert sim.provider.hooks[-1] == ("hv1", "vn1", "after-move")
    assert [h.host for h in sim.provider.holdings()] == ["hv1"]


def test_a_target_that_cannot_plug_sends_it_back() -> None:
    """It is at the source again, with its device."""
    sim = world()
    sim.faults.fail("plug", UnreachableError("vn1", "no slot"), subject="hv2", times=1)
    with pytest.raises(BusyError, match="came back: vn1: no slot"):
        move_with_devices(sim.provider, "hv1", "vn1", "hv2")
    assert sim.provider.read("hv1", "vn1") is not None
    assert sim.provider.plugged == {"vn1": "hv1"}


def test_one_that_stands_still_moves_without_them_and_gets_others_when_it_goes_on() -> None:
    """What was taken out before it was saved is plugged where it goes on."""
    sim = world()
    provider = sim.provider
    take_out(provider, "hv1", "vn1")
    provider.suspend("hv1", "vn1")
    move_with_devices(provider, "hv1", "vn1", "hv2")
    assert provider.hooks == [("hv1", "vn1", "before-move")]
    provider.restore("hv2", "vn1")
    provider.thaw("hv2", "vn1")
    put_in(provider, "hv2", "vn1")
    assert provider.plugged == {"vn1": "hv2"}
    assert [h.functions for h in provider.holdings()] == [("0000:02:00.1",)]


def test_a_target_without_a_free_function_is_not_even_tried() -> None:
    """Nothing is taken out of the guest for a move that cannot end."""
    sim = world()
    sim.provider.functions.pop()
    with pytest.raises(BusyError, match="0 of 0 virtual functions free"):
        move_with_devices(sim.provider, "hv1", "vn1", "hv2")
    assert sim.provider.hooks == []
    assert sim.provider.plugged == {"vn1": "hv1"}
