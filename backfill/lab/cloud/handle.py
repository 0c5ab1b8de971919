"""The test cloud as its users see it: bring it up, enter its network, take it down."""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from backfill.lab import image
from backfill.lab.cloud import environment, guests, heat
from backfill.lab.layout import SLURM_TOOLS_PATH
from backfill.lab.spec import LabError, LabPermissionError, lab_root
from backfill.lab.waiting import POLL_S, lock_holder, wait_until

Progress = Callable[[str], None]
FAKE = "fake.FakeLiveMigrateDriver"
_CLONE_NEWNET = 0x40000000
_MAKE_S = 900.0
_UP_S = 600.0
_DOWN_S = 120.0
_START_S = 120.0
_SEED_KEPT_S = 7 * 86400.0
_SEED = ("db", "images", "etc/keystone", "clouds.yaml")


@dataclass(frozen=True, slots=True)
class CloudStatus:
    """`phase` is down, starting, up or failed; `services` are pids inside the cloud (0: down)."""

    name: str
    phase: str
    detail: str
    directory: str
    pid: int
    services: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        """Plain values for json.dumps."""
        return asdict(self)


class CloudHandle:
    """A handle on a test cloud by name; it holds no process."""

    def __init__(self, name: str = "cloud") -> None:
        self.name = name
        self.dir = lab_root() / "clouds" / name

    @property
    def clouds_yaml(self) -> Path:
        """Credentials: `admin`, and the projects `east` and `west`."""
        return self.dir / "clouds.yaml"

    @property
    def pid(self) -> int:
        """Its first process, 0 when it is down."""
        return lock_holder(self.dir / "lock")

    def up(
        self,
        progress: Progress = lambda line: None,
        tied: bool = False,
        computes: Sequence[str] = ("c1", "c2"),
        real_guests: bool = False,
        with_heat: bool = False,
    ) -> None:
        """Start it and return when all services answer; `tied`: it ends with the caller.

        `real_guests`: with two compute hosts, each in a zone of its own, and their images.
        `with_heat`: with Heat, which takes an environment of its own and some seconds more.
        """
        _check_machine()
        if real_guests:
            guests.check_machine()
        env = environment.ensure(progress)
        orchestration = environment.ensure(progress, heat.LOCK) if with_heat else None
        seed = _ensure_seed(env, progress)
        self.dir.mkdir(parents=True, exist_ok=True)
        with (self.dir / "up.lock").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            if self.pid:
                raise LabError(f"cloud {self.name!r} is up already; use it or take it down first")
            _clear(self.dir)
            for part in _SEED:
                target = self.dir / part
                target.parent.mkdir(parents=True, exist_ok=True)
                subprocess.run(["cp", "-a", "--reflink=auto", seed / part, target], check=True)
            if real_guests:
                guests.make_image(image.build(progress), self.dir / "guest")
            _write_spec(self.dir, env, computes, real_guests, orchestration)
            try:
                _launch(self.dir, tied)
                _await(self.dir, "up", _UP_S, progress)
            except BaseException:
                self.down()
                raise

    def down(self) -> None:
        """End it and remove its files; nothing to do when it is down."""
        _kill(self.dir)
        _clear(self.dir)

    def status(self) -> CloudStatus:
        """Return the present status."""
        state, pid = _state(self.dir), self.pid
        phase = str(state.get("phase", "down"))
        if not pid and phase != "failed":
            phase = "down"
        elif pid and phase not in ("up", "failed"):
            phase = "starting"
        services = {name: int(service["pid"]) for name, service in state.get("services", {}).items()}
        detail = str(state.get("detail", ""))
        return CloudStatus(self.name, phase, detail, str(self.dir), pid, services if phase == "up" else {})

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs `argv` in the cloud's network, with its credentials."""
        pid = self._need()
        return [
            "nsenter",
            "-t",
            str(pid),
            "-n",
            "--",
            "setpriv",
            "--pdeathsig",
            "KILL",
            "env",
            f"OS_CLIENT_CONFIG_FILE={self.clouds_yaml}",
            *argv,
        ]

    @contextmanager
    def network(self) -> Iterator[None]:
        """Put the calling thread, and threads that it starts inside, into the cloud's network."""
        setns = ctypes.CDLL(None, use_errno=True).setns
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        other = os.open(f"/proc/{self._need()}/ns/net", os.O_RDONLY)
        try:
            if setns(other, _CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "cannot enter the cloud's network")
            yield
        finally:
            setns(own, _CLONE_NEWNET)
            os.close(own)
            os.close(other)

    def _need(self) -> int:
        pid = self.pid
        if not pid:
            raise LabError(f"cloud {self.name!r} is not up; start it with: backfill lab cloud up")
        return pid


