"""Recorded output of Slurm 22.05 is read completely, and what cannot be read is shown."""

from __future__ import annotations

import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill.core.model.cluster import Job, JobState, MachineRequest, Node, NodeBase
from backfill.drivers.slurm.reading.ahead import Ahead, SlurmReservation, read_reservations
from backfill.drivers.slurm.reading.parse import MOST_OF_AN_ARRAY, JobFormat, read_nodes
from backfill.ports.errors import BadOutputError

NOW_S = 1795232590.0
FORMAT = JobFormat("MARK")
_FIXED = {
    "id": "7",
    "raw": "7",
    "partition": "any",
    "state": "RUNNING",
    "user": "root",
    "nodes": "bm2",
    "num_nodes": "1",
    "cpus": "1",
    "tres": "cpu=1,node=1,billing=1",
    "memory": "0",
    "priority": "4294901757",
    "submit": "1795232580",
    "eligible": "1795232581",
    "start": "1795232585",
    "end": "NONE",
    "limit": "UNLIMITED",
    "restarts": "0",
    "expected": "(null)",
    "deadline": "N/A",
    "batch": "1",
    "requeue": "1",
    "sharing": "OK",
    "exclusive": "",
}
_FREE = {
    "account": "(null)",
    "qos": "(null)",
    "reason": "None",
    "required": "bm2",
    "features": "(null)",
    "comment": "(null)",
    "admin_comment": "(null)",
    "name": "job",
}


def record(**changes: str) -> str:
    """One job as squeue prints it with FORMAT, with some fields changed."""
    fixed = [changes.get(key, value) for key, value in _FIXED.items()]
    free = [changes.get(key, value) for key, value in _FREE.items()]
    return "\x1f".join(fixed) + "".join(f"\x1dMARK{text}" for text in free) + "\x1eMARK\n"


def read(output: str) -> list[Job]:
    """The jobs of an output."""
    return [job for jobs in FORMAT.read(output, {}, NOW_S).values() for job in jobs]


def test_a_running_job() -> None:
    """Every field arrives where it belongs."""
    (job,) = read(record(limit="1-02:03:04", tres="cpu=1,mem=1400M,node=1", memory="700M"))
    assert job == Job(
        id="7",
        raw_id=7,
        partition="any",
        state=JobState.RUNNING,
        user="root",
        name="job",
        nodes=("bm2",),
        memory_mb=1400,
        memory_by_cpu=True,
        priority=4294901757,
        submit_s=1795232580.0,
        eligible_s=1795232581.0,
        start_s=1795232585.0,
        time_limit_s=93784.0,
        required_nodes=("bm2",),
    )


def test_a_pending_job_has_not_started() -> None:
    """The start that the scheduler expects is not taken for a start."""
    (job,) = read(
        record(
            state="PENDING",
            nodes="",
            start="1795299999",
            eligible="N/A",
            requeue="0",
            account="acc",
            qos="low",
            reason="JobHeldUser",
            features="a&b",
            limit="5:00",
        )
    )
    assert job.start_s == 0
    assert job.eligible_s == 0
    assert not job.requeue
    assert (job.account, job.qos, job.reason, job.features) == ("acc", "low", "JobHeldUser", "a&b")
    assert job.time_limit_s == 300


@pytest.mark.parametrize(
    ("sharing", "exclusive", "alone"),
    [
        # Up to 25.11 there is one column, and squeue leaves the other one empty.
        ("OK", "", False),
        ("YES", "", False),
        ("NO", "", True),
        ("USER", "", False),
        ("MCS", "", False),
        ("TOPO", "", True),
        # From 26.05 on it says less, and the other one tells.
        ("NO", "NO", False),
        ("NO", "NODE", True),
        ("NO", "TOPO", True),
        ("OK", "USER", False),
        ("YES", "MCS", False),
    ],
)
def test_an_exclusive_job_is_known_by_its_columns(sharing: str, exclusive: str, alone: bool) -> None:
    """Whether it asked for that or its partition makes it so; with its own user's jobs it shares."""
    (job,) = read(record(state="PENDING", nodes="", sharing=sharing, exclusive=exclusive))
    assert job.exclusive is alone


def test_squeue_is_asked_for_both_columns() -> None:
    """A release that does not know one of them prints nothing for it, and goes on."""
    asked = [column.partition(":")[0] for column in FORMAT.text.split(",")]
    assert {"oversubscribe", "exclusive"} <= set(asked)


def test_array_tasks_and_het_components_keep_their_names() -> None:
    """Ids are read as Slurm shows them, beside the number that scontrol takes."""
    jobs = read(record(id="12_3", raw="14") + record(id="12_4", raw="12") + record(id="5+1"))
    assert [(job.id, job.raw_id) for job in jobs] == [("12_3", 14), ("12_4", 12), ("5+1", 7)]


