"""What the driver does not do to servers, ports and volumes, on a cloud that lives in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from openstack import exceptions as sdk

from backfill.core.model.fleet import InstanceState
from backfill.drivers.openstack.api.board import Board
from backfill.drivers.openstack.api.link import Answer, ApiLink
from backfill.drivers.openstack.api.states import HOST, LAUNCHED, RESTORED, TASK, Server, metadata_of
from backfill.drivers.openstack.provider import OpenStackProvider
from backfill.drivers.openstack.settings import CloudPlace, Guest, OpenStackConfig, Patience, Shape
from backfill.ports.errors import (
    BusyError,
    DriverError,
    NotFoundError,
    RefusedError,
    UnreachableError,
    UnreadableError,
)
from tests.unit.test_openstack_making import SPEC

LIST = "/servers/detail"
VOLUMES = "os-extended-volumes:volumes_attached"
PORT: dict[str, Any] = {
    "id": "p1",
    "name": "backfill.c1.vn1",
    "project_id": "p1",
    "network_id": "n2",
    "device_id": "",
}
PLACES = {"hv1": CloudPlace("west", "c1"), "hv2": CloudPlace("west", "c2"), "other": CloudPlace("north")}
SCENES: dict[str, dict[str, Any]] = {
    "pause": {"status": "PAUSED"},
    "suspend": {"status": "SUSPENDED"},
    "unpause": {"status": "ACTIVE"},
}


def server(status: str = "ACTIVE", identity: str = "u1", **more: Any) -> Server:
    """One of ours, of an administrator's view."""
    return {
        "id": identity,
        "name": "vn1",
        "status": status,
        "created": "2026-11-21T22:00:00Z",
        "metadata": {**metadata_of(SPEC, "tiny@"), "backfill_host": "hv1"},
        HOST: "c1",
        TASK: None,
        **more,
    }


class NovaInMemory(ApiLink):
    """Servers, ports and volumes; what is asked of a server is done with the next look at it."""

    def __init__(self, *servers: Server, **volumes: str) -> None:
        super().__init__("west", "", Patience(tries=1), sleep=lambda wait_s: None)
        self.servers = {s["id"]: s for s in servers}
        self.ports = [dict(PORT)]
        self.volumes = volumes
        self.sent: list[str] = []
        self.after: list[dict[str, Any]] = []  # what becomes of the server, look by look
        self.broken: tuple[str, ...] = ()
        self.deletes = True

    def project_id(self, subject: str) -> str:
        return "p1"

    def get(self, service: str, path: str, subject: str, **query: str) -> Answer:
        if service in self.broken:
            raise UnreachableError(subject, f"{service} does not answer")
        if self.after:
            self.servers["u1"] |= self.after.pop(0)
        listed: dict[str, Callable[[], Any]] = {
            LIST: lambda: {"servers": [dict(s) for s in self.servers.values()]},
            "/servers": lambda: {"servers": []},
            "/ports": lambda: {"ports": [dict(p) for p in self.ports]},
            "/os-services": lambda: {"services": [{"host": h, "state": "up"} for h in ("c1", "c2")]},
            "/images": lambda: {"images": [{"id": "i1", "name": "node", "status": "active"}]},
            "/flavors": lambda: {"flavors": [{"id": "f1", "name": "tiny"}]},
            "/flavors/f1": lambda: {"flavor": {"vcpus": 1, "ram": 256}},
            "/networks": lambda: {"networks": [{"id": "n2", "name": "nodes", "project_id": "p1"}]},
            "/networks/n2": lambda: {"network": {"id": "n2", "port_security_enabled": False}},
        }
        if path in listed:
            return Answer(listed[path](), "")
        kind, _, identity = path.strip("/").partition("/")
        if kind == "servers" and identity in self.servers:
            return Answer({"server": dict(self.servers[identity])}, "")
        if kind == "volumes" and identity in self.volumes:
            return Answer({"volume": {"status": self.volumes[identity]}}, "")
        raise NotFoundError(subject, "there is no such thing")

    def post(self, service: str, path: str, subject: str, body: dict[str, Any]) -> Answer:
        self.sent += body
        return Answer({}, "")

    def put(self, service: str, path: str, subject: str, body: dict[str, Any]) -> Answer:
        self.sent.append(path.rpartition("/")[2])
        return Answer({}, "")

    def delete(self, service: str, path: str, subject: str) -> None:
        kind, identity = path.strip("/").split("/")
        self.sent.append(f"{kind} {identity}")
        if kind == "servers" and self.deletes:
            del self.servers[identity]
        if kind == "ports":
            self.ports = [p for p in self.ports if p["id"] != identity]
        if kind == "volumes":
            self.volumes.pop(identity)


