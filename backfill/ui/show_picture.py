"""What an explanation is made from: one consistent look at everything the daemon knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from backfill.ui import wording
from backfill.ui.client import Client

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Picture:
    """Answers of the daemon by name; `now_s` is its clock, epoch seconds."""

    now_s: float
    nodes: dict[str, Entry] = field(default_factory=dict)
    hosts: dict[str, Entry] = field(default_factory=dict)
    instances: dict[str, list[Entry]] = field(default_factory=dict)  # by name: two while it moves
    claims: dict[str, Entry] = field(default_factory=dict)  # by job
    unheard: tuple[Entry, ...] = ()  # hooks that were not believed

    def nodes_on(self, host: str) -> list[Entry]:
        """Our nodes whose place is this host."""
        return [n for n in self.nodes.values() if n["host"] == host]


@dataclass(slots=True)
class Explanation:
    """A headline and, under it, labelled sentences in the order in which they were added."""

    headline: str
    lines: list[tuple[str, str]] = field(default_factory=list)

    def add(self, label: str, *sentences: str) -> None:
        """Add the sentences that say something."""
        self.lines += [(label, sentence) for sentence in sentences if sentence]


def look(client: Client) -> Picture:
    """Ask for everything that an explanation may need."""
    status = client.ask("status")
    instances: dict[str, list[Entry]] = {}
    for instance in client.ask("instances")["instances"]:
        instances.setdefault(instance["name"], []).append(instance)
    return Picture(
        now_s=status["now_s"],
        nodes=_by(client.ask("nodes")["nodes"], "name"),
        hosts=_by(client.ask("hosts")["hosts"], "name"),
        instances=instances,
        claims=_by(status["claims"], "job_id"),
        unheard=tuple(status.get("hooks_not_believed", ())),
    )


def _by(entries: Sequence[Entry], key: str) -> dict[str, Entry]:
    return {str(e[key]): e for e in entries}


def refused(explanation: Explanation, refusals: Sequence[Entry], subject: str) -> None:
    """Add what was refused, naming the subject only where it is another one."""
    for refusal in refusals:
        own = refusal["subject"] == subject
        explanation.add("refused", wording.not_done(refusal) if own else wording.refusal(refusal))
