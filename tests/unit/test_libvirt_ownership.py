"""As whom QEMU runs by libvirt's word, and what becomes of the files that it opens by itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backfill.drivers.libvirt.ownership import give, qemu_user
from backfill.ports import RefusedError

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
    with pytest.raises(
        RefusedError, match=r"ram: cannot give it to 64055:64055.*on bm1: Operation"
    ):
        give((64055, 64055), "bm1", path)
