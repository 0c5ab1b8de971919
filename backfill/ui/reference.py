"""`python -m backfill.ui.reference`: writes the page about all commands, from the parser itself."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

from backfill.ui.command_line import COMMANDS, GROUPS, SCENARIO, Command, build_parser, command_parsers
from backfill.ui.parser import MEANINGS

HEAD = """\
# Commands of `backfill`

<!-- Made by `python -m backfill.ui.reference > docs/cli.md`; change the parser, not this page. -->

Every command that only looks has `--json`: the daemon's answer, unchanged, as one document
(`events --json`: one object per line). Output that does not go to a terminal is plain text
without colours; in a terminal `NO_COLOR` turns them off. The daemon is asked over a unix socket:
`--socket PATH`, otherwise `$BACKFILL_SOCKET`, otherwise `/run/backfill/daemon.sock`. Everybody may
ask; what changes something (`evict`, `reclaim`, `retry`, `poke`, fleets, checkpoints,
`policy reload`) is for root and the daemon's own user.
"""


def page() -> str:
    """The whole page as Markdown."""
    parts = [HEAD, "\n## Exit status\n\n| status | meaning |\n|---|---|\n"]
    parts += [f"| {code} | {meaning} |\n" for code, meaning in MEANINGS]
    for group in GROUPS:
        parts.append(f"\n## To {group}\n" if group != "help" else "\n## Help\n")
        for command in COMMANDS:
            if command.group == group:
                parts += _command(command)
                parts += _command(SCENARIO, " --live") if command.name == SCENARIO.name else []
    return "".join(parts)


def _command(command: Command, suffix: str = "") -> Iterator[str]:
    parser = command_parsers(build_parser([command]))[command.name]
    below = command_parsers(parser)
    title = f"backfill {command.name}{suffix}"
    yield f"\n### `{title}`\n\n{command.help[0].upper()}{command.help[1:]}.\n"
    if not below:
        yield from _arguments(title, parser)
    yield from _verbs(title, parser)
    if parser.epilog:
        yield f"\n```\n{parser.epilog}\n```\n"


def _verbs(title: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    for name, verb in command_parsers(parser).items():
        if command_parsers(verb):
            yield from _verbs(f"{title} {name}", verb)
            continue
        yield f"\n#### `{title} {name}`\n\n{verb.description}\n"
        yield from _arguments(f"{title} {name}", verb)


def _arguments(title: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    shown = shown_arguments(parser)
    options = [a for a in shown if a.option_strings and f" {a.option_strings[-1]}" not in title]
    places = [a for a in shown if not a.option_strings]
    line = [title, *(in_usage(a) for a in (*options, *places))]
    yield f"\n```\n{' '.join(line)}\n```\n"
    if options or places:
        yield "\n| argument | meaning |\n|---|---|\n"
    for action in (*places, *options):
        yield f"| {_cell(name_of(action))} | {(action.help or '').replace('|', chr(92) + '|')} |\n"


def shown_arguments(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the arguments that people are told of, in the parser's order."""
    return [a for a in parser._actions if a.dest != "help" and a.help != argparse.SUPPRESS]


def _cell(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def _value(action: argparse.Action) -> str:
    """Return the word for the argument's value; empty for a switch."""
    if action.nargs == 0:
        return ""
    if action.metavar is not None:
        return str(action.metavar)
    if action.choices is not None:
        return "{" + ",".join(str(c) for c in action.choices) + "}"
    return action.dest.upper()


def name_of(action: argparse.Action) -> str:
    """Return how an argument is written in a list: its options and what stands for its value."""
    value = _value(action)
    if not action.option_strings:
        return value
    return ", ".join(action.option_strings) + (f" {value}" if value else "")


def in_usage(action: argparse.Action) -> str:
    """Return how an argument stands in the line of usage."""
    value = _value(action)
    if not action.option_strings:
        return {"?": f"[{value}]", "+": f"{value} …", "*": f"[{value} …]"}.get(str(action.nargs), value)
    text = max(action.option_strings, key=len) + (f" {value}" if value else "")
    return text if action.required else f"[{text}]"


def main() -> int:
    """Print the page."""
    sys.stdout.write(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
