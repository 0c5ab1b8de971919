"""Pilots on demand, on a real Slurm and for a real pool: sent when wanted, once, and accounted for."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backfill.lab.layout import user_ids
from backfill.lab.spec import CONDOR_PORT, JOB_USER, POOL, SLURM_USER, host_address
from tests.real.condor_rig import PoolRig, pool_lab
from tests.real.daemon_rig import PAUSE, REQUEUE

pytestmark = [pytest.mark.real, pytest.mark.soak]

ROOT = Path(__file__).parents[2]
MOST = 2


@pytest.fixture(scope="module")
def bed() -> Iterator[PoolRig]:
    with pool_lab("supply") as made:
        yield made


@pytest.fixture
def pool(bed: PoolRig) -> Iterator[PoolRig]:
    bed.cluster.begin()
    yield bed
    bed.clear()
    bed.cluster.settle()


def policy(pool: PoolRig, **changes: Any) -> dict[str, Any]:
    """A policy that sends pilots, to be started with."""
    script = {"user": JOB_USER, "partition": "htc", "script": str(pool.script()), "directory": "/tmp"}
    supply = {"most": MOST, **script, "options": ["--output=/dev/null"], "seen_after_s": 20, "keep_s": 20}
    return {
        "supply": supply,
        "limits": {"max_instances": MOST, "max_per_host": 1, "destroys_per_min": 60},
        "ladder": [PAUSE, REQUEUE],
        **changes,
    }


def queue(pool: PoolRig) -> list[list[str]]:
    """Number, name and state of each pilot that Slurm shows as alive."""
    lines = pool.cluster.ctl("squeue", "-h", "-o", "%i %j %T").splitlines()
    return [words for line in lines if (words := line.split())[1].startswith("backfill-pilot-")]


def said(pool: PoolRig) -> str:
    """What the daemon says of pilots that it does not send."""
    refusals = pool.cluster.ask("status")["refusals"]
    return "; ".join(one["reason"] for one in refusals if one["what"] == "a pilot")


def done(pool: PoolRig) -> int:
    """How many payloads are done in all by the daemon's book."""
    return sum(day["done"] for day in pool.cluster.ask("status")["payloads"]["days"])


def test_payloads_are_done_by_pilots_that_the_daemon_has_sent(pool: PoolRig) -> None:
    """As an ordinary user's jobs, never more than the cap; what they brought is in its book."""
    rig = pool.cluster
    rig.restart(**policy(pool))
    rig.until(lambda: "no payload waits in the pool" in said(pool), what="that nothing waits")
    assert queue(pool) == []
    before = done(pool)
    payloads = [pool.payload(20, 0.2) for _ in range(4)]
    rig.until(lambda: len(queue(pool)) == MOST, what="pilots")
    assert rig.show(queue(pool)[0][0])["UserId"].startswith(f"{JOB_USER}(")
    for _, payload in payloads:
        assert pool.ended(payload)["NumJobStarts"] == 1
    assert len(queue(pool)) <= MOST
    rig.until(lambda: done(pool) == before + 4, what="four payloads in the daemon's book")


def test_a_pool_that_is_gone_means_no_new_pilots(pool: PoolRig) -> None:
    """It is said in one sentence; when the pool is back, what waits is done."""
    rig = pool.cluster
    rig.restart(**policy(pool))
    rig.until(lambda: not said(pool) or "no payload" in said(pool), what="the pool's first word")
    pool.lab.stop(f"condor@{POOL}")
    rig.until(lambda: "the pool does not answer: " in said(pool), what="that the pool is silent")
    assert "nothing answers at 10.77.0.2:9618" in said(pool)
    rig.ctl("scancel", "-u", JOB_USER)
    rig.until(lambda: queue(pool) == [], what="the end of the pilots")
    pool.lab.start(f"condor@{POOL}")
    rig.until(lambda: "no payload waits in the pool" in said(pool), what="the pool's word again")
    assert queue(pool) == []
    _, payload = pool.payload(20, 0.2)
    assert pool.ended(payload)["ExitCode"] == 0


@pytest.mark.parametrize("crash", ["after intent SubmitPilot", "before outcome SubmitPilot"])
def test_a_daemon_that_dies_while_it_sends_sends_none_twice(pool: PoolRig, crash: str) -> None:
    """Before or after Slurm had the pilot: the next daemon sees in Slurm which slots are taken."""
    rig = pool.cluster
    if not rig.dead:
        rig.stop()
    rig.start(crash=crash, **policy(pool))
    _, payload = pool.payload(20, 0.2)
    rig.crashed()
    rig.start(**policy(pool))
    assert pool.ended(payload)["NumJobStarts"] == 1
    names = [name for _, name, _ in queue(pool)]
    assert len(names) == len(set(names)) <= MOST


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
