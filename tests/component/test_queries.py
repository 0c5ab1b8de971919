"""What one question may cost: so many records, so many bytes, so much of the daemon's thread."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState
from backfill.core.model.records import encode
from backfill.drivers.store.memory import MemoryJournal
from backfill.drivers.store.sqlite import SqliteJournal
from backfill.engine import queries, stories
from backfill.engine.asked import Asked
from backfill.engine.connection_limiter import CrowdedError, Turns
from backfill.engine.messages import Query
from backfill.engine.stories import Stories
from backfill.ports.storage import Record, RecordWindow

_RECORDS, _QUIET = 3_000, 11_000
# What a question may read at most.
_MOST, _MOST_BYTES = stories.PAGES * stories.PAGE, 2 * stories.PAGES * stories.PAGE_BYTES


class Counted(SqliteJournal):
    """Counts what was read of it, and refuses to be read without a bound."""

    records = size = 0

    def page(self, window: RecordWindow, most: int, most_bytes: int) -> list[Record]:
        found = super().page(window, most, most_bytes)
        self.records += len(found)
        self.size += sum(len(str(record.body)) for record in found)
        return found

    def read(self, *args: object, **more: object) -> Iterator[Record]:
        raise AssertionError("a question read the journal without a bound")


def seen(number: int, subject: str = "7") -> Record:
    """Slurm shows a job: a line of a story."""
    return Record(float(number), "change", subject, _SEEN)


_SEEN = encode(ch.JobSeen(Job("7", 7, "htc", JobState.RUNNING, name="counting"), 1.0))


def quiet(number: int) -> Record:
    """What only a replay needs: no line of any story."""
    return Record(float(number), "plan", "cluster", {"steps": 0})


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counted]:
    made = Counted(tmp_path_factory.mktemp("journal") / "journal.db")
    for start in range(0, _RECORDS, 1000):
        made.append(seen(n) if n % 3 else quiet(n) for n in range(start, start + 1000))
    made.append([quiet(n) for n in range(_QUIET)])
    yield made
    made.close()


@pytest.fixture
def counted(journal: Counted) -> Counted:
    journal.records = journal.size = 0
    return journal


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"after": 0, "limit": 1},
        {"after": None, "limit": 10**9},
        {"after": 1, "limit": 10**9},
        {"after": -5, "limit": -5},
        {"after": 2000, "limit": 1000, "before": 2050},
        {"after": 10**18},
    ],
)
def test_events_read_no_more_than_a_question_may(counted: Counted, body: dict[str, object]) -> None:
    """However many there are, whatever is asked: bounded in records, in bytes and in memory."""
    tracemalloc.start()
    try:
        answer = Stories(counted).events(body)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(answer["events"]) <= stories.MOST_EVENTS  # type: ignore[arg-type]  # it is a list
    assert counted.records <= _MOST + 1  # and the newest
    assert counted.size <= _MOST_BYTES
    assert peak < 6 << 20


def test_one_event_costs_a_page(counted: Counted) -> None:
    """Not what came before it, nor what comes behind."""
    answer = Stories(counted).events({"after": 100, "limit": 1})
    assert [e["id"] for e in answer["events"]] == [101]  # type: ignore[attr-defined]  # a list
    assert answer["more"]
    assert answer["newest"] == _RECORDS + _QUIET
    assert counted.records <= stories.PAGE + 1


def test_a_large_record_does_not_make_a_large_page(tmp_path: Path) -> None:
    """A page ends with the record that fills it."""
    with_large = Counted(tmp_path / "large.db")
    text = "x" * 300_000
    with_large.append(Record(1.0, "daemon", "cluster", {"why": text}) for _ in range(100))
    answer = Stories(with_large).events({"after": 0, "limit": 1000})
    assert answer["more"]
    assert with_large.size <= stories.ANSWER_BYTES + len(text) * 2
    with_large.close()


def test_all_events_are_found_by_going_on(counted: Counted) -> None:
    """In both directions, over stretches in which there is nothing to tell."""
    asked = Stories(counted)
    expected = [n + 1 for n in range(_RECORDS) if n % 3]
    found: list[int] = []
    answer = asked.events({"after": 1, "limit": 1000})
    while True:
        found += [e["id"] for e in answer["events"]]  # type: ignore[attr-defined]  # a list
        if not answer["more"]:
            break
        answer = asked.events({"after": answer["read_to"], "limit": 1000})
    assert found == expected
    assert answer["read_to"] == _RECORDS + _QUIET
    latest: list[int] = []
    before: object = 0
    while len(latest) < 1500:
        answer = asked.events({"limit": 1000, "before": before})
        latest = [e["id"] for e in answer["events"]] + latest  # type: ignore[attr-defined]  # a list
        before = answer["read_from"]
    assert latest == expected[-len(latest) :]


def test_a_story_is_its_end(counted: Counted) -> None:
    """The last lines, read from the end, of a subject with 2,000."""
    lines = Stories(counted).story("7")
    assert len(lines) == 200
    assert lines[-1]["id"] == _RECORDS
    assert [line["id"] for line in lines] == sorted(int(str(line["id"])) for line in lines)
    assert counted.records <= 2 * stories.PAGE
    counted.records = 0
    assert Stories(counted).story("cluster") == []
    assert counted.records <= _MOST


def test_reading_goes_on_beside_a_writer_and_a_writer_beside_reading(journal: Counted) -> None:
    """Neither waits for what the other holds."""
    with journal._lock:  # as within an append
        assert Stories(journal).events({"after": 1, "limit": 1})["events"]
    reading = Stories(journal)._read(RecordWindow(after_id=1), stories._Budget())
    next(reading)
    journal.append([quiet(1)])


def test_an_answer_in_slices_waits_for_everything_else() -> None:
    """After each slice the daemon looks whether there is something better to do."""
    made: list[int] = []

    def answer() -> Iterator[None]:
        for number in range(5):
            made.append(number)
            yield
        return {"all": made}  # type: ignore[return-value]  # a generator's end

    question = Query(answer)
    asked = Asked()
    asked.begin(question)
    assert made == []
    idle = iter([True, True, False])
    assert asked.go_on_while(lambda: next(idle), 60.0)
    assert made == [0, 1]
    assert asked.go_on_while(lambda: True, 0.0)
    assert made == [0, 1]
    assert not asked.go_on_while(lambda: True, 60.0)
    assert question.reply.get_nowait() == {"all": [0, 1, 2, 3, 4]}


def test_questions_take_turns() -> None:
    """A long answer does not keep a short one waiting, and nobody's is not made."""
    order: list[str] = []

    def answer(name: str, slices: int) -> Iterator[None]:
        for _ in range(slices):
            yield
        order.append(name)

    waiting = threading.Event()
    waiting.set()
    asked = Asked()
    asked.begin(Query(lambda: answer("long", 50)))
    asked.begin(Query(lambda: answer("short", 2)))
    asked.begin(Query(lambda: answer("given up", 10), wanted=waiting.is_set))
    asked.begin(Query(lambda: order.append("never"), wanted=lambda: False))
    asked.go_on()
    waiting.clear()
    assert not asked.go_on_while(lambda: True, 60.0)
    assert order == ["short", "long"]


