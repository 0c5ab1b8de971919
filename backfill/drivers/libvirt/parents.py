"""Parents of instant clones: booted once per host and image, tried out, frozen, kept warm.

A parent is a folder with memory, state and disk. Its emulator ends when it is frozen, so that
nobody can thaw it: a parent that ran on would change the memory of all its clones. The page cache
keeps its memory warm. Clones need the folder as long as they live: what one names stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from backfill.core.fleet import Flavour, InstanceSpec, Tag
from backfill.drivers.libvirt import forking
from backfill.drivers.libvirt.domain_xml import Memory, domain_xml
from backfill.drivers.libvirt.ownership import give
from backfill.drivers.libvirt.pool import Pool
from backfill.drivers.libvirt.settings import Hardware, ImageFiles
from backfill.drivers.libvirt.store import Store, folders_in, read_text, write_secret
from backfill.ports import BusyError, DriverError, unreadable

_log = logging.getLogger(__name__)
_FORMAT = 3  # of what is below; another one makes all parents anew
_BOOT_LIMIT_S = 180.0
_CANARY_LIMIT_S = 60.0
_LOOK_EVERY_S = 0.02
_FROZEN, _VERDICT = "BACKFILL-PARENT", "BACKFILL-CANARY "

# Seeds for the parent and for its canary: is it the canary, its name -> the bytes.
MakeSeed = Callable[[InstanceSpec, bool], bytes]


@dataclass(frozen=True, slots=True)
class Parent:
    """The files of one frozen parent."""

    home: Path

    @property
    def memory(self) -> Path:
        return self.home / "ram"

    @property
    def state(self) -> Path:
        return self.home / "state"

    @property
    def disk(self) -> str:
        return str(self.home / "disk.qcow2")

    def image(self, image: ImageFiles) -> ImageFiles:
        """The image as its clones see it: the parent's disk lies below theirs."""
        return replace(image, disk=self.disk, disk_format="qcow2")

    def fingerprint(self) -> dict[str, list[int]]:
        """Size and time of change of everything that must never change again."""
        seen = {}
        for path in (self.memory, self.state, Path(self.disk)):
            found = path.stat()
            seen[path.name] = [found.st_size, found.st_mtime_ns]
        return seen

    def intact(self) -> bool:
        """Whether it was found good once and nobody has written to it since.

        UnreadableError where that cannot be told.
        """
        good = read_text(self.home.name, self.home / "good")
        try:
            return good is not None and bool(json.loads(good) == self.fingerprint())
        except (FileNotFoundError, ValueError):
            return False
        except OSError as error:
            raise unreadable(self.home.name, error) from error


def parent_of(
    pool: Pool, spec: InstanceSpec, image: ImageFiles, hardware: Hardware, make_seed: MakeSeed
) -> Parent:
    """The parent from which `spec` is cloned; made and tried out first when there is none.

    BusyError: `end_nursing` was called after this.
    """
    store = parents_on(pool, spec.host)
    key = kind_of(spec.flavour, image, hardware)
    unwanted = pool.nurseries.begun(spec.host)
    with pool.one_by_one(spec.host):
        found = newest(store, key)
        if found is not None:
            # As whom QEMU runs can be another one since.
            give(pool.on(spec.host).qemu_user(), spec.host, found.memory, found.state)
            return found
        images = pool.config.images.values()
        wanted = {kind_of(spec.flavour, known, hardware) for known in images}
        _clear_unused(pool, store, spec.host, wanted)
        return _raise(_Nursery(pool, store, spec, image, hardware, make_seed, unwanted), key)


def key_of(home: Path) -> str:
    """What its folder says of its kind."""
    return home.name.split("-")[1]


def flavour_of(home: Path) -> Flavour | None:
    """The shape that it was made for; None for what is half written."""
    text = read_text(home.name, home / "flavour.json")
    try:
        return None if text is None else Flavour(**json.loads(text))
    except (ValueError, TypeError):
        return None


def newest(store: Store, key: str) -> Parent | None:
    """The youngest intact parent of this kind."""
    start = f"parent-{key}-"
    homes = [home for home in reversed(folders_in(store.root)) if home.name.startswith(start)]
    return next((p for p in map(Parent, homes) if p.intact()), None)


def parents_on(pool: Pool, host: str) -> Store:
    """The folders of parents on `host`; a dot keeps them apart from those of instances."""
    return Store(str(pool.store_on(host).root / ".parents"), host)


def kind_of(shape: Flavour, image: ImageFiles, hardware: Hardware) -> str:
    """What parents of one kind have in common; anything else needs a parent of its own."""
    files = []
    for path in (image.kernel, image.initrd, image.disk):
        with contextlib.suppress(OSError):  # a missing file has its own error, later
            seen = os.stat(path)
            files.append((path, seen.st_size, seen.st_mtime_ns))
    flavour = (shape.cpus, shape.memory_mb, shape.disk_gb)
    # A weight that the host cannot give changes nothing in the guest.
    parts = (_FORMAT, files, image.sha256, image.cmdline, flavour, replace(hardware, cpu_shares=None))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class _Nursery:
    """All that it takes to raise one parent."""

    pool: Pool
    store: Store
    spec: InstanceSpec
    image: ImageFiles
    hardware: Hardware
    make_seed: MakeSeed
    unwanted: Callable[[], bool]

    def named(self, name: str) -> InstanceSpec:
        """The wanted instance's shape under another name, without an address."""
        tag = Tag(self.spec.tag.cluster, name, 0)
        return replace(self.spec, name=name, tag=tag, address="")

    def document(self, spec: InstanceSpec, memory: Memory) -> str:
        """A machine that carries no mark: it is nobody's instance."""
        files = self.store.files(spec.name)
        bridge = self.pool.config.bridge
        return domain_xml(spec, self.image, files, self.hardware, bridge, time.time(), memory, marked=False)


