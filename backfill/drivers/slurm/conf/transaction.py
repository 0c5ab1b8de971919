"""One change of the managed file: checked, written, reloaded, looked at, taken back if need be."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from backfill.core.model.cluster import SlurmSettings
from backfill.drivers.slurm.commands import SlurmTools
from backfill.drivers.slurm.conf import rules
from backfill.drivers.slurm.conf.dry import dry_start
from backfill.drivers.slurm.conf.files import (
    Backups,
    behind,
    give_to_owner_of,
    locked,
    read_or_empty,
    replace_file,
)
from backfill.drivers.slurm.conf.health import Illness, SlurmHealth, await_health
from backfill.drivers.slurm.conf.managed import (
    EMPTY,
    ForeignEditError,
    Managed,
    difference,
    named_in,
    parse,
    render,
    salvage,
)
from backfill.drivers.slurm.conf.reload import Reload
from backfill.drivers.slurm.conf.site import Site, SiteError, UnreadableSiteError, inlined, read_site
from backfill.drivers.slurm.conf.undo import Direction, Note, NoteFile
from backfill.ports.errors import BusyError, DriverError, RefusedError, UnreachableError, UnreadableError
from backfill.ports.workload import ClusterObservation

Change = Callable[[Managed], Managed]


class RolledBackError(DriverError):
    """The change was written, and Slurm did not take it well.

    It was taken back, and Slurm runs with what it had before, unless a job has come to one of its nodes.
    """

    retry = False


class NotTakenError(RefusedError):
    """A slurmctld without network would end at the configuration; nothing was touched."""


@dataclass(frozen=True, slots=True)
class ConfPlace:
    """The paths of a transaction. `state_dir`: lock, note, backups and the scratch of dry starts."""

    conf: Path
    state_dir: Path
    name: str = "backfill.conf"
    health_s: float = 20.0

    @property
    def managed(self) -> Path:
        """The managed file, beside slurm.conf."""
        return self.conf.with_name(self.name)


@dataclass(frozen=True, slots=True)
class ApplyOutcome:
    """The outcome of a transaction. `diff` is empty if nothing had to change."""

    diff: str = ""
    reloaded: str = ""
    backup: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Slurm:
    """The living cluster as the transaction sees it, without any filter."""

    commands: SlurmTools
    look: Callable[[], ClusterObservation]
    settings: Callable[[], SlurmSettings]


@dataclass(frozen=True)
class Transactions:
    """Changes the managed file. Safe from several threads and processes.

    `at` is called with the name of each step before it is taken; tests let it die there.
    """

    place: ConfPlace
    slurm: Slurm
    reload: Reload
    at: Callable[[str], None] = field(default=lambda step: None)

    # --- looking -------------------------------------------------------------------------------

    def current(self) -> Managed:
        """Read the file's content; RefusedError when somebody else has had his hands on it."""
        return self._parsed(read_or_empty(self.place.managed))

    def preview(self, change: Change, *, force: bool = False) -> str:
        """Show the diff that `apply` would bring about."""
        text = read_or_empty(self.place.managed)
        return difference(text, render(change(self._parsed(text, force))), self.place.name)

    def site(self) -> Site:
        """slurm.conf as the site has written it. UnreadableError where it cannot be read."""
        try:
            return read_site(self.place.conf, self.place.managed)
        except SiteError as error:
            place, _, problem = str(error).partition(": ")
            kind = UnreadableError if isinstance(error, UnreadableSiteError) else RefusedError
            raise kind(place, problem) from error

    def backups(self) -> list[Path]:
        """Dated copies of earlier contents, oldest first."""
        return self._backups().all()

    def check_note(self) -> None:
        """Raise UnreadableError for a damaged note, with which no change can begin."""
        self._note().read()

    def unfinished(self) -> bool:
        """Return True if a change was begun that has not ended: slurmctld may have read either text."""
        return self._note().read() is not None

    def is_site_new(self) -> bool:
        """Return True if Slurm may not have read the site's files as they are: then a trial is due.

        False also where no change of ours has gone well yet.
        """
        try:
            known = read_or_empty(self._site_file())
        except OSError:
            return True
        return bool(known) and known != self._site_sum()

    # --- changing ------------------------------------------------------------------------------

    def apply(self, change: Change, *, dry: bool = True, force: bool = False) -> ApplyOutcome:
        """Carry out the change, completely or not at all.

        RefusedError and BusyError: nothing was touched. RolledBackError: it was written, Slurm did
        not take it well, and the old file is back. `dry`: let a slurmctld without network read it
        first. `force`: replace a file that somebody else has changed; a copy of it is kept.
        """
        with locked(self.place.state_dir / "lock"):
            told = self._recover()
            return self._apply(change, dry=dry, force=force, told=told)

    def introduce(self) -> str | None:
        """Make an empty managed file where there is none; return what the site has to do then, if anything.

        It has to be there before slurm.conf may include it: where it does already, nothing is made.
        """
        site = self.site()
        if site.include is not None or read_or_empty(self.place.managed):
            return None
        with locked(self.place.state_dir / "lock"):
            self._write(render(EMPTY))
        return rules.missing_include(site, self.place.managed)

    def note_states(self, change: Change) -> None:
        """Write a change that matters only at Slurm's next start; nothing is reloaded."""
        with locked(self.place.state_dir / "lock"):
            self._recover()
            text = read_or_empty(self.place.managed)
            new = render(change(self._parsed(text)))
            if new != text and text:
                self._write(new)

    def rollback(self, to: Path | None = None, *, dry: bool = True) -> ApplyOutcome:
        """Go back to a dated copy, the newest one if none is named, by the same careful way."""
        found = to or next(iter(reversed(self.backups())), None)
        if found is None:
            raise RefusedError(self.place.name, "there is no earlier copy to go back to")
        if not found.is_file():
            raise RefusedError(str(found), "there is no such copy")
        try:
            earlier = parse(read_or_empty(found))
        except ForeignEditError as error:
            raise RefusedError(str(found), str(error), "name another copy") from error
        if gone := rules.programs_gone(earlier):
            raise RefusedError(str(found), gone, "name another copy")
        return self.apply(lambda now: earlier, dry=dry)

    def recover(self) -> str:
        """Finish or take back what a crash has interrupted; what was done, empty if nothing."""
        if not self.place.state_dir.exists():
            return ""
        with locked(self.place.state_dir / "lock"):
            return self._recover()

    # --- inside --------------------------------------------------------------------------------

    def _apply(self, change: Change, *, dry: bool, force: bool, told: str) -> ApplyOutcome:
        managed = self.place.managed
        text = read_or_empty(managed)
        old = self._parsed(text, force)
        new = change(old)
        fresh = render(new)
        site = self.site()
        if missing := rules.missing_include(site, managed):
            raise RefusedError(self.place.name, missing)
        if fresh == text:
            if not dry:
                self._know_site(self._site_sum())  # whoever wants no trial says that Slurm takes it
            return ApplyOutcome(notes=_told(told))
        if problems := rules.objections(new, site):
            raise RefusedError(self.place.name, "; ".join(problems))
        # First, for Slurm's own tools cannot read a slurm.conf of which slurmctld would die.
        tried = self._dry(fresh) if dry else ()
        seen = self.slurm.look()
        settings = self.slurm.settings()
        leaving = named_in(text) - new.names()
        rules.check(old, new, seen, leaving)
        restart = self.reload.check(settings.version, old, new)
        if reset := rules.reset_partition(site, settings, restart=restart):
            raise BusyError("slurmctld", f"by a reload {reset}", rules.keep_partition(restart=restart))
        lost = rules.lost(text, new) if force else ""
        hints = (self.reload.hint(settings.version, old, new), lost)
        self.at("backup")
        kept = self._backups().keep(text, time.time()) if text else None
        note = Note(text or render(EMPTY), fresh, restart, SlurmHealth.of(seen, leaving), _names(new))
        self.at("note")
        self._note().write(note)
        if read_or_empty(managed) != text:
            self._note().clear()
            raise BusyError(str(managed), "somebody else has changed it in this moment", "apply again")
        self._forward(note)
        diff = difference(text, fresh, self.place.name)
        how = "restart" if restart else "reconfigure"
        return ApplyOutcome(diff, how, str(kept or ""), (*_told(told), *tried, *filter(None, hints)))

    def _dry(self, text: str) -> tuple[str, ...]:
        at = self.place
        verdict = dry_start(self.slurm.commands, at.conf, at.managed, text, at.state_dir)
        if verdict.tried and verdict.problem:
            raise NotTakenError(at.name, f"slurmctld does not take it: {verdict.problem}")
        return () if verdict.tried else (f"not tried by a dry start: {verdict.problem}",)

    def _forward(self, note: Note) -> None:
        """Write, reload, look; on trouble go back and say why."""
        site = self._site_sum()
        self.at("write")
        self._write(note.new)
        problem = self._reload(note.restart) or self._unhealthy(note, note.expected)
        if problem:
            self._leave_in_use(note, problem)
            back = note.turned(problem.what)
            self._turn(back)
            self._back(back, dead=problem.silent)
        self.at("end")
        self._know_site(site)
        self._note().clear()

    def _write(self, text: str) -> None:
        """Put this text into the managed file, where a link of root's leads."""
        replace_file(behind(self.place.managed), text, like=self.place.conf)

    def _turn(self, back: Note) -> None:
        """Note that it goes back: a disk without room for that must not keep the new text in its place."""
        with contextlib.suppress(OSError):
            self._note().write(back)

    def _leave_in_use(self, note: Note, problem: Illness) -> None:
        """Raise RolledBackError, with the change left as it is, where a job would end with a line of it."""
        if problem.silent:
            return
        try:
            busy = self._in_use(note, self.slurm.look())
        except DriverError:
            return
        if busy is not None:
            self._note().clear()
            what = f"it stays although {problem.what}: {busy}"
            raise RolledBackError(self.place.name, what, "see that all is well with Slurm")

    def _back(self, note: Note, *, dead: bool = False) -> NoReturn:
        """Write the old text, reload, look; raises RolledBackError in any case.

        `dead`: slurmctld has just been waited for in vain.
        """
        self.at("write back")
        self._write(note.old)
        restart = note.restart or (bool(self.reload.restart) and (dead or self._is_dead()))
        problem = self._reload(restart) or self._unhealthy(note, ())
        if problem:
            if self._answers():
                self._note().clear()  # what is lost is lost: another try would not bring it back
            raise RolledBackError(
                self.place.name,
                f"the old file is back after '{note.why}', but all is not well: {problem.what}",
                "look at slurmctld's log; start slurmctld if it does not run",
            )
        self._note().clear()
        raise RolledBackError(self.place.name, f"taken back, nothing is lost: {note.why}")

    def _answers(self) -> bool:
        """Return True if slurmctld answers; while it does not, the note stays for the next start."""
        try:
            self.slurm.look()
        except DriverError:
            return False
        return True

    def _is_dead(self) -> bool:
        """Wait for an answer: a slurmctld that reads its files gives none, and must not be restarted."""
        illness = self._await_answer()
        return illness is not None and illness.silent

    def _await_answer(self) -> Illness | None:
        return await_health(self.slurm.look, SlurmHealth(frozenset(), {}), (), self.place.health_s)

    def _reload(self, restart: bool) -> Illness | None:
        self.at("reload")
        try:
            self.reload.carry_out(self.slurm.commands, restart=restart)
        except UnreachableError as error:
            if problem := self._reload_after(str(error)):
                return problem
        except DriverError as error:
            return Illness(str(error))
        self.at("look")
        return None

    def _reload_after(self, silence: str) -> Illness | None:
        """Reload once more: silence is no refusal, since a slurmctld that reads its files may not answer."""
        if illness := self._await_answer():
            return Illness(silence, illness.silent)
        try:
            self.reload.carry_out(self.slurm.commands, restart=False)
        except DriverError as error:
            return Illness(str(error))
        return None

    def _unhealthy(self, note: Note, expected: tuple[str, ...]) -> Illness | None:
        wanted = parse(note.new).pairs() if expected or note.direction is Direction.FORWARD else []
        return await_health(
            self.slurm.look,
            note.picture,
            expected,
            self.place.health_s,
            lambda: rules.not_in_force(wanted, self.slurm.settings()),
        )

    def _recover(self) -> str:
        note = self._note().read()
        if note is None:
            return ""
        text = read_or_empty(self.place.managed)
        if text not in (note.old, note.new, ""):
            self._note().clear()
            return f"{self.place.name}: an interrupted change was dropped: the file is another now"
        if note.direction is Direction.FORWARD and text != note.new:
            self._note().clear()  # it had not been written yet
            return f"{self.place.name}: a change was interrupted before it was written"
        try:
            seen = self.slurm.look()
        except DriverError as error:
            self._wait(note, text, error)
        if busy := self._in_use(note, seen):
            return self._keep(note, text, busy)
        if note.direction is Direction.FORWARD and (busy := _would_lose(note, seen)):
            self._write(note.old)
            self._note().clear()
            return f"{self.place.name}: an interrupted change was taken back: {busy}"
        return self._finish(replace(note, picture=SlurmHealth.of(seen, _leaving(note))))

    def _finish(self, note: Note) -> str:
        """Go on where a crash has interrupted it: forward, or back."""
        if note.direction is Direction.FORWARD:
            self._forward(note)
            return f"{self.place.name}: a change that a crash had interrupted was finished"
        try:
            self._back(note)
        except RolledBackError as error:
            if self._note().read() is not None:
                raise
            return f"finished after a crash: {error}"

    def _in_use(self, note: Note, seen: ClusterObservation) -> BusyError | None:
        """Return why the old text must not come back: a node of the new one has a job, or takes jobs."""
        fresh = named_in(note.new) - named_in(note.old)
        try:
            rules.check(parse(note.new), self._parsed(note.old, force=True), seen, fresh)
        except BusyError as busy:
            return busy
        return None

    def _keep(self, note: Note, text: str, busy: BusyError) -> str:
        """Let the new text stay: Slurm has used it since, and would end a job if a line went."""
        if text != note.new:
            self._write(note.new)
        self._note().clear()
        return f"{self.place.name}: an interrupted change was kept: {busy}"

    def _wait(self, note: Note, text: str, silence: DriverError) -> NoReturn:
        """Leave everything as it is while Slurm is silent: what runs on the new lines is not known.

        Only a text with which slurmctld cannot start at all is taken back: so nothing can run on it.
        """
        at = self.place
        if text == note.new:
            verdict = dry_start(self.slurm.commands, at.conf, at.managed, text, at.state_dir)
            if verdict.tried and verdict.problem:
                self._turn(note.turned(f"slurmctld does not take it: {verdict.problem}"))
                self._write(note.old)
        raise UnreachableError(
            at.name,
            f"an interrupted change to it cannot be finished until slurmctld answers: {silence}",
            "start slurmctld",
        ) from silence

    def _parsed(self, text: str, force: bool = False) -> Managed:
        if not text:
            return EMPTY
        try:
            return parse(text)
        except ForeignEditError as error:
            if force:
                return salvage(text)
            raise RefusedError(
                str(self.place.managed),
                str(error),
                "see `backfill slurm diff`; `backfill slurm apply --force` replaces it and keeps a copy",
            ) from error

    def _site_file(self) -> Path:
        """Where the sum of the site's files stands with which a change has last gone well."""
        return self.place.state_dir / "site.sha256"

    def _know_site(self, site: str) -> None:
        """Note with which files of the site all went well."""
        with contextlib.suppress(OSError):  # without it the next line is tried once more than need be
            replace_file(self._site_file(), site)
            give_to_owner_of(self.place.state_dir, self._site_file())

    def _site_sum(self) -> str:
        """Return one sum of slurm.conf, with what it includes, and of the other files beside it."""
        at = self.place
        beside = [p for p in sorted(at.conf.parent.glob("*.conf")) if p not in (at.conf, at.managed)]
        try:
            parts = [inlined(at.conf, at.managed, "").encode("utf-8", "surrogateescape")]
        except SiteError:
            return "not readable"
        for path in beside:
            with contextlib.suppress(OSError):  # a link to nothing, or a file of root's
                parts += [path.name.encode(), path.read_bytes()]
        return hashlib.sha256(b"\0".join(parts)).hexdigest()

    def _backups(self) -> Backups:
        return Backups(self.place.state_dir / "backups", self.place.name)

    def _note(self) -> NoteFile:
        return NoteFile(self.place.state_dir / "unfinished.json", self.place.name)


def _told(sentence: str) -> tuple[str, ...]:
    return (sentence,) if sentence else ()


def _leaving(note: Note) -> frozenset[str]:
    """Return the nodes whose line goes on purpose."""
    return named_in(note.old) - named_in(note.new)


def _would_lose(note: Note, seen: ClusterObservation) -> BusyError | None:
    """Return why the new text must not be read: a node that it lacks takes jobs."""
    try:
        rules.check(EMPTY, EMPTY, seen, _leaving(note) & seen.nodes.keys())
    except BusyError as busy:
        return busy
    return None


def _names(managed: Managed) -> tuple[str, ...]:
    return tuple(sorted(managed.names()))
