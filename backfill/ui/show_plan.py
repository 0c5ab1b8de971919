"""`backfill plan`: what would be begun now, what is under way, what is refused. Changes nothing."""

from __future__ import annotations

import argparse
from typing import Any

from backfill.ui import wording
from backfill.ui.client import Answer, Client, add_reading, present
from backfill.ui.terminal import emphasis


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    add_reading(parser)


def run(args: argparse.Namespace) -> int:
    """Ask and print."""
    return present(args, "plan", _show)


def _show(answer: Answer, client: Client) -> None:
    now_s = client.ask("status")["now_s"]
    for step in answer["actions"]:
        print(f"would {_step(step)}")
    if not answer["actions"]:
        print("nothing would be begun now")
    for entry in answer["under_way"]:
        print(emphasis("under way: ", "36") + wording.operation(entry, now_s))
    if answer["awaited"]:
        print(f"awaited: a change of {wording.folded(answer['awaited'])} in Slurm")
    for refusal in answer["refusals"]:
        print(emphasis("refused: ", "33") + wording.refusal(refusal))


def _step(step: dict[str, Any]) -> str:
    """A step in the infinitive; phases have no verb of their own."""
    match step["t"]:
        case "SetNode":
            node = step["node"]
            return f"let {node['name']} on {node['host']} be {node['phase']}: {step['reason']}"
        case "ForgetNode":
            return f"forget {step['name']}: {step['reason']}"
        case "AnswerClaim":
            verdict = "free" if step["ok"] else "NOT free"
            return f"tell job {step['job_id']} that the room is {verdict}: {step['reason']}"
        case "EndClaim":
            return f"end the claim of job {step['job_id']}: {step['reason']}"
        case _:
            return str(step["sentence"])
