"""Reads the daemon's policy file again, checked as at the start and for what cannot change."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path

from backfill.config import Config, ConfigError, load
from backfill.config.catalogue import path_of
from backfill.core.policy import PolicySet
from backfill.engine.policyfile import Reading
from backfill.ports.errors import DriverError

_LOG = logging.getLogger("backfill.policy")
# What the daemon's parts are built from: a restart, which disturbs nothing, takes them over.
_FIXED_POLICIES = ("cluster", "hosts", "instances", "devices")
_FIXED_SECTIONS = ("hosts", "daemon", "slurm", "libvirt", "openstack", "salt")

# What in a file contradicts the living cluster, a sentence each. Raises DriverError.
Conflicts = Callable[[Config], list[str]]
_Stamp = tuple[int, int, int]


class PolicyReloader:
    """The `Reread` of a daemon that was started with a file.

    `make_room` is called with each file that is taken over.
    """

    def __init__(
        self, started: Config, conflicts: Conflicts, make_room: Callable[[Config], None] = lambda config: None
    ) -> None:
        self._path = Path(started.source)
        self._started = started
        self._conflicts = conflicts
        self._make_room = make_room
        self._catalogue = path_of(self._path, started.libvirt)
        self._stamp = self._stamps()

    def __call__(self, policies: PolicySet, force: bool) -> Reading | None:
        """The file, if it has changed since it was last read here or if `force`."""
        stamp = self._stamps()
        if not force and (stamp == self._stamp or None in stamp):
            return None  # a file that is just being replaced is not there for a moment
        self._stamp = stamp
        source = str(self._path)
        try:
            config = load(self._path)
        except ConfigError as error:
            return Reading(source, None, tuple(str(error).splitlines()))
        try:
            problems = [*self._fixed(config)] or [f"{source}: {p}" for p in self._conflicts(config)]
        except DriverError as error:
            problems = [f"{source}: it could not be compared with the cluster: {error}"]
        if problems:
            return Reading(source, None, tuple(problems))
        self._make_room(config)
        return Reading(source, config.policies, changed=tuple(differing(policies, config.policies)))

    def _stamps(self) -> tuple[_Stamp | None, ...]:
        """When the file was last changed, and the catalogue that it names."""
        return tuple(_stamp(path) for path in (self._path, self._catalogue) if path is not None)

    def _fixed(self, config: Config) -> Iterable[str]:
        started = self._started
        others = differing(started.policies, config.policies)
        found = [name for name in _FIXED_POLICIES if name in others]
        found += [n for n in _FIXED_SECTIONS if getattr(config, n) != getattr(started, n)]
        for name in dict.fromkeys(found):
            yield (
                f"{self._path}:{config.lines.get(name, 0)}: {name} has changed, which a running "
                "daemon cannot take over; restart it (jobs and instances are not touched), or "
                "undo the change"
            )


def differing(one: PolicySet, other: PolicySet) -> list[str]:
    """Names of the policies in which two sets differ."""
    return [f.name for f in fields(one) if getattr(one, f.name) != getattr(other, f.name)]


def _stamp(path: Path) -> _Stamp | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino)
