"""Trials of checkpoints: what one that was cut off leaves on a host goes, and nothing else."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import libvirt
import pytest

from backfill.drivers.libvirt.checkpoints import save_image
from backfill.drivers.libvirt.checkpoints.save_image import ImageHead
from backfill.ports.errors import UnreachableError
from tests.contract.instance_checkpoints import wanted
from tests.contract.instance_rig import born
from tests.contract.libvirt_testdriver import TestDriverRig, TestHypervisor

HOST = "hv1"
TRIAL = "vn1-trial-0123abcd"


class TrialHypervisor(TestHypervisor):
    """Loads the memory of a trial as what its new head says, which the test driver cannot read."""

    __test__ = False
    together: threading.Barrier | None = None  # so many are being loaded at once
    cut = False  # the link breaks when the next one is loaded; libvirtd loads it all the same

    def restore(self, name: str, path: Path, document: str | None = None) -> None:
        if self.together is not None:
            self.together.wait(30)
        told = path.with_name("head").read_text()
        assert path.exists()
        self._link.call(name, lambda connection: connection.createXML(told).suspend())
        if self.cut:
            raise UnreachableError(name, "the link is down")

    def destroy(self, name: str) -> None:
        if self.cut:
            self.cut = False
            raise UnreachableError(name, "the link is down")
        super().destroy(name)


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestDriverRig]:
    """vn1 is suspended and kept."""
    made = TestDriverRig(tmp_path, TrialHypervisor)
    monkeypatch.setattr(TrialHypervisor, "cut", False)
    monkeypatch.setattr(TrialHypervisor, "together", None)
    assert born(made) == HOST
    document = made.provider._pool.on(HOST).document("vn1")

    def rewrite(path: Path, head: ImageHead) -> None:
        path.with_name("head").write_text(head.document)

    monkeypatch.setattr(save_image, "read_head", lambda path: ImageHead((), document, path.name.encode()))
    monkeypatch.setattr(save_image, "rewrite", rewrite)
    made.provider.suspend(HOST, "vn1")
    made.provider.keep(HOST, wanted(made, HOST), None)
    made.provider.verify("7-1")
    yield made
    link(made, cut=False)
    for name in active(made) - {"test"}:
        made.keeper.lookupByName(name).destroy()
    made.end()


def link(rig: TestDriverRig, cut: bool) -> None:
    hypervisor = rig.provider._pool.on(HOST)
    assert isinstance(hypervisor, TrialHypervisor)
    hypervisor.cut = cut


def active(rig: TestDriverRig) -> set[str]:
    return {domain.name() for domain in rig.keeper.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)}


def trials(rig: TestDriverRig) -> set[str]:
    return {name for name in active(rig) if "-trial-" in name}


def root(rig: TestDriverRig) -> Path:
    return rig.provider._pool.store_on(HOST).root


def place(rig: TestDriverRig, disk: Path, name: str = TRIAL, metadata: str = "") -> str:
    """Let a domain of this name run with that disk."""
    document = (
        f"<domain type='test'><name>{name}</name><memory unit='MiB'>64</memory><os><type>hvm</type></os>"
        f"{metadata}<devices><disk type='file'><source file='{disk}'/><target dev='vda'/></disk></devices>"
        "</domain>"
    )
    rig.keeper.createXML(document).suspend()
    return name


def scratch(rig: TestDriverRig, age_s: float) -> Path:
    """The folder of a trial in another process, last touched so long ago; return its disk."""
    folder = root(rig) / ".trial-vn1-89abcdef"
    folder.mkdir()
    disk = folder / "disk.qcow2.back"
    disk.write_bytes(b"disk")
    then_s = time.time() - age_s
    for path in (disk, folder):
        os.utime(path, (then_s, then_s))
    return disk


def test_a_trial_leaves_nothing(rig: TestDriverRig) -> None:
    rig.provider.rehearse(HOST, "7-1")
    assert trials(rig) == set()
    assert list(root(rig).glob(".trial-*")) == []


def test_two_trials_of_one_instance_at_once(rig: TestDriverRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither takes the other's files: both say that it can be restored."""
    monkeypatch.setattr(TrialHypervisor, "together", threading.Barrier(2))
    with ThreadPoolExecutor(2) as both:
        done = [both.submit(rig.provider.rehearse, HOST, "7-1") for _ in range(2)]
        assert [one.result(60) for one in done] == [None, None]
    assert trials(rig) == set()
    assert list(root(rig).glob(".trial-*")) == []


