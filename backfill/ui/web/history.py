"""The latest hours as timelines: events of the journal, kept in order and told to the page's drawing."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from backfill.core.model import changes as ch
from backfill.core.model.fleet import Host
from backfill.core.model.quantities import Resources
from backfill.core.model.records import encode
from backfill.ports.storage import Record
from backfill.ui.report.builder import timeline_of
from backfill.ui.report.timeline import MEANINGS, Chart, Stretch, StretchKind, in_lanes, runs_of
from backfill.ui.web.asker import Asker

# What is remembered, and how often it is told anew.
_MOST_EVENTS, _PAGE, _PAGES_AT_ONCE = 20_000, 1000, 20
_MOST_ROWS = 2000
_TOLD_EVERY_S = 1.5

# After Okabe and Ito, with a pattern of timelines.js besides. Jobs first; the third has no name on it.
_LOOKS: tuple[tuple[StretchKind, str, str, str], ...] = (
    (StretchKind.METAL, "job on bare metal", "#2b6cb0", ""),
    (StretchKind.WORKING, "job on an instance", "#12805c", ""),
    (StretchKind.IDLE, MEANINGS[StretchKind.IDLE], "#9fd8c3", ""),
    (StretchKind.WORKING, MEANINGS[StretchKind.WORKING], "#6cc5a1", ""),
    (StretchKind.BOOTING, MEANINGS[StretchKind.BOOTING], "#93cdf1", "rise"),
    (StretchKind.EVICTING, MEANINGS[StretchKind.EVICTING], "#f0803c", ""),
    (StretchKind.PAUSED, MEANINGS[StretchKind.PAUSED], "#f2b632", "rise"),
    (StretchKind.ON_DISK, MEANINGS[StretchKind.ON_DISK], "#f7dd9c", "dots"),
    (StretchKind.MOVING, MEANINGS[StretchKind.MOVING], "#c477a8", "fall"),
    (StretchKind.RETURNING, MEANINGS[StretchKind.RETURNING], "#e3b7d1", ""),
    (StretchKind.DRAINING, MEANINGS[StretchKind.DRAINING], "#b4bcc5", ""),
    (StretchKind.REMOVING, MEANINGS[StretchKind.REMOVING], "#939ca6", ""),
    (StretchKind.WAITING, MEANINGS[StretchKind.WAITING], "#c9d0d6", "dots"),
    (StretchKind.FAILED, MEANINGS[StretchKind.FAILED], "#d98c7f", "fall"),
    (StretchKind.GIVEN_UP, MEANINGS[StretchKind.GIVEN_UP], "#b0614f", "fall"),
)
_LOOK_OF_JOB = {StretchKind.METAL: 0, StretchKind.WORKING: 1}
_LOOK = {kind: number for number, (kind, *_) in enumerate(_LOOKS) if number != 1}


class History:
    """One for all clients; fed by whoever asks, as far as they may read."""

    def __init__(self) -> None:
        self._events: deque[Record] = deque(maxlen=_MOST_EVENTS)
        self._read_to = 0
        self._told: tuple[float, dict[str, Any]] | None = None
        self._busy = asyncio.Lock()

    async def told(self, asker: Asker) -> dict[str, Any]:
        """Return the timelines, a moment old at most. AskError for who may not read."""
        hosts = (await asker.shared("hosts"))["hosts"]
        async with self._busy:
            now_s = time.monotonic()
            if self._told is None or now_s - self._told[0] > _TOLD_EVERY_S:
                await self._catch_up(asker)
                now = (await asker.shared("status"))["now_s"]
                self._told = (now_s, await asyncio.to_thread(drawn, [*self._events], hosts, now))
            return self._told[1]

    async def _catch_up(self, asker: Asker) -> None:
        """Read the latest at first, then what has come since."""
        if not self._read_to:
            before, pages = 0, []
            for _ in range(_PAGES_AT_ONCE):
                answer = await asker.shared("events", after=0, before=before, limit=_PAGE)
                pages.append(answer["events"])
                self._read_to = self._read_to or answer["read_to"]
                before = answer["read_from"]
                if not answer["more"]:
                    break
            for page in reversed(pages):
                self._events.extend(_records(page))
            return
        for _ in range(_PAGES_AT_ONCE):
            answer = await asker.shared("events", after=self._read_to, before=0, limit=_PAGE)
            self._events.extend(_records(answer["events"]))
            self._read_to = max(self._read_to, answer["read_to"])
            if not answer["more"]:
                return


def _records(events: Iterable[dict[str, Any]]) -> Iterable[Record]:
    """What the drawing needs of events: thousands are kept, so no more of each than that."""
    return (
        Record(e["at_s"], e["kind"], e["subject"], e["body"], e["id"])
        for e in events
        if e["kind"] != "refusal"
    )


def drawn(events: list[Record], hosts: Iterable[dict[str, Any]], now_s: float) -> dict[str, Any]:
    """Tell events as timelines.js draws them: rows of lanes, and five numbers for each stretch."""
    known = [*hosts][:_MOST_ROWS]
    start_s = events[0].at_s if events else now_s
    seen = (Host(h["name"], h["node"], Resources(h["cpus"], h["memory_mb"])) for h in known)
    records = [Record(start_s, "change", one.name, encode(ch.HostSeen(one, start_s))) for one in seen]
    chart = timeline_of([*records, *events], now_s)
    rows = [*_hosts(chart), *_jobs(chart)][: 2 * _MOST_ROWS]
    names: dict[str, int] = {}
    flat: list[int] = []
    top = 0
    for _, lanes, spans in rows:
        for span, look in sorted(spans, key=lambda s: (s[0].lane, s[0].start_s)):
            begin = round((span.start_s - chart.start_s) * 10)
            length = max(1, round((span.end_s - chart.start_s) * 10) - begin)
            flat += (top + span.lane, begin, length, look, names.setdefault(span.label, len(names)))
        top += lanes
    run = {
        "title": "",
        "rows": [[name, lanes] for name, lanes, _ in rows],
        "names": list(names),
        "spans": flat,
    }
    return {
        "start_s": chart.start_s,
        "now_s": now_s,
        "length_s": round(max(0.0, chart.end_s - chart.start_s), 1),
        "kinds": ["job", "job", "node"],
        "looks": [[name, colour, pattern] for _, name, colour, pattern in _LOOKS],
        "runs": [run],
    }


_Row = tuple[str, int, list[tuple[Stretch, int]]]


def _hosts(chart: Chart) -> Iterable[_Row]:
    """Jobs on the host's own node on top, its instances below them; each stretch named by its label."""
    jobs: dict[str, list[list[Stretch]]] = defaultdict(list)
    for job in chart.jobs:
        for span in job.spans:
            for host in span.hosts:
                jobs[host].append([replace(span, label=job.name)])
    guests: dict[str, list[list[Stretch]]] = defaultdict(list)
    for node in chart.instances:
        for host in {host for span in node.spans for host in span.hosts}:
            guests[host] += [
                [replace(s, label=node.name) for s in stay] for stay in runs_of(node.spans, host)
            ]
    for row in chart.hosts:
        placed, lanes = in_lanes(jobs[row.name])
        more, lanes = in_lanes(guests[row.name], max(lanes, 1))
        found = [(span, 0) for stay in placed for span in stay]
        found += [(span, _LOOK[span.kind]) for stay in more for span in stay]
        yield row.name, max(lanes, 1), found


def _jobs(chart: Chart) -> Iterable[_Row]:
    for job in chart.jobs:
        spans = [replace(span, label=job.name) for span in job.spans]
        yield job.name, 1, [(span, _LOOK_OF_JOB.get(span.kind, _LOOK[span.kind])) for span in spans]
