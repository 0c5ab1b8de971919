"""The command line itself: help, mistakes and what a beginner is told about them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from backfill.ui.cli import main
from backfill.ui.command_line import BY_NAME, COMMANDS, build_parser
from backfill.ui.parser import DEFAULT_POLICY
from tests.unit.policy_files import ROOT

HEAVY = ("libvirt", "yaml", "rich", "backfill.engine", "backfill.lab", "socket")


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 64
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    return shown.err


def test_help_imports_no_command() -> None:
    """`backfill --help` is quick because it loads nothing that a command needs."""
    look = (
        "import sys; from backfill.ui.cli import main; main(['--help']); "
        f"print([m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith("[]")


def test_a_program_begins_without_the_planner() -> None:
    """`backfill run` stands before every program that a job starts in its machines."""
    look = (
        "import sys; from backfill.ui.cli import main; main(['run']); "
        "print([m for m in sys.modules if m.startswith(('backfill.core.reconcile', 'backfill.engine'))])"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_interrupt_before_anything_is_loaded_is_quiet() -> None:
    """As early as the first import; what is installed as `backfill` begins there, too."""
    look = (
        "import builtins, sys; loaded = builtins.__import__\n"
        "def interrupted(name, *more):\n"
        "    if name.startswith('backfill.ui'): raise KeyboardInterrupt\n"
        "    return loaded(name, *more)\n"
        "builtins.__import__ = interrupted\n"
        "from backfill.__main__ import main; sys.exit(main())"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert 'backfill = "backfill.__main__:main"' in (ROOT / "pyproject.toml").read_text()


def test_help_names_every_command_and_every_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {c.name} " in text for c in COMMANDS)
    assert all(f"  {code} " in text for code in (0, 1, 64, 65, 69, 77, 78, 130))


def test_help_is_a_word_too(capsys: pytest.CaptureFixture[str]) -> None:
    """`backfill help status`, as with other programs."""
    for words in ([], ["status"], ["checkpoint", "list"]):
        assert main([*words, "--help"]) == 0
        as_option = capsys.readouterr().out
        assert main(["help", *words]) == 0
        assert capsys.readouterr().out == as_option
    assert "there is no command 'sttus'" in refused(capsys, "help", "sttus")


def test_no_command_shows_the_help_and_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 64
    assert "first steps:" in capsys.readouterr().out


@pytest.mark.parametrize("name", [c.name for c in COMMANDS])
def test_every_command_has_a_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: backfill {name}")


def test_version_is_told_as_a_word_and_as_an_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == 0
    as_word = capsys.readouterr().out
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == as_word
    assert as_word.startswith("backfill ")
    assert main(["version", "--json"]) == 0
    assert as_word == f"backfill {json.loads(capsys.readouterr().out)['version']}\n"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["events", "--after", "9" * 30], "is too large; give 999999999999999999 at most"),
        (["sttus"], "there is no command 'sttus'; did you mean 'status'?"),
        (["explan", "vn1"], "did you mean 'explain'?"),
        (["frobnicate"], "there is no command 'frobnicate': use status, hosts"),
        (["lab", "uo"], "there is no command 'uo'; did you mean 'up'?"),
        (["policy", "cheek", "x"], "did you mean 'check'?"),
        (["status", "--jsno"], "there is no option '--jsno'; did you mean '--json'?"),
        (["image", "build", "--sal"], "there is no option '--sal'; did you mean '--salt'?"),
        (["status", "now"], "'now' is one word too many"),
        (["replay", "first_day", "--cluster", "8"], "--cluster goes with a trace; leave it out"),
        (["--json", "status"], "'--json' belongs behind a command"),
        (["--socket", "/x", "status"], "'--socket' belongs behind a command"),
        (["explain"], "SUBJECT is missing"),
        (["daemon"], "--config is missing"),
        (["lab"], "COMMAND is missing"),
        (["events", "-n", "few"], "'few' is no whole number; give one from 1 on"),
        (["events", "-n", "-1"], "-1 is less than 1; give at least 1"),
        (["events", "--after", "-1"], "-1 is less than 0; give at least 0"),
        (["web", "--rate", "0"], "0 is less than 1"),
        (["explain", "vn1", "--lines", "0"], "0 is less than 1"),
        (["reclaim", "h", "--keep", "-1"], "-1 is less than 0"),
        (["fleet", "create", "-n", "0"], "0 is less than 1"),
        (["run", "-np", "0", "true"], "0 is less than 1"),
        (["nodes", "--socket"], "--socket needs a value"),
        (["replay", "t.swf", "--cluster", "-1x1"], "--cluster needs a value; one that begins with a dash"),
        (["replay", "poisson", "--keep"], "--keep goes with a scenario and --live"),
        (["events", "-n", "0"], "give at least 1"),
        (["completion", "tcsh"], "there is no value 'tcsh'"),
        (["evict", "bm1", "--undo", "--off"], "--off: not allowed with argument --undo"),
        (["lab", "up", "--hosts", "many"], "--hosts: 'many' is no whole number"),
    ],
)
def test_a_mistake_is_answered_with_one_sentence_that_helps(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = refused(capsys, *words)
    assert hint in text
    assert "--help`" in text


@pytest.mark.parametrize(
    "line",
    [
        "slurm diff",
        "slurm apply --force",
        "slurm rollback",
        "slurm hooks install",
        "slurm hooks remove",
        "slurm hooks status",
        "slurm spank install",
        "images check",
        "cloud template",
    ],
)
def test_a_command_that_remedies_name_runs_as_printed(line: str) -> None:
    """With the usual policy file; at night nobody looks for its path first."""
    words = line.split()
    args = build_parser([BY_NAME[words[0]]]).parse_args(words)
    assert args.config == Path(DEFAULT_POLICY)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nodes", "vn[1-", "--socket", "/none"], "brackets do not match"),
        (["replay", "poisson", "--junit", "x.xml"], "--junit goes with a scenario; leave it out"),
    ],
)
def test_a_mistake_that_needs_no_daemon_is_told_at_once(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told in refused(capsys, *words)


def test_a_mistake_inside_a_command_points_to_that_commands_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert "`backfill lab --help`" in refused(capsys, "lab", "uo")
    assert "`backfill status --help`" in refused(capsys, "status", "--jsno")


def test_a_right_policy_file_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[2] / "config/policy.minimal.yaml"
    assert main(["policy", "check", str(example)]) == 0
    assert "no mistakes found" in capsys.readouterr().out
    assert main(["policy", "check", str(example), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [(None, 0, "/dev/stdin: no mistakes found\n"), ("clsuter: x\n", 65, "/dev/stdin:1:1: ")],
)
def test_a_policy_is_checked_on_its_way_through_a_pipe(text: str | None, status: int, said: str) -> None:
    """`-` was a file of that name, which nobody has."""
    given = text or (Path(__file__).parents[2] / "config/policy.minimal.yaml").read_text()
    command = [sys.executable, "-m", "backfill", "policy", "check", "-"]
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert (done.stdout or done.stderr).startswith(said)


def test_a_policy_file_with_a_hint_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is told beside the problems, of which there are none."""
    example = Path(__file__).parents[2] / "config/policy.minimal.yaml"
    path = tmp_path / "policy.yaml"
    path.write_text(f"{example.read_text()}\ndaemon: {{poll_s: 30}}\n")
    assert main(["policy", "check", str(path), "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == []
    assert "daemon.poll_s is 30 s, and after 15 s" in shown.err


def test_a_wrong_policy_file_is_a_data_error_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("clsuter: x\n")
    assert main(["policy", "check", str(path)]) == 65
    shown = capsys.readouterr()
    assert f"{path}:1:1: " in shown.err
    assert shown.out == ""
    assert main(["policy", "check", str(path), "--json"]) == 65
    assert json.loads(capsys.readouterr().out)[0]["line"] == 1


def test_the_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["policy", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["type"] == "object"


def test_a_trace_that_is_not_there_is_a_data_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(tmp_path / "no.swf"), "--cluster", "4x1"]) == 65
    assert "no.swf" in capsys.readouterr().err


def test_a_reader_who_goes_away_ends_the_command_quietly() -> None:
    """As with `backfill policy schema | head -1`: no traceback, status 130."""
    command = [sys.executable, "-m", "backfill", "policy", "schema"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 130


@pytest.mark.parametrize("words", ["version", "policy schema", "status --help"])
@pytest.mark.parametrize(
    ("where", "told"),
    [
        (">/dev/full", "cannot write stdout: No space left on device; send it somewhere else"),
        (">&-", "standard output is closed; redirect it, for example to /dev/null"),
    ],
)
def test_an_output_that_takes_nothing_is_told_in_one_sentence(words: str, where: str, told: str) -> None:
    """Both what waits until the end and what is written before it."""
    command = f"exec {sys.executable} -m backfill {words} {where}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (65, f"backfill: {told}\n")
