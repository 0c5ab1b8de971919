"""The hook in a real Slurm: every kind of job asks once per place, and none is ever harmed."""

from __future__ import annotations

import ctypes
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from backfill.core.model.cluster import JobState
from backfill.drivers.slurm.hooks.build import build_hook
from backfill.lab.layout import user_ids
from backfill.lab.spec import CONTROLLER_ADDRESS, HOOK_PORT, JOB_USER, host_address
from tests.component.hook_daemon import HookDaemon
from tests.contract.workload_rig import await_state, job, node
from tests.real.slurm_lab import RealRig, slurm_lab, until

HOSTS = 10
CLONE_NEWNET = 0x40000000
# What a job's script writes first, so that its start can be seen.
_SCRIPT = "#!/bin/sh\ntouch {started}/$SLURM_JOB_ID\n{then}\n"


@dataclass
class Hooked:
    """A cluster whose Slurm calls the hook in one place, `slurmctld` or `host`."""

    place: str
    rig: RealRig
    hook: Path

    @property
    def on_host(self) -> bool:
        return self.place == "host"

    def build(self, timeout_ms: int = 60_000) -> None:
        """Put a hook with this time limit in place of the last, and empty its log."""
        self.log.unlink(missing_ok=True)
        endpoint = f"tcp:{CONTROLLER_ADDRESS}:{HOOK_PORT}" if self.on_host else f"unix:{self.sock}"
        build_hook(self.hook, endpoint, timeout_ms, self.log)

    @property
    def log(self) -> Path:
        return self.hook.with_name("hook.log")

    @property
    def sock(self) -> Path:
        return self.hook.with_name("sock")

    @contextmanager
    def daemon(self, reply: str | None = "ok room is free") -> Iterator[HookDaemon]:
        """A daemon where this cluster's hooks look for it."""
        self.sock.unlink(missing_ok=True)
        place = _listen_in(self.rig) if self.on_host else self.sock
        with HookDaemon(place, reply) as daemon:
            yield daemon

    def complaints(self) -> list[str]:
        """What prologs logged; an epilog may well come when a test's daemon is gone."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if " prolog_" in line]

    def sbatch(self, *options: str, then: str = "exit 0") -> str:
        """Submit a job that notes its start and then does this."""
        script = self.rig.lab.shared / "start.sh"
        script.write_text(_SCRIPT.format(started=self.rig.done, then=then))
        command = ("sbatch", "--parsable", "-p", "any", "-o", "/dev/null", "-D", "/tmp")
        return self.rig.user(*command, *options, str(script))

    def started(self, job_id: str) -> bool:
        """Whether the script's first command has run."""
        return (self.rig.done / job_id).exists()

    def words(self, daemon: HookDaemon, verb: str, count: int) -> list[dict[str, str]]:
        """The requests of this kind, as soon as there are that many, as dicts."""

        def chosen() -> list[str]:
            return [r for r in daemon.requests if r.startswith(f"backfill1 {verb} ")]

        until(lambda: len(chosen()) >= count)
        return [dict(w.split("=", 1) for w in line.split()[2:]) for line in chosen()]


def _listen_in(rig: RealRig) -> socket.socket:
    """A TCP socket that lives in the controller's network, made by a thread that goes there."""
    pid = rig.lab.status().machines["ctl"].pid
    made: list[socket.socket] = []

    def make() -> None:
        with Path(f"/proc/{pid}/ns/net").open() as namespace:
            ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET)
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((CONTROLLER_ADDRESS, HOOK_PORT))
        made.append(server)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made[0]


@pytest.fixture(scope="module", params=["slurmctld", "host"])
def cluster(request: pytest.FixtureRequest, open_path: Path) -> Iterator[Hooked]:
    directory = open_path / request.param
    directory.mkdir()
    directory.chmod(0o777)  # the hook of a controller writes its log as SlurmUser
    hook = build_hook(directory / "hook", f"unix:{directory}/sock", 60_000, None)
    options = {"hooks": request.param, "hook": str(hook), "hook_epilog": str(hook)}
    options["hook_limit_s"] = 120
    with slurm_lab(f"hook-{request.param}", hosts=HOSTS, **options) as lab:
        yield Hooked(request.param, RealRig.of(lab), hook)


@pytest.fixture
def hooked(cluster: Hooked) -> Iterator[Hooked]:
    cluster.build()
    yield cluster
    cluster.build(timeout_ms=100)
    cluster.rig.reset()


pytestmark = pytest.mark.real


def test_a_batch_job_starts_when_the_daemon_says_so(hooked: Hooked) -> None:
    """The request names job, node, partition and user; the script waits for the answer."""
    with hooked.daemon(reply=None) as daemon:
        job_id = hooked.sbatch("-w", "bm3")
        (words,) = hooked.words(daemon, "allocated", 1)
        seen = job(hooked.rig, job_id)
        assert (words["job"], words["nodes"], words["partition"]) == (job_id, "bm3", "any")
        assert words["uid"] == str(user_ids(hooked.rig.lab.dir / "etc", JOB_USER)[0])
        assert words["restart"] == "0"
        assert seen.state is JobState.RUNNING  # allocated, although nothing runs yet
        assert seen.nodes == ("bm3",)
        assert not hooked.started(job_id)
        if hooked.on_host:
            address, port = daemon.peers[0]
            assert (address, port < 1024) == (host_address("bm3"), True)
        daemon.answer("ok room is free")
        until(lambda: hooked.started(job_id))
    assert hooked.complaints() == []


