"""Regular tasks keep their rhythm, by a clock that nobody sets, and do not stop one another."""

from __future__ import annotations

import threading
from queue import SimpleQueue

import pytest

from backfill.engine.rounds import Rounds

_LONG_S = 30.0


def test_each_is_done_in_its_own_rhythm() -> None:
    """The quicker one comes more often."""
    turns: SimpleQueue[str] = SimpleQueue()
    rounds = Rounds()
    rounds.add(0.01, lambda: turns.put("quick"))
    rounds.add(0.1, lambda: turns.put("seldom"))
    rounds.start()
    seen: list[str] = []
    while seen.count("seldom") < 2:
        seen.append(turns.get(timeout=_LONG_S))
    rounds.close()
    assert seen[0] == "quick"
    assert seen.count("quick") > 2


def test_turns_that_were_missed_are_not_made_up_for() -> None:
    """The machine slept for ten years: that is one turn, and the next one comes in its rhythm."""
    asleep_s = [0.0]
    moments = iter([0.0, 315_360_000.0])
    waits: SimpleQueue[float] = SimpleQueue()

    def monotonic() -> float:
        asleep_s[0] = next(moments, asleep_s[0])
        return asleep_s[0]

    rounds = Rounds(monotonic)
    rounds.add(2.0, lambda: waits.put(asleep_s[0]))
    rounds.start()
    assert waits.get(timeout=_LONG_S) == 315_360_000.0
    rounds.close()
    assert waits.empty()
    assert rounds._due[0][0] == 315_360_002.0  # when it is due again


def test_what_is_slow_holds_nobody_up_and_is_not_begun_twice() -> None:
    """The others go on meanwhile."""
    began: SimpleQueue[None] = SimpleQueue()
    turns: SimpleQueue[None] = SimpleQueue()
    go_on = threading.Event()

    def slow() -> None:
        began.put(None)
        go_on.wait(_LONG_S)

    rounds = Rounds()
    rounds.add(0.01, slow, slow=True)
    rounds.add(0.01, lambda: turns.put(None))
    rounds.start()
    began.get(timeout=_LONG_S)
    for _ in range(5):
        turns.get(timeout=_LONG_S)
    assert began.empty()
    go_on.set()
    began.get(timeout=_LONG_S)
    rounds.close()


def test_a_defect_ends_neither_itself_nor_the_others(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged and tried again."""
    turns: SimpleQueue[None] = SimpleQueue()

    def broken() -> None:
        turns.put(None)
        raise ValueError("a defect")

    rounds = Rounds()
    rounds.add(0.01, broken)
    rounds.start()
    turns.get(timeout=_LONG_S)
    turns.get(timeout=_LONG_S)
    rounds.close()
    assert "a regular task failed" in caplog.text


def _starts_fail(monkeypatch: pytest.MonkeyPatch, so_many: int) -> None:
    """As on a machine with no thread left: the next starts of threads for regular tasks fail."""
    start, left = threading.Thread.start, iter(range(so_many))

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "round" and next(left, None) is not None:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)


def test_a_thread_that_cannot_be_started_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is slow has its next turn as ever, and the others go on."""
    _starts_fail(monkeypatch, 2)
    turns: SimpleQueue[str] = SimpleQueue()
    rounds = Rounds()
    rounds.add(0.01, lambda: turns.put("slow"), slow=True)
    rounds.add(0.01, lambda: turns.put("quick"))
    rounds.start()
    seen: list[str] = []
    while "slow" not in seen or seen[-1] == "slow":
        seen.append(turns.get(timeout=_LONG_S))
    rounds.close()
    assert "quick" in seen
    assert "a regular task is put off to its next turn, as it got no thread: can't start" in caplog.text


def test_what_is_done_once_is_done_later_if_there_was_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller, who may be the daemon's own thread, hears nothing of it."""
    monkeypatch.setattr("backfill.engine.rounds._AGAIN_S", 0.001)
    _starts_fail(monkeypatch, 2)
    done: SimpleQueue[None] = SimpleQueue()
    rounds = Rounds()
    rounds.once(lambda: done.put(None))
    rounds.start()
    done.get(timeout=_LONG_S)
    rounds.close()
    assert done.empty()
    assert not rounds._due


def test_it_is_late_when_nothing_is_begun_any_more() -> None:
    now_s = [100.0]
    rounds = Rounds(lambda: now_s[0])
    assert rounds.late_s() == 0.0
    rounds.add(5.0, lambda: None)
    rounds.add(60.0, lambda: None)
    assert rounds.late_s() == 0.0
    now_s[0] = 145.0  # nobody has started it
    assert rounds.late_s() == 40.0


def test_once_is_now_and_beside_the_caller() -> None:
    """Also when nothing was started yet."""
    done: SimpleQueue[str] = SimpleQueue()
    Rounds().once(lambda: done.put(threading.current_thread().name))
    assert done.get(timeout=_LONG_S) == "round"
