"""The world: the picture of what is known now, and `apply(change)`, its only mutator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

from backfill.core.concerns import Concerns
from backfill.core.learning import follow
from backfill.core.model import changes as ch
from backfill.core.model.actions import DeleteInstance, DeleteNode, PinJob, PutBackCheckpoint, UnpinJob
from backfill.core.model.clock import Move
from backfill.core.model.cluster import ENDED, Job, JobState
from backfill.core.model.fleet import STILL, FleetState, Host, InstanceState
from backfill.core.model.job_machines import MachinesState
from backfill.core.model.lifecycle import (
    OVER,
    HeldJob,
    ManagedNode,
    Phase,
    check_transition,
    in_place,
    inherit,
    kept_here,
    kicked,
    left_to_others,
    outrun,
    probed,
    reported,
    stood_since,
    unconfirmed,
    without,
    woken,
)
from backfill.core.model.operations import HostAllocation, Operation, Source, UncertainOutcome
from backfill.core.model.quantities import WriteRate
from backfill.core.model.readiness import is_image_streak
from backfill.core.picture import Picture
from backfill.core.queue import LIVENESS, SUPPLY, Topic

_GAP_S = 15.0  # a longer pause between two readings of Slurm is a gap in our sight


class World(Picture):
    """What is known now. Everybody may read it; nobody but `apply` changes it.

    Whatever changes is told to `concerns`, whose rules say what the next plan has to look at. What
    steps of ours change is kept in tables of `undo`, so that a plan can try them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.concerns = Concerns(self)

    # --- what every change is taken by ------------------------------------------------------------

    def apply(self, change: ch.Change) -> None:
        """Take one change into the picture. Observations older than what we have are ignored."""
        take = _TAKES.get(type(change))
        if take is None:
            raise TypeError(f"not a change: {change!r}")
        try:
            take(self, change)
        finally:
            self.queue.take(self.concerns.marks)

    def _newer(self, kind: str, name: str, seen_s: float) -> bool:
        """Return True if a reading begun at `seen_s` is news about the subject, and remember it."""
        key = (kind, name)
        if seen_s < self._seen.get(key, 0.0):
            return False
        self._seen[key] = seen_s
        return True

    def _tick(self, change: ch.Tick) -> None:
        self.now_s = max(self.now_s, change.now_s)

    def _clock_set(self, change: ch.ClockSet) -> None:
        by_s = self.ahead_s - change.ahead_s
        self.clock_moves = (*self.clock_moves, Move(change.at_s - change.ahead_s, by_s))
        self.ahead_s = change.ahead_s
        self.queue.everything()

    def _clock_read(self, change: ch.ClockRead) -> None:
        if change.moved_s:
            self.time_moves = (*self.time_moves, Move(change.at_s, change.moved_s))
        if change.began:
            if by_s := change.moved_s + self.ahead_s:
                self.clock_moves = (*self.clock_moves, Move(change.at_s, by_s))
            self.ahead_s = 0.0
            self.away = (change.at_s - change.away_s, change.at_s)
            self.queue.everything()

    def _source_seen(self, change: ch.SourceSeen) -> None:
        old = self.sources.get(change.source, _NEVER)
        if change.source == "slurm":
            if (change.from_s or change.seen_s) - old.seen_s > _GAP_S:
                self.sighted_since_s = max(self.now_s, change.seen_s)
                self.queue.everything()
            for job_id in self.job_index.bury(change.seen_s):
                self._seen.pop(("job", job_id), None)
        elif old.seen_s == 0.0:
            self.concerns.host_seen(change.source)
            self.concerns.all_machines_moved()
        if old.odd_s:
            self.odd.discard(change.source)
            self.queue.latest = None  # it said so
        self.sources[change.source] = Source(max(change.seen_s, old.seen_s), old.failed_s)
        self.queue.happened(Topic.READING)
        if self.doubts:
            self._settle_doubts(change.source, change.seen_s)

    def _sources_seen(self, change: ch.SourcesSeen) -> None:
        others = (host for host in self.hosts if host not in change.sources)
        for source in others if change.all_but else change.sources:
            self._source_seen(ch.SourceSeen(source, change.seen_s))

    def _barred(self, change: ch.Barred) -> None:
        self.barred.pop(change.by, None)
        if change.problem:
            self.barred[change.by] = change.problem
        elif not self.barred:
            # No deadline ran while nobody could act.
            self.sighted_since_s = max(self.now_s, change.at_s)
        self.queue.everything()

    def _source_failed(self, change: ch.SourceFailed) -> None:
        known = self.sources.get(change.source, _NEVER)
        odd_s = (known.odd_s or change.at_s) if change.odd else known.odd_s
        if change.odd:
            self.odd.add(change.source)
            self.queue.happened(Topic.READING)
            self.queue.latest = None  # it does not say so yet
        self.sources[change.source] = replace(
            known, failed_s=change.at_s, problem=change.problem, odd_s=odd_s
        )

    def _node_seen(self, change: ch.NodeSeen) -> None:
        name = change.node.name
        if self._newer("node", name, change.seen_s):
            known, self.nodes[name] = self.nodes.get(name), change.node
            if known == change.node:
                return  # whoever looked at it would see the same
            if known is None or known.standing != change.node.standing:
                self._standing_since[name] = change.seen_s
            if change.node.silent is not (name in self.silent):
                self._silence(name, change.seen_s if change.node.silent else None)
            self._node_moved(name, change.seen_s, came_or_went=known is None)

    def _node_gone(self, change: ch.NodeGone) -> None:
        if self._newer("node", change.name, change.seen_s):
            self.nodes.pop(change.name, None)
            self._silence(change.name, None)
            self._node_moved(change.name, change.seen_s, came_or_went=True)

    def _node_moved(self, name: str, seen_s: float, *, came_or_went: bool) -> None:
        self._node_since[name] = seen_s
        if name in self.managed:
            self._look_ready(name)
        if self.ready.learn(self.nodes.get(name), ours=name in self.managed):
            self.concerns.memory_counted()
        self.concerns.slurm_node_moved(name, came_or_went=came_or_went)

    def _nodes_read(self, change: ch.NodesRead) -> None:
        for name in change.names:
            self._node_read[name] = max(change.seen_s, self._node_read.get(name, 0.0))
        self.queue.happened(Topic.READING)

    def _job_seen(self, change: ch.JobSeen) -> None:
        if self._newer("job", change.job.id, change.seen_s):
            self.pilots.put(change.job)
            if (known := self.jobs.get(change.job.id)) != change.job:
                if known is None:
                    self._found_again(change.job.id)
                elif known.active and change.job.state in ENDED:
                    self._learn(known, change.job.state, change.seen_s)
                if known is not None and known.restarts != change.job.restarts:
                    self._run_over(known)
                self._note_begin(known, change)
                self.job_index.put(change.job)
                self.concerns.job_moved(known, change.job)
            else:
                self.job_index.put(change.job)

    def _learn(self, job: Job, state: JobState, ended_s: float) -> None:
        if self.owners.learn(self, job, state, ended_s):
            self.queue.happened(Topic.HABITS)

    def _run_over(self, job: Job) -> None:
        """Forget the copies that there are not: where its node's instance stood still before it began.

        Slurm gives jobs to a node until it is drained, and starts anew whom it could not launch there.
        """
        for name in job.nodes if job.active else ():
            node = self.managed.get(name)
            if node is None or not any((h.id, h.restarts) == (job.id, job.restarts) for h in node.held):
                continue
            if self.came_late(node, job):
                self._renew(name, node.generation, lambda node: without(node, (job.id,)))

    def _outrun(self, job: Job) -> None:
        """Remember of a job that Slurm forgets which run it was: copies of earlier ones stay stale."""
        for name in self.fleet.holders(job.id):
            generation = self.managed[name].generation
            self._renew(name, generation, lambda node: outrun(node, job.id, job.restarts))

    def _note_begin(self, known: Job | None, change: ch.JobSeen) -> None:
        """Note when a run of a job was first shown at work where it is."""
        job = change.job
        if not job.active:
            self._at_work_s.pop(job.id, None)
        elif known is None or not known.active or (known.restarts, known.nodes) != (job.restarts, job.nodes):
            self._at_work_s[job.id] = change.seen_s

    def _job_gone(self, change: ch.JobGone) -> None:
        if self._newer("job", change.id, change.seen_s):
            known = self.jobs.get(change.id)
            if known is not None and known.active:
                self._vanish(known, change.seen_s)
            if known is not None and known.id in self.machines:
                self._missing_s[known.id] = -inf if known.state in ENDED else change.seen_s
            if known is not None:
                self._outrun(known)
            self._at_work_s.pop(change.id, None)
            self.job_index.drop(change.id, change.seen_s)
            self.calls.forget_job(change.id)
            self.pilots.drop(change.id)
            if known is not None:
                self.concerns.job_moved(known, None)

    def _priorities_seen(self, change: ch.PrioritiesSeen) -> None:
        for job_id, priority in zip(change.ids, change.priorities, strict=True):
            known = self.jobs.get(job_id)
            if known is not None:
                self._job_seen(ch.JobSeen(replace(known, priority=priority), change.seen_s))

    def _host_seen(self, change: ch.HostSeen) -> None:
        host = change.host
        if self._newer("host", host.name, change.seen_s):
            known, self.hosts[host.name] = self.hosts.get(host.name), host
            if host.node is not None:
                self._host_of_node[host.node] = host.name
            (self.burst.add if host.node is None else self.burst.discard)(host.name)
            had_parents, has_parents = host.name in self.with_parents, bool(host.parents_starting)
            (self.with_parents.add if has_parents else self.with_parents.discard)(host.name)
            if known != host:
                self.concerns.host_seen(host.name)
                if known is None or _carries(known) != _carries(host):
                    self.concerns.all_machines_moved()
                if self.lost(host.name):
                    self._settle_doubts(host.name)
                if had_parents or has_parents:
                    self.queue.happened(Topic.BOOTS)

    def _instance_seen(self, change: ch.InstanceSeen) -> None:
        instance = change.instance
        if self._newer("instance", f"{instance.host}/{instance.name}", change.seen_s):
            self.fleet.put(instance, change.seen_s)
            if instance.state in STILL:
                self.fleet.stands_still(instance.host, instance.name, max(self.now_s, change.seen_s))
            self._destroyed_here.discard((instance.name, instance.tag.generation))
            self._remember_generation(instance.name, instance.tag.generation)
            self.concerns.instance_moved(instance.host, instance.name)

    def _instance_stopped(self, change: ch.InstanceStopped) -> None:
        host, name = change.host, change.name
        known = self.instances.get((host, name))
        if known is not None and self._newer("instance", f"{host}/{name}", change.seen_s):
            self.fleet.instances[host, name] = replace(known, state=InstanceState.PAUSED)
            self.fleet.stands_still(host, name, max(self.now_s, change.seen_s))
            self.concerns.instance_moved(host, name)
            if (ran_s := change.ran_s) is not None:
                self._renew(name, known.tag.generation, lambda node: stood_since(node, ran_s))

    def _instance_gone(self, change: ch.InstanceGone) -> None:
        if self._newer("instance", f"{change.host}/{change.name}", change.seen_s):
            self.fleet.drop(change.host, change.name)
            self.concerns.instance_moved(change.host, change.name)

    def _claimed(self, change: ch.Claimed) -> None:
        known = self.claims.get(change.job_id)
        claim = HostAllocation(change.job_id, change.hosts, change.at_s, change.waiting, change.nodes)
        self.claim_index.put(claim)
        self.concerns.claim_moved(change.job_id, {*claim.hosts, *(() if known is None else known.hosts)})

    def _claim_answered(self, change: ch.ClaimAnswered) -> None:
        self.claim_index.answered(change.job_id)
        self.concerns.claim_moved(change.job_id, ())

    def _claim_ended(self, change: ch.ClaimEnded) -> None:
        known = self.claims.get(change.job_id)
        self.claim_index.drop(change.job_id, change.hosts)
        self.concerns.claim_moved(change.job_id, () if known is None else known.hosts)

    def _node_managed(self, change: ch.NodeManaged) -> None:
        known = self.managed.get(change.node.name)
        if known is not None:
            if known.generation == change.node.generation:
                check_transition(known, change.node.phase)
            if _tries_anew(known, change.node):
                self.calls.forget(known.name)
        self._count_destroyed(change.node)
        for name in follow(self.streaks, known, change.node, self.now_s):
            if not is_image_streak(name):
                self.concerns.host_moved(name)
        self.fleet.manage(inherit(change.node, known))
        self._remember_generation(change.node.name, change.node.generation)
        self._look_ready(change.node.name)
        self.concerns.record_moved(known, change.node)

    def _node_forgotten(self, change: ch.NodeForgotten) -> None:
        known = self.managed.get(change.name)
        self.fleet.forget(change.name)
        self._vanished.pop(change.name)
        self._deleted.discard((change.name, change.generation))
        self._destroyed_here.discard((change.name, change.generation))
        self.removed[change.name] = max(change.generation, self.removed.get(change.name, 0))
        self._look_ready(change.name)
        self.calls.forget(change.name)
        doubt = self.doubts.pop(change.name)
        self._remember_generation(change.name, change.generation)
        self.concerns.mark_name(change.name)
        if known is not None:
            self.concerns.record_moved(known, None)
            if known.phase in OVER and not known.fleet:
                self.freed_s = self.now_s
        if doubt is not None:
            self.concerns.outcome_doubted(change.name, doubt.hosts)

    def _remember_generation(self, name: str, generation: int) -> None:
        if generation > self.generations.get(name, 0):
            self.generations[name] = generation

    def _fleet_set(self, change: ch.FleetSet) -> None:
        if change.fleet.state is FleetState.GONE:
            self.fleets.pop(change.fleet.id)
        else:
            self.fleets[change.fleet.id] = change.fleet
        self.concerns.fleet_moved(change.fleet.members, change.fleet.job)

    def _machines_set(self, change: ch.MachinesSet) -> None:
        own = change.machines
        known, gone = self.machines.get(own.job), own.state is MachinesState.GONE
        if gone:
            self.machine_index.drop(own.job)
            self.calls.forget(own.job)
            self._missing_s.pop(own.job)
        else:
            self.machine_index.put(own)
        if own.state in (MachinesState.GONE, MachinesState.QUEUED):
            self.pinned.pop(own.job)
        self.concerns.machines_moved(own.job, known, None if gone else own)

    def _operation_started(self, change: ch.OperationStarted) -> None:
        self.calls.started(change)
        kind, name, _ = change.key.split(":", 2)
        self.concerns.call_moved(kind, name, change.host)

    def _operation_done(self, change: ch.OperationDone) -> None:
        known = self.operations.get(change.key)
        self.calls.done(change)
        kind, name, rest = change.key.split(":", 2)
        if known is not None and change.problem and change.begun:
            self._doubt_outcome(known, kind, name, change.at_s)
        if kind == DeleteNode.__name__ and not change.problem:
            self._deleted.add((name, int(rest.split(":")[0])))
        if kind == DeleteInstance.__name__ and not change.problem and not self.fleet.places_of(name):
            self._destroyed_here.add((name, int(rest.split(":")[0])))
        if kind in (PinJob.__name__, UnpinJob.__name__) and not change.problem and name in self.machines:
            self.pinned[name] = rest.partition(":")[2] if kind == PinJob.__name__ else ""
        self.concerns.call_moved(kind, name, "" if known is None else known.host)

    def _proven(self, change: ch.Proven) -> None:
        self._renew(change.name, change.generation, lambda node: reported(node, change.at_s, change.report))

    def _checkpoint_kept(self, change: ch.CheckpointKept) -> None:
        self._renew(change.name, change.generation, kept_here)

    def _checkpoint_put_back(self, change: ch.CheckpointPutBack) -> None:
        self._renew(change.name, change.generation, in_place)

    def _memory_written(self, change: ch.MemoryWritten) -> None:
        known = self.rates.get(change.host, WriteRate())
        self.rates[change.host] = known.learn(change.written_mb, change.took_s)
        self.concerns.host_moved(change.host)

    def _hold_set(self, change: ch.HoldSet) -> None:
        if change.keep is not None:
            self.kept.pop(change.subject, None)
            if change.on:
                self.kept[change.subject] = (change.keep, change.reason)
        else:
            for known in (self.closed, self.off):
                known.pop(change.subject, None)
                if change.on and (known is self.closed or change.off):
                    known[change.subject] = change.reason
            if self.lost(change.subject):
                self._settle_doubts(change.subject)
        self.queue.everything()

    # --- calls that may have acted although they failed ----------------------------------------

    def _doubt_outcome(self, failed: Operation, kind: str, name: str, at_s: float) -> None:
        node = self.managed.get(name)
        replaced = node.host if kind == PutBackCheckpoint.__name__ and node is not None else ""
        if failed.host or replaced:
            self._doubt(name, failed.host or replaced, at_s)

    def _doubt(self, name: str, host: str, at_s: float) -> None:
        """Doubt what is of an instance on `host`: a call that was to bring it there, or to replace its
        state, failed and may have acted.
        """
        known = self.managed.get(name)
        named = {host, known.host} if known is not None and known.host else {host}
        hosts = frozenset(one for one in named if not self.lost(one))
        if hosts:
            self.doubts[name] = UncertainOutcome(at_s, hosts)
        self.concerns.outcome_doubted(name, named)

    def _settle_doubts(self, host: str, seen_s: float = inf) -> None:
        """Settle doubts by a reading of the host: the instance is where it was seen, not where it was not.

        On one that is lost there is nothing, whatever was seen there before.
        """
        for name, doubt in tuple(self.doubts.items()):
            if host not in doubt.hosts or seen_s < doubt.at_s:
                continue
            there = None if self.lost(host) else self.instances.get((host, name))
            found = there is not None and there.state is not InstanceState.MIGRATING
            left = doubt.hosts - {host}
            if found or not left:
                del self.doubts[name]
            else:
                self.doubts[name] = replace(doubt, hosts=left)
            self.concerns.outcome_doubted(name, doubt.hosts)

    # --- pilots that are sent on demand ---------------------------------------------------------

    def _pool_read(self, change: ch.PoolRead) -> None:
        self.pilots.pool = change.picture
        self.queue.mark(SUPPLY)

    def _pilot_told(self, change: ch.PilotTold) -> None:
        self.pilots.told[change.job_id] = (change.restarts, change.ends_s)

    # --- the records of our nodes ---------------------------------------------------------------

    def _silence(self, name: str, since_s: float | None) -> None:
        """Note since when a node has not answered Slurm; None: it does so again, or is gone."""
        self.silent.pop(name, None)
        if since_s is not None:
            self.silent[name] = since_s
        self.queue.mark(LIVENESS)
        self.queue.happened(Topic.SILENCE)

    def _look_ready(self, name: str) -> None:
        """One of our nodes, as we or as Slurm have it, may count differently now."""
        self.ready.look(name, self.managed.get(name), self.nodes.get(name))

    def _woken(self, change: ch.Woken) -> None:
        self._renew(change.name, change.generation, lambda node: woken(node, change.at_s))

    def _copies_ended(self, change: ch.CopiesEnded) -> None:
        self._renew(change.name, change.generation, lambda node: without(node, change.jobs))

    def _last_words(self, change: ch.LastWords | ch.WorkLost | ch.PayloadEnded) -> None:
        """Nothing is decided by it; it is kept in the journal."""

    def _probed(self, change: ch.Probed) -> None:
        self._renew(change.name, change.generation, lambda node: probed(node, change.at_s, change.stuck))

    def _kicked(self, change: ch.Kicked) -> None:
        self._renew(change.name, change.generation, lambda node: kicked(node, change.at_s))

    def _already_suspended(self, change: ch.AlreadySuspended) -> None:
        if self.calls.found_suspended(change):
            self._renew(change.name, change.generation, lambda node: left_to_others(node, change.job_id))

    def _renew(self, name: str, generation: int, change: Callable[[ManagedNode], ManagedNode]) -> None:
        """Change the record of one generation of a managed node; of another one: nothing."""
        known = self.managed.get(name)
        if known is not None and known.generation == generation:
            node = change(known)
            self.fleet.manage(node)
            self.concerns.record_moved(known, node)

    # --- what is destroyed, and what was not --------------------------------------------------

    def _vanish(self, job: Job, seen_s: float) -> None:
        """Keep a job in mind that was at work on these nodes, is gone, and was not shown to have ended."""
        for name in job.nodes:
            if name in self.managed:
                lost = HeldJob(job.id, job.restarts)
                self._vanished[name] = {**self._vanished.get(name, {}), job.id: lost}
                self._vanished_s[name] = seen_s

    def _found_again(self, job_id: str) -> None:
        """Slurm shows a job that it did not show before: whatever it says is news of it."""
        if job_id in self._missing_s:
            self._missing_s.pop(job_id)
        for name in [name for name, jobs in self._vanished.items() if job_id in jobs]:
            left = {key: held for key, held in self._vanished[name].items() if key != job_id}
            if left:
                self._vanished[name] = left
            else:
                del self._vanished[name]
            self.concerns.mark_name(name)

    def _count_destroyed(self, node: ManagedNode) -> None:
        if node.condemned is not None:
            self.fleet.destroyed(node.name, node.generation, node.condemned.since_s)

    def _destroyed(self, change: ch.Destroyed) -> None:
        self.fleet.destroyed(change.name, change.generation, change.at_s)

    def _unconfirmed(self, change: ch.Unconfirmed) -> None:
        self._renew(change.name, change.generation, lambda node: unconfirmed(node, change.reason))


