"""Hosts whose own node Slurm shows as shut, in the words that Slurm has for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.refusals import Code
from backfill.core.placement import closed
from backfill.drivers.slurm.reading.states import node_state
from tests.unit.test_stops import PARKED, POLICIES, world_of


def shown(state: str) -> Code | None:
    """Why no instance may come to a host that Slurm shows so; None: it may."""
    world = world_of(PARKED)
    base, flags = node_state(state)
    world.apply(ch.NodeSeen(replace(world.nodes["bm1"], base=base, flags=flags), world.now_s))
    why = closed(world, "bm1", POLICIES.limits)
    return why.code if why is not None else None


@pytest.mark.parametrize(
    "state",
    [
        "IDLE+MAINTENANCE",
        "maint",
        "idle$",
        "IDLE+RESERVED",
        "resv",
        "IDLE+REBOOT_REQUESTED",
        "IDLE+POWER_DOWN",
        "IDLE+POWERING_DOWN",
        "IDLE+POWERED_DOWN",
        "IDLE+POWERING_UP",
        "IDLE+DRAIN",
        "DOWN*",
        "FAIL",
    ],
)
def test_nothing_comes_to_a_host_that_slurm_has_shut(state: str) -> None:
    """In full as `scontrol show node` writes it, or short as `sinfo` does."""
    assert shown(state) is Code.NODE_SHUT


def test_an_idle_host_is_open() -> None:
    """Or all the others would tell nothing."""
    assert shown("IDLE") is None
