"""How quick the processor's counter counts, as guests without KVM are told."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from backfill.lab import tsc
from backfill.lab.image import GuestImage

IMAGE = GuestImage("vmlinuz", "initrd", "disk.raw", "quiet")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BACKFILL_CACHE", str(tmp_path))
    tsc.khz.cache_clear()
    return tmp_path


def test_it_is_measured_once_and_the_same_for_all(cache: Path) -> None:
    """A plausible number, in whole MHz, that the next process reads; other processors have none."""
    found = tsc.khz()
    if platform.machine() != "x86_64":
        assert found == 0
        return
    assert 100_000 < found < 20_000_000
    assert found % 1000 == 0
    (note,) = cache.glob("tsc-*")
    note.write_text("1234000")
    assert tsc.khz() == found
    tsc.khz.cache_clear()
    assert tsc.khz() == 1234000


def test_only_an_emulated_guest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """KVM tells it by itself; where there is no such counter nobody does."""
    monkeypatch.setattr(tsc, "khz", lambda: 2600000)
    assert IMAGE.cmdline_under("kvm") == "quiet"
    assert IMAGE.cmdline_under("qemu") == "quiet tsc_early_khz=2600000"
    monkeypatch.setattr(tsc, "khz", lambda: 0)
    assert IMAGE.cmdline_under("qemu") == "quiet"
