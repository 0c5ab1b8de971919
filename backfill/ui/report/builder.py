"""Turns journal records into a Timeline: rows, and boots and evictions step by step."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from backfill.core.model import actions as act
from backfill.core.model import changes as ch
from backfill.core.model.cluster import ENDED, NOWHERE, Job, JobState
from backfill.core.model.fleet import InstanceState
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.plan import AnswerClaim, EndClaim, ForgetNode, SetNode
from backfill.core.model.records import decode
from backfill.engine.narrate import story_line
from backfill.engine.payload_book import PayloadBook
from backfill.ports.storage import Record
from backfill.ui.report.own_starts import OwnStarts
from backfill.ui.report.timeline import (
    Boot,
    Chart,
    ClaimSeen,
    Event,
    EvictionMark,
    Row,
    Step,
    Stretch,
    StretchKind,
    in_lanes,
    natural,
    runs_of,
)

_WORDS = re.compile(r"(?<!^)(?=[A-Z])")
_STOPS = ("pause instance", "suspend instance")


class Episodes:
    """Feed it the journal's entries in order; read `boots`, `evictions`, `claims` and `own`."""

    def __init__(self) -> None:
        self.boots: list[Boot] = []
        self.evictions: list[EvictionMark] = []
        self.claims: list[ClaimSeen] = []
        self.own = OwnStarts()
        self._booting: dict[str, int] = {}  # node -> index in boots
        self._evicting: dict[str, int] = {}
        self._claimed: dict[str, int] = {}  # job that has hosts now -> index in claims
        self._latest_boot: dict[str, int] = {}

    def add(self, at_s: float, value: object) -> None:
        """Take one decoded entry."""
        self.own.add(at_s, value)
        match value:
            case SetNode(node=node):
                self._phase(at_s, node)
            case ch.NodeSeen(node=node) if node.name in self._booting:
                if node.responding and node.slurmd_start_s > 0:
                    self._note_boot(node.name, registered_s=at_s)
            case ch.JobSeen(job=job) if job.state is JobState.RUNNING:
                self._job_runs(at_s, job)
            case ch.Claimed() | AnswerClaim() | EndClaim() | ch.ClaimEnded():
                self._claim(at_s, value)
            case act.ProbeJobs() | act.TellJob():
                pass  # nothing waits for them
            case _ if isinstance(value, act.DriverAction):
                self._begin(at_s, value)
            case _:
                pass

    def done(self, at_s: float, key: str, problem: str) -> None:
        """Note that a call has ended."""
        self.own.done(at_s, key, problem)
        node, name = key.split(":")[1], step_name(key)
        for index, episodes in ((self._booting, self.boots), (self._evicting, self.evictions)):
            if node in index:
                known: Any = episodes[index[node]]
                steps = [_ended(s, name, at_s, problem) for s in known.steps]
                episodes[index[node]] = replace(known, steps=tuple(steps))
        if node in self._evicting and name in _STOPS and not problem:
            eviction = self.evictions[self._evicting[node]]
            if not eviction.stopped_s:
                self._note_eviction(node, stopped_s=at_s)

    def marks(self, node: str, generation: int, marks: tuple[tuple[str, float], ...]) -> None:
        """Note what a guest told of its own start."""
        at = self._latest_boot.get(node)
        if at is not None and self.boots[at].generation == generation:
            self.boots[at] = replace(self.boots[at], marks=marks)

    # --- inside ----------------------------------------------------------------------------------

    def _claim(self, at_s: float, value: ch.Claimed | AnswerClaim | EndClaim | ch.ClaimEnded) -> None:
        match value:
            case ch.Claimed() if value.hosts:
                self._claimed[value.job_id] = len(self.claims)
                self.claims.append(ClaimSeen(value.job_id, value.hosts, value.at_s))
            case AnswerClaim() if value.job_id in self._claimed:
                at = self._claimed[value.job_id]
                self.claims[at] = replace(self.claims[at], answered_s=at_s, ok=value.ok)
            case EndClaim() | ch.ClaimEnded() if not value.hosts:
                self._claimed.pop(value.job_id, None)
            case _:
                pass

    def _phase(self, at_s: float, node: ManagedNode) -> None:
        name = node.name
        match node.phase:
            case Phase.BOOTING if name not in self._booting:
                self._booting[name] = self._latest_boot[name] = len(self.boots)
                self.boots.append(Boot(name, node.generation, node.host, at_s))
            case Phase.READY:
                self._note_boot(name, ready_s=at_s)
                self._note_eviction(name, back_s=at_s, back_host=node.host)
                self._close(name)
            case Phase.EVICTING if name not in self._evicting:
                self._note_boot(name, end=node.reason)
                self._booting.pop(name, None)
                self._open_eviction(at_s, node)
            case Phase.PARKED:
                self._parked(at_s, node)
            case Phase.MOVING:
                self._note_eviction(name, moving_s=at_s)
            case Phase.RETURNING:
                self._note_eviction(name, returning_s=at_s, back_host=node.host)
            case Phase.REMOVING:
                self._note_boot(name, end=node.reason)
                self._note_eviction(name, end=node.reason)
                self._close(name)
            case _:
                pass

    def _parked(self, at_s: float, node: ManagedNode) -> None:
        """Note that it stands aside; a move that failed leads here a second time, which is no news."""
        at = self._evicting.get(node.name)
        if at is not None and not self.evictions[at].parked_s:
            jobs = tuple(held.id for held in node.held)
            self._note_eviction(node.name, parked_s=at_s, jobs=jobs)

    def _open_eviction(self, at_s: float, node: ManagedNode) -> None:
        wanted_s = at_s
        for index in self._claimed.values():
            claim = self.claims[index]
            if node.host in claim.hosts:
                wanted_s = claim.at_s
                self.claims[index] = replace(claim, evicted=True)
        self._evicting[node.name] = len(self.evictions)
        self.evictions.append(
            EvictionMark(node.name, node.generation, node.host, node.reason, wanted_s, at_s)
        )

    def _begin(self, at_s: float, action: act.DriverAction) -> None:
        step = Step(step_name(action.key), at_s)
        for index, episodes in ((self._booting, self.boots), (self._evicting, self.evictions)):
            if action.subject in index:
                known: Any = episodes[index[action.subject]]
                episodes[index[action.subject]] = replace(known, steps=(*known.steps, step))

    def _job_runs(self, at_s: float, job: Job) -> None:
        """Note the first job on a new instance: that is what it was made for."""
        for name in job.nodes:
            at = self._latest_boot.get(name)
            if at is not None and self.boots[at].ready_s and not self.boots[at].first_job_s:
                self.boots[at] = replace(
                    self.boots[at],
                    submitted_s=job.submit_s,
                    first_job_s=max(self.boots[at].ready_s, min(at_s, job.start_s or at_s)),
                )

    def _note_boot(self, name: str, **fields: Any) -> None:
        at = self._booting.get(name)
        if at is not None:
            new = {k: v for k, v in fields.items() if not getattr(self.boots[at], k)}
            self.boots[at] = replace(self.boots[at], **new)

    def _note_eviction(self, name: str, **fields: Any) -> None:
        at = self._evicting.get(name)
        if at is not None:
            self.evictions[at] = replace(self.evictions[at], **fields)

    def _close(self, name: str) -> None:
        self._booting.pop(name, None)
        self._evicting.pop(name, None)


