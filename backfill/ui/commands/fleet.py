"""`backfill fleet create|list|delete`: instances that come all together, or not at all."""

from __future__ import annotations

import argparse
import time
from typing import Any

from backfill.core.model.fleet import FleetState
from backfill.core.policies.cloning import Choice
from backfill.ui import wording
from backfill.ui.client import AskError, Asking, add_reading, guarded, print_json
from backfill.ui.errands import patiently
from backfill.ui.parser import NO, OK, add_verbs, say, whole

_VERBS = {
    "create": "make this many instances, or none and say why",
    "list": "show all fleets with their members and how long each step took",
    "delete": "delete a fleet with all its members",
}
_LOOK_EVERY_S = 0.25
_OVER = (FleetState.READY, FleetState.FAILED)


def add_fleet_arguments(parser: argparse.ArgumentParser) -> None:
    """Subcommands of `backfill fleet`."""
    verbs = add_verbs(parser, _VERBS)
    create = verbs["create"]
    create.add_argument("-n", type=whole(1), required=True, metavar="N", help="how many instances")
    create.add_argument("--image", default="", metavar="NAME", help="the master image")
    create.add_argument("--method", default="", choices=[str(c) for c in Choice], help="how they are cloned")
    create.add_argument("--no-wait", action="store_true", help="give the order and do not wait for it")
    verbs["delete"].add_argument("id", metavar="FLEET", help="as `backfill fleet list` shows it")
    for verb in verbs.values():
        add_reading(verb)


def run_fleet(args: argparse.Namespace) -> int:
    """Ask the daemon; `create` waits until all members are ready or gone again."""
    work = {"create": _create, "list": _list, "delete": _delete}[args.verb]
    return guarded(lambda client: work(client, args), args)


def _create(client: Asking, args: argparse.Namespace) -> int:
    answer = client.ask("fleet", n=args.n, image=args.image, method=args.method)
    if args.no_wait:
        print_json(answer) if args.json else print(f"{answer['id']} is ordered")
        return OK
    fleet = _awaited(client, answer["id"])
    if args.json:
        print_json(fleet)
    elif fleet["state"] == FleetState.READY:
        print(_line(fleet))
    else:
        raise AskError(f"{fleet['id']} was not made, nothing of it is left: {fleet['reason']}", NO)
    return OK if fleet["state"] == FleetState.READY else NO


def _awaited(client: Asking, identity: str) -> dict[str, Any]:
    """Return the order when it is over; say meanwhile what it waits for, once each."""
    shown = ""
    try:
        while (fleet := patiently(lambda: _find(client, identity), identity))["state"] not in _OVER:
            waits = fleet["state"] == FleetState.WAITING and fleet["reason"]
            if waits and waits != shown:
                shown = waits
                say(f"{identity} waits: {waits}")
            time.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        say(f"{identity} goes on without you; `backfill fleet delete {identity}` ends it")
        raise
    return fleet


def _find(client: Asking, identity: str) -> dict[str, Any]:
    for fleet in client.ask("fleets")["fleets"]:
        if fleet["id"] == identity:
            return dict(fleet)
    raise AskError(f"{identity} was deleted meanwhile", NO)


def _list(client: Asking, args: argparse.Namespace) -> int:
    answer = (client.ask_exactly if args.json else client.ask)("fleets")
    if args.json:
        print_json(answer)
        return OK
    for fleet in answer["fleets"]:
        print(_line(fleet))
    if not answer["fleets"]:
        print("no fleets; `backfill fleet create -n 4` makes one")
    return OK


def _delete(client: Asking, args: argparse.Namespace) -> int:
    answer = client.ask("fleet", delete=args.id)
    if args.json:
        print_json(answer)
    else:
        print(f"{args.id} goes; members with jobs when those have ended")
    return OK


def _line(fleet: dict[str, Any]) -> str:
    names = wording.folded(member["name"] for member in fleet["members"])
    took = ", ".join(f"{k} {v:g} s" for k, v in fleet["steps_s"].items() if v is not None)
    size = f"{fleet['ready']} of {fleet['size']} ready"
    return f"{fleet['id']}: {fleet['state']}, {size} ({names}); {took or fleet['reason']}"
