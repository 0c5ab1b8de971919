"""Timelines out of a journal: spans, lanes, boots, evictions; and how a terminal shows them."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState
from backfill.core.model.records import encode
from backfill.ports.storage import Record
from backfill.sim.scenarios.player import Outcome, play
from backfill.sim.scenarios.reader import load_scenario
from backfill.sim.scenarios.stage import SimulatedStage
from backfill.ui.report.builder import TimelineBuilder, timeline_of
from backfill.ui.report.live import STYLES, cells, picture, watcher, window_s
from backfill.ui.report.timeline import MEANINGS, Chart, Row, Stretch, StretchKind, in_lanes, natural

FIRST_DAY = Path(__file__).parents[2] / "scenarios/first_day.yaml"


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    scenario = load_scenario(FIRST_DAY)
    return play(scenario, SimulatedStage(scenario))


@pytest.fixture(scope="module")
def timeline(outcome: Outcome) -> Chart:
    return timeline_of(outcome.records)


def kinds(row: Row) -> list[StretchKind]:
    return [s.kind for s in row.spans]


def row(rows: tuple[Row, ...], name: str) -> Row:
    return next(r for r in rows if name in (r.name, r.label))


def test_an_instance_goes_through_its_whole_life(timeline: Chart) -> None:
    """From boot over eviction, move and return to the end, without a hole in between."""
    vn1 = row(timeline.instances, "vn1")
    assert kinds(vn1) == [
        StretchKind.BOOTING,
        StretchKind.IDLE,
        StretchKind.WORKING,
        StretchKind.EVICTING,
        StretchKind.PAUSED,
        StretchKind.MOVING,
        StretchKind.RETURNING,
        StretchKind.WORKING,
        StretchKind.IDLE,
        StretchKind.DRAINING,
        StretchKind.REMOVING,
    ]
    assert all(a.end_s == b.start_s for a, b in pairwise(vn1.spans))
    assert {s.hosts for s in vn1.spans if s.kind is StretchKind.PAUSED} == {("bm1",)}
    assert {s.hosts for s in vn1.spans if s.kind is StretchKind.RETURNING} == {("bm2",)}


def test_a_job_waits_works_stands_still_and_ends(timeline: Chart) -> None:
    """The counter's job stands still while its instance does, and then goes on to its end."""
    counter = row(timeline.jobs, "counter-1")
    assert kinds(counter) == [
        StretchKind.WAITING,
        StretchKind.WORKING,
        StretchKind.PAUSED,
        StretchKind.WORKING,
    ]
    assert counter.end == "completed"
    important = row(timeline.jobs, "important")
    assert kinds(important) == [StretchKind.WAITING, StretchKind.METAL]


def test_a_host_shows_its_own_jobs_and_its_guests_in_lanes(timeline: Chart) -> None:
    """Lane 0 is the host's own node; no lane has two things at one time."""
    bm1 = row(timeline.hosts, "bm1")
    assert {s.label for s in bm1.spans if s.lane == 0} == {
        "yardstick-1",
        "yardstick-2",
        "yardstick-3",
        "important",
    }
    assert {s.label for s in bm1.spans if s.lane > 0} == {"vn1", "vn2"}
    for lane in range(bm1.lanes):
        spans = sorted((s for s in bm1.spans if s.lane == lane), key=lambda s: s.start_s)
        assert all(a.end_s <= b.start_s for a, b in pairwise(spans))


def test_a_boot_is_taken_apart(timeline: Chart) -> None:
    """Decision, calls, registration, readiness and the first job follow one another."""
    first, second = timeline.boots
    assert (first.node, second.node, first.host) == ("vn1", "vn2", "bm1")
    create = first.step("create instance")
    assert create is not None
    assert create.took_s == pytest.approx(0.3)
    assert first.submitted_s <= first.decided_s <= create.end_s
    assert create.end_s < first.registered_s < first.ready_s <= first.first_job_s


def test_an_eviction_is_taken_apart(timeline: Chart) -> None:
    """Room free in milliseconds, then Slurm is told, then the move and the way back by steps."""
    eviction = timeline.evictions[0]
    assert (eviction.host, eviction.back_host) == ("bm1", "bm2")
    assert eviction.stopped_s - eviction.wanted_s == pytest.approx(0.003, abs=1e-6)
    assert eviction.stopped_s < eviction.parked_s < eviction.moving_s < eviction.returning_s
    assert [s.name for s in eviction.steps] == [
        "pause instance",
        "drain node",
        "hide node",
        "suspend job 5",
        "migrate to bm2",
        "show node",
        "thaw instance",
        "wake instance",
        "resume job 5",
        "undrain node",
    ]
    assert all(s.end_s >= s.start_s > 0 and not s.problem for s in eviction.steps)


