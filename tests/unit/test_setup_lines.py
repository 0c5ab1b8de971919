"""`backfill setup`: the lines that it puts into a site's slurm.conf and cgroup.conf."""

from __future__ import annotations

from pathlib import Path

import pytest

from backfill.core.model.cluster import SlurmVersion
from backfill.drivers.slurm.conf.site import SiteError, read_site
from backfill.ui.setup.slurm_lines import BEGIN, Needs, jobs_lost, select_type, with_cgroups, with_our_lines
from tests.unit.test_setup import NEEDS, PLAIN, made_of, site


def test_what_is_missing_is_added_and_what_does_not_do_is_changed() -> None:
    assert made_of(PLAIN).splitlines() == [
        "ClusterName=c  # ours",
        "SlurmctldHost=ctl",
        "SelectType=select/cons_tres",
        "SlurmctldParameters=idle_on_node_suspend,enable_configless",
        "ReturnToService=2",
        "PrologEpilogTimeout=5",
        "NodeName=bm[1-2] CPUs=2",
        "PartitionName=batch Nodes=bm[1-2] Default=YES",
        BEGIN,
        "MaxNodeCount=20",
        "SlurmdTimeout=0",
        "TreeWidth=65533",
        "NodeSet=virtual Feature=backfill",
        "PartitionName=htc Nodes=virtual PriorityTier=1 State=UP",
        "Include backfill.conf",
    ]


def test_a_second_time_nothing_changes() -> None:
    once = made_of(PLAIN)
    assert made_of(once) == once
    more = made_of(once, Needs("htc", "backfill", 40, 3.5))
    assert more == once.replace("MaxNodeCount=20", "MaxNodeCount=40")


def test_a_limit_of_prologs_alone_is_raised_as_well() -> None:
    """From 26.05 on it counts before PrologEpilogTimeout; epilogs keep theirs."""
    own = PLAIN + "\nPrologTimeout=4\nEpilogTimeout=4\n"
    assert "PrologTimeout=5\nEpilogTimeout=4\n" in made_of(own)


def test_the_sites_own_partition_and_node_set_are_used() -> None:
    own = PLAIN + "\nNodeSet=ours Feature=backfill\nPartitionName=htc Nodes=bm1 State=UP\n"
    made = made_of(own)
    assert "PartitionName=htc Nodes=bm1,ours State=UP\n" in made
    assert made.count("NodeSet=") == made.count("PartitionName=htc") == 1


@pytest.mark.parametrize("word", ["ALL", "all"])
def test_a_partition_of_all_nodes_is_left_as_it_is(word: str) -> None:
    """It has dynamic nodes, too, and slurmctld refuses ALL beside another word."""
    for own in (f"PartitionName=htc Nodes={word}", f"PartitionName=DEFAULT Nodes={word}\nPartitionName=htc"):
        assert f"\n{own}\n" in made_of(f"{PLAIN}\n{own}\n")


def test_a_partition_keeps_the_nodes_that_it_inherits() -> None:
    """Of the DEFAULT lines before it, of which the last that says so counts."""
    default = "PartitionName=DEFAULT Nodes=bm1\nPartitionName=Default Nodes=bm[1,2] State=UP\n"
    later = "PartitionName=htc State=UP\nPartitionName=DEFAULT State=UP Nodes=bm2\n"
    made = made_of(f"{PLAIN}\n{default}PartitionName=DEFAULT State=UP\n{later}")
    assert "\nPartitionName=htc State=UP Nodes=bm[1,2],virtual\n" in made
    assert made_of(made) == made


