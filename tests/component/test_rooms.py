"""Nodes that stand for those to come are looked after while the daemon runs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from backfill.config import Config, load
from backfill.ports.errors import UnreachableError
from backfill.ui.rooms import RoomWatch

POLICY = Path(__file__).parents[2] / "config/policy.minimal.yaml"


def test_they_are_looked_at_again_and_again_by_the_latest_policy(caplog: pytest.LogCaptureFixture) -> None:
    """A Slurm that does not answer for once ends nothing; a sentence is said once."""
    first, second = load(POLICY), load(POLICY)
    looked: list[Config] = []
    enough = threading.Event()

    def make(config: Config) -> list[str]:
        looked.append(config)
        if len(looked) == 2:
            raise UnreachableError("slurmctld", "no answer")
        if len(looked) > 4:
            enough.set()
        return ["they cannot be made"]

    watch = RoomWatch(first, make, every_s=0.001)
    watch.adopt(second)
    watch.start()
    assert enough.wait(30)
    watch.stop()
    assert all(config is second for config in looked)
    assert [record.message for record in caplog.records].count("they cannot be made") == 1


def test_a_defect_ends_no_looking(caplog: pytest.LogCaptureFixture) -> None:
    """No process can be made for once, by the policy file that has just come: both are looked after on."""
    first, second = load(POLICY), load(POLICY)
    looked: list[Config] = []
    enough = threading.Event()

    def make(config: Config) -> list[str]:
        looked.append(config)
        if len(looked) > 3:
            enough.set()
            return []
        raise BlockingIOError(11, "Resource temporarily unavailable")

    watch = RoomWatch(first, make, every_s=0.001)
    watch.adopt(second)
    watch.start()
    assert enough.wait(30)
    watch.stop()
    assert all(config is second for config in looked)
    assert "nodes for jobs to come could not be made: tried again in 0.001 s" in caplog.text
    assert "nodes for jobs to come are not looked at: tried again" in caplog.text


def test_a_policy_file_that_comes_while_slurm_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    def make(config: Config) -> list[str]:
        raise UnreachableError("slurmctld", "no answer")

    RoomWatch(load(POLICY), make).adopt(load(POLICY))
    assert "Slurm may refuse jobs while it has no node that could run them" in caplog.text
