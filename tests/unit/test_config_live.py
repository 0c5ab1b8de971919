"""A policy file that contradicts the living cluster is refused with the reason and the remedy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backfill.config import Config, conflicts, hints, hints_of_file
from backfill.core.model.cluster import Node, NodeBase, SlurmSettings, SlurmVersion
from backfill.core.model.fleet import Host, NumaNode
from backfill.core.model.quantities import Resources
from tests.unit.policy_files import loaded, text

SETTINGS = SlurmSettings(
    version=SlurmVersion(22, 5, 8),
    cluster="c1",
    slurmd_timeout_s=0,
    max_node_count=10,
    select_type="select/cons_tres",
    partitions=("batch", "htc"),
    prolog="/usr/lib/backfill/hook",
)
NODES = {name: Node(name, NodeBase.IDLE, address=f"10.0.0.{i}") for i, name in enumerate(("bm1", "bm2"))}
HOSTS = {name: Host(name, name, Resources(4, 4000)) for name in ("bm1", "bm2")}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Two hosts, four instances, the default ladder."""
    return loaded(tmp_path, text())


def test_a_file_that_fits_has_no_conflicts_and_no_hints(config: Config) -> None:
    """Nothing is said when nothing is wrong."""
    assert conflicts(config, SETTINGS, NODES, HOSTS) == []
    assert hints(config, SETTINGS, NODES, HOSTS) == []


def test_what_a_file_says_in_vain_is_a_hint(tmp_path: Path) -> None:
    """The daemon starts with it: what stands still has to come back."""
    ladder = "[{rung: throttle, cpu_percent: 100, for_s: 9}, {rung: requeue, cpu_percent: 5}]"
    workloads = "workloads: [{name: w, ladder: [{rung: pause, cpu_percent: 7}]}]"
    config = loaded(tmp_path, text(f"ladder: {ladder}", workloads, "daemon: {poll_s: 20}"))
    assert hints(config, SETTINGS, NODES, HOSTS) == hints_of_file(config)
    assert hints_of_file(config) == [
        "line 12: daemon.poll_s is 20 s, and after 15 s without a reading of Slurm nothing counts as seen; "
        "write 10 s or less",
        "line 10: ladder[0].cpu_percent is 100, which slows nothing down; write 99 or less",
        "line 10: ladder[1].cpu_percent has no meaning for requeue, only for throttle; remove it",
        "line 11: workloads[0].ladder[0].cpu_percent has no meaning for pause, only for throttle; remove it",
    ]


def test_a_host_whose_node_slurm_does_not_know(config: Config) -> None:
    """The line of the host, and the node that was probably meant."""
    nodes = {"bm1": NODES["bm1"], "bm02": NODES["bm2"]}
    assert conflicts(config, SETTINGS, nodes, HOSTS) == [
        "line 5: hosts[1].node is bm2, and Slurm has no such node; did you mean bm02? Write "
        "node: null for a host that is no Slurm node"
    ]


def test_a_host_without_a_node_needs_none(tmp_path: Path) -> None:
    """`node: null` is never looked up."""
    config = loaded(tmp_path, text(hosts="hosts: [{name: x, provider: simulated, node: null}]"))
    assert conflicts(config, SETTINGS, NODES, {}) == []


def test_partitions_that_do_not_exist(config: Config) -> None:
    """Low and high alike."""
    settings = replace(SETTINGS, partitions=("batch2", "long"))
    found = conflicts(config, settings, NODES, HOSTS)
    assert found == [
        "line 2: priorities.low[0] is htc, and Slurm has no such partition; Partitions: batch2, long",
        "line 2: priorities.high[0] is batch, and Slurm has no such partition; did you mean "
        "batch2? Partitions: batch2, long",
    ]


