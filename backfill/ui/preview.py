"""Plays a policy file on the journal's latest day: in a process of its own, bounded in time and memory.

What takes minutes of a processor and reads what somebody has sent is nothing for the daemon's process.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path

from backfill.config import ConfigError, confined, load
from backfill.engine.errands import Body
from backfill.ui.own_program import own_program
from backfill.ui.parser import BAD_DATA

DAY = "24h"
# What the process may take: of memory, of a processor, of time. All else comes before it.
_MEMORY_BYTES, _CPU_S, _WITHIN_S = 2 << 30, 300, 900.0
_BEHIND_ALL = ("nice", "-n", "19", "prlimit", f"--as={_MEMORY_BYTES}", f"--cpu={_CPU_S}", "--core=0")
_MOST_LINES = 20


class DayPlayer:
    """Compares a text with the policy file in force, on the journal of this daemon."""

    def __init__(self, policy: Path, journal: Path, last: str = DAY) -> None:
        self._policy, self._journal, self._last = policy, journal, last

    def __call__(self, text: str) -> Body:
        """Return `problems`, each a sentence, or `found`, as `replay --journal --last --json` tells it."""
        try:
            libvirt = load(self._policy).libvirt
        except ConfigError as error:
            return {"problems": [f"the policy file in force has mistakes now: {error}"]}
        catalogue = libvirt.catalogue if libvirt is not None else ""
        text = text.removeprefix("\ufeff")  # which a file's reader would take away
        if problems := confined(text, self._policy.name, catalogue):
            return {"problems": [str(problem) for problem in problems[:_MOST_LINES]]}
        with tempfile.TemporaryDirectory(prefix="backfill-preview-") as folder:
            file = Path(folder, self._policy.name)
            file.write_text(text, encoding="utf-8")
            self._link(Path(folder), catalogue)
            command = (*_BEHIND_ALL, *own_program(), "replay", "--journal", str(self._journal))
            options = ("--policy", str(self._policy), "--against", str(file), "--last", self._last, "--json")
            try:
                done = subprocess.run(
                    [*command, *options],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    timeout=_WITHIN_S,
                    cwd=folder,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return {"problems": [f"it was not played within {_WITHIN_S / 60:.0f} minutes, and was ended"]}
            except OSError as error:
                return {"problems": [f"nothing could be played: {error.strerror or error}"]}
        return _found(done, str(Path(folder)))

    def _link(self, folder: Path, catalogue: str) -> None:
        """Let the text find the catalogue that the policy file in force has beside it."""
        if not catalogue or Path(catalogue).is_absolute() or ".." in Path(catalogue).parts:
            return
        (folder / catalogue).parent.mkdir(parents=True, exist_ok=True)
        (folder / catalogue).symlink_to(self._policy.parent.absolute() / catalogue)


def _found(done: subprocess.CompletedProcess[str], folder: str) -> Body:
    if done.returncode == 0:
        return {"found": json.loads(done.stdout)}
    if done.returncode < 0 or "MemoryError" in done.stderr:
        return {
            "problems": [
                f"it took more than {_MEMORY_BYTES >> 30} GiB, or {_CPU_S} s of a processor, and was ended"
            ]
        }
    lines = [line.removeprefix("backfill: ").replace(f"{folder}/", "") for line in done.stderr.splitlines()]
    told = lines[:_MOST_LINES] if done.returncode == BAD_DATA else lines[-_MOST_LINES:]
    return {"problems": told or [f"it ended with {done.returncode}"]}
