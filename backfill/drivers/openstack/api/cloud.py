"""One cloud as the driver uses it: its link, its board, and what it has learnt about it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from backfill.core.model.quantities import NOTHING, Resources
from backfill.drivers.openstack.api import naming
from backfill.drivers.openstack.api.board import Board
from backfill.drivers.openstack.api.link import ApiLink
from backfill.drivers.openstack.api.shortage import is_no_room
from backfill.drivers.openstack.api.states import (
    RECLAIM,
    Server,
    appliance_name,
    describe,
    fault_of,
    foremost,
    guard_name,
    host_of,
    instance_of,
    mark,
    node_of,
)
from backfill.drivers.openstack.settings import OpenStackConfig
from backfill.ports.errors import BusyError, NoCapacityError, NotFoundError, RefusedError, UnreachableError

_log = logging.getLogger(__name__)

Choice = tuple[str, str]  # flavour, zone


class Cloud:
    """Everything behind one entry of clouds.yaml. `computes`: Nova's host name -> ours."""

    def __init__(self, config: OpenStackConfig, link: ApiLink, computes: dict[str, str]) -> None:
        self.config, self.link, self.computes = config, link, computes
        choices = tuple((f, z) for z in config.shape.zones for f in config.shape.flavours)
        self.backoff = CapacityBackoff(choices, config.patience.bench_s)
        self.places = [host for host, place in config.places.items() if place.cloud == link.cloud]
        self.board = Board(link, config.cluster, config.patience, self._notice, self.places)
        self._ids: dict[tuple[str, str], tuple[float, str]] = {}  # until when, id
        self._anew: set[str] = set()  # who was refused with older ones, and has not tried again
        self._changing: set[str] = set()
        self._given_back: dict[str, tuple[float, Resources]] = {}  # until when, how much, by server
        self._lock = threading.Lock()
        self.grouping = threading.Lock()  # so that the server group is made once

    # --- finding -------------------------------------------------------------------------------

    def find(self, host: str, name: str) -> Server | None:
        """Our server of this name on this host, fresh; None when the host does not have it."""
        found = self.servers_on(host, name)
        return found[0] if found else None

    def servers_on(self, host: str, name: str) -> list[Server]:
        """All our servers of this name on this host, fresh, the one that counts first."""
        return foremost(s for s in self.board.named(name) if self.place_of(s) == host)

    def need(self, host: str, name: str) -> Server:
        """Find a server like `find`; NotFoundError when it is not there."""
        server = self.find(host, name)
        if server is None:
            raise NotFoundError(name, f"{host} has no such instance of ours")
        return server

    def place_of(self, server: Server) -> str:
        """Return the host of ours that it is on; where no note tells, the only one that this cloud is."""
        return host_of(server, self.computes) or (self.places[0] if len(self.places) == 1 else "")

    def id_of(self, service: str, kind: str, name: str, subject: str) -> str:
        """Find the id of an image, flavour, network …, by name or id; RefusedError if there is none."""
        return self._remembered((kind, name), lambda: naming.id_of(self.link, service, kind, name, subject))

    def groups_of_ports(self, network: str, subject: str) -> list[str]:
        """Return the security groups of the whole cluster for ports in this network."""
        names = (appliance_name(self.config.cluster), guard_name(self.config.cluster))
        found = self._remembered(
            ("security_groups", network),
            lambda: " ".join(naming.own_groups(self.link, names, network, subject)),
        )
        return found.split()

    def fitting(self, asked: Resources, subject: str) -> frozenset[str]:
        """Return the flavours of ours that are large enough for that; RefusedError if none is.

        One that the cloud does not have counts among them: its turn comes when all before have no room,
        and only then is it missed.
        """
        sizes: dict[str, Resources] = {}
        for name in self.config.shape.flavours:
            with suppress(RefusedError):
                sizes[name] = self.size_of(name, subject)
        every = self.config.shape.flavours
        found = frozenset(name for name in every if name not in sizes or asked.fits(sizes[name]))
        if not found:
            told = ", ".join(f"{name} ({size})" for name, size in sizes.items())
            raise RefusedError(
                subject,
                f"an instance of {asked} fits into no flavour of cloud {self.link.cloud}: {told}",
                "correct openstack.flavours, or instances.flavour",
            )
        return found

    def size_of(self, flavour: str, subject: str) -> Resources:
        """Return the size of a flavour; RefusedError where the cloud has none of this name."""
        found = self.id_of("compute", "flavor", flavour, subject)
        told = self._remembered(("size", found), lambda: naming.size_of_flavour(self.link, found, subject))
        return Resources(*map(int, told.split()))

    def _remembered(self, key: tuple[str, str], ask: Callable[[], str]) -> str:
        """For a while: an image that is replaced by one of the same name has another id."""
        now_s = time.monotonic()
        until_s, known = self._ids.get(key, (now_s, ""))
        if until_s <= now_s:
            known = ask()
            self._ids[key] = (now_s + self.config.patience.usage_s, known)
        return known

    @contextmanager
    def looked_up(self, subject: str, since_s: float) -> Iterator[None]:
        """Take a refusal within for no final one where ids from before `since_s` were used: somebody may have
        replaced what has these names. The next try looks them up, and its refusal counts, whatever polls have
        looked up meanwhile.
        """
        try:
            yield
        except (RefusedError, NotFoundError) as error:
            due_s = since_s + self.config.patience.usage_s
            old = [key for key, (until_s, _) in list(self._ids.items()) if until_s < due_s]
            for key in old:
                self._ids.pop(key, None)
            if error.retry:
                raise
            with self._lock:
                again = subject in self._anew
                (self._anew.discard if again or not old else self._anew.add)(subject)
            if again or not old:
                raise
            raise BusyError(subject, error.problem, "names are looked up anew") from error
        with self._lock:
            self._anew.discard(subject)

    # --- acting --------------------------------------------------------------------------------

    @contextmanager
    def changing(self, name: str) -> Iterator[None]:
        """One change of an instance at a time; a second one is told to come back."""
        with self._lock:
            if name in self._changing:
                raise BusyError(name, "another change of it is under way")
            self._changing.add(name)
        try:
            yield
        finally:
            with self._lock:
                self._changing.discard(name)

    def overdue(self, name: str, what: str, server: Server | None) -> UnreachableError:
        """Make the error for a request whose effect is not seen within the limit."""
        limit_s = self.config.patience.act_s
        now = "gone" if server is None else describe(server)
        return UnreachableError(
            name,
            f"Nova was asked to {what} it, and has not done so within {limit_s:g} s (it is {now})",
            "its compute host may be down; the cloud's operator can tell",
        )

    def metadata(self, server: Server, key: str, value: str | None) -> None:
        """Set one of the server's notes, or remove it with None; the board shows it after."""
        name, path = node_of(server), f"/servers/{server['id']}/metadata/{key}"
        if value is None:
            with suppress(NotFoundError):
                self.link.delete("compute", path, name)
        else:
            body: dict[str, Any] = {"meta": {key: value}}
            self.link.put("compute", path, name, body)
        self.board.refresh(str(server["id"]), name)

    def remember_given_back(self, server: Server) -> None:
        """Room that its operator wanted back is not taken again for a while."""
        if server.get("metadata", {}).get(RECLAIM):
            until_s = time.monotonic() + self.config.patience.bench_s
            size = instance_of(server, "").resources
            with self._lock:  # a deletion that is not done is asked for again
                self._given_back[str(server["id"])] = until_s, size

    def given_back(self, now_s: float) -> Resources:
        """Return the room that is left alone for that reason: of servers that are gone."""
        there = {str(server["id"]) for server in self.board.known()}  # these count by their marks
        with self._lock:
            self._given_back = {i: entry for i, entry in self._given_back.items() if entry[0] > now_s}
            return sum((size for i, (_, size) in self._given_back.items() if i not in there), NOTHING)

    def _notice(self, server: Server) -> None:
        """Learn from a server that has changed whether it found no room."""
        fault = fault_of(server) if server.get("status") == "ERROR" else ""
        if not fault:
            return
        _log.warning("%s is in ERROR: %s", node_of(server), fault)
        if is_no_room(fault):
            self.backoff.back_off(choice_of(mark(server, "choice")), fault, time.monotonic())


