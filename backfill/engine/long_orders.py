"""What people order that takes minutes: files of checkpoints, runs of Salt, leaks, previews of policies.

Names are checked when the order is given; the rest is an errand, with which no hook waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from backfill.core.picture import barred, stale
from backfill.engine.checkpoint_desk import CheckpointDesk
from backfill.engine.checkpoint_order import CommandError
from backfill.engine.errands import Body, Errands, Note, Player, Work
from backfill.engine.leak_desk import leaks_told
from backfill.engine.salting import Salting, runs_told
from backfill.ports.capabilities import LeakFinder
from backfill.ports.errors import DriverError

if TYPE_CHECKING:
    from backfill.engine.daemon import Daemon

Ask = Callable[[Body], Body]
# So long one waits for another who reads the same files: a hung directory holds one of them only.
_TURN_WITHIN_S = 10.0


class LongOrders:
    """For one daemon; asked in the listener's threads."""

    def __init__(
        self,
        daemon: Daemon,
        inside: Callable[[Ask, Body], Body],
        put_back: Ask,
        look: Ask,
        play: Player | None,
    ) -> None:
        """`inside`: asks in the daemon's own thread. `put_back`, `look`: the questions of these names.

        `play`: None: policies are not played.
        """
        self._daemon, self._inside, self._put_back = daemon, inside, put_back
        self._look, self._play = look, play
        self._errands = Errands()
        self._files = threading.Lock()
        self.told, self.close = self._errands.told, self._errands.close
        self.known: dict[str, Callable[[Body, Note], Body]] = {
            "verify": self._verify,
            "restore": self._restore,
            "remove-checkpoints": self._remove,
            "expire": self._expire,
            "drift": self._drift,
            "provision": self._provision,
            "leaks": self._leaks,
        }
        if play is not None:
            self.known["preview"] = self._preview

    def previewed(self, body: Body) -> Body:
        """Return how far the preview of a policy file has come."""
        return self._errands.told(body, "preview")

    def checkpoints(self, body: Body) -> Body:
        """Return all checkpoints that are kept, as their files are now."""
        with self._turn():
            return self._desk.told()

    @property
    def _desk(self) -> CheckpointDesk:
        outside, policies = self._daemon.outside, self._daemon.cycle.policies
        clock, world = outside.clock, self._daemon.world
        return CheckpointDesk(
            _once(outside.keepers.values()),
            policies.checkpoints.quota_mb,
            outside.manager.read_jobs,
            lambda kept: policies.checkpoints.expired(kept, clock.now() - clock.ahead(), world.clock_moves),
        )

    @contextmanager
    def _turn(self) -> Iterator[None]:
        if not self._files.acquire(timeout=_TURN_WITHIN_S):
            raise CommandError("the directory of checkpoints does not answer; see whether it hangs")
        try:
            yield
        finally:
            self._files.release()

    def _ids(self, body: Body) -> list[str]:
        """Those that `ids` names. CommandError for one that is not kept."""
        with self._turn():
            return self._desk.known(_names(body, "ids"))

    def _verify(self, body: Body, note: Note) -> Body:
        ids, host = self._ids(body), str(body.get("restore_on") or "")
        if host and host not in self._daemon.outside.providers:
            raise CommandError(f"'{host[:80]}' is no host")
        desk = self._desk
        return self._begin("verify", lambda: desk.verify(ids, host), note)

    def _restore(self, body: Body, note: Note) -> Body:
        (identity,) = self._ids({"ids": [body.get("id", "")]})
        desk = self._desk

        def work() -> Body:
            order = desk.put_back(identity)
            answer = self._inside(self._put_back, order)
            if "error" in answer:
                raise CommandError(str(answer["error"]))
            return {**answer, "job": order["job"]}

        return self._begin("restore", work, note)

    def _remove(self, body: Body, note: Note) -> Body:
        ids, desk = self._ids(body), self._desk
        self._unused(ids)

        def work() -> Body:
            for identity in ids:
                self._unused([identity])  # it may take long until one's turn has come
                desk.remove([identity])
            return {"removed": ids}

        return self._begin("remove", work, note)

    def _unused(self, ids: Sequence[str]) -> None:
        """Raise CommandError where one of them is in use, or nobody knows."""
        answer = self._inside(self._used, {})
        if "error" in answer:
            raise CommandError(f"nothing is removed: {answer['error']}; try again")
        used = answer["used"]
        assert isinstance(used, dict)
        for identity in ids:
            if identity in used:
                raise CommandError(f"{identity} is just being used for {used[identity]}; try again later")

    def _used(self, body: Body) -> Body:
        """Return nodes by the checkpoint that is just being made of them, or put back."""
        managed = self._daemon.world.managed.values()
        return {"used": {node.order.id: node.name for node in managed if node.order is not None}}

    def _expire(self, body: Body, note: Note) -> Body:
        world, desk = self._daemon.world, self._desk
        if barred(world) or stale(world, "slurm", self._daemon.cycle.policies.limits):
            raise CommandError("no checkpoint is removed while Slurm cannot be read, or nothing may be done")
        return self._begin("expire", desk.expire, note)

    def _salting(self) -> Salting:
        salt = self._daemon.outside.provisioner
        if salt is None:
            raise CommandError("the policy file has no section salt: nothing configures nodes here")

        def look(nodes: Sequence[str]) -> dict[str, str]:
            try:
                found = self._look({"nodes": " ".join(nodes)}).get("nodes")
            except DriverError:  # the states do not render here: minions can look, too
                return {}
            return found if isinstance(found, dict) else {}

        return Salting(salt, look)

    def _drift(self, body: Body, note: Note) -> Body:
        salting = self._salting()
        return self._begin("drift", lambda: {"nodes": runs_told(salting.drift())}, note)

    def _provision(self, body: Body, note: Note) -> Body:
        salting, nodes, force = self._salting(), _names(body, "nodes"), body.get("force") is True
        return self._begin(
            "provision", lambda: {"nodes": runs_told(salting.provision(nodes, force=force))}, note
        )

    def _leaks(self, body: Body, note: Note) -> Body:
        found = [p for p in _once(self._daemon.outside.providers.values()) if isinstance(p, LeakFinder)]
        remove = body.get("remove") is True
        return self._begin("leaks", lambda: leaks_told(found, remove=remove), note)

    def _preview(self, body: Body, note: Note) -> Body:
        play, text = self._play, str(body.get("text", ""))
        assert play is not None
        return self._errands.begin("preview", lambda: play(text), note)

    def _begin(self, kind: str, work: Work, note: Note) -> Body:
        return self._errands.begin(kind, lambda: {"found": work()}, note)


def _names(body: Body, key: str) -> list[str]:
    names = body.get(key)
    if not isinstance(names, list) or not names:
        raise ValueError(f"{key} is to be a list of names")
    return [str(name) for name in names]


_Item = TypeVar("_Item")


def _once(items: Iterable[_Item]) -> list[_Item]:
    """Each once: all hosts of one pool have the same provider."""
    return list({id(item): item for item in items}.values())
