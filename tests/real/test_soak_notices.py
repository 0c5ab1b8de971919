"""What owners of jobs read, by a daemon on a real Slurm: why it waits, that it was pushed aside."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.daemon_rig import PAUSE, REQUEUE, DaemonRig, daemon_lab

pytestmark = [pytest.mark.real, pytest.mark.soak]

# Owners are told once a minute.
LIMIT_S = 300.0


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("notices") as rig:
        rig.start(
            ladder=[PAUSE, REQUEUE],
            limits={"max_instances": 1, "max_per_host": 1},
            notice={"waiting_after_s": 1},
        )
        yield rig


def said(rig: DaemonRig, job: str) -> set[str]:
    """AdminComment and Comment of each of the job's records."""
    argv = ("squeue", "-h", "-j", job, "-O", "admin_comment:|,comment:")
    return {line.strip() for line in rig.ctl(*argv).split("\n")}


def at_a_terminal(rig: DaemonRig, *argv: str) -> tuple[subprocess.Popen[str], Path]:
    """Somebody's salloc or srun, and what it prints."""
    path = rig.lab.shared / f"terminal-{argv[0]}"
    with path.open("w") as out:
        return rig.lab.popen("ctl", [*argv], stdout=out, stderr=out), path


def test_why_a_job_waits_and_that_it_waits_no_more(rig: DaemonRig) -> None:
    """An array is told as one, salloc at its terminal too; Comment is the owner's; it is gone when
    the job has begun.
    """
    first = rig.low()
    array = rig.low("--array=1-3", "--comment=mine = mine", start=False)
    client, shown = at_a_terminal(rig, "salloc", "-p", "htc", "true")
    reason = "it waits: limits.max_instances = 1 is reached"
    rig.until(lambda: all(reason in line for line in said(rig, array)), LIMIT_S, "the reason")
    assert {line.rpartition("|")[2] for line in said(rig, array)} == {"mine = mine"}
    assert len(rig.ctl("squeue", "-h", "-j", array, "-o", "%A").split()) == 1
    rig.until(lambda: reason in shown.read_text(), LIMIT_S, "the reason at the terminal")
    assert not [line for line in said(rig, first) if "it waits" in line]
    rig.finish(first)
    rig.until(lambda: "RUNNING" in rig.ctl("squeue", "-h", "-j", array, "-o", "%T"), LIMIT_S)
    rig.until(lambda: said(rig, array) == {"|mine = mine"}, LIMIT_S, "the end of the sentence")
    rig.ctl("scancel", array)
    assert client.wait(LIMIT_S) == 0
    told = [r.body["why"] for r in rig.journal("notice") if r.subject == array]
    assert len(told) == 2, told


def test_pushed_aside_and_come_back(rig: DaemonRig) -> None:
    """In AdminComment of a batch job, and at the terminal of an srun."""
    low = rig.low()
    _, host = rig.where(low)
    high = rig.high(host)
    rig.until(lambda: any("paused, because" in line for line in said(rig, low)), what="its pause")
    rig.release(high)
    rig.until(lambda: any("went on after" in line for line in said(rig, low)), what="its return")
    rig.finish(low)
    client, shown = at_a_terminal(rig, "srun", "-p", "htc", "sleep", "600")
    rig.until(lambda: rig.ctl("squeue", "-h", "-t", "R", "-p", "htc", "-o", "%i"), what="srun")
    again = rig.high(host)
    rig.until(lambda: "backfill: paused, because" in shown.read_text(), what="its pause")
    rig.release(again)
    rig.until(lambda: "backfill: went on after" in shown.read_text(), what="its return")
    rig.ctl("scancel", "-p", "htc", "-u", "root")
    client.wait(60)


def test_an_address_behind_a_hosts_name_changes(rig: DaemonRig) -> None:
    """The daemon notices by itself, has slurmctld look the name up, and says so."""
    lab, host = rig.lab, rig.lab.hosts[1]
    conf, hosts = lab.slurm_conf, lab.dir / "etc/hosts"
    written, known = conf.read_text(), hosts.read_text()
    old = next(line.split()[0] for line in known.splitlines() if line.endswith(f" {host}"))
    new = f"{old.rpartition('.')[0]}.212"
    conf.write_text(written.replace(f"NodeAddr={old}", f"NodeAddr={host}"))
    lab.restart("slurmctld")
    rig.until(lambda: rig.node_states()[host] == "IDLE", what=f"{host} IDLE")
    rig.restart(**rig.changes)

    def noticed(address: str) -> bool:
        return any(f"means {address} now" in str(r.body["why"]) for r in rig.journal("address"))

    def looked() -> bool:
        shown = rig.ctl("sinfo", "-h", "-N", "-n", host, "-o", "%o")
        return shown.split()[0] == host

    rig.until(looked, what="a node with a name")
    # It keeps the old one, too, by which its hypervisor is reached.
    lab.run(host, ["ip", "addr", "add", f"{new}/16", "brd", "+", "dev", "br0"], check=True)
    try:
        # Until the daemon has looked once it cannot know, on 22.05, what slurmctld uses.
        rig.until(lambda: f"{host} is a name" in rig.log.read_text(), LIMIT_S, "the first look")
        _write(hosts, known.replace(f"{old} {host}\n", f"{new} {host}\n"))
        rig.until(lambda: noticed(new), LIMIT_S, "the news")
        rig.release(rig.high(host))
    finally:
        lab.run(host, ["ip", "addr", "del", f"{new}/16", "dev", "br0"])
        _write(hosts, known)
        conf.write_text(written)
        lab.restart("slurmctld")
    rig.until(lambda: rig.node_states()[host] == "IDLE", what=f"{host} IDLE again")


def _write(path: Path, text: str) -> None:
    """In place: the lab's machines have this very file."""
    with path.open("r+") as file:
        file.write(text)
        file.truncate()
