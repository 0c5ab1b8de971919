"""MPI jobs over virtual nodes, the long ones: put back after a host was lost, and eight ranks."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.real.daemon_rig import PAUSE, REQUEUE, DaemonRig, daemon_lab
from tests.real.mpi_rig import MPI, RingJob

pytestmark = [pytest.mark.real, pytest.mark.soak]
# The guests' host is dead for as long as it takes a person to say so: nobody gives nodes up meanwhile.
_SURE = {"liveness": {"down_after_s": 1800}}


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("mpisoak", mpi=True, hosts=3, cpus=4) as rig:
        yield rig


def test_a_lost_hosts_job_goes_on_elsewhere_from_one_moment_of_all_ranks(rig: DaemonRig) -> None:
    """Two ranks are kept, work on, and one host dies: both go on from there, and every sum is right."""
    rig.restart(ladder=[PAUSE, REQUEUE], **MPI, **_SURE)
    job = RingJob(rig, 2)
    at = job.going()
    identity = kept(rig, job)
    later = job.going(more=100)
    (lost, alive), (name, _) = job.hosts(), job.nodes()
    assert lost != alive
    dies(rig, lost, name)
    rig.backfill("evict", lost, "--off", "--reason", "its board is burnt")
    rig.until(lambda: rig.nodes()[name]["host"] not in ("", lost), what="another host for the lost rank")
    rig.becomes(name, "ready")
    again = job.going()
    assert at < again < later, "it goes on from the checkpoint, not from the beginning or from where it was"
    assert rig.show(job.id)["Restarts"] == "0"
    assert job.finish() > at
    rig.with_policy("checkpoint", "delete", identity)
    rig.lab.start(f"libvirtd@{lost}")
    rig.backfill("evict", lost, "--undo")
    rig.until(lambda: rig.domains()[lost] == [], what="the lost host without what it had")


def test_eight_ranks_stand_still_together_and_are_kept_as_one(rig: DaemonRig) -> None:
    """A host with some of them is taken and given back; then all are kept, and all put back."""
    rig.restart(ladder=[PAUSE, REQUEUE], **MPI)
    job = RingJob(rig, 8, period_ms=500)
    job.going()
    high = rig.high(job.hosts()[0])
    rig.until(lambda: rig.state(job.id) == "SUSPENDED", what="the job suspended")
    rig.release(high)
    job.going()
    identity = kept(rig, job)
    at = min(job.rounds())
    job.going(more=5)
    socket_path = str(rig.lab.daemon_socket)
    rig.with_policy("checkpoint", "restore", identity, "--socket", socket_path)
    rig.until(lambda: len(put_back(rig, identity)) == 8, what="all of its parts in place")
    assert job.going() > at
    job.finish()
    rig.with_policy("checkpoint", "delete", identity)


def test_plain_mpirun_in_a_script_reaches_all_nodes_of_its_job(rig: DaemonRig) -> None:
    """Open MPI's daemons are started by Slurm: no guest has an sshd."""
    rig.restart(own_machines={"enabled": True}, **MPI)
    # What it said is told before its machines go.
    told = 'scontrol update JobId=$SLURM_JOB_ID Comment="$(tr " " _ </tmp/said)"'
    line = f"mpirun /usr/local/bin/ring 30 10 >/tmp/said && {told}"
    asks = "--comment=backfill-vm:cpus=1,mem=400,place=spread"
    job = rig.submit("-p", "htc", "-N", "2", "--ntasks-per-node=1", asks, "--wrap", line)
    ended = ("COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED")
    rig.until(lambda: rig.state(job) in ended, what=f"the end of job {job}")
    shown = rig.show(job)
    assert rig.state(job) == "COMPLETED", shown
    assert shown["Comment"].startswith("ring_2_30_"), shown
    rig.until(lambda: not rig.nodes(), what="the end of its machines")


def kept(rig: DaemonRig, job: RingJob) -> str:
    """Order a checkpoint of the job; wait until it is whole and verified, and the job at work."""
    identity = str(json.loads(rig.backfill("checkpoint", "create", job.id, "--json"))["id"])
    rig.until(lambda: len(parts(rig, identity)) == job.ranks, what="all parts of the checkpoint")
    job.going()
    rig.with_policy("checkpoint", "verify", identity)
    assert len({part["whole"] for part in parts(rig, identity)} - {""}) == 1
    return identity


def parts(rig: DaemonRig, identity: str) -> list[dict[str, Any]]:
    listed = json.loads(rig.with_policy("checkpoint", "list", "--json"))["checkpoints"]
    return [part for part in listed if part["id"] == identity]


def put_back(rig: DaemonRig, identity: str) -> set[str]:
    """The nodes whose instance has the state of this checkpoint."""
    found = (dict(r.body) for r in rig.journal("change"))
    return {str(b["name"]) for b in found if b["t"] == "CheckpointPutBack" and b["id"] == identity}


def dies(rig: DaemonRig, host: str, name: str) -> None:
    """The host's hypervisor and the guest on it end at once, as when its power fails."""
    rig.lab.kill(f"libvirtd@{host}", signal.SIGKILL)
    pid = rig.lab.run(host, ["cat", f"/run/libvirt/qemu/{name}.pid"], check=True).stdout.strip()
    rig.lab.run(host, ["kill", "-9", pid], check=True)
    rig.until(lambda: rig.ask("status")["sources"][host]["problem"], what="the host's silence")
