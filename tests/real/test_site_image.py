"""The image of a site: systemd and the site's people in it, nobody becomes root, and clones of it work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from backfill.core.model.fleet import CloneMethod
from backfill.drivers.libvirt.settings import ImageFiles
from backfill.lab import debian, roots
from backfill.lab.image import GuestImage
from backfill.lab.siteimage.build import build
from backfill.lab.siteimage.recipe import SiteRecipe
from backfill.lab.spec import CONTROLLER_ADDRESS, JOB_USER, SLURM_USER
from tests.contract.instance_rig import SMALL, spec
from tests.real.attacker import found_in, loot
from tests.real.libvirt_rig import IMAGE, LibvirtRig, running_lab
from tests.real.site_rig import SiteRig, site

pytestmark = [pytest.mark.real, pytest.mark.soak]

_PEOPLE = {
    "passwd": "ada:x:2001:2001:A user of the cluster:/home/ada:/bin/bash\n"
    "bob:x:2002:2002:A user of the cluster:/home/bob:/bin/bash\n",
    "group": "ada:x:2001:\nbob:x:2002:\n",
    "hosts": f"{CONTROLLER_ADDRESS} ctl\n",
}
# What an ordinary user meets who would be root.
_ATTEMPTS = """
id -un
cat /proc/1/comm
find / -xdev -type f -perm /6000 2>/dev/null | head -3
for f in /bin/su /usr/bin/sudo /usr/bin/pkexec; do [ ! -x $f ] || $f -c id </dev/null 2>&1; done
cp /bin/bash /tmp/own && chmod 4755 /tmp/own && grep -c nosuid /proc/mounts
systemctl restart slurmd 2>&1
echo tried
"""


def guest_of(suite: str) -> GuestImage:
    """The image that an admin of the lab's sites would build."""
    return build(SiteRecipe(suite=suite, site=_PEOPLE))


@pytest.fixture(scope="module")
def small() -> Iterator[LibvirtRig]:
    """A lab without a daemon, whose driver makes guests of the image."""
    guest = guest_of(debian.OWN)
    with running_lab("site-image") as lab:
        words = guest.cmdline_under(lab.domain_type)
        files = ImageFiles(guest.kernel, guest.initrd, guest.disk, words, guest.disk_format)
        rig = LibvirtRig(lab, images={IMAGE: files})
        yield rig
        rig.end()


def test_it_comes_up_whole(small: LibvirtRig) -> None:
    """By systemd, of which no unit has failed; its slurmd runs, under the name of its seed."""
    host = small.provider.hosts[0]
    small.provider.create(spec(small, "vn1", host=host))
    small.booted("vn1")
    assert small.in_guest(host, "vn1", "cat /proc/1/comm; uname -n").split() == ["systemd", "vn1"]
    small.until(lambda: "running" in small.in_guest(host, "vn1", "systemctl is-system-running"))
    assert small.in_guest(host, "vn1", "systemctl --failed --no-legend") == ""
    assert "slurmd" in small.in_guest(host, "vn1", "cat /proc/$(cat /run/slurmd.pid)/comm")
    small.provider.delete(host, "vn1")


def test_instant_clones_of_it(small: LibvirtRig) -> None:
    """A parent is frozen, its canary sings, and two clones of it are two nodes."""
    host = small.provider.hosts[0]
    small.provider.make_parent(host, IMAGE, SMALL)
    who = "uname -n; cat /etc/machine-id; ip -4 -o addr show dev eth0; cat /proc/$(cat /run/slurmd.pid)/comm"
    seen = []
    for name in ("vn1", "vn2"):
        small.provider.create(replace(spec(small, name, host=host), method=CloneMethod.INSTANT))
        small.booted(name)
        seen.append(small.in_guest(host, name, who).splitlines())
        assert seen[-1][0] == name
        assert f"10.77.1.{name[2:]}/16" in seen[-1][2]
        assert seen[-1][3] == "slurmd"
    assert seen[0][1] != seen[1][1]


@pytest.fixture(scope="module", params=[debian.OWN, "trixie"])
def rig(request: pytest.FixtureRequest) -> Iterator[SiteRig]:
    """A site whose control groups need nothing written for guests: these have systemd."""
    release = {debian.OWN: roots.INSTALLED, "trixie": "24.11"}[request.param]
    with site("image", release, guest=guest_of(request.param)) as made:
        sed = "sed -i -E '/^IgnoreSystemd(OnFailure)?=/d' /etc/slurm/cgroup.conf"
        made.sh("ctl", f"{sed}; scontrol reconfigure")
        made.install(SLURM_USER)
        yield made


def test_an_ordinary_users_job_is_evicted_and_goes_on(rig: SiteRig) -> None:
    """In a control group of its own, as on bare metal; nothing of it is lost or done twice."""
    low = rig.low()
    name, host = rig.where(low)
    high = rig.takes("bob", host)
    rig.becomes(name, "parked")
    assert rig.state(low) == "SUSPENDED"
    rig.release(high)
    rig.counting(low)
    rig.finish(low)
    assert rig.booked(low, "user", "state", "nodelist") == [f"{JOB_USER}|COMPLETED|{name}"]
    rig.judge()


def test_nobody_becomes_root(rig: SiteRig) -> None:
    """No program lends its owner's rights, no service takes orders, no secret can be read."""
    low = rig.low()
    name, _ = rig.where(low)
    rig.finish(low)
    said = rig.user("srun", "-p", "htc", "-w", name, "-D", "/tmp", "bash", "-c", _ATTEMPTS)
    lines = said.splitlines()
    assert lines[:2] == [JOB_USER, "systemd"]
    assert "uid=0" not in said
    assert not [line for line in lines if line.startswith("/")]
    assert lines[-1] == "tried"
    found = loot(rig, name)
    assert found_in(found, rig.lab.munge_key.read_bytes()) == []
