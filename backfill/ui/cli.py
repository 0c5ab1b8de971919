"""`backfill`: reads the command line, calls the one command, turns its end into an exit status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from backfill.ui.codes import INTERRUPTED, MEANINGS, OK, UNAVAILABLE, USAGE
from backfill.ui.commands import BY_NAME, COMMANDS, GROUPS, LIVE, Command
from backfill.ui.guard import guarded_streams
from backfill.ui.parser import Parser, be_quiet_from_now, say

# The first word of a call by a completion script; the line typed so far follows.
COMPLETE = "_complete"

_ABOUT = (
    "Virtual nodes that fill a Slurm cluster's idle hosts with low-priority jobs\nand give them back at once."
)
_BEGIN = """\
first steps:
  backfill demo                       watch it on this machine, nothing to set up
  backfill lab up                     keep such a cluster and play with it
  backfill policy check FILE          before the daemon is started
  backfill daemon --config FILE       start it
  backfill status                     what is going on
  backfill explain vn1                why"""

# What only some sites need: the package, and the extra that brings it.
_EXTRAS = {"libvirt": "libvirt", "openstack": "openstack", "keystoneauth1": "openstack"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit status (see the end of `backfill --help`)."""
    words = list(sys.argv[1:] if argv is None else argv)
    with guarded_streams():
        return _main(words)


def _main(words: list[str]) -> int:
    try:
        status = _run(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        be_quiet_from_now()
        return INTERRUPTED
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRAS:
            raise
        say(f"{package} is not installed; pip install 'backfill[{_EXTRAS[package]}]'")
        return UNAVAILABLE
    return status


def _run(words: list[str]) -> int:
    if words[:1] == [COMPLETE]:
        return _complete(words[1:])
    chosen = command_of(words)
    parser = build_parser([chosen] if chosen else [])
    try:
        if words and words[0].startswith("-") and words[0] not in _OWN_OPTIONS:
            parser.error(f"'{words[0]}' belongs behind a command, as in: {_EXAMPLE} {words[0]}")
        args, unknown = parser.parse_known_args(words)
        if not args.command:
            parser.print_help()
            return USAGE
        if unknown:
            below = command_parsers(parser)[args.command]
            assert isinstance(below, Parser)
            below.refuse_unknown(unknown, args)
    except SystemExit as end:  # argparse has said what it has to say
        return end.code if isinstance(end.code, int) else USAGE
    return (chosen or BY_NAME[args.command]).run(args)


def _complete(words: list[str]) -> int:
    """What may follow these words, for the shell: one candidate per line with what it is."""
    from backfill.ui.candidates import candidates

    for candidate in candidates(words):
        print(candidate)
    return OK


def command_of(words: Sequence[str]) -> Command | None:
    """The command that a command line names, before it is read completely."""
    name = next((w for w in words if not w.startswith("-")), "")
    # What follows an option with a value is no scenario, although it may be a YAML file.
    own = [w for before, w in zip(["", *words], words, strict=False) if before not in _WITH_FILES]
    scenario = name == LIVE.name and any(map(_is_scenario, own))
    if name == LIVE.name and ("--live" in words or scenario):
        return LIVE
    return BY_NAME.get(name)


_WITH_FILES = frozenset(
    {
        "--policy",
        "--against",
        "--journal",
        "--learn",
        "--costs",
        "--reservations",
        "--backlog",
        "--report",
        "--junit",
    }
)


def _is_scenario(word: str) -> bool:
    """A YAML file, or the name of one that comes with the project."""
    if word.startswith("-") or word.endswith((".yaml", ".yml")):
        return not word.startswith("-")
    from backfill.sim.scenarios.shipped import located

    return located(Path(word)).suffix == ".yaml"


def build_parser(declared: Sequence[Command] = ()) -> Parser:
    """The parser of all commands; only `declared` ones have their arguments, as that imports."""
    modules = {c.name: c for c in declared}
    parser = Parser(prog="backfill", description=_ABOUT, epilog=_epilog(), usage=_USAGE)
    parser.add_argument(
        "--version", action="store_const", const="version", dest="command", help="show the version"
    )
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", help=argparse.SUPPRESS, prog=parser.prog
    )
    for command in COMMANDS:
        about = command.help[0].upper() + command.help[1:] + "."
        # Without `help` it is in no list: the list by groups is in the epilog.
        one = commands.add_parser(command.name, description=about)
        if command.name in modules:
            modules[command.name].add_arguments(one)
    return parser


_OWN_OPTIONS = ("-h", "--help", "--version", "--")
_EXAMPLE = "backfill status"
_USAGE = "backfill COMMAND [ARGUMENTS]   (backfill COMMAND --help tells more)"


def command_parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of the commands below this one, by name; empty if there are none."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _epilog() -> str:
    lines = []
    for group in GROUPS:
        lines.append(f"{group}:")
        lines += [f"  {c.name:<12} {c.help}" for c in COMMANDS if c.group == group]
        lines.append("")
    lines += [_BEGIN, "", "exit status:"]
    lines += [f"  {code:<4} {meaning}" for code, meaning in MEANINGS]
    lines += ["", "environment:", "  BACKFILL_SOCKET   the daemon's socket, where --socket is not"]
    lines += ["  NO_COLOR          no colours in a terminal either"]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
