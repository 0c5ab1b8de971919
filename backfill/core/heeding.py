"""Which changes the journal has to tell: those on which a decision of ours may rest, and no others.

A site's queue and its other nodes change all day and are none of our business. The world has them,
so that people can ask; a replay of the journal lacks them and must decide the same all the same.
What becomes our business later is told then, as it looks by that time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from heapq import heappop, heappush
from operator import attrgetter
from typing import TYPE_CHECKING

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState, Node
from backfill.core.model.fleet import Host
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.policies.demand import for_room
from backfill.core.policies.spread import Order
from backfill.core.policies.victims import Extent, Prefer
from backfill.core.policy import PolicySet

if TYPE_CHECKING:
    from backfill.core.picture import Picture

# Two pictures of a job in which all of this is equal may lead to no other decision, unless it is
# by `priority` or `reason`, which have rules of their own. Nobody decides by the planned start.
_SAME = attrgetter(*(f.name for f in fields(Job) if f.compare and f.name not in ("priority", "reason")))


class Heed:
    """Knows what was told already. Ask `news` right after the world took a change."""

    def __init__(self, world: Picture) -> None:
        self._world = world
        self._jobs: dict[str, Job] = {}  # as told; a job that was told once is told until its end
        self._nodes: dict[str, Node] = {}
        self._wanted: set[str] | None = None  # ids of jobs that are held, or that claim hosts
        self._priorities: dict[str, float] = {}  # jobs of which no more is new, and when read
        self._hosts: dict[str, Host] = {}
        self._readings = Readings()
        self._failed: dict[str, tuple[str, float]] = {}  # source -> problem, and last read before
        self._policies: PolicySet | None = None
        self._names: frozenset[str] = frozenset()  # that the policies have for instances

    def news(self, change: ch.Change, policies: PolicySet) -> list[ch.Change]:
        """Return what to tell of a change, or because of it."""
        match change:
            case ch.JobSeen(job=job):
                return list(self._job(job.id, change.seen_s, policies))
            case ch.JobGone():
                return list(self._job(change.id, change.seen_s, policies))
            case ch.NodeSeen(node=node):
                return list(self._node(node.name, change.seen_s, policies))
            case ch.NodeGone():
                return list(self._node(change.name, change.seen_s, policies))
            case _:
                return list(self._more(change, policies))

    def _more(self, change: ch.Change, policies: PolicySet) -> Iterator[ch.Change]:
        """Yield a change of what is ours, and with it whatever it makes our business."""
        if not isinstance(change, ch.SourceFailed | ch.HostSeen) or self._differs(change, policies):
            yield change
        match change:
            case ch.HostSeen(host=host):
                yield from self._matters_now(host.node or "", policies)
            case ch.InstanceSeen(instance=instance):
                yield from self._matters_now(instance.name, policies)
            case ch.NodeManaged(node=ours):
                yield from self._matters_now(ours.name, policies)
                yield from self._want({held.id for held in ours.held}, policies)
            case ch.Claimed():
                yield from self._want({change.job_id}, policies)
            case _:
                pass

    def catch_up(self, policies: PolicySet) -> Iterator[ch.Change]:
        """Yield what to tell before a plan: what new policies ask of, and priorities, all in one."""
        if policies is not self._policies:
            self._policies = policies
            self._names = frozenset(policies.instances.names)
            for name in tuple(self._world.nodes):
                yield from self._node(name, self._world.node_since_s(name), policies)
            for job_id in tuple(self._world.jobs):
                yield from self._job(job_id, self._world.seen_s("job", job_id), policies)
        if self._priorities:
            told, self._priorities = self._priorities, {}
            jobs = [self._world.jobs[job_id] for job_id in told if job_id in self._world.jobs]
            ids, priorities = tuple(j.id for j in jobs), tuple(j.priority for j in jobs)
            for job in jobs:
                self._jobs[job.id] = job
            yield ch.PrioritiesSeen(ids, priorities, max(told.values()))

    # --- jobs ----------------------------------------------------------------------------------

    def _job(self, job_id: str, seen_s: float, policies: PolicySet) -> Iterator[ch.Change]:
        job, told = self._world.jobs.get(job_id), self._jobs.get(job_id)
        if job is None:
            if told is not None:
                del self._jobs[job_id]
                self._priorities.pop(job_id, None)
                yield ch.JobGone(job_id, seen_s)
            return
        if told is None:
            if not self._matters(job, policies):
                return
        elif _SAME(job) == _SAME(told) and _waits_alike(job, told):
            if job.priority != told.priority and _ranks(job, policies):
                self._priorities[job_id] = seen_s
            return
        self._jobs[job_id] = job
        self._priorities.pop(job_id, None)
        yield ch.JobSeen(job, seen_s)

    def _matters(self, job: Job, policies: PolicySet) -> bool:
        """Return True if a decision may look at it: it may want an instance, or it has what is ours."""
        priorities = policies.priorities
        if job.partition in priorities.low or job.qos in priorities.low_qos:
            return True
        if job.partition in policies.own_machines.partitions or job.id in self._world.machines:
            return True
        if policies.own_machines.asks_inside(job):
            return True
        return job.id in self._wanted_ids() or any(self._ours(n) for n in job.nodes)

    def _wanted_ids(self) -> set[str]:
        if self._wanted is None:
            world = self._world
            self._wanted = {held.id for node in world.managed.values() for held in node.held}
            self._wanted.update(world.claims)
        return self._wanted

    def _want(self, ids: set[str], policies: PolicySet) -> Iterator[ch.Change]:
        wanted = self._wanted_ids()
        for job_id in sorted(ids - wanted):
            wanted.add(job_id)
            if job_id in self._world.jobs:
                yield from self._job(job_id, self._world.seen_s("job", job_id), policies)

    # --- nodes ---------------------------------------------------------------------------------

    def _node(self, name: str, seen_s: float, policies: PolicySet) -> Iterator[ch.Change]:
        node, told = self._world.nodes.get(name), self._nodes.get(name)
        if node is None:
            if told is not None:
                del self._nodes[name]
                yield ch.NodeGone(name, seen_s)
            return
        # Of nodes of others it counts that they are there, and whether they answer.
        others = not self._ours(name)
        alike = told == node or (others and told is not None and told.silent is node.silent)
        if not alike:
            self._nodes[name] = node
            yield ch.NodeSeen(node, seen_s)

    def _ours(self, name: str) -> bool:
        """Return True if it is the node of a host or of an instance."""
        world = self._world
        return (
            name in world.managed
            or world.host_of_node(name) is not None
            or name in self._names
            or bool(world.fleet.places_of(name))
        )

    def _matters_now(self, name: str, policies: PolicySet) -> Iterator[ch.Change]:
        """Tell how a node looks that became a host's or ours, and who is on it."""
        if name in self._world.nodes:
            yield from self._node(name, self._world.node_since_s(name), policies)
        for job in self._world.jobs_on(name):
            if job.id not in self._jobs:
                yield from self._job(job.id, self._world.seen_s("job", job.id), policies)

    # --- hosts ---------------------------------------------------------------------------------

    def _differs(self, change: ch.SourceFailed | ch.HostSeen, policies: PolicySet) -> bool:
        """Return True if a host looks different, but for a load by which nobody chooses."""
        if isinstance(change, ch.SourceFailed):
            return self._fails_anew(change)
        host = change.host
        told, self._hosts[host.name] = self._hosts.get(host.name), host
        chosen = policies.placement.order is Order.IDLE
        return told is None or chosen or replace(told, busy=host.busy) != host

    def _fails_anew(self, change: ch.SourceFailed) -> bool:
        """Return True if this is not the same failure as before, with no reading in between."""
        told = (change.problem, self._world.sources[change.source].seen_s)
        if self._failed.get(change.source) == told:
            return False
        self._failed[change.source] = told
        return True

    def read(self, reading: ch.SourceSeen) -> None:
        """Note that a host was read, without news."""
        self._readings.put(reading)

    def readings(
        self, policies: PolicySet, before: Mapping[str, ManagedNode | None]
    ) -> list[ch.SourceSeen | ch.SourcesSeen]:
        """Of the latest readings without news those on which a plan that was just made may depend.

        They are read every few seconds, but all that counts is whether a picture is stale, and,
        while an instance is being removed, suspected or an old copy, whether its host was read since.
        `before`: the records that the plan has changed, as they were when it was made.
        """
        half_s = self._world.now_s - policies.limits.stale_after_s / 2
        each = self._doubtful(policies, before)
        due = self._readings.due(half_s, each)
        together = [r for r in due if r.seen_s >= half_s and r.source not in each]
        found: list[ch.SourceSeen | ch.SourcesSeen] = []
        if len(together) > 1:
            names = {r.source for r in together}
            oldest_s = min(r.seen_s for r in together)
            self._readings.told(names, oldest_s)
            others = tuple(sorted(self._world.hosts.keys() - names))
            if names <= self._world.hosts.keys() and len(others) < len(names):
                found.append(ch.SourcesSeen(others, oldest_s, all_but=True))
            else:
                found.append(ch.SourcesSeen(tuple(sorted(names)), oldest_s))
            due = [r for r in due if r.source not in names]
        for reading in due:
            self._readings.told((reading.source,), reading.seen_s)
            found.append(reading)
        return found

    def _doubtful(self, policies: PolicySet, before: Mapping[str, ManagedNode | None]) -> set[str]:
        """Hosts of which each reading may decide what becomes of an instance, or of its node."""
        world = self._world
        names = {*world.fleet.suspected, *world.fleet.in_phase(Phase.REMOVING), *before}
        records = (self._record(name, before) for name in names)
        each = {host for node in records if node is not None and _is_doubtful(node) for host in node.hosts}
        for name in world.queue.awaiting_readings():
            node, copies = self._record(name, before), world.fleet.places_of(name)
            each.update(c.host for c in copies if node is None or c.tag.generation != node.generation)
            if node is None and not copies:
                each.update(policies.hosts)  # what is left over may turn up on any of them
        return each

    def _record(self, name: str, before: Mapping[str, ManagedNode | None]) -> ManagedNode | None:
        return before[name] if name in before else self._world.managed.get(name)


