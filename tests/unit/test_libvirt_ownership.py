"""As whom QEMU runs by libvirt's word, and what becomes of the files that it opens by itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backfill.drivers.libvirt import ownership
from backfill.drivers.libvirt.ownership import file_system_of, give, qemu_user, refuse_if_taken_back
from backfill.ports.errors import RefusedError

_TOLD = """
<capabilities><host>
 <secmodel><model>none</model><doi>0</doi></secmodel>
 <secmodel><model>dac</model><doi>0</doi>
  <baselabel type='kvm'>{label}</baselabel><baselabel type='qemu'>{label}</baselabel></secmodel>
</host></capabilities>
"""


@pytest.mark.parametrize(
    ("told", "user"),
    [
        (_TOLD.format(label="+64055:+64055"), (64055, 64055)),
        (_TOLD.format(label="+0:+0"), (0, 0)),
        (_TOLD.format(label="qemu"), None),
        ("<capabilities><host/></capabilities>", None),
    ],
)
def test_libvirt_tells_as_whom_qemu_runs(told: str, user: tuple[int, int] | None) -> None:
    """Or does not, as its test driver."""
    assert qemu_user(told) == user


def test_only_the_owner_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And that only where it is another one; what libvirt does not tell changes nothing."""
    given = []
    monkeypatch.setattr(os, "chown", lambda *call: given.append(call))
    path = tmp_path / "ram"
    path.touch(mode=0o600)
    os.utime(path, ns=(1, 1))
    give((os.getuid(), os.getgid()), "bm1", path)
    give(None, "bm1", path)
    assert given == []
    give((64055, 64056), "bm1", path)
    assert given == [(path, 64055, 64056)]
    assert path.stat().st_mtime_ns == 1


def test_what_cannot_be_given_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the directory's server does not trust this machine's root."""

    def no(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chown", no)
    path = tmp_path / "ram"
    path.touch()
    with pytest.raises(RefusedError, match=r"ram: cannot give it to 64055:64055.*on bm1: Operation"):
        give((64055, 64055), "bm1", path)


_MOUNTS = """\
22 28 0:21 / /proc rw - proc proc rw
28 1 8:1 / / rw - ext4 /dev/sda1 rw
40 28 0:40 / /srv rw - tmpfs tmpfs rw
41 40 0:41 / /srv/backfill rw - nfs4 files:/backfill rw
42 40 0:42 / /srv/with\\040space rw - xfs /dev/sdb rw
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/backfill/grete/vn1/disk.qcow2", "nfs4"),
        ("/srv/backfilled/disk.qcow2", "tmpfs"),
        ("/srv/with space/disk.qcow2", "xfs"),
        ("/var/lib/disk.qcow2", "ext4"),
    ],
)
def test_the_nearest_mount_tells_the_file_system(path: str, kind: str) -> None:
    """By whole names, not by their beginnings."""
    assert file_system_of(Path(path), _MOUNTS) == kind


def test_a_move_that_would_leave_the_guest_without_its_disk_is_refused_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the user slurm, where QEMU is a third one; as root, or where QEMU is root, it is not."""
    disk, somebody = tmp_path / "disk.qcow2", os.geteuid() + 64_055
    disk.write_bytes(b"")
    monkeypatch.setattr(ownership, "_may_chown", lambda: False)
    refuse_if_taken_back("vn1", disk)
    monkeypatch.setattr(ownership, "owner_of", lambda _: (somebody, somebody))
    monkeypatch.setattr(ownership, "file_system_of", lambda *_: "ext4")
    with pytest.raises(RefusedError, match=f"{disk}.*{somebody}.*cannot give it back") as caught:
        refuse_if_taken_back("vn1", disk)
    assert not caught.value.retry  # so that the ladder goes on with its next rung
    for name, told in (("file_system_of", "nfs4"), ("_may_chown", True), ("owner_of", (0, 0))):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ownership, name, lambda *_, told=told: told)
            refuse_if_taken_back("vn1", disk)
    monkeypatch.undo()
    refuse_if_taken_back("vn1", tmp_path / "gone")
