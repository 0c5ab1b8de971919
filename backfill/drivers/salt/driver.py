"""The Provisioner over a Salt master on this machine: a key per generation, strict results."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence

from backfill.core.model.readiness import Stated
from backfill.drivers.salt import results
from backfill.drivers.salt.doubt import doubt
from backfill.drivers.salt.link import Answer, SaltLink
from backfill.drivers.salt.results import rendering_error
from backfill.drivers.salt.stated import PLACE, stated, whole_files
from backfill.ports.errors import DriverError, NotFoundError, RefusedError
from backfill.ports.provider import SeedFile, StateRun

_log = logging.getLogger(__name__)
_KEY_S = 30.0
# How long beyond the states' own time the master may take to say that somebody was silent.
_GRACE_S = 30.0
# What rendering the states of one machine may take, several times what it does.
_RENDER_S = 5.0
_OTHERS = "what ext_pillar or another file server than the master's own roots brings"
# Whoever has more digits is none of ours.
_ID = re.compile(r"(?P<node>.+)\.g(?P<generation>[1-9][0-9]{0,17})")


def minion_id(node: str, generation: int) -> str:
    """Name the minion: a node's next generation is a stranger to the master until enrolled."""
    return f"{node}.g{generation}" if generation else node


def node_of(minion: str) -> tuple[str, int]:
    """Node and generation of a minion; bare metal has its own name and generation 0."""
    found = _ID.fullmatch(minion)
    return (found["node"], int(found["generation"])) if found else (minion, 0)