def step_name(key: str) -> str:
    """Say an operation's key in words: `pause instance`, `suspend job 5`, `hide node`."""
    kind, _, _, *rest = key.split(":")
    if kind == "MigrateInstance":
        return f"migrate to {rest[0]}" if rest else "migrate"
    if kind == act.SetAddress.__name__:
        return "hide node" if rest == [NOWHERE] else "show node"
    words = _WORDS.sub(" ", kind).lower()
    return f"{words} {rest[0]}" if rest else words


def _ended(step: Step, name: str, at_s: float, problem: str) -> Step:
    if step.name != name or step.end_s:
        return step
    return replace(step, end_s=at_s, problem=problem)


_PHASES = {
    Phase.BOOTING: StretchKind.BOOTING,
    Phase.DRAINING: StretchKind.DRAINING,
    Phase.EVICTING: StretchKind.EVICTING,
    Phase.THROTTLED: StretchKind.EVICTING,
    Phase.MOVING: StretchKind.MOVING,
    Phase.RETURNING: StretchKind.RETURNING,
    Phase.REMOVING: StretchKind.REMOVING,
    Phase.FAILED: StretchKind.FAILED,
    Phase.GIVEN_UP: StretchKind.GIVEN_UP,
}
# Nothing of the instance is on its host.
_NOWHERE = (StretchKind.FAILED, StretchKind.GIVEN_UP)


def timeline_of(records: Iterable[Record], now_s: float | None = None) -> Chart:
    """Tell the whole story of these records, up to `now_s` (the last record where it is None)."""
    builder = TimelineBuilder()
    for record in records:
        builder.add(record)
    return builder.timeline(now_s)


