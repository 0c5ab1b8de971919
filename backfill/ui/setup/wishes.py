"""What an admin has to say to set a cluster up, with what the cluster itself suggests."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from backfill.ui.doctor.places import unescaped
from backfill.ui.setup.survey import Survey, address_towards

Ask = Callable[[str, str], str]
_KERNELS, _INITRDS = ("vmlinuz", "kernel"), ("initrd", "initrd.img", "initramfs.img")
_DISKS = {"disk.raw": "raw", "root.img": "raw", "disk.qcow2": "qcow2", "root.qcow2": "qcow2"}
_CMDLINE = "root=/dev/vda rw console=ttyS0"
_KEPT_MB = 1024
_WORDS_OF_MOUNT = 4


class WishError(Exception):
    """Something is missing or makes no sense; the message is one sentence with the remedy."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """The answers. An empty text or 0 means: as the cluster suggests, or asked for.

    `mounts`: what guests mount, lines as in fstab or places of this machine's; None: nobody has said.
    `also`: whom closed guests reach besides.
    `controllers`: at which addresses guests reach slurmctld, the primary first.
    """

    partition: str = "htc"
    names: str = ""
    addresses: str = ""
    cpus: int = 0
    memory_mb: int = 0
    directory: str = ""
    bridge: str = ""
    gateway: str = ""
    image: str = ""
    emulated: bool = False
    user: str = ""
    hosts: tuple[str, ...] = ()
    cpu_features: tuple[str, ...] = field(default_factory=tuple)
    mounts: tuple[str, ...] | None = None
    closed: bool = False
    also: tuple[str, ...] = ()
    controllers: tuple[str, ...] = ()


NOTHING_BEFORE = Wishes()


def recalled(said: Mapping[str, Any]) -> Wishes:
    """Return the wishes that an earlier run was told, as remembered. WishError: by another version."""
    new = {one.name: getattr(NOTHING_BEFORE, one.name) for one in fields(Wishes) if one.name != "mounts"}
    known: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in said.items() if k in new}
    for name, value in known.items():
        if type(value) is not type(new[name]):
            told = f"what an earlier run of setup was told of {name} is not understood ({value})"
            raise WishError(f"{told}: use the backfill that was told it")
    return Wishes(**known)


def _answered_before(wishes: Wishes, before: Wishes) -> Wishes:
    """Take from the run before what has no suggestion of the cluster's and is not said now."""
    return replace(
        wishes,
        partition=wishes.partition or before.partition,
        gateway=wishes.gateway or before.gateway,
        user=wishes.user or before.user,
        cpu_features=wishes.cpu_features or before.cpu_features,
        emulated=wishes.emulated or before.emulated,
        closed=wishes.closed or before.closed,
        also=wishes.also or before.also,
        controllers=wishes.controllers or before.controllers,
    )


def _refuse_silent(survey: Survey, hosts: Collection[str]) -> None:
    """Refuse to leave out a host of an earlier run since it does not answer: its work would be nobody's."""
    answers = {host.node.name: host.problem for host in survey.hosts if host.inspection is None}
    for name in hosts:
        if problem := answers.get(name):
            raise WishError(
                f"{problem}, and an earlier run has set it up: mend that, or leave it out by --hosts"
            )


