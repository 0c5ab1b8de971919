"""How servers are made and moved in a cloud: zones, groups, ports; what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from backfill.core.model.fleet import InstanceState
from backfill.drivers.openstack.api.states import HOST, appliance_name, cluster_tag
from backfill.ports.errors import BusyError, NoCapacityError, RefusedError
from tests.contract.instance_rig import CLUSTER, born, spec, state
from tests.real.openstack_rig import IMAGE, OpenStackRig, connect, nova, wait
from tests.real.tenant_rig import LIST, TenantRig, shaped
from tests.unit.test_cloud_applying import PUBLIC_KEY

pytestmark = [pytest.mark.real, pytest.mark.gate]


@pytest.fixture
def admin(clouds: Path) -> Iterator[OpenStackRig]:
    """Two compute hosts, seen by an administrator."""
    made = OpenStackRig(clouds)
    yield made
    made.end()


def hosts(clouds: Path) -> dict[str, str]:
    """On which compute host each server of any project is; an administrator sees it."""
    listed = nova(clouds, "admin", "GET", f"{LIST}?all_tenants=1")["servers"]
    return {server["name"]: server[HOST] for server in listed}


def test_a_group_keeps_servers_apart(clouds: Path, tmp_path: Path) -> None:
    """Two servers are on two hosts, and a third finds no room; the group is made once."""
    with shaped(clouds, tmp_path, group_policy="anti-affinity") as tenant:
        try:
            tenant.born("vn1")
            tenant.born("vn2")
            assert set(hosts(clouds).values()) == {"c1", "c2"}
            tenant.provider.create(spec(tenant, "vn3"))
            wait(lambda: tenant.state("vn3") is InstanceState.CRASHED)
            assert "No valid host" in tenant.provider.console("pool", "vn3")
            (group,) = groups(clouds)
            assert len(group["members"]) == 3
            with (
                shaped(clouds, tmp_path, group_policy="soft-affinity") as other,
                pytest.raises(RefusedError, match=r"policy anti-affinity.*openstack\.spread"),
            ):
                other.provider.create(spec(other, "vn4"))
        finally:
            for group in groups(clouds):
                nova(clouds, "east", "DELETE", f"/os-server-groups/{group['id']}")


def groups(clouds: Path) -> list[dict[str, Any]]:
    listed = nova(clouds, "east", "GET", "/os-server-groups")["server_groups"]
    return [group for group in listed if group["name"] == cluster_tag(CLUSTER)]


def test_a_zone_without_room_gives_way_to_the_next(clouds: Path, tmp_path: Path) -> None:
    """First the zone that is preferred; when its only host is out of order, the other one."""
    with (
        zone(clouds, "narrow", "c2") as disable,
        shaped(clouds, tmp_path, zones=("narrow", "nova")) as tenant,
    ):
        tenant.born("vn1")
        assert hosts(clouds) == {"vn1": "c2"}
        disable()
        with pytest.raises(NoCapacityError, match="availability zone is not available"):
            tenant.provider.create(spec(tenant, "vn2"))
        tenant.born("vn2")
        assert hosts(clouds) == {"vn1": "c2", "vn2": "c1"}


@contextmanager
def zone(clouds: Path, name: str, host: str) -> Iterator[Any]:
    """An availability zone with one host; it yields what takes that host out of service."""
    wanted = {"aggregate": {"name": name, "availability_zone": name}}
    made = nova(clouds, "admin", "POST", "/os-aggregates", wanted)["aggregate"]["id"]
    path, service = f"/os-aggregates/{made}", service_of(clouds, host)
    try:
        nova(clouds, "admin", "POST", f"{path}/action", {"add_host": {"host": host}})
        yield lambda: nova(clouds, "admin", "PUT", service, {"status": "disabled"})
    finally:
        nova(clouds, "admin", "PUT", service, {"status": "enabled"})
        nova(clouds, "admin", "POST", f"{path}/action", {"remove_host": {"host": host}})
        nova(clouds, "admin", "DELETE", path)


def service_of(clouds: Path, host: str) -> str:
    """The path of a host's nova-compute."""
    listed = nova(clouds, "admin", "GET", "/os-services?binary=nova-compute")["services"]
    return f"/os-services/{next(s['id'] for s in listed if s['host'] == host)}"


@contextmanager
def in_service(clouds: Path, host: str) -> Iterator[None]:
    """A host that is out of service otherwise."""
    service = service_of(clouds, host)
    nova(clouds, "admin", "PUT", service, {"status": "enabled"})
    try:
        yield
    finally:
        nova(clouds, "admin", "PUT", service, {"status": "disabled"})


def test_a_shelved_server_has_lost_its_memory(tenant: TenantRig) -> None:
    """It counts as off: nothing brings it back as if it had been suspended."""
    tenant.born()
    tenant.provider.shelve("pool", "vn1")
    assert tenant.state() is InstanceState.OFF
    for call in (tenant.provider.restore, tenant.provider.thaw, tenant.provider.suspend):
        with pytest.raises(BusyError, match="vn1: it is off"):
            call("pool", "vn1")


