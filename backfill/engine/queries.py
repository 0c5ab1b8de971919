"""Queries of people to the daemon, and the answers as plain data for `--json` and the CLI."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from backfill.core.model.cluster import Job
from backfill.core.model.fleet import Host, Instance
from backfill.core.model.lifecycle import ManagedNode, Phase, still_since_s
from backfill.core.model.readiness import Check, judge_registration, judge_report
from backfill.core.model.records import encode
from backfill.core.model.refusals import Refusal
from backfill.core.model.sentences import goal, line, why
from backfill.core.model.sentences import sentence as told
from backfill.core.picture import barred, stale
from backfill.core.policies.access import Role
from backfill.core.reconcile.planner import plan
from backfill.core.world import World
from backfill.engine.asked import PendingAnswer
from backfill.engine.checkpoint_desk import UnknownNameError
from backfill.engine.checkpoint_order import CommandError
from backfill.engine.commands import Body, Commands
from backfill.engine.connection_limiter import TOO_MANY, CrowdedError, Turns, trusted
from backfill.engine.errands import Note, Player
from backfill.engine.fleet_answers import fleet_told, fleets_in_order, machines_told
from backfill.engine.gate import Caller, GateError, Gatekeeper, who
from backfill.engine.gauges import gauges, open_calls
from backfill.engine.long_orders import LongOrders
from backfill.engine.mine import jobs_of
from backfill.engine.narrate import clock_told, sentence
from backfill.engine.privacy import Veil, never_seen
from backfill.engine.repeats import Repeats
from backfill.engine.sight import look
from backfill.engine.stories import Stories
from backfill.engine.summary import summary
from backfill.ports.errors import DriverError

if TYPE_CHECKING:
    from backfill.engine.daemon import Daemon

# What monitoring may ask without saying who it is, what only an admin may order, and what anybody
# may ask about themselves.
_OPEN = frozenset({"metrics", "ready"})
_OF_ADMINS = frozenset({"reload"})
_ABOUT_ONESELF = frozenset({"login", "logout", "whoami"})

Slices = Generator[None, None, Body]
Listed = Generator[None, None, list[Body]]
Reader = Callable[[Body], Body | Slices]

_ANSWER_WITHIN_S = 10.0
_SLICE = 32  # nodes, hosts or the like: a millisecond or less


class Queries:
    """Answers `{"ask": NAME, …}`; runs in the listener's threads, reads in the daemon's own."""

    def __init__(self, daemon: Daemon, gate: Gatekeeper, play: Player | None = None) -> None:
        """`play`: who plays policy files on the journal; None: nobody does."""
        self._daemon = daemon
        self._gate = gate
        self._repeats = Repeats()
        # Root may always ask, however many others do.
        self._turns = {False: Turns(), True: Turns()}
        stories = Stories(daemon.journal)
        self._story = stories.story
        self._readers: dict[str, Reader] = {
            "status": self._status,
            "nodes": self._nodes,
            "hosts": self._hosts,
            "instances": self._instances,
            "plan": self._plan,
            "fleets": self._fleets,
            "explain": self._explain,
            "metrics": self._metrics,
            "ready": self._ready,
            "harvest": self._harvest,
            "mine": self._mine,
        }
        # These read the journal, which may be long, so a hook must not wait for them: they run in
        # the listener's thread and not in the daemon's own.
        self._commands = Commands(daemon).known
        put_back = self._commands["put-back"]
        self._long = LongOrders(daemon, self._in_the_daemon, put_back, self._look, play)
        self._tellers: dict[str, Callable[[Body], Body]] = {
            "events": stories.events,
            "checkpoints": self._long.checkpoints,
            "errand": self._long.told,
            "previewed": self._long.previewed,
        }
        # Likewise, and for those alone who may act: they read files, or take guests' time.
        self._apart = {"reload": self._reload, "look": self._look}
        self._writers = frozenset({*self._commands, *self._apart, *self._long.known})

    def close(self) -> None:
        """Note in the audit log of each long act under way that the daemon ended before it."""
        self._long.close()

    def answer(self, body: Body, uid: int) -> Body:
        """Return the answer, or `{"error": sentence}`. Never raises."""
        name = str(body.get("ask", ""))
        try:
            caller = self._gate.caller(body, uid, acts=name in self._writers or name == "logout")
            if name in self._writers:
                return self._act(name, body, caller)
            if name in _ABOUT_ONESELF:
                return self._oneself(name, body, caller)
            own = name == "mine"
            if not caller.how if own else (name not in _OPEN and caller.how != "socket"):
                self._gate.need(caller, Role.READER, name)
            veil = Veil(caller.user, self._daemon.privacy.hidden_from(caller), self._world.jobs.get)
            if veil.hidden:
                veil.require(name, body)
        except GateError as error:
            return {"error": str(error), "kind": error.kind}
        try:
            with self._turns[trusted(uid)].taken(_ANSWER_WITHIN_S):
                answer = self._told(name, {**body, "user": caller.user} if own else body)
                return veil.over(name, answer) if veil.hidden else answer
        except CrowdedError:
            return {"error": TOO_MANY, "kind": "busy"}

    def _act(self, name: str, body: Body, caller: Caller) -> Body:
        """Carry out what somebody orders, if they may; the audit log tells before and after."""
        gate = self._gate
        gate.need(caller, Role.ADMIN if name in _OF_ADMINS else Role.OPERATOR, name)
        try:
            before = self._repeats.begin(caller.user, body)
        except ValueError as error:
            return {"error": str(error), "kind": "unreadable"}
        if before is not None:
            return before
        answer = self._done(name, body, caller)
        self._repeats.end(caller.user, body, answer)
        return answer

    def _done(self, name: str, body: Body, caller: Caller) -> Body:
        gate = self._gate
        try:
            gate.count(caller)
            gate.begun(caller, name, body)
        except GateError as error:
            return {"error": str(error), "kind": error.kind}
        answer = self._carried_out(name, body, partial(gate.done, caller, name, body))
        begun = name in self._long.known and "error" not in answer  # then it is noted how it ends
        if not begun:
            gate.done(caller, name, body, f"failed: {answer['error']}" if "error" in answer else "ok")
        return answer

    def _carried_out(self, name: str, body: Body, ended: Note) -> Body:
        if (begin := self._long.known.get(name)) is not None:
            return _told_safely(lambda asked: begin(asked, ended), body)
        if (apart := self._apart.get(name)) is not None:
            return _told_safely(apart, body)
        return self._in_the_daemon(self._commands[name], body)

    def _oneself(self, name: str, body: Body, caller: Caller) -> Body:
        """Tell somebody who they are, or begin or end their session."""
        if not caller.how:
            self._gate.need(caller, Role.READER, name)
        match name:
            case "login":
                return self._gate.log_in(caller)
            case "logout":
                return self._gate.log_out(body, caller)
            case _:
                hidden = sorted(self._daemon.privacy.hidden_from(caller))
                return {**who(caller), "hidden": hidden, "csrf": self._gate.csrf(body)}

    def _told(self, name: str, body: Body) -> Body:
        """Return the answer to somebody who only asks."""
        if (tell := self._tellers.get(name)) is not None:
            return _told_safely(tell, body)
        if (ask := self._readers.get(name)) is None:
            known = ", ".join(sorted({*self._readers, *self._writers, *self._tellers}))
            return {"error": f"unknown question '{name[:80]}'; known: {known}"}
        answer = self._in_the_daemon(ask, body)
        if name == "explain" and "error" not in answer:
            return _told_safely(self._with_story, answer)
        return answer

    def _in_the_daemon(self, ask: Reader, body: Body) -> Body:
        """Ask in the daemon's own thread, where the world does not change meanwhile: of a reader
        that is made in slices it changes between them, but never in one."""
        pending = PendingAnswer(lambda: _safely(ask, body))
        self._daemon.inbox.put(pending.query)
        answer = pending.within(_ANSWER_WITHIN_S)
        if answer is None:
            error = f"the daemon was too busy to answer within {_ANSWER_WITHIN_S:.0f} s"
            return {"error": error, "kind": "busy"}
        assert isinstance(answer, dict)
        return answer

    # --- reading -------------------------------------------------------------------------------

    @property
    def _world(self) -> World:
        return self._daemon.world

    def _status(self, body: Body) -> Slices:
        world, policies = self._world, self._daemon.cycle.policies
        phases: dict[str, int] = {p.value: 0 for p in Phase}
        for node in world.managed.values():
            phases[node.phase.value] += 1
        kinds = world.job_index.kinds_pending(policies.priorities.low)
        told = {
            "cluster": policies.cluster,
            "policy": self._daemon.policyfile.told(),
            "now_s": world.now_s,
            "clock": clock_told(world),
            "sentence": summary(world, self._daemon.cycle.last),
            "phases": phases,
            "low_priority_jobs_waiting": sum(len(alike) for _, alike in kinds),
            # What should be 0: rules of the planner that proved wrong, each a defect.
            "planner": {
                "forgotten": world.queue.forgotten,
                "unsettled": world.queue.unsettled,
                "failed": world.queue.failures,
            },
            "work_lost": self._daemon.losses.told(),
            "payloads": self._daemon.payloads.told(),
            "pool": asdict(world.pilots.pool) if self._daemon.outside.pool is not None else None,
            "hooks_not_believed": [asdict(u) for u in self._daemon.refused.all()],
        }
        sources, refusals = [*world.sources.items()], self._daemon.cycle.last.refusals
        claims, operations = [*world.claims.values()], open_calls(self._world)
        yield
        seen = yield from _in_slices(sources, lambda s: {"name": s[0], "source": asdict(s[1])})
        return {
            **told,
            "sources": {str(s["name"]): s["source"] for s in seen},
            "claims": (yield from _in_slices(claims, asdict)),
            "refusals": (yield from _in_slices(refusals, _refused)),
            "operations": (yield from _in_slices(operations, asdict)),
        }

    def _nodes(self, body: Body) -> Slices:
        managed, now_s = [m for _, m in sorted(self._world.managed.items())], self._world.now_s
        return {"now_s": now_s, "nodes": (yield from _in_slices(managed, self._node))}

    def _node(self, node: ManagedNode) -> Body:
        seen = self._world.nodes.get(node.name)
        return {
            "name": node.name,
            "phase": node.phase.value,
            "since_s": node.since_s,
            "reason": node.reason,
            "host": node.host,
            "target": node.target or "",
            "address": node.address,
            "generation": node.generation,
            "slurm_state": seen.state_text if seen else "",
            "slurm_reason": seen.reason if seen else "",
            "jobs": [j.id for j in self._world.jobs_on(node.name)],
            "held": [asdict(h) for h in node.held],
            "still_since_s": still_since_s(node),
            "closed": self._world.closed.get(node.name, ""),
            "proven_s": node.proof.proven_s,
            "proof_s": node.proof.first_s,
            "checks": [asdict(c) for c in self._checks(node)],
            "failures": node.retry.failures,
            "evictions": node.evictions,
        }

    def _checks(self, node: ManagedNode) -> tuple[Check, ...]:
        """Judge its slurmd by Slurm's knowledge, and its last report by the present rules."""
        policies, rules = self._daemon.cycle.policies, self._daemon.cycle.policies.readiness
        places = self._world.places_of(node.name)
        mine = [place for place in places if place.tag.generation == node.generation]
        flavour = policies.instances.promised_by(node, mine[0] if mine else None)
        cpus, memory_mb = flavour.cpus, flavour.node_memory_mb
        seen = self._world.nodes.get(node.name)
        slurmd = () if seen is None else (judge_registration(seen, cpus, memory_mb),)
        report = node.proof.report
        if report is None:
            return slurmd
        offset_s = rules.clock_offset_s
        return slurmd + judge_report(report, node.address, cpus, memory_mb, offset_s)

    def _hosts(self, body: Body) -> Slices:
        hosts = [host for _, host in sorted(self._world.hosts.items())]
        return {"hosts": (yield from _in_slices(hosts, self._host))}

    def _host(self, host: Host) -> Body:
        world = self._world
        return {
            "name": host.name,
            "node": host.node,
            "cpus": host.capacity.cpus,
            "memory_mb": host.capacity.memory_mb,
            "reachable": host.reachable,
            "problem": host.problem,
            "busy": host.busy,
            "parents": [asdict(parent) for parent in host.parents or ()],
            "numa": [asdict(node) for node in host.numa],
            "given_to": list(world.takers(host.name)),
            "instances": [i.name for i in world.fleet.instances_on(host.name)],
            "closed": world.closed.get(host.name, ""),
        }

    def _instances(self, body: Body) -> Slices:
        seen = [instance for _, instance in sorted(self._world.instances.items())]
        return {"instances": (yield from _in_slices(seen, self._instance))}

    def _instance(self, seen: Instance) -> Body:
        managed = self._world.managed.get(seen.name)
        return {
            "name": seen.name,
            "host": seen.host,
            "state": seen.state.value,
            "generation": seen.tag.generation,
            "cpus": seen.resources.cpus,
            "memory_mb": seen.resources.memory_mb,
            "rss_mb": seen.rss_mb,
            "numa": seen.numa,
            "problem": seen.problem,
            "phase": managed.phase.value if managed is not None else "",
        }

    def _plan(self, body: Body) -> Slices:
        """Return the steps that would begin now; nothing begins by asking."""
        builder = plan(self._world, self._daemon.cycle.policies, spare=True)
        under_way = open_calls(self._world)
        yield
        return {
            "actions": (yield from _in_slices(builder.actions, _told(sentence))),
            "refusals": (yield from _in_slices(builder.refusals, _refused)),
            "under_way": (yield from _in_slices(under_way, asdict)),
            "awaited": sorted(builder.watch),
        }

    def _explain(self, body: Body) -> Body:
        """Everything known about one node, host or job: now, refused, and its story."""
        subject = str(body.get("subject", ""))
        world = self._world
        managed, job = world.managed.get(subject), world.jobs.get(subject)
        host, node = world.hosts.get(subject), world.nodes.get(subject)
        # The journal's part of the answer is added outside of this thread.
        refusals = self._daemon.cycle.last.refusals
        names = {subject, f"job {subject}"}
        fleet = world.fleets.get(subject)
        lacking = next((why(r) for r in reversed(refusals) if r.subject == subject), "")
        return {
            "subject": subject,
            "clock": clock_told(world),
            "node": self._node(managed) if managed else None,
            "job": encode(job) if job else None,
            "for_instances": job is not None and self._for_instances(job),
            "machines": machines_told(world, own) if (own := world.machines.get(subject)) else None,
            "host": self._host(host) if host else None,
            "fleet": fleet_told(world, fleet, lacking) if fleet else None,
            "slurm": node.state_text if node else None,
            "refusals": [
                _refused(r)
                for r in refusals
                if r.subject in names
                or (job is not None and (r.subject == "cluster" or r.subject in world.hosts))
            ],
            "operations": [asdict(o) for o in open_calls(self._world) if o.key.split(":")[1] == subject],
            "known": bool(managed or job or host or node or subject in world.fleets),
        }

    def _for_instances(self, job: Job) -> bool:
        """Return True if our nodes may take it while it waits."""
        priorities = self._daemon.cycle.policies.priorities
        by_qos = job.partition not in priorities.high and job.qos in priorities.low_qos
        return job.partition in priorities.low or by_qos

    def _with_story(self, answer: Body) -> Body:
        """Add what the journal tells about the subject."""
        subject = str(answer.get("subject", ""))
        story = self._story(subject)
        if not answer.pop("known", True) and not story:
            return {"error": never_seen(subject), "kind": "unknown"}
        return {**answer, "story": story}

    def _fleets(self, body: Body) -> Slices:
        now_s, fleets = self._world.now_s, fleets_in_order(self._world)
        lacking = {r.subject: why(r) for r in self._daemon.cycle.last.refusals}
        told = _in_slices(fleets, lambda f: fleet_told(self._world, f, lacking.get(f.id, "")))
        return {"now_s": now_s, "fleets": (yield from told)}

    def _mine(self, body: Body) -> Slices:
        """Return the jobs of `user`, whom `answer` has put there."""
        user = str(body["user"])
        low, refusals = self._daemon.cycle.policies.priorities.low, self._daemon.cycle.last.refusals
        now_s = self._world.now_s
        return {"now_s": now_s, "jobs": (yield from jobs_of(self._world, user, low, refusals))}

    def _ready(self, body: Body) -> Body:
        """Return whether we may act, and know Slurm as it is."""
        problem = barred(self._world) or stale(self._world, "slurm", self._daemon.cycle.policies.limits)
        return {"ready": problem is None, "why": "" if problem is None else told(problem)}

    def _harvest(self, body: Body) -> Body:
        """Return core seconds by hours, of the latest days."""
        return {"now_s": self._world.now_s, "hours": self._daemon.harvest.told()}

    def _metrics(self, body: Body) -> Slices:
        """Return what is counted and what is so now, as families of samples."""
        counted = [*self._daemon.meter.told(), *self._daemon.payloads.counters(self._world.clock_s)]
        yield
        return {"families": [*(yield from gauges(self._daemon)), *counted]}

    # --- acting --------------------------------------------------------------------------------

    def _look(self, body: Body) -> Body:
        """Compare `nodes` with their states: an empty text, or the difference."""
        places: dict[str, tuple[str, int]] = {}

        def find(body: Body) -> Body:
            names, ours = str(body["nodes"]).split(), self._world.managed
            places.update({n: (ours[n].host, ours[n].generation) for n in names if n in ours})
            return {}

        failed = self._in_the_daemon(find, body)
        if failed:
            return failed
        found = look(self._daemon.outside, places)
        return {"nodes": {node: told or "" for node, told in found.items()}}

    def _reload(self, body: Body) -> Body:
        """Read the policy file again, in this thread; the daemon's own puts it into force."""
        daemon = self._daemon
        reading = daemon.policyfile.read(force=True)
        assert reading is not None  # forced

        def take(body: Body) -> Body:
            told = daemon.policyfile.take(reading, daemon.cycle)
            daemon.cycle.decide()
            return told

        return self._in_the_daemon(take, body)


