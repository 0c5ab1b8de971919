"""Mistakes of an admin's first day at a site that was set up: each is told with its remedy, and harmless."""

from __future__ import annotations

import json
from collections.abc import Iterator
from subprocess import CompletedProcess

import pytest

from backfill.lab import roots
from backfill.lab.site.conf import SHARED
from backfill.lab.spec import JOB_USER, SLURM_USER
from tests.real.site_rig import SiteRig, site

pytestmark = [pytest.mark.real, pytest.mark.soak]

_PROGRAM = "/opt/backfill/bin/backfill"
_POLICY, _KEY, _STATE = "/etc/backfill/policy.yaml", "/etc/backfill/munge.key", "/var/lib/backfill"
_CHECK = (_PROGRAM, "daemon", "--config", _POLICY, "--check")
_ROOMY_KB, _FULL_KB = 2048, 1


@pytest.fixture(scope="module")
def rig() -> Iterator[SiteRig]:
    with site("beginner", roots.INSTALLED) as made:
        made.install_program()
        made.set_up(made.options_of_setup())
        made.until(lambda: not codes(made), what="a sound site")
        yield made


def codes(rig: SiteRig) -> dict[str, str]:
    """What doctor finds, by code, and what mends it."""
    told = json.loads(rig.try_("ctl", _PROGRAM, "doctor", "--json").stdout)
    return {one["code"]: one["mend"] for found in told["checks"].values() for one in found}


def checked(rig: SiteRig) -> CompletedProcess[str]:
    """`daemon --check` by the daemon's own user."""
    return rig.try_("ctl", *_CHECK, user=SLURM_USER)


def restarted(rig: SiteRig) -> str:
    """Start the daemon again, whatever comes of it; what its log has since."""
    began = rig.sh("ctl", "date '+%F %T.%N'")
    rig.try_("ctl", "systemctl", "restart", "backfill")
    log = ["journalctl", "-u", "backfill", "-o", "cat", "--no-pager", "--since", began]
    return rig.try_("ctl", *log).stdout


def serves(rig: SiteRig) -> None:
    """Wait until the daemon is at work again."""
    rig.sh("ctl", "systemctl reset-failed backfill; systemctl start backfill")
    rig.until(rig.sees_all, what="the daemon at work")


def test_a_key_of_the_wrong_owner(rig: SiteRig) -> None:
    """Nothing that runs is ended for it; new instances would lack it."""
    rig.sh("ctl", f"chown root {_KEY}")
    found, said = codes(rig), checked(rig)
    assert list(found) == ["munge-key-unreadable"]
    assert f"-o {SLURM_USER}" in found["munge-key-unreadable"]
    assert (said.returncode, f"{_KEY} cannot be read: Permission denied" in said.stderr) == (78, True)
    by_root = rig.try_("ctl", *_CHECK)
    assert (by_root.returncode, f"the daemon is {SLURM_USER}: `backfill doctor`" in by_root.stdout) == (
        0,
        True,
    )
    assert f"{_KEY} cannot be read" in restarted(rig)
    serves(rig)
    rig.sh("ctl", f"chown {SLURM_USER} {_KEY}")


def test_a_typing_error_in_the_policy_file(rig: SiteRig) -> None:
    """What is in force stays so; a new start is refused; both with the line and the word that was meant."""
    rig.sh("ctl", f"sed -i 's/^ladder:/laddder:/' {_POLICY}")
    told = "laddder is not a known key; did you mean ladder?"
    reload = rig.try_("ctl", _PROGRAM, "policy", "reload")
    assert reload.returncode != 0
    assert told in reload.stderr
    assert "stay in force" in reload.stderr
    assert "laddder" in rig.backfill("status")
    assert list(codes(rig)) == ["policy-mistake"]
    assert told in restarted(rig)
    rig.sh("ctl", f"sed -i 's/^laddder:/ladder:/' {_POLICY}")
    serves(rig)


def test_a_second_daemon(rig: SiteRig) -> None:
    """By its own user, by root, and with a state directory of its own, where the lease tells."""
    other = f"sed 's#^slurm:#daemon: {{state_dir: /tmp/own, socket: /tmp/own/s}}\\nslurm:#' {_POLICY}"
    rig.sh("ctl", f"{other} >/tmp/own.yaml; cp /etc/backfill/images.yaml /tmp; chmod 644 /tmp/*.yaml")
    for user, file, told in (
        (SLURM_USER, _POLICY, "another daemon (pid "),
        ("root", _POLICY, "another daemon (pid "),
        (SLURM_USER, "/tmp/own.yaml", "is at work on this cluster; stop that one first"),
    ):
        done = rig.try_("ctl", _PROGRAM, "daemon", "--config", file, user=user)
        assert (done.returncode, told in done.stderr) == (69, True), done.stderr
    assert rig.sees_all()


