"""`backfill slurm diff|apply|rollback|hooks|spank`: our part of Slurm's configuration."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from backfill.ui.parser import (
    BAD_CONFIG,
    BAD_DATA,
    NO,
    NO_PERMISSION,
    OK,
    UNAVAILABLE,
    USAGE,
    add_config,
    add_verbs,
)

if TYPE_CHECKING:
    from backfill.config.model import Config
    from backfill.drivers.slurm.conf.transaction import ApplyOutcome
    from backfill.drivers.slurm.spank.install import Spank

_VERBS = {
    "diff": "show what `apply` would change in the managed file; exit status 1 if anything, 65 or "
    "more if that cannot be determined",
    "apply": "write the managed file, make Slurm read it, and roll it back if anything goes wrong",
    "rollback": "return to an earlier version of the managed file, by the same careful steps",
    "hooks": "install, remove or show the hooks that Slurm calls",
    "spank": "install, remove or show the options by which jobs ask for machines of their own",
}
_HOOK_VERBS = {
    "install": "install the hooks of the policy file around those of the site",
    "remove": "remove our hooks; the site's own are restored",
    "status": "show which hooks are installed and what is wrong with them; exit status 1 if none is or "
    "something is wrong, 65 or more if that cannot be determined",
}

_SPANK_VERBS = {
    "install": "compile the plugin for the Slurm of this machine, and name it in plugstack.conf",
    "remove": "remove the plugin; the site's own lines in plugstack.conf stay",
    "status": "show whether the plugin is installed and what is wrong with it; exit status 1 if "
    "not installed or something is wrong, 65 or more if that cannot be determined",
    "package": "write an archive of the plugin for machines where users log in",
}


def add_slurm_arguments(parser: argparse.ArgumentParser) -> None:
    """Subcommands of `backfill slurm`."""
    verbs = add_verbs(parser, _VERBS)
    verbs["apply"].add_argument(
        "--force", action="store_true", help="replace a file that somebody else has changed"
    )
    verbs["apply"].add_argument(
        "--no-dry-start", action="store_true", help="skip the trial by a slurmctld without network"
    )
    verbs["rollback"].add_argument(
        "--to", type=Path, metavar="COPY", help="one of the dated copies (the newest)"
    )
    hooks = add_verbs(verbs["hooks"], _HOOK_VERBS, dest="hook_verb")
    hooks["install"].add_argument(
        "--force", action="store_true", help="install hooks on the hosts although guests are up"
    )
    spank = add_verbs(verbs["spank"], _SPANK_VERBS, dest="spank_verb")
    _add_spank_arguments(spank)
    plain = (verbs[name] for name in ("diff", "apply", "rollback"))
    for one in (*plain, *hooks.values(), *spank.values()):
        add_config(one)
        one.add_argument("--json", action="store_true", help="print the answer as JSON")


def _add_spank_arguments(spank: Mapping[str, argparse.ArgumentParser]) -> None:
    spank["package"].add_argument("archive", type=Path, metavar="FILE", help="the archive, such as vm.tar.gz")
    spank["package"].add_argument(
        "--release", metavar="RELEASE", help="the Slurm release there, such as 24.11.5 (this machine's)"
    )
    for one in spank.values():
        one.add_argument(
            "--directory",
            type=Path,
            metavar="DIR",
            help="the plugin's directory on each machine (/usr/local/lib/backfill/spank)",
        )


def run_slurm(args: argparse.Namespace) -> int:
    """Read the policy file, do it, and say in one sentence why not."""
    from backfill.config import ConfigError, load
    from backfill.ports.errors import DriverError, UnreachableError, UnreadableError

    second = {"hooks": "hook_verb", "spank": "spank_verb"}.get(args.verb)
    verb = f"{args.verb} {getattr(args, second)}" if second else args.verb
    failed = BAD_DATA if verb in _LOOKING else NO
    try:
        return _DOES[verb](load(args.config), args)
    except (ConfigError, UnreadableError) as error:
        return _refuse(error, BAD_DATA)
    except ValueError as error:
        return _refuse(error, BAD_CONFIG)
    except UnreachableError as error:
        return _refuse(error, UNAVAILABLE)
    except DriverError as error:
        return _refuse(error, failed)
    except PermissionError as error:
        return _refuse(f"{error.filename}: {error.strerror}; run this as root", NO_PERMISSION)
    except OSError as error:
        where = error.filename or "a file in daemon.state_dir, or beside slurm.conf"
        return _refuse(f"{where}: {error.strerror}; nothing was changed there", failed)


def _diff(config: Config, args: argparse.Namespace) -> int:
    from backfill.ui import slurm_parts

    change = slurm_parts.transactions(config)
    wanted = slurm_parts.wanted(config)
    site = change.site()
    diff = change.preview(lambda now: wanted.change(now, site), force=True)
    if args.json:
        print(json.dumps({"diff": diff}))
    else:
        print(diff or f"{config.slurm.include} is as the policy file wants it", end="\n" * (not diff))
    return NO if diff else OK


def _apply(config: Config, args: argparse.Namespace) -> int:
    from backfill.drivers.slurm.conf.nodes import CloudNodes
    from backfill.ui import assemble, slurm_parts

    change = slurm_parts.transactions(config)
    change.check_note()  # before anything is made
    if next_step := change.introduce():
        return _introduced(config, args, next_step)
    wanted = slurm_parts.wanted(config)
    site = change.site()
    nodes = slurm_parts.registration(config)
    if isinstance(nodes, CloudNodes):
        slurm_parts.hooks(config).build_power(slurm_parts.hook_plan(config))
    done = change.apply(lambda now: wanted.change(now, site), dry=not args.no_dry_start, force=args.force)
    if isinstance(nodes, CloudNodes):
        nodes.secure(assemble.slurm_manager(config), change.slurm.look().nodes)
    return _tell(done, args, f"{config.slurm.include} is as the policy file wants it")


def _introduced(config: Config, args: argparse.Namespace, next_step: str) -> int:
    from backfill.drivers.slurm.conf.transaction import ApplyOutcome

    made = f"{Path(config.slurm.conf).parent / config.slurm.include} is made, and empty"
    return _tell(ApplyOutcome(notes=(made, next_step)), args, "nothing else was changed")


def _rollback(config: Config, args: argparse.Namespace) -> int:
    from backfill.ui import slurm_parts

    done = slurm_parts.transactions(config).rollback(args.to)
    return _tell(done, args, "nothing had to be changed")


def _install(config: Config, args: argparse.Namespace) -> int:
    from backfill.ui import slurm_parts

    plan = slurm_parts.hook_plan(config)
    settings = slurm_parts.transactions(config).slurm.settings()
    if not args.force and (up := slurm_parts.without_no_ops(config, settings)):
        return _refuse(_guests_are_up(up, plan.directory), NO)
    done = slurm_parts.hooks(config).install(plan, settings.version)
    return _tell(done, args, "the hooks are installed")


def _guests_are_up(names: Sequence[str], directory: Path) -> str:
    from backfill.core.model.quantities import fold_hostlist

    return (
        f"{fold_hostlist(names)}: guests that are up may lack the programs in {directory}, which slurm.conf "
        "would name for every slurmd: Slurm would drain their nodes (Prolog error) and hold their jobs "
        "(launch failed requeued held); let them go first (`backfill nodes` shows none), or say --force "
        "where the daemon had slurm.hooks.place: host before they were made; nothing was changed"
    )


def _remove(config: Config, args: argparse.Namespace) -> int:
    from backfill.ui import slurm_parts

    return _tell(slurm_parts.hooks(config).remove(), args, "no hook of ours is left")


def _status(config: Config, args: argparse.Namespace) -> int:
    from backfill.ports.errors import DriverError
    from backfill.ui import slurm_parts

    version = None
    with contextlib.suppress(DriverError):  # the files can be looked at without Slurm
        version = slurm_parts.transactions(config).slurm.settings().version
    status = slurm_parts.hook_status(config, version)
    if args.json:
        print(json.dumps(status.to_json(), indent=2))
    else:
        print("installed" if status.installed else "not installed")
        for key, value in status.keys:
            print(f"  {key}={value}")
        print(f"  job_submit.lua: {status.script}")
        for problem in status.problems:
            print(f"  wrong: {problem}")
    return OK if status.installed and not status.problems else NO


def _spank(config: Config, args: argparse.Namespace) -> Spank:
    from backfill.drivers.slurm.spank.install import DIRECTORY
    from backfill.ui import slurm_parts

    return slurm_parts.spank(config, args.directory or DIRECTORY)


def _spank_install(config: Config, args: argparse.Namespace) -> int:
    return _lines(_spank(config, args).install(), args)


def _spank_remove(config: Config, args: argparse.Namespace) -> int:
    return _lines(_spank(config, args).remove(), args)


def _spank_package(config: Config, args: argparse.Namespace) -> int:
    from backfill.drivers.slurm.spank.build import SpankError, release_of

    try:
        release = None if args.release is None else release_of(args.release)
    except SpankError as error:
        return _refuse(f"--release: {error}", USAGE)
    return _lines(_spank(config, args).package(args.archive, release), args)


def _spank_status(config: Config, args: argparse.Namespace) -> int:
    status = _spank(config, args).status()
    if args.json:
        print(json.dumps(status.to_json(), indent=2))
    else:
        built = f" for Slurm {status.release}" if status.release else ""
        print(f"installed{built}" if status.installed else "not installed")
        for problem in status.problems:
            print(f"  wrong: {problem}")
    return OK if status.installed and not status.problems else NO


def _lines(done: Sequence[str], args: argparse.Namespace) -> int:
    if args.json:
        print(json.dumps({"done": list(done)}, indent=2))
    else:
        print("\n".join(done))
    return OK


def _tell(done: ApplyOutcome, args: argparse.Namespace, otherwise: str) -> int:
    if args.json:
        print(json.dumps(asdict(done), indent=2))
        return OK
    for note in done.notes:
        print(note, file=sys.stderr)
    print(done.diff, end="")
    if done.reloaded:
        kept = f"; the old file is kept as {done.backup}" if done.backup else ""
        print(f"Slurm has taken it ({done.reloaded}), nothing is lost{kept}")
    else:
        print(otherwise)
    return OK


def _refuse(problem: object, status: int) -> int:
    print(problem, file=sys.stderr)
    return status


_DOES: dict[str, Callable[[Config, argparse.Namespace], int]] = {
    "diff": _diff,
    "apply": _apply,
    "rollback": _rollback,
    "hooks install": _install,
    "hooks remove": _remove,
    "hooks status": _status,
    "spank install": _spank_install,
    "spank remove": _spank_remove,
    "spank status": _spank_status,
    "spank package": _spank_package,
}
# Whose status 1 is an answer: where they cannot give one they end with 65 or more.
_LOOKING = ("diff", "hooks status", "spank status")
