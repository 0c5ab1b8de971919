"""Checks of Slurm: who may command it, its settings, partitions, hosts' nodes, and copies of slurm.conf."""

from __future__ import annotations

import re
from collections.abc import Iterator

from backfill.config.model import HookPlaceKind
from backfill.core.model.cluster import NodeBase
from backfill.core.model.fleet import Rung
from backfill.core.model.quantities import parse_hostlist
from backfill.drivers.slurm.conf.cgroups import heeds_failure, works_without_systemd
from backfill.drivers.slurm.conf.site import ConfLine, has_all
from backfill.ui.doctor.facts import Facts, HostFacts, SlurmFacts
from backfill.ui.doctor.findings import Defect, Finding, Grade

# The hook that Slurm kills is late by Slurm's own second.
_SLACK_S = 1.0
_FLAT = 65533
_HELD = frozenset({"DRAIN", "FAIL", "MAINTENANCE", "RESERVED"})
_ASLEEP = frozenset({"POWER_DOWN", "POWERING_DOWN", "POWERED_DOWN", "POWERING_UP"})


def slurm_answers(facts: Facts) -> Iterator[Finding]:
    """Slurm's tools work for the daemon's user, who is believed."""
    if facts.slurm is None:
        problem, _, remedy = facts.slurm_problem.rpartition("; ")
        look = "systemctl status slurmctld tells whether it runs"
        mend = f"{remedy}; {look}" if problem else look
        yield Finding(Defect.SLURM_SILENT, "slurmctld", problem or facts.slurm_problem, mend)
        return
    admin = facts.slurm.admin
    if facts.who.uid not in (0, admin):
        yield Finding(
            Defect.NOT_ALLOWED,
            facts.who.name,
            f"the daemon's user is {facts.who.name} (uid {facts.who.uid}), and SlurmUser is "
            + (f"uid {admin}" if admin is not None else "not told by scontrol"),
            "write `User=` SlurmUser's name into a drop-in: systemctl edit backfill",
        )


def fits_the_file(facts: Facts) -> Iterator[Finding]:
    """Policy file and cluster do not contradict each other."""
    if facts.slurm is None:
        return
    for sentence in facts.slurm.conflicts:
        yield _as_told(Defect.POLICY_CONFLICT, facts, sentence, Grade.FAULT)
    for sentence in facts.slurm.hints:
        yield _as_told(Defect.POLICY_HINT, facts, sentence, Grade.ADVICE)


def _as_told(defect: Defect, facts: Facts, sentence: str, grade: Grade) -> Finding:
    what, found, remedy = sentence.partition("; ")
    return Finding(defect, str(facts.config.source), what, remedy if found else "", grade)


def settings(facts: Facts) -> Iterator[Finding]:
    """Check the settings of slurm.conf that the daemon itself does not refuse to do without."""
    if facts.slurm is None:
        return
    raw = facts.slurm.settings.raw
    if "enable_configless" not in raw.get("SlurmctldParameters", ""):
        yield _conf(
            Defect.NOT_CONFIGLESS,
            "SlurmctldParameters has no enable_configless",
            "write SlurmctldParameters=enable_configless into slurm.conf; scontrol reconfigure",
        )
    back = raw.get("ReturnToService", "2")
    if back != "2":
        yield _conf(
            Defect.RETURN_TO_SERVICE,
            f"ReturnToService is {back}",
            "write ReturnToService=2 into slurm.conf; scontrol reconfigure",
            Grade.ADVICE,
        )
    width = re.match(r"\d+", raw.get("TreeWidth", ""))
    fixed = len(facts.slurm.nodes)
    if width and int(width[0]) < min(_FLAT, fixed + len(facts.config.policies.instances.names)):
        yield _conf(
            Defect.TREE_WIDTH,
            f"TreeWidth is {width[0]}",
            f"write TreeWidth={_FLAT} into slurm.conf; scontrol reconfigure",
            Grade.ADVICE,
        )
    yield from _timeouts(facts, facts.slurm)


def _timeouts(facts: Facts, slurm: SlurmFacts) -> Iterator[Finding]:
    policies = facts.config.policies
    raw = slurm.settings.raw
    held_s = policies.answer_within_s + facts.config.slurm.hooks.margin_s + _SLACK_S
    limit = slurm.settings.hook_limit
    if limit and policies.answer_within_s < limit[1] < held_s:  # a shorter one contradicts the file
        yield _conf(
            Defect.PROLOG_TIMEOUT,
            f"{limit[0]} is {limit[1]} s, and a hook may wait for {held_s - _SLACK_S:g} s",
            f"write {limit[0]}={int(held_s) + 1} into slurm.conf; scontrol reconfigure",
        )
    requeues = any(rule.rung is Rung.REQUEUE for rule in policies.ladder.rungs)
    if requeues and raw.get("JobRequeue", "1") == "0":
        yield _conf(
            Defect.NO_REQUEUE,
            "JobRequeue is 0, and the ladder has the rung requeue",
            "write JobRequeue=1 into slurm.conf; scontrol reconfigure",
        )