@dataclass(slots=True)
class _Track:
    """The stretches of one instance or job so far; the last one may still go on."""

    spans: list[Stretch] = field(default_factory=list)
    open: Stretch | None = None
    end: str = ""
    # When the next daemon began, which has not told of it yet.
    untold_s: float = 0.0

    def turn(self, at_s: float, span: Stretch) -> None:
        """From now on it is as in `span`; the same kind at the same place just goes on."""
        self.end, self.untold_s = "", 0.0
        if self.open is not None and (self.open.kind, self.open.hosts) == (span.kind, span.hosts):
            return
        self.close(at_s)
        self.open = replace(span, start_s=at_s)

    def close(self, at_s: float, end: str = "") -> None:
        if self.open is not None:
            self.spans.append(replace(self.open, end_s=max(at_s, self.open.start_s)))
        self.open, self.end, self.untold_s = None, end or self.end, 0.0

    def waited(self, since_s: float) -> None:
        """Note that it waited from then until what is known of it begins: nobody wrote that down."""
        first = self.spans[0] if self.spans else self.open
        if first is None or first.kind is StretchKind.WAITING or since_s >= first.start_s:
            return
        span = Stretch(since_s, first.start_s, StretchKind.WAITING, "", "waits")
        self.spans.insert(0, span)

    def upto(self, now_s: float) -> list[Stretch]:
        if self.open is None:
            return self.spans
        return [*self.spans, replace(self.open, end_s=max(now_s, self.open.start_s))]


