"""Two hours of pilots on hosts that others want: hardly a payload is lost, and nobody waits for one."""

from __future__ import annotations

from tests.bench.osg_day import LONGEST_S, played


def test_a_day_of_pilots_beside_two_rivals() -> None:
    """Plain requeue loses payloads, never evicting keeps others waiting; the patient way does neither."""
    rows = {row.name: row for row in played(2.0, seed=1, longest_s=LONGEST_S)}
    own, unknown, requeue, never = (
        rows[name] for name in ("own pool", "unknown pool", "plain requeue", "never evicting")
    )
    assert own.lost <= 0.03
    assert unknown.lost <= 0.08
    assert requeue.lost > max(own.lost, unknown.lost)
    assert sum(requeue.lost_by.values()) > 0.99 * requeue.badput
    assert min(own.goodput, unknown.goodput) > requeue.goodput
    assert never.wait_mean_s > 100 * max(own.wait_mean_s, unknown.wait_mean_s)
    assert own.goodput > 0.98 * never.goodput
