"""What was heard from inside a guest, noted in the record of its node."""

from __future__ import annotations

from collections.abc import Callable

from backfill.core import changes as ch
from backfill.core.cluster import Job
from backfill.core.doubting import Doubting
from backfill.core.lifecycle import HeldJob, ManagedNode, kicked, probed, unconfirmed, woken


class GuestNews(Doubting):
    """The part of the world that keeps such news; only `World.apply` calls these methods."""

    def _record_moved(self, node: ManagedNode) -> None:
        for what in (node.name, *node.hosts, "*managed"):
            self._touch(what)
        self.findings.rouse_node(node.name)
        self.findings.suspects.add(node.name)
        self._look_ready(node.name)

    def _silence(self, name: str, since_s: float | None) -> None:
        """A node answers Slurm no more since then, or (None) does so again or is gone."""
        self.silent.pop(name, None)
        if since_s is not None:
            self.silent[name] = since_s
        self._touch("*silent")

    def _look_ready(self, name: str) -> None:
        """One of our nodes, as we or as Slurm have it, may count differently now."""
        if self.ready.look(name, self.managed.get(name), self.nodes.get(name)):
            self._touch("*ready")

    def _phase_moved(self, before: ManagedNode | None, after: ManagedNode | None) -> None:
        """A record was made, replaced or dropped: who counts by phase has to count anew."""
        phases = {node.phase for node in (before, after) if node is not None}
        if before is None or after is None or len(phases) > 1:
            for phase in phases:
                self._touch(f"phase {phase}")

    def _woken(self, change: ch.Woken) -> None:
        self._renew(change.name, change.generation, lambda node: woken(node, change.at_s))

    def _last_words(self, change: ch.LastWords) -> None:
        """Nothing is decided by it; it is kept in the journal."""

    def _probed(self, change: ch.Probed) -> None:
        self._renew(change.name, change.generation, lambda node: probed(node, change.at_s, change.stuck))

    def _kicked(self, change: ch.Kicked) -> None:
        self._renew(change.name, change.generation, lambda node: kicked(node, change.at_s))

    def _renew(self, name: str, generation: int, change: Callable[[ManagedNode], ManagedNode]) -> None:
        """Change the record of one generation of a managed node; of another one: nothing."""
        known = self.managed.get(name)
        if known is not None and known.generation == generation:
            node = change(known)
            self._fleet.managed[name] = node
            self._record_moved(node)

    # --- what is destroyed, and what was not --------------------------------------------------

    def _vanish(self, job: Job) -> None:
        """A job at work on these nodes is not shown any more, and was not shown to have ended."""
        for name in job.nodes:
            if name in self.managed:
                self._vanished.setdefault(name, {})[job.id] = HeldJob(job.id, job.restarts)

    def _found_again(self, job_id: str) -> None:
        """Slurm shows a job that it did not show before: whatever it says is news of it."""
        for name in [name for name, jobs in self._vanished.items() if job_id in jobs]:
            del self._vanished[name][job_id]
            if not self._vanished[name]:
                del self._vanished[name]
            self._touch(name)

    def _count_destroyed(self, node: ManagedNode) -> None:
        if node.condemned is not None:
            self._fleet.destroyed(node.name, node.generation, node.condemned.since_s)
        self._touch("*destroyed")

    def _destroyed(self, change: ch.Destroyed) -> None:
        self._fleet.destroyed(change.name, change.generation, change.at_s)
        self._touch("*destroyed")

    def _unconfirmed(self, change: ch.Unconfirmed) -> None:
        self._renew(change.name, change.generation, lambda node: unconfirmed(node, change.reason))
