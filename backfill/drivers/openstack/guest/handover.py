"""The cluster's munge key is handed to a guest by the way into it, and never told to the cloud.

Whatever Nova knows of a server (user data, metadata, config drive) can be read by every job in its
guest through the metadata address. So a server that needs the key is made with a note; once it
runs, the key goes to a program in the guest, over its standard input, and the note is taken back.
Until then slurmd cannot register, and the node takes no job.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from backfill.core.model.fleet import InstanceState
from backfill.drivers.openstack.api.cloud import Cloud
from backfill.drivers.openstack.api.states import AWAITS_KEY, Server, mark, node_of, state_of
from backfill.drivers.openstack.guest import command
from backfill.drivers.openstack.settings import Guest
from backfill.ports.errors import DriverError, RefusedError, UnreachableError

_LOG = logging.getLogger("backfill.openstack")
_AT_ONCE = 16
# So often a guest that boots is tried, and so long before the others have a turn.
_AGAIN_S, _TURN_S = 1.0, 5.0


def read_key(config: Guest) -> bytes:
    """Read the cluster's key. RefusedError when it cannot be read."""
    try:
        key = Path(config.munge_key).read_bytes()
    except OSError as error:
        raise RefusedError(
            config.munge_key, f"cannot read the munge key: {error.strerror}", "run the daemon as who may"
        ) from error
    if not key:
        raise RefusedError(config.munge_key, "the munge key is empty")
    return key


class Handover:
    """Thread-safe. Nothing waits for it: a guest that does not get the key is never proven."""

    def __init__(self, config: Guest) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self._told: dict[str, str] = {}  # why it failed last, by server
        self._pool: ThreadPoolExecutor | None = None
        self._closed = threading.Event()

    def look(self, cloud: Cloud, servers: Iterable[Server]) -> None:
        """Begin to hand the key to those that wait for it and can be spoken to."""
        for server in servers:
            if AWAITS_KEY not in server.get("metadata", {}):
                continue
            if state_of(server) is InstanceState.RUNNING:
                self._begin(cloud, server)

    def close(self) -> None:
        """Begin nothing more."""
        self._closed.set()
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self, cloud: Cloud, server: Server) -> None:
        server_id = str(server["id"])
        with self._lock:
            if self._closed.is_set() or server_id in self._busy:
                return
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="handover")
            self._busy.add(server_id)
            self._pool.submit(self._work, cloud, server)

    def _work(self, cloud: Cloud, server: Server) -> None:
        server_id, name = str(server["id"]), node_of(server)
        try:
            if self._hand_over(server):
                cloud.metadata(server, AWAITS_KEY, None)
                self._told.pop(server_id, None)
                _LOG.info("the guest of %s has the munge key", name)
        except DriverError as error:
            if self._told.get(server_id) != error.problem:
                _LOG.warning("the munge key is not handed to the guest of %s: %s", name, error)
            self._told[server_id] = error.problem
        except Exception:  # noqa: BLE001 - a defect must not end the handing over for good
            _LOG.exception("handing the munge key to %s failed in an unforeseen way", name)
        finally:
            with self._lock:
                self._busy.discard(server_id)

    def _hand_over(self, server: Server) -> bool:
        """Return True if the guest has it now; one that boots does not answer for a while."""
        key, name = read_key(self._config), node_of(server)
        address = mark(server, "address").split("/")[0]
        deadline_s = time.monotonic() + _TURN_S
        while True:
            try:
                command.give_key(self._config, name, address, key)
            except UnreachableError as error:
                _LOG.debug("%s", error)
            else:
                return True
            if time.monotonic() > deadline_s or self._closed.wait(_AGAIN_S):
                return False
