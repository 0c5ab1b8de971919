"""The simulated slurmctld behind the WorkloadManager port."""

from __future__ import annotations

import ipaddress
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial

from backfill.core.model.cluster import ENDED, OUR_REASON, Job, JobState, Node, SlurmSettings, SlurmVersion
from backfill.core.model.job_machines import with_word_of, without_word, word_of
from backfill.drivers.simulated.clock import WallClock
from backfill.drivers.simulated.events import EventQueue
from backfill.drivers.simulated.faults import Faults
from backfill.drivers.simulated.losses import Losses
from backfill.drivers.simulated.slurm.books import Books
from backfill.drivers.simulated.slurm.controller import NodeControl
from backfill.drivers.simulated.slurm.jobs import JobControl
from backfill.drivers.simulated.slurm.model import SimJob, SimNode, SimReservation
from backfill.ports.errors import AlreadyThereError, BusyError, NotFoundError, RefusedError, UnreachableError
from backfill.ports.workload import ClusterObservation, NodeSpec, PilotSpec

_UNPROVEN = f"{OUR_REASON} new, not proven yet"

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_JOB = re.compile(r"[0-9]+([_+][0-9]+)?")
_FEATURE = re.compile(r"[A-Za-z0-9_.:=-]+")


class SimulatedSlurm:
    """WorkloadManager over the simulation; every call acts at once."""

    def __init__(
        self,
        events: EventQueue,
        books: Books,
        jobs: JobControl,
        nodes: NodeControl,
        faults: Faults,
        lock: threading.RLock,
        cluster: str,
    ) -> None:
        self._events = events
        self._books = books
        self._jobs = jobs
        self._nodes = nodes
        self._faults = faults
        self._lock = lock
        self._cluster = cluster
        self.losses: Losses | None = None
        self.send: Callable[[PilotSpec], str] = _nowhere  # how a pilot gets into the queue
        self.wall = WallClock(events)

    def _call(self, call: str, *subjects: str) -> AbstractContextManager[object]:
        calm = self._faults.none and self._books.up
        return self._lock if calm else self._amiss(call, subjects)

    @contextmanager
    def _amiss(self, call: str, subjects: tuple[str, ...]) -> Iterator[None]:
        with self._lock, self._faults.around(call, *subjects):
            if not self._books.up:
                raise UnreachableError("slurmctld", "did not answer", "is the controller up?")
            yield

    # --- reading --------------------------------------------------------------------------

    def settings(self) -> SlurmSettings:
        """Return the settings of the simulated slurm.conf."""
        with self._call("settings"):
            return SlurmSettings(
                version=SlurmVersion(22, 5, 8),
                cluster=self._cluster,
                slurmd_timeout_s=self._books.manners.slurmd_timeout_s,
                max_node_count=65533,
                select_type="select/cons_tres",
                partitions=tuple(self._books.partitions),
                prolog_slurmctld="simulated" if self._jobs.on_allocated is not None else "",
                raw={"PrivateData": self._books.manners.private},
            )

    def observe(self) -> ClusterObservation:
        """All nodes, and all jobs younger than MinJobAge after their end."""
        with self._call("observe"):
            nodes, jobs = self._faults.misread_slurm(
                {name: node.view() for name, node in self._books.nodes.items()},
                {id_: job.view() for id_, job in self._books.known.items()},
                all_of_it=True,
            )
            return self.wall.told(ClusterObservation(self._events.now_s, nodes, jobs))

    def observe_nodes(self, names: Sequence[str]) -> ClusterObservation:
        """Read these nodes, and the jobs that hold them."""
        with self._call("observe_nodes", *names):
            nodes = {name: node for name in names if (node := self._books.nodes.get(name))}
            jobs = {id_: job.view() for node in nodes.values() for id_, job in node.jobs.items()}
            views = {name: node.view() for name, node in nodes.items()}
            told = self._faults.misread_slurm(views, jobs)
            return self.wall.told(ClusterObservation(self._events.now_s, *told))

    def read_jobs(self, ids: Sequence[str]) -> dict[str, Job]:
        """Read these jobs, as far as they are known."""
        with self._call("read_jobs", *ids):
            known = self._books.known
            seen = {id_: known[id_].view() for id_ in ids if id_ in known}
            seen = self._faults.misread_slurm({}, seen)[1]
            return dict(self.wall.told(ClusterObservation(0.0, {}, seen)).jobs)

    def read_nodes(self, names: Sequence[str]) -> dict[str, Node]:
        """Read these nodes, as far as they are known."""
        with self._call("read_nodes", *names):
            nodes = self._books.nodes
            views = {name: nodes[name].view() for name in names if name in nodes}
            views, _ = self._faults.misread_slurm(views, {})
            return dict(self.wall.told(ClusterObservation(0.0, views, {})).nodes)

    # --- nodes ----------------------------------------------------------------------------

    def create_node(self, spec: NodeSpec) -> None:
        """Make a dynamic node, drained by us: it takes no jobs before it has proven itself."""
        check_spec(spec)
        with self._call("create_node", spec.name):
            old = self._books.nodes.get(spec.name)
            if old is None:
                node = SimNode(spec.name, 0, spec.cpus, spec.memory_mb, spec.address)
                node.features, node.drain, node.drain_by = tuple(spec.features), _UNPROVEN, ""
                self._nodes.add(node)
            elif old.host is not None or _differs(old, spec):
                raise AlreadyThereError(spec.name, "Slurm has another node of this name")

    def delete_node(self, name: str) -> None:
        """Remove a dynamic node."""
        with self._call("delete_node", name):
            node = self._books.nodes.get(name)
            if node is None:
                return
            if node.host is not None:
                raise RefusedError(name, "is a node of slurm.conf and cannot be deleted")
            if node.jobs:
                raise BusyError(name, f"is in use by job {', '.join(node.jobs)}")
            self._books.remove_node(node)

    def drain(self, name: str, reason: str) -> None:
        """Drain with our reason."""
        if not reason.startswith(OUR_REASON):
            raise RefusedError(name, f"our drains have a reason that begins with '{OUR_REASON}'")
        with self._call("drain", name):
            node = self._node(name)
            if node.drain is not None and not node.drain.startswith(OUR_REASON):
                raise RefusedError(name, f"is drained by somebody else: {node.drain}")
            node.drain, node.drain_by, node.opened_s = reason, "", None
            self._books.refresh(node)

    def undrain(self, name: str, *, heard: bool = False) -> bool:
        """Lift our drain."""
        with self._call("undrain", name):
            node = self._node(name)
            if node.drain is not None and not node.drain.startswith(OUR_REASON):
                raise RefusedError(name, f"is drained by somebody else: {node.drain}")
            there = node.registered and not (node.silent or node.down)
            at_once = heard and there and node.drain is not None
            node.drain = None
            self._books.refresh(node)
            if at_once:
                self._jobs.kick()
            return at_once

    def nudge(self, name: str) -> None:
        """Let the scheduler look at the node on its next tick."""
        with self._call("nudge", name):
            self._jobs.kick()

    def set_address(self, name: str, address: str) -> None:
        """Look for the node's slurmd at this bare IP."""
        check_address(name, address)
        with self._call("set_address", name):
            node = self._node(name)
            if node.address != address:
                self._nodes.look_at(node, address)

    def vouch(self, name: str) -> None:
        """Let a node that stood still register without being taken for rebooted."""
        with self._call("vouch", name):
            node = self._books.nodes.get(name)
            if node is None:
                return
            if node.drain is not None and not node.drain.startswith(OUR_REASON):
                if self._books.manners.return_to_service != 2:
                    raise BusyError(name, f"is drained by somebody else: {node.drain}")
                return
            node.heard_s = self._events.now_s

    def set_down(self, name: str, reason: str) -> None:
        """DOWN; its jobs are requeued and, unlike after SlurmdTimeout, never held."""
        with self._call("set_down", name):
            node = self._node(name)
            if not node.down:
                if self.losses is not None:
                    self.losses.node_goes(node)
                self._nodes.down(node, reason, holds=False)

    # --- jobs -----------------------------------------------------------------------------

    def suspend_job(self, job_id: str) -> bool:
        """Bring it from RUNNING to SUSPENDED; it is delivered when the node answers."""
        with self._call("suspend_job", job_id):
            job = self._active(job_id)
            if job.configuring:
                raise BusyError(f"job {job_id}", "is still being started")
            if job.het:
                raise RefusedError(f"job {job_id}", "is a component of a heterogeneous job")
            runs = job.state is JobState.RUNNING
            if runs:
                self._jobs.suspend(job, self.losses.suspender if self.losses is not None else "")
            return runs

    def resume_job(self, job_id: str) -> None:
        """SUSPENDED to RUNNING."""
        with self._call("resume_job", job_id):
            job = self._active(job_id)
            if job.state is JobState.SUSPENDED:
                if self.losses is not None:
                    self.losses.resumed(job)
                self._jobs.resume(job)

    def set_time_limit(self, job_id: str, limit_s: float) -> None:
        """In whole minutes; what it has run already counts."""
        with self._call("set_time_limit", job_id):
            job = self._known(job_id)
            if job.state in ENDED:
                raise NotFoundError(f"job {job_id}", f"has ended: {job.state}")
            job.time_limit_s = -(-limit_s // 60) * 60.0
            if job.state is JobState.RUNNING:
                self._jobs.watch_limit(job)

    def requeue_job(self, job_id: str) -> None:
        """PENDING and eligible at once; a job that ended is never started again."""
        with self._call("requeue_job", job_id):
            job = self._known(job_id)
            if job.state in ENDED:
                raise NotFoundError(f"job {job_id}", f"has ended: {job.state}")
            if not job.requeue:
                raise RefusedError(f"job {job_id}", "was submitted with --no-requeue")
            if job.state is not JobState.PENDING:
                if self.losses is not None:
                    self.losses.job_goes(job, "requeue")
                self._jobs.requeue(job, 0.0)
            elif job.restarts > 0 and job.eligible_s > self._events.now_s:
                job.eligible_s = self._events.now_s
                self._jobs.wait(job)

    def cancel_job(self, job_id: str) -> None:
        """End the job; ended already or unknown: nothing to do."""
        check_job_id(job_id)
        with self._call("cancel_job", job_id):
            job = self._books.known.get(job_id)
            if job is not None and job.state not in ENDED:
                if self.losses is not None:
                    self.losses.job_goes(job, "cancelled")
                self._jobs.end(job, JobState.CANCELLED)

    def hold_job(self, job_id: str) -> None:
        """Hold as an admin; of a heterogeneous job all components."""
        with self._call("hold_job", job_id):
            self._pending(job_id)
            for job in self._whole(job_id):
                job.held, job.held_by_owner = True, False

    def release_job(self, job_id: str) -> None:
        """Let it wait for room like any other."""
        with self._call("release_job", job_id):
            if self._known(job_id).state in ENDED:
                raise NotFoundError(f"job {job_id}", f"has ended: {self._known(job_id).state}")
            for job in self._whole(job_id):
                job.held = job.held_by_owner = False
                self._jobs.wait(job)

    def pin_job(self, job_id: str, nodes: Sequence[str]) -> None:
        """Keep the nodes for it, and it for the nodes."""
        with self._call("pin_job", job_id):
            job = self._pending(job_id)
            chosen = [self._node(name) for name in nodes]
            self._open(job)
            job.pins = tuple(nodes)
            for node in chosen:
                node.pinned = job_id
            self._jobs.wait(job)

    def pin_inside(self, job_id: str, nodes: Sequence[str]) -> None:
        """Keep the nodes for jobs of its owner that name it."""
        with self._call("pin_inside", job_id):
            job = self._known(job_id)
            if job.state in ENDED:
                raise NotFoundError(f"job {job_id}", f"has ended: {job.state}")
            if job.state is JobState.PENDING:
                raise BusyError(f"job {job_id}", f"is {job.state}")
            chosen = [self._node(name) for name in nodes]
            for node in chosen:
                node.within, node.owner = job_id, job.user
                self._books.refresh(node)

    def unpin_job(self, job_id: str) -> None:
        """Open the nodes to others, and the job to other nodes."""
        check_job_id(job_id)
        with self._call("unpin_job", job_id):
            job = self._books.known.get(job_id)
            pinned = [n for n in self._books.nodes.values() if job_id in (n.pinned, n.within)]
            if any(node.jobs for node in pinned):
                raise BusyError(f"job {job_id}", "is still there")
            if job is not None:
                self._open(job)
                self._jobs.wait(job)
            for node in pinned:
                node.pinned = node.within = ""
                self._books.refresh(node)

    def _open(self, job: SimJob) -> None:
        for name in job.pins:
            node = self._books.nodes.get(name)
            if node is not None:
                node.pinned = ""
                self._books.refresh(node)
        job.pins = ()

    def revoke_job(self, job_id: str, why: str) -> None:
        """Tell its owner, and end it."""
        with self._call("revoke_job", job_id):
            job = self._pending(job_id)
            job.heard.append(f"{OUR_REASON} {why}")
            with suppress(RefusedError):
                self._comment(job, f"{OUR_REASON} {why}")
            self._jobs.end(job, JobState.CANCELLED)

    def _whole(self, job_id: str) -> list[SimJob]:
        """Return the job; of a component of a heterogeneous one all of that."""
        leader = job_id.partition("+")[0]
        return [job for job in self._books.known.values() if job.id.partition("+")[0] == leader]

    def _pending(self, job_id: str) -> SimJob:
        job = self._known(job_id)
        if job.state in ENDED:
            raise NotFoundError(f"job {job_id}", f"has ended: {job.state}")
        if job.state is not JobState.PENDING:
            raise BusyError(f"job {job_id}", f"is {job.state}")
        return job

    def signal_job(self, job_id: str, signal: str) -> None:
        """Send a signal: a job that heeds it ends by itself a little later; any other goes on."""
        check_job_id(job_id)
        with self._call("signal_job", job_id):
            job = self._known(job_id)
            if job.state is not JobState.RUNNING or job.configuring:
                raise BusyError(f"job {job_id}", "it does not run, so that no signal reaches it now")
            job.signals.append(signal)
            if job.heeds_s is not None:
                self._jobs.end_by_itself(job, job.heeds_s)

    def submit_pilot(self, pilot: PilotSpec) -> str:
        """Like sbatch of an ordinary user; how long it works is its sender's business."""
        with self._call("submit_pilot", pilot.name):
            if pilot.user == "root":
                raise RefusedError(f"user {pilot.user}", "it is root")
            if pilot.partition not in self._books.partitions:
                raise RefusedError(pilot.name, f"there is no partition {pilot.partition}")
            theirs = (job for job in self._books.known.values() if job.user == pilot.user)
            same = [job for job in theirs if job.name == pilot.name and job.state not in ENDED]
            found = next((job for job in same if job.comment == pilot.comment), None)
            if same and found is None:
                raise RefusedError(pilot.name, f"job {same[0].id} has its name")
            return found.id if found is not None else self.send(pilot)

    def withdraw_pilot(self, job_id: str) -> None:
        """End it if it waits and has never begun."""
        check_job_id(job_id)
        with self._call("withdraw_pilot", job_id):
            job = self._books.known.get(job_id)
            if job is not None and job.state is JobState.PENDING and not job.restarts:
                self._jobs.end(job, JobState.CANCELLED)

    def tell(self, job_id: str, text: str, over: str = "", *, aloud: bool = False) -> None:
        """Set AdminComment; what is said aloud is heard while the job waits or runs."""
        with self._call("tell", job_id):
            job = self._known(job_id)
            if aloud and job.state in (JobState.PENDING, JobState.RUNNING):
                job.heard.append(text)
            if over and without_word(job.admin_comment) != over:
                return
            self._comment(job, text)

    def _comment(self, job: SimJob, text: str) -> None:
        said = without_word(job.admin_comment)
        if said and not said.startswith(OUR_REASON):
            if not word_of(text):
                raise RefusedError(f"job {job.id}", "its AdminComment is somebody else's")
            job.admin_comment = with_word_of(said, text)
            return
        word = "" if word_of(text) else word_of(job.admin_comment)
        job.admin_comment = f"{text} {word}".strip()

    def heard(self, job_id: str) -> tuple[str, ...]:
        """Return the lines at the terminal of the job's salloc or srun."""
        return tuple(self._known(job_id).heard)

    def admin_comment(self, job_id: str) -> str:
        """Return the comment that the job's owner reads in `scontrol show job`."""
        return self._known(job_id).admin_comment

    # --- look-up --------------------------------------------------------------------------

    def _node(self, name: str) -> SimNode:
        node = self._books.nodes.get(name)
        if node is None:
            raise NotFoundError(name, "Slurm knows no such node")
        return node

    def _known(self, job_id: str) -> SimJob:
        check_job_id(job_id)
        job = self._books.known.get(job_id)
        if job is None:
            raise NotFoundError(f"job {job_id}", "Slurm knows no such job")
        return job

    def _active(self, job_id: str) -> SimJob:
        job = self._known(job_id)
        if job.state in ENDED:
            raise NotFoundError(f"job {job_id}", f"has ended: {job.state}")
        if job.state is JobState.PENDING:
            raise BusyError(f"job {job_id}", "is pending and has no processes to stop or resume")
        return job

    # --- what an admin does ---------------------------------------------------------------

    def announce(self, name: str, *, planned_s: float = 0.0, maintenance_s: float = 0.0) -> None:
        """Let the node be wanted from then on, by a planned job or for maintenance; 0: no more."""
        node = self._books.nodes[name]
        node.planned_s, node.maintenance_s = planned_s, maintenance_s

    def reserve(self, names: Iterable[str], reservation: SimReservation) -> None:
        """Keep these nodes; no job starts there that by its time limit would not be over by then.

        A job without a time limit never would. What runs when the reservation begins goes on.
        """
        for name in names:
            node = self._node(name)
            node.reservations = (*node.reservations, reservation)
            for at_s in (self._events.now_s, reservation.start_s, reservation.end_s):
                self._events.at(at_s, partial(self._look_ahead, node))

    def _look_ahead(self, node: SimNode) -> None:
        node.look_ahead(self._events.now_s)
        self._books.refresh(node)


def _nowhere(pilot: PilotSpec) -> str:
    raise RefusedError(pilot.name, "this cluster has no queue for pilots")


def _differs(node: SimNode, spec: NodeSpec) -> bool:
    made = (node.address, node.cpus, node.memory_mb, set(node.features))
    return made != (spec.address, spec.cpus, spec.memory_mb, set(spec.features))


def check_job_id(text: str) -> None:
    """Raise RefusedError for a text that is no job id."""
    if _JOB.fullmatch(text) is None:
        raise RefusedError(repr(text), "this is no job id")


def check_address(name: str, address: str) -> None:
    """Raise RefusedError for anything but a bare IP."""
    try:
        ipaddress.ip_address(address)
    except ValueError as error:
        raise RefusedError(name, f"its address '{address}' is not an IP address") from error


def check_spec(spec: NodeSpec) -> None:
    """Raise RefusedError for a node that cannot be made."""
    if _NODE.fullmatch(spec.name) is None:
        raise RefusedError(repr(spec.name), "this is no node name")
    for feature in spec.features:
        if _FEATURE.fullmatch(feature) is None:
            raise RefusedError(repr(feature), "this is no feature")
    check_address(spec.name, spec.address)
    if spec.cpus < 1 or spec.memory_mb < 1:
        raise RefusedError(spec.name, "it needs at least 1 CPU and 1 MB")
