"""An image of one's own is looked into, without being mounted: what it lacks, and what makes a user root."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from backfill.lab.lookinto import FlawWeight, ImageFlaw, look_into
from backfill.lab.spec import LabError
from backfill.ui.cli import main

PROGRAMS = (
    "usr/sbin/slurmd",
    "usr/sbin/munged",
    "usr/sbin/chronyd",
    "usr/sbin/qemu-ga",
    "usr/local/bin/backfill-root",
    *(
        f"usr/local/sbin/backfill-{name}"
        for name in ("prove", "wake", "jobs", "become", "fence", "hook", "key")
    ),
)
SHADOW = "root:*:19000:0:99999:7:::\nada:!:19000:0:99999:7:::\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root of an image that has all that it needs."""
    made = tmp_path / "root"
    for name in PROGRAMS:
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).touch(mode=0o755)
    (made / "etc").mkdir()
    (made / "etc/shadow").write_text(SHADOW)
    for name in ("bin", "sbin", "lib"):
        (made / name).symlink_to(f"usr/{name}")
    return made


def disk_of(root: Path) -> Path:
    disk = root.with_name("disk.raw")
    disk.unlink(missing_ok=True)
    argv = ["mke2fs", "-q", "-t", "ext4", "-d", str(root), str(disk), "8M"]
    subprocess.run(argv, check=True, capture_output=True, env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"})
    return disk


def flaws(root: Path) -> list[ImageFlaw]:
    return look_into(disk_of(root))


def test_one_that_has_everything_has_no_flaw(root: Path) -> None:
    assert flaws(root) == []


@pytest.mark.parametrize(
    ("name", "weight"),
    [
        ("usr/sbin/slurmd", FlawWeight.LACK),
        ("usr/sbin/munged", FlawWeight.LACK),
        ("usr/sbin/qemu-ga", FlawWeight.LACK),
        ("usr/local/sbin/backfill-prove", FlawWeight.LACK),
        ("usr/local/sbin/backfill-become", FlawWeight.ADVICE),
        ("usr/local/sbin/backfill-fence", FlawWeight.ADVICE),
        ("usr/local/bin/backfill-root", FlawWeight.ADVICE),
        ("usr/sbin/chronyd", FlawWeight.ADVICE),
    ],
)
def test_what_is_missing_is_told(root: Path, name: str, weight: FlawWeight) -> None:
    (root / name).unlink()
    (flaw,) = flaws(root)
    assert flaw.weight is weight
    assert Path(name).name in flaw.what


def test_slurms_own_keys_do_without_munge(root: Path) -> None:
    (root / "usr/sbin/munged").unlink()
    plugin = root / "usr/lib64/slurm/auth_slurm.so"
    plugin.parent.mkdir(parents=True)
    plugin.touch()
    assert flaws(root) == []


def test_programs_that_run_as_their_owner_are_found(root: Path) -> None:
    """Wherever they lie; a folder with such a bit is none."""
    deep = root / "usr/lib/of/some/helper"
    deep.parent.mkdir(parents=True)
    deep.touch()
    deep.chmod(0o4755)
    deep.parent.chmod(0o2775)
    (flaw,) = flaws(root)
    assert flaw.weight is FlawWeight.DANGER
    assert flaw.what == "programs run as their owner: /usr/lib/of/some/helper"


def test_ways_to_log_in_are_found(root: Path) -> None:
    (root / "usr/sbin/sshd").touch()
    (root / "etc/shadow").write_text("root:$y$j9T$x:19000::::::\nada::19000::::::\nbob:!$6$x:19000::::::\n")
    assert [flaw.what for flaw in flaws(root)] == [
        "/usr/sbin/sshd is there",
        "root has a password",
        "ada has no password",
    ]


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b"QFI\xfb", "is qcow2; look into a copy"),
        (b"\0", "has no ext2, ext3 or ext4"),
        (None, "cannot be read"),
    ],
)
def test_a_disk_that_cannot_be_looked_into_is_told(tmp_path: Path, start: bytes | None, said: str) -> None:
    disk = tmp_path / "disk"
    if start is not None:
        disk.write_bytes(start.ljust(4096, b"\0"))
    with pytest.raises(LabError, match=said):
        look_into(disk)


def test_the_command_says_what_and_why(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its status is the answer, or that there is none; a folder stands for the disk in it."""
    disk = disk_of(root)
    assert main(["image", "check", str(disk)]) == 0
    assert "has all that an instance needs" in capsys.readouterr().out
    (root / "usr/sbin/slurmd").unlink()
    assert main(["image", "check", str(disk_of(root).parent), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [flaw["weight"] for flaw in told["flaws"]] == ["lack"]
    assert main(["image", "check", str(root / "none")]) == 65
    assert "cannot be read: No such file" in capsys.readouterr().err
