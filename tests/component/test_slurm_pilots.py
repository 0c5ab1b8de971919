"""Pilots through sbatch: as whom, with what, and never a second one of the same slot."""

from __future__ import annotations

import os
import pwd
import secrets
from pathlib import Path

import pytest

from backfill.core.model.pilots import mark_of, name_of
from backfill.drivers.slurm.commands import SlurmTools
from backfill.drivers.slurm.driver import SlurmManager
from backfill.ports.errors import BadOutputError, RefusedError
from backfill.ports.workload import PilotSpec
from tests.component.slurm_tools import FakeTools

PERSON = pwd.getpwuid(65534)
PILOT = PilotSpec(
    name_of(3), mark_of(3), PERSON.pw_name, "htc", "/srv/pilot.sh", "/tmp", 2, 1859.0, ("--account=osg",)
)


@pytest.fixture
def tools(tmp_path: Path) -> FakeTools:
    return FakeTools(tmp_path)


def submit(tools: FakeTools, pilot: PilotSpec = PILOT) -> str:
    return SlurmManager(SlurmTools(bin_dir=tools.directory)).submit_pilot(pilot)


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "token_hex", lambda _: "s3cret")


def shows(tools: FakeTools, *jobs: str) -> None:
    """Let squeue show jobs of the pilot's name."""
    told = "".join(f"s3cret {job}\n" for job in jobs)
    tools.answer("squeue --name=backfill-pilot-3", told)


def test_a_pilot_is_an_ordinary_users_job(tools: FakeTools, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name, its mark, its time limit in whole minutes, and its user's own group."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    tools.answer("sbatch", "17;cluster\n")
    assert submit(tools) == "17"
    (call,) = [call for call in tools.calls if call.startswith("sbatch")]
    for word in (
        "--job-name=backfill-pilot-3 --comment=backfill: pilot 3 --dependency=singleton --partition=htc",
        "--nodes=1 --ntasks=1 --cpus-per-task=2 --time=30 --chdir=/tmp",
        f"--uid={PERSON.pw_uid} --gid={PERSON.pw_gid} --account=osg /srv/pilot.sh",
    ):
        assert word in call


def test_one_that_lives_is_not_submitted_again(tools: FakeTools, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call before had come through, and nobody heard of it: the user's first of that name is the one."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    uid = PERSON.pw_uid
    mark = mark_of(3)
    shows(tools, f"{uid} 21 {mark}", f"{uid} 9 {mark}", f"0 3 {mark}", f"{uid} 2 (null)", f"{uid} 1 {mark}1")
    assert submit(tools) == "9"
    assert tools.changes() == []


@pytest.mark.parametrize("comment", [mark_of(3), "mine"])
def test_a_strangers_comment_makes_no_pilot(
    tools: FakeTools, monkeypatch: pytest.MonkeyPatch, comment: str
) -> None:
    """It may have a line's end, and behind it what looks like another job of the pilot's user."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    shows(tools, f"2001 5 x\n{PERSON.pw_uid} 12345 {comment}")
    tools.answer("sbatch", "17\n")
    assert submit(tools) == "17"


@pytest.mark.parametrize("comment", ["(null)", "", "mine", "backfill: pilot 31"])
def test_a_payload_that_takes_a_pilots_name_is_no_pilot(
    tools: FakeTools, monkeypatch: pytest.MonkeyPatch, comment: str
) -> None:
    """Our pilot would wait for it without end: it is named, and others are sent instead."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    uid = PERSON.pw_uid
    shows(tools, "0 5 (null)", f"{uid} 77 {comment}")
    with pytest.raises(RefusedError, match=r"job 77 of user .* has its name.*scancel 77"):
        submit(tools)
    assert tools.changes() == []


def unshare(monkeypatch: pytest.MonkeyPatch, place: Path, script: str) -> None:
    """The driver is SlurmUser's, on a machine with this `unshare`."""
    place.mkdir()
    (place / "unshare").write_text(f"#!/bin/sh\n{script}\n")
    (place / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", str(place), prepend=os.pathsep)
    monkeypatch.setattr(os, "geteuid", lambda: 64030)


def test_slurm_user_sends_it_as_root_does(
    tools: FakeTools, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Only sbatch has to take itself for root's: slurmctld takes from SlurmUser what it takes from root."""
    unshare(
        monkeypatch, tmp_path / "bin", '[ "$*" != "${*#--user --map-root-user -- }" ] && shift 3 && exec "$@"'
    )
    tools.answer("sbatch", "17\n")
    assert submit(tools) == "17"
    assert f"--uid={PERSON.pw_uid} --gid={PERSON.pw_gid} --account=osg /srv/pilot.sh" in tools.calls[-1]


def test_where_no_namespace_is_to_be_had_it_says_so(
    tools: FakeTools, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One sentence, and nothing is submitted."""
    said = "unshare: write failed /proc/self/uid_map: Operation not permitted"
    unshare(monkeypatch, tmp_path / "bin", f"echo '{said}' >&2; exit 1")
    with pytest.raises(RefusedError, match=r"no user namespace here.*; allow them to SlurmUser .*or run"):
        submit(tools)
    assert not any(call.startswith("sbatch") for call in tools.calls)


@pytest.mark.parametrize(("user", "said"), [("root", "it is root"), ("nosuchuser", "knows no such user")])
def test_nobody_but_an_ordinary_user(tools: FakeTools, user: str, said: str) -> None:
    """Neither root nor somebody unknown."""
    with pytest.raises(RefusedError, match=said):
        submit(tools, PilotSpec(PILOT.name, PILOT.comment, user, "htc", "/srv/pilot.sh", "", 1, 600.0))
    assert tools.calls == []


def test_a_strange_answer_is_no_job(tools: FakeTools, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shown as it came."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    tools.answer("sbatch", "Submitted batch job 17\n")
    with pytest.raises(BadOutputError, match="Submitted batch job 17"):
        submit(tools)


def test_only_what_waits_is_withdrawn(tools: FakeTools) -> None:
    """Slurm itself sees to that, in the moment of the call."""
    SlurmManager(SlurmTools(bin_dir=tools.directory)).withdraw_pilot("17")
    assert tools.calls == ["scancel --state=PENDING 17"]
