"""Readiness: what a node must prove before it takes jobs, and for how long it may try."""

from __future__ import annotations

from dataclasses import dataclass

from backfill.core.readiness import ADDRESS, CLOCK, FILES, MUNGE, SALT, kind_of


@dataclass(frozen=True, slots=True)
class Readiness:
    """Times in seconds. A check that has not held within its time fails the node."""

    # The guest's clock may be so far off the controller's, the error of measuring included.
    clock_offset_s: float = 1.0
    # The guest's clock is within clock_offset_s.
    clock_within_s: float = 15.0
    # A credential made at the controller is understood in the guest, and the other way round.
    munge_within_s: float = 15.0
    # Every file system that guests mount is mounted, and writable where it should be.
    files_within_s: float = 60.0
    # The address that the node was promised under.
    address_within_s: float = 15.0
    # Everything is as Salt's states say; only asked for where `salt.gate` is on.
    salt_within_s: float = 120.0
    # Between two tries.
    retry_s: float = 0.5
    # After so many failures in a row on one host, or of one image on any host, nothing more is
    # made there for rest_s; then a single try decides.
    break_after: int = 3
    # How long nothing is made there then.
    rest_s: float = 600.0

    def within_s(self, check: str) -> float:
        """How long a check may go on failing; 0 for what time cannot change."""
        limits = {
            CLOCK: self.clock_within_s,
            MUNGE: self.munge_within_s,
            FILES: self.files_within_s,
            ADDRESS: self.address_within_s,
            SALT: self.salt_within_s,
        }
        return limits.get(kind_of(check), 0.0)
