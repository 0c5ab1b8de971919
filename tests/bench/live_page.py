"""How the live page does with a cluster of 10,000 nodes and 100,000 jobs, in a real browser.

Half of the nodes are hosts, half of them instances on these. The daemon's own answers are asked for by a
real `backfill web`; nothing runs in that cluster, so that only what is measured works. Prints one line of
JSON last: from the timeline's answer to the first picture, milliseconds per frame while it is dragged and
as a ratio to the 16.7 ms of 60 per second, megabytes of JavaScript's heap and of the service, seconds of a
scrape of its metrics, and how many series these are.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from statistics import median, quantiles

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState
from backfill.core.model.fleet import Host, Instance, InstanceState, Tag
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.quantities import Resources
from backfill.core.model.records import encode
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.engine.daemon import Daemon, Pace
from backfill.engine.listener import Listener
from backfill.engine.looking import Outside
from backfill.engine.messages import Query, Stop
from backfill.engine.queries import Queries
from backfill.ports.storage import Record
from tests.bench.page import BUDGET_MS, DRIVE
from tests.bench.rig import result
from tests.bench.web import awaited, free_port, memory_mb, running
from tests.component.living_daemon import a_gate
from tests.component.web_service import CY, Names, with_roles
from tests.real.browser import Page, page

NODES = int(os.environ.get("BACKFILL_NODES", "10000"))
JOBS = int(os.environ.get("BACKFILL_JOBS", "100000"))
_EVENTS = 20_000  # as many as the service remembers
_SCRAPES = 10
_NOW_S = 1_700_000_000.0
_HOURS_S = 6 * 3600.0
# When the picture is there for the first time: from then on the legend has its entries.
_WATCH = """addEventListener("DOMContentLoaded", () => new MutationObserver((_, all) => {
  if (!document.querySelector("#legend span") || window.drawnAt) return;
  all.disconnect();
  requestAnimationFrame(() => requestAnimationFrame(() => { window.drawnAt = performance.now(); }));
}).observe(document, { childList: true, subtree: true }))"""
_FIRST = """drawnAt - performance.getEntriesByType("resource").find(
  (one) => one.name.endsWith("/api/v1/timeline")).responseEnd"""


def _changes(rng: random.Random) -> Iterator[tuple[float, str, ch.Change]]:
    """All that there is: hosts, instances at work, jobs on both, and a queue."""
    half = NODES // 2
    running = min(JOBS, half)
    shape = Resources(8, 16_000)
    for n in range(half):
        at_s, host = _NOW_S - _HOURS_S, f"bm{n}"
        yield at_s, host, ch.HostSeen(Host(host, host, Resources(64, 256_000)), at_s)
    for n in range(half):
        host, name = f"bm{n}", f"vn{n}"
        at_s = _NOW_S - rng.uniform(0.0, _HOURS_S)
        made = ManagedNode(name, f"10.{n >> 8}.{n & 255}.1/8", host, 1, Phase.READY, at_s, at_s, "ready")
        yield at_s, name, ch.NodeManaged(made)
        seen = Instance(name, host, InstanceState.RUNNING, Tag("sim", name, 1), shape)
        yield at_s, name, ch.InstanceSeen(seen, at_s)
    for n in range(JOBS):
        at_s = _NOW_S - rng.uniform(0.0, _HOURS_S)
        yield at_s, str(n + 1), ch.JobSeen(_job(n, at_s, works=n < running), at_s)


def _job(n: int, at_s: float, *, works: bool) -> Job:
    return Job(
        str(n + 1),
        n + 1,
        "htc",
        JobState.RUNNING if works else JobState.PENDING,
        user=f"user{n % 50}",
        name=f"job{n}",
        nodes=(f"vn{n}",) if works else (),
        cpus=8,
        submit_s=at_s - 60.0,
        start_s=at_s if works else 0.0,
        time_limit_s=36_000.0,
    )


def _filled() -> Daemon:
    """A daemon that knows all of it, and whose journal tells the latest of it."""
    sim = SimulatedWorld()
    daemon = Daemon(with_roles(), Outside(sim.slurm, {}, sim.clock), MemoryJournal(), Pace())
    daemon.world.apply(ch.Tick(_NOW_S))
    told = [*_changes(random.Random(1))]
    for _, _, change in told:
        daemon.world.apply(change)
    latest = sorted(told, key=itemgetter(0))[-_EVENTS:]
    daemon.journal.append(Record(at_s, "change", about, encode(change)) for at_s, about, change in latest)
    daemon.privacy.read()
    return daemon


@contextmanager
def _asked(daemon: Daemon, path: Path) -> Iterator[None]:
    """Its socket, and a thread that answers as the daemon's own does."""

    def serve() -> None:
        while not isinstance(message := daemon.inbox.get(), Stop):
            if isinstance(message, Query):
                found = message.ask()
                while isinstance(found, Generator):
                    try:
                        next(found)
                    except StopIteration as end:
                        found = end.value
                message.reply.put(found)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    listener = Listener(daemon.inbox, Queries(daemon, a_gate(daemon, None, Names())).answer, 30.0)
    listener.listen_unix(path)
    try:
        yield
    finally:
        listener.close()
        daemon.inbox.put(Stop("done"))
        thread.join()


