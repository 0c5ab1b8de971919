"""Reads a scenario file, and names every mistake with its line and the remedy."""

from __future__ import annotations

import os
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import yaml

from backfill.config import rules
from backfill.config.files import read_keys, read_text
from backfill.config.problems import ConfigError
from backfill.config.reader import BAD, Reader
from backfill.config.shapes import Amount, Hostlist, Key, Many, Named, Section, Shape, Text, root, section
from backfill.core.policy import PolicySet
from backfill.drivers.simulated.costs import StepCosts
from backfill.sim.scenario import (
    Expectation,
    FaultEntry,
    HostGroup,
    JobEntry,
    PaperFigure,
    ReservationEntry,
    Scenario,
)
from backfill.sim.scenario_rules import contradictions

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
    """The keys of the file; what a class holds is reflected from it, as in a policy file."""
    return Section(
        dict,
        (
            Key("name", Text(), MISSING),
            Key("about", Text(may_be_empty=True), ""),
            Key("limit_s", Amount(unit="s"), 0.0),
            Key("count_every_s", Amount(unit="s"), 0.0),
            Key("hosts", Many(_with(HostGroup, "names", Hostlist())), MISSING),
            Key("policy", Section(dict, _policy_keys()), MISSING),
            Key("costs", Section(dict, _cost_keys()), ()),
            Key("variants", Named(Section(dict, _cost_keys())), ()),
            Key("paper", Many(section(PaperFigure)), ()),
            Key("seed", Amount(whole=True, open=False), 0),
            Key("jobs", Many(_with(JobEntry, "nodes", Hostlist())), MISSING),
            reservations_key(),
            Key("faults", Many(section(FaultEntry)), ()),
            Key("expect", Many(section(Expectation)), ()),
        ),
    )


def reservations_key() -> Key:
    """`reservations:`, in a scenario and in a file of its own."""
    return Key("reservations", Many(_with(ReservationEntry, "nodes", Hostlist())), ())


def _with(make: type[Any], name: str, shape: Shape) -> Section:
    """A reflected class, one key of which its type does not tell enough about."""
    found = section(make)
    keys = (replace(key, shape=shape) if key.name == name else key for key in found.keys)
    return replace(found, keys=tuple(keys))


def _policy_keys() -> tuple[Key, ...]:
    of_policy = {f.name for f in fields(PolicySet)} - _NOT_IN_POLICY
    return tuple(key for key in root().keys if key.name in of_policy)


def _cost_keys() -> tuple[Key, ...]:
    """Durations of steps. A rate per MB is none, and stays as it was measured."""
    return tuple(key for key in section(StepCosts).keys if not key.name.endswith("_per_mb"))
