"""Writes a lab's directory: configuration of every machine, keys, and the machines' plans."""

from __future__ import annotations

import base64
import json
import os
import pwd
import re
import secrets
import shutil
import sys
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from backfill.drivers.slurm.hooks.build import HookError, build_hook
from backfill.lab import slurmconf
from backfill.lab.condor import daemons
from backfill.lab.extras import extra_services, write_extras
from backfill.lab.roots import hypervisor_usr
from backfill.lab.service import Service
from backfill.lab.spec import (
    CE,
    CONTROLLER_ADDRESS,
    HOOK_PORT,
    JOB_USER,
    JOB_USER_LINE,
    LIBVIRT_PORT,
    POOL,
    QEMU_USER,
    SLURM_USER,
    SLURMCTLD_PORT,
    SLURMD_PORT,
    TALLY_PORT,
    VIRTUAL_NODES,
    LabError,
    LabSpec,
    host_address,
)

SLURM_TOOLS_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Where a machine whose Slurm is of another release has that release's root.
ROOT_MOUNT = "/run/root"
_TOOLS = (
    "scontrol",
    "squeue",
    "sinfo",
    "sbatch",
    "srun",
    "salloc",
    "scancel",
    "sprio",
    "sdiag",
    "strigger",
    "munge",
    "unmunge",
)
_USERS = (
    f"{SLURM_USER}:x:64030:64030::/nonexistent:/usr/sbin/nologin",
    f"{QEMU_USER}:x:64055:64055:Libvirt Qemu:/var/lib/libvirt:/usr/sbin/nologin",
    JOB_USER_LINE,
)
_GROUPS = (f"{SLURM_USER}:x:64030:", f"{QEMU_USER}:x:64055:", "kvm:x:64056:", f"{JOB_USER}:x:2001:")
_DAEMONS = ("slurmctld", "slurmd", "slurmrestd")
# Runs the release's own program, in the caller's directory if that exists there. A job has these
# in its PATH too, and is inside already.
_TOOL = """#!/bin/sh
[ -d {root}/usr ] || exec {path} "$@"
set -- /bin/sh -c 'cd "$0" 2>/dev/null; exec "$@"' "$PWD" {path} "$@"
[ "$(id -u)" != 0 ] || exec chroot {root} "$@"
# Only root may change its root; anybody may in a user namespace, in which he stays who he is. That
# makes the kernel forget at whose death he is to die.
exec unshare --user --map-user="$(id -u)" --map-group="$(id -g)" --root={root} -- \\
    setpriv --pdeathsig KILL "$@"
"""


@dataclass(frozen=True, slots=True)
class MachinePlan:
    """All that a machine's init needs; written as JSON, paths are absolute and seen everywhere."""

    name: str
    lab_dir: str
    root: str
    address: str
    bridge: bool
    cgroups: bool
    binds: tuple[tuple[str, str], ...]
    services: tuple[Service, ...] = field(default=())

    @classmethod
    def read(cls, path: Path) -> MachinePlan:
        """Read a plan that `write` made."""
        values = json.loads(path.read_text())
        services = tuple(
            Service(**{**s, "argv": tuple(s["argv"]), "warm": tuple(s["warm"])})
            for s in values.pop("services")
        )
        binds = tuple((source, target) for source, target in values.pop("binds"))
        return cls(**values, binds=binds, services=services)


def plan_path(lab_dir: Path, machine: str) -> Path:
    """Return the path of the machine's plan."""
    return lab_dir / "machines" / machine / "plan.json"


def tools_dir(lab_dir: Path) -> Path:
    """Return the folder of the tools of a lab's other Slurm release, for every machine."""
    return lab_dir / "bin"


def daemon_socket(lab_dir: Path) -> Path:
    """Return the socket of the daemon for the lab's own hook; the same in every machine."""
    return lab_dir / "run" / "daemon.sock"


