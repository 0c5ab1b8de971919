"""A policy file is taken over while the daemon runs, and a bad one never replaces a good one."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import fields
from pathlib import Path

import pytest

from backfill.config import Config, load
from backfill.core.policy import PolicySet
from backfill.engine.messages import Reread
from backfill.engine.policyfile import PolicyFile, Reading
from backfill.ports.errors import UnreachableError
from backfill.ui.cli import main
from backfill.ui.commands.daemon import _FIXED_SECTIONS, PolicyReloader
from tests.component.living_daemon import LivingDaemon, living

FILE = """\
cluster: sim
priorities: {low: [htc], high: [batch]}
hosts:
  - {name: bm1, provider: simulated}
  - {name: bm2, provider: simulated}
instances:
  names: vn[1-2]
  addresses: 10.77.1.1/16
  flavour: {cpus: 1, memory_mb: 256}
scale: {warm: 0, idle_s: 10h}
"""
WARM = FILE.replace("warm: 0", "warm: 1")
WRONG = FILE.replace("warm: 0", "warm: many")
OTHER = FILE.replace("vn[1-2]", "vn[1-4]")


def write(path: Path, text: str) -> None:
    """As an editor does it: the new file takes the old one's place at once."""
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def no_conflicts(config: Config) -> list[str]:
    return []


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    write(path, FILE)
    return path


# --- reading -------------------------------------------------------------------------------------


def test_a_file_that_has_not_changed_is_not_read(file: Path) -> None:
    """Unless it is asked for."""
    config = load(file)
    reread = PolicyReloader(config, no_conflicts)
    assert reread(False) is None
    reading = reread(True)
    assert reading is not None
    assert reading.policies == config.policies


def test_a_changed_file_tells_what_has_changed(file: Path) -> None:
    """Once, and then it is the one that has not changed."""
    config = load(file)
    reread = PolicyReloader(config, no_conflicts)
    write(file, WARM)
    reading = reread(False)
    assert reading is not None
    assert reading.policies is not None
    assert reading.policies.scale.warm == 1
    assert reread(False) is None


def test_room_is_made_for_the_jobs_of_what_is_taken_over(file: Path) -> None:
    """They may be wider than before; never for a file that is refused."""
    config = load(file)
    room: list[int] = []
    refused: list[str] = ["priorities.low: no such partition"]
    reread = PolicyReloader(
        config, lambda new: refused, lambda new: room.append(new.policies.demand.max_nodes)
    )
    write(file, FILE + "demand: {max_nodes: 7}\n")
    assert reread(True) is not None
    assert room == []
    refused.clear()
    assert reread(True) is not None
    assert room == [7]


def test_a_file_that_is_gone_is_waited_for(file: Path) -> None:
    """While it is being replaced there may be none; asked for, its absence is a problem."""
    config = load(file)
    reread = PolicyReloader(config, no_conflicts)
    os.unlink(file)
    assert reread(False) is None
    reading = reread(True)
    assert reading is not None
    assert "cannot be read" in reading.problems[0]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (OTHER, "instances"),
        (FILE.replace("cluster: sim", "cluster: other"), "cluster"),
        (FILE.replace("  - {name: bm2, provider: simulated}\n", ""), "hosts"),
        (FILE + "daemon: {poll_s: 9}\n", "daemon"),
        (FILE + "slurm: {timeout_s: 9}\n", "slurm"),
        (FILE + "devices: [{name: vf, functions: 1}]\n", "devices"),
        (FILE + "salt: {python: /opt/salt/bin/python}\n", "salt"),
    ],
)
def test_what_cannot_change_is_refused_with_its_line(file: Path, text: str, key: str) -> None:
    """Nothing of such a file is taken over: half of it would be another policy."""
    config = load(file)
    reread = PolicyReloader(config, no_conflicts)
    write(file, text)
    reading = reread(False)
    assert reading is not None
    assert reading.policies is None
    assert len(reading.problems) == 1
    assert f"{key} has changed, which a running daemon cannot take over" in reading.problems[0]
    assert not reading.problems[0].startswith(f"{file}:0:")


def test_every_section_is_taken_over_or_fixed() -> None:
    """What a reload says it has taken over must be what the daemon goes by."""
    sections = {f.name for f in fields(Config)} - {"policies", "source", "lines"}
    assert sections == set(_FIXED_SECTIONS)


def test_a_file_that_contradicts_the_cluster_is_refused(file: Path) -> None:
    """Checked as at the start; where the cluster cannot be asked, nothing is taken over."""
    config = load(file)
    write(file, WARM)
    reading = PolicyReloader(config, lambda c: ["priorities.low: no such partition"])(True)
    assert reading is not None
    assert reading.problems == (f"{file}: priorities.low: no such partition",)

    def silent(config: Config) -> list[str]:
        raise UnreachableError("slurmctld", "did not answer")

    reading = PolicyReloader(config, silent)(True)
    assert reading is not None
    assert "could not be compared with the cluster" in reading.problems[0]


