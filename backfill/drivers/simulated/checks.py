"""The watchman of the simulation: notes every promise that is broken, with time and place."""

from __future__ import annotations

import math
from collections.abc import Iterator

from backfill.core.model.cluster import ACTIVE, ENDED, JobState
from backfill.drivers.simulated.events import EventQueue
from backfill.drivers.simulated.hypervisor.hardware import (
    Count,
    Marks,
    SimHost,
    SimInstance,
    SimMachine,
    SimRun,
    Violation,
)
from backfill.drivers.simulated.hypervisor.machines import ROUNDING, Machines
from backfill.drivers.simulated.slurm.books import Books
from backfill.drivers.simulated.slurm.model import SimJob


class Checks:
    """Looks at every start of a job and of an instance; complaints only add up."""

    def __init__(self, events: EventQueue, books: Books, hosts: dict[str, SimHost]) -> None:
        self.violations: list[Violation] = []
        self.shared = False  # whether jobs may start beside instances that leave them room
        self.overcommit = 1.0  # so many CPUs of instances for each CPU of a host
        self._events = events
        self._books = books
        self._hosts = hosts
        self.marks = Marks()  # of whoever is on one of the hosts

    def complain(self, kind: str, text: str) -> None:
        """Note a broken promise."""
        self.violations.append(Violation(self._events.now_s, kind, text))

    def stale_copy(self, run: SimRun, machine: SimMachine) -> None:
        """Find a thawed copy of a job that Slurm has put back into the queue or started elsewhere.

        A job that ended for good in this restart cannot run a second time: slurmd clears it away.
        """
        job = self._books.jobs[run.job]
        if job.state in ENDED and job.restarts == run.restart:
            return
        how = "stopped inside it" if run.stopped else f"running after {run.done_s:.1f} s of work"
        self.complain(
            "stale",
            f"job {run.job} ran twice: its stale copy (restart {run.restart}) on {machine.node} "
            f"got CPU again on host {machine.host}, {how}; Slurm has restart {job.restarts}, "
            f"{job.state}",
        )

    def two_copies(self, run: SimRun, other: SimRun) -> None:
        """Find a job that computes in two places."""
        self.complain(
            "twice",
            f"job {run.job} ran twice: restart {run.restart} on {run.machines[0].node} "
            f"and restart {other.restart} on {other.machines[0].node} at once",
        )

    def before_start(self, job: SimJob) -> None:
        """Room must be free: no instance has CPU on the job's hosts, and memory is enough."""
        for name in job.nodes:
            host = self._hosts.get(self._books.nodes[name].host or "")
            if host is None:
                continue
            others = self._books.nodes[name].jobs.keys() - {job.id}
            alive = [
                i
                for i in host.instances.values()
                if i.machine.alive and not i.machine.throttled and i.spec.inside not in others
            ]
            used = self._books.nodes[name].cpus_used + sum(i.spec.flavour.cpus for i in alive)
            for instance in alive:
                if not self.shared or used > host.capacity.cpus:
                    self.complain(
                        "room",
                        f"job {job.id} started on {name} {self._events.now_s - job.start_s:.3f} s "
                        f"after its allocation while instance {instance.spec.name} still had CPU",
                    )
            if job.memory_mb > host.free_memory_mb:
                self.complain(
                    "room",
                    f"job {job.id} started on {name} and needs {job.memory_mb} MB while instances "
                    f"leave {host.free_memory_mb} MB",
                )

    def when_running(self, instance: SimInstance) -> None:
        """Check an instance that was made, thawed or moved: it must be alone of its kind, and have room."""
        for other in self.marks.alike(instance, self._hosts):
            if other.machine.powered:  # of a host without power its definition is left, at the most
                self._compare(instance, other)
        if instance.machine.alive:
            self._crowds(instance)
            self._overfills(self._hosts[instance.host])

    def _compare(self, instance: SimInstance, other: SimInstance) -> None:
        name, twin = instance.spec.name, other.spec.name
        where = f"on {instance.host} and {other.host}"
        if name == twin:
            self.complain("double-name", f"two instances are called {name}, {where}")
        if instance.spec.address == other.spec.address:
            self.complain(
                "double-name",
                f"instances {name} and {twin} have the address {instance.spec.address}, {where}",
            )
        same = instance.spec.tag.node == other.spec.tag.node
        if same and instance.machine.alive and other.machine.alive:
            self.complain("double-host", f"node {instance.spec.tag.node} runs in two instances, {where}")

    def _crowds(self, instance: SimInstance) -> None:
        host = self._hosts[instance.host]
        node = self._books.nodes.get(host.node or "")
        there = {} if node is None else node.jobs
        outer = self._books.jobs.get(instance.spec.inside)
        if outer is not None and outer.state in ACTIVE and outer.id not in there:
            self.complain(
                "room",
                f"instance {instance.spec.name} got CPU on {host.name}, which is not job "
                f"{instance.spec.inside}'s, whose machine it is",
            )
        started = [j for j in there.values() if _started(j) and j.id != instance.spec.inside]
        given_mb = sum(job.memory_mb for job in started)
        if given_mb > max(0, host.free_memory_mb):
            self.complain(
                "room",
                f"instance {instance.spec.name} got CPU on {host.name}, whose jobs have {given_mb} MB, "
                f"while instances leave {host.free_memory_mb} MB",
            )
        cpus = sum(job.cpus_per_node for job in started) + instance.spec.flavour.cpus
        if started and cpus > host.capacity.cpus:
            self.complain(
                "room",
                f"instance {instance.spec.name} got CPU on {host.name} while job "
                f"{', '.join(job.id for job in started)} runs there",
            )

    def _overfills(self, host: SimHost) -> None:
        """Instances on one host must not take more than it has."""
        there = [i for i in host.instances.values() if i.machine.alive and not i.machine.throttled]
        cpus = sum(i.spec.flavour.cpus for i in there)
        most = int(host.capacity.cpus * self.overcommit)
        if cpus > most or host.free_memory_mb < 0:
            self.complain(
                "overfull",
                f"{', '.join(sorted(i.spec.name for i in there))} take {cpus} of {most} CPUs of "
                f"{host.name} and leave {host.free_memory_mb} MB",
            )
        # Not of their CPUs: of two calls that overtake one another the later one may find too few.
        for node in host.numa:
            bound = [one for one in host.instances.values() if one.view().numa == node.number]
            held_mb = sum(one.spec.flavour.memory_mb for one in bound)
            if held_mb > node.memory_mb:
                names = ", ".join(sorted(one.spec.name for one in bound))
                self.complain(
                    "overfull", f"{names} hold {held_mb} MB of NUMA node {node.number} of {host.name}"
                )

    def gaps(self, tally: list[Count], every_s: float) -> list[str]:
        """List the gaps in the numbers that each attempt of each job wrote."""
        found: list[str] = []
        last: dict[tuple[str, int], int] = {}
        for count in tally:
            key = (count.job, count.restart)
            wanted = last.get(key, 0) + 1
            if count.i != wanted:
                found.append(f"job {count.job}, restart {count.restart}: {count.i} instead of {wanted}")
            last[key] = count.i
        for job in self._books.jobs.values():
            end = math.floor(job.run_s / every_s + ROUNDING)
            counted = last.get((job.id, job.restarts), 0)
            if job.state is JobState.COMPLETED and counted != end:
                found.append(f"job {job.id} ended at {counted} instead of {end}")
        return found

    def lost(self, machines: Machines) -> Iterator[Violation]:
        """Jobs that Slurm believes active and that no machine has; jobs Slurm has forgotten."""
        for job in self._books.jobs.values():
            if job.state in ENDED or job.configuring or job.submit_s > self._events.now_s:
                continue
            text = ""
            if job.id not in self._books.known:
                text = f"job {job.id} is lost: it has not ended and Slurm does not know it"
            elif job.state in ACTIVE and machines.whole(job.id, job.restarts) is None:
                text = (
                    f"job {job.id} is lost: Slurm shows it {job.state} on {','.join(job.nodes)} "
                    "and no whole copy of it exists"
                )
            if text:
                yield Violation(self._events.now_s, "lost", text)


def _started(job: SimJob) -> bool:
    return job.state is JobState.RUNNING and not job.configuring