def write(spec: LabSpec, lab_dir: Path, cgroups: bool) -> None:
    """Write everything afresh; what an earlier lab of this name left is removed."""
    for old in ("etc", "machines", "shared", "run", "hook", "bin"):
        shutil.rmtree(lab_dir / old, ignore_errors=True)
    for new in ("etc/slurm", "etc/munge", "machines", "shared", "run"):
        (lab_dir / new).mkdir(parents=True)
    (lab_dir / "shared").chmod(0o1777)
    (lab_dir / "tally.log").unlink(missing_ok=True)
    _write_common(spec, lab_dir)
    write_extras(spec, lab_dir)
    if spec.roots:
        _write_tools(tools_dir(lab_dir))
    if spec.condor:
        _write_condor_tools(lab_dir)
    for machine in spec.machines:
        _write_machine(spec, lab_dir, machine, cgroups)
    for directory in ("spool/slurmctld", "log/slurm"):
        _give_to_slurm(lab_dir, lab_dir / "machines/ctl" / directory)


def _write_machine(spec: LabSpec, lab_dir: Path, machine: str, cgroups: bool) -> None:
    plan = _plan(spec, lab_dir, machine, cgroups)
    home = lab_dir / "machines" / machine
    for directory in ("spool/slurmctld", "spool/slurmd", "log/slurm", "munge-lib", "munge-log"):
        (home / directory).mkdir(parents=True)
    if spec.hypervisor_of(machine):
        write_libvirt(home, cgroups)
    if machine in spec.condor_machines:
        daemons.write(spec, lab_dir, machine)
    plan_path(lab_dir, machine).write_text(json.dumps(asdict(plan), indent=2) + "\n")


def _write_common(spec: LabSpec, lab_dir: Path) -> None:
    etc = lab_dir / "etc"
    write_users(etc, *((daemons.USER,) if spec.condor else ()))
    built_hook = _build_hook(spec, lab_dir) if spec.hooks != "none" and not spec.hook else ""
    (etc / "slurm/slurm.conf").write_text(slurmconf.slurm_conf(spec, built_hook))
    (etc / "slurm/cgroup.conf").write_text(slurmconf.cgroup_conf(spec))
    names = ["ctl", *spec.host_names, *spec.condor_machines, *(f"vn{k}" for k in range(1, VIRTUAL_NODES + 1))]
    (etc / "hosts").write_text(
        "127.0.0.1 localhost\n" + "".join(f"{host_address(name)} {name}\n" for name in names)
    )
    (etc / "resolv.conf").touch()
    (etc / "nsswitch.conf").write_text(
        "passwd: files\ngroup: files\nshadow: files\nhosts: files\n"
        "services: files\nprotocols: files\nnetworks: files\nethers: files\nrpc: files\n"
    )
    if spec.auth == "slurm":
        write_slurm_keys(etc / "slurm/slurm.jwks", {"first": secrets.token_bytes(64)}, "first")
    key = etc / "munge/munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    owner = pwd.getpwnam("munge")
    os.chown(key, owner.pw_uid, owner.pw_gid)
    os.chown(etc / "munge", owner.pw_uid, owner.pw_gid)
    key.chmod(0o400)
    (etc / "munge").chmod(0o700)


def write_slurm_keys(path: Path, keys: Mapping[str, bytes], default: str) -> None:
    """Write the keys by their names as Slurm reads them (auth/slurm, slurm.jwks), at once and for its user.

    All of them are believed; new credentials are made with the `default` one.
    """
    listed = [
        {
            "alg": "HS256",
            "kty": "oct",
            "kid": name,
            "k": base64.b64encode(key).decode(),
            **({"use": "default"} if name == default else {}),
        }
        for name, key in keys.items()
    ]
    fresh = path.with_suffix(".new")
    fresh.touch(mode=0o600)
    fresh.write_text(json.dumps({"keys": listed}))
    owner = pwd.getpwnam(SLURM_USER)
    os.chown(fresh, owner.pw_uid, owner.pw_gid)
    fresh.rename(path)


def _write_tools(directory: Path) -> None:
    directory.mkdir()
    for folder, names in (("/usr/bin", _TOOLS), ("/usr/sbin", _DAEMONS)):
        for name in names:
            tool = directory / name
            tool.write_text(_TOOL.format(root=ROOT_MOUNT, path=f"{folder}/{name}"))
            tool.chmod(0o755)


