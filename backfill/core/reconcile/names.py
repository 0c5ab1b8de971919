"""Which names a new instance may have: those that are free, and those whose boot failed, after a while.

A name that failed too often is given up, and no other is begun until somebody has proven himself or it
has rested: then a single boot shows whether the site is well. Once it is, the names come back one by
one. Who fails again and again while others work is to blame himself, and stays given up. Where instances
of one image fail alone, or of one device, it is that: others are tried before those, and need not wait.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf

from backfill.core.model.lifecycle import OVER, ManagedNode, Phase, Retry
from backfill.core.model.refusals import Code, Goal, Words, because
from backfill.core.picture import Picture
from backfill.core.policy import PolicySet
from backfill.core.queue import Touched
from backfill.core.reconcile.builder import PlanBuilder, once_a_look
from backfill.core.tables import Making, making

_LONGEST_REST_S = 3600.0  # unless the breakers of readiness rest for longer


# --- when a boot has failed ----------------------------------------------------------------------


def note_failure(builder: PlanBuilder, node: ManagedNode) -> None:
    """Nothing is left outside of a node that has failed: count it, and say when its name is tried again."""
    scale = builder.policies.scale
    failures, blamed = node.retry.failures + 1, node.retry.blamed
    if failures >= scale.give_up_after:
        if node.retry.cleared and not _doubtful(builder):
            blamed += 1  # others work: the name is to blame itself
        reason = f"given up after {failures} failures: {node.reason}"
        _become(builder, node, Phase.GIVEN_UP, reason, Retry(failures, blamed=blamed))
        return
    wait_s = scale.backoff_s(failures)
    reason = f"failure {failures} of {scale.give_up_after}, next try in {wait_s:.0f} s: {node.reason}"
    retry = Retry(failures, not_before_s=builder.now_s + wait_s, blamed=blamed)
    _become(builder, node, Phase.FAILED, reason, retry)


def _become(builder: PlanBuilder, node: ManagedNode, phase: Phase, reason: str, retry: Retry) -> None:
    builder.become(node, phase, reason, held=(), stop=None, check=None, order=None, retry=retry)


def _proven_s(builder: PlanBuilder) -> float:
    """Return when a boot last came to its end; 0 where none has.

    What comes back from a pause or from disk shows nothing of whether boots do.
    """
    return max(builder.world.fleet.booted.values(), default=0.0)


def keep_failed_name(builder: PlanBuilder, node: ManagedNode, reason: str) -> None:
    """Free a name that was given up for an order, which goes: whoever has another one takes that first.

    What an order's users ask for may be to blame. So it is never given up here, its next user begins to
    count anew, and no wait for that keeps others from beginning.
    """
    kept = replace(node, fleet="", job="", inside=False)
    _become(builder, kept, Phase.FAILED, reason, Retry(blamed=node.retry.blamed))


def _failed_for_an_order(node: ManagedNode) -> bool:
    return node.phase is Phase.FAILED and node.retry.not_before_s is None


# --- names for new instances ---------------------------------------------------------------------


def free_slot(
    builder: PlanBuilder, image: str, kind: Making, what: Goal, about: str
) -> tuple[str, str, Retry] | None:
    """Find a name that nothing uses, inside Slurm or outside, with its address and what counts of its past.

    None: there is none, or none is to be used now; why is refused.
    """
    spared = _others_fail(builder, kind)
    all_fail = _doubtful(builder)
    doubtful, fleet = [*all_fail, *_unproven(builder, kind)], builder.world.fleet
    # A kind that fails while others work waits for tries of its own alone.
    trying = fleet.count_in(Phase.BOOTING) if all_fail else fleet.booting.get(kind, 0)
    if doubtful and _rests(builder, doubtful, trying=trying, spared=spared):
        return None  # the other names would only fail as well
    last = None
    for name, address, node in _names(builder, image):
        if node is not None and not spared and _warns(builder, node):
            return None
        if _is_used(builder, name, node) or not (node is None or _may_be_tried(builder, node)):
            continue
        if node is None or not _failed_for_an_order(node):
            return name, address, _past(builder, node, kind)
        last = last or (name, address, node)
    if last is not None:
        return *last[:2], _past(builder, last[2], kind)
    if (slot := _last_resort(builder, image, kind, doubtful)) is None:
        builder.refuse("cluster", what, because(Code.NO_NAME), about)
    return slot


def _may_be_tried(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if a name that has failed is to be used now; one that was given up rests, and says so."""
    again_s = tried_again_s(builder, node)
    builder.wake_at(again_s)
    if builder.now_s < again_s < inf:
        _refuse(builder, node)
    return builder.now_s >= again_s


