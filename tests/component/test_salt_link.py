"""The line to Salt's process: answers, errors, silence, death, hints."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from backfill.drivers.salt import inside
from backfill.drivers.salt.link import SaltLink
from backfill.lab.waiting import wait_until
from backfill.ports.errors import DriverError, RefusedError, UnreachableError

_STUB = """
import json, sys
print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["verb"] == "die":
        sys.exit(1)
    if asked["verb"] == "hint":
        print(json.dumps({"event": "start", "id": "vn1.g2", "failed": False}), flush=True)
    if asked["verb"] == "cut off":
        sys.stdout.write('{"number": ')
        sys.stdout.flush()
        sys.exit(1)
    if asked["verb"] == "odd":
        for returned in asked["returned"]:
            event = {"event": "x", "id": "vn1.g2", "failed": True, "return": returned}
            print(json.dumps(event), flush=True)
    if asked["verb"] == "nonsense":
        print("nonsense", flush=True)
    if asked["verb"] == "fail":
        print(json.dumps({"number": asked["number"], "error": "no such key"}), flush=True)
    elif asked["verb"] != "hang":
        print(json.dumps({"number": asked["number"], "said": asked.get("word")}), flush=True)
"""

Connect = Callable[..., SaltLink]


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    stub = tmp_path / "stub.py"
    stub.write_text(_STUB)
    made: list[SaltLink] = []

    def work(on_event: Callable[[str, str], None] | None = None) -> SaltLink:
        # The interpreter is told to run our script instead of Salt's side of the line.
        link = SaltLink(sys.executable, "", on_event)
        link._argv = [sys.executable, str(stub)]
        made.append(link)
        return link

    yield work
    for link in made:
        link.close()


def test_a_request_gets_its_own_answer(connect: Connect) -> None:
    link = connect()
    assert [link.ask("say", 5.0, word=w)["said"] for w in ("a", "b")] == ["a", "b"]


def test_trouble_inside_is_one_sentence(connect: Connect) -> None:
    with pytest.raises(DriverError, match="salt: 'fail' failed: no such key"):
        connect().ask("fail", 5.0)


def test_silence_is_not_an_answer(connect: Connect) -> None:
    """Whoever waited too long learns that nobody knows; the line goes on working."""
    link = connect()
    with pytest.raises(UnreachableError, match="not answered within"):
        link.ask("hang", 0.05)
    assert link.ask("say", 5.0, word="on")["said"] == "on"


def test_a_process_that_died_is_started_again(connect: Connect) -> None:
    """The request during which it died fails; the next one finds a new process."""
    link = connect()
    with pytest.raises(DriverError):
        link.ask("die", 2.0)
    assert link.ask("say", 5.0, word="again")["said"] == "again"


def test_a_process_that_dies_amid_a_word_is_started_again(connect: Connect) -> None:
    """Whoever waits for that word is told at once, not when patience is over."""
    link = connect()
    with pytest.raises(DriverError, match="Salt's process ended"):
        link.ask("cut off", 60.0)
    assert link.ask("say", 60.0, word="again")["said"] == "again"


def test_what_a_minion_returns_never_ends_the_line(connect: Connect) -> None:
    """Root of a guest says of its states whatever it likes; all others are heard as before."""
    odd = [[], [""], ["\n"], "", {"a": None}, {"a": {"result": False, "comment": None}}, [["x"]], 7, None]
    heard: SimpleQueue[tuple[str, str]] = SimpleQueue()
    link = connect(lambda minion, problem: heard.put((minion, problem)))
    assert link.ask("odd", 60.0, returned=odd, word="on")["said"] == "on"
    told = [heard.get(timeout=60) for _ in odd]
    assert {minion for minion, _ in told} == {"vn1.g2"}
    assert all(problem for _, problem in told)
    assert link.ask("say", 60.0, word="still")["said"] == "still"


def test_whoever_hears_hints_never_ends_the_line(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    """Nor does a line that is no answer. The log says so, without the line: that may have a key in it."""

    def fails(minion: str, problem: str) -> None:
        raise ValueError(f"{minion} has no number")

    link = connect(fails)
    assert link.ask("hint", 60.0, word="on")["said"] == "on"
    assert link.ask("nonsense", 60.0, word="still")["said"] == "still"
    assert "vn1.g2 has no number" in caplog.text
    assert "Expecting value" in caplog.text
    assert "nonsense" not in caplog.text


def test_hints_come_between_answers(connect: Connect) -> None:
    heard: SimpleQueue[tuple[str, str]] = SimpleQueue()
    connect(lambda minion, problem: heard.put((minion, problem))).ask("hint", 5.0)
    assert heard.get(timeout=60) == ("vn1.g2", "")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"id": "vn1.g2"}, ""),
        ({"id": "vn1.g2", "fun": "test.ping", "return": False, "retcode": 1}, ""),
        ({"id": "vn1.g2", "fun": "state.highstate", "return": {"a": {"result": True}}, "retcode": 0}, ""),
        ({"id": "vn1.g2", "fun": "state.apply", "return": ["no pillar"], "retcode": 1}, "no pillar"),
        (
            {
                "id": "vn1.g2",
                "fun": "state.highstate",
                "retcode": 2,
                "return": {"a": {"__id__": "hosts", "result": False, "comment": "no"}},
            },
            "hosts: no",
        ),
        (
            {"id": "vn1.g2", "fun": "state.highstate", "retcode": 2, "return": {"a": {"result": True}}},
            "it failed",
        ),
    ],
)
def test_states_that_fail_by_themselves_are_told(data: dict[str, object], problem: str) -> None:
    """The first run is nobody's request: its end is heard among the master's events."""
    told: SimpleQueue[tuple[str, str]] = SimpleQueue()
    link = SaltLink(sys.executable, "", lambda minion, why: told.put((minion, why)))
    link._take({"event": "x", **inside.heard(data)}, SimpleQueue())
    assert told.get_nowait() == ("vn1.g2", problem)


@pytest.mark.parametrize(
    "data",
    [
        {"fun": "state.apply", "retcode": 1},
        {"id": 7, "fun": ["state.apply"], "retcode": {}},
        {"id": ["vn1"], "fun": "state.apply", "retcode": 1, "return": object()},
        ["vn1.g2"],
        "vn1.g2",
        None,
    ],
)
def test_an_odd_event_does_not_end_listening(data: object) -> None:
    """A minion may send events of any tag to the master, with whatever it likes in them."""
    line = json.dumps(inside.heard(data), default=str)
    assert isinstance(json.loads(line)["id"], str)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, 0])
def test_what_is_written_for_a_moment_goes_with_the_process(tmp_path: Path, number: int) -> None:
    """However it ends, amid a rendering or not; 0: its input ends."""
    with subprocess.Popen(
        [sys.executable, inside.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert len(list(tmp_path.iterdir())) == 1
        if number:
            process.send_signal(number)
    assert wait_until(lambda: not list(tmp_path.iterdir()), 30)


def test_why_salt_does_not_start_is_told(tmp_path: Path) -> None:
    """Another interpreter has no Salt; a file that is not there is not replaced by defaults."""
    with pytest.raises(DriverError, match="did not start Salt: ModuleNotFoundError: No module"):
        SaltLink(sys.executable, str(tmp_path / "master")).ask("keys", 20.0)


def test_whoever_may_not_read_the_masters_files_is_told(tmp_path: Path) -> None:
    """It must not go on with defaults, nor look like a master that is down."""
    stub = tmp_path / "stub.py"
    stub.write_text(_STUB.replace('{"ready": True}', '{"refused": "PermissionError: [Errno 13] no: x"}'))
    link = SaltLink(sys.executable, "")
    link._argv = [sys.executable, str(stub)]
    with pytest.raises(RefusedError, match=r"^salt: no: x; run this as root"):
        link.ask("keys", 5.0)


def test_a_process_that_ends_before_a_word_is_no_salt(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="did not start Salt: it ended at once"):
        SaltLink("/bin/true", str(tmp_path / "master")).ask("keys", 20.0)


def test_an_interpreter_that_is_not_there_is_named() -> None:
    with pytest.raises(DriverError, match=r"/nowhere/python cannot be run.*set salt\.python"):
        SaltLink("/nowhere/python", "/etc/salt/master").ask("keys", 5.0)
