"""The services of a site's machines: asked of their systemd, and told what to do through it."""

from __future__ import annotations

from typing import Any

from backfill.lab.site.boot import Run
from backfill.lab.spec import LabError

# The units of a machine that `backfill lab status` shows.
_CONTROLLER = ("munge", "mariadb", "slurmdbd", "slurmctld", "backfill")
_HOST = ("munge", "slurmd", "libvirtd")


def processes(machine: str, run: Run) -> dict[str, int]:
    """Return the process of each service there, 0 where it does not run."""
    names = _CONTROLLER if machine == "ctl" else _HOST
    text = run(["systemctl", "show", "--property=Id,LoadState,MainPID", *names]).stdout
    found = {}
    for block in text.split("\n\n"):
        words = dict(line.partition("=")[::2] for line in block.strip().splitlines())
        if words.get("LoadState") == "loaded":
            found[words["Id"].removesuffix(".service")] = int(words["MainPID"])
    return found


def order(request: dict[str, Any], run: Run) -> None:
    """Carry out start, stop, restart or kill of a service; LabError with systemd's own words."""
    verb, name = request["op"], request["service"]
    argv = ["systemctl", verb, name]
    if verb == "kill":
        argv[2:2] = ["--kill-who=main", f"--signal={request['signal']}"]
    done = run(argv)
    if done.returncode:
        raise LabError(f"{name}: {(done.stderr or done.stdout).strip()}")
