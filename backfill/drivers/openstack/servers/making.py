"""Making and removing a server with its port; nothing is made twice, whatever gets lost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from backfill.core.model.fleet import CloneMethod, InstanceSpec, InstanceState
from backfill.drivers.openstack.api.cloud import Choice, Cloud, text_of
from backfill.drivers.openstack.api.errors import FOREIGN, acted_is_unknown, translate
from backfill.drivers.openstack.api.shortage import is_no_room, is_no_zone, is_quota
from backfill.drivers.openstack.api.states import (
    AWAITS_KEY,
    GONE,
    TASK,
    Server,
    cluster_tag,
    generation_of,
    instance_of,
    is_ours,
    metadata_of,
    node_of,
    unique_tag,
)
from backfill.drivers.openstack.guest.handover import read_key
from backfill.drivers.openstack.guest.identity import user_data
from backfill.drivers.openstack.servers import network_ports, volumes
from backfill.ports.errors import (
    AlreadyThereError,
    BadOutputError,
    DriverError,
    NoCapacityError,
    NotFoundError,
    RefusedError,
    UnreachableError,
    UnreadableError,
)

_GROUP_VERSIONED = "policy"  # one policy, not a list, since microversion 2.64


def create(cloud: Cloud, spec: InstanceSpec) -> None:
    """One server for one request. What is there already, by name, decides what is done."""
    if spec.tag.cluster != cloud.config.cluster:
        raise RefusedError(spec.name, f"its tag names cluster '{spec.tag.cluster}', not ours")
    if spec.method is CloneMethod.INSTANT:
        raise RefusedError(
            spec.name, "Nova makes no clones of running servers", "choose another method in the policy file"
        )
    with cloud.changing(spec.name):
        if _is_there(cloud, spec):
            return
        if cloud.config.guest.munge_key:
            read_key(cloud.config.guest)
        volumes.check(cloud.link, cloud.config.shape.volume_gb, spec.name)
        since_s = time.monotonic()
        image_id = cloud.id_of("image", "image", _image(cloud, spec), spec.name)
        network_ports.network_of(cloud, spec)
        flavours = cloud.fitting(spec.flavour.resources, spec.name)
        choice = cloud.backoff.pick(spec.name, flavours, time.monotonic())
        with cloud.looked_up(spec.name, since_s):
            made = _make(cloud, spec, choice, image_id)
        cloud.board.refresh(made, spec.name)


def _make(cloud: Cloud, spec: InstanceSpec, choice: Choice, image_id: str) -> str:
    """Make the port, then the server; return its id. What is refused leaves no port."""
    body = _body(cloud, spec, choice, image_id)
    # A port is given to one server only: even two creations make no second working server.
    body["server"]["networks"] = [{"port": network_ports.ensure(cloud, spec)}]
    try:
        return _post(cloud, spec, body)
    except UnreachableError:
        raise  # there may be a server, or there will be one soon: it keeps its port
    except DriverError as error:
        if isinstance(error, NoCapacityError):
            _learn(cloud, choice, error.problem)
        with suppress(DriverError):  # why there is no server is worth more
            network_ports.remove_unused(cloud, spec.name)
        raise


def _image(cloud: Cloud, spec: InstanceSpec) -> str:
    """Return Glance's name for the image: never one that a job has made up."""
    images = cloud.config.shape.images
    if spec.image not in images:
        known = ", ".join(images) or "none"
        raise RefusedError(spec.name, f"there is no image {spec.image}", f"openstack.images has: {known}")
    return images[spec.image]


def _learn(cloud: Cloud, choice: Choice, problem: str) -> None:
    """Back off from a choice that was refused for lack of room; a quota concerns all zones."""
    if is_no_zone(problem):
        cloud.backoff.back_off_zone(choice[1], problem, time.monotonic())
    elif not is_quota(problem):
        cloud.backoff.back_off(choice, problem, time.monotonic())


