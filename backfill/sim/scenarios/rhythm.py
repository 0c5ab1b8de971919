"""Periods and phases of what comes round on a cluster: the clocks of a play there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Seconds; `..._at_s` from the beginning of the story on. A second run has other phases."""

    # How long the daemon has been there at the beginning; it reads the outside since then.
    lead_s: float = 0.0
    # Slurm looks at its queue so often; when it does so once.
    tick_s: float = 1.0
    tick_at_s: float = 0.0
    # It does not look before then: a slurmctld that has just started.
    first_at_s: float = 0.0
    # Whoever submits looks so often whether the moment has come; 0: notices at once.
    look_s: float = 0.0
    # What one number of a counting job takes; 0: as the scenario says.
    count_s: float = 0.0
