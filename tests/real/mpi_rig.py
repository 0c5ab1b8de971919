"""MPI jobs in guests: a program that checks its own sums, how far each of its ranks is, its last word."""

from __future__ import annotations

import re
from typing import Any

from tests.real.daemon_rig import DaemonRig

# Room for eight ranks, each on the host that has most of it.
MPI: dict[str, Any] = {
    "placement": {"order": "spread", "cpu_overcommit": 2},
    "limits": {"max_instances": 8, "max_per_host": 4},
}
# A job in one of these no longer runs: one that is pending again was put back.
ENDED = ("COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED", "PENDING")
_SAID = re.compile(r"ring (?P<ranks>\d+) (?P<rounds>\d+) (?P<sum>[0-9a-f]{16}) ok\n")


class RingJob:
    """A job of `ranks` nodes that passes blocks round a ring until it is told that it is enough."""

    def __init__(self, rig: DaemonRig, ranks: int, *argv: str, period_ms: int = 100) -> None:
        self.rig, self.ranks = rig, ranks
        # Its last command is srun itself: a rank that ends badly is the job's end, too.
        step = f"exec srun --mpi=pmix /usr/local/bin/ring 1000000 {period_ms}"
        size = ("-N", str(ranks), "--ntasks-per-node=1")
        self.id = rig.submit("-p", "htc", *size, *argv, "-o", "/tmp/ring.%j", "--wrap", step)

    def nodes(self) -> list[str]:
        """Its nodes; the first one has its output."""
        shown = self.rig.show(self.id)["NodeList"]
        return self.rig.ctl("scontrol", "show", "hostnames", shown).split()

    def hosts(self) -> list[str]:
        """The hosts of its nodes, in the same order."""
        managed = self.rig.nodes()
        return [str(managed[name]["host"]) for name in self.nodes()]

    def rounds(self) -> list[int]:
        """How many rounds each rank has done, as it stands in its guest's memory."""
        looks = zip(self.hosts(), self.nodes(), strict=True)
        return [self._rounds(host, name) for host, name in looks]

    def _rounds(self, host: str, name: str) -> int:
        words = self.rig.out_of_guest(host, name, f"cat /dev/shm/ring.{self.id}.* 2>/dev/null || :").split()
        return int(words[0]) if words else 0

    def going(self, more: int = 3) -> int:
        """Wait for so many more rounds of the whole ring; how many it has done then."""
        self.rig.until(lambda: self.rig.state(self.id) == "RUNNING", what=f"start of job {self.id}")
        self.rig.until(lambda: self._ready() or self._ended(), what=f"the nodes of job {self.id}")
        before = min(self.rounds())
        self.rig.until(
            lambda: min(self.rounds()) >= before + more or self._ended(), what=f"rounds of {self.id}"
        )
        assert not self._ended(), self._end()
        return min(self.rounds())

    def _ready(self) -> bool:
        managed = self.rig.nodes()
        return all(managed.get(name, {}).get("phase") == "ready" for name in self.nodes())

    def _ended(self) -> bool:
        return self.rig.state(self.id) in ENDED

    def _end(self) -> str:
        """How it ended: Slurm's record of it, what its ranks said, and the daemon's picture."""
        record = self.rig.ctl("scontrol", "show", "job", self.id, check=False)
        managed = self.rig.nodes()
        said = [
            self.rig.out_of_guest(str(managed[name]["host"]), name, f"cat /tmp/ring.{self.id} 2>&1 || :")
            for name in self.nodes()
            if name in managed
        ]
        return "\n".join([record, *said, self.rig.picture()])

    def finish(self) -> int:
        """Tell it that it is enough; the rounds it has done, all of them with the right sum.

        Every rank has compared each round's sum with what it has to be: else the program has failed.
        """
        host, name = self.hosts()[0], self.nodes()[0]

        def completed() -> bool:
            # One reading decides: a job that ends between two of them has ended well all the same.
            state = self.rig.state(self.id)
            if state == "COMPLETED":
                return True
            assert state not in ENDED, self._end()
            # slurmd drops a signal while it is still busy with a resume, so it is sent until heard.
            self.rig.ctl("scancel", "--signal=USR1", self.id, check=False)
            return False

        self.rig.until(completed, what=f"end of job {self.id}")
        shown = self.rig.show(self.id)
        assert (shown["ExitCode"], shown["Restarts"]) == ("0:0", "0")
        said = self.rig.out_of_guest(host, name, f"cat /tmp/ring.{self.id}")
        found = _SAID.fullmatch(said)
        assert found is not None, said
        assert int(found["ranks"]) == self.ranks
        return int(found["rounds"])
