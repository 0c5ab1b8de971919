"""A site that `backfill setup` makes ready and doctor proves, at work under the locked-in unit, undone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from backfill.lab import roots
from backfill.lab.site.conf import SHARED, checkout
from backfill.lab.spec import JOB_USER, SLURM_USER
from tests.real.site_rig import SiteRig, site

pytestmark = [pytest.mark.real, pytest.mark.soak]
_FILES = ("/etc/slurm", "/etc/backfill", "/etc/systemd/system/backfill.service.d", "/usr/local/lib/backfill")


def _picture(rig: SiteRig, machine: str) -> str:
    """Return names, owners, modes and sums of all files that setup may touch there."""
    places = " ".join(_FILES)
    script = f"for d in {places}; do [ ! -e $d ] || find $d -type f -exec stat -c '%n %U:%G %a' {{}} + "
    script += "-exec sha256sum {} +; done | sort"
    return rig.sh(machine, script)


@pytest.fixture(scope="module")
def before() -> dict[str, str]:
    return {}


@pytest.fixture(scope="module")
def rig(before: dict[str, str]) -> Iterator[SiteRig]:
    with site("setup", roots.INSTALLED) as made:
        made.install_program()
        for machine in ("ctl", *made.lab.hosts):
            before[machine] = _picture(made, machine)
        yield made


def test_a_plan_changes_nothing(rig: SiteRig, before: dict[str, str]) -> None:
    shown = rig.backfill("setup", "--dry-run", *rig.options_of_setup())
    assert "+Include backfill.conf" in shown
    assert "munge.key (owner slurm, mode 400, a secret)" in shown
    assert _picture(rig, "ctl") == before["ctl"]


def _selects(rig: SiteRig, by: str, parameters: str) -> None:
    """Let Slurm select by another plugin, as the whole site has to, each machine with its own slurm.conf."""
    words = (
        f"s|^SelectType=.*|SelectType={by}|; s|^SelectTypeParameters=.*|SelectTypeParameters={parameters}|"
    )
    for machine in ("ctl", *rig.lab.hosts):
        rig.sh(machine, f"sed -i '{words}' /etc/slurm/slurm.conf")
    rig.sh("ctl", "systemctl restart slurmctld")
    for host in rig.lab.hosts:
        rig.sh(host, "systemctl restart slurmd")
    rig.until(lambda: rig.ctl("sinfo", "-h", "-o", "%T").split() == ["idle"], what="idle nodes")


def test_jobs_that_a_change_would_lose_are_not_ours_to_end(rig: SiteRig, before: dict[str, str]) -> None:
    """Slurm selects by whole nodes there, and a job runs: nothing is changed, and it goes on."""
    _selects(rig, "select/linear", "CR_Memory")
    plain = _picture(rig, "ctl")
    job = rig.takes("bob", rig.lab.hosts[0])
    told = rig.try_("ctl", rig.program, "setup", *rig.options_of_setup())
    assert told.returncode == 1, told.stdout + told.stderr
    why = "nothing was changed: SelectType would be select/cons_tres instead of select/linear"
    assert f"{why}, and 1 job runs or waits" in told.stderr
    assert _picture(rig, "ctl") == plain
    assert rig.state(job) == "RUNNING"
    rig.release(job)
    _selects(rig, "select/cons_tres", "CR_Core")
    assert _picture(rig, "ctl") == before["ctl"]


def test_it_is_set_up_and_sound(rig: SiteRig) -> None:
    """By the three commands that setup tells; a second setup has nothing to do."""
    options = rig.options_of_setup()
    assert "hosts.sh" in rig.set_up(options)
    assert "everything is as it should be" in rig.backfill("setup", *options)
    rig.until(lambda: rig.try_("ctl", *_DOCTOR).returncode == 0, what="a sound site")
    boot = rig.try_("ctl", *_DOCTOR, "--boot", "--json")
    assert json.loads(boot.stdout)["user"] == SLURM_USER
    assert boot.returncode == 0, boot.stdout + boot.stderr


_DOCTOR = ("/opt/backfill/bin/backfill", "doctor")


def test_the_daemon_is_locked_in(rig: SiteRig) -> None:
    """It is SlurmUser's, and what it could do beyond its work is little."""
    assert rig.sh("ctl", "ps -o user= -p $(systemctl show -P MainPID backfill)") == SLURM_USER
    told = rig.sh("ctl", "systemd-analyze security backfill --no-pager | tail -1")
    found = re.search(r"(\d+\.\d+) OK", told)
    assert found is not None, told
    assert float(found[1]) <= 2.0


