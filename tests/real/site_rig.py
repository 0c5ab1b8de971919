"""backfill installed in a site as docs/operations.md tells an admin to do it: files, unit, hooks, daemon."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any, TypeVar

import yaml

from backfill.lab import image, roots
from backfill.lab.cluster import Lab
from backfill.lab.site.conf import SHARED, checkout
from backfill.lab.spec import CONTROLLER_ADDRESS, SLURMCTLD_PORT, LabSpec
from backfill.lab.waiting import wait_until
from tests.real.jobs_rig import LIMIT_S, JobsRig
from tests.real.leftovers import traces

# No test is about how long something takes: limits leave room for a machine that is much slower.
PATIENT: dict[str, Any] = {
    "scale": {"idle_s": 600, "boot_within_s": 600},
    "readiness": {"clock_within_s": 60, "munge_within_s": 60, "address_within_s": 60},
    "answer_within_s": 50,
    "slurm": {"conf": "/etc/slurm/slurm.conf", "hooks": {"log": "/var/log/slurm/backfill-hook.log"}},
    "daemon": {"poll_s": 1, "host_poll_s": 1},
}
# What must never stand in a daemon's log, whatever happens to it.
_DEFECTS = re.compile(r"Traceback|defect in the driver|unforeseen|did not settle|InvalidTransition")
# A daemon that is not root has a copy of its own.
_MUNGE_KEY, _OWN_KEY = "/etc/munge/munge.key", "/etc/backfill/munge.key"
_Rig = TypeVar("_Rig", bound="SiteRig")
# Lines that the lab's slurm.conf has for us, and a site's has not.
_OURS = "MaxNodeCount|TreeWidth|ReturnToService|SlurmctldParameters|NodeSet|PartitionName=htc|SlurmdTimeout"
_PROGRAM = """#!/opt/backfill/bin/python
import sys
from backfill.ui.cli import main
sys.exit(main())
"""


@contextmanager
def site(
    name: str, release: str = roots.INSTALLED, guest: image.GuestImage | None = None, **spec: Any
) -> Iterator[SiteRig]:
    """A site without anything of ours, and a rig on it; at the end nothing of both is left."""
    with rig_at_site(SiteRig, name, release, guest, **spec) as rig:
        yield rig


@contextmanager
def rig_at_site(
    kind: type[_Rig],
    name: str,
    release: str = roots.INSTALLED,
    guest: image.GuestImage | None = None,
    **spec: Any,
) -> Iterator[_Rig]:
    """The same with a rig of this kind."""
    guest = guest or image.build(recipe=image.Recipe(release))
    made = LabSpec(name=f"{name}-{os.getpid()}", site=True, slurm_version=release, hook_limit_s=120, **spec)
    lab = Lab.up(roots.equip(made), tied=True)
    try:
        yield kind(lab, guest)
    finally:
        lab.down()
    assert wait_until(lambda: not traces(lab), 60), traces(lab)
    shutil.rmtree(lab.dir)  # one that failed keeps its logs


def _within_sight() -> None:
    """Say what is wrong where the unit of SlurmUser, which has a /tmp of its own, could not find us."""
    source, _ = checkout()
    for place in ("/tmp", "/var/tmp"):
        assert not source.is_relative_to(place), (
            f"run this from a checkout that is not below {place}: PrivateTmp"
        )


class SiteRig(JobsRig):
    """An admin of the site and its users."""

    program = "/opt/backfill/bin/backfill"

    def __init__(self, lab: Lab, guest: image.GuestImage) -> None:
        super().__init__(lab)
        self._guest = guest
        self._user, self._munge_key = "root", _MUNGE_KEY

    # --- an admin's ------------------------------------------------------------------------------

    def try_(self, machine: str, *argv: str, user: str = "root") -> CompletedProcess[str]:
        """Run a command there, whatever comes of it."""
        return self.lab.run(machine, argv, user=user, timeout_s=LIMIT_S)

    def sh(self, machine: str, script: str) -> str:
        """Run a shell script of an admin's, every line of which has to work; its output."""
        done = self.try_(machine, "sh", "-euc", script)
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}\n{self.picture()}"
        return done.stdout.strip()

    def backfill(self, *argv: str, user: str = "root") -> str:
        """Run a command of ours on the controller; its output."""
        done = self.try_("ctl", self.program, *argv, user=user)
        assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}\n{self.picture()}"
        return done.stdout

    def install(self, user: str = "root", **changes: Any) -> None:
        """Install the checkout as /opt/backfill, with policy file, unit and hooks, and start the daemon."""
        self.install_files(user, **changes)
        self.backfill("slurm", "apply", "--config", "/etc/backfill/policy.yaml")
        self.include()
        self.backfill("slurm", "hooks", "install", "--config", "/etc/backfill/policy.yaml")
        self.copy_conf()
        self.sh("ctl", "systemctl enable --now backfill")
        self.until(self.sees_all, what="the daemon's first picture")

    def install_program(self) -> None:
        """Install the program at a plain site, for `backfill setup` to do the rest."""
        _within_sight()
        self.install_files()
        self.sh("ctl", "rm -r /etc/backfill")
        self.make_plain()

    def options_of_setup(self) -> list[str]:
        """What an admin has to say here: the image lies where all machines see it, and is told its clock."""
        folder = self.lab.shared / "image"
        if not folder.exists():
            shutil.copytree(Path(self._guest.disk).parent, folder)
            words = self._guest.cmdline_under(self.lab.domain_type)
            (folder / "image.json").write_text(json.dumps({"cmdline": words}))
            folder.chmod(0o755)
        argv = ["--yes", "--uri", "qemu+tcp://{name}/system", "--directory", f"{SHARED}/instances"]
        argv += ["--image", f"{SHARED}/image", "--addresses", "10.77.1.1/16", "--cpus", "1"]
        argv += ["--memory-mb", "256", "--cpu-feature", "rdrand"]
        return [*argv, "--emulated"] if self.lab.domain_type == "qemu" else argv

    def set_up(self, options: Sequence[str]) -> str:
        """Run `backfill setup` and the commands that it tells; what it has said."""
        told = self.backfill("setup", *options)
        script = self.sh("ctl", "cat /etc/backfill/hosts.sh") + "\n"
        for host in self.lab.hosts:
            self.write("/run/hosts.sh", script, machine=host)
            self.sh(host, "sh -s </run/hosts.sh")
        self.sh("ctl", "systemctl enable --now backfill")
        self.until(self.sees_all, what="the daemon's first picture")
        return told

    def make_plain(self) -> None:
        """Make it a site in which nobody has thought of us: all machines have the same slurm.conf."""
        self.sh("ctl", f"sed -i -E '/^({_OURS})/d' /etc/slurm/slurm.conf; systemctl restart slurmctld")
        self.sh("ctl", "sed -i /IgnoreSystemd/d /etc/slurm/cgroup.conf")
        for name in ("slurm.conf", "cgroup.conf"):
            text = self.sh("ctl", f"cat /etc/slurm/{name}") + "\n"
            for host in self.lab.hosts:
                self.write(f"/etc/slurm/{name}", text, machine=host)
        for host in self.lab.hosts:
            self.sh(host, "systemctl restart slurmd")

    def install_files(self, user: str = "root", **changes: Any) -> None:
        """Install program, unit and policy file; nothing starts, and Slurm is as it was."""
        self._user = user
        self._munge_key = _MUNGE_KEY if user == "root" else _OWN_KEY
        source, _ = checkout()
        # What it needs comes from the site's own packages, as it does with the package for Debian 13.
        own = "/opt/backfill/lib/$(readlink /usr/bin/python3)/site-packages"
        self.sh("ctl", f"mkdir -p {own} /opt/backfill/bin /etc/backfill; echo {source} >{own}/checkout.pth")
        self.sh("ctl", "ln -s /usr/bin/python3 /opt/backfill/bin/python")
        self.write("/opt/backfill/pyvenv.cfg", "home = /usr/bin\ninclude-system-site-packages = true\n")
        self.write("/opt/backfill/bin/backfill", _PROGRAM, mode=0o755)
        self.write("/etc/systemd/system/backfill.service", (source / "config/backfill.service").read_text())
        self.write("/etc/backfill/policy.yaml", yaml.safe_dump(self.policy(**changes), sort_keys=False))
        self.sh("ctl", "chmod 640 /etc/backfill/policy.yaml; systemctl daemon-reload")
        if user != "root":
            self._give_to(user)

    def _give_to(self, user: str) -> None:
        """What docs/operations.md says of a daemon that is not root."""
        _within_sight()
        copy = f"install -o {user} -m 400 {_MUNGE_KEY} {_OWN_KEY}"
        self.sh("ctl", f"chgrp {user} /etc/backfill/policy.yaml; {copy}; chown {user} {SHARED}")
        locked_in = (checkout()[0] / "backfill/ui/setup/slurm-user.conf").read_text()
        locked_in = locked_in.replace("/var/spool/slurmctld", "/var/lib/slurm/slurmctld")
        # libvirt does not know that the hosts of a lab share their directory.
        moves = "AmbientCapabilities=CAP_CHOWN\nCapabilityBoundingSet=CAP_CHOWN\n"
        for name, text in (("slurm-user", locked_in), ("with-moves", f"[Service]\n{moves}")):
            self.write(f"/etc/systemd/system/backfill.service.d/{name}.conf", text)
        self.sh("ctl", "systemctl daemon-reload")

    def include(self) -> None:
        """Add the line that brings our file in to the controller's slurm.conf."""
        self.sh("ctl", "echo 'Include backfill.conf' >>/etc/slurm/slurm.conf")

    def copy_conf(self) -> None:
        """Copy slurm.conf, and what is beside it, from the controller to the hosts that have one."""
        if self.lab.spec.configless:
            return
        for name in ("slurm.conf", "backfill.conf"):
            text = self.sh("ctl", f"cat /etc/slurm/{name}") + "\n"
            for host in self.lab.hosts:
                self.write(f"/etc/slurm/{name}", text, machine=host)

    def write(self, path: str, text: str, mode: int = 0o644, machine: str = "ctl") -> None:
        """Write a file of root's there."""
        script = 'mkdir -p "$(dirname "$1")"; cat >"$1"; chmod "$2" "$1"'
        argv = ["sh", "-euc", script, "sh", path, f"{mode:o}"]
        self.lab.run(machine, argv, stdin=text, check=True)

    def policy(self, **changes: Any) -> dict[str, Any]:
        """Return the site's policy file; `changes` replace or extend top-level keys, one level deep."""
        image_entry = {
            "kernel": self._guest.kernel,
            "initrd": self._guest.initrd,
            "disk": self._guest.disk,
            "disk_format": self._guest.disk_format,
            "cmdline": self._guest.cmdline_under(self.lab.domain_type),
        }
        body: dict[str, Any] = {
            "cluster": self.lab.spec.name,
            "priorities": {"low": ["htc"], "high": ["batch"]},
            "hosts": [
                {"name": host, "provider": "libvirt", "uri": f"qemu+tcp://{host}/system"}
                for host in self.lab.hosts
            ],
            "instances": {
                "names": "vn[1-8]",
                "addresses": "10.77.1.1/16",
                "flavour": {"cpus": 1, "memory_mb": 256},
            },
            "ladder": [{"rung": "pause", "within_s": 300, "for_s": 3600}, {"rung": "requeue"}],
            "limits": {"max_instances": 1, "keep_memory_mb": 0},
            "libvirt": {
                "directory": SHARED,
                "bridge": "br0",
                "surroundings": {
                    "controller": CONTROLLER_ADDRESS,
                    "conf_server": f"{CONTROLLER_ADDRESS}:{SLURMCTLD_PORT}",
                    "munge_key": self._munge_key,
                },
                "images": {"default": image_entry},
                "hardware": {
                    "domain_type": self.lab.domain_type,
                    "disk_cache": "unsafe",
                    "cpu_features": ["rdrand"],
                },
            },
        }
        for key, value in {**PATIENT, **changes}.items():
            old = body.get(key)
            body[key] = {**old, **value} if isinstance(old, dict) else value
        return body

    def write_policy(self, **changes: Any) -> None:
        """Write another policy file, with owner and mode of the old one."""
        text = yaml.safe_dump(self.policy(**changes), sort_keys=False)
        self.sh("ctl", f"cat >/etc/backfill/policy.yaml <<'END'\n{text}END")

    def check(self, user: str = "") -> tuple[int, str]:
        """Exit status and words of `backfill daemon --check`, by the daemon's own user or another."""
        argv = ["/opt/backfill/bin/backfill", "daemon", "--config", "/etc/backfill/policy.yaml", "--check"]
        done = self.try_("ctl", *argv, user=user or self._user)
        return done.returncode, done.stdout + done.stderr

    def restart(self, **changes: Any) -> None:
        """Start the daemon with another policy file."""
        self.write_policy(**changes)
        self.sh("ctl", "systemctl restart backfill")
        self.until(self.sees_all, what="the daemon's first picture")

    def log(self) -> str:
        """What the daemon has written."""
        return self.try_("ctl", "journalctl", "-u", "backfill", "-o", "cat", "--no-pager").stdout

    # --- asking the daemon -------------------------------------------------------------------------

    def ask(self, question: str, **values: Any) -> dict[str, Any]:
        """Ask the daemon over its socket, as its machine's root."""
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(LIMIT_S)
            # A controller that was rebooted has another first process.
            first = self.lab.status().machines["ctl"].pid
            sock.connect(f"/proc/{first}/root/run/backfill/daemon.sock")
            sock.sendall(json.dumps({"ask": question, **values}).encode() + b"\n")
            with sock.makefile("rb") as answer:
                found = json.loads(answer.readline())
        assert isinstance(found, dict)
        assert "error" not in found, f"{question}: {found['error']}\n{self.picture()}"
        return found

    def sees_all(self) -> bool:
        """Return True if the daemon has read Slurm and all hosts."""
        try:
            sources = self.ask("status")["sources"]
        except OSError:
            return False
        return {"slurm", *self.lab.hosts} <= {name for name, source in sources.items() if source["seen_s"]}

    def nodes(self) -> dict[str, dict[str, Any]]:
        """The daemon's managed nodes by name."""
        return {node["name"]: node for node in self.ask("nodes")["nodes"]}

    def instance(self, name: str) -> dict[str, Any]:
        """What the daemon sees of an instance; empty: nothing."""
        return next((i for i in self.ask("instances")["instances"] if i["name"] == name), {})

    def becomes(self, name: str, *phases: str) -> dict[str, Any]:
        """Wait for one of these phases of a node; returns what the daemon said of it then."""

        def seen() -> dict[str, Any]:
            node = self.nodes().get(name, {})
            return node if node.get("phase") in phases else {}

        return self.until(seen, what=f"{name} {' or '.join(phases)}")

    def where(self, job: str) -> tuple[str, str]:
        """The virtual node and the host on which a low-priority job is."""
        name = self.show(job)["NodeList"]
        return name, str(self.nodes()[name]["host"])

    # --- users and accounting ----------------------------------------------------------------------

    def submit_as(self, user: str, *argv: str) -> str:
        """sbatch by this user; returns the job's number."""
        words = ["sbatch", "--parsable", "-o", "/dev/null", "-D", "/tmp", *argv]
        return self.lab.run("ctl", words, check=True, user=user).stdout.strip()

    def takes(self, user: str, host: str) -> str:
        """Submit a job of this user that holds the host until `release`; wait for its script."""
        job = self.submit_as(user, "-p", "batch", "-w", host, self._script)
        self.started(job)
        return job

    def booked(self, job: str, *fields: str) -> Sequence[str]:
        """What sacct tells of a job that has ended, by these fields; waits for it."""

        def told() -> list[str]:
            argv = ["sacct", "-XDnP", "-j", job, f"--format=End,{','.join(fields)}"]
            lines = self.ctl(*argv).splitlines()
            return [line.partition("|")[2] for line in lines if not line.startswith("Unknown|")]

        return self.until(told, what=f"the end of job {job} in the books")

    def picture(self) -> str:
        """Everything that helps to see why a test failed."""
        log = "\n".join(self.log().splitlines()[-40:])
        slurm = self.try_("ctl", "tail", "-n", "20", "/var/log/slurm/slurmctld.log").stdout
        hooks = self.try_("ctl", "cat", "/var/log/slurm/backfill-hook.log").stdout
        return f"{super().picture()}\n--- log\n{log}\n--- slurmctld\n{slurm}\n--- hook\n{hooks}"

    def judge(self) -> None:
        """Check that every counting job counted once, and that the daemon met nothing unforeseen."""
        said = self.judge_tally()
        assert not said, f"{said}\n{self.picture()}"
        defects = [line for line in self.log().splitlines() if _DEFECTS.search(line)]
        assert not defects, f"{defects}\n{self.picture()}"