def _conf(defect: Defect, what: str, mend: str, grade: Grade = Grade.FAULT) -> Finding:
    return Finding(defect, "slurm.conf", what, mend, grade)


def guests_cgroups(facts: Facts) -> Iterator[Finding]:
    """Check that a guest without systemd can do what ProctrackType asks of its slurmd."""
    if facts.slurm is None or "proctrack/cgroup" not in facts.slurm.settings.raw.get("ProctrackType", ""):
        return
    conf, version = facts.slurm.conf, facts.slurm.settings.version
    seen = "slurm.conf" in conf and "cgroup.conf" not in facts.slurm.closed
    if not seen or works_without_systemd(conf.get("cgroup.conf", ""), version):
        return
    bare = sorted(name for name, image in facts.images.items() if image.systemd is False)
    if bare:
        yield Finding(
            Defect.GUEST_CGROUPS,
            "cgroup.conf",
            f"ProctrackType is proctrack/cgroup, and image {', '.join(bare)} has no systemd",
            "write IgnoreSystemdOnFailure=yes into cgroup.conf; scontrol reconfigure"
            if heeds_failure(version)
            else "build an image with systemd (--profile site), or write IgnoreSystemd=yes into cgroup.conf, "
            "which counts on the hosts, too; scontrol reconfigure",
        )


def partitions(facts: Facts) -> Iterator[Finding]:
    """Partitions for low-priority jobs have our nodes, and start jobs."""
    if facts.slurm is None:
        return
    policies = facts.config.policies
    for name in policies.priorities.low:
        partition = facts.slurm.partitions.get(name)
        if partition is None:
            continue  # the file contradicts the cluster, which is told already
        if not _has_ours(facts, facts.slurm, name):
            feature = (policies.instances.features or ("backfill",))[0]
            yield Finding(
                Defect.PARTITION_EMPTY,
                name,
                f"partition {name} has neither a node set by the feature {feature} nor our nodes' names",
                f"write NodeSet=virtual Feature={feature} into slurm.conf, and Nodes=virtual at the "
                f"partition; scontrol reconfigure",
            )
        if partition.get("State", "UP") != "UP":
            yield Finding(
                Defect.PARTITION_CLOSED,
                name,
                f"partition {name} is {partition['State']}",
                f"scontrol update PartitionName={name} State=UP",
                Grade.ADVICE,
            )


def _has_ours(facts: Facts, slurm: SlurmFacts, name: str) -> bool:
    """Return True if a partition has our nodes, or will have them; also where nobody can tell."""
    shown = slurm.partitions[name]
    sets = [word for word in shown.get("NodeSets", "").split(",") if word]
    nodes = shown.get("Nodes", "")
    if has_all(sets) or has_all([nodes]) or _overlap(nodes, facts):
        return True
    if slurm.site is None:
        return bool(sets)
    written = slurm.site.partition(name)
    if written is not None and has_all(written[1]):  # releases before 24.11 show the nodes that there are
        return True
    return any(_means_ours(line, facts) for line, value in slurm.site.values("NodeSet") if value in sets)


def _means_ours(node_set: ConfLine, facts: Facts) -> bool:
    features = {feature.casefold() for feature in facts.config.policies.instances.features}
    nodes = node_set.value("Nodes") or ""
    return (
        (node_set.value("Feature") or "").casefold() in features or has_all([nodes]) or _overlap(nodes, facts)
    )


def _overlap(nodes: str, facts: Facts) -> bool:
    try:
        return bool(set(parse_hostlist(nodes)) & set(facts.config.policies.instances.names))
    except ValueError:
        return False


def host_nodes(facts: Facts) -> Iterator[Finding]:
    """Check that the hosts' own Slurm nodes answer and are open."""
    if facts.slurm is None:
        return
    for host in facts.config.hosts:
        node = facts.slurm.nodes.get(host.node or "")
        if node is None:
            continue
        if node.base is NodeBase.UNKNOWN:
            what = f"{node.name} has not registered since slurmctld was started"
            mend = f"wait a moment, or systemctl status slurmd on {node.name}"
            yield Finding(Defect.HOST_NODE, node.name, what, mend, Grade.UNKNOWN)
            continue
        if node.flags & _ASLEEP and node.base is not NodeBase.DOWN:
            what = f"Slurm shows {node.name} as {node.state_text}: its power saving has switched it off"
            mend = f"scontrol update NodeName={node.name} State=POWER_UP, when it shall carry instances"
            yield Finding(Defect.HOST_NODE, node.name, what, mend, Grade.ADVICE)
            continue
        dead = node.base is NodeBase.DOWN or not (node.responding or node.flags & _HELD)
        if dead or node.flags & _HELD:
            reason = f" ({node.reason})" if node.reason else ""
            yield Finding(
                Defect.HOST_NODE,
                node.name,
                f"Slurm shows {node.name} as {node.state_text}{reason}",
                f"systemctl status slurmd munge on {node.name}, then scontrol update "
                f"NodeName={node.name} State=RESUME"
                if dead
                else f"scontrol update NodeName={node.name} State=RESUME, when it may work again",
                Grade.FAULT if dead else Grade.ADVICE,
            )


