"""Trials of checkpoints: loaded into memory once, stopped, as a domain that nobody knows, and thrown away."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import ParseError, fromstring

from backfill.drivers.libvirt import programs
from backfill.drivers.libvirt.checkpoints import save_image
from backfill.drivers.libvirt.checkpoints.folders import untouched_s
from backfill.drivers.libvirt.checkpoints.manifest import Manifest
from backfill.drivers.libvirt.connection.domains import Domain
from backfill.drivers.libvirt.pool import Pool
from backfill.drivers.libvirt.store import is_there
from backfill.ports.errors import (
    BadOutputError,
    BusyError,
    DriverError,
    NoCapacityError,
    UnreachableError,
    UnreadableError,
)

_LOG = logging.getLogger(__name__)
_ABANDONED_S = 3600.0
_SCRATCH = ".trial-"
_NAME = re.compile(r".+-trial-[0-9a-f]{8}")  # as `save_image.for_trial` makes it
# These end a trial and say nothing about the checkpoint.
_NO_VERDICT = (UnreachableError, UnreadableError, BusyError, NoCapacityError)
# What `qemu-img check` ends with; clusters that nothing refers to are waste, not damage.
_CORRUPT, _LEAKED = 2, 3
_CHECK_LIMIT_S = 600.0


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
    with _scratch(pool, host, manifest.checkpoint.name) as scratch:
        name, image = _prepare(pool, manifest, scratch)
        try:
            pool.on(host).restore(name, image)
        finally:
            pool.on(host).destroy(name)  # where that fails, `clear` does it


@contextlib.contextmanager
def _scratch(pool: Pool, host: str, name: str) -> Iterator[Path]:
    """Inside, there is a folder for one trial, where the host finds it and no instance's can be."""
    scratch = pool.store_on(host).root / f"{_SCRATCH}{name}-{uuid.uuid4().hex[:8]}"
    pool.trials.add(scratch)
    try:
        scratch.mkdir(mode=0o711, parents=True)
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        pool.trials.discard(scratch)


def _prepare(pool: Pool, manifest: Manifest, scratch: Path) -> tuple[str, Path]:
    """Prepare the files of a domain that nobody knows; return its name and its memory."""
    files = {place.name: draft for draft, place in pool.checkpoints.unpack(manifest, scratch)}
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


# --- what trials left that were cut off -----------------------------------------------------------


def clear(pool: Pool) -> None:
    """Remove what trials left that were cut off: domains, and files."""
    for host in pool.hypervisors:
        with contextlib.suppress(DriverError):  # one that does not answer is asked the next time
            _end_domains(pool, host)
    for store in pool.stores:
        for scratch in store.root.glob(f"{_SCRATCH}*"):
            if _untouched(pool, scratch):
                shutil.rmtree(scratch, ignore_errors=True)


def _end_domains(pool: Pool, host: str) -> None:
    """libvirtd ends a restore that it has begun, whatever becomes of the one who asked for it."""
    for domain in pool.on(host).domains():
        with contextlib.suppress(DriverError):
            if _is_left_over(pool, host, domain):
                _LOG.warning(
                    "%s on %s was left by a trial of a checkpoint: it is ended now", domain.name, host
                )
                pool.on(host).destroy(domain.name)


def _is_left_over(pool: Pool, host: str, domain: Domain) -> bool:
    """Return True if it is a trial of ours, whose folder has been left alone or is gone.

    A trial has its folder as long as it goes on.
    """
    if domain.label is not None or not _NAME.fullmatch(domain.name):
        return False
    root = pool.store_on(host).root
    scratch = _folder_of_disks(pool.on(host).document(domain.name))
    if scratch is None or scratch.parent != root or not scratch.name.startswith(_SCRATCH):
        return False
    if not is_there(domain.name, scratch):
        return is_there(domain.name, root)  # otherwise it is not mounted
    return _untouched(pool, scratch)


def _untouched(pool: Pool, scratch: Path) -> bool:
    return scratch not in pool.trials and untouched_s(scratch) > _ABANDONED_S


def _folder_of_disks(document: str) -> Path | None:
    """Return the folder of all disks of the domain; None where they are in several."""
    try:
        domain = fromstring(document)  # noqa: S314 - libvirtd's answer, not an outside document
    except ParseError:
        return None
    folders = {Path(source.get("file", "")).parent for source in domain.findall("devices/disk/source")}
    return folders.pop() if len(folders) == 1 else None
