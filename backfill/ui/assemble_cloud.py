"""The OpenStack driver's settings out of a checked policy file."""

from __future__ import annotations

from dataclasses import asdict

from backfill.config.cloud import GroupPolicy, OpenStackEntry
from backfill.config.model import Config, HostEntry
from backfill.drivers.openstack.settings import Guest, OpenStackConfig, Patience, Place, Shape
from backfill.ui import slurm_parts


def openstack_config(config: Config, entry: OpenStackEntry, hosts: list[HostEntry]) -> OpenStackConfig:
    """All of it, for these hosts."""
    return OpenStackConfig(
        cluster=config.policies.cluster,
        places={h.name: Place(h.cloud, h.compute) for h in hosts},
        shape=Shape(
            flavours=entry.flavours,
            network=entry.network,
            zones=entry.zones or ("",),
            images=dict(entry.images),
            vnic_type=entry.vnic_type.value,
            group_policy="" if entry.spread is GroupPolicy.NONE else entry.spread.value,
            volume_gb=entry.volume_gb,
            config_drive=entry.config_drive,
        ),
        guest=Guest(
            **asdict(entry.guest)
            | {"slurmd_options": slurm_parts.slurmd_options(config, entry.guest.slurmd_options)}
        ),
        clouds_yaml=entry.clouds_yaml,
        hours_cap=entry.hours_cap,
        patience=Patience(**asdict(entry.limits)),
    )
