"""Checkpoints as folders beside the instances': kept, sealed, verified, put back, dropped.

`<directory>/<cluster>/.checkpoints/<id>/<instance>/` holds memory, disk and manifest. Keeping costs
a hard link of the memory image and a copy of the overlay, because the instance stands still
meanwhile; packing and checksums ("sealing") follow when it is back at work.
"""

from __future__ import annotations

import contextlib
import errno
import re
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from backfill.core.model.fleet import Checkpoint
from backfill.drivers.libvirt import programs
from backfill.drivers.libvirt.checkpoints import manifest as books
from backfill.drivers.libvirt.checkpoints import packing, unsealed
from backfill.drivers.libvirt.checkpoints.manifest import Manifest, Part
from backfill.drivers.libvirt.store import Store, folders_in, is_there
from backfill.ports.errors import (
    BusyError,
    DamagedError,
    DriverError,
    NoCapacityError,
    NotFoundError,
    RefusedError,
    UnreadableError,
    unreadable,
)

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_MEMORY, _DISK, _SEED = "memory.save", "disk.qcow2", "seed.tar"
_MB = 1_000_000
_ABANDONED_S = 3600.0  # nobody fills a folder so slowly
_CP = ("cp", "--preserve=mode", "--reflink=auto", "--sparse=always")


