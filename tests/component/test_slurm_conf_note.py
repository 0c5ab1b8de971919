"""A damaged note of an interrupted change: nobody guesses, nothing is changed, and one sentence tells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from backfill.config import load
from backfill.drivers.slurm.hooks.install import HookPlan, Hooks
from backfill.drivers.store.host_book import WrittenHostBook
from backfill.ports.errors import UnreadableError
from backfill.ui.cli import main
from backfill.ui.commands import daemon
from tests.component.conf_cluster import ConfCluster, CrashError, with_node

ROOT = Path(__file__).parents[2]
TORN, EMPTY, ODD = '{"old": "# Made by', "", "[]"
REMEDY = (
    "; see with `backfill slurm diff` that backfill.conf lacks no node with a job, let slurmctld read it "
    "(`scontrol reconfigure`; before Slurm 23.11, a restart), then remove this note"
)


@pytest.fixture
def cluster(tmp_path: Path) -> ConfCluster:
    """A change of it was interrupted when it was written, and not yet read by Slurm."""
    made = ConfCluster(tmp_path)
    made.transactions.apply(with_node("vn1"), dry=False)
    made.crash_at = "reload"
    with pytest.raises(CrashError):
        made.transactions.apply(with_node("vn2"), dry=False)
    return made


def note(cluster: ConfCluster) -> Path:
    return cluster.directory / "state/slurm-conf/unfinished.json"


def damaged(cluster: ConfCluster, text: str) -> Path:
    """Where the policy file has the daemon look for it."""
    path = note(cluster)
    path.parent.mkdir(parents=True, exist_ok=True)
    for known in (cluster.directory / "state").iterdir():
        if known != path.parent:
            known.rename(path.parent / known.name)
    path.write_text(text, encoding="latin-1")
    return path


def policy(cluster: ConfCluster) -> Path:
    path = cluster.directory / "policy.yaml"
    text = (ROOT / "config/policy.minimal.yaml").read_text()
    slurm = f"slurm: {{conf: {cluster.conf}, bin_dir: {cluster.directory}/bin}}"
    path.write_text(f"{text}{slurm}\ndaemon: {{state_dir: {cluster.directory}/state}}\n")
    return path


def files(cluster: ConfCluster) -> Mapping[str, bytes]:
    """All but locks, which hold nothing that is asked for."""
    found = (p for p in cluster.directory.rglob("*") if p.is_file() and not p.name.endswith("lock"))
    return {str(path): path.read_bytes() for path in found}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (TORN, r"it is no JSON: Unterminated string .*"),
        (EMPTY, "it is empty"),
        (ODD, "it is no object"),
        ("\xff", "it is no JSON: .*"),
        ({"old": None}, "its `old` is missing or odd"),
        ({"new": 5}, "its `new` is missing or odd"),
        ({"restart": "no"}, "its `restart` is missing or odd"),
        ({"picture": None}, "its `picture` is missing or odd"),
        ({"picture": {"nodes": [1], "jobs": {}}}, "its `picture` is missing or odd"),
        ({"picture": {"nodes": [], "jobs": {"7": "0"}}}, "its `picture` is missing or odd"),
        ({"expected": "vn2"}, "its `expected` is missing or odd"),
        ({"expected": [2]}, "its `expected` is missing or odd"),
        ({"direction": "up"}, "its `direction` is missing or odd"),
        ({"why": None}, "its `why` is missing or odd"),
    ],
)
def test_a_damaged_note_is_one_sentence(
    cluster: ConfCluster, change: str | dict[str, object], why: str
) -> None:
    """Without it nobody knows whether the change goes forward or back, so neither is done."""
    path = cluster.directory / "state/unfinished.json"
    if isinstance(change, str):
        path.write_text(change, encoding="latin-1")
    else:
        body = json.loads(path.read_text()) | change
        path.write_text(json.dumps({key: value for key, value in body.items() if value is not None}))
    before = files(cluster)
    for act in (
        cluster.transactions.recover,
        lambda: cluster.transactions.apply(with_node("vn3"), dry=False),
        lambda: cluster.transactions.note_states(with_node("vn3")),
        lambda: cluster.transactions.rollback(dry=False),
    ):
        with pytest.raises(UnreadableError, match=rf"is damaged \({why}\); see with ") as caught:
            act()
        told = str(caught.value)
        assert told.startswith(f"{path}: this note of an interrupted change of backfill.conf is damaged (")
        assert told.endswith(REMEDY)
    assert files(cluster) == before


def test_what_the_remedy_says_ends_in_agreement(cluster: ConfCluster) -> None:
    """What may be missing is seen without the note; with the note gone, changes are made as ever."""
    path = cluster.directory / "state/unfinished.json"
    path.write_text(TORN)
    assert "+NodeName=vn3" in cluster.transactions.preview(with_node("vn3"), force=True)
    path.unlink()
    assert cluster.transactions.recover() == ""
    assert cluster.transactions.apply(with_node("vn3"), dry=False).reloaded == "reconfigure"


def test_hooks_that_slurm_may_call_stay(cluster: ConfCluster) -> None:
    """An installation that cannot begin removes no program, whatever the file says at present."""
    home = cluster.directory / "hooks"
    home.mkdir()
    (home / "prolog_slurmctld").write_text("#!/bin/sh\n")
    (cluster.directory / "state/unfinished.json").write_text(TORN)
    before = files(cluster)
    to = f"unix:{cluster.directory}/none"
    plan = HookPlan("slurmctld", home, to, 500, cluster.directory / "hook.log", to, compiler=None)
    with pytest.raises(UnreadableError, match="this note of an interrupted change"):
        Hooks(cluster.transactions, home).install(plan, cluster.version, dry=False)
    assert files(cluster) == before


@pytest.mark.parametrize("text", [TORN, EMPTY, ODD])
@pytest.mark.parametrize("words", [["apply"], ["rollback"], ["hooks", "remove"]])
def test_a_command_names_the_note_and_not_the_policy_file(
    cluster: ConfCluster, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the status of a file that cannot be read."""
    path, file = damaged(cluster, text), policy(cluster)
    before = files(cluster)
    assert main(["slurm", *words, "--json", "--config", str(file)]) == 65
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert shown.err.startswith(f"{path}: this note of an interrupted change of backfill.conf is damaged (")
    assert shown.err.endswith(f"{REMEDY}\n")
    assert files(cluster) == before


