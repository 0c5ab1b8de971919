"""Slurm gets a new release while work of ours stands still and runs: all of it goes on."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from backfill.lab import roots
from backfill.lab.spec import LabError
from tests.real.daemon_rig import PAUSE, REQUEUE, SUSPEND, DaemonRig, daemon_lab

pytestmark = [pytest.mark.real, pytest.mark.soak]

OLDER, NEWER = "24.11", "26.05"  # three releases apart: as far as Slurm itself allows


@pytest.fixture(params=[PAUSE, SUSPEND], ids=["pause", "suspend"])
def bed(request: pytest.FixtureRequest) -> Iterator[DaemonRig]:
    """A lab for each, because there is no way back from a newer slurmctld."""
    roots.build(NEWER)
    with daemon_lab("upgrade-slurm", slurm_version=OLDER) as made:
        made.restart(ladder=[request.param, REQUEUE], limits={"max_instances": 2, "max_per_host": 1})
        yield made


def test_work_outlives_the_controllers_and_the_hosts_new_release(rig: DaemonRig) -> None:
    """In Slurm's order, the daemon running all the while; guests keep theirs until they are made anew."""
    still, runs = rig.low(), rig.low()
    name, host = rig.where(still)
    high = rig.high(host)
    rig.becomes(name, "parked")
    rig.lab.upgrade("slurmctld", NEWER)
    assert NEWER in rig.ctl("sinfo", "--version")
    rig.until(lambda: NEWER in rig.ctl("scontrol", "show", "config"), what="the new slurmctld")
    assert rig.state(still) == "SUSPENDED"
    assert rig.nodes()[name]["phase"] == "parked"
    rig.counting(runs)
    for machine in rig.lab.hosts:
        rig.lab.upgrade(f"slurmd@{machine}", NEWER)
    rig.release(high)
    rig.counting(still)
    rig.counting(runs)
    high = rig.high(rig.where(runs)[1])
    rig.becomes(rig.where(runs)[0], "parked")
    rig.release(high)
    rig.finish(still, runs)
    assert {rig.show(job)["Restarts"] for job in (still, runs)} == {"0"}
    assert not rig.hook_complaints()


def test_a_step_that_slurm_refuses_harms_nobody(tmp_path: Path) -> None:
    """slurmctld 24.11 does not start on the state of 22.05, and spoils it; with the copy all goes on."""
    with daemon_lab("refused") as rig:
        rig.begin()
        rig.start(ladder=[PAUSE, REQUEUE], limits={"max_instances": 1})
        low = rig.low()
        name, host = rig.where(low)
        high = rig.high(host)
        rig.becomes(name, "parked")
        rig.until(lambda: rig.state(low) == "SUSPENDED", what="its suspend in Slurm")
        state = rig.lab.dir / "machines/ctl/spool/slurmctld"
        rig.lab.stop("slurmctld")
        subprocess.run(["cp", "-a", state, tmp_path / "kept"], check=True)
        for release, words in ((OLDER, "incompatible version"), (roots.INSTALLED, "CLUSTER NAME MISMATCH")):
            with suppress(LabError):  # it may listen for a moment before it ends
                rig.lab.upgrade("slurmctld", release)
            rig.until(partial(_ended, rig, words), what=f"slurmctld {release} ending with {words}")
        subprocess.run(["cp", "-a", f"{tmp_path}/kept/.", state], check=True)
        rig.lab.start("slurmctld")
        assert rig.state(low) == "SUSPENDED"
        rig.release(high)
        rig.finish(low)
        assert rig.show(low)["Restarts"] == "0"
        rig.settle()


def _ended(rig: DaemonRig, words: str) -> bool:
    log = (rig.lab.dir / "machines/ctl/log/slurm/slurmctld.log").read_text()
    return words in log and not rig.lab.status().machines["ctl"].services["slurmctld"]