def test_claims_tell_who_pushed_whom(timeline: Chart) -> None:
    """Only the job for which instances had to go counts as one that evicted."""
    assert [c.job for c in timeline.claims if c.evicted] == ["7"]
    assert all(c.ok and c.answered_s >= c.at_s for c in timeline.claims)


def test_events_without_the_silent_records_give_the_same_instances(outcome: Outcome) -> None:
    """What the daemon tells over its socket (intents, phases, outcomes) is enough for a picture."""
    heard = [
        r
        for r in outcome.records
        if r.kind != "change" or r.body["t"] in ("JobSeen", "InstanceSeen", "Claimed", "NodeSeen")
    ]
    partial = timeline_of(heard)
    assert partial.instances == timeline_of(outcome.records).instances
    assert [r.name for r in partial.hosts] == ["bm1", "bm2"]


def test_without_the_story_the_rows_are_the_same(outcome: Outcome, timeline: Chart) -> None:
    """Who draws rows alone keeps no sentences."""
    builder = TimelineBuilder(story=False)
    for record in outcome.records:
        builder.add(record)
    bare = builder.timeline()
    assert (bare.hosts, bare.instances, bare.jobs) == (timeline.hosts, timeline.instances, timeline.jobs)
    assert (bare.events, bare.boots, bare.evictions, bare.claims) == ((), (), (), ())


