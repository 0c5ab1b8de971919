"""Simulated time: what is due, in which order, and how far a callback may go by itself."""

from __future__ import annotations

from backfill.drivers.simulated.events import EventQueue


def test_equal_times_keep_their_order_and_a_ticket_keeps_a_place() -> None:
    """What was drawn a ticket for before is done before, although it was asked for later."""
    queue, done = EventQueue(0.0), list[str]()
    ticket = queue.ticket()
    queue.at(5.0, lambda: done.append("second"))
    queue.at(5.0, lambda: done.append("first"), ticket)
    queue.step_to(5.0)
    assert done == ["first", "second"]


def test_a_callback_lets_time_pass_where_nothing_is_due() -> None:
    """Neither beyond the step nor to an instant at which something else may happen."""
    queue, answers = EventQueue(0.0), list[bool]()

    def go() -> None:
        answers.extend(queue.pass_to(at_s) for at_s in (2.0, 3.0, 4.0, 9.0))

    queue.at(1.0, go)
    queue.at(4.0, lambda: answers.append(queue.now_s == 4.0))
    queue.step_to(8.0)
    assert answers == [True, True, False, False, True]
    assert queue.now_s == 8.0
