"""Which names of the policy file a new instance may have."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from backfill.core.model.lifecycle import Phase
from backfill.core.picture import Picture
from backfill.core.policy import PolicySet
from backfill.core.queue import Touched

# Whose records may not keep the name from being used anew.
_MAY_BE_FREE = (Phase.FAILED, Phase.GIVEN_UP, Phase.REMOVING)


class Names:
    """The names that the policy file has for instances, without those that are plainly in use."""

    def __init__(self, policies: PolicySet) -> None:
        template = policies.instances
        self.policies = policies
        self.names = Touched(template.names)
        self._pairs = list(zip(template.names, template.addresses, strict=True))
        self._place = {name: place for place, name in enumerate(template.names)}
        self._open: list[int] = []  # places of those that may be free, in order
        self._strays: set[str] = set()
        self._meant: dict[tuple[str, str], frozenset[str]] = {}  # by image and network

    def forget(self) -> None:
        """Anything may have changed."""
        self.names.touched.update(self._place)

    def meant_for(self, image: str, network: str) -> frozenset[str]:
        """Return all names that instances of an image in a network may have, in use or not."""
        kind = image, network
        if kind not in self._meant:
            reserved = self.policies.name_reserved
            self._meant[kind] = frozenset(name for name in self._place if not reserved(name, image, network))
        return self._meant[kind]

    def free(self, world: Picture) -> Iterator[tuple[str, str]]:
        """Yield names that may be free, with their addresses, in the order of the policy file: those
        that are in no use, and those of nodes that have failed or are just being removed."""
        self._refresh(world)
        return (self._pairs[place] for place in self._open)

    def strays(self, world: Picture) -> set[str]:
        """Return names of Slurm's nodes that no record of ours has."""
        self._refresh(world)
        return self._strays

    def _refresh(self, world: Picture) -> None:
        if not self.names.touched:
            return
        for place in sorted(self._place[name] for name in self.names.taken() & self._place.keys()):
            name = self._pairs[place][0]
            node, there = world.managed.get(name), name in world.nodes
            at = bisect_left(self._open, place)
            was = at < len(self._open) and self._open[at] == place
            may = not there if node is None else node.phase in _MAY_BE_FREE
            if may and not was:
                self._open.insert(at, place)
            elif was and not may:
                del self._open[at]
            (self._strays.add if node is None and there else self._strays.discard)(name)


def names_of(world: Picture, policies: PolicySet) -> Names:
    """Return the names of these policies, as far as they may be free."""
    names = world.queue.free_names
    if names is None or names.policies is not policies:
        names = world.queue.free_names = Names(policies)
    return names
