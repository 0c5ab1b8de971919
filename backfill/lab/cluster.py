"""The lab as its users see it: bring it up, run commands in its machines, take it down."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from backfill.lab import cgroups, control, kvm, roots, saltenv, slurmconf
from backfill.lab.layout import SLURM_TOOLS_PATH, daemon_socket, tools_dir, user_ids
from backfill.lab.needs import check_machine
from backfill.lab.site import services as site_services
from backfill.lab.spec import LIBVIRT_PORT, LabError, LabSpec, host_address, lab_root
from backfill.lab.status import LabStatus, MachineStatus
from backfill.lab.supervisor import NAME as SUPERVISOR
from backfill.lab.waiting import POLL_S, lock_holder, wait_until

Progress = Callable[[str], None]
UP_TIMEOUT_S = 300.0
DOWN_TIMEOUT_S = 120.0
START_TIMEOUT_S = 120.0


class Lab:
    """A handle on a lab by name; it holds no process, so any number of programs can have one."""

    def __init__(self, spec: LabSpec) -> None:
        self.spec = spec
        self.dir = lab_root() / spec.name

    @property
    def shared(self) -> Path:
        """The directory that has the same path and content in every machine (not in guests)."""
        return self.dir / "shared"

    @property
    def slurm_conf(self) -> Path:
        """The slurm.conf that the controller and the hosts read."""
        return (self._own("ctl") if self.spec.site else self.dir) / "etc/slurm/slurm.conf"

    @property
    def munge_key(self) -> Path:
        """The key that a guest's seed must carry."""
        return (self._own("ctl") if self.spec.site else self.dir) / "etc/munge/munge.key"

    @property
    def slurm_keys(self) -> Path:
        """Slurm's own keys, which all machines read, where it does not use munge."""
        return self.dir / "etc/slurm/slurm.jwks"

    @property
    def tally_log(self) -> Path:
        """Return the path of the tally's log; give its lines to `check_tally`."""
        return self.dir / "tally.log"

    @property
    def daemon_socket(self) -> Path:
        """Return the socket of the daemon for the lab's hook, in whichever machine it runs."""
        return daemon_socket(self.dir)

    @property
    def hook_path(self) -> Path:
        """The hook that the lab builds where its specification names none."""
        return self.dir / "hook" / "hook"

    @property
    def hosts(self) -> tuple[str, ...]:
        """bm1..bmN."""
        return self.spec.host_names

    @property
    def tools(self) -> Path | None:
        """Slurm's tools of the lab's release, for use in its machines; None: as PATH says."""
        return tools_dir(self.dir) if self.spec.roots and not self.spec.site else None

    @property
    def path(self) -> str:
        """PATH inside the lab's machines."""
        return f"{self.tools}:{SLURM_TOOLS_PATH}" if self.tools else SLURM_TOOLS_PATH

    @property
    def domain_type(self) -> str:
        """ "kvm" where a probe boot has succeeded on this machine since it started, else "qemu"."""
        return kvm.domain_type()

    def libvirt_uri(self, host: str) -> str:
        """Return the address of the host's hypervisor, to be used from inside a machine of the lab."""
        if host not in self.hosts:
            raise LabError(f"{host!r} is no host of lab {self.spec.name!r}")
        return f"qemu+tcp://{host_address(host)}:{LIBVIRT_PORT}/system"

    @classmethod
    def up(cls, spec: LabSpec, progress: Progress = lambda line: None, tied: bool = False) -> Lab:
        """Start a lab and return when all of it answers.

        With `tied` the lab ends when the calling process ends, in whatever way. Raises LabError
        when a lab of that name is up already, or with the reason why it cannot start.
        """
        check_machine(spec)
        if spec.salt:
            saltenv.salt_python()  # made once, which takes longer than a lab may take to come up
        lab = cls(spec)
        lab.dir.mkdir(parents=True, exist_ok=True)
        _check_passable(lab.dir)
        with (lab.dir / "up.lock").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            if lab._supervisor():
                raise LabError(f"lab {spec.name!r} is up already; use it or take it down first")
            lab._await_watcher()
            (lab.dir / "state.json").unlink(missing_ok=True)
            (lab.dir / "spec.json").write_text(json.dumps(spec.to_json(), indent=2) + "\n")
            try:
                lab._start_supervisor(os.getpid() if tied else 0)
                lab._await_up(progress)
            except BaseException:
                lab.down()
                raise
        return lab

    @classmethod
    def attach(cls, name: str = "lab") -> Lab:
        """Return a handle on a lab that is up; LabError if there is none of that name."""
        directory = lab_root() / name
        if not lock_holder(directory / "lock"):
            raise LabError(f"lab {name!r} is not up; start it with: backfill lab up")
        return cls(LabSpec.from_json(json.loads((directory / "spec.json").read_text())))

    def down(self) -> None:
        """End the lab and wait until nothing of it is left; does nothing when it is down."""
        if pid := self._supervisor():
            _signal(pid, signal.SIGTERM)
            if not wait_until(lambda: not self._supervisor(), DOWN_TIMEOUT_S):
                _signal(pid, signal.SIGKILL)
        self._await_watcher()
        cgroups.sweep_dead()
        left = cgroups.sweep(self.dir)
        if left:
            raise LabError(f"the control group {left[0]} cannot be removed: something lives in it")

    def status(self) -> LabStatus:
        """Return the present status, also of a lab that is down or half up."""
        state = self._state()
        supervisor_pid = self._supervisor()
        phase = str(state.get("phase", "down"))
        if not supervisor_pid and phase != "failed":
            phase = "down"
        machines = {}
        if supervisor_pid and phase == "up":
            machines = {
                name: MachineStatus(pid, self._services(name)) for name, pid in state["machines"].items()
            }
        return LabStatus(
            name=self.spec.name,
            phase=phase,
            detail=str(state.get("detail", "")),
            directory=str(self.dir),
            supervisor_pid=supervisor_pid,
            cgroups=str(state.get("cgroups", "")),
            domain_type=kvm.known_domain_type(),
            machines=machines,
        )

    def command(
        self, machine: str, argv: Sequence[str], env: Mapping[str, str] | None = None, user: str = "root"
    ) -> list[str]:
        """Return the full command line that runs `argv` in the machine (for exec or a shell).

        Slurm's tools are those of the lab's release; everything else is this machine's own.
        """
        state = self._state()
        pid = state.get("machines", {}).get(machine)
        if pid is None or not self._supervisor():
            known = ", ".join(self.spec.machines)
            raise LabError(f"lab {self.spec.name!r} has no running machine {machine!r}: {known}")
        join = cgroups.joining(self.dir, machine) if state["weights"] else []
        environment = {"PATH": self.path, "LANG": "C.UTF-8", "HOME": "/root", **(env or {})}
        return [
            *join,
            "nsenter",
            "-t",
            str(pid),
            "-m",
            "-u",
            "-i",
            "-n",
            "-p",
            "-C",
            "-r",
            "-w",
            "--",
            *self._becoming(user),
            "setpriv",
            "--pdeathsig",
            "KILL",
            "env",
            "-i",
            *(f"{key}={value}" for key, value in environment.items()),
            *argv,
        ]

    def _becoming(self, user: str) -> list[str]:
        if user == "root":
            return []
        uid, gid = user_ids(self.dir / "etc", user)
        return ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--"]

    def shell_command(self, node: str) -> list[str]:
        """Return the command line of an interactive shell on `ctl`, a host, or a virtual node (vnK)."""
        environment = {"TERM": os.environ.get("TERM", "dumb"), "PS1": f"{node}# "}
        if not node.startswith("vn"):
            return self.command(node, ["bash", "--norc"], environment)
        argv = ["srun", "--partition=htc", f"--nodelist={node}", "--pty", "bash", "--norc"]
        return self.command("ctl", argv, environment)

    def run(
        self,
        machine: str,
        argv: Sequence[str],
        *,
        timeout_s: float = 180.0,
        env: Mapping[str, str] | None = None,
        stdin: str | None = None,
        check: bool = False,
        user: str = "root",
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a machine to its end; like subprocess.run, killed when time is over."""
        try:
            return subprocess.run(
                self.command(machine, argv, env, user),
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=check,
            )
        except subprocess.CalledProcessError as error:
            error.add_note(error.stderr.strip())
            raise

    def popen(
        self,
        machine: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdout: int | IO[str] | None = None,
        stderr: int | IO[str] | None = None,
        user: str = "root",
    ) -> subprocess.Popen[str]:
        """Start a command in a machine; it dies when the returned process is killed."""
        return subprocess.Popen(
            self.command(machine, argv, env, user),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            text=True,
        )

    def restart(self, service: str) -> None:
        """Stop and start "slurmctld", "slurmd@bm1", "libvirtd@bm2"; returns when it answers."""
        self._ask(service, {"op": "restart"})

    def start(self, service: str) -> None:
        """Start a service that was stopped or killed; returns when it answers."""
        self._ask(service, {"op": "start"})

    def stop(self, service: str) -> None:
        """Stop a service and leave it stopped; what it started stays."""
        self._ask(service, {"op": "stop"})

    def kill(self, service: str, signal_number: int = signal.SIGKILL) -> None:
        """Send a signal to a service's own process; nothing restarts it. After SIGKILL it is gone."""
        self._ask(service, {"op": "kill", "signal": int(signal_number)})

    def reboot(self, machine: str, *, orderly: bool = False) -> None:
        """Start a machine anew; returns when it has booted.

        All its processes end at once, as when its power fails; `orderly`: by systemd's own order, in a
        site. Its files stay, but for /run and what was in memory.
        """
        request = {"op": "reboot", "machine": machine, "orderly": orderly}
        control.ask(self._socket(SUPERVISOR), request, timeout_s=2 * UP_TIMEOUT_S)

    def upgrade(self, service: str, release: str) -> None:
        """Start a service ("slurmctld", "slurmd@bm1", "libvirtd@bm1") of another release in its place.

        What the old one has started (jobs' slurmstepd, guests) goes on as it was. For Slurm the lab's
        configuration is that of the release from then on. LabError where the release is not here yet,
        or where the service does not come up. Not in a site, whose machines install packages.
        """
        if self.spec.site:
            raise LabError("the services of a site are upgraded by its packages")
        if service.startswith("libvirtd"):
            change = {"usr": roots.hypervisor_usr(release)}
        else:
            change = {"root": "/" if release == roots.INSTALLED else str(roots.build(release))}
            later = replace(self.spec, slurm_version=release)
            self.slurm_conf.write_text(slurmconf.slurm_conf(later, str(self.hook_path)))
            self.slurm_conf.with_name("cgroup.conf").write_text(slurmconf.cgroup_conf(later))
        self._ask(service, {"op": "upgrade", **change})

    def _ask(self, service: str, request: dict[str, Any]) -> dict[str, Any]:
        name, _, machine = service.partition("@")
        if self.spec.site:
            site_services.order({**request, "service": name}, partial(self.run, machine or "ctl"))
            return {}
        path = self._socket(machine or "ctl")
        return control.ask(path, {**request, "service": name}, timeout_s=UP_TIMEOUT_S)

    def _services(self, machine: str) -> dict[str, int]:
        if self.spec.site:
            return {} if machine == "switch" else site_services.processes(machine, partial(self.run, machine))
        try:
            answer = control.ask(self._socket(machine), {"op": "status"})
        except LabError:
            return {}
        return {name: int(service["pid"]) for name, service in answer["services"].items()}

    def _own(self, machine: str) -> Path:
        """Return the files that a machine of a site has of its own."""
        return self.dir / "machines" / machine / "upper"

    def _socket(self, machine: str) -> Path:
        return self.dir / "run" / f"{machine}.sock"

    def _state(self) -> dict[str, Any]:
        try:
            state: dict[str, Any] = json.loads((self.dir / "state.json").read_text())
        except FileNotFoundError:
            return {}
        return state

    def _await_watcher(self) -> None:
        if not wait_until(lambda: not lock_holder(self.dir / "watcher.lock"), DOWN_TIMEOUT_S):
            raise LabError(f"the last lab's watcher still sweeps; see {self.dir}/supervisor.log")

    def _supervisor(self) -> int:
        return lock_holder(self.dir / "lock")

    def _start_supervisor(self, owner_pid: int) -> None:
        with (self.dir / "supervisor.log").open("w") as log:
            # setsid forks, so the supervisor is nobody's child: it never becomes our zombie.
            subprocess.run(
                [
                    "setsid",
                    "--fork",
                    sys.executable,
                    "-m",
                    "backfill.lab.supervisor",
                    str(self.dir),
                    str(owner_pid),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=True,
                cwd="/",
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            )

    def _await_up(self, progress: Progress) -> None:
        shown = 0
        deadline_s = time.monotonic() + UP_TIMEOUT_S
        started = wait_until(lambda: bool(self._supervisor() or self._state()), START_TIMEOUT_S)
        while started and time.monotonic() < deadline_s:
            alive = self._supervisor()
            state = self._state()
            steps = state.get("steps", [])
            for step, took_s in steps[shown:]:
                progress(f"lab {self.spec.name}: {step} ({took_s} s)")
            shown = len(steps)
            if state.get("phase") == "up":
                return
            if not alive:
                break
            time.sleep(POLL_S)
        why = self._state().get("detail") or f"see {self.dir}/supervisor.log"
        raise LabError(f"lab {self.spec.name!r} did not come up: {why}")


def _check_passable(directory: Path) -> None:
    """Hooks, QEMU and jobs, none of which is root, have files below it."""
    for part in (directory, *directory.parents):
        if not part.stat().st_mode & 0o001:
            raise LabError(
                f"the lab's users cannot enter {directory}, for {part} is closed to them; open it "
                "with chmod o+x, or name another place in BACKFILL_LAB_ROOT"
            )


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