class SaltProvisioner:
    """See `backfill.ports.provider.Provisioner`. `within_s`: what a run of states may take on one node."""

    def __init__(
        self, python: str, config: str, within_s: float = 120.0, on_event: Callable[[str], None] | None = None
    ) -> None:
        self._within_s = within_s
        self._on_event = on_event
        self._link = SaltLink(python, config, self._heard)

    def warm(self) -> None:
        """Start Salt now, beside everything else: its imports take seconds."""
        self._link.warm()

    def check(self) -> None:
        """DriverError when there is no Salt or master, or no node's states can be made of them.

        Also where the master gives what is a node's to whoever takes its name.
        """
        rendered = self._ask("states", id="nobody", grains=_grains("nobody", "127.0.0.1"), keep=False)
        _listed(rendered)
        if key := rendered["lets_in"]:
            why = f"{key} is set: whoever takes a node's name gets its files and its secrets"
            raise RefusedError(
                "the Salt master", why, f"set {key}: false in its configuration, and restart it"
            )

    def enrol(self, node: str, generation: int, address: str) -> dict[str, SeedFile]:
        """Make a new key, what the node's states would write, and the list of all that they come to.

        So the first run finds nothing to do, and the guest can tell as much before it.
        """
        own = minion_id(node, generation)
        for other in self._minions():
            if node_of(other)[0] == node and other != own:
                self._ask("delete_key", id=other, cut=True)
        grains = _grains(node, address)
        rendered = self._ask("states", id=own, grains=grains)
        listed = _listed(rendered)
        key = self._ask("make_key", id=own)
        pki = "/etc/salt/pki/minion"
        return whole_files(rendered["states"]) | {
            # It holds the text of every file again, also of those that only root may read.
            PLACE: SeedFile(listed),
            "/etc/salt/minion_id": SeedFile(f"{own}\n".encode(), 0o644),
            "/etc/salt/grains": SeedFile(json.dumps(grains).encode() + b"\n", 0o644),
            f"{pki}/minion.pem": SeedFile(key["private"].encode()),
            f"{pki}/minion.pub": SeedFile(key["public"].encode()),
            # The master's key is known from the start: nobody can pose as it at the first boot.
            f"{pki}/minion_master.pub": SeedFile(key["master"].encode()),
        }

    def expel(self, node: str, generation: int) -> None:
        """Forget the key, and throw out whoever still uses it."""
        own = minion_id(node, generation)
        if own in self._minions():
            self._ask("delete_key", id=own, cut=True)

    def enrolled(self) -> dict[str, int]:
        """Nodes with an accepted key."""
        return dict(sorted(node_of(minion) for minion in self._minions()))

    def apply(self, nodes: Sequence[str], test: bool, must_run: Collection[str] = ()) -> dict[str, StateRun]:
        """Run the states on all of these at once, where a look by their minions is not enough."""
        known = self.enrolled()
        for node in nodes:
            if node not in known:
                raise NotFoundError(node, "has no accepted key at the Salt master")
        ids = {minion_id(node, known[node]): node for node in nodes}
        found = self._look({own: node for own, node in ids.items() if node not in must_run})
        rest = {own: node for own, node in ids.items() if node not in found}
        answers = self._call("apply", rest, test=test)
        return found | {
            node: results.state_run(node, answers.get(own), test=test) for own, node in rest.items()
        }

    def stated(self, nodes: Mapping[str, int]) -> dict[str, Stated]:
        """Render the states of these nodes now; bare metal is left out, of which nobody knows."""
        return self._stated({minion_id(node, g): node for node, g in nodes.items()})

    def _stated(self, ids: Mapping[str, str]) -> dict[str, Stated]:
        if not ids:
            return {}
        known = self._link.ask("again", _KEY_S + _RENDER_S * len(ids), ids=list(ids))["answers"]
        return {
            ids[own]: Stated(
                hashlib.sha256(_listed(rendered)).hexdigest(),
                tuple((path, *seal) for path, seal in rendered["seals"].items()),
            )
            for own, rendered in known.items()
        }

    def _look(self, ids: dict[str, str]) -> dict[str, StateRun]:
        """Of which nodes a look is enough: all is as their states say, or nobody is there."""
        try:
            known = self._stated(ids)
        except DriverError:  # states that do not render: the run says what is wrong with them
            return {}
        looked = {own: node for own, node in ids.items() if node in known}
        asked = {
            own: [known[node].listed, {path: seal for path, *seal in known[node].seals}]
            for own, node in looked.items()
        }
        answers = self._call("look", looked, asked=asked)
        runs = {node: results.look(node, answers.get(own)) for own, node in looked.items()}
        return {node: run for node, run in runs.items() if run is not None}

    def _call(self, verb: str, ids: dict[str, str], **arguments: object) -> Answer:
        """Let these minions do something, all at once; nothing for nobody."""
        if not ids:
            return {}
        answers: Answer = self._link.ask(
            verb, self._within_s + _GRACE_S, ids=list(ids), within_s=self._within_s, **arguments
        )["answers"]
        return answers

    def close(self) -> None:
        """End Salt's process."""
        self._link.close()

    def _minions(self) -> list[str]:
        accepted: list[str] = self._ask("keys")["accepted"]
        return accepted

    def _ask(self, verb: str, **arguments: object) -> Answer:
        return self._link.ask(verb, _KEY_S, **arguments)

    def _heard(self, minion: str, problem: str) -> None:
        node = node_of(minion)[0]
        if problem:
            _log.warning("the states of %s failed, see `backfill drift`: %s", node, problem)
        if self._on_event is not None and minion:
            self._on_event(node)


def _grains(node: str, address: str) -> Answer:
    """By what the states know a virtual node from others."""
    own = {"role": "node", "kind": "virtual", "node": node, "address": address.split("/")[0]}
    return {"backfill": own}


def _listed(rendered: Answer) -> bytes:
    """Make the list of what states come to that were rendered at the master."""
    if rendered["errors"]:
        told = "; ".join(rendering_error(e, rendered["folders"]) for e in rendered["errors"])
        raise DriverError(
            "salt",
            f"the states of a node do not render: {told}",
            "mend that, and nodes are made without another word",
        )
    if not rendered["states"]:
        raise DriverError(
            "salt",
            "the top file names no states for a node, whose grain backfill:role is 'node'",
            f"see top.sls in the master's file_roots, {' '.join(rendered['folders'][:1])}",
        )
    why = _OTHERS if rendered["others"] else doubt(rendered["folders"])
    return stated(rendered["states"], why)