def _raise(nursery: _Nursery, key: str) -> Parent:
    """Boot a parent, freeze it, and let a canary say whether it is good."""
    began_s = time.monotonic()
    spec, store = nursery.spec, nursery.store
    name = f"parent-{key}-{time.time_ns()}"
    parent = Parent(store.home(name))
    parent.home.mkdir(mode=0o711, parents=True)
    (parent.home / "flavour.json").write_text(json.dumps(asdict(spec.flavour)))
    try:
        _boot_and_freeze(nursery, nursery.named(name), parent)
        _try_out(nursery, nursery.named(f"canary-{key}"), parent)
        (parent.home / "good").write_text(json.dumps(parent.fingerprint()))
    except BaseException as error:
        store.remove(name)
        if nursery.unwanted():
            problem = f"no parent is made on {spec.host} now: the host is wanted"
            raise BusyError(spec.host, problem) from error
        raise
    took_s = time.monotonic() - began_s
    _log.info("parent of %s on %s is ready after %.1f s", spec.image, spec.host, took_s)
    return parent


def _boot_and_freeze(nursery: _Nursery, spec: InstanceSpec, parent: Parent) -> None:
    hypervisor, store = nursery.pool.on(spec.host), nursery.store
    store.make(spec.name, nursery.image, spec.flavour.disk_gb, nursery.make_seed(spec, False))
    hypervisor.define(spec.name, nursery.document(spec, Memory(str(parent.memory), shared=True)))
    for path in (parent.memory, parent.state):
        write_secret(str(path), b"")  # private before there is anything in it
    give(hypervisor.qemu_user(), spec.host, parent.memory, parent.state)
    try:
        hypervisor.start(spec.name)
        _await_line(nursery, spec.name, _FROZEN, _BOOT_LIMIT_S)
        forking.freeze(hypervisor, spec.name, parent.state, nursery.pool.config.limits.start_s)
    finally:
        hypervisor.destroy(spec.name)
        hypervisor.undefine(spec.name)
    for path in (parent.memory, parent.state, Path(parent.disk)):
        # What is on disk gives its place in memory to whoever asks for it.
        with path.open("rb") as file:
            os.fsync(file.fileno())
        path.chmod(0o600)  # QEMU opens memory for writing, also where it changes none of it


def _try_out(nursery: _Nursery, spec: InstanceSpec, parent: Parent) -> None:
    """One clone that checks memory, key and itself; a parent that it does not praise is no use."""
    hypervisor, store, limits = (nursery.pool.on(spec.host), nursery.store, nursery.pool.config.limits)
    _end(nursery, spec.name)
    store.home(spec.name).mkdir(mode=0o711, parents=True)
    image = parent.image(nursery.image)
    store.make(spec.name, image, spec.flavour.disk_gb, nursery.make_seed(spec, True))
    hypervisor.define(spec.name, nursery.document(spec, Memory(str(parent.memory), shared=False)))
    try:
        forking.fork(hypervisor, spec.name, parent.state, limits.start_s)
        verdict = _await_line(nursery, spec.name, _VERDICT, _CANARY_LIMIT_S)
    finally:
        _end(nursery, spec.name)
    if verdict != "good":
        raise DriverError(
            spec.image,
            f"its first instant clone on {spec.host} was {verdict or 'silent'}",
            "look at the image, or choose another clone method",
        )


def _end(nursery: _Nursery, name: str) -> None:
    hypervisor = nursery.pool.on(nursery.spec.host)
    hypervisor.destroy(name)
    hypervisor.undefine(name)
    nursery.store.remove(name)


def _await_line(nursery: _Nursery, name: str, start: str, limit_s: float) -> str:
    """Wait for a line on the console; returns what follows `start` there."""
    deadline_s = time.monotonic() + limit_s
    while True:
        if nursery.unwanted():
            raise BusyError(name, "it is given up")
        text = nursery.store.console(name)
        for line in text.splitlines():
            if line.startswith(start):
                return line.removeprefix(start).strip()
        if time.monotonic() > deadline_s:
            last = text.splitlines()[-1:] or ["nothing"]
            raise DriverError(
                name, f"it did not say {start.strip()} within {limit_s:g} s; its last word: {last[0]}"
            )
        time.sleep(_LOOK_EVERY_S)


def _clear_unused(pool: Pool, store: Store, host: str, wanted: set[str]) -> None:
    """Remove what no instance needs: parents of older images, and halves of interrupted work.

    Only one parent at a time is made on a host, so that nothing here is half done by another.
    """
    hypervisor, homes = pool.on(host), folders_in(store.root)
    needed = pool.store.parents_in_use() if homes else frozenset()
    for home in homes:
        key = key_of(home) if home.name.startswith("parent-") else ""
        if str(home) in needed or (key in wanted and Parent(home).intact()):
            continue
        hypervisor.destroy(home.name)
        hypervisor.undefine(home.name)
        store.remove(home.name)
