"""The queue to the disk and what is learned from it."""

from __future__ import annotations

from backfill.core.model.quantities import WriteRate
from backfill.core.model.refusals import Code, because
from backfill.core.policies.disk_queue import DiskQueue


def test_the_end_of_a_suspend_is_predicted_from_earlier_ones() -> None:
    """Nothing is known before the first; a changed disk is learned within a few."""
    rate = WriteRate()
    assert rate.predict_s(100.0) is None
    rate = rate.learn(100.0, 1.0)
    assert rate.predict_s(200.0) == 2.0
    for _ in range(12):
        rate = rate.learn(100.0, 2.0)
    assert 3.9 < (rate.predict_s(200.0) or 0) < 4.0
    assert rate.learn(0.0, 5.0) == rate


def test_big_ones_take_turns_and_small_ones_go_together() -> None:
    """The limit of the host and that of all hosts; what is bigger than both goes alone."""
    queue = DiskQueue(host_mb=1000, all_mb=1500)
    assert queue.refusal(200, 800, 800) is None
    here, everywhere = queue.refusal(300, 800, 800), queue.refusal(300, 0, 1300)
    assert here == because(Code.DISK_QUEUE, key="disk_queue.host_mb", most=1000)
    assert everywhere == because(Code.DISK_QUEUE, key="disk_queue.all_mb", most=1500)
    assert queue.refusal(9000, 0, 0) is None
