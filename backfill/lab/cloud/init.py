"""The first process of a test cloud: alone in its namespaces, it starts the services and stays.

When it ends, however it ends, the kernel ends every process of the cloud; the network and the
mounts vanish with the namespaces. `--make` prepares fresh databases instead and then stops.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from select import select
from typing import Any

from backfill.lab.cloud import files, guests, heat, second
from backfill.lab.mounts import MS_BIND, mount
from backfill.lab.service import Service
from backfill.lab.services import Services
from backfill.lab.spec import LabError
from backfill.lab.waiting import lock_for_life

SERVICES = {
    "keystone": 5000,
    "placement": 8778,
    "glance": 9292,
    "cinder": 8776,
    "neutron": 9696,
    "nova": 8774,
}
_READY_S = 400.0
_STEP_S = 600.0
_INSIDE = Path(__file__).with_name("inside")


class Init:
    """Builds up the cloud in `root` and notes its progress in state.json."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.spec: dict[str, Any] = json.loads((root / "cloud.json").read_text())
        self.env = Path(self.spec["env"])
        self._began_s = time.monotonic()
        self._state: dict[str, Any] = {"phase": "starting", "detail": "", "steps": []}
        self.services = Services(self._plan(), "/", root / "log", _READY_S)

    def _plan(self) -> tuple[Service, ...]:
        python = str(self.env / "bin/python")
        plan = [
            Service(
                "mariadb",
                ("/usr/sbin/mariadbd", f"--defaults-file={self.root}/mariadb.cnf"),
                ready="tcp:127.0.0.1:3306",
            )
        ]
        for name, port in SERVICES.items():
            argv = [python, str(_INSIDE / "service.py"), name, str(self.root)]
            if name == "nova":
                argv += [",".join(self.spec["computes"]), *self._real_hosts()]
            plan.append(Service(name, tuple(argv), after=_after(name), ready=f"tcp:127.0.0.1:{port}"))
        if self._real_hosts():
            plan += [guests.libvirtd(), second.libvirtd(self.root)]
        if self.spec.get("heat"):
            plan.append(heat.service(self.root, Path(self.spec["heat"])))
        return tuple(plan)

    def _real_hosts(self) -> list[str]:
        """Return the compute hosts with real guests and where their libvirtd is, if they are wanted."""
        if not self.spec.get("guests"):
            return []
        return [f"{guests.HOST}={guests.URI}", f"{second.HOST}={second.URI}"]

    def note(self, phase: str, detail: str = "") -> None:
        """Tell whoever waits how far we are."""
        self._state |= {"phase": phase, "detail": detail, "services": self.services.status()}
        self._state["steps"].append((phase, round(time.monotonic() - self._began_s, 2)))
        fresh = self.root / "state.json.new"
        fresh.write_text(json.dumps(self._state, indent=2) + "\n")
        fresh.rename(self.root / "state.json")

    # --- life ----------------------------------------------------------------------------------

    def up(self) -> None:
        """Start everything on databases that are there."""
        files.write(self.root, self.env, self.spec["driver"])
        for name in ("mariadb", *list(SERVICES)[:-1]):
            self.services.start(name)
        if self._real_hosts():
            guests.prepare(self.root)
            second.prepare(self.root)
            self.services.start(second.SERVICE)
            self.services.start("libvirtd", wait=True)
            self.services.await_ready(second.SERVICE)
        self.services.start("nova")
        for name in SERVICES:
            self.services.await_ready(name)
            self.note(f"{name} answers")
        if self._real_hosts():
            zones = (f"{host.HOST}={host.ZONE}" for host in (guests, second))
            self._python(str(_INSIDE / "guests.py"), str(self.root), *zones)
            self.note("images uploaded")
        if self.spec.get("heat"):
            heat.write(self.root, Path(self.spec["heat"]))
            self.services.start(heat.NAME, wait=True)
            self.note("heat answers")
        self.note("up")

    def make(self) -> None:
        """Fresh databases, filled; then a clean stop, so that they can be copied."""
        files.write(self.root, self.env, self.spec["driver"])
        self._run(
            "mariadb-install-db",
            f"--defaults-file={self.root}/mariadb.cnf",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        )
        self.services.start("mariadb", wait=True)
        self._python("-c", _CREATE, *files.DATABASES)
        self.note("databases created")
        self._in_parallel(self._small_schemas(), self._nova_schema(), self._neutron_schema())
        self.note("schemas made")
        self.services.start("keystone", wait=True)
        self._python(str(_INSIDE / "populate.py"), str(self.root), "catalogue")
        for name in list(SERVICES)[1:]:
            self.services.start(name)
        for name in SERVICES:
            self.services.await_ready(name)
        self.note("services answer")
        self._python(str(_INSIDE / "populate.py"), str(self.root), "all")
        for name in (*reversed(SERVICES), "mariadb"):
            self.services.stop(name, timeout_s=30)
        self.note("made")

    # --- databases -----------------------------------------------------------------------------

    def _tool(self, name: str, config: str, *words: str) -> tuple[str, ...]:
        return (str(self.env / "bin" / name), "--config-file", f"{self.root}/etc/{config}", *words)

    def _small_schemas(self) -> list[tuple[str, ...]]:
        def keystone(*words: str) -> tuple[str, ...]:
            return self._tool("keystone-manage", "keystone/keystone.conf", *words)

        url = f"{files.KEYSTONE}/"
        return [
            keystone("db_sync"),
            keystone("fernet_setup", "--keystone-user", "root", "--keystone-group", "root"),
            keystone(
                "bootstrap",
                "--bootstrap-password",
                "admin",
                "--bootstrap-admin-url",
                url,
                "--bootstrap-public-url",
                url,
                "--bootstrap-internal-url",
                url,
                "--bootstrap-region-id",
                "RegionOne",
            ),
            self._tool("placement-manage", "placement/placement.conf", "db", "sync"),
            self._tool("glance-manage", "glance/glance-api.conf", "db_sync"),
            self._tool("cinder-manage", "cinder/cinder.conf", "db", "sync"),
        ]

    def _nova_schema(self) -> list[tuple[str, ...]]:
        def nova(*words: str) -> tuple[str, ...]:
            return self._tool("nova-manage", "nova/nova.conf", *words)

        return [
            nova("api_db", "sync"),
            nova("cell_v2", "map_cell0", "--database_connection", files.database("nova_cell0")),
            nova("db", "sync"),
            nova(
                "cell_v2",
                "create_cell",
                "--name",
                "cell1",
                "--transport-url",
                "fake:///",
                "--database_connection",
                files.database("nova"),
            ),
        ]

    def _neutron_schema(self) -> list[tuple[str, ...]]:
        return [self._tool("neutron-db-manage", "neutron/neutron.conf", "upgrade", "heads")]

    # --- running programs ----------------------------------------------------------------------

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.root),
            "OS_CLIENT_CONFIG_FILE": f"{self.root}/clouds.yaml",
            "PYTHONPATH": str(self.root / "plugins"),
            "OS_NOVA_DISABLE_EVENTLET_PATCHING": "1",
        }

    def _start(self, argv: Sequence[str]) -> subprocess.Popen[str]:
        with (self.root / "log/make.out").open("a") as log:
            log.write(f"$ {' '.join(argv)}\n")
            log.flush()
            return subprocess.Popen(
                argv,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def _run(self, *argv: str) -> None:
        if self._start(argv).wait(_STEP_S):
            raise LabError(f"{' '.join(argv[:3])} failed; see {self.root}/log/make.out")

    def _python(self, *words: str) -> None:
        self._run(str(self.env / "bin/python"), *words)

    def _in_parallel(self, *chains: list[tuple[str, ...]]) -> None:
        """Each chain in order, the chains beside each other."""
        running = [(chain, self._start(chain.pop(0))) for chain in chains]
        while running:
            chain, process = running.pop(0)
            if process.wait(_STEP_S):
                raise LabError(f"a database could not be made; see {self.root}/log/make.out")
            if chain:
                running.append((chain, self._start(chain.pop(0))))


_CREATE = """
import pymysql, sys
link = pymysql.connect(host="127.0.0.1", user="root")
for name in sys.argv[1:]:
    link.cursor().execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
"""


def _after(name: str) -> str:
    """Nova's compute hosts report to Placement as soon as they start, with a token."""
    if name == "nova":
        return f"tcp:127.0.0.1:{SERVICES['placement']}"
    return "tcp:127.0.0.1:3306"


def main(root_text: str, owner: str, mode: str = "") -> int:
    """Run the cloud in `root_text` until told to stop, or until the process behind `owner` ends.

    `owner` is the number of an inherited pidfd, or "-".
    """
    lock_for_life(Path(root_text, "lock"))
    root = _settle(Path(root_text))
    wakeup, notify = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _end)
    init = Init(root)
    try:
        if mode == "--make":
            init.make()
            return 0
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(notify, warn_on_full_buffer=False)
        init.up()
    except (LabError, OSError, subprocess.SubprocessError) as error:
        traceback.print_exc()
        init.note("failed", str(error))
        return 1
    watched = [wakeup] + ([int(owner)] if owner != "-" else [])
    while True:
        readable, _, _ = select(watched, [], [])
        if set(readable) - {wakeup}:
            return 0
        os.read(wakeup, 4096)
        init.services.reap()


def _settle(directory: Path) -> Path:
    """Show the cloud's files at a place that is the same for all clouds: databases remember it."""
    socket.sethostname("cloud")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    mount("tmpfs", "/run", "tmpfs", options="mode=755")
    place = Path("/run/cloud")
    place.mkdir()
    mount(str(directory), str(place), flags=MS_BIND)
    return place


def _end(number: int, frame: object) -> None:
    os._exit(0)  # the kernel ends everybody else, and nothing needs to be saved


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
