"""The documents are held to the code: links, commands, policy files, phases, messages, examples."""

from __future__ import annotations

import argparse
import ast
import configparser
import contextlib
import hashlib
import io
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from backfill.config import load
from backfill.config.model import DaemonSettings
from backfill.core.model.lifecycle import TRANSITIONS, Phase
from backfill.core.queue import Kind
from backfill.core.reconcile import planner
from backfill.ui.command_line import build_parser, command_of, command_parsers

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
OURS = {page: str(page.relative_to(ROOT)) for page in PAGES}

_FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_SPAN = re.compile(r"`([^`\n]+)`")
_SHELL = ("sh", "bash", "shell", "console", "")


def blocks(page: Path, *infos: str) -> list[str]:
    """The fenced blocks of a page whose info string begins with these words."""
    found = _FENCE.finditer(page.read_text(encoding="utf-8"))
    wanted = [list(info.split()) for info in infos]
    return [m[3] for m in found if any(m[2].split()[: len(w)] == w for w in wanted)]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


# --- links ---


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+)$", prose(page), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", h.lower()) for h in headings]
    return {h.strip().replace(" ", "-") for h in plain}


def broken_links(page: Path) -> Iterator[str]:
    for target in _LINK.findall(_SPAN.sub("", prose(page))):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        place = (page.parent / path).resolve() if path else page
        if not place.exists():
            yield f"{target}: no such file"
        if anchor and anchor not in anchors(place):
            yield f"{target}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=OURS.get)
def test_every_relative_link_resolves(page: Path) -> None:
    """The file exists, and so does the heading behind the #."""
    assert list(broken_links(page)) == []


def test_every_page_is_in_the_index() -> None:
    """docs/index.md leads to every other page."""
    index = ROOT / "docs/index.md"
    linked = {(index.parent / t).resolve() for t in _LINK.findall(prose(index))}
    assert [OURS[p] for p in PAGES if p != index and p not in linked] == []


# --- commands ---


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every `backfill …` command line on the page, without the first."""
    lines = [line for block in blocks(page, *_SHELL) for line in block.splitlines()]
    for line in [*lines, *_SPAN.findall(prose(page))]:
        if not re.search(r"\bbackfill ", line) or re.search(r"\[-|\{\w+,|…", line):
            continue  # a synopsis is made from the parser itself
        lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word[0] not in "();<>|&":
                words.append(word)
                continue
            if words[:1] == ["backfill"]:
                yield words[1:]
            words = []


def misunderstood(words: list[str]) -> str:
    """Why a command line cannot be understood; a command that is merely named is fine."""
    chosen = command_of(words)
    parser: argparse.ArgumentParser = build_parser([chosen] if chosen else [])
    below, named = parser, list(words)
    while named and named[0] in command_parsers(below):
        below = command_parsers(below)[named.pop(0)]
    if chosen is not None and not named:
        return ""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            args, unknown = parser.parse_known_args(words)
    except SystemExit as end:
        placeholder = re.search(r"(?: value:?|argument .*:) '[A-Z]+'", said.getvalue())
        return said.getvalue() if end.code and not placeholder else ""
    return f"not understood: {unknown}" if unknown or not args.command else ""


def test_every_quoted_command_parses() -> None:
    """With the program's own parser, each on every page."""
    quoted = [(OURS[page], words) for page in PAGES for words in commands(page)]
    assert len(quoted) > 50
    assert [(page, w, why) for page, w in quoted if (why := misunderstood(w))] == []


def test_every_quoted_make_target_exists() -> None:
    """`make demo` and its like."""
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    quoted = {t for page in PAGES for t in re.findall(r"`make ([a-z]+)", prose(page))}
    quoted |= {t for p in PAGES for b in blocks(p, "sh") for t in re.findall(r"^make (\w+)", b)}
    assert quoted
    assert quoted <= set(targets)


# --- policy files, phases, licence, unit ---


def test_every_complete_policy_file_loads(tmp_path: Path) -> None:
    """Blocks that begin with ```yaml policy are whole files."""
    found = [block for page in PAGES for block in blocks(page, "yaml policy")]
    assert found
    for block in found:
        file = tmp_path / "policy.yaml"
        file.write_text(block, encoding="utf-8")
        assert load(file).policies.hosts


def test_the_phase_diagram_is_the_table() -> None:
    """The arrows between phases in docs/concepts.md are TRANSITIONS, no more and no fewer."""
    (diagram,) = blocks(ROOT / "docs/concepts.md", "mermaid")
    arrows = re.findall(r"^ *(\S+) --> (\S+)", diagram, re.MULTILINE)
    names = {"given_up": Phase.GIVEN_UP, **{p.value: p for p in Phase}}
    drawn = [(names[a], names[b]) for a, b in arrows if "[*]" not in (a, b)]
    legal = [(a, b) for a, after in TRANSITIONS.items() for b in after]
    assert sorted(drawn) == sorted(legal)


def test_the_licence_is_apache_2() -> None:
    """LICENSE is the text of the Apache License 2.0, byte for byte, and the package says so."""
    digest = hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest()
    assert digest == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["license"]["text"] == "Apache-2.0"


def test_the_systemd_unit_starts_the_daemon() -> None:
    """Its command line parses, it awaits our notification, and its directories are the defaults."""
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # keys keep their case
    unit.read(ROOT / "config/backfill.service", encoding="utf-8")
    service = unit["Service"]
    program, *words = shlex.split(service["ExecStart"])
    assert Path(program).name == "backfill"
    assert misunderstood(words) == ""
    assert service["Type"] == "notify"
    assert int(service["WatchdogSec"]) >= 10
    assert f"/var/lib/{service['StateDirectory']}" == DaemonSettings().state_dir
    assert f"/run/{service['RuntimeDirectory']}" == str(Path(DaemonSettings().socket).parent)


