"""The manual pages: made from the parser, complete, and readable for man."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from backfill.ui.command_line import COMMANDS, build_parser, command_parsers
from backfill.ui.manual import write_pages

_MACROS = {".TH", ".SH", ".TP", ".PP", ".B", ".I", ".br", ".nf", ".fi"}


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Every page by its name."""
    written = write_pages(tmp_path_factory.mktemp("man"), "1.2.3")
    return {path.name: path.read_text(encoding="utf-8") for path in written}


def test_every_command_has_a_page_and_is_listed(pages: dict[str, str]) -> None:
    assert set(pages) == {"backfill.1", *(f"backfill-{command.name}.1" for command in COMMANDS)}
    for command in COMMANDS:
        escaped = command.name.replace("-", r"\-")
        assert rf"\fBbackfill\-{escaped}\fR(1)" in pages["backfill.1"]


@pytest.mark.parametrize("name", [command.name for command in COMMANDS])
def test_every_option_of_a_command_is_in_its_page(name: str, pages: dict[str, str]) -> None:
    command = next(command for command in COMMANDS if command.name == name)
    parser = command_parsers(build_parser([command]))[name]
    text = pages[f"backfill-{name}.1"].replace(r"\-", "-")
    parsers = [parser]
    while parsers:
        one = parsers.pop()
        parsers += command_parsers(one).values()
        for action in one._actions:
            for option in action.option_strings:
                if action.dest != "help" and action.help != "==SUPPRESS==":
                    assert re.search(rf"{re.escape(option)}(?![\w-])", text), option


def test_only_known_macros_begin_a_line(pages: dict[str, str]) -> None:
    """Text that begins with a dot or an apostrophe would be taken for a command."""
    for name, text in pages.items():
        for line in text.splitlines():
            if line.startswith((".", "'")):
                assert line.split()[0] in _MACROS, f"{name}: {line}"


def test_the_version_stands_in_the_heading_and_the_day_is_that_of_the_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    first = write_pages(tmp_path, "1.2.3")[0].read_text().splitlines()[0]
    assert first == '.TH "BACKFILL" "1" "2023-11-14" "backfill 1.2.3" "User Commands"'
