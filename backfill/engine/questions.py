"""What people ask the daemon and what they are told, as plain data for `--json` and the CLI."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, cast

from backfill.core.lifecycle import ManagedNode, Phase
from backfill.core.planner import plan
from backfill.core.readiness import Check, judge_registration, judge_report
from backfill.core.records import encode
from backfill.core.world import World
from backfill.engine.checkpoint_order import OrderError
from backfill.engine.doorkeeper import trusted
from backfill.engine.fleet_answers import fleets_told
from backfill.engine.messages import Question
from backfill.engine.narrate import sentence, story_line
from backfill.engine.orders import Body, Orders
from backfill.engine.sight import look
from backfill.engine.summary import summary
from backfill.ports import DriverError

if TYPE_CHECKING:
    from backfill.engine.daemon import Daemon

_ANSWER_WITHIN_S = 10.0
_STORY_LINES = 200


class Questions:
    """Answers `{"ask": NAME, …}`; runs in the listener's threads, reads in the daemon's own."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._readers: dict[str, Callable[[Body], Body]] = {
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
        self._tellers: dict[str, Callable[[Body], Body]] = {
            "events": self._events,
        }
        # Likewise, and for those alone who may act: they read files, or take guests' time.
        self._apart = {"reload": self._reload, "look": self._look}
        self._writers = {**Orders(daemon).known, **self._apart}

    def answer(self, body: Body, uid: int) -> Body:
        """The answer, or `{"error": sentence}`. Never raises."""
        name = str(body.get("ask", ""))
        act = self._writers.get(name)
        if act is not None and not trusted(uid):
            return {"error": f"'{name}' is for root and the daemon's own user only"}
        apart = self._apart.get(name) or self._tellers.get(name)
        if apart is not None:
            return _told_safely(apart, body)
        ask = act if act is not None else self._readers.get(name)
        if ask is None:
            known = ", ".join(sorted({*self._readers, *self._writers, *self._tellers}))
            return {"error": f"unknown question '{name}'; known: {known}"}
        answer = self._in_the_daemon(ask, body)
        return _told_safely(self._with_story, answer) if name == "explain" else answer

    def _in_the_daemon(self, ask: Callable[[Body], Body], body: Body) -> Body:
        """Ask in the daemon's own thread, where the world does not change meanwhile."""
        reply: SimpleQueue[object] = SimpleQueue()
        self._daemon.inbox.put(Question(lambda: _safely(ask, body), reply))
        try:
            answer = reply.get(timeout=_ANSWER_WITHIN_S)
        except Empty:
            return {"error": f"the daemon was too busy to answer within {_ANSWER_WITHIN_S:.0f} s"}
        assert isinstance(answer, dict)
        return answer

    # --- reading -------------------------------------------------------------------------------

    @property
    def _world(self) -> World:
        return self._daemon.world

    def _status(self, body: Body) -> Body:
        world, policies = self._world, self._daemon.cycle.policies
        phases: dict[str, int] = {p.value: 0 for p in Phase}
        for node in world.managed.values():
            phases[node.phase.value] += 1
        pending = sum(1 for _ in world.pending(policies.priorities.low))
        return {
            "cluster": policies.cluster,
            "policy": self._daemon.policyfile.told(),
            "now_s": world.now_s,
            "sentence": summary(world, self._daemon.cycle.last),
            "phases": phases,
            "low_priority_jobs_waiting": pending,
            "sources": {name: asdict(source) for name, source in world.sources.items()},
            "claims": [asdict(c) for c in world.claims.values()],
            "refusals": [encode(r) for r in self._daemon.cycle.last.refusals],
            "operations": [asdict(o) for o in world.operations.values()],
        }

    def _nodes(self, body: Body) -> Body:
        nodes = [self._node(m) for _, m in sorted(self._world.managed.items())]
        return {"now_s": self._world.now_s, "nodes": nodes}

    def _node(self, node: ManagedNode) -> Body:
        seen = self._world.nodes.get(node.name)
        return {
            "name": node.name,
            "phase": node.phase.value,
            "since_s": node.since_s,
            "reason": node.reason,
            "host": node.host,
            "target": node.target,
            "address": node.address,
            "generation": node.generation,
            "slurm_state": seen.state_text if seen else "",
            "slurm_reason": seen.reason if seen else "",
            "jobs": [j.id for j in self._world.jobs_on(node.name)],
            "held": [asdict(h) for h in node.held],
            "proven_s": node.proven_s,
            "proof_s": node.proof_s,
            "checks": [asdict(c) for c in self._checks(node)],
            "failures": node.failures,
            "evictions": node.evictions,
        }

    def _checks(self, node: ManagedNode) -> tuple[Check, ...]:
        """What Slurm knows of its slurmd, and what its last report proves by the rules of now."""
        policies = self._daemon.cycle.policies
        flavour, rules = policies.instances.flavour, policies.readiness
        cpus, memory_mb = flavour.cpus, flavour.node_memory_mb
        seen = self._world.nodes.get(node.name)
        slurmd = () if seen is None else (judge_registration(seen, cpus, memory_mb),)
        if node.report is None:
            return slurmd
        offset_s = rules.clock_offset_s
        return slurmd + judge_report(node.report, node.address, cpus, memory_mb, offset_s)

    def _hosts(self, body: Body) -> Body:
        world = self._world
        return {
            "hosts": [
                {
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
                for _, host in sorted(world.hosts.items())
            ]
        }

    def _instances(self, body: Body) -> Body:
        return {
            "instances": [
                {
                    "name": i.name,
                    "host": i.host,
                    "state": i.state.value,
                    "generation": i.tag.generation,
                    "cpus": i.resources.cpus,
                    "memory_mb": i.resources.memory_mb,
                    "rss_mb": i.rss_mb,
                    "phase": m.phase.value if (m := self._world.managed.get(i.name)) else "",
                }
                for _, i in sorted(self._world.instances.items())
            ]
        }

    def _plan(self, body: Body) -> Body:
        """What would be begun now; nothing is begun by asking."""
        draft = plan(self._world, self._daemon.cycle.policies)
        return {
            "actions": [{**encode(a), "sentence": sentence(a)} for a in draft.actions],
            "refusals": [{**encode(r), "sentence": str(r)} for r in draft.refusals],
            "under_way": [asdict(o) for o in self._world.operations.values()],
            "awaited": sorted(draft.watch),
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
        return {
            "subject": subject,
            "node": self._node(managed) if managed else None,
            "job": encode(job) if job else None,
            "host": next((h for h in self._all_hosts() if h["name"] == subject), None),
            "fleet": next((f for f in self._all_fleets() if f["id"] == subject), None),
            "slurm": node.state_text if node else None,
            "refusals": [
                {**encode(r), "sentence": str(r)}
                for r in refusals
                if r.subject in names
                or (job is not None and r.subject in ("cluster", *world.hosts))
            ],
            "operations": [
                asdict(o) for o in world.operations.values() if o.key.split(":")[1] == subject
            ],
            "known": bool(managed or job or host or node or subject in world.fleets),
        }

    def _with_story(self, answer: Body) -> Body:
        """Add what the journal tells about the subject."""
        subject = str(answer.get("subject", ""))
        story = self._told(subject)
        if not answer.pop("known", True) and not story:
            return {"error": f"'{subject}' is no node, host, job or fleet that was ever seen"}
        return {**answer, "story": story}

    def _all_hosts(self) -> list[Body]:
        return cast(list[Body], self._hosts({})["hosts"])

    def _all_fleets(self) -> list[Body]:
        return fleets_told(self._world, self._daemon.cycle.last.refusals)

    def _fleets(self, body: Body) -> Body:
        return {"now_s": self._world.now_s, "fleets": self._all_fleets()}

    def _told(self, subject: str) -> list[Body]:
        lines = [
            {"id": r.id, "at_s": r.at_s, "text": text}
            for r in self._daemon.journal.read(subject=subject)
            if (text := story_line(r))
        ]
        return lines[-_STORY_LINES:]

    def _events(self, body: Body) -> Body:
        """Journal lines after `after` (an id), oldest first, at most `limit`."""
        after = int(str(body.get("after", 0)))
        limit = int(str(body.get("limit", 1000)))
        found = []
        for record in self._daemon.journal.read(after_id=after):
            text = story_line(record)
            if text:
                found.append({**asdict(record), "text": text})
        return {"events": found[-limit:] if not after else found[:limit]}

    # --- acting --------------------------------------------------------------------------------

    def _look(self, body: Body) -> Body:
        """Which of `nodes` are as their states say (an empty text), and which differ, and how."""
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


def _safely(ask: Callable[[Body], Body], body: Body) -> Body:
    """A bad question must not end the daemon's thread."""
    try:
        return ask(body)
    except OrderError as error:
        return {"error": str(error)}
    except (ValueError, KeyError, OverflowError) as error:
        return {"error": f"the question cannot be read: {error}"}


def _told_safely(tell: Callable[[Body], Body], body: Body) -> Body:
    """The same for what only reads the journal: when that fails the daemon itself goes on."""
    try:
        return _safely(tell, body)
    except DriverError as error:
        return {"error": str(error)}
