"""Checks of the hosts, by what their libvirtd says of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath

from backfill.config.model import DomainType, LibvirtEntry, Provider
from backfill.ui.doctor.facts import (
    GUESTS_UNIT,
    GUESTS_WANTED,
    PROTECTED,
    PROTECTIONS,
    Facts,
    HostFacts,
    PlaceFacts,
)
from backfill.ui.doctor.findings import Defect, Finding, Grade

_OTHERS_WRITE = 0o002


def reach(facts: Facts) -> Iterator[Finding]:
    """Every host answers."""
    clouds = {host.name for host in facts.config.hosts if host.provider is Provider.OPENSTACK}
    for host in facts.hosts:
        if host.problem:
            what, found, remedy = host.problem.rpartition("; ")
            defect = Defect.CLOUD if host.name in clouds else Defect.HOST_SILENT
            yield Finding(
                defect,
                host.name,
                what if found else host.problem,
                remedy
                if found
                else f"systemctl status libvirtd on {host.name}, and its uri in the policy file",
            )


def machines(facts: Facts) -> Iterator[Finding]:
    """Every host is itself, has the bridge, and can run such a guest."""
    libvirt = facts.config.libvirt
    if libvirt is None:
        return
    for host in facts.hosts:
        if host.inspection is not None:
            yield from _itself(facts, host)
            yield from _bridge(libvirt, host)
            yield from _filter(libvirt, host)
            yield from _hardware(libvirt, host)


def _itself(facts: Facts, host: HostFacts) -> Iterator[Finding]:
    assert host.inspection is not None
    machine, names = host.inspection.name.partition(".")[0], _names(facts, host.name)
    if not machine or machine in names:
        return
    others = {entry.name for entry in facts.config.hosts if machine in _names(facts, entry.name)}
    what = f"at the uri of {host.name} there is a machine that calls itself {machine}"
    if others:
        mend = f"in the policy file give {host.name} its own uri: this one is {min(others)}'s"
        yield Finding(Defect.OTHER_MACHINE, host.name, what, mend)
    else:
        mend = f"if that is not Slurm's node {host.name}, correct its uri in the policy file"
        yield Finding(Defect.OTHER_MACHINE, host.name, what, mend, Grade.ADVICE)


def _names(facts: Facts, host: str) -> frozenset[str]:
    """Return the short names that a host's machine may have."""
    (entry,) = (entry for entry in facts.config.hosts if entry.name == host)
    return frozenset(name.partition(".")[0].lower() for name in (entry.name, entry.node or ""))


def _bridge(libvirt: LibvirtEntry, host: HostFacts) -> Iterator[Finding]:
    assert host.inspection is not None
    bridges = host.inspection.bridges
    if bridges is not None and libvirt.bridge not in bridges:
        what = f"{host.name} has no bridge {libvirt.bridge}"
        mend = f"on {host.name}: ip link add {libvirt.bridge} type bridge, with its network card in it"
        yield Finding(Defect.BRIDGE, host.name, what, mend)
    elif bridges is None:
        what = f"libvirt on {host.name} does not tell of bridges"
        mend = f"install libvirt's interface driver on {host.name}"
        yield Finding(Defect.BRIDGE, host.name, what, mend, Grade.ADVICE)


def _filter(libvirt: LibvirtEntry, host: HostFacts) -> Iterator[Finding]:
    assert host.inspection is not None
    if libvirt.guest_network.closed and not host.inspection.filters:
        what = f"libvirt on {host.name} has no driver for network filters"
        mend = (
            f"on {host.name}: apt install libvirt-daemon-driver-nwfilter iptables; systemctl restart libvirtd"
        )
        yield Finding(Defect.GUEST_FILTER, host.name, what, mend)


def _hardware(libvirt: LibvirtEntry, host: HostFacts) -> Iterator[Finding]:
    seen, wanted = host.inspection, libvirt.hardware
    assert seen is not None
    if wanted.domain_type is DomainType.KVM and not seen.kvm:
        what = f"libvirt on {host.name} has no KVM"
        mend = f"on {host.name}: modprobe kvm_intel (or kvm_amd); systemctl restart libvirtd"
        yield Finding(Defect.NO_KVM, host.name, what, mend)
    elif seen.machine_problem:
        mend = f"write a board as libvirt.hardware.machine that `virsh capabilities` on {host.name} lists"
        yield Finding(Defect.MACHINE, host.name, f"{host.name}: {seen.machine_problem}", mend)
    elif wanted.cpu_model not in seen.cpu_models:
        what = f"{host.name} cannot give a guest the processor {wanted.cpu_model}"
        mend = f"write a model as libvirt.hardware.cpu_model that `virsh domcapabilities` on {host.name} has"
        yield Finding(Defect.CPU_MODEL, host.name, what, mend)


def guests(facts: Facts) -> Iterator[Finding]:
    """No machine of somebody else has a name of ours."""
    names = set(facts.config.policies.instances.names)
    for host in facts.hosts:
        if host.inspection is not None:
            for name in sorted((host.inspection.domains & names) - host.ours):
                yield Finding(
                    Defect.FOREIGN_GUEST,
                    host.name,
                    f"{host.name} has a machine {name} that is not ours",
                    f"rename it, or leave {name} out of instances.names",
                )


