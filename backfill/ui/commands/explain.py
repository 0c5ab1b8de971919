"""`backfill explain SUBJECT`: what is it doing and why, what would change it, and its story."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from backfill.ui import wording
from backfill.ui.client import Answer, AskError, Asking, add_reading, guarded, print_json
from backfill.ui.explain.node import explain_node
from backfill.ui.explain.picture import Answers, Explanation, look, story_of, tell
from backfill.ui.explain.subjects import explain_fleet, explain_host, explain_job
from backfill.ui.parser import OK, USAGE, did_you_mean, whole
from backfill.ui.terminal import emphasis

_KINDS = ("node", "host", "job", "instance", "fleet")


def add_explain_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument(
        "subject",
        metavar="SUBJECT",
        nargs="+",
        help="a node, host, job or fleet: vn1, bm2, 1234, job 12_3, fleet-1795376247",
    )
    parser.add_argument(
        "--lines", type=whole(1), default=30, metavar="N", help="how many lines of history at most (30)"
    )
    add_reading(parser)


def run_explain(args: argparse.Namespace) -> int:
    """Ask and print."""

    def work(client: Asking) -> int:
        subject = _subject(args.subject)
        if args.json:
            print_json(_ask(client, client.ask_exactly, subject))
        else:
            _show(_ask(client, client.ask, subject), client, args.lines)
        return OK

    return guarded(work, args)


def _subject(words: list[str]) -> str:
    """`job 12` is `12`."""
    if len(words) == 2 and words[0].lower() in _KINDS:
        return words[1]
    if len(words) == 1:
        return words[0]
    raise AskError(f"one subject at a time: backfill explain {words[0]}", USAGE)


def _ask(client: Asking, ask: Callable[..., Answer], subject: str) -> Answer:
    try:
        return ask("explain", subject=subject)
    except AskError as error:
        if error.answer is None:
            raise
        known = {n["name"] for n in client.ask("nodes")["nodes"]}
        known |= {h["name"] for h in client.ask("hosts")["hosts"]}
        known |= {f["id"] for f in client.ask("fleets")["fleets"]}
        hint = did_you_mean(subject, known)
        raise AskError(f"{error}{hint}", error.code, error.answer) from error


def _show(answer: Answer, client: Asking, most: int) -> None:
    picture = look(client)
    for made in explanations(answer, picture):
        made.add("hooks", *(wording.unheard(u, picture.now_s) for u in picture.unheard))
        print(emphasis(made.headline))
        last = ""
        for label, sentence in made.lines:
            print(f"  {'' if label == last else label:<10} {sentence}")
            last = label
        print()
    if answer.get("clock"):
        print(emphasis(f"clock: {answer['clock']}", "33"))
        print()
    tell(story_of(answer, picture, client), most)


def explanations(answer: Answer, picture: Answers) -> list[Explanation]:
    """One per kind of thing that has the subject's name; a host is a Slurm node as well."""
    made = []
    if answer["node"]:
        made.append(explain_node(answer, picture))
    if answer["host"]:
        made.append(explain_host(answer, picture))
    if answer["job"]:
        made.append(explain_job(answer, picture))
    if answer["fleet"]:
        made.append(explain_fleet(answer, picture))
    if made:
        return made
    subject = answer["subject"]
    if answer["slurm"]:
        text = f"{subject} is a Slurm node that is neither ours nor a host of ours"
        return [Explanation(text, [("Slurm", f"shows it as {answer['slurm']}")])]
    return [Explanation(f"{subject} is gone; this is what is remembered of it")]
