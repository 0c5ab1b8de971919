"""The lines of slurm.conf and cgroup.conf that backfill needs, put into a text that a site has written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from backfill.core.model.cluster import HOOK_LIMITS, SlurmVersion
from backfill.drivers.slurm.conf.cgroups import heeds_failure, works_without_systemd
from backfill.drivers.slurm.conf.site import ConfLine, Site, SiteError, has_all

BEGIN = "# Added by `backfill setup`; `backfill setup --undo` takes it away."
_LONGEST_TREE = 65533
_TRES_BY_DEFAULT = (23, 11)
SELECT = "select/cons_tres"
_SYSTEMD = re.compile(r"^[ \t]*IgnoreSystemdOnFailure[ \t]*=[ \t]*([^#\s]*)", re.I | re.M)
# Whose saved state is the same (slurm.conf(5), SelectType): from one to the other no job is lost.
_ALIKE = frozenset({SELECT, "select/cons_res"})


@dataclass(frozen=True, slots=True)
class Needs:
    """What slurm.conf has to offer. `max_nodes`: MaxNodeCount; `hook_s`: how long a hook may wait."""

    partition: str
    feature: str
    max_nodes: int
    hook_s: float
    include: str = "backfill.conf"


class _Draft:
    """slurm.conf's own lines as they change, beside those of the files that it includes."""

    def __init__(self, text: str, site: Site) -> None:
        self.site = site
        self.added: list[str] = []
        self._lines: list[str | None] = list(text.removesuffix("\n").split("\n")) if text else []

    def give(self, key: str, value: str) -> None:
        """Change the value that counts where it stands; behind all others where that is an included file."""
        found = self.site.values(key)
        if found and self._owns(found[-1][0]):
            self.change(found[-1][0], key, value)
        else:
            self.added.append(f"{key}={value}")

    def change(self, line: ConfLine, key: str, value: str) -> None:
        """Put a value into a line; SiteError where that stands in an included file."""
        if not self._owns(line):
            raise SiteError(f"{line.place}: {key} must be {value}; change it there and run setup again")
        first = line.number - 1
        whole = self._lines[first]
        if whole is None or line.last > line.number:
            whole = line.text
        words, mark, comment = whole.partition("#")
        pair = re.search(rf"\b{key}[ \t]*=[ \t]*(\"[^\"]*\"|[^\s#]*)", words, re.I)
        if pair is None:
            whole = f"{words.rstrip()} {key}={value}{'  ' if mark else ''}{mark}{comment}"
        else:
            whole = whole[: pair.start(1)] + value + whole[pair.end(1) :]
        self._lines[first : line.last] = [whole, *[None] * (line.last - line.number)]

    def text(self) -> str:
        """Write the whole, with what is added at its end."""
        own = "".join(f"{line}\n" for line in self._lines if line is not None)
        if not self.added:
            return own
        head = "" if BEGIN in own else BEGIN + "\n"
        return own + head + "\n".join(self.added) + "\n"

    def _owns(self, line: ConfLine) -> bool:
        return line.file == self.site.conf


def with_our_lines(text: str, site: Site, needs: Needs) -> str:
    """Return slurm.conf with what is missing; the same text where nothing is. `site`: it as Slurm reads it.

    A value of the site's that does not do is changed where it stands; all else is added at the end, the
    Include last of all. SiteError: a file that it includes has to be changed, and that is the site's.
    """
    draft = _Draft(text, site)
    for key, value in _settings(site, needs).items():
        draft.give(key, value)
    node_set = _node_set(site, needs.feature)
    if node_set is None:
        node_set = "virtual"
        draft.added.append(f"NodeSet={node_set} Feature={needs.feature}")
    partition = site.partition(needs.partition)
    if partition is None:
        draft.added.append(f"PartitionName={needs.partition} Nodes={node_set} PriorityTier=1 State=UP")
    elif not has_all(partition[1]) and node_set not in partition[1]:
        draft.change(partition[0], "Nodes", ",".join([*partition[1], node_set]))
    if site.include is None:
        draft.added.append(f"Include {needs.include}")
    return draft.text()


def _settings(site: Site, needs: Needs) -> Mapping[str, str]:
    """Return the settings whose values do not do, with those that would."""
    wanted: dict[str, str] = {}
    if site.value("SelectType") != SELECT:
        wanted["SelectType"] = SELECT
    if _number(site, "MaxNodeCount", 0) < needs.max_nodes:
        wanted["MaxNodeCount"] = str(needs.max_nodes)
    parameters = [word for word in site.value("SlurmctldParameters").split(",") if word]
    if "enable_configless" not in parameters:
        wanted["SlurmctldParameters"] = ",".join([*parameters, "enable_configless"])
    fixed = {"SlurmdTimeout": "0", "ReturnToService": "2", "TreeWidth": str(_LONGEST_TREE)}
    wanted |= {key: value for key, value in fixed.items() if site.value(key) != value}
    if site.value("JobRequeue") == "0":
        wanted["JobRequeue"] = "1"
    limit_s = int(needs.hook_s) + 2
    wanted |= {key: str(limit_s) for key in HOOK_LIMITS if 0 < _number(site, key, 0) < limit_s}
    return wanted


def select_type(site: Site, version: SlurmVersion) -> str:
    """Return the SelectType of a slurm.conf; without a line, that of the release (its RELEASE_NOTES)."""
    by_default = SELECT if version.major >= _TRES_BY_DEFAULT else "select/linear"
    return site.value("SelectType") or by_default


def jobs_lost(now: str, then: str, jobs: int) -> str:
    """Say what a change of SelectType, by a restart of slurmctld, does to its `jobs`; empty: nothing.

    "All job information (running and pending) will be lost" (slurm.conf(5)). That was not seen on
    22.05 and 24.11; but on 22.05 a slurmd that knows the old one can start neither a job nor a step.
    """
    if not jobs or now == then or {now, then} <= _ALIKE:
        return ""
    who = "1 job runs or waits" if jobs == 1 else f"{jobs} jobs run or wait"
    return (
        f"SelectType would be {then} instead of {now}, and {who}: at that change Slurm may "
        "lose them, or their next steps fail (slurm.conf(5)); let them end, or change SelectType yourself"
    )


def with_cgroups(text: str, version: SlurmVersion) -> str:
    """Return cgroup.conf under which slurmd works in a guest without systemd.

    It stays as it is on a release where that would change what slurmd does on the hosts.
    """
    if works_without_systemd(text, version) or not heeds_failure(version):
        return text
    found = list(_SYSTEMD.finditer(text))
    if found:
        return text[: found[-1].start(1)] + "yes" + text[found[-1].end(1) :]
    return f"{text}{BEGIN}\nIgnoreSystemdOnFailure=yes\n"


def _number(site: Site, key: str, otherwise: int) -> int:
    value = re.match(r"\d+", site.value(key))
    return int(value[0]) if value else otherwise


def _node_set(site: Site, feature: str) -> str | None:
    """Return the site's set of all nodes with the feature, and of no others."""
    sets = ((line, name) for line, name in site.values("NodeSet") if line.value("Nodes") is None)
    return next((name for line, name in sets if line.value("Feature") == feature), None)