def _write_condor_tools(lab_dir: Path) -> None:
    """Each works for the pool or the compute element, whichever it is called in."""
    where = daemons.config(lab_dir, "$(uname -n)")
    for name in daemons.TOOLS:
        text = _TOOL.format(root=ROOT_MOUNT, path=f"/usr/bin/{name}")
        tool = tools_dir(lab_dir) / name
        tool.write_text(text.replace("\n", f"\nexport CONDOR_CONFIG={where}\n", 1))
        tool.chmod(0o755)


def _build_hook(spec: LabSpec, lab_dir: Path) -> str:
    home = lab_dir / "hook"
    # A hook on a host reaches the daemon as it would in a real cluster: over the network.
    endpoint = (
        f"tcp:{CONTROLLER_ADDRESS}:{HOOK_PORT}" if spec.hooks == "host" else f"unix:{daemon_socket(lab_dir)}"
    )
    try:
        hook = build_hook(home / "hook", endpoint, spec.hook_timeout_ms, home / "hook.log")
        _give_to_slurm(lab_dir, home)  # a hook on the controller writes its log as SlurmUser
    except HookError as error:
        raise LabError(str(error)) from error
    return str(hook)


def write_users(etc: Path, *more: str) -> None:
    """Return this machine's users and groups, and those that a lab's programs and jobs run as.

    `more`: further users, as lines of passwd.
    """
    users = Path("/etc/passwd").read_text()
    groups = Path("/etc/group").read_text()
    for line in (*_USERS, *more):
        if f"\n{line.split(':')[0]}:" not in users:
            users += line + "\n"
    for line in _GROUPS:
        if f"\n{line.split(':')[0]}:" not in groups:
            groups += line + "\n"
    # As the packages do it: without this group QEMU may not open /dev/kvm.
    groups = re.sub(r"^(kvm:[^:]*:\d+:)(.*)$", _with_qemu, groups, flags=re.MULTILINE)
    (etc / "passwd").write_text(users)
    (etc / "group").write_text(groups)


def user_ids(etc: Path, name: str) -> tuple[int, int]:
    """Return the user and group id of a user of the lab, which this machine need not have."""
    for line in (etc / "passwd").read_text().splitlines():
        words = line.split(":")
        if words[0] == name:
            return int(words[2]), int(words[3])
    raise LabError(f"the lab has no user {name!r}")


def _with_qemu(line: re.Match[str]) -> str:
    members = dict.fromkeys([*filter(None, line[2].split(",")), QEMU_USER])
    return line[1] + ",".join(members)


def kvm_group(etc: Path) -> int:
    """Return the number of the group whose members may use KVM."""
    found = re.search(r"^kvm:[^:]*:(\d+):", (etc / "group").read_text(), re.MULTILINE)
    if found is None:
        raise LabError("the lab has no group kvm")
    return int(found[1])


def _give_to_slurm(lab_dir: Path, directory: Path) -> None:
    os.chown(directory, *user_ids(lab_dir / "etc", SLURM_USER))


def write_libvirt(home: Path, cgroups: bool, user: str = QEMU_USER) -> None:
    """Make directories and configuration of a libvirtd of its own, below `home`; QEMU is `user`."""
    for part in ("etc", "lib", "log", "cache"):
        (home / f"libvirt-{part}").mkdir()
    (home / "libvirt-etc/libvirtd.conf").write_text(
        f'listen_tls = 0\nlisten_tcp = 1\ntcp_port = "{LIBVIRT_PORT}"\nlisten_addr = "0.0.0.0"\n'
        'auth_tcp = "none"\nauth_unix_ro = "none"\nauth_unix_rw = "none"\n'
        f'unix_sock_rw_perms = "0700"\nhost_uuid = "{uuid.uuid4()}"\nlog_level = 3\n'
        'log_outputs = "3:file:/var/log/libvirt/libvirtd.log"\n'
        "max_workers = 40\nmax_client_requests = 32\nkeepalive_interval = 5\nkeepalive_count = 5\n"
    )
    controllers = '["cpu", "cpuacct"]' if cgroups else "[]"
    (home / "libvirt-etc/qemu.conf").write_text(
        f'user = "{user}"\ngroup = "{user}"\ndynamic_ownership = {int(user != "root")}\n'
        "remember_owner = 0\n"
        f'security_driver = "none"\nnamespaces = []\ncgroup_controllers = {controllers}\n'
        'stdio_handler = "file"\nseccomp_sandbox = 0\nmax_core = 0\n'
    )