class Readings:
    """The latest reading of each host that was not told yet, found by when its host was told last."""

    def __init__(self) -> None:
        self._latest: dict[str, ch.SourceSeen] = {}
        self._told_s: dict[str, float] = {}  # when each host was last read, as told
        self._by_age: list[tuple[float, str]] = []  # a heap: the same of each host in `_latest`

    def put(self, reading: ch.SourceSeen) -> None:
        """Note the reading of a host."""
        host = reading.source
        known = self._latest.get(host)
        if known is not None and known.seen_s <= reading.seen_s:
            self._latest[host] = reading  # the usual case, thousands of times in a turn
            return
        told_s = self._told_s.get(host, 0.0)
        if reading.seen_s <= told_s:
            return
        if host not in self._latest:
            heappush(self._by_age, (told_s, host))
        self._latest[host] = reading

    def told(self, hosts: Iterable[str], seen_s: float) -> None:
        """Note as told that these were read then."""
        for host in hosts:
            self._told_s[host] = seen_s
            if self._latest[host].seen_s <= seen_s:
                del self._latest[host]
            else:
                heappush(self._by_age, (seen_s, host))

    def due(self, half_s: float, each: Collection[str]) -> list[ch.SourceSeen]:
        """Return those of hosts of which nothing was told since `half_s`, and all of `each`, by name."""
        hosts = {host for host in each if host in self._latest}
        while self._by_age and self._by_age[0][0] < half_s:
            told_s, host = heappop(self._by_age)
            if host in self._latest and self._told_s.get(host, 0.0) == told_s:
                hosts.add(host)
        return [self._latest[host] for host in sorted(hosts)]


def _is_doubtful(node: ManagedNode) -> bool:
    return node.suspicion is not None or node.phase is Phase.REMOVING


def _waits_alike(job: Job, told: Job) -> bool:
    """Slurm's reason for a wait changes all the time between words that mean the same."""
    return job.reason == told.reason or (for_room(job.reason) and for_room(told.reason))


def _ranks(job: Job, policies: PolicySet) -> bool:
    """Return True if something is decided by the job's priority."""
    if job.state is JobState.PENDING:
        return bool(policies.quotas.ceilings)
    victims = policies.victims
    chosen = victims.extent is Extent.NEEDED or bool(policies.budgets.windows)
    return chosen and Prefer.PRIORITY in victims.order
