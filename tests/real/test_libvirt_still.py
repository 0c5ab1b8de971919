"""A guest that stands still may be sent on, again and again, without having run in between."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from backfill.core.model.fleet import InstanceState
from tests.contract.instance_provider import spec
from tests.real.libvirt_rig import LibvirtRig, running_lab
from tests.real.releases import HYPERVISORS

pytestmark = [pytest.mark.real, pytest.mark.gate]
NAME = "vn1"


@pytest.fixture(scope="module", params=HYPERVISORS)
def rig(request: pytest.FixtureRequest) -> Iterator[LibvirtRig]:
    with running_lab("libvirt-still", request.param) as lab:
        made = LibvirtRig(lab)
        host = made.provider.hosts[0]
        made.provider.create(spec(made, NAME))
        made.booted(NAME)
        made.start_counter(host, NAME)
        yield made
        made.end()


@pytest.fixture
def host(rig: LibvirtRig) -> Iterator[str]:
    """The guest's host, on which it is paused; afterwards, wherever it is, it must go on."""
    (found,) = [h for h in rig.provider.hosts if rig.provider.read(h, NAME)]
    rig.provider.pause(found, NAME)
    yield found
    (last,) = [h for h in rig.provider.hosts if rig.provider.read(h, NAME)]
    rig.provider.thaw(last, NAME)
    rig.goes_on(NAME)


def other(rig: LibvirtRig, host: str) -> str:
    (found,) = set(rig.provider.hosts) - {host}
    return found


def state(rig: LibvirtRig, host: str) -> InstanceState | None:
    instance = rig.provider.read(host, NAME)
    return instance.state if instance is not None else None


def test_moved_on_before_it_ran(rig: LibvirtRig, host: str) -> None:
    """The host that it came to is wanted as well: it goes back, and once more."""
    for source, target in ((host, other(rig, host)), (other(rig, host), host)) * 2:
        rig.provider.migrate(source, NAME, target)
        assert state(rig, target) is InstanceState.PAUSED
        assert state(rig, source) is None


def test_suspended_where_it_came_to_before_it_ran(rig: LibvirtRig, host: str) -> None:
    """Its memory goes to disk on the new host, from there to the old one, and it comes back."""
    target = other(rig, host)
    rig.provider.migrate(host, NAME, target)
    rig.provider.suspend(target, NAME)
    assert state(rig, target) is InstanceState.SUSPENDED
    rig.provider.migrate(target, NAME, host)
    rig.provider.restore(host, NAME)


@pytest.mark.parametrize("times", [1, 2])
def test_suspended_again_before_it_ran(rig: LibvirtRig, host: str, times: int) -> None:
    """Its host is wanted again in the middle of its return."""
    rig.provider.suspend(host, NAME)
    for _ in range(times):
        rig.provider.restore(host, NAME)
        rig.provider.suspend(host, NAME)
    rig.provider.restore(host, NAME)
    assert state(rig, host) is InstanceState.PAUSED


def test_moved_right_after_its_return_from_disk(rig: LibvirtRig, host: str) -> None:
    """Restored, not thawed, and sent to the other host with its memory."""
    rig.provider.suspend(host, NAME)
    rig.provider.restore(host, NAME)
    rig.provider.migrate(host, NAME, other(rig, host))
    assert state(rig, other(rig, host)) is InstanceState.PAUSED
