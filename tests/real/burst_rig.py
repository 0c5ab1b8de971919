"""A lab whose daemon also has a project of a test cloud with real guests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from backfill.lab.cloud import guests
from backfill.lab.cloud.handle import CloudHandle
from backfill.lab.cluster import Lab
from backfill.lab.spec import CONTROLLER_ADDRESS, LIBVIRT_PORT, SLURMCTLD_PORT
from tests.real import guest_way

CLOUD = "10.77.250.1"  # where the lab's machines find the cloud


def lay_cable(lab: Lab, cloud: CloudHandle) -> None:
    """From the lab's switch to the bridge of the cloud's guests; it goes with either of them."""
    ends = (
        (
            lab.status().machines["switch"].pid,
            (f"link add cloud type veth peer name lab netns {cloud.pid}", "link set cloud master br0 up"),
        ),
        (
            cloud.pid,
            (f"link set lab master {guests.BRIDGE} up", f"addr replace {CLOUD}/16 dev {guests.BRIDGE}"),
        ),
    )
    for pid, commands in ends:
        subprocess.run(
            ["nsenter", f"--net=/proc/{pid}/ns/net", "ip", "-batch", "-"],
            input="\n".join(commands),
            text=True,
            check=True,
        )


def seen_from_the_lab(cloud: CloudHandle, folder: Path) -> Path:
    """clouds.yaml for the lab's machines: the catalogue has addresses that only the cloud knows."""
    known = json.loads(cloud.clouds_yaml.read_text().replace("127.0.0.1", CLOUD))
    for service, port in (("compute", "8774/v2.1"), ("image", "9292"), ("network", "9696")):
        known["clouds"]["east"][f"{service}_endpoint_override"] = f"http://{CLOUD}:{port}"
    file = folder / "clouds.yaml"
    file.write_text(json.dumps(known))
    return file


def in_the_cloud(lab: Lab, cloud: CloudHandle, **openstack: Any) -> dict[str, Any]:
    """Sections of a policy with one host of our own and one project; `openstack` replaces keys there."""
    way = [sys.executable, guest_way.__file__, f"qemu+tcp://{CLOUD}:{LIBVIRT_PORT}/system"]
    return {
        "hosts": [
            {"name": "bm1", "provider": "libvirt", "uri": lab.libvirt_uri("bm1")},
            {"name": "east", "provider": "openstack", "node": None, "cloud": "east"},
        ],
        "openstack": {
            "flavours": ["tiny"],
            "zones": [guests.ZONE],
            "network": "nodes",
            "clouds_yaml": str(seen_from_the_lab(cloud, lab.dir)),
            "images": {"default": guests.NODE},
            "guest": {
                "controller": CONTROLLER_ADDRESS,
                "conf_server": f"{CONTROLLER_ADDRESS}:{SLURMCTLD_PORT}",
                "munge_key": str(lab.munge_key),
                "command": [*way, "{address}"],
            },
            **openstack,
        },
    }
