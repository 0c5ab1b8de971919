"""Files and places that people name: pipes, closed directories, and names that no file can have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backfill.drivers.slurm.conf.managed import EMPTY, render
from backfill.ui.cli import main

ROOT = Path(__file__).parents[2]
LONG = "n" * 300
# Root may enter everywhere, so that a closed directory has to be played.
CLOSED = PermissionError(13, "Permission denied", "/closed/x")


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["policy", "check", LONG], 65),
        (["policy", "compare", LONG], 65),
        (["replay", LONG, "--cluster", "4x1"], 65),
        (["replay", "first_day", "--junit", f"/tmp/{LONG}"], 65),
        (["replay", "first_day", "--report", f"/tmp/{LONG}/x.html"], 65),
        (["replay", "--journal", LONG, "--learn", "costs.yaml"], 65),
        (["demo", "--simulated", LONG], 65),
        (["demo", "--simulated", "--report", LONG], 65),
        (["image", "check", LONG], 65),
        (["slurm", "diff", "--config", LONG], 65),
        (["slurm", "hooks", "status", "--json", "--config", LONG], 65),
        (["setup", "--dry-run", "--slurm-conf", LONG], 65),
        (["status", "--socket", LONG], 69),
    ],
    ids=lambda value: "-".join(value)[:30] if isinstance(value, list) else str(value),
)
def test_a_name_that_no_file_can_have_is_one_sentence(
    words: list[str],
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the file and the remedy, and before anything is played or changed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert main(words) == status
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert LONG in shown.err
    assert "; " in shown.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        ["replay", "/closed/x", "--cluster", "4x1"],
        ["replay", "--journal", "/closed/x", "--learn", "costs.yaml"],
        ["demo", "--simulated", "--report", "/closed/x"],
    ],
    ids=lambda words: words[-2] + words[-1],
)
def test_a_closed_directory_is_told(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = Path.stat

    def stat(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if str(path).startswith("/closed"):
            raise CLOSED
        return real(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", stat)
    assert main(words) == 65
    shown = capsys.readouterr().err
    assert "/closed/x" in shown
    assert "Traceback" not in shown


def test_what_no_command_has_expected_is_one_sentence_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For a file; another error of the system is the program's own fault and stays whole."""

    def closed(*_: object) -> None:
        raise CLOSED

    monkeypatch.setattr("backfill.ui.commands.version.run_version", closed)
    assert main(["version"]) == 77
    told = "backfill: /closed/x: Permission denied; ask its owner, or try as root\n"
    assert capsys.readouterr().err == told

    def odd(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("backfill.ui.commands.version.run_version", odd)
    with pytest.raises(OSError, match="not supported"):
        main(["version"])


@pytest.mark.parametrize("good", [True, False])
def test_a_policy_file_may_be_a_pipe(good: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """It can be read only once."""
    reading, writing = os.pipe()
    text = (ROOT / "config/policy.minimal.yaml").read_bytes() if good else b"clsuter: x\n"
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(text)
    assert main(["policy", "check", f"/dev/fd/{reading}"]) == (0 if good else 65)
    os.close(reading)
    shown = capsys.readouterr()
    assert ("no mistakes found" in shown.out) is good
    assert ("did you mean" in shown.err) is not good


def test_a_file_to_compare_is_read_as_any_policy_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes("cluster: c\n# für\n".encode("latin-1"))
    assert main(["policy", "compare", str(path)]) == 65
    told = f"{path}:2:4: the byte 0xfc is not UTF-8; save the file as UTF-8\n"
    assert capsys.readouterr().err == told
    assert main(["policy", "compare", str(tmp_path / "nope")]) == 65
    assert (
        "the policy file cannot be read: No such file or directory; check the path" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("socket", "told"),
    [
        ("~nobody-of-ours/x", "there is no home of ~nobody-of-ours; write the whole path"),
        ("", "--socket is empty; name the daemon's, such as /run/backfill/daemon.sock"),
    ],
)
@pytest.mark.parametrize("command", ["status", "web"])
def test_a_socket_that_is_none_is_a_mistake_of_the_command_line(
    command: str, socket: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--socket", socket]) == 64
    assert told in capsys.readouterr().err


def test_metrics_are_a_document_or_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file of both was not written, without a word."""
    assert main(["metrics", "--json", "--out", str(tmp_path / "m.prom")]) == 64
    assert "not allowed with argument --json" in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_not_built_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["image", "verify", str(tmp_path / "nope")]) == 65
    assert capsys.readouterr().out == f"there is no folder {tmp_path}/nope; check the path\n"
    assert main(["image", "verify", str(tmp_path)]) == 65
    assert "has no checksums; remove it and build it again" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "odd"),
    [
        (["diff"], "none"),
        (["diff"], "slurm.conf"),
        (["diff"], "backfill.conf"),
        (["hooks", "status"], "none"),
        (["hooks", "status"], "slurm.conf"),
        (["hooks", "status"], "backfill.conf"),
        (["hooks", "remove"], "none"),
        (["hooks", "remove"], "slurm.conf"),
        (["apply"], "none"),
        (["apply"], "slurm.conf"),
        (["spank", "status", "--directory", "{spank}"], "plugstack.conf"),
    ],
)
def test_what_cannot_be_looked_at_is_no_answer(
    words: list[str], odd: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 1 is an answer, on which a script would apply or install. `odd`: what is a directory, and no
    file."""
    conf, policy = tmp_path / "slurm.conf", tmp_path / "policy.yaml"
    text = (ROOT / "config/policy.minimal.yaml").read_text()
    policy.write_text(f"{text}slurm: {{conf: {conf}}}\ndaemon: {{state_dir: {tmp_path}/state}}\n")
    if odd not in ("none", "slurm.conf"):
        conf.write_text("Include backfill.conf\n")
    (tmp_path / odd).mkdir()
    words = [word.format(spank=tmp_path / "spank") for word in words]
    assert main(["slurm", *words, "--json", "--config", str(policy)]) == 65
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert str(tmp_path) in shown.err
    assert not (tmp_path / "state").exists()  # root's lock there would shut the daemon out


def test_in_a_directory_that_is_gone_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "gone"
    place.mkdir()
    monkeypatch.chdir(place)
    place.rmdir()
    assert main(["demo", "--simulated"]) == 65
    assert capsys.readouterr().err == "backfill: the current directory is gone; cd somewhere else\n"


def test_a_torn_record_of_hooks_is_no_fault_of_the_policy_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its file and the remedy are told, with the status of files that cannot be read."""
    conf, policy, hooks = tmp_path / "slurm.conf", tmp_path / "policy.yaml", tmp_path / "hooks"
    text = (ROOT / "config/policy.minimal.yaml").read_text()
    slurm = f"slurm: {{conf: {conf}, hooks: {{directory: {hooks}}}}}"
    policy.write_text(f"{text}{slurm}\ndaemon: {{state_dir: {tmp_path}/state}}\n")
    conf.write_text("Include backfill.conf\n")
    managed = EMPTY.with_section("hooks", (("PrologSlurmctld", f"{hooks}/prolog_slurmctld"),))
    (tmp_path / "backfill.conf").write_text(render(managed))
    hooks.mkdir()
    (hooks / "installed.json").write_text('{"PrologSlurmctld": "/si')
    assert main(["slurm", "hooks", "status", "--json", "--config", str(policy)]) == 65
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert shown.err.startswith(f"{hooks}/installed.json: ")
    assert shown.err.endswith("; run `backfill slurm hooks install` again\n")


def _with_plugin(home: Path, said: str) -> Path:
    """Return the policy file of a site with the plugin, where `sbatch --version` says this."""
    policy, sbatch = home / "policy.yaml", home / "bin/sbatch"
    text = (ROOT / "config/policy.minimal.yaml").read_text()
    slurm = f"slurm: {{conf: {home}/slurm.conf, bin_dir: {home}/bin}}"
    policy.write_text(f"{text}{slurm}\ndaemon: {{state_dir: {home}/state}}\n")
    (home / "slurm.conf").write_text("Include backfill.conf\n")
    (home / "plugstack.conf").write_text(f"include {home}/spank/*.conf\n")
    sbatch.parent.mkdir()
    sbatch.write_text(f"#!/bin/sh\necho '{said}'\n")
    sbatch.chmod(0o755)
    return policy


def test_odd_words_of_sbatch_are_no_fault_of_the_policy_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command is named; what is wrong with the plugin is not known."""
    policy = _with_plugin(tmp_path, "who knows")
    words = ["slurm", "spank", "status", "--json", "--directory", str(tmp_path / "spank")]
    assert main([*words, "--config", str(policy)]) == 65
    shown = capsys.readouterr()
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert shown.err.startswith(f"{tmp_path}/bin/sbatch: its --version 'who knows' names no release")


def test_a_release_that_is_none_is_a_mistake_of_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy, archive = _with_plugin(tmp_path, "slurm 24.11.5"), tmp_path / "vm.tar.gz"
    words = ["slurm", "spank", "package", str(archive), "--release", "newest"]
    assert main([*words, "--config", str(policy)]) == 64
    told = "--release: 'newest' names no release of Slurm such as 24.11.5"
    assert capsys.readouterr().err.startswith(told)
    assert not archive.exists()


@pytest.mark.parametrize("words", [["diff"], ["hooks", "status"], ["spank", "status"]])
def test_the_help_tells_that_other_statuses_are_no_answer(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """There are several: no permission, no Slurm, a policy file that is refused."""
    assert main(["slurm", *words, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "exit status 1 if " in shown
    assert ", 65 or more if that cannot be determined" in shown
