"""Moves an instance to another host in the state that it is in; a watchdog goes with the move."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from backfill.core.model.fleet import InstanceState
from backfill.drivers.libvirt.binding import bound
from backfill.drivers.libvirt.connection.domain_xml import NumaPlace, placed
from backfill.drivers.libvirt.connection.domains import Domain
from backfill.drivers.libvirt.connection.hypervisor import Hypervisor
from backfill.drivers.libvirt.migration import carrying
from backfill.drivers.libvirt.migration.transfer import Carriage, MoveStep, decide
from backfill.drivers.libvirt.ownership import refuse_if_taken_back
from backfill.drivers.libvirt.pool import AT_REST, Pool
from backfill.drivers.libvirt.saving import IN_MEMORY, finish_save, give_disk, has_sent_all, own_disks
from backfill.drivers.libvirt.settings import MoveTerms
from backfill.ports.errors import AlreadyThereError, BusyError, DriverError, NotFoundError, UnreachableError

_LOOK_EVERY_S = 0.2
# A guest that stands still on its way must not be missed for as long as Slurm waits for a node.
_STILL_S = 60.0


def migrate(pool: Pool, host: str, name: str, target: str) -> None:
    """Move to `target` in the state it is in. See `InstanceProvider.migrate`."""
    with pool.changing(name):
        mine = pool.find(host, name)
        theirs = mine if host == target else pool.on(target).find(name)
        if mine is None and (theirs is None or not pool.ours(theirs)):
            raise NotFoundError(name, f"there is no such instance of ours on {host}")
        if host == target:
            return
        if _is_over(mine, theirs):
            _finish(pool, host, name, target)
            if theirs is not None and theirs.active:
                give_disk(pool, target, name)
            return
        _make_way(pool, name, target, mine, theirs)
        carrying.refuse_if_leaning(pool, name, target, pool.store.leans_on(name))
        _, instance = pool.need(host, name)
        if instance.state not in AT_REST | IN_MEMORY:
            raise BusyError(name, f"it is {instance.state} on {host}")
        if has_sent_all(pool, host, name, instance.state):
            finish_save(pool, host, name)
            _, instance = pool.need(host, name)
        turn = pool.move_slots.between(name, host, target, pool.config.moves.turn_s)
        if instance.state in AT_REST:
            with turn:
                _go_over(pool, name, lambda: _move_files(pool, host, name, target))
            return
        with bound(pool, target, name, instance.resources) as numa, turn:
            _go_over(pool, name, lambda: _move_memory(pool, host, name, target, numa))


def _go_over(pool: Pool, name: str, move: Callable[[], None]) -> None:
    pool.moves_cancelled.discard(name)
    try:
        move()
    except (UnreachableError, BusyError):
        raise
    except DriverError as error:
        # Of a move that is cancelled the other side may be the first to fail, for want of the rest.
        if name in pool.moves_cancelled:
            raise BusyError(name, f"its move was cancelled: {error.problem}") from error
        raise


def cancel(pool: Pool, host: str, name: str) -> None:
    """Stop its way to another host. See `InstanceProvider.cancel_move`."""
    pool.need(host, name)
    pool.moves_cancelled.add(name)
    pool.on(host).cancel_move(name)


def _is_over(mine: Domain | None, theirs: Domain | None) -> bool:
    """Return True if an earlier call has brought it over, and only tidying up is left."""
    if theirs is None or theirs.label is None or not theirs.persistent:
        return False
    if mine is None:
        return True
    return theirs.label == mine.label and theirs.active and not mine.active


def _make_way(pool: Pool, name: str, target: str, mine: Domain | None, theirs: Domain | None) -> None:
    """Remove what an earlier attempt left on `target`. Raises where it is more than that."""
    if theirs is None:
        return
    if not pool.ours(theirs):
        raise AlreadyThereError(name, f"{target} has a machine of this name that is not ours")
    if theirs.active:
        same = mine is not None and mine.label == theirs.label
        problem = f"{target} is receiving it" if same else f"another one is active on {target}"
        raise BusyError(name, problem)
    if theirs.managed_save:
        raise BusyError(name, f"it is in a managed save on {target}", "never start it twice")
    pool.on(target).undefine(name)


def _finish(pool: Pool, host: str, name: str, target: str) -> None:
    pool.on(host).undefine(name)
    pool.store.claim(name, {target})
    carrying.forget(pool, host, name, target)


def _move_files(pool: Pool, host: str, name: str, target: str) -> None:
    """Move the definition; copy the files first unless both hosts have the same ones."""
    document = pool.on(host).document(name)
    if not pool.share(host, target):
        document = placed(document, pool.store_on(target).files(name))
    with carrying.at_rest(pool, host, name, target):
        pool.store.claim(name, {host, target})
        pool.on(target).define(name, document)
    _finish(pool, host, name, target)


def _move_memory(pool: Pool, host: str, name: str, target: str, numa: NumaPlace | None) -> None:
    _, instance = pool.need(host, name)  # it may have been stopped while it waited for its turn
    own_disks(pool, host, name, instance.state)
    running = instance.state is InstanceState.RUNNING
    live = running and pool.config.moves_live
    if pool.share(host, target):
        refuse_if_taken_back(name, Path(pool.store_on(host).files(name).disk))
    with carrying.for_guest(pool, host, name, target, numa) as carriage:
        if running and not live:
            # Should the move fail it is left so: who wants its room has it, and a return is proven.
            pool.on(host).pause(name, pool.config.cluster)
        pool.store.claim(name, {host, target})
        # When libvirtd here loses the answer of the one there at the very end, it lets the guest go
        # on here, and relies on the lock of the disk that both share. Where each has its own disk
        # the guest arrives standing still, and we let it go on when it is certainly gone here.
        still = not live or (carriage is not None and carriage.disk)
        failure = _send(pool, host, name, target, still, _terms(pool, running, still), carriage)
        _see_it_there(pool, host, name, target, failure)
    _finish(pool, host, name, target)
    give_disk(pool, target, name)
    if running and still:
        pool.on(target).resume(name)


def _terms(pool: Pool, running: bool, still: bool) -> MoveTerms:
    """Return the configured terms, less what a guest must not do that arrives standing still."""
    terms = pool.config.moves
    if still:
        # At the target it could not run without all of its memory, nor come back without its disk.
        terms = replace(terms, post_copy_after_s=None)
    if running and not pool.config.moves_live:
        terms = replace(terms, within_s=min(terms.within_s, _STILL_S))
    return terms


def _send(
    pool: Pool, host: str, name: str, target: str, paused: bool, terms: MoveTerms, carriage: Carriage | None
) -> DriverError | None:
    """Send its memory over, and its disk where there is a carriage; returns what went wrong."""
    source, uri = pool.on(host), pool.config.uris[target]
    watchdog = MoveWatchdog(source, name, terms)
    try:
        with watchdog:
            source.migrate(name, uri, data_uri(uri), paused, terms, carriage)
    except UnreachableError as error:
        with contextlib.suppress(DriverError):
            source.abort_job(name)
        return error
    except DriverError as error:
        if MoveStep.CANCEL in watchdog.asked:
            return BusyError(
                name, f"its move to {target} took longer than {terms.within_s:g} s, was cancelled"
            )
        return error
    return None


def _see_it_there(pool: Pool, host: str, name: str, target: str, failure: DriverError | None) -> None:
    """Make sure that it is on `target` when this returns; when this raises, it stays where it was."""
    # The error code does not tell where the instance is now; the hosts do.
    mine, theirs = pool.find(host, name), pool.find(target, name)
    if _is_over(mine, theirs):
        return
    if theirs is not None and not theirs.active:
        pool.on(target).undefine(name)
        theirs = None
    if theirs is None:
        pool.store.claim(name, {host})
        with contextlib.suppress(DriverError):  # why it stayed is what is told
            give_disk(pool, host, name)
    raise failure or BusyError(name, f"it did not leave {host}, although libvirt reported success")


def data_uri(uri: str) -> str | None:
    """Return the address at which a host receives memory, from its libvirt address; None if it is local."""
    machine = urlsplit(uri).hostname
    if machine is None:
        return None
    return f"tcp://[{machine}]" if ":" in machine else f"tcp://{machine}"


class MoveWatchdog:
    """Watches inside of a `with`; `asked` is what was ordered for the move meanwhile."""

    def __init__(self, source: Hypervisor, name: str, terms: MoveTerms) -> None:
        self._source, self._name, self._terms = source, name, terms
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"watch-move-{name}", daemon=True)
        self.asked: frozenset[MoveStep] = frozenset()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        """Look again and again until the move is over."""
        began_s = time.monotonic()
        while not self._over.wait(_LOOK_EVERY_S):
            # A host that does not answer now is asked again: the move itself reports its end.
            with contextlib.suppress(DriverError):
                self._look(time.monotonic() - began_s)

    def _look(self, elapsed_s: float) -> None:
        seen = self._source.progress(self._name)
        if seen is None:
            return
        step = decide(self._terms, elapsed_s, seen, self.asked)
        if step is MoveStep.POST_COPY:
            self._source.post_copy(self._name)
        elif step is MoveStep.CANCEL:
            self._source.cancel_move(self._name)
        self.asked |= {step}