def test_a_domain_whose_trial_was_cut_off_goes_later(rig: TestDriverRig) -> None:
    """The host did not hear that it was to end it: it would hold all of that memory for ever."""
    link(rig, cut=True)
    with pytest.raises(UnreachableError):
        rig.provider.rehearse(HOST, "7-1")
    assert len(trials(rig)) == 1
    rig.provider.tend()
    assert trials(rig) == set()
    assert rig.provider.observe(HOST).instances.keys() == {"vn1"}


@pytest.mark.parametrize("others", [False, True])
def test_what_a_killed_process_left_goes_after_an_hour(rig: TestDriverRig, others: bool) -> None:
    """One that fails does not keep the rest from going."""
    place(rig, scratch(rig, 7200.0))
    if others:
        link(rig, cut=True)
        place(rig, root(rig) / ".trial-vn2" / "disk.qcow2.back", "vn2-trial-0123abcd")
    rig.provider.tend()
    assert len(trials(rig)) == others
    assert list(root(rig).glob(".trial-*")) == []
    rig.provider.tend()
    assert trials(rig) == set()


def test_a_host_that_does_not_answer_keeps_no_other_from_being_cleared(rig: TestDriverRig) -> None:
    disk = scratch(rig, 7200.0)
    place(rig, disk)
    with rig.unreachable("hv2"):
        rig.provider.tend()
    assert trials(rig) == set()
    assert not disk.exists()


def test_a_trial_of_another_process_goes_on(rig: TestDriverRig) -> None:
    """It has touched its files within the hour."""
    disk = scratch(rig, 1800.0)
    place(rig, disk)
    rig.provider.tend()
    assert (trials(rig), disk.exists()) == ({TRIAL}, True)


def test_a_trial_of_our_own_goes_on_however_long_it_takes(
    rig: TestDriverRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads its files and does not touch them."""
    seen: list[set[str]] = []
    load = TrialHypervisor.restore

    def slow(hypervisor: TrialHypervisor, name: str, path: Path) -> None:
        load(hypervisor, name, path)
        for file in (*path.parent.iterdir(), path.parent):
            os.utime(file, (1.0, 1.0))
        rig.provider.tend()
        seen.append(trials(rig) if path.exists() else set())

    monkeypatch.setattr(TrialHypervisor, "restore", slow)
    rig.provider.rehearse(HOST, "7-1")
    assert [len(names) for names in seen] == [1]


LABEL = (
    "<metadata><instance xmlns='urn:backfill:instance:1' cluster='contract' node='vn1'"
    " generation='1' cpus='1' memory_mb='64' created_s='1.0'/></metadata>"
)


@pytest.mark.parametrize(
    ("name", "disk", "metadata"),
    [
        ("vn1-trial-0123ABCD", "{root}/.trial-vn1-89abcdef/disk.qcow2.back", ""),
        ("vn1-trial-0123abcd-2", "{root}/.trial-vn1-89abcdef/disk.qcow2.back", ""),
        ("mine", "{root}/.trial-vn1-89abcdef/disk.qcow2.back", ""),
        (TRIAL, "{root}/.trial-vn1-89abcdef/disk.qcow2.back", LABEL),
        (TRIAL, "{root}/vn1/disk.qcow2", ""),
        (TRIAL, "{root}/.trial-vn1-89abcdef/deeper/disk.qcow2.back", ""),
        (TRIAL, "{root}/../other/.trial-vn1/disk.qcow2.back", ""),
        (TRIAL, "/elsewhere/.trial-vn1/disk.qcow2.back", ""),
    ],
)
def test_nobody_elses_domain_is_touched(rig: TestDriverRig, name: str, disk: str, metadata: str) -> None:
    """Name, mark and disk must all be those of a trial of this cluster."""
    place(rig, Path(disk.format(root=root(rig))), name, metadata)
    rig.provider.tend()
    rig.provider.tend()
    assert name in active(rig)


def test_a_directory_that_is_not_mounted_tells_of_no_trial(rig: TestDriverRig) -> None:
    """The folder of one that goes on only seems to be gone."""
    place(rig, scratch(rig, 60.0))
    away = root(rig).with_name("away")
    root(rig).rename(away)
    rig.provider.tend()
    assert trials(rig) == {TRIAL}
    away.rename(root(rig))
    shutil.rmtree(root(rig) / ".trial-vn1-89abcdef")
    rig.provider.tend()
    assert trials(rig) == set()