def copies(facts: Facts) -> Iterator[Finding]:
    """slurm.conf, what it includes and cgroup.conf are on the hosts what they are here."""
    if facts.slurm is None:
        return
    slurm, include = facts.slurm, facts.config.slurm.include
    if slurm.included is False and include in slurm.conf:
        yield Finding(
            Defect.INCLUDE_ABSENT,
            facts.config.slurm.conf,
            f"{facts.config.slurm.conf} does not include {include}, which lies beside it",
            # The file's last line may have no end.
            f"printf '\\nInclude {include}\\n' >>{facts.config.slurm.conf}; scontrol reconfigure",
        )
    if others := slurm.settings.controllers[1:]:
        folder = str(facts.config.slurm.conf).rpartition("/")[0]
        yield Finding(
            Defect.OTHER_CONTROLLER,
            ", ".join(others),
            f"SlurmctldHost also names {', '.join(others)}, whose files are not seen from here",
            f"have {folder} and {facts.config.slurm.hooks.directory} alike on all controllers, or shared",
            Grade.ADVICE,
        )
    for host in facts.hosts:
        yield from _copies_on(facts, slurm, host)


def _copies_on(facts: Facts, slurm: SlurmFacts, host: HostFacts) -> Iterator[Finding]:
    place = str(facts.config.slurm.conf).rpartition("/")[0]
    folder = host.inspection.folders.get(place) if host.inspection is not None else None
    if folder is None or "slurm.conf" not in folder.files:
        return  # it has no copy: a configless slurmd
    for name, text in sorted(slurm.conf.items()):
        there = folder.texts.get(name)
        needed = name != facts.config.slurm.include or slurm.included
        mend = f"copy {place}/{name} to {host.name}; systemctl restart slurmd there"
        if there is None and needed and name == facts.config.slurm.include:
            what = f"{place}/slurm.conf includes {name}, which is not there on {host.name}"
            yield Finding(Defect.INCLUDE_MISSING, host.name, what, mend)
        elif there is not None and _meaning(there) != _meaning(text):
            what = f"{place}/{name} on {host.name} is not what it is here"
            yield Finding(Defect.CONF_DIFFERS, host.name, what, mend)


def _meaning(text: str) -> list[str]:
    """Return the lines that count."""
    lines = (re.sub(r"(?<!\\)#.*", "", line).strip() for line in text.splitlines())
    return [line for line in lines if line]


def hooks(facts: Facts) -> Iterator[Finding]:
    """Check that a hook that slurm.conf names is heard by the daemon, or by one like it."""
    if facts.slurm is None:
        return
    on_host = facts.config.slurm.hooks.place is HookPlaceKind.HOST
    key = "Prolog" if on_host else "PrologSlurmctld"
    policy = facts.config.source
    if not (facts.slurm.settings.prolog if on_host else facts.slurm.settings.prolog_slurmctld):
        yield Finding(
            Defect.HOOK_MISSING,
            "slurm.conf",
            f"{key} is not set",
            f"backfill slurm hooks install --config {policy}",
        )
    elif facts.hooks is not None:
        for sentence in facts.hooks.problems:
            what, found, remedy = sentence.rpartition("; ")
            yield Finding(Defect.HOOK_BROKEN, key, what if found else sentence, remedy if found else "")
    if facts.hooks_unknown:
        yield Finding(
            Defect.HOOK_BROKEN,
            key,
            facts.hooks_unknown,
            "systemctl start backfill, then backfill doctor again",
            Grade.UNKNOWN,
        )


def options(facts: Facts) -> Iterator[Finding]:
    """Where jobs may have machines of their own, users have the options, from a plugin that works."""
    found = facts.options
    grades = {found.lack: Grade.ADVICE} if found.lack else dict.fromkeys(found.problems, Grade.FAULT)
    for sentence, grade in grades.items():
        what, _, remedy = sentence.rpartition("; ")
        yield Finding(Defect.OPTIONS, "sbatch", what or sentence, remedy if what else "", grade)
