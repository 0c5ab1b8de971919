"""`backfill checkpoint`: what is shown, verified and removed, and how an order is refused."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from backfill.core.model.cluster import Job, JobState
from backfill.core.model.fleet import Checkpoint
from backfill.core.model.lifecycle import Phase
from backfill.drivers.libvirt.checkpoints.folders import CheckpointFolders
from backfill.drivers.libvirt.store import Store
from backfill.ui.cli import main
from backfill.ui.parser import DEFAULT_POLICY
from tests.component.living_daemon import living
from tests.unit.policy_files import LIBVIRT, LIBVIRT_HOST, text


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """A policy file whose shared directory holds two checkpoints; the older one has expired."""
    directory = tmp_path / "shared"
    store = Store(str(directory), "c1")
    home = store.home("vn1")
    home.mkdir(parents=True)
    for name in ("memory.save", "disk.qcow2", "seed.tar"):
        (home / name).write_bytes(b"state " * 1000)
    now_s = time.time()
    for number, left_s in ((1, -10.0), (2, 3600.0)):
        made = Checkpoint(
            f"5-{number}", "vn1", job="5", members=("vn1",), created_s=float(number), expires_s=now_s + left_s
        )
        CheckpointFolders(store).keep(made, "<domain/>", home, None)
    path = tmp_path / "policy.yaml"
    libvirt = LIBVIRT.replace("/srv/backfill", str(directory))
    path.write_text(text(libvirt, hosts=LIBVIRT_HOST))
    return path


def said(capsys: pytest.CaptureFixture[str], *argv: str, status: int = 0) -> str:
    assert main(["checkpoint", *argv]) == status
    return capsys.readouterr().out


def test_list_shows_what_is_kept(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For people one line each, for programs everything."""
    lines = said(capsys, "list", "--config", str(policy)).splitlines()
    assert lines[1].split()[:3] == ["5-1", "5", "vn1"]
    assert lines[1].endswith("being sealed")
    assert "MB are used" in lines[-1]
    answer = json.loads(said(capsys, "list", "--json", "--config", str(policy)))
    assert [c["id"] for c in answer["checkpoints"]] == ["5-1", "5-2"]


