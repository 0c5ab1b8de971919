"""Times the replay as a whole process on one CPU, beside AccaSim on the same trace.

Prints one line of JSON last. BACKFILL_TRACES names the folder with the archive's traces; without it
a folder `traces` beside the checkout, or in a folder beside it, is taken. Without instances: the
trace, a saturated one, a year of a million jobs. With the daemon's own plan in charge of every node
(`policy_...`): the trace by itself, the saturated one, and the first part of the trace with a
backlog that keeps instances on every idle node; jobs of both kinds are counted there. Modules are
compiled before anything is measured, as they are where the program is installed.
`policy_backlog_outcome` is a fingerprint of every start, end and eviction of that last one: a change
that is to make no difference but in speed leaves it as it is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import median

from backfill.sim.traces.models import ModelJob
from backfill.sim.traces.reader import read_trace
from backfill.sim.traces.swf import swf_lines
from backfill.sim.traces.trace import JobTrace

TRIALS = 5
NASA = "NASA-iPSC-1993-3.1-cln.swf.zip"
NASA_CLUSTER = "128x1"
MONTH_S = 30 * 86400
MONTH_BACKLOG = 24_000  # work for every node that the trace leaves idle in that month
ROOT = Path(__file__).resolve().parents[2]
BESIDE = ("traces", "*/traces")  # as seen from the folder that has the checkout in it
ACCASIM = "accasim==1.1.3"
REPLAY = (sys.executable, "-m", "backfill.ui.commands.replay")
WORKLOAD = (sys.executable, "-m", "backfill.ui.commands.workload")
# Modules are compiled once for all runs, whatever the environment says.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
POLICY = """cluster: bench
priorities: {low: [htc], high: [batch]}
hosts:
  - {name: n1, provider: simulated}
instances:
  names: v[1-4]
  addresses: 10.0.1.1/16
  flavour: {cpus: 1, memory_mb: 512}
limits: {max_instances: 128, max_per_host: 1, boots_at_once: 16, creates_per_hour: 100000}
"""
# AccaSim imports a name that Python 3.10 moved, hence the line about Mapping.
ACCASIM_RUN = """
import collections, collections.abc, sys
collections.Mapping = collections.abc.Mapping
from accasim.base.simulator_class import Simulator
from accasim.base.scheduler_class import EASYBackfilling
from accasim.base.allocator_class import FirstFit
Simulator(sys.argv[1], sys.argv[2], EASYBackfilling(FirstFit()), statistics_output=False,
          show_statistics=False, RESULTS_FOLDER_PATH=sys.argv[3]).start_simulation()
"""


@dataclass(frozen=True)
class Cost:
    wall_s: float
    cpu_s: float
    peak_bytes: int


def run(command: Sequence[str | Path]) -> Cost:
    """Run to the end and return what this process used; RuntimeError if it failed."""
    began_s = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=ENVIRONMENT)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            output.seek(0)
            raise RuntimeError(output.read().decode("utf-8", "replace")[-500:])
    wall_s = time.perf_counter() - began_s
    return Cost(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def replay(trace: Path, cluster: str, work: Path) -> Cost:
    return run([*REPLAY, trace, "--cluster", cluster, "--no-instances", "--jobs-csv", work / "o"])


def jobs_per_cpu_s(trace: Path, cluster: str, work: Path) -> float:
    """Jobs of the result over the median CPU time of the whole process."""
    cpu_s = median(replay(trace, cluster, work).cpu_s for _ in range(TRIALS))
    with (work / "o").open("rb") as rows:
        return (sum(1 for _ in rows) - 1) / cpu_s


def with_policy(trace: Path, cluster: str, work: Path) -> float:
    """Jobs per CPU second of a trace under a policy, by the median CPU time.

    The run without instances, which every replay with a policy has as well, is part of it.
    """
    rows = read_trace(trace).fitting(int(cluster.partition("x")[0]))
    command = under_policy(trace, cluster, work)
    return len(rows) / median(run(command).cpu_s for _ in range(TRIALS))


def with_backlog(trace: Path, work: Path, jobs: int, backlog: int) -> float:
    """The same of the first `jobs` of the NASA trace and of a backlog together."""
    rows = read_trace(trace).fitting(int(NASA_CLUSTER.partition("x")[0]))
    rows = rows.taken(range(min(jobs, len(rows))), {})
    command = beside_backlog(rows, work, backlog)
    return (len(rows) + backlog) / median(run(command).cpu_s for _ in range(TRIALS))


def backlog_outcome(trace: Path, work: Path, jobs: int, backlog: int) -> str:
    """Return a fingerprint of what becomes of each job and each instance."""
    rows = read_trace(trace).fitting(int(NASA_CLUSTER.partition("x")[0]))
    rows = rows.taken(range(min(jobs, len(rows))), {})
    told = [work / "outcome.csv", work / "outcome.json"]
    run([*beside_backlog(rows, work, backlog), "--jobs-csv", told[0], "--perfetto", told[1]])
    return sha256(b"".join(path.read_bytes() for path in told)).hexdigest()[:16]


def backlog_month_s(trace: Path, work: Path) -> float:
    """CPU seconds of a trace's first month with a backlog that keeps every idle node at work."""
    rows = read_trace(trace).fitting(int(NASA_CLUSTER.partition("x")[0]))
    month = [number for number, at_s in enumerate(rows.submit) if at_s < rows.submit[0] + MONTH_S]
    return run(beside_backlog(rows.taken(range(len(month)), {}), work, MONTH_BACKLOG)).cpu_s


