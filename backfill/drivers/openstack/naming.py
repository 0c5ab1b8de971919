"""Finds the id of an image, a flavour or a network that people know by its name."""

from __future__ import annotations

from contextlib import suppress
from uuid import UUID

from backfill.drivers.openstack.link import Link
from backfill.ports import NotFoundError, RefusedError

_REMEDY = {
    "image": "upload it, or map instances.image to one that is there in openstack.images",
    "flavor": "correct openstack.flavours, or ask the cloud's operator for it",
    "network": "correct its name, or make the cluster's own: backfill cloud apply",
}


def id_of(link: Link, service: str, kind: str, name: str, subject: str) -> str:
    """The id of the one called `name`, or with that id; RefusedError if there is none."""
    # Lists come in pages, Glance's of 25; only Nova's flavours cannot be asked for by name.
    query = {} if service == "compute" else {"name": name}
    for entry in link.get(service, f"/{kind}s", subject, **query).body.get(f"{kind}s", []):
        if name in (entry["id"], entry["name"]):
            return str(entry["id"])
    if _is_id(name):
        with suppress(NotFoundError):
            link.get(service, f"/{kind}s/{name}", subject)
            return name
    raise RefusedError(name, f"cloud {link.cloud} has no {kind} of this name", _REMEDY[kind])


def _is_id(name: str) -> bool:
    try:
        UUID(name)
    except ValueError:
        return False
    return True