def test_a_workload_in_a_partition_that_does_not_exist(tmp_path: Path) -> None:
    """Its pilots would be like any other job, and wait for longer than their pool does."""
    inner = "workloads: [{name: p, like: ospool, partitions: [htc]}, {name: q, partitions: [hct]}]"
    assert conflicts(loaded(tmp_path, text(inner)), SETTINGS, NODES, HOSTS) == [
        "line 10: workloads[1].partitions[0] is hct, and Slurm has no such partition; did you mean htc? "
        "Partitions: batch, htc"
    ]


def test_another_cluster_is_not_touched(config: Config) -> None:
    """The file's cluster and Slurm's must be the same, in any case of letters."""
    assert conflicts(config, replace(SETTINGS, cluster="C1"), NODES, HOSTS) == []
    (found,) = conflicts(config, replace(SETTINGS, cluster="big"), NODES, HOSTS)
    assert found.startswith("line 1: cluster is c1, but this Slurm's ClusterName is big; ")


def test_an_address_that_a_node_already_has(config: Config) -> None:
    """Our own nodes may be there with their own addresses; others may not have them."""
    ours = {**NODES, "vn2": Node("vn2", NodeBase.IDLE, address="10.0.1.2")}
    assert conflicts(config, SETTINGS, ours, HOSTS) == []
    theirs = {**NODES, "login": Node("login", NodeBase.IDLE, address="10.0.1.2")}
    assert conflicts(config, SETTINGS, theirs, HOSTS) == [
        "line 8: instances.addresses gives 10.0.1.2 to vn2, but Slurm's node login has that "
        "address; choose a range that is free"
    ]


def test_slurm_must_have_room_for_all_nodes(config: Config) -> None:
    """Nodes of ours that exist already are not counted twice."""
    ours = {**NODES, "vn1": Node("vn1", NodeBase.IDLE)}
    assert conflicts(config, replace(SETTINGS, max_node_count=6), ours, HOSTS) == []
    (found,) = conflicts(config, replace(SETTINGS, max_node_count=5), ours, HOSTS)
    assert "MaxNodeCount is 5; set MaxNodeCount=6 or more in slurm.conf" in found


def test_a_stop_that_outlasts_slurmdtimeout(config: Config) -> None:
    """The remedy names the rung and the time that would fit."""
    assert conflicts(config, replace(SETTINGS, slurmd_timeout_s=14600), NODES, HOSTS) == []
    assert conflicts(config, replace(SETTINGS, slurmd_timeout_s=300), NODES, HOSTS) == [
        "ladder lets an instance stand still for up to 14521 s, and Slurm gives a silent node up "
        "after SlurmdTimeout = 300 s; set SlurmdTimeout=0 in slurm.conf, or shorten "
        "ladder[1].for_s (suspend) to 178 s or less"
    ]


@pytest.mark.parametrize("limit_s", [120, 300, 5000])
def test_the_remedy_for_a_long_stop_is_a_remedy(tmp_path: Path, limit_s: int) -> None:
    """A file changed as the sentence says has no conflict any more."""
    ladder = "ladder: [{rung: pause, within_s: 1, for_s: 60}, {rung: suspend, for_s: FOR}, {rung: requeue}]"
    settings = replace(SETTINGS, slurmd_timeout_s=limit_s)
    (found,) = conflicts(loaded(tmp_path, text(ladder.replace("FOR", "4h"))), settings, NODES, HOSTS)
    fits = found.partition("(suspend) to ")[2].partition(" or less")[0]
    changed = loaded(tmp_path, text(ladder.replace("FOR", fits)))
    assert conflicts(changed, settings, NODES, HOSTS) == []


def test_a_stop_without_limit_needs_a_timeout_of_zero(tmp_path: Path) -> None:
    """A rung without for_s lasts as long as the host is busy."""
    config = loaded(tmp_path, text("ladder: [{rung: suspend}]"))
    assert conflicts(config, SETTINGS, NODES, HOSTS) == []
    (found,) = conflicts(config, replace(SETTINGS, slurmd_timeout_s=300), NODES, HOSTS)
    assert found.startswith("line 10: ladder lets an instance stand still without limit, ")
    end = "end the ladder with {rung: requeue}"
    assert found.endswith(f", or {end} and set ladder[0].for_s (suspend) to 269 s or less")


