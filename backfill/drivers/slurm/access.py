"""Nodes that only some may have: a reservation for each, which slurmctld itself enforces.

A magnetic reservation takes in the jobs of those whom it names without a word of theirs, and keeps
every other job off its nodes, whatever partition, node or constraint that asks for (measured on
22.05, 24.11 and 26.05).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from backfill.ports.errors import BusyError, DriverError, NotFoundError, RefusedError

PREFIX = "backfill-only-"
# One reservation asks for user and account at once; two on one node mean either, but 26.05 then
# lets nobody in.
_ACCOUNTS = "-accounts"
_NAMED = re.compile(r"^ReservationName=(\S+) .*?\bNodes=(\S*)")
_EITHER_UNTIL = (24, 11)


@dataclass(frozen=True, slots=True)
class Access:
    """The users, and the accounts whose members, may have the nodes with a feature."""

    feature: str
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()


class ReservationTools(Protocol):
    """The calls of the driver that this needs."""

    def scontrol(self, subject: str, *argv: str) -> None:
        """Run scontrol."""

    def reservation_lines(self) -> list[str]:
        """Return all reservations as scontrol prints them, one a line."""

    def version(self) -> tuple[int, int]:
        """Return Slurm's release, such as (24, 11)."""


class AccessRules:
    """Makes and removes the reservations. All calls are idempotent and raise DriverError only."""

    def __init__(self, rules: Sequence[Access] = ()) -> None:
        self._rules = tuple(rules)

    def of(self, features: Iterable[str]) -> Access | None:
        """Return who may have a node with these features; None: everybody."""
        offered = set(features)
        return next((rule for rule in self._rules if rule.feature in offered), None)

    def keep(self, tools: ReservationTools, name: str, features: Iterable[str]) -> None:
        """Keep the node for those who may have it, before it is opened to jobs.

        RefusedError: Slurm does not do so, and the node must stay closed.
        """
        rule = self.of(features)
        kept = set[str]()
        if rule is not None and rule.users and rule.accounts and tools.version() > _EITHER_UNTIL:
            what = "this release of Slurm cannot keep a node for users and accounts at the same time"
            raise RefusedError(name, what, f"let {rule.feature} name users only, or accounts only")
        if rule is not None:
            first = reservation_of(rule.feature, name)
            who = {first: f"Users={','.join(rule.users)}"} if rule.users else {}
            if rule.accounts:
                who[first + _ACCOUNTS if rule.users else first] = f"Accounts={','.join(rule.accounts)}"
            for reservation, whose in who.items():
                _reserve(tools, name, reservation, whose)
            kept.update(who)
        if self._rules:
            release(tools, name, kept)  # it may have been another image's

    def release(self, tools: ReservationTools, name: str) -> None:
        """Take the node's reservation away, which would outlive it on 22.05."""
        if self._rules:
            release(tools, name)


def reservation_of(feature: str, name: str) -> str:
    """Return the name of a node's reservation; job_submit.lua reads from it whose the node is."""
    return f"{PREFIX}{feature}-{name}"


def release(tools: ReservationTools, name: str, kept: Collection[str] = ()) -> bool:
    """Take away all reservations of ours that the node has, but for those `kept`; True: any.

    BusyError while a job of it is there.
    """
    found = _of_node(tools, name) - set(kept)
    for reservation in sorted(found):
        with contextlib.suppress(NotFoundError):
            _run(tools, name, "delete", f"ReservationName={reservation}")
    return bool(found)


def nodes_of(line: str) -> tuple[str, str]:
    """Return a reservation's name and its nodes, a hostlist or "(null)", from a line of scontrol's."""
    found = _NAMED.match(line)
    return (found[1], found[2]) if found else ("", "")


def _of_node(tools: ReservationTools, name: str) -> set[str]:
    """Return our reservations of the node; where Slurm has forgotten their node, by their names.

    A name alone does not tell: that of big-vn1 ends as that of vn1 does.
    """
    ends = (f"-{name}", f"-{name}{_ACCOUNTS}")
    named = map(nodes_of, tools.reservation_lines())
    ours = ((one, nodes) for one, nodes in named if one.startswith(PREFIX) and one.endswith(ends))
    return {one for one, nodes in ours if nodes in (name, "", "(null)")}


def _reserve(tools: ReservationTools, name: str, reservation: str, who: str) -> None:
    """Let the reservation name those who may now; make it where there is none."""
    named = (f"ReservationName={reservation}", who, f"Nodes={name}")
    try:
        _run(tools, name, "update", *named)
    except NotFoundError:
        flags = "Flags=MAGNETIC,IGNORE_JOBS,OVERLAP"
        _run(tools, name, "create", "reservation", *named, "StartTime=now", "Duration=UNLIMITED", flags)


def reservation_call(tools: ReservationTools, subject: str, *argv: str) -> None:
    """Change a reservation. NotFoundError: there is none; BusyError: a job of it is there."""
    try:
        tools.scontrol(subject, *argv)
    except DriverError as error:
        said = str(error)
        if "eservation is invalid" in said:
            raise NotFoundError(subject, "Slurm has no such reservation") from error
        if "eservation is in use" in said or "eservation is being used" in said:
            raise BusyError(subject, "a job of its reservation is still there") from error
        raise


def _run(tools: ReservationTools, name: str, *argv: str) -> None:
    try:
        reservation_call(tools, name, *argv)
    except (NotFoundError, BusyError):
        raise
    except DriverError as error:
        said = str(error)
        if argv[0] != "delete" and ("Invalid" in said or "Unspecified" in said):
            what = f"Slurm does not keep it for those who alone may have it ({error})"
            remedy = "see that slurmctld's machine knows the users of its environment, and Slurm the accounts"
            raise RefusedError(name, what, remedy) from error
        raise
