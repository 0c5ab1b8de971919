"""A day of pilots on hosts that others want: what is kept, lost and left idle, beside two rivals.

Payloads of 1 to 10 minutes, one in each pilot; each of 16 hosts is wanted every 30 minutes on
average, for a lognormal stay with a median of 5 minutes. The rivals: plain requeue, and never
evicting, where whoever wants a host waits for the end of a payload. Two arguments: hours (24), seed (1).
"""

from __future__ import annotations

import heapq
import json
import math
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from backfill.core.model.fleet import Flavour, Rung
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.limits import Limits
from backfill.core.policies.scale import Scale
from backfill.core.policies.workloads import ReadyMade, Workload, Workloads
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.sim.replay.fitting import depth_for, everywhere, memory_for, node_names
from backfill.sim.replay.policy_replay import Setting, reference, run
from backfill.sim.schedulers.machine import Cluster
from backfill.sim.traces.trace import JobTrace, TraceBuilder
from backfill.ui.report.figures import summary

HOSTS = 16
EVERY_S, STAY_S, SIGMA = 1800.0, 300.0, 1.0
SHORTEST_S, LONGEST_S = 60, 600
LIMIT_S = 3600  # what the owners of high-priority jobs ask for, if they need no more


@dataclass(frozen=True, slots=True)
class DayRow:
    """One line of the table: shares of what the hosts had, and what high-priority jobs waited, s."""

    name: str
    goodput: float
    badput: float
    idle: float
    payloads: int
    wait_mean_s: float
    wait_p95_s: float
    lost_by: dict[str, float]

    @property
    def lost(self) -> float:
        """Badput as a share of all that payloads computed."""
        return self.badput / (self.goodput + self.badput)


def wanted(hours: float, seed: int) -> JobTrace:
    """Return the jobs that want a whole host each."""
    draw, builder, at_s = random.Random(f"wanted {seed}"), TraceBuilder(), 0.0
    number = 0
    while at_s < hours * 3600:
        number += 1
        at_s += draw.expovariate(HOSTS / EVERY_S)
        stay_s = max(1, round(draw.lognormvariate(math.log(STAY_S), SIGMA)))
        builder.add(number, round(at_s), stay_s, 1, max(LIMIT_S, stay_s))
    return builder.build()


def payloads(hours: float, seed: int, longest_s: int = LONGEST_S) -> JobTrace:
    """Return more of them than there is time for."""
    draw, builder = random.Random(f"payloads {seed}"), TraceBuilder()
    shortest_s = min(SHORTEST_S, longest_s)
    for number in range(1, int(HOSTS * hours * 3600 / ((shortest_s + longest_s) / 2)) + 2 * HOSTS):
        run_s = longest_s if longest_s == shortest_s else draw.randint(shortest_s, longest_s)
        builder.add(number, 0, run_s, 1, run_s)
    return builder.build()


def policies() -> dict[str, PolicySet]:
    """Return ours, for a pool of the site's own and for an unknown one, and plain requeue."""
    ours = PolicySet(
        cluster="osg",
        priorities=Priorities(low=("htc",), high=("batch",)),
        instances=Template(("vn1",), ("10.77.1.1/16",), Flavour(cpus=1, memory_mb=1024)),
        hosts=("bm1",),
        scale=Scale(idle_s=3600.0),
        limits=Limits(
            max_instances=HOSTS, creates_per_hour=10_000, destroys_per_min=1000, destroys_per_hour=60_000
        ),
    )
    ours = everywhere(ours, Cluster(HOSTS, 1))
    like = {"own pool": ReadyMade.CONDOR, "unknown pool": ReadyMade.OSPOOL}
    found = {
        name: replace(ours, workloads=Workloads((Workload("pilots", like=kind),)))
        for name, kind in like.items()
    }
    return {**found, "plain requeue": replace(ours, ladder=Ladder((RungRule(Rung.REQUEUE),)))}


