"""The volume that a server boots from: room for it, and that it goes when its server goes."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

from backfill.drivers.openstack.api.link import ApiLink
from backfill.drivers.openstack.api.states import Server, node_of
from backfill.drivers.openstack.settings import OpenStackConfig
from backfill.ports.errors import BusyError, NoCapacityError, NotFoundError, RefusedError, UnreachableError

_SERVICE = "block_storage"
_ATTACHED = "os-extended-volumes:volumes_attached"
_REMEDY = "free something there, or have the quota of Cinder raised"
# No attachment is left and nothing is under way: a deletion is taken.
_FREE = frozenset({"available", "error", "error_deleting"})


def check(link: ApiLink, volume_gb: int, subject: str) -> None:
    """Say before anything is made why a server could not boot from a new volume; 0 GB: none is.

    Nova would take the request and let the server end in ERROR.
    """
    if not volume_gb:
        return
    if not link.offers("block-storage", subject):
        raise RefusedError(
            subject,
            f"cloud {link.cloud} has no block storage (Cinder) to boot from",
            "set openstack.volume_gb to 0, so that it boots from the image",
        )
    limits = _limits(link, subject)
    for used, most, wanted, what in (
        ("totalVolumesUsed", "maxTotalVolumes", 1, "volumes"),
        ("totalGigabytesUsed", "maxTotalVolumeGigabytes", volume_gb, "GB of volumes"),
    ):
        if 0 <= limits[most] < limits[used] + wanted:
            raise NoCapacityError(
                subject,
                f"cloud {link.cloud} has no quota left for a volume of {volume_gb} GB: "
                f"{limits[used]} of {limits[most]} {what} are in use",
                _REMEDY,
            )


def slots(link: ApiLink, volume_gb: int) -> int:
    """Return the number of further volumes of this size that Cinder's quota allows; -1: no limit."""
    limits = _limits(link, "quota")
    left = []
    if limits["maxTotalVolumes"] >= 0:
        left.append(limits["maxTotalVolumes"] - limits["totalVolumesUsed"])
    if limits["maxTotalVolumeGigabytes"] >= 0:
        gigabytes = limits["maxTotalVolumeGigabytes"] - limits["totalGigabytesUsed"]
        left.append(gigabytes // volume_gb)
    return max(0, min(left)) if left else -1


def _limits(link: ApiLink, subject: str) -> dict[str, int]:
    body: dict[str, Any] = link.get(_SERVICE, "/limits", subject).body["limits"]["absolute"]
    return {key: int(value) for key, value in body.items()}


def going_with(link: ApiLink, server: Server) -> list[str]:
    """Ids of the volumes that are to go with a server, as Nova lists them.

    UnreachableError while Cinder does not answer: Nova would delete the server all the same, and
    its volume would be left with nothing that tells whose it is.
    """
    ids = [str(v["id"]) for v in server.get(_ATTACHED, []) if v.get("delete_on_termination")]
    for volume_id in ids:
        try:
            _status(link, volume_id, node_of(server))
        except UnreachableError as error:
            raise UnreachableError(
                node_of(server),
                f"its volume would be left behind: {error.problem}",
                "it is deleted once Cinder answers again",
            ) from error
    return ids


def see_gone(link: ApiLink, ids: list[str], subject: str, config: OpenStackConfig) -> None:
    """Return when Cinder deletes all of them; what Nova has left behind is deleted here."""
    deadline_s = time.monotonic() + config.patience.act_s
    for volume_id in ids:
        attempt = 0
        while (status := _status(link, volume_id, subject)) not in ("", "deleting"):
            if time.monotonic() > deadline_s:
                raise BusyError(
                    subject,
                    f"its volume {volume_id} is left behind, it is {status}",
                    f"openstack volume delete {volume_id}, or ask the cloud's operator",
                )
            if status in _FREE:
                with suppress(NotFoundError):
                    link.delete(_SERVICE, f"/volumes/{volume_id}", subject)
            link.pause_before(attempt)
            attempt += 1


def _status(link: ApiLink, volume_id: str, subject: str) -> str:
    """Cinder's word for its state, empty when it is gone."""
    try:
        answer = link.get(_SERVICE, f"/volumes/{volume_id}", subject)
    except NotFoundError:
        return ""
    return str(answer.body["volume"]["status"])