def _looked_at(tab: Page, address: str) -> dict[str, object]:
    tab.call("Page.addScriptToEvaluateOnNewDocument", source=_WATCH)
    tab.size(1400, 900)
    tab.visit(address)
    tab.await_js('!document.getElementById("login").hidden')
    tab.js(
        f'document.getElementById("token").value = "{CY}"; document.getElementById("login").requestSubmit()'
    )
    tab.await_js("window.drawnAt")
    found: dict[str, object] = {"first_picture_s": round(tab.js(_FIRST) / 1000, 3)}
    tab.await_js('document.querySelectorAll("#hosts tbody tr").length === 200')
    tab.js('document.getElementById("chart0").scrollIntoView()')
    tab.drawn()
    for kind in ("pan", "zoom"):
        times = tab.js(f'{DRIVE}("{kind}", 120)')
        found[f"{kind}_ms"] = round(median(times), 1)
        found[f"{kind}_p95_ms"] = round(quantiles(times, n=20)[-1], 1)
        found[f"{kind}_ratio"] = round(median(times) / BUDGET_MS, 2)
    tab.call("HeapProfiler.collectGarbage")
    found["heap_mb"] = round(tab.call("Runtime.getHeapUsage")["usedSize"] / 2**20, 1)
    return found


def _scraped(address: str) -> dict[str, object]:
    """Ask for the metrics as Prometheus does; an answer is kept for a second, so each is a fresh one."""
    took_s, text = [], ""
    for _ in range(_SCRAPES):
        time.sleep(1.1)
        began_s = time.perf_counter()
        with urllib.request.urlopen(address) as answer:
            text = answer.read().decode()
        took_s.append(time.perf_counter() - began_s)
    series = [line for line in text.splitlines() if not line.startswith("#")]
    return {
        "scrape_s": round(median(took_s), 4),
        "longest_scrape_s": round(max(took_s), 4),
        "series": len(series),
    }


def main() -> int:
    """Build, serve, look."""
    daemon = _filled()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, _asked(daemon, Path(name, "sock")):
        port = free_port()
        listen = ("--listen", f"127.0.0.1:{port}", "--socket", str(Path(name, "sock")), "--rate", "1000")
        with running(sys.executable, "-m", "backfill", "web", *listen) as web, page(Path(name, "b")) as tab:
            awaited(port)
            figures = _looked_at(tab, f"http://127.0.0.1:{port}/")
            figures |= _scraped(f"http://127.0.0.1:{port}/metrics")
            figures["web_memory_mb"] = round(memory_mb(web.pid), 1)
    result(nodes=NODES, jobs=JOBS, **figures)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