def played(hours: float, seed: int, longest_s: int = LONGEST_S) -> Iterator[DayRow]:
    """Yield a row for each policy, and one for never evicting."""
    cluster, named = Cluster(HOSTS, 1), policies()
    first = next(iter(named.values()))
    setting = Setting(
        cluster,
        wanted(hours, seed),
        payloads(hours, seed, longest_s),
        node_names(first, cluster),
        4 * memory_for(first, cluster),
        depth_for(first, cluster),
        seed=seed,
    )
    bare = reference(setting, first)
    for name, one in named.items():
        result = run(setting, one, bare.ledger.window.end_s)
        made = summary(result, bare)
        harvest = made.harvest
        used = harvest.high_core_s + harvest.goodput_core_s + harvest.badput_core_s
        waits = sorted(tale.start_s - tale.submit_s for tale in result.tales if tale.high)
        yield DayRow(
            name,
            harvest.goodput_core_s / harvest.capacity_core_s,
            harvest.badput_core_s / harvest.capacity_core_s,
            1.0 - used / harvest.capacity_core_s,
            made.low_completed,
            sum(waits) / len(waits),
            waits[int(0.95 * len(waits))],
            {why: lost / harvest.capacity_core_s for why, lost in made.badput_core_s.items()},
        )
    yield never(setting, bare.ledger.window.end_s - bare.ledger.window.start_s)


def never(setting: Setting, window_s: float) -> DayRow:
    """Return what comes of it when nobody is evicted: who wants a host gets the next that is free."""
    high, low = setting.high, setting.low
    assert low is not None
    free: list[tuple[float, int]] = [(0.0, host) for host in range(HOSTS)]  # until when each is busy
    start_s, work = high.submit[0], iter(low.run)
    waits: list[float] = []
    good_s = high_s = 0.0
    done, number = 0, 0
    while free and number <= len(high):
        at_s, host = heapq.heappop(free)
        if number < len(high) and high.submit[number] - start_s <= at_s:
            waits.append(at_s - (high.submit[number] - start_s))
            end_s = at_s + high.run[number]
            high_s += max(0.0, min(end_s, window_s) - at_s)
            number += 1
        else:
            run_s = next(work, None)
            if run_s is None or at_s >= window_s:
                if number >= len(high):
                    continue
                end_s = max(at_s, float(high.submit[number] - start_s))
            else:
                end_s = at_s + run_s
                good_s += max(0.0, min(end_s, window_s) - at_s)
                done += end_s <= window_s
        heapq.heappush(free, (end_s, host))
    capacity_s = HOSTS * window_s
    waits.sort()
    idle = 1.0 - (good_s + high_s) / capacity_s
    mean_s = sum(waits) / len(waits)
    return DayRow(
        "never evicting", good_s / capacity_s, 0.0, idle, done, mean_s, waits[int(0.95 * len(waits))], {}
    )


def main() -> None:
    """Print the table, and one line of JSON last."""
    hours = float(sys.argv[1]) if len(sys.argv) > 1 else 24.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    rows = list(played(hours, seed))
    print(f"{HOSTS} hosts, {hours:g} h, seed {seed}")
    titles = ("goodput", "badput", "idle", "of payloads lost", "payloads", "high waits, mean", "p95")
    print(f"{'':16}" + "".join(f"{title:>18}" for title in titles))
    for row in rows:
        shares = (row.goodput, row.badput, row.idle, row.lost)
        cells = [*(f"{100 * share:.2f} %" for share in shares), str(row.payloads)]
        cells += [f"{row.wait_mean_s:.3f} s", f"{row.wait_p95_s:.3f} s"]
        print(f"{row.name:16}" + "".join(f"{cell:>18}" for cell in cells))
        for why, share in row.lost_by.items():
            print(f"  badput by {why}: {100 * share:.2f} %")
    told = [{"name": r.name, "goodput": r.goodput, "badput": r.badput, "idle": r.idle} for r in rows]
    print(json.dumps({"osg_day": told}))


if __name__ == "__main__":
    main()