def test_the_end_is_told(hooked: Hooked) -> None:
    """After the job, one message per place; nothing waits for it."""
    with hooked.daemon() as daemon:
        job_id = hooked.sbatch("-w", "bm3")
        (words,) = hooked.words(daemon, "ended", 1)
        assert (words["job"], words["nodes"]) == (job_id, "bm3")
        assert words["restart"] in ("0", "-1")
        await_state(hooked.rig, job_id, JobState.COMPLETED)


def test_srun_and_salloc(hooked: Hooked) -> None:
    """Both ask; on a host a bare salloc does not, because nothing runs there."""
    with hooked.daemon() as daemon:
        assert hooked.rig.ctl("srun", "-p", "any", "-w", "bm2", "echo", "hello") == "hello"
        assert hooked.words(daemon, "allocated", 1)[0]["nodes"] == "bm2"
        hooked.rig.ctl("salloc", "-p", "any", "-w", "bm4", "true")
        seen = [w["nodes"] for w in hooked.words(daemon, "allocated", 1)]
        assert ("bm4" in seen) is not hooked.on_host
        hooked.rig.ctl("salloc", "-p", "any", "-w", "bm5", "srun", "true")
        assert hooked.words(daemon, "allocated", 2)[-1]["nodes"] == "bm5"
    assert hooked.complaints() == []


def test_every_task_of_an_array_asks_at_the_same_time(hooked: Hooked) -> None:
    """Three tasks on one node are three requests that wait side by side."""
    with hooked.daemon(reply=None) as daemon:
        array = hooked.sbatch("-w", "bm1", "--array=1-3")
        requests = hooked.words(daemon, "allocated", 3)
        assert {w["nodes"] for w in requests} == {"bm1"}
        ids = {str(job(hooked.rig, f"{array}_{task}").raw_id) for task in (1, 2, 3)}
        assert {w["job"] for w in requests} == ids
        daemon.answer("ok")
        until(lambda: all(hooked.started(i) for i in ids))


def test_every_component_of_a_het_job_asks_for_its_own_nodes(hooked: Hooked) -> None:
    """Each request names the component's number and nodes."""
    with hooked.daemon() as daemon:
        leader = hooked.sbatch("-w", "bm1", ":", "-p", "any", "-w", "bm2", then="srun true")
        count = 1 if hooked.on_host else 2  # on hosts, only where something is started
        requests = hooked.words(daemon, "allocated", count)
        until(lambda: hooked.started(leader))
        expected = {leader: "bm1", str(int(leader) + 1): "bm2"}
        assert {(w["job"], w["nodes"]) for w in requests} <= set(expected.items())


def test_scancel_while_the_hook_waits(hooked: Hooked) -> None:
    """The hook goes away, the job is cancelled, and the node serves the next job."""
    hooked.build(timeout_ms=10_000)  # a host waits for its Prolog's end, even for a cancelled job
    with hooked.daemon(reply=None) as daemon:
        job_id = hooked.sbatch("-w", "bm6")
        hooked.words(daemon, "allocated", 1)
        hooked.rig.manager.cancel_job(job_id)
        daemon.await_hangups(1)
        await_state(hooked.rig, job_id, JobState.CANCELLED)
        assert not hooked.started(job_id)
        daemon.answer("ok")
        following = hooked.sbatch("-w", "bm6")
        until(lambda: hooked.started(following))
        assert not node(hooked.rig, "bm6").drained


def test_ten_nodes_at_once(hooked: Hooked) -> None:
    """One wide job: the controller asks once for all, the hosts each for themselves."""
    with hooked.daemon() as daemon:
        job_id = hooked.sbatch("-N", "10", then="srun -N10 true")
        until(lambda: hooked.started(job_id))
        if hooked.on_host:
            requests = hooked.words(daemon, "allocated", 10)
            assert {w["nodes"] for w in requests} == set(hooked.rig.lab.hosts)
        else:
            (request,) = hooked.words(daemon, "allocated", 1)
            assert request["nodes"] == "bm[1-10]"
        await_state(hooked.rig, job_id, JobState.COMPLETED)


def test_ten_jobs_at_once(hooked: Hooked) -> None:
    """Ten hooks wait side by side and all jobs start."""
    with hooked.daemon(reply=None) as daemon:
        ids = [hooked.sbatch("-w", name) for name in hooked.rig.lab.hosts]
        requests = hooked.words(daemon, "allocated", 10)
        assert {w["job"] for w in requests} == set(ids)
        daemon.answer("ok")
        until(lambda: all(hooked.started(i) for i in ids))
    assert hooked.complaints() == []


@pytest.mark.parametrize("hung", [False, True])
def test_a_dead_or_hung_daemon_harms_no_job(hooked: Hooked, hung: bool) -> None:
    """The job starts, once, on a node that is not drained; the log says what was wrong."""
    hooked.build(timeout_ms=500)
    with hooked.daemon(reply=None) as daemon:
        if not hung:
            daemon.close()
        job_id = hooked.sbatch("-w", "bm7", then="sleep 60")
        until(lambda: hooked.started(job_id))
        seen = await_state(hooked.rig, job_id, JobState.RUNNING)
        assert seen.restarts == 0
        assert not node(hooked.rig, "bm7").drained
        assert hooked.rig.ctl("srun", "-p", "any", "-w", "bm8", "echo", "hello") == "hello"
    lines = hooked.complaints()
    assert any(f"job={job_id} " in line and "the job goes on" in line for line in lines)


def test_a_refusal_harms_no_job(hooked: Hooked) -> None:
    """When the daemon cannot make room, the job starts all the same and the log says why."""
    with hooked.daemon(reply="no vn1 does not stop"):
        job_id = hooked.sbatch("-w", "bm9")
        until(lambda: hooked.started(job_id))
    (line,) = hooked.complaints()
    assert "vn1 does not stop" in line
