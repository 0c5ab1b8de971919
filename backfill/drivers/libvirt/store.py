"""A directory of instances: one folder for each, with disk, seed, memory image and console.

Hosts that share none have one each. Claims are in the one that the daemon calls its own: they name
the hosts on which an instance may exist. They are written before an instance is made or moved and
are what forbids a second start while one of those hosts does not answer.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from backfill.drivers.libvirt import programs
from backfill.drivers.libvirt.connection.domain_xml import DomainFiles
from backfill.drivers.libvirt.settings import ImageFiles
from backfill.ports.errors import DriverError, NoCapacityError, RefusedError, UnreadableError, unreadable

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
# First bytes of a complete image. libvirt writes them last: an unfinished one starts otherwise.
_COMPLETE = (b"LibvirtQemudSave", b"TestGuestMagic")
_CONSOLE_BYTES = 16_384
_QEMU_IMG_LIMIT_S = 60.0  # for what looks at a disk, or makes an empty one
_QCOW2_MAGIC = b"QFI\xfb"
_GIB = 1 << 30
# How a clone's domain document names its parent's memory.
_PARENT = re.compile(r"mem-path=(/[^,\s\"'<]*/\.parents/[^/,]+/[^/,]+)/")


class Store:
    """Files of all instances of one cluster under `directory`."""

    def __init__(self, directory: str, cluster: str) -> None:
        self.root = Path(directory) / check_name(cluster)

    def home(self, name: str) -> Path:
        """Return the instance's own folder. RefusedError for a name that cannot be one."""
        return self.root / check_name(name)

    @property
    def checkpoints(self) -> Path:
        """Return the folder of all checkpoints; no instance's folder can have this name."""
        return self.root / ".checkpoints"

    def files(self, name: str) -> DomainFiles:
        """Return the paths of disk, seed and console for libvirt."""
        home = self.home(name)
        return DomainFiles(str(home / "disk.qcow2"), str(home / "seed.tar"), str(home / "console.log"))

    def memory(self, name: str) -> Path:
        """Return the path of a suspended instance's memory."""
        return self.home(name) / "memory.save"

    def exists(self, name: str) -> bool:
        """Return True if anything of this instance is on disk. UnreadableError: that cannot be told."""
        return is_there(name, self.home(name))

    def lean_on(self, name: str, parent: Path) -> None:
        """Note that the instance cannot live without this parent's files."""
        (self.home(name) / "parent").write_text(f"{parent}\n")

    def lean_again(self, name: str, document: str) -> None:
        """Note the parent again of an instance that is put back as its domain document describes it."""
        for parent in parents_in(document):
            self.lean_on(name, parent)

    def leans_on(self, name: str) -> Path | None:
        """Return the parent without whose files the instance cannot live; None for most."""
        noted = read_text(name, self.home(name) / "parent")
        return None if noted is None else Path(noted.strip())

    def parents_in_use(self) -> frozenset[str]:
        """Folders of all parents whose files some instance or checkpoint needs.

        UnreadableError where one cannot be asked, it may need any of them, or where there is no
        directory at all: then it is not mounted.
        """
        if not is_there(self.root.name, self.root):
            raise UnreadableError(
                str(self.root),
                "it is not there, so that nobody knows which parents are in use",
                "see that the directory is mounted",
            )
        noted = set()
        for home in folders_in(self.root):
            noted.add((read_text(home.name, home / "parent") or "").strip())
        for identity in folders_in(self.checkpoints):
            for part in folders_in(identity):
                manifest = read_text(identity.name, part / "manifest.json")
                noted.update(map(str, parents_in(manifest or "")))
        return frozenset(noted - {""})

    def has_memory(self, name: str) -> bool:
        """Return True if a complete memory image is there; an unfinished one does not count.

        UnreadableError where that cannot be told. That is so as well where the instance's folder is
        missing: whoever makes an instance makes that first, so it is a directory that is not
        mounted, or somebody's hand.
        """
        path = self.memory(name)
        try:
            with path.open("rb") as image:
                start = image.read(16)
        except FileNotFoundError as error:
            if self.exists(name):
                return False
            raise UnreadableError(
                name,
                f"its folder {path.parent} is not there, where its saved memory would be",
                f"see that the directory {self.root.parent} is mounted, or bring the folder back",
            ) from error
        except OSError as error:
            raise unreadable(name, error, path) from error
        return start.startswith(_COMPLETE)

    def revalidate(self, name: str) -> None:
        """Let the kernel ask the file server anew for what is in the instance's folder.

        An NFS client remembers for up to a minute that there is no such file, while a host has written
        it. It asks when the folder is opened (nfs(5), close-to-open). One that cannot be opened tells
        what it told before.
        """
        with contextlib.suppress(OSError):
            os.close(os.open(self.home(name), os.O_RDONLY | os.O_DIRECTORY))

    def discard_memory(self, name: str) -> None:
        """Remove the memory image, complete or not, and one that was to take its place."""
        for path in (self.memory(name), self._coming(name)):
            _remove(name, path)

    def replace_memory(self, name: str, new: Path) -> Path:
        """Remove the memory image so that `new` can take its place once the disk is there; return where
        that lies until then.

        As long as it lies there it is known why the instance has no memory: see `lost_memory`.
        """
        coming = self._coming(name)
        new.replace(coming)
        _remove(name, self.memory(name))
        return coming

    def lost_memory(self, name: str) -> bool:
        """Return True if we have removed its memory, and were cut off before another took its place.

        UnreadableError: that cannot be told.
        """
        return is_there(name, self._coming(name))

    def _coming(self, name: str) -> Path:
        return self.home(name) / "memory.coming"

    def make(self, name: str, image: ImageFiles, disk_gb: int, seed: bytes, full: bool = False) -> None:
        """Make disk and seed. The disk is never smaller than the image's.

        It holds what differs from the image, or with `full` a copy of all of it.
        """
        files = self.files(name)
        self.home(name).mkdir(mode=0o711, parents=True, exist_ok=True)
        write_secret(files.seed, seed)
        write_secret(files.disk, b"")  # the guest unpacks its seed there; qemu-img keeps the mode
        # Otherwise libvirt's logger makes it, as root, and nobody else could read the guest's last words.
        write_secret(files.console, b"")
        size = max(_virtual_bytes(image), disk_gb * _GIB)
        if full:
            forms = ("-f", image.disk_format, "-O", "qcow2")
            whole_s = programs.WHOLE_FILE_S
            run_qemu_img(name, "convert", "-q", *forms, image.disk, files.disk, limit_s=whole_s)
            run_qemu_img(name, "resize", "-q", files.disk, str(size))
        else:
            run_qemu_img(
                name,
                "create",
                "-q",
                "-f",
                "qcow2",
                "-F",
                image.disk_format,
                "-b",
                image.disk,
                files.disk,
                str(size),
            )

    def remove(self, name: str) -> None:
        """Remove everything of this instance; gone already is fine."""
        shutil.rmtree(self.home(name), ignore_errors=True)
        if self.exists(name):
            raise DriverError(name, f"cannot remove {self.home(name)}", "check the shared directory")

    def claims(self, name: str) -> frozenset[str] | None:
        """Hosts on which the instance may be: none when it has no folder, None when unreadable."""
        try:
            words = (self.home(name) / "claims").read_text().split()
        except FileNotFoundError:
            return None if self.exists(name) else frozenset()
        except (OSError, UnicodeDecodeError):
            return None
        return frozenset(words) or None  # an empty file is one that a power cut emptied

    def claim(self, name: str, hosts: Iterable[str]) -> None:
        """Replace the claims in one step, making the instance's folder when it is not there."""
        home = self.home(name)
        home.mkdir(mode=0o711, parents=True, exist_ok=True)
        draft = home / "claims.new"
        draft.write_text("".join(f"{host}\n" for host in sorted(hosts)))
        draft.replace(home / "claims")

    def console(self, name: str, lines: int = 60, *, ended: bool = False) -> str:
        """Return the last `lines` that the guest wrote; empty when it has not written yet.

        `ended`: without a line whose end it has still to write.
        """
        try:
            with open(self.files(name).console, "rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - _CONSOLE_BYTES))
                text = log.read().decode(errors="replace")
        except OSError:
            return ""
        if ended:
            text = text[: text.rfind("\n") + 1]
        return "\n".join(text.replace("\r", "").splitlines()[-lines:])


def _remove(name: str, path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise unreadable(name, error, path) from error


def is_there(name: str, path: Path) -> bool:
    """Return True if there is such a file or folder. UnreadableError: nobody knows."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise unreadable(name, error, path) from error
    return True


def read_text(name: str, path: Path) -> str | None:
    """Read a small file of ours; None: it is not there. UnreadableError: nobody knows."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(name, error, path) from error


def folders_in(directory: Path) -> list[Path]:
    """Its folders, without hidden ones; none where it is not there. UnreadableError: nobody knows.

    `Path.glob` takes a directory that it may not read for an empty one.
    """
    try:
        with os.scandir(directory) as found:
            return sorted(
                Path(entry.path) for entry in found if not entry.name.startswith(".") and entry.is_dir()
            )
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(directory.name, error, directory) from error


def run_qemu_img(name: str, *arguments: str, limit_s: float = _QEMU_IMG_LIMIT_S) -> str:
    """Run qemu-img and return its output. DriverError of the fitting kind if it fails."""
    done = programs.run(name, ["qemu-img", *arguments], limit_s)
    if done.returncode:
        problem = done.stderr.strip().replace("\n", " ")
        if programs.said_full(problem):
            raise NoCapacityError(name, f"no room for its disk: {problem}", "free the directory")
        raise DriverError(name, f"qemu-img failed: {problem}", "check the image's files")
    return done.stdout


def parents_in(document: str) -> list[Path]:
    """Folders of the parents whose memory a domain document names."""
    return [Path(parent) for parent in _PARENT.findall(document)]


def write_secret(path: str, content: bytes) -> None:
    """Write a file that nobody but root may read: a seed holds the cluster's munge key."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
        out.write(content)


def check_name(name: str) -> str:
    """Return `name` if it can be a folder and a domain. RefusedError otherwise."""
    if not _NAME.fullmatch(name):
        raise RefusedError(
            repr(name), "is no usable name", "use letters, digits, '-', '_' and '.', 63 at most"
        )
    return name


def _virtual_bytes(image: ImageFiles) -> int:
    """Size of the disk that the guest sees (qcow2: docs/interop/qcow2.txt, bytes 24-31)."""
    try:
        with open(image.disk, "rb") as disk:
            start = disk.read(32)
            length = os.fstat(disk.fileno()).st_size
    except OSError as error:
        raise RefusedError(image.disk, f"cannot read the image: {error.strerror}") from error
    if image.disk_format == "qcow2" and start.startswith(_QCOW2_MAGIC):
        return int.from_bytes(start[24:32], "big")
    return length
