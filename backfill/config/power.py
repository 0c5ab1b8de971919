"""Slurm's own power saving: which nodes it would switch off, because they look idle to it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import inf

from backfill.core.model.cluster import Node, SlurmSettings
from backfill.core.model.quantities import fold_hostlist, parse_hostlist

# Since then a count belongs to the one word before it, and a word may be a node set.
_COUNTS_ONE_WORD = (23, 2)
# As good as never. `registration: cloud` writes that into our own file.
_YEAR_S = 365 * 86400
_COUNTED = re.compile(r"((?:\[[^\]]*\]|[^:\[])+)(?::(\d+))?,?")
_COUNTED_WORD = re.compile(r"((?:\[[^\]]*\]|[^:,\[])+)(?::(\d+))?,?")


def switched_off(settings: SlurmSettings, known: Collection[str], nodes: Iterable[Node]) -> dict[str, str]:
    """Return those of `nodes` that Slurm does not let stay on, each with the setting that says so.

    The longest SuspendTime of a node's partitions counts, and the cluster's where none has one. With
    PowerDownOnIdle each job switches its nodes off at its end, whatever is excepted (power_save.c and
    node_mgr.c of slurmctld). `known`: the names of all nodes. Where SuspendExcNodes may name a node set,
    of which nobody tells us the nodes, it is believed to be right; see `doubted`.
    """
    return {name: how for name, how, sets in _looked_at(settings, known, nodes) if not sets}


def doubted(settings: SlurmSettings, known: Collection[str], nodes: Iterable[Node]) -> str:
    """Say of hosts that Slurm would switch off if words of SuspendExcNodes are no node sets of theirs."""
    found = [(name, how, sets) for name, how, sets in _looked_at(settings, known, nodes) if sets]
    if not found:
        return ""
    _, how, sets = found[0]
    names = fold_hostlist(name for name, _, _ in found)
    return (
        f"Slurm switches off {names} under running instances ({how}) unless {' or '.join(sets)} of "
        f"SuspendExcNodes, which is no node, is a node set with {names}; otherwise add {names} there"
    )


def _looked_at(
    settings: SlurmSettings, known: Collection[str], nodes: Iterable[Node]
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield what is switched off, by which setting, and unless it is in one of which node sets."""
    if not (settings.raw.get("SuspendProgram") and settings.raw.get("ResumeProgram")):
        return  # without both Slurm saves no power
    names, sets, parts = _excepted(settings, known)
    for node in nodes:
        in_parts = {part: settings.partitions_raw.get(part, {}) for part in node.partitions}
        after_s = _after_s(settings, in_parts.values())
        at_once = [part for part, words in in_parts.items() if words.get("PowerDownOnIdle") == "YES"]
        if at_once:
            yield node.name, f"PowerDownOnIdle=YES of partition {at_once[0]}", ()
        elif after_s < _YEAR_S and node.name not in names and not parts & in_parts.keys():
            yield node.name, f"SuspendTime={after_s:.0f}", sets


def of_hosts(off: Mapping[str, str]) -> str:
    """Say of hosts that Slurm would switch off, and what keeps them on. `off`: as of `switched_off`."""
    how, names = _first(off)
    told = f"Slurm switches off {names} under running instances, as it is idle to Slurm ({how})"
    return f"{told}; {_instead(how) or f'add {names} to SuspendExcNodes in slurm.conf'}"


def of_ours(off: Mapping[str, str], low: Iterable[str]) -> str:
    """Say the same of our own nodes, which `low` partitions have."""
    how, names = _first(off)
    remedy = _instead(how) or f"write SuspendTime=INFINITE at partition {' and '.join(low)} in slurm.conf"
    told = f"Slurm would power down {names} whenever idle ({how}), by a program that knows no instances"
    return f"{told}; {remedy}"


def _first(off: Mapping[str, str]) -> tuple[str, str]:
    how = next(iter(off.values()))
    return how, fold_hostlist(name for name, why in off.items() if why == how)


def _instead(how: str) -> str:
    key, of, partition = how.partition("=YES of ")
    return f"take {key} from {partition} in slurm.conf" if of else ""


def _after_s(settings: SlurmSettings, parts: Iterable[Mapping[str, str]]) -> float:
    own = [words["SuspendTime"] for words in parts if words.get("SuspendTime", "GLOBAL") != "GLOBAL"]
    return max(map(_seconds, own or [settings.raw.get("SuspendTime", "")]))


def _seconds(text: str) -> float:
    number = re.match(r"\d+", text)
    return float(number[0]) if number else inf


def _excepted(
    settings: SlurmSettings, known: Collection[str]
) -> tuple[set[str], tuple[str, ...], frozenset[str]]:
    """Return the nodes, the words that may be node sets, and the partitions, that stay on though idle."""
    parts = frozenset(settings.raw.get("SuspendExcParts", "").split(","))
    text, modern = settings.raw.get("SuspendExcNodes", ""), settings.version.major >= _COUNTS_ONE_WORD
    found: set[str] = set()
    sets = []
    for group, count in (_COUNTED_WORD if modern else _COUNTED).findall(text):
        names = _names(group)
        if modern and names == (group,) and group not in known:
            sets.append(group)
        elif not count or int(count) >= len(names):
            found.update(names)
    return found, tuple(sets), parts


def _names(text: str) -> tuple[str, ...]:
    try:
        return parse_hostlist(text)
    except ValueError:
        return (text,)
