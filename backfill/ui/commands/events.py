"""`backfill events`: what was seen and done, in order of time; `--follow` goes on."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, cast

from backfill.ui.client import Answer, AskError, Asking, add_place, guarded, print_json
from backfill.ui.parser import OK, UNAVAILABLE, say, whole
from backfill.ui.restored import TOLD, LastRead, place_in_copy
from backfill.ui.terminal import emphasis, local_time

Ask = Callable[..., Answer]
_LOOK_EVERY_S = 0.5
_PAGE = 1000


def add_events_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument(
        "--follow", "-f", action="store_true", help="continue until Ctrl-C, also over a restart of the daemon"
    )
    parser.add_argument("--after", type=whole(0), metavar="ID", help="only events after this one; 0: all")
    parser.add_argument("--limit", "-n", type=whole(1), default=50, metavar="N", help="how many at most (50)")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    add_place(parser)


def run_events(args: argparse.Namespace) -> int:
    """Ask and print; with `--follow` until interrupted."""

    def work(client: Asking) -> int:
        ask = client.ask_exactly if args.json else client.ask
        found, read_to, newest = _asked(ask, args.after, args.limit)
        _print(found, args.json)
        if not found and not args.follow and not args.json:
            print("no events" + (f" after {args.after}" if args.after else " yet"))
        if (args.after or 0) > newest:
            say(f"the journal ends at {newest}: an older copy was put back, or there never was {args.after}")
        if args.follow:
            last = LastRead.of(found[-1]) if found else LastRead(min(read_to, newest))
            _follow(ask, last, read_to, args.json)
        return OK

    return guarded(work, args)


def _asked(ask: Ask, after: int | None, limit: int) -> tuple[list[dict[str, Any]], int, int]:
    """At most so many events after this one (None: the latest); up to where they were looked for; and
    the journal's last id.

    The daemon reads only so much for one question, so there may be several.
    """
    found: list[dict[str, Any]] = []
    before, last_id = 0, after or 0
    while True:
        most = min(_PAGE, limit - len(found))
        begin = {"after": after} if after else {"first": after is not None}
        answer = ask("events", **begin, before=before, limit=most)
        page = answer["events"]
        found = [*page, *found] if after is None else [*found, *page]
        last_id = max(last_id, answer["read_to"])
        if not answer["more"] or len(found) >= limit:
            return found, last_id, answer["newest"]
        if after is None:
            before = answer["read_from"]
        else:
            after = answer["read_to"]


def _follow(ask: Ask, last: LastRead, read_to: int, as_json: bool) -> None:
    """Print what comes. The journal outlives the daemon, so its numbers go on after a restart.

    Unless an older copy of it was put back meanwhile: then what came since then.
    """
    lost = doubtful = False
    while True:
        # The daemon answers questions and sends nothing unasked, so there is nothing to wait on.
        time.sleep(_LOOK_EVERY_S)
        try:
            if doubtful:
                read_to = _resumed(ask, last)
            found, read_to, newest = _asked(ask, read_to, _PAGE)
            doubtful = newest < read_to
        except AskError as error:
            if error.code != UNAVAILABLE:
                raise
            if not lost:
                say(f"{error}; waiting until it answers")
            lost = doubtful = True
            continue
        lost = False
        _print(found, as_json)
        last = LastRead.of(found[-1]) if found else last


def _resumed(ask: Ask, last: LastRead) -> int:
    """Return the id behind which to go on; tells where that is another journal."""
    place = _place(ask, last)
    if place is None:
        return last.id
    say(TOLD)
    return place


def _place(ask: Ask, last: LastRead) -> int | None:
    questions = place_in_copy(last)
    try:
        question = next(questions)
        while True:
            question = questions.send(ask("events", **question))
    except StopIteration as end:
        return cast("int | None", end.value)


def _print(found: list[dict[str, Any]], as_json: bool) -> None:
    for event in found:
        if as_json:
            print_json(event)
        else:
            number = emphasis(f"{event['id']:>6}", "2")
            print(f"{number}  {local_time(event['at_s'])}  {event['text'].strip()}")
    if found:
        print(end="", flush=True)