def test_an_administrator_moves_a_server_that_is_off(admin: OpenStackRig) -> None:
    """Its disk goes to the other host, and the old copy is given up: it is off there."""
    first, second = admin.provider.hosts
    born(admin)
    (server,) = nova(admin.clouds, "admin", "GET", LIST)["servers"]
    nova(admin.clouds, "admin", "POST", f"/servers/{server['id']}/action", {"os-stop": None})
    wait(lambda: state(admin) is InstanceState.OFF)
    admin.provider.migrate(first, "vn1", second)
    assert hosts(admin.clouds) == {"vn1": "c2"}
    assert state(admin, host=second) is InstanceState.OFF
    assert state(admin, host=first) is None


def test_a_member_who_names_compute_hosts_is_told_what_he_lacks(clouds: Path) -> None:
    """Reading is an answer, acting a refusal; both say that it is the role."""
    rig = OpenStackRig(clouds)
    places = {name: replace(place, cloud="east") for name, place in rig.config.places.items()}
    member = OpenStackRig(clouds, places=places)
    try:
        seen = member.provider.observe("hv1").host
        assert not seen.reachable
        assert "the credential lacks the role" in seen.problem
        with pytest.raises(RefusedError, match="lacks the role"):
            member.provider.create(spec(member))
        with pytest.raises(RefusedError, match="lacks the role"):
            member.provider.migrate("hv1", "vn1", "hv2")
    finally:
        member.end()
        rig.provider.close()


def test_a_flavour_or_image_that_is_not_there_leaves_nothing(clouds: Path, tmp_path: Path) -> None:
    """Refused before anything is made; and a network of another project with the same name counts
    for nobody.
    """
    for shape, words in (
        ({"flavours": ("nosuch",)}, "nosuch: cloud east has no flavor of this name"),
        ({"images": {IMAGE: "nosuch"}}, "nosuch: cloud east has no image of this name"),
        ({"network": "nosuch"}, "nosuch: cloud east has no network of this name"),
    ):
        with shaped(clouds, tmp_path, **shape) as tenant, pytest.raises(RefusedError, match=words):
            tenant.provider.create(spec(tenant))
    assert not list(connect(clouds, "east").network.ports())
    admin = OpenStackRig(clouds)
    try:
        born(admin)
        (port,) = connect(clouds, "admin").network.ports()
        own = connect(clouds, "admin").current_project_id
        assert connect(clouds, "admin").network.get_network(port.network_id).project_id == own
    finally:
        admin.end()


def test_a_network_without_port_security_takes_servers_too(clouds: Path, tmp_path: Path) -> None:
    """Although the cluster has a security group, which such ports must not have."""
    east = connect(clouds, "east").network
    group = east.create_security_group(name=appliance_name(CLUSTER))
    network = east.create_network(name="open", is_port_security_enabled=False)
    try:
        east.create_subnet(network_id=network.id, ip_version=4, cidr="10.77.0.0/16", is_dhcp_enabled=False)
        with shaped(clouds, tmp_path, network="open") as tenant:
            tenant.born()
            (port,) = east.ports()
            assert (port.network_id, port.security_group_ids) == (network.id, [])
    finally:
        east.delete_network(network)
        east.delete_security_group(group)


def test_servers_get_the_key_pair_of_the_policy(clouds: Path, tmp_path: Path) -> None:
    """One that the cloud does not have is told, and nothing is made."""
    with shaped(clouds, tmp_path, key_pair="of-tests") as tenant:
        with pytest.raises(RefusedError, match="key_name"):
            tenant.provider.create(spec(tenant, "vn1"))
        assert tenant.servers() == []
        assert list(connect(clouds, "east").network.ports()) == []
        pair = {"keypair": {"name": "of-tests", "public_key": PUBLIC_KEY}}
        nova(clouds, "east", "POST", "/os-keypairs", pair)
        try:
            tenant.born("vn1")
            assert [server["key_name"] for server in tenant.servers()] == ["of-tests"]
        finally:
            nova(clouds, "east", "DELETE", "/os-keypairs/of-tests")


def test_a_direct_port_gets_a_virtual_function(clouds: Path, tmp_path: Path) -> None:
    """On the host that has some; when both are taken the next server says that there is none."""
    with in_service(clouds, "c5"), shaped(clouds, tmp_path, vnic_type="direct", zones=("sriov",)) as tenant:
        for name in ("vn1", "vn2"):
            tenant.born(name)
        assert set(hosts(clouds).values()) == {"c5"}
        ports = list(connect(clouds, "admin").network.ports())
        assert {port.binding_vif_type for port in ports} == {"hw_veb"}
        slots = {port.binding_profile["pci_slot"] for port in ports}
        assert slots == {"0000:02:00.1", "0000:03:00.1"}
        tenant.provider.create(spec(tenant, "vn3"))
        wait(lambda: tenant.state("vn3") is InstanceState.CRASHED)
        assert "No valid host" in tenant.provider.console("pool", "vn3")
        tenant.provider.delete("pool", "vn3")
        tenant.provider.delete("pool", "vn1")
        (port,) = connect(clouds, "east").network.ports()
        assert port.name.endswith("vn2")
