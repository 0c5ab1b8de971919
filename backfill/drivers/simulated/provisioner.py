"""A Provisioner without Salt: keys in a dictionary, nodes that are as one says they are."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Mapping, Sequence

from backfill.core.model.readiness import Stated
from backfill.ports.errors import NotFoundError
from backfill.ports.provider import SeedFile, StateRun


class SimulatedProvisioner:
    """See `backfill.ports.provider.Provisioner`.

    `metal`: nodes that were enrolled by hand. `drifted`: by node the states that do not hold; a run
    puts them right unless the node is `broken` (its states fail) or `silent`.
    """

    def __init__(self, metal: Sequence[str] = ()) -> None:
        self.drifted: dict[str, tuple[tuple[str, str], ...]] = {}
        self.broken: dict[str, str] = {}
        self.silent: set[str] = set()
        self._keys: dict[str, tuple[int, bytes]] = dict.fromkeys(metal, (0, b"metal"))
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def enrol(self, node: str, generation: int, address: str) -> dict[str, SeedFile]:
        """Make a new key; the old one of this node is void."""
        with self._lock:
            key = f"key {next(self._numbers)} of {node}.g{generation}".encode()
            self._keys[node] = (generation, key)
        own = SeedFile(f"{node}\n".encode(), 0o644)
        return {"/etc/salt/pki/minion/minion.pem": SeedFile(key), "/etc/salt/minion_id": own}

    def expel(self, node: str, generation: int) -> None:
        """Drop the key, unless a later generation has one."""
        with self._lock:
            if node in self._keys and self._keys[node][0] == generation:
                del self._keys[node]

    def enrolled(self) -> dict[str, int]:
        """Nodes with a key."""
        return {node: generation for node, (generation, _) in sorted(self._keys.items())}

    def accepts(self, key: bytes) -> bool:
        """Return True if somebody with this key would be heard."""
        return any(known == key for _, known in self._keys.values())

    def stated(self, nodes: Mapping[str, int]) -> dict[str, Stated]:
        """Return a list for each node that has this generation's key."""
        known = self.enrolled()
        return {n: Stated(f"{n}.g{g}") for n, g in nodes.items() if g and known.get(n) == g}

    def apply(self, nodes: Sequence[str], test: bool, must_run: Collection[str] = ()) -> dict[str, StateRun]:
        """Run the states at once: runs take no time, so that nobody looks first."""
        for node in nodes:
            if node not in self._keys:
                raise NotFoundError(node, "has no accepted key")
        return {node: self._run(node, test) for node in nodes}

    def _run(self, node: str, test: bool) -> StateRun:
        if node in self.silent:
            return StateRun(node, answered=False, problem="it did not answer")
        if node in self.broken:
            return StateRun(node, True, self.broken[node])
        changed = self.drifted.get(node, ())
        if not test:
            self.drifted.pop(node, None)
        return StateRun(node, True, "", changed)

    def close(self) -> None:
        """Nothing is held."""
