"""The user data of a server: our guest's identity files for cloud-init; pure."""

from __future__ import annotations

import base64
import json
import shlex

from backfill.core.model.fleet import InstanceSpec
from backfill.drivers.openstack.settings import Guest
from backfill.ports.errors import RefusedError

_MOST_PEERS = 16 << 10  # of lines for /etc/hosts: more machines than that know one another by address
_LARGEST = 65535  # of user data, in base64, as Nova has it


def user_data(spec: InstanceSpec, guest: Guest) -> str:
    """User data in base64: #cloud-config, in JSON, which is YAML as well.

    The file is the one that the guest image reads with every provider. Nothing here is secret: each
    job in the guest can read it through the cloud's metadata address.
    """
    files = [_file("/etc/backfill/identity", _identity(spec, guest).encode(), "0644")]
    peers = "".join(f"{address} {name}\n" for name, address in guest.peers.items() if name != spec.name)
    if peers and len(peers) <= _MOST_PEERS:
        files.append(_file("/etc/backfill/peers", peers.encode(), "0644"))
    config = {"hostname": spec.name, "preserve_hostname": False, "write_files": files}
    text = "#cloud-config\n" + json.dumps(config, sort_keys=True) + "\n"
    encoded = base64.b64encode(text.encode()).decode()
    if len(encoded) > _LARGEST:
        raise RefusedError(spec.name, "its user data are larger than Nova takes (64 KB)")
    return encoded


def _identity(spec: InstanceSpec, guest: Guest) -> str:
    values = {
        "NODE_NAME": spec.name,
        "ADDRESS": spec.address,
        "CONTROLLER": guest.controller,
        "CONF_SERVER": guest.conf_server,
        "SLURMD_OPTIONS": guest.slurmd_options,
    }
    return "".join(f"{key}={shlex.quote(value)}\n" for key, value in values.items())


def _file(path: str, content: bytes, mode: str) -> dict[str, object]:
    return {
        "path": path,
        "encoding": "b64",
        "content": base64.b64encode(content).decode(),
        "permissions": mode,
    }
