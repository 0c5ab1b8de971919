"""What is asked directly before a stopped instance goes on, and what keeps it standing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from backfill.core.model import actions as act
from backfill.core.model.cluster import Job
from backfill.core.model.fleet import Instance
from backfill.core.model.lifecycle import HeldJob, JobPatience
from backfill.engine.execute.guest import in_guest
from backfill.engine.looking import Outside
from backfill.ports.errors import BusyError
from tests.unit.test_confirm import Clock
from tests.unit.test_stops import job


@dataclass
class Site:
    """Slurm, which still holds job 7, and a provider; what is thawed is noted."""

    done: list[str] = field(default_factory=list)

    def read_jobs(self, ids: Sequence[str]) -> dict[str, Job]:
        return {"7": job("7")}

    def vouch(self, node: str) -> None:
        """It may go on."""

    def thaw(self, host: str, name: str, *, shut: bool = False) -> None:
        self.done.append(name)

    def read(self, host: str, name: str) -> Instance | None:
        return None


class FencedSite(Site):
    """Its guests can be told what is stale before that runs."""

    def freeze(self, host: str, name: str) -> bool:
        return True

    def release(self, host: str, name: str, now_s: float, ended: Collection[int]) -> float:
        return 0.0


def thawed(site: Site, patience_s: float, left_s: float) -> list[str]:
    """Thaw `vn1`, whose job can stand still for `patience_s`, of which `left_s` is left."""
    clock = Clock()
    held = HeldJob("7", 0, patience=JobPatience(clock.now() + left_s - patience_s, patience_s))
    outside = Outside(cast(Any, site), {"bm1": cast(Any, site)}, cast(Any, clock))
    in_guest(outside, act.ThawInstance(subject="vn1", generation=1, reason="test", host="bm1", held=(held,)))
    return site.done


@pytest.mark.parametrize(("patience_s", "left_s"), [(600.0, 29.0), (20.0, 9.0)])
def test_a_patience_that_may_end_during_the_thaw_keeps_a_guest_without_fence(
    patience_s: float, left_s: float
) -> None:
    """Its CPUs run some time after the question, and nothing could end the copy before."""
    site = Site()
    words = f"vn1: not thawed: the patience of job 7 ends in {left_s:.0f} s"
    with pytest.raises(BusyError, match=words):
        thawed(site, patience_s, left_s)
    assert site.done == []
    assert thawed(FencedSite(), patience_s, left_s) == ["vn1"]


@pytest.mark.parametrize(("patience_s", "left_s"), [(600.0, 31.0), (20.0, 11.0)])
def test_a_patience_with_time_to_spare_lets_it_go_on(patience_s: float, left_s: float) -> None:
    """Of a short one, half is enough."""
    assert thawed(Site(), patience_s, left_s) == ["vn1"]
