"""Servers that get stuck, find no room or exceed the quota: told in time, and nothing is left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backfill.core.model.fleet import InstanceState
from backfill.drivers.openstack.provider import OpenStackProvider
from backfill.ports.errors import BusyError, NoCapacityError, UnreachableError
from tests.contract.instance_rig import spec
from tests.real.openstack_rig import SHAPE, connect, nova, wait
from tests.real.tenant_rig import LIST, PATIENT, TenantRig

pytestmark = [pytest.mark.real, pytest.mark.gate]


def _with(**fields: Any) -> Any:
    def edit(body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "servers": [{**s, **fields} for s in body.get("servers", [])]}

    return edit


def test_a_server_on_which_nova_hangs_is_named_and_can_be_deleted(tenant: TenantRig) -> None:
    """As after a crash of its compute service: ACTIVE, but still `suspending`."""
    tenant.born()
    stuck = _with(**{"OS-EXT-STS:task_state": "suspending", "updated": "2099-01-01T00:00:00Z"})
    tenant.proxy.fail("GET", LIST, times=1000, edit=stuck)
    for call in (tenant.provider.pause, tenant.provider.suspend):
        with pytest.raises(BusyError, match=r"vn1: it is running, Nova is busy.*suspending"):
            call("pool", "vn1")
    tenant.proxy.heal()
    tenant.provider.delete("pool", "vn1")
    assert tenant.servers() == []


def test_a_deletion_on_which_nova_hangs_is_told_and_the_next_one_is_by_force(tenant: TenantRig) -> None:
    """As after a crash of its compute service: `deleting`, and nothing comes of asking again."""
    tenant.born()
    hasty = OpenStackProvider(replace(tenant.config, patience=replace(PATIENT, act_s=0.5)))
    tenant.proxy.fail("DELETE", "/servers/", status=202)
    with pytest.raises(UnreachableError, match=r"asked to delete it, and has not.*compute host may"):
        hasty.delete("pool", "vn1")
    hasty.close()
    tenant.proxy.fail("GET", LIST, times=1000, edit=_with(**{"OS-EXT-STS:task_state": "deleting"}))
    tenant.provider.delete("pool", "vn1")
    assert tenant.proxy.count("POST", "/action$") == 1
    assert tenant.servers() == []
    assert not list(connect(tenant.clouds, "east").network.ports())


def test_a_404_that_is_not_novas_makes_no_server_vanish(tenant: TenantRig) -> None:
    """A gateway says it while the service behind it is exchanged; lists may lag at that moment."""
    tenant.born()
    full = OpenStackProvider(replace(tenant.config, patience=replace(PATIENT, full_s=0)))
    assert set(full.observe("pool").instances) == {"vn1"}
    tenant.proxy.fail("GET", LIST, times=1000, edit=lambda body: {**body, "servers": []})
    tenant.proxy.fail("GET", "/servers/[0-9a-f-]+$", times=1000, status=404)
    seen = full.observe("pool")
    assert (seen.host.reachable, "it was not Nova that did" in seen.host.problem) == (False, True)
    tenant.proxy.heal()
    assert set(full.observe("pool").instances) == {"vn1"}
    full.close()


def test_a_server_that_never_stops_building_is_told_in_time(tenant: TenantRig) -> None:
    """It is BUILDING for the engine, which has a deadline; it refuses everything but its end."""
    tenant.proxy.fail("GET", "/servers/", times=1000, edit=_build_forever)
    tenant.provider.create(spec(tenant))
    assert tenant.state() is InstanceState.BUILDING
    with pytest.raises(BusyError, match="vn1: it is building"):
        tenant.provider.pause("pool", "vn1")
    tenant.provider.delete("pool", "vn1")
    assert tenant.servers() == []


def _build_forever(body: dict[str, Any]) -> dict[str, Any]:
    late = {"status": "BUILD", "updated": "2099-01-01T00:00:00Z"}
    if "server" in body:
        return {"server": {**body["server"], **late}}
    return {
        **body,
        "servers": [s if s["status"] == "DELETED" else {**s, **late} for s in body.get("servers", [])],
    }


def test_no_valid_host_says_why_and_the_next_flavour_is_taken(clouds: Path, tmp_path: Path) -> None:
    """The fault is the console's last words; flavour and zone sit on the bench."""
    flavour = {"name": "huge", "ram": 900000, "vcpus": 64, "disk": 1}
    made = nova(clouds, "admin", "POST", "/flavors", {"flavor": flavour})["flavor"]["id"]
    tenant = TenantRig(clouds, tmp_path, shape=replace(SHAPE, flavours=("huge", "tiny")))
    try:
        tenant.provider.create(spec(tenant))
        wait(lambda: tenant.state() is InstanceState.CRASHED)
        assert "No valid host" in tenant.provider.observe("pool").instances["vn1"].no_room
        assert "No valid host" in tenant.provider.console("pool", "vn1")
        tenant.provider.create(spec(tenant))
        wait(lambda: tenant.state() is InstanceState.RUNNING)
        assert [s["flavor"]["original_name"] for s in tenant.servers()] == ["tiny"]
    finally:
        tenant.end()
        nova(clouds, "admin", "DELETE", f"/flavors/{made}")


def test_a_pool_whose_flavours_all_sit_on_the_bench_has_no_room(clouds: Path, tmp_path: Path) -> None:
    """Beyond what it holds; so nothing is tried in vain until the first may play again."""
    flavour = {"name": "huge", "ram": 900000, "vcpus": 64, "disk": 1}
    made = nova(clouds, "admin", "POST", "/flavors", {"flavor": flavour})["flavor"]["id"]
    tenant = TenantRig(clouds, tmp_path, shape=replace(SHAPE, flavours=("huge",)))
    try:
        tenant.provider.create(spec(tenant))
        wait(lambda: tenant.state() is InstanceState.CRASHED)
        seen = tenant.provider.observe("pool")
        held = seen.instances["vn1"].resources
        assert (seen.host.capacity.cpus, seen.host.capacity.memory_mb) <= (held.cpus, held.memory_mb)
        with pytest.raises(NoCapacityError, match="no room for any flavour in any zone"):
            tenant.provider.create(spec(tenant))
    finally:
        tenant.end()
        nova(clouds, "admin", "DELETE", f"/flavors/{made}")


def test_quota_is_no_capacity_and_policy_is_a_refusal(tenant: TenantRig) -> None:
    """Both are 403; the text tells. The pool's room is what the quota leaves."""
    project = connect(tenant.clouds, "east").current_project_id
    path = f"/os-quota-sets/{project}"
    before = nova(tenant.clouds, "admin", "GET", path)["quota_set"]["instances"]
    tenant.born()
    nova(tenant.clouds, "admin", "PUT", path, {"quota_set": {"instances": 1, "force": True}})
    try:
        with pytest.raises(NoCapacityError, match="Quota exceeded"):
            tenant.provider.create(spec(tenant, "vn2"))
        (port,) = connect(tenant.clouds, "east").network.ports()
        assert port.name.endswith("vn1")  # the other one has gone again
        seen = tenant.provider.observe("pool").host.capacity
        assert (seen.cpus, seen.memory_mb) == (1, 256)
    finally:
        nova(tenant.clouds, "admin", "PUT", path, {"quota_set": {"instances": before}})
