"""`backfill lab cloud`: a real OpenStack on this machine, to play with and for the tests."""

from __future__ import annotations

import argparse
import json
import os
import sys

from backfill.lab.cloud import guests, second
from backfill.lab.cloud.handle import Cloud
from backfill.lab.spec import LabError
from backfill.ui.codes import NO, OK
from backfill.ui.terminal import table

VERBS = {
    "up": "start the cloud and leave it running",
    "down": "end it; nothing of it is left",
    "status": "its services",
    "run": "run one command in its network, with its credentials",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What may follow `backfill lab cloud`."""
    made = parser.add_subparsers(dest="cloud_verb", metavar="COMMAND", required=True)
    for verb, about in VERBS.items():
        one = made.add_parser(verb, help=about, description=f"{about[0].upper()}{about[1:]}.")
        one.add_argument("--name", default="cloud", metavar="NAME", help="which cloud (cloud)")
        if verb == "up":
            one.add_argument(
                "--guests",
                action="store_true",
                help="with compute hosts c3 and c4 whose guests are real, in zones of their own",
            )
        if verb == "status":
            one.add_argument("--json", action="store_true", help="print one JSON document")
        if verb == "run":
            one.add_argument("words", metavar="-- CMD", nargs=argparse.REMAINDER, help="the command")


def run(args: argparse.Namespace) -> int:
    """Carry it out; LabError is the caller's to report."""
    cloud = Cloud(args.name)
    match args.cloud_verb:
        case "up":
            return _up(cloud, args.guests)
        case "down":
            was = cloud.status().phase
            cloud.down()
            print(f"cloud {cloud.name} " + ("was not up" if was == "down" else "is down"))
            return OK
        case "status":
            return _status(cloud, as_json=args.json)
        case _:
            return _run(cloud, args.words)


def _up(cloud: Cloud, real_guests: bool) -> int:
    cloud.up(lambda line: print(line, file=sys.stderr, flush=True), real_guests=real_guests)
    services = "Keystone, Nova (hosts c1, c2, c5), Glance, Cinder, Placement, Neutron"
    print(f"cloud {cloud.name} is up: {services}")
    if real_guests:
        for host in (guests, second):
            print(f"  host {host.HOST} boots real guests in zone {host.ZONE}, by QEMU without KVM")
    print(f"  credentials in {cloud.clouds_yaml}: admin, and the projects east and west")
    print("  backfill lab cloud run -- CMD      a command in its network")
    print("  backfill lab cloud down            end it")
    return OK


def _status(cloud: Cloud, as_json: bool) -> int:
    status = cloud.status()
    if as_json:
        print(json.dumps(status.to_json()))
    else:
        detail = f": {status.detail}" if status.detail else ""
        print(f"cloud {status.name} is {status.phase}{detail}")
        if status.services:
            table(("SERVICE", "PID"), [(name, str(pid)) for name, pid in status.services.items()])
    return OK if status.phase == "up" else NO


def _run(cloud: Cloud, words: list[str]) -> int:
    command = words[1:] if words[:1] == ["--"] else words
    if not command:
        raise LabError("no command is given: backfill lab cloud run -- COMMAND")
    argv = cloud.command(command)
    sys.stdout.flush()
    os.execvp(argv[0], argv)  # noqa: S606 - an argument list of our own, no shell wanted
