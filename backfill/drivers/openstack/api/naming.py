"""Finds the id of an image, a flavour or a network that people know by its name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from backfill.drivers.openstack.api.link import ApiLink, Body
from backfill.drivers.openstack.api.states import is_id
from backfill.ports.errors import NotFoundError, RefusedError

_BY_ID = "write the id of the one that is meant"
_REMEDY = {
    "image": "upload it, or map instances.image to one that is there in openstack.images",
    "flavor": "correct openstack.flavours, or ask the cloud's operator for it",
    "network": "correct its name, or make the cluster's own: backfill cloud apply",
}


def id_of(link: ApiLink, service: str, kind: str, name: str, subject: str) -> str:
    """Find the id of the one called `name`, or with that id; RefusedError if there is none."""
    # Lists come in pages, Glance's of 25; only Nova's flavours cannot be asked for by name.
    query = {} if service == "compute" else {"name": name}
    listed = link.get(service, f"/{kind}s", subject, **query).entries(f"{kind}s")
    if any(entry["id"] == name for entry in listed):
        return name
    every = [entry for entry in listed if entry["name"] == name]
    found = _FOR_US[kind](link, every, subject) if every else []
    if len(found) > 1:
        raise RefusedError(
            name, f"cloud {link.cloud} has {len(found)} {kind}s of this name", f"{_BY_ID}: {_ids(found)}"
        )
    if found:
        return str(found[0]["id"])
    if is_id(name):
        with suppress(NotFoundError):
            link.get(service, f"/{kind}s/{name}", subject)
            return name
    none = f"cloud {link.cloud} has no {kind} of this name"
    if every:
        raise RefusedError(name, f"{none} that is ours, public or shared with us", f"{_BY_ID}: {_ids(every)}")
    raise RefusedError(name, none, _REMEDY[kind])


def _ids(found: list[Body]) -> str:
    return ", ".join(str(entry["id"]) for entry in found)


def _every_one(link: ApiLink, found: list[Body], subject: str) -> list[Body]:
    return found


def _networks_for_us(link: ApiLink, found: list[Body], subject: str) -> list[Body]:
    """Return the project's own, or else those that it may use: an administrator sees all projects'."""
    if len(found) == 1 and found[0].get("shared", True):
        return found
    own = link.project_id(subject)
    ours = [entry for entry in found if entry.get("project_id") == own]
    return ours or [e for e in found if e.get("shared", True) or e.get("router:external")]


def _images_for_us(link: ApiLink, found: list[Body], subject: str) -> list[Body]:
    """Return the newest whole one of the project's own, or else of those that are public or shared with it.

    An administrator sees those of all projects, whose names are up to anybody who uploads one.
    """
    if any("owner" in entry for entry in found):
        own = link.project_id(subject)
        ours = [entry for entry in found if entry.get("owner") == own]
        public = [entry for entry in found if entry.get("visibility") == "public"]
        # A new one takes over once it is uploaded.
        whole = next((group for group in (ours, public) if any(map(_is_whole, group))), None)
        found = whole or _shared(link, found, own, subject) or ours or public
    return sorted(found, key=lambda e: (_is_whole(e), str(e.get("created_at"))))[-1:]


def _is_whole(image: Body) -> bool:
    return image.get("status") == "active"


def _shared(link: ApiLink, found: list[Body], own: str, subject: str) -> list[Body]:
    """Return those that others have shared with the project, and somebody has accepted for it."""
    accepted = []
    for image in found:
        if image.get("visibility") == "shared" and image.get("owner") != own:
            with suppress(NotFoundError):
                member = link.get("image", f"/images/{image['id']}/members/{own}", subject).body
                if member.get("status") == "accepted":
                    accepted.append(image)
    return accepted


_FOR_US: dict[str, Callable[[ApiLink, list[Body], str], list[Body]]] = {
    "image": _images_for_us,
    "network": _networks_for_us,
    "flavor": _every_one,
}


def size_of_flavour(link: ApiLink, flavour: str, subject: str) -> str:
    """CPUs and MB of memory of the flavour with this id, as two words."""
    seen = link.get("compute", f"/flavors/{flavour}", subject).body["flavor"]
    return f"{seen['vcpus']} {seen['ram']}"


def own_groups(link: ApiLink, names: tuple[str, ...], network: str, subject: str) -> list[str]:
    """Find the ids of the project's own security groups of these names for ports in a network.

    None if there are none, or where ports have none: Neutron refuses a port with a group in a
    network without port security.
    """
    seen = link.get("network", f"/networks/{network}", subject).body["network"]
    if seen.get("port_security_enabled") is False:
        return []
    query = {"project_id": link.project_id(subject)}
    try:
        listed = link.get("network", "/security-groups", subject, **query).entries("security_groups")
    except NotFoundError:  # a network service without this extension
        return []
    return [str(group["id"]) for group in listed if group["name"] in names]
