"""Plans of the engine in a test are made twice: of what is marked, and from scratch."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Generator
from dataclasses import replace
from itertools import count
from random import Random

import pytest
from hypothesis import settings

from backfill.core.model.plan import Plan
from backfill.core.policy import PolicySet
from backfill.core.reconcile.planner import enact, plan
from backfill.core.world import World

# Modules that hold assertions for several test files say what they compared, too.
pytest.register_assert_rewrite(
    "tests.component", "tests.contract", "tests.real", "tests.simulation", "tests.unit"
)

# The gate tries the same examples every time, wherever it runs; what a search has found stands
# there as an @example. `make search` tries others: its seed alone decides which, no database.
# How long one takes is never judged: other work on the machine would decide it.
settings.register_profile("gate", derandomize=True, deadline=None)
settings.register_profile("search", database=None, deadline=None, print_blob=True)
settings.load_profile("search" if os.environ.get("BACKFILL_SEARCH") else "gate")
# So many plans of a test are all compared with those from scratch; of later ones one in so many, at random,
# but always the same ones. Those from scratch are three fifths of the time, and few tests make most.
_ALL_COMPARED = int(os.environ.get("BACKFILL_PLANS_COMPARED", sys.maxsize))
_LATER_PER_COMPARED = 8


def pytest_sessionstart() -> None:
    """Collect no garbage while tests are collected: nothing of it is, and looking takes seconds."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Never look again at what was imported."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what a failed test's lab has said."""
    report = yield
    if report.failed and item.get_closest_marker("real"):
        from tests.real.lab_logs import attach  # only here: most tests have no lab

        attach(report, getattr(item, "funcargs", {}).values())
    return report


class PlanDiffersError(AssertionError):
    """A plan of what is marked is not the plan that is made from scratch."""


@pytest.fixture(autouse=True)
def _oracle(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[Plan]:
    """Compare the plans that the engine makes, and return which have been.

    A mark that is missing shows in all plans until something else marks the same, so that few get past it.
    """
    made: list[Plan] = []
    every = sys.maxsize if "plans_compared" in request.fixturenames else _ALL_COMPARED
    drawn, number = Random(request.node.name), count()

    def both(world: World, policies: PolicySet, *, spare: bool) -> Plan:
        if next(number) >= every and drawn.randrange(_LATER_PER_COMPARED):
            found = enact(world, policies, spare=spare)
        else:
            anew = plan(world, policies, from_scratch=True, spare=spare)
            found = enact(world, policies, spare=spare)
            compare(found, anew)
            made.append(found)
        assert not world.queue.unsettled, f"steps undo one another: {found}"
        return found

    monkeypatch.setattr("backfill.engine.cycle.enact", both)
    return made


@pytest.fixture
def plans_compared(_oracle: list[Plan]) -> list[Plan]:
    """The plans that were made twice: whoever asks for them is there for this comparison, and has all."""
    return _oracle


def compare(found: Plan, anew: Plan) -> None:
    """Raise PlanDiffersError unless both are the same, but for the order of their refusals."""
    for one, other in ((found, anew), (anew, found)):
        more = [r for r in one.refusals if r not in other.refusals]
        same = one.before == other.before and replace(one, refusals=()) == replace(other, refusals=())
        if more or not same:
            raise PlanDiffersError(f"marked: {found}\nanew: {anew}\nonly in one: {more}")
