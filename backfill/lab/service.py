"""A program that a machine of the lab runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Service:
    """A foreground program of a machine; `after` and `ready` are conditions (see `services`).

    `usr`: the directory that it and its children have as their /usr, where it is another one.
    """

    name: str
    argv: tuple[str, ...]
    user: str = "root"
    after: str = ""
    ready: str = ""
    warm: tuple[str, ...] = ()
    chroot: bool = True
    nice: int = 0
    usr: str = ""
