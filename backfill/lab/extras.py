"""Services that a lab's controller can offer: time (chrony), files (NFS-Ganesha), Salt."""

from __future__ import annotations

import base64
import json
import shutil
from pathlib import Path
from typing import Any

import yaml

from backfill.lab.saltenv import salt_python
from backfill.lab.saltimage import STATES
from backfill.lab.service import Service
from backfill.lab.spec import (
    CONTROLLER_ADDRESS,
    FILES_PORT,
    NETWORK,
    SALT_PORT,
    SLURMCTLD_PORT,
    LabError,
    LabSpec,
    host_address,
)

# What survives a pause of hours and a server that restarts: see docs/readiness.md.
MOUNT_OPTIONS = "vers=4.1,proto=tcp,hard,timeo=50,retrans=3,noatime,nofail,nosuid,nodev"
# The same as in salt_states/controller/files.sls, where the reasons are.
NFS_OPTIONS = "Only_Numeric_Owners = true; Lease_Lifetime = 60; Grace_Period = 10; Minor_Versions = 1;"
_EXPORTS = (("home", "rw"), ("software", "ro"))
_TOOLS = {"time": ("chronyd",), "files": ("ganesha.nfsd",), "salt": ()}


def missing_tools(spec: LabSpec) -> list[str]:
    """Programs that the wanted services lack on this machine."""
    path = "/usr/sbin:/usr/bin:/sbin:/bin"
    wanted = [t for name, tools in _TOOLS.items() if getattr(spec, name) for t in tools]
    return [tool for tool in wanted if shutil.which(tool, path=path) is None]


def mounts() -> list[str]:
    """Return the mounts of guests, as in fstab."""
    return [f"{CONTROLLER_ADDRESS}:/{name} /{name} nfs4 {mode},{MOUNT_OPTIONS}" for name, mode in _EXPORTS]


def exported(lab_dir: Path) -> Path:
    """Return the directory on the controller whose children are exported."""
    return lab_dir / "files"


def write_extras(spec: LabSpec, lab_dir: Path) -> None:
    """Write the configuration of the wanted services; needs the lab's munge key."""
    missing = missing_tools(spec)
    if missing:
        raise LabError(f"a lab with these services needs {', '.join(missing)}: run scripts/setup.sh")
    if spec.time:
        (lab_dir / "etc/chrony.conf").write_text(
            f"local stratum 8\nallow {NETWORK}\npidfile /run/chronyd.pid\n"
            "driftfile /run/chrony.drift\ncmdport 0\nbindcmdaddress /\n"
        )
    if spec.files:
        _write_files(lab_dir)
    if spec.salt:
        _write_salt(spec, lab_dir)


def extra_services(spec: LabSpec, lab_dir: Path) -> tuple[Service, ...]:
    """Return the controller's further programs: this machine's own, whatever the lab's Slurm."""
    found = []
    argv: tuple[str, ...]
    if spec.time:
        # -x: all machines of a lab have the same clock, which is the host's and not ours to set.
        argv = ("/usr/sbin/chronyd", "-n", "-x", "-u", "root", "-f", f"{lab_dir}/etc/chrony.conf")
        found.append(Service("chronyd", argv, chroot=False))
    if spec.files:
        argv = (
            "/usr/bin/ganesha.nfsd",
            "-F",
            "-p",
            "/run/ganesha.pid",
            "-L",
            "STDERR",
            "-N",
            "NIV_EVENT",
            "-f",
            f"{lab_dir}/etc/ganesha.conf",
        )
        ready = f"tcp:{CONTROLLER_ADDRESS}:{FILES_PORT}"
        found.append(Service("ganesha", argv, ready=ready, chroot=False))
    if spec.salt:
        argv = (
            salt_python(),
            "-c",
            "from salt.scripts import salt_master; salt_master()",
            "--config-dir",
            f"{lab_dir}/etc/salt",
            "--log-level",
            "warning",
        )
        ready = f"tcp:{CONTROLLER_ADDRESS}:{SALT_PORT}"
        found.append(Service("salt-master", argv, ready=ready, chroot=False))
    return tuple(found)


def _write_files(lab_dir: Path) -> None:
    root = exported(lab_dir)
    shutil.rmtree(root, ignore_errors=True)
    (root / "recovery").mkdir(parents=True)
    text = (
        "NFS_CORE_PARAM { Protocols = 4; NFS_Port = 2049; Enable_NLM = false; "
        "Enable_RQUOTA = false; }\n"
        f'NFSv4 {{ {NFS_OPTIONS} RecoveryBackend = fs; RecoveryRoot = "{root}/recovery"; }}\n'
    )
    for number, (name, mode) in enumerate(_EXPORTS, 1):
        (root / name).mkdir()
        (root / name).chmod(0o1777)
        text += (
            f'EXPORT {{ Export_Id = {number}; Path = "{root}/{name}"; Pseudo = "/{name}"; '
            f"Access_Type = {mode.upper()}; Squash = No_Root_Squash; SecType = sys; "
            "Transports = TCP; FSAL { Name = VFS; } }\n"
        )
    (lab_dir / "etc/ganesha.conf").write_text(text)


def _write_salt(spec: LabSpec, lab_dir: Path) -> None:
    home = lab_dir / "etc/salt"
    state = lab_dir / "salt"
    shutil.rmtree(state, ignore_errors=True)
    for directory in (home, state / "pillar", state / "cache"):
        directory.mkdir(parents=True)
    options = {
        "interface": CONTROLLER_ADDRESS,
        "user": "root",
        "pki_dir": f"{state}/pki",
        "cachedir": f"{state}/cache",
        # A socket's path has a limit that a lab's directory may exceed; /run is the machine's own.
        "sock_dir": "/run/salt/master",
        "pidfile": "/run/salt-master.pid",
        "log_file": f"{state}/master.log",
        "file_roots": {"base": [str(STATES)]},
        "pillar_roots": {"base": [f"{state}/pillar"]},
        "worker_threads": 2,
        "timeout": 10,
        "keysize": 2048,
    }
    (home / "master").write_text(json.dumps(options, indent=1) + "\n")
    (state / "pillar/top.sls").write_text("base: {'*': [backfill]}\n")
    pillar = state / "pillar/backfill.sls"
    pillar.touch(mode=0o600)
    pillar.write_text(json.dumps(lab_pillar(spec, lab_dir), indent=1) + "\n")


def lab_pillar(spec: LabSpec, lab_dir: Path) -> dict[str, Any]:
    """Return the sample pillar with the lab's own values."""
    pillar: dict[str, Any] = yaml.safe_load((STATES / "pillar/backfill.sls").read_text())
    values = pillar["backfill"]
    key = (lab_dir / "etc/munge/munge.key").read_bytes()
    values |= {
        "cluster": spec.name,
        "controller": {"name": "ctl", "address": CONTROLLER_ADDRESS, "port": SLURMCTLD_PORT},
        "munge": {"key_base64": base64.b64encode(key).decode()},
        "hosts": {name: host_address(name) for name in spec.host_names},
        "time": {"servers": [CONTROLLER_ADDRESS] if spec.time else [], "networks": [NETWORK]},
    }
    values["files"]["networks"] = [NETWORK]
    values["files"]["mounts"] = [
        {"source": f"{CONTROLLER_ADDRESS}:/{name}", "at": f"/{name}", "writable": mode == "rw"}
        for name, mode in (_EXPORTS if spec.files else ())
    ]
    return pillar
