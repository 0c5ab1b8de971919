"""A cluster as a transaction of the managed file sees it: files, Slurm's tools, nodes and jobs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from backfill.core.model.cluster import Job, JobState, Node, NodeBase, SlurmSettings, SlurmVersion
from backfill.drivers.slurm.commands import SlurmTools
from backfill.drivers.slurm.conf.managed import LineState, Managed, NodeLine
from backfill.drivers.slurm.conf.reload import Reload
from backfill.drivers.slurm.conf.transaction import ConfPlace, Slurm, Transactions
from backfill.ports.errors import UnreachableError
from backfill.ports.workload import ClusterObservation, NodeSpec
from tests.component.slurm_tools import FakeTools

SITE = "ClusterName=test\nNodeName=bm[1-2] NodeAddr=10.0.0.[1-2] CPUs=4\nInclude backfill.conf\n"


class CrashError(BaseException):
    """The process died here."""


def line(name: str, state: LineState = LineState.FUTURE, cpus: int = 2) -> NodeLine:
    """A line of a virtual node."""
    address = f"10.1.0.{name.removeprefix('vn')}"
    return NodeLine(NodeSpec(name, address, cpus, 500, ("backfill",)), state)


def with_node(*names: str) -> Callable[[Managed], Managed]:
    """The change that adds these nodes."""
    return lambda managed: managed.with_nodes(*(line(name) for name in names))


def without_nodes(managed: Managed) -> Managed:
    """The change that takes all nodes away."""
    return managed.only_nodes(())


@dataclass
class ConfCluster:
    """Two bare-metal nodes and those of the managed file, as Slurm would see them.

    `deaf`: Slurm does not answer; `ignores`: it does not notice what is in the file; `version`;
    `raw`: more of its configuration; `partitions`: what scontrol shows of them; `gone`: nodes that it
    does not show; `at`: what happens before a step, by its name.
    """

    directory: Path
    version: SlurmVersion = field(default_factory=lambda: SlurmVersion(24, 11, 5))
    restart: tuple[str, ...] = ()
    deaf: bool = False
    ignores: bool = False
    states: dict[str, Node] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    raw: dict[str, str] = field(default_factory=dict)
    partitions: dict[str, dict[str, str]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    crash_at: str = ""
    at: dict[str, Callable[[], object]] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.directory / "slurm").mkdir(exist_ok=True)
        (self.directory / "bin").mkdir(exist_ok=True)
        self.conf.write_text(SITE)
        self.tools = FakeTools(self.directory / "bin")

    @property
    def conf(self) -> Path:
        return self.directory / "slurm/slurm.conf"

    @property
    def managed(self) -> Path:
        return self.directory / "slurm/backfill.conf"

    @property
    def transactions(self) -> Transactions:
        """A new process, as it were."""
        commands = SlurmTools(self.conf, self.directory / "bin")
        place = ConfPlace(self.conf, self.directory / "state", health_s=0.0)
        return Transactions(place, Slurm(commands, self.look, self.settings), Reload(self.restart), self._at)

    def _at(self, step: str) -> None:
        self.steps.append(step)
        self.at.get(step, lambda: None)()
        if step == self.crash_at:
            self.crash_at = ""
            raise CrashError(step)

    def look(self) -> ClusterObservation:
        """What Slurm shows."""
        if self.deaf:
            raise UnreachableError("slurmctld", "no answer")
        nodes = {name: Node(name, NodeBase.IDLE) for name in ("bm1", "bm2")}
        if not self.ignores and self.managed.exists():
            names = re.findall(r"^NodeName=(vn\d+)", self.managed.read_text(errors="replace"), re.MULTILINE)
            nodes |= {n: self.states.get(n, Node(n, NodeBase.FUTURE)) for n in names}
        shown = {name: node for name, node in {**nodes, **self.states}.items() if name not in self.gone}
        return ClusterObservation(0.0, shown, dict(self.jobs))

    def settings(self) -> SlurmSettings:
        """Its configuration."""
        return SlurmSettings(
            version=self.version,
            cluster="test",
            slurmd_timeout_s=0,
            max_node_count=100,
            select_type="select/cons_tres",
            partitions=("htc",),
            raw=self.raw,
            partitions_raw=self.partitions,
        )

    def runs(self, job_id: str, node: str, state: JobState = JobState.RUNNING, restarts: int = 0) -> None:
        """A job holds this node."""
        self.jobs[job_id] = Job(job_id, int(job_id), "htc", state, nodes=(node,), restarts=restarts)

    def reloads(self) -> int:
        """How often Slurm was told to read its configuration anew."""
        return sum(1 for call in self.tools.calls if call == "scontrol reconfigure")
