"""Reads a scenario file, and names every mistake and contradiction with its line and the remedy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import yaml

from backfill.config import rules
from backfill.config.files import read_keys, read_text
from backfill.config.problems import ConfigError
from backfill.config.reader import BAD, Reader
from backfill.config.shapes import Amount, Hostlist, Key, Many, Named, Section, Text, root, section
from backfill.core.policy import PolicySet
from backfill.drivers.simulated.costs import StepCosts
from backfill.sim.replay.costs import MAY_FAIL
from backfill.sim.replay.fitting import MisfitError
from backfill.sim.replay.reservation_file import (
    Contradiction,
    reservation_mistakes,
    reservations_key,
    with_shape,
)
from backfill.sim.scenarios.scenario import (
    Assertion,
    Expectation,
    FaultEntry,
    HostGroup,
    JobEntry,
    Mishap,
    PaperFigure,
    PayloadsEntry,
    Scenario,
    When,
)

# What every scenario has its own way of saying.
_NOT_IN_POLICY = frozenset({"cluster", "hosts"})


def load_scenario(path: str | os.PathLike[str]) -> Scenario:
    """Read and check the whole file. Raises ConfigError with every problem; changes nothing."""
    reader = Reader(os.fspath(path))
    text = read_text(reader, Path(path), "scenario")
    scenario = None if text is None else _scenario(reader, text)
    if reader.problems or scenario is None:
        raise ConfigError(sorted(reader.problems, key=lambda p: (p.line, p.column)))
    return scenario


def under(scenario: Scenario, policies: PolicySet, name: str) -> Scenario:
    """Return the scenario with these rules on its own hosts; MisfitError where they do not fit it."""
    own = scenario.policies
    if not policies.priorities.high:
        policies = replace(policies, priorities=replace(policies.priorities, high=own.priorities.high))
    found = replace(scenario, policies=replace(policies, cluster=own.cluster, hosts=own.hosts))
    for path, what, remedy in contradictions(found):
        raise MisfitError(f"{name} does not fit the scenario: its {path} {what}; {remedy}")
    return found


def _scenario(reader: Reader, text: str) -> Scenario | None:
    tree = read_keys(reader, text, "scenario", "give name, hosts and jobs")
    if tree is None:
        return None
    found = reader.keys(_shape(), tree, "")
    policy = found.get("policy", BAD)
    given = {key.name: key.default for key in _policy_keys() if not key.required}
    for finding in rules.findings({**given, **({} if policy is BAD else policy)}):
        reader.note(None, f"policy.{finding.path}", finding.what, finding.remedy)
    if reader.problems:
        return None
    scenario = _assemble(found, yaml.safe_load(text)["policy"])
    for path, what, remedy in contradictions(scenario):
        reader.note(None, path, what, remedy)
    return None if reader.problems else scenario


def _assemble(found: dict[str, Any], policy_keys: dict[str, Any]) -> Scenario:
    values = dict(found)
    hosts: tuple[HostGroup, ...] = values["hosts"]
    names = tuple(name for group in hosts for name in group.names)
    policies = PolicySet(cluster="scenario", hosts=names, **values.pop("policy"))
    given = values.pop("costs", {})
    costs = StepCosts(**given)
    named = dict(values.pop("variants", {}))
    values["variants"] = {name: StepCosts(**{**given, **own}) for name, own in named.items()}
    return Scenario(policies=policies, costs=costs, policy_keys=policy_keys, **values)


# --- shapes --------------------------------------------------------------------------------------


def _shape() -> Section:
    """Return the keys of the file; what a class holds is reflected from it, as in a policy file."""
    return Section(
        dict,
        (
            Key("name", Text(), MISSING),
            Key("about", Text(may_be_empty=True), ""),
            Key("limit_s", Amount(unit="s"), 0.0),
            Key("count_every_s", Amount(unit="s"), 0.0),
            Key("poll_s", Amount(unit="s"), 0.0),
            Key("hosts", Many(with_shape(HostGroup, "names", Hostlist())), MISSING),
            Key("policy", Section(dict, _policy_keys()), MISSING),
            Key("costs", Section(dict, _cost_keys()), ()),
            Key("variants", Named(Section(dict, _cost_keys())), ()),
            Key("paper", Many(section(PaperFigure)), ()),
            Key("seed", Amount(whole=True, open=False), 0),
            Key("jobs", Many(_job()), MISSING),
            Key("payloads", section(PayloadsEntry), None),
            reservations_key(),
            Key("faults", Many(section(FaultEntry)), ()),
            Key("expect", Many(section(Expectation)), ()),
        ),
    )


def _job() -> Section:
    found = with_shape(JobEntry, "nodes", Hostlist())
    keys = (replace(key, shape=Hostlist()) if key.name == "each_of" else key for key in found.keys)
    return replace(found, keys=tuple(keys))


def _policy_keys() -> tuple[Key, ...]:
    of_policy = {f.name for f in fields(PolicySet)} - _NOT_IN_POLICY
    return tuple(key for key in root().keys if key.name in of_policy)


def _cost_keys() -> tuple[Key, ...]:
    """Durations of steps. A rate per MB is none, and stays as it was measured."""
    return tuple(key for key in section(StepCosts).keys if not key.name.endswith("_per_mb"))


# Every look at a play looks at every job.
MOST_JOBS = 10_000
# The fields that an assertion cannot do without.
_NEEDS = {
    Assertion.WAITED_LONGER: ("job", "than"),
    Assertion.BEGAN_WITHIN: ("job",),
    Assertion.MOVED: ("job", "to"),
    Assertion.PUSHED_ASIDE: ("job", "by"),
    Assertion.NEVER_STOPPED: ("job",),
    Assertion.RESTARTED_AT_MOST: ("job",),
}
# Those that it can do without.
_MAY_HAVE = {
    Assertion.WAITED_LONGER: ("within_s", "times"),
    Assertion.BEGAN_WITHIN: ("within_s",),
    Assertion.RESTARTED_AT_MOST: ("times",),
    Assertion.PAYLOADS_KEPT: ("percent",),
}
_FAULT_NEEDS = {
    Mishap.SLURM_SILENT: ("for_s",),
    Mishap.HOST_CUT: ("host", "for_s"),
    Mishap.HOST_DEAD: ("host", "for_s"),
    Mishap.CALL_FAILS: ("call",),
    Mishap.NEVER_BOOTS: ("node",),
    Mishap.INSTANCES_UNSEEN: ("host",),
    Mishap.FILES_OUT: ("for_s",),
    Mishap.CLOCK_SET: ("by_s",),
}


def contradictions(scenario: Scenario) -> Iterator[Contradiction]:
    """Everything in which the scenario contradicts itself."""
    yield from _hosts(scenario)
    if sum(entry.copies * max(1, len(entry.each_of)) for entry in scenario.jobs) > MOST_JOBS:
        yield "jobs", f"makes more than {MOST_JOBS} jobs", "play so many as a trace"
        return
    names: set[str] = set()
    for index, entry in enumerate(scenario.jobs):
        path = f"jobs[{index}]"
        # Copies have numbers behind their name, and are all meant by it.
        for name in dict.fromkeys((entry.name, *entry.all_names)):
            if name in names:
                yield f"{path}.name", f"makes a second job called {name}", "call it otherwise"
            names.add(name)
        yield from _length(entry, path)
        yield from _place(scenario, entry, path)
        yield from _moments(scenario, entry, path)
    yield from _circles(scenario)
    yield from _payloads(scenario)
    yield from reservation_mistakes(scenario.reservations, scenario.host_names)
    for index, fault in enumerate(scenario.faults):
        yield from _fault(scenario, fault, f"faults[{index}]")
    yield from _paper(scenario)
    yield from _counters(scenario)
    for index, expectation in enumerate(scenario.expect):
        yield from _expectation(scenario, expectation, f"expect[{index}]")


def _hosts(scenario: Scenario) -> Iterator[Contradiction]:
    seen: set[str] = set()
    for index, group in enumerate(scenario.hosts):
        for name in group.names:
            if name in seen:
                yield f"hosts[{index}].names", f"names {name} twice", "name it once"
            if name in scenario.policies.instances.names:
                what = f"has {name}, which policy.instances.names has too"
                yield f"hosts[{index}].names", what, "give instances names of their own"
            seen.add(name)
    if not seen:
        yield "hosts", "is empty", "give at least one host"
        return
    for key in ("cpus", "memory_mb"):
        wanted, most = getattr(scenario.policies.instances.flavour, key), _most(scenario, key)
        if wanted > most:
            what = f"is {wanted}, but no host has more than {most}"
            yield f"policy.instances.flavour.{key}", what, "lower it, or raise it in the hosts"


def _payloads(scenario: Scenario) -> Iterator[Contradiction]:
    entry, sent = scenario.payloads, scenario.policies.supply
    if entry is None:
        if sent.on:
            yield "policy.supply", "sends pilots, but there are no payloads", "add payloads, or leave it out"
        return
    if not sent.on:
        yield "payloads", "are there, but nobody sends pilots", "add policy.supply, or leave them out"
    if entry.run_most_s and entry.run_most_s < entry.run_s:
        yield "payloads.run_most_s", "is less than run_s", "give both in order"
    if entry.copies > MOST_JOBS:
        yield "payloads.copies", f"is more than {MOST_JOBS}", "let fewer wait"


def _paper(scenario: Scenario) -> Iterator[Contradiction]:
    known = ", ".join(scenario.variants) or "none"
    for index, figure in enumerate(scenario.paper):
        for key, name in (("variant", figure.variant), ("against", figure.against)):
            if name and name not in scenario.variants:
                what = f"is {name}, which variants does not have"
                yield f"paper[{index}].{key}", what, f"variants there: {known}"


def _length(entry: JobEntry, path: str) -> Iterator[Contradiction]:
    if entry.run_most_s and not 0 < entry.run_s <= entry.run_most_s:
        yield f"{path}.run_most_s", "is less than run_s, or there is no run_s", "give both in order"
    if entry.spread and (entry.run_most_s or not entry.run_s):
        yield f"{path}.spread", "needs run_s, the median, and says nothing beside run_most_s", "give one"
    if entry.limit_s and entry.limit_s < max(entry.run_s, entry.run_most_s):
        yield f"{path}.limit_s", "is less than it runs", "Slurm would end it; raise it"
    given = [
        name
        for name, value in (("run_s", entry.run_s), ("count", entry.count), ("ends", entry.ends))
        if value
    ]
    if len(given) != 1:
        what = f"has {' and '.join(given)}" if given else "does not say how long it runs"
        yield path, what, "give one of run_s, count and ends"


def _place(scenario: Scenario, entry: JobEntry, path: str) -> Iterator[Contradiction]:
    low, high = scenario.policies.priorities.low, scenario.policies.priorities.high
    if entry.partition not in (*low, *high):
        what = f"is {entry.partition}, which is in neither list of policy.priorities"
        yield f"{path}.partition", what, f"use {' or '.join((*low, *high))}"
        return
    grid = entry.partition in low
    known = scenario.policies.instances.names if grid else scenario.host_names
    kind = "instance" if grid else "host"
    for key, nodes in (("nodes", entry.nodes), ("each_of", entry.each_of)):
        for node in nodes:
            if node not in known:
                yield f"{path}.{key}", f"has {node}, which is no {kind}", f"use names of {kind}s"
    if entry.nodes and entry.each_of:
        yield f"{path}.each_of", "contradicts nodes", "leave one of them out"
    flavour = scenario.policies.instances.flavour
    where = "an instance" if grid else "a host"
    raising = "policy.instances.flavour" if grid else "the hosts"
    # An instance keeps some of its memory for itself.
    has = {"cpus": flavour.cpus, "memory_mb": flavour.node_memory_mb} if grid else {}
    for key, unit in (("cpus", "CPUs"), ("memory_mb", "MB")):
        most = has[key] if grid else _most(scenario, key)
        if getattr(entry, key) > most:
            what = f"is {getattr(entry, key)}, but {where} has {most} {unit} at most"
            yield f"{path}.{key}", what, f"lower it, or raise it in {raising}"


def _most(scenario: Scenario, key: str) -> int:
    return max((getattr(group, key) for group in scenario.hosts), default=0)


def _moments(scenario: Scenario, entry: JobEntry, path: str) -> Iterator[Contradiction]:
    for key, moment in (("when", entry.when), ("ends", entry.ends)):
        if moment is not None and moment.job == entry.name:
            yield f"{path}.{key}.job", "is the job itself", "wait for another one"
        else:
            yield from _moment(scenario, moment, f"{path}.{key}")


def _moment(scenario: Scenario, moment: When | None, path: str) -> Iterator[Contradiction]:
    known = [job.name for job in scenario.jobs]
    if moment is not None and moment.job not in known:
        what = f"is {moment.job}, which is no job of this scenario"
        yield f"{path}.job", what, f"use one of {', '.join(known)}"


def _fault(scenario: Scenario, fault: FaultEntry, path: str) -> Iterator[Contradiction]:
    yield from _moment(scenario, fault.when, f"{path}.when")
    for key in _FAULT_NEEDS.get(fault.what, ()):
        if not getattr(fault, key):
            yield f"{path}.{key}", f"is missing for {fault.what}", "add it"
    names = {
        "host": (fault.host, scenario.host_names, "host"),
        "node": (fault.node, scenario.policies.instances.names, "instance"),
        "call": (fault.call, MAY_FAIL, "call that can fail"),
    }
    for key, (name, known, kind) in names.items():
        if name and name not in known:
            remedy = f"use one of {', '.join(known)}"
            yield f"{path}.{key}", f"is {name}, which is no {kind}", remedy


def _circles(scenario: Scenario) -> Iterator[Contradiction]:
    """Yield jobs that are submitted after one another, each waiting for the next, never begin."""
    after = {e.name: e.when.job for e in scenario.jobs if e.when is not None}
    for index, entry in enumerate(scenario.jobs):
        seen, at = [entry.name], after.get(entry.name)
        while at is not None and at not in seen:
            seen.append(at)
            at = after.get(at)
        if at == entry.name and len(seen) > 1:
            what = f"closes a circle: {' waits for '.join([*seen, entry.name])}"
            yield f"jobs[{index}].when.job", what, "let one of them begin by itself"
            return


def _counters(scenario: Scenario) -> Iterator[Contradiction]:
    """Counters of which there are none would always be whole."""
    if any(entry.count for entry in scenario.jobs):
        return
    for index, expectation in enumerate(scenario.expect):
        if expectation.check is Assertion.COUNTERS_WHOLE:
            what = f"is {expectation.check}, but no job counts"
            yield f"expect[{index}].check", what, "give one a count, or leave it out"


def _expectation(scenario: Scenario, expectation: Expectation, path: str) -> Iterator[Contradiction]:
    known = [job.name for job in scenario.jobs]
    needed = _NEEDS.get(expectation.check, ())
    for key in needed:
        if not getattr(expectation, key):
            yield f"{path}.{key}", f"is missing for {expectation.check}", "add it"
    useful = ("check", *needed, *_MAY_HAVE.get(expectation.check, ()))
    for given in fields(expectation):
        if given.name not in useful and getattr(expectation, given.name) != given.default:
            yield f"{path}.{given.name}", f"means nothing for {expectation.check}", "leave it out"
    for key in ("job", "than"):
        name = getattr(expectation, key)
        if name and name not in known:
            what = f"is {name}, which is no job of this scenario"
            yield f"{path}.{key}", what, f"use one of {', '.join(known)}"
    if expectation.to and expectation.to not in scenario.host_names:
        what = f"is {expectation.to}, which is no host"
        yield f"{path}.to", what, f"use one of {', '.join(scenario.host_names)}"
