"""Slurm's plans for its nodes: reservations, and the expected starts of pending jobs."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from backfill.core.model.cluster import Job, Node
from backfill.core.model.quantities import parse_hostlist
from backfill.drivers.slurm.access import PREFIX
from backfill.drivers.slurm.job_pins import PIN_PREFIX
from backfill.ports.errors import BadOutputError

# Reservations are made by people: they are read again only after this time.
EVERY_S = 15.0
SHOW_RESERVATIONS = ("scontrol", "-a", "-o", "show", "reservation")
_OURS = tuple(f"ReservationName={start}" for start in (PREFIX, PIN_PREFIX))
_FIELD = re.compile(r"(?:^| )(StartTime|EndTime|Nodes|Flags|State)=(\S*)")


@dataclass(frozen=True, slots=True)
class SlurmReservation:
    """Nodes that are kept from `start_s` to `end_s`, epoch seconds."""

    start_s: float
    end_s: float
    nodes: tuple[str, ...]
    maintenance: bool


def read_reservations(output: str) -> list[SlurmReservation]:
    """Read the reservations in the output of `scontrol --oneliner show reservation`."""
    found = []
    for line in output.split("\n"):
        if not line.startswith("ReservationName="):
            continue  # "No reservations in the system", or a further line of a comment
        # The comment stands last and may look like fields: the first of a name is Slurm's own.
        values = dict(reversed(_FIELD.findall(line)))
        if line.startswith(_OURS):
            continue  # who may have a node, not when
        try:
            found.append(
                SlurmReservation(
                    _when_s(values["StartTime"], 0.0),
                    _when_s(values["EndTime"], math.inf),
                    parse_hostlist(values["Nodes"]),
                    "MAINT" in values["Flags"].split(","),
                )
            )
        except (KeyError, ValueError) as error:
            problem = f"cannot read the reservation {line[:200]!r}: {error}"
            raise BadOutputError("scontrol", problem) from error
    return found


def _when_s(text: str, otherwise: float) -> float:
    """Epoch seconds; `otherwise` where there is no such time."""
    return otherwise if text in ("Unknown", "None", "N/A", "(null)") else float(text)


@dataclass(slots=True)
class Ahead:
    """Slurm's plans for the hours ahead; replaced as a whole, so that threads need no lock."""

    reservations: tuple[SlurmReservation, ...] = ()
    read_s: float = 0.0
    expected: Mapping[str, float] = field(default_factory=dict)  # node -> start of a pending job
    of: Mapping[str, Job] | None = None  # the jobs from which that is known

    def due(self, now_s: float) -> bool:
        """Return True if the reservations are to be read again."""
        return now_s - self.read_s >= EVERY_S

    def expect(self, jobs: Mapping[str, Job]) -> None:
        """Take over where the scheduler expects pending jobs to start, and when."""
        found: dict[str, float] = {}
        for job in jobs.values():
            for name in job.planned_nodes:
                found[name] = min(job.planned_s, found.get(name, job.planned_s))
        self.expected, self.of = found, jobs

    def tell(self, nodes: Mapping[str, Node]) -> dict[str, Node]:
        """Return the nodes, each with what is known of its future."""
        now_s = time.time()
        kept = [r for r in self.reservations if r.end_s > now_s]
        planned = dict(self.expected)
        maintained: dict[str, float] = {}
        for one in kept:
            into = maintained if one.maintenance else planned
            for name in one.nodes:
                into[name] = min(one.start_s, into.get(name, one.start_s))
        told = dict(nodes)
        for name in nodes.keys() & (planned.keys() | maintained.keys()):
            told[name] = replace(
                nodes[name], planned_s=planned.get(name, 0.0), maintenance_s=maintained.get(name, 0.0)
            )
        return told
