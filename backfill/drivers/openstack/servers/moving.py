"""Stopping, saving, waking and moving servers: ask once, then see it in the common list."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from backfill.core.model.fleet import InstanceState
from backfill.drivers.openstack.api.cloud import Cloud
from backfill.drivers.openstack.api.errors import FOREIGN, acted_is_unknown, status_of, translate
from backfill.drivers.openstack.api.states import (
    HOST,
    RESTORED,
    TASK,
    Server,
    describe,
    node_of,
    noted_size,
    state_of,
)
from backfill.ports.errors import BusyError, NotFoundError, RefusedError

_RUNNING, _PAUSED = InstanceState.RUNNING, InstanceState.PAUSED
_SUSPENDED, _OFF = InstanceState.SUSPENDED, InstanceState.OFF


def pause(cloud: Cloud, host: str, name: str) -> None:
    """Bring it from RUNNING to PAUSED, and see that."""
    server = cloud.need(host, name)
    if state_of(server) is not _PAUSED:
        _need(server, _RUNNING)
        _act(cloud, server, "pause", {"pause": None}, lambda s: s.get("status") == "PAUSED")


def thaw(cloud: Cloud, host: str, name: str, asked_s: float) -> None:
    """PAUSED to RUNNING; for one that was restored, this is when Nova really resumes it.

    `asked_s`: when the fence had just been asked, monotonic.
    """
    with cloud.changing(name):
        server = cloud.need(host, name)
        if state_of(server) is _RUNNING and not server.get(TASK):
            return
        _need(server, _PAUSED)
        if server["status"] == "PAUSED":
            _let_run(cloud, server, "unpause", asked_s)
            return
        _let_run(cloud, server, "resume", asked_s)
        cloud.metadata(server, RESTORED, None)


def suspend(cloud: Cloud, host: str, name: str) -> float:
    """Bring it from RUNNING to SUSPENDED. Refuse a paused one: Nova would have to let it run first.

    Returns its whole memory, MB: Nova does not tell how much of it was written.
    """
    with cloud.changing(name):
        server = cloud.need(host, name)
        if server["status"] == "SUSPENDED":
            if state_of(server) is _PAUSED:
                cloud.metadata(server, RESTORED, None)
            return 0.0
        if server["status"] == "PAUSED":
            raise RefusedError(
                name,
                "Nova cannot suspend a paused server without letting it run first",
                "leave it paused, or begin the ladder with suspend",
            )
        _need(server, _RUNNING)
        if RESTORED in server.get("metadata", {}):  # a thaw came to its end without this
            cloud.metadata(server, RESTORED, None)
        _act(cloud, server, "suspend", {"suspend": None}, lambda s: s["status"] == "SUSPENDED")
    return float(noted_size(server).memory_mb)


def restore(cloud: Cloud, host: str, name: str) -> None:
    """Note that it may be thawed. Nova's resume would let it run before the fence was asked."""
    with cloud.changing(name):
        server = cloud.need(host, name)
        if state_of(server) not in (_RUNNING, _PAUSED):
            _need(server, _SUSPENDED)
            cloud.metadata(server, RESTORED, "1")


def shelve(cloud: Cloud, host: str, name: str) -> None:
    """Off its host, disk kept, *memory lost*: to save quota, never in place of a suspend."""
    with cloud.changing(name):
        server = cloud.need(host, name)
        if not str(server["status"]).startswith("SHELVED"):
            _act(cloud, server, "shelve", {"shelve": None}, lambda s: str(s["status"]).startswith("SHELVED"))


def migrate(cloud: Cloud, host: str, name: str, target: str) -> None:
    """To another compute host: live while it runs or is paused, cold when it is off."""
    with cloud.changing(name):
        compute = cloud.config.places[target].compute
        arrived = cloud.find(target, name) if cloud.find(host, name) is None else None
        if arrived is not None:
            if arrived["status"] == "VERIFY_RESIZE":
                _confirm(cloud, arrived)
            return
        server = cloud.need(host, name)
        if host == target:
            return
        if not compute:
            raise RefusedError(
                name,
                f"{target} is a pool whose compute hosts are not seen: Nova chooses there",
                "only an administrator's credential moves servers",
            )
        if HOST not in server:
            raise RefusedError(
                name,
                "the credential does not see on which compute host it is",
                "only an administrator's credential moves servers",
            )
        if server["status"] == "SUSPENDED":
            raise RefusedError(name, "Nova cannot move a suspended server", "it goes back where it was")
        if state_of(server) is _OFF:
            _cold(cloud, server, compute)
            return
        _live(cloud, server, compute, target)


def cancel(cloud: Cloud, host: str, name: str) -> None:
    """Abort a live migration; it goes on where it was."""
    server = cloud.need(host, name)
    if server["status"] != "MIGRATING" and server.get(TASK) != "migrating":
        return
    path = f"/servers/{server['id']}/migrations"
    for move in cloud.link.get("compute", path, name).entries("migrations"):
        try:
            cloud.link.delete("compute", f"{path}/{move['id']}", name)
        except NotFoundError:
            continue  # it has ended meanwhile
        except RefusedError as error:  # 400: it is past the point at which it can be stopped
            raise BusyError(name, f"its move can no longer be stopped: {error.problem}") from error
    done, last = cloud.board.watch(
        str(server["id"]),
        lambda s: s is None or (s["status"] in ("ACTIVE", "PAUSED") and not s.get(TASK)),
        cloud.config.patience.act_s,
    )
    if not done:
        raise cloud.overdue(name, "stop moving", last)


