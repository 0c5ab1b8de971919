"""Text from outside steers nobody's terminal: job names, consoles, reasons, whatever they hold."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill.core.model import changes as ch
from backfill.core.model.plan import AnswerClaim
from backfill.core.model.records import encode
from backfill.core.model.visible import escaped, visible
from backfill.engine.listener import Listener
from backfill.engine.messages import Message
from backfill.engine.queries import Queries
from backfill.ports.storage import Record
from backfill.ui.cli import main
from backfill.ui.client import print_json, shown
from backfill.ui.commands.daemon import OneLine
from backfill.ui.report.style import escape
from backfill.ui.terminal import Guarded
from tests.component.living_daemon import LivingDaemon, a_gate, living, parked
from tests.unit.test_hook_desk import NOW_S, Desk

EVIL = (
    "\x1b[2J\x1b]0;owned\x07\x1b[8m\x9b31m\r\n2026-11-23 backfill: all is well\x00\x7f\x08"
    "\u202egnp.exe\u2066\u200b\u2028\ud800\U000e0041\u001c\x85end"
)
# Words that views look up, and not free text.
_WORDS = {
    "phase",
    "state",
    "kind",
    "id",
    "key",
    "host",
    "node",
    "host_name",
    "subject",
    "t",
    "cluster",
    "base",
    "job_id",
    "partition",
    "address",
    "jobs",
    "nodes",
    "hosts",
    "members",
    "instances",
    "name",
    "given_to",
    "flags",
    "method",
    "from_id",
    "target",
    "held",
    "rung",
}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
COMMANDS = (
    ["status"],
    ["hosts"],
    ["nodes"],
    ["nodes", "vn1"],
    ["instances"],
    ["plan"],
    ["events"],
    ["events", "--after", "1", "-n", "100"],
    ["explain", "vn1"],
    ["explain", "bm1"],
    ["explain", "job", "JOB"],
    ["explain", EVIL.replace("\0", "")],
    ["fleet", "list"],
    ["evict", "nobody\x1b[2J"],
    ["retry", "vn1\x1b[2J"],
)


_DOCUMENTS = st.recursive(
    st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
)


def poisoned(value: Any, key: str = "") -> Any:
    """An answer of the daemon's with evil in all of its free texts."""
    match value:
        case str() if key not in _WORDS:
            return value + EVIL
        case dict():
            free = key not in ("phases", "sources")
            if "raw_id" in value:  # a job, whose name is its owner's
                value = {**value, "name": value["name"] + EVIL}
            return {k: poisoned(v, str(k) if free else key) for k, v in value.items()}
        case list():
            return [poisoned(v, key) for v in value]
        case _:
            return value


class Evil:
    """A daemon whose world is evil, at a socket of its own; `job` is one with a name."""

    def __init__(self, daemon: LivingDaemon, path: Path, job: str) -> None:
        self.path, self.job = path, job
        self._questions = Queries(daemon.daemon, a_gate(daemon.daemon))
        inbox: SimpleQueue[Message] = SimpleQueue()
        self.listener = Listener(inbox, self.answer, 9.0)
        self.listener.listen_unix(path)

    def answer(self, body: dict[str, object], uid: int) -> dict[str, object]:
        return {k: poisoned(v, k) for k, v in self._questions.answer(body, uid).items()}

    def argv(self, command: list[str]) -> list[str]:
        return [self.job if w == "JOB" else w for w in command] + ["--socket", str(self.path)]


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Evil]:
    directory = tmp_path_factory.mktemp("evil")
    with living(directory) as daemon:
        low, _ = parked(daemon)
        words = ch.LastWords("vn1", 1, 1.0, f"boot\n{EVIL}\n")
        daemon.journal.append([Record(1.0, "change", "vn1", encode(words))])
        made = Evil(daemon, directory / "evil.sock", low)
        yield made
        made.listener.close()


def unsafe(text: str) -> set[str]:
    """What in it a terminal would obey, or an eye could not see; our own ends of lines are fine."""
    return {c for c in text if c != "\n" and not c.isprintable()}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: " ".join(c)[:20].encode("unicode_escape"))
