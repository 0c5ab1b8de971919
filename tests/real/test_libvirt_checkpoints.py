"""A real guest's state, kept while it works on and put back later: it counts on from there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill.core.model.fleet import Checkpoint, InstanceState
from backfill.ports.errors import BadOutputError
from tests.real.libvirt_guest import NAME, Guest, counting_guest
from tests.real.libvirt_rig import LibvirtRig, running_lab
from tests.real.releases import HYPERVISORS

pytestmark = pytest.mark.real


@pytest.fixture(scope="module", params=HYPERVISORS)
def rig(request: pytest.FixtureRequest) -> Iterator[LibvirtRig]:
    with running_lab("libvirt-ckpt", request.param) as lab:
        made = LibvirtRig(lab)
        yield made
        made.end()


@pytest.fixture
def kept(rig: LibvirtRig) -> Iterator[tuple[Guest, int]]:
    """A guest that has a checkpoint and works on, and the last number before it."""
    guest = counting_guest(rig)
    guest.put(InstanceState.SUSPENDED)
    at = rig.last_counts(NAME)[-1]
    asked = Checkpoint("9-1", NAME, generation=1, host=guest.host, members=(NAME,))
    rig.provider.keep(guest.host, asked, None)
    go_on(guest)
    rig.until(lambda: rig.counts(NAME)[-1] >= at + 5)
    yield guest, at
    rig.provider.drop("9-1")
    for host in rig.provider.hosts:
        rig.provider.delete(host, NAME)


def go_on(guest: Guest) -> None:
    guest.provider.restore(guest.host, NAME)
    guest.provider.thaw(guest.host, NAME)


def test_a_state_is_put_back(rig: LibvirtRig, kept: tuple[Guest, int]) -> None:
    """The counter goes on from the checkpoint's number, on another host as well."""
    guest, at = kept
    rig.provider.verify("9-1")
    target = guest.other
    rig.provider.delete(guest.host, NAME)
    rig.provider.put_back(target, NAME, "9-1")
    assert (guest.host, guest.state) == (target, InstanceState.SUSPENDED)
    go_on(guest)  # its console began anew with the instance
    rig.until(lambda: len(rig.counts(NAME)) >= 3)
    assert rig.counts(NAME)[:3] == [at + 1, at + 2, at + 3]


def test_a_damaged_one_is_refused_before_the_old_state_is_given_up(
    rig: LibvirtRig, kept: tuple[Guest, int]
) -> None:
    """The guest goes on from where it is, as if nothing had been asked."""
    guest, _ = kept
    rig.provider.verify("9-1")
    guest.put(InstanceState.SUSPENDED)
    last = rig.last_counts(NAME)[-1]
    (part,) = rig.provider.checkpoints()
    (memory,) = Path(part.where).glob("memory*")
    content = bytearray(memory.read_bytes())
    content[len(content) // 2] ^= 0xFF
    memory.write_bytes(content)
    with pytest.raises(BadOutputError, match="damaged"):
        rig.provider.put_back(guest.host, NAME, "9-1")
    assert guest.state is InstanceState.SUSPENDED
    go_on(guest)
    rig.until(lambda: rig.counts(NAME)[-1] > last)
    assert last + 1 in rig.counts(NAME)
