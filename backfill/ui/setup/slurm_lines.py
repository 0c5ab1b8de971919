"""The lines of slurm.conf and cgroup.conf that backfill needs, put into a text that a site has written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from backfill.core.model.cluster import SlurmVersion

BEGIN = "# Added by `backfill setup`; `backfill setup --undo` takes it away."
_LONGEST_TREE = 65533
_TRES_BY_DEFAULT = (23, 11)
_SELECT = "select/cons_tres"
# Whose saved state is the same (slurm.conf(5), SelectType): from one to the other no job is lost.
_ALIKE = frozenset({_SELECT, "select/cons_res"})


@dataclass(frozen=True, slots=True)
class Needs:
    """What slurm.conf has to offer. `max_nodes`: MaxNodeCount; `hook_s`: how long a hook may wait."""

    partition: str
    feature: str
    max_nodes: int
    hook_s: float
    include: str = "backfill.conf"


def with_our_lines(text: str, needs: Needs) -> str:
    """Return slurm.conf with what is missing; the same text where nothing is.

    A value of the site's that does not do is changed where it stands; all else is added at the end,
    the Include last of all.
    """
    text = text if text.endswith("\n") or not text else text + "\n"
    added = []
    for key, value in _settings(text, needs).items():
        changed = _set(text, key, value)
        if changed is None:
            added.append(f"{key}={value}")
        else:
            text = changed
    node_set = _node_set(text, needs.feature)
    if node_set is None:
        node_set = "virtual"
        added.append(f"NodeSet={node_set} Feature={needs.feature}")
    partition = re.search(rf"^\s*PartitionName={re.escape(needs.partition)}\b.*$", text, re.I | re.M)
    if partition is None:
        added.append(f"PartitionName={needs.partition} Nodes={node_set} PriorityTier=1 State=UP")
    elif not re.search(rf"\bNodes=(\S+,)?{re.escape(node_set)}(,|\s|$)", partition[0], re.I):
        text = text.replace(partition[0], _join_nodes(partition[0], node_set))
    if not re.search(rf"^\s*Include\s+\S*{re.escape(needs.include)}\s*$", text, re.I | re.M):
        added.append(f"Include {needs.include}")
    if not added:
        return text
    head = "" if BEGIN in text else BEGIN + "\n"
    return text + head + "\n".join(added) + "\n"


def _settings(text: str, needs: Needs) -> Mapping[str, str]:
    """Return the settings whose values do not do, with those that would."""
    wanted: dict[str, str] = {}
    if _value(text, "SelectType") != _SELECT:
        wanted["SelectType"] = _SELECT
    if _number(text, "MaxNodeCount", 0) < needs.max_nodes:
        wanted["MaxNodeCount"] = str(needs.max_nodes)
    parameters = [word for word in _value(text, "SlurmctldParameters").split(",") if word]
    if "enable_configless" not in parameters:
        wanted["SlurmctldParameters"] = ",".join([*parameters, "enable_configless"])
    fixed = {"SlurmdTimeout": "0", "ReturnToService": "2", "TreeWidth": str(_LONGEST_TREE)}
    wanted |= {key: value for key, value in fixed.items() if _value(text, key) != value}
    if _value(text, "JobRequeue") == "0":
        wanted["JobRequeue"] = "1"
    limit_s = int(needs.hook_s) + 2
    if 0 < _number(text, "PrologEpilogTimeout", 0) < limit_s:
        wanted["PrologEpilogTimeout"] = str(limit_s)
    return wanted


def select_type(text: str, version: SlurmVersion) -> str:
    """Return the SelectType of a slurm.conf; without a line, that of the release (its RELEASE_NOTES)."""
    return _value(text, "SelectType") or (_SELECT if version.major >= _TRES_BY_DEFAULT else "select/linear")


def jobs_lost(now: str, then: str, jobs: int) -> str:
    """Say what a change of SelectType, by a restart of slurmctld, does to its `jobs`; empty: nothing.

    "All job information (running and pending) will be lost" (slurm.conf(5)). That was not seen on
    22.05 and 24.11; but on 22.05 a slurmd that knows the old one can start neither a job nor a step.
    """
    if not jobs or now == then or {now, then} <= _ALIKE:
        return ""
    return (
        f"SelectType would be {then} instead of {now}, and {jobs} jobs run or wait: at that change Slurm may "
        "lose them, or their next steps fail (slurm.conf(5)); let them end, or change SelectType yourself"
    )


def with_cgroups(text: str) -> str:
    """Return cgroup.conf under which slurmd works in a guest without systemd."""
    changed = _set(text, "IgnoreSystemdOnFailure", "yes")
    if _value(text, "IgnoreSystemdOnFailure").casefold() == "yes":
        return text
    return changed if changed is not None else f"{text}{BEGIN}\nIgnoreSystemdOnFailure=yes\n"


def _pattern(key: str) -> re.Pattern[str]:
    return re.compile(rf"^(\s*{key}\s*=\s*)([^#\s]*)", re.I | re.M)


def _value(text: str, key: str) -> str:
    """Return the value that counts, the last one."""
    found = _pattern(key).findall(text)
    return str(found[-1][1]) if found else ""


def _number(text: str, key: str, otherwise: int) -> int:
    value = re.match(r"\d+", _value(text, key))
    return int(value[0]) if value else otherwise


def _set(text: str, key: str, value: str) -> str | None:
    """Change the value that counts; None where the text has none."""
    found = list(_pattern(key).finditer(text))
    if not found:
        return None
    start, end = found[-1].span(2)
    return text[:start] + value + text[end:]


def _node_set(text: str, feature: str) -> str | None:
    found = re.search(rf"^\s*NodeSet=(\S+)\s+Feature={re.escape(feature)}\s*(#.*)?$", text, re.I | re.M)
    return found[1] if found else None


def _join_nodes(line: str, node_set: str) -> str:
    """Let a partition that the site has take our nodes, too."""
    nodes = re.search(r"\bNodes=(\S*)", line, re.I)
    if nodes is None:
        return f"{line} Nodes={node_set}"
    joined = ",".join(filter(None, [nodes[1], node_set]))
    return line[: nodes.start()] + f"Nodes={joined}" + line[nodes.end() :]