def suggested(
    survey: Survey, said: Wishes, ask: Ask | None, had: Sequence[str] = (), before: Wishes = NOTHING_BEFORE
) -> Wishes:
    """Fill in what is not said: by asking, with a suggestion, where `ask` is there.

    `had`: what guests mount by the policy file as it is now, which stays until somebody says otherwise, as
    does what an earlier run was told, `before`. WishError for what has no suggestion and nobody to ask.
    """
    wishes = _answered_before(said, before)
    _refuse_silent(survey, before.hosts)
    live = [host for host in survey.hosts if host.inspection is not None]
    if not live:
        reasons = "\n".join(host.problem for host in survey.hosts) or "Slurm has no node of slurm.conf"
        raise WishError(f"{reasons}\nno host answers: name their libvirt by --uri, or other hosts by --hosts")
    cpus = min(host.node.cpus for host in live)
    memory_mb = min(host.node.memory_mb for host in live)
    half_mb = max(256, (memory_mb - _KEPT_MB) // 2)

    def told(option: str, said: str, proposal: str) -> str:
        return _told(option, said, proposal, ask)

    names = told("--names", wishes.names, before.names or f"vn[1-{2 * len(live)}]")
    addresses = told("--addresses", wishes.addresses, before.addresses)
    each, each_mb = before.cpus or max(1, cpus // 2), before.memory_mb or half_mb
    made = Wishes(
        partition=wishes.partition,
        names=names,
        addresses=addresses,
        cpus=_number("--cpus", told("--cpus", str(wishes.cpus or ""), str(each))),
        memory_mb=_number("--memory-mb", told("--memory-mb", str(wishes.memory_mb or ""), str(each_mb))),
        directory=told("--directory", wishes.directory, before.directory or _directory(survey)),
        bridge=told("--bridge", wishes.bridge, before.bridge or survey.bridge),
        gateway=wishes.gateway,
        image=told("--image", wishes.image, before.image),
        emulated=wishes.emulated or not survey.has_kvm,
        user=wishes.user or survey.user,
        hosts=tuple(host.node.name for host in live),
        cpu_features=wishes.cpu_features,
        closed=wishes.closed,
        also=wishes.also,
        controllers=wishes.controllers or _controllers(survey, addresses),
    )
    there = mountable(survey, made.directory)
    if wishes.mounts is not None:
        return replace(made, mounts=tuple(_line(word, there) for word in wishes.mounts))
    return replace(made, mounts=_mounts(had, there, ask))


def _controllers(survey: Survey, addresses: str) -> tuple[str, ...]:
    """Return every controller's address, with this machine's own towards guests in place of a loopback one.

    Debian lets a machine's own name mean 127.0.1.1, which inside a guest means the guest itself. Only one
    of several can be this machine; a name that nobody knows here stays, to be refused.
    """
    own = next(filter(_is_loopback, survey.controllers), "")
    towards = address_towards(addresses.partition("/")[0]) if own else ""
    reached = {own: towards} if towards and not _is_loopback(towards) else {}
    return tuple(dict.fromkeys(reached.get(one, one) for one in survey.controllers))


def _is_loopback(controller: str) -> bool:
    try:
        return ipaddress.ip_address(controller).is_loopback
    except ValueError:
        return False


def _told(option: str, said: str, proposal: str, ask: Ask | None) -> str:
    if said:
        return said
    answer = ask(_QUESTIONS[option], proposal) if ask is not None else ""
    if not (answer or proposal):
        raise WishError(f"{_QUESTIONS[option]}? Say it by {option}")
    return answer or proposal


def _number(option: str, answer: str) -> int:
    try:
        return int(answer)
    except ValueError:
        raise WishError(f"{option} {answer}: that is no whole number") from None


_QUESTIONS = {
    "--names": "Names of the virtual nodes",
    "--addresses": "The first of their addresses, free ones of the hosts' network, such as 10.0.1.1/16",
    "--cpus": "CPUs of each",
    "--memory-mb": "Memory of each, MB",
    "--directory": "The directory that this machine and all hosts share",
    "--bridge": "The hosts' network bridge",
    "--image": "The folder of the guest image (`backfill image build` makes one), in a place that hosts see",
}


def mountable(survey: Survey, directory: str) -> dict[str, str]:
    """Return by place the lines of fstab that guests could have too: neither the directory of instances
    nor the state of slurmctld is their business."""
    kept = [directory, survey.settings.raw.get("StateSaveLocation", "")]
    lines = {_place(line.split()[1]): line for line in survey.mounts}
    return {
        at: line for at, line in lines.items() if not any(Path(k).is_relative_to(unescaped(at)) for k in kept)
    }


def _mounts(had: Sequence[str], there: Mapping[str, str], ask: Ask | None) -> tuple[str, ...]:
    """Return lines for what guests are to mount, where no option says it. What a machine mounts need not
    be for users: nothing of it goes to guests unless somebody says so, now or in an earlier run."""
    own = {_place(line.split()[1]): line for line in had}
    known = {**there, **own}
    if ask is None or not known:
        return tuple(had)
    question, proposal = f"NFS mounts that guests get, of {' '.join(known)}, or none", " ".join(own) or "none"
    asked = question
    while True:
        answer = ask(asked, proposal) or proposal
        words = answer.split()
        if ":/" in words[0] and len(words) >= _WORDS_OF_MOUNT:
            return (" ".join(words[:_WORDS_OF_MOUNT]),)  # a whole line, perhaps with fstab's last two numbers
        places = dict.fromkeys(map(_place, answer.replace(",", " ").split()))
        unknown = [place for place in places if place not in known]
        if places and not unknown:
            return tuple(known[place] for place in places)
        if places and {place.casefold() for place in places} <= {"none", "no"}:
            return ()
        asked = f"{', '.join(unknown) or answer} is none of these. {question}"


def _place(word: str) -> str:
    return word.rstrip("/") or word


def _line(word: str, there: Mapping[str, str]) -> str:
    if not word.startswith("/") or " " in word:
        return word  # a whole line, which the reader of policy files checks
    if _place(word) not in there:
        known = f"it has {', '.join(there)}" if there else "it has none for guests"
        raise WishError(f"--mount {word}: fstab has no such NFS mount here: {known}; or write a whole line")
    return there[_place(word)]


def _directory(survey: Survey) -> str:
    own = [mount for mount in survey.shared if "backfill" in mount]
    return own[0] if own else (f"{survey.shared[0]}/backfill" if len(survey.shared) == 1 else "/srv/backfill")


@dataclass(frozen=True, slots=True)
class ImageFolder:
    """A guest image's files as they lie in a folder. `sha256`: the disk's, where the folder tells it."""

    kernel: str
    initrd: str
    disk: str
    disk_format: str
    cmdline: str
    sha256: str = ""


def image_in(folder: Path, emulated: bool) -> ImageFolder:
    """Find the files of an image, for guests that are emulated or not. WishError: one is not there."""
    try:
        told = json.loads((folder / "image.json").read_text())
    except (OSError, ValueError):
        told = {}
    disk = _one_of(folder, tuple(_DISKS), "disk")
    words = [str(told.get("cmdline", _CMDLINE)), str(told.get("emulated", "")) if emulated else ""]
    return ImageFolder(
        str(_one_of(folder, _KERNELS, "kernel")),
        str(_one_of(folder, _INITRDS, "initial RAM disk")),
        str(disk),
        _DISKS[disk.name],
        " ".join(filter(None, words)),
        _sum_of(disk),
    )


def _sum_of(disk: Path) -> str:
    """Return the sum that was written beside a disk when it was built."""
    try:
        lines = [line.split() for line in (disk.parent / "checksums").read_text().splitlines()]
    except (OSError, ValueError):
        return ""
    return next((words[0] for words in lines if words[1:] == [disk.name]), "")


def _one_of(folder: Path, names: tuple[str, ...], what: str) -> Path:
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise WishError(f"{folder} has no {what} ({' or '.join(names)}); build one: backfill image build")
    return found
