"""An admin who does what docs/install.md says, to the letter, on machines with plain Slurm.

Nothing is added to the page's commands but what it leaves to the reader: the addresses that are free
here, the yes, and the machine's way to Debian's mirror. Machines of a lab have no sshd: `ssh` is a
stand-in that runs its command on the machine that it names, as root, with its input.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from backfill.lab import roots
from backfill.lab.spec import JOB_USER
from tests.real.site_rig import SiteRig, rig_at_site

ROOT = Path(__file__).parents[2]
# The page promises so much, image and all.
PROMISED_S = 15 * 60.0
_STEP = re.compile(r"^## (\d+\. .+?)$(.*?)(?=^## |\Z)", re.M | re.S)
_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.M | re.S)
# What the page's example has, and what is free in this network.
_ADDRESSES = ("10.0.1.1/16", "10.77.1.1/16")
_ONLINE = ("apt ", "backfill image build")
_LOOK_S = 0.05
_SSH = """#!/bin/sh
# The lab's stand-in: somebody outside runs the command there.
d=$(mktemp -d {place}/call.XXXXXX)
cat >$d/input
echo "$1" >$d/machine
shift
echo "$*" >$d/command
: >$d/ready
until [ -e $d/status ]; do sleep 0.05; done
cat $d/output
exit $(cat $d/status)
"""


@dataclass(frozen=True, slots=True)
class PageStep:
    """One numbered part of the page, and the first thing that is to be typed there."""

    title: str
    commands: str


def steps() -> list[PageStep]:
    """The page's numbered steps. Where a step has two ways, the first one is taken."""
    found = []
    for title, text in _STEP.findall((ROOT / "docs/install.md").read_text()):
        block = _BLOCK.search(text)
        assert block is not None, title
        found.append(PageStep(title, block[1].replace(*_ADDRESSES)))
    return found


class PageAdmin(SiteRig):
    """Follows the page; `took_s` has how long each step took, by its title."""

    program = "/usr/bin/backfill"
    took_s: dict[str, float]
    told: dict[str, str]
    job = ""

    def follow(self, package: Path) -> None:
        """Do all that the page says, with this package; an ordinary user's job runs at the end."""
        self.took_s, self.told = {}, {}
        self._prepare(package)
        with self._ssh():
            for step in steps():
                began_s = time.monotonic()
                commands = step.commands
                if commands.startswith("backfill setup"):
                    commands = f"{commands.rstrip()} --yes{self._emulated}\n"
                do = self._as_a_user if commands.startswith("sbatch") else self._as_root
                self.told[step.title] = do(commands)
                self.took_s[step.title] = time.monotonic() - began_s

    @property
    def _emulated(self) -> str:
        """libvirt finds a KVM here; where no guest boots with it, only an admin knows that."""
        return " --emulated" if self.lab.domain_type == "qemu" else ""

    def _prepare(self, package: Path) -> None:
        """What any machine with Debian has before: its mirror's lists, and the package that was fetched."""
        self.write("/etc/resolv.conf", Path("/etc/resolv.conf").read_text())
        for own in sorted(Path("/etc/apt/apt.conf.d").iterdir()):
            self.write(f"/etc/apt/apt.conf.d/{own.name}", own.read_text())
        self.write("/etc/apt/apt.conf.d/yes", 'APT::Get::Assume-Yes "true";\n')
        self.write("/usr/local/bin/ssh", _SSH.format(place=self.lab.shared), mode=0o755)
        shutil.copy(package, self.lab.shared)
        self.sh("ctl", f"mv {self.lab.shared}/{package.name} /root/")
        self._online("apt-get -q update")

    def _as_root(self, commands: str) -> str:
        """Type these lines one after the other, in root's home."""
        whole = [line for line in commands.splitlines() if not line.startswith(_ONLINE)]
        if len(whole) == len(commands.splitlines()):
            return self.sh("ctl", f"cd /root\n{commands}")
        return "".join(self._online(line) for line in commands.splitlines())

    def _as_a_user(self, commands: str) -> str:
        """Type them as a user who has no home in guests: this site has no file server."""
        said = []
        for line in commands.splitlines():
            done = self.try_("ctl", "sh", "-euc", f"cd /tmp\n{line}", user=JOB_USER)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}\n{self.picture()}"
            said.append(done.stdout)
            if line.startswith("sbatch"):
                self.job = done.stdout.split()[-1]
                self.until(lambda: self.state(self.job) == "RUNNING", what="the first job")
        return "".join(said)

    def _online(self, line: str) -> str:
        """Type it as root on a controller that reaches Debian's mirror, as the machine beneath does."""
        environment = {"DEBIAN_FRONTEND": "noninteractive"}
        argv = self.lab.command("ctl", ["sh", "-euc", f"cd /root\n{line}"], environment)
        argv.remove("-n")  # nsenter's: all but the network is the lab's
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    @contextmanager
    def _ssh(self) -> Iterator[None]:
        """Inside, what the stand-in is asked for is done."""
        over = threading.Event()
        thread = threading.Thread(target=self._serve, args=(over,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _serve(self, over: threading.Event) -> None:
        while not over.wait(_LOOK_S):
            for call in self.lab.shared.glob("call.*"):
                if (call / "ready").exists() and not (call / "status").exists():
                    self._answer(call)

    def _answer(self, call: Path) -> None:
        machine, command = ((call / name).read_text().strip() for name in ("machine", "command"))
        argv = ["sh", "-c", command]
        done = self.lab.run(machine, argv, stdin=(call / "input").read_text())
        (call / "output").write_text(done.stdout + done.stderr)
        (call / "new").write_text(str(done.returncode))
        (call / "new").rename(call / "status")

    def figures(self) -> str:
        """The seconds of each step, and of all."""
        whole_s = sum(self.took_s.values())
        lines = [f"{took_s:7.1f} s  {title}" for title, took_s in self.took_s.items()]
        promised = f"{whole_s:7.1f} s  all, of {PROMISED_S:.0f} s promised: {whole_s / PROMISED_S:.2f}"
        return "\n".join([*lines, promised])


def package_for(release: str, out: Path) -> Path:
    """Build the package that the page installs where Slurm is of this release."""
    mark = {roots.INSTALLED: "deb12"}[release]
    argv: list[str | Path] = [sys.executable, ROOT / "packaging/build.py", "--out", out, "wheel", mark]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (package,) = out.glob(f"*+{mark}_*.deb")
    return package


@contextmanager
def page_followed(name: str, out: Path) -> Iterator[PageAdmin]:
    """A site with plain Slurm on which the whole page was followed."""
    package = package_for(roots.INSTALLED, out)
    with rig_at_site(PageAdmin, name) as rig:
        rig.make_plain()
        rig.follow(package)
        yield rig
