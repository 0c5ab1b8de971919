"""Own hosts and a cloud in one policy: work that is pushed off a host goes on in the cloud."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from backfill.lab.cloud.handle import CloudHandle
from tests.real.attacker import found_in, loot
from tests.real.burst_rig import CLOUD, in_the_cloud, lay_cable
from tests.real.cloud_rig import cloud_with_guests
from tests.real.daemon_rig import PAUSE, REQUEUE, DaemonRig, daemon_lab
from tests.real.openstack_rig import connect

pytestmark = [pytest.mark.real, pytest.mark.soak]
LIMIT_S = 300.0


@pytest.fixture(scope="module")
def cloud() -> CloudHandle:
    return cloud_with_guests()


@pytest.fixture(scope="module")
def bed(cloud: CloudHandle) -> Iterator[DaemonRig]:
    with daemon_lab("burst", hosts=1) as rig:
        lay_cable(rig.lab, cloud)
        yield rig
        empty(rig, cloud)  # what ends the rig knows of no cloud


def both(rig: DaemonRig, cloud: CloudHandle) -> dict[str, Any]:
    """One host of our own and one project, with room for one instance each."""
    return {
        **in_the_cloud(rig.lab, cloud),
        "ladder": [{**PAUSE, "for_s": 1}, REQUEUE],
        "limits": {"max_instances": 2, "max_per_host": 1},
    }


def empty(rig: DaemonRig, cloud: CloudHandle) -> None:
    """Let idle instances go from both."""
    rig.restart(**both(rig, cloud), scale={"idle_s": 0})
    rig.until(lambda: not rig.nodes(), LIMIT_S, "the removal of all instances")


def test_work_moves_from_a_host_into_the_cloud(rig: DaemonRig, cloud: CloudHandle) -> None:
    """Burst while the host is taken, harvest when it is idle, and when it is wanted back: over."""
    rig.restart(**both(rig, cloud))
    blocker = rig.high("bm1")
    first = rig.low(start=False)
    rig.counting(first, limit_s=LIMIT_S)
    assert rig.where(first)[1] == "east"
    rig.release(blocker)
    second = rig.low(start=False)
    rig.counting(second, limit_s=LIMIT_S)
    assert rig.where(second)[1] == "bm1"

    high = rig.high("bm1")
    rig.until(lambda: rig.show(second)["Restarts"] == "1", LIMIT_S, "the requeue of the second")
    rig.counting(first)  # nobody has touched it
    rig.finish(first)
    rig.until(lambda: rig.state(second) == "RUNNING", LIMIT_S, "the second job in the cloud")
    assert rig.where(second)[1] == "east"
    rig.counting(second, limit_s=LIMIT_S)
    assert rig.state(high) == "RUNNING"
    rig.release(high)
    rig.finish(second)
    assert rig.show(first)["Restarts"] == "0"


def test_a_job_has_servers_of_its_own_in_the_cloud(rig: DaemonRig, cloud: CloudHandle) -> None:
    """Two in its size, which know each other by name and say whose they are; nothing of them stays."""
    empty(rig, cloud)  # what idles keeps its room for `scale.idle_s`
    known = both(rig, cloud)
    known["openstack"]["flavours"] = ["tiny", "small"]
    own = {"enabled": True, "networks": [{"name": "wire", "cloud": "nodes"}]}
    rig.restart(**known | {"limits": {"max_instances": 2, "max_per_host": 2}, "own_machines": own})
    hosts = "for n in $(scontrol show hostnames); do getent hosts $n; done"
    says = f'scontrol update JobId=$SLURM_JOB_ID Comment="$({hosts} | tr -s " \\n" ,)"; sleep 3600'
    asks = "--comment=backfill-vm:cpus=1,mem=384,network=wire"
    job = rig.submit("-p", "htc", "-N", "2", "--ntasks-per-node=1", asks, "--wrap", says)
    rig.until(lambda: rig.show(job)["Comment"].startswith("10."), LIMIT_S, "the addresses of its servers")
    names = rig.ctl("scontrol", "show", "hostnames", rig.show(job)["NodeList"]).split()
    pairs = [f"{rig.nodes()[name]['address'].split('/')[0]},{name}" for name in names]
    assert rig.show(job)["Comment"].strip(",") == ",".join(pairs)
    with cloud.network():
        servers = list(connect(cloud.clouds_yaml, "east").compute.servers())
    notes = [(s.name, s.metadata["backfill_job"], s.metadata["backfill_user"]) for s in servers]
    assert sorted(notes) == [(name, job, "ada") for name in sorted(names)]
    assert {s.flavor["original_name"] for s in servers} == {"small"}
    rig.cancel(job)
    rig.until(lambda: not rig.nodes(), LIMIT_S, "the end of its servers")


def test_a_job_in_the_cloud_finds_no_key(rig: DaemonRig, cloud: CloudHandle) -> None:
    """Neither in its guest nor at Nova's metadata address, which it may ask what it likes."""
    rig.restart(**both(rig, cloud))
    blocker = rig.high("bm1")
    low = rig.low(start=False)
    rig.counting(low, limit_s=LIMIT_S)
    node, host = rig.where(low)
    assert host == "east"
    rig.finish(low)
    found = loot(rig, node, metadata=CLOUD)
    rig.release(blocker)
    # It was answered: this is the server's user data, and its metadata with our notes.
    assert b"#cloud-config" in found
    assert b"backfill_cluster" in found
    assert b"backfill_awaits_key" not in found
    assert b"cat: /etc/munge/munge.key: Permission denied" in found
    assert b"cat: /dev/vda: Permission denied" in found
    assert b"NODE_NAME=" in found  # it did read the files that are for everybody
    assert b"SLURM_JOB_ID=" in found
    assert found_in(found, rig.lab.munge_key.read_bytes()) == []


def test_nothing_is_left_in_the_cloud(rig: DaemonRig, cloud: CloudHandle) -> None:
    """Idle instances go from both; in the project neither a server nor a port stays."""
    empty(rig, cloud)
    with cloud.network():
        east = connect(cloud.clouds_yaml, "east")
        assert list(east.compute.servers()) == []
        assert list(east.network.ports()) == []
