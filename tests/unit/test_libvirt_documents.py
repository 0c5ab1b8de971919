"""What the libvirt driver writes: seeds, domain documents, labels; and how states are read."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree as Xml

import pytest

from backfill.core.model.fleet import Flavour, InstanceSpec, InstanceState, Tag
from backfill.core.model.quantities import Resources
from backfill.drivers.libvirt.connection.domain_xml import (
    NAMESPACE,
    DomainFiles,
    Label,
    Memory,
    domain_uuid,
    domain_xml,
    mac_address,
    parse_label,
)
from backfill.drivers.libvirt.connection.states import (
    DomainState,
    PausedReason,
    ShutoffReason,
    instance_state,
)
from backfill.drivers.libvirt.guest.seed import Identity
from backfill.drivers.libvirt.migration.moving import data_uri
from backfill.drivers.libvirt.settings import Hardware, ImageFiles

IDENTITY = Identity("vn1", "10.77.1.1/16", "10.77.0.1", "10.77.0.1", "10.77.0.1:6817", "-Z")
SPEC = InstanceSpec("vn1", "bm1", Tag("grete", "vn1", 3), Flavour(2, 512), "tiny & small", "10.77.1.1/16")
IMAGE = ImageFiles("/images/vmlinuz", "/images/initrd", "/images/disk.raw", "root=/dev/vda a<b")
FILES = DomainFiles("/shared/vn1/disk.qcow2", "/shared/vn1/seed.tar", "/shared/vn1/console.log")


def document(hardware: Hardware | None = None, spec: InstanceSpec = SPEC) -> Xml.Element:
    return Xml.fromstring(
        domain_xml(spec, IMAGE, FILES, hardware or Hardware(domain_type="qemu"), "br7", 1700.5)
    )


# --- seed ----------------------------------------------------------------------------------------


def test_the_document_boots_the_kernel_from_our_files() -> None:
    """Direct kernel boot, the overlay first, the seed read-only second; text is escaped."""
    domain = document()
    assert domain.findtext("os/kernel") == "/images/vmlinuz"
    assert domain.findtext("os/cmdline") == "root=/dev/vda a<b"
    first, second = domain.findall("devices/disk")
    assert first.find("source[@file='/shared/vn1/disk.qcow2']") is not None
    assert first.find("readonly") is None
    assert second.find("source[@file='/shared/vn1/seed.tar']") is not None
    assert second.find("readonly") is not None


def test_a_clone_is_given_no_kernel() -> None:
    """It has one in its parent's memory; QEMU would keep another for each clone."""
    memory = Memory("/shared/.parents/bm1/parent-1/ram", shared=False)
    clone = Xml.fromstring(domain_xml(SPEC, IMAGE, FILES, Hardware("qemu"), "br7", 1700.5, memory=memory))
    parent = Xml.fromstring(
        domain_xml(SPEC, IMAGE, FILES, Hardware("qemu"), "br7", 1700.5, memory=replace(memory, shared=True))
    )
    for word in ("kernel", "initrd", "cmdline"):
        assert clone.find(f"os/{word}") is None
        assert parent.find(f"os/{word}") is not None


def test_the_document_gives_what_was_asked() -> None:
    """CPUs, memory, bridge, lowest CPU weight, an agent's channel and a console that appends."""
    domain = document()
    assert (domain.get("type"), domain.findtext("vcpu"), domain.findtext("memory")) == ("qemu", "2", "512")
    assert domain.findtext("cputune/shares") == "2"
    assert domain.find("devices/interface/source[@bridge='br7']") is not None
    assert domain.find("devices/channel/target[@name='org.qemu.guest_agent.0']") is not None
    assert domain.find("devices/serial/source[@append='on']") is not None
    assert domain.find("devices/memballoon[@model='none']") is not None


def test_a_guest_boots_once() -> None:
    """A reboot or crash ends the instance: its job is lost and must not seem to go on."""
    domain = document()
    for event in ("on_poweroff", "on_reboot", "on_crash"):
        assert domain.findtext(event) == "destroy"


def test_hardware_can_be_chosen() -> None:
    """Modes of libvirt instead of a named processor, no weight, another machine."""
    chosen = Hardware("kvm", "pc-q35-7.2", "host-model", cpu_shares=None, disk_cache="writeback")
    domain = document(chosen)
    assert domain.find("cpu[@mode='host-model']") is not None
    assert domain.find("cputune") is None
    assert domain.find("os/type[@machine='pc-q35-7.2']") is not None
    assert domain.find("features/tcg") is None
    assert domain.find("devices/disk/driver[@cache='writeback']") is not None


