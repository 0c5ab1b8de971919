"""Waits for a site's machines to have booted: systemd says so, no unit has failed, and Slurm answers."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from backfill.lab import control
from backfill.lab.spec import LabError

Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]
_LOOK_S = 0.2
# A node that is not known yet, or has not registered, is in another state.
_AT_WORK = ("idle", "mixed", "allocated")


def inside(pid: int, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in the machine whose first process is `pid`."""
    enter = ("nsenter", "-t", str(pid), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "--")
    return subprocess.run([*enter, *argv], capture_output=True, text=True, check=False)


class SiteBoot:
    """The boot of one machine; `run` runs a command there once it has begun."""

    def __init__(self, lab_dir: Path, machine: str) -> None:
        self._machine = machine
        self._told = False
        self._looked_s = 0.0
        path = lab_dir / "run" / f"{machine}.notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        path.unlink(missing_ok=True)
        with control.short_path(path) as name:
            self._socket.bind(name)

    def ended(self, run: Run) -> bool:
        """Return True once all of the machine is at work; LabError with the unit that is not."""
        if not self._has_told() or time.monotonic() - self._looked_s < _LOOK_S:
            return False
        check_units(self._machine, run)
        argv = ["scontrol", "ping"]
        if self._machine != "ctl":
            argv = ["sinfo", "--noheader", f"--nodes={self._machine}", "--format=%T"]
        answer = run(argv)
        self._looked_s = time.monotonic()
        return answer.returncode == 0 and (self._machine == "ctl" or answer.stdout.startswith(_AT_WORK))

    def _has_told(self) -> bool:
        """Return True once systemd has told the end of its boot (sd_notify(3), READY=1)."""
        while not self._told:
            try:
                told = self._socket.recv(4096).decode(errors="replace").splitlines()
            except BlockingIOError:
                break
            if "READY=1" in told:
                # What it tells later nobody reads: ten words that wait would hold it up for ever.
                self._socket.close()
                self._told = True
        return self._told


def check_units(machine: str, run: Run) -> None:
    """Raise LabError with the first unit that has failed and its last line, if one has."""
    units = run(["systemctl", "--failed", "--plain", "--no-legend", "--no-pager"]).stdout.splitlines()
    if units:
        unit = units[0].split()[0]
        lines = run(["journalctl", "-u", unit, "-p", "info", "-o", "cat", "--no-pager"]).stdout.splitlines()
        said = [
            line
            for line in lines
            if not line.startswith((f"{unit}:", "Started ", "Starting ", "Failed to start "))
        ]
        raise LabError(f"{machine}: {unit} did not come up: {' '.join(said[-1:])}")
