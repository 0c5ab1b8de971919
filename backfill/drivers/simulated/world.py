"""One deterministic cluster: hosts, instances, slurmctld and time, with broken promises noted."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from backfill.core.model.cluster import OUR_REASON, Job, JobState
from backfill.core.model.fleet import InstanceSpec, InstanceState
from backfill.core.model.quantities import NOTHING, Resources
from backfill.core.model.readiness import Fact
from backfill.drivers.simulated.checks import Checks
from backfill.drivers.simulated.clock import SimulatedClock, WallClock
from backfill.drivers.simulated.events import EventQueue, SimEvent
from backfill.drivers.simulated.faults import Faults
from backfill.drivers.simulated.hypervisor.hardware import (
    Count,
    Roster,
    Segment,
    SimHost,
    SimInstance,
    SimMachine,
    Violation,
)
from backfill.drivers.simulated.hypervisor.machines import Machines
from backfill.drivers.simulated.hypervisor.provider import SimulatedProvider
from backfill.drivers.simulated.losses import Deed, Losses
from backfill.drivers.simulated.pool import SimulatedPool
from backfill.drivers.simulated.slurm.books import Books, Manners
from backfill.drivers.simulated.slurm.controller import NodeControl
from backfill.drivers.simulated.slurm.jobs import Hook, JobControl
from backfill.drivers.simulated.slurm.manager import SimulatedSlurm
from backfill.drivers.simulated.slurm.model import Partition, SimJob, SimNode
from backfill.ports.workload import PilotSpec


class SimulatedWorld:
    """Build it, let time pass with `step_to`, use `slurm`, `provider` and `clock` as ports.

    Nothing here looks at the wall clock. Times are epoch seconds. Call `add_partition` before
    `add_host`. Hooks: `on_allocated(job, nodes)` is asked when a job got a bare-metal node, or
    has a constraint, and answers with the seconds until the job may start, or None to answer later
    by `release(job_id)`; without an answer the job starts after `manners.hook_timeout_s`, as with a
    hook that gives up.
    """

    def __init__(
        self,
        *,
        start_s: float = 1_700_000_000.0,
        seed: int = 0,
        cluster: str = "sim",
        boot_s: float = 5.0,
        count_every_s: float = 1.0,
        manners: Manners | None = None,
    ) -> None:
        self.manners = manners if manners is not None else Manners()
        self.faults = Faults(seed)
        self.hosts: dict[str, SimHost] = {}
        self.count_every_s = count_every_s
        self.cluster = cluster
        self._lock = threading.RLock()
        self._events = EventQueue(start_s)
        self._books = Books(self.manners)
        self._metal: dict[str, SimMachine] = {}
        self.checks = Checks(self._events, self._books, self.hosts)
        self._machines = Machines(self._events, self.checks)
        self.wall = WallClock(self._events)
        self._losses = Losses(self._events, self._books, self.hosts, self.checks.complain, self.wall)
        self._losses.machines = self._machines
        self._jobs = JobControl(self._events, self._machines, self._books)
        self._nodes = NodeControl(self._events, self._machines, self._books, self._jobs)
        self._machines.listener = self._nodes
        self._jobs.before_start = self._starts
        self.clock = self.new_clock()
        self.slurm = SimulatedSlurm(
            self._events, self._books, self._jobs, self._nodes, self.faults, self._lock, cluster
        )
        self.provider = SimulatedProvider(
            self._events, self._machines, self.hosts, self.faults, self._lock, cluster
        )
        self.slurm.wall = self.provider.wall = self.wall
        self.provider.boot_s = boot_s
        self.provider.watch = self.checks.when_running
        self.provider.woken = self._nodes.register
        self.pool = SimulatedPool(self._events, self._books.known, self.wall)
        self._machines.heard = lambda run, answers: self.pool.heard(run, answers=answers)
        self.slurm.send = self._send_pilot
        self._watch_losses()
        self._last_job = self._last_order = 0

    def _starts(self, job: SimJob) -> None:
        self.checks.before_start(job)
        self._losses.before_start(job)
        if job.comment.startswith(OUR_REASON):
            self.pool.begin(job)

    def _send_pilot(self, pilot: PilotSpec) -> str:
        return self.submit(
            pilot.partition,
            0.0,
            name=pilot.name,
            comment=pilot.comment,
            user=pilot.user,
            cpus=pilot.cpus,
            time_limit_s=pilot.limit_s,
        )

    def _watch_losses(self) -> None:
        self.slurm.losses = self.provider.losses = self._losses
        self._jobs.on_too_long = self._losses.too_long

    def doing(self, deed: Deed) -> AbstractContextManager[None]:
        """Mark the calls of the body as this deed: its owner and reason decide what it may destroy."""
        return self._losses.doing(deed)

    # --- time -----------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        return self._events.now_s

    @property
    def next_s(self) -> float | None:
        """Return the time of the next event that happens by itself, or None."""
        return self._events.next_s()

    def step_to(self, until_s: float) -> None:
        """Let everything happen that is due up to `until_s`, in order."""
        with self._lock:
            self._events.step_to(until_s)

    def new_clock(self) -> SimulatedClock:
        """Make the clock of a daemon that starts now."""
        return SimulatedClock(self._events, self.step_to, self.wall)

    def set_clock(self, by_s: float) -> None:
        """Somebody sets the machine's clock forward, or back by a negative amount."""
        self.wall.set(by_s)

    def reboot_clock(self, by_s: float = 0.0) -> None:
        """Boot the controller's machine, which nobody but a new daemon notices."""
        self.wall.boot = f"boot {int(self.wall.boot.split()[1]) + 1}"
        if by_s:
            self.wall.set(by_s)

    def at(self, at_s: float, action: Callable[[], None], ticket: int = 0) -> SimEvent:
        """Do `action` at `at_s` (an admin's deed, a fault, an end of a call's duration)."""
        return self._events.at(at_s, action, ticket)

    def ticket(self, *, early: bool = False) -> int:
        """Draw a place among the events of whatever instant; `early`: before all that are not."""
        return self._events.ticket(early=early)

    # --- building -------------------------------------------------------------------------

    def add_partition(self, name: str, *, tier: int = 1, feature: str | None = None) -> None:
        """Add a partition of all nodes, or of those with `feature`; higher `tier` goes first."""
        self._books.partitions[name] = Partition(name, tier, feature)

    def add_host(
        self,
        name: str,
        *,
        cpus: int = 2,
        memory_mb: int = 4096,
        node: bool = True,
        features: tuple[str, ...] = (),
        address: str = "",
        keeps: Resources = NOTHING,
    ) -> None:
        """Add a hypervisor; with `node` it is a bare-metal Slurm node of the same name as well.

        `keeps`: what instances never take of it.
        """
        own = name if node else None
        capacity = Resources(max(0, cpus - keeps.cpus), max(0, memory_mb - keeps.memory_mb))
        roster = Roster(self.checks.marks)
        self.hosts[name] = SimHost(name, own, capacity, roster, problem="no route to host")
        if not node:
            return
        address = address or f"10.0.255.{len(self.hosts)}"
        machine = SimMachine(name, name, metal=True, cpus=cpus, booted=True, booted_s=self.now_s)
        self._metal[name] = machine
        self._nodes.add(SimNode(name, 0, cpus, memory_mb, address, tuple(features), host=name))
        self._machines.update(machine, on=True)

    def submit(self, partition: str, run_s: float, *, at_s: float | None = None, **wishes: object) -> str:
        """Submit a job that computes for `run_s` s; `wishes` are fields of SimJob. Return its id."""
        self._last_job += 1
        number = self._last_job
        self._submit(str(number), number, (partition, run_s, at_s), wishes)
        return str(number)

    def submit_array(
        self, partition: str, run_s: float, tasks: int, at_s: float | None = None, **wishes: object
    ) -> str:
        """Tasks 1..tasks of one array, each as `submit` would make it. Returns the array's id."""
        self._last_job += 1
        number = self._last_job
        for task in range(1, tasks + 1):
            self._submit(f"{number}_{task}", number, (partition, run_s, at_s), wishes)
        return str(number)

    def submit_components(self, partition: str, run_s: float, *components: dict[str, object]) -> list[str]:
        """Submit a heterogeneous job; each component as `submit` would make it. Return their ids."""
        leader = self._last_job + 1
        ids = []
        for offset, wishes in enumerate(components):
            self._last_job += 1
            ids.append(f"{leader}+{offset}")
            self._submit(ids[-1], self._last_job, (partition, run_s, None), {**wishes, "het": True})
        return ids

    def _submit(
        self, id_: str, raw_id: int, what: tuple[str, float, float | None], wishes: dict[str, object]
    ) -> None:
        partition, run_s, at_s = what
        if partition not in self._books.partitions:
            raise ValueError(f"no partition '{partition}': call add_partition first")
        if run_s < 0.0:
            raise ValueError(f"a job cannot compute for {run_s} s")
        when_s = self.now_s if at_s is None else at_s
        self._last_order += 1
        order = self._last_order
        # The dataclass's own signature checks the wishes.
        job = SimJob(id_, raw_id, order, partition, run_s, when_s, **wishes)  # type: ignore[arg-type]
        job.eligible_s = when_s
        self._books.jobs[id_] = job
        if when_s <= self.now_s:
            self._jobs.submit(job)
        else:
            self._events.at(when_s, lambda: self._jobs.submit(job))

    # --- hooks ----------------------------------------------------------------------------

    def hook(
        self, on_allocated: Hook | None, on_ended: Callable[[Job, tuple[str, ...]], None] | None = None
    ) -> None:
        """Install the hooks, as PrologSlurmctld and EpilogSlurmctld would be."""
        self._jobs.on_allocated, self._jobs.on_ended = on_allocated, on_ended

    def end_hook_again(self, job: Job, nodes: tuple[str, ...]) -> None:
        """Call the hook at the end of a job, or of a former run of it, late, or once more."""
        if self._jobs.on_ended is not None:
            self._jobs.on_ended(job, nodes)

    def release(self, job_id: str) -> None:
        """Answer `on_allocated` late: the job may start."""
        with self._lock:
            self._jobs.release(job_id)

    # --- what others do -------------------------------------------------------------------

    def stop_slurm(self) -> None:
        """slurmctld does not answer from now on; running jobs go on."""
        self._nodes.stop()

    def start_slurm(self) -> None:
        """slurmctld is back."""
        self._nodes.start()

    def cut_host(self, name: str) -> None:
        """Its hypervisor cannot be reached; everything on it goes on."""
        self.hosts[name].reachable = False

    def join_host(self, name: str) -> None:
        """Its hypervisor can be reached again."""
        self.hosts[name].reachable = True

    def spoil_host(self, name: str, problem: str) -> None:
        """Let it fail to prove itself; empty: it does again."""
        self.hosts[name].unproven = problem

    def stop_file_server(self) -> None:
        """Stop the file server: mounts of all guests are stale, and none can prove itself."""
        self.provider.ailing = (Fact("files:/home", False, "stale file handle"),)

    def start_file_server(self) -> None:
        """Start it again; what was mounted from it is back, too."""
        self.provider.ailing = ()

    def kill_host(self, name: str) -> None:
        """Power off: all memory there is lost, suspended instances stay on disk."""
        host = self.hosts[name]
        host.powered = False
        if name in self._metal:
            self._machines.destroy(self._metal[name])
        for instance in host.instances.values():
            instance.machine.powered = False
            if instance.state is not InstanceState.SUSPENDED:
                self._machines.destroy(instance.machine)
                instance.state = InstanceState.OFF

    def power_host(self, name: str, boot_s: float = 60.0) -> None:
        """Power on; its own slurmd is there after `boot_s`. One that has power is left as it is."""
        host = self.hosts[name]
        if host.powered:
            return
        host.powered = True
        for instance in host.instances.values():
            instance.machine.powered = True
        if name in self._metal:
            self._machines.start_boot(self._metal[name], boot_s)

    def crash_instance(self, name: str) -> None:
        """Let the hypervisor process of the instance die."""
        instance = self.instance(name)
        self._machines.destroy(instance.machine)
        instance.state = InstanceState.CRASHED

    def cut_node(self, node: str, *, connected: bool = False) -> None:
        """Cut the network of its machine (or join it again); what it computes goes on."""
        machine = self._machines.serving[node]
        machine.connected = connected
        self._machines.update(machine)

    def finish_job(self, job_id: str) -> None:
        """Let a running job come to its end before its time."""
        self._jobs.end(self._books.known[job_id], JobState.COMPLETED)

    def admin_drain(self, node: str, reason: str, by: str = "root") -> None:
        """Let an admin drain the node; an empty reason lifts any drain. `by` empty: slurmctld does it."""
        seen = self._books.nodes[node]
        ours = not reason and (seen.drain or "").startswith(OUR_REASON)
        seen.opened_s = self.now_s if ours else None
        seen.drain, seen.drain_by = reason or None, by
        self._books.refresh(seen)

    def owner_releases(self, job_id: str) -> None:
        """Let the job's owner release it; an admin's hold he cannot undo."""
        job = self._books.known[job_id]
        if job.held_by_owner:
            job.held = job.held_by_owner = False
            self._jobs.wait(job)

    def owner_comments(self, job_id: str, text: str) -> None:
        """Let the job's owner change its comment."""
        self._books.known[job_id].comment = text

    def site_comments(self, job_id: str, text: str) -> None:
        """Let the site write into the job's AdminComment."""
        self._books.known[job_id].admin_comment = text

    def add_stranger(self, spec: InstanceSpec) -> None:
        """Somebody else's instance, with a tag of another cluster, on a host of ours."""
        machine = SimMachine(spec.tag.node, spec.host, metal=False, cpus=spec.flavour.cpus)
        self.hosts[spec.host].instances[spec.name] = SimInstance(
            spec, spec.host, InstanceState.RUNNING, machine, self.now_s
        )

    def user_cancel(self, job_id: str) -> None:
        """Let the owner cancel the job."""
        self._jobs.end(self._books.known[job_id], JobState.CANCELLED)

    def admin_suspend(self, job_id: str) -> None:
        """Let an admin, or Slurm's own gang scheduling, suspend the job; a component nobody can."""
        job = self._books.known[job_id]
        if job.state is JobState.RUNNING and not (job.configuring or job.het):
            self._jobs.suspend(job, by="an admin")

    def admin_resume(self, job_id: str) -> None:
        """Whoever suspended the job lets it go on."""
        job = self._books.known[job_id]
        if job.state is JobState.SUSPENDED and job.suspended_by:
            self._jobs.resume(job)

    def requeue_behind(self, job_id: str, delay_s: float = 120.0) -> None:
        """Slurm or an admin requeues the job without us."""
        self._jobs.requeue(self._books.known[job_id], delay_s)

    # --- what came of it ------------------------------------------------------------------

    def job(self, job_id: str) -> Job:
        """Return the job as Slurm shows it, or would if it still remembered it."""
        return self._books.jobs[job_id].view()

    def heeds(self, job_id: str, after_s: float) -> None:
        """Let the job end so long after a signal that it is sent."""
        self._books.jobs[job_id].heeds_s = after_s

    def signals(self, job_id: str) -> list[str]:
        """Return the signals that were sent to the job."""
        return self._books.jobs[job_id].signals

    @property
    def nodes(self) -> frozenset[str]:
        """Names of all nodes that Slurm knows, whether it answers or not."""
        return frozenset(self._books.nodes)

    def instance(self, name: str) -> SimInstance:
        """Return the instance, on whichever host it is."""
        for host in self.hosts.values():
            if name in host.instances:
                return host.instances[name]
        raise KeyError(f"no host has an instance '{name}'")

    @property
    def tally(self) -> list[Count]:
        """Every line that every counting job wrote, in order of time."""
        return self._machines.tally(self.count_every_s)

    @property
    def segments(self) -> list[Segment]:
        """Every stretch of time in which a copy of a job computed, for timelines."""
        return list(self._machines.all_segments())

    def gaps(self) -> list[str]:
        """Counters that missed or repeated a number, or ended short; empty when all is well."""
        return self.checks.gaps(self.tally, self.count_every_s)

    @property
    def violations(self) -> list[Violation]:
        """Broken promises so far."""
        return self.checks.violations

    def audit(self) -> list[Violation]:
        """Broken promises so far and jobs that are lost now; call it when all should be quiet."""
        return [*self.violations, *self.checks.lost(self._machines)]
