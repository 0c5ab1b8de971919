"""Files for `replay` with policies: a trace, and two policies that differ in their ladder."""

from __future__ import annotations

from pathlib import Path

from backfill.sim.traces.models import ModelJob
from backfill.sim.traces.swf import swf_lines
from backfill.ui.commands.replay import main
from tests.unit.policy_files import text

LIMITS = "limits: {max_per_host: 1}"
SMALL = "instances: {names: 'vn[1-2]', addresses: 10.0.1.1/16, flavour: {cpus: 1, memory_mb: 512}}"
KILL = "ladder: [{rung: requeue, within_s: 60s}]"


def written(where: Path) -> Path:
    """`t.swf`, `pause.yaml` and `kill.yaml`."""
    jobs = [ModelJob(0, 60, 1), ModelJob(300, 600, 2), ModelJob(1500, 60, 2), ModelJob(1500, 5, 9)]
    (where / "t.swf").write_text("".join(swf_lines(jobs, ())))
    (where / "pause.yaml").write_text(text(LIMITS, instances=SMALL))
    (where / "kill.yaml").write_text(text(LIMITS, KILL, instances=SMALL))
    return where


def replayed(files: Path, *options: str) -> int:
    """The exit status of a replay with `pause.yaml`."""
    arguments = [str(files / "t.swf"), "--cluster", "2x1", "--policy", str(files / "pause.yaml")]
    return main([*arguments, *options])
