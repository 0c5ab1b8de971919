"""Salt's states for Slurm's configuration: they look, call the transaction, and own nothing."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from backfill.ui.commands import slurm as slurm_command

STATES = Path(__file__).parents[2] / "salt_states"


@pytest.fixture
def state() -> Any:
    """The module as Salt loads it, for a run that changes things."""
    found = importlib.util.spec_from_file_location("backfill_slurm", STATES / "_states/backfill_slurm.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    module.__dict__["__opts__"] = {"test": False}
    return module


def program(folder: Path, script: str) -> str:
    """In place of `backfill`; the words of each call are in the file `called`."""
    made = folder / "backfill"
    made.write_text(f'#!/bin/sh\necho "$*" >>{folder}/called\n{script}\n')
    made.chmod(0o755)
    return str(made)


def called(folder: Path) -> list[str]:
    return (folder / "called").read_text().splitlines()


def test_what_is_as_it_should_be_is_left_alone(state: Any, tmp_path: Path) -> None:
    told = state.applied("/p.yaml", program(tmp_path, """echo '{"diff": ""}'"""))
    assert (told["result"], told["changes"]) == (True, {})
    assert called(tmp_path) == ["slurm diff --config /p.yaml --json"]


DIFFERS = """case "$2" in diff) echo '{"diff": "+a"}'; exit 1;; *) echo '{"diff": "+a"}';; esac"""


def test_a_difference_is_applied_by_the_transaction(state: Any, tmp_path: Path) -> None:
    told = state.applied("/p.yaml", program(tmp_path, DIFFERS))
    assert (told["result"], told["changes"]) == (True, {"slurm": "+a"})
    assert called(tmp_path)[1:] == ["slurm apply --config /p.yaml --json"]


def test_a_file_that_slurm_conf_does_not_include_is_not_taken(state: Any, tmp_path: Path) -> None:
    """The first run makes it, empty; what the site has to do then is said, and the state has failed."""
    made = """'{"diff": "", "notes": ["backfill.conf is made, and empty", "add the line"]}'"""
    told = state.applied(
        "/p.yaml", program(tmp_path, DIFFERS.replace("""*) echo '{"diff": "+a"}'""", f"*) echo {made}"))
    )
    assert (told["result"], told["changes"]) == (False, {})
    assert told["comment"] == "backfill.conf is made, and empty; add the line"


def test_a_test_run_only_looks(state: Any, tmp_path: Path) -> None:
    state.__dict__["__opts__"] = {"test": True}
    told = state.applied("/p.yaml", program(tmp_path, DIFFERS))
    assert (told["result"], told["changes"]) == (None, {"slurm": "+a"})
    assert len(called(tmp_path)) == 1


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'slurm.conf:3: no Include line' >&2; exit 65", "slurm.conf:3: no Include line"),
        # Whatever has the exit status of a difference, but answers nothing.
        ("echo 'somebody else has changed backfill.conf' >&2; exit 1", "somebody else has changed"),
        ("exit 0", "ended with 0"),
    ],
)
def test_a_refusal_fails_the_state_with_its_sentence(
    state: Any, tmp_path: Path, script: str, said: str
) -> None:
    for call in (state.applied, state.hooks_installed):
        told = call("/p.yaml", program(tmp_path, script))
        assert told["result"] is False
        assert said in told["comment"]


def test_a_refused_change_fails_the_state(state: Any, tmp_path: Path) -> None:
    """Also where looking has worked: nothing is told as changed."""
    refuses = DIFFERS.replace('*) echo \'{"diff": "+a"}\'', "*) echo 'taken back' >&2; exit 1")
    told = state.applied("/p.yaml", program(tmp_path, refuses))
    assert (told["result"], told["changes"], told["comment"]) == (False, {}, "taken back")


def test_without_the_program_the_remedy_is_told(state: Any) -> None:
    told = state.applied("/p.yaml", "/nowhere/backfill")
    assert told["result"] is False
    assert "install backfill" in told["comment"]


@pytest.mark.parametrize(
    ("seen", "installs"),
    [
        ('{"installed": true, "problems": []}', False),
        ('{"installed": true, "problems": ["the prolog is gone"]}', True),
        ('{"installed": false, "problems": []}', True),
    ],
)
def test_hooks_are_installed_where_they_are_not_or_not_well(
    state: Any, tmp_path: Path, seen: str, installs: bool
) -> None:
    script = f"""case "$3" in status) echo '{seen}';; *) echo '{{"diff": "+Prolog"}}';; esac"""
    told = state.hooks_installed("/p.yaml", program(tmp_path, script))
    assert told["result"] is True
    assert told["changes"] == ({"slurm": "+Prolog"} if installs else {})
    assert len(called(tmp_path)) == 1 + installs


def test_the_commands_that_it_calls_exist() -> None:
    assert {"diff", "apply", "hooks status", "hooks install"} <= slurm_command._DOES.keys()


def test_nothing_else_in_the_tree_writes_what_the_transaction_owns() -> None:
    """No state manages the managed file, a hook or job_submit.lua by itself."""
    for file in STATES.rglob("*.sls"):
        for line in file.read_text().splitlines():
            owned = ("/backfill.conf", "job_submit.lua", "backfill-hook")
            if "name:" in line or "source:" in line:
                written = [word for word in owned if word in line and "master.d" not in line]
                assert written == [], f"{file}: {line}"
