"""A real guest that is throttled: it counts on, with a small share of the CPU it had."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill.core.fleet import InstanceState
from tests.real.libvirt_guest import NAME, Guest, counting_guest
from tests.real.libvirt_rig import LibvirtRig, running_lab
from tests.real.releases import HYPERVISORS

pytestmark = pytest.mark.real
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


def test_a_quota_survives_a_move_and_a_suspend_and_can_be_lifted_there(guest: Guest) -> None:
    """Wherever it comes back, what is seen is what holds."""
    guest.provider.throttle(guest.host, NAME, 10)
    guest.provider.migrate(guest.host, NAME, guest.other)
    seen = guest.provider.read(guest.host, NAME)
    assert seen is not None
    slow = share(guest) < 0.5
    assert seen.throttled is slow
    guest.provider.throttle(guest.host, NAME, None)
    guest.put(InstanceState.SUSPENDED)
    guest.provider.restore(guest.host, NAME)
    guest.provider.thaw(guest.host, NAME)
    seen = guest.provider.read(guest.host, NAME)
    assert seen is not None
    assert not seen.throttled
    guest.run_on()
