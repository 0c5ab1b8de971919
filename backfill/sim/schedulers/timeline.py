"""Free room over time: a step function that knows when, and for how long, an amount fits."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Generic, TypeVar

TimeT = TypeVar("TimeT", int, float)


class Timeline(Generic[TimeT]):
    """How much of one capacity is free, from `start` to the end of time.

    Times are of one unit that the caller chooses; amounts are whole (processors, megabytes).
    Everything is free at first. Neighbouring steps of equal height are merged, so the size is
    that of the picture and not that of its history.
    """

    __slots__ = ("_free", "_times", "capacity")

    def __init__(self, capacity: int, start: TimeT) -> None:
        if capacity < 0:
            raise ValueError(f"a capacity of {capacity} is negative; give 0 or more")
        self.capacity = capacity
        self._times: list[TimeT] = [start]
        self._free: list[int] = [capacity]

    def __len__(self) -> int:
        return len(self._times)

    def steps(self) -> Iterator[tuple[TimeT, int]]:
        """Yield (time, free from that time on), earliest first; the last step never ends."""
        return zip(self._times, self._free, strict=True)

    def least_free(self, start: TimeT, end: TimeT) -> int:
        """Smallest amount free at any instant of [start, end)."""
        if not start < end:
            raise ValueError(f"the span {start} to {end} is empty; its end must be later")
        first = self._covering(start)
        return min(self._free[first : bisect_left(self._times, end, first + 1)])

    def earliest(self, amount: int, duration: TimeT, after: TimeT) -> TimeT | None:
        """Return the first time from `after` on at which `amount` is free for `duration`.

        None if it never is.
        """
        times, free = self._times, self._free
        step = self._covering(after)
        start, last = after, len(times) - 1
        while True:
            if free[step] < amount:
                if step == last:
                    return None
                start = times[step + 1]
            elif step == last or times[step + 1] >= start + duration:
                return start
            step += 1

    def claim(self, start: TimeT, end: TimeT | None, amount: int) -> None:
        """Take `amount` during [start, end), or for ever if `end` is None.

        ValueError, and no change, if there is less than that at any instant.
        """
        self._add(start, end, -amount)

    def release(self, start: TimeT, end: TimeT | None, amount: int) -> None:
        """Give `amount` back during [start, end); ValueError if it had not been claimed."""
        self._add(start, end, amount)

    def forget_before(self, time: TimeT) -> None:
        """Drop what lies before `time`, which becomes the start."""
        step = self._covering(time)
        del self._times[:step]
        del self._free[:step]
        self._times[0] = time

    def _covering(self, time: TimeT) -> int:
        step = bisect_right(self._times, time) - 1
        if step < 0:
            raise ValueError(f"time {time} lies before the timeline's start {self._times[0]}")
        return step

    def _add(self, start: TimeT, end: TimeT | None, amount: int) -> None:
        if end is not None and not start < end:
            raise ValueError(f"the span {start} to {end} is empty; its end must be later")
        first = self._cut(start)
        stop = len(self._times) if end is None else self._cut(end)
        span = self._free[first:stop]
        if not 0 <= min(span) + amount <= max(span) + amount <= self.capacity:
            self._merge(first, stop)
            raise ValueError(f"{amount:+d} between {start} and {end} leaves the range 0 to {self.capacity}")
        self._free[first:stop] = [free + amount for free in span]
        self._merge(first, stop)

    def _cut(self, time: TimeT) -> int:
        """Make `time` the beginning of a step and return the step's index."""
        step = self._covering(time)
        if self._times[step] == time:
            return step
        self._times.insert(step + 1, time)
        self._free.insert(step + 1, self._free[step])
        return step + 1

    def _merge(self, first: int, stop: int) -> None:
        """Remove the two cuts at the ends of a span where they separate equal heights."""
        for step in (stop, first):
            if 0 < step < len(self._free) and self._free[step] == self._free[step - 1]:
                del self._times[step]
                del self._free[step]
