"""From a cluster and the answers to the steps that set it up."""

from __future__ import annotations

import pwd
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from backfill.core.model.quantities import parse_hostlist
from backfill.drivers.slurm.conf.managed import EMPTY, render
from backfill.drivers.slurm.hooks.install import is_hook
from backfill.ui.setup.host_script import host_script
from backfill.ui.setup.slurm_lines import Needs, with_cgroups, with_our_lines
from backfill.ui.setup.steps import OWN, MakeFolder, Owner, RunCommand, Step, WriteFile
from backfill.ui.setup.survey import MANAGED, Survey
from backfill.ui.setup.wishes import Wishes, image_in

_ANSWER_S, _MARGIN_S = 2.0, 1.5
_ROOM = 16
_FEATURE = "backfill"
_HEAD = "# Written by `backfill setup`; docs/policy.md explains every key.\n"
_KEY = Path("/etc/munge/munge.key")


@dataclass(frozen=True, slots=True)
class Places:
    """Where everything goes. `unit`: the unit's drop-in."""

    conf: Path
    folder: Path = Path("/etc/backfill")
    hook_log: Path = Path("/var/log/slurm/backfill-hook.log")
    unit: Path = Path("/etc/systemd/system/backfill.service.d/setup.conf")
    key: Path = _KEY
    restart: tuple[str, ...] = ("systemctl", "restart", "slurmctld")

    @property
    def policy(self) -> Path:
        """The policy file."""
        return self.folder / "policy.yaml"

    @property
    def images(self) -> Path:
        """The image catalogue."""
        return self.folder / "images.yaml"

    @property
    def own_key(self) -> Path:
        """The copy of the munge key that the daemon's user may read."""
        return self.folder / "munge.key"


def policy(survey: Survey, wishes: Wishes, places: Places) -> dict[str, Any]:
    """Write the policy file's content."""
    by_name = {host.node.name: host for host in survey.hosts}
    return {
        "cluster": survey.settings.cluster,
        "priorities": {"low": [wishes.partition]},
        "hosts": [{"name": name, "provider": "libvirt", "uri": by_name[name].uri} for name in wishes.hosts],
        "instances": {
            "names": wishes.names,
            "addresses": wishes.addresses,
            "flavour": {"cpus": wishes.cpus, "memory_mb": wishes.memory_mb},
        },
        "ladder": [
            {"rung": "pause", "within_s": 5, "for_s": 600},
            {"rung": "suspend", "within_s": 300, "for_s": 14400},
            {"rung": "requeue", "within_s": 60},
        ],
        "answer_within_s": _ANSWER_S,
        "slurm": {
            "conf": str(places.conf),
            "restart": list(places.restart) if wishes.user == "root" else [],
            "hooks": {"log": str(places.hook_log), "margin_s": _MARGIN_S},
        },
        "libvirt": {
            "directory": wishes.directory,
            "bridge": wishes.bridge,
            "surroundings": {
                "controller": wishes.controllers[0],
                "conf_server": ",".join(_endpoint(address, survey.port) for address in wishes.controllers),
                **_key(survey, wishes, places),
                **({"gateway": wishes.gateway} if wishes.gateway else {}),
                **({"mounts": list(wishes.mounts)} if wishes.mounts else {}),
            },
            **(
                {"guest_network": {"closed": wishes.closed, "also": list(wishes.also)}}
                if wishes.closed or wishes.also
                else {}
            ),
            "catalogue": "images.yaml",
            "hardware": {
                "domain_type": "qemu" if wishes.emulated else "kvm",
                "cpu_model": "qemu64" if wishes.emulated else "host-model",
                **({"cpu_features": list(wishes.cpu_features)} if wishes.cpu_features else {}),
            },
        },
    }


def _endpoint(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def mounts_now(path: Path) -> tuple[str, ...]:
    """Return what guests mount by a policy file; nothing where it is not there or cannot be read."""
    try:
        mounts = yaml.safe_load(path.read_text(encoding="utf-8"))["libvirt"]["surroundings"]["mounts"]
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError):
        return ()
    lines = mounts if isinstance(mounts, list) else []
    return tuple(line for line in lines if isinstance(line, str) and len(line.split()) == 4)


