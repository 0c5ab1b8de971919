"""What only a real Slurm can show about the driver: restarts, full tables, what others see."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from backfill.core.model.cluster import JobState, Node, NodeBase
from backfill.drivers.slurm.registration import ROOM_NODE, Dynamic
from backfill.drivers.slurm.settings import check_settings
from backfill.lab.roots import RELEASES
from backfill.ports.errors import NoCapacityError, RefusedError, UnreachableError
from backfill.ports.workload import NodeSpec
from tests.contract.workload_rig import REASON, await_state, job, node, running, spec
from tests.real.releases import OLDEST_AND_NEWEST
from tests.real.slurm_lab import RealRig, manager_of, slurm_lab

pytestmark = pytest.mark.real
ROOM = 5
_SECOND = 1.0  # Slurm counts whole ones


@pytest.fixture(scope="module", params=OLDEST_AND_NEWEST)
def cluster(request: pytest.FixtureRequest) -> Iterator[RealRig]:
    with slurm_lab("slurm-driver", release=request.param, extra_conf=(f"MaxNodeCount={ROOM}",)) as lab:
        yield RealRig.of(lab)


@pytest.fixture
def rig(cluster: RealRig) -> Iterator[RealRig]:
    yield cluster
    cluster.reset()


def test_an_unregistered_node_survives_a_restart_of_slurmctld(rig: RealRig) -> None:
    """It is still there, still drained by us, and can register and take jobs afterwards."""
    rig.manager.create_node(spec())
    before = node(rig, "vn1")
    rig.lab.restart("slurmctld")
    assert node(rig, "vn1") == before
    rig.register(spec())
    rig.until(lambda: node(rig, "vn1").responding)
    assert node(rig, "vn1").drained_by_us
    waiting = rig.submit("vn1")
    rig.manager.undrain("vn1")
    assert await_state(rig, waiting, JobState.RUNNING).nodes == ("vn1",)


@pytest.mark.parametrize("cluster", RELEASES, indirect=True, scope="module")
def test_jobs_wait_for_nodes_that_are_announced(rig: RealRig) -> None:
    """In a partition without any node, for as much as ours would have; only 24.11 needs that."""
    wish = ["sbatch", "--parsable", "-p", "htc", "-N2", "-c2", "--mem=300", "--wrap=true"]
    rooms = [NodeSpec(f"{ROOM_NODE}-{i}", "127.0.0.1", 2, 300, ("backfill",)) for i in (1, 2)]
    refused = rig.lab.run("ctl", wish).returncode != 0
    assert refused == (rig.lab.spec.slurm_version == "24.11")
    before = rig.manager.observe().nodes.keys()
    assert Dynamic().announce(manager_of(rig.lab), rooms) == []
    asked = rig.ctl(*wish)
    assert rig.manager.observe().nodes.keys() == before
    assert job(rig, asked).state is JobState.PENDING
    listed = ",".join(room.name for room in rooms)
    for state in (["State=DOWN", "Reason=an_admin"], ["State=RESUME"]):  # as with NodeName=ALL
        rig.ctl("scontrol", "update", f"NodeName={listed}", *state)
    lost = rig.ctl(*wish)
    assert Dynamic().announce(manager_of(rig.lab), rooms) == []
    assert {one.base for one in manager_of(rig.lab).raw_nodes([r.name for r in rooms]).values()} == {
        NodeBase.FUTURE
    }
    rig.until(lambda: {job(rig, one).state for one in (asked, lost)} == {JobState.PENDING})
    assert Dynamic().announce(manager_of(rig.lab), rooms[:1]) == []
    assert manager_of(rig.lab).raw_nodes([room.name for room in rooms]).keys() == {rooms[0].name}
    assert Dynamic().announce(manager_of(rig.lab), []) == []


def test_suspended_jobs_survive_a_restart_of_slurmctld(rig: RealRig) -> None:
    """The job is still SUSPENDED on its node with its restart count, and can be resumed."""
    going = running(rig, rig.hosts[0])
    rig.manager.suspend_job(going)
    rig.lab.restart("slurmctld")
    rig.until(lambda: node(rig, rig.hosts[0]).responding)
    seen = job(rig, going)
    assert (seen.state, seen.nodes, seen.restarts) == (JobState.SUSPENDED, (rig.hosts[0],), 0)
    rig.manager.resume_job(going)
    assert await_state(rig, going, JobState.RUNNING).restarts == 0


def test_a_hup_after_undrain_opens_the_node_at_once(rig: RealRig) -> None:
    """undrain makes Slurm ask for a registration, which waits for silent nodes; a HUP does not."""
    host, other = rig.hosts
    with rig.silent(other):
        rig.ctl("scontrol", "update", f"NodeName={other}", "State=DRAIN", f"Reason={REASON}")
        rig.ctl("scontrol", "update", f"NodeName={other}", "State=UNDRAIN")
        rig.manager.drain(host, REASON)
        waiting = rig.submit(host)
        rig.manager.undrain(host)
        rig.lab.kill(f"slurmd@{host}", signal.SIGHUP)
        rig.until(lambda: node(rig, host).responding)
        assert await_state(rig, waiting, JobState.RUNNING).nodes == (host,)


@pytest.mark.parametrize("cluster", RELEASES, indirect=True, scope="module")
def test_a_rebuild_leaves_every_node_in_its_partitions(rig: RealRig) -> None:
    """After a node has gone and Slurm has read its file anew; nothing of the rebuild stays.

    That 22.05 can lose nodes from partitions then, and has them back, is seen at a site (test_site.py).
    """
    for name in ("vn1", "vn2"):
        rig.manager.create_node(spec(name))

    def of() -> tuple[str, ...]:
        return node(rig, "vn2").partitions

    before = of()
    rig.manager.delete_node("vn1")
    rig.ctl("scontrol", "reconfigure")
    assert before
    known = rig.manager.observe().nodes.keys()
    for _ in range(2):
        manager_of(rig.lab).rebuild_partitions()
        assert of() == before
    assert rig.manager.observe().nodes.keys() == known


def test_a_full_node_table_is_no_room(rig: RealRig) -> None:
    """The node that does not fit is refused, and those that fit are there."""
    for i in range(1, ROOM - 1):
        rig.manager.create_node(spec(f"vn{i}"))
    with pytest.raises(NoCapacityError, match="MaxNodeCount"):
        rig.manager.create_node(spec(f"vn{ROOM - 1}"))
    assert len(rig.manager.observe().nodes) == ROOM


def test_nodes_that_are_wanted_at_once_fill_the_table(rig: RealRig) -> None:
    """By one command or by several: what fits is there, drained by us, and one is told no."""
    wanted = [spec(f"vn{i}") for i in range(1, ROOM)]

    def create(one: NodeSpec) -> str:
        try:
            rig.manager.create_node(one)
        except NoCapacityError:
            return one.name
        return ""

    with ThreadPoolExecutor(len(wanted)) as pool:
        (refused,) = filter(None, pool.map(create, wanted))
    seen = rig.manager.observe().nodes
    assert seen.keys() == {*rig.hosts, *(s.name for s in wanted)} - {refused}
    ours = [seen[s.name] for s in wanted if s.name != refused]
    assert all(node.drained_by_us and node.base is rig.fresh_base for node in ours)
    assert {node.name: node.address for node in ours} == {
        s.name: s.address for s in wanted if s.name != refused
    }


def test_the_labs_settings_are_good(rig: RealRig) -> None:
    """Nothing is refused here, and the room for nodes is seen."""
    settings = rig.manager.settings()
    assert check_settings(settings, longest_pause_s=86400) == []
    assert settings.raw["FixedNodes"] == "2"
    assert settings.max_node_count == ROOM


def test_a_stopped_slurmctld_is_unreachable(rig: RealRig) -> None:
    """A refused connection is an error within the time limit, not an empty cluster."""
    rig.lab.kill("slurmctld", signal.SIGKILL)
    try:
        with pytest.raises(UnreachableError):
            manager_of(rig.lab, timeout_s=0.5).observe()
        with pytest.raises(UnreachableError):
            manager_of(rig.lab, timeout_s=0.5).suspend_job("1")
    finally:
        rig.lab.start("slurmctld")
    rig.until(lambda: node(rig, rig.hosts[0]).responding)
    assert set(rig.hosts) <= set(rig.manager.observe().nodes)


def test_the_message_is_in_admin_comment_and_nowhere_else(rig: RealRig) -> None:
    """The owner's own comment stays."""
    held = rig.submit(rig.hosts[0], hold=True)
    rig.ctl("scontrol", "update", f"JobId={held}", "Comment=mine = mine")
    said = "backfill: pushed aside by job 7: 'bm1' is needed"
    rig.manager.tell(held, said)
    shown = rig.ctl("squeue", "-h", "-j", held, "-O", "admin_comment:|,comment:")
    assert shown == f"{said}|mine = mine"


