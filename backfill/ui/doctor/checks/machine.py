"""Checks of the daemon's own machine: key, programs, directories, socket, images and addresses."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from backfill.config.forms import endpoints_in
from backfill.config.model import SurroundingsEntry
from backfill.ui.doctor.facts import Facts, ImageFacts, PlaceFacts
from backfill.ui.doctor.findings import Defect, Finding, Grade

_PACKAGES = {"qemu-img": "qemu-utils"}
# How much a file server's clock may differ before dates mislead.
_AHEAD_S = 5.0
# A busy day's journal, and its copy while it is tidied.
_STATE_MB = 100.0
# What the files of a guest that boots directly begin with, and where (Linux: x86/boot.rst; initramfs).
_KERNEL_AT, _KERNEL = 0x202, b"HdrS"
_ARCHIVES = (
    b"\x1f\x8b",
    b"070701",
    b"070702",
    b"\xfd7zXZ",
    b"(\xb5/\xfd",
    b"BZh",
    b"\x02!L\x18",
    b"\x5d\x00",
    b"\x89LZO",
    b"\x04\x22\x4d\x18",
)
# One that ends sooner has to be replaced soon.
_TOKEN_S = 7 * 86400.0
_QCOW2 = b"QFI\xfb"


def credentials(facts: Facts) -> Iterator[Finding]:
    """Guests get the key by which Slurm's daemons know one another; munge, where that is it, works here."""
    if facts.munge_problem:
        problem, _, remedy = facts.munge_problem.rpartition("; ")
        look = "systemctl restart munge"
        mend = f"{remedy}; {look}" if problem else look
        yield Finding(Defect.MUNGE, "munge", problem or facts.munge_problem, mend)
    kind = facts.slurm.settings.raw.get("AuthType", "auth/munge") if facts.slurm is not None else "auth/munge"
    around = facts.config.libvirt.surroundings if facts.config.libvirt is not None else None
    yield from _other_key(kind, around)
    if around is not None and around.slurm_key:
        if facts.key_problem:
            what = f"{facts.who.name} cannot use {around.slurm_key}: {facts.key_problem}"
            mend = "run the daemon as SlurmUser or root, who may read it; a copy would miss a change of keys"
            yield Finding(Defect.SLURM_KEY_UNREADABLE, around.slurm_key, what, mend)
        return
    key = around.munge_key if around is not None else ""
    if facts.key_problem:
        own = f"{facts.config.source.parent}/munge.key"
        yield Finding(
            Defect.MUNGE_KEY_UNREADABLE,
            key,
            f"{facts.who.name} cannot use {key}: {facts.key_problem}",
            f"install -m 400 -o {facts.who.name} /etc/munge/munge.key {own}, and write it as "
            "libvirt.surroundings.munge_key",
        )
    if facts.key_refused:
        yield Finding(
            Defect.MUNGE_KEY_OTHER,
            key,
            f"munge here does not understand what is made with {key}: {facts.key_refused}",
            f"install -m 400 -o {facts.who.name} /etc/munge/munge.key {key}",
        )


def _other_key(kind: str, around: SurroundingsEntry | None) -> Iterator[Finding]:
    """Tell of a key that is not the one of this Slurm's AuthType."""
    mend = "write AuthType=auth/munge, or auth/slurm, into slurm.conf; restart all of Slurm"
    if kind == "auth/munge" and around is not None and around.slurm_key:
        mend = "name munge's key as libvirt.surroundings.munge_key instead of slurm_key"
    elif kind == "auth/slurm" and around is not None and not around.slurm_key:
        mend = (
            "name /etc/slurm/slurm.jwks, or slurm.key, as libvirt.surroundings.slurm_key instead of munge_key"
        )
    elif kind in ("auth/munge", "auth/slurm"):
        return
    yield Finding(Defect.OTHER_AUTH, "slurm.conf", f"AuthType is {kind}", mend)


def programs(facts: Facts) -> Iterator[Finding]:
    """Check that what the daemon starts is installed."""
    for tool in facts.tools_missing:
        package = _PACKAGES.get(tool, tool)
        yield Finding(Defect.SHORT_OF_TOOLS, tool, f"{tool} is not installed", f"apt install {package}")
    if facts.libvirt_missing:
        yield Finding(
            Defect.LIBVIRT_MISSING,
            "libvirt",
            "Python's libvirt bindings are not installed",
            "pip install 'backfill[libvirt]', or install the package",
        )