def test_a_ladder_that_does_not_end_lets_instances_stand_still_for_ever(tmp_path: Path) -> None:
    """Its rungs are short, and after the last one nothing is destroyed: only the end is missing."""
    rungs = "{rung: pause, within_s: 1, for_s: 60}"
    settings = replace(SETTINGS, slurmd_timeout_s=300)
    (found,) = conflicts(loaded(tmp_path, text(f"ladder: [{rungs}]")), settings, NODES, HOSTS)
    assert "stand still without limit" in found
    assert found.endswith(", or end the ladder with {rung: requeue}")
    ended = loaded(tmp_path, text(f"ladder: [{rungs}, {{rung: requeue}}]"))
    assert conflicts(ended, settings, NODES, HOSTS) == []


def test_a_timeout_that_no_single_rung_can_meet(config: Config) -> None:
    """Only what helps is proposed."""
    (found,) = conflicts(config, replace(SETTINGS, slurmd_timeout_s=20), NODES, HOSTS)
    assert found.endswith("set SlurmdTimeout=0 in slurm.conf")


def test_a_hook_must_answer_before_slurm_kills_it(config: Config) -> None:
    """A killed prolog would fail the job."""
    slow = replace(SETTINGS, raw={"PrologEpilogTimeout": "10 sec"})
    assert conflicts(config, slow, NODES, HOSTS) == []
    (found,) = conflicts(config, replace(slow, raw={"PrologEpilogTimeout": "1"}), NODES, HOSTS)
    assert "after PrologEpilogTimeout = 1 s" in found
    own = {"EpilogTimeout": "30 sec", "PrologTimeout": "1 sec"}
    (found,) = conflicts(config, replace(slow, raw=own), NODES, HOSTS)
    assert "after PrologTimeout = 1 s" in found


def test_a_hook_on_the_hosts_must_not_look_like_a_lost_job(tmp_path: Path) -> None:
    """A slurmd that registers during a Prolog knows nothing of the job yet."""
    short = replace(SETTINGS, raw={"BatchStartTimeout": "10 sec"})
    more = "answer_within_s: 20\nslurm: {hooks: {place: host}}\n"
    (found,) = hints(loaded(tmp_path, text(more)), short, NODES, HOSTS)
    assert "may hold a job on its host for 21.5 s" in found
    assert found.endswith("write BatchStartTimeout=31 into slurm.conf")
    long = replace(SETTINGS, raw={"BatchStartTimeout": "31 sec"})
    assert hints(loaded(tmp_path, text(more)), long, NODES, HOSTS) == []
    in_slurmctld = more.replace("host", "slurmctld")
    assert hints(loaded(tmp_path, text(in_slurmctld)), short, NODES, HOSTS) == []


def test_one_silent_host_is_a_hint_and_none_that_answers_is_a_conflict(config: Config) -> None:
    """The daemon must be able to start while one of many hosts is down."""
    silent = replace(HOSTS["bm1"], reachable=False, problem="connection refused")
    one = {**HOSTS, "bm1": silent}
    assert conflicts(config, SETTINGS, NODES, one) == []
    assert hints(config, SETTINGS, NODES, one) == ["host bm1 cannot be reached now: connection refused"]
    (found,) = conflicts(config, SETTINGS, NODES, {"bm1": silent})
    assert found == (
        "line 4: hosts[0].uri: host bm1 cannot be reached: connection refused; is its hypervisor up?"
    )


