"""The project `east` of the test cloud as one pool; Nova and Cinder are behind proxies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from backfill.core.model.fleet import InstanceState
from backfill.drivers.openstack.provider import OpenStackProvider
from backfill.drivers.openstack.settings import CloudPlace
from tests.contract.instance_rig import spec
from tests.real.cloud_proxy import CINDER, CloudProxy
from tests.real.openstack_rig import QUICK, SHAPE, OpenStackRig, config, nova, sweep, wait

CREATE = "/servers$"
LIST = "/servers/detail"
PATIENT = replace(QUICK, settle_s=2)
# For tests that let a request hang, which is waited for in full; what hangs, hangs much longer.
IMPATIENT = replace(PATIENT, call_s=10)
HANGS_S = 180.0


class TenantRig(OpenStackRig):
    """The project `east` as one pool, Nova behind `proxy` and Cinder behind `cinder`."""

    def __init__(self, clouds: Path, tmp_path: Path, **changes: Any) -> None:
        self.proxy, self.cinder = CloudProxy(), CloudProxy(CINDER)
        known = json.loads(clouds.read_text())
        known["clouds"]["east"]["compute_endpoint_override"] = self.proxy.url
        known["clouds"]["east"]["block_storage_endpoint_override"] = self.cinder.url
        behind = tmp_path / "clouds.yaml"
        behind.write_text(json.dumps(known))
        self.clouds = clouds
        self.behind = behind
        changes.setdefault("patience", PATIENT)
        self.config = config(behind, {"pool": CloudPlace("east")}, **changes)
        sweep(clouds, "east")  # after a test that failed
        self.provider = OpenStackProvider(self.config)

    def servers(self) -> list[dict[str, Any]]:
        """What Nova really has."""
        found: list[dict[str, Any]] = nova(self.clouds, "east", "GET", LIST)["servers"]
        return found

    def state(self, name: str = "vn1") -> InstanceState | None:
        seen = self.provider.read("pool", name)
        return None if seen is None else seen.state

    def born(self, name: str = "vn1") -> None:
        self.provider.create(spec(self, name))
        wait(lambda: self.state(name) is InstanceState.RUNNING)

    def end(self) -> None:
        self.proxy.heal()
        sweep(self.clouds, "east")
        self.provider.close()
        self.proxy.close()
        self.cinder.close()


@contextmanager
def shaped(clouds: Path, folder: Path, **shape: Any) -> Iterator[TenantRig]:
    """A tenant whose servers are made in another way."""
    made = TenantRig(clouds, folder, shape=replace(SHAPE, **shape))
    try:
        yield made
    finally:
        made.end()
