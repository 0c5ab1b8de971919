"""What must hold before the managed file may be written; pure, it asks nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from backfill.drivers.slurm.checks import check_spec
from backfill.drivers.slurm.conf.managed import Managed
from backfill.drivers.slurm.conf.site import Site
from backfill.ports.errors import RefusedError


def missing_include(site: Site, managed: Path) -> str:
    """What the site must do so that Slurm reads our file; empty when it does."""
    if site.include is None:
        return (
            f"{site.conf} does not include {managed.name}; add the line "
            f"'Include {managed.name}' at its end and apply again"
        )
    words = site.include.text.split()
    if words[-1] != managed.name:
        # slurmctld hands only files without a path to a slurmd that has no slurm.conf of its own.
        return f"{site.include.place}: write 'Include {managed.name}', without a directory"
    return ""


def objections(managed: Managed, site: Site) -> list[str]:
    """Every reason why Slurm would not take this content, or would misunderstand it."""
    return [*_nodes(managed, site), *_settings(managed, site)]


def _nodes(managed: Managed, site: Site) -> Iterator[str]:
    theirs, addresses = site.nodes(), site.addresses()
    ours: dict[str, str] = {}
    for line in managed.nodes:
        spec = line.spec
        try:
            check_spec(spec)
        except RefusedError as error:
            yield str(error)
        if spec.name in theirs:
            yield f"{theirs[spec.name].place}: defines {spec.name} too; remove one of them"
        if spec.address in addresses:
            place = addresses[spec.address].place
            yield f"{place}: has the address {spec.address} of {spec.name}; choose another"
        if spec.address in ours:
            yield f"{spec.name}: has the address {spec.address} of {ours[spec.address]}"
        ours[spec.address] = spec.name


def _settings(managed: Managed, site: Site) -> Iterator[str]:
    for key, value in managed.pairs():
        if not value or not value.isprintable() or "#" in value or " " in value:
            yield f"{key}: {value!r} is no value that slurm.conf can carry"
        later = site.overrides(key)
        if later is not None:
            yield (
                f"{later.place}: sets {key} behind the Include of our file and so takes it back; "
                "move the Include line to the end"
            )