def _journal(facts: Facts, place: PlaceFacts) -> Iterator[Finding]:
    """Check the state directory, what lies there, and how much more can."""
    who, path = facts.who.name, facts.config.daemon.state_dir
    if place.problem:
        what, mend = f"{who} cannot write {path}: {place.problem}", f"install -d -m 750 -o {who} {path}"
        yield Finding(Defect.STATE_DIR, path, what, mend)
    elif facts.state_files:
        what = f"{who} cannot write what lies in {path}: {', '.join(facts.state_files)}"
        yield Finding(Defect.STATE_DIR, path, what, f"chown -R {who} {path}")
    elif place.free_mb is not None and place.free_mb < _STATE_MB:
        what = f"{path} has {place.free_mb:.0f} MB left"
        yield Finding(Defect.STATE_DIR_FULL, path, what, f"make room in {path}")


def places(facts: Facts) -> Iterator[Finding]:
    """Check that the daemon may write its journal, listen, and hold its lease."""
    who, daemon = facts.who.name, facts.config.daemon
    if facts.state_dir is not None:
        yield from _journal(facts, facts.state_dir)
    if facts.socket_problem:
        directory = daemon.socket.rpartition("/")[0]
        yield Finding(
            Defect.SOCKET,
            daemon.socket,
            f"{daemon.socket}: {facts.socket_problem}",
            f"install -d -m 755 -o {who} {directory}",
        )
    if facts.listen_problem:
        yield Finding(
            Defect.LISTEN,
            "daemon.listen",
            f"{who} cannot listen at {daemon.listen}: {facts.listen_problem}",
            "write an address of this machine and a free port as daemon.listen",
        )
    if facts.lease is not None and facts.lease.problem:
        yield Finding(
            Defect.LEASE,
            facts.lease.path,
            f"{who} cannot write slurmctld's StateSaveLocation: {facts.lease.problem}",
            f"let {who} write {facts.lease.path}, or see to it that only one daemon ever runs",
            Grade.ADVICE,
        )


def images(facts: Facts) -> Iterator[Finding]:
    """Each image is there, whole, and what it is said to be."""
    for name, image in sorted(facts.images.items()):
        missing = [place for place in image.files.values() if place.problem]
        for place in missing:
            yield Finding(
                Defect.IMAGE_MISSING,
                name,
                f"{facts.who.name} cannot read {place.path}: {place.problem}",
                "backfill image build makes one; correct the path, or let the user read it",
            )
        if not missing:
            yield from _bootable(facts, name, image)
        yield from _release(facts, name, image)
        if image.changed:
            yield Finding(
                Defect.IMAGE_CHANGED,
                name,
                f"the SHA-256 of its disk is {image.changed}, and not what is promised",
                "put the image back, or write the new sum as its sha256",
            )


def _release(facts: Facts, name: str, image: ImageFacts) -> Iterator[Finding]:
    found = re.match(r"(?:\d+:)?(\d+)\.(\d+)", image.slurmd)
    if found is None or facts.slurm is None:
        return
    release, ours = (int(found[1]), int(found[2])), facts.slurm.settings.version.major
    if release > ours:
        what = f"its slurmd is {image.slurmd}, and slurmctld is {facts.slurm.settings.version}"
        mend = "build it of the Debian release that has slurmctld's Slurm: backfill image build --release"
        yield Finding(Defect.IMAGE_RELEASE, name, what, mend)


def _bootable(facts: Facts, name: str, image: ImageFacts) -> Iterator[Finding]:
    rebuild = "build or copy the image again: backfill image build"
    kernel, initrd, disk = (image.files.get(key) for key in ("kernel", "initrd", "disk"))
    if kernel and kernel.start[_KERNEL_AT : _KERNEL_AT + 4] != _KERNEL:
        yield Finding(Defect.IMAGE_DAMAGED, name, f"{kernel.path} is no Linux kernel (bzImage)", rebuild)
    if initrd and not initrd.start.startswith(_ARCHIVES):
        yield Finding(Defect.IMAGE_DAMAGED, name, f"{initrd.path} is no initial RAM disk", rebuild)
    if disk is None or facts.config.libvirt is None:
        return
    said = facts.config.libvirt.images[name].disk_format
    real = "qcow2" if disk.start.startswith(_QCOW2) else "raw"
    if not disk.size:
        yield Finding(Defect.IMAGE_DAMAGED, name, f"{disk.path} is empty", rebuild)
    elif real != said and "qcow2" in (real, said):
        mend = f"write disk_format: {real} at image {name}"
        yield Finding(Defect.IMAGE_DAMAGED, name, f"{disk.path} is {real}, not {said}", mend)


