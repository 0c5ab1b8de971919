"""The cost of each step in simulated time; a runner adds these to calls that act at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Durations of outside steps, seconds (per MB where the name says so).

    Defaults: measured on a two-core machine with TCG guests of 256 MB under libvirt 9 and
    Slurm 22.05 / 24.11; learn your own from the journal of a run.
    """

    create_s: float = 0.3
    delete_s: float = 0.25
    boot_s: float = 5.2
    pause_s: float = 0.003
    throttle_s: float = 0.02
    thaw_s: float = 0.013
    suspend_s: float = 0.1
    suspend_s_per_mb: float = 0.012
    restore_s: float = 0.1
    restore_s_per_mb: float = 0.009
    migrate_s: float = 0.5
    migrate_s_per_mb: float = 0.006
    wake_s: float = 0.15
    wake_again_s: float = 0.15  # of a guest that stood still
    console_s: float = 0.01
    drain_s: float = 0.02
    undrain_s: float = 0.02
    create_node_s: float = 0.17
    slurm_call_s: float = 0.02
    observe_s: float = 0.05
    hook_s: float = 0.015

    def of(self, call: str, memory_mb: int = 0) -> float:
        """Seconds that the port call named `call` takes for an instance of `memory_mb`."""
        fixed = getattr(self, f"{call}_s", None)
        if fixed is None:
            fixed = self.slurm_call_s
        per_mb = getattr(self, f"{call}_s_per_mb", 0.0)
        return float(fixed) + float(per_mb) * memory_mb
