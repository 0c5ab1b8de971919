"""A hundred unique instances of one master on one real host: all at work at once, all of them or none."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from backfill.core.model.fleet import FleetState
from tests.real.daemon_rig import PAUSE, REQUEUE, DaemonRig, daemon_lab
from tests.real.jobs_rig import ENDS

pytestmark = [pytest.mark.real, pytest.mark.soak]

_MANY = 100
# On two cores more at a time only wait for each other.
_AT_ONCE = 3
# Much is begun, so that what is to be given back is a crowd; and much is still to come.
_HALF = _MANY // 2
# Each takes seconds of two emulated cores.
_ALL_S = 1800.0
_CROWD = 10
# A guest starved of processors may miss a signal.
_AGAIN_S = 60.0
_POLICY: dict[str, Any] = {
    "instances": {"names": f"vn[1-{_MANY}]", "flavour": {"cpus": 1, "memory_mb": 192}},
    "placement": {"cpu_overcommit": float(_MANY)},
    "cloning": {"at_once_per_host": _AT_ONCE},
    # A hundred emulated guests that wake at once leave each of them next to nothing of two cores.
    "readiness": {"clock_offset_s": 30, "clock_within_s": 600, "munge_within_s": 600},
    "libvirt": {"limits": {"agent_s": 120}},
    "comeback": {"within_s": _ALL_S},
    "ladder": [PAUSE, REQUEUE],
    "limits": {
        "max_instances": _MANY,
        "max_per_host": _MANY,
        "boots_at_once": _AT_ONCE,
        "creates_per_hour": 4 * _MANY,
        "removals_at_once": 8,
    },
}
_WHO = (
    "cat /proc/sys/kernel/hostname /etc/machine-id /proc/sys/kernel/random/boot_id"
    " /sys/class/net/eth0/address; ip -4 -o addr show dev eth0 | awk '{print $4}';"
    " head -c 16 /dev/urandom | md5sum"
)


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("hundred", hosts=1) as rig:
        yield rig


def order(rig: DaemonRig) -> str:
    """Order all of them as instant clones; returns the fleet's id."""
    return str(rig.ask("fleet", n=_MANY, method="instant")["id"])


def fleet(rig: DaemonRig, identity: str) -> dict[str, Any]:
    (found,) = (one for one in rig.ask("fleets")["fleets"] if one["id"] == identity)
    return dict(found)


def settled(rig: DaemonRig, identity: str) -> dict[str, Any]:
    """Wait until it is whole or given up."""

    def over() -> dict[str, Any]:
        found = fleet(rig, identity)
        return found if found["state"] in (FleetState.READY, FleetState.FAILED) else {}

    return rig.until(over, _ALL_S, f"{identity}, whole or given up")


def nothing_is_left(rig: DaemonRig, *failed: str) -> None:
    """No instance, no node in Slurm, no managed node but the names that are known to have failed."""
    (host,) = rig.lab.hosts
    rig.until(lambda: rig.nodes().keys() == set(failed), _ALL_S, "the end of all members")
    assert {node["phase"] for node in rig.nodes().values()} <= {"failed"}
    assert rig.domains() == {host: []}
    assert rig.node_states().keys() == {host}


def states(rig: DaemonRig) -> set[str]:
    """The states of all instances, as the hypervisor tells them."""
    (host,) = rig.lab.hosts
    lines = rig.virsh(host, "list", "--all").splitlines()
    return {" ".join(line.split()[2:]) for line in lines}


def speaking(rig: DaemonRig, since_s: float = 0.0) -> set[str]:
    """The jobs that have said a word since then."""
    return {line.split()[2] for line in rig.tally() if float(line.split()[0]) > since_s}


def heard(rig: DaemonRig, jobs: set[str], since_s: float = 0.0) -> bool:
    """Return True if each of these jobs has said a word since then."""
    return speaking(rig, since_s) >= jobs


def places(rig: DaemonRig) -> set[tuple[str, str]]:
    """All jobs that have not ended, with their states."""
    lines = (line.split() for line in rig.ctl("squeue", "-h", "-o", "%i %T").splitlines())
    return {(job, state) for job, state in lines}