@pytest.mark.parametrize(("machine", "balloon", "ports"), [("q35", False, 7), ("pc", True, 0)])
def test_ports_are_left_where_devices_are_to_be_plugged(machine: str, balloon: bool, ports: int) -> None:
    """On PCI Express each device needs one: five for its own, two to spare. `pc` has slots."""
    domain = document(Hardware("qemu", machine, slots=2, balloon=balloon))
    assert len(domain.findall("devices/controller[@model='pcie-root-port']")) == ports
    assert document(Hardware("qemu", machine)).find("devices/controller[@type='pci']") is None
    own = document(Hardware("qemu", machine, slots=2), replace(SPEC, slots=4))
    assert len(own.findall("devices/controller[@model='pcie-root-port']")) == (9 if ports else 0)


def test_room_is_left_for_the_largest_region_behind_each_spare_port() -> None:
    """Firmware would leave 2 MB there. The ports of a guest's own devices come first."""
    domain = document(Hardware("qemu", slots=1, slot_mb=16), replace(SPEC, slots=2, slot_mb=64))
    qemu = {"qemu": "http://libvirt.org/schemas/domain/qemu/1.0"}
    found = domain.findall("qemu:override/qemu:device", qemu)
    assert [device.get("alias") for device in found] == ["pci.6", "pci.7"]
    sizes = [device.find("qemu:frontend/qemu:property", qemu) for device in found]
    assert {None if size is None else size.get("value") for size in sizes} == {str(2 * 64 << 20)}
    assert document(Hardware("qemu", slots=1)).find("qemu:override", qemu) is None


def test_a_named_processor_may_get_further_features() -> None:
    """What the named model lacks is required by name."""
    domain = document(Hardware("qemu", cpu_model="qemu64", cpu_features=("rdrand",)))
    assert domain.findtext("cpu/model") == "qemu64"
    assert domain.find("cpu/feature[@name='rdrand']") is not None


def test_addresses_follow_from_the_names() -> None:
    """The same name in the same cluster always has the same MAC, private and for one machine."""
    assert mac_address("c", "vn1") == mac_address("c", "vn1")
    many = {mac_address("c", f"vn{i}") for i in range(2000)} | {mac_address("d", "vn1")}
    assert len(many) == 2001
    first_bytes = {int(mac.split(":")[0], 16) for mac in many}
    assert all(byte & 0b11 == 0b10 for byte in first_bytes)


def test_a_generation_has_one_uuid() -> None:
    """So the same instance is the same on every host, and the next generation is another."""
    tag = Tag("c", "vn1", 1)
    assert domain_uuid(tag, "vn1") == domain_uuid(tag, "vn1")
    assert domain_uuid(tag, "vn1") != domain_uuid(replace(tag, generation=2), "vn1")
    assert document().findtext("uuid") == domain_uuid(SPEC.tag, "vn1")


def test_a_label_comes_back_as_it_was_written() -> None:
    """Quotes and brackets in names do no harm."""
    spec = replace(SPEC, tag=Tag('we "&" <you>', "vn1", 7))
    element = document(spec=spec).find(f"metadata/{{{NAMESPACE}}}instance")
    assert element is not None
    assert parse_label(Xml.tostring(element, encoding="unicode")) == Label(
        spec.tag, Resources(2, 512), 1700.5
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<",
        "<instance/>",
        "<instance cluster='c' node='n' generation='x' cpus='1' memory_mb='1' created_s='1'/>",
        "<instance cluster='c' node='n' generation='1' cpus='1' memory_mb='1' created_s='soon'/>",
    ],
)
def test_what_is_no_label_is_nobodys(text: str) -> None:
    """A domain whose label cannot be read is not ours to touch."""
    assert parse_label(text) is None


