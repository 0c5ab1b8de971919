"""`backfill setup`: look at the cluster, show a plan, carry it out, and take it back."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from backfill.config import ConfigError, load
from backfill.core.model.visible import visible
from backfill.drivers.slurm.commands import SlurmTools
from backfill.drivers.slurm.conf.dry import dry_start
from backfill.drivers.slurm.conf.files import read_or_empty
from backfill.drivers.slurm.conf.managed import EMPTY, render
from backfill.drivers.slurm.conf.rules import reset_partition
from backfill.drivers.slurm.conf.site import SiteError, UnreadableSiteError, read_site
from backfill.drivers.slurm.driver import SlurmManager
from backfill.ports.errors import DriverError
from backfill.ui.assemble import slurm_manager
from backfill.ui.client import print_json
from backfill.ui.doctor.look import daemon_listens
from backfill.ui.parser import BAD_CONFIG, BAD_DATA, NO, NO_PERMISSION, OK, UNAVAILABLE, USAGE, say
from backfill.ui.setup.mistakes import (
    by_option,
    check_hosts,
    check_wishes,
    checked_conf,
    checked_pattern,
    restart_words,
)
from backfill.ui.setup.plan import Places, for_hosts, mounts_now, own_files, steps, texts
from backfill.ui.setup.slurm_lines import SELECT, jobs_lost, select_type
from backfill.ui.setup.steps import RunCommand, Step, StepError, UndoRecord
from backfill.ui.setup.survey import MANAGED, URI, Survey, jobs_of, survey
from backfill.ui.setup.wishes import WishError, Wishes, mountable, recalled, suggested

_STATE = Path("/var/lib/backfill-setup")
_CONF = Path("/etc/slurm/slurm.conf")
_RESTART = "systemctl restart slurmctld"


def add_setup_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `backfill setup`."""
    parser.add_argument("--dry-run", action="store_true", help="show the plan and change nothing")
    parser.add_argument("--yes", action="store_true", help="do not ask; use what the cluster suggests")
    parser.add_argument("--undo", action="store_true", help="undo everything, the last step first")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON; with --dry-run")
    text = parser.add_argument
    text("--names", default="", metavar="LIST", help="virtual nodes, such as vn[1-8]")
    text("--addresses", default="", metavar="FIRST", help="the first of their addresses: 10.0.1.1/16")
    text("--cpus", type=int, default=0, metavar="N", help="CPUs of each (half of the smallest host's)")
    text("--memory-mb", type=int, default=0, metavar="MB", help="memory of each (as much as two need)")
    text("--image", default="", metavar="FOLDER", help="the guest image, in a place that the hosts see")
    text("--directory", default="", metavar="DIR", help="shared by this machine and all hosts")
    text("--bridge", default="", metavar="NAME", help="the hosts' bridge (the one they have)")
    text(
        "--controller",
        default="",
        metavar="IP",
        help="slurmctld's address for guests, of several all with commas between them, the primary first "
        "(what each SlurmctldHost resolves to, or this machine's towards guests)",
    )
    text("--gateway", default="", metavar="IP", help="the guests' default route (none)")
    text(
        "--low",
        default="",
        metavar="PARTITION",
        help="the partition for low-priority jobs; created if missing (htc)",
    )
    text("--hosts", default="", metavar="LIST", help="nodes that carry instances (all whose libvirt answers)")
    text("--uri", default="", metavar="PATTERN", help=f"where libvirt listens ({URI})")
    text("--user", default="", metavar="NAME", help="the daemon's user (SlurmUser)")
    text("--emulated", action="store_true", help="guests without KVM")
    text(
        "--cpu-feature",
        action="append",
        default=[],
        metavar="NAME",
        help="a CPU feature for guests, such as rdrand",
    )
    text(
        "--mount",
        action="append",
        metavar="MOUNT",
        help="a mount for guests: the place of an NFS entry of this machine's fstab, or a line as there "
        "(those of the policy file that setup wrote; none at first, unless you choose some when asked)",
    )
    text("--no-mounts", action="store_const", const=[], dest="mount", help="no mounts for guests")
    text(
        "--closed", action="store_true", help="guests reach only the controller, file servers and each other"
    )
    text(
        "--also",
        action="append",
        default=[],
        metavar="NETWORK",
        help="with --closed: also allow this network",
    )
    text("--slurm-conf", metavar="FILE", type=Path, help=f"slurm.conf ({_CONF})")
    text(
        "--restart", default=None, metavar="COMMAND", help=f"the command that restarts slurmctld ({_RESTART})"
    )


