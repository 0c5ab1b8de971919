"""Each release: what owners are told and where, what users type, and names that change address."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill.core.model.cluster import Job, JobState
from backfill.drivers.slurm.driver import SlurmManager
from tests.contract.workload_rig import await_state, job, node, running
from tests.real.releases import OLDEST_AND_NEWEST
from tests.real.slurm_lab import RealRig, commands_of, slurm_lab

pytestmark = pytest.mark.real
SAID = "backfill: as of noon it waits: 'bm1' = \"taken\""


@pytest.fixture(scope="module", params=OLDEST_AND_NEWEST)
def cluster(request: pytest.FixtureRequest) -> Iterator[RealRig]:
    with slurm_lab("slurm-owners", release=request.param) as lab:
        yield RealRig.of(lab)


@pytest.fixture
def rig(cluster: RealRig) -> Iterator[RealRig]:
    yield cluster
    cluster.reset()


def heard(rig: RealRig, path: Path, words: str) -> None:
    rig.until(lambda: words in path.read_text())


def at_a_terminal(rig: RealRig, *argv: str) -> tuple[subprocess.Popen[str], Path]:
    """Somebody's salloc or srun, and what it prints."""
    path = rig.lab.shared / f"terminal-{argv[0]}"
    with path.open("w") as out:
        return rig.lab.popen("ctl", [*argv], stdout=out, stderr=out), path


def interactive(rig: RealRig, state: JobState) -> Job:
    """The one job of salloc or srun in this state, as soon as there is one."""
    found: list[Job] = []

    def there() -> bool:
        jobs = rig.manager.observe().jobs.values()
        found[:] = [j for j in jobs if j.interactive and j.state is state and not j.flags]
        return bool(found)

    rig.until(there)
    (only,) = found
    return only


def test_who_waits_at_a_terminal_reads_it_there(rig: RealRig) -> None:
    """salloc while it waits, srun while it runs; Slurm passes nothing on to one that stands still,
    and that is no error; the sentence is in AdminComment all the same.
    """
    host = rig.hosts[0]
    waits, shown = at_a_terminal(rig, "salloc", "-H", "-p", "any", "-w", host, "true")
    pending = interactive(rig, JobState.PENDING)
    rig.manager.tell(pending.id, SAID, aloud=True)
    heard(rig, shown, SAID)
    rig.manager.cancel_job(pending.id)
    assert waits.wait(60) != 0
    client, shown = at_a_terminal(rig, "srun", "-p", "any", "-w", host, "sleep", "600")
    going = interactive(rig, JobState.RUNNING)
    rig.manager.tell(going.id, "backfill: paused", aloud=True)
    heard(rig, shown, "backfill: paused")
    rig.manager.suspend_job(going.id)
    rig.manager.tell(going.id, "backfill: it stands still", aloud=True)
    told = ("squeue", "-h", "-j", going.id, "-O", "admin_comment:")
    assert rig.ctl(*told) == "backfill: it stands still"
    rig.manager.resume_job(going.id)
    await_state(rig, going.id, JobState.RUNNING)
    rig.manager.tell(going.id, "backfill: went on", aloud=True)
    heard(rig, shown, "backfill: went on")
    assert "stands still" not in shown.read_text()
    rig.manager.cancel_job(going.id)
    client.wait(60)


def test_a_sentence_is_taken_back(rig: RealRig) -> None:
    """Once for an array, and only while nothing else stands there; the owner's Comment stays."""
    array = rig.submit(rig.hosts[0], tasks=3, hold=True)
    rig.ctl("scontrol", "update", f"JobId={array}", "Comment=mine")
    assert not job(rig, f"{array}_1").interactive
    told = ("squeue", "-h", "-j", array, "-O", "admin_comment:|,comment:")
    rig.manager.tell(array, SAID)
    assert set(rig.ctl(*told).split("\n")) == {f"{SAID}|mine"}
    rig.manager.tell(array, "", over="backfill: something else")
    assert set(rig.ctl(*told).split("\n")) == {f"{SAID}|mine"}
    rig.ctl("scontrol", "release", array)
    for task in (1, 2, 3):
        await_state(rig, f"{array}_{task}", JobState.RUNNING)
    rig.manager.tell(array, "", over=SAID)
    assert set(rig.ctl(*told).split("\n")) == {"|mine"}


