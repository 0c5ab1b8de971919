"""Claims and operations as the world keeps them: found by host and by node as well."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from backfill.core.changes import OperationDone, OperationStarted
from backfill.core.ledger import HostAllocation, Operation
from backfill.core.undo import Table, UndoLog

_NONE: frozenset[str] = frozenset()


class ClaimIndex:
    """All claims, and those on one host. Only the world changes it."""

    def __init__(self, log: UndoLog) -> None:
        self.claims: Table[str, HostAllocation] = Table(log)
        self._on: Table[str, tuple[str, ...]] = Table(log)  # host -> ids of jobs
        self._at: Table[str, frozenset[str]] = Table(log)  # node of ours -> ids of jobs that begin there

    def on(self, host: str) -> Iterable[str]:
        """Ids of the jobs that claim the host."""
        return self._on.get(host, ())

    def at(self, node: str) -> Iterable[str]:
        """Ids of the jobs of claims that begin on this node of ours."""
        return self._at.get(node, ())

    def any_on(self, host: str) -> bool:
        """Whether any job claims the host."""
        return bool(self._on.get(host))

    def put(self, claim: HostAllocation) -> None:
        """A claim was made, or made anew."""
        self._leave(claim.job_id)
        self.claims[claim.job_id] = claim
        for node in claim.nodes:
            _add(self._at, node, claim.job_id)
        for host in claim.hosts:
            if claim.job_id not in self._on.get(host, ()):
                self._on[host] = (*self._on.get(host, ()), claim.job_id)

    def answered(self, job_id: str) -> None:
        """Nobody waits for an answer any more; unknown: nothing."""
        claim = self.claims.get(job_id)
        if claim is not None:
            self.claims[job_id] = replace(claim, waiting=False)

    def drop(self, job_id: str) -> None:
        """The claim is over; unknown: nothing."""
        self._leave(job_id)
        self.claims.pop(job_id)

    def _leave(self, job_id: str) -> None:
        old = self.claims.get(job_id)
        for node in old.nodes if old is not None else ():
            _discard(self._at, node, job_id)
        for host in old.hosts if old is not None else ():
            self._on[host] = tuple(other for other in self._on.get(host, ()) if other != job_id)


class CallIndex:
    """All operations, those of one node, and what arrives on one host. Only the world changes it.

    The key of an operation names its node between the first and the second colon.
    """

    def __init__(self, log: UndoLog) -> None:
        self.operations: Table[str, Operation] = Table(log)
        self._of: Table[str, frozenset[str]] = Table(log)  # node -> keys
        self._running: Table[str, frozenset[str]] = Table(log)  # node -> keys of those in flight
        self._arriving: Table[str, frozenset[str]] = Table(log)  # host -> keys of those in flight onto it

    def of(self, name: str) -> Iterable[str]:
        """Keys of a node's operations, in flight or failed, in no order."""
        return self._of.get(name, ())

    def busy(self, name: str) -> bool:
        """Whether an operation of the node is in flight."""
        return bool(self._running.get(name))

    def arriving(self, host: str) -> bool:
        """Whether an operation in flight may bring an instance onto the host's CPUs."""
        return bool(self._arriving.get(host))

    def started(self, change: OperationStarted) -> None:
        """An action was handed to a driver."""
        old = self.operations.get(change.key)
        if old is not None:
            self._landed(old)
        attempts = old.attempts if old is not None else 0
        operation = Operation(change.key, change.host, True, change.at_s, attempts)
        self.operations[change.key] = operation
        name = change.key.split(":")[1]
        _add(self._of, name, change.key)
        _add(self._running, name, change.key)
        if change.host:
            _add(self._arriving, change.host, change.key)

    def done(self, change: OperationDone) -> None:
        """A driver finished it: forgotten on success, kept for the next try otherwise."""
        operation = self.operations.pop(change.key)
        if operation is None:
            return
        self._landed(operation)
        if change.problem:
            self.operations[change.key] = operation.failed(change)
        else:
            _discard(self._of, change.key.split(":")[1], change.key)

    def forget(self, name: str) -> None:
        """Drop what failed for a node that is over."""
        for key in [key for key in self.of(name) if not self.operations[key].running]:
            del self.operations[key]
            _discard(self._of, name, key)

    def _landed(self, operation: Operation) -> None:
        _discard(self._running, operation.key.split(":")[1], operation.key)
        _discard(self._arriving, operation.host, operation.key)


def _add(table: Table[str, frozenset[str]], name: str, key: str) -> None:
    table[name] = table.get(name, _NONE) | {key}


def _discard(table: Table[str, frozenset[str]], name: str, key: str) -> None:
    known = table.get(name)
    if known is not None and key in known:
        if left := known - {key}:
            table[name] = left
        else:
            del table[name]
