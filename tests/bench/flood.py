"""What a flood of the web service costs real evictions, beside the same flood of a server that only refuses.

Real Slurm, a real guest that counts, and a job that takes its host again and again, while 500 clients
flood one server or the other, turn by turn, so that both have whatever else the machine does. Generator,
guest and servers share the machine. Prints one line of JSON last: seconds from slurmctld's allocation to the
job's first command, medians and 95th percentiles, and their ratios.
"""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from statistics import median, quantiles

import jwt

from backfill.lab.cluster import Lab
from backfill.lab.spec import LabSpec
from tests.bench.evict import CALM
from tests.bench.rig import Bed, result, wait_for
from tests.bench.web import CLIENTS, awaited, flooding, free_port, memory_mb, refuser, running

# So long each of them is flooded in all, and at a time.
_LENGTH_S = float(os.environ.get("BACKFILL_SECONDS", "600"))
_TURN_S = min(30.0, _LENGTH_S)
_PATIENCE_S = 300.0


def _policy(lab: Lab) -> dict[str, object]:
    """A quiet daemon, which lets everybody with a token read."""
    return {
        **CALM,
        "daemon": {**CALM["daemon"], "tokens": {"jwt_key": str(_key(lab))}},
        "access": {"reader": {"users": ["*"]}},
    }


def _key(lab: Lab) -> Path:
    path = lab.dir / "jwt.key"
    if not path.exists():
        path.touch(0o600)
        path.write_bytes(secrets.token_bytes(32))
    return path


@contextmanager
def _web(bed: Bed) -> Iterator[tuple[int, int]]:
    """The service with its unit's priority: port and process."""
    port = free_port()
    listen = ("--listen", f"127.0.0.1:{port}", "--socket", str(bed.lab.daemon_socket))
    with running("nice", "-n", "10", sys.executable, "-m", "backfill", "web", *listen) as web:
        awaited(port)
        yield port, web.pid


def _evicted(bed: Bed, low: str) -> float:
    """Take the host, give it back, and wait until the guest counts on."""
    bed.idle("bm1")
    took_s, _ = bed.timed("-w", "bm1", run_s=0.3)
    ended_s = bed.ended_s()
    wait_for(lambda: any(at_s > ended_s for at_s in bed.counts(low)[-9:]), _PATIENCE_S, "counting")
    return took_s


def main() -> int:
    """Flood in turns."""
    took_s: dict[str, list[float]] = defaultdict(list)
    with ExitStack() as stack:
        spec = LabSpec(name=f"bench-flood-{os.getpid()}", hosts=1, hooks="slurmctld")
        bed = stack.enter_context(closing(Bed(spec, _policy)))
        now = int(time.time())
        claims = {"sun": "cy", "iat": now, "exp": now + 86_400}
        token = jwt.encode(claims, _key(bed.lab).read_bytes(), "HS256")
        refused = stack.enter_context(refuser())
        port, pid = stack.enter_context(_web(bed))
        low = bed.count_until_seen(limit_s=_PATIENCE_S)
        _evicted(bed, low)  # warms caches and connections
        for turn in range(round(_LENGTH_S / _TURN_S)):
            for what, place in (("refuser", refused), ("web", port)):
                until_s = time.monotonic() + _TURN_S
                with flooding(place, token):
                    while time.monotonic() < until_s:
                        took_s[what].append(_evicted(bed, low))
            print(f"turn {turn + 1}: { ({k: len(v) for k, v in took_s.items()}) }", file=sys.stderr)
        most_mb = memory_mb(pid)
    figures: dict[str, object] = {
        "clients": CLIENTS,
        "seconds_each": _LENGTH_S,
        "web_memory_mb": round(most_mb, 1),
    }
    for what, all_s in took_s.items():
        figures[f"evictions_{what}"] = len(all_s)
        figures[f"median_{what}_s"] = round(median(all_s), 4)
        figures[f"p95_{what}_s"] = round(quantiles(all_s, n=20)[18], 4)
    figures["median_ratio"] = round(median(took_s["web"]) / median(took_s["refuser"]), 3)
    result(benchmark="flood", **figures)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
