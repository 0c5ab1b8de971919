"""The manifests of a checkpoint: a JSON file for each part, and one that says that it is whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from backfill.core.model.fleet import Checkpoint
from backfill.drivers.libvirt.checkpoints.packing import flush
from backfill.drivers.libvirt.store import is_there
from backfill.ports.errors import DamagedError, NotFoundError, unreadable

_NAME = "manifest.json"
_WHOLE = "whole.json"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Part:
    """One file: its name when it is put back, how it is kept, and the checksum of what is kept."""

    name: str
    stored: str
    checksum: str = ""


@dataclass(frozen=True, slots=True)
class Written:
    """Who wrote the files of a part that is not sealed, in which boot, and their sizes by name."""

    machine: str
    boot: str
    sizes: dict[str, int]


@dataclass(frozen=True, slots=True)
class Manifest:
    """A checkpoint and its files. It is sealed when every file has its checksum.

    `written`: until then; None as well where an older backfill kept it.
    """

    checkpoint: Checkpoint
    parts: tuple[Part, ...]
    document: str  # the domain document with which a host can define the instance again
    written: Written | None = None

    @property
    def sealed(self) -> bool:
        """Return True if it can be verified."""
        return all(part.checksum for part in self.parts)


def write(folder: Path, manifest: Manifest) -> None:
    """Replace the folder's manifest in one step."""
    body = {"version": _VERSION, **asdict(manifest)}
    draft = folder / f"{_NAME}.new"
    draft.write_text(json.dumps(body, indent=1), encoding="utf-8")
    flush(draft)
    draft.replace(folder / _NAME)


def read(folder: Path) -> Manifest:
    """Read the folder's manifest. DamagedError for one that we cannot have written."""
    path = folder / _NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise NotFoundError(str(folder), "it has no manifest (any more)") from error
    except UnicodeDecodeError as error:
        raise DamagedError(str(folder), f"{path} is damaged", "delete this checkpoint") from error
    except OSError as error:  # that says nothing about the checkpoint
        raise unreadable(str(folder), error, path) from error
    try:
        body = json.loads(text)
        said = body["checkpoint"]
        said["members"] = tuple(said["members"])
        parts = tuple(Part(**part) for part in body["parts"])
        written = Written(**body["written"]) if body.get("written") else None
        manifest = Manifest(Checkpoint(**said), parts, str(body["document"]), written)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"its manifest cannot be read: {error}"
        raise DamagedError(str(folder), problem, "delete this checkpoint") from error
    if any("/" in part.stored or "/" in part.name for part in parts):
        raise DamagedError(str(folder), "its manifest names files elsewhere", "delete it")
    # The folder may have been moved together with its disk.
    return replace(manifest, checkpoint=replace(manifest.checkpoint, where=str(folder)))


def whole_of(manifests: Sequence[Manifest]) -> str | None:
    """Return one checksum over all parts of all members; None while one is missing or not sealed."""
    names = {manifest.checkpoint.name for manifest in manifests}
    members = {name for manifest in manifests for name in manifest.checkpoint.members}
    if not manifests or members - names or not all(manifest.sealed for manifest in manifests):
        return None
    lines = [
        f"{m.checkpoint.job} {m.checkpoint.restarts} {m.checkpoint.name} {part.name} {part.checksum}"
        for m in sorted(manifests, key=lambda m: m.checkpoint.name)
        for part in m.parts
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def write_whole(folder: Path, manifests: Sequence[Manifest], checksum: str) -> None:
    """Say in one step that the checkpoint in `folder` is whole, and by which checksum."""
    names = sorted(manifest.checkpoint.name for manifest in manifests)
    draft = folder / f"{_WHOLE}.new"
    draft.write_text(json.dumps({"members": names, "checksum": checksum}, indent=1), encoding="utf-8")
    flush(draft)
    draft.replace(folder / _WHOLE)


def read_whole(folder: Path) -> str:
    """Return that checksum; empty while it is not whole. DamagedError for what we cannot have written."""
    path = folder / _WHOLE
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["checksum"])
    except FileNotFoundError:
        return ""
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(folder.name, f"{path} is damaged", "delete this checkpoint") from error
    except OSError as error:  # that says nothing about the checkpoint
        raise unreadable(folder.name, error, path) from error


def present(folder: Path) -> bool:
    """Return True if the folder is a complete checkpoint. UnreadableError: that cannot be told."""
    return is_there(str(folder), folder / _NAME)