def provider_on(link: NovaInMemory, **places: CloudPlace) -> OpenStackProvider:
    config = OpenStackConfig(
        "c1",
        places or PLACES,
        Shape(("tiny",), "nodes", images={"node": "node"}),
        Guest("", "", command=("false", "{address}")),
        patience=Patience(poll_s=0, act_s=0.2, full_s=0, settle_s=0),
    )
    return OpenStackProvider(config, lambda *given: link if given[0] == "west" else NovaInMemory())


# --- deletion ------------------------------------------------------------------------------------
def test_a_deletion_of_which_nothing_comes_is_told_and_takes_no_port() -> None:
    """It may be at work."""
    link = NovaInMemory(server())
    link.deletes = False
    with pytest.raises(UnreachableError, match=r"vn1: Nova was asked to delete it, and has not done so"):
        provider_on(link).delete("hv1", "vn1")
    assert link.ports != []


def test_the_port_goes_with_the_last_server_of_its_node() -> None:
    """Another one of it is on another host, and has that port."""
    link = NovaInMemory(server(), server(identity="u2", **{HOST: "c2"}))
    provider = provider_on(link)
    provider.delete("hv1", "vn1")
    assert (set(link.servers), len(link.ports)) == ({"u2"}, 1)
    provider.delete("hv2", "vn1")
    assert (set(link.servers), link.ports) == (set(), [])


def _with_volumes() -> Server:
    attached = {"boot": True, "data": False}
    return {**server(), VOLUMES: [{"id": i, "delete_on_termination": goes} for i, goes in attached.items()]}


def test_a_volume_that_nova_leaves_behind_goes_and_that_of_others_stays() -> None:
    link = NovaInMemory(_with_volumes(), boot="available", data="available")
    provider_on(link).delete("hv1", "vn1")
    assert link.volumes == {"data": "available"}


def test_no_server_goes_while_its_volume_would_be_forgotten() -> None:
    """Nova deletes it without Cinder, too."""
    link = NovaInMemory(_with_volumes(), boot="in-use", data="in-use")
    link.broken = ("block_storage",)
    with pytest.raises(UnreachableError, match="its volume would be left behind"):
        provider_on(link).delete("hv1", "vn1")
    assert (set(link.servers), link.sent) == ({"u1"}, [])


# --- creation ------------------------------------------------------------------------------------
def test_what_nobody_knows_is_not_cleared_away_for_a_new_one() -> None:
    """A call failed, and its guest may live on."""
    link = NovaInMemory(server("ERROR", **{LAUNCHED: "2026-11-21T22:00:05"}))
    with pytest.raises(UnreadableError, match="its guest may have survived"):
        provider_on(link, east=CloudPlace("west")).create(SPEC)
    assert (set(link.servers), link.sent) == ({"u1"}, [])


class Refusing(NovaInMemory):
    """Nova refuses the server, and says in the same moment to Neutron that it has the port."""

    taken = False

    def post(self, service: str, path: str, subject: str, body: dict[str, Any]) -> Answer:
        if self.taken:
            self.ports[0]["device_id"] = "u9"
        raise sdk.HttpException(message="Block Device Mapping is Invalid", http_status=400)


@pytest.mark.parametrize("taken", [True, False])
def test_the_port_of_a_refused_server_goes_unless_a_server_has_it(taken: bool) -> None:
    link = Refusing()
    link.taken = taken
    link.ports[0]["fixed_ips"] = [{"ip_address": SPEC.address.split("/")[0]}]
    with pytest.raises(DriverError, match="Block Device Mapping"):
        provider_on(link, east=CloudPlace("west")).create(SPEC)
    assert bool(link.ports) is taken


# --- stopping, waking, moving ------------------------------------------------------------------
def _asked(link: NovaInMemory, call: str, *more: str) -> DriverError:
    """How the call is refused; nothing is sent to the cloud for it."""
    with pytest.raises(DriverError) as found:
        getattr(provider_on(link), call)("hv1", "vn1", *more)
    assert link.sent == []
    return found.value


