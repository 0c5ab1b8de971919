"""A later run of `backfill setup`: what an earlier one was told stays, unless somebody says otherwise."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import yaml

from backfill.drivers.libvirt.inspection import HostInspection
from backfill.drivers.slurm.conf.files import read_or_empty
from backfill.drivers.slurm.conf.site import read_site
from backfill.drivers.slurm.hooks.install import CHECK_MARK
from backfill.ui.cli import main
from backfill.ui.commands import setup
from backfill.ui.setup.plan import Places
from backfill.ui.setup.slurm_lines import SELECT
from backfill.ui.setup.steps import Step, StepError, UndoRecord
from backfill.ui.setup.survey import Survey
from tests.unit.test_setup import PLAIN, _survey


class Site:
    """A controller in a folder, whose commands are only remembered."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.survey, self.patterns = root, _alive(_survey()), list[str]()
        self.broken = False
        self.conf, self.image = root / "slurm.conf", root / "image"
        self.conf.write_text(PLAIN)
        self.image.mkdir()
        for name in ("vmlinuz", "initrd", "disk.raw", "image.json"):
            (self.image / name).write_text("{}")
        done = UndoRecord.carry_out

        def carried_out(record: UndoRecord, steps: Sequence[Step], conf: Path | None = None) -> None:
            done(record, steps, self.run, conf)

        places = partial(Places, folder=root / "etc", key=self.conf, unit=root / "unit.d/setup.conf")
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setattr(setup, "_STATE", root / "record")
        monkeypatch.setattr(setup, "Places", places)
        monkeypatch.setattr(setup, "survey", self._seen)
        monkeypatch.setattr(setup, "_check", lambda *_: None)
        monkeypatch.setattr(UndoRecord, "carry_out", carried_out)

    def run(self, argv: Sequence[str]) -> None:
        if self.broken:
            raise StepError(f"`{argv[0]}` ended with 1")

    def _seen(self, _: Path, names: Sequence[str], pattern: str) -> Survey:
        self.patterns.append(pattern)
        texts = {name: read_or_empty(self.root / name) for name in ("slurm.conf", "cgroup.conf")}
        found = read_site(self.conf, self.root / "backfill.conf", texts["slurm.conf"])
        hosts = tuple(host for host in self.survey.hosts if not names or host.node.name in names)
        return replace(self.survey, texts=texts, site=found, hosts=hosts)

    def setup(self, *words: str) -> int:
        return main(["setup", "--slurm-conf", str(self.conf), "--yes", *words])

    def policy(self) -> dict[str, object]:
        made: dict[str, object] = yaml.safe_load((self.root / "etc/policy.yaml").read_text())
        return made


def _alive(found: Survey, *silent: str) -> Survey:
    """Let all hosts answer but these."""
    seen = HostInspection(bridges=frozenset({"br0", "br1"}), kvm=False)
    hosts = [replace(host, inspection=seen, problem="") for host in found.hosts[:2]]
    return replace(
        found,
        hosts=tuple(
            replace(h, inspection=None, problem=f"{h.node.name}: no answer") if h.node.name in silent else h
            for h in hosts
        ),
    )


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Set up once, with an answer of its own to each question."""
    made = Site(tmp_path, monkeypatch)
    words = (
        "--low small --names vn[1-6] --addresses 10.0.1.1/16 --cpus 1 --memory-mb 512 --bridge br1 --closed"
    )
    more = "--also 10.0.2.0/24 --gateway 10.0.0.1 --controller 10.0.0.1 --user root --cpu-feature rdrand"
    kept = [
        "--directory",
        str(tmp_path / "shared"),
        "--image",
        str(made.image),
        "--restart",
        "/bin/true again",
    ]
    assert made.setup(*words.split(), *more.split(), *kept, "--uri", "qemu+ssh://{name}/system") == 0
    (tmp_path / "prolog").write_bytes(CHECK_MARK)
    settings = replace(made.survey.settings, select_type=SELECT, prolog_slurmctld=str(tmp_path / "prolog"))
    made.survey = replace(made.survey, settings=settings)
    return made


def test_what_was_said_need_not_be_said_again(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """After a later change of slurm.conf: closed guests stay closed, and no other partition is made."""
    before = site.policy()
    capsys.readouterr()
    assert site.setup() == 0
    assert "everything is as it should be" in capsys.readouterr().out
    assert site.policy() == before
    assert site.setup("--addresses", "10.0.1.1/16", "--image", str(site.image)) == 0
    assert site.policy() == before
    assert site.patterns == ["qemu+ssh://{name}/system"] * 3
    assert site.setup("--cpus", "2") == 0
    assert site.policy() == {
        **before,
        "instances": {**before["instances"], "flavour": {"cpus": 2, "memory_mb": 512}},  # type: ignore[dict-item]
    }


def test_a_host_that_is_silent_is_not_forgotten(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Its instances and their jobs would be nobody's any more."""
    before = site.policy()
    site.survey = _alive(_survey(), "bm2")
    assert site.setup() == 64
    assert "bm2: no answer, and an earlier run has set it up: mend that, or leave it out by --hosts" in (
        capsys.readouterr().err
    )
    assert site.policy() == before


