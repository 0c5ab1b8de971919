"""Writes the files of a site's machines: what lies over the root that all of them share."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from backfill.lab.image import image_folder
from backfill.lab.site import conf
from backfill.lab.spec import JOB_USER, SLURM_USER, LabError, LabSpec, host_address

# The kernel is the machine's that carries the site, and so are its devices, modules and settings.
_NOT_OURS = (
    "console-getty.service",
    "dev-hugepages.mount",
    "e2scrub_reap.service",
    "getty@.service",
    "proc-sys-fs-binfmt_misc.automount",
    "sys-fs-fuse-connections.mount",
    "sys-kernel-config.mount",
    "sys-kernel-debug.mount",
    "sys-kernel-tracing.mount",
    "systemd-modules-load.service",
    "systemd-pstore.service",
    "systemd-remount-fs.service",
    "systemd-sysctl.service",
    "systemd-timesyncd.service",
    "systemd-udev-trigger.service",
    "systemd-udevd.service",
    "systemd-udevd-control.socket",
    "systemd-udevd-kernel.socket",
)
_TIMERS = ("apt-daily", "apt-daily-upgrade", "dpkg-db-backup", "e2scrub_all", "fstrim", "logrotate")
_CONTROLLER = ("mariadb.service", "slurmdbd.service", "slurmctld.service")
_HOST = (
    "libvirt-guests.service",
    "libvirtd-admin.socket",
    "libvirtd-ro.socket",
    "libvirtd-tcp.socket",
    "libvirtd.service",
    "libvirtd.socket",
    "slurmd.service",
    "virtlockd-admin.socket",
    "virtlockd.socket",
    "virtlogd-admin.socket",
    "virtlogd.socket",
)
_UNITS = Path("etc/systemd/system")


@dataclass(frozen=True, slots=True)
class SitePlan:
    """All that the first process of a site's machine needs to become it; the switch has no root."""

    name: str
    lab_dir: str
    root: str
    address: str
    bridge: bool
    binds: tuple[tuple[str, str], ...]

    @property
    def home(self) -> Path:
        """The machine's own folder: `upper` has its files, `root` is where it sees all of them."""
        return Path(self.lab_dir, "machines", self.name)

    @classmethod
    def read(cls, path: Path) -> SitePlan:
        """Read a plan that `write` made."""
        values = json.loads(path.read_text())
        return cls(**{**values, "binds": tuple((a, b) for a, b in values["binds"])})


class _Upper:
    """A machine's own layer: files with owners by name, as the machine knows them."""

    def __init__(self, folder: Path, users: Mapping[str, tuple[int, int]]) -> None:
        self._folder = folder
        self._users = users

    def put(self, place: Path | str, text: str | bytes, mode: int = 0o644, owner: str = "root") -> None:
        path = self._made(place)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        path.chmod(mode)
        os.chown(path, *self._users[owner])

    def folder(self, place: str, mode: int = 0o755, owner: str = "root") -> None:
        path = self._made(place)
        path.mkdir()
        path.chmod(mode)
        os.chown(path, *self._users[owner])

    def link(self, place: Path | str, target: str) -> None:
        path = self._made(place)
        path.unlink(missing_ok=True)
        path.symlink_to(target)

    def enable(self, unit: str, wanted_by: str = "multi-user.target") -> None:
        self.link(_UNITS / f"{wanted_by}.wants" / unit, f"/lib/systemd/system/{unit}")

    def mask(self, *units: str) -> None:
        for unit in units:
            self.link(_UNITS / unit, "/dev/null")

    def _made(self, place: Path | str) -> Path:
        path = self._folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def write(spec: LabSpec, lab_dir: Path) -> None:
    """Write everything afresh; what an earlier lab of this name left is removed."""
    for old in ("etc", "home", "machines", "shared", "run"):
        shutil.rmtree(lab_dir / old, ignore_errors=True)
    for new in ("etc", "home", "machines", "shared", "run"):
        (lab_dir / new).mkdir(parents=True)
    (lab_dir / "shared").chmod(0o755)
    (lab_dir / "tally.log").unlink(missing_ok=True)
    users = _write_users(lab_dir, Path(spec.root_of("ctl")))
    for user in conf.ACCOUNTS.values():
        home = lab_dir / "home" / user
        home.mkdir(mode=0o700)
        os.chown(home, *users[user])
    _write_plan(SitePlan("switch", str(lab_dir), "", "", bridge=False, binds=()))
    key = secrets.token_bytes(1024)
    for machine in spec.machines[1:]:
        plan = SitePlan(
            name=machine,
            lab_dir=str(lab_dir),
            root=spec.root_of(machine),
            address=f"{host_address(machine)}/16",
            bridge=machine != "ctl",
            binds=_binds(lab_dir),
        )
        _write_plan(plan)
        upper = _Upper(plan.home / "upper", users)
        _write_common(upper, spec, lab_dir, machine, key)
        if machine == "ctl":
            _write_controller(upper, spec, lab_dir)
        else:
            _write_host(upper, spec)