def test_verify_tells_each_one(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A good one, and one whose file was changed; the status is the worst."""
    assert said(capsys, "verify", "5-1", "--config", str(policy)) == ("5-1: complete and unchanged\n")
    (file,) = (policy.parent / "shared/c1/.checkpoints/5-1/vn1").glob("disk*")
    file.write_bytes(b"other")
    told = said(capsys, "verify", "5-1", "5-2", "5-3", "--config", str(policy), status=1)
    first, second, third = told.splitlines()
    assert "is damaged" in first
    assert second == "5-2: complete and unchanged"
    assert "there is no such checkpoint" in third
    answer = said(capsys, "verify", "5-2", "--json", "--config", str(policy))
    assert json.loads(answer)["verified"] == [{"id": "5-2", "ok": True, "problem": ""}]


class Slurm:
    """As much of it as `expire` asks."""

    def __init__(self, *jobs: Job) -> None:
        self.jobs = {job.id: job for job in jobs}

    def read_jobs(self, ids: Sequence[str]) -> dict[str, Job]:
        return {i: self.jobs[i] for i in ids if i in self.jobs}


@pytest.mark.parametrize(
    ("jobs", "why"),
    [
        ([], "Slurm knows nothing of job 5, which may be an odd reading"),
        ([Job("5", 5, "htc", JobState.RUNNING)], "Slurm holds job 5, and no later one of it is kept"),
    ],
)
def test_expire_leaves_what_may_be_needed(
    policy: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    jobs: list[Job],
    why: str,
) -> None:
    """It says why; to delete one by its id is a person's word, and is done."""
    monkeypatch.setattr("backfill.ui.assemble.slurm_manager", lambda config: Slurm(*jobs))
    assert main(["checkpoint", "expire", "--config", str(policy)]) == 0
    told = capsys.readouterr()
    assert told.out == "nothing has expired\n"
    assert f"5-1 stays: {why}" in told.err


def test_expire_and_delete_remove(
    policy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has expired and nobody needs, then what is named; a mistake in a name removes nothing."""
    ended = Job("5", 5, "htc", JobState.COMPLETED)
    monkeypatch.setattr("backfill.ui.assemble.slurm_manager", lambda config: Slurm(ended))
    where = ["--config", str(policy)]
    assert said(capsys, "expire", *where) == "removed: 5-1\n"
    assert said(capsys, "expire", *where) == "nothing has expired\n"
    assert main(["checkpoint", "delete", "5-2", "5-9", *where]) == 1
    assert "there is no checkpoint '5-9'" in capsys.readouterr().err
    assert json.loads(said(capsys, "delete", "5-2", "--json", *where)) == {"removed": ["5-2"]}
    assert said(capsys, "list", *where) == "no checkpoint is kept\n"


@pytest.mark.parametrize("words", [["list"], ["list", "--json"], ["expire"], ["delete", "5-1"]])
def test_a_directory_that_is_not_mounted_is_not_one_without_checkpoints(
    words: Sequence[str], policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What could not be read is unknown; one that is there, and empty, has none."""
    directory = policy.parent / "shared"
    shutil.rmtree(directory)
    assert main(["checkpoint", *words, "--config", str(policy)]) == 65
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == f"backfill: {directory}: No such file or directory; is the share mounted?\n"
    directory.mkdir()
    assert said(capsys, "list", "--config", str(policy)) == "no checkpoint is kept\n"


def test_a_bad_policy_file_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its place, as everywhere."""
    path = tmp_path / "policy.yaml"
    path.write_text("cluster: [")
    assert main(["checkpoint", "list", "--config", str(path)]) == 65
    assert str(path) in capsys.readouterr().err


def test_create_orders_and_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The daemon checks the whole order first; the job goes on afterwards."""
    with living(tmp_path) as daemon:
        where = ["--socket", str(daemon.socket)]
        assert main(["checkpoint", "create", "99", *where]) == 1
        assert "job 99 is unknown to Slurm" in capsys.readouterr().err
        job = daemon.sim.submit("htc", 5000.0)
        daemon.until(lambda: daemon.phase("vn1") is Phase.READY)
        daemon.until(lambda: bool(daemon.daemon.world.jobs_on("vn1")))
        answer = json.loads(said(capsys, "create", job, "--json", *where))
        assert answer["nodes"] == ["vn1"]
        assert main(["checkpoint", "create", job, *where]) == 1
        assert "try again later" in capsys.readouterr().err
        daemon.until(lambda: len(daemon.sim.provider.checkpoints()) == 1)
        daemon.until(lambda: daemon.phase("vn1") is Phase.READY)
        assert daemon.sim.provider.checkpoints()[0].id == answer["id"]


def test_restore_verifies_first_and_then_asks_the_daemon(
    policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A damaged one does not even reach the daemon; of a job that is gone the daemon says so."""
    where = ["--config", str(policy)]
    with living(tmp_path) as daemon:
        told = ["--socket", str(daemon.socket), *where]
        assert main(["checkpoint", "restore", "5-2", *told]) == 1
        assert "job 5 is not running any more" in capsys.readouterr().err
        (file,) = (policy.parent / "shared/c1/.checkpoints/5-2/vn1").glob("disk*")
        file.write_bytes(b"other")
        assert main(["checkpoint", "restore", "5-2", *told]) == 1
        assert "is damaged" in capsys.readouterr().err


def test_a_policy_file_on_the_command_line_goes_before_a_service_of_the_environment(
    policy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever names a file means the checkpoints, nodes and leaks here. With --url it is one too many."""
    monkeypatch.setenv("BACKFILL_URL", "http://127.0.0.1:1")
    where = ["--config", str(policy)]
    assert "5-1" in said(capsys, "list", *where)
    assert main(["drift", *where]) == 65
    assert "has no section salt" in capsys.readouterr().err
    assert main(["instances", "--leaks", "--config", f"{policy}.none"]) == 65
    assert f"{policy}.none" in capsys.readouterr().err
    assert main(["checkpoint", "list"]) == 69
    for place in (str(policy), DEFAULT_POLICY):
        assert main(["instances", "--config", place]) == 64
        assert "give both" in capsys.readouterr().err
    url = ["--url", "http://127.0.0.1:1"]
    for words in (["drift", *url, *where], ["checkpoint", "list", *where, *url], [*url, "drift", *where]):
        assert main(words) == 64
        assert "not allowed with argument --" in capsys.readouterr().err
