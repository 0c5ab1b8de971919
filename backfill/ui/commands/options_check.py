"""Whether users have the options by which a job asks for machines of its own, and none that is broken."""

from __future__ import annotations

from dataclasses import dataclass

from backfill.config.model import Config
from backfill.drivers.slurm.spank.install import DIRECTORY
from backfill.ports.errors import DriverError
from backfill.ui import slurm_parts


@dataclass(frozen=True, slots=True)
class OptionsFound:
    """`lack`: why users have no options, which is allowed; `problems`: what is broken; a sentence each."""

    lack: str = ""
    problems: tuple[str, ...] = ()


def check_options(config: Config) -> OptionsFound:
    """Ask Slurm's tools here, where the policy file lets jobs have machines of their own."""
    if not config.policies.own_machines.enabled:
        return OptionsFound()
    again = f"backfill slurm spank install --config {config.source}"
    try:
        status = slurm_parts.spank(config, DIRECTORY).status()
    except DriverError as error:
        return OptionsFound(problems=(f"sbatch cannot be asked for its options: {error}",))
    except OSError as error:
        why = f"{error.filename} cannot be read: {error.strerror}"
        return OptionsFound(problems=(f"the plugin for sbatch: {why}; let Slurm's users read it",))
    if not status.installed:
        lack = (
            f"own_machines.enabled is true, and sbatch here has no option for it ({status.plugstack} names "
            f"no plugin of ours), so that jobs ask by a word, constraint or partition alone; {again}"
        )
        return OptionsFound("" if status.offered else lack)
    return OptionsFound(problems=tuple(_with_remedy(problem, again) for problem in status.problems))


def _with_remedy(problem: str, again: str) -> str:
    what = problem.partition("; ")[0]
    return f"the plugin for sbatch: {what}; {again}"
