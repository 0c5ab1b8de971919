"""What a driver may be asked to do about the parents of instant clones; `name` is the host's."""

from __future__ import annotations

from dataclasses import dataclass

from backfill.core.fleet import Flavour


@dataclass(frozen=True, slots=True)
class MakeParent:
    """Boot a parent for this image and shape, try it out and freeze it."""

    name: str
    generation: int
    image: str
    flavour: Flavour
    reason: str


@dataclass(frozen=True, slots=True)
class CancelParents:
    """End whatever runs on the host to become a parent; those that are made stay."""

    name: str
    generation: int
    reason: str
