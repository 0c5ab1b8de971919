"""Three ways of cloning: from the decision to a node that takes jobs, by step, and memory.

Each round starts from nothing: one waiting job, no instance; `*_s` ends when the node has proven
itself and is released to Slurm. Then eight booted and eight instant clones stand on one host, and
the memory of their emulators is read as PSS. One line of JSON comes last; seconds, medians.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from statistics import median, quantiles
from typing import Any

from backfill.core.model.fleet import CloneMethod
from backfill.lab.spec import LabSpec
from tests.bench.join import Story
from tests.bench.memory import pss_mb
from tests.bench.rig import COUNTER, Bed, result, wait_for
from tests.contract.instance_rig import spec
from tests.real.libvirt_rig import LibvirtRig, running_lab

TRIALS = int(os.environ.get("BACKFILL_TRIALS", "7"))
MEMBERS = 8
AT_ONCE = 2


def policy(method: CloneMethod) -> dict[str, Any]:
    """Instances go soon after their job, so that the next round starts from nothing."""
    return {"cloning": {"method": str(method)}, "scale": {"idle_s": 2}, "limits": {"max_instances": 1}}


def one_round(bed: Bed) -> dict[str, float]:
    """One instance for one job; seconds of each step and of all of them."""
    job = bed.sbatch("-p", "htc", str(COUNTER), "5", "0.01")
    wait_for(lambda: bed.counts(job), 120, f"the first word of job {job}")
    story = Story(bed)
    decided_s, registered_s = story.decided_s(), story.registered_s()
    created_s, ready_s = story.outcome_s("CreateInstance"), story.ready_s()
    bed.gone(job)
    wait_for(lambda: not bed.ask("nodes")["nodes"], 60, "the instance's removal")
    return {
        "create": created_s - decided_s,
        "register": registered_s - created_s,
        "prove": ready_s - registered_s,
        "total": ready_s - decided_s,
    }


def rounds(method: CloneMethod) -> dict[str, list[float]]:
    """TRIALS rounds after one that makes the parent and warms the caches."""
    bed = Bed(LabSpec(name=f"bench-clone-{os.getpid()}", hosts=1), policy(method))
    steps: dict[str, list[float]] = defaultdict(list)
    try:
        for trial in range(TRIALS + 1):
            times = one_round(bed)
            print(f"{method} {trial} of {TRIALS}: {times['total']:.2f} s", file=sys.stderr)
            for name, taken_s in times.items():
                steps["first" if not trial else name].append(taken_s)
    finally:
        bed.close()
    return steps


def memory() -> dict[str, float]:
    """PSS per emulator, MB, with MEMBERS of one kind on a host."""
    found = {}
    with running_lab(f"bench-memory-{os.getpid()}") as lab:
        rig = LibvirtRig(lab)
        host = rig.provider.hosts[0]
        names = [f"vn{k}" for k in range(1, MEMBERS + 1)]

        def make(name: str, method: CloneMethod) -> None:
            rig.provider.create(replace(spec(rig, name), method=method))
            rig.until(lambda: "BACKFILL-READY" in rig.console_text(name), 120)

        for kind, method in (("booted", CloneMethod.LINKED), ("instant", CloneMethod.INSTANT)):
            with ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(make, names, [method] * MEMBERS))
            # At work: what waking and a look at its jobs touch belongs to every instance.
            for name in names:
                rig.provider.wake(host, name, rig.provider.observe(host).seen_s)
            found[kind] = median(pss_mb(rig.qemu_pid(host, name)) for name in names)
            for name in names:
                rig.provider.delete(host, name)
        rig.end()
    return found


def main() -> int:
    """All three methods one after the other, then memory."""
    figures: dict[str, Any] = {"trials": TRIALS}
    for method in CloneMethod:
        steps = rounds(method)
        figures[f"{method}_s"] = round(median(steps["total"]), 3)
        figures[f"{method}_p95_s"] = round(_p95(steps["total"]), 3)
        figures[f"{method}_steps_s"] = {
            name: {"median": round(median(values), 3), "p95": round(_p95(values), 3)}
            for name, values in steps.items()
            if name not in ("total", "first")
        }
        figures[f"{method}_first_s"] = round(steps["first"][-1], 3)
    pss = memory()
    saved = 1 - pss["instant"] / pss["booted"]
    result(
        benchmark="clone",
        **figures,
        pss_mb_booted=round(pss["booted"], 1),
        pss_mb_instant=round(pss["instant"], 1),
        memory_saved=round(saved, 3),
    )
    return 0


def _p95(values: list[float]) -> float:
    return quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]


if __name__ == "__main__":
    sys.exit(main())
