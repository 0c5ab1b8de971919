"""The one process that holds a lab up: when it dies, however it dies, the whole lab is gone.

Every machine is a child with a parent-death signal and a pipe from here, alone in its namespaces;
networks and mounts vanish with the namespaces. A watcher waits for this process's end and removes
the control groups, the only thing that the kernel would keep.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from backfill.lab import cgroups, control, layout
from backfill.lab.site import files as site_files
from backfill.lab.site.boot import SiteBoot, inside
from backfill.lab.spec import LabError, LabSpec
from backfill.lab.waiting import lock_for_life

# Who answers at its socket in the lab's `run`, beside the machines.
NAME = "supervisor"
BOOT_TIMEOUT_S = 240.0  # longer than one service may take: its reason is the better one


class Stopped(Exception):  # noqa: N818  an order, not an error
    """The lab was asked to end, or its owner died."""


class Supervisor:
    """Builds the lab in `lab_dir` and keeps it until told to stop. One thread, on purpose:
    the machines' parent-death signal follows the thread that started them."""

    def __init__(self, spec: LabSpec, lab_dir: Path, owner_pid: int) -> None:
        self.spec = spec
        self.lab_dir = lab_dir
        self._pids: dict[str, int] = {}
        self._inits: dict[str, int] = {}
        self._died: list[str] = []
        self._lifelines: dict[str, int] = {}
        self._boots: dict[str, SiteBoot] = {}
        self._state: dict[str, Any] = {"phase": "starting", "pid": os.getpid()}
        self._began_s = time.monotonic()
        self._wakeup, notify = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, self._on_signal)
        signal.set_wakeup_fd(notify, warn_on_full_buffer=False)
        self._asked_to_stop = False
        self._watched = [self._wakeup]
        if owner_pid:
            self._owner = os.pidfd_open(owner_pid)
            self._watched.append(self._owner)

    def run(self) -> None:
        """Bring the lab up, stay, and take it down; the outcome is in state.json."""
        try:
            self._bring_up()
            requests = control.listen(self.lab_dir / "run" / f"{NAME}.sock")
            self._note("up")
            while True:
                if self._pause(None, requests):
                    control.serve(requests.accept()[0], self._answer)
                elif self._died:
                    self._note("up", f"dead machines: {', '.join(self._died)}")
        except Stopped:
            self._note("stopping")
        except (LabError, OSError, subprocess.SubprocessError) as error:
            traceback.print_exc()
            self._note("failed", str(error))
        self._kill_machines()
        if self._state["phase"] == "stopping":
            self._note("down")

    def _on_signal(self, number: int, frame: object) -> None:
        if number != signal.SIGCHLD:
            self._asked_to_stop = True

    def _note(self, phase: str, detail: str = "") -> None:
        took_s = round(time.monotonic() - self._began_s, 2)
        self._state |= {"phase": phase, "detail": detail, "machines": self._inits}
        self._state.setdefault("steps", []).append((phase, took_s))
        text = json.dumps(self._state, indent=2) + "\n"
        fresh = self.lab_dir / "state.json.new"
        fresh.write_text(text)
        fresh.rename(self.lab_dir / "state.json")

    def _pause(self, timeout_s: float | None, *more: socket.socket) -> bool:
        """Wait for a signal, an end or the time; raises Stopped when the lab has to end.

        Return True if one of `more` has something to read.
        """
        watched: list[int | socket.socket] = [*self._watched, *more]
        readable, _, _ = select.select(watched, [], [], timeout_s)
        if self._wakeup in readable:
            os.read(self._wakeup, 4096)
        if self._asked_to_stop or set(readable) - {self._wakeup, *more}:
            raise Stopped
        self._collect()
        return bool(set(readable) & {*more})

    def _wait(self, what: str, holds: Callable[[], bool], mortal: Sequence[str] = ()) -> None:
        """Wait until it holds; LabError when it takes too long, or a machine dies but one of `mortal`."""
        deadline_s = time.monotonic() + BOOT_TIMEOUT_S
        while not holds():
            if time.monotonic() > deadline_s:
                raise LabError(f"{what} took longer than {BOOT_TIMEOUT_S:.0f} s")
            self._pause(0.01)
            if dead := [name for name in self._died if name not in mortal]:
                raise LabError(f"{dead[0]} died; see {self.lab_dir}/supervisor.log")

    def _bring_up(self) -> None:
        cgroups.sweep_dead()
        left = cgroups.sweep(self.lab_dir)
        if left:
            raise LabError(f"control groups of an earlier lab cannot be removed: {left[0]}")
        why_not = cgroups.usable()
        self._state |= {"weights": not why_not, "cgroups": why_not or "cpu weight per guest"}
        if self.spec.site:
            self._write_site(why_not)
        else:
            layout.write(self.spec, self.lab_dir, cgroups=not why_not)
        self._note("configured")
        for machine in self.spec.machines:
            self._spawn(machine, with_cgroups=not why_not)
        for machine in self.spec.machines:
            self._wait(f"the start of {machine}", lambda m=machine: self._find_init(m))  # type: ignore[misc]
        self._lay_network()
        self._note("network")
        # The hosts of a site may fetch their configuration from its controller.
        first = self.spec.machines[:2] if self.spec.site else self.spec.machines
        self._boot(first)
        self._boot(self.spec.machines[len(first) :])

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Start a machine anew; a LabError becomes an answer with the key `error`."""
        machine = request.get("machine", "")
        if request.get("op") != "reboot" or machine not in self.spec.machines[1:]:
            return {"error": f"unknown request {request}"}
        try:
            self._end(machine, orderly=bool(request["orderly"]))
            if self.spec.site:
                self._boots[machine] = SiteBoot(self.lab_dir, machine)
            self._spawn(machine, with_cgroups=bool(self._state["weights"]))
            self._wait(f"the start of {machine}", lambda: self._find_init(machine))
            self._plug((machine,))
            self._boot((machine,))
            self._note("up")
        except (LabError, OSError, subprocess.SubprocessError) as error:
            traceback.print_exc()
            return {"error": str(error)}
        return {}

    def _end(self, machine: str, orderly: bool) -> None:
        """End a machine with all its processes: at once, as when its power fails, or by its own order.

        Its files stay, its network card goes with its namespace.
        """
        if machine in self._pids:
            init = self._inits[machine]
            if orderly and self.spec.site:
                inside(init, ["systemctl", "poweroff"])
                self._wait(f"the end of {machine}", lambda: machine not in self._pids, mortal=(machine,))
            else:
                os.kill(self._pids[machine], signal.SIGKILL)
                os.waitpid(self._pids.pop(machine), 0)
                _wait_gone(init)
        self._inits.pop(machine, None)
        self._died = [name for name in self._died if name != machine]
        if machine in self._lifelines:
            os.close(self._lifelines.pop(machine))
        (self.lab_dir / "run" / f"{machine}.sock").unlink(missing_ok=True)
        cgroups.sweep(self.lab_dir, machine)
        # The kernel takes its time with the network of a machine that is gone.
        self._on_switch(f"link delete {machine}", check=False)

    def _boot(self, machines: Sequence[str]) -> None:
        for machine in machines:
            os.write(self._lifelines[machine], b"go\n")
        for machine in machines:
            self._wait(f"the boot of {machine}", lambda m=machine: self._booted(m))  # type: ignore[misc]
            self._note(f"{machine} booted")

    def _write_site(self, why_not: str | None) -> None:
        if missing := why_not or cgroups.missing_for_systemd():
            raise LabError(f"a site needs control groups of its own: {missing}")
        site_files.write(self.spec, self.lab_dir)
        self._boots = {m: SiteBoot(self.lab_dir, m) for m in self.spec.machines[1:]}

    def _spawn(self, machine: str, with_cgroups: bool) -> None:
        whole = machine in self._boots
        groups = cgroups.make(self.lab_dir, machine, whole) if with_cgroups else ()
        reader, self._lifelines[machine] = os.pipe2(os.O_CLOEXEC)
        argv = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "unshare",
            "--pid",
            "--net",
            "--mount",
            "--uts",
            "--ipc",
            "--cgroup",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--propagation",
            "private",
            "--",
            sys.executable,
            "-m",
            "backfill.lab.site.machine" if self.spec.site else "backfill.lab.machine",
            str(layout.plan_path(self.lab_dir, machine)),
        ]
        pid = os.fork()
        if pid == 0:
            try:
                os.dup2(reader, 0)
                cgroups.join(groups)
                os.execvpe(argv[0], argv, _environment())  # noqa: S606  no shell is wanted
            finally:
                os._exit(127)
        os.close(reader)
        self._pids[machine] = pid

    def _find_init(self, machine: str) -> bool:
        """Learn the pid of the machine's first process; its namespaces exist from then on."""
        pid = self._pids[machine]
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children and (self.lab_dir / "run" / f"{machine}.sock").exists():
            self._inits[machine] = int(children[0])
        return machine in self._inits

    def _lay_network(self) -> None:
        """One cable from the switch to every machine, made inside the namespaces themselves."""
        self._on_switch(
            "link set lo up", "link add br0 type bridge forward_delay 0 stp_state 0", "link set br0 up"
        )
        self._plug(self.spec.machines[1:])

    def _plug(self, machines: Sequence[str]) -> None:
        for machine in machines:
            self._on_switch(
                f"link add {machine} type veth peer name eth0 netns {self._inits[machine]}",
                f"link set {machine} master br0 up",
            )

    def _on_switch(self, *commands: str, check: bool = True) -> None:
        subprocess.run(
            ["nsenter", f"--net=/proc/{self._inits['switch']}/ns/net", "ip", "-batch", "-"],
            input="\n".join(commands),
            text=True,
            check=check,
        )

    def _booted(self, machine: str) -> bool:
        if self.spec.site:
            boot = self._boots.get(machine)
            return boot is None or boot.ended(partial(inside, self._inits[machine]))
        try:
            path = self.lab_dir / "run" / f"{machine}.sock"
            answer = control.ask(path, {"op": "status"}, timeout_s=0.5)
        except LabError:
            return False  # it is still busy booting; its death would be noticed elsewhere
        if answer["failure"]:
            raise LabError(f"{machine}: {answer['failure']}")
        return bool(answer["booted"])

    def _collect(self) -> None:
        """Notice machines that have died: their pids may belong to somebody else from now on."""
        for machine, pid in list(self._pids.items()):
            if os.waitpid(pid, os.WNOHANG) != (0, 0):
                del self._pids[machine]
                self._inits.pop(machine, None)
                self._died.append(machine)

    def _kill_machines(self) -> None:
        self._collect()
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
        for pid in self._pids.values():
            os.waitpid(pid, 0)
        # The first process of each machine dies with its parent; wait until it is really gone.
        for pid in self._inits.values():
            _wait_gone(pid)