def run_setup(args: argparse.Namespace) -> int:
    """Do what was asked for, and say in one sentence why not."""
    if os.geteuid() != 0:
        say("setup writes Slurm's configuration and gives files to users; run it as root")
        return NO_PERMISSION
    record = UndoRecord(_STATE)
    try:
        _check_json(args)
        return _undo(args, record) if args.undo else _set_up(args, record)
    except WishError as error:
        for line in str(error).splitlines():
            say(line)
        return USAGE
    except ConfigError as error:
        for problem in error.problems:
            say(f"nothing was changed: {problem}")
        return BAD_CONFIG
    except SiteError as error:
        say(f"nothing was changed: {error}")
        return BAD_DATA if isinstance(error, UnreadableSiteError) else BAD_CONFIG
    except DriverError as error:
        say(f"nothing was changed: {error}")
        return UNAVAILABLE


def _check_json(args: argparse.Namespace) -> None:
    if args.json and not args.dry_run:
        raise WishError("--json only shows the plan; add --dry-run")


def _set_up(args: argparse.Namespace, record: UndoRecord) -> int:
    before = record.said
    conf, restart = checked_conf(args.slurm_conf or record.conf or _CONF), _restart(args, before)
    names = _names(args.hosts or before.get("only", ""))
    found = survey(conf, names, checked_pattern(_pattern(args, before)))
    check_hosts(found, names)
    places = Places(conf, restart=restart)
    ask = None if args.yes or not sys.stdin.isatty() else _ask
    edited = [path for path in (places.images, places.policy) if record.edited(path)]
    said, had = _wishes(args), mounts_now(places.policy)
    if said.mounts is None and places.policy in edited:
        said = replace(said, mounts=had)  # that file is kept, so an answer would change nothing
    wishes = suggested(found, said, ask, had, recalled(before))
    check_wishes(found, wishes)
    wanted = steps(found, wishes, places, edited)
    plan = [shown for step in (*wanted, *for_hosts(wishes, places)) if (shown := step.shown())]
    now = found.settings.select_type
    if plan and (lost := jobs_lost(now, SELECT, found.jobs) or _partitions_reset(found, places, plan)):
        say(f"nothing was changed: {lost}")
        return NO
    _check(found, wishes, places)
    unsaid = args.mount is None and not wishes.mounts and places.policy not in edited
    left = [*mountable(found, wishes.directory)] if plan and unsaid else []
    _show(plan, _advice(found, wishes, places, edited), left, as_json=args.json)
    if args.dry_run:
        return OK
    told = _to_remember(args, before, said, wishes)
    if not plan:
        return _leave(record, told)
    if not args.yes and not _confirmed():
        say("nothing was changed")
        return NO
    if other := _changed_since(found, places, record, edited):
        say(f"nothing was changed: somebody has changed {other} meanwhile; say `backfill setup` again")
        return NO
    done = _carry_out(record, told, wanted, wishes, places, now if now != SELECT else "")
    others = found.settings.controllers[1:]
    if done == OK and others:
        print(f"SlurmctldHost also names {', '.join(others)}: if {conf.parent} and the hooks are not shared,")
        print("copy them there, and again after each change (docs/operations.md, Two controllers)")
    return done


def _restart(args: argparse.Namespace, before: Mapping[str, Any]) -> tuple[str, ...]:
    return restart_words(before.get("restart", _RESTART) if args.restart is None else args.restart)


def _pattern(args: argparse.Namespace, before: Mapping[str, Any]) -> str:
    return args.uri or str(before.get("uri", URI))


def _to_remember(
    args: argparse.Namespace, before: Mapping[str, Any], said: Wishes, wishes: Wishes
) -> Mapping[str, Any]:
    """Return what a later run need not be told. Of what the cluster can tell anew, only what was said."""
    return {
        **asdict(wishes),
        "controllers": list(said.controllers or before.get("controllers", ())),
        "user": said.user or before.get("user", ""),
        "emulated": said.emulated or before.get("emulated", False),
        "only": args.hosts or before.get("only", ""),
        "uri": _pattern(args, before),
        "restart": shlex.join(_restart(args, before)),
    }


