"""What `backfill doctor` finds in slurm.conf and cgroup.conf, by each release's way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from backfill.core.model.cluster import SlurmVersion
from backfill.drivers.slurm.conf.site import read_site
from backfill.ui.doctor.examination import examine
from backfill.ui.doctor.findings import Defect, Grade
from tests.component.test_doctor import CONF, _bare, _raw, _site, _slurm, sound


@pytest.mark.parametrize(
    ("cgroups", "version", "mend"),
    [
        ("IgnoreSystemdOnFailure=true\n", (22, 5), ""),
        ("IgnoreSystemd=1\n", (22, 5), ""),
        ("CgroupPlugin=cgroup/v1\n", (24, 11), ""),
        (
            "IgnoreSystemdOnFailure=yes\nIgnoreSystemdOnFailure=no\n",
            (22, 5),
            "write IgnoreSystemdOnFailure=yes",
        ),
        (None, (22, 5), "write IgnoreSystemdOnFailure=yes"),
        ("#IgnoreSystemdOnFailure=yes\n", (23, 11), "write IgnoreSystemdOnFailure=yes"),
        ("IgnoreSystemdOnFailure=yes\n", (24, 5), "write IgnoreSystemd=yes"),
        ("IgnoreSystemd=yes\n", (24, 11), ""),
    ],
)
def test_guests_without_systemd(
    cgroups: str | None, version: tuple[int, int], mend: str, tmp_path: Path
) -> None:
    """Each release has its way to do without; a cgroup.conf that is not there says nothing."""
    facts = _bare(sound(tmp_path))
    assert facts.slurm is not None
    texts = {"slurm.conf": CONF} | ({} if cgroups is None else {"cgroup.conf": cgroups})
    settings = replace(facts.slurm.settings, version=SlurmVersion(*version))
    told = [
        f.mend for f in examine(_slurm(conf=texts, settings=settings)(facts)).all if f.about == "cgroup.conf"
    ]
    assert [mend in one for one in told] == [True] * bool(mend)
    unseen = frozenset({"cgroup.conf"})
    closed = examine(_slurm(conf={"slurm.conf": CONF}, settings=settings, closed=unseen)(facts)).all
    assert all(finding.about != "cgroup.conf" for finding in closed)


# Before there is a node of ours; 22.05 shows no ALL.
_SHOWN = {"Nodes": "bm1,SMALL[1-4]", "State": "UP"}
_SET = {**_SHOWN, "NodeSets": "virtual"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Include more.conf\nPartitionName=htc Nodes=virtual\n", _SET),
        ("NodeSet=virtual \\\n  Feature=backfill\nPartitionName=htc Nodes=bm1,virtual\n", _SET),
        ("PartitionName=htc Nodes=ALL\n", _SHOWN),
        ("PartitionName=DEFAULT Nodes=all\nPartitionName=htc State=UP\n", _SHOWN),
        ("ClusterName=c\n", {**_SHOWN, "NodeSets": "ALL"}),
        ("NodeSet=virtual Nodes=vn[1-8]\nPartitionName=htc Nodes=virtual\n", _SET),
        (None, _SET),
    ],
)
def test_a_partition_that_will_have_our_nodes(
    text: str | None, shown: dict[str, str], tmp_path: Path
) -> None:
    """By whichever file or way of writing; where slurm.conf cannot be read, a node set is believed in."""
    conf = tmp_path / "slurm.conf"
    conf.with_name("more.conf").write_text("NodeSet=virtual Feature=Backfill\n")
    site = None if text is None else read_site(conf, conf.with_name("backfill.conf"), text)
    facts = _slurm(partitions={"htc": shown}, site=site)(sound(tmp_path))
    assert not any(finding.defect is Defect.PARTITION_EMPTY for finding in examine(facts).all)


def test_all_is_a_word_and_no_part_of_one(tmp_path: Path) -> None:
    """SMALL1 is a name of a node like any other."""
    facts = _slurm(partitions={"htc": _SHOWN}, site=_site("PartitionName=htc Nodes=bm1,SMALL[1-4]\n"))
    found = {finding.defect: finding.about for finding in examine(facts(sound(tmp_path))).all}
    assert found[Defect.PARTITION_EMPTY] == "htc"


def test_further_controllers_are_told_of(tmp_path: Path) -> None:
    """One whose files lack ours takes over without our hook; from here they are not seen."""
    hosts = {"SlurmctldHost[0]": "ctl1", "SlurmctldHost[10]": "ctl3", "SlurmctldHost[2]": "ctl2(10.0.0.2)"}
    (found,) = examine(_raw(**hosts)(sound(tmp_path))).all
    assert (found.defect, found.grade) == (Defect.OTHER_CONTROLLER, Grade.ADVICE)
    assert "SlurmctldHost also names ctl2(10.0.0.2), ctl3, whose files are not seen" in found.what
    assert examine(_raw(**{"SlurmctldHost[0]": "ctl1"})(sound(tmp_path))).all == []


def test_one_silent_controller_of_several_is_no_fault(tmp_path: Path) -> None:
    """A guest asks the next one; without any, its slurmd ends."""
    facts = sound(tmp_path)
    libvirt = facts.config.libvirt
    assert libvirt is not None
    both = ("10.0.0.1:6817", "10.0.0.2:6817")
    around = replace(libvirt.surroundings, conf_server=", ".join((*both, both[1])))
    facts = replace(facts, config=replace(facts.config, libvirt=replace(libvirt, surroundings=around)))
    for silent, grade in ((both[1:], Grade.ADVICE), (both, Grade.FAULT)):
        found = examine(replace(facts, controller_problems=dict.fromkeys(silent, "refused"))).all
        assert [(one.defect, one.about, one.grade) for one in found] == [
            (Defect.CONTROLLER_SILENT, server, grade) for server in silent
        ]
