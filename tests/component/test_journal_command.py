"""`backfill replay --journal`: plans again what a daemon planned; says what differs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from backfill.config import load
from backfill.core.model.changes import HostSeen, JobSeen, NodeSeen, SourceSeen
from backfill.core.model.cluster import Job, JobState, Node, NodeBase
from backfill.core.model.fleet import Host
from backfill.core.model.quantities import Resources
from backfill.core.model.records import decode, encode
from backfill.core.world import World
from backfill.drivers.store.sqlite import JournalReader, SqliteJournal
from backfill.engine.cycle import Cycle
from backfill.ports.storage import Record
from backfill.sim.replay.costs import load_costs
from backfill.sim.replay.journal import replay_journal
from backfill.ui.commands.replay import main
from backfill.ui.parser import BAD_DATA, USAGE
from tests.unit.policy_files import text


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(text())
    return path


@pytest.fixture
def journal(tmp_path: Path, policy: Path) -> Path:
    """Of a daemon that saw one host and one waiting job, and wanted an instance for it."""
    path = tmp_path / "journal.db"
    written = SqliteJournal(path)
    policies = load(policy).policies
    cycle = Cycle(World(), policies, written, lambda action: None, lambda answer: None)
    cycle.tick(1000.0)
    cycle.record("daemon", "cluster", {"event": "start"})
    host = policies.hosts[0]
    flavour = policies.instances.flavour
    room = Resources(4 * flavour.cpus, 4 * flavour.memory_mb)
    low = Job("1", 1, policies.priorities.low[0], JobState.PENDING, submit_s=990.0)
    cycle.take([HostSeen(Host(host, host, room), 1000.0), SourceSeen(host, 1000.0)])
    cycle.take([NodeSeen(Node(host, NodeBase.IDLE), 1000.0), JobSeen(low, 1000.0)])
    cycle.take([SourceSeen("slurm", 1000.0)])
    cycle.decide()
    written.close()
    return path


def test_the_same_plans(journal: Path, policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 0, and a line with the counts."""
    assert main(["--journal", str(journal), "--policy", str(policy)]) == 0
    assert "1 starts of the daemon: all the same" in capsys.readouterr().out


def test_what_a_later_version_added_is_no_difference(journal: Path, policy: Path) -> None:
    """A step in the journal of an older one has its default for a field that came later."""
    reader = JournalReader(journal)
    records = list(reader.read())
    reader.close()
    whole = [_whole(record) for record in records]
    older = [_without(record, "check", "order") for record in whole]
    assert older != whole
    assert replay_journal(older, load(policy).policies).differences == []


def _whole(record: Record) -> Record:
    """The record as it was when all fields were written, those with their defaults, too."""
    return replace(record, body=encode(decode(record.body))) if "t" in record.body else record


def _without(record: Record, *keys: str) -> Record:
    """The record as it was before these fields of a node came to be."""
    node = record.body.get("node")
    if not isinstance(node, dict):
        return record
    kept = {key: value for key, value in node.items() if key not in keys}
    return replace(record, body={**record.body, "node": kept})


def test_a_difference_is_a_diff(journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under another policy other steps are planned: exit status 1 and a unified diff."""
    other = tmp_path / "other.yaml"
    other.write_text(text("demand: {min_jobs: 5}"))
    assert main(["--journal", str(journal), "--policy", str(other)]) == 1
    out = capsys.readouterr().out
    assert "--- journal: plan at 1000.000" in out
    assert re.search(r'^-SetNode node\.address="10\.0\.1\.1/16" .* node\.name="vn1" ', out, re.M)
    assert "false" not in out
    assert main(["--journal", str(journal), "--policy", str(other), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["differences"]


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        ([], USAGE, "name a trace to replay"),
        (["--journal", "j.db"], USAGE, "--journal needs --policy FILE"),
        (["t.swf", "--journal", "j.db", "--policy", "POLICY"], USAGE, "or a trace, not both"),
        (["--journal", "j.db", "--policy", "POLICY", "--tie", "eventwise"], USAGE, "--tie says"),
        (["--journal", "j.db", "--policy", "POLICY"], BAD_DATA, "there is no journal"),
    ],
)
def test_bad_input(
    arguments: list[str], status: int, sentence: str, policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sentence; options that would be ignored are told."""
    assert main([str(policy) if a == "POLICY" else a for a in arguments]) == status
    assert sentence in capsys.readouterr().err


def test_learned_costs_are_a_file_for_costs(
    journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Medians of the calls that succeeded, in a file that `--costs` reads."""
    out = tmp_path / "costs.yaml"
    assert main(["--journal", str(journal), "--learn", str(out)]) == BAD_DATA
    assert "no call that succeeded" in capsys.readouterr().err
    written = SqliteJournal(journal)
    for elapsed_s, problem in ((0.5, ""), (0.7, ""), (0.6, ""), (9.0, "no answer")):
        body: dict[str, object] = {"key": "PauseInstance:vn1:1", "elapsed_s": elapsed_s}
        written.append([Record(1001.0, "outcome", "vn1", {**body, "problem": problem})])
    written.close()
    assert main(["--journal", str(journal), "--learn", str(out)]) == 0
    assert load_costs(out).steps.pause_s == 0.6