# --- messages ---

# What varies in a message, or is put between the pieces of which the code makes it.
_VARIES = re.compile(
    r"<[^>]*>|[:;()']|\brefused\b|[a-z_]+(?:\[0\])?\.[a-z_]+(?:\[0\])?|laddr|\bladder\b"
    r"|answer_within_s|\bslurm\b|cancel job"
)


_BRACKETS = str.maketrans("", "", "[]")  # round a part that is left out where there is nothing to say


@cache
def sources() -> str:
    """Every piece of text in the code, one per line."""
    pieces = set()
    for path in (ROOT / "backfill").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                pieces.add(node.value.translate(_BRACKETS))
    return "\n".join([*pieces, (ROOT / "backfill/drivers/slurm/hooks/hook.c").read_text()])


def test_every_quoted_message_is_one_of_the_code() -> None:
    """Blocks that begin with ```text messages: the pieces between what varies are in the code."""
    page = ROOT / "docs/troubleshooting.md"
    lines = [line for block in blocks(page, "text messages") for line in block.splitlines()]
    assert len(lines) > 50
    pieces = [(line, p.strip(" ,.?")) for line in lines for p in _VARIES.split(line)]
    assert [(line, p) for line, p in pieces if len(p) > 9 and p not in sources()] == []


# --- files ---

# A path of this tree as pages write it: from the root, or from the package.
_PATH = re.compile(r"(?<![\w./-])(?:[a-z_]+/)+(?:[\w-]+\.(?:py|md|lua|c|sh|toml|sls))?(?![\w./*<{-])")
_FOLDERS = ("backfill", "tests", "scripts", "core", "ports", "engine", "drivers", "sim", "lab", "ui")
# What is told of another time or another place.
_HISTORY = (ROOT / "CHANGELOG.md", ROOT / "docs/decisions")


def paths_of(page: Path) -> set[str]:
    """The files and folders of this tree that a page names in its text and drawings."""
    text = page.read_text(encoding="utf-8")
    named = {p for p in _PATH.findall(text) if p.split("/")[0] in _FOLDERS}
    return named - set(example_files())


@pytest.mark.parametrize("page", OURS, ids=OURS.get)
def test_every_named_file_exists(page: Path) -> None:
    """A page about a file that was moved sends its reader nowhere."""
    if any(page.is_relative_to(place) for place in _HISTORY):
        return
    roots = (ROOT, ROOT / "backfill")
    assert [p for p in sorted(paths_of(page)) if not any((root / p).exists() for root in roots)] == []


def test_the_drawing_of_the_planner_names_every_entity() -> None:
    """And nothing else: it is what a newcomer believes of the core."""
    drawing = next(b for b in blocks(ROOT / "docs/concepts.md", "") if "WorkQueue" in b)
    told = re.search(r"look at one entity: (.*?)\n.*?  ([a-z, ]+)\n", drawing)
    assert told is not None
    assert [name.strip().upper() for name in f"{told[1]}{told[2]}".split(",")] == [kind.name for kind in Kind]


def test_the_table_of_entities_names_the_file_of_each() -> None:
    """Whoever looks for a step finds it where the page says."""
    page = (ROOT / "docs/concepts.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([^|]+) \| ((?:[^|]*`\w+\.py`)+) \|$", page, re.M)
    told = {word.upper(): files for names, files in rows for word in re.findall(r"[a-z]+", names)}
    own = {"CLAIM", "BUDGET", "FLEETS", "SCALE", "SUPPLY", "LIVENESS"}  # the others are handed on
    steps = {kind.name: look for kind, look in planner._LOOKS.items() if kind.name in own}
    steps |= {phase.name: step for phase, step in planner._STEPS.items()}
    files = {name: f"`{step.__module__.split('.')[-1]}.py`" for name, step in steps.items()}
    assert {name for name, file in files.items() if file not in told[name]} == set()
    assert {kind.name for kind in Kind} <= told.keys()


# --- the worked example ---

_EXAMPLE = ROOT / "docs/writing-a-policy.md"


def example_files() -> dict[str, str]:
    """The files that the page writes, by path."""
    found = re.findall(r"^```python file=(\S+)\n(.*?)^```$", _EXAMPLE.read_text(), re.M | re.S)
    return dict(found)


def test_the_example_policy_does_what_its_own_tests_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's rule is loaded as the module it would be, and the page's tests are run."""
    ran = []
    for path, text in example_files().items():
        name = path.removesuffix(".py").replace("/", ".")
        module = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        file = tmp_path / Path(path).name
        file.write_text(text, encoding="utf-8")
        exec(compile(text, str(file), "exec"), vars(module))
        for test in [v for n, v in vars(module).items() if n.startswith("test_")]:
            test()
            ran.append(test.__name__)
    assert len(ran) == 2
    known = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "backfill").rglob("*.py"))
    made = re.findall(r"^class (\w+)", "".join(example_files().values()), re.MULTILINE)
    assert [name for name in made if re.search(rf"^class {name}\b", known, re.MULTILINE)] == []


def test_the_examples_diffs_fit_the_code() -> None:
    """What each diff keeps and removes stands in its file, in one piece and once."""
    diffs = blocks(_EXAMPLE, "diff")
    assert len(diffs) == 4
    for diff in diffs:
        head, *lines = diff.splitlines()
        before = "".join(line[1:] + "\n" for line in lines if line[0] in " -")
        text = (ROOT / head.removeprefix("--- ")).read_text(encoding="utf-8")
        assert text.count(before) == 1, head


def test_the_examples_lines_are_not_too_long() -> None:
    """They could be committed as they stand."""
    for path, text in example_files().items():
        assert [line for line in text.splitlines() if len(line) > 110] == [], path
