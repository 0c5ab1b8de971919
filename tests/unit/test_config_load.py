"""A good policy file becomes the values that it says, and defaults for what it leaves out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from backfill.config import DaemonSettings, DomainType, Provider, catalogue, check_text, confined, load
from backfill.core.model.fleet import Rung
from backfill.core.policies.ladder import DEFAULT_RUNGS, RungRule
from backfill.core.policies.limits import Limits
from backfill.core.policies.spread import Order
from backfill.core.policy import Proof
from tests.unit.policy_files import LIBVIRT, LIBVIRT_HOST, ROOT, loaded, text


@pytest.mark.parametrize("name", ["policy.yaml", "policy.minimal.yaml"])
def test_the_samples_are_valid(name: str) -> None:
    """Both files under config/ can be used as they are."""
    assert load(ROOT / "config" / name).policies.cluster == "mycluster"


@pytest.mark.parametrize(("name", "cluster"), [("campus", "campus"), ("htc", "farm"), ("burst", "lab")])
def test_the_examples_for_sites_are_valid(name: str, cluster: str) -> None:
    """Those on the page about kinds of sites, with the image catalogue beside the samples."""
    assert load(ROOT / "config" / "sites" / f"{name}.yaml").policies.cluster == cluster


def test_every_example_for_sites_is_on_their_page() -> None:
    """And none is named there that does not exist."""
    page = (ROOT / "docs/site-examples.md").read_text()
    files = {path.name for path in (ROOT / "config/sites").iterdir()}
    assert set(re.findall(r"\(\.\./config/sites/(\S+)\)", page)) == files


def test_the_sample_says_in_comments_the_defaults_that_hold() -> None:
    """Keys that the commented sample leaves out have the default that its comment shows."""
    flavour = load(ROOT / "config/policy.yaml").policies.instances.flavour
    assert (flavour.cpus, flavour.memory_mb, flavour.disk_gb) == (2, 4096, 8)
    assert flavour.memory_margin_mb == 48


def test_what_is_left_out_has_its_default(tmp_path: Path) -> None:
    """Only cluster, priorities, hosts and instances must be given."""
    config = loaded(tmp_path, text())
    assert config.policies.limits == Limits()
    assert config.policies.ladder.rungs == DEFAULT_RUNGS
    assert config.daemon == DaemonSettings()
    assert config.libvirt is None
    assert config.source == tmp_path / "policy.yaml"


def test_names_are_expanded_and_addresses_counted_upwards(tmp_path: Path) -> None:
    """The first name has the first address, across the borders of bytes."""
    part = (
        'instances: {names: "vn[8-10],login", addresses: 10.0.0.254/16, flavour: {cpus: 1, memory_mb: 256}}'
    )
    template = loaded(tmp_path, text(instances=part)).policies.instances
    assert template.names == ("vn8", "vn9", "vn10", "login")
    assert template.addresses == ("10.0.0.254/16", "10.0.0.255/16", "10.0.1.0/16", "10.0.1.1/16")


def test_addresses_may_be_listed(tmp_path: Path) -> None:
    """A list gives each name its own address, in order."""
    part = (
        "instances: {names: [a, b], addresses: [10.0.5.9/24, 10.0.5.3/24],"
        " flavour: {cpus: 1, memory_mb: 256}}"
    )
    template = loaded(tmp_path, text(instances=part)).policies.instances
    assert template.addresses == ("10.0.5.9/24", "10.0.5.3/24")


def test_every_unit_and_kind_is_read(tmp_path: Path) -> None:
    """Durations, sizes, choices and nested sections arrive as the core's own types."""
    config = loaded(
        tmp_path,
        text(
            "ladder: [{rung: pause, for_s: 90s}, {rung: requeue, within_s: 2m}]",
            "placement: {order: best-fit}",
            "limits: {keep_memory_mb: 2GiB, stale_after_s: '1:30'}",
            "proof: memory",
            "scale: {idle_s: 0, warm: 2}",
            "answer_within_s: 800ms",
            "daemon: {listen: '10.0.0.1:7000', workers: 4}",
        ),
    )
    policies = config.policies
    assert policies.ladder.rungs == (RungRule(Rung.PAUSE, 30.0, 90.0), RungRule(Rung.REQUEUE, 120.0))
    assert policies.placement.order is Order.BEST_FIT
    assert (policies.limits.keep_memory_mb, policies.limits.stale_after_s) == (2048, 90.0)
    assert policies.proof is Proof.MEMORY
    assert (policies.scale.idle_s, policies.scale.warm) == (0.0, 2)
    assert policies.answer_within_s == 0.8
    assert (config.daemon.listen, config.daemon.workers) == ("10.0.0.1:7000", 4)