def _wait_gone(pid: int) -> None:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    select.select([handle], [], [], 10)
    os.close(handle)


def _environment() -> dict[str, str]:
    source = str(Path(__file__).parents[2])
    return {"PATH": layout.SLURM_TOOLS_PATH, "LANG": "C.UTF-8", "PYTHONPATH": source}


def _start_watcher(lab_dir: Path) -> None:
    """Fork the process that outlives this one by the moment that the sweeping takes."""
    mine = os.pidfd_open(os.getpid())
    ready, told = os.pipe()
    if os.fork() == 0:
        os.setsid()
        lock_for_life(lab_dir / "watcher.lock")
        os.write(told, b"1")
        select.select([mine], [], [])
        cgroups.sweep(lab_dir, timeout_s=20)
        os._exit(0)
    os.read(ready, 1)
    for handle in (ready, told, mine):
        os.close(handle)


def main(lab_dir_text: str, owner_text: str) -> int:
    """Run the lab described by LAB/spec.json; `owner_text` is a pid whose death ends it, or 0."""
    lab_dir = Path(lab_dir_text)
    spec = LabSpec.from_json(json.loads((lab_dir / "spec.json").read_text()))
    try:
        lock_for_life(lab_dir / "lock")
    except BlockingIOError:
        sys.stderr.write(f"another supervisor holds {lab_dir}\n")
        return 1
    os.chdir("/")
    _start_watcher(lab_dir)
    Supervisor(spec, lab_dir, int(owner_text)).run()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2]))
