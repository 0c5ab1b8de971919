"""Makes a freshly installed Debian a site's guest: units, what is masked, users, and nobody's way to root."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path

from backfill.lab.siteimage.people import SitePeople, merged
from backfill.lab.siteimage.recipe import FILES, SiteRecipe, Users

_PROGRAMS = ("identity", "canary", "slurmd", "mounts", "agent")
_FIRST, _LATER = "backfill.target.wants", "multi-user.target.wants"
# Up to slurmd there is what slurmd needs and no more, and all else comes then.
_UNITS = {
    "backfill-agent.service": _FIRST,
    "backfill-canary.service": _FIRST,
    "backfill-identity.service": _FIRST,
    "backfill-later.service": _LATER,
    "backfill-mounts.service": _FIRST,
    "backfill-rest.service": _FIRST,
    "backfill.target": "",
    "dbus.service": "",
    "dbus.socket": "sockets.target.wants",
    "munge.service": _FIRST,
    "slurmd.service": _FIRST,
}
_DROP_INS = {"chrony.service": "after-slurmd.conf", "sssd.service": "before-slurmd.conf"}
# A guest is told what it is by its seed, has one disk, and nobody logs in to it. Each of these costs
# an emulated guest tenths of a second, a generator as well.
_MASKED = (
    "apt-daily-upgrade.timer",
    "apt-daily.timer",
    "console-getty.service",
    "dev-hugepages.mount",
    "dev-mqueue.mount",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "getty.target",
    "getty@.service",
    "kmod-static-nodes.service",
    "logrotate.timer",
    "man-db.timer",
    "modprobe@.service",
    "nfs-client.target",
    "proc-sys-fs-binfmt_misc.automount",
    "qemu-guest-agent.service",
    "rpcbind.service",
    "rpcbind.socket",
    "serial-getty@.service",
    "sys-fs-fuse-connections.mount",
    "sys-kernel-config.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "systemd-ask-password-console.path",
    "systemd-ask-password-wall.path",
    "systemd-binfmt.service",
    "systemd-firstboot.service",
    "systemd-initctl.socket",
    "systemd-journal-flush.service",
    "systemd-logind.service",
    "systemd-machine-id-commit.service",
    "systemd-modules-load.service",
    "systemd-network-generator.service",
    "systemd-pcrphase-initrd.service",
    "systemd-pcrphase-sysinit.service",
    "systemd-pcrphase.service",
    "systemd-pstore.service",
    "systemd-random-seed.service",
    "systemd-remount-fs.service",
    "systemd-sysusers.service",
    "systemd-tmpfiles-clean.timer",
    "systemd-tmpfiles-setup-dev.service",
    "systemd-tmpfiles-setup-dev-early.service",
    "systemd-udev-settle.service",
    "systemd-udev-trigger.service",
    "systemd-udevd-control.socket",
    "systemd-udevd-kernel.socket",
    "systemd-udevd.service",
    "systemd-update-utmp-runlevel.service",
    "systemd-update-utmp.service",
    "systemd-user-sessions.service",
)
_JOURNAL = "[Journal]\nStorage=volatile\nRuntimeMaxUse=16M\nAudit=no\n"
_MANAGER = "[Manager]\nLogLevel=notice\nShowStatus=no\nDefaultTimeoutStopSec=20s\n"
_SET_ID = stat.S_ISUID | stat.S_ISGID


def make_site_guest(root: Path, recipe: SiteRecipe) -> None:
    """Add all that is not in a package. `root` has our static programs already."""
    _add_files(root)
    _add_units(root)
    _add_site(root, recipe)
    drop_set_id(root)


def _add_files(root: Path) -> None:
    library = root / "usr/local/lib/backfill-guest.sh"
    _copy(library.name, library)
    sbin = root / "usr/local/sbin"
    for name in _PROGRAMS:
        program = sbin / f"backfill-{name}"
        _copy(program.name, program)
        program.chmod(0o755)
    # What the initial RAM disk starts as the first process.
    init = sbin / "backfill-init"
    init.unlink(missing_ok=True)
    init.symlink_to("/lib/systemd/systemd")
    for name in ("backfill-service", "backfill-salt"):  # for guests without systemd
        (sbin / name).unlink(missing_ok=True)
    for name in ("usr/sbin/shutdown", "sbin/shutdown"):
        path = root / name
        path.unlink(missing_ok=True)
        path.symlink_to("/bin/systemctl")
    (root / "etc/inittab").unlink(missing_ok=True)


def _add_units(root: Path) -> None:
    units = root / "etc/systemd/system"
    for name, wants in _UNITS.items():
        _copy(name, units / name)
        if wants:
            _link(units / wants / name, f"/etc/systemd/system/{name}")
    _link(units / _LATER / "chrony.service", "/lib/systemd/system/chrony.service")
    for name, text in _DROP_INS.items():
        (units / f"{name}.d").mkdir(parents=True, exist_ok=True)
        _copy(text, units / f"{name}.d/backfill.conf")
    for name in _MASKED:
        _link(units / name, "/dev/null")
    for kind in ("system-generators", "system-environment-generators"):
        for generator in (root / "lib/systemd" / kind).glob("*"):
            _link(root / "etc/systemd" / kind / generator.name, "/dev/null")
    _link(units / "default.target", "/etc/systemd/system/backfill.target")
    for name, text in (("journald", _JOURNAL), ("system", _MANAGER)):
        folder = root / f"etc/systemd/{name}.conf.d"
        folder.mkdir(exist_ok=True)
        (folder / "backfill.conf").write_text(text)
    _link(root / "etc/tmpfiles.d/systemd-nologin.conf", "/dev/null")
    # Empty, not missing: a missing one would make each boot a first boot.
    (root / "etc/machine-id").write_text("")


def _add_site(root: Path, recipe: SiteRecipe) -> None:
    etc, site = root / "etc", recipe.site
    names = "files sss" if recipe.users is Users.SSSD else "files"
    hosts = "files dns" if site.get("resolv.conf", "").strip() else "files"
    (etc / "nsswitch.conf").write_text(
        f"passwd: {names}\ngroup: {names}\nshadow: files\nhosts: {hosts}\nservices: files\n"
    )
    if recipe.users is Users.FILES:
        own = {name: (etc / name).read_text() for name in ("passwd", "group", "shadow")}
        _write_people(root, merged(own, site))
    if recipe.users is Users.SSSD:
        conf = etc / "sssd/sssd.conf"
        conf.write_text(site["sssd/sssd.conf"])
        conf.chmod(0o600)
        _link(etc / "systemd/system" / _FIRST / "sssd.service", "/lib/systemd/system/sssd.service")
    (etc / "backfill/hosts").write_text(foreign_hosts(site.get("hosts", "")))
    (etc / "resolv.conf").write_text(site.get("resolv.conf", ""))
    if site.get("localtime"):
        _link(etc / "localtime", f"/usr/share/zoneinfo/{site['localtime']}")


def foreign_hosts(text: str) -> str:
    """Return the lines of an /etc/hosts that mean the same on another machine: none of its own loop."""
    lines = [line for line in text.splitlines() if line.partition("#")[0].split()]
    kept = [line for line in lines if not line.split()[0].startswith(("127.", "::1", "fe00:", "ff0"))]
    return "".join(f"{line}\n" for line in kept)


def _write_people(root: Path, people: SitePeople) -> None:
    for name, text in (("passwd", people.passwd), ("group", people.group), ("shadow", people.shadow)):
        (root / "etc" / name).write_text(text)
    if people.renumbered_users or people.renumbered_groups:
        _give_anew(root, people.renumbered_users, people.renumbered_groups)


def _give_anew(root: Path, users: Mapping[int, int], groups: Mapping[int, int]) -> None:
    """Files of users whose numbers have changed belong to them still."""
    for path in root.rglob("*"):
        seen = path.lstat()
        uid, gid = users.get(seen.st_uid, seen.st_uid), groups.get(seen.st_gid, seen.st_gid)
        if (uid, gid) != (seen.st_uid, seen.st_gid):
            os.lchown(path, uid, gid)


def drop_set_id(root: Path) -> None:
    """Take from every program the power to run as another user or group than who calls it."""
    for path in root.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISREG(mode) and mode & _SET_ID:
            path.chmod(stat.S_IMODE(mode) & ~_SET_ID)


def _copy(name: str, where: Path) -> None:
    where.unlink(missing_ok=True)  # a link there would lead out of the root
    shutil.copyfile(FILES / name, where)


def _link(path: Path, target: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)