def test_a_waiting_array_is_told_as_one(rig: RealRig) -> None:
    """By its own number Slurm keeps one record for all tasks; each of them shows the sentence."""
    array, said = rig.submit(rig.hosts[0], tasks=50, hold=True), "backfill: it waits"
    rig.manager.tell(array, said)
    assert rig.ctl("squeue", "-h", "-j", array, "-O", "admin_comment:") == said
    assert len(rig.ctl("squeue", "-h", "-j", array, "-o", "%A").split()) == 1
    waiting = rig.manager.observe().jobs
    assert {waiting[f"{array}_{task}"].raw_id for task in range(1, 51)} == {int(array)}


def test_an_admins_own_comment_stays(rig: RealRig) -> None:
    """AdminComment is the site's field: what is not ours is not written over."""
    held = rig.submit(rig.hosts[0], hold=True)
    rig.ctl("scontrol", "update", f"JobId={held}", "AdminComment=billed to project 7")
    with pytest.raises(RefusedError, match="billed to project 7"):
        rig.manager.tell(held, "backfill: pushed aside")
    assert rig.ctl("squeue", "-h", "-j", held, "-O", "admin_comment:") == "billed to project 7"


def test_components_of_a_het_job_are_refused(rig: RealRig) -> None:
    """Slurm stops only whole het jobs; we say so, and the job goes on."""
    script = str(rig.lab.shared / "job.sh")
    shape = ("-p", "any", "-w", rig.hosts[0], ":", "-p", "any", "-w", rig.hosts[1])
    leader = rig.ctl("sbatch", "--parsable", "-o", "/dev/null", "-D", "/tmp", *shape, script)
    await_state(rig, f"{leader}+1", JobState.RUNNING)
    with pytest.raises(RefusedError, match="heterogeneous"):
        rig.manager.suspend_job(f"{leader}+1")
    assert {job(rig, f"{leader}+{i}").state for i in (0, 1)} == {JobState.RUNNING}
    rig.finish(leader)


