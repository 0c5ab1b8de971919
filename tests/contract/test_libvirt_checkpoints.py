"""Checkpoints of the libvirt driver, against the test hypervisors inside the libvirt library."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backfill.core.model.fleet import InstanceState
from backfill.drivers.libvirt.checkpoints import packing
from backfill.drivers.libvirt.store import Store
from backfill.ports.errors import DriverError
from tests.contract.instance_checkpoints import wanted
from tests.contract.instance_rig import born, state
from tests.contract.libvirt_testdriver import TestDriverRig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TestDriverRig]:
    made = TestDriverRig(tmp_path)
    yield made
    made.end()


def kept(rig: TestDriverRig) -> str:
    """Keep vn1, which stays suspended; return its host."""
    host = born(rig)
    rig.provider.suspend(host, "vn1")
    rig.provider.keep(host, wanted(rig, host), None)
    rig.provider.verify("7-1")
    return host


# --- putting back --------------------------------------------------------------------------------


def test_the_old_memory_goes_when_the_new_files_are_on_disk(
    rig: TestDriverRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut in between leaves the one or the other."""
    host, done = kept(rig), []
    flush, discard, replace = packing.flush, Store.replace_memory, Path.replace

    def flushed(path: Path) -> None:
        flush(path)
        done.append(f"flush {path.name}")

    def discarded(store: Store, name: str, new: Path) -> Path:
        done.append("discard")
        return discard(store, name, new)

    def replaced(path: Path, target: Any) -> Path:
        if path.suffix in (".back", ".coming"):
            done.append(f"rename {path.name}")
        return replace(path, target)

    monkeypatch.setattr(packing, "flush", flushed)
    monkeypatch.setattr(Store, "replace_memory", discarded)
    monkeypatch.setattr(Path, "replace", replaced)
    rig.provider.put_back(host, "vn1", "7-1")
    files = ["disk.qcow2.back", "seed.tar.back", "memory.save.back"]
    before = done[: done.index("discard")]
    assert [step for step in before if step.endswith(".back")] == [f"flush {name}" for name in files]
    assert before[-1] == "flush vn1"
    after = done[done.index("rename memory.coming") :]
    assert after[-1] == "flush vn1"


def test_what_cannot_be_flushed_is_not_put_back(rig: TestDriverRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old state stays, and the room that was taken is given back."""
    host = kept(rig)
    home = rig.provider._pool.store_on(host).home("vn1")
    old = (home / "memory.save").read_bytes()

    def fail(path: Path) -> None:
        raise OSError(5, f"Input/output error: {path}")

    monkeypatch.setattr(packing, "flush", fail)
    with pytest.raises(DriverError, match="cannot be written to disk"):
        rig.provider.put_back(host, "vn1", "7-1")
    assert (home / "memory.save").read_bytes() == old
    assert list(home.glob("*.back")) == []
    assert state(rig) is InstanceState.SUSPENDED
