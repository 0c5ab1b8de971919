"""Makes slurmctld read its configuration anew: a reconfigure, or a restart where allowed."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from backfill.core.model.cluster import SlurmVersion
from backfill.drivers.slurm.commands import SlurmTools
from backfill.drivers.slurm.conf.managed import Managed
from backfill.ports.errors import DriverError, RefusedError

# Older releases end themselves at a reconfigure that changes how many nodes there are.
COUNT_MAY_CHANGE = (23, 11)
# Whether there are such programs at all, those releases look only at their start (seen on 22.05).
_AT_START = frozenset({"PrologSlurmctld", "EpilogSlurmctld"})


@dataclass(frozen=True, slots=True)
class Reload:
    """`restart` is the command that restarts slurmctld; empty: it must never be restarted."""

    restart: tuple[str, ...] = ()
    timeout_s: float = 120.0

    def check(self, version: SlurmVersion, old: Managed, new: Managed) -> bool:
        """Return True if this change needs a restart; RefusedError when the policy forbids that."""
        if version.major >= COUNT_MAY_CHANGE:
            return False
        if old.names() == new.names():
            return bool(self.restart) and _at_start(old) != _at_start(new)
        if not self.restart:
            raise RefusedError(
                "slurmctld",
                f"Slurm {version} takes another number of nodes only at a restart of slurmctld, "
                "which the policy file does not allow",
                "set slurm.restart to the command that restarts it",
            )
        return True

    def hint(self, version: SlurmVersion, old: Managed, new: Managed) -> str | None:
        """Say what takes effect only later, because a restart is not allowed; None: nothing does."""
        late = version.major < COUNT_MAY_CHANGE and _at_start(old) != _at_start(new)
        if not late or self.restart:
            return None
        return (
            f"Slurm {version} begins or ceases to call {' and '.join(sorted(_AT_START))} only when "
            "slurmctld is restarted; do that when it suits you"
        )

    def carry_out(self, commands: SlurmTools, *, restart: bool) -> None:
        """Reload: raises UnreachableError if slurmctld is asked and does not answer."""
        if restart:
            self._restart()
        else:
            commands.run(["scontrol", "reconfigure"])

    def _restart(self) -> None:
        words = " ".join(self.restart)
        try:
            done = subprocess.run(
                self.restart, capture_output=True, text=True, timeout=self.timeout_s, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DriverError("slurmctld", f"'{words}' failed: {error}") from error
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise DriverError("slurmctld", f"'{words}' failed: {' '.join(said)}")


def _at_start(managed: Managed) -> frozenset[str]:
    return _AT_START.intersection(key for key, _ in managed.pairs())
