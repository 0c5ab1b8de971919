"""What the simulated Slurm lets through, as strict as a command line must be."""

from __future__ import annotations

import ipaddress
import re

from backfill.ports.errors import RefusedError
from backfill.ports.workload import NodeSpec

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_JOB = re.compile(r"[0-9]+([_+][0-9]+)?")
_FEATURE = re.compile(r"[A-Za-z0-9_.:=-]+")


def check_job_id(text: str) -> None:
    """Raise RefusedError for a text that is no job id."""
    if _JOB.fullmatch(text) is None:
        raise RefusedError(repr(text), "this is no job id")


def check_address(name: str, address: str) -> None:
    """Raise RefusedError for anything but a bare IP."""
    try:
        ipaddress.ip_address(address)
    except ValueError as error:
        raise RefusedError(name, f"its address '{address}' is not an IP address") from error


def check_spec(spec: NodeSpec) -> None:
    """Raise RefusedError for a node that cannot be made."""
    if _NODE.fullmatch(spec.name) is None:
        raise RefusedError(repr(spec.name), "this is no node name")
    for feature in spec.features:
        if _FEATURE.fullmatch(feature) is None:
            raise RefusedError(repr(feature), "this is no feature")
    check_address(spec.name, spec.address)
    if spec.cpus < 1 or spec.memory_mb < 1:
        raise RefusedError(spec.name, "it needs at least 1 CPU and 1 MB")
