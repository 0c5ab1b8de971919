"""What may not be exceeded, whatever the policies want."""

from __future__ import annotations

from dataclasses import dataclass

from backfill.core.model.keys import key


@dataclass(frozen=True, slots=True)
class Limits:
    """The blast radius: no single decision may exceed these limits. Times in seconds."""

    max_instances: int = key(100, "Instances in total.")
    max_per_host: int = key(16, "Instances on one host.")
    boots_at_once: int = key(
        4,
        "Instances, and parents of instant clones, that boot at the same time. A job's own machine that "
        "waits only for its fellows does not count.",
    )
    removals_at_once: int = key(
        8,
        "Instances without work that are removed at the same time, because nobody needs them "
        "or because Slurm no longer knows their nodes. Those that wait for a host that does not "
        "answer count for such hosts alone.",
    )
    destroys_per_min: int = key(
        6, "Instances with work that are destroyed within one minute, whatever the reason."
    )
    destroys_per_hour: int = key(
        60, "The same within one hour. At the limit, instances stand still and wait."
    )
    sure_after_s: float = key(10.0, "How long the reason must be read repeatedly before work is destroyed.")
    missing_s: float = key(
        600.0, "The same if the reason is that Slurm or a hypervisor no longer shows something."
    )
    creates_per_hour: int = key(500, "Instances made in one hour, failures included.")
    stale_after_s: float = key(
        60.0, "With a picture of Slurm older than this, the daemon only gives hosts back."
    )
    keep_cpus: int = key(0, "CPUs of each host that instances never take.")
    keep_memory_mb: int = key(0, "Memory of each host that instances never take.")
