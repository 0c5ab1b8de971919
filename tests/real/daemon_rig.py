"""A daemon in a lab of its own, with the hook in place: started, killed, asked, and cleared up."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import yaml

import backfill
from backfill.drivers.store.sqlite import JournalReader
from backfill.lab import image, roots
from backfill.lab.cluster import Lab
from backfill.lab.policyfile import write_policy
from backfill.lab.spec import JOB_USER, LabSpec
from backfill.lab.waiting import wait_until
from backfill.ports.errors import NotFoundError
from backfill.ports.storage import Record
from tests.real.jobs_rig import LIMIT_S, JobsRig
from tests.real.leftovers import traces
from tests.real.repair import revive

# Instances stay for the next test; each test says what else it needs. No test is about how long
# something takes, so all limits leave room for a machine that is several times slower.
WARM: dict[str, Any] = {
    "scale": {"idle_s": 600, "boot_within_s": 600},
    "daemon": {"poll_s": 1, "host_poll_s": 1},
    "readiness": {"clock_within_s": 60, "munge_within_s": 60, "address_within_s": 60},
    "answer_within_s": 50,
}
PATIENT: dict[str, Any] = {"hook_timeout_ms": 60_000, "hook_limit_s": 120}
PAUSE = {"rung": "pause", "within_s": 300, "for_s": 3600}
SUSPEND = {"rung": "suspend", "within_s": 600, "for_s": 3600}
MIGRATE = {"rung": "migrate", "within_s": 600}
REQUEUE = {"rung": "requeue", "within_s": 60}
# Nodes without an instance, until somebody says that they shall be tried again.
_ABSENT = ("failed", "given-up")
_ROOT = Path(backfill.__file__).parents[1]
_Rig = TypeVar("_Rig", bound="DaemonRig")
# What must never stand in a daemon's log, whatever happens to it.
_DEFECTS = re.compile(
    r"Traceback|defect in the driver|cannot use /|unforeseen|did not settle|InvalidTransition"
)


@contextmanager
def daemon_lab(name: str, **spec: Any) -> Iterator[DaemonRig]:
    """A lab with the hook in place, and a rig on it; at the end nothing of both is left."""
    with rig_in_lab(DaemonRig, name, **spec) as rig:
        yield rig


@contextmanager
def rig_in_lab(
    kind: type[_Rig], name: str, guest: image.GuestImage | None = None, **spec: Any
) -> Iterator[_Rig]:
    """The same with a rig of this kind, and guests of this image where one is given."""
    made = LabSpec(name=lab_name(name), **{"hooks": "slurmctld", **PATIENT, **spec})
    guest = guest or image.build(recipe=image.Recipe(made.slurm_version, made.salt, made.condor, made.mpi))
    lab = Lab.up(made if made.roots else roots.equip(made), tied=True)
    try:
        rig = kind(lab, guest)
        yield rig
        rig.clear()
    finally:
        lab.down()
    assert wait_until(lambda: not traces(lab), 60), traces(lab)
    shutil.rmtree(lab.dir)  # a lab that failed keeps its logs


def lab_name(name: str) -> str:
    """The name of a lab that no other test run on this machine has at the same time."""
    return f"{name}-{os.getpid()}"


class DaemonRig(JobsRig):
    """One daemon at a time, in the lab's controller."""

    def __init__(self, lab: Lab, guest: image.GuestImage) -> None:
        super().__init__(lab)
        self.image = guest
        self.log = lab.dir / "daemon.log"
        self.log.touch()
        self.changes: dict[str, Any] = {}
        self._log_from = 0
        self._process: subprocess.Popen[str] | None = None

    # --- the daemon ----------------------------------------------------------------------------

    def command(self, policy: Path, module: str = "backfill") -> list[str]:
        """The command line of a daemon with this policy file."""
        return [sys.executable, "-m", module, "daemon", "--config", str(policy)]

    def start(self, *, crash: str = "", **changes: Any) -> None:
        """Start a daemon with these changes to the lab's policy; wait for its first whole picture.

        `crash` names the moment at which it dies by itself (see `crashing_daemon`).
        """
        assert self._process is None, "a daemon runs already"
        self.changes = changes
        policy = write_policy(self.lab, self.image, **_merged(WARM, changes))
        env = {"PYTHONPATH": str(_ROOT), **({"BACKFILL_CRASH": crash} if crash else {})}
        module = "tests.real.crashing_daemon" if crash else "backfill"
        with self.log.open("a") as log:
            self._process = self.lab.popen(
                "ctl", self.command(policy, module), stdout=log, stderr=log, env=env
            )
        self.until(lambda: self._sees_all() or self.dead, what="the daemon's first picture")
        assert crash or not self.dead, self.picture()

    def _sees_all(self) -> bool:
        try:
            sources = self.ask("status")["sources"]
        except OSError:
            return False
        seen = {name for name, source in sources.items() if source["seen_s"] or source["problem"]}
        return {"slurm", *self.lab.hosts} <= seen

    @property
    def dead(self) -> bool:
        """Whether no daemon of ours runs."""
        return self._process is None or self._process.poll() is not None

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, as a service manager would; it must end well."""
        assert self._end(signal.SIGTERM) == 0, self.picture()

    def freeze(self) -> None:
        """SIGSTOP; `thaw` lets it go on."""
        self.ctl("kill", "-STOP", (self.lab.dir / "daemon/daemon.lock").read_text())

    def thaw(self) -> None:
        """SIGCONT: what brought it into the lab stands still as well, and goes first."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self.ctl("kill", "-CONT", (self.lab.dir / "daemon/daemon.lock").read_text())

    def crashed(self) -> None:
        """Wait until the daemon has killed itself; one that refused to start has not."""
        assert self.ends() == -signal.SIGKILL, self.picture()

    def ends(self) -> int:
        """Wait until the daemon has ended by itself; returns its status."""
        self.until(lambda: self.dead, what="the daemon's end")
        assert self._process is not None
        status = self._process.returncode
        self._process = None
        return status

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        # The signal is for the daemon, not for the program that brought it into the lab.
        pid = (self.lab.dir / "daemon/daemon.lock").read_text()
        self.ctl("kill", f"-{number.value}", pid)
        status = self._process.wait(LIMIT_S)
        self._process = None
        return status

    def restart(self, **changes: Any) -> None:
        """Stop the daemon, if one runs, and start one with another policy."""
        if not self.dead:
            self.stop()
        self._process = None
        self.start(**changes)

    # --- asking --------------------------------------------------------------------------------

    def ask(self, question: str, **values: Any) -> dict[str, Any]:
        """Ask the daemon over its socket; what it refuses fails the test, in the daemon's words.

        OSError where none listens, or where it dies before it has answered.
        """
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(LIMIT_S)
            sock.connect(str(self.lab.daemon_socket))
            sock.sendall(json.dumps({"ask": question, **values}).encode() + b"\n")
            with sock.makefile("rb") as answer:
                line = answer.readline()
        if not line.endswith(b"\n"):
            raise ConnectionResetError(f"the daemon died while it was asked for {question}")
        found = json.loads(line)
        assert isinstance(found, dict)
        assert "error" not in found, f"{question}: {found['error']}\n{self.picture()}"
        return found

    def nodes(self) -> dict[str, dict[str, Any]]:
        """The daemon's managed nodes by name."""
        return {node["name"]: node for node in self.ask("nodes")["nodes"]}

    def instances(self) -> dict[str, tuple[str, str]]:
        """Host and state of each instance."""
        return {i["name"]: (i["host"], i["state"]) for i in self.ask("instances")["instances"]}

    def phase(self, name: str) -> str:
        """The phase of a managed node; empty when it is none."""
        return str(self.nodes().get(name, {}).get("phase", ""))

    def becomes(self, name: str, *phases: str, limit_s: float = LIMIT_S) -> dict[str, Any]:
        """Wait for one of these phases of a node; returns what the daemon said of it then."""

        def seen() -> dict[str, Any]:
            node = self.nodes().get(name, {})
            return node if node.get("phase") in phases else {}

        return self.until(seen, limit_s, f"{name} {' or '.join(phases)}")

    def where(self, job: str) -> tuple[str, str]:
        """The virtual node and the host on which a low-priority job is."""
        name = self.show(job)["NodeList"]
        return name, str(self.nodes()[name]["host"])

    def other(self, host: str) -> str:
        """The lab's other host."""
        (found,) = set(self.lab.hosts) - {host}
        return found

    def journal(self, *kinds: str) -> list[Record]:
        """The journal's records of these kinds since the test began."""
        reader = JournalReader(self.lab.dir / "daemon/journal.db")
        try:
            return [r for r in reader.read() if r.kind in kinds and r.at_s >= self._began_s]
        finally:
            reader.close()

    def hook_complaints(self) -> str:
        """What hooks wrote down because they could not do their work."""
        log = self.lab.dir / "hook/hook.log"
        return log.read_text() if log.exists() else ""

    def gave_up(self) -> bool:
        """Whether some node was given up."""
        return any(node["phase"] == "given-up" for node in self.nodes().values())

    def backfill(self, *argv: str) -> str:
        """Run a command of ours against the daemon, as a user would; its output."""
        socket_path = str(self.lab.daemon_socket)
        command = [sys.executable, "-m", "backfill", *argv, "--socket", socket_path]
        env = {"PYTHONPATH": str(_ROOT)}
        return self.lab.run("ctl", command, env=env, check=True, timeout_s=LIMIT_S).stdout

    def with_policy(self, *argv: str, limit_s: float = LIMIT_S) -> str:
        """Run a command of ours that reads the running daemon's policy file; its output."""
        policy = next(self.lab.dir.rglob("policy*.yaml"))
        command = [sys.executable, "-m", "backfill", *argv, "--config", str(policy)]
        env = {"PYTHONPATH": str(_ROOT)}
        return self.lab.run("ctl", command, env=env, check=True, timeout_s=limit_s).stdout

    def run_daemon(self, policy: Path) -> subprocess.CompletedProcess[str]:
        """Run a daemon that is expected to end by itself."""
        env = {"PYTHONPATH": str(_ROOT)}
        return self.lab.run("ctl", self.command(policy), env=env, timeout_s=LIMIT_S)

    @contextmanager
    def daemon_of(self, policy: Path, *argv: str) -> Iterator[None]:
        """Another daemon at work, with policy file and state directory of its own; it ends well."""
        env = {"PYTHONPATH": str(_ROOT)}
        own_log = policy.with_suffix(".log")
        with own_log.open("w") as log:
            command = [*self.command(policy), *argv]
            process = self.lab.popen("ctl", command, stdout=log, stderr=log, env=env)
        try:
            self.until(lambda: "INFO started" in own_log.read_text(), what="the other daemon")
            yield
        finally:
            lock = Path(yaml.safe_load(policy.read_text())["daemon"]["state_dir"]) / "daemon.lock"
            if process.poll() is None and lock.exists():
                self.ctl("kill", lock.read_text())
            status = process.wait(LIMIT_S)
        assert status == 0, own_log.read_text()

    def domains(self) -> dict[str, list[str]]:
        """The names of all domains, ours or not, by host."""
        return {h: sorted(self.virsh(h, "list", "--all", "--name").split()) for h in self.lab.hosts}

    def picture(self) -> str:
        """Everything that helps to see why a test failed."""
        try:
            records = self.journal("intent", "outcome", "phase", "refusal")[-40:]
        except NotFoundError:
            records = []  # the daemon has refused to start
        journal = "\n".join(f"{r.at_s:.3f} {r.kind} {r.subject} {json.dumps(r.body)[:300]}" for r in records)
        log = "\n".join(self.log.read_text().splitlines()[-40:])
        return f"{super().picture()}\n--- journal\n{journal}\n--- log\n{log}"

    # --- between tests -------------------------------------------------------------------------

    def begin(self) -> None:
        """From here on the journal, the tally and the log belong to the next test."""
        self._began_s = time.time()
        self._wholes.clear()
        self._log_from = len(self.log.read_text())

    def settle(self) -> None:
        """End all jobs, wait for rest, and check what must hold after every test."""
        revive(self.lab)
        self._cancel_all()
        if self.dead:
            self._process = None
            self.start(**self.changes)
        self.until(self._all_ended, what="the end of all jobs")
        self.until(self._at_rest, what="rest: instances, managed nodes and Slurm's nodes agree")
        said = self.judge_tally()
        assert not said, f"{said}\n{self.picture()}"
        log = self.log.read_text()[self._log_from :].splitlines()
        defects = [line for line in log if _DEFECTS.search(line)]
        assert not defects, f"{defects}\n{self.picture()}"

    def _cancel_all(self) -> None:
        for user in ("root", JOB_USER):
            self.ctl("scancel", "-u", user)

    def _all_ended(self) -> bool:
        """The daemon sends pilots until it has read that no payload waits any more: these go as well."""
        left = self.ctl("squeue", "-h", "-o", "%T").split()
        if set(left) - {"COMPLETING"}:
            self._cancel_all()
        return not left

    def _at_rest(self) -> bool:
        managed = self.nodes()
        ready = {name for name, node in managed.items() if node["phase"] == "ready"}
        absent = {name for name, node in managed.items() if node["phase"] in _ABSENT}
        slurm = self.node_states()
        return (
            ready | absent == managed.keys()
            and self.instances().keys() == ready
            and slurm.keys() == {*self.lab.hosts, *ready}
            and all(slurm[host] == "IDLE" for host in self.lab.hosts)
            and not any(o["running"] for o in self.ask("status")["operations"])
        )

    def clear(self) -> None:
        """Let the daemon remove all instances, and see that nothing of them is left."""
        self.restart(scale={"idle_s": 0})
        for name in [n for n, node in self.nodes().items() if node["phase"] in _ABSENT]:
            self.ask("retry", subject=name)
        self.until(lambda: not self.nodes(), what="the removal of all instances")
        assert self.domains() == {host: [] for host in self.lab.hosts}
        assert self.node_states().keys() == set(self.lab.hosts)
        folders = self.lab.shared / self.lab.spec.name
        left = {p.name for p in folders.iterdir()} if folders.exists() else set()
        assert left <= {".parents", ".devices.lock"}  # these by design
        self.stop()


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        merged[key] = {**old, **value} if isinstance(old, dict) else value
    return merged