def test_a_host_is_its_own_slurm_node_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    """Left out: the same name. null: no Slurm node. Text: that node."""
    part = (
        "hosts: [{name: a, provider: simulated}, {name: b, provider: simulated, node: null},"
        " {name: c, provider: simulated, node: n3}]"
    )
    config = loaded(tmp_path, text(hosts=part))
    assert [host.node for host in config.hosts] == ["a", None, "n3"]
    assert config.policies.hosts == ("a", "b", "c")


def test_libvirt_hosts_and_their_pool(tmp_path: Path) -> None:
    """The libvirt section is read with its images by name."""
    config = loaded(tmp_path, text(LIBVIRT, hosts=LIBVIRT_HOST))
    assert config.hosts[0].provider is Provider.LIBVIRT
    assert config.libvirt is not None
    assert config.libvirt.images["default"].cmdline == "quiet"
    assert config.libvirt.hardware.domain_type is DomainType.KVM
    assert config.libvirt.surroundings.conf_server == "10.0.0.1:6817"


def test_anchors_and_aliases_may_be_used(tmp_path: Path) -> None:
    """An alias is the value of its anchor."""
    more = "scale: {boot_within_s: &long 7m}\ncomeback: {within_s: *long}"
    config = loaded(tmp_path, text(more))
    assert config.policies.comeback.within_s == config.policies.scale.boot_within_s == 420.0


def test_words_that_yaml_1_1_takes_for_truth_values_are_names(tmp_path: Path) -> None:
    """A partition or a node may be called `no` or `on`."""
    config = loaded(tmp_path, text(priorities="priorities: {low: [no, on, off]}"))
    assert config.policies.priorities.low == ("no", "on", "off")


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(tmp_path: Path) -> None:
    """A file from another system's editor is read like any other."""
    path = tmp_path / "policy.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + text().replace("\n", "\r\n").encode())
    assert load(path).policies.cluster == "c1"


def test_the_line_of_every_key_is_kept(tmp_path: Path) -> None:
    """Later checks against the living cluster can say where the value stands."""
    lines = loaded(tmp_path, text()).lines
    assert (lines["cluster"], lines["hosts[1].name"], lines["instances.addresses"]) == (1, 5, 8)


FOREIGN = """cluster: c
priorities: {low: [htc]}
hosts: [{name: bm1, provider: libvirt, uri: "qemu+tcp://10.0.0.2/system"}]
instances: {names: "vn[1-2]", addresses: 10.0.1.1/16, flavour: {cpus: 1, memory_mb: 512}}
libvirt:
  directory: /srv/b
  bridge: br0
  surroundings: {controller: 10.0.0.1, conf_server: "10.0.0.1:6817", munge_key: /etc/munge/munge.key}
  catalogue: FILE
"""


@pytest.mark.parametrize("named", ["images.yaml", "/etc/shadow", "../secret", "/dev/ptmx"])
def test_a_text_from_outside_has_no_file_opened(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its catalogue is not read, and so nothing of that file is told; all else is checked as ever."""

    def opened(*_: object) -> None:
        raise AssertionError("a file was opened")

    monkeypatch.setattr(catalogue, "read_text", opened)
    text = FOREIGN.replace("FILE", named)
    assert check_text(text, "p.yaml") == []
    (wrong,) = check_text(text.replace("cpus: 1", "cpus: one"), "p.yaml")
    assert str(wrong).startswith("p.yaml:4:")
    assert confined(text, "p.yaml", named) == []
    (refused,) = confined(text, "p.yaml", "our.yaml")
    told = "and a preview reads only the catalogue of the policy file in force; write our.yaml"
    assert str(refused) == f"p.yaml:9:14: libvirt.catalogue is '{named}', {told}"
    (refused,) = confined(text, "p.yaml", "")
    assert "write its images into libvirt.images" in str(refused)
