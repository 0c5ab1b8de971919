"""A real guest that is throttled: it counts on, with a small share of the CPU it had."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill.core.model.fleet import InstanceState
from tests.real.libvirt_guest import NAME, Guest, counting_guest
from tests.real.libvirt_rig import LibvirtRig, running_lab
from tests.real.releases import HYPERVISORS

pytestmark = pytest.mark.real
_HELD = 0.4  # of a CPU: a tenth, what its emulator needs, and much room
_SPIN = "(while :; do :; done) >/dev/null 2>&1 </dev/null &"


@pytest.fixture(scope="module", params=HYPERVISORS)
def guest(request: pytest.FixtureRequest) -> Iterator[Guest]:
    with running_lab("libvirt-slow", request.param) as lab:
        rig = LibvirtRig(lab)
        made = counting_guest(rig)
        rig.in_guest(made.host, NAME, _SPIN)
        yield made
        rig.end()


def share(guest: Guest) -> float:
    """CPU time of the emulator in one second of time."""
    stat = Path(f"/proc/{guest.rig.qemu_pid(guest.host, NAME)}/stat")

    def ticks() -> int:
        fields = stat.read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    began, began_s = ticks(), time.monotonic()
    time.sleep(1.0)  # the span over which it is measured
    return (ticks() - began) / 100 / (time.monotonic() - began_s)


def test_a_busy_guest_keeps_next_to_nothing_and_gets_it_back(guest: Guest) -> None:
    """The emulator's own threads are not limited, so a little more than the share is used."""
    before = share(guest)
    guest.provider.throttle(guest.host, NAME, 2)
    guest.rig.until(lambda: share(guest) < before / 3)
    slow = share(guest)
    guest.rig.goes_on(NAME, more=1)
    guest.provider.throttle(guest.host, NAME, None)
    # How much others leave it now is not ours to say.
    guest.rig.until(lambda: share(guest) > 2 * slow)
    guest.run_on()


def throttled(guest: Guest) -> bool:
    """What its host's control group says."""
    seen = guest.provider.read(guest.host, NAME)
    assert seen is not None
    return seen.throttled


def test_a_quota_survives_a_move_and_a_suspend_and_can_be_lifted_there(guest: Guest) -> None:
    """Wherever it comes back it is held back as before, and gets all of its CPUs there."""
    guest.provider.throttle(guest.host, NAME, 10)
    assert throttled(guest)
    for _ in range(2):
        source, target = guest.host, guest.other
        guest.provider.migrate(source, NAME, target)
        assert guest.host == target
        assert throttled(guest)
    guest.put(InstanceState.SUSPENDED)
    guest.provider.migrate(guest.host, NAME, guest.other)
    guest.provider.restore(guest.host, NAME)
    assert throttled(guest)
    guest.provider.thaw(guest.host, NAME)
    assert throttled(guest)
    guest.rig.until(lambda: share(guest) < _HELD)
    guest.provider.throttle(guest.host, NAME, None)
    assert not throttled(guest)
    guest.run_on()
    guest.provider.migrate(guest.host, NAME, guest.other)
    assert not throttled(guest)
    guest.run_on()
