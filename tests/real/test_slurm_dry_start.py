"""A dry slurmctld beside a living one that knows its clients by Slurm's own keys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from backfill.drivers.slurm.conf.dry import DryVerdict, dry_start
from backfill.lab.cluster import Lab
from backfill.lab.layout import ROOT_MOUNT
from tests.real.conf_lab import conf_lab
from tests.real.slurm_lab import commands_of

pytestmark = pytest.mark.real


@pytest.fixture(scope="module", params=["24.11", pytest.param("26.05", marks=pytest.mark.gate)])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    with conf_lab("dry", release=request.param, auth="slurm") as made:
        yield made


def test_the_living_controller_keeps_its_socket(lab: Lab) -> None:
    """By it all commands on its machine are known; each slurmctld puts its own in that place."""
    commands = commands_of(lab)
    within = replace(commands, prefix=(*commands.prefix, "chroot", ROOT_MOUNT), bin_dir=None)
    managed = lab.slurm_conf.with_name("backfill.conf")
    for _ in range(2):
        verdict = dry_start(within, lab.slurm_conf, managed, managed.read_text(), lab.dir / "scratch")
        assert verdict == DryVerdict(True)
        assert "JOBID" in commands.run(["squeue"])
