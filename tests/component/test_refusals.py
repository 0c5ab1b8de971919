"""Reasons: what is news, what is told, and that each has its words."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from backfill.core.model import changes as ch
from backfill.core.model import sentences
from backfill.core.model.plan import Plan
from backfill.core.model.records import decode, encode, encode_briefly
from backfill.core.model.refusals import (
    Aside,
    Code,
    Goal,
    Reason,
    Refusal,
    Words,
    because,
    call_failed,
    limit,
    no_host,
    refusal,
)
from backfill.core.model.sentences import goal, line, sentence, why
from backfill.core.world import World
from backfill.drivers.store.memory import MemoryJournal
from backfill.engine import cycle
from backfill.engine.cycle import Cycle
from backfill.engine.narrate import story_line
from backfill.ports.storage import Record
from tests.component.living_daemon import policies

ROOT = Path(__file__).parents[2]
TAKEN = because(Code.HOST_TAKEN, host="bm1", jobs=("7",))


def told(monkeypatch: pytest.MonkeyPatch, *reasons: Reason) -> list[str]:
    """What the journal is told where one plan after the other refuses a move, for these reasons."""
    journal = MemoryJournal()
    run = Cycle(World(), policies(), journal, lambda _: None, lambda _: None)
    for number, reason in enumerate(reasons):
        made = Plan(refusals=(refusal("vn1", Goal.MOVE, reason),))
        monkeypatch.setattr(cycle, "enact", lambda *_, made=made, spare: made)
        run.take([ch.Tick(float(number))])
        run.decide()
    return [story_line(r) for r in journal.read() if r.kind == "refusal"]


def test_another_host_is_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that waits for bm2 no longer waits for bm1, although only a digit is different."""
    busy = [replace_host(TAKEN, name) for name in ("bm1", "bm1", "bm2")]
    assert told(monkeypatch, *busy) == [
        "vn1: move refused: bm1 was given to job 7",
        "vn1: move refused: bm2 was given to job 7",
    ]


def replace_host(reason: Reason, host: str) -> Reason:
    """The same of another host."""
    facts = tuple(replace(f, value=host) if f.name == "host" else f for f in reason.facts)
    return Reason(reason.code, facts)


def stale(age_s: float) -> Reason:
    """An old picture of Slurm."""
    return because(Code.STALE, source="slurm", age_s=age_s)


@pytest.mark.parametrize(
    ("one", "other", "news"),
    [
        (TAKEN, because(Code.HOST_TAKEN, host="bm1", jobs=("8",)), True),
        (TAKEN, because(Code.HOST_MAINTENANCE, host="bm1"), True),
        (
            because(Code.STALE, source="slurm", age_s=61.0),
            because(Code.STALE, source="slurm", age_s=62.0),
            False,
        ),
        (limit("limits.max_instances", 2), limit("limits.max_instances", 3), False),
        (limit("limits.max_instances", 2), limit("limits.boots_at_once", 2), True),
        (call_failed("no answer for 12 s"), call_failed("no answer for 13.5 s"), False),
        (call_failed("bm1 is full"), call_failed("bm2 is full"), True),
        (call_failed("node-1 is full"), call_failed("node-2 is full"), True),
        (because(Code.GAP, host="bm1", why=TAKEN), because(Code.GAP, host="bm1", why=limit("a", 1)), True),
        (no_host([TAKEN]), no_host([TAKEN, replace_host(TAKEN, "bm2")]), True),
        (
            because(Code.DISK_QUEUE, key="a", most=1, others=Aside(("vn2",))),
            because(Code.DISK_QUEUE, key="a", most=1, others=Aside(("vn3",))),
            False,
        ),
    ],
)
def test_names_and_codes_are_news_and_amounts_are_not(one: Reason, other: Reason, news: bool) -> None:
    """What a change of a fact alone means stands at the fact."""
    before, after = (refusal("vn1", Goal.MOVE, reason) for reason in (one, other))
    assert after.is_news_after(before) is news
    assert not before.is_news_after(before)
    assert before.is_news_after(None)


