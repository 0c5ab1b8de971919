"""Translates Nova's servers into our instances; pure. A server is the API's own JSON object."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from backfill.core.model.fleet import Instance, InstanceSpec, InstanceState, Tag
from backfill.core.model.quantities import Resources
from backfill.drivers.openstack.api.shortage import is_no_room

Server = dict[str, Any]

HOST = "OS-EXT-SRV-ATTR:host"
TASK = "OS-EXT-STS:task_state"
POWER = "OS-EXT-STS:power_state"
LAUNCHED = "OS-SRV-USG:launched_at"  # null until its guest ran
_SHUT_DOWN, _CRASHED = 4, 6  # of POWER
GONE = frozenset({"DELETED", "SOFT_DELETED"})
_STATES = {
    "BUILD": InstanceState.BUILDING,
    "PAUSED": InstanceState.PAUSED,
    "SUSPENDED": InstanceState.SUSPENDED,
    # As far as we know its guest runs.
    **dict.fromkeys(
        (
            "ACTIVE",
            "MIGRATING",
            "REBOOT",
            "HARD_REBOOT",
            "PASSWORD",
            "REBUILD",
            "RESIZE",
            "VERIFY_RESIZE",
            "REVERT_RESIZE",
        ),
        InstanceState.RUNNING,
    ),
    "SHUTOFF": InstanceState.OFF,
    # Its memory is lost, whatever its disk keeps.
    "SHELVED": InstanceState.OFF,
    "SHELVED_OFFLOADED": InstanceState.OFF,
    "RESCUE": InstanceState.OFF,  # another system runs in its place
}
_MARK = "backfill_"
AWAITS_KEY = f"{_MARK}awaits_key"  # set: its guest has not got the munge key yet
RESTORED = f"{_MARK}restored"  # set: a suspended server counts as restored, see `moving.restore`
RECLAIM = f"{_MARK}reclaim"  # set by the cloud's operator, who wants the server's room back


def cluster_tag(cluster: str) -> str:
    """Return the tag on every server of a cluster; at most 60 characters, neither '/' nor ','."""
    return f"backfill.{cluster}"


def appliance_name(cluster: str) -> str:
    """Return the name that `backfill cloud` gives to a cluster's security group and router."""
    return f"backfill-{cluster}"


def guard_name(cluster: str) -> str:
    """Return the name of the group without rules whose use keeps Heat from deleting a cluster with nodes."""
    return f"backfill-{cluster}-nodes"


def unique_tag(tag: Tag) -> str:
    """Return the tag that only one server has, at any time."""
    return f"backfill.{tag.cluster}.{tag.node}.{tag.generation}"


def metadata_of(spec: InstanceSpec, choice: str) -> dict[str, str]:
    """Return the metadata that Nova keeps for us; `choice` is its flavour and zone."""
    values = {
        "cluster": spec.tag.cluster,
        "node": spec.tag.node,
        "generation": str(spec.tag.generation),
        "cpus": str(spec.flavour.cpus),
        "memory_mb": str(spec.flavour.memory_mb),
        "host": spec.host,
        "address": spec.address,
        "choice": choice,
        # For the books of the cloud: whose it is.
        **({"job": spec.job, "user": spec.user} if spec.job else {}),
    }
    return {f"{_MARK}{key}": value for key, value in values.items()}


def mark(server: Server, key: str) -> str:
    """One of our own notes on the server, empty if it has none."""
    return str(server.get("metadata", {}).get(f"{_MARK}{key}", ""))


def is_ours(server: Server, cluster: str) -> bool:
    """Return True if the server belongs to this cluster and exists."""
    return mark(server, "cluster") == cluster and server.get("status") not in GONE


def host_of(server: Server, computes: dict[str, str]) -> str:
    """Return the host of ours that it is on. `computes`: Nova's name of a compute host -> ours.

    A tenant does not see compute hosts, and a server that is being built has none yet: then it is
    where it was wanted.
    """
    return computes.get(str(server.get(HOST) or ""), mark(server, "host"))


