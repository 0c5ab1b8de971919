"""`python -m backfill.ui.manual DIRECTORY`: writes the manual pages, from the command line's own parser."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from backfill.ui.command_line import COMMANDS, GROUPS, SCENARIO, Command, build_parser, command_parsers
from backfill.ui.parser import MEANINGS, VARIABLES
from backfill.ui.reference import HEAD, in_usage, name_of, shown_arguments

_FILES = (
    ("/etc/backfill/policy.yaml", "the policy file"),
    ("/etc/backfill/images.yaml", "the catalogue of images"),
    ("/run/backfill/daemon.sock", "where the daemon is asked"),
    ("/var/lib/backfill/journal.db", "the daemon's journal: what it saw, decided and did"),
)


def write_pages(folder: Path, version: str) -> list[Path]:
    """Write backfill(1) and a page for each command into `folder`; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = {"backfill": "".join(_overview(version))}
    for command in COMMANDS:
        pages[f"backfill-{command.name}"] = "".join(_command(command, version))
    written = []
    for name, text in pages.items():
        path = folder / f"{name}.1"
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def _overview(version: str) -> Iterator[str]:
    yield _title("backfill", version)
    yield _section("NAME", r"backfill \- virtual nodes on the idle hosts of a Slurm cluster")
    yield _section("SYNOPSIS", r".B backfill" + "\n" + r".I COMMAND" + "\n" + r"[\fIargument\fR ...]")
    yield _section("DESCRIPTION", _prose(HEAD))
    for group in GROUPS:
        yield _section(f"TO {group}" if group != "help" else "HELP", "")
        for command in COMMANDS:
            if command.group == group:
                yield _item(rf"\fBbackfill\-{_plain(command.name)}\fR(1)", command.help)
    yield _section("EXIT STATUS", "".join(_item(str(code), meaning) for code, meaning in MEANINGS))
    yield _section("ENVIRONMENT", "".join(_item(name, told) for name, told in VARIABLES))
    yield _section("FILES", "".join(_item(rf"\fI{_plain(name)}\fR", told) for name, told in _FILES))


def _command(command: Command, version: str) -> Iterator[str]:
    parser = command_parsers(build_parser([command]))[command.name]
    page = f"backfill-{command.name}"
    yield _title(page, version)
    yield _section("NAME", rf"{_plain(page)} \- {_plain(command.help)}")
    forms = list(_forms(f"backfill {command.name}", parser))
    if command.name == SCENARIO.name:
        live = command_parsers(build_parser([SCENARIO]))[SCENARIO.name]
        forms += _forms(f"backfill {SCENARIO.name} --live", live)
    lines = [rf"\fB{_plain(title)}\fR {_usage(one)}".rstrip() for title, one in forms]
    yield _section("SYNOPSIS", "\n.br\n".join(lines))
    for title, one in forms:
        yield _section("DESCRIPTION" if len(forms) == 1 else title, _plain(one.description or command.help))
        for action in shown_arguments(one):
            yield _item(rf"\fB{_plain(name_of(action))}\fR", action.help or "")
    if parser.epilog:
        yield _section("EXAMPLES", f".nf\n{_plain(parser.epilog)}\n.fi")
    yield _section("SEE ALSO", r"\fBbackfill\fR(1)")


def _forms(title: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield the ways to call a command: itself, or each of its verbs."""
    below = command_parsers(parser)
    if not below:
        yield title, parser
    for name, verb in below.items():
        yield from _forms(f"{title} {name}", verb)


def _usage(parser: argparse.ArgumentParser) -> str:
    return " ".join(_plain(in_usage(action)) for action in shown_arguments(parser))


def _title(name: str, version: str) -> str:
    """Make the page's first line. Its date is that of the sources, so that two builds are alike."""
    at_s = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    day = datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d") if at_s else ""
    return f'.TH "{name.upper()}" "1" "{day}" "backfill {version}" "User Commands"\n'


def _section(title: str, text: str) -> str:
    return f'.SH "{_plain(title.upper())}"\n{text.rstrip()}\n' if text else f'.SH "{_plain(title.upper())}"\n'


def _item(term: str, text: str) -> str:
    return f".TP\n{term}\n{_plain(text[:1].upper() + text[1:])}.\n"


def _prose(markdown: str) -> str:
    """Return the paragraphs of our page of commands, without its heading and marks."""
    parts = [part for part in markdown.strip().split("\n\n") if not part.startswith(("#", "<!--"))]
    return "\n.PP\n".join(_plain(part.replace("`", "")) for part in parts)


def _plain(text: str) -> str:
    """Text as roff shows it unchanged: see groff(7), 'Escape sequences' and 'Control lines'."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.MULTILINE)


def main() -> int:
    """Write the pages into the directory that is named."""
    parser = argparse.ArgumentParser(prog="python -m backfill.ui.manual", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--version", required=True, help="of the program that they describe")
    args = parser.parse_args()
    write_pages(args.directory, args.version)
    return 0


if __name__ == "__main__":
    sys.exit(main())
