"""A later run of `backfill setup`: what an earlier one was told stays, unless somebody says otherwise."""

from __future__ import annotations

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
from backfill.ui.setup.steps import Step, UndoRecord
from backfill.ui.setup.survey import Survey
from tests.unit.test_setup import PLAIN, _survey


class Site:
    """A controller in a folder, whose commands are only remembered."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.survey, self.patterns = root, _alive(_survey()), list[str]()
        self.conf, self.image = root / "slurm.conf", root / "image"
        self.conf.write_text(PLAIN)
        self.image.mkdir()
        for name in ("vmlinuz", "initrd", "disk.raw", "image.json"):
            (self.image / name).write_text("{}")
        done = UndoRecord.carry_out

        def carried_out(record: UndoRecord, steps: Sequence[Step], conf: Path | None = None) -> None:
            done(record, steps, lambda argv: None, conf)

        places = partial(Places, folder=root / "etc", key=self.conf, unit=root / "unit.d/setup.conf")
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        monkeypatch.setattr(setup, "_STATE", root / "record")
        monkeypatch.setattr(setup, "Places", places)
        monkeypatch.setattr(setup, "survey", self._seen)
        monkeypatch.setattr(setup, "_check", lambda *_: None)
        monkeypatch.setattr(UndoRecord, "carry_out", carried_out)

    def _seen(self, _: Path, names: Sequence[str], pattern: str) -> Survey:
        self.patterns.append(pattern)
        names = ("slurm.conf", "cgroup.conf")
        texts = {name: read_or_empty(self.root / name) for name in names}
        found = read_site(self.conf, self.root / "backfill.conf", texts["slurm.conf"])
        return replace(self.survey, texts=texts, site=found)

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
