"""The thread pools: read the outside and perform actions, and report both to the inbox."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from enum import Enum
from functools import partial
from queue import SimpleQueue
from typing import assert_never

from backfill.core.model import actions as act
from backfill.engine.execute.dispatch import attempt
from backfill.engine.looking import Outside, observe_cluster, observe_host, observe_nodes, observe_pool
from backfill.engine.messages import (
    AddressNews,
    CallResult,
    ClusterPicture,
    HostPicture,
    Message,
    NodesPicture,
    PoolNews,
    ReadFailed,
)
from backfill.ports.errors import DriverError, unreadable
from backfill.ports.workload import Looker, Partitioner

_LOG = logging.getLogger("backfill.workers")
_NO_THREAD = "no thread can be started for it; raise TasksMax of the daemon's unit, or free memory"


class WorkerPool(Enum):
    """The kinds of work that have threads of their own."""

    READ = "read"
    EVICT = "evict"  # what gives a host back and tells Slurm of it: milliseconds, and somebody waits
    LONG = "long"  # what copies memories or disks, or boots something: minutes
    ACT = "act"  # all others


def pool_of(action: act.DriverAction) -> WorkerPool:
    """Return which threads perform it: the one table of them."""
    match action:
        case (
            act.PauseInstance()
            | act.ThrottleInstance()
            | act.CancelMove()
            | act.CancelParents()
            | act.DrainNode()
            | act.SetAddress()
            | act.SuspendJob()
            | act.WarnJob()
        ):
            return WorkerPool.EVICT
        case (
            act.CreateInstance()
            | act.SuspendInstance()
            | act.RestoreInstance()
            | act.MigrateInstance()
            | act.MakeParent()
            | act.KeepCheckpoint()
            | act.PutBackCheckpoint()
        ):
            return WorkerPool.LONG
        case (
            act.CreateNode()
            | act.DeleteNode()
            | act.UndrainNode()
            | act.DownNode()
            | act.ResumeJob()
            | act.LimitJob()
            | act.RequeueJob()
            | act.CancelJob()
            | act.KickJob()
            | act.TellJob()
            | act.HoldJob()
            | act.PinJob()
            | act.UnpinJob()
            | act.ReleaseJob()
            | act.NameMachines()
            | act.EndInside()
            | act.RevokeJob()
            | act.DeleteInstance()
            | act.ThawInstance()
            | act.WakeInstance()
            | act.ProbeJobs()
            | act.HoldDevices()
            | act.ReturnDevices()
            | act.UnplugDevices()
            | act.PlugDevices()
            | act.SubmitPilot()
            | act.WithdrawPilot()
            | act.TellPilot()
        ):
            return WorkerPool.ACT
        case _:
            assert_never(action)


class Workers:
    """Everything that may block. Each source is read by one thread at a time.

    Readings, evictions, long actions and all others have pools of their own, so that neither a
    hanging reading of one host nor any number of memories on their way to disk delays an eviction,
    or keeps the end of one instance or the return of another waiting. So have Slurm and each
    provider: a cloud that hangs in all its threads keeps no bare-metal host waiting.
    """

    def __init__(self, outside: Outside, inbox: SimpleQueue[Message], threads: int) -> None:
        self._outside = outside
        self._inbox = inbox
        self._threads = threads
        self._pools: dict[tuple[WorkerPool, int], ThreadPoolExecutor] = {}
        self._lock = threading.Lock()
        self._busy: set[str] = set()
        self._again: set[str] = set()
        self._closed = False
        self._short = False  # of threads; it has been said

    def close(self) -> None:
        """Take no new work; what is under way ends by itself or is abandoned."""
        with self._lock:
            self._closed = True
            pools = list(self._pools.values())
        for pool in pools:
            pool.shutdown(wait=False, cancel_futures=True)

    def _pool(self, work: WorkerPool, host: str = "") -> Executor | None:
        """Return that of the host's provider for this kind of work, or Slurm's. The lock is held.

        It has a thread at least; None where none can be started for it now.
        """
        key = (work, id(self._outside.providers.get(host)))
        if key not in self._pools:
            pool = ThreadPoolExecutor(self._threads, thread_name_prefix=work.value)
            try:
                pool.submit(_nothing)
            except RuntimeError as error:
                if not self._short:
                    _LOG.error("work of the kind %s waits: %s (%s)", work.value, _NO_THREAD, error)
                self._short = True
                pool.shutdown(wait=False)
                return None
            self._pools[key], self._short = pool, False
        return self._pools[key]

    # --- reading -------------------------------------------------------------------------------

    def observe(self, source: str) -> None:
        """Read `slurm` or a host soon; asked while being read, it is read once more after."""
        with self._lock:
            if self._closed:
                return
            if source in self._busy:
                self._again.add(source)
                return
            if (pool := self._pool(WorkerPool.READ, source)) is not None:
                self._busy.add(source)
                _submit(pool, self._observe, source)

    def _observe(self, source: str) -> None:
        try:
            self._inbox.put(self._read(source))
        finally:
            with self._lock:
                again = source in self._again and not self._closed
                self._again.discard(source)
                pool = self._pool(WorkerPool.READ, source) if again else None
                if pool is not None:
                    _submit(pool, self._observe, source)
                else:
                    self._busy.discard(source)

    def _read(self, source: str) -> Message:
        try:
            if source == "slurm":
                return ClusterPicture(observe_cluster(self._outside))
            return HostPicture(observe_host(self._outside, source))
        except DriverError as error:
            return ReadFailed(source, str(error))
        except OSError as error:
            return ReadFailed(source, str(unreadable(source, error)))
        except Exception as error:  # noqa: BLE001 - a defect in a driver must not end the reading
            _LOG.exception("reading %s failed in an unforeseen way", source)
            return ReadFailed(source, f"defect in the driver: {error!r}")

    def observe_nodes(self, names: tuple[str, ...]) -> bool:
        """Read these nodes and their jobs now, unless such a reading is under way."""
        return self._begin("nodes", WorkerPool.READ, partial(self._read_nodes, names))

    def _read_nodes(self, names: tuple[str, ...]) -> Message:
        try:
            return NodesPicture(names, observe_nodes(self._outside, names))
        except DriverError as error:
            return NodesPicture(names, None, str(error))
        except OSError as error:
            return NodesPicture(names, None, str(unreadable("slurm", error)))
        except Exception as error:  # noqa: BLE001 - as above
            _LOG.exception("reading nodes failed in an unforeseen way")
            return NodesPicture(names, None, f"defect in the driver: {error!r}")

    # --- acting --------------------------------------------------------------------------------

    def start(self, action: act.DriverAction) -> None:
        """Perform the action in the pool; its result comes to the inbox."""
        with self._lock:
            if self._closed:
                return
            pool = self._pool(pool_of(action), action.asks)
            if pool is not None:
                _submit(pool, self._perform, action)
                return
        self._inbox.put(CallResult(action, (), _NO_THREAD))

    def tell(self, words: Sequence[act.TellJob]) -> bool:
        """Tell owners of jobs something, one after the other; False while others are being told."""
        return self._begin("owners", WorkerPool.ACT, partial(self._tell, words))

    def _tell(self, words: Sequence[act.TellJob]) -> None:
        """Best effort: a job may be gone, or somebody else may have written there."""
        for word in words:
            problem = attempt(self._outside, word, time.monotonic).problem
            if problem:
                _LOG.info("the owner of job %s is not told: %s", word.job_id, problem)

    def look_up(self, names: Sequence[str]) -> bool:
        """See that Slurm knows what these nodes' NodeAddr means now; False while it is looked."""
        return self._begin("addresses", WorkerPool.ACT, partial(self._look_up, names))

    def _look_up(self, names: Sequence[str]) -> Message | None:
        """Have it looked up aside: a resolver may take half a minute for an answer."""
        manager = self._outside.manager
        if not isinstance(manager, Looker):
            return None
        try:
            return AddressNews(manager.refresh_addresses(names))
        except DriverError as error:
            _LOG.info("addresses of nodes are not looked up: %s", error)
            return None

    def read_pool(self) -> bool:
        """Ask the pool outside, where there is one; False while it is asked."""
        return self._begin("pool", WorkerPool.READ, self._read_pool)

    def _read_pool(self) -> Message | None:
        pool = self._outside.pool
        if pool is None:
            return None
        try:
            return PoolNews(observe_pool(self._outside, pool))
        except DriverError as error:
            return PoolNews(None, str(error))
        except Exception as error:  # noqa: BLE001 - as above
            _LOG.exception("reading the pool failed in an unforeseen way")
            return PoolNews(None, f"defect in the driver: {error!r}")

    def rebuild_partitions(self) -> bool:
        """Have Slurm work out its partitions anew; False where it cannot, or is at it."""
        manager = self._outside.manager
        if not isinstance(manager, Partitioner):
            return False
        return self._begin("partitions", WorkerPool.ACT, partial(self._rebuild, manager))

    def _rebuild(self, manager: Partitioner) -> None:
        try:
            manager.rebuild_partitions()
        except DriverError as error:
            _LOG.warning("Slurm's partitions are not worked out anew: %s", error)
        self.observe("slurm")

    def _begin(self, what: str, kind: WorkerPool, work: Callable[[], Message | None]) -> bool:
        """Have it done in Slurm's pool, one of a kind at a time; False: another is under way, or no
        thread is left.
        """
        with self._lock:
            if self._closed or what in self._busy or (pool := self._pool(kind)) is None:
                return False
            self._busy.add(what)
            _submit(pool, self._do, what, work)
        return True

    def _do(self, what: str, work: Callable[[], Message | None]) -> None:
        message = None
        try:
            message = work()
        except Exception:  # noqa: BLE001 - as above
            _LOG.exception("what is done about %s failed in an unforeseen way", what)
        finally:
            with self._lock:
                self._busy.discard(what)
        # Whoever hears it may ask for the next one.
        if message is not None:
            self._inbox.put(message)

    def _perform(self, action: act.DriverAction) -> None:
        self._inbox.put(attempt(self._outside, action, time.monotonic))


def _submit(pool: Executor, work: Callable[..., object], *args: object) -> None:
    """Have it done. Where no more threads can be started, it waits for those that the pool has."""
    with contextlib.suppress(RuntimeError):
        pool.submit(work, *args)


def _nothing() -> None:
    """For a pool whose first thread is to be there before there is work."""
