"""Boot from a volume of a real Cinder: made and removed with its server; quota and outages told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from backfill.core.model.fleet import InstanceState
from backfill.ports.errors import NoCapacityError, RefusedError, UnreachableError
from tests.contract.instance_rig import spec
from tests.real.cloud_proxy import KEYSTONE, CloudProxy
from tests.real.openstack_rig import connect, wait
from tests.real.tenant_rig import CREATE, LIST, TenantRig, shaped

pytestmark = [pytest.mark.real, pytest.mark.gate]
SIZE_GB = 2
ATTACHED = "os-extended-volumes:volumes_attached"


@pytest.fixture
def rig(clouds: Path, tmp_path: Path) -> Iterator[TenantRig]:
    """Servers boot from volumes."""
    with shaped(clouds, tmp_path, volume_gb=SIZE_GB) as made:
        yield made


def volumes(rig: TenantRig) -> list[Any]:
    """What Cinder really has in the project."""
    return list(connect(rig.clouds, "east").block_storage.volumes())


@contextmanager
def quota(rig: TenantRig, **limits: int) -> Iterator[None]:
    """Other limits of Cinder for the project, for a while."""
    project = connect(rig.clouds, "east").current_project_id
    cinder = connect(rig.clouds, "admin").block_storage
    path = f"/os-quota-sets/{project}"
    before = {key: cinder.get(path).json()["quota_set"][key] for key in limits}
    assert cinder.put(path, json={"quota_set": limits}).ok
    try:
        yield
    finally:
        assert cinder.put(path, json={"quota_set": before}).ok


def test_the_volume_comes_and_goes_with_its_server(rig: TenantRig) -> None:
    """ACTIVE from a volume of the size that was asked for, and nothing of it is left."""
    rig.born()
    (volume,) = volumes(rig)
    assert (volume.size, volume.status, volume.is_bootable) == (SIZE_GB, "in-use", True)
    assert rig.servers()[0]["image"] == ""
    rig.provider.delete("pool", "vn1")
    wait(lambda: not volumes(rig))


@pytest.mark.soak
def test_a_server_that_is_deleted_while_it_is_built_leaves_no_volume(rig: TenantRig) -> None:
    """Nova makes the volume; wherever it is with that, it is undone."""
    rig.provider.create(spec(rig))
    wait(lambda: bool(volumes(rig)))
    rig.provider.delete("pool", "vn1")
    wait(lambda: not volumes(rig))


@pytest.mark.parametrize(
    ("limits", "words"), [({"volumes": 0}, "0 of 0 volumes"), ({"gigabytes": 1}, "0 of 1 GB of volumes")]
)
def test_cinders_quota_is_room_that_is_not_there(rig: TenantRig, limits: dict[str, int], words: str) -> None:
    """Which of its quotas is told before anything is made, and the pool has no room."""
    with quota(rig, **limits):
        with pytest.raises(NoCapacityError, match=f"{words} are in use.*quota of Cinder"):
            rig.provider.create(spec(rig))
        seen = rig.provider.observe("pool").host
        assert (seen.capacity.cpus, seen.reachable) == (0, True)
    assert rig.proxy.count("POST", CREATE) == 0
    assert not list(connect(rig.clouds, "east").network.ports())


@pytest.mark.soak
def test_a_quota_that_somebody_was_faster_to_use_up_is_told_by_the_server(rig: TenantRig) -> None:
    """The look was too early: Nova's words are the console's, and nothing is left after it."""
    with quota(rig, gigabytes=1):
        rig.cinder.fail("GET", "/limits$", edit=_without_limit)
        rig.provider.create(spec(rig))
        wait(lambda: rig.state() is InstanceState.CRASHED)
        assert "exceeds allowed gigabytes quota" in rig.provider.console("pool", "vn1")
        with pytest.raises(NoCapacityError, match="GB of volumes are in use"):
            rig.provider.create(spec(rig))  # which clears away what is left of the first
    assert rig.servers() == []
    assert volumes(rig) == []


def _without_limit(body: dict[str, Any]) -> dict[str, Any]:
    absolute = body["limits"]["absolute"]
    return {
        "limits": {
            "absolute": {key: value or -1 for key, value in absolute.items()}
            | {"maxTotalVolumeGigabytes": -1}
        }
    }


def test_while_cinder_is_silent_nothing_is_made_and_nothing_is_left_behind(rig: TenantRig) -> None:
    """A server's deletion waits for Cinder: Nova would delete it and forget the volume."""
    rig.born()
    rig.cinder.fail("GET", ".", times=1000, status=503)
    with pytest.raises(UnreachableError, match="503"):
        rig.provider.create(spec(rig, "vn2"))
    assert rig.provider.observe("pool").host.reachable
    with pytest.raises(UnreachableError, match=r"vn1: its volume would be left behind.*503"):
        rig.provider.delete("pool", "vn1")
    assert [server["name"] for server in rig.servers()] == ["vn1"]
    rig.cinder.heal()
    rig.provider.delete("pool", "vn1")
    wait(lambda: not volumes(rig))


@pytest.mark.soak
def test_a_volume_that_nova_leaves_behind_is_deleted(rig: TenantRig) -> None:
    """As when Cinder failed in the moment in which the server went."""
    rig.born()
    stray = connect(rig.clouds, "east").block_storage.create_volume(size=1)
    wait(lambda: {v.status for v in volumes(rig)} == {"available", "in-use"})
    left = [{"id": stray.id, "delete_on_termination": True}]
    rig.proxy.fail(
        "GET",
        LIST,
        times=1000,
        edit=lambda body: {
            **body,
            "servers": [{**server, ATTACHED: server.get(ATTACHED, []) + left} for server in body["servers"]],
        },
    )
    rig.provider.delete("pool", "vn1")
    wait(lambda: not volumes(rig))


def test_a_cloud_without_block_storage_refuses(rig: TenantRig) -> None:
    """Before anything is made, with the key that asked for it."""
    keystone = CloudProxy(KEYSTONE)
    known = json.loads(rig.behind.read_text())
    known["clouds"]["east"]["auth"]["auth_url"] = keystone.url
    rig.behind.write_text(json.dumps(known))
    keystone.fail("POST", "/auth/tokens$", times=1000, edit=_without_cinder)
    try:
        with pytest.raises(RefusedError, match=r"no block storage.*openstack\.volume_gb"):
            rig.provider.create(spec(rig))
        assert rig.proxy.count("POST", CREATE) == 0
        assert not list(connect(rig.clouds, "east").network.ports())
    finally:
        keystone.close()


def _without_cinder(body: dict[str, Any]) -> dict[str, Any]:
    token = body["token"]
    kept = [service for service in token["catalog"] if service["type"] != "block-storage"]
    return {"token": {**token, "catalog": kept}}