def test_what_was_over_long_ago_is_forgotten(outcome: Outcome, timeline: Chart) -> None:
    """The rest is as before: what goes on across that moment keeps its begin, and new records follow."""
    ends_s = {span.end_s for row in (*timeline.instances, *timeline.jobs) for span in row.spans}
    moments = [record.at_s for record in outcome.records]
    # At which nothing is just ending: its last record may come a little later than this one.
    middle = next(n for n in range(len(moments) // 2, len(moments)) if moments[n] not in ends_s)
    cut_s = moments[middle]
    builder = TimelineBuilder(story=False)
    for number, record in enumerate(outcome.records):
        builder.add(record)
        if number == middle:
            builder.forget(cut_s)
    left = builder.timeline()
    assert left.start_s == cut_s
    assert [r.name for r in left.hosts] == [r.name for r in timeline.hosts]

    def after(rows: tuple[Row, ...]) -> dict[str, tuple[Stretch, ...]]:
        kept = {one.name: tuple(s for s in one.spans if s.end_s > cut_s) for one in rows}
        return {name: spans for name, spans in kept.items() if spans}

    assert {one.name: one.spans for one in left.instances} == after(timeline.instances)
    assert {one.name: one.spans for one in left.jobs} == after(timeline.jobs)
    assert len(left.jobs) < len(timeline.jobs)


def told(at_s: float, *changes: ch.Change) -> list[Record]:
    return [Record(at_s, "change", "x", encode(change)) for change in changes]


def test_what_ended_while_no_daemon_ran_ends_with_the_next_start() -> None:
    """A daemon begins without jobs, so it tells of none that is gone: it does not tell of that one at all."""
    runs = Job("1", 1, "htc", JobState.RUNNING, nodes=("vn1",), submit_s=90.0, start_s=95.0)
    waits = Job("2", 2, "htc", JobState.PENDING, submit_s=90.0)
    stays = replace(runs, id="3", raw_id=3)
    builder = TimelineBuilder(story=False)
    start = Record(200.0, "daemon", "cluster", {"event": "start", "managed": 0})
    before = told(100.0, *(ch.JobSeen(job, 100.0) for job in (runs, waits, stays)))
    for record in (*before, start, replace(start, at_s=300.0)):
        builder.add(record)
    assert {one.spans[-1].end_s for one in builder.timeline(310.0).jobs} == {310.0}  # nobody has looked yet
    for record in told(320.0, ch.JobSeen(stays, 320.0)):
        builder.add(record)
    ends = {one.name: one.spans[-1].end_s for one in builder.timeline(400.0).jobs}
    assert ends == {"1": 200.0, "2": 200.0, "3": 400.0}
    builder.forget(250.0)
    assert [one.name for one in builder.timeline(400.0).jobs] == ["3"]


def test_outcomes_of_a_live_daemon_end_steps_too() -> None:
    """A failed call is kept with its problem; the next try is a step of its own."""
    node = {
        "name": "vn1",
        "address": "10.0.0.1/24",
        "host": "bm1",
        "generation": 1,
        "phase": "booting",
        "since_s": 1.0,
        "created_s": 1.0,
    }
    intent = {"t": "DrainNode", "name": "vn1", "generation": 1, "reason": "backfill: test"}
    outcome = {"key": "DrainNode:vn1:1", "elapsed_s": 0.5, "problem": "slurmctld: no answer"}
    timeline = timeline_of(
        [
            Record(1.0, "phase", "vn1", {"t": "SetNode", "node": node, "reason": "wanted"}),
            Record(2.0, "intent", "vn1", dict(intent)),
            Record(2.5, "outcome", "vn1", dict(outcome)),
            Record(3.0, "intent", "vn1", dict(intent)),
            Record(3.1, "outcome", "vn1", {**outcome, "problem": ""}),
            Record(4.0, "marks", "vn1", {"generation": 1, "marks": [["kernel", 1.5]]}),
        ]
    )
    steps = timeline.boots[0].steps
    assert [(s.problem, s.took_s) for s in steps] == [("slurmctld: no answer", 0.5), ("", pytest.approx(0.1))]
    assert timeline.boots[0].marks == (("kernel", 1.5),)
    assert [e.main for e in timeline.events if "failed" in e.text] == [True]


def test_names_of_jobs_are_put_behind_their_numbers(timeline: Chart) -> None:
    """Sentences say `job 7 (important)`, once."""
    said = timeline.named("host bm1 was given to job 7, not to job 99")
    assert said == "host bm1 was given to job 7 (important), not to job 99"
    assert timeline.named(said) == said


def test_lanes_are_reused_when_they_are_free() -> None:
    """Two things at once need two lanes; a third that comes later takes the first again."""
    items = [[Stretch(0, 5, StretchKind.IDLE, n)] for n in "ab"] + [[Stretch(5, 9, StretchKind.IDLE, "c")]]
    placed, lanes = in_lanes(items)
    assert lanes == 2
    assert [(i[0].label, i[0].lane) for i in placed] == [("a", 0), ("b", 1), ("c", 0)]


def test_names_with_numbers_are_sorted_as_people_do() -> None:
    """vn2 stands before vn10."""
    assert sorted(["vn10", "vn2", "bm1"], key=natural) == ["bm1", "vn2", "vn10"]


def test_an_eviction_is_never_too_short_to_be_seen() -> None:
    """In a column that a long span fills, a short eviction still shows."""
    spans = [
        Stretch(0, 50, StretchKind.WORKING),
        Stretch(50, 50.001, StretchKind.EVICTING),
        Stretch(50.001, 100, StretchKind.PAUSED),
    ]
    found = [s.kind if s else None for s in cells(spans, 0, 100, 9)]
    assert found.count(StretchKind.EVICTING) == 1
    assert found[0] is StretchKind.WORKING
    assert found[-1] is StretchKind.PAUSED


def test_the_window_grows_in_round_steps() -> None:
    """The scale changes seldom, so that the picture does not crawl."""
    assert [window_s(s) for s in (1, 30, 31, 100, 1e6)] == [30, 30, 60, 120, 1e6]


@pytest.mark.parametrize(("width", "height"), [(120, 40), (80, 24), (45, 12), (40, 6)])
def test_the_picture_fits_the_terminal(timeline: Chart, width: int, height: int) -> None:
    """No line is wider than the terminal, and no more are drawn than it has."""
    out = io.StringIO()
    Console(file=out, width=width, height=height).print(picture(timeline, width, height))
    lines = out.getvalue().splitlines()
    assert max(len(line) for line in lines) <= width
    assert len(lines) <= height


def test_every_kind_has_a_look_and_a_meaning() -> None:
    """A new kind cannot be forgotten in a legend."""
    assert set(STYLES) == set(StretchKind) == set(MEANINGS)


def test_plain_lines_where_there_is_no_terminal(outcome: Outcome) -> None:
    """A pipe gets one sentence per event that matters, each once, with its time."""
    out = io.StringIO()
    with watcher(out) as shown:
        shown.show(outcome.records[:400], outcome.end_s)
        shown.show(outcome.records[400:], outcome.end_s)
    lines = out.getvalue().splitlines()
    assert len(lines) == len(set(lines))
    assert "  20.000 s  Slurm gave bm1 to job 7 (important)" in lines
    assert not any("probe" in line for line in lines)


def test_a_move_that_failed_does_not_change_when_the_host_was_given_back() -> None:
    """Parked a second time after a failed move: the first time counts."""
    base = {
        "name": "vn1",
        "address": "10.0.0.1/24",
        "host": "bm1",
        "generation": 1,
        "since_s": 1.0,
        "created_s": 1.0,
        "held": [{"id": "5", "restarts": 0}],
    }
    records = [
        Record(at_s, "phase", "vn1", {"t": "SetNode", "node": {**base, "phase": p}, "reason": p})
        for at_s, p in enumerate(("evicting", "parked", "moving", "parked"), start=1)
    ]
    eviction = timeline_of(records).evictions[0]
    assert (eviction.parked_s, eviction.moving_s, eviction.jobs) == (2, 3, ("5",))
