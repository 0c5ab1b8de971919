"""Queries of people to the daemon, and the answers as plain data for `--json` and the CLI."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from dataclasses import asdict
from queue import Empty
from typing import TYPE_CHECKING, Any, TypeVar

from backfill.core.fleet import Host, Instance
from backfill.core.lifecycle import ManagedNode, Phase
from backfill.core.planner import plan
from backfill.core.readiness import Check, judge_registration, judge_report
from backfill.core.records import encode
from backfill.core.refusals import Refusal
from backfill.core.sentences import goal, line, why
from backfill.core.world import World
from backfill.engine.checkpoint_order import CommandError
from backfill.engine.commands import Body, Commands
from backfill.engine.connection_limiter import TOO_MANY, CrowdedError, Turns, trusted
from backfill.engine.fleet_answers import fleet_told, fleets_in_order
from backfill.engine.messages import Query
from backfill.engine.narrate import clock_told, sentence
from backfill.engine.sight import look
from backfill.engine.stories import Stories
from backfill.engine.summary import summary
from backfill.ports.errors import DriverError

if TYPE_CHECKING:
    from backfill.engine.daemon import Daemon

Slices = Generator[None, None, Body]
Listed = Generator[None, None, list[Body]]
Reader = Callable[[Body], Body | Slices]

_ANSWER_WITHIN_S = 10.0
_SLICE = 32  # nodes, hosts or the like: a millisecond or less


class Queries:
    """Answers `{"ask": NAME, …}`; runs in the listener's threads, reads in the daemon's own."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
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
        }
        # These read the journal, which may be long, so a hook must not wait for them: they run in
        # the listener's thread and not in the daemon's own.
        self._tellers: dict[str, Callable[[Body], Body]] = {"events": stories.events}
        # Likewise, and for those alone who may act: they read files, or take guests' time.
        self._apart = {"reload": self._reload, "look": self._look}
        self._writers = {**Commands(daemon).known, **self._apart}

    def answer(self, body: Body, uid: int) -> Body:
        """The answer, or `{"error": sentence}`. Never raises."""
        name = str(body.get("ask", ""))
        act = self._writers.get(name)
        if act is not None:
            if not trusted(uid):
                return {"error": f"'{name}' is for root and the daemon's own user only"}
            apart = self._apart.get(name)
            return _told_safely(apart, body) if apart else self._in_the_daemon(act, body)
        try:
            with self._turns[trusted(uid)].taken(_ANSWER_WITHIN_S):
                return self._told(name, body)
        except CrowdedError:
            return {"error": TOO_MANY}

    def _told(self, name: str, body: Body) -> Body:
        """The answer to somebody who only asks."""
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
        waiting = threading.Event()
        waiting.set()
        question = Query(lambda: _safely(ask, body), wanted=waiting.is_set)
        self._daemon.inbox.put(question)
        try:
            answer = question.reply.get(timeout=_ANSWER_WITHIN_S)
        except Empty:
            waiting.clear()  # it is not worked at for nobody
            return {"error": f"the daemon was too busy to answer within {_ANSWER_WITHIN_S:.0f} s"}
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
        kinds = world.kinds_pending(policies.priorities.low)
        told = {
            "cluster": policies.cluster,
            "policy": self._daemon.policyfile.told(),
            "now_s": world.now_s,
            "clock": clock_told(world),
            "sentence": summary(world, self._daemon.cycle.last),
            "phases": phases,
            "low_priority_jobs_waiting": sum(len(alike) for _, alike in kinds),
            # What should be 0: rules of the planner that proved wrong, each a defect.
            "planner": {"forgotten": world.queue.forgotten, "unsettled": world.queue.unsettled},
            "hooks_not_believed": [asdict(u) for u in self._daemon.refused.all()],
        }
        sources, refusals = [*world.sources.items()], self._daemon.cycle.last.refusals
        claims, operations = [*world.claims.values()], [*world.operations.values()]
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
            "proven_s": node.proof.proven_s,
            "proof_s": node.proof.first_s,
            "checks": [asdict(c) for c in self._checks(node)],
            "failures": node.retry.failures,
            "evictions": node.evictions,
        }

    def _checks(self, node: ManagedNode) -> tuple[Check, ...]:
        """Judge its slurmd by Slurm's knowledge, and its last report by the present rules."""
        policies = self._daemon.cycle.policies
        flavour, rules = policies.instances.flavour, policies.readiness
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
            "given_to": list(world.takers(host.name)),
            "instances": [i.name for i in world.instances_on(host.name)],
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
            "problem": seen.problem,
            "phase": managed.phase.value if managed is not None else "",
        }

    def _plan(self, body: Body) -> Slices:
        """Return the steps that would begin now; nothing begins by asking."""
        builder = plan(self._world, self._daemon.cycle.policies)
        under_way = [*self._world.operations.values()]
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
            "host": self._host(host) if host else None,
            "fleet": fleet_told(world, fleet, lacking) if fleet else None,
            "slurm": node.state_text if node else None,
            "refusals": [
                _refused(r)
                for r in refusals
                if r.subject in names
                or (job is not None and (r.subject == "cluster" or r.subject in world.hosts))
            ],
            "operations": [asdict(o) for o in world.operations.values() if o.key.split(":")[1] == subject],
            "known": bool(managed or job or host or node or subject in world.fleets),
        }

    def _with_story(self, answer: Body) -> Body:
        """Add what the journal tells about the subject."""
        subject = str(answer.get("subject", ""))
        story = self._story(subject)
        if not answer.pop("known", True) and not story:
            return {"error": f"'{subject[:80]}' is no node, host, job or fleet that was ever seen"}
        return {**answer, "story": story}

    def _fleets(self, body: Body) -> Slices:
        now_s, fleets = self._world.now_s, fleets_in_order(self._world)
        lacking = {r.subject: why(r) for r in self._daemon.cycle.last.refusals}
        told = _in_slices(fleets, lambda f: fleet_told(self._world, f, lacking.get(f.id, "")))
        return {"now_s": now_s, "fleets": (yield from told)}

    # --- acting --------------------------------------------------------------------------------

    def _look(self, body: Body) -> Body:
        """Compare `nodes` with their states: an empty text, or the difference."""
        places: dict[str, tuple[str, int]] = {}

        def find(body: Body) -> Body:
            names, ours = str(body["nodes"]).split(), self._world.managed
            places.update({n: (ours[n].host, ours[n].generation) for n in names if n in ours})
            return {}

        failed = self._in_the_daemon(find, body)
        return failed or {"nodes": look(self._daemon.outside, places)}

    def _reload(self, body: Body) -> Body:
        """Read the policy file again, in this thread; the daemon's own puts it into force."""
        daemon = self._daemon
        reading = daemon.policyfile.read(daemon.cycle.policies, force=True)
        assert reading is not None  # forced

        def take(body: Body) -> Body:
            told = daemon.policyfile.take(reading, daemon.cycle)
            daemon.cycle.decide()
            return {**told, "changed": list(reading.changed)}

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
    """A bad question must not end the daemon's thread."""
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
    if isinstance(error, CommandError):
        return {"error": str(error)}
    return {"error": f"the question cannot be read: {error}"}


def _told_safely(tell: Callable[[Body], Body], body: Body) -> Body:
    """The same for what only reads the journal: when that fails the daemon itself goes on."""
    try:
        return tell(body)
    except _BAD as error:
        return _refusal(error)
    except DriverError as error:
        return {"error": str(error)}
