"""The record of who holds which devices: a file in each instance's folder, which moves with it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from backfill.core.model.devices import Holding, Region
from backfill.core.model.refusals import Reason
from backfill.drivers.libvirt.store import Store, folders_in, read_text, write_secret
from backfill.ports.errors import NotFoundError, UnreadableError

_NAME = "devices.json"


class DeviceBook:
    """Holdings of all instances of one cluster.

    What is held is written before anything is attached: after a crash a device may be held by an
    instance that has not got it yet, and never be given away twice.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def all(self) -> list[Holding]:
        """Everything that is held, in order of the instances' names."""
        found = [self._read(home / _NAME) for home in folders_in(self._store.root)]
        return [holding for holding in found if holding is not None]

    def of(self, name: str) -> Holding | None:
        """Return the holding of one instance."""
        return self._read(self._store.home(name) / _NAME)

    def decide(self, name: str, choose: Callable[[list[Holding]], Holding | Reason]) -> Holding | Reason:
        """Let `choose` see what is held and write down what it gives; nobody else decides now."""
        with self._alone():
            given = choose(self.all())
            if isinstance(given, Holding):
                self._write(name, given)
            return given

    def note(self, name: str, plugged: bool) -> None:
        """Note if the devices that it holds are in its guest now."""
        with self._alone():
            held = self.of(name)
            if held is not None and held.plugged is not plugged:
                self._write(name, replace(held, plugged=plugged))

    def forget(self, name: str) -> None:
        """Note that the instance holds nothing any more."""
        with self._alone(), suppress(FileNotFoundError):
            (self._store.home(name) / _NAME).unlink()

    def unheld(self, regions: Iterable[str]) -> list[str]:
        """Return those that nobody holds. Nobody ever will: a region is given again only beside a holder."""
        with self._alone():  # or one goes from instance to instance while we look at each
            held = {region.id for holding in self.all() for region in holding.regions}
        return [region for region in regions if region not in held]

    def _write(self, name: str, given: Holding) -> None:
        """Under the lock."""
        path = self._store.home(name) / _NAME
        draft = path.with_suffix(".new")
        try:
            # The names of regions are for nobody: who knows one could be there before its memory.
            draft.unlink(missing_ok=True)  # an older version's, which everybody may read
            write_secret(str(draft), json.dumps(asdict(given)).encode())
            draft.replace(path)
        except FileNotFoundError as error:  # it is being deleted
            raise NotFoundError(name, "there is no such instance of ours") from error

    def _read(self, path: Path) -> Holding | None:
        name = path.parent.name
        if (text := read_text(name, path)) is None:
            return None
        try:
            return _holding(json.loads(text))
        except (AttributeError, ValueError, TypeError, KeyError) as error:
            # Written in one step, so a power cut or somebody's hand did that. Given to nobody else.
            raise UnreadableError(
                name,
                f"which devices it holds is not known: {path} is damaged",
                "remove that file when the instance is stopped",
            ) from error

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Between processes as well: two daemons may overlap while one replaces the other."""
        self._store.root.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._store.root / ".devices.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _holding(body: dict[str, Any]) -> Holding:
    old, size_mb = body.pop("region", ""), body.pop("region_mb", 0)  # once there was one at most
    regions = [Region(**one) for one in body.get("regions", ())] or [Region(old, size_mb)] * bool(old)
    return Holding(**{**body, "functions": tuple(body["functions"]), "regions": tuple(regions)})
