"""A cluster that Heat has made: the daemon's servers come and go in it, and it goes as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from openstack.connection import Connection

from backfill.core.model.fleet import Flavour, InstanceSpec, InstanceState, Tag
from backfill.drivers.openstack.provider import OpenStackProvider
from backfill.drivers.openstack.settings import CloudPlace
from backfill.lab.cloud.handle import CloudHandle
from backfill.lab.spec import CONTROLLER_ADDRESS
from tests.real.burst_rig import in_the_cloud, lay_cable
from tests.real.cloud_rig import cloud_with_guests
from tests.real.daemon_rig import DaemonRig, daemon_lab
from tests.real.openstack_rig import IMAGE, SHAPE, config, connect, wait
from tests.real.test_openstack_shapes import in_service
from tests.unit.test_cloud_applying import PUBLIC_KEY

pytestmark = [pytest.mark.real, pytest.mark.soak]
NETWORK = "of-the-stack"
LIMIT_S = 600.0


class Stack:
    """A stack of project `east`, by password: for an application credential Heat can do nothing."""

    def __init__(self, cloud: CloudHandle) -> None:
        self.cloud = cloud
        self._link = Connection(
            auth={
                "auth_url": "http://127.0.0.1:5000/v3",
                "username": "east",
                "password": "east",
                "project_name": "east",
                "user_domain_id": "default",
                "project_domain_id": "default",
            },
            region_name="RegionOne",
        )
        self.made: Any = None

    def put(self, template: str) -> dict[str, Any]:
        """Create it, or update it; its outputs."""
        words = {"template": yaml.safe_load(template)}
        with self.cloud.network():
            heat = self._link.orchestration
            if self.made is None:
                done, self.made = "CREATE_COMPLETE", heat.create_stack(name="c", **words)
            else:
                done = "UPDATE_COMPLETE"
                heat.update_stack(self.made, **words)
            said = self._becomes(done, "CREATE_FAILED", "UPDATE_FAILED")
            assert said.startswith(done), said
            return {o["output_key"]: o["output_value"] for o in heat.get_stack(self.made.id).outputs}

    def resources(self) -> dict[str, str]:
        """Their ids in the cloud."""
        with self.cloud.network():
            found = self._link.orchestration.resources(self.made)
            return {one.name: one.physical_resource_id for one in found}

    def delete(self) -> str:
        """Ask for its end; the status that comes of it, and why. Of one that is gone nothing is said."""
        with self.cloud.network():
            self._link.orchestration.delete_stack(self.made)
            return self._becomes("", "DELETE_FAILED")

    def _becomes(self, *statuses: str) -> str:
        def seen() -> tuple[str, str]:
            stacks = self._link.orchestration.stacks()
            return next(((s.status, s.status_reason) for s in stacks if s.id == self.made.id), ("", ""))

        wait(lambda: seen()[0] in statuses, LIMIT_S)
        return " ".join(seen())


@pytest.fixture(scope="module")
def cloud() -> CloudHandle:
    return cloud_with_guests(with_heat=True)


@pytest.fixture(scope="module")
def bed(cloud: CloudHandle) -> Iterator[DaemonRig]:
    with daemon_lab("stack", hosts=1) as rig:
        lay_cable(rig.lab, cloud)
        yield rig


def policy(rig: DaemonRig, cloud: CloudHandle, nodes: int) -> dict[str, Any]:
    """A pool of so many names in the network of the stack; an idle server soon goes."""
    return {
        **in_the_cloud(rig.lab, cloud, network=NETWORK, key_pair=f"backfill-{rig.lab.spec.name}"),
        "instances": {"names": f"vn[1-{nodes}]"},
        "scale": {"idle_s": 3},
        "limits": {"max_instances": 3, "max_per_host": 2},
    }


def test_a_pool_grows_and_shrinks_in_a_stack_and_the_stack_goes_last(
    rig: DaemonRig, cloud: CloudHandle, tmp_path: Path
) -> None:
    """Key pair, addresses and the names of all hosts are the stack's, the servers the daemon's.

    A new template leaves the controller as it is; an end that comes too early harms nobody.
    """
    key = tmp_path / "key.pub"
    key.write_text(PUBLIC_KEY)
    words = ("--external", "public", "--public-key", str(key), "--image", IMAGE)
    rig.restart(**policy(rig, cloud, 4))
    stack = Stack(cloud)
    told = stack.put(rig.with_policy("cloud", "template", *words))
    assert told["hosts"] == {"ctl": CONTROLLER_ADDRESS} | {f"vn{n}": f"10.77.1.{n}" for n in range(1, 5)}
    first_of_all = stack.resources()
    east = connect(cloud.clouds_yaml, "east")
    with cloud.network():
        controller = east.compute.get_server(told["controller_id"])
        (way_in,) = east.network.ips(floating_ip_address=told["floating_address"])
    assert (controller.status, controller.key_name) == ("ACTIVE", f"backfill-{rig.lab.spec.name}")
    assert way_in.fixed_ip_address == CONTROLLER_ADDRESS

    # The pool grows with the work ...
    blocker = rig.high("bm1")
    jobs = [rig.low(start=False) for _ in range(2)]
    for job in jobs:
        rig.counting(job, limit_s=LIMIT_S)
    names = {rig.where(job)[0] for job in jobs}
    with cloud.network():
        servers = {s.name: s for s in east.compute.servers() if s.name in names}
        ports = {p.device_id: p for p in east.network.ports(network_id=told["network_id"])}
    assert servers.keys() == names
    for name, server in servers.items():
        port = ports[server.id]
        assert port.fixed_ips[0]["ip_address"] == told["hosts"][name]
        assert set(port.security_group_ids) == {told["security_group_id"], first_of_all["guard"]}
        assert server.key_name == controller.key_name

    # ... and shrinks with it, but not where work is.
    rig.finish(jobs[0])
    rig.until(lambda: len(rig.nodes()) == 1, LIMIT_S, "the end of the idle server")
    rig.counting(jobs[1])

    # A larger pool is a new template; what is there stays, and works on.
    rig.restart(**policy(rig, cloud, 6))
    more = stack.put(rig.with_policy("cloud", "template", *words))
    assert more["hosts"] == told["hosts"] | {"vn5": "10.77.1.5", "vn6": "10.77.1.6"}
    assert stack.resources() == first_of_all
    rig.counting(jobs[1])

    # A stack with nodes in it cannot be deleted; nothing of it goes before them, no rule either.
    with cloud.network():
        rules = list(east.network.security_group_rules(security_group_id=told["security_group_id"]))
    said = stack.delete()
    assert said.startswith("DELETE_FAILED")
    assert "in use" in said
    assert stack.resources() == first_of_all
    with cloud.network():
        left = east.network.security_group_rules(security_group_id=told["security_group_id"])
        assert {rule.id for rule in left} == {rule.id for rule in rules}
    rig.counting(jobs[1])
    rig.finish(jobs[1])
    rig.until(lambda: not rig.nodes(), LIMIT_S, "the end of all servers")
    rig.release(blocker)

    with cloud.network():
        _try_a_virtual_function(cloud, rig.lab.spec.name)
    assert stack.delete().strip() == ""
    with cloud.network():
        assert list(east.compute.servers()) == []
        assert list(east.network.ports()) == []
        assert list(east.network.ips()) == []
        assert east.compute.find_keypair(controller.key_name) is None
        assert east.network.find_network(NETWORK) is None


def _try_a_virtual_function(cloud: CloudHandle, cluster: str) -> None:
    """A server of the same pool on a host with cards gets one of its functions in the stack's network."""
    shape = replace(SHAPE, network=NETWORK, vnic_type="direct", zones=("sriov",))
    settings = config(cloud.clouds_yaml, {"pool": CloudPlace("east")}, cluster=cluster, shape=shape)
    spec = InstanceSpec("vn4", "pool", Tag(cluster, "vn4", 99), Flavour(1, 256), IMAGE, "10.77.1.4/16")
    provider = OpenStackProvider(settings)
    with in_service(cloud.clouds_yaml, "c5"):
        provider.create(spec)
        wait(lambda: provider.observe("pool").instances["vn4"].state is InstanceState.RUNNING)
        ports = connect(cloud.clouds_yaml, "admin").network.ports()
        (port,) = (one for one in ports if one.name.endswith(".vn4"))
        assert port.binding_vif_type == "hw_veb"
        provider.delete("pool", "vn4")
    provider.close()
