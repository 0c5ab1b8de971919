"""All commands and the parser of the command line; a command is imported only when it is chosen."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from backfill.ui.parser import MEANINGS, VARIABLES, Parser

Run = Callable[[argparse.Namespace], int]
# The first word of a call by a completion script; the line typed so far follows.
COMPLETE = "_complete"


@dataclass(frozen=True, slots=True)
class Command:
    """One word after `backfill`.

    Its file in `backfill.ui.commands` has `add_NAME_arguments(parser)` and `run_NAME(args) -> int`.
    """

    name: str
    file: str
    help: str
    group: str
    functions: str = ""  # their NAME, where it is not the command's

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the command's own arguments."""
        self._function("add_{}_arguments")(parser)

    def run(self, args: argparse.Namespace) -> int:
        """Carry the command out; returns the exit status."""
        return cast("Run", self._function("run_{}"))(args)

    def _function(self, name: str) -> Callable[..., object]:
        module = importlib.import_module(f"backfill.ui.commands.{self.file}")
        return cast("Callable[..., object]", getattr(module, name.format(self.functions or self.name)))


_ASK, _ACT, _WORK, _HELP = "look", "act", "run and try", "help"

COMMANDS = (
    Command("status", "look", "the cluster on one page", _ASK),
    Command("hosts", "look", "machines that carry instances", _ASK),
    Command("nodes", "look", "our virtual nodes, what they do and why", _ASK),
    Command("instances", "look", "instances on the hosts", _ASK),
    Command("explain", "explain", "why a node, host or job is as it is", _ASK),
    Command("plan", "look", "what would be done now, and what would not", _ASK),
    Command("events", "events", "what was done, in chronological order", _ASK),
    Command("metrics", "metrics", "the metrics, as Prometheus reads them", _ASK),
    Command("evict", "act", "clear a host or node by hand", _ACT),
    Command("provision", "salt", "run Salt's states on nodes", _ACT),
    Command("drift", "salt", "which nodes differ from Salt's states", _ASK),
    Command("checkpoint", "checkpoint", "saved states of jobs", _ACT),
    Command("reclaim", "act", "give a burst host's room back", _ACT),
    Command("fleet", "fleet", "groups of instances, made all together or not at all", _ACT),
    Command("run", "run", "a program in the machines of a job", _WORK),
    Command("retry", "act", "try a given-up node again", _ACT),
    Command("poke", "act", "make the daemon look at everything now", _ACT),
    Command("setup", "setup", "set up a cluster, or undo the setup", _WORK),
    Command(
        "doctor", "doctor", "check the whole chain from Slurm to a guest, and say what is missing", _WORK
    ),
    Command("daemon", "daemon", "run the node manager", _WORK),
    Command("web", "web", "serve metrics and the API", _WORK),
    Command("slurm", "slurm", "our part of Slurm's configuration", _WORK),
    Command("policy", "policy", "check a policy file", _WORK),
    Command("image", "image", "build and verify guest images", _WORK),
    Command("images", "images", "master images and their checksums", _WORK),
    Command("cloud", "cloud", "a whole cluster in OpenStack", _WORK),
    Command("lab", "lab", "a real cluster on this machine", _WORK),
    Command("demo", "demo", "watch an eviction and a return on a lab", _WORK),
    Command("replay", "replay", "replay a trace or a scenario", _WORK),
    Command("workload", "workload", "draw a trace from a model", _WORK),
    Command("completion", "completion", "completion for bash, zsh, fish", _HELP),
    Command("version", "version", "show the version", _HELP),
)
# A scenario is replayed with other arguments than a trace.
SCENARIO = Command("replay", "replay", "play a scenario, --live on a real lab", _WORK, "scenario")

GROUPS = tuple(dict.fromkeys(c.group for c in COMMANDS))
BY_NAME = {c.name: c for c in COMMANDS}

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


def command_of(words: Sequence[str]) -> Command | None:
    """Return the command that a command line names, before it is read completely."""
    name = next((w for w in words if not w.startswith("-")), "")
    # What follows an option with a value is no scenario, although it may be a YAML file.
    own = [w for before, w in zip(["", *words], words, strict=False) if before not in _WITH_FILES]
    scenario = name == SCENARIO.name and any(map(_is_scenario, own))
    if name == SCENARIO.name and ("--live" in words or scenario):
        return SCENARIO
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
    """Return True if it is a YAML file, or the name of one that comes with the project."""
    if word.startswith("-") or word.endswith((".yaml", ".yml")):
        return not word.startswith("-")
    from backfill.sim.scenarios.shipped import located

    return located(Path(word)).suffix == ".yaml"


def build_parser(declared: Sequence[Command] = ()) -> Parser:
    """Make the parser of all commands; only `declared` ones have one of their own.

    Arguments are imported, and each parser takes its time: the others are no more than known words.
    """
    modules = {c.name: c for c in declared}
    parser = Parser(prog="backfill", description=_ABOUT, epilog=_epilog(), usage=_USAGE)
    parser.add_argument(
        "--version", action="store_const", const="version", dest="command", help="show the version"
    )
    commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", help=argparse.SUPPRESS, prog=parser.prog
    )
    word = Parser(prog=parser.prog)
    for command in COMMANDS:
        if command.name not in modules:
            commands.choices[command.name] = word
            continue
        about = command.help[0].upper() + command.help[1:] + "."
        # Without `help` it is in no list: the list by groups is in the epilog.
        modules[command.name].add_arguments(commands.add_parser(command.name, description=about))
    return parser


OWN_OPTIONS = ("-h", "--help", "--version", "--")
EXAMPLE = "backfill status"
_USAGE = "backfill COMMAND [ARGUMENTS]   (backfill COMMAND --help tells more)"


def command_parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the commands below this one, by name; empty if there are none."""
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
    lines += ["", "environment:"]
    lines += [f"  {name:<17} {meaning}" for name, meaning in VARIABLES]
    return "\n".join(lines)
