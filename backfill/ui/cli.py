"""`backfill`: reads the command line, calls the one command, turns its end into an exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from backfill.ui.command_line import (
    BY_NAME,
    COMPLETE,
    EXAMPLE,
    OWN_OPTIONS,
    build_parser,
    command_of,
    command_parsers,
)
from backfill.ui.outfile import OutputError
from backfill.ui.parser import BAD_DATA, INTERRUPTED, NO_PERMISSION, OK, UNAVAILABLE, USAGE, Parser, say
from backfill.ui.terminal import be_quiet_from_now, guarded_streams

# What only some sites need: the package, and the extra that brings it.
_EXTRAS = {
    "libvirt": "libvirt",
    "openstack": "openstack",
    "keystoneauth1": "openstack",
    "prometheus_client": "web",
    "jwt": "web",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit status (see the end of `backfill --help`)."""
    words = list(sys.argv[1:] if argv is None else argv)
    if sys.stdout is None:  # the next file that is opened would take its place, and what is printed
        say("standard output is closed; redirect it, for example to /dev/null")
        return BAD_DATA
    with guarded_streams():
        return _main(words)


def _main(words: list[str]) -> int:
    try:
        status = _run(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        be_quiet_from_now(sys.stdout)
        return INTERRUPTED
    except OutputError as error:
        say(str(error))
        return BAD_DATA
    except OSError as error:
        return _told(error)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        say(f"{package} is not installed; pip install 'backfill[{_EXTRAS[package]}]'")
        return UNAVAILABLE
    return status


def _directory_is_gone() -> bool:
    """Return True where every relative path fails, and so does asking where one is."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _told(error: OSError) -> int:
    """Say which file is of no use; what a command knows more about, it says itself."""
    if _directory_is_gone():
        say("the current directory is gone; cd somewhere else")
        return BAD_DATA
    if error.filename is None:  # of no file that somebody has named: a fault of the program's
        raise error
    denied = isinstance(error, PermissionError)
    remedy = "ask its owner, or try as root" if denied else "check the path"
    say(f"{error.filename}: {error.strerror}; {remedy}")
    return NO_PERMISSION if denied else BAD_DATA


def _run(words: list[str]) -> int:
    if words[:1] == [COMPLETE]:
        return _complete(words[1:])
    if words[:1] == ["--url"] and len(words) > 2:  # where one looks: said first, it goes behind the command
        words = [*words[2:], *words[:2]]
    if words[:1] == ["help"]:  # as people know it from elsewhere
        words = [*words[1:], "--help"]
    chosen = command_of(words)
    parser = build_parser([chosen] if chosen else [])
    try:
        if words and words[0].startswith("-") and words[0] not in OWN_OPTIONS:
            parser.error(f"'{words[0]}' belongs behind a command, as in: {EXAMPLE} {words[0]}")
        args, unknown = parser.parse_known_args(words)
        if not args.command:
            parser.print_help()
            return USAGE
        _refuse_surplus(parser, args, unknown)
    except SystemExit as end:  # argparse has said what it has to say
        return end.code if isinstance(end.code, int) else USAGE
    return (chosen or BY_NAME[args.command]).run(args)


def _refuse_surplus(parser: Parser, args: argparse.Namespace, unknown: Sequence[str]) -> None:
    """Refuse what would be ignored."""
    below = command_parsers(parser).get(args.command)
    if unknown:
        assert isinstance(below, Parser)
        below.refuse_unknown(unknown, args)
    if getattr(args, "ca", None) is not None and not args.url:
        (below or parser).error("--ca goes with --url; give both")


def _complete(words: list[str]) -> int:
    """Tell the shell what may follow these words: one candidate per line, with its meaning."""
    from backfill.ui.commands.completion import candidates

    for candidate in candidates(words):
        print(candidate)
    return OK


if __name__ == "__main__":
    sys.exit(main())