def _plan(spec: LabSpec, lab_dir: Path, machine: str, cgroups: bool) -> MachinePlan:
    services: tuple[Service, ...] = ()
    if machine == "ctl":
        services = (*_munged(spec), *_controller_services(spec, lab_dir))
    elif machine in spec.condor_machines:
        services = (*(_munged(spec) if machine == CE else ()), daemons.service(lab_dir, machine))
    elif machine != "switch":
        services = (*_munged(spec), *_host_services(spec.hypervisor_of(machine), cgroups))
    return MachinePlan(
        name=machine,
        lab_dir=str(lab_dir),
        root=spec.root_of(machine),
        address="" if machine == "switch" else f"{host_address(machine)}/16",
        bridge=machine.startswith("bm"),
        cgroups=cgroups,
        binds=_binds(spec, lab_dir, machine),
        services=services,
    )


def _binds(spec: LabSpec, lab_dir: Path, machine: str) -> tuple[tuple[str, str], ...]:
    etc, home = lab_dir / "etc", lab_dir / "machines" / machine
    # A pool is not part of the cluster: neither its key nor its configuration is there.
    ours = () if machine == POOL else ("slurm", "munge")
    binds = [
        (etc / name, f"/etc/{name}")
        for name in ("hosts", "resolv.conf", "nsswitch.conf", "passwd", "group", *ours)
    ]
    binds += [
        (home / "spool", "/var/spool"),
        (home / "log/slurm", "/var/log/slurm"),
        (home / "munge-lib", "/var/lib/munge"),
        (home / "munge-log", "/var/log/munge"),
    ]
    if machine in spec.condor_machines:
        binds += daemons.binds(lab_dir, machine)
    if spec.hypervisor_of(machine):
        binds += [
            (home / "libvirt-etc", "/etc/libvirt"),
            (home / "libvirt-lib", "/var/lib/libvirt"),
            (home / "libvirt-log", "/var/log/libvirt"),
            (home / "libvirt-cache", "/var/cache/libvirt"),
        ]
    return tuple((str(source), target) for source, target in binds)


def _munged(spec: LabSpec) -> tuple[Service, ...]:
    if spec.auth != "munge":
        return ()
    munged = Service(
        "munged",
        ("/usr/sbin/munged", "--foreground", "--num-threads", "2"),
        user="munge",
        ready="unix:/run/munge/munge.socket.2",
    )
    return (munged,)


def _controller_services(spec: LabSpec, lab_dir: Path) -> tuple[Service, ...]:
    slurmctld = Service(
        "slurmctld",
        ("/usr/sbin/slurmctld", "-D"),
        user=SLURM_USER,
        ready=f"tcp:{CONTROLLER_ADDRESS}:{SLURMCTLD_PORT}",
    )
    tally = Service(
        "tally",
        (sys.executable, "-m", "backfill.lab.tally", str(lab_dir / "tally.log")),
        ready=f"tcp:{CONTROLLER_ADDRESS}:{TALLY_PORT}",
        chroot=False,
    )
    extras = extra_services(spec, lab_dir)
    return (slurmctld, *((tally,) if spec.tally else ()), *extras)


def _host_services(hypervisor: str, cgroups: bool) -> tuple[Service, ...]:
    slurmd = Service(
        "slurmd",
        ("/usr/sbin/slurmd", "-D"),
        after=f"tcp:{CONTROLLER_ADDRESS}:{SLURMCTLD_PORT}",
        ready=f"tcp:127.0.0.1:{SLURMD_PORT}",
    )
    if not hypervisor:
        return (slurmd,)
    libvirtd = Service(
        "libvirtd",
        ("/usr/sbin/libvirtd", "--listen"),
        ready=f"tcp:127.0.0.1:{LIBVIRT_PORT}",
        # The first client pays for probing QEMU's abilities; let it be us.
        warm=("virsh", "-q", "-c", "qemu:///system", "domcapabilities"),
        chroot=False,
        # Without control groups niceness keeps the guests below the host's own jobs.
        nice=0 if cgroups else 19,
        usr=hypervisor_usr(hypervisor),
    )
    return (slurmd, libvirtd)
