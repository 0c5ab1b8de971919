"""A pyslurm that behaves as 25.11.2 was measured to, for the process that imports it by this name.

What it shows and how it fails is in the JSON file that FAKE_PYSLURM names.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_PLAN: dict[str, Any] = json.loads(Path(os.environ["FAKE_PYSLURM"]).read_text())
__version__ = "25.11.2"


class RPCError(Exception):
    """As pyslurm's: a number, a text."""

    def __init__(self, errno: int, msg: str) -> None:
        super().__init__(msg)
        self.errno, self.msg = errno, msg


def _act(call: str) -> None:
    """Fail as the plan says, libslurm's chatter on both outputs included."""
    print("slurm: error: chatter", flush=True)
    print("slurm: error: chatter", file=sys.stderr, flush=True)
    match _PLAN.get(call):
        case None:
            return
        case "hang":  # the interpreter is held: not even signals of Python's get through
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
            time.sleep(600)
        case "exit":
            print("fatal: Could not establish a configuration source", file=sys.stderr, flush=True)
            os._exit(1)
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "garbage":
            os.write(int(_PLAN["line_fd"]), b"not json\n")
        case [int() as errno, str() as said]:
            raise RPCError(errno, said)
        case other:
            raise AttributeError(str(other))


_act("import")


class Job(SimpleNamespace):
    """One job; fields are attributes."""

    @staticmethod
    def load(number: int) -> Job:
        """The job of this number; a text is a TypeError as there."""
        if not isinstance(number, int):
            raise TypeError("an integer is required")
        _act("load")
        for fields in _PLAN.get("jobs", []):
            if fields["id"] == number:
                return Job(**fields)
        raise RPCError(2017, "Invalid job id specified")


class Jobs(dict[int, Job]):
    """All jobs by number."""

    @staticmethod
    def load() -> Jobs:
        """Always all of them."""
        _act("load")
        return Jobs({fields["id"]: Job(**fields) for fields in _PLAN.get("jobs", [])})


def _ping_primary() -> SimpleNamespace:
    _act("ping")  # that nobody answers is an RPCError there, never an answer
    return SimpleNamespace(is_responding=True)


slurmctld = SimpleNamespace(ping_primary=_ping_primary)