def test_a_paused_server_is_not_suspended() -> None:
    """Nova would let it run before, past the fence."""
    found = _asked(NovaInMemory(server("PAUSED")), "suspend")
    assert isinstance(found, RefusedError)
    assert "without letting it run first" in str(found)


@pytest.mark.parametrize("call", ["pause", "suspend"])
def test_nothing_is_asked_of_a_server_on_which_nova_is_at_work(call: str) -> None:
    found = _asked(NovaInMemory(server(**{TASK: "rebuilding"})), call)
    assert isinstance(found, BusyError)
    assert "Nova is busy with it (rebuilding)" in str(found)


@pytest.mark.parametrize("status", ["SHUTOFF", "SHELVED_OFFLOADED", "RESCUE", "ERROR"])
def test_what_has_no_memory_any_more_is_not_restored(status: str) -> None:
    """With that note it would count as paused, and its job as intact."""
    link = NovaInMemory(server(status))
    assert isinstance(_asked(link, "restore"), BusyError)
    assert RESTORED not in link.servers["u1"]["metadata"]


@pytest.mark.parametrize("status", ["PAUSED", "SUSPENDED", "SHUTOFF"])
def test_a_guest_that_stands_still_is_not_spoken_to(status: str) -> None:
    """Whoever has its address in the meantime would be taken for it."""
    provider = provider_on(NovaInMemory(server(status)))
    for call in (lambda: provider.wake("hv1", "vn1", 0.0), lambda: provider.job_processes("hv1", "vn1")):
        with pytest.raises(BusyError, match="its guest cannot answer"):
            call()


@pytest.mark.parametrize(("call", "what"), [("pause", "pause"), ("suspend", "suspend"), ("thaw", "unpause")])
def test_it_is_done_when_nova_has_nothing_left_to_do(call: str, what: str) -> None:
    """The new state may be shown before: its host is not free by then."""
    link = NovaInMemory(server("PAUSED" if call == "thaw" else "ACTIVE"))
    link.post = lambda *given: _begins(link, what)  # type: ignore[method-assign]
    getattr(provider_on(link), call)("hv1", "vn1")
    assert (link.sent, link.after, link.servers["u1"][TASK]) == ([what], [], None)


def _begins(link: NovaInMemory, what: str) -> Answer:
    link.sent.append(what)
    busy = {TASK: what}
    link.after = [busy, {**SCENES[what], **busy}, busy, {TASK: None}]
    return Answer({}, "")


def test_a_pause_that_ends_in_error_says_what_nova_says() -> None:
    link = NovaInMemory(server())
    broken = {"status": "ERROR", LAUNCHED: "2026", "fault": {"message": "libvirt went away"}}
    link.after = [{}, {}, {}, broken]
    with pytest.raises(BusyError, match="Nova failed to pause it: libvirt went away"):
        provider_on(link).pause("hv1", "vn1")
    assert link.sent == ["pause"]


def test_nothing_moves_where_nobody_sees_from_where_to_where() -> None:
    """To another cloud, to a pool, or for somebody who sees no compute hosts."""
    assert "are different clouds" in str(_asked(NovaInMemory(server()), "migrate", "other"))
    unseen = server()
    del unseen[HOST]
    assert "does not see on which compute host it is" in str(_asked(NovaInMemory(unseen), "migrate", "hv2"))


# --- reading -------------------------------------------------------------------------------------
class ReadMeanwhile(NovaInMemory):
    """While a list is on its way, somebody reads a server by itself."""

    board: Board

    def get(self, service: str, path: str, subject: str, **query: str) -> Answer:
        answer = super().get(service, path, subject, **query)
        if path == LIST:
            self.servers["u1"]["status"] = "PAUSED"
            self.board.refresh("u1", "vn1")
        return answer


def test_a_list_does_not_undo_what_was_read_while_it_was_made() -> None:
    link = ReadMeanwhile(server())
    link.board = Board(link, "c1", Patience())
    assert link.board.fresh()["u1"]["status"] == "PAUSED"
    assert provider_on(link).read("hv1", "vn1") is not None
    seen = provider_on(NovaInMemory(server("PAUSED"))).read("hv1", "vn1")
    assert seen is not None
    assert seen.state is InstanceState.PAUSED
