"""The part of the instance provider's contract that is about jobs which may not run on after a stop."""

from __future__ import annotations

from typing import Protocol

import pytest

from backfill.ports.capabilities import GuestFence
from backfill.ports.errors import BusyError, NotFoundError, RefusedError
from tests.contract.instance_rig import Rig, born, known

_NOW_S = 1.8e9
_STEADY = 20  # looks; in less time a job that goes on has counted


class JobsRig(Rig, Protocol):
    """Beside what every contract needs, jobs in its guests."""

    def start_job(self, host: str, name: str, job: str) -> None:
        """Let processes of the job with this number begin to count in the guest, which has booted."""

    def progress(self, name: str, job: str) -> int:
        """Return how far the job has counted there."""


def at_work(rig: JobsRig, *jobs: str) -> tuple[GuestFence, str]:
    """An instance in which these jobs count; its provider and its host."""
    provider, host = rig.provider, born(rig)
    assert isinstance(provider, GuestFence)
    rig.booted("vn1")
    for job in jobs:
        rig.start_job(host, "vn1", job)
        counts(rig, job)
    return provider, host


def counts(rig: JobsRig, job: str) -> None:
    """Wait until the job has counted on."""
    before = rig.progress("vn1", job)
    rig.until(lambda: rig.progress("vn1", job) > before + 2)


def standing(rig: JobsRig, *jobs: str) -> list[int]:
    """How far these jobs have counted, when all that they said before has been heard."""
    seen: list[list[int]] = []

    def steady() -> bool:
        seen.append([rig.progress("vn1", job) for job in jobs])
        return len(seen) > _STEADY and all(one == seen[-1] for one in seen[-_STEADY:])

    rig.until(steady)
    return seen[-1]


class InstanceFenceContract:
    """Inherited beside `InstanceProviderContract`, which provides `rig`, where guests have a fence."""

    def test_jobs_that_were_frozen_stay_so_until_it_is_said_which_may_go_on(self, rig: Rig) -> None:
        """Through a stop and a start; twice is fine."""
        host = born(rig)
        provider = rig.provider
        assert isinstance(provider, GuestFence)
        rig.booted("vn1")
        assert not known(rig, host).frozen
        for ran in (True, False):
            assert provider.freeze(host, "vn1") is ran
            assert known(rig, host).frozen
        rig.provider.pause(host, "vn1")
        assert known(rig, host).frozen
        rig.provider.thaw(host, "vn1")
        assert rig.provider.observe(host).instances["vn1"].frozen
        provider.release(host, "vn1", _NOW_S, ())
        assert not known(rig, host).frozen
        assert provider.freeze(host, "vn1")
        provider.release(host, "vn1", _NOW_S, ())
        # The clock is right already, but for what has passed since.
        assert abs(provider.release(host, "vn1", _NOW_S, ())) < _NOW_S / 2
        assert not known(rig, host).frozen

    def test_where_nothing_was_frozen_all_go_on(self, rig: Rig) -> None:
        """There is nothing to do."""
        host = born(rig)
        provider = rig.provider
        assert isinstance(provider, GuestFence)
        rig.booted("vn1")
        provider.release(host, "vn1", 1_700_000_000.0, ())
        assert not known(rig, host).frozen

    def test_only_a_running_guest_can_freeze_anything(self, rig: Rig) -> None:
        """One that is paused, or not there, is an error."""
        host = born(rig)
        provider = rig.provider
        assert isinstance(provider, GuestFence)
        with pytest.raises(NotFoundError, match="vn9"):
            provider.freeze(host, "vn9")
        rig.provider.pause(host, "vn1")
        with pytest.raises(BusyError):
            provider.freeze(host, "vn1")
        with pytest.raises(BusyError):
            provider.release(host, "vn1", 1_700_000_000.0, ())

    def test_each_job_is_judged_by_itself(self, rig: JobsRig) -> None:
        """Who is to end never runs again, beside one that goes on."""
        provider, host = at_work(rig, "41", "42")
        provider.freeze(host, "vn1")
        stood = standing(rig, "41", "42")
        rig.provider.pause(host, "vn1")
        rig.provider.thaw(host, "vn1")
        assert standing(rig, "41", "42") == stood
        provider.release(host, "vn1", _NOW_S, (42, 99))
        counts(rig, "41")
        assert standing(rig, "42") == stood[1:]

    def test_jobs_go_on_when_nobody_is_to_end(self, rig: JobsRig) -> None:
        """Frozen before the stop, or not."""
        provider, host = at_work(rig, "41")
        for frozen in (True, False):
            if frozen:
                provider.freeze(host, "vn1")
            rig.provider.pause(host, "vn1")
            rig.provider.thaw(host, "vn1")
            provider.release(host, "vn1", _NOW_S, ())
            counts(rig, "41")

    def test_what_would_have_to_run_before_it_ends_is_refused(self, rig: JobsRig) -> None:
        """Nothing was frozen before the stop; nothing is done."""
        provider, host = at_work(rig, "41")
        rig.provider.pause(host, "vn1")
        rig.provider.thaw(host, "vn1")
        with pytest.raises(RefusedError, match="vn1"):
            provider.release(host, "vn1", _NOW_S, (41,))
        counts(rig, "41")

    def test_what_was_frozen_is_so_on_disk_and_back(self, rig: JobsRig) -> None:
        """It is known of the instance wherever it is."""
        provider, host = at_work(rig, "41")
        provider.freeze(host, "vn1")
        stood = standing(rig, "41")
        rig.provider.suspend(host, "vn1")
        assert known(rig, host).frozen
        rig.provider.restore(host, "vn1")
        rig.provider.thaw(host, "vn1")
        assert known(rig, host).frozen
        assert standing(rig, "41") == stood
        provider.release(host, "vn1", _NOW_S, ())
        counts(rig, "41")