@pytest.mark.parametrize(
    ("printed", "numbers"),
    [("[0-10:3]", (0, 3, 6, 9)), ("[1,5-6%2]", (1, 5, 6)), ("[7]", (7,)), ("[1-3:2,9]", (1, 3, 9))],
)
def test_tasks_that_wait_together_are_jobs_of_their_own(printed: str, numbers: tuple[int, ...]) -> None:
    """squeue prints one record for them, with or without a step and a limit."""
    jobs = read(record(id=f"12_{printed}", raw="12", state="PENDING") + record(id="13"))
    assert [job.id for job in jobs] == [*(f"12_{n}" for n in numbers), "13"]
    assert {job.raw_id for job in jobs[:-1]} == {12}


def test_the_first_tasks_of_a_large_array_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user submits a million with one line; none of the rest is made, nor their numbers."""
    tracemalloc.start()
    try:
        jobs = read(record(id="12_[1-4000000%1]", raw="12", state="PENDING") + record(id="13"))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [job.id for job in jobs[:2]] == ["12_1", "12_2"]
    assert len(jobs) == MOST_OF_AN_ARRAY + 1
    assert peak < 20 << 20
    monkeypatch.setattr("backfill.drivers.slurm.reading.parse.MOST_OF_ARRAYS", 10)
    many = "".join(record(id=f"{n}_[1-8]", raw=str(n), state="PENDING") for n in range(20, 25))
    assert [job.id for job in read(many + record(id="13"))] == [
        *(f"20_{n}" for n in range(1, 9)),
        "21_1",
        "21_2",
        "21_3",
        "22_1",
        "23_1",
        "24_1",
        "13",
    ]


@pytest.mark.parametrize("asked", ["n[1-900000]", "n[1-60000],m[1-60000]", "x" * 5000, "[1-9]" * 500])
def test_what_a_user_asks_for_is_not_expanded_without_end(asked: str) -> None:
    """It is one name then, which no node has."""
    (job,) = read(record(id="12", state="PENDING", required=asked))
    assert len(job.required_nodes) == 1
    assert len(job.required_nodes[0]) <= 255


@pytest.mark.parametrize(
    ("end", "state"),
    [
        ("NONE", JobState.PENDING),
        ("N/A", JobState.PENDING),
        ("1795233190", JobState.PENDING),  # the end that its time limit would allow a new run
        ("1795232589", JobState.COMPLETED),
    ],
)
def test_a_completing_job_has_ended_only_if_its_end_is_past(end: str, state: JobState) -> None:
    """squeue hides whether a completing job was requeued; its end time tells."""
    (job,) = read(record(state="COMPLETING", end=end))
    assert job.state is state
    assert job.holds_nodes
    assert not job.active


@pytest.mark.parametrize(
    ("memory", "tres", "nodes", "memory_mb", "by_cpu"),
    [
        ("0", "cpu=1,mem=1000M,node=1", "1", 0, False),  # the site's default is no request
        ("700M", "cpu=2,mem=1400M,node=2", "2", 700, False),
        ("1001M", "cpu=12,mem=1.96G,node=2", "2", 1004, False),  # rounded
        ("100M", "cpu=3,mem=300M,node=1", "1", 300, True),  # --mem-per-cpu does not show
        ("100M", "cpu=12,mem=1200M,node=2", "2", 600, True),
        ("1.50G", "cpu=1,node=1", "1", 1536, False),
        ("2G", "cpu=1,mem=2G,node=1", "1", 2048, False),
    ],
)
def test_memory_is_per_node(memory: str, tres: str, nodes: str, memory_mb: int, by_cpu: bool) -> None:
    """Requests per node and per CPU are told apart by the job's total."""
    (job,) = read(record(memory=memory, tres=tres, num_nodes=nodes))
    assert (job.memory_mb, job.memory_by_cpu) == (memory_mb, by_cpu)


@given(
    name=st.text(st.characters(codec="utf-8", exclude_categories=["Cs"])),
    account=st.sampled_from(["(null)", "a\nb", "x\x1fy", "\x1d", "\x1e\n", "q='z'|"]),
)
def test_no_text_of_a_user_can_imitate_a_field_or_a_job(name: str, account: str) -> None:
    """Names and accounts come back as they are, and the jobs around are unharmed."""
    jobs = read(record(id="1") + record(id="2", name=name, account=account) + record(id="3"))
    assert [job.id for job in jobs] == ["1", "2", "3"]
    assert jobs[1].name == name
    assert jobs[1].account == ("" if account == "(null)" else account)