def beside_backlog(rows: JobTrace, work: Path, backlog: int) -> list[str | Path]:
    """The command that replays these jobs beside so many low-priority ones that wait at time 0."""
    first = work / "first.swf"
    columns = zip(rows.submit, rows.run, rows.processors, rows.estimate, strict=True)
    first.write_text("".join(swf_lines((ModelJob(*row) for row in columns), ())), encoding="utf-8")
    return [*under_policy(first, NASA_CLUSTER, work), "--backlog", f"htc:{backlog}"]


def under_policy(trace: Path, cluster: str, work: Path) -> list[str | Path]:
    """The command that replays a trace with the policy on every node."""
    policy = work / "policy.yaml"
    policy.write_text(POLICY)
    return [*REPLAY, trace, "--cluster", cluster, "--policy", policy, "--all-nodes"]


def draw(work: Path, *arguments: str) -> Path:
    """Draw a workload in a process of its own, so that ours stays small."""
    path = work / f"{'-'.join(arguments).replace('--', '')}.swf"
    run([*WORKLOAD, *arguments, "--seed", "1", "-o", path])
    return path


def accasim_python() -> Path:
    """Return the Python of a virtual environment with AccaSim, made on first use."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "backfill-bench" / ACCASIM.replace("==", "-")
    python = home / "bin" / "python"
    if not (home / "ready").exists():
        venv.create(home, with_pip=True, clear=True)
        run([python, "-m", "pip", "install", "--quiet", ACCASIM])
        (home / "ready").touch()
    return python


def accasim_jobs_per_cpu_s(trace: Path, work: Path) -> float:
    """Run AccaSim's EASY on the same jobs, cleaned as it needs them: estimates filled in."""
    python = accasim_python()
    jobs = read_trace(trace)
    columns = zip(jobs.submit, jobs.run, jobs.processors, jobs.estimate, strict=True)
    cleaned, config = work / "cleaned.swf", work / "system.json"
    cleaned.write_text("".join(swf_lines((ModelJob(*row) for row in columns), ())), encoding="utf-8")
    nodes = int(NASA_CLUSTER.partition("x")[0])
    groups = {"groups": {"g": {"core": 1}}, "resources": {"g": nodes}, "start_time": 0}
    config.write_text(json.dumps(groups | {"equivalence": {"processor": {"core": 1}}}))
    cost = run([python, "-c", ACCASIM_RUN, cleaned, config, work / "accasim"])
    done = sum(1 for _ in (work / "accasim" / "sched-cleaned.swf").open("rb"))
    return done / cost.cpu_s


def nasa_trace() -> Path | None:
    """Return the NASA trace of the archive, or None where it is not at hand.

    The folder that BACKFILL_TRACES names is the only one then; else the first that has it is taken.
    """
    named = os.environ.get("BACKFILL_TRACES")
    beside = (path for pattern in BESIDE for path in sorted(ROOT.parent.glob(pattern)))
    folders = [Path(named)] if named else beside
    return next((folder / NASA for folder in folders if (folder / NASA).is_file()), None)


def unsaturated(work: Path) -> tuple[Path, dict[str, object]]:
    """Return the NASA trace, or in its place a generated one and the reason."""
    trace = nasa_trace()
    if trace is not None:
        return trace, {}
    reason = f"no {NASA}: BACKFILL_TRACES names no folder with it, and none is beside the checkout"
    path = draw(work, "lublin", "--jobs", "18000", "--processors", "128", "--load", "0.47")
    return path, {"nasa_jobs_per_cpu_s": None, "why_nasa_jobs_per_cpu_s": reason}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        ENVIRONMENT["PYTHONPYCACHEPREFIX"] = str(work / "compiled")
        trace, row = unsaturated(work)
        with_backlog(trace, work, 1, 1)
        rate = jobs_per_cpu_s(trace, NASA_CLUSTER, work)
        row["sample_jobs_per_cpu_s" if row else "nasa_jobs_per_cpu_s"] = round(rate)
        row["policy_jobs_per_cpu_s"] = round(with_policy(trace, NASA_CLUSTER, work))
        row["policy_backlog_jobs_per_cpu_s"] = round(with_backlog(trace, work, 100, 300), 1)
        row["policy_backlog_outcome"] = backlog_outcome(trace, work, 100, 300)
        row["backlog_month_s"] = round(backlog_month_s(trace, work), 1)
        tiny = draw(work, "poisson", "--jobs", "10")
        full = draw(work, "lublin", "--jobs", "10000", "--processors", "256", "--load", "1.5")
        row["saturated_jobs_per_cpu_s"] = round(jobs_per_cpu_s(full, "256x1", work))
        row["policy_saturated_jobs_per_cpu_s"] = round(with_policy(full, "256x1", work))
        # 25.3 times 256 processors is 79 % of 8,192, and makes a million jobs last one year.
        shape = ("--jobs", "1000000", "--processors", "256", "--load", "25.3")
        year = draw(work, "lublin", *shape, "--estimate-factor", "5")
        base = replay(tiny, "8192x1", work)
        cost = replay(year, "8192x1", work)
        row |= {"million_s": round(cost.wall_s, 2), "million_cpu_s": round(cost.cpu_s, 2)}
        row["bytes_per_job"] = round((cost.peak_bytes - base.peak_bytes) / 1e6)
        try:
            other = accasim_jobs_per_cpu_s(trace, work)
            row |= {"accasim_jobs_per_cpu_s": round(other), "accasim_ratio": round(rate / other, 1)}
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            reason = f"AccaSim did not run: {str(error).strip()[-200:]}"
            row |= {"accasim_jobs_per_cpu_s": None, "why_accasim_jobs_per_cpu_s": reason}
        print(json.dumps(row | {"trials": TRIALS}))


if __name__ == "__main__":
    main()
