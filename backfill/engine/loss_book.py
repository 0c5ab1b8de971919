"""The book of work that was lost: by day, workload and cause; the journal keeps it over restarts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from backfill.core.model.changes import WorkLost
from backfill.core.model.records import decode
from backfill.core.policy import PolicySet
from backfill.core.world import World
from backfill.engine.families import Body
from backfill.engine.work_account import LostRun
from backfill.ports.storage import Journal

_MOST_DAYS = 31
Line = tuple[str, str, str]  # day, workload, cause


class LossBook:
    """Belongs to the daemon's thread. Days are those of UTC, by our time."""

    def __init__(self) -> None:
        self._lines: dict[Line, list[float]] = {}  # runs, core seconds

    def recall(self, journal: Journal) -> None:
        """Take in what the journal still knows."""
        for record in journal.read(types=(WorkLost.__name__,)):
            self.add(decode(record.body))

    def news(self, runs: list[LostRun], world: World, policies: PolicySet) -> Iterator[WorkLost]:
        """Yield what is to be written of these runs, which are taken out of the list, and book it."""
        while runs:
            run = runs.pop(0)
            workload = policies.workloads.of(run.job)
            name = run.job.nodes[0] if run.job.nodes else ""
            lost = WorkLost(
                run.job.id,
                run.job.restarts,
                name,
                float(world.now_s),
                "" if workload is None else workload.name,
                run.cause,
                round(run.core_s, 3),
                run.job.raw_id,
            )
            self.add(lost)
            yield lost

    def add(self, lost: WorkLost) -> None:
        """Book one of them; the oldest day goes where there are too many."""
        day = datetime.fromtimestamp(lost.at_s, UTC).date().isoformat()
        line = self._lines.setdefault((day, lost.workload, lost.cause), [0.0, 0.0])
        line[0] += 1
        line[1] += lost.core_s
        days = sorted({known for known, *_ in self._lines})
        for old in days[:-_MOST_DAYS]:
            self._lines = {line: sums for line, sums in self._lines.items() if line[0] != old}

    def told(self) -> list[Body]:
        """Return all lines, the latest day first, for `status`."""
        found = sorted(self._lines.items(), key=lambda item: item[0])
        found.sort(key=lambda item: item[0][0], reverse=True)
        return [
            {"day": day, "workload": workload, "cause": cause, "runs": int(runs), "core_s": core_s}
            for (day, workload, cause), (runs, core_s) in found
        ]
