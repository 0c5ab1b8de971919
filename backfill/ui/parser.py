"""The command line's manners: exit statuses, a parser that says what was probably meant, `say`."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from backfill.core.model.visible import visible

OK = 0
NO = 1  # the answer is no, or the request failed
USAGE = 64
BAD_DATA = 65
UNAVAILABLE = 69
NO_PERMISSION = 77
BAD_CONFIG = 78
INTERRUPTED = 130

_SHOWN = 20  # of a number that is refused; more digits would fill the terminal

# Where the policy file is when nobody says so.
DEFAULT_POLICY = "/etc/backfill/policy.yaml"

MEANINGS = (
    (OK, "done; the answer is yes"),
    (NO, "the answer is no, or the request failed"),
    (USAGE, "the command line cannot be understood"),
    (BAD_DATA, "a policy file, trace or scenario has mistakes, or a file cannot be read or written"),
    (UNAVAILABLE, "no daemon, Slurm or hypervisor answers, or the daemon cannot continue"),
    (NO_PERMISSION, "you may not do this"),
    (BAD_CONFIG, "the daemon refuses its policy file, or the web service lacks a package"),
    (INTERRUPTED, "interrupted, or nobody reads the output any more"),
)
# What a user may set in the environment, and what it says.
VARIABLES = (
    ("BACKFILL_SOCKET", "the daemon's socket, unless --socket names it"),
    ("BACKFILL_URL", "the daemon's web service, to ask it instead, unless --socket or --config is given"),
    ("SLURM_JWT", "the token for it: export $(scontrol token)"),
    ("BACKFILL_LAB_ROOT", "where labs keep their files (/var/lib/backfill-lab)"),
    ("BACKFILL_CACHE", "where the lab keeps what it built (/var/cache/backfill)"),
    ("NO_COLOR", "no colours in a terminal either"),
)


class Parser(argparse.ArgumentParser):
    """argparse with `did you mean`, without guessing abbreviated options."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("allow_abbrev", False)
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**settings)
        # Options that this command has in another form, and why not in this one.
        self.elsewhere: dict[str, str] = {}

    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one sentence and where the help is; exit with USAGE."""
        needed = "the following arguments are required: "
        if message.startswith(needed):
            message = f"{message.removeprefix(needed)} is missing"
        if message.endswith(": expected one argument"):
            option = (
                message.removesuffix(": expected one argument").rpartition("/")[2].removeprefix("argument ")
            )
            message = f"{option} needs a value; one that begins with a dash is written {option}=-..."
        # argparse itself names the function that did not understand the value.
        message = re.sub(r"invalid int value: ('.*')$", r"\1 is no whole number; give one", message)
        self.exit(USAGE, f"{self.prog}: {message}; see `{self.prog} --help`\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(c) for c in action.choices]
        what = action.metavar or action.dest
        kind = str(what).lower() if isinstance(action, argparse._SubParsersAction) else "value"
        hint = did_you_mean(str(value), known) or f": use {', '.join(known)}"
        raise argparse.ArgumentError(
            None if kind != "value" else action, f"there is no {kind} '{value}'{hint}"
        )

    def refuse_unknown(self, unknown: Sequence[str], args: argparse.Namespace) -> NoReturn:
        """Say which words were not understood, with the nearest option of the chosen verb."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                below = action.choices[getattr(args, action.dest)]
                assert isinstance(below, Parser)
                below.refuse_unknown(unknown, args)
        options = [o for a in self._actions for o in a.option_strings if o.startswith("--")]
        first = unknown[0]
        if not first.startswith("-"):
            self.error(f"'{first}' is one word too many")
        option = first.partition("=")[0]
        if option in self.elsewhere:
            self.error(f"{option} {self.elsewhere[option]}")
        hint = did_you_mean(option, options)
        self.error(f"there is no option '{first}'{hint}")


def add_verbs(
    parser: argparse.ArgumentParser, verbs: dict[str, str], dest: str = "verb"
) -> dict[str, argparse.ArgumentParser]:
    """Subcommands by name with what they are for; the chosen name is `args.verb`, or `dest`."""
    made = parser.add_subparsers(dest=dest, metavar="COMMAND", required=True)
    return {
        name: made.add_parser(name, help=about, description=f"{about[0].upper()}{about[1:]}.")
        for name, about in verbs.items()
    }


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the policy file, for commands that ask no daemon."""
    parser.add_argument(
        "--config",
        default=DEFAULT_POLICY,
        metavar="FILE",
        type=Path,
        help=f"the policy file ({DEFAULT_POLICY})",
    )


def whole(least: int, most: int = 10**18 - 1) -> Callable[[str], int]:
    """Return what reads an option's whole number within these bounds."""

    def read(text: str) -> int:
        given = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        if not re.fullmatch("-?[0-9]+", text):
            raise argparse.ArgumentTypeError(f"'{given}' is no whole number; give one from {least} on")
        if text.startswith("-") or int(text[:_SHOWN]) < least:
            raise argparse.ArgumentTypeError(f"{given} is less than {least}; give at least {least}")
        if len(text) > _SHOWN or int(text) > most:
            raise argparse.ArgumentTypeError(f"{given} is too large; give {most} at most")
        return int(text)

    return read


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'X'?`, or an empty text when nothing is near."""
    near = difflib.get_close_matches(word, sorted(set(known)), n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else ""


def say(sentence: str) -> None:
    """One line for people, on stderr."""
    sys.stderr.write(f"backfill: {visible(sentence)}\n")