def test_a_file_that_could_not_be_compared_is_tried_again(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Slurm restarts just then: that is told once, also of a defect, and the file comes into force later."""
    config = load(file)
    trouble: list[Exception] = [UnreachableError("slurmctld", "did not answer")]

    def conflicts(config: Config) -> list[str]:
        if trouble:
            raise trouble[0]
        return []

    reread = PolicyReloader(config, conflicts)
    write(file, WARM)
    reading = reread(False)
    assert reading is not None
    assert "could not be compared with the cluster, which is tried again: slurmctld" in reading.problems[0]
    assert reread(False) is None
    trouble[0] = ValueError("a defect")
    assert reread(False) is None
    assert not caplog.records
    reading = reread(True)
    assert reading is not None
    assert reading.problems[0].endswith("tried again: a defect")
    assert "in an unforeseen way" in caplog.text
    trouble.clear()
    reading = reread(False)
    assert reading is not None
    assert reading.policies is not None
    assert reading.policies.scale.warm == 1
    assert reread(False) is None


def test_what_is_in_force_is_believed_again_after_slurm_was_away(file: Path) -> None:
    """Somebody asked for it meanwhile: the file has not changed, and what was said of it must go."""
    trouble = [UnreachableError("slurmctld", "did not answer")]

    def conflicts(config: Config) -> list[str]:
        if trouble:
            raise trouble[0]
        return []

    reread = PolicyReloader(load(file), conflicts)
    reading = reread(True)
    assert reading is not None
    assert reading.policies is None
    trouble.clear()
    reading = reread(False)
    assert reading is not None
    assert reading.policies is not None


# --- in the daemon -------------------------------------------------------------------------------


def daemon_with(file: Path) -> tuple[PolicySet, PolicyFile]:
    config = load(file)
    return config.policies, PolicyFile(PolicyReloader(config, no_conflicts))


def told(daemon: LivingDaemon) -> list[str]:
    records = daemon.journal.read()
    mine = [r.body for r in records if r.kind == "daemon" and "source" in r.body]
    return [f"{body['event']} {body['why']}" for body in mine]


def test_a_new_file_is_in_force_without_a_restart(file: Path, tmp_path: Path) -> None:
    """The file is looked at now and then: soon the warm instance that it asks for is made."""
    with living(tmp_path, *daemon_with(file)) as daemon:
        daemon.until(lambda: "slurm" in daemon.daemon.world.sources)
        write(file, WARM)
        daemon.until(lambda: bool(daemon.daemon.world.managed))
        assert told(daemon) == ["policy file taken over, changed: scale"]


def test_a_bad_file_changes_nothing_and_is_told(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Journal and status say why; a good file makes the trouble forgotten."""
    with living(tmp_path, *daemon_with(file)) as daemon:
        before = daemon.daemon.cycle.policies
        write(file, WRONG)
        daemon.until(lambda: bool(daemon.daemon.policyfile.problems))
        assert daemon.daemon.cycle.policies is before
        assert "scale.warm is 'many'" in told(daemon)[0]
        assert main(["status", "--socket", str(daemon.socket)]) == 0
        assert "not so what stands there now" in capsys.readouterr().out
        write(file, WARM)
        daemon.until(lambda: not daemon.daemon.policyfile.problems)
        assert daemon.daemon.cycle.policies.scale.warm == 1


def test_a_person_and_a_signal_can_ask_for_it(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`policy reload` waits for the outcome; SIGHUP is the same without an answer."""
    policies, policyfile = daemon_with(file)
    with living(tmp_path, policies, policyfile) as daemon:
        ask = ["policy", "reload", "--socket", str(daemon.socket)]
        write(file, WRONG)
        assert main(ask) == 65
        assert "stay in force" in capsys.readouterr().err
        write(file, WARM)
        assert main([*ask, "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["problems"] == []
        assert daemon.daemon.cycle.policies.scale.warm == 1
        seen = len(told(daemon))
        daemon.daemon.inbox.put(Reread())
        daemon.until(lambda: len(told(daemon)) > seen)
        assert told(daemon)[-1] == "policy file taken over, changed: nothing"


def test_an_older_reading_never_replaces_a_newer_one(file: Path, tmp_path: Path) -> None:
    """Hosts hang while a look compares the file: who reloads the corrected one waits, and it stays."""
    hangs, hung = threading.Event(), threading.Event()

    def conflicts(config: Config) -> list[str]:
        if config.policies.scale.warm == 1:
            hung.set()
            assert hangs.wait(30.0)
        return []

    config = load(file)
    policyfile = PolicyFile(PolicyReloader(config, conflicts))
    with living(tmp_path, config.policies, policyfile) as daemon:
        write(file, WARM)
        assert hung.wait(30.0)
        write(file, WARM.replace("warm: 1", "warm: 2"))
        asked = threading.Thread(target=lambda: daemon.daemon.reread(force=True))
        asked.start()
        assert policyfile.read() is None  # a look does not wait for another one
        hangs.set()
        asked.join(30.0)
        daemon.until(lambda: daemon.daemon.cycle.policies.scale.warm == 2)
        seen = told(daemon)
        assert seen[:2] == ["policy file taken over, changed: scale"] * 2
        late = Reading(str(file), config.policies, number=1)
        daemon.until(lambda: policyfile.take(late, daemon.daemon.cycle)["changed"] == [])
        assert daemon.daemon.cycle.policies.scale.warm == 2
        assert told(daemon) == seen


def test_without_a_file_there_is_nothing_to_reload(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentence says so."""
    with living(tmp_path) as daemon:
        assert main(["policy", "reload", "--socket", str(daemon.socket)]) == 65
    assert "not started with a policy file" in capsys.readouterr().err
