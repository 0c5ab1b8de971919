"""Parents of simulated instant clones: there as soon as they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from backfill.core.fleet import CloneParent, Flavour
from backfill.drivers.simulated.hardware import SimHost
from backfill.ports.errors import RefusedError


class SimulatedParents:
    """See `ParentKeeper`. `images`: those that the provider knows; None: every one."""

    _call: Callable[..., AbstractContextManager[SimHost]]

    def __init__(self) -> None:
        self.images: frozenset[str] | None = None

    def need_image(self, image: str) -> None:
        """RefusedError unless the image is known."""
        if self.images is not None and image not in self.images:
            raise RefusedError(image, "is no image that the provider knows")

    def make_parent(self, host: str, image: str, flavour: Flavour) -> None:
        """It takes no time."""
        self.need_image(image)
        with self._call("make_parent", host) as found:
            made = CloneParent(image, flavour.cpus, flavour.memory_mb, flavour.disk_gb, made=True)
            found.parents = [p for p in found.parents if not p.suits(image, flavour)] + [made]

    def cancel_parents(self, host: str) -> None:
        """What a test has put there unfinished goes."""
        with self._call("cancel_parents", host) as found:
            found.parents = [parent for parent in found.parents if parent.made]