def _ensure_seed(env: Path, progress: Progress) -> Path:
    """Return filled databases, made once for these services and this code."""
    here = Path(__file__).parent
    sources = [here / "files.py", here / "init.py", here / "inside/populate.py"]
    code = b"".join(source.read_bytes() for source in sources)
    mark = hashlib.sha256(env.name.encode() + code).hexdigest()[:16]
    seed = environment.home() / f"seed-{mark}"
    with (environment.home() / "seed.lock").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        if (seed / "complete").exists():
            (seed / "complete").touch()
            return seed
        progress("preparing the test cloud's databases (once)")
        _forget_old_seeds()
        _kill(seed)
        shutil.rmtree(seed, ignore_errors=True)
        seed.mkdir(parents=True)
        _write_spec(seed, env, ("c1", "c2"))
        try:
            _launch(seed, tied=True, mode="--make")
            _await(seed, "made", _MAKE_S, progress)
        finally:
            _kill(seed)
        (seed / "complete").touch()
    return seed


def _forget_old_seeds() -> None:
    """Each is 150 MB; those of code that nobody has used for a week go."""
    for old in environment.home().glob("seed-*/complete"):
        if time.time() - old.stat().st_mtime > _SEED_KEPT_S:
            shutil.rmtree(old.parent, ignore_errors=True)


def _write_spec(
    directory: Path,
    env: Path,
    computes: Sequence[str],
    real_guests: bool = False,
    orchestration: Path | None = None,
) -> None:
    spec: dict[str, Any] = {
        "env": str(env),
        "driver": FAKE,
        "computes": list(computes),
        "guests": real_guests,
        "heat": str(orchestration or ""),
    }
    (directory / "cloud.json").write_text(json.dumps(spec) + "\n")


def _launch(directory: Path, tied: bool, mode: str = "") -> None:
    """Start the cloud's first process in namespaces of its own; it is nobody's child."""
    owner = os.pidfd_open(os.getpid()) if tied else -1
    argv = [
        "setsid",
        "--fork",
        "unshare",
        "--pid",
        "--net",
        "--mount",
        "--uts",
        "--ipc",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--propagation",
        "private",
        "--",
        sys.executable,
        "-m",
        "backfill.lab.cloud.init",
        str(directory),
        str(owner) if tied else "-",
        *([mode] if mode else []),
    ]
    environ = {"PATH": SLURM_TOOLS_PATH, "LANG": "C.UTF-8", "PYTHONPATH": str(Path(__file__).parents[3])}
    try:
        with (directory / "init.log").open("w") as log:
            subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=True,
                cwd="/",
                env=environ,
                pass_fds=[owner] if tied else [],
            )
    finally:
        if tied:
            os.close(owner)
    if not wait_until(lambda: bool(lock_holder(directory / "lock") or _state(directory)), _START_S):
        raise LabError(f"the test cloud did not start; see {directory}/init.log")


def _await(directory: Path, phase: str, limit_s: float, progress: Progress) -> None:
    shown = 0
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        alive = lock_holder(directory / "lock")
        state = _state(directory)
        for step, took_s in state.get("steps", [])[shown:]:
            progress(f"cloud: {step} ({took_s} s)")
            shown += 1
        if state.get("phase") == phase:
            return
        if not alive:
            break
        time.sleep(POLL_S)
    why = _state(directory).get("detail") or f"see {directory}/init.log"
    raise LabError(f"the test cloud did not come up: {why}")


def _state(directory: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads((directory / "state.json").read_text())
    except FileNotFoundError:
        return {}
    return state


def _kill(directory: Path) -> None:
    """End the first process, and with it, by the kernel, everything in its namespaces."""
    pid = lock_holder(directory / "lock")
    if pid:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        if not wait_until(lambda: not lock_holder(directory / "lock"), _DOWN_S):
            raise LabError(f"process {pid} of the test cloud does not end")


def _clear(directory: Path) -> None:
    """Remove the files; the locks stay, somebody may hold them."""
    for entry in directory.glob("*"):
        if entry.name in ("lock", "up.lock"):
            continue
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _check_machine() -> None:
    if os.geteuid() != 0:
        raise LabPermissionError("the test cloud needs root; run this as root")
    needed = ("mariadbd", "mariadb-install-db", "unshare", "nsenter", "setpriv", "ip", "qemu-img")
    missing = [tool for tool in needed if shutil.which(tool, path=SLURM_TOOLS_PATH) is None]
    if missing:
        raise LabError(f"the test cloud needs {', '.join(missing)}: run scripts/setup.sh")
