"""The material of an explanation: one consistent look at everything the daemon knows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from backfill.ui import wording
from backfill.ui.client import Answer, AskError, Asking
from backfill.ui.terminal import clock_time, emphasis, local_time

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answers:
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


def look(client: Asking) -> Answers:
    """Ask for everything that an explanation may need."""
    status = client.ask("status")
    instances: dict[str, list[Entry]] = {}
    for instance in client.ask("instances")["instances"]:
        instances.setdefault(instance["name"], []).append(instance)
    return Answers(
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


# So many others are asked for their part at most.
_MOST_OTHERS = 12

Line = dict[str, Any]


def story_of(answer: Answer, picture: Answers, client: Asking) -> list[Line]:
    """Lines `{"at_s", "text"}`: the subject's own, and those of others that are about it."""
    lines: list[Line] = list(answer["story"])
    told = {(line["at_s"], line["text"]) for line in lines}
    for other, about in list(_others(answer, picture))[:_MOST_OTHERS]:
        found = _asked(client, other)
        lines += [x for x in found if about(x) and (x["at_s"], x["text"]) not in told]
    return sorted(lines, key=lambda line: float(line["at_s"]))


def _others(answer: Answer, picture: Answers) -> Iterator[tuple[str, Callable[[Line], bool]]]:
    """Whose stories have a part in this one, and which lines of them."""
    if host := answer["host"]:
        about = _mentions(host["name"])
        for name in (*wording.takers(host), *(n["name"] for n in picture.nodes_on(host["name"]))):
            yield name, about
    if job := answer["job"]:
        for name in job["nodes"]:
            if name in picture.nodes:
                yield name, _phases_since(name, float(job["submit_s"]))
        for name in _neighbours(job, picture):
            yield name, _mentions(f"job {job['id']}")


def _neighbours(job: Entry, picture: Answers) -> list[str]:
    """Our nodes on the hosts that the job has, or had."""
    hosts = [h["name"] for h in picture.hosts.values() if h["node"] in job["nodes"]]
    return [n["name"] for host in hosts for n in picture.nodes_on(host)]


def _mentions(name: str) -> Callable[[Line], bool]:
    word = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w+]|[.-]\w)")
    return lambda line: word.search(str(line["text"])) is not None


def _phases_since(name: str, since_s: float) -> Callable[[Line], bool]:
    """Match the lines that tell what the node became while the job was there."""
    step = re.compile(rf"^{re.escape(name)}( on \S+)? is now ")
    return lambda line: float(line["at_s"]) >= since_s and step.match(line["text"]) is not None


def _asked(client: Asking, subject: str) -> list[Line]:
    try:
        story: list[Line] = client.ask("explain", subject=subject)["story"]
    except AskError as error:
        if error.answer is None:
            raise
        return []  # it is known by name only
    return story


def tell(story: list[Line], most: int) -> None:
    """Print at most so many lines with the time of day, and the date where it changes."""
    shown = story[-most:] if most > 0 else []
    if not shown:
        return
    some = f" (the last {len(shown)} of {len(story)} lines)" if len(shown) < len(story) else ""
    print(emphasis("story") + some)
    day = ""
    for line in shown:
        at_s = float(line["at_s"])
        today = local_time(at_s)[:10]
        if today != day:
            print(f"  {today}")
            day = today
        print(f"    {clock_time(at_s)}  {str(line['text']).strip()}")