def directories(facts: Facts) -> Iterator[Finding]:
    """Instances' directories can be written and have room, and QEMU's user gets in."""
    who, memory_mb = facts.who.name, facts.config.policies.instances.flavour.memory_mb
    for path, place in sorted(facts.directories.items()):
        if place.unmounted:
            what = f"{path} lies in {place.unmounted}, which /etc/fstab has and which is not mounted here"
            yield Finding(Defect.DIRECTORY, path, what, f"mount {place.unmounted}")
            continue
        if place.problem:
            what = f"{who} cannot write {path}: {place.problem}"
            yield Finding(
                Defect.DIRECTORY, path, what, f"install -d -m 751 -o {who} {path}, on a mounted share"
            )
            continue
        if place.free_mb is not None and place.free_mb < memory_mb:
            what = f"{path} has {place.free_mb:.0f} MB left, and an instance's memory is {memory_mb} MB"
            yield Finding(Defect.DIRECTORY_FULL, path, what, f"make room in {path}")
        if abs(place.ahead_s) > _AHEAD_S:
            what = f"a new file in {path} is dated {place.ahead_s:+.0f} s from this machine's clock"
            yield Finding(
                Defect.FILES_CLOCK, path, what, "let the file server and this machine follow one NTP"
            )
        yield from _closed(facts, path, place)


def _closed(facts: Facts, path: str, place: PlaceFacts) -> Iterator[Finding]:
    """Find a directory on the way that QEMU's user may not enter."""
    if place.closed_at is None:
        return
    at, owner, group = place.closed_at
    for host in facts.hosts:
        user = host.inspection.user if host.inspection is not None else None
        # Where it is open to a group, the host may have QEMU's user in it.
        if host.directory == path and user is not None and user[0] not in (0, owner) and user[1] != group:
            what = f"QEMU on {host.name} runs as uid {user[0]}, who may not enter {at}"
            yield Finding(Defect.DIRECTORY_CLOSED, path, what, f"chmod o+x {at}")
            return


def addresses(facts: Facts) -> Iterator[Finding]:
    """Nobody has an address that is meant for a guest."""
    for name, address in sorted(facts.taken.items()):
        yield Finding(
            Defect.ADDRESS_TAKEN,
            name,
            f"something answers at {address}, which is meant for {name}, and no instance of ours is there",
            "choose a free range for instances.addresses",
        )


def way_to_slurmctld(facts: Facts) -> Iterator[Finding]:
    """From the guests' addresses slurmctld can be reached."""
    if facts.config.libvirt is None:
        return
    around = facts.config.libvirt.surroundings
    first = facts.config.policies.instances.addresses[:1]
    if first:
        network = ipaddress.ip_interface(first[0]).network
        outside = around.gateway or around.controller
        if ipaddress.ip_address(outside) not in network:
            which = "the gateway" if around.gateway else "the controller"
            mend = "write libvirt.surroundings.gateway, in the guests' network, or other addresses"
            yield Finding(
                Defect.ADDRESS_OUTSIDE,
                first[0],
                f"{which} {outside} is not in the guests' network {network}",
                mend,
            )
    every = set(endpoints_in(around.conf_server))
    for server, problem in facts.controller_problems.items() if facts.slurm is not None else ():
        # Where Slurm does not answer all are down, which is told; a guest needs one of them.
        yield Finding(
            Defect.CONTROLLER_SILENT,
            server,
            f"nothing takes a connection at {server}: {problem}",
            "start slurmctld there, or write its address and port into libvirt.surroundings.conf_server",
            Grade.FAULT if len(facts.controller_problems) == len(every) else Grade.ADVICE,
        )


def salt(facts: Facts) -> Iterator[Finding]:
    """Salt's master and states can be used."""
    if facts.salt_problem:
        what, found, remedy = facts.salt_problem.rpartition("; ")
        yield Finding(Defect.SALT, "salt", what if found else remedy, remedy if found else "")


def pool(facts: Facts) -> Iterator[Finding]:
    """Check that the pool is asked with a token that is good, and closed to others."""
    seen, entry = facts.pool, facts.config.condor
    if seen is None or entry is None:
        return
    if seen.token_problem:
        what, _, mend = seen.token_problem.rpartition("; ")
        yield Finding(Defect.POOL_TOKEN, entry.tokens, what, mend)
    elif seen.token_left_s is not None and seen.token_left_s < _TOKEN_S:
        what = f"the token in {entry.tokens} expires in {max(1, round(seen.token_left_s / 3600))} h"
        mend = "make another one on the central manager, and put it into the place of the old one"
        yield Finding(Defect.POOL_TOKEN, entry.tokens, what, mend, Grade.ADVICE)
    if seen.silent:
        what, found, mend = seen.silent.rpartition("; ")
        yield Finding(Defect.POOL_SILENT, entry.collector, what if found else mend, mend if found else "")
