"""Guests in a closed network, on real hosts: no user of one gets beyond it, nor does its root as another."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from backfill.core.model.fleet import InstanceState
from backfill.drivers.libvirt import proving
from backfill.drivers.libvirt.provider import LibvirtProvider
from backfill.lab.spec import LIBVIRT_PORT, SLURMCTLD_PORT, host_address
from tests.contract.instance_rig import spec
from tests.real.libvirt_rig import LibvirtRig, running_lab

pytestmark = [pytest.mark.real, pytest.mark.soak]

_CONTROLLER = host_address("ctl")
_GUESTS = ("10.77.1.1", "10.77.1.2")
_CLOSED = tuple(f"{address}/32" for address in (_CONTROLLER, *_GUESTS))
_PORT = 7777
# A dropped frame has no answer; one that gets through has one in milliseconds.
_SILENT_S = 8
_USER = "setpriv --reuid=2001 --regid=2001 --clear-groups"


@pytest.fixture(scope="module")
def rig() -> Iterator[LibvirtRig]:
    with running_lab("guest-network") as lab, pytest.MonkeyPatch.context() as patch:
        for when in ("_EVERY_S", "_AGAIN_S"):
            patch.setattr(proving, when, 0.0)
        made = LibvirtRig(lab, reach=_CLOSED)
        _proven(made)
        yield made
        made.end()


@pytest.fixture
def guests(rig: LibvirtRig) -> Iterator[tuple[str, str]]:
    """One guest on each host, behind the filter."""
    for name, host in zip(("vn1", "vn2"), rig.lab.hosts, strict=True):
        rig.provider.create(spec(rig, name, host=host))
    for name in ("vn1", "vn2"):
        rig.booted(name)
    yield "vn1", "vn2"
    for host in rig.lab.hosts:
        for name in rig.provider.observe(host).instances:
            rig.provider.delete(host, name)


def _proven(rig: LibvirtRig) -> None:
    """Wait until each host has shown that it knows the filter."""
    for host in rig.lab.hosts:
        rig.until(lambda: not rig.provider.observe(host).host.unproven)  # noqa: B023 - used at once


@contextmanager
def _as_wished(rig: LibvirtRig, reach: tuple[str, ...] | None) -> Iterator[None]:
    """Let a daemon with another policy file take over meanwhile."""
    before = rig.provider, rig.config
    rig.config = replace(rig.config, reach=reach)
    rig.provider = LibvirtProvider(rig.config, lambda *event: rig.events.append(event))
    try:
        _proven(rig)
        yield
    finally:
        rig.provider.close()
        rig.provider, rig.config = before


def _gets_to(rig: LibvirtRig, host: str, name: str, address: str, port: int, who: str = _USER) -> bool:
    """Return True if a program in the guest gets a connection there."""
    connect = f"{who} timeout {_SILENT_S} bash -c 'exec 3<>/dev/tcp/{address}/{port}' 2>/dev/null"
    return rig.in_guest(host, name, f"{connect} && echo yes || echo no").strip() == "yes"


def _is_reached(rig: LibvirtRig, machine: str, address: str, port: int) -> bool:
    """Return True if a program of a machine of the lab gets a connection there."""
    connect = f"exec 3<>/dev/tcp/{address}/{port}"
    argv = ["timeout", str(_SILENT_S), "bash", "-c", connect]
    return rig.lab.run(machine, argv).returncode == 0


def _listens(rig: LibvirtRig, host: str, name: str) -> None:
    """Let something in the guest answer, as its slurmd does."""
    code = f"use IO::Socket::INET; my $s = IO::Socket::INET->new(LocalPort => {_PORT}, Listen => 9, "
    code += "ReuseAddr => 1) or die; while (my $c = $s->accept) { close $c }"
    rig.in_guest(host, name, f"perl -e '{code}' >/dev/null 2>&1 </dev/null &")
    rig.until(lambda: _gets_to(rig, host, name, "127.0.0.1", _PORT))


def test_without_it_a_users_program_gets_to_a_hosts_libvirt(rig: LibvirtRig) -> None:
    """Which obeys whoever reaches it: this is what the filter is for, and that the test could see it."""
    with _as_wished(rig, None):
        host, other = rig.lab.hosts
        rig.provider.create(spec(rig, "vn1", host=host))
        rig.booted("vn1")
        assert _gets_to(rig, host, "vn1", host_address(other), LIBVIRT_PORT)
        rig.provider.delete(host, "vn1")


def test_guests_reach_whom_they_need_and_nobody_else(rig: LibvirtRig, guests: tuple[str, str]) -> None:
    """The controller and each other; no host, in neither direction, and no forged address."""
    host, other = rig.lab.hosts
    one, two = guests
    _listens(rig, host, one)
    assert _gets_to(rig, host, one, _CONTROLLER, SLURMCTLD_PORT)
    assert _gets_to(rig, other, two, _GUESTS[0], _PORT)
    assert _is_reached(rig, "ctl", _GUESTS[0], _PORT)
    for machine in (host, other):
        assert not _gets_to(rig, host, one, host_address(machine), LIBVIRT_PORT)
        assert not _is_reached(rig, machine, _GUESTS[0], _PORT)
    # Root of a guest, whom there should not be, does no better, nor as somebody else.
    assert not _gets_to(rig, host, one, host_address(other), LIBVIRT_PORT, who="")
    pretend = f"ip addr add 10.77.1.9/32 dev eth0; ip route add {_CONTROLLER}/32 dev eth0 src 10.77.1.9"
    rig.in_guest(host, one, pretend)
    assert not _gets_to(rig, host, one, _CONTROLLER, SLURMCTLD_PORT)
    rig.in_guest(host, one, f"ip route del {_CONTROLLER}/32 dev eth0")
    assert _gets_to(rig, host, one, _CONTROLLER, SLURMCTLD_PORT)


def test_it_goes_with_the_guest(rig: LibvirtRig, guests: tuple[str, str]) -> None:
    """To disk and back, and to the other host."""
    host, other = rig.lab.hosts
    one, _ = guests
    rig.provider.suspend(host, one)
    rig.provider.restore(host, one)
    _goes_on(rig, host, one)
    assert not _gets_to(rig, host, one, host_address(other), LIBVIRT_PORT)
    assert _gets_to(rig, host, one, _CONTROLLER, SLURMCTLD_PORT)
    rig.provider.migrate(host, one, other)
    rig.until(lambda: one in rig.provider.observe(other).instances)
    _goes_on(rig, other, one)
    assert not _gets_to(rig, other, one, host_address(host), LIBVIRT_PORT)
    assert _gets_to(rig, other, one, _CONTROLLER, SLURMCTLD_PORT)


def _goes_on(rig: LibvirtRig, host: str, name: str) -> None:
    found = rig.provider.read(host, name)
    assert found is not None
    if found.state is not InstanceState.RUNNING:
        rig.provider.thaw(host, name)
    rig.provider.release(host, name, time.time(), ())


def test_guests_that_run_follow_a_changed_list(rig: LibvirtRig, guests: tuple[str, str]) -> None:
    """A daemon that starts with another policy file tells the hosts; back again as well."""
    host, other = rig.lab.hosts
    one, _ = guests
    assert not _gets_to(rig, host, one, host_address(other), LIBVIRT_PORT)
    with _as_wished(rig, (*_CLOSED, f"{host_address(other)}/32")):
        assert _gets_to(rig, host, one, host_address(other), LIBVIRT_PORT)
    _proven(rig)
    rig.until(lambda: not _gets_to(rig, host, one, host_address(other), LIBVIRT_PORT))
