"""A job's own machines on real guests: made in its size, pinned, let go, and gone with it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from backfill.lab.cluster import Lab
from tests.real.daemon_rig import DaemonRig, daemon_lab

pytestmark = [pytest.mark.real, pytest.mark.soak]

# A lab's hosts have the CPUs of its machine, however many they are said to have.
OWN: dict[str, Any] = {
    "own_machines": {
        "enabled": True,
        "start_within_s": 600,
        "networks": [
            {"name": "lan", "bridge": "br-lan"},
            {"name": "others", "bridge": "x", "users": ["bob"]},
        ],
    },
    "limits": {"max_per_host": 4},
    "placement": {"cpu_overcommit": 3},
}


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("machines") as rig:
        for host in rig.lab.hosts:
            lay_network(rig.lab, host)
        rig.start(**OWN)
        yield rig


def lay_network(lab: Lab, host: str) -> None:
    """One more bridge on a host, with a cable to its usual one."""
    commands = (
        "link add br-lan type bridge forward_delay 0 stp_state 0",
        "link add lan-a type veth peer name lan-b",
        "link set lan-a master br0 up",
        "link set lan-b master br-lan up",
        "link set br-lan up",
    )
    within = f"--net=/proc/{lab.status().machines[host].pid}/ns/net"
    line = ["nsenter", within, "ip", "-batch", "-"]
    subprocess.run(line, input="\n".join(commands), text=True, check=True)


def states(rig: DaemonRig, job: str) -> list[str]:
    """The states through which the job's machines have gone, each once in a row."""
    found: list[str] = []
    for record in rig.journal("phase"):
        own = record.body.get("machines")
        if isinstance(own, dict) and own["job"] == job and own["state"] not in found[-1:]:
            found.append(str(own["state"]))
    return found


def empty(rig: DaemonRig) -> None:
    """Let what idles go: without job_submit.lua it may take a job before the daemon has seen it."""
    rig.restart(**OWN, scale={"idle_s": 0})
    rig.until(lambda: not rig.nodes(), what="the removal of all instances")
    rig.restart(**OWN)


WHOLE = ["queued", "spawning", "spawned", "allocated", "reclaimed", "gone"]


def test_a_job_gets_a_guest_of_its_own_size_and_nobody_else_gets_in(rig: DaemonRig) -> None:
    """Two CPUs and 320 MB; a job of far higher priority that names the very node waits for the end."""
    job = rig.low("--comment=backfill-vm:cpus=2,mem=320", start=False)
    rig.until(lambda: rig.nodes(), what="its machine")
    (name,) = rig.nodes()
    rig.until(lambda: name in rig.node_states(), what="its node in Slurm")
    competitor = rig.ctl(
        "sbatch",
        "--parsable",
        "-o",
        "/dev/null",
        "-p",
        "htc",
        "-w",
        name,
        "--priority=1000000",
        "--wrap=true",
    )
    rig.counting(job)
    node, host = rig.where(job)
    assert node == name
    shown = rig.ctl("scontrol", "-o", "show", "node", name)
    assert re.search(r"CPUTot=2 ", shown), shown
    assert re.search(r"RealMemory=270 ", shown), shown
    guest = rig.virsh(host, "dominfo", name)
    assert re.search(r"CPU\(s\): +2\b", guest), guest
    assert re.search(rf"Max memory: +{320 * 1024} KiB", guest), guest
    assert rig.state(competitor) == "PENDING"
    assert "is there: a machine of 2 CPUs and 320 MB" in rig.ctl("scontrol", "show", "job", job)
    explained = rig.backfill("explain", job)
    assert f"a machine of 2 CPUs and 320 MB ({name}): allocated" in explained
    rig.cancel(competitor)
    rig.finish(job)
    rig.until(lambda: name not in rig.nodes(), what="the end of its machine")
    assert name not in rig.domains()[host]
    assert "backfill-job" not in rig.ctl("scontrol", "show", "reservation")
    rig.until(lambda: states(rig, job) == WHOLE, what="the whole way of its machines")


