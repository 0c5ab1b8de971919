"""As whom QEMU runs by libvirt's word, and what becomes of the files that it opens by itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from backfill.drivers.libvirt.hypervisor import Hypervisor
from backfill.drivers.libvirt.ownership import give_to_qemu, qemu_user
from backfill.ports import RefusedError

_TOLD = """
<capabilities><host>
 <secmodel><model>none</model><doi>0</doi></secmodel>
 <secmodel><model>dac</model><doi>0</doi>
  <baselabel type='kvm'>{label}</baselabel><baselabel type='qemu'>{label}</baselabel></secmodel>
</host></capabilities>
"""


class Host:
    """A host whose libvirt tells this."""

    host = "bm1"

    def __init__(self, told: str) -> None:
        self.told = told

    def getCapabilities(self) -> str:  # noqa: N802 - libvirt's own name
        return self.told

    def ask(self, work: Any) -> Any:
        return work(self)


def host(told: str) -> Hypervisor:
    return cast(Hypervisor, Host(told))


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
    give_to_qemu(host(_TOLD.format(label=f"+{os.getuid()}:+{os.getgid()}")), path)
    give_to_qemu(host("<capabilities/>"), path)
    assert given == []
    give_to_qemu(host(_TOLD.format(label="+64055:+64056")), path)
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
        give_to_qemu(host(_TOLD.format(label="+64055:+64055")), path)
