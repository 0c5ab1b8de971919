"""What `backfill doctor` prints and ends with: the policy file first, its checks, a status for each end."""

from __future__ import annotations

import grp
import json
import os
import pwd
from pathlib import Path

import pytest

from backfill.ui.cli import main
from backfill.ui.commands import doctor
from backfill.ui.doctor.examination import examine
from backfill.ui.doctor.findings import Grade
from tests.component.test_doctor import ROOT, _facts, _raw, sound


def test_a_missing_policy_file_is_the_first_fault(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`backfill setup` writes the usual one, and no other."""
    assert main(["doctor", "--config", str(tmp_path / "none.yaml"), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    (found,) = [finding for findings in told["checks"].values() for finding in findings]
    assert found["code"] == "policy-unreadable"
    assert found["mend"] == "check the path"
    monkeypatch.setattr(doctor, "DEFAULT_POLICY", str(tmp_path / "none.yaml"))
    assert main(["doctor", "--config", str(tmp_path / "none.yaml")]) == 1
    assert "write it: backfill setup" in capsys.readouterr().out
    assert told["sound"] is False


def test_a_mistyped_option_is_not_what_the_doctor_says_of_a_site(capsys: pytest.CaptureFixture[str]) -> None:
    """Its 2 tells that no fault was seen, though not all could be looked at."""
    for words in (["--bot"], ["--hosts", "bm1"], ["too much"]):
        assert main(["doctor", *words]) == 64
        assert "see `backfill doctor --help`" in capsys.readouterr().err
    assert doctor.BLIND == 2


def test_a_directory_is_no_policy_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is to be opened for anybody then."""
    assert main(["doctor", "--config", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert f"cannot read {tmp_path}: Is a directory" in told
    assert "mend: name the policy file itself: backfill doctor --config /etc/backfill/policy.yaml" in told


def test_a_closed_policy_file_is_opened_for_the_users_own_group(tmp_path: Path) -> None:
    """Directories other than our own are not ours to open."""
    closed, group = PermissionError(13, "Permission denied"), grp.getgrgid(os.getegid()).gr_name
    ours = Path("/etc/backfill/policy.yaml")
    mend = f"chgrp {group} /etc/backfill {ours}; chmod g+rX /etc/backfill {ours}"
    assert doctor.unreadable(ours, closed).mend == mend
    there = tmp_path / "policy.yaml"
    assert doctor.unreadable(there, closed).mend == f"chgrp {group} {there}; chmod g+r {there}"
    assert "move it to /etc/backfill" in doctor.unreadable(tmp_path / "none/policy.yaml", closed).mend


def test_a_group_that_is_called_otherwise_than_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chgrp to the user's name would fail."""
    theirs = grp.getgrall()[-1]
    monkeypatch.setattr(os, "getegid", lambda: theirs.gr_gid)
    found = doctor.unreadable(Path("/etc/backfill/policy.yaml"), PermissionError(13, "Permission denied"))
    assert found.mend.startswith(f"chgrp {grp.getgrgid(theirs.gr_gid).gr_name} ")


def test_a_check_without_anything_to_look_at_has_no_mark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = _facts(slurm=None, slurm_problem="no answer")(sound(tmp_path))
    monkeypatch.setattr(doctor, "look", lambda config: facts)
    path = str(tmp_path / "policy.yaml")
    assert main(["doctor", "--config", path]) == 1
    shown = capsys.readouterr().out
    assert "- slurm.conf has what we need: not looked at, Slurm does not answer" in shown
    assert "\u2713 slurm.conf has what we need" not in shown
    assert main(["doctor", "--config", path, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["unseen"]["a hook is heard"] == "Slurm does not answer"


def test_mistakes_of_the_file_are_told_with_their_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text((ROOT / "config/policy.minimal.yaml").read_text() + "nonsense: 1\n")
    assert main(["doctor", "--config", str(path)]) == 1
    shown = capsys.readouterr().out
    assert "policy-mistake" in shown
    assert f"{path}:" in shown
    assert shown.endswith("1 fault\n")


def test_a_user_that_is_not_there_cannot_look(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--user", "nobody-of-ours"]) == 64
    assert "there is no user nobody-of-ours" in capsys.readouterr().err


def test_grades_make_the_status(tmp_path: Path) -> None:
    found = examine(_raw(ReturnToService="1")(sound(tmp_path)))
    assert found.has(Grade.ADVICE)
    assert not found.has(Grade.FAULT)


def test_a_user_without_a_name_is_told_by_its_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """As in a container that runs as a number."""

    def nameless(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nameless)
    found = doctor.unreadable(tmp_path / "policy.yaml", FileNotFoundError(2, "No such file or directory"))
    assert found.what.startswith(f"{os.geteuid()} cannot read ")
    monkeypatch.setattr(doctor, "look", lambda config: sound(tmp_path))
    assert main(["doctor", "--config", str(tmp_path / "policy.yaml"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["user"] == str(os.geteuid())


def test_a_host_without_a_guest_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    """It would be ignored: the doctor looks at all hosts."""
    assert main(["doctor", "--host", "bm1", "--config", "/none"]) == 64
    assert "--host says where to make the guest of --boot; give both" in capsys.readouterr().err
