"""MPI over a job's own machines: two guests on two hosts, two on one host, and one guest with both CPUs.

All in one run, in turn. HPC Challenge (Debian's hpcc) gives latency, bandwidth and arithmetic of each
layout; ratios are to the one guest. In a last run a host is taken while `ring` (docs/mpi.md), which checks
each of its sums, is at work: the ranks stand still, go on, and every sum is right. Prints one line of JSON
last; medians.
"""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from statistics import median
from typing import Any

from backfill.lab import image
from backfill.lab.spec import LabSpec
from tests.bench.rig import Bed, result, wait_for

TRIALS = int(os.environ.get("BACKFILL_TRIALS", "3"))
_LIMIT_S = 1200.0
_MB = 448
# How the two ranks are laid out: options of sbatch, and the word by which the job asks for its machines.
_LAYOUTS: dict[str, tuple[tuple[str, ...], str]] = {
    "apart": (("-N2", "--ntasks-per-node=1"), f"cpus=1,mem={_MB},place=spread"),
    "together": (("-N2", "--ntasks-per-node=1"), f"cpus=1,mem={_MB},place=together"),
    "one": (("-N1", "--ntasks=2"), f"cpus=2,mem={2 * _MB}"),
}
# HPC Challenge of so small a size that an emulated guest is done within a minute or two.
_HPCC_INPUT = """HPLinpack benchmark input file
HPC Challenge
HPL.out
8
1
160
1
32
0
1
1
2
16.0
1
2
1
4
1
2
1
1
1
1
1
1
2
64
0
0
1
8
0
0
0
0
0
"""
_HPCC = {
    "hpl_tflops": "HPL_Tflops",
    "triad_gb_s": "StarSTREAM_Triad",
    "pingpong_us": "AvgPingPongLatency_usec",
    "pingpong_gb_s": "AvgPingPongBandwidth_GBytes",
    "ring_us": "RandomlyOrderedRingLatency_usec",
}
_COMMENT = re.compile(r"^ *Comment=(.*)$", re.MULTILINE)
_SHOWN = re.compile(r"([\w.-]+)=([-+.\deE]+)")


def _policy() -> dict[str, Any]:
    return {
        "own_machines": {"enabled": True, "start_within_s": _LIMIT_S},
        "scale": {"boot_within_s": _LIMIT_S},
        "limits": {"max_per_host": 4},
        "placement": {"cpu_overcommit": 3},
        "daemon": {"poll_s": 0.25, "host_poll_s": 1},
        "ladder": [{"rung": "pause", "within_s": 600}, {"rung": "requeue"}],
        "readiness": {"clock_within_s": 60, "munge_within_s": 60, "address_within_s": 60},
    }


def _script() -> str:
    """Run everything and leave the figures in the job's comment, as `name=figure` between semicolons."""
    step = "srun --mpi=pmix"
    lines = [
        "#!/bin/bash",
        "set -e -o pipefail",
        "figures=",
        "mkdir -p /tmp/hpcc && cd /tmp/hpcc && rm -f hpccoutf.txt",
        f"cat >hpccinf.txt <<'END'\n{_HPCC_INPUT}END",
        f"{step} hpcc",
        'grep -q "^Success=1" hpccoutf.txt',
        f"for key in {' '.join(_HPCC.values())}; do",
        '    figures+="$(grep "^$key=" hpccoutf.txt);"',
        "done",
        'scontrol update JobId=$SLURM_JOB_ID "Comment=$figures"',
    ]
    return "\n".join(lines) + "\n"


def _submit(bed: Bed, layout: str, *argv: str) -> str:
    """A job as job_submit.lua leaves it: held until its machines are there."""
    options, word = _LAYOUTS[layout]
    job = bed.sbatch("-p", "htc", "--hold", *options, "-D", "/tmp", *argv)
    asks = f"AdminComment=backfill-vm:held=1,{word}"
    # Slurm does it, and yet calls that a failure as long as no node is there for the job.
    bed.lab.run("ctl", ["scontrol", "update", f"JobId={job}", asks], check=False)
    if asks not in _shown(bed, job):
        raise RuntimeError(f"job {job} could not be told {asks}")
    return job


def _shown(bed: Bed, job: str) -> str:
    return bed.lab.run("ctl", ["scontrol", "show", "job", job]).stdout


def _run(bed: Bed, layout: str, script: str) -> dict[str, float]:
    """One job with machines of its own; its figures by name."""
    job = _submit(bed, layout, script)
    over = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")
    wait_for(lambda: bed.state(job) in over, _LIMIT_S, f"the end of job {job} ({layout})", 0.2)
    shown = _shown(bed, job)
    if bed.state(job) != "COMPLETED":
        raise RuntimeError(f"job {job} ({layout}) has failed: {shown}")
    wait_for(lambda: not bed.ask("nodes")["nodes"], _LIMIT_S, f"the end of the machines of {job}", 0.2)
    found = _COMMENT.search(shown)
    figures = {name: float(value) for name, value in _SHOWN.findall(found[1] if found else "")}
    return {name: figures[key] for name, key in _HPCC.items()}


def _pushed_aside(bed: Bed) -> bool:
    """Take the host of one rank while both are at work; whether the job goes on and its sums are right."""
    step = "exec srun --mpi=pmix /usr/local/bin/ring 100 100"
    job = _submit(bed, "apart", "--wrap", step)
    wait_for(lambda: bed.state(job) == "RUNNING", _LIMIT_S, f"the begin of job {job}", 0.1)
    host = bed.ask("nodes")["nodes"][0]["host"]
    high = bed.sbatch("-p", "batch", "-w", host, "--wrap", "sleep 5")
    wait_for(lambda: bed.state(job) == "SUSPENDED", _LIMIT_S, f"job {job} suspended", 0.05)
    bed.gone(high)
    wait_for(lambda: bed.state(job) in ("COMPLETED", "FAILED"), _LIMIT_S, f"the end of job {job}", 0.2)
    return bed.state(job) == "COMPLETED" and "Restarts=0" in _shown(bed, job)


def main() -> int:
    """Run TRIALS rounds of each layout, each in machines of its own, and print the medians."""
    bed = Bed(
        LabSpec(name=f"bench-mpi-{os.getpid()}", hosts=2, mpi=True),
        _policy(),
        image.build(recipe=image.Recipe(mpi=True)),
    )
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    try:
        script = bed.out / "mpi.sh"
        script.write_text(_script())
        for trial in range(1, TRIALS + 1):
            for layout in _LAYOUTS:
                figures = _run(bed, layout, str(script))
                print(f"round {trial} of {TRIALS}: {layout} {figures}", file=sys.stderr)
                for name, value in figures.items():
                    found[layout][name].append(value)
        right = _pushed_aside(bed)
    finally:
        bed.close()
    medians = {
        layout: {n: float(f"{median(v):.4g}") for n, v in values.items()} for layout, values in found.items()
    }
    one = medians["one"]
    ratios = {
        layout: {name: round(value / one[name], 2) for name, value in values.items() if one[name]}
        for layout, values in medians.items()
        if layout != "one"
    }
    result(
        benchmark="mpi",
        trials=TRIALS,
        share=round(medians["apart"]["hpl_tflops"] / one["hpl_tflops"], 3),
        share_against="one guest with both CPUs: without a guest, emulation would be all that is measured",
        share_ivshmem=None,
        why_share_ivshmem="Debian's Open MPI has no transport over ivshmem",
        paused_ok=right,
        moved_ok=None,
        why_moved_ok="tests/real/test_scenario_mpi.py moves one guest of a job",
        medians=medians,
        to_one_guest=ratios,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