def refused(name: str, host: str, target: str) -> RefusedError:
    """There is no way from one project to another."""
    return RefusedError(
        name, f"{host} and {target} are different clouds", "only compute hosts of one cloud can"
    )


def _check_arrival(cloud: Cloud, name: str, target: str) -> None:
    server = cloud.find(target, name)
    if server is None or cloud.place_of(server) != target:
        raise BusyError(
            name,
            f"Nova did not move it to {target}; it is where it was",
            f"openstack server migration list --server {name} may say why",
        )


def _live(cloud: Cloud, server: Server, compute: str, target: str) -> None:
    _need(server, _RUNNING, _PAUSED)
    name, before = node_of(server), server["status"]

    def is_back(seen: Server) -> bool:
        """As before, and where it was: not by a list alone, which may lag."""
        own = cloud.board.refresh(str(seen["id"]), name) if seen["status"] == before else None
        return own is not None and own["status"] == before and not own.get(TASK)

    body: dict[str, Any] = {"os-migrateLive": {"host": compute, "block_migration": "auto"}}
    _act(
        cloud,
        server,
        f"move to {target}",
        body,
        lambda s: s.get(HOST) == compute and s["status"] == before,
        is_back,
    )
    _check_arrival(cloud, name, target)


def _cold(cloud: Cloud, server: Server, compute: str) -> None:
    """Nova keeps the old one until the move is confirmed."""
    _act(
        cloud,
        server,
        f"move to {compute}",
        {"migrate": {"host": compute}},
        lambda s: s["status"] == "VERIFY_RESIZE",
    )
    _confirm(cloud, server)


def _confirm(cloud: Cloud, server: Server) -> None:
    _act(cloud, server, "confirm the move", {"confirmResize": None}, lambda s: s["status"] == "SHUTOFF")


def _is_active(server: Server) -> bool:
    return server.get("status") == "ACTIVE"


def _need(server: Server, *states: InstanceState) -> None:
    if server.get(TASK):
        raise BusyError(
            node_of(server),
            f"it is {describe(server)}",
            "if that does not end, the cloud's operator must reset its state",
        )
    if state_of(server) not in states:
        wanted = " or ".join(states)
        raise BusyError(node_of(server), f"it is {describe(server)}, not {wanted}")


def _let_run(cloud: Cloud, server: Server, what: str, asked_s: float) -> None:
    """Send once what lets its CPUs go on, and only while the fence's answer is fresh.

    Its jobs may be given back to Slurm meanwhile, or their patience may end: whoever calls anew asks
    the fence anew. BusyError then, and where Nova does not seem to have heard it.
    """
    name = node_of(server)
    late_s = time.monotonic() - asked_s
    if late_s > cloud.config.patience.fence_s:
        raise BusyError(
            name,
            f"cloud {cloud.link.cloud} took {late_s:.0f} s to report its state, and its jobs may have been "
            "requeued meanwhile",
            "the daemon asks Slurm again; if this persists, find out why the cloud is slow",
        )
    _act(cloud, server, what, {what: None}, _is_active, once=True)


def _act(
    cloud: Cloud,
    server: Server,
    what: str,
    body: dict[str, Any],
    came: Callable[[Server], bool],
    failed: Callable[[Server], bool] = lambda server: False,
    *,
    once: bool = False,
) -> None:
    """Ask, then watch the common list until it came; asked again only when nothing has begun.

    `failed`: it will not come any more, which the caller tells. `once`: BusyError in place of asking again.
    """
    server_id, name = str(server["id"]), node_of(server)

    def settled(seen: Server | None) -> bool:
        if seen is None or seen["status"] == "ERROR":
            return True
        return not seen.get(TASK) and (came(seen) or failed(seen))

    _ask(cloud, server, what, body, came, once=once)
    done, last = cloud.board.watch(server_id, settled, cloud.config.patience.act_s)
    if last is not None and last["status"] == "ERROR":
        fault = last.get("fault", {}).get("message", "no reason is given")
        raise BusyError(name, f"Nova failed to {what} it: {fault}")
    if not done or last is None:
        raise cloud.overdue(name, what, last)


def _ask(
    cloud: Cloud,
    server: Server,
    what: str,
    body: dict[str, Any],
    came: Callable[[Server], bool],
    *,
    once: bool,
) -> None:
    """Send the action until it was heard, as far as a look can tell; only one time if `once`."""
    server_id, name, tries = str(server["id"]), node_of(server), cloud.config.patience.tries
    for attempt in range(tries):
        if _asked(cloud, server_id, name, body) or (attempt == tries - 1 and not once):
            return
        cloud.link.pause_before(attempt)
        seen = cloud.board.refresh(server_id, name)
        if seen is None or seen.get(TASK) or came(seen):
            return  # it was heard after all
        if once:
            raise BusyError(
                name, f"Nova was asked to {what} it, and shows no sign of having received the request"
            )


def _asked(cloud: Cloud, server_id: str, name: str, body: dict[str, Any]) -> bool:
    """Send the action; False when it may not have been heard."""
    try:
        cloud.link.post("compute", f"/servers/{server_id}/action", name, body)
    except FOREIGN as error:
        if status_of(error) == 429 or acted_is_unknown(error):
            return False
        raise translate(error, name, cloud.link.cloud) from error
    return True
