"""What one hypervisor is asked about moves: begin one, watch it, hurry it, stop it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from backfill.drivers.libvirt import migration
from backfill.drivers.libvirt.settings import Limits, MoveTerms
from backfill.ports.errors import BusyError


class MoveCalls(ABC):
    """A part of `Hypervisor`."""

    _limits: Limits

    @abstractmethod
    def _on(self, name: str, work: Callable[[Any], Any], limit_s: float | None = None) -> Any:
        """Do this with the named domain, waiting at most `limit_s` seconds."""

    def migrate(
        self,
        name: str,
        target_uri: str,
        data_uri: str | None,
        stay_paused: bool,
        terms: MoveTerms,
        carriage: migration.Carriage | None = None,
    ) -> None:
        """Move an active domain to the libvirtd at `target_uri`, which the source contacts itself.

        `data_uri` is where the target receives memory, such as tcp://10.0.0.2. With a `carriage`
        its disk goes along.
        """

        def work(domain: Any) -> None:
            migration.move(domain, target_uri, data_uri, stay_paused, terms, carriage)

        self._on(name, work, self._limits.long_s)

    def progress(self, name: str) -> migration.Progress | None:
        """How far its way to another host is; None when it is not leaving."""
        seen: migration.Progress | None = self._on(name, migration.progress)
        return seen

    def post_copy(self, name: str) -> None:
        """Let the guest go on at the target now; what it lacks is fetched when it is needed."""
        self._on(name, lambda domain: domain.migrateStartPostCopy())

    def cancel_move(self, name: str) -> None:
        """Stop its way to another host; not leaving is fine. BusyError: it is too late for that."""

        def work(domain: Any) -> None:
            seen = migration.progress(domain)
            if seen is not None and not seen.cancellable:
                raise BusyError(name, "it is about to go on at the other host", "wait for it")
            if seen is not None:
                domain.abortJob()

        self._on(name, work)

    def last_downtime_s(self, name: str) -> float | None:
        """How long the guest stood still in the move that brought it here, by QEMU's own count."""
        downtime_s: float | None = self._on(name, migration.last_downtime_s)
        return downtime_s

    def abort_job(self, name: str) -> None:
        """Stop a running save or migration; the domain goes on where it was."""
        self._on(name, lambda domain: domain.abortJob())
