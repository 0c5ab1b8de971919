"""Puts our hooks into a Slurm that may have hooks already, and takes them out without a trace."""

from __future__ import annotations

import glob
import json
import os
import pwd
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from backfill.core.model.cluster import SlurmVersion
from backfill.drivers.slurm.conf.files import make_directory, read_or_empty, remove_file, replace_file
from backfill.drivers.slurm.conf.managed import CLOUD_SECTION, Managed
from backfill.drivers.slurm.conf.site import Site
from backfill.drivers.slurm.conf.transaction import ApplyOutcome, RolledBackError, Transactions
from backfill.drivers.slurm.hooks.build import HookError, build_hook
from backfill.drivers.slurm.hooks.machines_lua import MachineGate
from backfill.drivers.slurm.hooks.submit_lua import Gate, SubmitRules, SubmitScript
from backfill.drivers.slurm.settings import slurm_uid
from backfill.ports.errors import DriverError, RefusedError, UnreadableError

SECTION = "hooks"
_KEYS = {
    "slurmctld": (("PrologSlurmctld", "prolog_slurmctld"), ("EpilogSlurmctld", "epilog_slurmctld")),
    "host": (("Prolog", "prolog"), ("Epilog", "epilog")),
}
_NAMES = ("prolog_slurmctld", "epilog_slurmctld", "prolog", "epilog")
CHECK_MARK = b"backfill-check: "
_ARRIVAL, POWER, _RECORD = "arrival", "power", "installed.json"
# What Slurm calls to power CLOUD nodes up and down: nothing depends on it, the daemon just looks.
_POWER_TEXT = "#!/bin/sh\nSLURM_SCRIPT_CONTEXT=arrival exec {program}\n"
# slurmd puts what a pattern matches in front of what it has (prep_script_slurmd.c, list_push), and stops
# at the first that fails; it gives no words.
_PATTERN_TEXT = """#!/bin/sh
# The site's own hooks, in the order in which Slurm would run them: the last name first.
run() {{
  if [ $# -gt 1 ]; then (shift; run "$@") || exit $?; fi
  "$1" || exit $?
}}
run {pattern}
"""
# From here on each line adds a program; before, the last line takes the place of the others.
_MANY_PROGRAMS = (24, 5)
_WITH_EXTRA = (23, 11)  # sbatch --extra


def programs(place: str) -> tuple[str, ...]:
    """Return the names of the programs that Slurm calls there."""
    return tuple(name for _, name in _KEYS[place])


@dataclass(frozen=True, slots=True)
class HookPlan:
    """The hooks to install. `place`: `slurmctld` or `host`.

    job_submit.lua comes with `arrival_endpoint`, with `gates`, or with `machines`.
    """

    place: str
    directory: Path
    endpoint: str
    timeout_ms: int
    log: Path
    arrival_endpoint: str = ""
    compiler: str | None = "gcc"
    gates: tuple[Gate, ...] = ()
    rooms: tuple[Gate, ...] = ()  # the same of whole nodes
    machines: MachineGate | None = None  # jobs may ask for machines of their own

    @property
    def scripted(self) -> bool:
        """Return True if it takes job_submit.lua."""
        return bool(self.arrival_endpoint or self.gates or self.machines)


@dataclass(frozen=True, slots=True)
class HookStatus:
    """The installed hooks. `keys`: settings of ours in force; `problems`: one sentence each."""

    installed: bool
    keys: tuple[tuple[str, str], ...] = ()
    script: str = "absent"
    problems: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        """For --json."""
        return {
            "installed": self.installed,
            "settings": dict(self.keys),
            "job_submit_lua": self.script,
            "problems": list(self.problems),
        }


def is_hook(path: Path) -> bool:
    """Return True if the program is a hook of ours, one that knows how to be checked."""
    try:
        return CHECK_MARK in path.read_bytes()
    except OSError:
        return False


def groups_of(uid: int) -> list[int]:
    """Return those that a program of this user has when Slurm starts it, its own first."""
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return [uid]
    return list(dict.fromkeys([user.pw_gid, *os.getgrouplist(user.pw_name, user.pw_gid)]))


def _may_start(program: Path, uid: int) -> bool:
    """Return True if this user may start the program; only root can find out."""
    groups = groups_of(uid)
    words = ["/usr/bin/test", "-x", str(program)]
    return not subprocess.run(words, user=uid, group=groups[0], extra_groups=groups, check=False).returncode