_Item = TypeVar("_Item")


def _refused(refusal: Refusal) -> Body:
    """As plain data, with the words for people."""
    said = {"what": goal(refusal), "reason": why(refusal), "sentence": line(refusal)}
    return {**encode(refusal), **said}


def _told(tell: Callable[[Any], str]) -> Callable[[Any], Body]:
    """As plain data, with the sentence for people."""
    return lambda entry: {**encode(entry), "sentence": tell(entry)}


def _in_slices(items: Iterable[_Item], tell: Callable[[_Item], Body]) -> Listed:
    """Tell of each; after a few of them the daemon looks whether it has something better to do."""
    found = []
    for number, item in enumerate(items, 1):
        found.append(tell(item))
        if number % _SLICE == 0:
            yield
    return found


def _safely(ask: Reader, body: Body) -> Body | Slices:
    """Answer a bad question as well: it must not end the daemon's thread."""
    try:
        found = ask(body)
    except _BAD as error:
        return _refusal(error)
    return found if isinstance(found, dict) else _safe_slices(found)


def _safe_slices(slices: Slices) -> Slices:
    try:
        return (yield from slices)
    except _BAD as error:
        return _refusal(error)


_BAD = (CommandError, ValueError, KeyError, OverflowError)


def _refusal(error: Exception) -> Body:
    if isinstance(error, UnknownNameError):
        return {"error": str(error), "kind": "unknown"}
    if isinstance(error, CommandError):
        return {"error": str(error)}
    return {"error": f"the question cannot be read: {error}", "kind": "unreadable"}


def _told_safely(tell: Callable[[Body], Body], body: Body) -> Body:
    """Do the same for what only reads the journal: when that fails the daemon itself goes on."""
    try:
        return tell(body)
    except _BAD as error:
        return _refusal(error)
    except DriverError as error:
        return {"error": str(error)}