def test_of_a_few_hosts_each_reason_is_told_and_of_many_one_of_each_kind() -> None:
    """What keeps a node from every single host must not be lost; ten thousand hosts are no list."""
    few = no_host([TAKEN, because(Code.HOST_UNSEEN, host="bm2"), because(Code.HOST_MAINTENANCE, host="bm3")])
    assert sentence(few) == (
        "bm1 was given to job 7; bm2 has not been seen yet; bm3 is being emptied for its maintenance"
    )
    many = [because(Code.HOST_TAKEN, host=f"bm{n}", jobs=(str(n),)) for n in range(1, 1000)]
    told = sentence(no_host([*many, because(Code.HOST_UNSEEN, host="bm1000")]))
    assert told == "bm1 was given to job 1; bm1000 has not been seen yet; 998 others likewise"
    before, after = (refusal("vn1", Goal.MOVE, no_host(reasons)) for reasons in (many, many[1:]))
    assert not after.is_news_after(before)


# What the functions among the words read, and what is more than one thing.
SPECIAL: dict[str, object] = {
    **dict.fromkeys(("left_cpus", "left_memory_mb", "cpus", "memory_mb", "times", "wait_s", "hosts"), 3),
    **dict.fromkeys(("wanted_in_s", "pays_s", "whole", "instances", "free_cpus"), 3),
    **dict.fromkeys(("host", "said"), "x"),
    "jobs": ("7", "8"),
    "nodes": ("vn1",),
    "names": ("vn1", "vn2"),
    "reasons": (TAKEN,),
    "runs": (TAKEN,),
    "why": TAKEN,
    "stale": TAKEN,
    "way": "wait",
}


def words_for(code: Code) -> str:
    """The form of a code's words; empty where a function makes them."""
    form = sentences._CODES[code]
    return form if isinstance(form, str) else ""


def facts_for(code: Code) -> dict[str, object]:
    """A value for every fact that its words may name: a number where they format one."""
    found = re.findall(r"\{(\w+)(:?)", words_for(code))
    return {name: 3 if formatted else "x" for name, formatted in found} | SPECIAL


@pytest.mark.parametrize("code", list(Code))
def test_every_code_has_words(code: Code) -> None:
    """A sentence with all of its facts, which comes back from the journal as it was."""
    made = refusal("vn1", Goal.MOVE_TO, because(code, **facts_for(code)), "bm9")  # type: ignore[arg-type]
    text = why(made)
    assert text
    assert not re.search(r"[{}\[\]]", text)
    for form in (encode(made), encode_briefly(made)):
        assert decode(json.loads(json.dumps(form))) == made


@pytest.mark.parametrize("wanted", list(Goal))
def test_every_goal_has_words(wanted: Goal) -> None:
    """A noun, with what it names where it names something."""
    made = refusal("vn1", wanted, words_of("full"), "bm9")
    assert goal(made)
    assert line(made) == f"vn1: {goal(made)} refused: full"


def given_reasons() -> Iterator[tuple[str, Code, set[str]]]:
    """Every `because(Code.X, fact=...)` of the code: where it is, its code, the names of its facts."""
    for file in sorted((ROOT / "backfill").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if "because(" not in text:  # to parse them all takes seconds
            continue
        for call in ast.walk(ast.parse(text)):
            match call:
                case ast.Call(
                    func=ast.Name("because"), args=[ast.Attribute(ast.Name("Code"), name)], keywords=[*facts]
                ) if all(fact.arg for fact in facts):
                    yield f"{file.name}:{call.lineno}", Code[name], {str(fact.arg) for fact in facts}


def test_every_reason_is_given_the_facts_that_its_words_need() -> None:
    """One that lacks a fact would fail only where somebody is told of it: in the daemon's own thread."""
    found = list(given_reasons())
    assert len({code for _, code, _ in found}) > 100
    lacking = [(place, needed_by(code) - facts) for place, code, facts in found]
    assert [(place, names) for place, names in lacking if names] == []


def needed_by(code: Code) -> set[str]:
    """Facts that its words name outside of brackets."""
    return set(re.findall(r"\{(\w+)", re.sub(r"\[[^\[\]]*\]", "", words_for(code))))


def words_of(text: str) -> Reason:
    """A reason that is only words."""
    return because(Code.OTHER, said=Words(text))


def test_a_refusal_of_an_older_journal_is_read() -> None:
    """Before there were codes a refusal was three texts; its line reads as it did."""
    body: dict[str, object] = {"t": "Refusal", "subject": "vn1", "what": "move", "reason": "bm1 is full"}
    found = decode(body)
    assert isinstance(found, Refusal)
    assert found.code is Code.OTHER
    assert story_line(Record(1.0, "refusal", "vn1", body)) == "vn1: move refused: bm1 is full"