def _leave(record: UndoRecord, told: Mapping[str, Any]) -> int:
    """Change nothing but what is known of the admin's will: the files may be kept since he edits them."""
    if record.there:
        record.remember(told)
    return OK


def _advice(found: Survey, wishes: Wishes, places: Places, edited: Collection[Path]) -> list[str]:
    """Say of files that an admin has edited what setup would have written there."""
    shown = {file.path: file.shown() for file in own_files(found, wishes, places) if file.path in edited}
    return [
        f"{path} was not written by setup, or was edited since, and is kept; setup would {text}"
        for path, text in shown.items()
        if text
    ]


def _show(plan: Sequence[str], advice: Sequence[str], left: Sequence[str], *, as_json: bool) -> None:
    """`left`: mounts of this machine about which nobody has said whether guests get them."""
    if as_json:
        print_json({"plan": plan, "kept": advice, "not_mounted": left, "done": False})
        return
    told = [_not_mounted(left)] if left else []
    print("\n".join([*advice, *told, *(plan or ["everything is as it should be"])]))


def _not_mounted(left: Sequence[str]) -> str:
    none = f"guests get none of this machine's NFS mounts ({', '.join(left)})"
    return f"{none}: if jobs need one, such as their homes, say --mount {left[0]}, otherwise --no-mounts"


def _names(text: str) -> Sequence[str]:
    from backfill.core.model.quantities import parse_hostlist

    try:
        return parse_hostlist(text) if text else ()
    except ValueError as error:
        raise WishError(f"--hosts {text}: {error}") from error


def _wishes(args: argparse.Namespace) -> Wishes:
    return Wishes(
        partition=args.low,
        names=args.names,
        addresses=args.addresses,
        cpus=args.cpus,
        memory_mb=args.memory_mb,
        directory=args.directory,
        bridge=args.bridge,
        gateway=args.gateway,
        controllers=tuple(dict.fromkeys(filter(None, map(str.strip, args.controller.split(","))))),
        image=args.image,
        emulated=args.emulated,
        user=args.user,
        cpu_features=tuple(args.cpu_feature),
        mounts=None if args.mount is None else tuple(args.mount),
        closed=args.closed,
        also=tuple(args.also),
    )


def _ask(question: str, proposal: str) -> str:
    hint = f" [{proposal}]" if proposal else ""
    return _answer(f"{question}{hint}: ")


def _answer(question: str) -> str:
    try:
        return input(question).strip()
    except EOFError:
        print()
        raise WishError("there was no answer; nothing was changed") from None
    except UnicodeDecodeError:
        print()
        raise WishError("the answer is not UTF-8; nothing was changed") from None


def _confirmed() -> bool:
    if not sys.stdin.isatty():
        say("nobody is there to confirm the plan; say --yes")
        return False
    return _answer("Carry it out? [y/N] ").casefold() in ("y", "yes")


def _partitions_reset(found: Survey, places: Places, plan: Sequence[str]) -> str:
    """Say which partition the restart of slurmctld would open or close; empty: none."""
    if RunCommand(places.restart).shown() not in plan:
        return ""
    reset = reset_partition(found.site, found.settings, restart=True)
    return f"by the restart of slurmctld {reset}; write that into slurm.conf, or wait" if reset else ""


def _changed_since(found: Survey, places: Places, record: UndoRecord, edited: Collection[Path]) -> str:
    """Return the first file that is not as it was looked at: a person may take hours for an answer."""
    read = {places.conf: found.texts["slurm.conf"]}
    read |= {places.conf.with_name(name): text for name, text in found.texts.items() if name != "slurm.conf"}
    changed = [path for path, text in read.items() if read_or_empty(path) != text]
    changed += [path for path in (places.images, places.policy) if record.edited(path) and path not in edited]
    return str(changed[0]) if changed else ""


def _check(found: Survey, wishes: Wishes, places: Places) -> None:
    """Check the policy file with our own reader, and slurm.conf with a slurmctld without network."""
    with tempfile.TemporaryDirectory(prefix="backfill-setup-") as name:
        scratch = Path(name)
        scratch.chmod(0o711)
        for file in own_files(found, wishes, places):
            (scratch / file.path.name).write_bytes(file.content)
        try:
            load(scratch / places.policy.name)
        except ConfigError as error:
            raise by_option(error) from error
        ours = places.conf.with_name(MANAGED)
        now = ours.read_text() if ours.exists() else render(EMPTY)
        dry = dry_start(SlurmTools(), places.conf, ours, now, scratch, texts(found, wishes, places.conf.name))
        if dry.tried and dry.problem:
            raise DriverError("slurm.conf", f"slurmctld refuses what it would be: {dry.problem}")
        if not dry.tried:
            say(f"slurm.conf could not be tested with a slurmctld without network: {dry.problem}")


