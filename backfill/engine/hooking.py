"""The hooks' side of the daemon: calls become claims, and those that wait get their answer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from backfill.core.model import changes as ch
from backfill.core.model.plan import AnswerClaim
from backfill.core.model.visible import visible
from backfill.core.world import World
from backfill.engine.connection_limiter import Refused
from backfill.engine.messages import HookCall
from backfill.engine.watch import Watch

_LOG = logging.getLogger("backfill.daemon")


class HookDesk:
    """Takes the calls of hooks and keeps those that wait. For the daemon's one thread.

    A daemon that has just started knows no host yet, and a hook that comes then must not be told
    that it has none: its call is kept until every host was read, or could not be. What a hook on a
    host says is only believed when Slurm was read as well, which tells where each node lives.
    """

    def __init__(
        self,
        world: World,
        watch: Watch,
        sources: Sequence[str],
        poke: Callable[..., None],
        lends: Callable[[], bool] = lambda: False,
        refused: Refused | None = None,
    ) -> None:
        self._world = world
        self._lends = lends  # whether jobs on nodes of ours may ask for devices
        self._watch = watch
        self._sources = tuple(sources)
        self._poke = poke
        self._refused = refused if refused is not None else Refused()
        self._waiting: dict[str, list[HookCall]] = {}
        self._early: list[tuple[HookCall, float]] = []  # with the time at which each came

    def take(self, call: HookCall, now_s: float) -> list[ch.Change]:
        """Turn an allocation into a claim on the hosts among its nodes, and look when a job ends."""
        if call.event == "arrived":
            self._poke("slurm")
            return []
        if call.event == "ended":
            return self._ended(call, now_s)
        if self._unread(call):
            self._early.append((call, now_s))
            return []
        return self._allocated(call, now_s)

    def take_early(self, now_s: float, patience_s: float) -> list[ch.Change] | None:
        """Translate one of the calls that came too early, once that can be done or it has waited
        enough; None when there is no such call."""
        for index, (call, came_s) in enumerate(self._early):
            unread = self._unread(call)
            if not unread or now_s >= came_s + patience_s:
                del self._early[index]
                return self._allocated(call, came_s, unread)
        return None

    def due_in_s(self, now_s: float, patience_s: float) -> float:
        """Seconds until a call that came too early has waited enough."""
        return max(0.001, self._early[0][1] + patience_s - now_s) if self._early else 60.0

    def answer(self, answer: AnswerClaim) -> None:
        """Let the hooks of a job go on."""
        verdict = "ok" if answer.ok else "no"
        for call in self._waiting.pop(answer.job_id, ()):
            call.reply(f"{verdict} {visible(answer.reason)}")

    def forget(self, call: HookCall) -> None:
        """Forget a hook that went away: scancel while it waited? Slurm will tell."""
        self._early = [kept for kept in self._early if kept[0] is not call]
        waiting = self._waiting.get(call.job_id, [])
        if call in waiting:
            waiting.remove(call)
            self._poke("slurm")

    # --- inside --------------------------------------------------------------------------------

    def _unread(self, call: HookCall) -> str | None:
        """Return the source that must be read before the call can be understood; None: there is none."""
        for name in self._sources:
            source = self._world.sources.get(name)
            seen = source is not None and source.seen_s > 0
            tried = seen or (source is not None and source.failed_s > 0)
            needed = not seen and bool(call.peer) if name == "slurm" else not tried
            if needed:
                return name
        return None

    def _ended(self, call: HookCall, now_s: float) -> list[ch.Change]:
        if not self._unread(call):  # otherwise it is about to be read anyway
            self._watch.leaves(call.job_id, self._believed(call), now_s)
        self._poke("slurm")
        return []

    def _allocated(self, call: HookCall, came_s: float, unread: str | None = None) -> list[ch.Change]:
        nodes = self._believed(call)
        hosts = tuple(h for n in nodes if (h := self._world.host_of_node(n)) is not None)
        ours = tuple(n for n in nodes if n in self._world.managed) if self._lends() else ()
        if not hosts and (unread or not ours):
            answer = "ok no host of ours is among the nodes"
            call.reply(f"no {unread} has not been read yet" if unread else answer)
            return []
        self._watch.comes(nodes)
        self._waiting.setdefault(call.job_id, []).append(call)
        known = self._world.claims.get(call.job_id)
        if known is not None:  # one job, several hooks: each host's slurmd calls for itself
            hosts = tuple(sorted({*known.hosts, *hosts}))
            ours = tuple(sorted({*known.nodes, *ours}))
        return [ch.Claimed(call.job_id, hosts, came_s, waiting=True, nodes=ours)]

    def _believed(self, call: HookCall) -> list[str]:
        """Let a hook on a host speak only for the one node at its own address."""
        if not call.peer:
            return list(call.nodes)
        # The listener lets no other through; whoever feeds us must not be able to make us work.
        for name in call.nodes[:1]:
            seen = self._world.nodes.get(name)
            if seen is not None and seen.address == call.peer:
                return [name]
            why = f"a hook from {call.peer} spoke about a node that is not there"
            if self._refused.note(why, self._world.now_s):
                _LOG.warning("%s: %s; ignored", why, name)
        return []
