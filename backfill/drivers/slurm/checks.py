"""Checks words for Slurm's command lines, and compares a node with the one that we meant."""

from __future__ import annotations

import ipaddress
import re

from backfill.core.model.cluster import Node
from backfill.ports.errors import RefusedError
from backfill.ports.workload import NodeSpec

# Slurm would take ALL for every node and DEFAULT for none.
NODE_NAME = re.compile(r"(?!(?i:ALL|DEFAULT)$)[A-Za-z0-9][A-Za-z0-9_.-]*")
JOB_ID = re.compile(r"[0-9]+([_+][0-9]+)?")
FEATURE = re.compile(r"[A-Za-z0-9_.:=-]+")
_LONGEST = 1000


def checked(text: str, pattern: re.Pattern[str], what: str) -> str:
    """Return the text if Slurm can take it for one name and nothing else; RefusedError otherwise."""
    if pattern.fullmatch(text) is None:
        raise RefusedError(repr(text), f"this is no {what}")
    return text


def check_address(name: str, address: str) -> None:
    """Raise RefusedError for anything but a bare IP."""
    try:
        ipaddress.ip_address(address)
    except ValueError as error:
        # A name that does not resolve wedges slurmctld for seconds at each use.
        raise RefusedError(name, f"its address '{address}' is not an IP address", "give a bare IP") from error


def check_spec(spec: NodeSpec) -> None:
    """Raise RefusedError for a node that Slurm must not be asked for."""
    checked(spec.name, NODE_NAME, "node name")
    for feature in spec.features:
        checked(feature, FEATURE, "feature")
    check_address(spec.name, spec.address)
    if spec.cpus < 1 or spec.memory_mb < 1:
        raise RefusedError(spec.name, "it needs at least 1 CPU and 1 MB")


def is_dynamic(node: Node) -> bool:
    """Return True if the node was added while slurmctld ran, instead of standing in slurm.conf."""
    return any(flag.startswith("DYNAMIC") for flag in node.flags)


def difference(node: Node, spec: NodeSpec) -> str:
    """In what a node is not what we would have added; empty when it is."""
    return mismatch(node, spec) if is_dynamic(node) else "a node of slurm.conf"


def mismatch(node: Node, spec: NodeSpec) -> str:
    """Return the values of a node that differ from the specification; empty if none does."""
    pairs = (
        ("address", node.address, spec.address),
        ("CPUs", node.cpus, spec.cpus),
        ("memory", node.memory_mb, spec.memory_mb),
        ("features", ",".join(sorted(node.features)), ",".join(sorted(spec.features))),
    )
    return ", ".join(f"{what} {has} instead of {want}" for what, has, want in pairs if has != want)


def one_line(text: str) -> str:
    """One line without control characters, which Slurm prints as they are; not too long to send."""
    return "".join(c if c.isprintable() else " " for c in text).strip()[:_LONGEST]


def reason_text(text: str) -> str:
    """Return a reason as scontrol would have it: it takes quotes off both ends."""
    return one_line(text).strip(' "')
