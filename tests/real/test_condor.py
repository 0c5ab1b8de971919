"""A real pool's pilot, pushed aside: its payload goes on, and the pool books it once."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill.lab.layout import user_ids
from backfill.lab.spec import CONDOR_PORT, POOL, SLURM_USER, host_address
from tests.real.condor_rig import PoolRig, pool_lab
from tests.real.daemon_rig import PAUSE, REQUEUE

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pool() -> Iterator[PoolRig]:
    with pool_lab("pilots", hosts=1) as made:
        made.cluster.begin()
        made.cluster.start(ladder=[PAUSE, REQUEUE], limits={"max_instances": 1})
        yield made
        made.cluster.settle()


def test_a_payload_survives_a_short_pause_of_its_pilot(pool: PoolRig) -> None:
    """The pilot is an ordinary user's batch job; nobody in the pool notices that it stood still."""
    rig = pool.cluster
    name, payload = pool.payload(60, 0.2)
    pilot = pool.pilot()
    pool.working(name)
    _, host = rig.where(pilot)
    high = rig.high(host)
    began_s = rig.started(high)
    rig.until(lambda: rig.state(pilot) == "SUSPENDED", what="the pilot suspended")
    rig.assert_silent(name, began_s, rig.release(high))
    booked = pool.ended(payload)
    assert (booked["ExitCode"], booked["NumJobStarts"], booked["NumShadowStarts"]) == (0, 1, 1)
    assert [line.split()[4] for line in rig.tally(name)] == [*map(str, range(1, 61)), "end"]
    assert rig.show(pilot)["Restarts"] == "0"


# Only what this checkout consists of may be closed to that user: who reads a token is not changed by it.
_SEEING = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")


def asked_as_slurm(pool: PoolRig, owner: int, mode: int, *argv: str, after_s: float = 0.0) -> dict[str, str]:
    """SlurmUser asks the pool with a token that belongs to this user, made with these options so long ago."""
    token = pool.pool("condor_token_create", "-identity", "backfill@pool", "-authz", "READ", *argv)
    place = pool.lab.shared / "tokens"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    (place / "pool").write_text(token)
    os.chown(place / "pool", owner, owner)
    (place / "pool").chmod(mode)
    time.sleep(after_s)  # nothing is awaited here: this is its age
    slurm = user_ids(pool.lab.dir / "etc", SLURM_USER)[0]
    who = ("setpriv", f"--reuid={slurm}", f"--regid={slurm}", "--clear-groups", *_SEEING)
    ask = (sys.executable, "-m", "tests.real.ask_pool", str(place), f"{host_address(POOL)}:{CONDOR_PORT}")
    done = pool.lab.run("ctl", ["env", "-C", str(ROOT), *who, *ask])
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_slurm_user_asks_the_pool_with_a_token_of_its_own(pool: PoolRig) -> None:
    """Nothing else of the pool is needed; HTCondor takes no other token, and it is said which and why."""
    slurm = user_ids(pool.lab.dir / "etc", SLURM_USER)[0]
    for mode in (0o600, 0o400):
        assert asked_as_slurm(pool, slurm, mode) == {"tokens": "good", "pool": "0 waiting"}
    for owner, mode, words in (
        (slurm, 0o644, "its mode is 0644, by which others may get at it; chown slurm and chmod 600"),
        (0, 0o600, "it belongs to uid 0, not to slurm, who asks; chown slurm and chmod 600"),
    ):
        found = asked_as_slurm(pool, owner, mode)
        assert words in found["tokens"]
        assert found["pool"] == found["tokens"]
    assert "expired at" in asked_as_slurm(pool, slurm, 0o600, "-lifetime", "1", after_s=2.0)["pool"]