def catalogue(wishes: Wishes) -> dict[str, Any]:
    """Write the image catalogue's content."""
    found = image_in(Path(wishes.image), wishes.emulated)
    return {
        "images": {
            "default": {
                "kernel": found.kernel,
                "initrd": found.initrd,
                "disk": found.disk,
                "disk_format": found.disk_format,
                "cmdline": found.cmdline,
                **({"sha256": found.sha256} if found.sha256 else {}),
            }
        }
    }


def needs(survey: Survey, wishes: Wishes) -> Needs:
    """Return what slurm.conf has to offer."""
    fixed = int(survey.settings.raw.get("FixedNodes", "0")) or len(survey.hosts)
    wanted = fixed + len(parse_hostlist(wishes.names)) + _ROOM
    return Needs(wishes.partition, _FEATURE, wanted, _ANSWER_S + _MARGIN_S)


def texts(survey: Survey, wishes: Wishes, conf: str) -> Mapping[str, str]:
    """slurm.conf, whose file's name is `conf`, and cgroup.conf as they shall be."""
    made = {conf: with_our_lines(survey.texts["slurm.conf"], survey.site, needs(survey, wishes))}
    if "proctrack/cgroup" in survey.settings.raw.get("ProctrackType", ""):
        cgroups = with_cgroups(survey.texts.get("cgroup.conf", ""), survey.settings.version)
        made |= {"cgroup.conf": cgroups} if cgroups else {}
    return made


def own_files(survey: Survey, wishes: Wishes, places: Places) -> Sequence[WriteFile]:
    """Return the files that an admin goes on writing: the image catalogue and the policy file."""
    shared = Owner(0, pwd.getpwnam(wishes.user).pw_gid, 0o640)
    return [
        WriteFile(places.images, _yaml(catalogue(wishes)), shared),
        WriteFile(places.policy, _yaml(policy(survey, wishes, places)), shared),
    ]


def steps(survey: Survey, wishes: Wishes, places: Places, edited: Collection[Path] = ()) -> Sequence[Step]:
    """Everything in the order in which it is safe to stop after any of them; not what was `edited`."""
    user = pwd.getpwnam(wishes.user)
    theirs = Owner(user.pw_uid, user.pw_gid, 0o751)
    new = texts(survey, wishes, places.conf.name)
    conf_owner = _owner_of(places.conf)
    return [
        *_folders(wishes, places, user, theirs),
        *(file for file in own_files(survey, wishes, places) if file.path not in edited),
        *_key_copy(survey, wishes, places, user),
        *_slurm(new, survey, places, conf_owner),
        *_hooks(survey, places),
        *_unit(survey, wishes, places),
    ]


def for_hosts(wishes: Wishes, places: Places) -> Sequence[Step]:
    """Write the script for the hosts, which brings them the files as they are here now."""
    found = {}
    for name in (MANAGED, "cgroup.conf", places.conf.name):
        beside = places.conf.parent / name
        if beside.exists():
            found[name] = beside.read_text(encoding="utf-8", errors="surrogateescape")
    text = host_script(wishes, found, str(places.conf.parent))
    return [WriteFile(places.folder / "hosts.sh", text.encode(), Owner(0, 0, 0o755))]


def _folders(wishes: Wishes, places: Places, user: pwd.struct_passwd, theirs: Owner) -> Sequence[MakeFolder]:
    return [
        MakeFolder(places.folder, Owner(0, user.pw_gid, 0o750)),
        MakeFolder(Path(wishes.directory), theirs),
    ]


def _has_own_key(survey: Survey) -> bool:
    """Return True if Slurm's daemons know one another by Slurm's own key, which SlurmUser can read."""
    return survey.settings.raw.get("AuthType") == "auth/slurm"


def _key(survey: Survey, wishes: Wishes, places: Places) -> dict[str, str]:
    if not _has_own_key(survey):
        return {"munge_key": str(places.key if wishes.user == "root" else places.own_key)}
    beside = places.conf.parent
    several = (beside / "slurm.jwks").exists()
    return {"slurm_key": str(beside / ("slurm.jwks" if several else "slurm.key"))}


def _key_copy(survey: Survey, wishes: Wishes, places: Places, user: pwd.struct_passwd) -> Sequence[Step]:
    if wishes.user == "root" or _has_own_key(survey):
        return []
    return [WriteFile(places.own_key, places.key.read_bytes(), Owner(user.pw_uid, user.pw_gid, 0o400))]


