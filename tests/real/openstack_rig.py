"""The OpenStack driver on the session's test cloud, for the contract suite and the fault tests."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openstack.config
from openstack.connection import Connection

from backfill.core.model.fleet import InstanceState
from backfill.drivers.openstack.provider import OpenStackProvider
from backfill.drivers.openstack.settings import CloudPlace, Guest, OpenStackConfig, Patience, Shape
from backfill.lab.waiting import wait_until
from tests.contract.instance_rig import CLUSTER, HIDE, IMAGES, MOVE, NETWORK, STRANGERS
from tests.contract.lacking import lacking

IMAGE = "node"
QUICK = Patience(
    call_s=60, fence_s=60, act_s=240, settle_s=5, poll_s=0.3, full_s=30, usage_s=0.0, bench_s=600
)
GUEST = Guest("10.77.0.1", "10.77.0.1:6817")
SHAPE = Shape(
    ("tiny", "small"), "nodes", images={IMAGE: IMAGE}, config_drive=False, networks={NETWORK: "nodes"}
)
HOSTS = {"hv1": CloudPlace("admin", "c1"), "hv2": CloudPlace("admin", "c2")}


def config(clouds: Path, places: dict[str, CloudPlace], **changes: Any) -> OpenStackConfig:
    """Settings of the driver for the test cloud."""
    return replace(OpenStackConfig(CLUSTER, places, SHAPE, GUEST, str(clouds), patience=QUICK), **changes)


@functools.cache
def connect(clouds: Path, cloud: str) -> Connection:
    """A connection of the test's own, to look from outside."""
    loader = openstack.config.OpenStackConfig(config_files=[str(clouds)])
    made = Connection(config=loader.get_one(cloud=cloud))
    # It lives for many tests: a connection that was idle for long may end just when it is used.
    made.session.additional_headers["Connection"] = "close"
    return made


def nova(clouds: Path, cloud: str, method: str, path: str, body: Any = None) -> dict[str, Any]:
    """One request of the test's own to Nova."""
    answer = connect(clouds, cloud).compute.request(path, method, json=body, microversion="2.79")
    assert answer.status_code < 300, answer.text
    return dict(answer.json()) if answer.content else {}


def wait(holds: Callable[[], bool], limit_s: float = 600.0) -> None:
    """Poll until it holds."""
    assert wait_until(holds, limit_s, 0.05), f"not within {limit_s:g} s"


def sweep(clouds: Path, cloud: str, limit_s: float = 600.0) -> None:
    """Delete every server, port and volume of the project."""
    link = connect(clouds, cloud)
    for server in link.compute.servers(details=False):
        link.compute.delete_server(server)
    wait(lambda: not list(link.compute.servers(details=False)), limit_s)
    for port in link.network.ports(project_id=link.current_project_id):
        link.network.delete_port(port)
    for volume in link.block_storage.volumes():
        if volume.status in ("available", "error"):  # others go with their servers
            link.block_storage.delete_volume(volume.id)
    wait(lambda: not list(link.block_storage.volumes()), limit_s)


class OpenStackRig:
    """Two compute hosts of the fake driver, seen by an administrator. Guests do not exist."""

    image = IMAGE
    abilities = frozenset({MOVE, STRANGERS, IMAGES})

    def __init__(self, clouds: Path, **changes: Any) -> None:
        self.clouds = clouds
        self.config = config(clouds, **{"places": HOSTS, **changes})
        self.provider = OpenStackProvider(self.config)

    def until(self, holds: Callable[[], bool]) -> None:
        wait(holds)

    def booted(self, name: str) -> None:
        host = self.provider.hosts[0]
        wait(lambda: self.provider.observe(host).instances[name].state is InstanceState.RUNNING)

    @contextmanager
    def unreachable(self, host: str) -> Iterator[None]:
        compute = self.config.places[host].compute
        services = nova(self.clouds, "admin", "GET", "/os-services?binary=nova-compute")
        service = next(s for s in services["services"] if s["host"] == compute)
        path = f"/os-services/{service['id']}"
        nova(self.clouds, "admin", "PUT", path, {"forced_down": True})
        try:
            yield
        finally:
            nova(self.clouds, "admin", "PUT", path, {"forced_down": False})

    def hidden(self, host: str, name: str) -> AbstractContextManager[str]:
        """Nova keeps what is saved for itself; see `test_openstack_pure` for what it may tell."""
        lacking(HIDE)

    @contextmanager
    def stranger(self, host: str, name: str) -> Iterator[None]:
        link = connect(self.clouds, "admin")
        flavour = link.compute.find_flavor("tiny", ignore_missing=False)
        image = link.image.find_image(IMAGE, ignore_missing=False)
        place = self.config.places[host]
        wanted: dict[str, Any] = {
            "name": name,
            "flavorRef": flavour.id,
            "imageRef": image.id,
            "networks": "none",
            "tags": ["backfill.other"],
            "metadata": {"backfill_cluster": "other"},
        }
        if place.compute:
            wanted["host"] = place.compute
        made = nova(self.clouds, place.cloud, "POST", "/servers", {"server": wanted})
        path = f"/servers/{made['server']['id']}"
        wait(lambda: nova(self.clouds, place.cloud, "GET", path)["server"]["status"] == "ACTIVE")
        try:
            yield
        finally:
            nova(self.clouds, place.cloud, "DELETE", path)

    def end(self) -> None:
        """Leave the cloud empty."""
        for cloud in {place.cloud for place in self.config.places.values()}:
            sweep(self.clouds, cloud)
        self.provider.close()