def state_of(server: Server) -> InstanceState:
    """Our word for what Nova says.

    ERROR is the end of one that never ran. Of any other it only says that a call of somebody's
    failed, or that a person has set it so: its guest may run, or stand still with its work.
    """
    if server.get("status") == "SUSPENDED" and RESTORED in server.get("metadata", {}):
        return InstanceState.PAUSED
    if server.get("status") == "VERIFY_RESIZE" and server.get(POWER) == _SHUT_DOWN:
        return InstanceState.OFF  # it was moved like that
    if server.get("status") == "ERROR" and (not server.get(LAUNCHED) or server.get(POWER) == _CRASHED):
        return InstanceState.CRASHED
    return _STATES.get(str(server.get("status")), InstanceState.UNKNOWN)


def _problem_of(server: Server) -> str | None:
    """Say why it is not known what became of a server, with the next step, or None."""
    if _generation(server) is None:
        return (
            f"its metadata {_MARK}generation is gone or damaged, so that nobody knows which one "
            f"it is; put it back with `openstack server set --property {_MARK}generation=NUMBER`"
        )
    if state_of(server) is not InstanceState.UNKNOWN:
        return None
    status, fault = server.get("status"), fault_of(server) or "no reason is given"
    said = f"ERROR ({fault}), which its guest may have survived" if status == "ERROR" else status
    return (
        f"Nova shows it as {said}; let the cloud's operator look at server {server.get('id')}, and "
        "set its state right or delete it"
    )


def instance_of(server: Server, host: str) -> Instance:
    """Our picture of a server of ours."""
    generation, problem = _generation(server), _problem_of(server)
    tag = Tag(mark(server, "cluster"), mark(server, "node"), generation or 0)
    return Instance(
        name=str(server["name"]),
        host=host,
        state=InstanceState.UNKNOWN if problem else state_of(server),
        tag=tag,
        resources=Resources(_number(mark(server, "cpus")), _number(mark(server, "memory_mb"))),
        boot_s=seconds(str(server.get("created", ""))),
        wanted_back=wanted_back(server),
        no_room=_no_room(server) or "",
        problem=problem or "",
    )


def _generation(server: Server) -> int | None:
    """Return its generation, by our note or by the tag that it alone has; None: there is neither."""
    said = mark(server, "generation")
    if said.isdigit():
        return int(said)
    start = f"{cluster_tag(mark(server, 'cluster'))}.{mark(server, 'node')}."
    ends = (str(t).removeprefix(start) for t in server.get("tags", ()) if str(t).startswith(start))
    return next((int(end) for end in ends if end.isdigit()), None)


def wanted_back(server: Server) -> str:
    """Return the reason for which the operator wants this server's room back; empty: he does not."""
    return str(server.get("metadata", {}).get(RECLAIM, ""))


def _no_room(server: Server) -> str | None:
    """Return the fault of a server that was never made for lack of room; None otherwise."""
    fault = fault_of(server) if server.get("status") == "ERROR" else ""
    return fault if is_no_room(fault) else None


def fault_of(server: Server) -> str:
    """Return Nova's words about a server in ERROR."""
    return " ".join(str(server.get("fault", {}).get("message", "")).split())


def seconds(stamp: str) -> float:
    """Epoch seconds of a time such as 2026-11-21T22:00:00Z; 0 for anything else."""
    try:
        return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0


def describe(server: Server) -> str:
    """For people: the state, and what Nova is doing with it."""
    state, task = state_of(server).value, server.get(TASK)
    return f"{state}, Nova is busy with it ({task})" if task else state


def is_id(name: str) -> bool:
    """Return True if it looks like an id of OpenStack, and not like a name."""
    try:
        UUID(name)
    except ValueError:
        return False
    return True


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
