"""What must hold between the values of one policy file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.policy_files import LIBVIRT, LIBVIRT_HOST, sentences, text

FLAVOUR = "flavour: {cpus: 1, memory_mb: 256}"
INSTANCES = [
    (f"names: vn[1-4, addresses: 10.0.1.1/16, {FLAVOUR}", "YAML"),
    (f'names: "vn[4-1]", addresses: 10.0.1.1/16, {FLAVOUR}', "the range '4-1' is empty"),
    (f'names: "", addresses: 10.0.1.1/16, {FLAVOUR}', "names no node"),
    (f"names: [], addresses: 10.0.1.1/16, {FLAVOUR}", "names no node"),
    (f'names: [vn1, "vn[1-2]"], addresses: 10.0.1.1/16, {FLAVOUR}', "names vn1 twice"),
    (f'names: "v[1-65534]", addresses: 10.0.1.1/8, {FLAVOUR}', "more than Slurm can have"),
    (f'names: "-x", addresses: 10.0.1.1/16, {FLAVOUR}', "'-x', which is no name"),
    (f"names: [vn1, [vn2]], addresses: 10.0.1.1/16, {FLAVOUR}", "has a list"),
    (f"names: bm1, addresses: 10.0.1.1/16, {FLAVOUR}", "has bm1, which is the node of host bm1"),
    (f"names: vn1, addresses: 10.0.1.1, {FLAVOUR}", "lacks its network's prefix"),
    (f"names: vn1, addresses: here, {FLAVOUR}", "is 'here', which is no IP address"),
    (f"names: vn1, addresses: 10.0.300.1/16, {FLAVOUR}", "which is no IP address"),
    (f"names: vn1, addresses: 10.0.0.0/16, {FLAVOUR}", "no machine can have"),
    (f"names: vn1, addresses: {{a: 1}}, {FLAVOUR}", "is a section with keys of its own"),
    (f"names: [a, b], addresses: [10.0.1.1/16], {FLAVOUR}", "has 1 addresses for 2 names"),
    (f"names: [a, b], addresses: [10.0.1.1/16, 10.0.1.1/16], {FLAVOUR}", "10.0.1.1/16 twice"),
    (f"names: [a, b], addresses: [10.0.1.1/16, 10.0.1.1/24], {FLAVOUR}", "belongs to a"),
    (f'names: "v[1-9]", addresses: 10.0.1.250/24, {FLAVOUR}', "no address left for v6"),
    ("names: vn1, addresses: 10.0.1.1/16, flavour: {cpus: 1, memory_mb: 40}", "48 MB of memory_mb"),
    ("names: vn1, addresses: 10.0.1.1/16, flavour: {cpus: 0, memory_mb: 256}", "more than 0"),
    ("names: vn1, addresses: 10.0.1.1/16, flavour: {cpus: 1}", "memory_mb is missing"),
    ("names: vn1, addresses: 10.0.1.1/16, flavour: 3", "is the number 3; write the keys cpus"),
]


@pytest.mark.parametrize(("inner", "words"), INSTANCES)
def test_names_addresses_and_flavour_are_checked(tmp_path: Path, inner: str, words: str) -> None:
    """One sentence, in the line of the instances."""
    found = sentences(tmp_path, text(instances=f"instances: {{{inner}}}"))
    assert len(found) == 1
    assert found[0].startswith("policy.yaml:6:")
    assert words in found[0]


LADDERS = [
    ("[]", "ladder is empty; give at least one rung, such as {rung: requeue}"),
    ("[{rung: requeue}, {rung: pause}]", "ladder[0].rung is requeue, and ladder[1] would never"),
    ("[{rung: pause}, {rung: pause}]", "ladder[1].rung is pause, as ladder[0] already is"),
    ("[{rung: suspend}, {rung: pause}]", "ladder[1].rung is pause, after suspend"),
    ("[{rung: requeue, for_s: 5}]", "ladder[0].for_s has no meaning for requeue"),
    ("[{rung: migrate, for_s: 5}]", "ladder[0].for_s has no meaning for migrate"),
    ("[{rung: cancel}]", "the text 'cancel'; write throttle, pause, suspend, migrate or requeue"),
    ("[{rung: pause}, {rung: throttle}]", "ladder[1].rung is throttle, after a rung that has"),
    ("[{within_s: 5}]", "ladder[0].rung is missing; add it: throttle, pause, suspend"),
    ("[{rung: pause, within_s: 0}]", "ladder[0].within_s is 0; it must be more than 0"),
    ("[pause]", "ladder[0] is the text 'pause'; write the keys rung, within_s, for_s"),
    ("pause", "ladder is the text 'pause'; write a list, each item the keys rung"),
]


def test_what_is_compared_with_all_before_it_is_limited(tmp_path: Path) -> None:
    """What a few kilobytes of text can cost whoever checks it has an end."""
    entries = ", ".join(f"{{name: n{number}, users: [u{number}]}}" for number in range(5001))
    (found,) = sentences(tmp_path, text(f"workloads: [{entries}]"))
    assert "workloads has 5001 entries" in found
    assert "write 5000 or fewer" in found


def test_hundreds_of_workloads_are_compared_with_the_first_ones(tmp_path: Path) -> None:
    """One for each of many users is no mistake; a name that comes twice is found anywhere."""
    entries = [f"{{name: n{number}, users: [u{number}]}}" for number in range(400)]
    assert sentences(tmp_path, text(f"workloads: [{', '.join(entries)}]")) == []
    entries[399] = "{name: n350, users: [u7]}"
    twice, empty = sentences(tmp_path, text(f"workloads: [{', '.join(entries)}]"))
    assert "workloads[399].name is n350, as workloads[350].name already is" in twice + empty
    assert "workloads[399] has no jobs, because an entry before it has all of them" in twice + empty


def test_the_names_of_all_hostlists_are_limited(tmp_path: Path) -> None:
    """A few characters stand for thousands of names, in each of many networks."""
    networks = ", ".join(f'{{name: n{number}, bridge: b, nodes: "v[1-65533]"}}' for number in range(6))
    found = sentences(tmp_path, text(f"own_machines: {{networks: [{networks}]}}"))
    assert "own_machines.networks[5].nodes comes after hostlists with 327665 names" in found[0]


@pytest.mark.parametrize(("ladder", "words"), LADDERS)
def test_a_ladder_must_be_climbable(tmp_path: Path, ladder: str, words: str) -> None:
    """Each rung once, in an order in which each can be reached, with keys that mean something."""
    found = sentences(tmp_path, text(f"ladder: {ladder}"))
    assert len(found) == 1
    assert found[0].startswith("policy.yaml:10:")
    assert words in found[0]


def test_reading_by_rest_needs_its_socket(tmp_path: Path) -> None:
    """And a way of reading that there is not is refused with those that there are."""
    assert sentences(tmp_path, text("slurm: {read: rest, rest_socket: /run/rest.sock}")) == []
    (found,) = sentences(tmp_path, text("slurm: {read: rest}"))
    assert "slurm.rest_socket is not set, and slurm.read is rest" in found
    (found,) = sentences(tmp_path, text("slurm: {read: yaml}"))
    assert "write auto, text, json, rest or pyslurm" in found


def test_proof_of_memory_needs_a_pause_that_ends(tmp_path: Path) -> None:
    """An endless pause would keep the memory that the proof waits for."""
    found = sentences(tmp_path, text("proof: memory", "ladder: [{rung: pause}]"))
    assert found == [
        "policy.yaml:11:10: ladder[0].for_s is not set, so a paused instance would keep the memory "
        "that proof asks for; set it, or use proof: cpu"
    ]


LIBVIRTS = [
    (text(hosts=LIBVIRT_HOST), "libvirt is missing, but host bm1 has provider: libvirt"),
    (
        text(LIBVIRT, hosts="hosts: [{name: bm1, provider: libvirt}]"),
        "hosts[0].uri is missing for a libvirt host",
    ),
    (
        text(LIBVIRT.replace("default:", "other:"), hosts=LIBVIRT_HOST),
        "instances.image is default, which libvirt.images does not have; images there: other",
    ),
    (
        text(LIBVIRT, hosts=LIBVIRT_HOST.replace("qemu+tcp", "http")),
        "hosts[0].uri is 'http://10.0.0.11/system', which is not a libvirt address",
    ),
    (
        text(LIBVIRT, hosts=LIBVIRT_HOST.replace("10.0.0.11", "10.0.1.3")),
        "instances.addresses gives 10.0.1.3 to vn3, but it belongs to host bm1",
    ),
    (
        text(LIBVIRT.replace("controller: 10.0.0.1", "controller: 10.0.1.2"), hosts=LIBVIRT_HOST),
        "gives 10.0.1.2 to vn2, but it belongs to libvirt.surroundings.controller",
    ),
    (
        text(LIBVIRT.replace(":6817", ":6817,10.0.1.3:6817"), hosts=LIBVIRT_HOST),
        "gives 10.0.1.3 to vn3, but it belongs to libvirt.surroundings.conf_server",
    ),
    (
        text(LIBVIRT.replace(":6817", ":6817, 10.0.1.3:6817"), hosts=LIBVIRT_HOST),
        "gives 10.0.1.3 to vn3, but it belongs to libvirt.surroundings.conf_server",
    ),
    (
        text(LIBVIRT.replace(":6817", ":6817,10.0.0.1:06817"), hosts=LIBVIRT_HOST),
        "which has 10.0.0.1:06817 twice; write an IP address with a port",
    ),
    (
        text(LIBVIRT.replace(":6817", ":6817, 10.0.0.2"), hosts=LIBVIRT_HOST),
        "which is not an address with a port, nor several separated by commas",
    ),
    *(
        (
            text(LIBVIRT.replace("10.0.0.1:6817", wrong), hosts=LIBVIRT_HOST),
            f"conf_server is '{wrong}', which is not an address with a port",
        )
        for wrong in ("fd00::1:6817", "[fd00::1]", "[10.0.0.1]:6817", "[fd00::1:6817", "10.0.0.1:0")
    ),
    (
        text(LIBVIRT.replace("controller: 10.0.0.1", "controller: head"), hosts=LIBVIRT_HOST),
        "libvirt.surroundings.controller is 'head', which is not an IP address",
    ),
    (
        text(LIBVIRT.replace(", munge_key: /etc/munge.key", ""), hosts=LIBVIRT_HOST),
        "libvirt.surroundings.munge_key is missing; name the cluster's munge key, or Slurm's own",
    ),
    (
        text(LIBVIRT.replace("munge_key:", "slurm_key: /k, munge_key:"), hosts=LIBVIRT_HOST),
        "libvirt.surroundings.slurm_key is set beside munge_key, and Slurm has one of them",
    ),
    (text(LIBVIRT.replace("default:", "a b:"), hosts=LIBVIRT_HOST), "libvirt.images.'a b' is not a name"),
]


@pytest.mark.parametrize(("content", "words"), LIBVIRTS)
def test_libvirt_hosts_need_a_pool_that_fits(tmp_path: Path, content: str, words: str) -> None:
    """Each host its address, the pool its image, nobody another's address."""
    found = sentences(tmp_path, content)
    assert len(found) == 1
    assert words in found[0]


