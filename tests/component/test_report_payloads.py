"""The report's part about payloads: what a journal knows of them, summed up by day, pilot and cause."""

from __future__ import annotations

from backfill.core.model.changes import PayloadEnded, WorkLost
from backfill.core.model.records import encode
from backfill.ports.storage import Record
from backfill.ui.report.builder import timeline_of
from backfill.ui.report.page import PageHead, report_html
from tests.component.test_loss_book import NOON_S

DAY_S = 86400.0


def record(change: PayloadEnded | WorkLost) -> Record:
    return Record(change.at_s, "change", "7", encode(change))


def ended(number: int, pilot: str, at_s: float, *, done: bool) -> Record:
    return record(PayloadEnded(f"ap#{number}.0#1", pilot, "vn1", at_s, 90.0, done))


def page(*records: Record, rivals: tuple[tuple[str, ...], ...] = ()) -> str:
    return report_html(timeline_of(records), PageHead("a day", rivals=rivals))


def test_what_pilots_have_brought_is_told_by_day_pilot_and_cause() -> None:
    """With a sum of all days; what was not by us does not count as ours."""
    html = page(
        ended(1, "7", NOON_S - DAY_S, done=True),
        ended(2, "7", NOON_S, done=True),
        record(WorkLost("7", 0, "vn1", NOON_S + 10.0, "pilots", "patience", 100.0)),
        ended(3, "7", NOON_S + 11.0, done=False),
        ended(4, "8", NOON_S + 12.0, done=False),
    )
    latest = "<td>1</td><td>0.03 h</td><td>2</td><td>180 s</td><td>33.3 %</td>"
    assert f"<td>2026-11-24</td>{latest}<td>not by us: 1 (90 s), patience: 1 (90 s)</td>" in html
    assert (
        "<td>2026-11-23</td><td>1</td><td>0.03 h</td><td>0</td><td>0 s</td><td>0.0 %</td><td>-</td>" in html
    )
    assert "<td>in all</td><td>2</td><td>0.05 h</td><td>2</td><td>180 s</td><td>25.0 %</td>" in html
    assert "<td>7</td><td>2</td><td>0.05 h</td><td>1</td><td>90 s</td><td>33.3 %</td>" in html
    assert "<td>8</td><td>0</td><td>0.00 h</td><td>1</td><td>90 s</td><td>0.0 %</td>" in html
    assert "<b>2</b><span>payloads done in pilots</span>" in html


def test_a_daemon_that_asks_no_pool_says_nothing_of_payloads() -> None:
    """Work that was lost is then told elsewhere."""
    html = page(record(WorkLost("7", 0, "vn1", NOON_S, "", "ladder", 100.0)))
    assert "pilots have brought" not in html
    assert "other ways" not in html


def test_a_scenario_is_shown_beside_its_rivals() -> None:
    """As text, whatever a policy file is called."""
    html = page(ended(1, "7", NOON_S, done=True), rivals=(("", "goodput"), ("<b>ours", "80.0 %")))
    assert "<th>goodput</th>" in html
    assert "<td>&lt;b&gt;ours</td><td>80.0 %</td>" in html
