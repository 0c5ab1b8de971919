"""Nodes of an environment that is for some people only: an ordinary user who is none of them tries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from backfill.core.model.cluster import JobState, Node, NodeBase
from backfill.drivers.slurm.access import PREFIX, Access, reservation_of
from backfill.drivers.slurm.driver import SlurmManager
from backfill.drivers.slurm.hooks.install import HookPlan, Hooks
from backfill.drivers.slurm.hooks.submit_lua import Gate
from backfill.lab.roots import RELEASES
from backfill.lab.spec import JOB_USER, host_address
from backfill.ports.errors import RefusedError
from backfill.ports.workload import NodeSpec
from tests.contract.workload_rig import await_state
from tests.real.conf_lab import conf_lab, site_directory, transactions_of
from tests.real.slurm_lab import RealRig, commands_of, until

pytestmark = [pytest.mark.real, pytest.mark.gate]
MEMBER, NODE, FEATURE = "daemon", "vn7", "cms"  # a user that every release's root has
RESERVED = reservation_of(FEATURE, NODE)
_LUA = """-- the site's
function slurm_job_submit(job_desc, part_list, uid) return slurm.SUCCESS end
function slurm_job_modify(job_desc, job_rec, part_list, uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""


@dataclass
class Site:
    """A cluster in which one node is for one user, and another user."""

    rig: RealRig
    manager: SlurmManager
    home: Path

    def sbatch(self, user: str, *wish: str) -> tuple[str, str]:
        """The number of the job, or empty; and what sbatch complained of."""
        argv = ["sbatch", "--parsable", "-p", "any", "-o", "/dev/null", "-D", "/tmp", *wish]
        done = self.rig.lab.run("ctl", [*argv, str(self.rig.lab.shared / "job.sh")], user=user)
        return done.stdout.strip(), done.stderr

    @property
    def word(self) -> tuple[str, ...]:
        """What a member has to say on 26.05 as soon as a stranger has tried; nothing before it."""
        late = self.manager.settings().version.major > (24, 11)
        return ("--reservation", RESERVED) if late else ()

    def stays_out(self, job: str) -> None:
        """Slurm has looked at the job and says that the node is for others."""
        until(lambda: "reserved" in self.rig.ctl("squeue", "-h", "-j", job, "-o", "%r"))
        assert self.manager.read_jobs([job])[job].nodes == ()

    def open(self) -> None:
        """The node comes, proven, as the daemon lets it come."""
        address = host_address(self.rig.hosts[0]).rsplit(".", 2)[0] + ".9.7"
        spec = NodeSpec(NODE, address, 2, 500, ("backfill", FEATURE))
        self.manager.create_node(spec)
        self.rig.register(spec)
        until(lambda: self._seen().responding and self._seen().base is NodeBase.IDLE)
        self.manager.undrain(NODE)

    def _seen(self) -> Node:
        return self.manager.read_nodes([NODE])[NODE]

    def gone(self) -> None:
        """All jobs end, and the node goes with its reservation."""
        self.rig.ctl("scancel", "--user", JOB_USER)
        self.rig.ctl("scancel", "--user", MEMBER)
        self.rig.until(lambda: not any(j.holds_nodes for j in self.manager.observe().jobs.values()))
        self.manager.drain(NODE, "backfill: the end")
        self.manager.delete_node(NODE)
        self.rig.stop_slurmds()
        assert PREFIX not in self.rig.ctl("scontrol", "show", "reservation")


@pytest.fixture(scope="module", params=RELEASES)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    options = {"extra_conf": ("JobSubmitPlugins=lua",), "before": {"job_submit.lua": _LUA}}
    with conf_lab("access", release=request.param, **options) as lab:
        rig = RealRig.of(lab)
        manager = SlurmManager(commands_of(lab), access=[Access(FEATURE, (MEMBER,))])
        yield Site(rig, manager, site_directory(lab))


def test_slurm_itself_keeps_others_off_the_node(site: Site) -> None:
    """By its name, by its feature, by the reservation, by a change, from within a running job."""
    site.open()
    named, _ = site.sbatch(JOB_USER, "-w", NODE)
    featured, _ = site.sbatch(JOB_USER, "-C", FEATURE)
    _, denied = site.sbatch(JOB_USER, "--reservation", RESERVED)
    assert "denied" in denied
    site.stays_out(named)
    site.stays_out(featured)
    change = ["scontrol", "update", f"JobId={featured}", f"ReservationName={RESERVED}"]
    assert site.rig.lab.run("ctl", change, user=JOB_USER).returncode != 0
    running, _ = site.sbatch(JOB_USER, "-w", site.rig.hosts[1])
    await_state(site.rig, running, JobState.RUNNING)
    step = ["srun", f"--jobid={running}", "-w", NODE, "hostname"]
    assert site.rig.lab.run("ctl", step, user=JOB_USER).returncode != 0
    # One of those who may has it without a word about the reservation, and goes on when stopped.
    member, complaint = site.sbatch(MEMBER, "-C", FEATURE, *site.word)
    assert member, complaint
    await_state(site.rig, member, JobState.RUNNING)
    site.manager.drain(NODE, "backfill: a stop")
    site.manager.suspend_job(member)
    await_state(site.rig, member, JobState.SUSPENDED)
    site.manager.resume_job(member)
    await_state(site.rig, member, JobState.RUNNING)
    site.manager.undrain(NODE)
    site.gone()


def test_who_takes_the_reservation_away_does_not_open_the_node(site: Site) -> None:
    """It is made anew before the node is opened the next time, also by a daemon that just began."""
    site.open()
    site.manager.drain(NODE, "backfill: a stop")
    site.rig.ctl("scontrol", "delete", f"ReservationName={RESERVED}")
    SlurmManager(commands_of(site.rig.lab), access=[Access(FEATURE, (MEMBER,))]).undrain(NODE)
    named, _ = site.sbatch(JOB_USER, "-w", NODE)
    site.stays_out(named)
    site.gone()


def test_a_user_whom_nobody_knows_keeps_the_node_closed(site: Site) -> None:
    """What Slurm cannot keep for somebody is not opened to everybody."""
    site.open()
    site.manager.drain(NODE, "backfill: a stop")
    mistaken = SlurmManager(commands_of(site.rig.lab), access=[Access(FEATURE, ("nobody-knows",))])
    with pytest.raises(RefusedError, match="knows the users"):
        mistaken.undrain(NODE)
    assert site.manager.read_nodes([NODE])[NODE].drained
    site.gone()


def test_members_of_an_account_and_users(site: Site) -> None:
    """Either is enough where the release can do so; 26.05 says that it cannot."""
    both = SlurmManager(commands_of(site.rig.lab), access=[Access(FEATURE, (MEMBER,), ("hep",))])
    site.open()
    site.manager.drain(NODE, "backfill: a stop")
    if site.manager.settings().version.major > (24, 11):
        with pytest.raises(RefusedError, match="users only, or accounts only"):
            both.undrain(NODE)
        site.gone()
        return
    both.undrain(NODE)
    stranger, _ = site.sbatch(JOB_USER, "-C", FEATURE)
    site.stays_out(stranger)
    site.rig.ctl("scancel", stranger)
    for user, wish in ((MEMBER, ()), (JOB_USER, ("-A", "hep"))):
        job, complaint = site.sbatch(user, "-C", FEATURE, *wish)
        assert job, complaint
        await_state(site.rig, job, JobState.RUNNING)
    site.gone()


def test_sbatch_says_for_whom_the_node_is(site: Site) -> None:
    """The script that Slurm runs at each submission turns strangers away with a sentence."""
    gate = Gate(FEATURE, (MEMBER,), (), f"may not have environment {FEATURE}: it is for user {MEMBER}")
    room = Gate(FEATURE, (MEMBER,), (), f"user {MEMBER}")
    endpoint, ours = f"unix:{site.home / 'sock'}", site.home / "ours"
    hooks = Hooks(transactions_of(site.rig.lab), ours)
    plan = HookPlan(
        "slurmctld", ours, endpoint, 3000, site.home / "hook.log", endpoint, gates=(gate,), rooms=(room,)
    )
    hooks.install(plan, site.manager.settings().version)
    site.open()
    whose = f"user {JOB_USER} of account (none) may not have"
    for wish in (("-w", NODE), ("-w", f"{site.rig.hosts[0]},vn[5-8]"), ("-w", "vn[7]")):
        job, said = site.sbatch(JOB_USER, *wish)
        assert (job, f"{whose} node {NODE}: it is for user {MEMBER}" in said) == ("", True), said
    job, said = site.sbatch(JOB_USER, "-C", FEATURE)
    assert (job, f"{whose} environment {FEATURE}: it is for user {MEMBER}" in said) == ("", True), said
    other, said = site.sbatch(JOB_USER, "-H", "-w", f"{site.rig.hosts[0]}")
    assert other, said
    change = ["scontrol", "update", f"JobId={other}", f"ReqNodeList={NODE}"]
    changed = site.rig.lab.run("ctl", change, user=JOB_USER)
    assert changed.returncode != 0
    member, said = site.sbatch(MEMBER, "-w", NODE, *site.word)
    assert member, said
    await_state(site.rig, member, JobState.RUNNING)
    site.gone()
    hooks.remove()