def test_an_unchanged_record_is_not_parsed_again() -> None:
    """The same objects come back, and only what changed is new."""
    first = FORMAT.read(record(id="1") + record(id="2"), {}, NOW_S)
    again = FORMAT.read(record(id="1") + record(id="2", state="SUSPENDED"), first, NOW_S)
    one, two = again.values()
    assert one is next(iter(first.values()))
    assert two[0].state is JobState.SUSPENDED


@pytest.mark.parametrize(
    "bad",
    [
        record(state="WONDERFUL"),
        record(start="yesterday"),
        record(limit="long"),
        record(cpus=""),
        record(id="12_[1-3,5,...]"),
        record(nodes="bm[1-"),
        "7\x1f8\x1eMARK\n",
        "slurm_load_jobs error: something\n",
        record()[:-9],
    ],
)
def test_a_job_that_cannot_be_read_is_an_error_that_shows_it(bad: str) -> None:
    """Nothing is dropped silently: the whole answer is refused."""
    with pytest.raises(BadOutputError, match="squeue"):
        read(record() + bad)


BM1 = (
    "NodeName=bm1 Arch=x86_64 CoresPerSocket=1  CPUAlloc=2 CPUEfctv=4 CPUTot=4 CPULoad=1.98 "
    "AvailableFeatures=(null) ActiveFeatures=(null) Gres=(null) NodeAddr=10.77.0.11 "
    "NodeHostName=bm1 Version=22.05.8 OS=Linux 6.1 #1 SMP State=x y @0  RealMemory=2000 "
    "AllocMem=1500 FreeMem=21130 Sockets=4 Boards=1 State=MIXED+DRAIN ThreadsPerCore=1 TmpDisk=0 "
    "Weight=1 Owner=N/A MCS_label=N/A Partitions=batch,any  BootTime=1795227884 "
    "SlurmdStartTime=1795232587 LastBusyTime=1795232587 CfgTRES=cpu=4,mem=2000M,billing=4 "
    "AllocTRES= CapWatts=n/a CurrentWatts=0 AveWatts=0 ExtSensorsJoules=n/s ExtSensorsWatts=0 "
    "ExtSensorsTemp=n/s"
)
VN1 = (
    "NodeName=vn1 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=2 CPUTot=2 CPULoad=N/A "
    "AvailableFeatures=backfill,small ActiveFeatures=backfill,small Gres=(null) "
    "NodeAddr=10.77.1.1 NodeHostName=vn1  RealMemory=500 AllocMem=0 FreeMem=N/A Sockets=2 "
    "Boards=1 State=FUTURE+DRAIN+DYNAMIC_NORM ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A "
    "MCS_label=N/A BootTime=None SlurmdStartTime=None LastBusyTime=Unknown "
    "CfgTRES=cpu=2,mem=500M,billing=2 AllocTRES= "
    "Reason=backfill: not proven yet [root@1795232589]"
)


def test_nodes() -> None:
    """A registered and an unregistered node, also when one that was asked for is missing."""
    nodes = read_nodes(f"{BM1}\nNode vn9 not found\n{VN1}\n")
    bm1, vn1 = nodes["bm1"], nodes["vn1"]
    assert set(nodes) == {"bm1", "vn1"}
    assert (bm1.base, bm1.flags) == (NodeBase.MIXED, frozenset({"DRAIN"}))
    assert (bm1.cpus, bm1.cpus_allocated, bm1.memory_mb) == (4, 2, 2000)
    assert (bm1.memory_allocated_mb, vn1.memory_allocated_mb) == (1500, 0)
    assert (bm1.address, bm1.partitions, bm1.features) == ("10.77.0.11", ("batch", "any"), ())
    assert (bm1.boot_time_s, bm1.slurmd_start_s) == (1795227884.0, 1795232587.0)
    assert (vn1.base, vn1.features, vn1.partitions) == (NodeBase.FUTURE, ("backfill", "small"), ())
    assert (vn1.boot_time_s, vn1.slurmd_start_s) == (0.0, 0.0)
    assert vn1.drained_by_us


@pytest.mark.parametrize(
    ("tail", "reason", "by"),
    [
        (" Reason=disk=broken [root@1795232589]", "disk=broken", "root"),
        (" Reason=a [b@c] d [ada@1795232589]", "a [b@c] d", "ada"),
        (" Reason=a [b@7] d [root@1795232589]", "a [b@7] d", "root"),
        (" Reason=two [root@1795232589]        lines [x@y] ü", "two\nlines [x@y] ü", "root"),
        (" Reason=x [64030@Unknown] Comment=c Reason=backfill: d [eve@7] State=IDLE", "x", "64030"),
        (" Reason=not signed", "not signed", ""),
        (" Comment=one\nline NodeName=evil State=DOWN", "", ""),
        ("", "", ""),
    ],
)
def test_reasons_as_administrators_write_them(tail: str, reason: str, by: str) -> None:
    """The reason is what they wrote, with who did, and no comment changes it or the node."""
    nodes = read_nodes(f"{BM1}{tail}\n{VN1}\n")
    assert (nodes["bm1"].reason, nodes["bm1"].reason_by) == (reason, by)
    assert set(nodes) == {"bm1", "vn1"}
    assert not nodes["bm1"].drained_by_us


