"""The recipe of a site's image: which Debian and Slurm, whose users, what else is in it."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from backfill.drivers.slurm.hooks.build import HOOK_SOURCE
from backfill.lab import debian, guestroot, roots
from backfill.lab.siteimage.resolver import resolver_for_guests
from backfill.lab.spec import LabError

FILES = Path(__file__).parent / "files"
# Suites whose systemd and Slurm this is tried with.
SUITES = {debian.OWN: roots.INSTALLED, **{suite: release for release, suite in roots.SUITES.items()}}
BUILDS = tuple(suite for suite in SUITES if suite != "forky")
DISK_MB = 3072
_PACKAGES = (
    "busybox-static",
    "ca-certificates",
    "chrony",
    "dbus",
    "e2fsprogs",
    "initramfs-tools",  # which the kernel asks for, unless it takes a larger one; does nothing
    "iproute2",
    "kmod",
    "linux-image-cloud-amd64",
    "mount",
    "munge",
    "nfs-common",
    "procps",
    "qemu-guest-agent",
    "slurm-client",
    "slurmd",
    "systemd",
    "systemd-sysv",
    "tzdata",
    "udev",
)
_SSSD_CONF = "sssd/sssd.conf"
_FORBIDDEN = "ldap_default_authtok"  # a password, or one that is merely obfuscated
_SSSD = ("libnss-sss", "sssd-common", "sssd-ldap", "sssd-proxy")
_PASSWORD = re.compile(r"://[^/\s@]*:[^/\s@]*@")
# Ordinary users work in these guests: what the kernel has against them stays on.
CMDLINE = "quiet console=ttyS0 root=/dev/vda rw tsc=reliable no_timer_check 8250.nr_uarts=1 panic=-1"
# Without KVM, which is nobody's production, these are seconds of a boot: see `backfill.lab.image.CMDLINE`.
EMULATED = (
    "mitigations=off audit=0 lsm= psi=0 hardened_usercopy=off randomize_kstack_offset=off init_on_alloc=0 "
    "cryptomgr.notests random.trust_cpu=on rcupdate.rcu_expedited=1 nokaslr norandmaps ipv6.disable=1"
)


class Users(StrEnum):
    """Where guests know the site's users from."""

    FILES = "files"  # passwd and group of the controller
    SSSD = "sssd"  # a directory service, by the site's sssd.conf


@dataclass(frozen=True, slots=True)
class SiteRecipe:
    """All that goes into an image. `site`: texts of the site's files by their names in /etc.

    `packages`: the site's own, on top; `sources`: texts of apt's sources for them, beside Debian's.
    Raises LabError for a suite that is not tried.
    """

    suite: str = debian.OWN
    users: Users = Users.FILES
    packages: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    site: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.suite not in BUILDS:
            raise LabError(f"no site image is made of Debian {self.suite}; there are {', '.join(BUILDS)}")

    @property
    def release(self) -> str:
        """Slurm's, as this suite has it."""
        return SUITES[self.suite]

    @property
    def all_packages(self) -> tuple[str, ...]:
        """What is installed, without what that needs."""
        return (*_PACKAGES, *(_SSSD if self.users is Users.SSSD else ()), *self.packages)

    @property
    def cmdline(self) -> str:
        """The kernel's command line."""
        return CMDLINE

    @property
    def emulated(self) -> str:
        """The kernel's further words where the guest is emulated."""
        # QEMU 7.2 without KVM garbles the flags of CMPXCHG16B, and kernels after 6.1 depend on them.
        return EMULATED if self.suite == debian.OWN else f"{EMULATED} clearcpuid=cx16"

    def digest(self, *sources: str) -> str:
        """Return a sum that changes whenever something that goes into it changes."""
        asked = (self.suite, self.users.value, self.all_packages, self.sources, sorted(self.site.items()))
        digest = hashlib.sha256((repr((asked, DISK_MB)) + self.cmdline + self.emulated).encode())
        for text in (inspect.getsource(guestroot), inspect.getsource(debian), *sources):
            digest.update(text.encode())
        for path in (*sorted(FILES.iterdir()), *sorted(guestroot.GUEST_FILES.iterdir()), HOOK_SOURCE):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
        return digest.hexdigest()[:16]


def source_text(said: str) -> str:
    """Return what --source says, a line of apt's or the content of a file. LabError: it is neither."""
    if said.startswith("deb "):
        text = said
    else:
        try:
            text = Path(said).read_text(errors="replace")
        except OSError as error:
            raise LabError(
                f"--source {said} is no line that begins with `deb ` and cannot be read as a file: "
                f"{error.strerror}; write a line of apt's, or name a file of them"
            ) from error
    if _PASSWORD.search(text):
        raise LabError(
            "--source has a password in its address, and every job on the hosts can read an image: "
            "name an address that needs none"
        )
    return text


def site_files(etc: Path, users: Users) -> dict[str, str]:
    """Read what an image takes from a machine of the site, mostly the controller's own /etc.

    Raises LabError for a file that is needed and cannot be read, or must not be in an image.
    """
    needed = {Users.FILES: ("passwd", "group"), Users.SSSD: (_SSSD_CONF,)}
    found = {name: _read(etc / name) for name in needed[users]}
    if _SSSD_CONF in found:
        _check_sssd(etc / _SSSD_CONF, found[_SSSD_CONF])
    for name in ("hosts", "resolv.conf", "localtime"):
        path = etc / name
        if name == "localtime":
            found[name] = _zone(path)
        elif path.is_file():
            found[name] = resolver_for_guests(etc) if name == "resolv.conf" else _read(path)
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror}; name its directory by --from") from error


def _check_sssd(path: Path, text: str) -> None:
    """Refuse a password: a disk is readable for everybody on the hosts, who thus can read any file in it."""
    for number, line in enumerate(text.splitlines(), 1):
        name, _, value = line.partition("=")
        if name.strip().lower() == _FORBIDDEN and value.strip():
            raise LabError(
                f"{path}:{number}: {_FORBIDDEN} is a password, and every job on the hosts can read an image: "
                "leave the line out (--from takes a copy), and bring the whole file with each guest's seed "
                "(Salt, mode 0600), or let guests bind without a password"
            )


def _zone(link: Path) -> str:
    """Return the time zone that /etc/localtime stands for; empty: UTC."""
    _, found, zone = str(link.resolve()).partition("/zoneinfo/")
    return zone if found else ""
