"""A policy file for a lab's own cluster, so that a daemon can be started in it at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from backfill.lab.cluster import Lab
from backfill.lab.condor.daemons import tokens
from backfill.lab.extras import mounts
from backfill.lab.image import GuestImage
from backfill.lab.saltenv import salt_python
from backfill.lab.spec import CONDOR_PORT, CONTROLLER_ADDRESS, HOOK_PORT, POOL, SLURMCTLD_PORT, host_address

# A rank of MPI takes 60 MB before it has computed anything, and slurmstepd's libraries as much again.
MPI_MB = 400
# Slurm's part of a guest, a pilot's four daemons and a starter with its payload.
PILOT_MB = 512
LADDER = (
    {"rung": "pause", "within_s": 1, "for_s": 20},
    {"rung": "migrate", "within_s": 60},
    {"rung": "suspend", "within_s": 60, "for_s": 3600},
    {"rung": "requeue", "within_s": 60},
)


def policy(lab: Lab, image: GuestImage, **changes: Any) -> dict[str, Any]:
    """Write the policy file's content; `changes` replace or extend top-level keys, one level deep."""
    body: dict[str, Any] = {
        "cluster": lab.spec.name,
        "daemon": {
            "state_dir": str(lab.dir / "daemon"),
            "socket": str(socket_path(lab)),
            "listen": f"{CONTROLLER_ADDRESS}:{HOOK_PORT}",
            "poll_s": 1,
            "host_poll_s": 2,
        },
        "slurm": {
            "conf": "/etc/slurm/slurm.conf",
            **({"hooks": {"place": "host"}} if lab.spec.hooks == "host" else {}),
        },
        "priorities": {"low": ["htc"], "high": ["batch"]},
        "hosts": [{"name": h, "provider": "libvirt", "uri": lab.libvirt_uri(h)} for h in lab.hosts],
        "libvirt": {
            "directory": str(lab.shared),
            "bridge": "br0",
            "surroundings": {
                "controller": CONTROLLER_ADDRESS,
                "conf_server": f"{CONTROLLER_ADDRESS}:{SLURMCTLD_PORT}",
                **_key(lab),
                **({"time_server": CONTROLLER_ADDRESS} if lab.spec.time else {}),
                **({"mounts": mounts()} if lab.spec.files else {}),
                **({"no_ops": [str(lab.hook_path)]} if lab.spec.hooks == "host" else {}),
            },
            "images": {
                "default": {
                    "kernel": image.kernel,
                    "initrd": image.initrd,
                    "disk": image.disk,
                    "cmdline": image.cmdline_under(lab.domain_type),
                    "disk_format": image.disk_format,
                }
            },
            # All hosts of a lab are one machine, so their page cache is one as well.
            "hardware": {"domain_type": lab.domain_type, "disk_cache": "unsafe", "cpu_features": ["rdrand"]},
        },
        "instances": {
            "names": "vn[1-16]",
            "addresses": "10.77.1.1/16",
            "flavour": {"cpus": 1, "memory_mb": 256},
        },
        "ladder": [dict(rule) for rule in LADDER],
        "scale": {"idle_s": 15},
        "limits": {"max_instances": 16, "max_per_host": 2},
    }
    if lab.spec.salt:
        body["salt"] = {"python": salt_python(), "config": str(lab.dir / "etc/salt/master")}
        body["instances"]["flavour"]["memory_mb"] = 384
        body["libvirt"]["hardware"]["translation_cache_mb"] = 512
    if lab.spec.mpi:
        body["instances"]["flavour"]["memory_mb"] = MPI_MB
        body["demand"] = {"max_nodes": 8}
    if lab.spec.condor:
        body["instances"]["flavour"]["memory_mb"] = PILOT_MB
        collector = f"{host_address(POOL)}:{CONDOR_PORT}"
        body["condor"] = {"collector": collector, "tokens": str(tokens(lab.dir)), "every_s": 5}
    for key, value in changes.items():
        old = body.get(key)
        body[key] = {**old, **value} if isinstance(old, dict) else value
    return body


def _key(lab: Lab) -> dict[str, str]:
    return (
        {"slurm_key": str(lab.slurm_keys)} if lab.spec.auth == "slurm" else {"munge_key": str(lab.munge_key)}
    )


def socket_path(lab: Lab) -> Path:
    """Return the socket at which a daemon in this lab listens and the lab's own hook looks for it."""
    return lab.daemon_socket


def write_policy(lab: Lab, image: GuestImage, **changes: Any) -> Path:
    """Write the lab's policy file and return its path."""
    path = lab.dir / "policy.yaml"
    text = yaml.safe_dump(policy(lab, image, **changes), sort_keys=False)
    path.write_text("# Written for this lab; see docs/policy.md for every key.\n" + text)
    return path