class _OneAtATime:
    """A daemon that has begun the question before its asker begins to wait, and takes its time."""

    def __init__(self) -> None:
        self.journal = MemoryJournal()
        self.inbox, self.heard = self, threading.Event()

    def put(self, question: Query) -> None:
        begun = threading.Event()

        def work() -> None:
            begun.set()
            Asked().begin(question)

        threading.Thread(target=work, daemon=True).start()
        begun.wait()

    def order(self, body: object) -> dict[str, object]:
        self.heard.wait(0.5)  # until its asker has an answer: that is not now
        return {"id": "fleet-1"}


def test_an_order_that_was_begun_is_heard_of_however_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """To say that the daemon was too busy would have it given again, and the log would tell of a failure."""
    monkeypatch.setattr(queries, "_ANSWER_WITHIN_S", 0.01)
    daemon = _OneAtATime()
    asked = queries.Queries(daemon, None)  # type: ignore[arg-type]  # as much of both as is needed
    answer = asked._in_the_daemon(daemon.order, {})
    daemon.heard.set()
    assert answer == {"id": "fleet-1"}


def test_what_was_given_up_is_not_begun_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "_ANSWER_WITHIN_S", 0.01)
    daemon, inbox, done = _OneAtATime(), SimpleQueue[Query](), list[str]()
    daemon.inbox = inbox  # type: ignore[assignment]  # it takes what it is given
    asked = queries.Queries(daemon, None)  # type: ignore[arg-type]

    def order(body: object) -> dict[str, object]:
        done.append("fleet-1")
        return {}

    assert asked._in_the_daemon(order, {})["kind"] == "busy"
    late = inbox.get_nowait()
    late.ask()  # it was just about to
    Asked().begin(late)
    assert done == []


def test_so_many_work_at_once_and_no_more() -> None:
    """Who has waited enough for a turn is told so."""
    turns = Turns(most=1)
    with turns.taken(1.0), pytest.raises(CrowdedError), turns.taken(0.0):
        raise AssertionError("two had the one turn")
    with turns.taken(0.0):
        pass
