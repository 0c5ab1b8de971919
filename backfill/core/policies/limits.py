"""What may not be exceeded, whatever the policies want."""

from __future__ import annotations

from dataclasses import dataclass

from backfill.core.model.keys import key


@dataclass(frozen=True, slots=True)
class Limits:
    """The blast radius: no single decision may go further. Times in seconds."""

    max_instances: int = key(100, "Instances in all.")
    max_per_host: int = key(16, "Instances on one host.")
    boots_at_once: int = key(4, "Instances, and parents of instant clones, that boot at the same time.")
    removals_at_once: int = key(
        8,
        "Instances without work that are being removed at the same time, because nobody needs them or "
        "because Slurm does not know their nodes any more.",
    )
    destroys_per_min: int = key(
        6, "Instances with work that are destroyed within one minute, whatever the reason."
    )
    destroys_per_hour: int = key(
        60, "The same within one hour. Where it is reached they stand still, and wait."
    )
    sure_after_s: float = key(
        10.0, "Before work is destroyed the reason has to be read again and again for so long."
    )
    missing_s: float = key(
        600.0, "The same where the reason is that Slurm or a hypervisor does not show something any more."
    )
    creates_per_hour: int = key(500, "Instances made in one hour, failures included.")
    stale_after_s: float = key(
        60.0, "A picture of Slurm older than this is not acted upon, except for giving hosts back."
    )
    keep_cpus: int = key(0, "CPUs of each host that instances never take.")
    keep_memory_mb: int = key(0, "Memory of each host that instances never take.")
