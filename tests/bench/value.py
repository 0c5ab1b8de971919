"""What each ladder is worth on one idle trace with one HTC backlog, side by side.

Kill, kill with jobs that save themselves every Daly interval, pause and suspend, and the same with
moves. Prints a table and one line of JSON last. Two arguments: high-priority jobs of the trace to
replay (120), and instances per eight hosts (8: every host may carry one; 2: work has to move).
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from backfill.core.model.fleet import Flavour, Rung
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.limits import Limits
from backfill.core.policies.saving import daly_s
from backfill.core.policies.scale import Scale
from backfill.core.policies.victims import Victims
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.sim.replay.fitting import depth_for, everywhere, memory_for, node_names
from backfill.sim.replay.policy_replay import Setting, reference, run
from backfill.sim.scenarios.shipped import located
from backfill.sim.schedulers.machine import Cluster
from backfill.sim.traces.models import htc_pilot
from backfill.sim.traces.reader import read_trace
from backfill.sim.traces.trace import JobTrace, TraceBuilder
from backfill.ui.report.figures import FIGURES, Summary, summary

CLUSTER = Cluster(64, 1)
SAVE_S = 30.0
BACKLOG = 4000
_FOREVER_S = 30 * 86400.0
_PAUSE = RungRule(Rung.PAUSE, within_s=1.0, for_s=60.0)
_SUSPEND = RungRule(Rung.SUSPEND, within_s=60.0, for_s=_FOREVER_S)
_MIGRATE = RungRule(Rung.MIGRATE, within_s=60.0)
_REQUEUE = RungRule(Rung.REQUEUE)
LADDERS = {
    "kill": Ladder((_REQUEUE,)),
    "checkpoint": Ladder((_REQUEUE,)),
    "pause": Ladder((_PAUSE, _SUSPEND, _REQUEUE)),
    "migrate": Ladder((_PAUSE, _MIGRATE, _SUSPEND, _REQUEUE)),
}
SHOWN = (
    "high_utilisation",
    "useful_utilisation",
    "harvested_fraction",
    "goodput_share",
    "goodput_core_h",
    "badput_core_h",
    "low_completed",
    "low_attempts_lost",
    "preemptions",
    "vacate_p99_s",
    "delay_mean_s",
    "delay_p99_s",
    "delay_max_s",
)


def policies(ladder: Ladder, instances: int) -> PolicySet:
    """One instance of one CPU on each host, `instances` in all; killing is never softened."""
    return PolicySet(
        cluster="bench",
        priorities=Priorities(low=("htc",), high=("batch",)),
        instances=Template(("vn1",), ("10.128.0.1/8",), Flavour(cpus=1, memory_mb=512)),
        hosts=(),
        ladder=ladder,
        victims=Victims(protect_after=0),
        scale=Scale(idle_s=60.0),
        limits=Limits(
            max_instances=instances,
            max_per_host=1,
            boots_at_once=16,
            removals_at_once=64,
            creates_per_hour=100_000,
        ),
    )


def backlog() -> JobTrace:
    """Grid work that all waits at the beginning."""
    builder = TraceBuilder()
    for number, job in enumerate(htc_pilot(7, BACKLOG, 1.0, backlog=BACKLOG), 1):
        builder.add(number, job.submit_s, job.run_s, job.processors, job.estimate_s)
    return builder.build()


def main() -> int:
    """Replay all four and print."""
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 120
    per_eight = int(sys.argv[2]) if len(sys.argv) > 2 else 8
    whole = read_trace(located(Path("traces/lublin-64")))
    high = whole.taken(range(min(jobs, len(whole))), {})
    first = everywhere(policies(LADDERS["kill"], CLUSTER.nodes * per_eight // 8), CLUSTER)
    setting = Setting(
        CLUSTER,
        high,
        backlog(),
        node_names(first, CLUSTER),
        memory_for(first, CLUSTER),
        depth_for(first, CLUSTER),
        seed=1,
    )
    bare = reference(setting, first)
    end_s = bare.ledger.window.end_s
    found: dict[str, Summary] = {}
    every_s = 0.0
    for name, ladder in LADDERS.items():
        given = setting
        if name == "checkpoint":
            kill = found["kill"]
            held_s = kill.harvest.goodput_core_s + kill.harvest.badput_core_s
            mean_s = held_s / max(1, kill.evictions.vacate_s.count)
            every_s = daly_s(SAVE_S, mean_s)
            given = replace(setting, saves_every_s=every_s, save_s=SAVE_S)
        played = run(given, replace(first, ladder=ladder), end_s)
        found[name] = summary(played, bare)
    _print(found, every_s)
    keyed = {
        name: {
            figure.key: None if value is None else round(value, 4)
            for figure in FIGURES
            if figure.key in SHOWN
            for value in [figure.of(one)]
        }
        for name, one in found.items()
    }
    line = {"bench": "value", "jobs": len(high), "saves_every_s": round(every_s), **keyed}
    print(json.dumps(line))
    return 0


def _print(found: dict[str, Summary], every_s: float) -> None:
    print(f"checkpoint: every {every_s:.0f} s of computing (Daly), {SAVE_S:.0f} s each")
    print(f"{'':46}" + "".join(f"{name:>14}" for name in found))
    for figure in FIGURES:
        if figure.key in SHOWN:
            values = "".join(f"{figure.shown(figure.of(one)):>14}" for one in found.values())
            print(f"{figure.title:46}{values}")


if __name__ == "__main__":
    sys.exit(main())
