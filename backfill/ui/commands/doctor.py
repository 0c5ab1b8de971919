"""`backfill doctor`: prove the whole way from Slurm to a guest, as the daemon's user."""

from __future__ import annotations

import argparse
import contextlib
import grp
import importlib
import os
import pwd
import sys
from dataclasses import replace
from pathlib import Path

from backfill.config import ConfigError, load
from backfill.core.model.visible import visible
from backfill.ui.client import print_json
from backfill.ui.commands.file_check import unit_user, user_name
from backfill.ui.doctor.examination import Diagnosis, examine
from backfill.ui.doctor.facts import Facts
from backfill.ui.doctor.findings import Defect, Finding, Grade
from backfill.ui.doctor.guest_life import live
from backfill.ui.doctor.look import look
from backfill.ui.parser import DEFAULT_POLICY, NO_PERMISSION, USAGE, add_config, say
from backfill.ui.terminal import sign

SOUND, FAULTY, BLIND = 0, 1, 2
# Python reads these at their first use.
_CODECS = ("ascii", "idna", "latin_1", "utf_8_sig")


def add_doctor_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `backfill doctor`."""
    parser.epilog = (
        "exit status:\n  0    sound\n  1    something is wrong\n"
        "  2    nothing is wrong as far as was seen, but not all could be looked at\n"
        "  64   the command line cannot be understood"
    )
    add_config(parser)
    parser.add_argument(
        "--user", metavar="NAME", help="look as this user (the unit's user, if root runs this)"
    )
    parser.add_argument(
        "--boot", action="store_true", help="make one real guest, pause, suspend and end it (minutes)"
    )
    parser.add_argument("--host", default="", metavar="NAME", help="the host to use (the first idle one)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run_doctor(args: argparse.Namespace) -> int:
    """Become the daemon's user, look, and say what was found."""
    if args.host and not args.boot:
        say("--host says where to make the guest of --boot; give both")
        return USAGE
    name = args.user or (unit_user() if os.geteuid() == 0 else "")
    if name:
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            say(f"there is no user {name} here; name the daemon's")
            return USAGE
        if user.pw_uid != os.geteuid() != 0:
            say(f"only root can look as {name}; run this as root or as {name}")
            return NO_PERMISSION
        if user.pw_uid != os.geteuid():
            args.config = args.config.absolute()
            _become(user)
    return _show(args, _diagnose(args))


def _become(user: pwd.struct_passwd) -> None:
    """Go on as that user, with the groups that the daemon has: what is read and written is as for it."""
    with contextlib.suppress(ImportError):  # afterwards the interpreter's own files may be closed to us
        importlib.import_module("backfill.drivers.libvirt.inspection")
        importlib.import_module("backfill.drivers.libvirt.provider")
    for codec in _CODECS:
        importlib.import_module(f"encodings.{codec}")
    os.initgroups(user.pw_name, user.pw_gid)
    os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
    os.setresuid(user.pw_uid, user.pw_uid, user.pw_uid)
    os.environ |= {"HOME": user.pw_dir, "USER": user.pw_name, "LOGNAME": user.pw_name}
    os.chdir("/")


def _diagnose(args: argparse.Namespace) -> Diagnosis:
    """Look at all; where the policy file is of no use, at nothing else."""
    path, title = args.config, "the policy file can be read"
    try:
        with path.open("rb"):
            pass
        config = load(path)
    except OSError as error:
        return Diagnosis(((title, (unreadable(path, error),)),))
    except ConfigError as error:
        found = []
        for problem in error.problems:
            what, _, mend = str(problem).rpartition("; ")
            found.append(
                Finding(Defect.POLICY_MISTAKE, str(path), what or str(problem), mend if what else "")
            )
        return Diagnosis(((title, tuple(found)),))
    facts = look(config)
    seen = examine(facts)
    diagnosis = replace(seen, findings=((title, ()), *seen.findings))
    return _with_a_guest(args, facts, diagnosis) if args.boot else diagnosis


def unreadable(path: Path, error: OSError) -> Finding:
    """Say why this user cannot read the policy file, and how that is mended."""
    who = user_name()
    match error:
        case FileNotFoundError() if path.absolute() == Path(DEFAULT_POLICY):
            mend = "write it: backfill setup"
        case FileNotFoundError():
            mend = "check the path"
        case PermissionError():
            mend = _opened(path.absolute())
        case _:
            mend = f"name the policy file itself: backfill doctor --config {DEFAULT_POLICY}"
    what = f"{who} cannot read {path}: {error.strerror}"
    return Finding(Defect.POLICY_UNREADABLE, str(path), what, mend)


def _opened(path: Path) -> str:
    """Say how this user's group gets to read it. A directory that is not ours is never opened for that."""
    ours, group = Path(DEFAULT_POLICY).parent, _group()
    if path.parent == ours:
        return f"chgrp {group} {ours} {path}; chmod g+rX {ours} {path}"
    if not os.access(path.parent, os.X_OK):
        return f"move it to {ours}, which `backfill setup` opens for the daemon's user"
    return f"chgrp {group} {path}; chmod g+r {path}"


def _group() -> str:
    """Return the name of this user's own group, which need not be the user's; its number without one."""
    try:
        return grp.getgrgid(os.getegid()).gr_name
    except KeyError:
        return str(os.getegid())


def _with_a_guest(args: argparse.Namespace, facts: Facts, diagnosis: Diagnosis) -> Diagnosis:
    """Add a real guest's life, unless it would only fail of what is known."""
    if diagnosis.has(Grade.FAULT):
        what = "no guest was made, because of the faults above"
        skipped = Finding(Defect.GUEST, "guest", what, "mend them first", Grade.UNKNOWN)
        return diagnosis.then(_LIFE, (skipped,))
    tell = _to_nobody if args.json else _to_stderr
    return diagnosis.then(_LIFE, live(facts, args.host, tell))


_LIFE = "a guest is made, proven, paused, suspended and ended"


def _to_nobody(line: str) -> None:
    """Keep the steps of the guest's life out of a document."""


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"  {line}\n")
    sys.stderr.flush()


def _show(args: argparse.Namespace, diagnosis: Diagnosis) -> int:
    status = SOUND
    if diagnosis.has(Grade.UNKNOWN):
        status = BLIND
    if diagnosis.has(Grade.FAULT):
        status = FAULTY
    if args.json:
        print_json(
            {
                "sound": status == SOUND,
                "user": user_name(),
                "checks": {
                    title: [finding.to_json() for finding in found] for title, found in diagnosis.findings
                },
                "unseen": dict(diagnosis.unseen),
            }
        )
        return status
    for title, found in diagnosis.findings:
        why = diagnosis.unseen.get(title, "") if not found else ""
        print(f"- {title}: not looked at, {why}" if why else f"{_mark(found)} {title}")
        for finding in found:
            print(f"    {finding.grade.value} {finding.defect.value}: {visible(finding.what)}")
            print(f"      why:  {finding.defect.meaning}")
            if finding.mend:
                print(f"      mend: {visible(finding.mend)}")
    faults = sum(finding.grade is Grade.FAULT for finding in diagnosis.all)
    print(f"{faults} fault{'' if faults == 1 else 's'}" if faults else _SAID[status])
    return status


_SAID = {SOUND: "sound", BLIND: "no fault is seen, but not all could be looked at"}


def _mark(found: tuple[Finding, ...]) -> str:
    grades = {finding.grade for finding in found}
    if Grade.FAULT in grades:
        return sign("✗", "x")
    if Grade.UNKNOWN in grades:
        return "?"
    return "!" if grades else sign("✓", "+")
