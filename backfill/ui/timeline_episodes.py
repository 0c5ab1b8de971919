"""Boots and evictions out of journal entries, each with its steps."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from backfill.core import actions as act
from backfill.core import changes as ch
from backfill.core.cluster import NOWHERE, Job, JobState
from backfill.core.lifecycle import ManagedNode, Phase
from backfill.core.plan import AnswerClaim, EndClaim, SetNode, key_of
from backfill.ui.timeline_data import Boot, ClaimSeen, Eviction, Step

_WORDS = re.compile(r"(?<!^)(?=[A-Z])")
_STOPS = ("pause instance", "suspend instance")


class Episodes:
    """Feed it the journal's entries in order; read `boots`, `evictions` and `claims`."""

    def __init__(self) -> None:
        self.boots: list[Boot] = []
        self.evictions: list[Eviction] = []
        self.claims: list[ClaimSeen] = []
        self._booting: dict[str, int] = {}  # node -> index in boots
        self._evicting: dict[str, int] = {}
        self._claimed: dict[str, int] = {}  # job that has hosts now -> index in claims
        self._latest_boot: dict[str, int] = {}

    def add(self, at_s: float, value: object) -> None:
        """Take one decoded entry."""
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
        """A call has ended."""
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
        """A guest told how its own start went."""
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
            case EndClaim() | ch.ClaimEnded():
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
        """It stands aside; a move that failed leads here a second time, which is no news."""
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
        self.evictions.append(Eviction(node.name, node.generation, node.host, node.reason, wanted_s, at_s))

    def _begin(self, at_s: float, action: act.DriverAction) -> None:
        step = Step(step_name(key_of(action)), at_s)
        for index, episodes in ((self._booting, self.boots), (self._evicting, self.evictions)):
            if action.name in index:
                known: Any = episodes[index[action.name]]
                episodes[index[action.name]] = replace(known, steps=(*known.steps, step))

    def _job_runs(self, at_s: float, job: Job) -> None:
        """The first job on a new instance is what it was made for."""
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
    """An operation's key in words: `pause instance`, `suspend job 5`, `hide node`."""
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