@pytest.mark.parametrize("words", [["apply"], ["rollback"], ["hooks", "remove"]])
def test_a_command_names_a_note_that_cannot_be_read(
    cluster: ConfCluster, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """One line tells, with a status that is not taken for an answer."""
    path = damaged(cluster, TORN)
    path.unlink()
    path.mkdir()
    file = policy(cluster)
    before = files(cluster)
    assert main(["slurm", *words, "--json", "--config", str(file)]) == 65
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert shown.err.startswith(f"{path}: cannot use {path}: Is a directory")
    assert files(cluster) == before


@pytest.mark.parametrize("text", [TORN, EMPTY, ODD])
def test_a_daemon_does_not_start_beside_a_damaged_note(
    cluster: ConfCluster, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line tells, and the next start says the same."""
    path, config = damaged(cluster, text), load(policy(cluster))
    before = files(cluster)
    manager: Any = SimpleNamespace(settings=cluster.settings)
    for _ in range(2):
        book = WrittenHostBook(cluster.directory / "state/hosts.json")
        assert daemon._begin(config, manager, {}, None, [], book, at_once=False) == 69
        shown = capsys.readouterr()
        assert shown.err.count("\n") == 1
        assert shown.err.startswith(f"{path}: this note of an interrupted change")
        assert shown.err.endswith(f"{REMEDY}\n")
    assert files(cluster) == before
