"""What a driver may be asked to do with the devices of an instance."""

from __future__ import annotations

from dataclasses import dataclass

from backfill.core.devices import Sharing, Wanted


@dataclass(frozen=True, slots=True)
class HoldDevices:
    """Give the instance what its job asks for, and plug it into the guest."""

    name: str
    generation: int
    host: str
    wanted: Wanted
    sharing: Sharing
    reason: str

    @property
    def job_id(self) -> str:
        """The job that asks for them."""
        return self.wanted.job


@dataclass(frozen=True, slots=True)
class ReturnDevices:
    """Take all devices out of the guest and let others have them."""

    name: str
    generation: int
    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class UnplugDevices:
    """Tell the guest, and take its devices out, so that its memory can be written to disk."""

    name: str
    generation: int
    host: str
    reason: str


@dataclass(frozen=True, slots=True)
class PlugDevices:
    """Put into the guest what it holds, and tell it: its job goes on."""

    name: str
    generation: int
    host: str
    job_id: str
    reason: str
