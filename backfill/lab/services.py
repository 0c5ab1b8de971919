"""Starts, stops and reaps the programs of one machine; runs inside the machine as its init."""

from __future__ import annotations

import os
import pwd
import resource
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from backfill.lab.layout import SLURM_TOOLS_PATH
from backfill.lab.mounts import see_usr
from backfill.lab.service import Service
from backfill.lab.spec import LabError
from backfill.lab.waiting import accepts, wait_until

# Each only bounds a hang; a machine that has a lot to do needs many times the usual seconds.
READY_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 10.0
KILL_TIMEOUT_S = 60.0


@dataclass(slots=True)
class _Running:
    service: Service
    pid: int = 0
    warming_pid: int = 0
    ended: str = "not started"


class Services:
    """The machine's programs by name. Single-threaded; `reap` must be called on SIGCHLD."""

    def __init__(
        self,
        services: tuple[Service, ...],
        root: str,
        log_dir: Path,
        ready_timeout_s: float = READY_TIMEOUT_S,
    ) -> None:
        self._all = {service.name: _Running(service) for service in services}
        self.root = root
        self._log_dir = log_dir
        self._ready_s = ready_timeout_s

    def boot(self) -> None:
        """Start all in order, each when its condition holds; LabError names the one that fails."""
        for running in self._all.values():
            self.start(running.service.name)
        for running in self._all.values():
            self._await_ready(running)

    def start(self, name: str, wait: bool = False) -> int:
        """Start one service and return its pid inside the machine."""
        running = self._find(name)
        if running.pid:
            raise LabError(f"{name} already runs")
        service = running.service
        if not wait_until(lambda: accepts(service.after), self._ready_s):
            raise LabError(f"{name} waited {self._ready_s:.0f} s in vain for {service.after}")
        running.pid = self._fork(service)
        running.ended = ""
        # munged must answer before anything that comes after it starts.
        if wait or service.ready.startswith("unix:"):
            self._await_ready(running)
        return running.pid

    def give_usr(self, name: str, usr: str) -> None:
        """From its next start on a service has this directory as its /usr; "" for the machine's own."""
        running = self._find(name)
        running.service = replace(running.service, usr=usr)

    def await_ready(self, name: str) -> None:
        """Return when a started service answers; LabError with its last line if it ends instead."""
        self._await_ready(self._find(name))

    def stop(self, name: str, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """SIGTERM, then SIGKILL when the time is over; children of the program stay alive."""
        running = self._find(name)
        if running.pid:
            os.kill(running.pid, signal.SIGTERM)
            if not wait_until(lambda: self._gone(running), timeout_s):
                self.kill(name, signal.SIGKILL)

    def kill(self, name: str, number: int) -> None:
        """Send a signal to the program itself; after SIGKILL return when it is gone.

        Its sockets are closed some time before it can be reaped: until then it would be shown as
        one that runs, although nobody answers.
        """
        running = self._find(name)
        if not running.pid:
            raise LabError(f"{name} does not run")
        os.kill(running.pid, number)
        if number == signal.SIGKILL and not wait_until(lambda: self._gone(running), KILL_TIMEOUT_S):
            raise LabError(f"{name} was killed and is not gone after {KILL_TIMEOUT_S:.0f} s")

    def reap(self) -> None:
        """Collect every dead child, orphans of the machine included."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for running in self._all.values():
                if running.warming_pid == pid:
                    running.warming_pid = 0
                elif running.pid == pid:
                    running.pid = 0
                    running.ended = f"ended with {os.waitstatus_to_exitcode(status)}"

    def status(self) -> dict[str, dict[str, Any]]:
        """Per service its pid inside the machine (0 when it does not run) and how it ended."""
        self.reap()
        return {name: {"pid": r.pid, "ended": r.ended} for name, r in self._all.items()}

    def _gone(self, running: _Running) -> bool:
        self.reap()
        return running.pid == 0

    def _warmed(self, running: _Running) -> bool:
        self.reap()
        return running.warming_pid == 0

    def _find(self, name: str) -> _Running:
        if name not in self._all:
            raise LabError(f"no service {name!r} here; there are {', '.join(self._all) or 'none'}")
        return self._all[name]

    def _await_ready(self, running: _Running) -> None:
        service = running.service
        ready = wait_until(lambda: self._gone(running) or accepts(service.ready), self._ready_s)
        if not ready or not running.pid:
            last = self._log_of(service).read_text(errors="replace").splitlines()[-1:]
            raise LabError(f"{service.name} did not come up ({running.ended}): {' '.join(last)}")
        if service.warm:
            # Reaping goes on meanwhile: libvirtd waits for its dead probes to be collected.
            running.warming_pid = self._fork(replace(service, argv=service.warm, nice=0))
            wait_until(lambda: self._warmed(running), self._ready_s)

    def _log_of(self, service: Service) -> Path:
        return self._log_dir / f"{service.name}.out"

    def _fork(self, service: Service) -> int:
        log = os.open(self._log_of(service), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        pid = os.fork()
        if pid:
            os.close(log)
            return pid
        try:
            self._become(service, log)
        finally:
            os._exit(127)

    def _become(self, service: Service, log: int) -> None:
        os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        null = os.open("/dev/null", os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        if service.chroot and self.root != "/":
            os.chroot(self.root)
        if service.usr:
            see_usr(service.usr)
        os.chdir("/")
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # "/" is the whole machine's
        os.nice(service.nice)
        environment = {"PATH": SLURM_TOOLS_PATH, "LANG": "C.UTF-8", "HOME": "/root"}
        if not service.chroot:
            environment["PYTHONPATH"] = str(Path(__file__).parents[2])
        if service.user != "root":
            user = pwd.getpwnam(service.user)
            os.setgroups([])
            os.setgid(user.pw_gid)
            os.setuid(user.pw_uid)
            environment["HOME"] = user.pw_dir
        os.execvpe(service.argv[0], service.argv, environment)  # noqa: S606  no shell is wanted
