"""What the contract suite for instance providers needs around a provider, and its small words."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from backfill.core.model.fleet import Flavour, Instance, InstanceSpec, InstanceState, Tag
from backfill.ports.provider import InstanceProvider

CLUSTER = "contract"
NETWORK = "lan"  # another one than the usual, by its name
SMALL = Flavour(cpus=1, memory_mb=256, disk_gb=1)
MOVE, WAKE, STRANGERS, IMAGES = "move", "wake", "strangers", "images"
INSTANT, THROTTLE, DEVICES, BALLOON = "instant", "throttle", "devices", "balloon"
CARRY, SAVE_PAUSED, HIDE = "carry", "save-paused", "hide"
EVERYTHING = frozenset(
    {MOVE, WAKE, STRANGERS, IMAGES, INSTANT, THROTTLE, DEVICES, BALLOON, CARRY, SAVE_PAUSED, HIDE}
)


class Rig(Protocol):
    """A provider of cluster CLUSTER with two hosts, and what a test must be able to do around it.

    `abilities` says which parts of the contract it can show: MOVE (migration), WAKE (guests with
    an agent), STRANGERS (other people's instances on the same hosts), IMAGES (it refuses an
    image that it does not know), INSTANT (it can clone a booted parent), THROTTLE (it can take
    CPU time away), DEVICES (it can plug devices into a running guest), BALLOON (its guests can
    give memory back), CARRY (suspended instances can be moved), SAVE_PAUSED (a paused instance
    can be suspended without running in between), HIDE (what tells of a suspended instance can be
    made unreadable). A provider without CARRY or SAVE_PAUSED must refuse, and say so where there is
    a field for it (`Host.saves_paused`).
    """

    @property
    def provider(self) -> InstanceProvider: ...

    @property
    def image(self) -> str: ...

    @property
    def abilities(self) -> frozenset[str]: ...

    def until(self, holds: Callable[[], bool]) -> None:
        """Let time pass until `holds`; fails the test when that takes too long."""

    def booted(self, name: str) -> None:
        """Let time pass until the guest of `name` has booted."""

    def unreachable(self, host: str) -> AbstractContextManager[None]:
        """Inside, `host` does not answer."""

    def hidden(self, host: str, name: str) -> AbstractContextManager[str]:
        """Inside, it cannot be read what became of the suspended instance; where that lies."""

    def stranger(self, host: str, name: str) -> AbstractContextManager[None]:
        """Inside, `host` carries a running instance of another cluster with this name."""


def spec(rig: Rig, name: str = "vn1", generation: int = 1, host: str = "") -> InstanceSpec:
    """An instance as the engine would ask for it, on the first host unless told otherwise."""
    return InstanceSpec(
        name=name,
        host=host or rig.provider.hosts[0],
        tag=Tag(CLUSTER, name, generation),
        flavour=SMALL,
        image=rig.image,
        address=f"10.77.1.{name.removeprefix('vn')}/16",
    )


def state(rig: Rig, name: str = "vn1", host: str = "") -> InstanceState | None:
    """What a fresh look at the instance says; None when the host does not have it."""
    seen = rig.provider.read(host or rig.provider.hosts[0], name)
    return None if seen is None else seen.state


def born(rig: Rig, name: str = "vn1") -> str:
    """Create an instance, wait until it runs, and return its host."""
    wanted = spec(rig, name)
    rig.provider.create(wanted)
    rig.until(lambda: state(rig, name) is InstanceState.RUNNING)
    return wanted.host


def known(rig: Rig, host: str, name: str = "vn1") -> Instance:
    seen = rig.provider.read(host, name)
    assert seen is not None
    return seen
