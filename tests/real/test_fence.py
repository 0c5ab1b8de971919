"""Nothing of a stale payload gets out: by the counters of its guest's card, and the files that it writes."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from backfill.drivers.libvirt.settings import Surroundings
from backfill.lab.cluster import Lab
from backfill.lab.extras import exported, mounts
from backfill.lab.spec import CONTROLLER_ADDRESS, SLURMCTLD_PORT
from tests.contract.instance_fence import InstanceFenceContract
from tests.contract.instance_rig import spec
from tests.real.libvirt_rig import LibvirtRig, running_lab

pytestmark = [pytest.mark.real, pytest.mark.soak]

NAME = "vn1"
# As fast as it can: packets to nobody, and lines to a file server, each written through.
_PAYLOAD = """
( while :; do echo packet {job} >/dev/udp/{address}/9; done ) &
n=0; while :; do n=$((n+1)); echo $n | dd of=/home/{job} oflag=append,sync conv=notrunc status=none; done
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with running_lab("fence", files=True) as up:
        yield up


@pytest.fixture
def rig(lab: Lab) -> Iterator[LibvirtRig]:
    around = Surroundings(
        CONTROLLER_ADDRESS,
        f"{CONTROLLER_ADDRESS}:{SLURMCTLD_PORT}",
        str(lab.munge_key),
        mounts=tuple(mounts()),
    )
    made = LibvirtRig(lab, surroundings=around)
    yield made
    made.end()


class Payloads:
    """Two jobs in one guest that write and send as fast as they can."""

    def __init__(self, rig: LibvirtRig) -> None:
        self.rig, self.host = rig, rig.provider.hosts[0]
        rig.provider.create(spec(rig))
        rig.booted(NAME)
        rig.until(lambda: "nfs4" in rig.in_guest(self.host, NAME, "grep ' /home ' /proc/mounts"))

    def start(self, job: str) -> None:
        user = "setpriv --reuid=2001 --regid=2001 --clear-groups"
        script = _PAYLOAD.format(job=job, address=CONTROLLER_ADDRESS)
        self.rig.in_guest(
            self.host, NAME, f"SLURM_JOB_ID={job} {user} bash -c '{script}' >/dev/null 2>&1 </dev/null &"
        )
        self.rig.until(lambda: len(self.written(job)) > 3)

    def written(self, job: str) -> list[int]:
        """The lines that the file server has of the job."""
        path = exported(self.rig.lab.dir) / "home" / job
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def sent(self) -> int:
        """How many packets have come out of the guest, by its card's counter on the host."""
        rig = self.rig
        card = rig.lab.run(self.host, ["virsh", "-q", "domiflist", NAME], check=True).stdout.split()[0]
        counter = f"/sys/class/net/{card}/statistics/rx_packets"
        return int(rig.lab.run(self.host, ["cat", counter], check=True).stdout)


class TestRealFence(InstanceFenceContract):
    """The contract, in real guests."""

    @pytest.fixture
    def rig(self, lab: Lab) -> Iterator[LibvirtRig]:
        made = LibvirtRig(lab)
        yield made
        made.end()


def test_an_ended_payload_sends_and_writes_nothing_more(rig: LibvirtRig) -> None:
    """It was frozen before the stop; beside it another job goes on."""
    payloads = Payloads(rig)
    for job in ("41", "42"):
        payloads.start(job)
    provider, host = rig.provider, payloads.host
    provider.freeze(host, NAME)
    provider.pause(host, NAME)
    sent, wrote = payloads.sent(), {job: payloads.written(job) for job in ("41", "42")}
    provider.thaw(host, NAME, shut=True)
    rig.in_guest(host, NAME, "true")  # it runs, and answers
    assert payloads.sent() == sent
    assert {job: payloads.written(job) for job in ("41", "42")} == wrote
    provider.release(host, NAME, time.time(), (42,))
    rig.until(lambda: len(payloads.written("41")) > len(wrote["41"]) + 10)
    assert payloads.sent() > sent
    # What was on its way to the file server at the stop may come, once: it was sent before.
    assert len(payloads.written("42")) <= len(wrote["42"]) + 1
    assert payloads.written("41") == [*range(1, len(payloads.written("41")) + 1)]


def test_a_guest_that_was_stopped_without_warning_says_nothing_until_it_may(rig: LibvirtRig) -> None:
    """Its payload runs before anybody can hold it, and gets nowhere."""
    payloads = Payloads(rig)
    payloads.start("43")
    provider, host = rig.provider, payloads.host
    provider.pause(host, NAME)
    sent, wrote = payloads.sent(), payloads.written("43")
    provider.thaw(host, NAME, shut=True)
    ran = "ps -o cputimes= -U 2001 | awk '{n += $1} END {print n}'"
    before = int(rig.in_guest(host, NAME, ran))
    rig.until(lambda: int(rig.in_guest(host, NAME, ran)) > before)
    assert payloads.sent() == sent
    assert payloads.written("43") == wrote
    provider.pause(host, NAME)  # its patience is over: it is never let out
    provider.delete(host, NAME)
    assert payloads.written("43") == wrote
