"""A plan of small steps: shown first, carried out so that a crash at any moment can be made good, undone."""

from __future__ import annotations

import base64
import difflib
import hashlib
import json
import os
import pwd
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from backfill.drivers.slurm.conf.files import behind, make_directory, replace_file, sync_directory
from backfill.drivers.slurm.conf.site import SiteError, read_site
from backfill.ports.errors import BadOutputError
from backfill.ui.own_program import own_program

_TIMEOUT_S = 300.0
_SECRETS = frozenset({".key"})
_LONG = frozenset({".sh"})  # they hold other files, which are shown themselves
OWN = "backfill"  # in place of the words that begin this program: it may have moved before all is taken back
Run = Callable[[Sequence[str]], None]
Entry = dict[str, Any]


class StepError(Exception):
    """A step failed; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who owns a file, and what others may: user and group by number, permission bits."""

    uid: int
    gid: int
    mode: int

    def give(self, path: Path) -> None:
        """Let the path belong so."""
        os.chown(path, self.uid, self.gid)
        path.chmod(self.mode)


@dataclass(frozen=True, slots=True)
class WriteFile:
    """A file that shall have this content and owner.

    `part_of`: the file that includes it; as long as that is left as it is, this one stays as well.
    """

    path: Path
    content: bytes
    owner: Owner
    part_of: Path | None = None

    def shown(self) -> str:
        """Show what it would change, as a diff; empty: nothing."""
        now = _read(self.path)
        if now == self.content:
            return "" if _owner(self.path) == self.owner else f"give {self.path} to {_told(self.owner)}"
        if self.path.suffix in _SECRETS:
            return f"write {self.path} ({_told(self.owner)}, a secret)"
        if self.path.suffix in _LONG:
            return f"write {self.path} ({_told(self.owner)})"
        before, after = (
            (text or b"").decode("utf-8", "replace").splitlines() for text in (now, self.content)
        )
        name = str(self.path)
        diff = "\n".join(difflib.unified_diff(before, after, name, name, lineterm="", n=1))
        return f"write {self.path} ({_told(self.owner)})\n{diff}"

    def do(self, run: Run) -> None:
        """Write it in one step that survives a power cut."""
        replace_file(behind(self.path), self.content)
        self.owner.give(self.path)


@dataclass(frozen=True, slots=True)
class MakeFolder:
    """A directory that shall be there with this owner."""

    path: Path
    owner: Owner

    def shown(self) -> str:
        """Show what it would change; empty: nothing."""
        if not self.path.is_dir():
            return f"make {self.path} ({_told(self.owner)})"
        return "" if _owner(self.path) == self.owner else f"give {self.path} to {_told(self.owner)}"

    def do(self, run: Run) -> None:
        """Make it."""
        make_directory(self.path.parent)
        self.path.mkdir(exist_ok=True)
        self.owner.give(self.path)
        sync_directory(self.path.parent)


@dataclass(frozen=True, slots=True)
class RunCommand:
    """Something that has to be run: after the steps before it, and `undo` when they are taken back.

    `needed`: whether it is; where nothing before it changes, it may not be. Without `argv` it is
    there for its `undo` alone, which comes after those of the steps behind it.
    """

    argv: tuple[str, ...] = ()
    undo: tuple[str, ...] = ()
    needed: bool = True

    def shown(self) -> str:
        """Return the command; empty: it need not run."""
        if not self.argv:
            return ""
        return f"run {shlex.join(self.argv)}" if self.needed else ""

    def do(self, run: Run) -> None:
        """Run it."""
        if self.argv:
            run(self.argv)


Step = WriteFile | MakeFolder | RunCommand


def run_command(argv: Sequence[str]) -> None:
    """Run it to its end. StepError, with its last words, if that is not a good one."""
    words = (*own_program(), *argv[1:]) if argv[0] == OWN else argv
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", check=False, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StepError(f"`{shlex.join(argv)}` cannot be run: {error}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise StepError(f"`{shlex.join(argv)}` ended with {done.returncode}: {said}")


