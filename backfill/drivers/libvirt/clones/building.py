"""Builds parents of instant clones: boots one per host and image, freezes it, tries it out."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from backfill.core.model.fleet import InstanceSpec, Tag
from backfill.drivers.libvirt.clones import forking
from backfill.drivers.libvirt.clones.parents import Parent, key_of, kind_of, newest, parent_homes, parents_on
from backfill.drivers.libvirt.connection.domain_xml import Memory, domain_xml
from backfill.drivers.libvirt.ownership import give
from backfill.drivers.libvirt.pool import Pool
from backfill.drivers.libvirt.settings import Hardware, ImageFiles
from backfill.drivers.libvirt.store import Store, folders_in, write_secret
from backfill.ports.errors import BusyError, DriverError

_log = logging.getLogger(__name__)
_BOOT_LIMIT_S = 180.0
_CANARY_LIMIT_S = 60.0
_LOOK_EVERY_S = 0.02
_FROZEN, _VERDICT = "BACKFILL-PARENT", "BACKFILL-CANARY "

# Seeds for the parent and for its canary: is it the canary, its name -> the bytes.
MakeSeed = Callable[[InstanceSpec, bool], bytes]


def parent_of(
    pool: Pool, spec: InstanceSpec, image: ImageFiles, hardware: Hardware, make_seed: MakeSeed
) -> Parent:
    """Return the parent from which `spec` is cloned; make and try it out first when there is none.

    BusyError: `cancel_parents` was called after this.
    """
    store = parents_on(pool, spec.host)
    key = kind_of(spec.flavour, image, hardware)
    cancelled = pool.parent_builds.begin(spec.host)
    with pool.one_by_one(spec.host):
        found = newest(store, key)
        if found is not None:
            # As whom QEMU runs can be another one since.
            give(pool.on(spec.host).qemu_user(), spec.host, found.memory, found.state)
            return found
        images = pool.config.images.values()
        wanted = {kind_of(spec.flavour, known, hardware) for known in images}
        _clear_unused(pool, store, spec.host, wanted)
        return _build(_ParentBuild(pool, store, spec, image, hardware, make_seed, cancelled), key)


def cancel_parents(pool: Pool, host: str) -> None:
    """End whatever runs on `host` to become a parent; nothing of it runs when this returns."""
    hypervisor, store = pool.on(host), parents_on(pool, host)
    pool.parent_builds.cancel(host)
    _destroy_unfinished(pool, host)  # so that the host has its CPUs back at once
    with pool.one_by_one(host):  # whoever was building one has left
        for home in _destroy_unfinished(pool, host):
            hypervisor.undefine(home.name)
            hypervisor.undefine(f"canary-{key_of(home)}")
            store.remove(home.name)


def _destroy_unfinished(pool: Pool, host: str) -> list[Path]:
    """End the emulators of all unfinished parents; returns their folders."""
    hypervisor, half = pool.on(host), [h for h in parent_homes(pool, host) if not Parent(h).intact()]
    needed = pool.store.parents_in_use() if half else frozenset()
    homes = [home for home in half if str(home) not in needed]
    for home in homes:
        hypervisor.destroy(home.name)
        hypervisor.destroy(f"canary-{key_of(home)}")
    return homes


@dataclass(frozen=True, slots=True)
class _ParentBuild:
    """All that it takes to build one parent."""

    pool: Pool
    store: Store
    spec: InstanceSpec
    image: ImageFiles
    hardware: Hardware
    make_seed: MakeSeed
    cancelled: Callable[[], bool]

    def named(self, name: str) -> InstanceSpec:
        """Give the wanted instance's shape another name, and no address."""
        tag = Tag(self.spec.tag.cluster, name, 0)
        return replace(self.spec, name=name, tag=tag, address="")

    def document(self, spec: InstanceSpec, memory: Memory) -> str:
        """Describe a machine that carries no mark: it is nobody's instance."""
        files = self.store.files(spec.name)
        bridge = self.pool.config.bridge
        return domain_xml(spec, self.image, files, self.hardware, bridge, time.time(), memory, marked=False)


