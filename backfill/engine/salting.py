"""Runs Salt's states on nodes, or tells what they would change: a look into the guests saves most runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict

from backfill.engine.checkpoint_desk import UnknownNameError
from backfill.ports.provider import Provisioner, StateRun

# Looks into guests: what differs, by node; empty: nothing; absent: it cannot look there.
Look = Callable[[Sequence[str]], Mapping[str, str]]
Runs = dict[str, StateRun]


class Salting:
    """A provisioner, and somebody who can look into the guests. Every call blocks, for minutes."""

    def __init__(self, salt: Provisioner, look: Look) -> None:
        self._salt, self._look = salt, look

    def drift(self) -> Runs:
        """Tell what is not as it should be, of all nodes with a key: nothing is changed by asking."""
        nodes = list(self._salt.enrolled())
        return self._apply(nodes, True, self._look(nodes))

    def provision(self, nodes: Sequence[str], *, force: bool) -> Runs:
        """Run the states where they do not hold; once more where they failed or nobody answered.

        `force`: also where a look shows that they hold. UnknownNameError for a node without a key.
        """
        seen = dict.fromkeys(nodes, "it is forced") if force else self._look(nodes)
        rest = [node for node in nodes if seen.get(node) != ""]
        known = self._salt.enrolled() if rest else {}
        for node in rest:
            if node not in known:
                raise UnknownNameError("node with a key at the Salt master", node, known)
        runs = self._apply(nodes, False, seen)
        again = [node for node, run in runs.items() if not run.ok]
        return runs | self._salt.apply(again, test=False) if again else runs

    def _apply(self, nodes: Sequence[str], test: bool, seen: Mapping[str, str]) -> Runs:
        """Return runs for all but those that were seen to be as they should."""
        same = {n: StateRun(n, answered=True, looked=True) for n in nodes if seen.get(n) == ""}
        rest = [node for node in nodes if node not in same]
        return same | (self._salt.apply(rest, test, must_run=seen) if rest else {})


def runs_told(runs: Runs) -> list[dict[str, object]]:
    """Return runs as plain data, in order of their nodes."""
    return [{**asdict(run), "ok": run.ok} for _, run in sorted(runs.items())]