class CheckpointFolders:
    """All checkpoints of one cluster. Safe from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._root = store.checkpoints
        self._sealing = threading.Lock()
        self._room = threading.Lock()
        self._coming: dict[Path, tuple[float, float]] = {}  # being filled: MB in all, MB written

    def folder(self, identity: str, name: str) -> Path:
        """Return the folder of one instance's part. RefusedError for an id that cannot be a folder."""
        if not _ID.fullmatch(identity):
            raise RefusedError(repr(identity), "is no id of a checkpoint")
        return self._root / identity / self._store.home(name).name

    def all(self) -> Iterator[Checkpoint]:
        """Every complete part, the oldest first. Damaged manifests are shown as such.

        UnreadableError where there is no directory at all: then it is not mounted.
        """
        self._need_share()
        found = filter(None, map(self._read, self._folders()))
        yield from sorted(found, key=lambda c: (c.created_s, c.id, c.name))

    def _need_share(self) -> None:
        """UnreadableError where there is no directory for instances, in which a cluster may have none yet."""
        directory = self._store.root.parent
        if not is_there(directory.name, directory):
            raise UnreadableError(str(directory), "No such file or directory", "is the share mounted?")

    def _folders(self) -> list[Path]:
        """Every part, complete or not."""
        return [part for whole in folders_in(self._root) for part in folders_in(whole)]

    def _read(self, folder: Path) -> Checkpoint | None:
        """Read the part's manifest; None if the part is not complete."""
        try:
            if not books.present(folder):
                return None
            manifest, doubt = _look(folder)
            problem = doubt.problem if isinstance(doubt, DamagedError) else ""
            return replace(manifest.checkpoint, whole=books.read_whole(folder.parent), problem=problem)
        except NotFoundError:  # it was dropped in this moment
            return None
        except (DamagedError, UnreadableError) as error:
            return Checkpoint(
                id=folder.parent.name,
                name=folder.name,
                where=str(folder),
                size_mb=_size_or_none_mb(folder),
                problem=error.problem,
            )

    def parts_of(self, identity: str) -> list[Path]:
        """Folders of all parts. NotFoundError when there is none, UnreadableError when nobody knows."""
        known = _ID.fullmatch(identity) is not None
        found = [f for f in folders_in(self._root / identity) if books.present(f)] if known else []
        if not found:
            self._need_directory(identity)
            raise NotFoundError(identity, "there is no such checkpoint", "backfill checkpoint list")
        return found

    def _need_directory(self, identity: str) -> None:
        """UnreadableError where the shared directory is not mounted: nothing that it lacks is gone."""
        root = self._store.root
        if not is_there(identity, root):
            raise UnreadableError(
                identity,
                f"{root} is not there, where checkpoints would be",
                "see that the directory is mounted",
            )

    # --- keeping ---------------------------------------------------------------------------

    def keep(self, wanted: Checkpoint, document: str, home: Path, quota_mb: float | None) -> Checkpoint:
        """Keep the memory and disk of a suspended instance, whose files are in `home`.

        Kept already: that one is returned, unless it did not outlive a power cut.
        """
        folder = self.folder(wanted.id, wanted.name)
        if books.present(folder):
            manifest, doubt = _look(folder)
            if not isinstance(doubt, DamagedError):
                return manifest.checkpoint
        used_mb = {part: _used_bytes(home / part) / _MB for part in (_MEMORY, _DISK, _SEED)}
        size_mb = sum(used_mb.values())
        linked = home.stat().st_dev == self._store.root.stat().st_dev  # it gets a second name
        copied_mb = size_mb - used_mb[_MEMORY] * linked
        with self._room:  # the members of a parallel job are kept at the same time
            self._need_room(wanted, size_mb, copied_mb, quota_mb)
            self._coming[folder] = (size_mb, copied_mb)
        try:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(mode=0o700, parents=True)
            _link(wanted.name, home / _MEMORY, folder / _MEMORY)
            copy_file(wanted.name, home / _DISK, folder / _DISK)
            kept = replace(wanted, size_mb=round(size_mb, 3), where=str(folder))
            copy_file(wanted.name, home / _SEED, folder / _SEED)
            # The memory stands last: only with it a state that is put back is whole.
            parts = tuple(Part(part, part) for part in (_DISK, _SEED, _MEMORY))
            written = unsealed.note(folder, (part.stored for part in parts))
            books.write(folder, Manifest(kept, parts, document, written))
        except (OSError, DriverError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, DriverError):
                raise
            raise DriverError(wanted.name, f"cannot keep a checkpoint: {error}") from error
        finally:
            with self._room:
                del self._coming[folder]
        return kept

    def _need_room(
        self, wanted: Checkpoint, size_mb: float, copied_mb: float, quota_mb: float | None
    ) -> None:
        used_mb = sum(c.size_mb for c in self.all()) + sum(s for s, _ in self._coming.values())
        if quota_mb is not None and used_mb + size_mb > quota_mb:
            raise NoCapacityError(
                wanted.name,
                f"its checkpoint of {size_mb:.0f} MB does not fit: {used_mb:.0f} of "
                f"{quota_mb:.0f} MB are used",
                "delete old checkpoints, or raise checkpoints.quota_mb",
            )
        coming_mb = sum(copied for _, copied in self._coming.values())
        free_mb = shutil.disk_usage(self._store.root).free / _MB - coming_mb
        if copied_mb > free_mb:
            raise NoCapacityError(
                wanted.name,
                f"to copy {copied_mb:.0f} MB of it takes more than the {free_mb:.0f} MB that are free",
                "delete old checkpoints",
            )

    # --- sealing ---------------------------------------------------------------------------

    def seal(self, folder: Path) -> Manifest:
        """Pack the files where that pays and note their checksums; sealed already is fine.

        DamagedError where they may not be as they were kept; BusyError: another machine can tell.
        """
        with self._sealing:
            manifest, doubt = _look(folder)
            if doubt is not None:
                raise doubt
            if manifest.sealed:
                if not books.read_whole(folder.parent):
                    self._seal_whole(folder.parent)
                return manifest
            choice = packing.choose(packing.measure(folder / _stored(manifest, _MEMORY)))
            parts = tuple(_seal_part(folder, part, choice.level) for part in manifest.parts)
            checkpoint = replace(
                manifest.checkpoint,
                size_mb=round(sum((folder / p.stored).stat().st_size for p in parts) / _MB, 3),
                compression=choice.method,
                compression_why=choice.why,
                checksum=parts[-1].checksum,
            )
            sealed = Manifest(checkpoint, parts, manifest.document)
            books.write(folder, sealed)
            packing.flush_folder(folder)
            for before, after in zip(manifest.parts, parts, strict=True):
                if before.stored != after.stored:
                    (folder / before.stored).unlink(missing_ok=True)
            self._seal_whole(folder.parent)
            return sealed

    def _seal_whole(self, folder: Path) -> None:
        """Note that the checkpoint is whole: its last part is sealed."""
        manifests = [books.read(part) for part in folders_in(folder) if books.present(part)]
        checksum = books.whole_of(manifests)
        if checksum is not None:
            books.write_whole(folder, manifests, checksum)

    def verify(self, identity: str) -> list[Manifest]:
        """All parts, when every member is there and every file is as it was when it was sealed.

        DamagedError names what is missing or damaged.
        """
        manifests = [self.seal(folder) for folder in self.parts_of(identity)]
        members = {name for m in manifests for name in m.checkpoint.members}
        missing = members - {m.checkpoint.name for m in manifests}
        if missing:
            raise DamagedError(
                identity,
                f"it is not complete: {', '.join(sorted(missing))} is missing",
                "delete it and make another one",
            )
        for manifest in manifests:
            _verify_parts(identity, manifest)
        noted = books.read_whole(self._root / identity)
        if noted and noted != books.whole_of(manifests):  # an older backfill noted none
            raise DamagedError(identity, "its parts are not those of one moment", "delete this checkpoint")
        return manifests

    # --- putting back ----------------------------------------------------------------------

    def unpack(self, manifest: Manifest, home: Path) -> list[tuple[Path, Path]]:
        """Lay the files ready in the instance's folder, or in another one.

        Returns pairs of what lies there now and the place where it belongs.
        """
        home.mkdir(mode=0o711, parents=True, exist_ok=True)
        ready = []
        for part in manifest.parts:
            source = Path(manifest.checkpoint.where) / part.stored
            draft = home / f"{part.name}.back"
            if part.stored == part.name:
                copy_file(manifest.checkpoint.name, source, draft)
            else:
                packing.unpack(source, draft)
            ready.append((draft, home / part.name))
        return ready

    # --- dropping --------------------------------------------------------------------------

    def drop(self, identity: str) -> None:
        """Remove a checkpoint; gone already is fine."""
        if not _ID.fullmatch(identity):
            raise RefusedError(repr(identity), "is no id of a checkpoint")
        whole = self._root / identity
        with self._sealing:
            (whole / "whole.json").unlink(missing_ok=True)
            # A folder without a manifest is none: an interrupted removal leaves no half checkpoint.
            for folder in folders_in(whole):
                with contextlib.suppress(FileNotFoundError):
                    (folder / "manifest.json").unlink()
            shutil.rmtree(whole, ignore_errors=True)
            with contextlib.suppress(OSError):
                self._root.rmdir()  # where it was the last one
        if whole.exists():
            raise DriverError(identity, f"cannot remove {whole}", "check the shared directory")

    def tend(self) -> None:
        """Seal what an interrupted daemon left unsealed, remove what it left half made."""
        for folder in self._folders():
            with contextlib.suppress(UnreadableError):  # the list of all says so
                self._tend(folder)
        for whole in folders_in(self._root):
            with contextlib.suppress(DriverError, OSError):
                self._tend_half(whole)

    def _tend_half(self, whole: Path) -> None:
        """Remove what is left of a checkpoint of several instances of which not all could be kept.

        It can never be put back: some part of the job would go on from another moment.
        """
        parts = folders_in(whole)
        kept = [books.read(part).checkpoint for part in parts if books.present(part)]
        missing = {name for one in kept for name in one.members} - {one.name for one in kept}
        if missing and min(map(untouched_s, (whole, *parts))) > _ABANDONED_S:
            self.drop(whole.name)

    def _tend(self, folder: Path) -> None:
        if books.present(folder):
            # One that is being dropped meanwhile, by hand perhaps, needs no seal any more.
            with contextlib.suppress(DriverError, OSError):
                self.seal(folder)
        elif untouched_s(folder) > _ABANDONED_S:
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                folder.parent.rmdir()  # where it was the only part


