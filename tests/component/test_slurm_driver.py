"""What the driver asks of Slurm's tools, and above all what it never asks."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from backfill.drivers.slurm.commands import SlurmTools
from backfill.drivers.slurm.driver import SlurmManager
from backfill.drivers.slurm.reading.text_path import TextPath
from backfill.ports.errors import BadOutputError, BusyError, DriverError, RefusedError
from backfill.ports.workload import NodeSpec
from tests.component.slurm_tools import FakeTools

NODE = (
    "NodeName={name} CPUAlloc=0 CPUTot=2 AvailableFeatures=backfill NodeAddr=10.77.1.1 "
    "RealMemory=500 State={state} ThreadsPerCore=1 Partitions=htc BootTime=None "
    "SlurmdStartTime=None{reason}\n"
)
SPEC = NodeSpec("vn1", "10.77.1.1", 2, 500, ("backfill",))


@pytest.fixture
def tools(tmp_path: Path) -> FakeTools:
    return FakeTools(tmp_path)


@pytest.fixture
def manager(tools: FakeTools) -> SlurmManager:
    return SlurmManager(SlurmTools(bin_dir=tools.directory), settle_s=0.1)


def mark_of(manager: SlurmManager) -> str:
    """What stands between the free texts of its reader's output."""
    path = manager._path
    assert isinstance(path, TextPath)
    return path._format.mark


def show(tools: FakeTools, state: str, reason: str = "", name: str = "vn1") -> None:
    """Let scontrol show this node."""
    text = f" Reason={reason} [root@1795232589]" if reason else ""
    tools.answer("show node", NODE.format(name=name, state=state, reason=text))


def show_job(tools: FakeTools, manager: SlurmManager, state: str) -> None:
    """Let squeue show job 7, on vn1."""
    shape = ("1", "1", "", "0", "1", "1", "1", "1", "NONE", "UNLIMITED", "0", "", "", "1", "1", "OK", "")
    fixed = ("7", "7", "htc", state, "root", "vn1", *shape)
    mark = mark_of(manager)
    free = "".join(f"\x1d{mark}{text}" for text in ("", "", "None", "", "", "", "", "job"))
    tools.answer("squeue", "\x1f".join(fixed) + free + f"\x1e{mark}\n")


def test_another_admins_drain_causes_no_command(tools: FakeTools, manager: SlurmManager) -> None:
    """Not even a harmless one is sent."""
    show(tools, "IDLE+DRAIN", "disk broken")
    with pytest.raises(RefusedError, match="somebody else drained it: disk broken"):
        manager.undrain("vn1")
    with pytest.raises(RefusedError, match="somebody else drained it: disk broken"):
        manager.drain("vn1", "backfill: x")
    assert tools.changes() == []


def test_a_node_is_made_future_and_drained(tools: FakeTools, manager: SlurmManager) -> None:
    """It is never a state that takes jobs, and it is drained before its slurmd can register."""
    show(tools, "FUTURE+DYNAMIC_NORM")
    manager.create_node(SPEC)
    assert tools.changes() == ["scontrol update NodeName=vn1 State=DRAIN Reason=backfill: not proven yet"]


def test_a_node_that_slurm_did_not_make_is_noticed(tools: FakeTools, manager: SlurmManager) -> None:
    """22.05 reports success although its table is full."""
    tools.answer("show node", "Node vn1 not found\n", status=1)
    with pytest.raises(Exception, match="raise MaxNodeCount"):
        manager.create_node(SPEC)
    assert tools.changes() == [
        "scontrol create NodeName=vn1 NodeAddr=10.77.1.1 CPUs=2 RealMemory=500 State=FUTURE Feature=backfill"
    ]


def test_a_node_with_a_suspended_job_is_not_deleted(tools: FakeTools, manager: SlurmManager) -> None:
    """Slurm thinks that it is idle, and 22.05 would crash."""
    show(tools, "IDLE+DRAIN+DYNAMIC_NORM", "backfill: x")
    show_job(tools, manager, "SUSPENDED")
    with pytest.raises(BusyError, match="job 7 holds it"):
        manager.delete_node("vn1")
    assert tools.changes() == []


@pytest.mark.parametrize(("named", "done"), [("(null)", True), ("backfill-job-7", False)])
def test_a_change_that_slurm_makes_and_calls_an_error(
    tools: FakeTools, manager: SlurmManager, named: str, done: bool
) -> None:
    """So it does where the job's partition has no node: what the job names now decides."""
    said = "Requested partition configuration not available now for job 7"
    tools.answer("update JobId=7 ReservationName=", err=said, status=1)
    tools.answer("squeue reservation:", f"{named}\n")
    show_job(tools, manager, "PENDING")
    with contextlib.nullcontext() if done else pytest.raises(DriverError, match="not available now"):
        manager.unpin_job("7")