NUMA = [
    ("numa: {memory: strict}", "", "libvirt.numa.memory is strict, and libvirt.numa.bind is none: no memory"),
    ("numa: {bind: cpu}", "", "libvirt.numa.bind is the text 'cpu'; write none or node"),
    ("numa: {bind: node, memory: near}", "", "memory is the text 'near'; write preferred or strict"),
    (
        "",
        "placement: {larger_than_numa: span}",
        "larger_than_numa is span, and no instance is bound to a NUMA",
    ),
    ("numa: {bind: node}", "placement: {larger_than_numa: no}", "larger_than_numa"),
]


@pytest.mark.parametrize(("inner", "outer", "words"), NUMA)
def test_how_instances_are_bound_is_said_where_they_are_bound(
    tmp_path: Path, inner: str, outer: str, words: str
) -> None:
    """Each nonsense with its line; what fits together is taken."""
    good = text(f"{LIBVIRT}  numa: {{bind: node, memory: strict}}\n", hosts=LIBVIRT_HOST)
    assert sentences(tmp_path, good + "placement: {larger_than_numa: span}\n") == []
    (found,) = sentences(tmp_path, text(f"{LIBVIRT}  {inner}\n{outer}", hosts=LIBVIRT_HOST))
    assert words in found
    assert found.startswith("policy.yaml:1")