def _is_there(cloud: Cloud, spec: InstanceSpec) -> bool:
    """Return True if it exists; the remains of one that ended are cleared away."""
    for server in by_name(cloud, spec.name):
        if not is_ours(server, cloud.config.cluster):
            raise AlreadyThereError(
                spec.name,
                f"cloud {cloud.link.cloud} has a server of this name that is not ours",
                "delete or rename it, or choose other names in instances.names",
            )
        seen = instance_of(server, cloud.place_of(server))
        if seen.state is InstanceState.UNKNOWN:
            raise UnreadableError(spec.name, seen.problem)
        if seen.state in (InstanceState.OFF, InstanceState.CRASHED):
            _remove(cloud, server)
            continue
        if seen.tag != spec.tag:
            raise AlreadyThereError(
                spec.name,
                f"generation {seen.tag.generation} of it is {seen.state} on {seen.host}",
                "delete that one first",
            )
        cloud.board.refresh(str(server["id"]), spec.name)
        return True
    return False


def by_name(cloud: Cloud, name: str) -> list[Server]:
    """Every server of ours of this node, and others' of exactly its name, the oldest first."""
    answer = cloud.link.get("compute", "/servers/detail", name, name=f"^{name}$")
    every, cluster = cloud.board.fresh(), cloud.config.cluster
    found = [
        s
        for s in answer.entries("servers")
        if s.get("status") not in GONE
        and str(s["id"]) not in every
        # One of ours may have been given the name of another one; databases may ignore case.
        and (node_of(s) if is_ours(s, cluster) else s["name"]) == name
    ]
    on_board = [s for s in every.values() if node_of(s) == name]
    return sorted([*found, *on_board], key=lambda s: (str(s.get("created")), str(s["id"])))


def _body(cloud: Cloud, spec: InstanceSpec, choice: Choice, image_id: str) -> dict[str, Any]:
    shape, (flavour, zone) = cloud.config.shape, choice
    metadata = metadata_of(spec, text_of(choice))
    if cloud.config.guest.munge_key:
        metadata[AWAITS_KEY] = "1"
    server: dict[str, Any] = {
        "name": spec.name,
        "flavorRef": cloud.id_of("compute", "flavor", flavour, spec.name),
        "metadata": metadata,
        "tags": [cluster_tag(spec.tag.cluster), unique_tag(spec.tag)],
        "user_data": user_data(spec, cloud.config.guest),
        "config_drive": shape.config_drive,
        "min_count": 1,
        "max_count": 1,
    }
    if shape.volume_gb:
        server["block_device_mapping_v2"] = [
            {
                "boot_index": 0,
                "uuid": image_id,
                "source_type": "image",
                "destination_type": "volume",
                "volume_size": shape.volume_gb,
                "delete_on_termination": True,
            }
        ]
    else:
        server["imageRef"] = image_id
    if shape.key_pair:
        server["key_name"] = shape.key_pair
    if zone:
        server["availability_zone"] = zone
    compute = cloud.config.places[spec.host].compute
    if compute:
        server["host"] = compute
    body: dict[str, Any] = {"server": server}
    if shape.group_policy:
        body["os:scheduler_hints"] = {"group": _group(cloud, spec.name)}
    return body


def _group(cloud: Cloud, subject: str) -> str:
    """Return the server group that spreads our servers; make it when there is none."""
    name, policy = cluster_tag(cloud.config.cluster), cloud.config.shape.group_policy
    with cloud.grouping:
        listed = cloud.link.get("compute", "/os-server-groups", subject).entries("server_groups")
        for group in listed:
            if group["name"] == name and group[_GROUP_VERSIONED] == policy:
                return str(group["id"])
            if group["name"] == name:
                raise RefusedError(
                    subject,
                    f"server group {name} in cloud {cloud.link.cloud} has policy "
                    f"{group[_GROUP_VERSIONED]}, not {policy}, and Nova changes none",
                    "delete the group once its servers are gone, or set openstack.spread back",
                )
        body = {"server_group": {"name": name, _GROUP_VERSIONED: policy}}
        try:
            answer = cloud.link.post("compute", "/os-server-groups", subject, body)
        except FOREIGN as error:
            raise translate(error, subject, cloud.link.cloud) from error
        return str(answer.body["server_group"]["id"])