def saved_by_others(facts: Facts) -> Iterator[Finding]:
    """Nothing but the daemon saves guests, or lets them go on, when a host goes down and comes up."""
    unit = PurePath(GUESTS_UNIT).name
    for host in facts.hosts:
        folders = host.inspection.folders if host.inspection is not None else {}
        wanted, own = folders.get(GUESTS_WANTED), folders.get(GUESTS_UNIT)
        # A masked one is a link to /dev/null, of which libvirt says that it is no directory.
        masked = own is not None and own.problem and not own.missing
        if wanted is not None and unit in wanted.files and not masked:
            mend = f"on {host.name}: systemctl mask {unit} (to stop it would save or end all guests)"
            what = f"{unit} is enabled on {host.name}"
            yield Finding(Defect.GUESTS_SAVED, host.name, what, mend, Grade.ADVICE)


def shared_files(facts: Facts) -> Iterator[Finding]:
    """Hosts see the directory into which the daemon writes, and the images."""
    for host in facts.hosts:
        seen = host.inspection
        if seen is None:
            continue
        folder = seen.folders.get(host.directory)
        here = facts.directories.get(host.directory)
        wrong_here = here is not None and here.unmounted  # what that host has is right, perhaps
        if folder is not None and host.marker and host.marker not in folder.files and not wrong_here:
            why = folder.problem or "a file that was put there from here is not there"
            what = f"{host.directory} on {host.name} is not the directory of that name here: {why}"
            mend = (
                f"mount the shared directory {_mounted(here, host)} on {host.name}, or give the host its own"
            )
            yield Finding(Defect.DIRECTORY_NOT_SHARED, host.name, what, mend)
        yield from _images_on(facts, host)


def _mounted(here: PlaceFacts | None, host: HostFacts) -> str:
    """Say what is to be mounted: the directory itself, or the mount that it lies in here."""
    if here is None or here.mount in ("", host.directory):
        return f"at {host.directory}"
    return f"at {here.mount}, which has {host.directory},"


def _images_on(facts: Facts, host: HostFacts) -> Iterator[Finding]:
    for name, image in sorted(facts.images.items()):
        places = (image.files.get(key) for key in ("kernel", "initrd", "disk"))
        wrong = (_difference(host, place) for place in places if place is not None and not place.problem)
        what = next(filter(None, wrong), "")
        if what:
            mend = f"copy the image to {host.name}, or let its directory be shared"
            yield Finding(Defect.IMAGE_NOT_ON_HOST, f"{name} on {host.name}", what, mend)


def _difference(host: HostFacts, place: PlaceFacts) -> str | None:
    """Say how the host's file of this path differs from the one here; None: not, or nobody knows."""
    path = PurePath(place.path)
    folder = host.inspection.folders.get(str(path.parent)) if host.inspection is not None else None
    if folder is None or (folder.problem and not folder.missing):
        return None
    there = folder.files.get(path.name)
    if there is None:
        return f"{path} is not there on {host.name}"
    if there.size != place.size:
        return f"{path} has {there.size} bytes on {host.name}, and {place.size} here"
    return None


def links(facts: Facts) -> Iterator[Finding]:
    """Where everybody may write, no link or file of somebody else is taken for ours."""
    yield from _unprotected("this machine", facts.exposed, facts.protections)
    for host in facts.hosts:
        if host.inspection is not None:
            seen = host.inspection.folders.get(PROTECTIONS)
            yield from _unprotected(host.name, _exposed(host), seen.texts if seen is not None else {})
            yield from _unseen_way(host)


def _exposed(host: HostFacts) -> str:
    """Return what of ours on a host is where everybody may write; empty: nothing that is seen."""
    assert host.inspection is not None
    open_to_all = any(mode is not None and mode & _OTHERS_WRITE for mode in host.inspection.modes.values())
    return host.exposed or (host.directory if open_to_all else "")


def _unseen_way(host: HostFacts) -> Iterator[Finding]:
    """Tell of a directory on the way to ours that libvirt shows nothing of, although it shows ours."""
    assert host.inspection is not None
    ours = host.inspection.folders.get(host.directory)
    unseen = [path for path, mode in host.inspection.modes.items() if mode is None]
    if unseen and ours is not None and not ours.problem and not _exposed(host):
        what = f"whether everybody may write {', '.join(unseen)} on {host.name} cannot be seen"
        mend = f"on {host.name}: ls -ld {' '.join(unseen)}; others should not have w there"
        yield Finding(Defect.LINKS, host.name, what, mend, Grade.UNKNOWN)


def _unprotected(where: str, exposed: str, settings: Mapping[str, str]) -> Iterator[Finding]:
    if not exposed:
        return
    found = {name: settings.get(name, "").strip() for name in PROTECTED}
    off = [name for name, value in found.items() if value == "0"]
    if unread := [name for name, value in found.items() if not value]:
        named = "the settings fs.protected_*" if len(unread) == len(found) else f"fs.{', fs.'.join(unread)}"
        what = f"{named} of {where} cannot be read, and everybody may write where {exposed} is"
        mend = f"on {where}: sysctl -a --pattern fs.protected_; none should be 0"
        yield Finding(Defect.LINKS, where, what, mend, Grade.UNKNOWN)
    if off:
        has = ", ".join(f"fs.{name}=0" for name in off)
        # All of them: the file may be there already, and have mended another one.
        lines = " ".join(
            f"fs.{name}={value if value not in ('', '0') else 1}" for name, value in found.items()
        )
        what = f"{where} has {has}, and everybody may write where {exposed} is"
        mend = f"on {where}: printf '%s\\n' {lines} >/etc/sysctl.d/60-backfill.conf; sysctl --system"
        yield Finding(Defect.LINKS, where, what, mend, Grade.ADVICE)
