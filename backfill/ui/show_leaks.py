"""`backfill instances --leaks`: what lies on disk although no host has an instance for it."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

from backfill.ports.errors import DriverError
from backfill.ui.client import print_json
from backfill.ui.codes import BAD_DATA, OK, UNAVAILABLE
from backfill.ui.parser import say
from backfill.ui.terminal import table

# Younger files may belong to an instance that is just being made, or to a daemon that is restarted.
AGE_GUARD_S = 3600.0


def show_leaks(args: argparse.Namespace) -> int:
    """Look at the shared directory and at all hosts; remove only when told to."""
    from backfill.config import ConfigError, load
    from backfill.ui.assemble import leak_finders, providers

    try:
        found = leak_finders(providers(load(args.config), lambda host, name: None))
        leaks = [(finder, leak) for finder in found for leak in finder.leaks(AGE_GUARD_S)]
        if args.remove:
            for finder, leak in leaks:
                finder.remove_leak(leak.name, AGE_GUARD_S)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return BAD_DATA
    except DriverError as error:
        say(str(error))
        return UNAVAILABLE
    if args.json:
        print_json({"leaks": [asdict(leak) for _, leak in leaks], "removed": args.remove})
        return OK
    if not leaks:
        print("nothing is left over")
        return OK
    rows = [
        (leak.name, f"{leak.size_mb:.0f} MB", f"{leak.age_s / 3600:.0f} h", leak.where) for _, leak in leaks
    ]
    table(("LEFT OVER", "SIZE", "UNTOUCHED FOR", "WHERE"), rows)
    print("\nremoved" if args.remove else "\n`backfill instances --leaks --remove` removes them")
    return OK
