"""Checkpoints of instances: made of suspended ones, put back in their place, never half."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from backfill.core.model.fleet import Checkpoint, InstanceState
from backfill.drivers.libvirt.checkpoints import packing
from backfill.drivers.libvirt.checkpoints.manifest import Manifest
from backfill.drivers.libvirt.connection.domain_xml import placed
from backfill.drivers.libvirt.migration import carrying
from backfill.drivers.libvirt.pool import AT_REST, Pool
from backfill.drivers.libvirt.store import parents_in
from backfill.ports.errors import AlreadyThereError, BusyError, DriverError, NotFoundError


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
            packing.flush_all(name, (draft for draft, _ in ready))  # the old memory is the only one
        except DriverError:
            for draft in store.home(name).glob("*.back"):
                draft.unlink(missing_ok=True)  # a full disk is not to stay full by our doing
            raise
        if pool.find(host, name) is None:
            pool.on(host).define(name, placed(manifest.document, store.files(name)))
        pool.store.claim(name, {host})
        pool.store.lean_again(name, manifest.document)
        *others, (memory, whole) = ready  # the memory, which makes it whole, comes last
        # Old memory must never meet the new disk, nor new memory the old one.
        coming = store.replace_memory(name, memory)
        for draft, place in others:
            draft.replace(place)
        coming.replace(whole)
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