def test_one_task_of_an_array_is_requeued_alone(rig: RealRig) -> None:
    """Its restart count rises, its siblings' do not."""
    array = rig.submit(rig.hosts[0], tasks=2)
    for task in (1, 2):
        await_state(rig, f"{array}_{task}", JobState.RUNNING)
    rig.manager.requeue_job(f"{array}_1")
    assert await_state(rig, f"{array}_1", JobState.RUNNING).restarts == 1
    assert job(rig, f"{array}_2").restarts == 0


def test_a_job_survives_being_requeued_again_and_again(rig: RealRig) -> None:
    """On one node, at any moment of a second: a restart in the same second would end the job."""
    going = running(rig, rig.hosts[0])
    for restarts in range(1, 6):
        rig.manager.requeue_job(going)
        assert await_state(rig, going, JobState.RUNNING).restarts == restarts


def test_text_of_other_users_and_admins_is_read_back(rig: RealRig) -> None:
    """Accounts, constraints, reasons and comments with separators in them harm nothing."""
    rig.ctl(
        "sbatch",
        "-H",
        "-p",
        "any",
        "-o",
        "/dev/null",
        "-A",
        "a\nb\x1fc",
        "-J",
        "x\x1ey",
        "--comment",
        "NodeName=z\nJobId=7",
        "--wrap",
        "true",
    )
    update = ("scontrol", "update", f"NodeName={rig.hosts[0]}")
    rig.ctl(*update, "Comment=c State=DOWN Reason=backfill: not ours")
    with rig.drained_by_admin(rig.hosts[0], "two\nlines = [x@y] ü"):
        seen = rig.manager.observe()
        assert seen.nodes[rig.hosts[0]].reason == "two\nlines = [x@y] ü"
        assert seen.nodes[rig.hosts[0]].drained_by_others
        assert seen.nodes[rig.hosts[0]].base is NodeBase.IDLE
        assert ("a\nb\x1fc", "x\x1ey") in {(j.account, j.name) for j in seen.jobs.values()}
    rig.ctl(*update, "Comment=")