def _slurm(new: Mapping[str, str], survey: Survey, places: Places, owner: Owner) -> Sequence[Step]:
    files = [
        WriteFile(places.conf.parent / name, text.encode("utf-8", "surrogateescape"), owner)
        for name, text in new.items()
    ]
    included = places.conf.with_name(MANAGED)
    ours = [] if included.exists() else [WriteFile(included, render(EMPTY).encode(), owner, places.conf)]
    changed = any(file.shown() for file in files)
    return [
        *ours,
        RunCommand(undo=_until_answered(places)),
        RunCommand(undo=places.restart),
        *files,
        RunCommand(places.restart, needed=changed),
        RunCommand(_until_answered(places), needed=changed),
    ]


def _until_answered(places: Places) -> tuple[str, ...]:
    """Return a command that waits until slurmctld answers; its service counts as started before."""
    script = f"SLURM_CONF={shlex.quote(str(places.conf))}; export SLURM_CONF; "
    script += (
        "n=0; until scontrol ping | grep -q UP; do n=$((n+1)); [ $n -lt 300 ] || exit 1; sleep 0.1; done"
    )
    return ("sh", "-c", script)


def _hooks(survey: Survey, places: Places) -> Sequence[Step]:
    words = (OWN, "slurm", "hooks")
    config = ("--config", str(places.policy))
    named = survey.settings.prolog_slurmctld
    installed = any(is_hook(Path(word)) for word in named.split(","))
    first = not named  # 22.05 looks only at its start whether there is one at all
    return [
        RunCommand((*words, "install", *config), (*words, "remove", *config), needed=not installed),
        RunCommand(places.restart, needed=first),
        RunCommand(_until_answered(places), needed=first),
    ]


def drop_in_text(survey: Survey, wishes: Wishes, places: Places) -> str:
    """Write what is added to the unit: its user, where it may write, what it may not do, and its mounts."""
    state = survey.settings.raw.get("StateSaveLocation", "")
    needed = [path for path in (wishes.directory, state) if path]
    paths = " ".join(f"-{path}" for path in (wishes.directory, str(places.conf.parent), state) if path)
    if wishes.user == "root":
        settings = f"[Service]\nReadWritePaths={paths}\n"
    else:
        text = (resources.files(__package__) / "slurm-user.conf").read_text(encoding="utf-8")
        settings = text[text.index("[Service]") :].replace("User=slurm\n", f"User={wishes.user}\n")
        settings = re.sub(r"(?m)^ReadWritePaths=.*$", f"ReadWritePaths={paths}", settings)
    return f"# By `backfill setup`.\n{settings}{_mounts_first(survey.mounted, needed)}"


def _mounts_first(mounted: Sequence[str], needed: Sequence[str]) -> str:
    """Let the unit fail, and so try again, while what is mounted now is not.

    Folders made then would be below the mount point. RequiresMountsFor= would not try again.
    """
    at = {max((m for m in mounted if Path(p).is_relative_to(m)), key=len, default="/") for p in needed}
    return "".join(f"ExecStartPre=+/usr/bin/mountpoint {_quoted(place)}\n" for place in sorted(at - {"/"}))


def _quoted(word: str) -> str:
    """Write a word of a command as systemd reads it back."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("%", "%%").replace("$", "$$") + '"'


def _unit(survey: Survey, wishes: Wishes, places: Places) -> Sequence[Step]:
    reload = ("systemctl", "daemon-reload")
    drop_in = WriteFile(places.unit, drop_in_text(survey, wishes, places).encode(), Owner(0, 0, 0o644))
    changed = bool(drop_in.shown())
    return [
        RunCommand(undo=reload),
        MakeFolder(places.unit.parent, Owner(0, 0, 0o755)),
        drop_in,
        RunCommand(reload, needed=changed),
    ]


def _owner_of(path: Path) -> Owner:
    seen = path.stat()
    return Owner(seen.st_uid, seen.st_gid, seen.st_mode & 0o7777)


def _yaml(body: Mapping[str, Any]) -> bytes:
    return (_HEAD + yaml.safe_dump(dict(body), sort_keys=False)).encode()