class UndoRecord:
    """What was there before, written down before each change: by it all is taken back."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "setup.json"

    @property
    def there(self) -> bool:
        """Return True if something was set up that can be undone."""
        return self._path.exists()

    @property
    def conf(self) -> Path | None:
        """The slurm.conf that was set up; None: no record says which."""
        found = self._read().conf
        return Path(found) if found else None

    @property
    def said(self) -> Mapping[str, Any]:
        """What the last run was told that carried anything out, or had nothing to do."""
        return self._read().said

    def remember(self, said: Mapping[str, Any]) -> None:
        """Keep what was said for later runs."""
        now = self._read()
        now.said = dict(said)
        self._write(now)

    @property
    def of_the_site(self) -> frozenset[str]:
        """The files that were there before, and those that they include since: Slurm may need them."""
        files = (entry for entry in self._read().done if "path" in entry and not entry["folder"])
        return frozenset(
            entry["path"] for entry in files if entry["before"] is not None or entry.get("part_of")
        )

    def edited(self, path: Path) -> bool:
        """Return True if the file holds what no run of setup has written."""
        now = _read(path)
        if now is None:
            return False
        ours = (entry["ours"] for entry in self._read().done if entry.get("path") == str(path))
        return hashlib.sha256(now).hexdigest() not in next(ours, [])

    def before(self, path: Path) -> bytes | None:
        """Return what a file held; None where it was not there or was not changed."""
        found = (entry["before"] for entry in self._read().done if entry.get("path") == str(path))
        was = next(found, None)
        return base64.b64decode(was) if was is not None else None

    def carry_out(self, steps: Sequence[Step], run: Run = run_command, conf: Path | None = None) -> None:
        """Do what is not done yet, and what a run that was killed still owed. `conf`: the slurm.conf.

        StepError, OSError: what is done until then can be undone.
        """
        owed = [list(s.argv) for s in steps if isinstance(s, RunCommand) and s.argv and s.needed]
        now = self._read()
        now.owed += [argv for argv in owed if argv not in now.owed]
        now.conf = str(conf) if conf is not None else now.conf
        self._write(now)
        for step in steps:
            if isinstance(step, RunCommand):
                self._note_command(step)
                if list(step.argv) in self._read().owed:
                    step.do(run)
                    now = self._read()
                    now.owed.remove(list(step.argv))
                    self._write(now)
            elif step.shown():
                self._note(step)
                step.do(run)

    def would_undo(self) -> list[str]:
        """Show what `undo` would do, in its order, and change nothing."""
        then: dict[Path, bytes | None] = {}
        return [told for entry in reversed(self._read().done) if (told := _shown_back(entry, then))]

    def undo(self, run: Run = run_command) -> list[str]:
        """Take back, the last first; returns a sentence for each thing that was left as it is."""
        left: list[str] = []
        now = self._read()
        now.owed.clear()
        while now.done:
            told = _take_back(now.done[-1], run, self._path.parent)
            left += [told] if told else []
            now.done.pop()
            self._write(now)
        self._path.unlink(missing_ok=True)
        return left

    def _note_command(self, step: RunCommand) -> None:
        now = self._read()
        if step.undo and list(step.undo) not in [entry.get("undo") for entry in now.done]:
            now.done.append({"undo": list(step.undo)})
            self._write(now)

    def _note(self, step: WriteFile | MakeFolder) -> None:
        """Write down what is there now. What was noted by an earlier run is older, and counts."""
        now = self._read()
        ours = hashlib.sha256(step.content).hexdigest() if isinstance(step, WriteFile) else ""
        known = next((entry for entry in now.done if entry.get("path") == str(step.path)), None)
        if known is not None:
            known["ours"].append(ours)
        else:
            now.done.append({**_as_it_is(step), "ours": [ours]})
        self._write(now)

    def _read(self) -> _Recorded:
        try:
            return _Recorded(**json.loads(self._path.read_text()))
        except FileNotFoundError:
            return _Recorded()
        except (ValueError, TypeError):
            what = "this backfill does not understand what an earlier run of setup has written there"
            remedy = "put it back from a copy, or use the backfill that wrote it"
            raise BadOutputError(str(self._path), what, remedy) from None

    def _write(self, now: _Recorded) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._path, json.dumps(asdict(now), indent=1) + "\n")


@dataclass
class _Recorded:
    """The record's content. `done`: in the order in which it was; `owed`: commands that still have to run."""

    done: list[Entry] = field(default_factory=list)
    owed: list[list[str]] = field(default_factory=list)
    conf: str = ""
    said: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        new = (list, list, str, dict)
        if tuple(map(type, (self.done, self.owed, self.conf, self.said))) != new:
            raise TypeError("a record of another version")


