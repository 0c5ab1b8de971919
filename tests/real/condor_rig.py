"""A lab with a pool: pilots in its guests, payloads that count, and the pool's own account of them."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from backfill.lab.condor.pilots import write_pilot, write_reader
from backfill.lab.layout import user_ids
from backfill.lab.spec import CONDOR_SLURM, JOB_USER, POOL
from tests.real.daemon_rig import DaemonRig, daemon_lab
from tests.real.jobs_rig import COUNTER

_PAYLOAD = """\
universe = vanilla
initialdir = {home}
executable = {home}/counter.sh
arguments = {count} {period_s}
environment = "SLURM_JOB_ID={name} SLURM_RESTART_COUNT=0"
output = {name}.out
error = {name}.err
log = {name}.log
should_transfer_files = YES
when_to_transfer_output = ON_EXIT
request_cpus = 1
request_memory = 64
request_disk = 1MB
{more}
queue
"""
REMOVED, COMPLETED = 3, 4  # JobStatus of HTCondor
_EVENT, _DISCONNECTED = re.compile(r"^(\d{3}) \(", re.MULTILINE), "022"  # in its log of a payload


class PoolRig:
    """The pool of a lab whose cluster has a daemon."""

    def __init__(self, cluster: DaemonRig) -> None:
        self.cluster, self.lab = cluster, cluster.lab
        self.home = self.lab.shared / "payloads"
        self.home.mkdir()
        os.chown(self.home, *user_ids(self.lab.dir / "etc", JOB_USER))
        shutil.copy(COUNTER, self.home)
        self._pilot: Path | None = None
        write_reader(self.lab)
        self._payloads = 0

    def pilot(self, *argv: str) -> str:
        """Submit a pilot as an ordinary user; returns the number of its job in Slurm."""
        return self.cluster.submit(*argv, str(self.script()))

    def script(self) -> Path:
        """The pilot's script, with a token for the pool."""
        if self._pilot is None:
            self._pilot = write_pilot(self.lab)
        return self._pilot

    def payload(self, count: int, period_s: float, more: str = "") -> tuple[str, str]:
        """Submit a payload that counts: its name in the tally, and its number in the pool."""
        self._payloads += 1
        name = f"payload{self._payloads}"
        words = _PAYLOAD.format(home=self.home, count=count, period_s=period_s, name=name, more=more)
        described = self.home / f"{name}.sub"
        described.write_text(words)
        said = self.pool("condor_submit", "-terse", str(described), user=JOB_USER)
        return name, said.split()[0]

    def pool(self, *argv: str, user: str = "root") -> str:
        """Run a command in the pool's machine; its output."""
        done = self.lab.run(POOL, argv, user=user)
        assert done.returncode == 0, f"{' '.join(argv)}: {done.stdout}{done.stderr}\n{self.cluster.picture()}"
        return done.stdout.strip()

    def pilots(self) -> list[dict[str, Any]]:
        """The slots that the pool knows."""
        return ads(self.pool("condor_status", "-json"))

    def account(self, payload: str) -> dict[str, Any]:
        """What the pool says of a payload, waiting, at work or ended."""
        found = ads(self.pool("condor_q", "-allusers", "-json", payload))
        return (found or ads(self.pool("condor_history", "-json", payload)))[0]

    def ended(self, payload: str) -> dict[str, Any]:
        """Wait until the pool has booked a payload as completed; what it says of it then."""

        def booked() -> dict[str, Any]:
            account = self.account(payload)
            return account if account["JobStatus"] == COMPLETED else {}

        return self.cluster.until(booked, what=f"the end of payload {payload} in the pool's books")

    def working(self, name: str) -> None:
        """Wait for new words of a payload."""
        self.cluster.counting(name)

    def clear(self) -> None:
        """Remove all payloads that have not ended, and wait until none is left.

        The pool keeps one whose pilot does not answer any more, because its guest was killed, until its
        lease is over: it is removed for good once the pool has tried in vain to reach that pilot.
        """
        self.cluster.until(self._removed, what="the end of all payloads")

    def _removed(self) -> bool:
        left = ads(self.pool("condor_q", "-allusers", "-json"))
        if any(payload["JobStatus"] != REMOVED for payload in left):
            self.lab.run(POOL, ["condor_rm", "-all"])  # one may end in this moment, which it calls a failure
        elif left and all(_out_of_reach(Path(payload["UserLog"])) for payload in left):
            self.lab.run(POOL, ["condor_rm", "-all", "-forcex"])
        return not left

    def events(self, name: str) -> str:
        """The pool's log of a payload."""
        return (self.home / f"{name}.log").read_text()


def _out_of_reach(log: Path) -> bool:
    """Return True if the last that the pool wrote of a payload is that it has lost it."""
    last: str = _EVENT.findall(log.read_text())[-1]
    return last == _DISCONNECTED


def ads(text: str) -> list[dict[str, Any]]:
    """What a command of HTCondor says with -json, which is nothing at all where there is nothing."""
    return list(json.loads(text)) if text else []


@contextmanager
def pool_lab(name: str, **spec: Any) -> Iterator[PoolRig]:
    """A lab with a pool beside it; at the end nothing of both is left."""
    with daemon_lab(name, slurm_version=CONDOR_SLURM, condor=True, **spec) as cluster:
        yield PoolRig(cluster)
