"""Stand-ins for Slurm's tools: small scripts that note how they were called and answer."""

from __future__ import annotations

import shlex
from pathlib import Path


class FakeTools:
    """A directory with squeue, scontrol, scancel and sbatch; `answer` says what they print.

    The first answer whose words all occur in the command line is given. A tool without a fitting
    answer prints nothing and succeeds.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._calls = directory / "calls"
        self._calls.touch()
        self._rules: list[str] = []
        self._write()

    def answer(self, words: str, out: str = "", err: str = "", status: int = 0) -> None:
        """From now on, a call with these words prints this and ends with this status."""
        pattern = "*".join(shlex.quote(word) for word in words.split())
        self._rules.append(
            f"*{pattern}*) printf %s {shlex.quote(out)}; printf %s {shlex.quote(err)} >&2; exit {status};;"
        )
        self._write()

    def answer_once(self, words: str, out: str = "", err: str = "", status: int = 0) -> None:
        """The same for the next such call alone; later ones print nothing and succeed."""
        pattern = "*".join(shlex.quote(word) for word in words.split())
        done = self.directory / f"once-{len(self._rules)}"
        said = f"printf %s {shlex.quote(out)}; printf %s {shlex.quote(err)} >&2; exit {status}"
        self._rules.append(f"*{pattern}*) [ -e {done} ] || {{ : >{done}; {said}; }};;")
        self._write()

    def forget_answers(self) -> None:
        """From now on every call succeeds."""
        self._rules.clear()
        self._write()

    @property
    def calls(self) -> list[str]:
        """The command lines so far."""
        return self._calls.read_text().splitlines()

    def changes(self) -> list[str]:
        """Those command lines that ask Slurm to change something."""
        reading = ("squeue", "scontrol -F", "scontrol -a", "scontrol show")
        return [call for call in self.calls if not call.startswith(reading)]

    def _write(self) -> None:
        rules = "\n".join(self._rules)
        for tool in ("squeue", "scontrol", "scancel", "sbatch"):
            script = self.directory / tool
            script.write_text(
                f'#!/bin/sh\nline="{tool} $*"\necho "$line" >>{self._calls}\ncase "$line" in\n{rules}\nesac\n'
            )
            script.chmod(0o755)
