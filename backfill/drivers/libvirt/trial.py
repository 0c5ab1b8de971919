"""A restore that is only tried: the memory of a checkpoint is loaded, stopped, and thrown away."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from backfill.drivers.libvirt import save_image
from backfill.drivers.libvirt.checkpoints import untouched_s
from backfill.drivers.libvirt.manifest import Manifest
from backfill.drivers.libvirt.pool import Pool
from backfill.ports.errors import BadOutputError, DriverError, UnreachableError

_ABANDONED_S = 3600.0
_SCRATCH = ".trial-"


def rehearse(pool: Pool, host: str, identity: str) -> None:
    """See `CheckpointKeeper.rehearse`."""
    pool.on(host)
    for manifest in pool.checkpoints.verify(identity):
        try:
            _try(pool, host, manifest)
        except UnreachableError:
            raise  # that says nothing about the checkpoint
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
    """The files of a domain that nobody knows; returns its name and its memory."""
    files = {place.name: builder for builder, place in pool.checkpoints.unpack(manifest, scratch)}
    _check_disk(manifest.checkpoint.name, files["disk.qcow2"])
    head = save_image.read_head(files["memory.save"])
    name, changed = save_image.for_trial(
        head, files["disk.qcow2"], files["seed.tar"], scratch / "console.log"
    )
    save_image.rewrite(files["memory.save"], changed)
    return name, files["memory.save"]


def _check_disk(name: str, disk: Path) -> None:
    done = subprocess.run(
        ["qemu-img", "check", "-q", str(disk)], capture_output=True, text=True, check=False, timeout=600
    )
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip()
        raise DriverError(name, f"its disk is damaged: {said}")
