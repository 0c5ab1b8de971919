"""What is planned about pilots that wait, by what their pool says, or does not say."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.actions import WithdrawPilot
from backfill.core.model.cluster import Job, JobState
from backfill.core.model.fleet import Flavour
from backfill.core.model.pilots import PoolPicture, mark_of, name_of
from backfill.core.policies.supply import Supply
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.core.reconcile.planner import plan
from backfill.core.world import World
from backfill.engine.observe import pool_changes
from backfill.ports.pools import PoolObservation
from backfill.ui.commands.look import _pool

NOW_S = 1_000_000.0
POLICIES = PolicySet(
    cluster="c",
    priorities=Priorities(low=("htc",), high=("batch",)),
    instances=Template(("vn1",), ("10.77.1.1/16",), Flavour(cpus=1, memory_mb=256)),
    hosts=("bm1",),
    supply=Supply(most=6, user="pilot", partition="htc", script="/pilot.sh", keep_s=60.0),
)


@pytest.mark.parametrize(("silent", "withdrawn"), [((), ["backfill-pilot-1"]), (("ap2",), [])])
def test_a_silent_access_point_is_no_sign_that_nobody_needs_a_pilot(
    silent: tuple[str, ...], withdrawn: list[str]
) -> None:
    """More payloads may wait there: a pilot that nothing seems to need is kept until it answers."""
    world = World()
    world.apply(ch.Tick(NOW_S))
    job = Job(
        "7", 7, "htc", JobState.PENDING, user="pilot", name=name_of(1), comment=mark_of(1), submit_s=1.0
    )
    world.apply(ch.JobSeen(job, NOW_S))
    world.apply(ch.SourceSeen("slurm", NOW_S))
    for change in pool_changes(world, PoolObservation(NOW_S, 0, silent=silent), ""):
        world.apply(change)
    assert world.pilots.pool == PoolPicture(NOW_S, 0, silent=silent)
    actions = plan(world, POLICIES).actions
    assert [action.subject for action in actions if isinstance(action, WithdrawPilot)] == withdrawn


def test_status_names_the_silent_access_point() -> None:
    """Beside what waits at the others; while the whole pool is silent that alone is told."""
    picture = PoolPicture(NOW_S, 3, silent=("ap2",))
    assert _pool(asdict(picture), NOW_S)[1:] == ["access point ap2 does not answer"]
    assert _pool(asdict(replace(picture, problem="nothing answers")), NOW_S)[1:] == [
        "no answer now: nothing answers"
    ]
