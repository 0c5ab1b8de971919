"""Reservations that keep a node for those who alone may have it: a node's own, and no other's."""

from __future__ import annotations

import pytest

from backfill.drivers.slurm.access import Access, AccessRules
from backfill.drivers.slurm.job_pins import release_node


class Tools:
    """Slurm with reservations, as scontrol prints them."""

    def __init__(self, **nodes_of: str) -> None:
        self.there = {name.replace("_", "-"): nodes for name, nodes in nodes_of.items()}
        self.deleted: list[str] = []

    def scontrol(self, subject: str, *argv: str) -> None:
        if argv[0] == "delete":
            self.deleted.append(argv[1].partition("=")[2])

    def reservation_lines(self) -> list[str]:
        head = "StartTime=2026-11-28T10:00:00 EndTime=2027-11-28T10:00:00 Duration=365-00:00:00"
        return [
            f"ReservationName={name} {head} Nodes={nodes} NodeCnt=1 CoreCnt=2 Features=(null) Users=ada"
            for name, nodes in self.there.items()
        ]

    def version(self) -> tuple[int, int]:
        return (24, 11)


RULES = AccessRules((Access("gpu", users=("ada",)),))


@pytest.mark.parametrize("gone", ["(null)", ""])
def test_a_name_that_ends_like_another_ones_is_another_nodes(gone: str) -> None:
    """vn1 is released: big-vn1 stays kept. Where Slurm has forgotten the node, its name must do."""
    tools = Tools(
        backfill_only_gpu_vn1="vn1",
        backfill_only_gpu_vn1_accounts=gone,
        backfill_only_gpu_big_vn1="big-vn1",
        backfill_only_old_vn1="vn1",
        theirs_vn1="vn1",
    )
    RULES.release(tools, "vn1")
    assert tools.deleted == [
        "backfill-only-gpu-vn1",
        "backfill-only-gpu-vn1-accounts",
        "backfill-only-old-vn1",
    ]


def test_what_a_node_is_kept_by_now_stays() -> None:
    tools = Tools(
        backfill_only_gpu_vn1="vn1", backfill_only_old_vn1="vn1", backfill_only_gpu_big_vn1="big-vn1"
    )
    RULES.keep(tools, "vn1", ("backfill", "gpu"))
    assert tools.deleted == ["backfill-only-old-vn1"]


def test_a_jobs_pin_is_found_by_its_nodes() -> None:
    tools = Tools(backfill_job_7="vn[1-2]", backfill_job_8="big-vn1")
    assert release_node(tools, "big-vn1")
    assert tools.deleted == ["backfill-job-8"]