def test_clouds_bind_by_their_flavours(tmp_path: Path) -> None:
    """A file without a host of libvirt has nothing to bind."""
    (found,) = sentences(tmp_path, text(f"{LIBVIRT}  numa: {{bind: node}}"))
    assert found == (
        "policy.yaml:16:10: libvirt.numa.bind is node, and no host has provider: libvirt; "
        "leave it out: a cloud binds by its flavours"
    )


NETWORKS = [
    ("{name: lan}", "networks[0] gives no host network lan; set bridge for hosts of libvirt"),
    ("{name: lan, cloud: lan}", "networks[0] gives no host network lan"),
    (
        "{name: lan, bridge: b}, {name: lan, bridge: c}",
        "networks[1].name is lan again; name each network once",
    ),
    ("{name: lan, bridge: b, nodes: vn9}", "has vn9, which is not in instances.names"),
    ("{name: a, bridge: b, nodes: vn1}, {name: c, bridge: d, nodes: vn1}", "is kept for network a already"),
    ("{name: a b, bridge: b}", "networks[0].name"),
    ("{name: lan, bridge: b, user: ada}", "user"),
]


@pytest.mark.parametrize(("entries", "words"), NETWORKS)
def test_networks_are_checked(tmp_path: Path, entries: str, words: str) -> None:
    """Each is somewhere, once, and has names of its own."""
    own = f"own_machines: {{enabled: true, networks: [{entries}]}}"
    (found,) = sentences(tmp_path, text(LIBVIRT, own, hosts=LIBVIRT_HOST))
    assert words in found