def _as_it_is(step: WriteFile | MakeFolder) -> Entry:
    """Describe what is there before the step."""
    owner, content = _owner(step.path), None
    part_of = step.part_of if isinstance(step, WriteFile) else None
    if isinstance(step, WriteFile):
        content = _read(step.path)
    return {
        "path": str(step.path),
        "folder": isinstance(step, MakeFolder),
        "before": base64.b64encode(content).decode() if content is not None else None,
        "owner": asdict(owner) if owner is not None else None,
        "part_of": str(part_of) if part_of is not None else None,
    }


def _take_back(entry: Entry, run: Run, folder: Path) -> str | None:
    """Undo one thing; say why not where somebody else has changed it since, or still needs it."""
    if "undo" in entry:
        run(entry["undo"])
        return None
    path = Path(entry["path"])
    owner = Owner(**entry["owner"]) if entry["owner"] is not None else None
    if entry["folder"]:
        return _take_back_folder(path, owner)
    part_of = Path(entry["part_of"]) if entry.get("part_of") else None
    if part_of and _includes(part_of, _read(part_of), path):
        return _included(path, entry)
    was = base64.b64decode(entry["before"]) if entry["before"] is not None else None
    told = _take_back_file(path, was, owner, entry["ours"])
    if told is None or was is None:
        return told
    kept = folder / f"{path.name}.before"
    replace_file(kept, was)
    return f"{told}; the original is in {kept}"


def _shown_back(entry: Entry, then: dict[Path, bytes | None]) -> str:
    """Show what taking it back would do; empty: nothing. `then`: what files behind it would hold by now."""
    if "undo" in entry:
        return f"run {shlex.join(entry['undo'])}"
    path = Path(entry["path"])
    owner = Owner(**entry["owner"]) if entry["owner"] is not None else None
    if entry["folder"]:
        if owner is not None:
            return MakeFolder(path, owner).shown() if path.is_dir() else ""
        return f"remove {path}, if it is empty then" if path.is_dir() else ""
    part_of = Path(entry["part_of"]) if entry.get("part_of") else None
    if part_of and _includes(part_of, then.get(part_of, _read(part_of)), path):
        return _included(path, entry)
    was = base64.b64decode(entry["before"]) if entry["before"] is not None else None
    now = _read(path)
    if told := _changed(path, now, was, entry["ours"]):
        return told
    if now is None:
        return ""
    then[path] = was
    return f"remove {path}" if was is None or owner is None else WriteFile(path, was, owner).shown()


def _included(path: Path, entry: Entry) -> str:
    return f"{path} stays: {entry['part_of']} includes it, and slurmctld does not start without it"


def _changed(path: Path, now: bytes | None, was: bytes | None, ours: Sequence[str]) -> str:
    """Say that a file stays since it holds what neither the site nor setup had written; empty: it goes."""
    if now is None or now == was or hashlib.sha256(now).hexdigest() in ours:
        return ""
    return f"{path} stays: somebody has changed it since"


def _includes(conf: Path, content: bytes | None, path: Path) -> bool:
    """Return True if Slurm reads the file by way of `conf`, were this its content."""
    if content is None:
        return False
    try:
        return read_site(conf, path, content.decode("utf-8", "surrogateescape")).include is not None
    except SiteError:
        return True  # twice, or nobody can tell


def _take_back_folder(path: Path, owner: Owner | None) -> str | None:
    if not path.is_dir():
        return None
    if owner is not None:
        owner.give(path)
        return None
    try:
        path.rmdir()
    except OSError:
        return f"{path} stays: it is not empty"
    return None


def _take_back_file(path: Path, was: bytes | None, owner: Owner | None, ours: Sequence[str]) -> str | None:
    now = _read(path)
    if now is None:
        return None
    if told := _changed(path, now, was, ours):
        return told
    if was is None:
        path.unlink()
        sync_directory(path.parent)
        return None
    if now != was:
        replace_file(behind(path), was)
    if owner is not None:
        owner.give(path)
    return None


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _owner(path: Path) -> Owner | None:
    try:
        seen = path.stat()
    except FileNotFoundError:
        return None
    return Owner(seen.st_uid, seen.st_gid, seen.st_mode & 0o7777)


def _told(owner: Owner) -> str:
    try:
        name = pwd.getpwuid(owner.uid).pw_name
    except KeyError:
        name = str(owner.uid)
    return f"owner {name}, mode {owner.mode:o}"