def test_an_instance_must_fit_at_least_one_host(tmp_path: Path) -> None:
    """What limits.keep_* holds back is not there for instances; silent hosts prove nothing."""
    config = loaded(tmp_path, text("limits: {keep_memory_mb: 3600}"))
    (found,) = conflicts(config, SETTINGS, NODES, HOSTS)
    assert found.startswith("line 9: instances.flavour takes 2 CPUs and 512 MB, more than any ")
    assert "(the largest: 4 CPUs and 400 MB," in found
    assert conflicts(config, SETTINGS, NODES, {}) == []


def test_no_hook_is_a_hint(config: Config) -> None:
    """Without a hook in either place the job starts before its room is free."""
    (found,) = hints(config, replace(SETTINGS, prolog=""), NODES, HOSTS)
    assert "install the eviction hook" in found
    assert hints(config, replace(SETTINGS, prolog="", prolog_slurmctld="/h"), NODES, HOSTS) == []


def test_what_a_release_cannot_do_is_said_at_the_start(tmp_path: Path, config: Config) -> None:
    """A release newer than all that were tested, and one that pyslurm does not talk to."""
    newer = replace(SETTINGS, version=SlurmVersion(27, 5, 0))
    (found,) = hints(config, newer, NODES, HOSTS)
    assert found == "this is Slurm 27.05.0, and 26.05 is the newest with which backfill is tested"
    library = loaded(tmp_path, text("slurm: {read: pyslurm}"))
    (found,) = hints(library, SETTINGS, NODES, HOSTS)
    assert "slurm.read is pyslurm, which talks to Slurm 25.11 and later" in found
    assert hints(library, replace(SETTINGS, version=SlurmVersion(26, 5, 5)), NODES, HOSTS) == []


def test_what_jobs_with_devices_will_miss_is_said_at_the_start(tmp_path: Path) -> None:
    """A start that nobody holds, functions that no host has, rungs that a paused guest skips."""
    devices = "devices: [{name: vf, functions: 2}, {name: shm, region_mb: 64}]"
    config = loaded(tmp_path, text(devices))
    early, few, ladder = hints(config, SETTINGS, NODES, HOSTS)
    assert "first command may come before its devices" in early
    assert "devices.entries[0].functions is 2, and libvirt shows no more than 0 on any" in few
    assert "jobs with devices skip suspend after pause" in ladder
    held = replace(SETTINGS, prolog_slurmctld="/usr/lib/backfill/hook")
    with_cards = {name: replace(host, functions=2) for name, host in HOSTS.items()}
    assert hints(config, held, NODES, with_cards) == [ladder]
    # A prolog on the hosts is one in the guests as well, which asks where it can reach us.
    listening = "daemon: {listen: '10.0.0.1:6833'}\nslurm: {hooks: {place: host}}"
    by_guests = loaded(tmp_path, text(f"{devices}\n{listening}"))
    assert hints(by_guests, SETTINGS, NODES, with_cards) == [ladder]
    on_disk = loaded(tmp_path, text(f"{devices}\nladder: [{{rung: suspend}}, {{rung: requeue}}]"))
    assert hints(on_disk, held, NODES, with_cards) == []


def test_an_instance_larger_than_every_numa_node_needs_a_word(tmp_path: Path) -> None:
    """The file would never make one; it says so before it is used, unless one host can carry it."""
    halves = (NumaNode(0, 1, 2000), NumaNode(1, 1, 2000))
    small = {name: replace(host, numa=halves) for name, host in HOSTS.items()}
    (found,) = conflicts(loaded(tmp_path, text()), SETTINGS, NODES, small)
    assert found == (
        "line 9: instances.flavour takes 2 CPUs and 512 MB, more than any NUMA node of a reachable host "
        "has for instances; make it smaller, or write placement.larger_than_numa: span"
    )
    one = {**small, "bm2": replace(HOSTS["bm2"], numa=(NumaNode(0, 2, 2000),))}
    assert conflicts(loaded(tmp_path, text()), SETTINGS, NODES, one) == []
    assert conflicts(loaded(tmp_path, text()), SETTINGS, NODES, {**small, "bm2": HOSTS["bm2"]}) == []
