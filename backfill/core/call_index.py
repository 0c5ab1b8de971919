"""Claims and operations as the world keeps them: found by host and by node as well."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from backfill.core.changes import OperationDone, OperationStarted
from backfill.core.ledger import HostAllocation, Operation


class ClaimIndex:
    """All claims, and those on one host. Only the world changes it."""

    def __init__(self) -> None:
        self.claims: dict[str, HostAllocation] = {}
        self._on: dict[str, dict[str, None]] = {}  # host -> ids of jobs

    def on(self, host: str) -> Iterable[str]:
        """Ids of the jobs that claim the host."""
        return self._on.get(host, ())

    def any_on(self, host: str) -> bool:
        """Whether any job claims the host."""
        return bool(self._on.get(host))

    def put(self, claim: HostAllocation) -> None:
        """A claim was made, or made anew."""
        self._leave(claim.job_id)
        self.claims[claim.job_id] = claim
        for host in claim.hosts:
            self._on.setdefault(host, {})[claim.job_id] = None

    def answered(self, job_id: str) -> None:
        """Nobody waits for an answer any more; unknown: nothing."""
        claim = self.claims.get(job_id)
        if claim is not None:
            self.claims[job_id] = replace(claim, waiting=False)

    def drop(self, job_id: str) -> None:
        """The claim is over; unknown: nothing."""
        self._leave(job_id)
        self.claims.pop(job_id, None)

    def _leave(self, job_id: str) -> None:
        old = self.claims.get(job_id)
        for host in old.hosts if old is not None else ():
            self._on[host].pop(job_id, None)


class CallIndex:
    """All operations, those of one node, and what arrives on one host. Only the world changes it.

    The key of an operation names its node between the first and the second colon.
    """

    def __init__(self) -> None:
        self.operations: dict[str, Operation] = {}
        self._of: dict[str, set[str]] = {}  # node -> keys
        self._running: dict[str, set[str]] = {}  # node -> keys of those in flight
        self._arriving: dict[str, set[str]] = {}  # host -> keys of those in flight onto it

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
        self._of.setdefault(name, set()).add(change.key)
        self._running.setdefault(name, set()).add(change.key)
        if change.host:
            self._arriving.setdefault(change.host, set()).add(change.key)

    def done(self, change: OperationDone) -> None:
        """A driver finished it: forgotten on success, kept for the next try otherwise."""
        operation = self.operations.pop(change.key, None)
        if operation is None:
            return
        self._landed(operation)
        if change.problem:
            self.operations[change.key] = operation.failed(change)
        else:
            self._of[change.key.split(":")[1]].discard(change.key)

    def forget(self, name: str) -> None:
        """Drop what failed for a node that is over."""
        for key in [key for key in self.of(name) if not self.operations[key].running]:
            del self.operations[key]
            self._of[name].discard(key)

    def _landed(self, operation: Operation) -> None:
        self._running.get(operation.key.split(":")[1], set()).discard(operation.key)
        self._arriving.get(operation.host, set()).discard(operation.key)
