"""A host gets another release of libvirt and QEMU under its guests: all of them go on, whatever they do."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from backfill.lab import roots
from backfill.lab.spec import HYPERVISORS
from tests.real.daemon_rig import MIGRATE, PAUSE, REQUEUE, SUSPEND, DaemonRig, daemon_lab

pytestmark = [pytest.mark.real, pytest.mark.soak]

OLDER, NEWER = HYPERVISORS
TWO = {"max_instances": 2, "max_per_host": 1}


@pytest.fixture
def bed() -> Iterator[DaemonRig]:
    """A lab for each: there is no way back from a newer QEMU for a memory that it wrote."""
    roots.build(NEWER)
    with daemon_lab("upgrade-libvirt", hypervisor=OLDER) as made:
        yield made


@pytest.mark.parametrize("rung", [PAUSE, SUSPEND], ids=["pause", "suspend"])
def test_guests_outlive_it(rig: DaemonRig, rung: dict[str, object]) -> None:
    """One stands still and one runs while libvirtd gets its new release; then both change places."""
    rig.restart(ladder=[rung, REQUEUE], limits=TWO)
    lows = {job: rig.where(job) for job in (rig.low(), rig.low())}
    (still, (name, host)), (runs, (other, there)) = lows.items()
    high = rig.high(host)
    rig.becomes(name, "parked")
    for machine in rig.lab.hosts:
        rig.lab.upgrade(f"libvirtd@{machine}", NEWER)
    assert rig.becomes(name, "parked")["host"] == host
    rig.counting(runs)
    rig.release(high)
    rig.counting(still)
    high = rig.high(there)
    rig.becomes(other, "parked")
    rig.release(high)
    rig.finish(still, runs)
    assert {rig.show(job)["Restarts"] for job in lows} == {"0"}


def test_host_by_host(rig: DaemonRig) -> None:
    """Work leaves each host for the other one, from the old release to the new one and back; none stops."""
    rig.restart(ladder=[MIGRATE, PAUSE, REQUEUE], limits={"max_instances": 1})
    low = rig.low()
    for _ in rig.lab.hosts:
        name, host = rig.where(low)
        rig.backfill("evict", host, "--reason", "a new libvirt")
        rig.until(partial(_is_elsewhere, rig, low, host), what="its move")
        rig.becomes(name, "ready")
        rig.lab.upgrade(f"libvirtd@{host}", NEWER)
        rig.backfill("evict", host, "--undo")
        rig.counting(low)
    rig.finish(low)
    assert rig.show(low)["Restarts"] == "0"


def _is_elsewhere(rig: DaemonRig, job: str, host: str) -> bool:
    return rig.where(job)[1] != host
