"""Puts right what a test that failed has left, so that it does not make the next one fail."""

from __future__ import annotations

import signal

from backfill.lab.cluster import Lab

_STOPPABLE = ("slurmctld", "slurmd", "libvirtd", "ganesha", "salt-master")


def revive(lab: Lab) -> None:
    """Let the daemons of a lab's machines that are stopped go on, and start those that are dead."""
    for machine, seen in lab.status().machines.items():
        for name, pid in seen.services.items():
            if name in _STOPPABLE and pid:
                lab.kill(f"{name}@{machine}", signal.SIGCONT)
            elif name in _STOPPABLE:
                lab.start(f"{name}@{machine}")
