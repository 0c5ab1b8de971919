"""Real minions beside a real master: each in a root of its own, an overlay over this machine's."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from backfill.drivers.salt import inside
from backfill.drivers.salt.driver import SaltProvisioner
from backfill.drivers.salt.stated import whole_files
from backfill.lab.cluster import Lab
from backfill.lab.guestroot import GUEST_FILES
from backfill.lab.saltenv import salt_python
from backfill.lab.saltimage import LOOK, STATES
from backfill.lab.spec import LabSpec
from backfill.lab.waiting import wait_until
from backfill.ports.errors import DriverError
from backfill.ports.provider import SeedFile

# Only a test that fails waits so long.
LIMIT_S = 600.0
# Upper layer, /proc and /run are the minion's own; everything vanishes with its namespaces.
_ENTER = """
set -e
mkdir -p {home}/root
mount -t tmpfs tmpfs {home}/root
mkdir {home}/root/up {home}/root/work {home}/root/all
cd {home}/root
mount -t overlay overlay -o lowerdir=/,upperdir={home}/root/up,workdir={home}/root/work all
cd {home}/root/all
mount --rbind /dev dev
mount -t proc proc proc
mount -t tmpfs tmpfs run
rm -rf etc/salt var/cache/salt
cp -r {home}/files/. .
chown munge:munge etc/munge etc/munge/munge.key
exec chroot . {python} -c 'from salt.scripts import salt_minion; salt_minion()' \
    --config-dir /etc/salt --log-level=warning
"""


class SaltRig:
    """A master in a lab's controller, a provisioner there, and minions in the lab's bm1."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.provisioner = self.connect()
        self._minions: dict[str, subprocess.Popen[str]] = {}
        rendered = inside_render({"backfill": {"role": "image", "kind": "virtual"}})
        self._baked = {
            "/etc/salt/minion": whole_files(rendered)["/etc/salt/minion"],
            # Where Salt looks for modules that are not its own.
            f"/var/cache/salt/minion/extmods/modules/{LOOK.name}": SeedFile(LOOK.read_bytes()),
        }

    def connect(self, within_s: float = 20.0) -> SaltProvisioner:
        """A provisioner whose Salt process lives in the lab's controller."""
        return connect(self.lab, within_s)

    def start(self, node: str, files: dict[str, SeedFile], wait: bool = True) -> None:
        """Start a minion with these files; returns when its states hold."""
        home = self.lab.dir / "minions" / node
        for path, file in {**files, **self._baked}.items():
            place = home / "files" / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.content)
            place.chmod(file.mode)
        program = home / "files/usr/local/sbin/backfill-stated"
        program.parent.mkdir(parents=True, exist_ok=True)
        argv = ["gcc", "-Wall", "-Werror", "-o", str(program), str(GUEST_FILES / "stated.c")]
        subprocess.run(argv, check=True)
        key = home / "files/etc/munge/munge.key"
        key.parent.mkdir(exist_ok=True)
        key.write_bytes(self.lab.munge_key.read_bytes())
        script = _ENTER.format(home=home, python=salt_python())
        argv = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", script]
        with (home / "log").open("w") as log:
            self._minions[node] = self.lab.popen("bm1", argv, stdout=log, stderr=log)
        if wait:
            # An order to somebody who does not listen yet is lost, and waited for in full.
            own = files["/etc/salt/minion_id"].content.decode().strip()
            assert wait_until(lambda: self.answers(own), LIMIT_S), (home / "log").read_text()
            assert wait_until(lambda: self.settled(node), LIMIT_S), (home / "log").read_text()

    def settled(self, node: str) -> bool:
        """Whether the node answers, and all its states hold."""
        try:
            run = self.provisioner.apply([node], test=True)[node]
        except DriverError:  # a master that has just come up takes no orders yet
            return False
        return run.ok and not run.changed

    def answers(self, minion: str) -> bool:
        """Whether anybody answers under this id."""
        return answers(self.provisioner, minion)

    def spoil(self, node: str) -> str:
        """Change a file that a state holds."""
        self.in_minion(node, "echo spoilt >>/etc/security/limits.d/90-backfill.conf")
        return "limits"

    def in_minion(self, node: str, script: str) -> str:
        """Run a shell's words in the minion's own root."""
        inside_root = f"{self.lab.dir}/minions/{node}/root/all"
        pid = self._pids(node)[0]
        argv = ["nsenter", "-t", str(pid), "-m", "-p", "chroot", inside_root, "sh", "-c", script]
        return self.lab.run("bm1", argv, check=True).stdout

    def hang(self, node: str) -> None:
        """SIGSTOP: it is there and answers no more."""
        self._signal(node, signal.SIGSTOP)

    def go_on(self, node: str) -> None:
        """SIGCONT."""
        self._signal(node, signal.SIGCONT)

    def stop(self, node: str) -> None:
        """SIGKILL."""
        with self._minions.pop(node) as process:
            process.kill()

    def _signal(self, node: str, number: signal.Signals) -> None:
        pids = map(str, self._pids(node))  # a minion is two processes
        self.lab.run("bm1", ["kill", f"-{number.value}", *pids], check=True)

    def _pids(self, node: str) -> list[int]:
        """The minion's own processes, as bm1 counts them: those whose root is the overlay."""
        wanted = f"{self.lab.dir}/minions/{node}/root/all"
        is_ours = f'[ "$(readlink $p/root)" = {wanted} ]'
        script = f"for p in /proc/[0-9]*; do {is_ours} && echo ${{p#/proc/}}; done"
        found = self.lab.run("bm1", ["sh", "-c", script]).stdout.split()
        return sorted(int(pid) for pid in found)

    def pillar(self, **changes: Any) -> None:
        """Change the cluster's pillar; None takes a key away."""
        path = self.lab.dir / "salt/pillar/backfill.sls"
        values = json.loads(path.read_text())
        values["backfill"] |= changes
        values["backfill"] = {k: v for k, v in values["backfill"].items() if v is not None}
        path.write_text(json.dumps(values))

    def close(self) -> None:
        """End all minions."""
        for node in list(self._minions):
            self.stop(node)
        self.provisioner.close()