class CapacityBackoff:
    """A flavour in a zone where there was no room is not tried again for `for_s` seconds.

    Safe from several threads; times are monotonic.
    """

    def __init__(self, choices: tuple[Choice, ...], for_s: float) -> None:
        self._choices, self._for_s = choices, for_s
        self._until: dict[Choice, tuple[float, str]] = {}
        self._lock = threading.Lock()

    def back_off(self, choice: Choice, why: str, now_s: float) -> None:
        """Do not try this one for a while."""
        with self._lock:
            self._until[choice] = (now_s + self._for_s, why)

    def back_off_zone(self, zone: str, why: str, now_s: float) -> None:
        """Back off from everything in a zone."""
        for choice in self._choices:
            if choice[1] == zone:
                self.back_off(choice, why, now_s)

    def is_full(self, now_s: float) -> bool:
        """Return True if there is no choice that may be tried."""
        with self._lock:
            return all(self._until.get(c, (0.0, ""))[0] > now_s for c in self._choices)

    def pick(self, subject: str, flavours: Collection[str], now_s: float) -> Choice:
        """Pick the first choice with one of these flavours that may be tried.

        NoCapacityError says why there is none.
        """
        choices = [choice for choice in self._choices if choice[0] in flavours]
        with self._lock:
            for choice in choices:
                if self._until.get(choice, (0.0, ""))[0] <= now_s:
                    return choice
            until_s, why = min(self._until[choice] for choice in choices)
        of = "" if len(choices) == len(self._choices) else ", of those that are large enough"
        raise NoCapacityError(
            subject,
            f"there was no room for any flavour in any zone ({why}{of}); next try in {until_s - now_s:.0f} s",
            "name more flavours or zones, or wait",
        )


def text_of(choice: Choice) -> str:
    """`flavour@zone`, as it is kept with the server."""
    return "@".join(choice)


def choice_of(text: str) -> Choice:
    """Undo `text_of`."""
    flavour, _, zone = text.partition("@")
    return flavour, zone