def _write_plan(plan: SitePlan) -> None:
    for part in ("upper", "work", "root"):
        (plan.home / part).mkdir(parents=True)
    (plan.home / "plan.json").write_text(json.dumps(asdict(plan), indent=2) + "\n")


def _binds(lab_dir: Path) -> tuple[tuple[str, str], ...]:
    """Return what machines see of this one: what a file server would bring, guest images, our files."""
    own = [str(place) for place in dict.fromkeys((*conf.checkout(), image_folder())) if place.exists()]
    return (
        (str(lab_dir / "home"), "/home"),
        (str(lab_dir / "shared"), conf.SHARED),
        (str(lab_dir), str(lab_dir)),
        *((place, place) for place in own),
    )


def _write_users(lab_dir: Path, root: Path) -> dict[str, tuple[int, int]]:
    """Write the users of all machines: those of the packages, and people; return their ids by name."""
    passwd, group = ((root / "etc" / name).read_text() for name in ("passwd", "group"))
    for number, user in enumerate(conf.ACCOUNTS.values(), 2001):
        passwd += f"{user}:x:{number}:{number}:A user of the cluster:/home/{user}:/bin/bash\n"
        group += f"{user}:x:{number}:\n"
    (lab_dir / "etc/passwd").write_text(passwd)
    (lab_dir / "etc/group").write_text(group)
    lines = [line.split(":") for line in passwd.splitlines()]
    users = {words[0]: (int(words[2]), int(words[3])) for words in lines}
    missing = {SLURM_USER, JOB_USER, "munge"} - users.keys()
    if missing:
        raise LabError(f"the root {root} has no user {', '.join(sorted(missing))}; remove it")
    return users


def _write_common(upper: _Upper, spec: LabSpec, lab_dir: Path, machine: str, key: bytes) -> None:
    upper.put("etc/hostname", f"{machine}\n")
    upper.put("etc/hosts", conf.hosts(spec))
    upper.put("etc/resolv.conf", "")
    upper.put("etc/machine-id", f"{uuid.uuid4().hex}\n", mode=0o444)
    upper.put("etc/passwd", (lab_dir / "etc/passwd").read_bytes())
    upper.put("etc/group", (lab_dir / "etc/group").read_bytes())
    upper.folder("etc/munge", mode=0o700, owner="munge")
    upper.put("etc/munge/munge.key", key, mode=0o400, owner="munge")
    if machine == "ctl" or not spec.configless:
        upper.put("etc/slurm/slurm.conf", conf.slurm_conf(spec))
        upper.put("etc/slurm/cgroup.conf", conf.cgroup_conf(spec))
    upper.mask(*_NOT_OURS, *(f"{name}.timer" for name in _TIMERS))
    upper.link(_UNITS / "default.target", "/lib/systemd/system/multi-user.target")
    upper.enable("munge.service")


def _write_controller(upper: _Upper, spec: LabSpec, lab_dir: Path) -> None:
    upper.mask(*_HOST)
    upper.put("etc/slurm/slurmdbd.conf", conf.SLURMDBD_CONF, mode=0o600, owner=SLURM_USER)
    upper.put("etc/mysql/mariadb.conf.d/90-site.cnf", conf.MARIADB)
    upper.put("usr/local/sbin/site-accounts", conf.accounts_script(spec), mode=0o755)
    own = {"site-database": conf.DATABASE_UNIT, "site-accounts": conf.ACCOUNTS_UNIT}
    if spec.tally:
        own["tally"] = conf.tally_unit(lab_dir)
    for name, text in own.items():
        upper.put(_UNITS / f"{name}.service", text)
        upper.link(_UNITS / "multi-user.target.wants" / f"{name}.service", f"/{_UNITS}/{name}.service")
    for unit in _CONTROLLER:
        upper.enable(unit)


def _write_host(upper: _Upper, spec: LabSpec) -> None:
    upper.mask(*_CONTROLLER, "libvirt-guests.service")
    upper.put("etc/libvirt/libvirtd.conf", conf.LIBVIRTD_CONF)
    upper.put("etc/libvirt/qemu.conf", conf.QEMU_CONF, mode=0o600)
    upper.enable("libvirtd-tcp.socket", wanted_by="sockets.target")
    upper.enable("slurmd.service")
    if spec.configless:
        upper.put("etc/default/slurmd", "SLURMD_OPTIONS='--conf-server ctl'\n")
        upper.put(_UNITS / "slurmd.service.d/configless.conf", "[Unit]\nConditionPathExists=\n")