def test_no_command_prints_what_steers(
    evil: Evil, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """Nor a line that looks like one of ours."""
    main(evil.argv(command))
    out, err = capsys.readouterr()
    assert unsafe(out + err) == set()
    assert out + err
    assert not [line for line in (out + err).split("\n") if line.startswith("2026-11-23 backfill:")]


@pytest.mark.parametrize("command", [*COMMANDS[:4], *COMMANDS[5:11]], ids=" ".join)
def test_json_is_exact_and_safe(evil: Evil, capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    """What is parsed is what the daemon said, to the last character."""
    assert main(evil.argv([*command, "--json"])) == 0
    out = capsys.readouterr().out
    assert unsafe(out) == set()
    texts = [text for line in out.splitlines() for text in leaves(json.loads(line))]
    assert any(EVIL in text for text in texts)


def leaves(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for entry in value.values():
                yield from leaves(entry)
        case list():
            for entry in value:
                yield from leaves(entry)
        case _:
            pass


def test_a_terminal_gets_our_colours_and_nothing_else(evil: Evil) -> None:
    """Where there are colours, only they are escape sequences."""
    ours, theirs = pty.openpty()
    commands = [evil.argv(c) for c in (["status"], ["nodes"], ["explain", "vn1"], ["instances"])]
    program = f"from backfill.ui.cli import main\nfor argv in {commands!r}: main(argv)"
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM")}
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=theirs, stderr=theirs, env={**environment, "TERM": "xterm"}
    )
    os.close(theirs)
    said = b""
    try:
        while piece := os.read(ours, 65536):
            said += piece
    except OSError:  # the other end is closed
        pass
    assert process.wait(60) == 0
    text = said.decode()
    assert _COLOUR.search(text)
    assert unsafe(_COLOUR.sub("", text).replace("\r\n", "\n")) == set()
    assert "\x1b[8m" not in text


@given(st.text())
def test_visible_text_is_one_safe_line(text: str) -> None:
    """And what is safe stays as it is."""
    assert visible(text).isprintable()
    assert visible(visible(text)) == visible(text)
    if text.isprintable():
        assert visible(text) == text


@given(_DOCUMENTS)
def test_a_document_means_the_same(value: object) -> None:
    """Its escapes are JSON's own; plain data for people have the same shape."""
    text = escaped(json.dumps(value, ensure_ascii=False))
    assert text.isprintable()
    assert json.loads(text) == value
    assert unsafe(json.dumps(shown(value), ensure_ascii=False)) == set()


def test_what_a_json_document_holds_is_printed_whole(capsys: pytest.CaptureFixture[str]) -> None:
    """Also by a command that prints it by itself: the guard's escapes are JSON's."""
    out = io.StringIO()
    Guarded(out).write(json.dumps({"text": EVIL}) + "\n")
    assert json.loads(out.getvalue()) == {"text": EVIL}
    print_json({"text": EVIL})
    assert json.loads(capsys.readouterr().out) == {"text": EVIL}


@given(st.text())
def test_the_guard_lets_lines_and_columns_through(text: str) -> None:
    """For what is printed by a way of its own: ends of lines and tabs stay, all else is shown."""
    out = io.StringIO()
    Guarded(out).write(text)
    assert unsafe(out.getvalue().replace("\t", "")) == set()
    plain = f"a\n\n  b\t{text if text.isprintable() else ''}\n"
    out = io.StringIO()
    Guarded(out).writelines([plain])
    assert out.getvalue() == plain


def test_the_log_has_one_line_for_each_thing() -> None:
    """A traceback has its own lines, and nothing else in them."""
    with pytest.raises(ValueError, match="invalid literal") as raised:
        int(EVIL)
    raised.value.add_note(EVIL)
    told = (type(raised.value), raised.value, raised.tb)
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "job %s", (EVIL,), told)
    text = OneLine("%(message)s").format(record)
    assert unsafe(text) == set()
    assert text.split("\n")[1].startswith("  Traceback")
    assert "\n2026" not in text


def test_a_page_and_a_picture_can_hold_it() -> None:
    """XML knows no control characters, escaped or not."""
    element = ET.fromstring(f"<text a='{escape(EVIL)}'>{escape(EVIL + '<b>&')}</text>")
    assert unsafe(element.text or "") == set()
    assert (element.text or "").endswith("end<b>&")


def test_a_hook_hears_one_line() -> None:
    """It writes the answer into its log."""
    desk = Desk()
    desk.read_hosts("bm1", "bm2")
    desk.desk.take(desk.call(), NOW_S)
    desk.desk.answer(AnswerClaim("7", False, EVIL))
    (said,) = desk.said
    assert said.isprintable()
    assert said.startswith("no ")
