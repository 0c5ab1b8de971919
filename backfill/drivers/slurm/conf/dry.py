"""Starts a slurmctld with the new configuration where it can do no harm, and hears what it says."""

from __future__ import annotations

import contextlib
import pwd
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from backfill.drivers.slurm.commands import SlurmTools
from backfill.drivers.slurm.conf.site import inlined
from backfill.ports.errors import DriverError, UnreachableError

# What would reach outside, or into the real controller's files; the dry one gets its own.
_TAKEN_AWAY = re.compile(
    r"\s*(StateSaveLocation|BurstBufferType|SlurmctldPidFile|SlurmctldLogFile|SlurmSchedLogFile|JobComp\w*"
    r"|AccountingStorage\w*|PriorityWeightTRES|(Resume|Suspend|ResumeFail|Reboot|HealthCheck)Program|MailProg"
    r"|SlurmctldPrimary\w+Prog|SlurmctldSyslogDebug)\s*=",
    re.IGNORECASE,
)
# Without the database no GRES is a TRES, and slurmctld would end at a weight for one.
_WEIGHTS = re.compile(r"\s(TRESBillingWeights|TRESWeights)\s*=\s*(\"[^\"]*\"|\S+)", re.IGNORECASE)
_LARGEST_BYTES = 1 << 20
_WITHIN_S = 10
_HARMLESS = "specified more than once, latest value used"
_READY = "Running as primary controller"
# An address on lo lets getaddrinfo find something in a network that has nothing else. With auth/slurm each
# slurmctld puts its own socket in the place of the one by which all commands on this machine are known
# (plugins/auth/slurm/sack.c).
_OWN_SOCKETS = """
for at in /run/slurm /run/slurmctld; do
    [ -d $at ] || continue
    mount -t tmpfs -o mode=755,uid=$(stat -c %u $at),gid=$(stat -c %g $at) none $at || exit 75
done
"""
_SCRIPT = """
ip link set lo up && ip addr add 192.0.2.1/32 dev lo || exit 75
timeout {within_s} slurmctld -D -c -f {dir}/slurm.conf >{dir}/log 2>&1 &
until grep -q -e '{ready}' -e fatal: {dir}/log || ! kill -0 $!; do sleep 0.02; done 2>/dev/null
kill $! 2>/dev/null
wait
cat {dir}/log
"""


@dataclass(frozen=True, slots=True)
class DryVerdict:
    """`tried`: whether a slurmctld could be started at all; `problem`: why it refused."""

    tried: bool
    problem: str = ""


def dry_start(
    commands: SlurmTools,
    conf: Path,
    managed: Path,
    text: str,
    scratch: Path,
    instead: Mapping[str, str] = MappingProxyType({}),
) -> DryVerdict:
    """Start slurmctld with `text` as the managed file, without network and with no state.

    It runs in a network namespace of its own, so it reaches no node, no database and not the
    living controller, has directories of its own for sockets, and is ended as soon as it has read
    everything (0.1 s on 22.05). Programs that it could call are taken out. `scratch` is a directory
    that it may use. `instead`: what files of slurm.conf's directory would hold, by their names, itself
    among them.
    """
    with _directory(scratch) as place:
        _copy(conf, managed, text, instead, place)
        script = _SCRIPT.format(dir=place, within_s=_WITHIN_S, ready=_READY)
        path = f"{commands.bin_dir}:" if commands.bin_dir else ""
        patient = replace(commands, bin_dir=None, conf=None, timeout_s=_WITHIN_S + 5)
        search = path + "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        apart = ["unshare", "--net", "--mount", "--", "sh", "-c", _OWN_SOCKETS + script]
        try:
            said = patient.run(apart, "dry start", {"PATH": search})
        except UnreachableError as error:
            return DryVerdict(False, str(error))
        except DriverError as error:
            if "auth/slurm" in (place / "slurm.conf").read_text(errors="replace").lower():
                return DryVerdict(False, str(error))
            return _without_mounts(patient, script, search)
    return judge(said)


def _without_mounts(patient: SlurmTools, script: str, search: str) -> DryVerdict:
    """Try it in a container that lets nobody mount: without auth/slurm it makes no socket for commands."""
    try:
        return judge(
            patient.run(["unshare", "--net", "--", "sh", "-c", script], "dry start", {"PATH": search})
        )
    except DriverError as error:
        return DryVerdict(False, str(error))


def judge(said: str) -> DryVerdict:
    """Judge a slurmctld's words: it took the configuration, it refused, or neither."""
    # 26.05 puts a time before each line, earlier releases their name.
    lines = [re.sub(r"^(slurmctld: |\[[^\]]*\] )+", "", line) for line in said.splitlines()]
    fatal = next((i for i, line in enumerate(lines) if line.startswith("fatal:")), None)
    if fatal is not None:
        # An error before it often says which value it was.
        errors = [e for e in lines[:fatal] if e.startswith("error:") and _HARMLESS not in e]
        words = (lines[fatal].removeprefix("fatal:"), *(e.removeprefix("error:") for e in errors[-1:]))
        return DryVerdict(True, ": ".join(w.strip() for w in words if w.strip()))
    if any(_READY in line for line in lines):
        return DryVerdict(True)
    last = lines[-1] if lines else "it said nothing"
    return DryVerdict(False, f"slurmctld was not ready within {_WITHIN_S} s: {last}")


@contextlib.contextmanager
def _directory(scratch: Path) -> Iterator[Path]:
    scratch.mkdir(parents=True, exist_ok=True)
    # slurmctld becomes SlurmUser, who may not be let into a directory of ours.
    open_to_all = all(part.stat().st_mode & 0o001 for part in (scratch, *scratch.parents))
    place = scratch if open_to_all else None
    with tempfile.TemporaryDirectory(dir=place, prefix="backfill-dry-") as name:
        yield Path(name)


def _copy(conf: Path, managed: Path, text: str, instead: Mapping[str, str], place: Path) -> None:
    """Copy the configuration as one file, and what lies beside it (cgroup.conf, gres.conf, ...)."""
    whole = inlined(conf, managed, text, instead.get(conf.name))
    kept = [_WEIGHTS.sub("", line) for line in whole.splitlines() if not _TAKEN_AWAY.match(line)]
    (place / "state").mkdir()
    kept += [f"StateSaveLocation={place}/state", f"SlurmctldPidFile={place}/pid"]
    body = "\n".join(kept) + "\n"
    (place / "slurm.conf").write_text(body, encoding="utf-8", errors="surrogateescape")
    for beside in conf.parent.iterdir():
        plain = beside.is_file() and beside not in (conf, managed)
        if plain and beside.stat().st_size <= _LARGEST_BYTES:
            shutil.copy2(beside, place / beside.name)
    for name in instead.keys() - {conf.name, managed.name}:
        (place / name).write_text(instead[name], encoding="utf-8", errors="surrogateescape")
    with contextlib.suppress(KeyError, PermissionError):  # it then says itself what it misses
        owner = _slurm_user(whole)
        for path in (place, place / "state", *place.iterdir()):
            shutil.chown(path, owner.pw_uid, owner.pw_gid)


def _slurm_user(whole: str) -> pwd.struct_passwd:
    """Find the user that slurmctld becomes; KeyError where this machine has no such user."""
    found = re.findall(r"^\s*SlurmUser\s*=\s*\"?([^\s\"]+)", whole, re.IGNORECASE | re.MULTILINE)
    name = found[-1] if found else "root"
    return pwd.getpwuid(int(name)) if name.isdecimal() else pwd.getpwnam(name)
