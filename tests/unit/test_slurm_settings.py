"""Settings with which we cannot work are refused, each with one sentence and a remedy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model.cluster import SlurmSettings, SlurmVersion
from backfill.drivers.slurm.settings import check_settings, read_settings
from backfill.ports.errors import BadOutputError

CONFIG = """Configuration data as of 1795232590
ClusterName             = lab
MaxNodeCount            = 1000
Prolog                  = (null)
PrologSlurmctld         = /usr/local/sbin/hook
SelectType              = select/cons_tres
SelectTypeParameters    = CR_CORE
SlurmdTimeout           = 300 sec
SLURM_VERSION           = 22.05.8

Cgroup Support Configuration:
ClusterName             = other
"""
PARTITIONS = "PartitionName=batch AllowGroups=ALL\nPartitionName=htc AllowGroups=ALL\n"
GOOD = SlurmSettings(SlurmVersion(22, 5, 8), "lab", 0, 1000, "select/cons_tres", raw={"FixedNodes": "2"})


def test_reading() -> None:
    """The values arrive typed; later sections do not hide the first."""
    settings = read_settings(CONFIG, PARTITIONS, fixed_nodes=2)
    assert settings.version == SlurmVersion(22, 5, 8)
    assert settings.cluster == "lab"
    assert settings.slurmd_timeout_s == 300
    assert settings.max_node_count == 1000
    assert settings.partitions == ("batch", "htc")
    assert settings.partitions_raw["htc"] == {"PartitionName": "htc", "AllowGroups": "ALL"}
    assert settings.prolog_slurmctld == "/usr/local/sbin/hook"
    assert settings.prolog == ""


def test_newer_releases_number_their_hooks() -> None:
    """`Prolog[0]`, `Prolog[1]` are all read."""
    config = CONFIG.replace("Prolog                  = (null)", "Prolog[0] = /a\nProlog[1] = /b")
    assert read_settings(config, PARTITIONS, 2).prolog == "/a,/b"


@pytest.mark.parametrize(
    ("lines", "limit"),
    [
        ("PrologEpilogTimeout = 65534", ("PrologEpilogTimeout", 65534)),
        ("PrologEpilogTimeout = Unset", None),
        ("PrologEpilogTimeout = 0", None),
        ("EpilogTimeout = 30 sec\nPrologTimeout = 5 sec", ("PrologTimeout", 5)),
        ("EpilogTimeout = 5 sec\nPrologTimeout = Unset", None),
        ("ClusterName = lab", None),
    ],
)
def test_the_limit_of_hooks_is_read_as_each_release_shows_it(
    lines: str, limit: tuple[str, int] | None
) -> None:
    """From 26.05 on prologs may have another limit than epilogs; only then both are shown."""
    config = CONFIG.replace("MaxNodeCount ", f"{lines}\nMaxNodeCount ")
    assert read_settings(config, PARTITIONS, 2).hook_limit == limit


@pytest.mark.parametrize("line", ["SlurmdTimeout           = 300 sec", "SLURM_VERSION           = 22.05.8"])
def test_a_missing_value_is_an_error(line: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(BadOutputError):
        read_settings(CONFIG.replace(line, ""), PARTITIONS, 2)


def test_nothing_is_said_when_all_is_well() -> None:
    """No timeout, or one longer than every pause, is fine."""
    assert check_settings(GOOD, longest_pause_s=86400) == []
    assert check_settings(replace(GOOD, slurmd_timeout_s=3600), longest_pause_s=3600) == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (replace(GOOD, version=SlurmVersion(21, 8, 8)), ("21.08.8", "22.05")),
        (replace(GOOD, select_type="select/linear"), ("select/linear", "select/cons_tres")),
        (replace(GOOD, select_type=""), ("not set", "select/cons_tres")),
        (replace(GOOD, max_node_count=2), ("MaxNodeCount", "2 of slurm.conf")),
        (replace(GOOD, slurmd_timeout_s=300), ("300 s", "3600 s", "SlurmdTimeout=0")),
    ],
)
def test_each_refusal_is_one_sentence_with_a_remedy(settings: SlurmSettings, words: tuple[str, ...]) -> None:
    """It names the value, what it breaks and what to set."""
    (sentence,) = check_settings(settings, longest_pause_s=3600)
    assert all(word in sentence for word in words)
    assert "\n" not in sentence


def test_all_refusals_are_told_at_once() -> None:
    """An admin does not learn of them one by one."""
    bad = replace(GOOD, select_type="select/linear", max_node_count=0, slurmd_timeout_s=1)
    assert len(check_settings(bad, longest_pause_s=60)) == 3
