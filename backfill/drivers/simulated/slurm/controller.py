"""The simulated slurmctld's view of its nodes: contact, silence, registration, DOWN."""

from __future__ import annotations

from functools import partial

from backfill.core.model.cluster import JobState
from backfill.drivers.simulated.events import EventQueue
from backfill.drivers.simulated.hypervisor.hardware import SimMachine, SimRun
from backfill.drivers.simulated.hypervisor.machines import Machines
from backfill.drivers.simulated.slurm.books import Books
from backfill.drivers.simulated.slurm.jobs import JobControl
from backfill.drivers.simulated.slurm.model import SimNode


class NodeControl:
    """Everything that happens to nodes; it is the Listener of the machines."""

    def __init__(self, events: EventQueue, machines: Machines, books: Books, jobs: JobControl) -> None:
        self._events = events
        self._machines = machines
        self._books = books
        self._jobs = jobs

    def add(self, node: SimNode) -> None:
        """Make the node known; its slurmd may already be waiting."""
        self._books.add_node(node)
        machine = self._machines.serving.get(node.name)
        if machine is not None and machine.answering:
            self.register(machine)

    def down(self, node: SimNode, reason: str, *, holds: bool) -> None:
        """DOWN: jobs are requeued, or fail where that is forbidden.

        `holds`: suspended ones are held then, as Slurm does by itself (measured).
        """
        node.down, node.reason = True, reason
        delay_s = self._books.manners.requeue_delay_s
        for job in tuple(node.jobs.values()):
            if job.state in (JobState.RUNNING, JobState.SUSPENDED):
                if job.requeue:
                    held = holds and job.state is JobState.SUSPENDED
                    self._jobs.requeue(job, delay_s, held=held)
                else:
                    self._jobs.end(job, JobState.NODE_FAIL)
            self._jobs.confirm(job, node)
        self._books.refresh(node)

    def stop(self) -> None:
        """slurmctld is down: nothing is started, nothing is heard."""
        self._books.up = False

    def start(self) -> None:
        """slurmctld is back: it meets every node again."""
        self._books.up, self._books.up_since_s = True, self._events.now_s
        for node in tuple(self._books.nodes.values()):
            machine = self._machines.serving.get(node.name)
            if machine is not None and machine.answering:
                self.answers(machine, registers=True)
            else:
                self._listen(node)
        for job in self._books.known.values():
            if job.state is JobState.RUNNING:
                self._jobs.watch_limit(job)
        self._jobs.kick()

    def look_at(self, node: SimNode, address: str) -> None:
        """Look for its slurmd at `address` from now on."""
        node.address = address
        machine = self._machines.serving.get(node.name)
        if machine is not None:
            machine.findable = not node.lost
            self._machines.update(machine)
        self._books.refresh(node)

    # --- Listener -------------------------------------------------------------------------

    def answers(self, machine: SimMachine, *, registers: bool) -> None:
        """Contact: late orders are delivered, and a slurmd that registers is believed."""
        node = self._books.nodes.get(machine.node)
        if node is None or not self._books.up:
            return
        self._stop_listening(node)
        self._deliver(node, machine)
        if registers or not node.registered:
            self.register(machine)
        elif node.silent or node.down:
            ping = partial(self.register, machine)
            node.watch = [self._events.after(self._books.manners.ping_s, ping)]
        else:
            self._settle(node, machine)

    def _deliver(self, node: SimNode, machine: SimMachine) -> None:
        for job in tuple(node.jobs.values()):
            run = self._machines.find(job.id, job.restarts)
            if run is not None and machine in run.machines and not run.stale:
                stopped = job.state is JobState.SUSPENDED and not job.stop_failed
                self._machines.signal(run, stopped=stopped)
                if run.finished:
                    self.finishes(run)
        for run in machine.runs:
            if run.stale:
                self._events.after(self._books.manners.stale_s, partial(self._reap, run, machine))

    def register(self, machine: SimMachine) -> None:
        """Let the machine's slurmd say which jobs it has; missing running ones are requeued."""
        node = self._books.nodes.get(machine.node)
        if node is None or not (self._books.up and machine.answering):
            return
        if self._seems_rebooted(node, machine):
            self.down(node, "Node unexpectedly rebooted", holds=True)
            return
        node.boot_time_s, node.heard_s = machine.booted_s, self._events.now_s
        node.registered, node.silent, node.down, node.reason = True, False, False, ""
        for job in tuple(node.jobs.values()):
            run = self._machines.find(job.id, job.restarts)
            missing = run is None or machine not in run.machines
            # Suspended jobs are not looked for (measured): they hang until somebody ends them.
            if missing and job.state is JobState.RUNNING and not job.configuring:
                self._jobs.requeue(job, self._books.manners.requeue_delay_s)
        self._settle(node, machine)
        self._books.refresh(node)

    def _seems_rebooted(self, node: SimNode, machine: SimMachine) -> bool:
        """By its uptime it was booted after its last answer (not looked at with 2: 22.05's rule).

        Without SlurmdTimeout a node that answers is asked for nothing between its registrations.
        """
        if self._books.manners.return_to_service == 2 or not node.heard_s or not node.registered:
            return False
        return machine.booted_s + machine.stood_s > node.heard_s

    def falls_silent(self, machine: SimMachine) -> None:
        """slurmctld notices by its pings, and gives the node up after SlurmdTimeout."""
        node = self._books.nodes.get(machine.node)
        serving = self._machines.serving.get(machine.node)
        if node is not None and self._books.up and serving is machine:
            self._listen(node)

    def finishes(self, run: SimRun) -> None:
        """End a copy that is through; slurmctld hears of it when it and the nodes can be reached."""
        if run.stale or not self._books.up:
            return
        if all(machine.answering for machine in run.machines):
            self._jobs.end(self._books.jobs[run.job], JobState.COMPLETED)

    # --- silence --------------------------------------------------------------------------

    def _listen(self, node: SimNode) -> None:
        self._stop_listening(node)
        node.watch = [self._events.after(self._books.manners.ping_s, partial(self._miss, node))]
        timeout_s = self._books.manners.slurmd_timeout_s
        if timeout_s:
            node.watch.append(self._events.after(timeout_s, partial(self._give_up, node)))

    def _stop_listening(self, node: SimNode) -> None:
        for event in node.watch:
            event.cancel()
        node.watch = []

    def _miss(self, node: SimNode) -> None:
        if self._books.up:
            node.silent = True
            self._books.refresh(node)

    def _give_up(self, node: SimNode) -> None:
        if self._books.up:
            self.down(node, "Not responding", holds=True)

    def _reap(self, run: SimRun, machine: SimMachine) -> None:
        if not machine.answering or not run.stale:
            return
        self._machines.lose(run, machine)
        node = self._books.nodes.get(machine.node)
        if node is not None:
            self._settle(node, machine)

    def _settle(self, node: SimNode, machine: SimMachine) -> None:
        """Confirm ends that the node had not confirmed, unless a stale copy lives on."""
        stale = {run.job for run in machine.runs if run.stale}
        for job in tuple(node.jobs.values()):
            if job.id not in stale:
                self._jobs.confirm(job, node)