def _build(build: _ParentBuild, key: str) -> Parent:
    """Boot a parent, freeze it, and let a canary say whether it is good."""
    began_s = time.monotonic()
    spec, store = build.spec, build.store
    name = f"parent-{key}-{time.time_ns()}"
    parent = Parent(store.home(name))
    parent.home.mkdir(mode=0o711, parents=True)
    (parent.home / "flavour.json").write_text(json.dumps(asdict(spec.flavour)))
    try:
        _boot_and_freeze(build, build.named(name), parent)
        _try_out(build, build.named(f"canary-{key}"), parent)
        (parent.home / "good").write_text(json.dumps(parent.fingerprint()))
    except BaseException as error:
        store.remove(name)
        if build.cancelled():
            problem = f"no parent is made on {spec.host} now: the host is wanted"
            raise BusyError(spec.host, problem) from error
        raise
    took_s = time.monotonic() - began_s
    _log.info("parent of %s on %s is ready after %.1f s", spec.image, spec.host, took_s)
    return parent


def _boot_and_freeze(build: _ParentBuild, spec: InstanceSpec, parent: Parent) -> None:
    hypervisor, store = build.pool.on(spec.host), build.store
    store.make(spec.name, build.image, spec.flavour.disk_gb, build.make_seed(spec, False))
    hypervisor.define(spec.name, build.document(spec, Memory(str(parent.memory), shared=True)))
    for path in (parent.memory, parent.state):
        write_secret(str(path), b"")  # private before there is anything in it
    give(hypervisor.qemu_user(), spec.host, parent.memory, parent.state)
    try:
        hypervisor.start(spec.name)
        _await_line(build, spec.name, _FROZEN, _BOOT_LIMIT_S)
        forking.freeze(hypervisor, spec.name, parent.state, build.pool.config.limits.start_s)
    finally:
        hypervisor.destroy(spec.name)
        hypervisor.undefine(spec.name)
    for path in (parent.memory, parent.state, Path(parent.disk)):
        # What is on disk gives its place in memory to whoever asks for it.
        with path.open("rb") as file:
            os.fsync(file.fileno())
        path.chmod(0o600)  # QEMU opens memory for writing, also where it changes none of it


def _try_out(build: _ParentBuild, spec: InstanceSpec, parent: Parent) -> None:
    """Run one clone that checks memory, key and itself. DriverError unless it reports "good"."""
    hypervisor, store, limits = (build.pool.on(spec.host), build.store, build.pool.config.limits)
    _end(build, spec.name)
    store.home(spec.name).mkdir(mode=0o711, parents=True)
    image = parent.image(build.image)
    store.make(spec.name, image, spec.flavour.disk_gb, build.make_seed(spec, True))
    hypervisor.define(spec.name, build.document(spec, Memory(str(parent.memory), shared=False)))
    try:
        forking.fork(hypervisor, spec.name, parent.state, limits.start_s)
        verdict = _await_line(build, spec.name, _VERDICT, _CANARY_LIMIT_S)
    finally:
        _end(build, spec.name)
    if verdict != "good":
        raise DriverError(
            spec.image,
            f"its first instant clone on {spec.host} was {verdict or 'silent'}",
            "look at the image, or choose another clone method",
        )


def _end(build: _ParentBuild, name: str) -> None:
    hypervisor = build.pool.on(build.spec.host)
    hypervisor.destroy(name)
    hypervisor.undefine(name)
    build.store.remove(name)


def _await_line(build: _ParentBuild, name: str, start: str, limit_s: float) -> str:
    """Wait for a line on the console; returns what follows `start` there."""
    deadline_s = time.monotonic() + limit_s
    while True:
        if build.cancelled():
            raise BusyError(name, "its making was cancelled")
        text = build.store.console(name, ended=True)  # a line comes in pieces where hosts are busy
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
