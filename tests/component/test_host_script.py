"""The script for the hosts, run here with other paths: what was there comes back, and nothing else goes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from backfill.ui.setup.host_script import host_script
from backfill.ui.setup.wishes import Wishes

# As systemd of Debian 12 writes and calls it.
_SYSTEMCTL = """#!/bin/sh
echo "$*" >>{root}/called
if [ "$1" = mask ]; then mkdir -p {units}; ln -s /dev/null {units}/$2 2>/dev/null; fi
[ "$1" = set-property ] || exit 0
mkdir -p {slice}
printf '[Slice]\\n%s\\n' "$3" >{slice}/50-CPUWeight.conf
"""


class Host:
    """A host's files in a folder, and a systemctl that only notes its calls and writes its drop-in."""

    def __init__(self, root: Path) -> None:
        self.root, self.conf, self.kept = root, root / "slurm", root / "kept"
        self.qemu = root / "libvirt/qemu.conf"
        self.slice = root / "control/machine.slice.d"
        self.guests = root / "units/libvirt-guests.service"
        for folder in (self.conf, self.qemu.parent, self.guests.parent, root / "bin"):
            folder.mkdir()
        (self.conf / "slurm.conf").write_text("old\n")
        self.qemu.write_text("user = 1\n")
        (root / "bin/systemctl").write_text(
            _SYSTEMCTL.format(root=root, slice=self.slice, units=self.guests.parent)
        )
        (root / "bin/systemctl").chmod(0o755)

    def run(self, texts: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run the script that brings these files."""
        text = host_script(Wishes(directory=str(self.root), bridge="lo"), texts, str(self.conf))
        text = text.replace("/var/lib/backfill-host", str(self.kept))
        text = text.replace("/etc/libvirt", str(self.qemu.parent))
        text = text.replace("/etc/systemd/system.control", str(self.slice.parent))
        return self._sh("-eu", script=text.replace("/etc/systemd/system/", f"{self.guests.parent}/"))

    def undo(self) -> subprocess.CompletedProcess[str]:
        """Run what it has left for that."""
        return self._sh(str(self.kept / "undo.sh"))

    def _sh(self, *argv: str, script: str = "") -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}"}
        return subprocess.run(
            ["sh", *argv], input=script, text=True, check=False, capture_output=True, env=environment
        )

    @property
    def called(self) -> list[str]:
        """What systemctl was called for."""
        return (self.root / "called").read_text().splitlines()

    def files(self) -> dict[str, str]:
        """All that it may touch, without what it keeps for itself."""
        folders = (self.conf, self.qemu.parent, self.slice.parent)
        found = (path for folder in folders for path in folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.root)): path.read_text() for path in found}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


TEXTS = {"backfill.conf": "ours\n", "cgroup.conf": "groups\n", "slurm.conf": "new\nInclude backfill.conf\n"}


def test_files_are_put_and_taken_back(host: Host) -> None:
    """What was there comes back, what was not goes; a second run changes nothing."""
    before = host.files()
    for _ in range(2):
        assert host.run(TEXTS).returncode == 0
        assert {name: host.files()[f"slurm/{name}"] for name in TEXTS} == TEXTS
        assert host.files()["libvirt/qemu.conf"] == "user = 1\nremember_owner = 0\n"
    assert host.called.count("try-restart slurmd.service") == 1
    assert host.undo().returncode == 0
    assert host.files() == before
    assert not host.kept.exists()
    assert not host.slice.exists()
    assert host.called[-3] == "daemon-reload"


def test_the_first_version_comes_back_after_a_later_one_of_ours(host: Host) -> None:
    before = host.files()
    host.run(TEXTS)
    host.run({**TEXTS, "slurm.conf": "newer\n"})
    assert host.undo().returncode == 0
    assert host.files() == before


def test_what_somebody_has_changed_since_stays_and_is_named(host: Host) -> None:
    """With all that it includes; everything else is as it was."""
    before = host.files()
    host.run(TEXTS)
    edited = TEXTS["slurm.conf"] + "NodeName=bm9\n"
    (host.conf / "slurm.conf").write_text(edited)
    host.qemu.write_text("user = 2\nremember_owner = 0\n")
    for _ in range(2):
        done = host.undo()
        assert done.returncode == 1
        assert done.stderr.splitlines() == [
            f"{host.qemu} stays: somebody has changed it since",
            f"{host.conf}/slurm.conf stays: somebody has changed it since",
            f"{host.conf}/backfill.conf stays: slurm.conf includes it",
            f"remove what setup added to them by hand (originals: {host.kept}/*/file), "
            f"then rm -r {host.kept}",
        ]
        assert host.files() == {
            **before,
            "slurm/slurm.conf": edited,
            "slurm/backfill.conf": "ours\n",
            "libvirt/qemu.conf": "user = 2\nremember_owner = 0\n",
        }
    assert {path.read_text() for path in host.kept.glob("*/file")} == {"old\n", "user = 1\n"}


def test_a_file_of_ours_goes_once_slurm_conf_includes_it_no_more(host: Host) -> None:
    """After somebody has put back by hand what stayed."""
    before = host.files()
    host.run(TEXTS)
    (host.conf / "slurm.conf").write_text("old\n\tINCLUDE  ./backfill.conf # still\n")
    assert host.undo().returncode == 1
    (host.conf / "slurm.conf").write_text("old\n")
    assert host.undo().returncode == 0
    assert host.files() == before
    assert not host.kept.exists()


def test_what_was_as_it_should_be_is_not_ours(host: Host) -> None:
    """With a shared directory the controller has changed the files, and its own undoing changes them back."""
    for name, text in TEXTS.items():
        (host.conf / name).write_text(text)
    host.run(TEXTS)
    (host.conf / "slurm.conf").write_text("old\n")
    assert host.undo().returncode == 0
    assert host.files()["slurm/slurm.conf"] == "old\n"


def test_the_sites_own_properties_of_the_slice_stay(host: Host) -> None:
    """Those that others have set there, and the weight that it had."""
    host.slice.mkdir(parents=True)
    (host.slice / "50-MemoryMax.conf").write_text("[Slice]\nMemoryMax=9G\n")
    (host.slice / "50-CPUWeight.conf").write_text("[Slice]\nCPUWeight=50\n")
    before = host.files()
    host.run(TEXTS)
    assert host.files()["control/machine.slice.d/50-CPUWeight.conf"] == "[Slice]\nCPUWeight=idle\n"
    assert host.undo().returncode == 0
    assert host.files() == before


def test_a_link_stays_and_what_it_leads_to_is_written(host: Host) -> None:
    """As where slurm.conf of all hosts is one file on a share."""
    share, conf = host.root / "share.conf", host.conf / "slurm.conf"
    conf.rename(share)
    conf.symlink_to("../share.conf")
    assert host.run(TEXTS).returncode == 0
    assert (conf.is_symlink(), share.read_text()) == (True, TEXTS["slurm.conf"])
    assert host.undo().returncode == 0
    assert (conf.is_symlink(), share.read_text()) == (True, "old\n")
    assert sorted(path.name for path in host.conf.iterdir()) == ["slurm.conf"]


def test_users_can_read_a_new_file_whatever_roots_umask(host: Host) -> None:
    """Their srun reads what slurm.conf includes; a file that was there keeps its mode."""
    (host.conf / "slurm.conf").chmod(0o664)
    before = os.umask(0o077)
    try:
        assert host.run(TEXTS).returncode == 0
    finally:
        os.umask(before)
    modes = {name: (host.conf / name).stat().st_mode & 0o777 for name in TEXTS}
    assert modes == {"backfill.conf": 0o644, "cgroup.conf": 0o644, "slurm.conf": 0o664}


def test_nobody_reads_what_qemu_conf_holds(host: Host) -> None:
    """Passwords of consoles may stand there. Neither what a run lays aside nor what a killed one has left."""
    chmod = host.root / "bin/chmod"
    chmod.write_text(
        f"#!/bin/sh\nstat -c '%a %n' {host.kept}/wanted {host.qemu}.backfill-new >>{host.root}/seen\n"
        'exec /bin/chmod "$@"\n'
    )
    chmod.chmod(0o755)
    host.kept.mkdir()
    (host.kept / "wanted").touch()
    host.qemu.write_text('vnc_password = "secret"\n')
    host.qemu.chmod(0o600)
    assert host.run(TEXTS).returncode == 0
    assert host.qemu.stat().st_mode & 0o777 == 0o600
    seen = [line.split() for line in (host.root / "seen").read_text().splitlines()]
    assert {name for _, name in seen} == {f"{host.kept}/wanted", f"{host.qemu}.backfill-new"}
    assert {mode for mode, name in seen if name.endswith(".backfill-new")} == {"600"}
    assert host.kept.stat().st_mode & 0o777 == 0o700
    assert host.undo().returncode == 0


def test_nobody_else_saves_guests_when_the_host_goes_down(host: Host) -> None:
    """libvirt-guests is masked, not stopped: that would do it at once. Undoing lets it be as it was."""
    for _ in range(2):
        assert host.run(TEXTS).returncode == 0
        assert os.readlink(host.guests) == "/dev/null"
    assert not any("stop" in call or "--now" in call for call in host.called)
    assert host.undo().returncode == 0
    assert not host.guests.is_symlink()


def test_what_the_site_says_of_libvirt_guests_stays(host: Host) -> None:
    """It has masked it itself, or has a unit of its own."""
    host.guests.symlink_to("/dev/null")
    assert (host.run(TEXTS).returncode, host.undo().returncode) == (0, 0)
    assert os.readlink(host.guests) == "/dev/null"
    host.guests.unlink()
    host.guests.write_text("[Unit]\n")
    assert host.run(TEXTS).returncode == 0
    host.guests.write_text("[Unit]\nDescription=ours\n")
    assert host.undo().returncode == 0
    assert host.guests.read_text() == "[Unit]\nDescription=ours\n"


# Nobody may make a file beside it, not even root.
_CLOSED = Path("/proc/version")


def test_what_cannot_be_written_changes_nothing(host: Host) -> None:
    """The file and the remedy are named; its new content is there to be brought in another way."""
    (host.conf / "slurm.conf").unlink()
    (host.conf / "slurm.conf").symlink_to(_CLOSED)
    before = host.files()
    done = host.run(TEXTS)
    assert (done.returncode, done.stderr) == (
        1,
        f"cannot write {_CLOSED}; nothing was changed: let root write it, or copy {host.kept}/wanted "
        "there yourself\n",
    )
    assert host.files() == before
    assert not (host.root / "called").exists()
    assert (host.kept / "wanted").read_text() == TEXTS["slurm.conf"]


def test_what_would_not_change_need_not_be_writable(host: Host) -> None:
    """The rest is done, and the services are started anew."""
    (host.conf / "slurm.conf.backfill-new").mkdir()  # so that nobody can make a file there
    assert host.run({"slurm.conf": "old\n"}).returncode == 0
    assert "remember_owner = 0" in host.qemu.read_text()
    assert "try-restart libvirtd.service virtqemud.service" in host.called


def test_what_one_that_was_killed_has_laid_goes(host: Host) -> None:
    """It is made anew where it is still wanted."""
    before = host.files()
    host.run(TEXTS)
    (host.conf / "cgroup.conf.backfill-new").write_text("half")
    (host.kept / "laid").write_text(f"{host.conf}/cgroup.conf\n")
    assert host.run(TEXTS).returncode == 0
    assert host.undo().returncode == 0
    assert host.files() == before
