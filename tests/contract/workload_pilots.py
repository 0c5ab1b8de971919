"""The part of the WorkloadManager contract that is about pilots."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backfill.core.model.cluster import ENDED, JobState
from backfill.core.model.pilots import mark_of, name_of, slot_of
from backfill.ports.capabilities import PilotSender
from backfill.ports.errors import RefusedError
from backfill.ports.workload import PilotSpec
from tests.contract.workload_rig import REASON, Rig, job


def pilot(slot: int, user: str, partition: str, script: str) -> PilotSpec:
    """A pilot for this slot as the engine would ask for it."""
    return PilotSpec(name_of(slot), mark_of(slot), user, partition, script, "/tmp", 1, 3600.0)


def sender_of(rig: Rig) -> PilotSender:
    """Every manager of ours sends pilots."""
    assert isinstance(rig.manager, PilotSender)
    return rig.manager


class PilotContract:
    """Pilots: sent once, known again by their mark, and withdrawn only before they begin."""

    def test_a_pilot_is_known_again(self, rig: Rig) -> None:
        """Its slot, its user, its time limit; and asked for again it is still the same."""
        sender, spec = sender_of(rig), rig.pilot(3)
        sent = sender.submit_pilot(spec)
        seen = job(rig, sent)
        assert (slot_of(seen.name, seen.comment), seen.user, seen.time_limit_s) == (
            3,
            spec.user,
            spec.limit_s,
        )
        assert sender.submit_pilot(spec) == sent
        rig.until(lambda: job(rig, sent).state is JobState.RUNNING)
        assert sender.submit_pilot(spec) == sent
        assert sender.submit_pilot(rig.pilot(4)) != sent

    def test_after_its_end_the_slot_is_free(self, rig: Rig) -> None:
        """The next one is another job."""
        sender = sender_of(rig)
        sent = sender.submit_pilot(rig.pilot(3))
        rig.manager.cancel_job(sent)
        rig.until(lambda: job(rig, sent).state in ENDED and not job(rig, sent).flags)
        assert sender.submit_pilot(rig.pilot(3)) != sent

    def test_only_what_waits_is_withdrawn(self, rig: Rig) -> None:
        """One that has begun goes on; one that waits is gone; and both may be asked for again."""
        sender = sender_of(rig)
        begun = sender.submit_pilot(rig.pilot(1))
        rig.until(lambda: job(rig, begun).state is JobState.RUNNING)
        first, second = rig.hosts
        with rig.drained_by_admin(first, REASON[1:]), rig.drained_by_admin(second, REASON[1:]):
            waits = sender.submit_pilot(rig.pilot(2))
            for _ in range(2):
                sender.withdraw_pilot(begun)
                sender.withdraw_pilot(waits)
            rig.until(lambda: job(rig, waits).state is JobState.CANCELLED)
            assert job(rig, begun).state is JobState.RUNNING

    @pytest.mark.parametrize("change", [{"user": "root"}, {"partition": "nosuchpartition"}])
    def test_what_is_refused_is_not_there(self, rig: Rig, change: dict[str, str]) -> None:
        """Root, and a partition that does not exist."""
        with pytest.raises(RefusedError):
            sender_of(rig).submit_pilot(replace(rig.pilot(1), **change))  # type: ignore[arg-type]  # texts
        jobs = rig.manager.observe().jobs.values()
        assert not any(
            slot_of(one.name, one.comment) == 1 and (one.state not in ENDED or one.holds_nodes)
            for one in jobs
        )
