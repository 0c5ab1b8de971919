"""What the managed file should contain for a way of registering and a list of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from backfill.drivers.slurm.conf.managed import LineState, Managed, NodeLine
from backfill.drivers.slurm.conf.site import Site
from backfill.ports.errors import RefusedError
from backfill.ports.workload import NodeSpec

CLOUD_SECTION = "cloud"
# INFINITE would switch power saving off altogether; nodes are put away by us, not for idling.
_NEVER_S = 365 * 86400
# A node that never exists. Slurm refuses a job at once whose constraint no node's line has.
FEATURES_NODE = "backfill-features"


class Method(StrEnum):
    """How our nodes come to be known to Slurm."""

    DYNAMIC = "dynamic"
    CONF = "conf"
    CLOUD = "cloud"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What `apply` is to bring about. `poke` is the program that Slurm calls for CLOUD nodes.

    `known_by` is a node of the shape of ours, which never comes, with all features that jobs may
    ask for before any node has them; None where there are none.
    """

    method: Method
    specs: Sequence[NodeSpec]
    poke: str
    boot_within_s: float
    known_by: NodeSpec | None = None

    def change(self, now: Managed, site: Site) -> Managed:
        """The file's next content. Nodes that stay keep what is known of their state."""
        specs = () if self.method is Method.DYNAMIC else self.specs
        fresh = LineState.CLOUD if self.method is Method.CLOUD else LineState.FUTURE
        lines = []
        for spec in specs:
            known = now.node(spec.name)
            if known is not None and self._lends(known.spec, spec):
                keeps = LineState.CLOUD not in (known.state, fresh)
                lines.append(known if keeps else NodeLine(known.spec, fresh))
            else:
                lines.append(NodeLine(spec, fresh))
        if self.known_by is not None:
            lines.append(NodeLine(self.known_by, LineState.FUTURE))
        made = now.only_nodes(tuple(lines))
        cloud = self._power_saving(site) if self.method is Method.CLOUD else ()
        return made.with_section(CLOUD_SECTION, cloud)

    def _lends(self, known: NodeSpec, spec: NodeSpec) -> bool:
        """Whether it is this node, be it with more features that jobs may ask for."""
        more = set(self.known_by.features) if self.known_by is not None else set()
        same = replace(known, features=spec.features) == spec
        return same and set(spec.features) <= set(known.features) <= {*spec.features, *more}

    def _power_saving(self, site: Site) -> tuple[tuple[str, str], ...]:
        for key in ("ResumeProgram", "SuspendProgram"):
            for line, value in site.values(key):
                raise RefusedError(
                    line.place,
                    f"{key}={value} is the site's own power saving, which registration: cloud "
                    "would take over",
                    "use registration: conf or dynamic",
                )
        shown = [word for word in site.value("PrivateData").split(",") if word]
        return (
            ("ResumeProgram", self.poke),
            ("SuspendProgram", self.poke),
            ("SuspendTime", str(_NEVER_S)),
            ("SuspendTimeout", "1"),
            ("ResumeTimeout", str(int(self.boot_within_s) + 60)),
            # Slurm hides nodes that are powered down, and we have to see ours.
            ("PrivateData", ",".join(dict.fromkeys([*shown, "cloud"]))),
        )
