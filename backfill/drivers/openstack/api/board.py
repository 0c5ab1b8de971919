"""One picture of all servers of a cloud, shared by everybody who waits for one of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from backfill.drivers.openstack.api.link import ApiLink
from backfill.drivers.openstack.api.states import GONE, Server, cluster_tag, is_ours, node_of, recalled
from backfill.drivers.openstack.settings import Patience
from backfill.ports.errors import BadOutputError, DriverError, NotFoundError

_LOG = logging.getLogger("backfill.openstack")
# What has changed is asked for with so much overlap: clocks and lists may lag.
_OVERLAP_S = 10.0


class Board:
    """Servers of one cluster by Nova's id, brought up to date by one list at a time.

    Whoever wants a picture newer than now joins the next list; nobody asks for a single server.
    """

    def __init__(
        self,
        link: ApiLink,
        cluster: str,
        patience: Patience,
        on_change: Callable[[Server], None] = lambda server: None,
        places: Collection[str] = (),
    ) -> None:
        """`places`: the hosts of ours that this cloud has."""
        self._link, self._cluster, self._patience, self._places = link, cluster, patience, places
        self._on_change = on_change
        self._turn = threading.Condition()
        self._reading = False
        self._servers: dict[str, Server] = {}
        self._began_s = -1.0  # monotonic
        self._error: DriverError | None = None
        self._since = ""  # from when on changes are asked for, in the cloud's time
        self._full_due_s = 0.0
        self._lost: dict[str, tuple[str, ...]] = {}  # which notes, as was told of last
        self._looked_s: dict[str, float] = {}  # when a server was last read by itself

    # --- asking --------------------------------------------------------------------------------

    def fresh(self) -> dict[str, Server]:
        """All servers as read after this call began; raises what the reading raised."""
        return self._fresh()[1]

    def _fresh(self) -> tuple[float, dict[str, Server]]:
        asked_s = time.monotonic()
        while True:
            with self._turn:
                if self._began_s >= asked_s:
                    return self._outcome()
                if self._reading:
                    self._turn.wait(self._patience.call_s)
                    continue
                self._reading = True
            self._read()

    def known(self) -> list[Server]:
        """All servers as last read, however long ago."""
        with self._turn:
            return list(self._servers.values())

    def named(self, name: str) -> list[Server]:
        """Fresh: ours of this node, the oldest first; more than one only after a mishap."""
        found = [s for s in self.fresh().values() if node_of(s) == name]
        return sorted(found, key=lambda s: (str(s.get("created")), str(s["id"])))

    def watch(
        self, server_id: str, done: Callable[[Server | None], bool], limit_s: float
    ) -> tuple[bool, Server | None]:
        """Look until `done` or the time is over; (whether it came, the last look). None: gone."""
        deadline_s = time.monotonic() + limit_s
        began_s, servers = self._fresh()
        while not (came := done(servers.get(server_id))) and time.monotonic() <= deadline_s:
            began_s, servers = self._after(began_s)
        return came, servers.get(server_id)

    def _after(self, began_s: float) -> tuple[float, dict[str, Server]]:
        """Wait for the picture after this one: whoever reads it first reads it for all who wait."""
        with self._turn:
            if self._turn.wait_for(lambda: self._began_s > began_s, self._patience.poll_s):
                return self._outcome()
        return self._fresh()

    def refresh(self, server_id: str, subject: str) -> Server | None:
        """Read one server by itself: for what lists show late, such as metadata; None: gone."""
        began_s = time.monotonic()
        server = self._read_one(server_id, subject)
        if server is not None and _is_partial(server):
            return self._servers.get(server_id, server)
        with self._turn:
            self._looked_s[server_id] = began_s
            if server is None:
                self._servers.pop(server_id, None)
            elif server_id in self._servers or is_ours(server, self._cluster):
                self._servers = {**self._servers, server_id: server}
        return server

    # --- reading -------------------------------------------------------------------------------

    def _outcome(self) -> tuple[float, dict[str, Server]]:
        if self._error is not None:
            raise self._error
        return self._began_s, self._servers

    def _read(self) -> None:
        began_s = time.monotonic()
        # Also where it ends in an unforeseen way nobody is to take the old picture for a new one.
        error: DriverError | None = BadOutputError("servers", f"reading cloud {self._link.cloud} broke off")
        changed: list[Server] = []
        try:
            changed, error = self._take(began_s), None
        except DriverError as problem:
            error = problem
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            error = BadOutputError(
                "servers", f"cloud {self._link.cloud} answered what cannot be read: {problem!r}"
            )
        finally:
            with self._turn:
                self._began_s, self._error, self._reading = began_s, error, False
                self._turn.notify_all()
        for server in changed:
            self._on_change(server)

    def _take(self, began_s: float) -> list[Server]:
        """Read what is due and put it on the board; returns the servers that are news."""
        whole = began_s >= self._full_due_s
        query = {"tags": cluster_tag(self._cluster)} if whole else {"changes-since": self._since}
        since = ""
        found: dict[str, Server] = {}
        for page, date in self._pages(query):
            since = since or _overlapped(date, time.monotonic() - began_s)
            found |= {str(server["id"]): self._whole(server) for server in page}
        known = self._servers
        after = {} if whole else dict(known)
        for server_id, server in found.items():
            if server.get("status") in GONE:
                after.pop(server_id, None)
            elif server_id in known or is_ours(server, self._cluster):
                after[server_id] = self._later(known.get(server_id), server)
        if whole:
            after |= self._missed(known, found)
        self._put_up(after, began_s)
        self._since = since
        if whole:
            self._full_due_s = began_s + self._patience.full_s
        return [server for i, server in after.items() if known.get(i) != server]

    def _put_up(self, after: dict[str, Server], began_s: float) -> None:
        """Make the list the picture, except for what was read by itself since it began."""
        with self._turn:
            for server_id, looked_s in list(self._looked_s.items()):
                if looked_s < began_s:
                    del self._looked_s[server_id]
                elif server_id in self._servers:
                    after[server_id] = self._servers[server_id]
                else:
                    after.pop(server_id, None)
            self._servers = after

    def _missed(self, known: dict[str, Server], found: dict[str, Server]) -> dict[str, Server]:
        """Look at each server that a list does not show: lists lag, and only a look says that it is gone."""
        missing = {i: self._look_at(i, s) for i, s in known.items() if i not in found}
        return {i: s for i, s in missing.items() if s is not None}

    def _later(self, known: Server | None, seen: Server) -> Server:
        """Return the newer of two pictures."""
        if known is not None and _is_partial(seen):
            return known
        # What is being built is another record of Nova's than what comes of it: their times, whole
        # seconds of two clocks, say nothing. A server that found no room would be built for ever.
        if known is None or known.get("status") == "BUILD":
            return seen
        if str(seen.get("updated")) >= str(known.get("updated")):
            return seen
        # The list lags, or the clock of whoever changed it last is behind that of whoever did before.
        return self._look_at(str(seen["id"]), known) or known

    def _look_at(self, server_id: str, known: Server) -> Server | None:
        """Return what Nova says of this server alone; as it was where its part is down; None: it is gone."""
        server = self._read_one(server_id, node_of(known))
        return known if server is not None and _is_partial(server) else server

    def _pages(self, query: dict[str, str]) -> Iterator[tuple[list[Server], str]]:
        marker: dict[str, str] = {}
        while True:
            answer = self._link.get("compute", "/servers/detail", "servers", **query, **marker)
            page: list[Server] = answer.entries("servers")
            yield page, answer.date
            if not page or not answer.body.get("servers_links"):
                return
            marker = {"marker": str(page[-1]["id"])}

    def _read_one(self, server_id: str, subject: str) -> Server | None:
        try:
            body = self._link.get("compute", f"/servers/{server_id}", subject).body
        except NotFoundError:
            return None
        server: dict[str, Any] = body["server"]
        return None if server.get("status") in GONE else self._whole(server)

    def _whole(self, server: Server) -> Server:
        """Return it with the notes that somebody has taken from it since we saw it first; say so once."""
        server_id = str(server["id"])
        whole, lost = recalled(server, self._servers.get(server_id), self._places)
        if lost and lost != self._lost.get(server_id):
            _LOG.warning(
                "server %s of %s has lost its metadata %s, which is remembered only until the daemon "
                "stops; put it back with `openstack server set %s %s`",
                server_id,
                node_of(whole),
                ", ".join(lost),
                " ".join(f"--property {key}={whole['metadata'][key]}" for key in lost),
                server_id,
            )
            self._lost[server_id] = lost
        return whole


def _is_partial(server: Server) -> bool:
    """Return True if it comes from a part of Nova that is down: then not even its name is told."""
    return server.get("status") in (None, "UNKNOWN")


def _overlapped(date: str, took_s: float) -> str:
    """Return the moment from which changes are asked for next time: before a list was begun.

    `date`: its Date header, which is from its end; it `took_s`.
    """
    now = parsedate_to_datetime(date) if date else datetime.fromtimestamp(time.time(), UTC)
    stamp = datetime.fromtimestamp(now.timestamp() - took_s - _OVERLAP_S, UTC)
    return stamp.strftime("%Y-%m-%dT%H:%M:%SZ")