def _past(builder: PlanBuilder, node: ManagedNode | None, kind: Making) -> Retry:
    """Return what counts of a name's past with its next try.

    That tells of the name only if the same kind has booted under others since.
    """
    if node is None:
        return Retry()
    cleared = node.retry.cleared and builder.world.fleet.booted.get(kind, 0.0) >= node.since_s
    return Retry(node.retry.failures, cleared=cleared, blamed=node.retry.blamed)


def _last_resort(
    builder: PlanBuilder, image: str, kind: Making, doubtful: list[ManagedNode]
) -> tuple[str, str, Retry] | None:
    """Return the name that was given up first, where no other is left to show whether the site is well."""
    found = [
        (node.since_s, name, address, node)
        for name, address, node in (_names(builder, image) if doubtful else ())
        if node in doubtful and not _is_used(builder, name, node)
    ]
    if not found:
        return None
    _, name, address, node = min(found, key=lambda one: one[:2])
    return name, address, _past(builder, node, kind)


def _names(builder: PlanBuilder, image: str) -> Iterator[tuple[str, str, ManagedNode | None]]:
    """Yield names that may be free for an instance of this image, their addresses, and their records."""
    for name, address in names_of(builder.world, builder.policies).free(builder.world):
        node = builder.world.managed.get(name)
        # A fleet tries its members again by itself, or undoes everything.
        if not builder.policies.name_reserved(name, image) and not (node is not None and node.fleet):
            yield name, address, node


def _is_used(builder: PlanBuilder, name: str, node: ManagedNode | None) -> bool:
    """Return True if something of this name is on a host, or in Slurm, which forgets failed ones late."""
    return bool(builder.world.places_of(name)) or (node is None and name in builder.world.nodes)


def look_at_given_up(builder: PlanBuilder) -> bool:
    """Say of which names a person has to free them, whether an instance is wanted now or not.

    True: of some it is noted that others have proven themselves since, and the next step goes on.
    """
    if _clear_names(builder):
        return True
    for node in _given_up(builder):
        if _hopeless(builder, node):
            _refuse(builder, node)
    return False


def _clear_names(builder: PlanBuilder) -> bool:
    """Note of names that were given up that others have proven themselves since; True: there were some.

    It is in their records, because those who have are removed one day, and their proof with them.
    """
    uncleared = [node for node in _given_up(builder) if not node.retry.cleared]
    proven_s = _proven_s(builder) if uncleared else 0.0
    found = [node for node in uncleared if node.since_s <= proven_s]
    for node in found:
        retry = replace(node.retry, cleared=True)
        builder.become(node, node.phase, node.reason, "others have become ready since", retry=retry)
    return bool(found)


def _hopeless(builder: PlanBuilder, node: ManagedNode) -> bool:
    return node.phase is Phase.GIVEN_UP and builder.policies.scale.hopeless(node.retry.blamed)


@once_a_look
def _given_up(builder: PlanBuilder) -> Sequence[ManagedNode]:
    """Return the names that were given up, the first of them first; a fleet's go with their fleet."""
    world = builder.world
    found = (world.managed[name] for name in world.fleet.in_phase(Phase.GIVEN_UP))
    return sorted((node for node in found if not node.fleet), key=lambda node: (node.since_s, node.name))


@once_a_look
def _doubtful(builder: PlanBuilder) -> Sequence[ManagedNode]:
    """Return those that were given up since somebody last proved himself, and not by their own fault."""
    given_up = _given_up(builder)
    return [node for node in given_up if not node.retry.cleared and not _hopeless(builder, node)]


@once_a_look
def _cleared(builder: PlanBuilder) -> Mapping[Making, Sequence[ManagedNode]]:
    """Return by their kind those that were given up before others proved themselves."""
    found: dict[Making, list[ManagedNode]] = {}
    for node in _given_up(builder):
        if node.retry.cleared and not _hopeless(builder, node):
            found.setdefault(making(node), []).append(node)
    return found