@pytest.mark.parametrize(
    ("written", "becomes"),
    [
        ('PartitionName=htc Nodes="bm1 bm2"\n', "PartitionName=htc Nodes=bm1,bm2,virtual\n"),
        ("SlurmctldParameters=\nSelectType=select/cons_tres\n", "SlurmctldParameters=enable_configless\n"),
        (
            "SlurmctldParameters=cloud_dns,\\\nuser_resv_delete\n",
            "=cloud_dns,user_resv_delete,enable_configless\n",
        ),
        (
            "PartitionName=htc \\\n  State=UP \\\n  Nodes=bm1\n",
            "PartitionName=htc   State=UP   Nodes=bm1,virtual\n",
        ),
        ("PartitionName=htc State=UP # ours\n", "PartitionName=htc State=UP Nodes=virtual  # ours\n"),
        (
            "PartitionName=htc State=UP # no Nodes=bm1 any more\n",
            "PartitionName=htc State=UP Nodes=virtual  # no Nodes=bm1 any more\n",
        ),
        ("TreeWidth=10 ReturnToService=1\n", "TreeWidth=65533 ReturnToService=2\n"),
    ],
)
def test_whatever_slurm_reads_is_changed_where_it_stands(written: str, becomes: str) -> None:
    """Empty values, continued lines and several words of a line; the lines beside it stay."""
    made = made_of(f"ClusterName=c\n{written}NodeName=bm1 CPUs=2\n")
    assert becomes in made
    assert made.startswith("ClusterName=c\n")
    assert "\nNodeName=bm1 CPUs=2\n" in made
    assert "\\\n" not in made
    assert made_of(made) == made


def test_what_an_included_file_says_is_kept_and_overruled(tmp_path: Path) -> None:
    """Of a list nothing is lost, a number that is larger stays, and a partition there is for its admin."""
    conf, more = tmp_path / "slurm.conf", tmp_path / "params.conf"
    text = "ClusterName=c\nMaxNodeCount=5\nInclude params.conf\n"
    more.write_text("SlurmctldParameters=cloud_dns\nMaxNodeCount=5000\nSelectType=select/cons_tres\n")
    made = with_our_lines(text, read_site(conf, tmp_path / "backfill.conf", text), NEEDS)
    assert made.startswith(text)
    assert "\nSlurmctldParameters=cloud_dns,enable_configless\n" in made
    assert made.count("MaxNodeCount") == 1
    assert "SelectType" not in made
    more.write_text("MaxNodeCount=7\nPartitionName=htc Nodes=bm1\n")
    told = "params.conf, line 2: Nodes must be bm1,virtual; change it there"
    with pytest.raises(SiteError, match=told):
        with_our_lines(text, read_site(conf, tmp_path / "backfill.conf", text), NEEDS)


@pytest.mark.parametrize(
    ("now", "text", "version", "jobs", "lost"),
    [
        ("select/cons_tres", "SelectType=select/linear\n", (24, 11), 2, True),
        ("select/cons_tres", "SelectType=select/linear\n", (24, 11), 0, False),
        ("select/cons_tres", "SelectType=select/cons_res\n", (22, 5), 2, False),
        ("select/cons_tres", "ClusterName=c\n", (22, 5), 2, True),
        ("select/cons_tres", "ClusterName=c\n", (23, 11), 2, False),
        ("select/linear", "SelectType=select/linear\n", (22, 5), 2, False),
    ],
)
def test_another_select_type_loses_jobs(
    now: str, text: str, version: tuple[int, int], jobs: int, lost: bool
) -> None:
    assert bool(jobs_lost(now, select_type(site(text), SlurmVersion(*version)), jobs)) is lost


OLD, NEW = SlurmVersion(22, 5, 8), SlurmVersion(24, 11, 5)


def test_cgroup_conf_is_extended_or_changed() -> None:
    made = with_cgroups("ConstrainCores=yes\n", OLD)
    assert made == f"ConstrainCores=yes\n{BEGIN}\nIgnoreSystemdOnFailure=yes\n"
    assert with_cgroups(made, OLD) == made
    assert with_cgroups("IgnoreSystemdOnFailure=no\n", OLD) == "IgnoreSystemdOnFailure=yes\n"


@pytest.mark.parametrize(
    "text",
    [
        "IgnoreSystemdOnFailure=TRUE\n",
        "ConstrainCores=yes ignoresystemdonfailure = 1 # ours\n",
        "IgnoreSystemd=up\n",
        "CgroupPlugin=cgroup/v1\n",
    ],
)
def test_cgroup_conf_that_does_is_left(text: str) -> None:
    """However it is written that slurmd needs no systemd."""
    assert with_cgroups(text, OLD) == text


def test_cgroup_conf_stays_where_it_would_change_the_hosts() -> None:
    """From 24.05 on only IgnoreSystemd helps, on all machines; guests get an image with systemd there."""
    assert with_cgroups("", NEW) == ""
    assert with_cgroups("IgnoreSystemdOnFailure=no\n", NEW) == "IgnoreSystemdOnFailure=no\n"
