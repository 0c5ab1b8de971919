"""Timelines of a replay: stretches of jobs and instances on hosts, in lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from heapq import heappop, heappush
from itertools import groupby

from backfill.core.model import changes as ch
from backfill.core.model.fleet import Instance, InstanceState
from backfill.core.world import World
from backfill.drivers.simulated.hypervisor.hardware import Segment
from backfill.sim.replay.trace_cluster import JobTale


class Look(StrEnum):
    """The meaning of a stretch."""

    HIGH = "high-priority job"
    LOW = "low-priority job"
    RUNNING = "instance runs"
    PAUSED = "instance paused in memory"
    SUSPENDED = "instance on disk"
    MOVING = "instance moves"


_LOOKS = {
    InstanceState.RUNNING: Look.RUNNING,
    InstanceState.BUILDING: Look.RUNNING,
    InstanceState.PAUSED: Look.PAUSED,
    InstanceState.SUSPENDED: Look.SUSPENDED,
    InstanceState.MIGRATING: Look.MOVING,
}


@dataclass(frozen=True, slots=True)
class GanttSpan:
    """One stretch on a host. Simulated seconds. `lane` counts from the host's top."""

    host: str
    look: Look
    name: str  # of the instance, or of the job
    start_s: float
    end_s: float
    lane: int = 0


@dataclass(slots=True)
class Gantt:
    """Listens to a replay; `spans` tells what it heard, once all is over."""

    _instances: dict[tuple[str, str], tuple[float, Look]] = field(default_factory=dict)
    _stays: list[GanttSpan] = field(default_factory=list)
    _low: list[tuple[str, GanttSpan]] = field(default_factory=list)  # instance, its job's stretch
    _last_s: float = 0.0

    def change(self, world: World, change: ch.Change) -> None:
        """Follow the instances; `world` has taken the change."""
        match change:
            case ch.InstanceSeen():
                key = (change.instance.host, change.instance.name)
                self._turn(key, world.instances.get(key), change.seen_s)
            case ch.InstanceStopped() | ch.InstanceGone():
                key = (change.host, change.name)
                self._turn(key, world.instances.get(key), change.seen_s)
            case _:
                pass

    def _turn(self, key: tuple[str, str], instance: Instance | None, at_s: float) -> None:
        look = None if instance is None else _LOOKS.get(instance.state)
        known = self._instances.get(key)
        self._last_s = max(self._last_s, at_s)
        if known is not None and known[1] is look:
            return
        if known is not None:
            del self._instances[key]
            self._stays.append(GanttSpan(key[0], known[1], key[1], known[0], at_s))
        if look is not None:
            self._instances[key] = (at_s, look)

    def attempt(self, tale: JobTale, segments: Iterable[Segment], name: str) -> None:
        """Add the stretches in which a low-priority job computed."""
        for one in segments:
            span = GanttSpan(one.host, Look.LOW, name, one.start_s, one.end_s)
            self._low.append((one.node, span))

    def spans(self, tales: Iterable[JobTale], high_name: Callable[[int], str]) -> list[GanttSpan]:
        """Everything with its lane: high-priority jobs on top, instances below, by host and time.

        A low-priority job lies in the lane of its instance.
        """
        for key, (since_s, look) in sorted(self._instances.items()):
            self._stays.append(GanttSpan(key[0], look, key[1], since_s, self._last_s))
        self._instances.clear()
        high = [
            GanttSpan(host, Look.HIGH, high_name(tale.index), tale.start_s, tale.end_s)
            for tale in tales
            if tale.high and tale.start_s >= 0 and tale.end_s > tale.start_s
            for host in tale.hosts
        ]
        laid, depth = _in_lanes(high, {})
        stays = sorted(self._stays, key=lambda s: (s.host, s.name, s.start_s))
        whole = [_whole(list(group)) for _, group in groupby(stays, key=lambda s: (s.host, s.name))]
        visits = [visit for visits in whole for visit in visits]
        placed, _ = _in_lanes([_hull(visit) for visit in visits], depth)
        lanes = {(s.host, s.name, s.start_s): s.lane for s in placed}
        found = list(laid)
        where: dict[tuple[str, str], list[GanttSpan]] = {}
        for visit in visits:
            first = visit[0]
            lane = lanes[first.host, first.name, first.start_s]
            where.setdefault((first.host, first.name), []).append(_lane(_hull(visit), lane))
            found += [_lane(span, lane) for span in visit]
        for node, span in self._low:
            found += [
                _lane(span, s.lane)
                for s in where.get((span.host, node), ())
                if s.start_s <= span.start_s < s.end_s
            ][:1]
        return found


def _whole(spans: list[GanttSpan]) -> list[list[GanttSpan]]:
    """Yield the visits of an instance to a host: stretches that follow one another without a gap."""
    visits: list[list[GanttSpan]] = []
    for span in spans:
        if visits and span.start_s <= visits[-1][-1].end_s:
            visits[-1].append(span)
        else:
            visits.append([span])
    return visits


def _hull(visit: Sequence[GanttSpan]) -> GanttSpan:
    first = visit[0]
    return GanttSpan(first.host, first.look, first.name, first.start_s, visit[-1].end_s)


def _lane(span: GanttSpan, lane: int) -> GanttSpan:
    return GanttSpan(span.host, span.look, span.name, span.start_s, span.end_s, lane)


def _in_lanes(spans: Iterable[GanttSpan], above: dict[str, int]) -> tuple[list[GanttSpan], dict[str, int]]:
    """Give each span the first lane that is free by then, below `above`; and each host's depth."""
    found: list[GanttSpan] = []
    depth: dict[str, int] = {}
    ordered = sorted(spans, key=lambda s: (s.host, s.start_s, s.end_s, s.name))
    for host, group in groupby(ordered, key=lambda s: s.host):
        first = above.get(host, 1)  # the top lane is for high-priority jobs, also where none came
        free: list[int] = []
        busy: list[tuple[float, int]] = []
        lanes = 0
        for span in group:
            while busy and busy[0][0] <= span.start_s:
                heappush(free, heappop(busy)[1])
            if free:
                lane = heappop(free)
            else:
                lane, lanes = lanes, lanes + 1
            heappush(busy, (span.end_s, lane))
            found.append(_lane(span, lane + (first if above or span.look is not Look.HIGH else 0)))
        depth[host] = lanes
    return found, depth
