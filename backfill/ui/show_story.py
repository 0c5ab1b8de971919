"""The story of a subject in order of time, with what its hosts and nodes went through for it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from backfill.ui import wording
from backfill.ui.client import Answer, AskError, Client
from backfill.ui.show_picture import Entry, Picture
from backfill.ui.terminal import clock_time, emphasis, local_time

# So many others are asked for their part at most.
_MOST_OTHERS = 12

Line = dict[str, Any]


def story_of(answer: Answer, picture: Picture, client: Client) -> list[Line]:
    """Lines `{"at_s", "text"}`: the subject's own, and those of others that are about it."""
    lines: list[Line] = list(answer["story"])
    told = {(line["at_s"], line["text"]) for line in lines}
    for other, about in list(_others(answer, picture))[:_MOST_OTHERS]:
        found = _asked(client, other)
        lines += [x for x in found if about(x) and (x["at_s"], x["text"]) not in told]
    return sorted(lines, key=lambda line: float(line["at_s"]))


def _others(answer: Answer, picture: Picture) -> Iterator[tuple[str, Callable[[Line], bool]]]:
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


def _neighbours(job: Entry, picture: Picture) -> list[str]:
    """Our nodes on the hosts that the job has, or had."""
    hosts = [h["name"] for h in picture.hosts.values() if h["node"] in job["nodes"]]
    return [n["name"] for host in hosts for n in picture.nodes_on(host)]


def _mentions(name: str) -> Callable[[Line], bool]:
    word = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w+]|[.-]\w)")
    return lambda line: word.search(str(line["text"])) is not None


def _phases_since(name: str, since_s: float) -> Callable[[Line], bool]:
    """What the node became while the job was there to see it."""
    step = re.compile(rf"^{re.escape(name)}( on \S+)? is now ")
    return lambda line: float(line["at_s"]) >= since_s and step.match(line["text"]) is not None


def _asked(client: Client, subject: str) -> list[Line]:
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
