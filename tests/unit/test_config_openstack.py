"""The policy file's section about a cloud: what it becomes, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill.config import hints_of_file
from backfill.drivers.openstack.settings import CloudPlace
from backfill.ui.assemble import libvirt_config, openstack_config
from tests.unit.policy_files import LIBVIRT, LIBVIRT_HOST, loaded, sentences, text

HOSTS = "hosts: [{name: east, provider: openstack, node: null, cloud: mycloud}]"
POOL = "{name: more, provider: openstack, node: null, cloud: mycloud}"
SECTION = """openstack:
  flavours: [m1.small, m1.medium]
  zones: [az1, az2]
  network: cluster
  vnic_type: direct
  spread: soft-anti-affinity
  hours_cap: 500
  guest: {controller: 10.0.0.1, conf_server: "10.0.0.1:6817", command: [ssh, "root@{address}"]}
"""
GOLD = "environments: {entries: [{name: au, image: gold, users: [ada]}]}\n"


def test_the_section_becomes_the_drivers_settings(tmp_path: Path) -> None:
    """Names of the file are the driver's."""
    config = loaded(tmp_path, text(SECTION, hosts=HOSTS))
    assert config.openstack is not None
    made = openstack_config(config, config.openstack, list(config.hosts))
    assert made.places == {"east": CloudPlace("mycloud")}
    assert made.shape.flavours == ("m1.small", "m1.medium")
    assert (made.shape.vnic_type, made.shape.group_policy) == ("direct", "soft-anti-affinity")
    assert made.hours_cap == 500
    assert made.guest.command == ("ssh", "root@{address}")


def test_guests_have_several_controllers_without_blanks(tmp_path: Path) -> None:
    """They go into a command line word by word."""
    both, there = "10.0.0.1:6817, 10.0.0.2:6817", HOSTS.replace("hosts: [", "")
    content = SECTION.replace("10.0.0.1:6817", both) + LIBVIRT.replace("10.0.0.1:6817", both)
    config = loaded(tmp_path, text(content, hosts=f"{LIBVIRT_HOST[:-1]}, {there}"))
    assert config.openstack is not None
    assert config.libvirt is not None
    cloud = openstack_config(config, config.openstack, [h for h in config.hosts if h.cloud])
    local = libvirt_config(config, config.libvirt, [h for h in config.hosts if h.uri])
    for told in (cloud.guest.conf_server, local.surroundings.conf_server):
        assert told == both.replace(" ", "")