def test_a_silent_host_is_not_left_out_by_saying_again_that_it_belongs(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who says the first command again names the host that does not answer; only leaving it away drops it."""
    assert site.setup("--hosts", "bm1,bm2") == 0
    before = site.policy()
    site.survey = replace(_alive(_survey(), "bm2"), settings=site.survey.settings)
    assert site.setup("--hosts", "bm1,bm2") == 64
    assert "bm2: no answer, and an earlier run has set it up" in capsys.readouterr().err
    assert site.policy() == before
    assert site.setup("--hosts", "bm1") == 0
    assert [host["name"] for host in site.policy()["hosts"]] == ["bm1"]  # type: ignore[attr-defined]


def test_a_host_is_left_out_for_good_where_the_policy_file_is_somebodys(site: Site) -> None:
    """Nothing is left to do then, and what was said counts all the same."""
    policy = site.root / "etc/policy.yaml"
    policy.write_text(policy.read_text() + "# mine\n")
    site.survey = replace(_alive(_survey(), "bm2"), settings=site.survey.settings)
    assert site.setup() == 64
    assert site.setup("--hosts", "bm1") == 0
    assert site.setup("--hosts", "bm1") == 0  # nothing to do
    assert site.setup() == 0


def test_showing_a_plan_is_not_remembered(site: Site) -> None:
    before = (site.root / "record/setup.json").read_text()
    assert site.setup("--dry-run", "--cpus", "2", "--hosts", "bm1") == 0
    assert site.setup("--dry-run") == 0
    assert (site.root / "record/setup.json").read_text() == before


def test_a_run_that_failed_is_finished_as_it_was_told(site: Site) -> None:
    """It says `backfill setup` again is all that is needed: what it had written would be turned back."""
    site.broken = True
    assert site.setup("--also", "10.0.3.0/24", "--low", "other") == 1
    wanted = site.policy()
    assert wanted["libvirt"]["guest_network"]["also"] == ["10.0.3.0/24"]  # type: ignore[index]
    site.broken = False
    assert site.setup() == 0
    assert site.policy() == wanted


def test_what_the_cluster_suggested_is_asked_of_it_again(site: Site) -> None:
    """Only what somebody has said stays: hosts get KVM, and Slurm another user."""
    assert site.policy()["libvirt"]["hardware"]["domain_type"] == "qemu"  # type: ignore[index]
    seen = HostInspection(bridges=frozenset({"br1"}), kvm=True)
    hosts = [replace(host, inspection=seen) for host in site.survey.hosts]
    site.survey = replace(site.survey, hosts=tuple(hosts))
    assert site.setup() == 0
    assert site.policy()["libvirt"]["hardware"]["domain_type"] == "kvm"  # type: ignore[index]
    assert site.setup("--emulated") == 0
    assert site.setup() == 0
    assert site.policy()["libvirt"]["hardware"]["domain_type"] == "qemu"  # type: ignore[index]


def test_slurms_new_user_is_the_daemons_where_nobody_has_named_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Site(tmp_path, monkeypatch)
    made.survey = replace(made.survey, user="daemon")
    words = [
        "--addresses",
        "10.0.1.1/16",
        "--image",
        str(made.image),
        "--directory",
        str(tmp_path / "shared"),
    ]
    assert made.setup(*words, "--controller", "10.0.0.1") == 0
    assert "User=daemon" in (tmp_path / "unit.d/setup.conf").read_text()
    made.survey = replace(made.survey, user="bin")
    assert made.setup() == 0
    assert "User=bin" in (tmp_path / "unit.d/setup.conf").read_text()


@pytest.mark.parametrize("text", ["{", "[]", '{"done": [], "later": 1}', '{"said": []}'])
@pytest.mark.parametrize("words", [[], ["--undo"], ["--dry-run"]])
def test_a_record_that_nobody_understands_is_refused(
    text: str,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Damaged, or of another version: what was there before setup is known from nowhere else."""
    record, site = tmp_path / "record/setup.json", Site(tmp_path, monkeypatch)
    record.parent.mkdir()
    record.write_text(text)
    assert site.setup(*words) == 69
    said = capsys.readouterr().err
    assert f"{record}: this backfill does not understand what an earlier run of setup has written" in said
    assert "put it back from a copy, or use the backfill that wrote it" in said
    assert record.read_text() == text


def test_what_another_version_was_told_is_not_taken_for_something_else(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """Letters of a network would be networks."""
    record, before = site.root / "record/setup.json", site.policy()
    known = json.loads(record.read_text())
    record.write_text(json.dumps({**known, "said": {**known["said"], "also": "10.0.2.0/24"}}))
    capsys.readouterr()
    assert site.setup() == 64
    assert "what an earlier run of setup was told of also is not understood (10.0.2.0/24)" in (
        capsys.readouterr().err
    )
    assert site.policy() == before


def test_the_slurm_conf_that_was_set_up_is_gone_on_with(site: Site) -> None:
    """Another may lie at the usual place, as Debian's packages bring it."""
    assert main(["setup", "--yes", "--cpus", "2"]) == 0
    assert site.policy()["slurm"]["conf"] == str(site.conf)  # type: ignore[index]
    assert json.loads((site.root / "record/setup.json").read_text())["conf"] == str(site.conf)
