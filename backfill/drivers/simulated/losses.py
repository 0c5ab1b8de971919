"""Judges every copy of a job's work that we destroy, and every job that we end: whose deed, why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

from backfill.core.model.cluster import ACTIVE, JobState
from backfill.core.model.fleet import IN_MEMORY, InstanceState, Rung
from backfill.core.policies.ladder import RungRule
from backfill.core.policy import PolicySet
from backfill.drivers.simulated.clock import WallClock
from backfill.drivers.simulated.events import EventQueue
from backfill.drivers.simulated.hypervisor.hardware import SimHost, SimInstance, SimMachine, SimRun
from backfill.drivers.simulated.hypervisor.machines import Machines
from backfill.drivers.simulated.slurm.books import Books
from backfill.drivers.simulated.slurm.model import SimJob, SimNode

# What was so a moment before somebody decided may have been decided upon: readings take time.
_MOMENT_S = 15.0
# A rung counts from the order to stop, which may take longer than it should.
_STOPPING_S = 5.0
# A time limit that runs out while we keep the job from its CPUs for less was close anyway.
_KEPT_FROM_S = 60.0
# So long after its start a job may be put back that has no business where it is.
_JUST_BEGUN_S = 65.0
# So long after an admin has lifted a drain of ours it may be drained anew: a reading, and some calls.
_REACTS_S = 10.0
# So much may pass between the last question and the thaw.
_A_CALL_S = 1.0


@dataclass(frozen=True, slots=True)
class Deed:
    """The call of a port that is under way, and the knowledge behind it.

    `decided_s`: when it was begun. `order`: an admin's order that gives up what is there.
    `pressed`: why the instance has to leave its host, other than for what Slurm does there.
    `barred_s`: until then a budget lets no instance work.
    """

    who: str
    why: str = ""
    decided_s: float | None = None
    policies: PolicySet | None = None
    order: str | None = None
    pressed: str | None = None
    barred_s: float = 0.0


# Who else calls the ports: a test, in an admin's place.
_NOBODY = Deed("a call of the port")


class Losses:
    """Complains of each loss that none of the exceptions below allows.

    Work is intact while Slurm still holds that very run of the job: active, same restart count. A
    copy that is stale, gone, or gone in part is no loss. Else there are six exceptions, a method each:
    `_host_dead`, `_ordered`, `_silent`, `_stranger`, `_patience_over` and `_ladder_names_it`.
    """

    def __init__(
        self,
        events: EventQueue,
        books: Books,
        hosts: dict[str, SimHost],
        complain: Callable[[str, str], None],
        wall: WallClock,
    ) -> None:
        self.machines: Machines | None = None
        self._wall = wall
        self._events, self._books, self._hosts = events, books, hosts
        self._complain = complain
        self._deed = _NOBODY
        self._destroyed: set[tuple[str, int]] = set()  # without an excuse

    @contextmanager
    def doing(self, deed: Deed) -> Iterator[None]:
        """Mark everything that happens meanwhile as this deed."""
        before, self._deed = self._deed, deed
        try:
            yield
        finally:
            self._deed = before

    @property
    def suspender(self) -> str:
        """Return the one who would suspend a job now; empty: the daemon."""
        return self._deed.who if self._deed is _NOBODY else ""

    # --- what is looked at ---------------------------------------------------------------------

    def instance_goes(self, instance: SimInstance) -> None:
        """Judge that an instance is about to be deleted or replaced, with all copies in it."""
        runs = instance.machine.runs
        kept = "in memory" if instance.state in IN_MEMORY else "on disk"
        for run in runs:
            self._judge(run, f"instance {instance.spec.name}, {instance.state} ({kept}), goes", runs)

    def job_goes(self, job: SimJob, how: str) -> None:
        """Judge that a job is about to be put back into the queue, or ended, by us; `how`: our call."""
        run = self._run_of(job)
        if run is not None:
            self._judge(run, how, (run,))
        if how == "requeue":
            return
        if job.state is JobState.PENDING or (job.id, job.restarts) in self._destroyed:
            self._complain("cancelled", f"job {job.id} was ended: {how}{self._told()}")

    def node_goes(self, node: SimNode) -> None:
        """Judge that a node is about to be set DOWN: Slurm puts its jobs back, or ends them."""
        for job in node.jobs.values():
            if job.state in ACTIVE and not job.configuring:
                self.job_goes(job, "requeue" if job.requeue else "node DOWN")

    def checkpoint_goes(self, runs: Iterable[tuple[str, int]], identity: str) -> None:
        """Judge that a checkpoint is about to be deleted: it may be all that is left of a run."""
        for id_, restart in runs:
            job = self._books.jobs[id_]
            held = job.state in ACTIVE and job.restarts == restart and not job.configuring
            if held and self._run_of(job) is None and not self._deed.order:
                self._complain(
                    "destroyed",
                    f"checkpoint {identity}, all that was left of job {id_} "
                    f"(restart {restart}), goes{self._told()}",
                )

    def resumed(self, job: SimJob) -> None:
        """Judge that a job that was suspended is let go on: whose suspension was it?"""
        if job.suspended_by and self.suspender == "":
            self._complain(
                "undone", f"job {job.id} was suspended by {job.suspended_by} and resumed by us{self._told()}"
            )

    def goes_on(self, machine: SimMachine, stood_s: float, but: Iterable[SimRun] = ()) -> None:
        """Judge that copies on a machine, all `but` these, get CPU again after it stood still for so long."""
        policies = self._deed.policies
        if policies is None or not policies.workloads.entries:
            return
        for run in machine.runs:
            job = self._books.jobs[run.job]
            patience_s = policies.workloads.patience_s(job.view())
            late = patience_s is not None and stood_s > patience_s + _A_CALL_S
            if late and job.state in ACTIVE and not (run.finished or run in but):
                self._complain(
                    "late",
                    f"job {job.id} on {machine.node} went on after {stood_s:.1f} s, and could stand still "
                    f"for {patience_s:.0f} s{self._told()}",
                )

    def too_long(self, job: SimJob) -> None:
        """Its time limit is over: has it been kept from its CPUs by us, with Slurm's clock on?"""
        run, now_s = self._run_of(job), self._events.now_s
        still = [m for m in run.machines if not m.metal and m.powered and not m.on] if run else []
        since_s = max([self._books.up_since_s, *(m.stopped_at_s for m in still)])
        if still and now_s - since_s >= _KEPT_FROM_S:
            self._complain(
                "timeout",
                f"job {job.id} on {still[0].node} ended by its time limit, which went "
                f"on for {now_s - since_s:.0f} s in which its instance stood still",
            )

    def before_start(self, job: SimJob) -> None:
        """CPUs of a job that we suspended are not for another: both would go on at once.

        Who lifts our drain opens them, until we have had time to read that and to close them again,
        for which slurmctld has to be up.
        """
        for name in job.nodes:
            node = self._books.nodes[name]
            now_s = self._events.now_s
            seen_s = None if node.opened_s is None else max(node.opened_s, self._books.up_since_s)
            if seen_s is not None and now_s < seen_s + _REACTS_S:
                continue
            others = [j for j in node.jobs.values() if j.suspended_here and j is not job]
            used = node.cpus_used + sum(j.cpus_per_node for j in others)
            if node.host is None and others and used > node.cpus:
                self._complain(
                    "second",
                    f"job {job.id} was started on {name}, whose CPUs belong to job "
                    f"{', '.join(j.id for j in others)} that we had suspended",
                )

    # --- judging -------------------------------------------------------------------------------

    def _run_of(self, job: SimJob) -> SimRun | None:
        return self.machines.whole(job.id, job.restarts) if self.machines is not None else None

    def _is_stale(self, run: SimRun) -> bool:
        """Return True if a copy would run a second time if it ran: Slurm has given up its run."""
        job = self._books.jobs[run.job]
        return run.stale and not run.finished and job.restarts != run.restart

    def _judge(self, run: SimRun, what: str, going: Iterable[SimRun]) -> None:
        """Judge one run. `going`: all runs that go with it by this call."""
        job = self._books.jobs[run.job]
        held = job.state in ACTIVE and job.restarts == run.restart and not (run.stale or run.broken)
        if not held or self._excuse(run, going):
            return
        self._destroyed.add((run.job, run.restart))
        done_s = run.done_s
        if run.since_s is not None:
            done_s += self._events.now_s - run.since_s
        where = ", ".join(f"{m.node} at {m.host}" for m in run.machines)
        fixed = "" if job.requeue else ", --no-requeue"
        self._complain(
            "destroyed",
            f"intact work of job {job.id} (restart {run.restart}, {job.state}{fixed}, "
            f"{done_s:.0f} of {run.needed_s:.0f} s done, on {where}) was destroyed: "
            f"{what}{self._told()}",
        )

    def _told(self) -> str:
        deed = self._deed
        since = "" if deed.decided_s is None else f", begun at {deed.decided_s:.3f}"
        return f"; by {deed.who}{since}: {deed.why or 'no reason was given'}"

    def _excuse(self, run: SimRun, going: Iterable[SimRun]) -> str:
        """Name the exception that allows this loss, or return an empty text."""
        rules = (
            self._host_dead,
            self._ordered,
            self._silent,
            self._stranger,
            self._patience_over,
            self._outer_over,
        )
        found = next((rule.__name__ for rule in rules if rule(run)), "")
        return found or (self._ladder_names_it.__name__ if self._ladder_names_it(run, going) else "")

    # --- the exceptions ------------------------------------------------------------------------

    def _host_dead(self, run: SimRun) -> bool:
        """Its host has really lost its power: what is on it runs nowhere."""
        return any(not machine.powered for machine in run.machines)

    def _ordered(self, run: SimRun) -> bool:
        """Return True if an admin's order gives it up: a host said to be off, room wanted back for good."""
        return bool(self._deed.order)

    def _silent(self, run: SimRun) -> bool:
        """Its guest, which runs, is really cut off from Slurm, for as long as makes it dead."""
        policies = self._deed.policies
        after_s = policies.liveness.down_after_s if policies is not None else 0.0
        return after_s > 0.0 and any(
            m.on and not m.connected and self._decided_s - m.silent_s >= after_s - 1.0 for m in run.machines
        )

    def _stranger(self, run: SimRun) -> bool:
        """Return True if it has just begun where it may not be at all, and may begin anew.

        On an image that its owner may not have, or on a node that is kept for another job.
        """
        policies, job = self._deed.policies, self._books.jobs[run.job]
        if policies is None or not job.requeue or self._events.now_s > job.start_s + _JUST_BEGUN_S:
            return False
        if any(self._kept_for_another(job, m.node) for m in run.machines):
            return True
        places = (self._hosts[m.host].instances.get(m.node) for m in run.machines)
        images = [place.spec.image for place in places if place is not None]
        return any(policies.environments.keeps_out(image, job.view()) for image in images)

    def _kept_for_another(self, job: SimJob, name: str) -> bool:
        """Return True if a reservation keeps the node for one job, and for none of this one's kind."""
        node = self._books.nodes.get(name)
        if node is None:
            return False
        return node.pinned not in ("", job.id) or (bool(node.within) and node.owner != job.user)

    def _patience_over(self, run: SimRun) -> bool:
        """Its workload says for how long it may stand still, and by the true time that is over.

        It may as well be given back where somebody has the host who stays for longer than that, or
        where nobody may work for so long.
        """
        policies, job = self._deed.policies, self._books.jobs[run.job]
        patience_s = None if policies is None else policies.workloads.patience_s(job.view())
        if policies is None or patience_s is None:
            return False
        for machine in run.machines:
            # Stops soon after one another count together.
            stood_s = machine.stood_s + machine.stood_in_s(self._decided_s)
            # Until its guest has answered after a stop nobody knows that its jobs go on.
            unheard_s = self._decided_s if machine.unheard_s is None else machine.unheard_s
            stood_s = max(stood_s, self._decided_s - unheard_s)
            kept_s = max(self._taken_for_s(machine.host), self._deed.barred_s - self._decided_s)
            if stood_s >= patience_s - _STOPPING_S or kept_s > patience_s - stood_s:
                return True
        return False

    def _taken_for_s(self, host: str) -> float:
        """For how long the jobs that have the host's own node may stay there from now on.

        Slurm ends a job by the machine's clock: set back, it lets those that began before stay longer.
        """
        node = self._books.nodes.get(self._hosts[host].node or "")
        jobs = () if node is None else node.jobs.values()
        ends = [
            inf if j.time_limit_s is None else j.start_s + self._back_s(j.start_s) + j.time_limit_s
            for j in jobs
        ]
        return max(ends, default=self._decided_s) - self._decided_s

    def _back_s(self, since_s: float) -> float:
        """By how much the machine's clock was set back since then; 0 where it was set forward."""
        return max(0.0, self._wall.at(since_s) - since_s - self._wall.ahead_s)

    def _outer_over(self, run: SimRun) -> bool:
        """Return True if it is in the machines of a job that is over, for which its owner started it."""
        within = self._books.jobs[run.job].within
        return bool(within) and self._books.jobs[within].state not in ACTIVE

    def _ladder_names_it(self, run: SimRun, going: Iterable[SimRun]) -> bool:
        """Return True if the policy's ladder ends with `requeue`, in so many words, and it is that far.

        The host is really wanted, or was a moment ago, or the copy may never run again because of
        another in the same memory; all jobs that go with it may start over; and what stands still
        has stood for as long as the ladder says, by the true time.
        """
        policies = self._deed.policies
        if policies is None or all(r.rung is not Rung.REQUEUE for r in self._rungs_for(run, policies)):
            return False
        if not all(self._books.jobs[r.job].requeue for r in going if not self._is_stale(r)):
            return False
        places = [m for m in run.machines if self._deed.pressed or self._stays(m)]
        return any(self._stood_enough(m, policies) for m in places)

    def _rungs_for(self, run: SimRun, policies: PolicySet) -> tuple[RungRule, ...]:
        beside = {job for machine in run.machines for job in self._waiting_on(machine)}
        return self._rungs(beside | {run.job}, policies)

    def _waiting_on(self, machine: SimMachine) -> set[str]:
        """Return the jobs whose ladder counts there: a stale copy, and one of an ended job, wait no more."""
        there = {run.job for run in machine.runs if not self._is_stale(run)}
        return {job for job in there if self._books.jobs[job].state in ACTIVE}

    def _rungs(self, jobs: Iterable[str], policies: PolicySet) -> tuple[RungRule, ...]:
        """Return the ladder of the workload of these jobs that has the least patience."""
        found = policies.workloads.shortest(self._books.jobs[job].view() for job in sorted(jobs))
        return policies.ladder_of("" if found is None else found.name).rungs

    @property
    def _decided_s(self) -> float:
        decided_s = self._deed.decided_s
        return self._events.now_s if decided_s is None else decided_s

    def _stays(self, machine: SimMachine) -> bool:
        """Its host is wanted, or another copy in its memory keeps it from going on there."""
        return any(self._is_stale(run) for run in machine.runs) or self._wanted(machine.host)

    def _wanted(self, host: str) -> bool:
        """Slurm uses the host's own node, or keeps others from it, or did so a moment ago."""
        node = self._books.nodes.get(self._hosts[host].node or "")
        if node is None:
            return True  # a host of somebody else: only orders and limits push anybody from it
        if node.jobs or node.drain is not None or node.down or node.reservations:
            return True
        if node.maintenance_s or node.planned_s:
            return True
        since_s = self._decided_s - _MOMENT_S
        known = self._books.known.values()
        return any(j.end_s >= since_s and node.name in j.nodes for j in known)

    def _stood_enough(self, machine: SimMachine, policies: PolicySet) -> bool:
        instance = self._hosts[machine.host].instances.get(machine.node)
        if instance is None or policies.gaps.foresee or policies.gaps.clear_before_s:
            return True
        stays = {InstanceState.PAUSED: Rung.PAUSE, InstanceState.SUSPENDED: Rung.SUSPEND}
        rung = stays.get(instance.state)
        rungs = self._rungs(self._waiting_on(machine), policies)
        rule = next((r for r in rungs if r.rung is rung), None)
        if rule is None:
            return True
        if rule.for_s is None:
            return False
        stood_s = self._decided_s - machine.stopped_at_s
        return stood_s >= rule.for_s - rule.within_s - _STOPPING_S