def _carries(host: Host) -> Host:
    """Return a host without what says nothing about how much it can carry."""
    return replace(host, busy=None, parents=None, problem="")


def _tries_anew(before: ManagedNode, after: ManagedNode) -> bool:
    """Return True if what failed for the node before says nothing about what comes now."""
    if after.phase is Phase.RETURNING:
        return before.phase is not Phase.RETURNING
    # No rung is left, and the last one is tried again.
    if after.phase is not before.phase or after.stop is None or before.stop is None:
        return False
    return after.stop.rung == before.stop.rung and after.stop.since_s > before.stop.since_s


_NEVER = Source()


_TAKES: dict[type, Callable[[World, Any], None]] = {
    ch.Tick: World._tick,
    ch.ClockSet: World._clock_set,
    ch.ClockRead: World._clock_read,
    ch.SourceSeen: World._source_seen,
    ch.SourcesSeen: World._sources_seen,
    ch.Barred: World._barred,
    ch.SourceFailed: World._source_failed,
    ch.NodeSeen: World._node_seen,
    ch.NodeGone: World._node_gone,
    ch.NodesRead: World._nodes_read,
    ch.JobSeen: World._job_seen,
    ch.JobGone: World._job_gone,
    ch.PrioritiesSeen: World._priorities_seen,
    ch.HostSeen: World._host_seen,
    ch.InstanceSeen: World._instance_seen,
    ch.InstanceStopped: World._instance_stopped,
    ch.InstanceGone: World._instance_gone,
    ch.Claimed: World._claimed,
    ch.ClaimAnswered: World._claim_answered,
    ch.ClaimEnded: World._claim_ended,
    ch.NodeManaged: World._node_managed,
    ch.NodeForgotten: World._node_forgotten,
    ch.Destroyed: World._destroyed,
    ch.Unconfirmed: World._unconfirmed,
    ch.OperationStarted: World._operation_started,
    ch.OperationDone: World._operation_done,
    ch.Woken: World._woken,
    ch.CopiesEnded: World._copies_ended,
    ch.Proven: World._proven,
    ch.Probed: World._probed,
    ch.Kicked: World._kicked,
    ch.AlreadySuspended: World._already_suspended,
    ch.CheckpointKept: World._checkpoint_kept,
    ch.CheckpointPutBack: World._checkpoint_put_back,
    ch.MemoryWritten: World._memory_written,
    ch.LastWords: World._last_words,
    ch.WorkLost: World._last_words,
    ch.PayloadEnded: World._last_words,
    ch.HoldSet: World._hold_set,
    ch.FleetSet: World._fleet_set,
    ch.MachinesSet: World._machines_set,
    ch.PoolRead: World._pool_read,
    ch.PilotTold: World._pilot_told,
}