def test_a_node_made_by_somebody_else_is_left_alone(rig: RealRig) -> None:
    """A dynamic node of another tool with our name but another shape is not taken over."""
    rig.ctl("scontrol", "create", "NodeName=vn1", "CPUs=8", "State=FUTURE", "Feature=theirs")
    before = node(rig, "vn1")
    with pytest.raises(Exception, match=re.escape("CPUs 8 instead of 2")):
        rig.manager.create_node(NodeSpec("vn1", "10.77.1.1", 2, 500, ("backfill",)))
    assert node(rig, "vn1") == before


def test_what_slurm_means_to_do_with_a_node_is_known(rig: RealRig) -> None:
    """Where a pending job is expected, a maintenance, and the deadline that a job was given."""
    busy, other = rig.hosts
    batch = ("sbatch", "--parsable", "-p", "batch", "-o", "/dev/null", "-D", "/tmp", "--exclusive")
    script = str(rig.lab.shared / "job.sh")
    first = rig.ctl(*batch, "-t", "10", "-w", busy, script)
    await_state(rig, first, JobState.RUNNING)
    until_s = job(rig, first).start_s + 600.0
    earliest_s = time.time()
    rig.ctl(*batch, "-t", "5", "-w", busy, "--deadline=now+2hours", script)
    latest_s = time.time()

    def seen() -> tuple[Node, Node]:
        nodes = manager_of(rig.lab).observe().nodes  # a fresh one reads everything anew
        return nodes[busy], nodes[other]

    rig.until(lambda: seen()[0].planned_s > 0)
    assert abs(seen()[0].planned_s - until_s) < 60
    assert seen()[1].planned_s == 0
    waiting = [j for j in rig.manager.observe().jobs.values() if j.state is JobState.PENDING]
    assert earliest_s - _SECOND <= waiting[0].deadline_s - 7200.0 <= latest_s + _SECOND
    earliest_s = time.time()
    rig.ctl(
        "scontrol",
        "create",
        "reservation",
        "ReservationName=works",
        f"Nodes={other}",
        "StartTime=now+1hour",
        "Duration=60",
        "Users=root",
        "Flags=MAINT",
    )
    latest_s = time.time()
    assert earliest_s - _SECOND <= seen()[1].maintenance_s - 3600.0 <= latest_s + _SECOND
    assert "MAINTENANCE" not in seen()[1].flags
    rig.ctl("scontrol", "update", "ReservationName=works", "StartTime=now")
    rig.until(lambda: "MAINTENANCE" in seen()[1].flags)  # as the core calls it
    rig.ctl("scontrol", "delete", "ReservationName=works")
    assert seen()[1].maintenance_s == 0


def test_a_host_that_got_another_address_works_again_once_told(rig: RealRig) -> None:
    """Slurm goes on sending to the old address until `set_address`; then jobs start and end."""
    host = rig.hosts[1]
    old = node(rig, host).address
    new = f"{old.rpartition('.')[0]}.212"

    def move(source: str, target: str) -> None:
        change = f"ip addr del {source}/16 dev br0 && ip addr add {target}/16 brd + dev br0"
        rig.lab.run(host, ["sh", "-c", change], check=True)

    move(old, new)
    try:
        rig.manager.set_address(host, new)
        assert node(rig, host).address == new
        going = running(rig, host)
        rig.manager.cancel_job(going)
        rig.until(lambda: not job(rig, going).holds_nodes)
        assert node(rig, host).responding
    finally:
        move(new, old)
        rig.manager.set_address(host, old)
    assert await_state(rig, rig.submit(host), JobState.RUNNING).nodes == (host,)


def test_a_slow_slurmctld_is_waited_for_up_to_the_limit(rig: RealRig) -> None:
    """Five seconds for an answer are an answer; beyond the limit it is an error of its own."""
    before = rig.manager.observe().nodes
    rig.lab.kill("slurmctld", signal.SIGSTOP)
    waker = threading.Timer(5.0, rig.lab.kill, ("slurmctld", signal.SIGCONT))
    waker.start()
    try:
        with pytest.raises(UnreachableError, match=r"within 0\.5 s"):
            manager_of(rig.lab, timeout_s=0.5).observe()
        assert rig.manager.observe().nodes.keys() == before.keys()
    finally:
        waker.join()
    rig.manager.drain(rig.hosts[0], REASON)
    assert node(rig, rig.hosts[0]).drained_by_us