def _unproven(builder: PlanBuilder, kind: Making) -> list[ManagedNode]:
    """Return those given up whose kind has not booted since, while others have: it is to blame, not they."""
    booted_s, proven_s = builder.world.fleet.booted.get(kind, 0.0), _proven_s(builder)
    return [node for node in _cleared(builder).get(kind, ()) if booted_s < node.since_s <= proven_s]


@once_a_look
def failing(builder: PlanBuilder) -> Mapping[Making, float]:
    """Return which kinds of instances have failed since any came out of its boot, and when they last did."""
    found = dict[Making, float]()
    for name in builder.world.fleet.in_phase(Phase.REMOVING, *OVER):
        node = builder.world.managed[name]
        if _has_failed(builder, node):
            found[making(node)] = max(node.since_s, found.get(making(node), 0.0))
    return found


def _has_failed(builder: PlanBuilder, node: ManagedNode) -> bool:
    if node.fleet:
        return False
    if node.phase is Phase.GIVEN_UP:
        return not node.retry.cleared and not _hopeless(builder, node)
    if (until_s := _warns_until_s(builder, node)) is None:
        return False
    builder.wake_at(until_s)
    if node.phase is Phase.FAILED and node.since_s > _proven_s(builder):
        until_s += builder.policies.readiness.rest_s  # it would have been tried again by then
        builder.wake_at(until_s)
    return builder.now_s < until_s


def _others_fail(builder: PlanBuilder, kind: Making) -> bool:
    """Return True if the instances of one other kind fail alone: that says nothing about this one."""
    kinds = failing(builder)
    return len(kinds) == 1 and kind not in kinds


def _rests(builder: PlanBuilder, doubtful: list[ManagedNode], *, trying: int, spared: bool) -> bool:
    """Return True if it is too early for another try, or one is under way: some are `trying`.

    It rests for as long as the trouble has lasted so far, within bounds; a person who has freed a name
    since then does not wait, nor does who is `spared` since only others have failed.
    """
    doubtful = sorted(doubtful, key=lambda node: (node.since_s, node.name))
    first, last, rest_s = doubtful[0], doubtful[-1], builder.policies.readiness.rest_s
    if builder.world.freed_s > last.since_s:
        return False
    over_s = last.since_s + max(rest_s, min(last.since_s - first.since_s, _LONGEST_REST_S))
    builder.wake_at(over_s)
    if (spared or builder.now_s >= over_s) and not trying:
        return False
    _refuse(builder, last)
    return True


def tried_again_s(builder: PlanBuilder, node: ManagedNode) -> float:
    """Return when a name that has failed may be used again; infinite: once others work, or a person acts.

    One that was given up rests first; each failure of its own makes the rest twice as long.
    """
    if node.phase is Phase.FAILED:
        return node.retry.not_before_s or 0.0
    if node.phase is not Phase.GIVEN_UP or not node.retry.cleared or _hopeless(builder, node):
        return inf
    rest_s = builder.policies.readiness.rest_s
    again_s = rest_s * 2.0 ** min(node.retry.blamed, 30)
    return node.since_s + max(rest_s, min(again_s, _LONGEST_REST_S))


def _warns(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if this node has just failed so that nothing should be begun now under any name."""
    until_s = _warns_until_s(builder, node)
    if until_s is None or builder.now_s >= until_s:
        return False
    builder.wake_at(until_s)
    _refuse(builder, node)
    return True


def _warns_until_s(builder: PlanBuilder, node: ManagedNode) -> float | None:
    """Return until when a node that has failed warns of beginning others; None: it has not failed.

    What cannot be cleared away, such as what its hypervisor will not delete, warns for no longer.
    """
    if _boot_just_failed(builder, node):
        return node.since_s + builder.policies.scale.backoff_s(node.retry.failures + 1)
    return node.retry.not_before_s if node.phase is Phase.FAILED else None


def _boot_just_failed(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if a boot has failed and is being cleared away, on a host where that can succeed."""
    host = builder.world.hosts.get(node.host)
    clearing = node.phase is Phase.REMOVING and node.fail and node.proof.proven_s is None
    return clearing and host is not None and host.reachable


def _refuse(builder: PlanBuilder, node: ManagedNode) -> None:
    said = node.reason
    if _hopeless(builder, node):
        said += f"; others work meanwhile, so that only `backfill retry {node.name}` frees its name"
    builder.refuse(node.name, Goal.RETRY, because(Code.FAILED_BEFORE, said=Words(said)))


# --- which names are free -------------------------------------------------------------------------


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
