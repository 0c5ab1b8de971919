"""slurm.conf as a site writes it: includes, continued lines, and what a dry start may have of it."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from backfill.drivers.slurm.commands import SlurmTools
from backfill.drivers.slurm.conf.dry import DryVerdict, dry_start
from backfill.drivers.slurm.conf.site import Site, SiteError, inlined, read_site


def site(folder: Path, text: str) -> Site:
    (folder / "slurm.conf").write_text(text)
    return read_site(folder / "slurm.conf", folder / "backfill.conf")


def test_an_include_may_name_the_cluster(tmp_path: Path) -> None:
    """Slurm puts ClusterName, in lower case, in the place of %c (slurm.conf(5), INCLUDE MODIFIERS)."""
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/one_nodes.conf").write_text("NodeName=bm1 CPUs=2\n")
    found = site(tmp_path, "ClusterName=One\nInclude conf.d/%c_nodes.conf\nInclude backfill.conf\n")
    assert set(found.nodes()) == {"bm1"}
    assert found.include is not None
    with pytest.raises(SiteError, match=r"/two_nodes\.conf: cannot be read"):
        site(tmp_path, "ClusterName=two\nInclude conf.d/%c_nodes.conf\n")


def test_continued_lines_are_joined_as_slurm_joins_them(tmp_path: Path) -> None:
    """Nothing comes in the place of a backslash; two of them are none, and a comment ends before them."""
    found = site(tmp_path, "NodeName=bm[1-\\\n2] \\  \n CPUs=2\nA=1\\\\\nB=2 # no \\\nC=3\n")
    assert set(found.nodes()) == {"bm1", "bm2"}
    assert [(line.number, line.last) for line in found.lines] == [(1, 3), (4, 4), (5, 5), (6, 6)]
    assert found.value("CPUs") == "2"


def test_what_slurm_conf_would_hold_is_read_with_what_it_includes(tmp_path: Path) -> None:
    (tmp_path / "more.conf").write_text("SelectType=select/linear\n")
    conf, managed = tmp_path / "slurm.conf", tmp_path / "backfill.conf"
    conf.write_text("SelectType=select/cons_tres\n")
    text = "Include more.conf\nInclude backfill.conf\n"
    assert read_site(conf, managed, text).value("SelectType") == "select/linear"
    assert inlined(conf, managed, "# ours\n", text) == "SelectType=select/linear\n# ours\n"


def tried(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str, **instead: str) -> dict[str, str]:
    """What a dry start of this slurm.conf is given to read, by file."""
    found: dict[str, str] = {}

    def run(self: SlurmTools, argv: list[str], *_: object) -> str:
        place = Path(argv[-1].partition("slurmctld -D -c -f ")[2].partition("/slurm.conf")[0])
        found.update({path.name: path.read_text() for path in place.iterdir() if path.is_file()})
        return "Running as primary controller\n"

    monkeypatch.setattr(SlurmTools, "run", run)
    (folder / "slurm.conf").write_text(text)
    there = {name.replace("_", "."): content for name, content in instead.items()}
    verdict = dry_start(
        SlurmTools(), folder / "slurm.conf", folder / "backfill.conf", "# ours\n", folder / "scratch", there
    )
    assert verdict == DryVerdict(True)
    return found


def test_weights_for_what_only_a_database_knows_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """slurmctld would end at them, although with its database it takes them."""
    text = (
        "ClusterName=c\nAccountingStorageTRES=gres/gpu\nPriorityWeightTRES=GRES/gpu=10\n"
        'PartitionName=gpu TRESBillingWeights="CPU=1,GRES/gpu=2" Nodes=bm1\nNodeName=bm1 TRESWeights=CPU=1\n'
    )
    given = tried(monkeypatch, tmp_path, text)["slurm.conf"]
    assert "PartitionName=gpu Nodes=bm1\nNodeName=bm1\n" in given
    assert "gres" not in given.casefold()


def test_nothing_that_looks_after_what_jobs_have_outside_is_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """To a slurmctld without jobs each burst buffer of a job is one that its job has left behind."""
    text = "ClusterName=c\nBurstBufferType=burst_buffer/datawarp\nburstbuffertype = x\nNodeName=bm1\n"
    assert tried(monkeypatch, tmp_path, text)["slurm.conf"].startswith("ClusterName=c\nNodeName=bm1\n")


def test_files_can_be_tried_before_they_are_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cgroup.conf").write_text("old\n")
    given = tried(
        monkeypatch,
        tmp_path,
        "ClusterName=c\n",
        slurm_conf="Include backfill.conf\nNew=1\n",
        cgroup_conf="new\n",
    )
    assert given["slurm.conf"].startswith("# ours\nNew=1\n")
    assert given["cgroup.conf"] == "new\n"
    assert (tmp_path / "cgroup.conf").read_text() == "old\n"


@pytest.mark.parametrize("name", ["user-with-dash", "4711", "root", "", '"quoted"'])
def test_it_belongs_to_whom_slurmctld_becomes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """By the whole name, or by the number that the site has written."""
    me = pwd.getpwuid(os.geteuid())
    asked: list[object] = []

    def known(word: object) -> pwd.struct_passwd:
        asked.append(word)
        return me

    monkeypatch.setattr(pwd, "getpwnam", known)
    monkeypatch.setattr(pwd, "getpwuid", known)
    tried(monkeypatch, tmp_path, f"SlurmUser={name}\n" if name else "ClusterName=c\n")
    assert asked == [int(name) if name.isdecimal() else name.strip('"') or "root"]