def _post(cloud: Cloud, spec: InstanceSpec, body: dict[str, Any]) -> str:
    """Send the creation once; when its outcome is unknown, look for the server by its tag.

    UnreachableError, and nothing else, while there may be a server.
    """
    try:
        answer = cloud.link.post("compute", "/servers", spec.name, body)
        made = answer.body.get("server", {}).get("id")
        if made:
            return str(made)
        problem: DriverError = BadOutputError(spec.name, "Nova's answer names no server")
    except FOREIGN as error:
        problem = translate(error, spec.name, cloud.link.cloud)
        if not acted_is_unknown(error):
            if is_no_room(problem.problem) and not isinstance(problem, NoCapacityError):
                raise NoCapacityError(spec.name, problem.problem, problem.remedy) from error
            raise problem from error
    except DriverError as error:
        problem = error
    why = problem.problem
    try:
        found = _look_for(cloud, spec)
    except DriverError as error:
        found, why = None, f"{why}; nor can it be looked for: {error.problem}"
    if found is None:
        raise UnreachableError(
            spec.name,
            f"it is unknown whether Nova has made it ({why})",
            "it is looked for by its tag before it is asked for again",
        ) from problem
    return found


def _look_for(cloud: Cloud, spec: InstanceSpec) -> str | None:
    """Look for the server with our unique tag for as long as a creation may take to show."""
    deadline_s = time.monotonic() + cloud.config.patience.settle_s
    attempt = 0
    while True:
        answer = cloud.link.get("compute", "/servers", spec.name, tags=unique_tag(spec.tag))
        found = answer.entries("servers")
        if found:
            return str(found[0]["id"])
        if time.monotonic() > deadline_s:
            return None
        cloud.link.pause_before(attempt)
        attempt += 1


# --- the end -----------------------------------------------------------------------------------
def delete(cloud: Cloud, host: str, name: str, generation: int | None = None) -> None:
    """Remove every server of ours of this life of the node from `host`, and with the last its port."""
    with cloud.changing(name):
        for server in _meant(cloud.servers_on(host, name), generation):
            _remove(cloud, server)
        # One on another host of this cloud keeps its port.
        if not cloud.board.named(name):
            network_ports.remove(cloud, name)


def _meant(servers: Sequence[Server], generation: int | None) -> list[Server]:
    """Return those of a life; None: all. One whose life cannot be told is meant where it is alone."""
    if generation is None:
        return list(servers)
    lives = {generation, None} if len(servers) == 1 else {generation}
    return [server for server in servers if generation_of(server) in lives]


def _remove(cloud: Cloud, server: Server) -> None:
    """Delete one server and see it gone; one on which Nova hangs is deleted by force."""
    server_id, name = str(server["id"]), node_of(server)
    cloud.remember_given_back(server)
    going = volumes.going_with(cloud.link, server)
    try:
        if server.get(TASK) == "deleting":
            _force_delete(cloud, server_id, name)
        else:
            cloud.link.delete("compute", f"/servers/{server_id}", name)
    except NotFoundError:
        cloud.board.refresh(server_id, name)
        volumes.see_gone(cloud.link, going, name, cloud.config)
        return
    gone, last = cloud.board.watch(server_id, lambda s: s is None, cloud.config.patience.act_s)
    if not gone:
        raise cloud.overdue(name, "delete", last)
    volumes.see_gone(cloud.link, going, name, cloud.config)


def _force_delete(cloud: Cloud, server_id: str, name: str) -> None:
    try:
        cloud.link.post("compute", f"/servers/{server_id}/action", name, {"forceDelete": None})
    except FOREIGN as error:
        problem = translate(error, name, cloud.link.cloud)
        if isinstance(problem, NotFoundError):
            raise problem from error
        # Not allowed to everybody: then the ordinary deletion is asked for once more.
        cloud.link.delete("compute", f"/servers/{server_id}", name)
