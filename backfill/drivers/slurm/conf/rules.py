"""The rules for the managed file: conditions before it is written, and changes that are forbidden."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from backfill.core.model.cluster import Node, NodeBase, SlurmSettings
from backfill.drivers.slurm.checks import check_spec
from backfill.drivers.slurm.conf.managed import LineState, Managed
from backfill.drivers.slurm.conf.site import Site
from backfill.ports.errors import BusyError, RefusedError
from backfill.ports.workload import ClusterObservation


def missing_include(site: Site, managed: Path) -> str | None:
    """Say what the site must do so that Slurm reads our file; None: it does."""
    if site.include is None:
        return (
            f"{site.conf} does not include {managed.name}; add the line "
            f"'Include {managed.name}' at its end and apply again"
        )
    words = site.include.text.split()
    if words[-1] != managed.name:
        # slurmctld hands only files without a path to a slurmd that has no slurm.conf of its own.
        return f"{site.include.place}: write 'Include {managed.name}', without a directory"
    return None


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


def check(old: Managed, new: Managed, seen: ClusterObservation, leaving: frozenset[str]) -> None:
    """Raise BusyError for a line of a node that has a job, or could get one in this moment.

    Slurm ends the jobs of a node whose line is gone at its next reload (NODE_FAIL), and forgets a
    FUTURE node's at its next start. `leaving` are the nodes whose line goes.
    """
    busy: dict[str, list[str]] = {}
    for job in seen.jobs.values():
        for name in job.nodes if job.holds_nodes else ():
            busy.setdefault(name, []).append(job.id)
    for name in sorted(leaving | _touched(old, new)):
        if name in busy:
            raise BusyError(
                name,
                f"job {', '.join(sorted(busy[name]))} holds it, and would be lost with its line",
                "wait for its end, or drain the node",
            )
        node = seen.nodes.get(name)
        if name in leaving and node is not None and not _closed(node):
            raise BusyError(name, "it takes jobs", "drain it first")


def reset_partition(site: Site, settings: SlurmSettings, *, restart: bool) -> str | None:
    """Say which partition a reload would open or close, or lose: it forgets what scontrol was told of them.

    A reload keeps that with ReconfigFlags=KeepPartState or KeepPartInfo; None: nothing changes.
    """
    kept = not restart and "KeepPart" in settings.raw.get("ReconfigFlags", "")
    written = site.partition_values("State")
    for name, words in () if kept else settings.partitions_raw.items():
        found = written.get(name)
        if found is None:
            return f"partition {name} is not in slurm.conf, and would be gone with the jobs that wait there"
        now, then = words.get("State", ""), (found[1] or "UP").upper()
        if not then.startswith(now):  # Slurm looks only at how the word begins
            return f"partition {name} is {now}, and would be {then} again as {found[0].place} has it"
    return None


def keep_partition(*, restart: bool) -> str:
    """Say what helps where a reload would reset a partition."""
    keep = "" if restart else "; or set ReconfigFlags=KeepPartState"
    return (
        "wait until it is over, write its state into slurm.conf, or say `scontrol reconfigure` if slurm.conf "
        f"is right{keep}"
    )


def not_in_force(pairs: Iterable[tuple[str, str]], settings: SlurmSettings) -> str | None:
    """Name the settings that Slurm does not use, in one sentence; None: it uses all."""
    for key, value in pairs:
        if key == "PrivateData":
            continue  # newer releases show CLOUD nodes anyway and do not know the word
        used = [v for name, v in settings.raw.items() if name.split("[")[0] == key]
        # Slurm writes a time with its unit, and a list in its own order.
        wanted = set(value.split(","))
        if used and not any(wanted <= set(u.split(" ")[0].split(",")) for u in used):
            return f"Slurm uses {key}={','.join(used)} and not {value}"
    return None


def _touched(old: Managed, new: Managed) -> set[str]:
    """Nodes whose line changes in any way but the one that keeps it open."""
    found = set()
    for line in old.nodes:
        after = new.node(line.spec.name)
        opens = after is not None and after.state is LineState.UNKNOWN
        if after is not None and after != line and (after.spec != line.spec or not opens):
            found.add(line.spec.name)
    return found


def _closed(node: Node) -> bool:
    return node.drained or node.base in (NodeBase.FUTURE, NodeBase.DOWN) or "POWERED_DOWN" in node.flags


def programs_gone(managed: Managed) -> str | None:
    """Return which program of a content is not there any more; None: all are.

    slurmctld would not start without it, and a dry start calls no programs.
    """
    for key, value in managed.pairs():
        if value.startswith("/") and not Path(value).exists():
            return f"{key}: there is no program {value} any more"
    return None


def lost(text: str, new: Managed) -> str | None:
    """Say what a file replaced by force may have had that the new one lacks; None: nothing."""
    if "# section: hooks" not in text or new.section("hooks"):
        return None
    return "the hooks stood in the replaced file; run `backfill slurm hooks install`"
