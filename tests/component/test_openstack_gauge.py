"""The room of a cloud whose books of quota, hours or hypervisors are out of order while Nova itself works."""

from __future__ import annotations

import logging

import pytest

from backfill.core.model.quantities import Resources
from backfill.drivers.openstack.api.link import Answer
from backfill.drivers.openstack.provider import OpenStackProvider
from backfill.drivers.openstack.settings import CloudPlace, Guest, OpenStackConfig, Patience, Shape
from backfill.ports.errors import UnreachableError
from tests.component.test_openstack_asking import OwnLink
from tests.unit.test_openstack_pure import server

LIST, LIMITS = "/servers/detail", "/limits"
COMPUTES, SIZES = "/os-services", "/os-hypervisors/detail"
ABSOLUTE = {
    "maxTotalCores": 8,
    "maxTotalRAMSize": 4096,
    "maxTotalInstances": 9,
    "totalCoresUsed": 0,
    "totalRAMUsed": 0,
    "totalInstancesUsed": 0,
}


class BrokenBooks(OwnLink):
    """Some of its pages cannot be had."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: set[str] = set()
        self.pages[LIMITS] = {"limits": {"absolute": dict(ABSOLUTE)}}
        self.pages[LIST] = {"servers": []}
        self.pages[COMPUTES] = {"services": [{"host": "c1", "state": "up"}]}
        self.pages[SIZES] = {"hypervisors": [{"service": {"host": "c1"}, "vcpus": 4, "memory_mb": 2048}]}

    def get(self, service: str, path: str, subject: str, **query: str) -> Answer:
        if path in self.broken:
            self.asked.append((path, query))
            raise UnreachableError(subject, "cloud east said 500: Placement is away")
        return super().get(service, path, subject, **query)


def provider_on(
    link: BrokenBooks, compute: str = "", usage_s: float = 0.0, hours_cap: float = 0.0
) -> OpenStackProvider:
    config = OpenStackConfig(
        "c1",
        {"east": CloudPlace("east", compute)},
        Shape(("tiny",), "nodes"),
        Guest("", ""),
        hours_cap=hours_cap,
        patience=Patience(usage_s=usage_s, full_s=0.0),
    )
    return OpenStackProvider(config, lambda *given: link)


def test_a_quota_that_cannot_be_read_is_what_it_was(caplog: pytest.LogCaptureFixture) -> None:
    """What runs is seen and can be stopped and brought back: Nova itself answers."""
    link = BrokenBooks()
    provider = provider_on(link)
    assert provider.observe("east").host.capacity == Resources(8, 4096)
    link.broken = {LIMITS}
    link.pages[LIST] = {"servers": [server()]}
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            seen = provider.observe("east")
            assert (seen.host.reachable, set(seen.instances)) == (True, {"vn1"})
    (told,) = caplog.messages
    assert "cloud east: its quota cannot be read, and counts as it was" in told
    link.broken = set()
    link.pages[LIMITS] = {"limits": {"absolute": {**ABSOLUTE, "maxTotalCores": 2}}}
    assert provider.observe("east").host.capacity.cpus == 2


@pytest.mark.parametrize(("hours_cap", "cpus"), [(100.0, 1), (0.0, 8)])
def test_hours_that_cannot_be_read_let_nothing_new_begin(hours_cap: float, cpus: int) -> None:
    """What is there stays; Nova itself keeps to its quota, and nobody but us to the cap on hours."""
    link = BrokenBooks()
    usage = "/os-simple-tenant-usage/p1"
    link.pages[usage] = {"tenant_usage": {"server_usages": [{"instance_id": "u0", "hours": 10.0}]}}
    provider = provider_on(link, hours_cap=hours_cap)
    assert provider.observe("east").host.capacity.cpus == 8
    link.broken = {LIMITS, usage}
    link.pages[LIST] = {"servers": [server()]}
    for _ in range(2):
        assert provider.observe("east").host.capacity.cpus == cpus
    link.broken = set()
    assert provider.observe("east").host.capacity.cpus == 8


def test_a_quota_that_cannot_be_read_is_not_asked_for_all_the_time() -> None:
    """Each time may take as long as a request may, and all readings wait for it."""
    link = BrokenBooks()
    provider = provider_on(link, usage_s=60.0)
    provider.observe("east")
    provider._gauges["east"].forget()
    link.broken = {LIMITS}
    for _ in range(3):
        assert provider.observe("east").host.reachable
    assert [path for path, _ in link.asked].count(LIMITS) == 2


def test_a_quota_that_was_never_read_leaves_the_host_unknown() -> None:
    link = BrokenBooks()
    link.broken = {LIMITS}
    assert "Placement is away" in provider_on(link).observe("east").host.problem


@pytest.mark.parametrize("rows", [[], [{"service": {"host": "c2"}, "vcpus": 4, "memory_mb": 2048}]])
def test_a_hypervisor_that_is_not_listed_has_not_shrunk_to_nothing(rows: list[dict[str, object]]) -> None:
    """Its record is made anew, or has another name: all of its instances would have to leave."""
    link = BrokenBooks()
    provider = provider_on(link, "c1")
    assert provider.observe("east").host.capacity == Resources(4, 2048)
    link.pages[SIZES] = {"hypervisors": rows}
    seen = provider.observe("east").host
    assert (seen.reachable, "Nova lists no hypervisor of it" in seen.problem) == (False, True)


@pytest.mark.parametrize("page", [COMPUTES, SIZES])
def test_an_answer_without_computes_tells_of_none(page: str) -> None:
    link = BrokenBooks()
    link.pages[page] = {}
    seen = provider_on(link, "c1").observe("east").host
    assert (seen.reachable, "no list of them" in seen.problem) == (False, True)
