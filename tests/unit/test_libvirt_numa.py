"""What the libvirt driver reads and writes of NUMA nodes, which libvirt calls cells."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as Xml

import pytest

from backfill.core.model.quantities import Resources
from backfill.drivers.libvirt.connection.cells import HostCell, host_cells
from backfill.drivers.libvirt.connection.domain_xml import (
    NAMESPACE,
    NumaPlace,
    domain_xml,
    parse_label,
    rebound,
)
from backfill.drivers.libvirt.settings import Hardware, NumaTerms
from backfill.ui.assemble import libvirt_config
from tests.unit.policy_files import LIBVIRT, LIBVIRT_HOST, loaded, text
from tests.unit.test_libvirt_documents import FILES, IMAGE, SPEC

FIRST = NumaPlace(0, "0-3,8-11", "strict")
OTHER = NumaPlace(1, "4-7", "preferred")
# As virsh capabilities shows a machine of two sockets with two threads per core, and one node of memory only.
TWO_SOCKETS = """
<capabilities><host><topology><cells num='3'>
 <cell id='1'><memory unit='KiB'>65970176</memory><pages unit='KiB' size='4'>16492544</pages>
  <cpus num='3'><cpu id='7' socket_id='1' core_id='1' siblings='7'/><cpu id='4'/><cpu id='6'/></cpus></cell>
 <cell id='0'><memory unit='KiB'>65536</memory><cpus num='4'>
  <cpu id='0'/><cpu id='1'/><cpu id='8'/><cpu id='9'/></cpus></cell>
 <cell id='2'><memory unit='GiB'>128</memory><cpus num='0'/></cell>
</cells></topology></host><guest><arch name='x86_64'/></guest></capabilities>
"""


def made(numa: NumaPlace | None) -> str:
    hardware = Hardware(domain_type="qemu", cpu_shares=2)
    return domain_xml(SPEC, IMAGE, FILES, hardware, "br7", 1700.5, numa=numa)


def bound_to(text: str) -> tuple[str | None, str | None, str | None, int | None]:
    """CPUs, memory's mode and NUMA node, and what our label says."""
    domain = Xml.fromstring(text)
    cpus, memory = domain.find("vcpu"), domain.find("numatune/memory")
    mark = domain.find(f"metadata/{{{NAMESPACE}}}instance")
    assert cpus is not None
    assert mark is not None
    label = parse_label(Xml.tostring(mark, encoding="unicode"))
    assert label is not None
    attributes = {} if memory is None else memory.attrib
    return cpus.get("cpuset"), attributes.get("mode"), attributes.get("nodeset"), label.numa


def test_cells_are_read_with_their_cpus_and_memory() -> None:
    """In order, in MiB; one without CPUs of its own carries no instance."""
    assert host_cells(TWO_SOCKETS) == (HostCell(0, 4, "0-1,8-9", 64), HostCell(1, 3, "4,6-7", 64424))


@pytest.mark.parametrize("said", ["<capabilities/>", "<capabilities><host><topology/></host></capabilities>"])
def test_a_host_that_tells_of_none_has_none(said: str) -> None:
    """Nothing is guessed."""
    assert host_cells(said) == ()


def test_what_is_bound_keeps_its_cpus_and_memory_to_one_numa_node() -> None:
    """And carries the number in our mark; without one nothing of that is written."""
    assert bound_to(made(FIRST)) == ("0-3,8-11", "strict", "0", 0)
    assert bound_to(made(None)) == (None, None, None, None)
    assert "numa" not in made(None)


def test_another_host_binds_anew_and_leaves_all_else() -> None:
    """The weight and a quota of the CPUs stay; pins of single CPUs, by whomever, do not."""
    pinned = made(FIRST).replace(
        "</cputune>",
        "<period>100000</period><quota>5000</quota><vcpupin vcpu='0' cpuset='9'/>"
        "<vcpupin vcpu='1' cpuset='8'/><emulatorpin cpuset='8'/></cputune>",
    )
    moved = rebound(pinned, OTHER)
    assert bound_to(moved) == ("4-7", "preferred", "1", 1)
    tune = Xml.fromstring(moved).find("cputune")
    assert tune is not None
    assert [(kind.tag, kind.text) for kind in tune] == [
        ("shares", "2"),
        ("period", "100000"),
        ("quota", "5000"),
    ]
    assert Xml.canonicalize(rebound(rebound(made(None), FIRST), None)) == Xml.canonicalize(made(None))
    assert bound_to(rebound(moved, None)) == (None, None, None, None)


def test_a_document_in_which_nothing_changes_is_left_as_it_is() -> None:
    """Not even written anew; and pins that an admin gave it by hand are no business of ours then."""
    text = made(None).replace("</cputune>", "<vcpupin vcpu='0' cpuset='9'/></cputune>")
    assert rebound(text, None) is text


def test_the_driver_is_told_what_the_policy_file_says(tmp_path: Path) -> None:
    """How firmly, how many CPUs are promised, and what no host gives to instances."""
    more = "limits: {keep_cpus: 1, keep_memory_mb: 64}\nplacement: {cpu_overcommit: 2}"
    bind = f"{LIBVIRT}  numa: {{bind: node, memory: strict}}"
    config = loaded(tmp_path, text(bind, more, hosts=LIBVIRT_HOST))
    assert config.libvirt is not None
    settings = libvirt_config(config, config.libvirt, list(config.hosts))
    assert settings.numa == NumaTerms("strict", 2.0, Resources(1, 64))
    unbound = loaded(tmp_path, text(LIBVIRT, hosts=LIBVIRT_HOST))
    assert unbound.libvirt is not None
    assert libvirt_config(unbound, unbound.libvirt, list(unbound.hosts)).numa is None