class TimelineBuilder:
    """`add` every record in order; `timeline` at any time."""

    def __init__(self, *, story: bool = True) -> None:
        """`story`: False: rows alone, without events, boots and evictions."""
        self._story = story
        self._start_s = self._end_s = 0.0
        self._instances: dict[str, _Track] = {}
        self._jobs: dict[str, _Track] = {}
        self._managed: dict[str, ManagedNode] = {}
        self._states: dict[str, InstanceState] = {}
        self._host_of_node: dict[str, str] = {}
        self._hosts: set[str] = set()
        self._claimed: dict[str, tuple[str, ...]] = {}
        self._job_states: dict[str, JobState] = {}
        self._names: dict[str, str] = {}
        self._events: list[Event] = []
        self._episodes = Episodes()
        self._payloads = PayloadBook()
        self._read_slurm = False  # the latest daemon did

    def add(self, record: Record) -> None:
        """Take one record."""
        at_s = record.at_s
        if at_s <= 0:
            return  # written before the daemon had looked at its clock
        self._start_s = min(self._start_s or at_s, at_s)
        self._end_s = max(self._end_s, at_s)
        match record.kind:
            case "outcome" if self._story:
                body = record.body
                self._episodes.done(at_s, str(body["key"]), str(body["problem"]))
                self._tell(record, main=bool(body["problem"]))
            case "change" | "intent" | "phase":
                value = decode(record.body)
                self._hear(record, value)
                self._take(at_s, value)
            case "marks":
                self._marks(record)
            case "plan":
                pass
            case _:
                if record.kind == "daemon" and record.body.get("event") == "start":
                    self._begin_anew(at_s)
                self._tell(record, main=record.kind == "daemon")

    def stand(self, hosts: Iterable[tuple[str, str | None]]) -> None:
        """Note that these hosts are there, with their nodes' names, whatever the records say."""
        for host, node in hosts:
            self._hosts.add(host)
            if node is not None:
                self._host_of_node[node] = host

    def forget(self, before_s: float) -> None:
        """Drop what was over before; the story begins there."""
        self._start_s = max(self._start_s, before_s)
        for tracks in (self._instances, self._jobs):
            for name, track in [*tracks.items()]:
                track.spans = [span for span in track.spans if span.end_s > before_s]
                over = track.open is None or self._until(track, inf) <= before_s
                if not track.spans and over:
                    del tracks[name]
        for about in (self._names, self._job_states, self._claimed):
            for name in about.keys() - self._jobs.keys():
                del about[name]
        for name in self._states.keys() - self._instances.keys():
            del self._states[name]

    def timeline(self, now_s: float | None = None) -> Chart:
        """Return the story so far."""
        end_s = self._end_s if now_s is None else max(now_s, self._end_s)
        instances = {name: track.upto(end_s) for name, track in self._instances.items()}
        jobs = {job_id: track.upto(self._until(track, end_s)) for job_id, track in self._jobs.items()}
        days, pilots = self._payloads.sums()
        return Chart(
            start_s=self._start_s,
            end_s=end_s,
            hosts=tuple(self._host_rows(jobs, instances)),
            instances=tuple(Row(name, tuple(instances[name])) for name in sorted(instances, key=natural)),
            jobs=tuple(
                Row(i, tuple(jobs[i]), self._names.get(i, ""), end=self._jobs[i].end)
                for i in sorted(jobs, key=natural)
            ),
            claims=tuple(self._episodes.claims),
            boots=tuple(self._episodes.boots),
            evictions=tuple(self._episodes.evictions),
            own=tuple(self._episodes.own.found),
            events=tuple(self._events),
            names=dict(self._names),
            payload_days=days,
            payload_pilots=pilots,
        )

    # --- taking ----------------------------------------------------------------------------------

    def _begin_anew(self, at_s: float) -> None:
        """Note a start: a daemon tells of each job that Slurm shows it, and not that another has ended."""
        self._read_slurm = False
        for track in self._jobs.values():
            if track.open is not None:
                track.untold_s = track.untold_s or at_s

    def _until(self, track: _Track, end_s: float) -> float:
        """Until when what is open goes on: to a start, if the daemon has read Slurm since without it."""
        return track.untold_s if track.untold_s and self._read_slurm else end_s

    def _take(self, at_s: float, value: Any) -> None:
        match value:
            case SetNode(node=node):
                self._hosts.add(node.host)
                self._managed[node.name] = node
                self._turn_instance(at_s, node, value.reason)
            case ForgetNode(name=name):
                self._managed.pop(name, None)
                self._track(self._instances, name).close(at_s)
            case ch.InstanceSeen(instance=instance):
                self._states[instance.name] = instance.state
                managed = self._managed.get(instance.name)
                if managed is not None:
                    self._turn_instance(at_s, managed, managed.reason)
            case ch.HostSeen(host=host):
                self._hosts.add(host.name)
                if host.node is not None:
                    self._host_of_node[host.node] = host.name
            case ch.OperationDone():
                self._episodes.done(at_s, value.key, value.problem)
            case _:
                self._take_job(at_s, value)

    def _take_job(self, at_s: float, value: Any) -> None:
        match value:
            case ch.NodeSeen() | ch.SourceSeen(source="slurm"):
                self._read_slurm = True
            case ch.JobSeen(job=job):
                self._read_slurm = True
                self._job(at_s, job)
            case ch.JobGone(id=job_id) if job_id in self._jobs:
                self._jobs[job_id].close(at_s)
            case ch.Claimed() if value.hosts:
                self._hosts.update(value.hosts)
                self._claimed[value.job_id] = value.hosts
                self._on_metal(value.at_s, value.job_id, value.hosts)
            case EndClaim(job_id=job_id, hosts=()) | ch.ClaimEnded(job_id=job_id, hosts=()):
                self._claimed.pop(job_id, None)
                if job_id in self._jobs:
                    self._jobs[job_id].close(at_s)
            case _:
                pass

    def _track(self, tracks: dict[str, _Track], name: str) -> _Track:
        return tracks.setdefault(name, _Track())

    def _turn_instance(self, at_s: float, node: ManagedNode, reason: str) -> None:
        kind = self._kind(node)
        hosts = () if kind in _NOWHERE else (node.host,)
        span = Stretch(at_s, at_s, kind, node.name, reason, hosts)
        self._track(self._instances, node.name).turn(at_s, span)

    def _kind(self, node: ManagedNode) -> StretchKind:
        match node.phase:
            case Phase.READY:
                return StretchKind.WORKING if node.idle_since_s is None else StretchKind.IDLE
            case Phase.PARKED:
                on_disk = self._states.get(node.name) is InstanceState.SUSPENDED
                return StretchKind.ON_DISK if on_disk else StretchKind.PAUSED
            case _:
                return _PHASES[node.phase]

    def _job(self, at_s: float, job: Job) -> None:
        self._names[job.id] = job.name
        self._job_states[job.id] = job.state
        track = self._track(self._jobs, job.id)
        if job.state in ENDED or "COMPLETING" in job.flags:
            track.close(at_s, job.state.lower())
        elif job.state is JobState.PENDING:
            if job.id not in self._claimed:
                since_s = at_s if track.spans or track.open else min(at_s, job.submit_s)
                span = Stretch(at_s, at_s, StretchKind.WAITING, "", f"waits: {job.reason}")
                track.turn(max(self._start_s, since_s), span)
        else:
            self._job_on_nodes(at_s, job, track)
            # The journal has a job of another partition from its start on only.
            track.waited(max(self._start_s, job.submit_s))

    def _job_on_nodes(self, at_s: float, job: Job, track: _Track) -> None:
        where = ", ".join(self._place(node) for node in job.nodes)
        hosts = tuple(h for n in job.nodes if (h := self._host_of(n)) is not None)
        if hosts:
            self._on_metal(self._started(at_s, job, track), job.id, hosts)
        elif job.state is JobState.SUSPENDED:
            track.turn(at_s, Stretch(at_s, at_s, StretchKind.PAUSED, where, f"stands still on {where}"))
        else:
            began_s = self._started(at_s, job, track)
            track.turn(began_s, Stretch(at_s, at_s, StretchKind.WORKING, where, f"runs on {where}"))

    def _place(self, node: str) -> str:
        managed = self._managed.get(node)
        return node if managed is None else f"{node} on {managed.host}"

    def _started(self, at_s: float, job: Job, track: _Track) -> float:
        """Slurm tells when a job started; what we saw before bounds it, as Slurm rounds down."""
        if track.open is None or track.open.kind is not StretchKind.WAITING or not job.start_s:
            return at_s
        return max(track.open.start_s, min(at_s, job.start_s))

    def _host_of(self, node: str) -> str | None:
        return self._host_of_node.get(node, node if node in self._hosts else None)

    def _on_metal(self, at_s: float, job_id: str, hosts: tuple[str, ...]) -> None:
        where = ", ".join(hosts)
        span = Stretch(at_s, at_s, StretchKind.METAL, where, f"has {where}", tuple(sorted(hosts)))
        self._track(self._jobs, job_id).turn(at_s, span)

    # --- telling ---------------------------------------------------------------------------------

    def _is_news(self, value: object) -> bool:
        """Return True if the story cannot do without this entry."""
        match value:
            case SetNode(node=node):
                known = self._managed.get(node.name)
                return known is None or known.phase is not node.phase
            case ch.JobSeen(job=job):
                return self._job_states.get(job.id) is not job.state
            case ForgetNode() | AnswerClaim() | ch.Claimed() | ch.HoldSet() | ch.SourceFailed():
                return True
            case act.SuspendInstance() | act.RestoreInstance():
                return True  # the next rung of a node that stays parked, and the way back
            case _:
                return False

    def _hear(self, record: Record, value: Any) -> None:
        if self._story:
            self._tell(record, main=self._is_news(value))
            self._episodes.add(record.at_s, value)
            if isinstance(value, ch.PayloadEnded | ch.WorkLost):
                self._payloads.take(value, record.at_s)

    def _tell(self, record: Record, *, main: bool) -> None:
        if not self._story:
            return
        if record.kind == "intent" and record.body.get("t") == act.ProbeJobs.__name__:
            return  # looked for every half second: no news
        text = story_line(record)
        if text:
            self._events.append(Event(record.at_s, record.subject, text, main))

    def _marks(self, record: Record) -> None:
        found: Any = record.body.get("marks", ())
        marks = tuple((str(name), float(at)) for name, at in found)
        self._episodes.marks(record.subject, int(str(record.body.get("generation", 0))), marks)

    # --- rows ------------------------------------------------------------------------------------

    def _host_rows(
        self, jobs: dict[str, list[Stretch]], instances: dict[str, list[Stretch]]
    ) -> Iterator[Row]:
        """One for each host: its own jobs on top, its instances below them."""
        owned: dict[str, list[list[Stretch]]] = defaultdict(list)
        for job_id, spans in jobs.items():
            label = self._names.get(job_id) or f"job {job_id}"
            for host in _hosts_of(spans):
                stays = runs_of(spans, host)
                owned[host] += [[replace(span, label=label)] for stay in stays for span in stay]
        guests: dict[str, list[list[Stretch]]] = defaultdict(list)
        for spans in instances.values():
            for host in _hosts_of(spans):
                guests[host] += runs_of(spans, host)
        for host in sorted(self._hosts, key=natural):
            placed, lanes = in_lanes(owned[host])
            more, lanes = in_lanes(guests[host], max(lanes, 1))
            yield Row(host, tuple(s for item in (*placed, *more) for s in item), lanes=lanes)


def _hosts_of(spans: Iterable[Stretch]) -> Iterable[str]:
    return {host for span in spans for host in span.hosts}