def untouched_s(folder: Path) -> float:
    """Return seconds since the last write in it; 0 if it goes away meanwhile."""
    try:
        return time.time() - max(p.stat().st_mtime for p in (folder, *folder.iterdir()))
    except OSError:
        return 0.0


def _look(folder: Path) -> tuple[Manifest, DriverError | None]:
    """Read the manifest, and what speaks against sealing it."""
    manifest = books.read(folder)
    doubt = unsealed.doubt(folder, manifest)
    if doubt is not None:  # another process may just have sealed it, and removed what it had packed
        manifest = books.read(folder)
        doubt = None if manifest.sealed else doubt
    return manifest, doubt


def _stored(manifest: Manifest, name: str) -> str:
    return next(part.stored for part in manifest.parts if part.name == name)


def _seal_part(folder: Path, part: Part, level: int) -> Part:
    plain = folder / part.stored
    if level and part.stored == part.name:
        packed = folder / f"{part.name}.zst"
        packing.pack(plain, packed, level)
        return Part(part.name, packed.name, packing.checksum(packed))
    packing.flush(plain)
    return Part(part.name, part.stored, packing.checksum(plain))


def _verify_parts(identity: str, manifest: Manifest) -> None:
    folder = Path(manifest.checkpoint.where)
    for part in manifest.parts:
        try:
            found = packing.checksum(folder / part.stored)
        except FileNotFoundError as error:
            raise DamagedError(
                identity, f"{folder / part.stored} is missing", "delete this checkpoint"
            ) from error
        except OSError as error:  # that says nothing about the checkpoint
            raise unreadable(identity, error, folder / part.stored) from error
        if found != part.checksum:
            raise DamagedError(
                identity,
                f"{folder / part.stored} is damaged: its checksum has changed",
                "delete this checkpoint",
            )


def _link(name: str, source: Path, target: Path) -> None:
    """Give the file another name too; copy it where the two places are on two disks."""
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        copy_file(name, source, target)


def copy_file(name: str, source: Path, target: Path) -> None:
    """Make a copy that shares blocks where the file system can, and keeps holes."""
    done = programs.run(name, [*_CP, str(source), str(target)], programs.WHOLE_FILE_S)
    if done.returncode:
        kind = NoCapacityError if programs.said_full(done.stderr) else DriverError
        raise kind(name, f"cannot copy {source}: {done.stderr.strip()}")


def _used_bytes(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError as error:
        raise BusyError(path.parent.name, f"it is not suspended: {path.name} is missing") from error


def _size_or_none_mb(folder: Path) -> float:
    """Return its size; 0 for a folder that cannot be looked into."""
    try:
        return _size_mb(folder)
    except OSError:
        return 0.0


def _size_mb(folder: Path) -> float:
    return round(sum(f.stat().st_size for f in folder.iterdir() if f.is_file()) / _MB, 3)