def connect(lab: Lab, within_s: float = 20.0, config: Path | None = None) -> SaltProvisioner:
    """A provisioner whose Salt process lives in the lab's controller. `config`: another than its master's."""
    made = SaltProvisioner(salt_python(), str(config or lab.dir / "etc/salt/master"), within_s)
    made._link._argv = lab.command("ctl", made._link._argv)
    return made


def answers(provisioner: SaltProvisioner, minion: str, within_s: float = 2.0) -> bool:
    """Whether anybody answers under this id. Whoever is asked too often gets to nothing else."""
    # A look at nothing: whoever says anything is there.
    wait_s = within_s + LIMIT_S
    try:
        told = provisioner._link.ask("look", wait_s, ids=[minion], asked={}, within_s=within_s)
    except DriverError:  # a master that has just come up takes no orders yet
        return False
    return bool(told["answers"].get(minion, {"out": "no_return"}).get("out") != "no_return")


def inside_render(grains: dict[str, Any]) -> list[dict[str, Any]]:
    """Render with the sample pillar, to which an image adds no key, in a process of Salt's own."""
    sample = yaml.safe_load((STATES / "pillar/backfill.sls").read_text())["backfill"]
    request = {
        "number": 1,
        "verb": "render",
        "grains": grains,
        "states": str(STATES),
        "pillar": str(STATES / "pillar"),
        "given": {"backfill": {**sample, "munge": {"key_base64": ""}}},
    }
    with subprocess.Popen(
        [salt_python(), inside.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        answer = json.loads(process.stdout.readline())
        process.stdin.close()
    assert answer["errors"] == []
    states: list[dict[str, Any]] = answer["states"]
    return states


@contextmanager
def salt_lab(name: str) -> Iterator[SaltRig]:
    """A lab with a master, no hypervisor; states there leave services alone."""
    spec = LabSpec(name=f"{name}-{os.getpid()}", hosts=1, hypervisor="none", salt=True)
    lab = Lab.up(spec, tied=True)
    try:
        rig = SaltRig(lab)
        rig.pillar(services="leave", groups=[], users=[])
        try:
            yield rig
        finally:
            rig.close()
    finally:
        lab.down()
    shutil.rmtree(lab.dir)  # a lab that failed keeps its logs
