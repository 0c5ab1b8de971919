"""The programs that handle images of disks and memory: what they say is understood in every language."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from backfill.drivers.libvirt.checkpoints import packing
from backfill.drivers.libvirt.checkpoints.folders import copy_file
from backfill.drivers.libvirt.store import run_qemu_img
from backfill.ports.errors import NoCapacityError

_FULL = """#!/bin/sh
case ${LC_ALL:-$LANG} in
    C) echo "$1: No space left on device" >&2 ;;
    *) echo "$1: kein Speicherplatz mehr" >&2 ;;
esac
exit 1
"""
_WAYS: dict[str, Callable[[Path], object]] = {
    "cp": lambda path: copy_file("vn1", path, path.with_name("copy")),
    "qemu-img": lambda path: run_qemu_img("vn1", "create", str(path)),
    "zstd": lambda path: packing.pack(path, path.with_name("packed"), 1),
    "zstd, tried out": packing.measure,
}


@pytest.mark.parametrize("way", _WAYS)
def test_a_full_disk_is_told_from_other_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Also where the daemon runs in another language: otherwise a checkpoint would count as damaged."""
    program, image = tmp_path / way.split(",")[0], tmp_path / "image"
    program.write_text(_FULL)
    program.chmod(0o755)
    image.write_bytes(b"memory" * 1000)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    with pytest.raises(NoCapacityError, match="No space left"):
        _WAYS[way](image)
