"""Translates Nova's servers into our instances; pure. A server is the API's own JSON object."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
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
# Without these nobody knows which instance it is, and what it takes; `recalled` keeps these and more.
_NEEDED = ("node", "generation", "cpus", "memory_mb", "address")
_KEPT = (*_NEEDED, "cluster", "host", "choice")
_HOST_NOTE = f"{_MARK}host"
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
    """Return True if the server belongs to this cluster, by our note or our tag, and exists."""
    marked = mark(server, "cluster") == cluster or cluster_tag(cluster) in server.get("tags", ())
    return marked and server.get("status") not in GONE


def node_of(server: Server) -> str:
    """Return whose server it is, by our note or the tag that it alone has.

    Its name is no more than what people see: anybody in the project may change it. It counts only
    where nothing else is left.
    """
    return _who(server)[1] or str(server["name"])


def generation_of(server: Server) -> int | None:
    """Return of which life of its node it is; None where neither our note nor the tag tells."""
    return _who(server)[2]


def foremost(servers: Iterable[Server]) -> list[Server]:
    """Sort servers by which one counts where a node has several: the latest life that may have work.

    There are two for a moment after a creation whose answer was lost; and one of an earlier life comes
    back where its deletion is taken back. Among equals a working one is first, then the oldest.
    """

    def standing(server: Server) -> tuple[bool, int, bool]:
        over, life = state_of(server) is InstanceState.CRASHED, generation_of(server)
        return not over, -1 if life is None else life, server.get("status") != "ERROR"

    oldest_first = sorted(servers, key=lambda s: (str(s.get("created")), str(s["id"])))
    return sorted(oldest_first, key=standing, reverse=True)


def recalled(
    server: Server, known: Server | None, places: Collection[str] = ()
) -> tuple[Server, tuple[str, ...]]:
    """Return it with what it had noted in `known` of who it is and now lacks, and the lost notes' keys.

    `places`: the hosts of its cloud. Another one in its note counts as none.
    """
    if known is None or "metadata" not in server:
        return server, ()
    now, before = server["metadata"], known.get("metadata", {})
    keys = (f"{_MARK}{key}" for key in _KEPT)
    lost = {key: before[key] for key in keys if before.get(key) and not now.get(key)}
    if before.get(_HOST_NOTE) in places and now.get(_HOST_NOTE) not in places:
        lost[_HOST_NOTE] = before[_HOST_NOTE]
    return ({**server, "metadata": {**now, **lost}} if lost else server), tuple(lost)


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
    if missing := _missing(server):
        properties = " ".join(f"--property {key}={key.removeprefix(_MARK).upper()}" for key in missing)
        return (
            f"its metadata {', '.join(missing)} is missing or damaged, and without it nothing can safely be "
            f"done to it; restore it with `openstack server set {properties} {server.get('id')}`"
        )
    if odd := _contradiction(server):
        return odd
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
    (cluster, node, generation), problem = _who(server), _problem_of(server)
    return Instance(
        name=node_of(server),
        host=host,
        state=InstanceState.UNKNOWN if problem else state_of(server),
        tag=Tag(cluster, node, generation or 0),
        resources=noted_size(server),
        boot_s=seconds(str(server.get("created", ""))),
        wanted_back=wanted_back(server),
        no_room=_no_room(server) or "",
        problem=problem or "",
    )


def instance_among(servers: Sequence[Server], host: str) -> Instance:
    """Our picture of a node's servers, the foremost first: of that one, and that another life is there."""
    first, *others = servers
    seen, life = instance_of(first, host), generation_of(first)
    left = [
        str(s["id"]) for s in others if generation_of(s) != life and state_of(s) is not InstanceState.CRASHED
    ]
    if not left or seen.problem:
        return seen
    ids = " ".join(left)
    return replace(
        seen,
        problem=f"another life of it is in the cloud as well, and may run; end it with "
        f"`openstack server delete {ids}`",
    )


def noted_size(server: Server) -> Resources:
    """Return the size that was asked for, as we noted it; nothing where that is lost."""
    return Resources(_number(mark(server, "cpus")), _number(mark(server, "memory_mb")))


def _missing(server: Server) -> list[str]:
    """Return the keys of the notes without which nothing may be done to it, and that no tag replaces."""
    _, node, generation = _who(server)
    numbers = noted_size(server)
    there = (node, generation is not None, numbers.cpus, numbers.memory_mb, mark(server, "address"))
    return [f"{_MARK}{key}" for key, found in zip(_NEEDED, there, strict=True) if not found]


def _who(server: Server) -> tuple[str, str, int | None]:
    """Return its cluster, node and generation, each by the tag that it alone has, or by our note.

    Empty, or None: there is neither.
    """
    cluster, node, said = (mark(server, key) for key in ("cluster", "node", "generation"))
    tagged = next(_in_tags(server, cluster), None)
    if tagged is None:
        return cluster, node, int(said) if said.isdecimal() else None
    return cluster or tagged.cluster, tagged.node, tagged.generation


def _contradiction(server: Server) -> str:
    """Say that its notes tell of another life than its tag: somebody has changed one of them."""
    tagged = next(_in_tags(server, mark(server, "cluster")), None)
    if tagged is None:
        return ""
    told = {"cluster": tagged.cluster, "node": tagged.node, "generation": str(tagged.generation)}
    noted = {key: mark(server, key) for key in told}
    odd = [key for key in told if noted[key] and noted[key] != told[key]]
    if not noted["generation"].isdecimal():
        odd = [key for key in odd if key != "generation"]  # it says nothing
    if not odd:
        return ""
    properties = " ".join(f"--property {_MARK}{key}={value}" for key, value in told.items())
    return (
        f"its tag {unique_tag(tagged)} contradicts its metadata "
        f"{', '.join(f'{_MARK}{key}={noted[key]}' for key in odd)}; if the tag is right, say so with "
        f"`openstack server set {properties} {server.get('id')}`"
    )


def _in_tags(server: Server, cluster: str) -> Iterator[Tag]:
    """Take unique tags apart; where they begin with the tag of a cluster tells where its name ends."""
    tags = [str(tag) for tag in server.get("tags", ())]
    start = cluster_tag("")
    for whose in (*tags, cluster_tag(cluster)):
        for tag in tags:
            node, _, number = tag.removeprefix(f"{whose}.").rpartition(".")
            if whose.startswith(start) and tag.startswith(f"{whose}.") and node and number.isdecimal():
                yield Tag(whose.removeprefix(start), node, int(number))


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
    return int(text) if text.isdecimal() else 0
