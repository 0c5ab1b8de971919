"""The lab guest's init: what it does again until it works."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import backfill.lab

INIT = Path(backfill.lab.__file__).parent / "guest" / "backfill-init"


def started(folder: Path, fails: int) -> tuple[int, int]:
    """How often slurmd was started that fails so often, and for how many seconds was waited."""
    (loop,) = re.findall(r"^ +tries=0\n.*?^ +done\n", INIT.read_text(), re.MULTILINE | re.DOTALL)
    slurmd = folder / "slurmd"
    slurmd.write_text(
        f'#!/bin/sh\necho "$*" >>{folder}/starts\n[ "$(wc -l <{folder}/starts)" -gt {fails} ]\n'
    )
    slurmd.chmod(0o755)
    script = f"sleep() {{ echo $1 >>{folder}/waits; }}\nset -- -N vn1 -b\n{loop}"
    script = script.replace("/usr/sbin/slurmd", str(slurmd))
    subprocess.run(["sh", "-eu", "-c", script], check=True, timeout=60)
    waits = folder / "waits"
    starts = (folder / "starts").read_text().splitlines()
    assert set(starts) == {"-N vn1 -b"}
    return len(starts), sum(map(int, waits.read_text().split())) if waits.exists() else 0


@pytest.mark.parametrize("fails", [0, 1, 5])
def test_slurmd_is_started_until_the_controller_answers_it(tmp_path: Path, fails: int) -> None:
    """On a starved machine it ends by itself; a second later it is tried again, as it was."""
    assert started(tmp_path, fails) == (fails + 1, fails)


def test_one_that_never_starts_does_not_keep_the_guest_from_its_agent(tmp_path: Path) -> None:
    """After half a minute the rest goes on: by the agent, and on the console, it can be looked into."""
    assert started(tmp_path, 1000) == (31, 30)
