"""The HTML report and the SVG picture: whole, self-contained, true to the journal."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from backfill.drivers.store.sqlite import SqliteJournal
from backfill.ports.storage import Record
from backfill.sim.scenarios.player import play
from backfill.sim.scenarios.reader import load_scenario
from backfill.sim.scenarios.stage import SimulatedStage
from backfill.ui.report.builder import timeline_of
from backfill.ui.report.page import Judgement, PageHead, main, report_html
from backfill.ui.report.style import COLOURS
from backfill.ui.report.svg import boot_bars, giving_bars, ms, returning_bars, timeline_svg, waterfall_svg
from backfill.ui.report.tables import PEERS, evictions_table, start_steps, starts_table
from backfill.ui.report.timeline import Chart, Stretch, StretchKind

FIRST_DAY = Path(__file__).parents[2] / "scenarios/first_day.yaml"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def records() -> tuple[Record, ...]:
    scenario = load_scenario(FIRST_DAY)
    return play(scenario, SimulatedStage(scenario)).records


@pytest.fixture(scope="module")
def timeline(records: tuple[Record, ...]) -> Chart:
    return timeline_of(records)


class Links(HTMLParser):
    """Collects every tag and everything that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "br", "img", "link"):
            self.open.append(tag)
        self.fetched += [v or "" for k, v in attrs if k in ("src", "href", "data", "srcset")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_nothing_from_outside(timeline: Chart) -> None:
    """No link, script, font or picture is fetched, and every tag is closed."""
    page = report_html(timeline, PageHead("First day"))
    links = Links()
    links.feed(page)
    assert links.open == []
    assert links.fetched == []
    assert "<script" not in page
    assert "@import" not in page
    assert set(re.findall(r"url\(([^)]*)\)", page)) <= {"#hatch", "#hatch-back", "#dots", "#rise", "#tip"}


def test_what_people_wrote_is_shown_as_text(timeline: Chart) -> None:
    """Names of jobs and reasons cannot smuggle markup into the page."""
    evil = replace(timeline, names=dict.fromkeys(timeline.names, "<script>x</script>&"))
    page = report_html(evil, PageHead("a <b>", judgements=(Judgement(False, "<i>", ("<u>",)),)))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "a &lt;b&gt;" in page
    assert "<li>&lt;u&gt;</li>" in page


def test_verdicts_stand_at_the_top(timeline: Chart) -> None:
    """A no looks different from a yes, not only by its colour."""
    page = report_html(
        timeline, PageHead("x", judgements=(Judgement(True, "well"), Judgement(False, "badly")))
    )
    assert "<li>well</li>" in page
    assert '<li class="no">badly</li>' in page
    assert page.index("badly") < page.index("<svg")


def test_the_picture_shows_every_span_where_it_was(timeline: Chart) -> None:
    """One bar per span with its sentence; later ones stand further right; all inside."""
    root = ET.fromstring(timeline_svg(timeline, "first day", standalone=True))
    width = float(root.attrib["viewBox"].split()[2])
    bars = [r for r in root.iter(f"{SVG}rect") if r.find(f"{SVG}title") is not None]
    spans = [s for r in (*timeline.hosts, *timeline.instances, *timeline.jobs) for s in r.spans]
    assert len(bars) == len(spans)
    assert all(0 <= float(b.attrib["x"]) <= width for b in bars)
    hints = [b.findtext(f"{SVG}title") or "" for b in bars]
    assert any("vn1: host bm1 was given to job 7 (important)" in h for h in hints)
    working = [b for b, h in zip(bars, hints, strict=True) if h.startswith("vn1 on bm")]
    places = [float(b.attrib["x"]) for b in working if b.attrib["class"] == "k-working"]
    assert places == sorted(places)
    assert len(places) == 2


def test_the_picture_marks_evictions_and_moves(timeline: Chart) -> None:
    """The moment at which the host was taken is written out, and each move has its arrow."""
    root = ET.fromstring(timeline_svg(timeline, "first day"))
    texts = [t.text for t in root.iter(f"{SVG}text")]
    assert "important gets bm1: room free after 3.0 ms" in texts
    assert len([p for p in root.iter(f"{SVG}path") if p.attrib.get("class") == "way"]) == 2


def test_names_of_a_journal_cannot_break_the_picture(timeline: Chart) -> None:
    """A label with markup in it stays a label."""
    odd = Stretch(timeline.start_s, timeline.end_s, StretchKind.WORKING, "<&>", '"quoted" <b>')
    row = replace(timeline.jobs[0], spans=(odd,), label="<&>")
    root = ET.fromstring(timeline_svg(replace(timeline, jobs=(row,)), "a & b", standalone=True))
    assert any(t.text == "<&>" for t in root.iter(f"{SVG}text"))


def test_many_rows_are_counted_instead_of_drawn(timeline: Chart) -> None:
    """A production journal with thousands of jobs still gives a picture that opens."""
    many = replace(timeline, jobs=timeline.jobs * 100)
    assert "and 500 more" in timeline_svg(many, "many")


def test_starts_are_cut_as_in_the_field(timeline: Chart) -> None:
    """Without the guest's own word its steps are one; with it they are told apart and add up."""
    boot = timeline.boots[0]
    whole = start_steps(boot)
    assert whole is not None
    assert whole.boot_s is None
    parts = (whole.choice_s, whole.create_s, whole.guest_s, whole.ready_s)
    assert sum(parts) == pytest.approx(whole.total_s)
    told = start_steps(replace(boot, marks=(("kernel", 1.5), ("seed", 2.0), ("identity", 2.5))))
    assert told is not None
    assert (told.boot_s, told.identity_s) == (2.0, 0.5)
    assert told.register_s == pytest.approx(told.guest_s - 2.5)
    unfinished = replace(boot, ready_s=0.0, end="its guest crashed")
    assert start_steps(unfinished) is None
    assert "its guest crashed" in starts_table([unfinished])
    assert all(peer.name in starts_table([boot]) for peer in PEERS)


def test_evictions_are_summed_up_when_they_are_many(timeline: Chart) -> None:
    """Two rows speak for themselves; for a hundred there are median, p95 and max."""
    assert "median" not in evictions_table(timeline)
    first = timeline.evictions[0]
    many = tuple(replace(first, stopped_s=first.wanted_s + i / 1000) for i in range(1, 101))
    table = evictions_table(replace(timeline, evictions=many))
    rows = re.findall(r'<tr class="summary"><td>(.*?)</td><td></td><td></td><td>(.*?)</td>', table)
    assert rows == [("median of 100", "50 ms"), ("p95 of 100", "95 ms"), ("max of 100", "100 ms")]


def test_steps_follow_one_another_in_their_pictures(timeline: Chart) -> None:
    """What gives the host back, what brings the work back, what starts an instance."""
    giving, back = giving_bars(timeline.evictions), returning_bars(timeline.evictions)
    assert [b.label for b in giving][:2] == ["vn1: pause", "vn2: pause"]
    assert {b.label for b in back} >= {"vn1: migrate to bm2", "vn2: wake", "vn1: resume job 5"}
    assert all(b.css == "way-back" for b in back)
    marked = replace(timeline.boots[0], marks=(("kernel", 1.5), ("seed", 2.0)))
    bars = boot_bars(marked)
    assert [b.label for b in bars if b.css == "guest"] == ["guest: kernel", "guest: seed", "guest: register"]
    ET.fromstring(waterfall_svg("a start", bars))
    assert waterfall_svg("nothing", []) == ""


def test_a_journal_without_anything_still_gives_a_page() -> None:
    """A daemon that has just been started has a report, too."""
    page = report_html(timeline_of([]), PageHead("Nothing yet"))
    assert "Nothing yet" in page
    assert "Giving hosts back" not in page


def test_milliseconds_and_seconds() -> None:
    """Short times keep a digit, long ones lose what nobody reads."""
    assert [ms(s) for s in (0.0034, 0.0123, 0.5, 1.234, 20.2)] == [
        "3.4 ms",
        "12 ms",
        "500 ms",
        "1.23 s",
        "20.2 s",
    ]


def test_every_kind_has_a_colour() -> None:
    """A new kind cannot be drawn without one."""
    assert set(COLOURS) == set(StretchKind)


def test_the_command_reads_a_journal(
    records: tuple[Record, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file of a daemon in production gives the same page as the run that wrote it."""
    journal = SqliteJournal(tmp_path / "journal.db")
    journal.append(records)
    journal.close()
    out = tmp_path / "report.html"
    assert main(["--journal", str(tmp_path / "journal.db"), "--html", str(out)]) == 0
    assert "important gets bm1" in out.read_text()
    assert main(["--journal", str(tmp_path / "none.db"), "--html", str(out)]) == 65
    assert "there is no journal" in capsys.readouterr().err
    assert main(["--html", str(out)]) == 64


def test_the_picture_of_the_manual_tells_the_same_story(tmp_path: Path) -> None:
    """docs/pictures shows the hosts, instances, jobs and kinds of the scenario as it plays now."""
    fresh = tmp_path / "first_day.svg"
    kept = Path(__file__).parents[2] / "docs/pictures/first_day.svg"
    assert main(["--scenario", str(FIRST_DAY), "--svg", str(fresh)]) == 0
    shown = [
        {
            (rect.attrib["class"], (rect.findtext(f"{SVG}title") or "").split(":")[0])
            for rect in ET.parse(file).iter(f"{SVG}rect")
            if rect.find(f"{SVG}title") is not None
        }
        for file in (kept, fresh)
    ]
    assert shown[0] == shown[1], (
        "write it anew: python -m backfill.ui.report.page --scenario scenarios/first_day.yaml "
        "--svg docs/pictures/first_day.svg"
    )