def _carry_out(
    record: UndoRecord,
    told: Mapping[str, Any],
    wanted: Sequence[Step],
    wishes: Wishes,
    places: Places,
    anew: str,
) -> int:
    """Change what is to be changed. `told`: for the run that has to finish what this one does not.

    `anew`: the SelectType until now, where that is another one.
    """
    first = not record.there
    try:
        record.remember(told)
        record.carry_out(wanted, conf=places.conf)
        record.carry_out(for_hosts(wishes, places))
    except (StepError, OSError) as error:
        say(visible(str(error)))
        if not first:
            say("mend that and say `backfill setup` again, or take all back: backfill setup --undo")
            return NO
        try:
            record.undo()
            say("all that was done is taken back")
        except (StepError, OSError) as second:
            say(f"not all could be taken back: {visible(str(second))}; say `backfill setup --undo`")
        return NO
    hosts = " ".join(wishes.hosts)
    if anew:
        print(f"SelectType is no longer {anew}: restart slurmd on every node before any job starts")
    print("done. Now, and again after each change of slurm.conf, as root:")
    print(f"  for h in {hosts}; do ssh $h sh -s <{places.folder}/hosts.sh; done")
    print("  systemctl enable --now backfill")
    print("  backfill doctor --boot")
    return OK


def _at_work() -> str:
    """Say what would be lost if our part of Slurm went now; empty: nothing is known of."""
    policy = Places(Path("/")).policy
    if not policy.exists():
        return ""  # nothing of ours can be at work by what is not there
    config = load(policy)
    if daemon_listens(config):
        return "the daemon runs; let its work end (docs/install.md), then systemctl stop backfill"
    try:
        names = set(config.policies.instances.names)
        there = sorted(names & slurm_manager(config).observe().nodes.keys())
    except DriverError:
        return ""  # a slurmctld that does not run has to be brought back, perhaps by this
    if not there:
        return ""
    return f"Slurm still has our node {there[0]}, whose job would be lost; let its work end (docs/install.md)"


def _jobs_lost_by(record: UndoRecord, conf: Path) -> str:
    """Say what slurm.conf as it was does to Slurm's jobs; empty: nothing, or Slurm cannot be asked."""
    before = record.before(conf)
    if before is None:
        return ""
    manager = SlurmManager(SlurmTools(conf=conf))
    try:
        now, jobs = manager.settings(), jobs_of(manager.observe())
    except DriverError:
        return ""  # a slurmctld that does not run has to be brought back, perhaps by this
    then = read_site(conf, conf.with_name(MANAGED), before.decode("utf-8", "surrogateescape"))
    return jobs_lost(now.select_type, select_type(then, now.version), jobs)


def _show_undo(plan: Sequence[str], reason: str, *, as_json: bool) -> int:
    """`reason`: why it could not be done now; empty: it could."""
    if as_json:
        print_json({"undo": plan, "refused": reason, "done": False})
    else:
        print("\n".join(plan))
    if reason:
        say(f"this would not be done now: {reason}")
    return NO if reason else OK


def _undo(args: argparse.Namespace, record: UndoRecord) -> int:
    if not record.there:
        say("nothing was set up here by `backfill setup`")
        return NO
    reason = _at_work() or _jobs_lost_by(record, record.conf or args.slurm_conf or _CONF)
    if args.dry_run:
        return _show_undo(record.would_undo(), reason, as_json=args.json)
    if reason:
        say(f"nothing was changed: {reason}")
        return NO
    site = record.of_the_site
    try:
        left = record.undo()
    except (StepError, OSError) as error:
        say(f"{visible(str(error))}; mend that and say `backfill setup --undo` again")
        return NO
    for sentence in left:
        say(sentence)
    what = "everything else" if left else "everything"
    print(f"{what} is as it was before; on each host: sh /var/lib/backfill-host/undo.sh")
    return NO if any(sentence.partition(" stays")[0] in site for sentence in left) else OK
