"""Slurm's own power saving: hosts that it would switch off under instances are a conflict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backfill.config import Config, conflicts, hints
from backfill.config.power import switched_off
from backfill.core.model.cluster import Node, NodeBase, SlurmSettings, SlurmVersion
from tests.unit.policy_files import loaded, text
from tests.unit.test_config_live import HOSTS, SETTINGS

SAVES = {"SuspendProgram": "/off", "ResumeProgram": "/on", "SuspendTime": "600 sec"}
NODES = {
    name: Node(name, NodeBase.IDLE, address=f"10.0.0.{i}", partitions=("batch", "all"))
    for i, name in enumerate(("bm1", "bm2", "bm3"))
}
# Our own are excepted, so that only the hosts are told about.
KEEPS_OURS = {"htc": {"SuspendTime": "INFINITE"}}


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Hosts bm1 and bm2, instances vn1 to vn4."""
    return loaded(tmp_path, text())


def _settings(parts: dict[str, dict[str, str]] | None = None, /, **raw: str) -> SlurmSettings:
    return replace(SETTINGS, raw={**SAVES, **raw}, partitions_raw={**KEEPS_OURS, **(parts or {})})


def test_idle_hosts_would_be_switched_off(config: Config) -> None:
    """A harvested host is IDLE to Slurm for as long as no job of its own runs there."""
    assert conflicts(config, _settings(), NODES, HOSTS) == [
        "line 4: hosts[0].node is bm1, and Slurm switches off bm[1-2] under running instances, as it is idle "
        "to Slurm (SuspendTime=600); add bm[1-2] to SuspendExcNodes in slurm.conf"
    ]
    assert hints(config, _settings(), NODES, HOSTS) == []


@pytest.mark.parametrize(
    "raw",
    [
        {"SuspendTime": "INFINITE"},
        {"SuspendTime": "31536000 sec"},  # of our own file
        {"SuspendProgram": ""},
        {"ResumeProgram": ""},
        {"SuspendExcNodes": "bm[1-2]"},
        {"SuspendExcNodes": "bm[1-3]:3"},
        {"SuspendExcParts": "gpu,all"},
    ],
)
def test_hosts_that_stay_on(config: Config, raw: dict[str, str]) -> None:
    """No power saving, or none for them."""
    assert conflicts(config, _settings(**raw), NODES, HOSTS) == []


def test_counts_of_nodes_that_stay_on() -> None:
    """Slurm chooses which of them, unless all are meant; to 22.05 a count is for all words before it."""
    nodes = list(NODES.values())

    def off(excepted: str, version: SlurmVersion) -> list[str]:
        settings = replace(_settings(SuspendExcNodes=excepted), version=version)
        return sorted(switched_off(settings, NODES, nodes))

    old, new = SlurmVersion(22, 5, 8), SlurmVersion(24, 11, 5)
    assert off("bm[1-2]:1", old) == off("bm[1-2]:1", new) == ["bm1", "bm2", "bm3"]
    assert off("bm1:1,bm[2,3]:2", old) == off("bm1:1,bm[2,3]:2", new) == []
    assert off("bm1,bm[2-3]:2", old) == ["bm1", "bm2", "bm3"]
    assert off("bm1,bm[2-3]:1", new) == ["bm2", "bm3"]
    assert off("nodeset", new) == []
    assert off("nodeset", old) == ["bm1", "bm2", "bm3"]


@pytest.mark.parametrize(
    ("excepted", "names"),
    [("racks", "bm[1-2]"), ("bm1,racks", "bm2"), ("bm[1,9],racks:2", "bm2"), ("bm[1-9],racks", "")],
)
def test_a_word_that_is_no_node_may_be_a_node_set(config: Config, excepted: str, names: str) -> None:
    """Nobody tells which nodes it has: only a hint, and only of the hosts that are not named beside it."""
    settings = replace(_settings(SuspendExcNodes=excepted), version=SlurmVersion(24, 11, 5))
    assert conflicts(config, settings, NODES, HOSTS) == []
    assert hints(config, settings, NODES, HOSTS) == [
        f"line 3: hosts: Slurm switches off {names} under running instances (SuspendTime=600) unless racks "
        f"of SuspendExcNodes, which is no node, is a node set with {names}; otherwise add {names} there"
    ] * bool(names)


def test_the_longest_time_of_its_partitions_counts_for_a_node(config: Config) -> None:
    """And the cluster's own time where no partition has one."""
    one = _settings({"all": {"SuspendTime": "INFINITE"}, "batch": {"SuspendTime": "60"}})
    assert conflicts(config, one, NODES, HOSTS) == []
    short = _settings({"all": {"SuspendTime": "GLOBAL"}, "batch": {"SuspendTime": "60"}})
    assert "(SuspendTime=60)" in conflicts(config, short, NODES, HOSTS)[0]
    only = _settings({"batch": {"SuspendTime": "60"}}, SuspendTime="INFINITE")
    assert "(SuspendTime=60)" in conflicts(config, only, NODES, HOSTS)[0]


def test_a_partition_that_switches_off_after_each_job(config: Config) -> None:
    """Nothing that is excepted helps there."""
    settings = _settings({"batch": {"PowerDownOnIdle": "YES"}}, SuspendExcParts="batch")
    (found,) = conflicts(config, settings, NODES, HOSTS)
    assert found.endswith("; take PowerDownOnIdle from partition batch in slurm.conf")


def test_our_own_nodes_are_told_of_in_a_hint(config: Config) -> None:
    """They come back, only later: so the daemon starts."""
    settings = replace(_settings(SuspendExcParts="batch"), partitions_raw={})
    assert conflicts(config, settings, NODES, HOSTS) == []
    assert hints(config, settings, NODES, HOSTS) == [
        "line 7: instances.names: Slurm would power down vn[1-4] whenever idle (SuspendTime=600), by a "
        "program that knows no instances; write SuspendTime=INFINITE at partition htc in slurm.conf"
    ]
    excepted = replace(settings, raw={**settings.raw, "SuspendExcStates": "DRAIN,DYNAMIC_NORM"})
    assert hints(config, excepted, NODES, HOSTS) == []