def at_work(rig: DaemonRig) -> set[str]:
    """Start a job for each of them; their ids.

    A few at a time: Slurm requeues what a slurmd begins too late, as it does when all begin at once here.
    """
    jobs = set[str]()
    while len(jobs) < _MANY:
        crowd = {rig.low(start=False, period_s=5.0) for _ in range(_CROWD)}
        rig.until(partial(heard, rig, crowd), _ALL_S, f"words of {_CROWD} jobs")
        jobs |= crowd
    return jobs


def ends(rig: DaemonRig, jobs: set[str]) -> dict[str, str]:
    """Tell all jobs that it is enough; the states that they end in.

    Slurm forgets each MinJobAge after its end, which can be before the last one has ended.
    """
    ended: dict[str, str] = {}
    told_s = -_AGAIN_S

    def over() -> bool:
        nonlocal told_s
        lines = rig.ctl("squeue", "-h", "-t", "all", "-o", "%i %T").splitlines()
        ended.update((job, state) for job, state in map(str.split, lines) if state in ENDS and job in jobs)
        left = jobs - ended.keys()
        if left and time.monotonic() >= told_s + _AGAIN_S:
            rig.ctl("scancel", "--batch", "--signal=USR1", *left, check=False)
            told_s = time.monotonic()
        return not left

    rig.until(over, _ALL_S, "the end of all jobs")
    return ended


def test_a_hundred_work_at_once_and_are_paused_for_one_job(rig: DaemonRig) -> None:
    """No two are alike, each runs a job, all stand still together, and each job is whole at its end."""
    (host,) = rig.lab.hosts
    rig.restart(**_POLICY)
    identity = order(rig)
    made = settled(rig, identity)
    assert made["state"] == FleetState.READY, made["reason"]
    names = rig.domains()[host]
    assert sorted(names) == sorted(f"vn{number + 1}" for number in range(_MANY))
    who = [rig.out_of_guest(host, name, _WHO).split("\n") for name in names]
    for answers in zip(*(lines[:6] for lines in who), strict=True):
        assert len(set(answers)) == _MANY, answers
    assert [lines[0] for lines in who] == names

    jobs = at_work(rig)
    assert places(rig) == {(job, "RUNNING") for job in jobs}
    assert set(rig.ctl("squeue", "-h", "-t", "R", "-o", "%N").split()) == set(names)

    high = rig.high(host)
    assert states(rig) == {"paused"}
    at_s = rig.started(high)
    released_s = rig.release(high)
    for job in jobs:
        rig.assert_silent(job, at_s, released_s)
    rig.until(lambda: states(rig) == {"running"}, _ALL_S, "all of them running again")
    rig.until(lambda: {n["phase"] for n in rig.nodes().values()} == {"ready"}, _ALL_S, "all of them ready")
    rig.until(lambda: heard(rig, jobs, released_s), _ALL_S, "words of all jobs")
    assert ends(rig, jobs) == dict.fromkeys(jobs, "COMPLETED")
    assert {line.split()[2] for line in rig.tally() if line.split()[4] == "end"} == jobs
    runs = Counter(job for job, _ in {tuple(line.split()[2:4]) for line in rig.tally()})
    assert runs == Counter(jobs), "each job has said all its words in one run"

    rig.ask("fleet", delete=identity)
    nothing_is_left(rig)


def test_one_that_is_lost_leaves_none_of_the_hundred(rig: DaemonRig) -> None:
    """Half of them are there when an emulator is killed that may not be tried again."""
    (host,) = rig.lab.hosts
    rig.restart(**_POLICY, scale={"give_up_after": 1})
    identity = order(rig)

    def starting() -> str:
        """One that runs and is not ready yet, once half of them run."""
        there = rig.virsh(host, "list", "--name").split()
        new = [node["name"] for node in rig.nodes().values() if node["phase"] == "booting"]
        return next((name for name in new if name in there), "") if len(there) >= _HALF else ""

    victim = rig.until(starting, _ALL_S, "half of them, and one that starts")
    kill = f"kill -KILL $(cat /run/libvirt/qemu/{victim}.pid)"
    rig.lab.run(host, ["sh", "-c", kill], check=True)
    failed = settled(rig, identity)
    assert failed["state"] == FleetState.FAILED
    assert victim in failed["reason"]
    nothing_is_left(rig, victim)
