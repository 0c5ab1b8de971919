"""The life of jobs in the simulated slurmctld: wait, allocate, hook, start, requeue, end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf

from backfill.core.model.cluster import ACTIVE, Job, JobState
from backfill.drivers.simulated.events import EventQueue, next_round_s
from backfill.drivers.simulated.hypervisor.machines import Machines
from backfill.drivers.simulated.slurm.books import Books, PendingQueue
from backfill.drivers.simulated.slurm.model import SimJob, SimNode

# Seconds until the hook lets the job go; None: it answers later through `release`.
Hook = Callable[[Job, tuple[str, ...]], float | None]


class JobControl:
    """Everything that happens to jobs. Callers have checked that the call is legal."""

    def __init__(self, events: EventQueue, machines: Machines, books: Books) -> None:
        self.on_allocated: Hook | None = None
        self.on_ended: Callable[[Job, tuple[str, ...]], None] | None = None
        self.before_start: Callable[[SimJob], None] = lambda job: None
        self.on_too_long: Callable[[SimJob], None] = lambda job: None
        self._events = events
        self._machines = machines
        self._books = books
        self._queue = PendingQueue()
        self._tick_due = False
        books.on_room = self.kick

    # --- waiting --------------------------------------------------------------------------

    def submit(self, job: SimJob) -> None:
        """Take in a new job."""
        self._books.known[job.id] = job
        self.wait(job)

    def wait(self, job: SimJob) -> None:
        """Let the pending job be looked at as soon as it is eligible."""
        if job.state is not JobState.PENDING or job.held or job.completing:
            return
        if job.eligible_s > self._events.now_s:
            self._events.at(job.eligible_s, partial(self.wait, job))
            return
        self._queue.push(job, self._books.partitions[job.partition].tier)
        self.kick()

    def kick(self) -> None:
        """Look at the waiting jobs on the next tick."""
        if self._tick_due or not self._books.up:
            return
        self._tick_due = True
        manners, due_s = self._books.manners, self._events.now_s
        if manners.tick_s > 0.0:
            due_s = next_round_s(max(due_s, manners.first_s), manners.tick_s, manners.tick_at_s)
        self._events.at(due_s, self._tick)

    def _tick(self) -> None:
        self._tick_due = False
        if self._books.up:
            self._schedule()

    def _schedule(self) -> None:
        self._queue.schedule(partial(self._try, withheld=set()))

    def _try(self, job: SimJob, withheld: set[str]) -> bool:
        chosen: list[SimNode] = []
        for node in self._books.room():
            if node.name not in withheld and _fits(job, node, self._events.now_s):
                chosen.append(node)
                if len(chosen) == job.num_nodes:
                    self._allocate(job, chosen)
                    return True
        # What a wide job could use now is kept for it, or small ones would starve it.
        withheld.update(node.name for node in chosen)
        return False

    # --- allocation and start -------------------------------------------------------------

    def _allocate(self, job: SimJob, chosen: list[SimNode]) -> None:
        now_s = self._events.now_s
        job.state, job.configuring, job.nodes = (JobState.RUNNING, True, tuple(node.name for node in chosen))
        job.start_s, job.clock_s, job.paid_s = now_s, now_s, 0.0
        job.whole_cpus = sum(node.cpus for node in chosen)
        for node in chosen:
            node.jobs[job.id] = job
            self._books.refresh(node)
        self.watch_limit(job)
        # As an event of its own: the hook may call back into Slurm.
        self._events.after(0.0, partial(self._prolog, job, job.restarts))

    def _prolog(self, job: SimJob, restart: int) -> None:
        if not _configuring(job, restart):
            return
        # Others have nothing to wait for: the daemon would answer at once.
        concerned = self._on_metal(job) or job.features
        if self.on_allocated is None or not concerned:
            self._launch(job, restart)
            return
        answer_s = self.on_allocated(job.view(), job.nodes)
        limit_s = self._books.manners.hook_timeout_s
        delay_s = limit_s if answer_s is None else min(answer_s, limit_s)
        if delay_s <= 0.0:
            self._launch(job, restart)
        else:
            self._events.after(delay_s, partial(self._launch, job, restart))

    def release(self, job_id: str) -> None:
        """Let a job start by the hook's late answer. A job that waits for none: nothing."""
        job = self._books.known.get(job_id)
        if job is not None:
            self._launch(job, job.restarts)

    def _launch(self, job: SimJob, restart: int) -> None:
        if not _configuring(job, restart):
            return
        if not self._books.up:
            self._events.after(1.0, partial(self._launch, job, restart))
            return
        machines = [self._machines.serving.get(name) for name in job.nodes]
        if all(machine is not None and machine.answering for machine in machines):
            job.configuring = False
            self.before_start(job)
            self._machines.launch(job.id, job.restarts, job.nodes, job.run_s)
        else:
            limit_s = self._books.manners.launch_timeout_s
            self._events.after(limit_s, partial(self._launch_failed, job, restart))

    def _launch_failed(self, job: SimJob, restart: int) -> None:
        if _configuring(job, restart):
            self.requeue(job, self._books.manners.requeue_delay_s)

    def _on_metal(self, job: SimJob) -> bool:
        nodes = self._books.nodes
        return any(name in nodes and nodes[name].host is not None for name in job.nodes)

    # --- suspend, requeue, end ------------------------------------------------------------

    def suspend(self, job: SimJob, by: str = "") -> None:
        """Stop the job's clock now, and its processes as soon as they can be reached.

        `by`: who it was, if not we.
        """
        job.suspended_by = by
        job.paid_s += self._events.now_s - job.clock_s
        job.state = JobState.SUSPENDED
        job.stop_failed = any(self._books.nodes[name].lost for name in job.nodes)
        self._signal(job)

    def resume(self, job: SimJob) -> None:
        """Let it go on, even where its CPUs were given to others meanwhile (as Slurm does)."""
        job.state, job.clock_s, job.suspended_by = JobState.RUNNING, self._events.now_s, ""
        self.watch_limit(job)
        self._signal(job)

    def _signal(self, job: SimJob) -> None:
        for name in job.nodes:
            self._books.refresh(self._books.nodes[name])
        run = self._machines.find(job.id, job.restarts)
        if run is not None and all(machine.answering for machine in run.machines):
            self._machines.signal(run, stopped=job.state is JobState.SUSPENDED)

    def requeue(self, job: SimJob, delay_s: float, *, held: bool = False) -> None:
        """Back to PENDING; eligible after `delay_s`, or never while held."""
        self._give_up(job)
        job.state, job.configuring = JobState.PENDING, False
        job.held, job.held_by_owner = held, False
        job.restarts += 1
        job.eligible_s = self._events.now_s + delay_s
        if not job.completing:
            job.nodes = ()
        self.wait(job)

    def end_by_itself(self, job: SimJob, after_s: float) -> None:
        """Let it heed a signal: its processes end of their own accord in a moment."""
        restart = job.restarts

        def ends() -> None:
            if job.state in ACTIVE and job.restarts == restart and not job.configuring:
                self.end(job, JobState.FAILED)

        self._events.after(after_s, ends)

    def end(self, job: SimJob, state: JobState) -> None:
        """End the job; where its nodes do not answer it hangs in COMPLETING."""
        nodes, was_on_metal = job.nodes, self._on_metal(job)
        if job.state is not JobState.PENDING:
            self._give_up(job)
        job.state, job.configuring, job.end_s = state, False, self._events.now_s
        self._events.after(self._books.manners.job_age_s, partial(self._forget, job))
        if self.on_ended is not None and was_on_metal:
            self._events.after(0.0, partial(self.on_ended, job.view(), nodes))

    def confirm(self, job: SimJob, node: SimNode) -> None:
        """Confirm that the node has nothing of the job any more; with the last one the job is through."""
        if node.name not in job.completing:
            return
        job.completing = tuple(name for name in job.completing if name != node.name)
        node.jobs.pop(job.id, None)
        self._books.refresh(node)
        if not job.completing and job.state is JobState.PENDING:
            job.nodes = ()
            self.wait(job)

    def _give_up(self, job: SimJob) -> None:
        """Free its nodes; a copy that cannot be reached stays where it is: it is stale now."""
        if job.limit is not None:
            job.limit.cancel()
        run = self._machines.find(job.id, job.restarts)
        if run is not None:
            reached = [machine for machine in run.machines if machine.answering]
            run.stale = len(reached) < len(run.machines)
            for machine in reached:
                self._machines.lose(run, machine)
        job.completing = () if job.configuring else tuple(filter(self._unreachable, job.nodes))
        for name in job.nodes:
            node = self._books.nodes.get(name)
            if node is not None and name not in job.completing:
                node.jobs.pop(job.id, None)
            if node is not None:
                self._books.refresh(node)

    def _unreachable(self, name: str) -> bool:
        machine = self._machines.serving.get(name)
        return name in self._books.nodes and (machine is None or not machine.answering)

    def _forget(self, job: SimJob) -> None:
        if job.completing:
            self._events.after(self._books.manners.job_age_s, partial(self._forget, job))
        else:
            self._books.known.pop(job.id, None)

    def watch_limit(self, job: SimJob) -> None:
        """Set the alarm for the job's time limit anew."""
        if job.limit is not None:
            job.limit.cancel()
        if job.time_limit_s is not None:
            left_s = job.time_limit_s - job.paid_s
            job.limit = self._events.at(job.clock_s + left_s, partial(self._too_long, job))

    def _too_long(self, job: SimJob) -> None:
        if job.state is JobState.RUNNING and self._books.up:
            self.on_too_long(job)
            self.end(job, JobState.TIMEOUT)


def _configuring(job: SimJob, restart: int) -> bool:
    return job.state is JobState.RUNNING and job.configuring and job.restarts == restart


def _fits(job: SimJob, node: SimNode, now_s: float) -> bool:
    if job.partition not in node.partitions:
        return False
    limit_s = inf if job.time_limit_s is None else job.time_limit_s
    if node.reservations and node.kept_before(now_s + limit_s):
        return False
    if job.required_nodes and node.name not in job.required_nodes:
        return False
    if (
        node.within != job.within
        or (node.within and node.owner != job.user)
        or node.pinned not in ("", job.id)
        or (job.pins and node.name not in job.pins)
    ):
        return False
    if job.features and not set(job.features.replace("&", ",").split(",")) <= set(node.features):
        return False
    free_cpus = node.cpus - node.cpus_used
    if job.exclusive and node.cpus_used:
        return False
    if not job.memory_mb and node.memory_used_mb:
        return False  # it wants all of the memory
    return job.cpus_per_node <= free_cpus and job.memory_mb <= node.memory_mb - node.memory_used_mb