@pytest.mark.parametrize(
    ("hosts", "section", "words"),
    [
        (HOSTS, "", "openstack is missing, but host east has provider: openstack"),
        (HOSTS.replace(", cloud: mycloud", ""), SECTION, "cloud is missing for an openstack host"),
        (HOSTS.replace("node: null, ", ""), SECTION, "is no Slurm node; write node: null"),
        (HOSTS, SECTION.replace("[m1.small, m1.medium]", "[]"), "openstack.flavours is empty"),
        (f"{HOSTS[:-1]}, {POOL}]", SECTION, "hosts[1].cloud is mycloud, whose room host east has"),
        (f"{HOSTS[:-1]}, {POOL[:-1]}, compute: c1}}]", SECTION, "once by `compute`"),
        (HOSTS, SECTION.replace(": 10.0.0.1", ": 10.0.1.2"), "belongs to openstack.guest.contr"),
        (HOSTS, SECTION.replace("vnic_type: direct", "vnic_type: straight"), "write normal or direct"),
        (
            HOSTS,
            SECTION + "  images: {gold: secret, plain: secret}\n" + GOLD,
            "openstack.images has secret for gold and for plain, which are not for the same people",
        ),
        (
            HOSTS,
            SECTION + "  images: {gold: secret}\n" + GOLD.replace("}]", "}, {name: all, image: secret}]"),
            "openstack.images has secret for gold and for secret, which are not for the same people",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(tmp_path: Path, hosts: str, section: str, words: str) -> None:
    """With place and remedy."""
    found = sentences(tmp_path, text(section, hosts=hosts))
    assert len(found) == 1
    assert words in found[0]


def test_compute_hosts_of_one_cloud_are_hosts_of_their_own(tmp_path: Path) -> None:
    """Only a project as a whole, and each of them, is there once."""
    hosts = [POOL.replace("more", f"hv{n}").replace("}", f", compute: c{n}}}") for n in (1, 2)]
    config = loaded(tmp_path, text(SECTION, hosts=f"hosts: [{', '.join(hosts)}]"))
    assert [host.compute for host in config.hosts] == ["c1", "c2"]


@pytest.mark.parametrize("more", ["", ", {name: bm1, provider: simulated}"])
def test_images_in_a_cloud_are_those_of_the_file(tmp_path: Path, more: str) -> None:
    """No job gets another, and the driver knows no other."""
    section = SECTION + "  images: {mpi: mpi-2024, default: node}\n" + GOLD
    config = loaded(tmp_path, text(section, hosts=HOSTS[:-1] + more + "]"))
    assert config.policies.environments.images == ("default", "gold", "mpi")
    assert config.openstack is not None
    made = openstack_config(config, config.openstack, list(config.hosts))
    assert made.shape.images == {"default": "node", "gold": "gold", "mpi": "mpi-2024"}


def test_beside_libvirt_a_cloud_keeps_the_images_that_are_its_own(tmp_path: Path) -> None:
    """An environment whose image only the cloud has gets servers there."""
    hosts = LIBVIRT_HOST[:-1] + ", " + HOSTS.partition("[")[2]
    section = SECTION + "  images: {default: node, gold: g1}\n" + GOLD
    config = loaded(tmp_path, text(LIBVIRT, section, hosts=hosts))
    assert config.policies.environments.images == ("default", "gold")
    assert config.openstack is not None
    made = openstack_config(config, config.openstack, [h for h in config.hosts if h.cloud])
    assert made.shape.images == {"default": "node", "gold": "g1"}


def test_hosts_of_different_kinds_have_the_images_of_their_kind(tmp_path: Path) -> None:
    """The cloud those that are mapped for it, and those that only an environment names; libvirt its own.

    A private image of libvirt alone is no other name of one in the cloud.
    """
    local = "    mpi: {kernel: /k, initrd: /i, disk: /d, cmdline: quiet, environment: mpi, users: [bo]}\n"
    section = (
        SECTION + "  images: {default: node, gold: mpi}\n" + GOLD.replace("}]", "}, {name: hep, image: h}]")
    )
    hosts = f"{LIBVIRT_HOST[:-1]}, {{name: bm2, provider: simulated}}, {HOSTS.partition('[')[2]}"
    config = loaded(tmp_path, text(LIBVIRT + local, section, hosts=hosts))
    known = config.policies.environments
    assert known.images == ("default", "gold", "h", "mpi")
    assert known.lacking == {"gold": {"bm1"}, "h": {"bm1"}, "mpi": {"east"}}
    assert config.openstack is not None
    made = openstack_config(config, config.openstack, [h for h in config.hosts if h.cloud])
    assert made.shape.images == {"default": "node", "gold": "mpi", "h": "h"}


def test_an_image_that_an_environment_alone_names_is_on_no_host_of_libvirts(tmp_path: Path) -> None:
    hosts = LIBVIRT_HOST[:-1] + ", {name: bm2, provider: simulated}]"
    config = loaded(tmp_path, text(LIBVIRT, GOLD, hosts=hosts))
    assert config.policies.environments.lacking == {"gold": {"bm1"}}


def test_an_image_that_a_cloud_has_too_must_be_named_for_it(tmp_path: Path) -> None:
    """One of the same name in the cloud is not taken for libvirt's; `policy check` says so."""
    hosts = f"{LIBVIRT_HOST[:-1]}, {HOSTS.partition('[')[2]}"
    files = "{kernel: /k, initrd: /i, disk: /d, cmdline: quiet"
    local = f"    gold: {files}}}\n    mpi: {files}, environment: mpi}}\n"
    (said,) = hints_of_file(loaded(tmp_path, text(LIBVIRT + local, SECTION, GOLD, hosts=hosts)))
    assert said.partition(": ")[2] == (
        "environments.entries[0].image is gold of libvirt's images, so that east gets no instances of it; "
        "if the cloud has it too, write it into openstack.images, with its name there"
    )
    mapped = SECTION + "  images: {gold: gold}\n"
    assert not hints_of_file(loaded(tmp_path, text(LIBVIRT + local, mapped, GOLD, hosts=hosts)))