def test_one_idle_instance_makes_way_at_once_and_the_other_stays(rig: DaemonRig) -> None:
    """Each host has the one instance that it may have, idle, and kept for an hour; the job needs one place.

    Held as by job_submit.lua, so that it cannot begin on one of them.
    """
    scale = {"idle_s": 3600, "warm": 2, "boot_within_s": 600}
    rig.restart(**{**OWN, "limits": {"max_per_host": 1}, "scale": scale})
    rig.until(lambda: phases(rig) == ["ready", "ready"], what="an idle instance on each host")
    before = rig.nodes().keys()
    job = rig.low("-H", start=False)
    rig.ctl("scontrol", "update", f"JobId={job}", "AdminComment=backfill-vm:cpus=2,mem=320,held=1")
    rig.counting(job)
    name, _ = rig.where(job)
    why = "idle, and a job's own machines need its room"
    (went,) = {r.subject for r in rig.journal("phase") if r.body.get("reason") == why}
    assert rig.nodes().keys() - {name} == before - {went}
    rig.finish(job)
    rig.restart(**OWN)
    rig.until(lambda: name not in rig.nodes(), what="the end of its machine")


def phases(rig: DaemonRig) -> list[str]:
    return sorted(str(node["phase"]) for node in rig.nodes().values())


def test_a_job_over_two_nodes_gets_both_and_a_cancelled_one_keeps_none(rig: DaemonRig) -> None:
    """The second is cancelled while its machines are being made: nothing of it is left either."""
    empty(rig)  # it would begin on idle ones before it is held: no job_submit.lua is there
    anybodys = rig.nodes().keys()
    job = rig.low("-N2", "--comment=backfill-vm:mem=288")
    names = rig.nodes().keys()
    theirs = set(rig.ctl("scontrol", "show", "hostnames", rig.show(job)["NodeList"]).split())
    assert theirs == names - anybodys
    assert len(theirs) == 2
    other = rig.low("-N2", "--comment=backfill-vm:mem=288", start=False)
    rig.until(lambda: rig.nodes().keys() > names, what="the machines of the second job")
    rig.cancel(other)
    rig.until(lambda: rig.nodes().keys() == names, what="the end of these")
    rig.finish(job)
    rig.until(lambda: rig.nodes().keys() == anybodys, what="the end of the first")
    rig.until(lambda: states(rig, job) == WHOLE, what="the whole way of its machines")
    rig.until(lambda: states(rig, other)[-1] == "gone", what="the end of the second job's machines")
    assert rig.state(other) == "CANCELLED"


def test_what_can_never_be_stays_held_and_says_why(rig: DaemonRig) -> None:
    """Its owner cannot release it, and reads the reason."""
    empty(rig)
    job = rig.low("--comment=backfill-vm:cpus=64", start=False)
    rig.until(lambda: "can never be had" in rig.ctl("scontrol", "show", "job", job), what="the reason")
    rig.user("scontrol", "release", job, check=False)
    assert rig.show(job)["Reason"] == "JobHeldAdmin"
    assert "can never be had" in rig.backfill("explain", job)
    rig.cancel(job)


def test_its_machine_is_in_the_network_that_it_asks_for(rig: DaemonRig) -> None:
    """Its card is at that bridge, and its job runs there; one that is not his, or not there, is refused."""
    empty(rig)
    job = rig.low("--comment=backfill-vm:mem=288,network=lan", start=False)
    rig.counting(job)
    name, host = rig.where(job)
    assert re.search(r"\bbridge +br-lan\b", rig.virsh(host, "domiflist", name))
    refused = {"wan": "there is none of that name: use lan, others", "others": "it is for user bob"}
    for network, words in refused.items():
        other = rig.low(f"--comment=backfill-vm:network={network}", start=False)
        rig.until(lambda o=other, w=words: w in rig.ctl("scontrol", "show", "job", o), what="the reason")  # type: ignore[misc]
        rig.cancel(other)
    rig.finish(job)
    rig.until(lambda: name not in rig.nodes(), what="the end of its machine")
