"""slurmrestd in a lab, and a socket that leads to it from outside the lab."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from backfill.lab.cluster import Lab
from backfill.lab.layout import ROOT_MOUNT
from tests.real.slurm_lab import until

_NOBODY = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups")


@contextmanager
def slurmrestd(lab: Lab) -> Iterator[Path]:
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
            yield outer
        finally:
            for process in started:
                process.kill()
                process.wait()
            for path in (inner, outer):
                path.unlink(missing_ok=True)