# --- states --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "reason", "persistent", "saved", "expected"),
    [
        (DomainState.RUNNING, 1, True, False, InstanceState.RUNNING),
        (DomainState.RUNNING, 1, True, True, InstanceState.RUNNING),
        (DomainState.BLOCKED, 0, True, False, InstanceState.RUNNING),
        (DomainState.SHUTDOWN, 0, True, False, InstanceState.RUNNING),
        (DomainState.PAUSED, 1, True, False, InstanceState.PAUSED),
        (DomainState.PAUSED, PausedReason.SAVE, True, False, InstanceState.PAUSED),
        (DomainState.PAUSED, PausedReason.MIGRATION, True, True, InstanceState.PAUSED),
        (DomainState.PAUSED, PausedReason.MIGRATION, False, False, InstanceState.MIGRATING),
        (DomainState.PAUSED, PausedReason.STARTING_UP, False, False, InstanceState.MIGRATING),
        (DomainState.PAUSED, PausedReason.STARTING_UP, True, False, InstanceState.BUILDING),
        (DomainState.PMSUSPENDED, 0, True, False, InstanceState.PAUSED),
        (DomainState.SHUTOFF, 5, True, True, InstanceState.SUSPENDED),
        (DomainState.SHUTOFF, ShutoffReason.CRASHED, True, True, InstanceState.SUSPENDED),
        (DomainState.SHUTOFF, ShutoffReason.CRASHED, True, False, InstanceState.CRASHED),
        (DomainState.SHUTOFF, ShutoffReason.FAILED, True, False, InstanceState.CRASHED),
        (DomainState.SHUTOFF, 1, True, False, InstanceState.OFF),
        (DomainState.CRASHED, 0, True, False, InstanceState.CRASHED),
        (DomainState.NOSTATE, 0, True, False, InstanceState.OFF),
    ],
)
def test_states_are_translated(
    state: int, reason: int, persistent: bool, saved: bool, expected: InstanceState
) -> None:
    """Each state of libvirt, with its reason, means one of ours."""
    assert instance_state(state, reason, persistent, saved) is expected


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("qemu+tcp://10.77.0.11:16509/system", "tcp://10.77.0.11"),
        ("qemu+tls://hv1.example.org/system", "tcp://hv1.example.org"),
        ("qemu+ssh://root@hv1/system", "tcp://hv1"),
        ("qemu+tcp://[fd00::1]/system", "tcp://[fd00::1]"),
        ("qemu:///system", None),
    ],
)
def test_memory_goes_where_the_hypervisor_is(uri: str, expected: str | None) -> None:
    """A migration sends memory to the machine in the target's libvirt address."""
    assert data_uri(uri) == expected


# --- clones --------------------------------------------------------------------------------------


def words_of(memory: Memory) -> list[str]:
    """What the document tells QEMU beyond libvirt's own vocabulary."""
    text = domain_xml(SPEC, IMAGE, FILES, Hardware("qemu"), "br7", 1.0, memory)
    line = Xml.fromstring(text).find("{http://libvirt.org/schemas/domain/qemu/1.0}commandline")
    assert line is not None
    return [argument.attrib["value"] for argument in line]


def test_only_a_parent_writes_through_to_the_memory_file() -> None:
    """A clone's changes are its own: a shared writer would change all its siblings."""
    assert any("share=on" in word for word in words_of(Memory("/p/ram", shared=True)))
    clone = words_of(Memory("/p/ram", shared=False))
    assert any("mem-path=/p/ram,share=off" in word for word in clone)
    assert clone[-2:] == ["-incoming", "defer"]


def test_translated_code_has_the_room_that_was_asked_for() -> None:
    """Only an emulated guest has any; a clone has half, since it is memory of its own."""
    own = Memory("/p/ram", shared=False)
    for kind, memory, wanted in (("qemu", None, "512"), ("qemu", own, "256"), ("kvm", None, None)):
        hardware = Hardware(kind, translation_cache_mb=512)
        text = domain_xml(SPEC, IMAGE, FILES, hardware, "br7", 1.0, memory)
        assert Xml.fromstring(text).findtext("features/tcg/tb-cache") == wanted


def test_a_clone_has_nothing_that_gives_memory_back() -> None:
    """A balloon or free page reporting in one clone empties pages that its siblings use."""
    for shared in (False, True):
        memory = Memory("/p/ram", shared=shared)
        text = domain_xml(SPEC, IMAGE, FILES, Hardware("qemu"), "br7", 1.0, memory)
        devices = Xml.fromstring(text).find("devices")
        assert devices is not None
        assert [b.attrib for b in devices.findall("memballoon")] == [{"model": "none"}]
        assert "reporting" not in text


def test_a_parent_is_nobodys_instance() -> None:
    """Without our mark neither the daemon nor a person takes it for a node."""
    text = domain_xml(SPEC, IMAGE, FILES, Hardware("qemu"), "br7", 1.0, None, marked=False)
    assert NAMESPACE not in text
