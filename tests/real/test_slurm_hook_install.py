"""Our hooks in a real Slurm that has hooks of its own: all run, none is harmed, none is left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from backfill.core.model.cluster import JobState
from backfill.drivers.slurm.conf.managed import FEATURES_NODE, Method, WantedNodes
from backfill.drivers.slurm.hooks.install import HookPlan, Hooks
from backfill.drivers.slurm.hooks.submit_lua import Gate
from backfill.ports.workload import NodeSpec
from tests.component.hook_daemon import HookDaemon
from tests.contract.workload_rig import await_state
from tests.real.conf_lab import conf_lab, site_directory, transactions_of
from tests.real.releases import OLDEST_AND_NEWEST
from tests.real.slurm_lab import RealRig, until

pytestmark = pytest.mark.real
_PROLOG = "#!/bin/sh\necho $SLURM_JOB_ID $SLURM_SCRIPT_CONTEXT >> {dir}/site.out\nexit 0\n"
_LUA = """-- the site's
function slurm_job_submit(job_desc, part_list, uid)
  if job_desc.name == "forbidden" then return slurm.ERROR end
  job_desc.comment = "seen by the site"
  return slurm.SUCCESS
end
function slurm_job_modify(job_desc, job_rec, part_list, uid)
  return slurm.SUCCESS
end
return slurm.SUCCESS
"""


@dataclass
class Site:
    """A cluster with hooks of its own."""

    rig: RealRig
    home: Path

    @property
    def hooks(self) -> Hooks:
        return Hooks(transactions_of(self.rig.lab), self.home / "ours")

    @property
    def socket(self) -> Path:
        return self.home / "sock"

    def install(self, timeout_ms: int = 3000) -> None:
        """As `backfill slurm hooks install` does."""
        endpoint = f"unix:{self.socket}"
        log = self.home / "hook.log"
        gates = (Gate("root6", ("ada",), ("hep",), "may not have root6: it is for user ada"),)
        ours = self.home / "ours"
        plan = HookPlan("slurmctld", ours, endpoint, timeout_ms, log, endpoint, gates=gates)
        self.hooks.install(plan, self.rig.manager.settings().version)

    def files(self) -> dict[str, tuple[int, bytes]]:
        """What the site has in its configuration directory, our own file left out."""
        directory = self.rig.lab.slurm_conf.parent
        kept = [p for p in directory.iterdir() if p.is_file() and p.name != "backfill.conf"]
        return {p.name: (p.stat().st_mode, p.read_bytes()) for p in kept}

    def prologs(self) -> list[str]:
        """The lines that the site's prolog has written."""
        out = self.home / "site.out"
        return out.read_text().splitlines() if out.exists() else []


@pytest.fixture(scope="module", params=OLDEST_AND_NEWEST)
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    extra = ("PrologSlurmctld={dir}/prolog", "JobSubmitPlugins=all_partitions,lua")
    options = {"extra_conf": extra, "before": {"job_submit.lua": _LUA}, "program": _PROLOG}
    with conf_lab("hooks", release=request.param, **options) as lab:
        yield Site(RealRig.of(lab), site_directory(lab))


def test_the_sites_hooks_and_ours_all_run(site: Site) -> None:
    """The daemon hears of each job; the site's prolog and script do their work as before."""
    before = site.files()
    site.install()
    site.install()
    assert site.hooks.status().problems == ()
    with HookDaemon(site.socket) as daemon:
        job = site.rig.submit(site.rig.hosts[0], name="welcome")
        await_state(site.rig, job, JobState.RUNNING)
        until(lambda: {"arrived", "allocated"} <= {r.split()[1] for r in daemon.requests})
        until(lambda: f"{job} prolog_slurmctld" in site.prologs())
        assert site.rig.ctl("squeue", "-h", "-j", job, "-O", "comment:64") == "seen by the site"
        refused = site.rig.lab.run("ctl", ["sbatch", "-J", "forbidden", "--wrap", "true"])
        assert refused.returncode != 0
        refused = site.rig.lab.run("ctl", ["sbatch", "-C", "x&root6*1", "--wrap", "true"])
        assert refused.returncode != 0
        assert "user root of account (none) may not have root6" in refused.stderr
        changed = ["scontrol", "update", f"JobId={job}", "Features=root6"]
        assert site.rig.lab.run("ctl", changed).returncode != 0
        site.rig.finish(job)
        until(lambda: "ended" in {r.split()[1] for r in daemon.requests})
    site.socket.unlink(missing_ok=True)
    # With the daemon dead a job starts all the same, and nothing fails.
    job = site.rig.submit(site.rig.hosts[0])
    await_state(site.rig, job, JobState.RUNNING)
    assert f"job={job} " in (site.home / "hook.log").read_text()
    site.rig.finish(job)
    site.hooks.remove()
    assert site.files() == before
    assert not (site.home / "ours").exists()
    used = site.rig.manager.settings()
    assert "ours" not in used.prolog_slurmctld
    # slurmctld has kept our script in memory; the site's own is read in its place.
    refused = site.rig.lab.run("ctl", ["sbatch", "-C", "x&root6*1", "--wrap", "true"])
    assert refused.returncode != 0
    assert "may not have root6" not in refused.stderr
    refused = site.rig.lab.run("ctl", ["sbatch", "-J", "forbidden", "--wrap", "true"])
    assert refused.returncode != 0
    job = site.rig.submit(site.rig.hosts[0])
    await_state(site.rig, job, JobState.RUNNING)
    until(lambda: f"{job} prolog_slurmctld" in site.prologs())
    assert site.rig.ctl("squeue", "-h", "-j", job, "-O", "comment:64") == "seen by the site"
    site.rig.finish(job)
    site.rig.reset()


def test_a_feature_may_be_asked_for_before_any_node_has_it(site: Site) -> None:
    """Slurm refuses what it knows of no node; the managed file's line makes it known."""
    wish = ["sbatch", "-H", "-C", "software7", "--wrap", "true"]
    assert "feature" in site.rig.lab.run("ctl", wish).stderr
    change = transactions_of(site.rig.lab)
    before = site.rig.manager.observe().nodes.keys()
    line = NodeSpec(FEATURES_NODE, "127.0.0.1", 1, 1, ("software7",))
    wanted = WantedNodes(Method.DYNAMIC, (), "/bin/true", 120, line)
    change.apply(lambda now: wanted.change(now, change.site()))
    asked = site.rig.lab.run("ctl", [*wish, "--parsable"])
    assert asked.returncode == 0, asked.stderr
    assert site.rig.manager.observe().nodes.keys() == before
    site.rig.ctl("scancel", asked.stdout.strip())
    site.rig.reset()