def test_what_a_user_types_blinds_nobody(rig: RealRig) -> None:
    """Slurm keeps a node list as it was written; every job is read all the same."""
    bm1, bm2 = rig.hosts
    for typed in (f"{bm1} {bm2}", f"{bm2}\n{bm1}", "bm[1-2],bm1", "bm[1,2]"):
        held = rig.submit(bm1, hold=True)
        rig.lab.run("ctl", ["scontrol", "update", f"JobId={held}", f"ReqNodeList={typed}"])
        asked = job(rig, held).required_nodes
        assert set(asked) in ({bm1}, {bm1, bm2})  # 22.05 and later differ in what they take
    going = running(rig, bm2)
    assert rig.manager.observe().jobs[going].state is JobState.RUNNING


def test_a_reason_comes_back_as_it_was_sent(rig: RealRig) -> None:
    """Quotes at its ends, equal signs, brackets, non-ASCII: said once, and known as ours."""
    name = rig.hosts[0]
    for reason in (
        'backfill: "vn1" = $(id); said "no"',
        "backfill: a [b@7] | é€ 'x' \\ %s",
        "backfill: x" * 80,
    ):
        rig.manager.drain(name, reason)
        seen = node(rig, name)
        assert seen.drained_by_us
        before = rig.ctl("scontrol", "-o", "show", "node", name).partition(" Reason=")[2]
        rig.manager.drain(name, reason)  # the same again is nothing
        assert rig.ctl("scontrol", "-o", "show", "node", name).partition(" Reason=")[2] == before
        assert seen.reason.strip('"') == reason.strip('"')


def test_an_address_behind_a_name_that_changed_is_flushed(rig: RealRig) -> None:
    """slurmctld goes on using the old one until it is told; the site's NodeAddr stays a name."""
    host, lab = rig.hosts[1], rig.lab
    old = node(rig, host).address
    new = f"{old.rpartition('.')[0]}.212"
    conf, hosts = lab.slurm_conf, lab.dir / "etc/hosts"
    written, known = conf.read_text(), hosts.read_text()

    def resolve(name: str) -> frozenset[str]:
        found = lab.run("ctl", ["getent", "ahosts", name], check=True).stdout
        return frozenset(line.split()[0] for line in found.splitlines())

    def move(target: str) -> None:
        change = f"ip -4 addr flush dev br0 && ip addr add {target}/16 brd + dev br0"
        lab.run(host, ["sh", "-c", change], check=True)
        _write(hosts, known.replace(f"{old} {host}\n", f"{target} {host}\n"))

    conf.write_text(written.replace(f"NodeAddr={old}", f"NodeAddr={host}"))
    lab.restart("slurmctld")
    rig.until(lambda: node(rig, host).responding)
    manager = SlurmManager(commands_of(lab), resolve=resolve)
    try:
        assert node(rig, host).named
        assert manager.refresh_addresses(rig.hosts) == {}
        move(new)
        (said,) = manager.refresh_addresses(rig.hosts).values()
        assert f"{host} means {new} now, and slurmctld used {old}" in said
        assert manager.refresh_addresses(rig.hosts) == {}
        assert node(rig, host).address == host
        going = running(rig, host)
        rig.manager.cancel_job(going)  # what slurmctld sends to the node arrives again
        rig.until(lambda: not job(rig, going).holds_nodes)
        assert node(rig, host).responding
        move(old)
        assert manager.refresh_addresses(rig.hosts).keys() == {host}
    finally:
        move(old)
        conf.write_text(written)
        lab.restart("slurmctld")
    rig.until(lambda: node(rig, host).responding)


def _write(path: Path, text: str) -> None:
    """In place: the lab's machines have this very file."""
    with path.open("r+") as file:
        file.write(text)
        file.truncate()
