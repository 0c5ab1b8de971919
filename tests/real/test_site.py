"""The main job at a site: an ordinary user's job makes room for another's, goes on, and is booked."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from backfill.lab import roots
from backfill.lab.spec import SLURM_USER
from tests.real.daemon_rig import MIGRATE, REQUEUE, SUSPEND
from tests.real.site_rig import SiteRig, site

pytestmark = pytest.mark.real
# CI has the daemon as root on the oldest release; `make soak` the rest.
_SITES = [
    (roots.INSTALLED, "root", False),
    pytest.param((roots.INSTALLED, SLURM_USER, True), marks=pytest.mark.soak),
    pytest.param(("24.11", "root", True), marks=pytest.mark.soak),
    pytest.param(("24.11", SLURM_USER, False), marks=pytest.mark.soak),
]


@pytest.fixture(scope="module", params=_SITES, ids=str)
def installed(request: pytest.FixtureRequest) -> Iterator[SiteRig]:
    release, user, configless = request.param
    with site("site", release, configless=configless) as rig:
        rig.install(user)
        yield rig


def test_the_hook_is_believed(installed: SiteRig) -> None:
    """slurmctld, which is no root, calls the hook that the daemon's own check has tried."""
    assert "fits the cluster" in installed.check()[1]


def test_what_is_missing_is_told(installed: SiteRig) -> None:
    """A file that is not there, or not for the daemon's user: with line and path."""
    rig = installed
    image = rig.policy()["libvirt"]["images"]["default"] | {"kernel": "/srv/none/vmlinuz"}
    rig.write_policy(libvirt={"images": {"default": image}})
    code, said = rig.check()
    rig.write_policy()
    assert code == 78
    assert "default.kernel: /srv/none/vmlinuz cannot be read: No such file" in said
    code, said = rig.check(user="nobody")
    assert code != 0
    assert "Permission denied" in said


def test_a_lost_partition_comes_back(installed: SiteRig) -> None:
    """22.05 forgets in a reconfigure that a node behind a deleted one is in a partition."""
    rig = installed
    rig.ctl("scontrol", "create", "NodeName=gap", "NodeAddr=127.0.0.1", "State=FUTURE")
    low = rig.low()
    name, _ = rig.where(low)
    rig.finish(low)
    rig.ctl("scontrol", "delete", "NodeName=gap")
    rig.ctl("scontrol", "reconfigure")
    again = rig.low()
    assert rig.where(again)[0] == name
    rig.finish(again)
    if rig.lab.spec.slurm_version == roots.INSTALLED:
        assert "it is in its partitions again" in rig.backfill("explain", name)
    rig.judge()


def test_hooks_on_the_hosts_wait_for_guests(installed: SiteRig) -> None:
    """A guest that is up lacks what slurm.conf would name: Slurm would drain its node and hold its job."""
    rig = installed
    low = rig.low()
    rig.write_policy(slurm={"hooks": {"place": "host"}}, daemon={"listen": "10.77.0.1:6833"})
    argv = ["slurm", "hooks", "install", "--config", "/etc/backfill/policy.yaml"]
    done = rig.try_("ctl", "/opt/backfill/bin/backfill", *argv)
    rig.write_policy()
    assert done.returncode == 1
    assert f"{rig.where(low)[0]}: guests that are up may lack the programs" in done.stderr
    assert "\nProlog=" not in rig.ctl("cat", "/etc/slurm/backfill.conf")
    rig.finish(low)


def test_evicted_by_a_pause_and_back(installed: SiteRig) -> None:
    """Nothing of the pushed job is lost or done twice, and the books know one run of each."""
    rig = installed
    low = rig.low()
    name, host = rig.where(low)
    high = rig.takes("bob", host)
    rig.becomes(name, "parked")
    assert rig.state(low) == "SUSPENDED"
    rig.release(high)
    rig.counting(low)
    assert rig.where(low) == (name, host)
    rig.finish(low)
    assert rig.booked(low, "user", "account", "state", "nodelist") == [f"ada|physics|COMPLETED|{name}"]
    assert rig.booked(high, "user", "account", "state", "nodelist") == [f"bob|biology|COMPLETED|{host}"]
    rig.judge()


@pytest.mark.soak
def test_evicted_to_disk_and_back(installed: SiteRig) -> None:
    """The memory of its instance is written and read again, whoever the daemon is."""
    rig = installed
    rig.restart(ladder=[SUSPEND, REQUEUE], proof="memory")
    low = rig.low()
    name, host = rig.where(low)
    high = rig.takes("bob", host)
    rig.becomes(name, "parked")
    rig.until(lambda: rig.instance(name)["state"] == "suspended", what="its memory on disk")
    rig.release(high)
    rig.counting(low)
    assert rig.show(low)["Restarts"] == "0"
    rig.finish(low)
    rig.judge()


@pytest.mark.soak
def test_evicted_by_a_move(installed: SiteRig) -> None:
    """It goes on at the other host, and from there back to the first."""
    rig = installed
    rig.restart(ladder=[MIGRATE, REQUEUE])
    low = rig.low()
    name, host = rig.where(low)
    there = next(other for other in rig.lab.hosts if other != host)
    for start, end in ((host, there), (there, host)):
        high = rig.takes("bob", start)
        rig.until(partial(_is_at, rig, low, name, end), what=f"its move to {end}")
        rig.becomes(name, "ready")
        rig.counting(low)
        rig.release(high)
    assert rig.show(low)["Restarts"] == "0"
    rig.finish(low)
    rig.judge()


def _is_at(rig: SiteRig, job: str, name: str, host: str) -> bool:
    return rig.where(job) == (name, host)


def test_hooks_go_and_come(installed: SiteRig) -> None:
    """Beside a directory of state that only the daemon may enter; nothing of them is left meanwhile."""
    rig = installed
    verbs = ["slurm", "hooks"], ["--config", "/etc/backfill/policy.yaml"]
    assert rig.sh("ctl", "stat -c %a /var/lib/backfill") == "750"
    rig.backfill(*verbs[0], "remove", *verbs[1])
    rig.copy_conf()
    assert "backfill" not in rig.ctl("sh", "-c", "scontrol show config | grep -i -e Prolog -e JobSubmit")
    rig.backfill(*verbs[0], "install", *verbs[1])
    rig.copy_conf()
    low = rig.low()
    rig.finish(low)
    status = rig.ask("status")
    assert status["hooks_not_believed"] == []
    rig.judge()