def test_a_first_start_by_root(rig: SiteRig) -> None:
    """Its files are closed to the unit's user afterwards: doctor and the daemon tell, in one sentence."""
    rig.sh("ctl", f"systemctl stop backfill; rm -f {_STATE}/journal.db* {_STATE}/daemon.* {_STATE}/audit.log")
    rig.sh("ctl", f"{_PROGRAM} daemon --config {_POLICY} >/tmp/log 2>&1 & echo $! >/tmp/pid")
    rig.until(lambda: "2 hosts" in rig.sh("ctl", "cat /tmp/log"), what="a daemon of root's")
    rig.sh("ctl", "kill $(cat /tmp/pid); while kill -0 $(cat /tmp/pid) 2>/dev/null; do sleep 0.1; done")
    mend = f"chown -R {SLURM_USER} {_STATE}"
    assert codes(rig)["state-dir"] == mend
    assert mend in checked(rig).stderr
    log = restarted(rig)
    assert mend in log
    assert "Traceback" not in log
    rig.sh("ctl", mend)
    serves(rig)


def test_slurmctld_is_down(rig: SiteRig) -> None:
    """One fault and no other; the daemon waits for it, and systemd for the daemon."""
    rig.sh("ctl", "systemctl stop slurmctld")
    found, said = codes(rig), checked(rig)
    assert list(found) == ["slurm-silent"]
    assert "systemctl status slurmctld" in found["slurm-silent"]
    assert (said.returncode, "Unable to contact slurm controller" in said.stderr) == (69, True)
    rig.until(lambda: "cannot be read now" in rig.backfill("status"), what="the daemon's word of it")
    assert "Unable to contact slurm controller" in restarted(rig)
    rig.sh("ctl", "systemctl start slurmctld")
    rig.until(rig.sees_all, what="the daemon, started by systemd")


def test_a_host_without_libvirt(rig: SiteRig) -> None:
    """The others go on; the host is named wherever one looks."""
    sockets = "libvirtd.socket libvirtd-ro.socket libvirtd-admin.socket libvirtd-tcp.socket"
    rig.sh("bm1", f"systemctl stop libvirtd {sockets}")
    found, said = codes(rig), checked(rig)
    assert set(found) == {"host-silent", "policy-hint"}
    assert "libvirtd" in found["host-silent"]
    assert (said.returncode, "host bm1 cannot be reached now" in said.stderr) == (0, True)
    rig.until(lambda: "bm1 cannot be reached" in rig.backfill("status"), what="the daemon's word of it")
    rig.sh("bm1", "systemctl start libvirtd.socket libvirtd-tcp.socket libvirtd")
    rig.until(lambda: not codes(rig), what="a sound site")


def test_a_missing_image(rig: SiteRig) -> None:
    """Before a job comes, and to the owner of one that waits."""
    disk = rig.sh("ctl", "sed -n 's/ *disk: //p' /etc/backfill/images.yaml")
    rig.sh("ctl", f"mv {disk} {disk}.away")
    assert list(codes(rig)) == ["image-missing"]
    assert f"{disk} cannot be read: No such file or directory" in checked(rig).stderr
    job = rig.submit_as(JOB_USER, "-p", "htc", "--wrap", "true")
    why = "cannot read the image: No such file or directory"
    rig.until(lambda: why in rig.backfill("explain", job), what="why no instance comes")
    assert why in rig.backfill("status")
    rig.sh("ctl", f"mv {disk}.away {disk}")
    rig.until(lambda: rig.state(job) == "COMPLETED", what="the job, by itself")


def test_a_full_disk(rig: SiteRig) -> None:
    """One sentence instead of a traceback; with room again the daemon comes back by itself."""
    rig.sh("ctl", "systemctl stop backfill")
    user = rig.sh("ctl", f"id -u {SLURM_USER}")
    rig.sh("ctl", f"mount -t tmpfs -o size={_ROOMY_KB}k,uid={user},mode=750 small {_STATE}")
    rig.sh("ctl", f"head -c {2 * _ROOMY_KB}k /dev/zero >{_STATE}/fill || true")
    assert "state-dir-full" in codes(rig)
    log = restarted(rig)
    assert "No space left on device; make room there" in log, log
    assert "Traceback" not in log
    rig.sh("ctl", f"rm {_STATE}/fill")
    rig.until(rig.sees_all, what="the daemon, started by systemd")
    rig.sh("ctl", f"systemctl stop backfill; umount {_STATE}")
    serves(rig)


def test_no_hooks(rig: SiteRig) -> None:
    """All works, and hosts are given back late: told with the command."""
    rig.backfill("slurm", "hooks", "remove", "--config", _POLICY)
    rig.copy_conf()
    rig.sh("ctl", "systemctl restart slurmctld")
    install = f"backfill slurm hooks install --config {_POLICY}"
    rig.until(lambda: codes(rig) == {"hook-missing": install}, what="doctor's word of it")
    said = checked(rig)
    assert (said.returncode, "install the eviction hook" in said.stderr) == (0, True)
    assert "install the eviction hook" in restarted(rig)
    rig.backfill(*install.split()[1:])
    rig.copy_conf()
    rig.sh("ctl", "systemctl restart slurmctld")
    rig.until(lambda: not codes(rig), what="a sound site")


def test_a_share_that_is_not_mounted(rig: SiteRig) -> None:
    """The last one: what a lab's host has in common with the others is not mounted from inside again."""
    rig.sh("bm2", f"umount -l {SHARED}")
    found = codes(rig)
    assert set(found) == {"directory-not-shared", "image-not-on-host"}
    assert found["directory-not-shared"].startswith("mount the shared directory ")
