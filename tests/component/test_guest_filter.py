"""The filter of guests' cards: whom the policy file lets through, and what libvirt is told."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as Xml

import libvirt
import pytest

from backfill.config.reach import reach
from backfill.core.model.fleet import Flavour, InstanceSpec, Tag
from backfill.drivers.libvirt.connection.domain_xml import DomainFiles, domain_xml
from backfill.drivers.libvirt.filtering import GuestFilter
from backfill.drivers.libvirt.proving import HostTerms, prove
from backfill.drivers.libvirt.settings import Hardware, ImageFiles
from tests.component.test_host_proofs import Machine, failed
from tests.unit.policy_files import LIBVIRT, LIBVIRT_HOST, loaded, sentences, text

CLOSED = LIBVIRT + "  guest_network: {closed: true, also: [10.0.9.0/24, 10.0.8.7]}\n"
FILTER = GuestFilter("c1", ("10.0.0.1/32", "10.0.9.0/24"))


def reached(where: Path, content: str) -> tuple[str, ...] | None:
    config = loaded(where, text(content, hosts=LIBVIRT_HOST))
    assert config.libvirt is not None
    return reach(config.libvirt, config.policies.instances)


def test_an_open_network_has_no_filter(tmp_path: Path) -> None:
    assert reached(tmp_path, LIBVIRT) is None


def test_closed_guests_reach_whom_they_need(tmp_path: Path) -> None:
    """The controller, each other, the servers that are named, and no host."""
    servers = 'munge.key, time_server: 10.0.0.5, mounts: ["10.0.0.6:/home /home nfs4 rw"]'
    found = reached(tmp_path, CLOSED.replace("munge.key", servers))
    assert found is not None
    assert set(found) == {
        *("10.0.0.1/32", "10.0.0.5/32", "10.0.0.6/32", "10.0.8.7/32", "10.0.9.0/24"),
        *("10.0.1.1/32", "10.0.1.2/31", "10.0.1.4/32"),
    }


def test_closed_guests_reach_every_controller(tmp_path: Path) -> None:
    found = reached(tmp_path, CLOSED.replace("10.0.0.1:6817", "10.0.0.1:6817,10.0.0.3:6817"))
    assert found is not None
    assert {"10.0.0.1/32", "10.0.0.3/32"} < set(found)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (CLOSED.replace("closed: true, ", ""), "also is set, but guests may reach everything"),
        (
            CLOSED.replace("10.0.9.0/24", "10.0.9.1/24"),
            "'10.0.9.1/24', which is not an IPv4 address or network",
        ),
        (
            CLOSED.replace("munge.key", 'munge.key, mounts: ["fs:/home /home nfs4 rw"]'),
            "mounts[0] names fs, and closed guests reach IPv4 addresses only; write its IPv4 address",
        ),
        (
            CLOSED.replace("munge.key", 'munge.key, time_server: "fd00::5"'),
            "surroundings.time_server names fd00::5, and closed guests reach IPv4 addresses only",
        ),
    ],
)
def test_what_cannot_be_filtered_is_told(tmp_path: Path, content: str, words: str) -> None:
    found = sentences(tmp_path, text(content, hosts=LIBVIRT_HOST))
    assert len(found) == 1
    assert words in found[0]


def test_guests_of_another_family_are_told_once(tmp_path: Path) -> None:
    instances = 'instances: {names: "vn[1-4]", addresses: "fd00::1/64", flavour: {cpus: 1, memory_mb: 256}}'
    found = sentences(tmp_path, text(CLOSED, hosts=LIBVIRT_HOST, instances=instances))
    assert len(found) == 1
    assert "instances.addresses names fd00::1/64" in found[0]


def test_the_filter_lets_through_what_it_names_and_drops_all_else() -> None:
    """The rest last; and what a guest sends as somebody else first, whomever it is for."""
    rules = Xml.fromstring(FILTER.document()).findall("rule")
    in_order = sorted(rules, key=lambda rule: int(rule.attrib["priority"]))
    assert [rule.attrib["action"] for rule in in_order] == ["drop"] * 3 + ["accept"] * 5 + ["drop"]
    assert {child.tag: child.attrib for rule in in_order[:3] for child in rule} == {
        "mac": {"match": "no", "srcmacaddr": "$MAC"},
        "arp": {"match": "no", "arpsrcipaddr": "$IP"},
        "ip": {"match": "no", "srcipaddr": "$IP"},
    }
    assert len(in_order[-1]) == 0
    assert in_order[-1].attrib["direction"] == "inout"
    there = [rule.find("ip[@dstipaddr='10.0.9.0'][@dstipmask='24']") is not None for rule in in_order]
    back = [rule.find("ip[@srcipaddr='10.0.9.0'][@srcipmask='24']") is not None for rule in in_order]
    assert [in_order[which.index(True)].attrib["direction"] for which in (there, back)] == ["out", "in"]


def test_it_is_the_same_one_at_each_daemon_and_another_in_each_cluster() -> None:
    """libvirt replaces a filter only by one of the same identity."""

    def identity(one: GuestFilter) -> str | None:
        return Xml.fromstring(one.document()).findtext("uuid")

    assert identity(GuestFilter("c1", ())) == identity(FILTER)
    assert identity(GuestFilter("c2", ())) != identity(FILTER)


def test_a_guests_card_refers_to_it_by_its_own_address() -> None:
    spec = InstanceSpec("vn1", "bm1", Tag("c1", "vn1", 1), Flavour(1, 256), "default", "10.0.1.1/16")
    image, files = ImageFiles("/k", "/i", "/d", "quiet"), DomainFiles("/disk", "/seed", "/console")
    card = "devices/interface"
    for name in ("", FILTER.name):
        domain = Xml.fromstring(domain_xml(spec, image, files, Hardware(), "br0", 1.0, filtered_by=name))
        found = domain.find(f"{card}/filterref")
        assert (found is not None) is bool(name)
        if found is not None:
            assert found.attrib == {"filter": "backfill-c1"}
            assert [p.attrib for p in found] == [{"name": "IP", "value": "10.0.1.1"}]


class Filtering(Machine):
    """A host that remembers filters, or says why not."""

    def __init__(self, error: libvirt.libvirtError | None = None) -> None:
        super().__init__()
        self._error = error
        self.known: list[str] = []

    def nwfilterDefineXML(self, document: str) -> None:  # noqa: N802 - libvirt's name
        if self._error is not None:
            raise self._error
        self.known.append(document)


def _proven(machine: Filtering, root: Path) -> str | None:
    return prove(machine, "bm1", HostTerms(root, 1.0, FILTER), lambda: machine.now_s)


def test_a_host_knows_the_filter_before_it_has_a_guest(tmp_path: Path) -> None:
    machine = Filtering()
    assert _proven(machine, tmp_path) is None
    assert machine.known == [FILTER.document()]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (libvirt.VIR_ERR_NO_SUPPORT, "install it on bm1 (libvirt-daemon-driver-nwfilter)"),
        (
            libvirt.VIR_ERR_OPERATION_FAILED,
            "the filter backfill-c1 for guests' cards cannot be made there: told",
        ),
    ],
)
def test_a_host_that_cannot_filter_gets_no_guest(tmp_path: Path, code: int, words: str) -> None:
    assert words in (_proven(Filtering(failed(code, "told")), tmp_path) or "")


def test_a_host_that_does_not_answer_is_no_verdict(tmp_path: Path) -> None:
    with pytest.raises(libvirt.libvirtError):
        _proven(Filtering(failed(libvirt.VIR_ERR_INVALID_CONN, "gone")), tmp_path)
