"""Checkpoints of instances: made of suspended ones, put back in their place, never half."""

from __future__ import annotations

import contextlib
import shutil
import threading
from pathlib import Path

from backfill.core.model.fleet import Checkpoint, InstanceState
from backfill.drivers.libvirt import programs
from backfill.drivers.libvirt.checkpoints import packing, save_image
from backfill.drivers.libvirt.checkpoints.folders import untouched_s
from backfill.drivers.libvirt.checkpoints.manifest import Manifest
from backfill.drivers.libvirt.connection.domain_xml import placed
from backfill.drivers.libvirt.migration import carrying
from backfill.drivers.libvirt.pool import AT_REST, Pool
from backfill.drivers.libvirt.store import parents_in
from backfill.ports.errors import (
    AlreadyThereError,
    BadOutputError,
    BusyError,
    DriverError,
    NoCapacityError,
    NotFoundError,
    UnreachableError,
    UnreadableError,
)

_ABANDONED_S = 3600.0
_SCRATCH = ".trial-"
# These end a trial and say nothing about the checkpoint.
_NO_VERDICT = (UnreachableError, UnreadableError, BusyError, NoCapacityError)
# What `qemu-img check` ends with; clusters that nothing refers to are waste, not damage.
_CORRUPT, _LEAKED = 2, 3
_CHECK_LIMIT_S = 600.0


def keep(pool: Pool, host: str, wanted: Checkpoint, quota_mb: float | None) -> Checkpoint:
    """Keep the state of a suspended instance. See `CheckpointKeeper.keep`."""
    with pool.changing(wanted.name):
        _, instance = pool.need(host, wanted.name)
        if instance.state is not InstanceState.SUSPENDED:
            raise BusyError(wanted.name, f"it is {instance.state}, not suspended")
        document = pool.on(host).document(wanted.name)
        home = pool.store_on(host).home(wanted.name)
        kept = pool.checkpoints.keep(wanted, document, home, quota_mb)
    folder = Path(kept.where)
    # The instance stands still for the copy only; packing goes on while it works again. Where the
    # daemon dies meanwhile, the hourly tidying or the first verification seals it.
    threading.Thread(target=_seal, args=(pool, folder), name="seal", daemon=True).start()
    return kept


def _seal(pool: Pool, folder: Path) -> None:
    with contextlib.suppress(DriverError, OSError):
        pool.checkpoints.seal(folder)


def put_back(pool: Pool, host: str, name: str, identity: str) -> None:
    """Replace an instance's state by a checkpoint's. See `CheckpointKeeper.put_back`."""
    with pool.changing(name):
        # Everything that may fail comes first: the old state is given up at the very end.
        manifest = _part(pool.checkpoints.verify(identity), identity, name)
        _check_place(pool, host, manifest)
        store = pool.store_on(host)
        try:
            ready = pool.checkpoints.unpack(manifest, store.home(name))
            packing.flush_all(name, (builder for builder, _ in ready))  # the old memory is the only one
        except DriverError:
            for builder in store.home(name).glob("*.back"):
                builder.unlink(missing_ok=True)  # a full disk is not to stay full by our doing
            raise
        if pool.find(host, name) is None:
            pool.on(host).define(name, placed(manifest.document, store.files(name)))
        pool.store.claim(name, {host})
        pool.store.lean_again(name, manifest.document)
        # Old memory must never meet the new disk, nor new memory the old one.
        store.discard_memory(name)
        for builder, place in ready:  # the memory, which makes it whole, comes last
            builder.replace(place)
        packing.flush_all(name, (place for _, place in ready))  # or a power cut brings back the old state


def _part(manifests: list[Manifest], identity: str, name: str) -> Manifest:
    for manifest in manifests:
        if manifest.checkpoint.name == name:
            return manifest
    raise NotFoundError(identity, f"it has no part of {name}")


def _check_place(pool: Pool, host: str, manifest: Manifest) -> None:
    name = manifest.checkpoint.name
    for parent in parents_in(manifest.document):
        carrying.refuse_if_leaning(pool, name, host, parent)
    pool.refuse_if_elsewhere(host, name)
    domain = pool.on(host).find(name)
    if domain is None:
        return
    instance = pool.instance(host, domain)
    if instance is None:
        raise AlreadyThereError(name, f"{host} has a machine of this name that is not ours")
    if instance.tag.generation != manifest.checkpoint.generation:
        raise AlreadyThereError(
            name,
            f"generation {instance.tag.generation} of it is on {host}, the checkpoint is of "
            f"generation {manifest.checkpoint.generation}",
            "delete that one first",
        )
    if instance.state not in AT_REST:
        raise BusyError(name, f"it is {instance.state} on {host}", "suspend it first")


def rehearse(pool: Pool, host: str, identity: str) -> None:
    """See `CheckpointKeeper.rehearse`."""
    pool.on(host)
    for manifest in pool.checkpoints.verify(identity):
        try:
            _try(pool, host, manifest)
        except _NO_VERDICT:
            raise
        except DriverError as error:
            what = f"{manifest.checkpoint.name} cannot be restored on {host}"
            raise BadOutputError(identity, f"{what}: {error.problem}") from error


def _try(pool: Pool, host: str, manifest: Manifest) -> None:
    # Where the host finds it, and no instance's folder can be.
    scratch = pool.store_on(host).root / f"{_SCRATCH}{manifest.checkpoint.name}"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(mode=0o711, parents=True)
    try:
        name, image = _prepare(pool, manifest, scratch)
        try:
            pool.on(host).restore(name, image)
        finally:
            pool.on(host).destroy(name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def clear(pool: Pool) -> None:
    """Remove what trials left that were cut off."""
    for store in pool.stores:
        for scratch in store.root.glob(f"{_SCRATCH}*"):
            if untouched_s(scratch) > _ABANDONED_S:
                shutil.rmtree(scratch, ignore_errors=True)


def _prepare(pool: Pool, manifest: Manifest, scratch: Path) -> tuple[str, Path]:
    """Prepare the files of a domain that nobody knows; return its name and its memory."""
    files = {place.name: builder for builder, place in pool.checkpoints.unpack(manifest, scratch)}
    _check_disk(manifest.checkpoint.name, files["disk.qcow2"])
    head = save_image.read_head(files["memory.save"])
    name, changed = save_image.for_trial(
        head, files["disk.qcow2"], files["seed.tar"], scratch / "console.log"
    )
    save_image.rewrite(files["memory.save"], changed)
    return name, files["memory.save"]


def _check_disk(name: str, disk: Path) -> None:
    try:
        done = programs.run(name, ["qemu-img", "check", "-q", str(disk)], _CHECK_LIMIT_S)
    except DriverError as error:
        raise UnreadableError(name, f"its disk was not checked: {error.problem}", error.remedy) from error
    said = " ".join((done.stderr.strip() or done.stdout.strip()).split())
    if done.returncode == _CORRUPT:
        raise BadOutputError(name, f"its disk is damaged: {said}")
    if done.returncode not in (0, _LEAKED):
        raise UnreadableError(name, f"its disk was not checked: {said or f'qemu-img {done.returncode}'}")
