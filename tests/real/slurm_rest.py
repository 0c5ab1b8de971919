"""slurmrestd in a lab, and a socket that leads to it from outside the lab."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from backfill.lab.cluster import Lab
from backfill.lab.layout import ROOT_MOUNT
from tests.real.slurm_lab import until

_NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")


@dataclass(frozen=True)
class Restd:
    """A running slurmrestd: the socket that leads to it, and its number on this machine."""

    socket: Path
    pid: int

    def cpu_ticks(self) -> int:
        """What it has computed so far, in clock ticks."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])


def _inner(pid: int) -> int:
    """The process that one which only enters namespaces has started there."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return _inner(int(children[0])) if children else pid


@contextmanager
def slurmrestd(lab: Lab) -> Iterator[Restd]:
    """Runs it on the controller as nobody, because it refuses to run as root."""
    home = lab.shared / "rest"
    home.mkdir(exist_ok=True)
    home.chmod(0o777)
    inner, outer = home / "inner", home / "outer"
    daemon = ("/usr/sbin/slurmrestd", "-s", "slurmctld", "-a", "rest_auth/local", f"unix:{inner}")
    relay = (sys.executable, str(Path(__file__).with_name("rest_relay.py")))
    with (home / "log").open("w") as log:
        argv = ["chroot", ROOT_MOUNT, *_NOBODY, *daemon]
        # Otherwise it cuts the list of an array's waiting tasks after 64 characters.
        env = {"SLURM_BITSTR_LEN": "0"}
        started = [lab.popen("ctl", argv, env=env, stdout=log, stderr=log)]
        try:
            until(inner.exists)
            started.append(lab.popen("ctl", [*relay, str(outer), str(inner)], stderr=log))
            until(outer.exists)
            yield Restd(outer, _inner(started[0].pid))
        finally:
            for process in started:
                process.kill()
                process.wait()
            for path in (inner, outer):
                path.unlink(missing_ok=True)