class Hooks:
    """Installs and removes; every call can be repeated, and a crash in between is made good."""

    def __init__(self, transactions: Transactions, directory: Path) -> None:
        self._transactions = transactions
        self._directory = directory
        conf = transactions.place.conf
        self._script = SubmitScript(conf.parent, conf.parent)

    def install(self, plan: HookPlan, version: SlurmVersion, *, dry: bool = True) -> ApplyOutcome:
        """Programs first, then the script, then slurm.conf: what is named exists already."""
        self._transactions.check_note()  # while it is unknown what Slurm calls, no program is touched
        site = self._transactions.site()
        fresh = not self._transactions.current().section(SECTION)
        before = self._script.state
        try:
            pairs = self._build(plan, site, version)
        except (HookError, OSError) as error:
            raise RefusedError(str(plan.directory), f"the hooks cannot be built: {error}") from error
        try:
            self._see_that_it_starts(plan)
            if plan.scripted:
                self._script.install(self._rules(plan, version))
            outcome = self._transactions.apply(lambda now: now.with_section(SECTION, pairs), dry=dry)
        except (DriverError, OSError) as error:
            if self._may_be_called(error):
                raise  # without its program no job of the site starts
            if fresh or before != "merged":
                self._script.remove()
            if fresh:
                self._remove_programs()
            raise
        # An earlier policy file had rules for jobs, which Slurm goes on asking where the site itself has Lua.
        told = "" if plan.scripted else self._script.remove()
        return _with_note(outcome, told)

    def build_power(self, plan: HookPlan) -> None:
        """Write the program for ResumeProgram and SuspendProgram; Slurm insists that it exists."""
        program = self._directory / _ARRIVAL
        try:
            endpoint = plan.arrival_endpoint or plan.endpoint
            build_hook(program, endpoint, plan.timeout_ms, plan.log, plan.compiler)
        except (HookError, OSError) as error:
            raise RefusedError(str(program), f"it cannot be built: {error}") from error
        replace_file(self._directory / POWER, _POWER_TEXT.format(program=program))
        (self._directory / POWER).chmod(0o755)

    def remove(self, *, dry: bool = True) -> ApplyOutcome:
        """Remove the hooks the other way round: nothing is taken away that slurm.conf still names."""
        self._transactions.site()  # where that cannot be read nothing is made, not even a lock
        outcome = self._transactions.apply(_without_hooks, dry=dry)
        told = self._script.remove()
        self._remove_programs()
        return _with_note(outcome, told)

    def _may_be_called(self, error: Exception) -> bool:
        """Return True unless it is certain that slurmctld has not taken in what names our programs."""
        if self._transactions.unfinished():
            return True
        if not isinstance(error, RolledBackError):
            return False  # nothing was written
        try:
            settings = self._transactions.slurm.settings()
        except DriverError:
            return True
        return any(str(self._directory) in value for value in settings.raw.values())

    def _remove_programs(self) -> None:
        kept = self._transactions.current().section(CLOUD_SECTION)
        power = () if kept else (_ARRIVAL, POWER)
        for name in (*_NAMES, *(f"{n}.site" for n in _NAMES), _RECORD, *power):
            if (self._directory / name).exists():
                remove_file(self._directory / name)
        if self._directory.is_dir() and not any(self._directory.iterdir()):
            self._directory.rmdir()

    def status(self) -> HookStatus:
        """Look at the files; Slurm is not asked.

        UnreadableError: slurm.conf cannot be read, or our record of the site is damaged.
        """
        site = self._transactions.site()
        managed = self._transactions.current()
        pairs = managed.section(SECTION)
        problems = [
            f"{key}: there is no program {value}"
            for key, value in pairs
            if value.startswith("/") and not Path(value).exists()
        ]
        if pairs:
            problems += self._changes_of_the_site(site)
        elif any((self._directory / name).exists() for name in _NAMES):
            problems.append(
                f"programs of ours are in {self._directory}, and slurm.conf names none of them; "
                "run `backfill slurm hooks install` or `remove`"
            )
        script = self._script.state
        if script != "merged" and any(key == "JobSubmitPlugins" for key, _ in pairs):
            problems.append("job_submit.lua is not ours any more; run `backfill slurm hooks install`")
        return HookStatus(bool(pairs), pairs, script, tuple(problems))

    def stale(self, plan: HookPlan, version: SlurmVersion) -> str:
        """Say that job_submit.lua is ours and not as it would be installed now; nothing, if it is."""
        if (
            not plan.scripted
            or self._script.state != "merged"
            or self._script.follows(self._rules(plan, version))
        ):
            return ""
        return (
            "job_submit.lua is of another version of backfill, its policy file or the site's script; "
            "run `backfill slurm hooks install`"
        )

    # --- inside --------------------------------------------------------------------------------

    def _build(self, plan: HookPlan, site: Site, version: SlurmVersion) -> tuple[tuple[str, str], ...]:
        """Write the programs; the settings that name them."""
        pairs, theirs = [], {}
        self._refuse_own(site, [key for key, _ in _KEYS[plan.place]])
        make_directory(self._directory)
        for key, name in _KEYS[plan.place]:
            theirs[key] = site.value(key)
            follows = "" if version.major >= _MANY_PROGRAMS else self._runner(name, theirs[key])
            build_hook(
                self._directory / name, plan.endpoint, plan.timeout_ms, plan.log, plan.compiler, follows
            )
            pairs.append((key, str(self._directory / name)))
        if plan.arrival_endpoint:
            arrival = self._directory / _ARRIVAL
            build_hook(arrival, plan.arrival_endpoint, plan.timeout_ms, plan.log, plan.compiler)
        if plan.scripted:
            theirs["JobSubmitPlugins"] = site.value("JobSubmitPlugins")
            pairs.append(("JobSubmitPlugins", _with_lua(theirs["JobSubmitPlugins"])))
        replace_file(self._directory / _RECORD, json.dumps(theirs, indent=1) + "\n")
        (self._directory / _RECORD).chmod(0o644)  # the daemon's user reads it, too
        return tuple(pairs)

    def _see_that_it_starts(self, plan: HookPlan) -> None:
        """Raise RefusedError where SlurmUser may not start the programs: no job would start any more."""
        uid = slurm_uid(self._transactions.slurm.settings()) if plan.place == "slurmctld" else None
        program = self._directory / _NAMES[0]
        if uid and os.geteuid() == 0 and not _may_start(program, uid):
            remedy = "open the directories above it to that user (chmod o+x)"
            raise RefusedError(str(plan.directory), f"SlurmUser may not start {program}", remedy)

    def _refuse_own(self, site: Site, keys: Sequence[str]) -> None:
        """Raise RefusedError where a line of the site calls a hook of ours, which would call itself."""
        own = {self._directory / name for name in _NAMES}
        lines = [(line, key, value) for key in keys for line, value in site.values(key)]
        for line, what, value in lines:
            named = map(Path, glob.glob(value) if glob.has_magic(value) else [value])
            if found := next((path for path in named if path in own or is_hook(path)), None):
                told = f"{what} names a hook of backfill's, {found}"
                raise RefusedError(line.place, told, "take that out of the line")

    def _rules(self, plan: HookPlan, version: SlurmVersion) -> SubmitRules:
        """Return the plan's, with what only Slurm can tell."""
        machines = plan.machines
        if machines is not None:
            uid = slurm_uid(self._transactions.slurm.settings())
            machines = replace(machines, extra=version.major >= _WITH_EXTRA, slurm_uid=uid)
        poking = bool(plan.arrival_endpoint)
        return SubmitRules(self._directory / _ARRIVAL, plan.gates, plan.rooms, poking, machines)

    def _runner(self, name: str, theirs: str) -> str:
        """Return the one program that stands for the site's: itself, or a script for a pattern of many."""
        if not glob.has_magic(theirs):
            return theirs
        if "'" in theirs or " " in theirs:
            raise HookError(f"the site's hook {theirs!r}: use a pattern of plain characters")
        script = self._directory / f"{name}.site"
        replace_file(script, _PATTERN_TEXT.format(pattern=theirs))
        script.chmod(0o755)
        return str(script)

    def _changes_of_the_site(self, site: Site) -> Sequence[str]:
        return [
            f"the site's {key} is {site.value(key) or 'not set'} now and was "
            f"{was or 'not set'} when the hooks were installed; run `backfill slurm hooks install`"
            for key, was in self._recorded().items()
            if site.value(key) != was
        ]

    def _recorded(self) -> Mapping[str, str]:
        """Return what the site had set when the hooks were installed; nothing where no record was kept."""
        path = self._directory / _RECORD
        text = read_or_empty(path)
        if not text and not path.exists():
            return {}
        try:
            theirs = json.loads(text)
        except ValueError:
            theirs = None
        if not isinstance(theirs, dict):
            problem = "this record of what the site had set is damaged"
            raise UnreadableError(str(path), problem, "run `backfill slurm hooks install` again")
        return theirs


def _with_note(outcome: ApplyOutcome, told: str) -> ApplyOutcome:
    return replace(outcome, notes=(*outcome.notes, told)) if told else outcome


def _without_hooks(managed: Managed) -> Managed:
    return managed.with_section(SECTION, ())


def _with_lua(plugins: str) -> str:
    known = [word for word in plugins.split(",") if word]
    if any(word.removeprefix("job_submit/") == "lua" for word in known):
        return ",".join(known)
    return ",".join([*known, "lua"])