@pytest.mark.parametrize(
    ("state", "reason", "kept"),
    [
        ("IDLE+DRAIN+NOT_RESPONDING", "disk broken", "disk broken"),
        ("IDLE+DRAIN+NOT_RESPONDING", "", "drained (backfill: silent)"),
        ("IDLE+DRAIN+NOT_RESPONDING", "backfill: not proven yet", "backfill: silent"),
        ("IDLE+NOT_RESPONDING", "", "backfill: silent"),
    ],
)
def test_another_admins_drain_is_still_his_on_a_node_that_we_set_down(
    tools: FakeTools, manager: SlurmManager, state: str, reason: str, kept: str
) -> None:
    """scontrol wants a reason for DOWN, and writes it over that of the drain."""
    show(tools, state, reason)
    manager.set_down("vn1", "backfill: silent")
    assert [call for call in tools.calls if "update" in call] == [
        f"scontrol update NodeName=vn1 State=DOWN Reason={kept}"
    ]


def test_a_text_that_is_no_job_id_reaches_no_tool(tools: FakeTools, manager: SlurmManager) -> None:
    """`scancel -u root` would be a valid command line."""
    for bad in ("-u", "all", "1 2", "1;2", "", "1\n"):
        with pytest.raises(RefusedError, match="no job id"):
            manager.cancel_job(bad)
    assert tools.calls == []


def test_no_name_that_slurm_takes_for_all_nodes_reaches_a_tool(
    tools: FakeTools, manager: SlurmManager
) -> None:
    """`NodeName=ALL State=DOWN` would be a valid command."""
    for bad in ("ALL", "all", "default", "bm[1-9]", "a,b", "-h", "vn1 State=DOWN", "vn1\n"):
        for call in (manager.undrain, manager.delete_node, manager.nudge):
            with pytest.raises(RefusedError, match="no node name"):
                call(bad)
        with pytest.raises(RefusedError, match="no node name"):
            manager.set_down(bad, "backfill: x")
    assert tools.calls == []


def test_a_reason_with_quotes_is_set_once(tools: FakeTools, manager: SlurmManager) -> None:
    """scontrol takes quotes off the ends; what comes back is what we sent, so nothing is to do."""
    show(tools, "IDLE+DRAIN", 'backfill: "vn1" = $(id); said "no')
    manager.drain("vn1", 'backfill: "vn1" = $(id);\nsaid "no"')
    manager.drain("vn1", 'backfill: "vn2"')
    assert tools.changes() == ['scontrol update NodeName=vn1 State=DRAIN Reason=backfill: "vn2']


def test_only_who_waits_at_a_terminal_is_told_aloud(tools: FakeTools, manager: SlurmManager) -> None:
    """First there; and by a heterogeneous job's leader, since scontrol reads only one number."""
    manager.tell("7", "backfill: x", aloud=True)
    manager.tell("8+0", "backfill: x", aloud=True)
    manager.tell("9_3", "backfill: x", aloud=True)
    assert [call for call in tools.changes() if "notify" in call] == [
        "scontrol notify 7 backfill: x",
        "scontrol notify 8 backfill: x",
    ]
    assert tools.changes()[0] == "scontrol notify 7 backfill: x"
    tools.answer("notify", err="Job has already finished", status=1)
    manager.tell("7", "backfill: y", aloud=True)
    assert tools.changes()[-1] == "scontrol update JobId=7 AdminComment=backfill: y"


def test_a_sentence_is_taken_back_only_while_it_stands_there(tools: FakeTools, manager: SlurmManager) -> None:
    """Whatever has been said since stays, and so do the tasks of an array that heard otherwise."""
    said = "backfill: as of noon it waits: no room"
    tools.answer("-j 7 -O admin_comment", f"{said}\n")
    tools.answer("-j 8 -O admin_comment", "backfill: paused\n")
    tools.answer("-j 20 -O admin_comment", f"{said}\nbackfill: paused\n")
    tools.answer("-j 21 -O admin_comment", f"{said}\n{said}\n")
    for job_id in ("7", "8", "20", "21"):
        manager.tell(job_id, "", over=said)
    assert tools.changes() == [f"scontrol update JobId={n} AdminComment=" for n in (7, 21)]
    tools.answer("-j 22 -O admin_comment", "backfill: paused\nsite's own\n")
    with pytest.raises(RefusedError, match="site's own"):
        manager.tell("22", "backfill: x")


def test_a_word_is_put_behind_what_the_site_has_written(tools: FakeTools, manager: SlurmManager) -> None:
    """And in the place of the one there; where the tasks of an array differ, nothing is written."""
    tools.answer("-j 7 -O admin_comment", "jobstats: v2 backfill-vm:held=1\n")
    manager.tell("7", "backfill: its own is there backfill-vm:cpus=2")
    assert tools.changes() == ["scontrol update JobId=7 AdminComment=jobstats: v2 backfill-vm:cpus=2"]
    tools.answer("-j 20 -O admin_comment", "jobstats: v2\njobstats: v3\n")
    with pytest.raises(RefusedError, match="jobstats: v2"):
        manager.tell("20", "backfill: x backfill-vm")


