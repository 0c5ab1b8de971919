"""Memory that libvirt itself has saved, as `virsh managedsave` does: work, and not ours to end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import libvirt
import pytest

from backfill.core.model.actions import DeleteInstance
from backfill.core.model.changes import Unconfirmed
from backfill.core.model.fleet import InstanceState
from backfill.core.model.lifecycle import Cause
from backfill.drivers.libvirt.connection import states
from backfill.drivers.libvirt.connection.domains import seen
from backfill.drivers.libvirt.connection.states import DomainState, ShutoffReason
from backfill.engine.execute.confirm import spared
from backfill.ports.errors import BusyError, UnreadableError
from tests.contract.instance_rig import born, known, spec, state
from tests.contract.libvirt_testdriver import TestDriverRig

LABEL = (
    "<instance xmlns='urn:backfill:instance:1' cluster='c' node='vn1' generation='1' cpus='1'"
    " memory_mb='64' created_s='1.0'/>"
)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TestDriverRig]:
    made = TestDriverRig(tmp_path)
    yield made
    made.end()


@pytest.fixture
def restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    """libvirtd was started anew: it knows the image, and no longer why the guest does not run."""
    monkeypatch.setattr(states, "was_saved", lambda _state, _reason: False)


def saved(rig: TestDriverRig) -> str:
    """Make an instance, and save it as a person or a host that goes down does."""
    host = born(rig)
    rig.keeper.lookupByName("vn1").managedSave()
    return host


@pytest.mark.usefixtures("restarted")
def test_it_is_not_off(rig: TestDriverRig) -> None:
    """Nobody knows what became of it; what is done about it is said, and nothing else is done with it."""
    host = saved(rig)
    for instance in (known(rig, host), rig.provider.observe(host).instances["vn1"]):
        assert instance.state is InstanceState.UNKNOWN
        for said in (
            f"on {host}",
            "virsh start --paused vn1",
            "virsh managedsave-remove vn1",
            "systemctl mask libvirt-guests",
        ):
            assert said in instance.problem
    calls: tuple[Callable[[], object], ...] = (
        lambda: rig.provider.create(spec(rig)),
        lambda: rig.provider.create(spec(rig, generation=2)),
        lambda: rig.provider.restore(host, "vn1"),
        lambda: rig.provider.thaw(host, "vn1"),
        lambda: rig.provider.pause(host, "vn1"),
        lambda: rig.provider.migrate(host, "vn1", "hv2"),
    )
    for call in calls:
        with pytest.raises(UnreadableError, match="managed save"):
            call()
    assert rig.keeper.lookupByName("vn1").hasManagedSaveImage()


@pytest.mark.parametrize("cause", [Cause.LOST, Cause.STALE, Cause.OLD])
@pytest.mark.usefixtures("restarted")
def test_its_work_is_spared_at_the_last_moment(rig: TestDriverRig, cause: Cause) -> None:
    """Whatever was found before: its memory may be the only one."""
    host = saved(rig)
    outside: Any = SimpleNamespace(providers={host: rig.provider}, clock=SimpleNamespace(now=lambda: 0.0))
    end = DeleteInstance(subject="vn1", generation=1, reason="x", host=host, cause=cause)
    (news,) = spared(outside, end)
    assert isinstance(news, Unconfirmed)
    assert "managed save" in news.reason


@pytest.mark.usefixtures("restarted")
def test_who_needs_it_no_more_can_still_remove_it(rig: TestDriverRig) -> None:
    """One without work goes with its image: nothing of it is left in libvirt's way."""
    host = saved(rig)
    rig.provider.delete(host, "vn1")
    assert rig.provider.read(host, "vn1") is None
    rig.provider.create(spec(rig, generation=2))
    assert known(rig, host).tag.generation == 2
    assert state(rig) is InstanceState.RUNNING


@pytest.mark.usefixtures("restarted")
def test_each_remedy_ends_the_doubt(rig: TestDriverRig) -> None:
    """Started without its CPUs it stands still, for the fence to judge; without its image it is off."""
    host = saved(rig)
    domain = rig.keeper.lookupByName("vn1")
    domain.create()
    domain.suspend()  # the test driver cannot start without
    assert known(rig, host).state is InstanceState.PAUSED
    domain.managedSave()
    assert known(rig, host).state is InstanceState.UNKNOWN
    domain.managedSaveRemove()
    seen_off = known(rig, host)
    assert (seen_off.state, seen_off.problem) == (InstanceState.OFF, "")


def test_it_begins_nowhere_else(rig: TestDriverRig) -> None:
    """Its host may let it go on at any boot, and a move does not throw its memory away."""
    host = born(rig)
    pool = rig.provider._pool
    other = pool.on("hv2")
    other.define("vn1", pool.on(host).document("vn1"))
    other.start("vn1")
    other.run("vn1", lambda domain: domain.managedSave())
    rig.provider.pause(host, "vn1")
    pool.store.claim("vn1", {"hv1", "hv2"})
    with pytest.raises(BusyError, match="managed save on hv2"):
        rig.provider.thaw(host, "vn1")
    with pytest.raises(BusyError, match="managed save on hv2"):
        rig.provider.migrate(host, "vn1", "hv2")
    assert other.run("vn1", lambda domain: domain.hasManagedSaveImage())
    rig.provider.delete("hv2", "vn1")
    rig.provider.thaw(host, "vn1")
    assert state(rig) is InstanceState.RUNNING


class Handle:
    """A domain of which libvirtd is asked only what it has to be."""

    def __init__(self, label: str, image: bool) -> None:
        self._label, self._image = label, image
        self.asked = 0

    def name(self) -> str:
        return "vn1"

    def metadata(self, _kind: int, _namespace: str, _flags: int) -> str:
        if self._label:
            return self._label
        error = libvirt.libvirtError("none")
        error.err = (libvirt.VIR_ERR_NO_DOMAIN_METADATA, 0, "", 2, "", "", "", 0, 0)
        raise error

    def schedulerParametersFlags(self, _flags: int) -> dict[str, int]:  # noqa: N802 - libvirt's name
        return {}

    def hasManagedSaveImage(self) -> bool:  # noqa: N802 - libvirt's name
        self.asked += 1
        return self._image


@pytest.mark.parametrize("image", [True, False])
@pytest.mark.parametrize(
    ("label", "current", "asks"),
    [
        (LABEL, (DomainState.SHUTOFF, ShutoffReason.SAVED), 1),
        (LABEL, (DomainState.SHUTOFF, 0), 1),
        (LABEL, (DomainState.RUNNING, 1), 0),
        ("", (DomainState.SHUTOFF, 0), 0),
    ],
)
def test_only_of_ours_that_do_not_run_it_is_asked(
    label: str, current: tuple[int, int], asks: int, image: bool
) -> None:
    """A host may have many guests, and is read all the time."""
    handle = Handle(label, image)
    found = seen(handle, {"state.state": int(current[0]), "state.reason": int(current[1])})
    assert found is not None
    assert found.managed_save is (image and asks > 0)
    assert handle.asked == asks
