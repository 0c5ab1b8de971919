"""What jobs ask for as machines of their own, in a real Slurm: by options, words, constraint, partition."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from backfill.core.model.cluster import Job, JobState, MachineRequest, SlurmVersion
from backfill.core.model.company import Company
from backfill.drivers.slurm.conf.managed import FEATURES_NODE, Method, WantedNodes
from backfill.drivers.slurm.driver import SlurmManager
from backfill.drivers.slurm.hooks.install import HookPlan, Hooks
from backfill.drivers.slurm.hooks.machines_lua import MachineGate, NamedGate
from backfill.drivers.slurm.spank import install
from backfill.drivers.slurm.spank.build import build_plugin
from backfill.drivers.slurm.spank.install import Spank
from backfill.lab.layout import user_ids
from backfill.lab.spec import JOB_USER, SLURM_USER
from backfill.ports.errors import RefusedError
from backfill.ports.workload import NodeSpec
from tests.contract.workload_rig import await_state
from tests.real.conf_lab import conf_lab, site_directory, transactions_of
from tests.real.releases import RELEASES
from tests.real.slurm_lab import RealRig, commands_of

pytestmark = pytest.mark.real
_LUA = """function slurm_job_submit(job_desc, part_list, uid)
  if job_desc.name == "forbidden" then return slurm.ERROR end
  if job_desc.name == "noted" then job_desc.admin_comment = "the site's" end
  return slurm.SUCCESS
end
function slurm_job_modify(job_desc, job_rec, part_list, uid)
  return slurm.SUCCESS
end
return slurm.SUCCESS
"""
_PLUGSTACK = "# the site's\ninclude /etc/slurm/plugstack.conf.d/*.conf\n"
_FULL = MachineRequest(2, 4, 2048, 0.5, "mpi", "lan", 1, (128, 128), Company.SPREAD, held=True)
_PLAIN = MachineRequest(held=True)


@dataclass
class OwnSite:
    """A cluster with a job_submit.lua and a plugstack.conf of its own, and ours beside them."""

    rig: RealRig
    home: Path

    @property
    def spank(self) -> Spank:
        return Spank(commands_of(self.rig.lab), self.plugstack, self.home / "spank")

    @property
    def plugstack(self) -> Path:
        return self.rig.lab.slurm_conf.with_name("plugstack.conf")

    def install_script(self, feature: str = "own-vm") -> None:
        """As `backfill slurm apply` and `backfill slurm hooks install` do."""
        change = transactions_of(self.rig.lab)
        line = NodeSpec(FEATURES_NODE, "127.0.0.1", 4, 900, ("own-vm", "fast", "slow"))
        wanted = WantedNodes(Method.DYNAMIC, (), "/bin/true", 120, line)
        change.apply(lambda now: wanted.change(now, change.site()))
        networks = (NamedGate("lan"), NamedGate("ours", ("bob",), ("physics",), "user bob, account physics"))
        gate = MachineGate(
            feature,
            ("batch",),
            low=("any",),
            inside=("metal",),
            networks=networks,
            images=(NamedGate("gold", ("bob",), (), "user bob"),),
            most_disk_gb=20,
        )
        ours = self.home / "ours"
        plan = HookPlan("slurmctld", ours, f"unix:{ours}/none", 300, ours / "log", machines=gate)
        Hooks(change, ours).install(plan, self.rig.manager.settings().version)

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """A command of an ordinary user's."""
        return self.rig.lab.run("ctl", argv, user=JOB_USER)

    def refusal(self, *options: str) -> str:
        """Why a job with these options is not taken, as its owner reads it."""
        done = self.run("sbatch", "-p", "any", *options, "--wrap", "true")
        assert done.returncode != 0, done.stdout
        return done.stderr

    def submit(self, *options: str) -> Job:
        """A job of an ordinary user's, as it waits."""
        done = self.run("sbatch", "--parsable", "-D", "/tmp", "-o", "/dev/null", *options, "--wrap", "true")
        assert done.returncode == 0, done.stderr
        number = done.stdout.strip()
        jobs = self.rig.manager.observe().jobs.values()
        return next(
            job for job in jobs if job.id == number or job.id.startswith((f"{number}_", f"{number}+"))
        )

    def clear(self) -> None:
        self.rig.reset()