def test_messages_are_one_line(tools: FakeTools, manager: SlurmManager) -> None:
    """A line break in a message could imitate output elsewhere."""
    manager.tell("7", "pushed\naside\x1b[31m")
    assert tools.changes() == ["scontrol update JobId=7 AdminComment=pushed aside [31m"]


def test_an_answer_that_cannot_be_read_stops_the_observation(tools: FakeTools, manager: SlurmManager) -> None:
    """Half a picture is worse than none."""
    show(tools, "IDLE")
    tools.answer("squeue", "garbage\n")
    with pytest.raises(BadOutputError, match="squeue"):
        manager.observe()


def test_free_text_is_separated_by_a_secret(tools: FakeTools) -> None:
    """Each process has a mark of its own, and it is in no command line that users can see."""
    one = SlurmManager(SlurmTools(bin_dir=tools.directory))
    other = SlurmManager(SlurmTools(bin_dir=tools.directory))
    assert mark_of(one) != mark_of(other)
    one.observe()
    assert mark_of(one) not in "\n".join(tools.calls)


CONFIG = "ReturnToService         = {}\n"


def test_a_node_that_stood_still_is_vouched_for(tools: FakeTools, manager: SlurmManager) -> None:
    """Found by nobody meanwhile, and drained by the same words as before."""
    tools.answer("show config", CONFIG.format(1))
    show(tools, "IDLE+DRAIN+NOT_RESPONDING", "backfill: bm1 was given to job 9")
    manager.vouch("vn1")
    assert tools.changes() == [
        "scontrol update NodeName=vn1 NodeAddr=255.255.255.255",
        "scontrol update NodeName=vn1 State=UNDRAIN",
        "scontrol update NodeName=vn1 State=DRAIN Reason=backfill: bm1 was given to job 9",
        "scontrol update NodeName=vn1 NodeAddr=10.77.1.1",
    ]


def test_a_node_that_was_not_drained_is_not_drained_afterwards(
    tools: FakeTools, manager: SlurmManager
) -> None:
    """As one that moved while its job ran."""
    tools.answer("show config", CONFIG.format(0))
    show(tools, "ALLOCATED")
    manager.vouch("vn1")
    assert [call.split("State=")[1].split()[0] for call in tools.changes() if "State" in call] == [
        "DRAIN",
        "UNDRAIN",
    ]


def test_nothing_is_asked_where_slurm_takes_every_node_back(tools: FakeTools, manager: SlurmManager) -> None:
    """ReturnToService=2 looks at no boot time."""
    tools.answer("show config", CONFIG.format(2))
    manager.vouch("vn1")
    assert tools.changes() == []


def test_another_admins_drain_is_kept_and_the_node_is_not_vouched_for(
    tools: FakeTools, manager: SlurmManager
) -> None:
    """The sentence says what would happen, and both remedies."""
    tools.answer("show config", CONFIG.format(1))
    show(tools, "IDLE+DRAIN", "disk broken")
    with pytest.raises(BusyError, match=r"disk broken.*reboot; lift that drain, or set Return"):
        manager.vouch("vn1")
    assert tools.changes() == []


@pytest.mark.parametrize(
    ("slurm_user", "reason", "people"),
    [
        ("slurm(64030)", "Low RealMemory [slurm@1795232589]", False),
        ("slurm(64030)", "Low RealMemory [64030@1795232589]", False),
        ("slurm(64030)", "ticket 7 [root@1795232589]", True),
        ("slurm(64030)", "Kill task failed (JobId=7 StepId=batch) [root@1795232589]", False),
        ("root(0)", "ticket 7 [root@1795232589]", True),
        ("root(0)", "Low RealMemory [root@1795232589]", True),  # nobody can tell
        ("slurm(64030)", "backfill: evicting [root@1795232589]", False),
    ],
)
def test_a_drain_of_slurms_own_is_told_by_its_user(
    tools: FakeTools, manager: SlurmManager, slurm_user: str, reason: str, people: bool
) -> None:
    """slurmctld signs as SlurmUser; what slurmstepd has root sign is known by its words."""
    tools.answer("show config", f"SlurmdUser   = root(0)\nSlurmUser    = {slurm_user}\n")
    tools.answer("show node", NODE.format(name="vn1", state="IDLE+DRAIN", reason=f" Reason={reason}"))
    for _ in range(2):
        assert manager.read_nodes(["vn1"])["vn1"].drained_by_people is people
    asked = [call for call in tools.calls if "show config" in call]
    assert len(asked) == (0 if reason.startswith("backfill:") else 1)
