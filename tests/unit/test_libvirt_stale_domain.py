"""What libvirt tells of a domain that is not so: starts that never end, a quota that it cannot read."""

from __future__ import annotations

from dataclasses import dataclass

import libvirt
import pytest

from backfill.drivers.libvirt.connection.domains import Domain, StaleDomain, throttled
from backfill.drivers.libvirt.connection.states import DomainState, PausedReason, ShutoffReason
from backfill.ports.errors import BusyError

STARTING = (int(DomainState.PAUSED), int(PausedReason.STARTING_UP))
PAUSED = (int(DomainState.PAUSED), 1)


def failed(code: int) -> libvirt.libvirtError:
    """A call that ended with this code."""
    error = libvirt.libvirtError("a call failed")
    error.err = (code, 0, "", 2, "", "", "", 0, 0)
    return error


LOCKED = failed(libvirt.VIR_ERR_OPERATION_TIMEOUT)


@dataclass(frozen=True)
class Handle:
    """What libvirt says of a domain; `number` is that of its latest start."""

    number: int
    said: tuple[int, int] = STARTING

    def state(self) -> list[int]:
        return list(self.said)

    def ID(self) -> int:  # noqa: N802 - libvirt's name
        return self.number


def shown(state: tuple[int, int] = STARTING) -> Domain:
    return Domain("vn1", *state, persistent=True, label=None, rss_mb=None, saving=False)


def test_it_counts_as_ended_until_it_is_another_start() -> None:
    """What libvirtd shows is believed again as soon as it shows something else."""
    stale = StaleDomain("bm1")
    assert stale.as_it_is(Handle(7), shown()) == shown()
    with pytest.raises(BusyError, match=r"nothing of it runs.*bm1.*/run/libvirt/qemu/vn1.xml"):
        stale.look(Handle(7), "vn1", LOCKED)
    ended = stale.as_it_is(Handle(7), shown())
    assert ended is not None
    assert (ended.state, ended.reason) == (DomainState.SHUTOFF, ShutoffReason.CRASHED)
    assert not ended.active
    assert stale.as_it_is(Handle(8), shown()) == shown()
    assert stale.as_it_is(Handle(7), shown(PAUSED)) == shown(PAUSED)
    assert stale.as_it_is(Handle(-1), None) is None


@pytest.mark.parametrize(
    ("handle", "error"),
    [
        (Handle(7, PAUSED), LOCKED),  # somebody else is at work with it
        (Handle(7), failed(libvirt.VIR_ERR_INTERNAL_ERROR)),  # its process cannot be killed
    ],
)
def test_nothing_else_is_taken_for_it(handle: Handle, error: libvirt.libvirtError) -> None:
    """A domain of which something may run stays what libvirtd says."""
    stale = StaleDomain("bm1")
    stale.look(handle, "vn1", error)
    assert stale.as_it_is(handle, shown()) == shown()


@dataclass(frozen=True)
class Asked:
    """A domain that is asked for its CPU quota."""

    error: libvirt.libvirtError

    def schedulerParametersFlags(self, _flags: int) -> dict[str, int]:  # noqa: N802 - libvirt's name
        raise self.error


def test_a_quota_that_could_not_be_read_is_not_none() -> None:
    """Without a control group there is no quota; where libvirt did not answer nobody knows."""
    assert not throttled(Asked(failed(libvirt.VIR_ERR_OPERATION_INVALID)))
    for error in (libvirt.libvirtError("a call failed"), failed(libvirt.VIR_ERR_INVALID_CONN)):
        with pytest.raises(libvirt.libvirtError):
            throttled(Asked(error))
