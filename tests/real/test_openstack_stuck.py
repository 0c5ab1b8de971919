"""Servers that get stuck, find no room or exceed the quota: told in time, and nothing is left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backfill.core.fleet import InstanceState
from backfill.ports import (
    BusyError,
    NoCapacityError,
)
from tests.contract.instance_rig import spec
from tests.real.cloud_rig import running_cloud
from tests.real.openstack_rig import (
    SHAPE,
    connect,
    nova,
    wait,
)
from tests.real.tenant_rig import LIST, TenantRig

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def clouds() -> Iterator[Path]:
    cloud = running_cloud()
    with cloud.network():
        yield cloud.clouds_yaml


@pytest.fixture
def rig(clouds: Path, tmp_path: Path) -> Iterator[TenantRig]:
    made = TenantRig(clouds, tmp_path)
    yield made
    made.end()


def _with(**fields: Any) -> Any:
    def edit(body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "servers": [{**s, **fields} for s in body.get("servers", [])]}

    return edit


def test_a_server_on_which_nova_hangs_is_named_and_can_be_deleted(rig: TenantRig) -> None:
    """As after a crash of its compute service: ACTIVE, but still `suspending`."""
    rig.born()
    stuck = _with(**{"OS-EXT-STS:task_state": "suspending", "updated": "2099-01-01T00:00:00Z"})
    rig.proxy.fail("GET", LIST, times=1000, edit=stuck)
    for call in (rig.provider.pause, rig.provider.suspend):
        with pytest.raises(BusyError, match=r"vn1: it is running, Nova is busy.*suspending"):
            call("pool", "vn1")
    rig.proxy.heal()
    rig.provider.delete("pool", "vn1")
    assert rig.servers() == []


def test_a_server_that_never_stops_building_is_told_in_time(rig: TenantRig) -> None:
    """It is BUILDING for the engine, which has a deadline; it refuses everything but its end."""
    rig.proxy.fail("GET", "/servers/", times=1000, edit=_build_forever)
    rig.provider.create(spec(rig))
    assert rig.state() is InstanceState.BUILDING
    with pytest.raises(BusyError, match="vn1: it is building"):
        rig.provider.pause("pool", "vn1")
    rig.provider.delete("pool", "vn1")
    assert rig.servers() == []


def _build_forever(body: dict[str, Any]) -> dict[str, Any]:
    late = {"status": "BUILD", "updated": "2099-01-01T00:00:00Z"}
    if "server" in body:
        return {"server": {**body["server"], **late}}
    return {**body, "servers": [
        s if s["status"] == "DELETED" else {**s, **late} for s in body.get("servers", [])
    ]}  # fmt: skip


def test_no_valid_host_says_why_and_the_next_flavour_is_taken(clouds: Path, tmp_path: Path) -> None:
    """The fault is the console's last words; flavour and zone sit on the bench."""
    flavour = {"name": "huge", "ram": 900000, "vcpus": 64, "disk": 1}
    made = nova(clouds, "admin", "POST", "/flavors", {"flavor": flavour})["flavor"]["id"]
    rig = TenantRig(clouds, tmp_path, shape=replace(SHAPE, flavours=("huge", "tiny")))
    try:
        rig.provider.create(spec(rig))
        wait(lambda: rig.state() is InstanceState.CRASHED)
        assert "No valid host" in rig.provider.console("pool", "vn1")
        rig.provider.create(spec(rig))
        wait(lambda: rig.state() is InstanceState.RUNNING)
        assert [s["flavor"]["original_name"] for s in rig.servers()] == ["tiny"]
    finally:
        rig.end()
        nova(clouds, "admin", "DELETE", f"/flavors/{made}")


def test_quota_is_no_capacity_and_policy_is_a_refusal(rig: TenantRig) -> None:
    """Both are 403; the text tells. The pool's room is what the quota leaves."""
    project = connect(rig.clouds, "east").current_project_id
    path = f"/os-quota-sets/{project}"
    before = nova(rig.clouds, "admin", "GET", path)["quota_set"]["instances"]
    rig.born()
    nova(rig.clouds, "admin", "PUT", path, {"quota_set": {"instances": 1, "force": True}})
    try:
        with pytest.raises(NoCapacityError, match="Quota exceeded"):
            rig.provider.create(spec(rig, "vn2"))
        seen = rig.provider.observe("pool").host.capacity
        assert (seen.cpus, seen.memory_mb) == (1, 256)
    finally:
        nova(rig.clouds, "admin", "PUT", path, {"quota_set": {"instances": before}})
