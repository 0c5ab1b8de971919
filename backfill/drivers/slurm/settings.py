"""Reads Slurm's configuration, and names the settings with which we refuse to work."""

from __future__ import annotations

import re
from collections.abc import Iterator

from backfill.core.model.cluster import SlurmSettings, SlurmVersion
from backfill.ports.errors import BadOutputError

OLDEST = (22, 5)


def read_settings(config: str, partitions: str, fixed_nodes: int) -> SlurmSettings:
    """Read settings from the output of `scontrol show config` and `scontrol -o show partition`.

    `fixed_nodes` is how many nodes slurm.conf defines; it is kept as `FixedNodes` in `raw`.
    Raises BadOutputError naming the value that is missing or cannot be read.
    """
    raw = {**dict(_pairs(config)), "FixedNodes": str(fixed_nodes)}
    shown = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in partitions.splitlines()]
    return SlurmSettings(
        version=_version(raw.get("SLURM_VERSION", "")),
        cluster=raw.get("ClusterName", ""),
        slurmd_timeout_s=_number(raw, "SlurmdTimeout"),
        max_node_count=_number(raw, "MaxNodeCount") if "MaxNodeCount" in raw else 0,
        select_type=raw.get("SelectType", ""),
        partitions=tuple(re.findall(r"^PartitionName=(\S+)", partitions, re.MULTILINE)),
        prolog_slurmctld=_all_of(raw, "PrologSlurmctld"),
        prolog=_all_of(raw, "Prolog"),
        raw=raw,
        partitions_raw={words["PartitionName"]: words for words in shown if "PartitionName" in words},
    )


def slurm_uid(settings: SlurmSettings) -> int | None:
    """Read the number of SlurmUser, as whom slurmctld runs its hooks; None where it is not told.

    `scontrol show config` says `slurm(64030)`.
    """
    match = re.search(r"\((\d+)\)$", settings.raw.get("SlurmUser", ""))
    return int(match[1]) if match is not None else None


def slurm_users(config: str) -> frozenset[str]:
    """Read the names as which SlurmUser signs in the output of `scontrol show config`.

    Empty where it is root, who may be anybody with the right to change nodes, or is not told.
    """
    match = re.search(r"^SlurmUser\s*=\s*([^\s(]+)(?:\((\d+)\))?\s*$", config, re.MULTILINE)
    if match is None or "0" in match.groups() or match[1] == "root":
        return frozenset()
    return frozenset(filter(None, match.groups()))


def check_settings(settings: SlurmSettings, longest_pause_s: float, method: str = "dynamic") -> list[str]:
    """Every reason why we must not work with this Slurm, one sentence each; empty when all is well.

    `longest_pause_s` is the longest time for which the policy lets a node stand still, `method`
    how our nodes come to be known to Slurm.
    """
    checks = _CHECKS + {"dynamic": _FOR_DYNAMIC, "cloud": _FOR_CLOUD}.get(method, ())
    return [sentence for check in checks for sentence in check(settings, longest_pause_s)]


def _old_version(settings: SlurmSettings, longest_pause_s: float) -> Iterator[str]:
    if settings.version.major < OLDEST:
        yield (
            f"Slurm {settings.version} cannot add nodes while it runs; 22.05 is the oldest release "
            "that we support"
        )


def _wrong_select(settings: SlurmSettings, longest_pause_s: float) -> Iterator[str]:
    if settings.select_type != "select/cons_tres":
        yield (
            f"SelectType is {settings.select_type or 'not set'}, and Slurm adds nodes only with "
            "select/cons_tres; set SelectType=select/cons_tres in slurm.conf and restart slurmctld"
        )


def _no_room_for_nodes(settings: SlurmSettings, longest_pause_s: float) -> Iterator[str]:
    # Where MaxNodeCount is not set, Slurm shows as many as slurm.conf defines.
    fixed = int(settings.raw.get("FixedNodes", "0"))
    if settings.max_node_count <= fixed:
        yield (
            f"MaxNodeCount is {settings.max_node_count} or not set, so Slurm has no room for nodes "
            f"beside the {fixed} of slurm.conf; set MaxNodeCount in slurm.conf to these plus all "
            "virtual ones and restart slurmctld"
        )


def _short_timeout(settings: SlurmSettings, longest_pause_s: float) -> Iterator[str]:
    if 0 < settings.slurmd_timeout_s < longest_pause_s:
        yield (
            f"SlurmdTimeout is {settings.slurmd_timeout_s} s and the policy pauses for up to "
            f"{longest_pause_s:g} s, so Slurm would call paused nodes dead and requeue their jobs; "
            "set SlurmdTimeout=0 in slurm.conf, or shorten the pauses in the policy"
        )


def _stays_down(settings: SlurmSettings, longest_pause_s: float) -> Iterator[str]:
    if settings.raw.get("ReturnToService", "") not in ("2", ""):
        yield (
            f"ReturnToService is {settings.raw['ReturnToService']}, so a CLOUD node that was put "
            "away would stay DOWN when it comes back; set ReturnToService=2 in slurm.conf"
        )


_CHECKS = (_old_version, _short_timeout)
_FOR_DYNAMIC = (_wrong_select, _no_room_for_nodes)
_FOR_CLOUD = (_stays_down,)


def _pairs(config: str) -> Iterator[tuple[str, str]]:
    """Keys and values, `(null)` as an empty text; later sections do not hide the first."""
    seen = set()
    for line in config.split("\n"):
        key, equals, value = (part.strip() for part in line.partition("="))
        if equals and key not in seen:
            seen.add(key)
            yield key, "" if value == "(null)" else value


def _version(text: str) -> SlurmVersion:
    match = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    if match is None:
        raise BadOutputError("scontrol", f"cannot read Slurm's version '{text}'")
    year, month, patch = (int(part or 0) for part in match.groups())
    return SlurmVersion(year, month, patch)


def _number(raw: dict[str, str], key: str) -> int:
    match = re.match(r"\d+", raw.get(key, ""))
    if match is None:
        raise BadOutputError("scontrol", f"cannot read {key}='{raw.get(key, '')}'")
    return int(match[0])


def _all_of(raw: dict[str, str], key: str) -> str:
    """Return the value of `Key`, or those of `Key[0]`, `Key[1]`, ... joined by commas (newer)."""
    return ",".join(value for name, value in raw.items() if name.split("[")[0] == key and value)
