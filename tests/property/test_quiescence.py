"""A replay that fast-forwards while nothing can be decided comes out as any other."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from backfill.core.policies.ladder import Ladder
from backfill.core.policies.quotas import Quota, Quotas
from backfill.core.policies.scale import Scale
from backfill.core.policy import PolicySet
from backfill.drivers.simulated.costs import StepCosts
from backfill.sim.replay.costs import ReplayCosts
from backfill.sim.replay.policy_replay import Setting, reference, run
from backfill.sim.schedulers.machine import SCHEDULERS, TIES, Cluster, SchedulerName, Tie
from backfill.sim.traces.models import ModelJob
from tests.unit.harvest_inputs import KILL, MOVE, PAUSE, policy, setting

NODES = 4


def jobs(most: int, widest: int, apart_s: int) -> st.SearchStrategy[list[ModelJob]]:
    """Jobs that come one after another, with pauses long enough for everything to be over."""
    drawn = st.tuples(
        st.sampled_from((0, 1, 3, 40, apart_s)),
        st.integers(1, 300),
        st.integers(0, 100),
        st.integers(1, widest),
    )

    return st.lists(drawn, min_size=1, max_size=most).map(in_turn)


def in_turn(parts: list[tuple[int, int, int, int]]) -> list[ModelJob]:
    """Jobs by the pause before each, its run time, how much less that is than asked, and width."""
    found, at_s = [], 0
    for pause_s, run_s, more_s, processors in parts:
        at_s += pause_s
        found.append(ModelJob(at_s, run_s, processors, run_s + more_s))
    return found


def told(given: Setting, policies: PolicySet, *, fast_forward: bool) -> tuple[object, ...]:
    """Everything that a run tells: what became of every job, where every second went, and why."""
    end_s = reference(given, policies).ledger.window.end_s
    found = run(given, policies, end_s, fast_forward=fast_forward)
    ledger = found.ledger
    # Each answer and each end of a claim is a step, and of these a replay that fast-forwards takes fewer.
    steps = {name: n for name, n in ledger.steps.items() if not name.endswith("Claim")}
    sums = (ledger.on_cpu_s, ledger.paused_s, ledger.lost_core_s, ledger.evictions)
    tales = [replace(t, names=t.hosts, placed=-1) for t in found.tales]
    return (tales, found.harvest, steps, found.refusals, found.withdrawn, sums)


@settings(max_examples=30, deadline=None)
@given(
    high=jobs(14, NODES, 1500),
    low=st.one_of(st.just([]), jobs(6, 1, 2500)),
    cpus=st.integers(1, 2),
    ladder=st.sampled_from((KILL, PAUSE, MOVE)),
    hook_s=st.sampled_from((0.0, 0.015, 0.4, 5.0)),
    quota=st.booleans(),
    modes=st.tuples(st.sampled_from(SCHEDULERS), st.sampled_from(TIES)),
)
@example(  # a claim from before the fast-forward, of a job that ended in it, was taken for one that holds
    high=in_turn(
        [
            (0, 71, 0, 1),
            (0, 1, 0, 4),
            (1500, 185, 0, 4),
            (0, 153, 0, 1),
            (0, 181, 0, 3),
            (0, 208, 0, 1),
            (0, 273, 0, 4),
            (0, 181, 0, 1),
        ]
    ),
    low=in_turn([(0, 1, 0, 1), (2500, 1, 0, 1)]),
    cpus=1,
    ladder=KILL,
    hook_s=0.0,
    quota=False,
    modes=("easy", "batch"),
)
def test_nothing_differs(
    high: list[ModelJob],
    low: list[ModelJob],
    cpus: int,
    ladder: Ladder,
    hook_s: float,
    quota: bool,
    modes: tuple[SchedulerName, Tie],
) -> None:
    """Jobs, seconds, steps and refusals are the same, whenever instances come and go in between."""
    scale, ceilings = Scale(idle_s=60.0), (Quota(3),) if quota else ()
    rules = replace(policy(ladder), scale=scale, quotas=Quotas(ceilings))
    costs = ReplayCosts(steps=StepCosts(hook_s=hook_s))
    given_, rules = setting(high, Cluster(NODES, cpus), rules, low, costs)
    given_ = replace(given_, scheduler=modes[0], tie=modes[1])
    assert told(given_, rules, fast_forward=True) == told(given_, rules, fast_forward=False)