@pytest.mark.parametrize(
    "bad",
    [
        BM1.replace("State=MIXED+DRAIN", "State=GREAT"),
        BM1.replace(" State=MIXED+DRAIN", ""),
        BM1.replace("CPUTot=4 ", ""),
        BM1.replace("RealMemory=2000", "RealMemory=much"),
        BM1.replace("AllocMem=1500", "AllocMem=some"),
        "scontrol: something else",
    ],
)
def test_a_node_that_cannot_be_read_is_an_error_that_shows_it(bad: str) -> None:
    """Nothing is dropped silently: the whole answer is refused."""
    with pytest.raises(BadOutputError, match="scontrol"):
        read_nodes(f"{bad}\n{VN1}\n")


def test_an_empty_cluster() -> None:
    """No node is an answer."""
    assert read_nodes("No nodes in the system\n") == {}
    assert read_nodes("") == {}
    assert read("") == []


def test_where_a_pending_job_is_expected() -> None:
    """Nodes and time; of a running job both are over. Neither makes a job look different."""
    waits = record(state="PENDING", nodes="", start="1795299999", expected="bm[1-2]")
    (job,) = read(waits)
    assert (job.planned_nodes, job.planned_s) == (("bm1", "bm2"), 1795299999.0)
    (plain,) = read(record(state="PENDING", nodes="", start="N/A"))
    assert job == plain
    (runs,) = read(record(expected="bm2", deadline="1795300000"))
    assert (runs.planned_nodes, runs.deadline_s) == ((), 1795300000.0)


WORKS = (
    "ReservationName=works StartTime=1795300000 EndTime=1795303600 Duration=01:00:00 "
    "Nodes=bm[1-2] NodeCnt=2 CoreCnt=8 Features=(null) PartitionName=(null) "
    "Flags=MAINT,SPEC_NODES TRES=cpu=8 Users=root Groups=(null) Accounts=(null) State=INACTIVE"
)


def test_reservations_are_read() -> None:
    """Times, nodes and whether it is a maintenance; none is none; nonsense is shown."""
    lesson = WORKS.replace("=works", "=lesson").replace("MAINT,", "")
    one, other = read_reservations(f"{WORKS}\n{lesson}\n")
    assert one == SlurmReservation(1795300000.0, 1795303600.0, ("bm1", "bm2"), maintenance=True)
    assert not other.maintenance
    assert read_reservations("No reservations in the system\n") == []
    with pytest.raises(BadOutputError, match="cannot read the reservation"):
        read_reservations(WORKS.replace("1795300000", "soon"))


def test_nodes_are_told_of_the_first_that_comes() -> None:
    """Of a reservation and a planned job the earlier counts; maintenance is told by itself."""
    now_s = time.time()
    job = read(record(state="PENDING", start=str(int(now_s) + 500), expected="bm1"))[0]
    ahead = Ahead(
        (
            SlurmReservation(now_s + 300, now_s + 400, ("bm1",), maintenance=False),
            SlurmReservation(now_s + 900, now_s + 999, ("bm2",), maintenance=True),
            SlurmReservation(now_s - 900, now_s - 99, ("bm3",), maintenance=True),
        )
    )
    ahead.expect({job.id: job})
    nodes = {name: Node(name, NodeBase.IDLE) for name in ("bm1", "bm2", "bm3")}
    told = ahead.tell(nodes)
    assert (told["bm1"].planned_s, told["bm1"].maintenance_s) == (now_s + 300, 0.0)
    assert (told["bm2"].planned_s, told["bm2"].maintenance_s) == (0.0, now_s + 900)
    assert told["bm3"] == nodes["bm3"]


def test_the_word_for_machines_of_its_own() -> None:
    """AdminComment, which only an admin writes, counts before the owner's comment."""
    (job,) = read(record(comment="backfill-vm:cpus=9", admin_comment="backfill: made backfill-vm:cpus=2"))
    assert job.machines == MachineRequest(cpus=2)
    (job,) = read(record(comment="backfill-vm:cpus=many"))
    assert job.machines is None
    assert job.machines_fault is not None