@pytest.fixture(scope="module", params=RELEASES)
def site(request: pytest.FixtureRequest) -> Iterator[OwnSite]:
    before = {"job_submit.lua": _LUA, "plugstack.conf": _PLUGSTACK}
    extra = ("JobSubmitPlugins=lua", "PartitionName=idle Nodes=ALL", "PartitionName=metal Nodes=ALL")
    options = {"extra_conf": extra, "before": before}
    with conf_lab("own", release=request.param, **options) as lab:
        found = OwnSite(RealRig.of(lab), site_directory(lab))
        found.install_script()
        found.spank.install()
        yield found


def test_the_plugin_stands_beside_those_of_the_site(site: OwnSite) -> None:
    """Installed twice is once; removed is as if never there; a machine without it hears nothing."""
    assert site.spank.status().problems == ()
    site.spank.install()
    assert site.plugstack.read_text().count("include") == 2
    away = site.home / "away"
    (site.home / "spank").rename(away)
    done = site.run("sbatch", "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert "there is no" in site.spank.status().problems[0]
    away.rename(site.home / "spank")
    site.spank.remove()
    assert site.plugstack.read_text() == _PLUGSTACK
    assert not (site.home / "spank").exists()
    assert not site.spank.status().installed
    site.plugstack.unlink()
    site.spank.install()
    site.spank.remove()
    assert not site.plugstack.exists()
    site.plugstack.write_text(_PLUGSTACK)
    site.spank.install()


def test_a_plugin_of_another_release_is_not_left_there(
    site: OwnSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm refuses it; what was there before is there again, and status names a stale one."""
    plugin = site.home / "spank" / install.PLUGIN
    before = {path: path.read_bytes() for path in (plugin, site.plugstack)}

    def wrong(dest: Path, release: SlurmVersion) -> None:
        build_plugin(dest, SlurmVersion(21, 8, 8))

    monkeypatch.setattr(install, "build_plugin", wrong)
    with pytest.raises(RefusedError, match="its --help has no --vm-per-node; all is as it was before"):
        site.spank.install()
    monkeypatch.undo()
    assert {path: path.read_bytes() for path in before} == before
    lines = plugin.with_name(install.LINES)
    kept = lines.read_text()
    lines.write_text("# Built for Slurm 21.08.8\n")
    (problem,) = site.spank.status().problems
    assert "is built for Slurm 21.08.8 and the tools here are" in problem
    lines.write_text(kept)


def test_an_archive_brings_it_to_another_machine(site: OwnSite) -> None:
    """Unpacked at the same place it is the same plugin."""
    archive = site.home / "vm.tar.gz"
    told = site.spank.package(archive)
    assert "unpack it on each machine where users submit" in told[0]
    unpacked = site.home / "login"
    unpacked.mkdir()
    subprocess.run(["tar", "-C", unpacked, "-xzf", archive], check=True)
    there = unpacked / str(site.home / "spank").lstrip("/")
    for name in (install.PLUGIN, install.LINES):
        assert (there / name).read_bytes() == (site.home / "spank" / name).read_bytes()


@pytest.mark.parametrize(
    ("options", "asked", "features"),
    [
        (
            "--vm-per-node=2 --vcpu-per-vm=4 --mem-per-vm=2G --disk-size=512M --vm-image=mpi "
            "--vm-network=lan --sriov --ivshmem --num-ivshmem=2 --ivshm-sz=128 --vm-place=spread",
            _FULL,
            "own-vm",
        ),
        ("--ivshmem", MachineRequest(regions=(256,), held=True), "own-vm"),
        ("--vcpu-per-vm=2 -C fast|slow", MachineRequest(cpus=2, held=True), "(fast|slow)&own-vm"),
        ("-C own-vm&fast", _PLAIN, "own-vm&fast"),
        ("--comment=mine;backfill-vm:mem=1G", MachineRequest(memory_mb=1024, held=True), "own-vm"),
        ("-p batch", _PLAIN, "own-vm"),
        ("-p batch,any", None, ""),
        ("-J noted --sriov=2", MachineRequest(sriov=2, held=True), "own-vm"),
        ("-H --vcpu-per-vm=1", MachineRequest(cpus=1), "own-vm"),
        ("-a 1-3 --vcpu-per-vm=1", MachineRequest(cpus=1, held=True), "own-vm"),
        ("--vcpu-per-vm=1 : -p any", MachineRequest(cpus=1, held=True), "own-vm"),
        ("-H", None, ""),
        ("-p metal -H -w bm1 --vm-per-node=2", MachineRequest(2), ""),
        ("-p metal -H -C fast", None, "fast"),
    ],
)
def test_what_is_asked_for_reaches_the_daemon(
    site: OwnSite, options: str, asked: MachineRequest | None, features: str
) -> None:
    """Held and routed; a job that asks for nothing is left alone."""
    where = [] if "-p " in options and ":" not in options else ["-p", "any"]
    job = site.submit(*where, *options.split())
    assert (job.machines, job.features) == (asked, features)
    if asked is not None or "-H" in options:
        assert (job.priority, job.reason) == (0, "JobHeldUser")
    else:
        assert job.reason != "JobHeldUser"
    site.run("scancel", job.id.partition("_")[0].partition("+")[0])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--vm-per-node=0", "--vm-per-node=0: use a number from 1 to 64"),
        ("--vcpu-per-vm=many", "--vcpu-per-vm=many: use a number from 1 to 4096"),
        ("--mem-per-vm=-1", "--mem-per-vm=-1: use a size such as 2048 (MB) or 2G"),
        ("--mem-per-vm=9999999999", "use a size such as 2048 (MB) or 2G"),
        ("--disk-size=1.5G", "--disk-size=1.5G: use a size such as 20 (GB) or 500M"),
        ("--disk-size=20000", "--disk-size=20000 is more than the 20 GB that a machine's disk may have"),
        ("-p metal --disk-size=20481M", "is more than the 20 GB that a machine's disk may have"),
        ("--vm-image=../../etc/passwd", "use a name of letters, digits and . _ -"),
        ("--vm-image=a,cpus=99", "use a name of letters, digits and . _ -"),
        ("--vm-image=gold", "may not have image gold: it is for user bob"),
        ("-p metal --comment=backfill-vm:image=gold", "may not have image gold"),
        ("--vm-network=$(reboot)", "use a name of letters, digits and . _ -"),
        ("--vm-network=wan", "--vm-network=wan: there is no network of that name, use lan, ours"),
        ("--vm-network=ours", "may not have network ours: it is for user bob, account physics"),
        ("-p metal --comment=backfill-vm:network=ours", "may not have network ours"),
        ("--sriov=x", "--sriov=x: use a number from 1 to 64"),
        ("--vm-place=here", "--vm-place=here: use together or spread"),
        ("--num-ivshmem=17", "--num-ivshmem=17: use a number from 1 to 16"),
        ("--ivshm-sz=100", "use sizes that are powers of two such as 256 or 256,128 (MB), 16 at most"),
        ("--num-ivshmem=2", "--num-ivshmem and --ivshm-sz need --ivshmem"),
        ("--ivshmem --num-ivshmem=3 --ivshm-sz=1,2", "takes one size, or as many as --num-ivshmem says"),
        ("--vcpu-per-vm=1 -c 4", "is less than one task takes (--cpus-per-task=4)"),
        ("--mem-per-vm=100 --mem=500", "is less than the 500 MB that the job takes on each node"),
        ("--vcpu-per-vm=1 -w bm1", "leave out --nodelist"),
        ("--vcpu-per-vm=1 --reservation=x", "leave out --reservation"),
        ("--vcpu-per-vm=1 -C [fast|slow]", "no [ ] and no *"),
        ("-p idle --vcpu-per-vm=1", "partition idle has no machines that are a job's own: name one of any,"),
        ("-p any,batch --vcpu-per-vm=1", "partition any,batch has no machines that are a job's own"),
        ("-p metal --comment=backfill-vm:at=vn1", "unknown key at: use per_node"),
        ("--comment=backfill-vm:cpu=2", "unknown key cpu: use per_node, cpus, mem"),
        ("--comment=backfill-vm:mem=x", "mem=x: use a size such as 2048 (MB) or 2G"),
        ("--comment=backfill-vm:ivshmem=3", "ivshmem=3: use sizes that are powers of two"),
        ("--comment=backfill-vm:cpus=1,cpus=2", "says cpus more than once"),
        ("--reservation=backfill-job-1", "reservation backfill-job-1 is for the machines of one job"),
        ("--reservation=x,backfill-job-1", "reservation backfill-job-1 is for the machines of one job"),
    ],
)
def test_nonsense_is_refused_with_one_sentence(site: OwnSite, options: str, said: str) -> None:
    """At the user's terminal; nothing is submitted."""
    before = set(site.rig.manager.observe().jobs)
    assert said in site.refusal(*options.split())
    assert set(site.rig.manager.observe().jobs) == before


def test_its_owner_cannot_undo_it(site: OwnSite) -> None:
    """Neither the hold nor the routing, and he can still change what does not matter."""
    job = site.submit("-p", "any", "--vcpu-per-vm=2")
    changes = ("Features=fast", "Priority=9", "ReqNodeList=bm1", "Partition=batch", "StartTime=now+10")
    for change in (*changes, "ReservationName=backfill-job-1", "AdminComment=mine"):
        assert site.run("scontrol", "update", f"JobId={job.id}", change).returncode != 0, change
    assert site.run("scontrol", "release", job.id).returncode != 0
    assert site.run("scontrol", "update", f"JobId={job.id}", "Comment=backfill-vm:cpus=64").returncode == 0
    now = site.rig.manager.read_jobs([job.id])[job.id]
    assert (now.features, now.priority, now.machines) == ("own-vm", 0, job.machines)
    mine = site.submit("-p", "any", "-H", "--vcpu-per-vm=2")
    assert site.run("scontrol", "release", mine.id).returncode == 0
    seen = site.rig.manager.read_jobs([mine.id])[mine.id]
    assert (seen.state, seen.nodes) == (JobState.PENDING, ())
    assert seen.reason != "JobHeldUser"
    site.clear()


def test_a_daemon_that_runs_as_slurm_user_pins_a_job(site: OwnSite) -> None:
    """Slurmctld asks the script of changes by anybody: it knows SlurmUser, and the job begins."""
    lab, tools = site.rig.lab, commands_of(site.rig.lab)
    uid, gid = user_ids(lab.dir / "etc", SLURM_USER)
    become = ("setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups")
    manager = SlurmManager(replace(tools, prefix=(*tools.prefix, *become)))
    job, host = site.submit("-p", "any", "--vcpu-per-vm=1", "-n1"), site.rig.hosts[0]
    manager.hold_job(job.id)
    site.rig.ctl("scontrol", "update", f"JobId={job.id}", "Features=")  # a host stands for its machine
    manager.pin_job(job.id, [host])
    manager.release_job(job.id)
    assert await_state(site.rig, job.id, JobState.COMPLETED).nodes == (host,)
    manager.unpin_job(job.id)
    site.clear()


def test_components_have_machines_of_their_own_and_start_together(site: OwnSite) -> None:
    """Each is pinned to its own nodes; one release by any of them lets all go, and one holds all."""
    script = str(site.rig.lab.shared / "job.sh")
    common = ("-p", "any", "-D", "/tmp", "-o", "/dev/null", "--vcpu-per-vm=1", "-n1")
    done = site.run("sbatch", "--parsable", *common, ":", "-p", "any", "--vcpu-per-vm=2", "-n1", script)
    assert done.returncode == 0, done.stderr
    parts = [f"{done.stdout.strip()}+{number}" for number in (0, 1)]
    manager = site.rig.manager
    manager.hold_job(parts[1])
    jobs = manager.read_jobs(parts)
    assert [jobs[part].reason for part in parts] == ["JobHeldAdmin"] * 2
    assert [jobs[part].machines for part in parts] == [MachineRequest(cpus=n, held=True) for n in (1, 2)]
    for part, host in zip(parts, site.rig.hosts, strict=True):
        # There are no machines of theirs here: the hosts stand for them.
        site.rig.ctl("scontrol", "update", f"JobId={part}", "Features=")
        manager.pin_job(part, [host])
    manager.release_job(parts[1])
    nodes = [await_state(site.rig, part, JobState.RUNNING).nodes for part in parts]
    assert nodes == [(host,) for host in site.rig.hosts]
    site.run("scancel", done.stdout.strip())
    for part in parts:
        site.rig.until(lambda part=part: not manager.read_jobs([part])[part].holds_nodes)  # type: ignore[misc]
        manager.unpin_job(part)
    site.clear()


def test_without_a_feature_constraints_stay_as_they_are(site: OwnSite) -> None:
    """The policy file names none: the word and the hold are all, and a constraint asks for nothing."""
    site.install_script("")
    asking = site.submit("-p", "any", "--vcpu-per-vm=2", "-C", "fast|slow")
    assert (asking.features, asking.machines) == ("fast|slow", MachineRequest(cpus=2, held=True))
    plain = site.submit("-p", "any", "--vcpu-per-vm=2")
    assert (plain.features, plain.machines) == ("", MachineRequest(cpus=2, held=True))
    assert site.submit("-p", "any", "-C", "own-vm").machines is None
    site.install_script()
    site.clear()


@pytest.mark.parametrize("line", ["", "optional {home}/nowhere/missing.so\n"])
def test_a_guest_without_the_plugin_runs_the_job(site: OwnSite, line: str) -> None:
    """It gets plugstack.conf and not the plugin: the job ends as COMPLETED, having run with its step."""
    kept = site.plugstack.read_text()
    site.plugstack.write_text(kept + line.format(home=site.home))
    vn1 = NodeSpec("vn1", "10.77.1.1", cpus=2, memory_mb=500, features=("own-vm",))
    site.rig.manager.create_node(vn1)
    away = site.home / "away"
    job = _with_output(site, "--vcpu-per-vm=2", "-N1", "-n1")
    (site.home / "spank").rename(away)
    try:
        site.rig.register(vn1)
        site.rig.until(lambda: site.rig.manager.read_nodes(["vn1"])["vn1"].slurmd_start_s > 0)
        site.rig.manager.hold_job(job)
        site.rig.manager.pin_job(job, ["vn1"])
        site.rig.manager.undrain("vn1", heard=True)
        site.rig.manager.release_job(job)
        done = await_state(site.rig, job, JobState.COMPLETED)
    finally:
        away.rename(site.home / "spank")
        site.plugstack.write_text(kept)
    assert done.nodes == ("vn1",)
    assert (site.rig.done / f"{job}.out").read_text().split() == ["ran", "on", "vn1", "cpus=2", "and", "vn1"]
    site.rig.manager.unpin_job(job)
    site.clear()


def _with_output(site: OwnSite, *options: str) -> str:
    """A job that tells where it ran, and what its environment says of its machines."""
    script = site.rig.lab.shared / "told.sh"
    told = "echo ran on $(hostname) $SLURM_SPANK_BACKFILL_VM and $(srun hostname)"
    script.write_text(f"#!/bin/sh\n{told} > {site.rig.done}/$SLURM_JOB_ID.out\n")
    script.chmod(0o755)
    submitted = site.run("sbatch", "--parsable", "-p", "any", "-D", "/tmp", *options, str(script))
    assert submitted.returncode == 0, submitted.stderr
    return submitted.stdout.strip()