def test_pilots_can_be_sent_from_within_it(rig: SiteRig) -> None:
    """The unit leaves SlurmUser the namespace in which sbatch names another user."""
    text = (checkout()[0] / "backfill/ui/setup/slurm-user.conf").read_text()
    bounds = " ".join(f"-p '{line}'" for line in text.splitlines() if re.match(r"[A-Z]\w+=", line))
    sent = (
        f"systemd-run -q --wait --pipe -p NoNewPrivileges=yes {bounds} unshare --user --map-root-user -- "
        f"sbatch --parsable -H -p htc --uid=$(id -u {JOB_USER}) --gid=$(id -g {JOB_USER}) -D /tmp"
    )
    job = rig.sh("ctl", f"printf '#!/bin/sh\\ntrue\\n' >/tmp/pilot && {sent} </tmp/pilot")
    shown = rig.sh("ctl", f"squeue -h -j {job} -o '%u %g'; scancel {job}")
    assert shown == f"{JOB_USER} {rig.sh('ctl', f'id -gn {JOB_USER}')}"


def test_work_under_it_pauses_and_goes_to_disk(rig: SiteRig) -> None:
    """An ordinary user's job makes room in memory first, and on disk when told to go on."""
    low = rig.low()
    name, host = rig.where(low)
    high = rig.takes("bob", host)
    rig.becomes(name, "parked")
    assert rig.state(low) == "SUSPENDED"
    rig.release(high)
    rig.counting(low)
    rig.sh("ctl", "sed -i '/rung: pause/,+2d' /etc/backfill/policy.yaml")
    rig.backfill("policy", "reload")
    high = rig.takes("bob", host)
    rig.becomes(name, "parked")
    rig.until(
        lambda: [i["state"] for i in rig.ask("instances")["instances"]] == ["suspended"], what="its suspend"
    )
    rig.release(high)
    rig.counting(low)
    rig.finish(low)
    rig.judge()


def test_all_is_taken_back(rig: SiteRig, before: dict[str, str]) -> None:
    """Not while work of ours is there; then files, owners and modes are what they were, and Slurm runs."""
    refused = rig.try_("ctl", *_UNDO)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "the daemon runs" in refused.stderr
    rig.sh("ctl", "printf 'scale: {idle_s: 0}\n' >>/etc/backfill/policy.yaml")
    rig.backfill("policy", "reload")
    rig.until(lambda: not rig.nodes(), what="the end of all instances")
    rig.sh("ctl", "systemctl disable --now backfill; rm -r /srv/backfill/image")
    told = rig.try_("ctl", *_UNDO)
    assert told.returncode == 0, told.stderr
    assert told.stderr.splitlines() == [
        "backfill: /etc/backfill/policy.yaml stays: somebody has changed it since",
        f"backfill: {SHARED}/instances stays: it is not empty",
        "backfill: /etc/backfill stays: it is not empty",
    ], told.stderr
    rig.sh("ctl", "rm -r /etc/backfill")
    for host in rig.lab.hosts:
        rig.sh(host, "sh /var/lib/backfill-host/undo.sh")
        assert _picture(rig, host) == before[host]
    assert _picture(rig, "ctl") == before["ctl"]
    assert rig.sh("ctl", "scontrol ping").endswith("UP")
    assert "htc" not in rig.sh("ctl", "sinfo -h -o %P")


_UNDO = ("/opt/backfill/bin/backfill", "setup", "--undo")
