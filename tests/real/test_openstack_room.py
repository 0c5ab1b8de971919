"""Room that a cloud wants back: by its operator's mark, and when the instance hours are used up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from backfill.core.model.quantities import NOTHING, Resources
from tests.contract.instance_rig import SMALL
from tests.real.openstack_rig import connect, nova, wait
from tests.real.tenant_rig import PATIENT, TenantRig, shaped

pytestmark = [pytest.mark.real, pytest.mark.gate]
ONE = Resources(SMALL.cpus, SMALL.memory_mb)
HOURS = 1000.0  # far away


@pytest.fixture
def tenant(clouds: Path, tmp_path: Path) -> Iterator[TenantRig]:
    """One that reads the whole list every time: marks do not count as changes in Nova."""
    made = TenantRig(clouds, tmp_path, patience=replace(PATIENT, full_s=0), hours_cap=HOURS)
    yield made
    made.end()


def test_what_the_operator_marks_is_wanted_back(tenant: TenantRig) -> None:
    """His reason is told with the server; what he wants back is no room, now and after it went."""
    tenant.born()
    (server,) = tenant.servers()
    path = f"/servers/{server['id']}/metadata/backfill_reclaim"
    room = _room(tenant)
    assert room.cpus > 1
    nova(tenant.clouds, "admin", "PUT", path, {"meta": {"backfill_reclaim": "host is repaired"}})
    wait(lambda: _wanted(tenant) == "host is repaired")
    assert _room(tenant) == room - ONE
    tenant.provider.delete("pool", "vn1")
    assert _room(tenant) == room - ONE


def _wanted(tenant: TenantRig) -> str:
    return tenant.provider.observe("pool").instances["vn1"].wanted_back


def _room(tenant: TenantRig) -> Resources:
    return tenant.provider.observe("pool").host.capacity


def test_a_full_group_is_no_room_and_a_smaller_quota_wants_servers_back(clouds: Path, tmp_path: Path) -> None:
    """A group that is full lets what is in it stay; a quota of fewer servers does not."""
    with shaped(clouds, tmp_path, group_policy="soft-anti-affinity") as tenant:
        try:
            for name in ("vn1", "vn2"):
                tenant.born(name)
            assert _room(tenant).cpus > 2 * ONE.cpus
            with quota(tenant, server_group_members=2):
                assert _room(tenant) == ONE + ONE
            with quota(tenant, server_group_members=1, instances=2):
                assert _room(tenant) == ONE + ONE
            with quota(tenant, instances=1):
                assert _room(tenant) == ONE
        finally:
            for group in nova(clouds, "east", "GET", "/os-server-groups")["server_groups"]:
                nova(clouds, "east", "DELETE", f"/os-server-groups/{group['id']}")


@contextmanager
def quota(tenant: TenantRig, **limits: int) -> Iterator[None]:
    """Other limits of Nova for the project, for a while; also below what is in use."""
    path = f"/os-quota-sets/{connect(tenant.clouds, 'east').current_project_id}"
    before = nova(tenant.clouds, "admin", "GET", path)["quota_set"]

    def put(wanted: dict[str, int]) -> None:
        body = {"quota_set": {**wanted, "force": True}}
        nova(tenant.clouds, "admin", "PUT", path, body)

    put(limits)
    try:
        yield
    finally:
        put({key: before[key] for key in limits})


def test_used_up_hours_are_no_room(clouds: Path, tmp_path: Path) -> None:
    """Nova counts the hours of the month; what runs stays, but there is no room for it."""
    tenant = TenantRig(clouds, tmp_path, hours_cap=1e-6)
    try:
        tenant.born()
        wait(lambda: _room(tenant) == NOTHING)
        assert set(tenant.provider.observe("pool").instances) == {"vn1"}
    finally:
        tenant.end()
