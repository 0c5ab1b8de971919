"""The latest hours as timelines: events of the journal, kept in order and told to the page's drawing."""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from backfill.ports.storage import Record
from backfill.ui.report.builder import TimelineBuilder
from backfill.ui.report.timeline import MEANINGS, Chart, Stretch, StretchKind, in_lanes, runs_of
from backfill.ui.web.asker import Asker

# What is remembered, and how often it is told anew.
_MOST_EVENTS, _SPARE, _PAGE, _PAGES_AT_ONCE = 20_000, 2_000, 1000, 20
_MOST_ROWS = 2000
_TOLD_EVERY_S = 1.5
_NAMED = ("id", "at_s", "kind", "subject")

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
    """One for all clients; fed by whoever asks, as far as they may read.

    Of an event it keeps no more than the stretch that came of it, and what is sent is drawn once for
    all who ask at the same time: the service has to stay small.
    """

    def __init__(self) -> None:
        self._builder = TimelineBuilder(story=False)
        self._at_s: deque[float] = deque()  # when the remembered events were
        self._read_to = 0
        self._last: dict[str, Any] = {}  # the event that was read last, without what it says
        self._told: tuple[float, Drawn] | None = None
        self._busy = asyncio.Lock()

    async def told(self, asker: Asker) -> Drawn:
        """Return the timelines, a moment old at most. AskError for who may not read."""
        hosts = (await asker.shared("hosts"))["hosts"]
        async with self._busy:
            now_s = time.monotonic()
            if self._told is None or now_s - self._told[0] > _TOLD_EVERY_S:
                await self._catch_up(asker, [(host["name"], host["node"]) for host in hosts[:_MOST_ROWS]])
                now = (await asker.shared("status"))["now_s"]
                self._told = (now_s, await asyncio.to_thread(drawn, self._builder, now))
            return self._told[1]

    async def _catch_up(self, asker: Asker, standing: list[tuple[str, str | None]]) -> None:
        """Read the latest at first, then what has come since."""
        self._builder.stand(standing)
        if self._read_to and await self._is_another(asker):
            self._forget()
        if not self._read_to:
            await self._begin(asker)
            return
        for _ in range(_PAGES_AT_ONCE):
            # Asked for by nobody else, so no answer is kept for others.
            answer = await asker.ask("events", after=self._read_to, before=0, limit=_PAGE)
            if answer["newest"] < self._read_to:  # it is another journal: an older copy was put back
                self._forget()
                await self._catch_up(asker, standing)
                return
            await asyncio.to_thread(self._take, answer["events"])
            self._read_to = max(self._read_to, answer["read_to"])
            if not answer["more"]:
                return

    async def _is_another(self, asker: Asker) -> bool:
        """Return True if the journal lacks what was read last: an older copy was put back, however far it
        has grown since."""
        last = self._last.get("id", 0)
        if not last:
            return False
        answer = await asker.ask("events", after=last - 1, before=last + 1, limit=1)
        return [_named(event) for event in answer["events"]] != [self._last]

    def _forget(self) -> None:
        self._builder, self._read_to, self._last = TimelineBuilder(story=False), 0, {}
        self._at_s.clear()

    async def _begin(self, asker: Asker) -> None:
        """Read backwards; the pages wait, packed, until the oldest one is there."""
        before = read_to = 0
        pages: list[bytes] = []
        for _ in range(_PAGES_AT_ONCE):
            answer = await asker.ask("events", before=before, limit=_PAGE)
            pages.append(await asyncio.to_thread(_packed, answer["events"]))
            read_to = read_to or answer["read_to"]
            before = answer["read_from"]
            if not answer["more"]:
                break
        while pages:
            await asyncio.to_thread(self._take_packed, pages.pop())
        self._read_to = read_to  # a question that failed on the way begins all of it again

    def _take_packed(self, page: bytes) -> None:
        self._take(json.loads(zlib.decompress(page)))

    def _take(self, events: Iterable[dict[str, Any]]) -> None:
        for event in events:
            self._last = _named(event)
            if event["kind"] == "refusal":
                continue  # it changes no picture
            self._builder.add(Record(event["at_s"], event["kind"], event["subject"], event["body"]))
            self._at_s.append(event["at_s"])
        if len(self._at_s) > _MOST_EVENTS + _SPARE:
            while len(self._at_s) > _MOST_EVENTS:
                self._at_s.popleft()
            self._builder.forget(self._at_s[0])


def _named(event: dict[str, Any]) -> dict[str, Any]:
    return {key: event[key] for key in _NAMED}


def _packed(events: list[dict[str, Any]]) -> bytes:
    told = [{key: event[key] for key in (*_NAMED, "body")} for event in events]
    return zlib.compress(json.dumps(told).encode(), 1)


@dataclass(frozen=True, slots=True)
class Drawn:
    """Timelines as JSON, with a tag: another one as soon as anything of it is."""

    body: bytes
    tag: str


def drawn(builder: TimelineBuilder, now_s: float) -> Drawn:
    """Tell what is known as timelines.js draws it: rows of lanes, and five numbers for each stretch."""
    chart = builder.timeline(now_s)
    rows = [*_hosts(chart), *_jobs(chart)][: 2 * _MOST_ROWS]
    names: dict[str, int] = {}
    flat: list[int] = []
    top = 0
    for _, lanes, spans in rows:
        for span, look in sorted(spans, key=lambda s: (s[0].lane, s[0].start_s)):
            begin = max(0, round((span.start_s - chart.start_s) * 10))
            length = max(1, round((span.end_s - chart.start_s) * 10) - begin)
            flat += (top + span.lane, begin, length, look, names.setdefault(span.label, len(names)))
        top += lanes
    run = {
        "title": "",
        "rows": [[name, lanes] for name, lanes, _ in rows],
        "names": list(names),
        "spans": flat,
    }
    told = {
        "start_s": chart.start_s,
        "now_s": now_s,
        "length_s": round(max(0.0, chart.end_s - chart.start_s), 1),
        "kinds": ["job", "job", "node"],
        "labels": {row.name: row.label for row in chart.jobs[:_MOST_ROWS] if row.label},
        "looks": [[name, colour, pattern] for _, name, colour, pattern in _LOOKS],
        "runs": [run],
    }
    body = json.dumps(told, separators=(",", ":")).encode()
    return Drawn(body, f'W/"{sha256(body).hexdigest()[:32]}"')


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
