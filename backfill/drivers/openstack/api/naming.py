"""Finds the id of an image, a flavour or a network that people know by its name."""

from __future__ import annotations

from contextlib import suppress

from backfill.drivers.openstack.api.link import ApiLink
from backfill.drivers.openstack.api.states import is_id
from backfill.ports.errors import NotFoundError, RefusedError

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
    found = [entry for entry in listed if name in (entry["id"], entry["name"])]
    if kind == "network" and len(found) > 1:
        # An administrator sees those of all projects.
        own = link.project_id(subject)
        found = [entry for entry in found if entry.get("project_id") == own] or found
    if kind == "image" and found:
        # A new one of the same name takes over once it is uploaded, whatever comes of the old one.
        found.sort(key=lambda e: (e.get("status") == "active", str(e.get("created_at"))))
        found = found[-1:]
    if len(found) > 1:
        raise RefusedError(
            name,
            f"cloud {link.cloud} has {len(found)} {kind}s of this name",
            f"write the id of the one that is meant: {', '.join(str(e['id']) for e in found)}",
        )
    if found:
        return str(found[0]["id"])
    if is_id(name):
        with suppress(NotFoundError):
            link.get(service, f"/{kind}s/{name}", subject)
            return name
    raise RefusedError(name, f"cloud {link.cloud} has no {kind} of this name", _REMEDY[kind])


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
