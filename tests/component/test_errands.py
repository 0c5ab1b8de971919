"""Errands: one of a kind at a time, told as they are, remembered for a while, noted when they end."""

from __future__ import annotations

import threading
import time

import pytest

from backfill.engine.checkpoint_order import CommandError
from backfill.engine.errands import Body, Errands, Work
from backfill.ports.errors import RefusedError
from backfill.ui.client import AskError
from backfill.ui.errands import awaited
from backfill.ui.parser import NO, UNAVAILABLE

_PATIENCE_S = 60.0


class Noted(list[str]):
    """What was noted about how errands ended."""

    def __call__(self, result: str) -> None:
        self.append(result)


def _ended(errands: Errands, name: object, noted: Noted, so_many: int = 1) -> Body:
    deadline_s = time.monotonic() + _PATIENCE_S
    while len(noted) < so_many:
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    return errands.told({"id": name})


def test_one_of_a_kind_goes_on_at_a_time() -> None:
    """Whoever comes meanwhile is told which one it is; another kind begins, and so does the next."""
    go_on, errands, noted = threading.Event(), Errands(), Noted()

    def work() -> Body:
        go_on.wait(_PATIENCE_S)
        return {"found": {"text": "a"}}

    name = errands.begin("verify", work, noted)["id"]
    assert errands.told({"id": name}) == {"id": name, "state": "running", "problems": [], "found": None}
    with pytest.raises(CommandError, match=f"{name} is under way, one at a time"):
        errands.begin("verify", work, noted)
    other = errands.begin("drift", lambda: {"found": {}}, noted)["id"]
    assert _ended(errands, other, noted)["state"] == "done"
    go_on.set()
    assert _ended(errands, name, noted, 2)["found"] == {"text": "a"}
    again = errands.begin("verify", lambda: {"found": {"text": "b"}}, noted)["id"]
    assert _ended(errands, again, noted, 3)["found"] == {"text": "b"}
    assert noted == ["ok"] * 3


def test_the_end_of_the_daemon_is_noted_once_of_what_is_under_way() -> None:
    """Nobody waits for it; what ends later is not noted again, and what ended before is left alone."""
    go_on, errands, noted = threading.Event(), Errands(), Noted()

    def work() -> Body:
        go_on.wait(_PATIENCE_S)
        return {"found": {}}

    before = errands.begin("drift", lambda: {"found": {}}, noted)["id"]
    assert _ended(errands, before, noted)["state"] == "done"
    name = errands.begin("verify", work, noted)["id"]
    errands.close()
    assert noted == ["ok", "unknown: the daemon ended while this was under way; look, and begin it again"]
    go_on.set()
    deadline_s = time.monotonic() + _PATIENCE_S
    while errands.told({"id": name})["state"] == "running":
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    errands.close()
    assert len(noted) == 2


def test_the_next_daemon_begins_no_errand_of_the_same_name() -> None:
    """Whoever still follows one would take what somebody else ordered for what came of it."""
    before, after, noted = Errands(lambda: 100.0), Errands(lambda: 101.0), Noted()
    names = [errands.begin("leaks", lambda: {"found": {}}, noted)["id"] for errands in (before, after)]
    assert names == ["leaks-100.1", "leaks-101.1"]
    assert after.told({"id": names[0]})["kind"] == "unknown"
    _ended(after, names[1], noted, 2)


class _Shaky:
    """A daemon that does not answer each time."""

    def __init__(self, *answers: Body | AskError) -> None:
        self._answers = list(answers)

    def ask(self, question: str, **body: object) -> Body:
        if question != "errand":
            return {"id": "restore-1"}
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, AskError):
            raise answer
        return answer

    ask_exactly = ask


_SILENT = AskError("no web service of backfill answers", UNAVAILABLE)


def test_who_waits_for_one_asks_again_where_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The errand goes on meanwhile; what it came to is told, and not that somebody was silent once."""
    monkeypatch.setattr("backfill.ui.errands._LOOK_EVERY_S", 0.001)
    done: Body = {"id": "restore-1", "state": "done", "problems": [], "found": {"job": "7"}}
    assert awaited(_Shaky(_SILENT, done | {"state": "running"}, _SILENT, done), "restore") == {"job": "7"}
    monkeypatch.setattr("backfill.ui.errands._PATIENCE_S", 0.05)
    with pytest.raises(AskError, match="backfill answers; restore-1 may go on without you"):
        awaited(_Shaky(_SILENT), "restore")
    gone = AskError("there is no 'restore-1'", NO, {"error": "there is no 'restore-1'", "kind": "unknown"})
    with pytest.raises(AskError, match="there is no 'restore-1'"):
        awaited(_Shaky(gone), "restore")


def _refuses() -> Body:
    raise RefusedError("bm1", "it is not allowed")


def _orders_nonsense() -> Body:
    raise CommandError("there is no such thing")


@pytest.mark.parametrize(
    ("work", "problem"),
    [
        (lambda: {"problems": ["it does not fit"]}, "it does not fit"),
        (_refuses, "bm1: it is not allowed"),
        (_orders_nonsense, "there is no such thing"),
    ],
)
def test_trouble_is_a_failure_with_its_sentence(work: Work, problem: str) -> None:
    errands, noted = Errands(), Noted()
    told = _ended(errands, errands.begin("verify", work, noted)["id"], noted)
    assert (told["state"], told["problems"]) == ("failed", [problem])
    assert noted[0].startswith("failed: ")


def test_a_defect_is_no_errand_without_an_end() -> None:
    """Whoever waits for it is told; the next one of the kind begins."""
    errands, noted = Errands(), Noted()

    def work() -> Body:
        raise AssertionError

    told = _ended(errands, errands.begin("verify", work, noted)["id"], noted)
    assert told["problems"] == ["it ended in an unforeseen way; the daemon's log says how"]
    errands.begin("verify", lambda: {"found": {}}, noted)


def test_an_errand_that_gets_no_thread_was_never_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asked is told; it is not under way, and the next one of the kind begins."""
    errands, noted = Errands(), Noted()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(CommandError, match="verify cannot begin"):
            errands.begin("verify", lambda: {"found": {}}, noted)
    errands.close()
    assert noted == []
    name = errands.begin("verify", lambda: {"found": {}}, noted)["id"]
    assert _ended(errands, name, noted)["state"] == "done"


def test_old_ones_are_forgotten_and_kinds_are_told_apart() -> None:
    errands, noted, names = Errands(), Noted(), []
    for number in range(1, 35):
        names.append(errands.begin("preview", lambda: {"found": {}}, noted)["id"])
        _ended(errands, names[-1], noted, number)
    assert errands.told({"id": names[0]})["kind"] == "unknown"
    assert errands.told({"id": names[-1]}, "preview")["state"] == "done"
    assert errands.told({"id": names[-1]}, "verify")["kind"] == "unknown"
