"""SlurmManager: the WorkloadManager port through squeue, scontrol and scancel (Slurm >= 22.05)."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil

from backfill.core.model.cluster import ACTIVE, ENDED, NOWHERE, OUR_REASON, Job, JobState, Node, NodeBase
from backfill.core.model.job_machines import with_word_of, without_word, word_of
from backfill.drivers.slurm import pilots
from backfill.drivers.slurm.access import Access, AccessRules, release
from backfill.drivers.slurm.checks import (
    JOB_ID,
    NODE_NAME,
    check_address,
    check_spec,
    checked,
    one_line,
    reason_text,
)
from backfill.drivers.slurm.commands import SlurmTools
from backfill.drivers.slurm.job_pins import inside_pin, pin_of, release_node, release_pin, reserve
from backfill.drivers.slurm.lookup import Lookup, Resolve, resolve
from backfill.drivers.slurm.reading.ahead import SHOW_RESERVATIONS
from backfill.drivers.slurm.reading.paths import ReadPath
from backfill.drivers.slurm.reading.reader import SlurmReader
from backfill.drivers.slurm.registration import ROOM_NODE, Dynamic, Registration
from backfill.ports.errors import BusyError, DriverError, NotFoundError, RefusedError, UnreachableError
from backfill.ports.workload import ClusterObservation, NodeSpec, PilotSpec

_POLL_S = 0.05
_RETURN_TO_SERVICE = re.compile(r"^ReturnToService\s*=\s*(\d)", re.MULTILINE)
_OPEN = {True: "State=IDLE", False: "State=UNDRAIN"}  # was it heard just now?
_PASSING = f"{ROOM_NODE}-0"  # made and taken away again
# How much later a requeued job may start whose node has not confirmed the end of the old run.
_LATER_S = 15
_HELD = "JobHeldAdmin"


class SlurmManager(SlurmReader):
    """Slurm through its tools. Safe from several threads.

    `settle_s` is how long a requeue waits for the node to confirm the old run's end (slurmd may
    take two seconds for a job that was just suspended); `path` is how it reads, if not as text.
    """

    def __init__(
        self,
        commands: SlurmTools | None = None,
        settle_s: float = 2.5,
        registration: Registration | None = None,
        path: ReadPath | None = None,
        resolve: Resolve = resolve,
        access: Sequence[Access] = (),
    ) -> None:
        super().__init__(commands or SlurmTools(), path)
        self._lookup = Lookup(self._commands, resolve)
        self._settle_s = settle_s
        self._registration = registration or Dynamic()
        self._access = AccessRules(access)

    # --- nodes ---------------------------------------------------------------------------------

    def create_node(self, spec: NodeSpec) -> None:
        """Make the node known and drained, so that its slurmd may register but no job comes yet."""
        check_spec(spec)
        self._registration.create(self, spec)
        self._access.keep(self, spec.name, spec.features)

    def delete_node(self, name: str) -> None:
        """Remove the node. BusyError while a job holds it."""
        checked(name, NODE_NAME, "node name")
        self._access.release(self, name)
        try:
            self._registration.delete(self, name)
        except BusyError:
            # A node of a reservation counts as busy: one of ours whose rule the policy has lost, or
            # one that is a job's own?
            if self.busy([name]) or not (release(self, name) | release_node(self, name)):
                raise
            self._registration.delete(self, name)

    def observe(self) -> ClusterObservation:
        """Read all nodes and all jobs that are pending, active or ended lately."""
        return self._shown(super().observe())

    def observe_nodes(self, names: Sequence[str]) -> ClusterObservation:
        """Read these nodes and every job on them, fresh and fast; absent nodes are unknown."""
        return self._shown(super().observe_nodes(names))

    def read_nodes(self, names: Sequence[str]) -> dict[str, Node]:
        """Read these nodes fresh; names that Slurm does not know are absent from the answer."""
        return self._registration.view(super().read_nodes(names))

    def _shown(self, seen: ClusterObservation) -> ClusterObservation:
        return replace(seen, nodes=self._registration.view(seen.nodes))

    # --- what a way of registering needs -------------------------------------------------------

    def raw_node(self, name: str) -> Node | None:
        """Read the node as Slurm shows it, nothing hidden."""
        return self.raw_nodes([name]).get(name)

    def raw_nodes(self, names: Sequence[str]) -> dict[str, Node]:
        """Those of these nodes that Slurm has, nothing hidden."""
        return super().read_nodes(names)

    def busy(self, names: Sequence[str]) -> dict[str, BusyError]:
        """Those of these nodes that a job holds, each with what is to be said."""
        holders: dict[str, list[str]] = {}
        for job in self.all_jobs().values() if names else ():
            for name in job.nodes if job.holds_nodes else ():
                holders.setdefault(name, []).append(job.id)
        return {
            name: BusyError(name, f"job {', '.join(sorted(holders[name]))} holds it")
            for name in names
            if name in holders
        }

    def drain(self, name: str, reason: str) -> None:
        """Take no new jobs; `reason` starts with OUR_REASON. RefusedError: another's drain."""
        if not reason.startswith(OUR_REASON):
            raise RefusedError(name, f"our drains are marked by a reason like '{OUR_REASON} ...'")
        node = self._node(name)
        if node.drained_by_others:
            raise RefusedError(name, f"somebody else drained it: {node.reason}")
        if not node.drained or node.reason != reason_text(reason):
            self.set_drain(name, reason)

    def undrain(self, name: str, *, heard: bool = False) -> bool:
        """Lift our own drain. RefusedError when the drain is somebody else's.

        UNDRAIN waits for a registration; IDLE (no jobs there, not DOWN) does not: 22.05 to 26.05.
        """
        node = self._node(name)
        if node.drained_by_others:
            raise RefusedError(name, f"somebody else drained it: {node.reason}")
        if node.drained:
            self._access.keep(self, name, node.features)  # whoever took the reservation away
            self._registration.proven(name)
            heard = heard and node.responding and node.base is NodeBase.IDLE
            self.scontrol(name, "update", f"NodeName={name}", _OPEN[heard])
        return node.drained and heard

    def nudge(self, name: str) -> None:
        """Make the scheduler look at an undrained node now instead of at its next full pass.

        UNDRAIN marks it NOT_RESPONDING until it has answered a ping; the pass that follows finds it
        so (22.05: the first job came 2 to 4 s late). Another update brings another pass.
        """
        deadline_s = time.monotonic() + self._settle_s
        while (node := self._node_or_none(name)) and time.monotonic() < deadline_s:
            if node.responding:
                self.scontrol(name, "update", f"NodeName={name}", f"NodeAddr={node.address}")
                return
            time.sleep(_POLL_S)

    def set_address(self, name: str, address: str) -> None:
        """Look for the node's slurmd at this bare IP; NOWHERE: what is sent to it fails at once.

        NotFoundError: no such node. RefusedError: no bare IP.
        """
        check_address(name, address)
        node = self._node(name)
        if node.address != address:
            self.scontrol(name, "update", f"NodeName={name}", f"NodeAddr={address}")

    def refresh_addresses(self, names: Sequence[str]) -> dict[str, str]:
        """Let slurmctld look up each NodeAddr that is a name and means another IP by now."""
        return self._lookup.refresh(self.read_nodes(names).values())

    def rebuild_partitions(self) -> None:
        """Let slurmctld work out anew which nodes its partitions have; needs room for one node.

        It does so when a node comes: one that never comes to anything is made and taken away. 22.05
        leaves nodes out in a reconfigure that stand behind a deleted one in its table.
        """
        if self.raw_node(_PASSING) is None:  # left by one who was killed here
            self.scontrol(_PASSING, "create", f"NodeName={_PASSING}", "NodeAddr=127.0.0.1", "State=FUTURE")
        self.scontrol(_PASSING, "delete", f"NodeName={_PASSING}")

    def vouch(self, name: str) -> None:
        """Let slurmctld take the node's next registration for no reboot; unknown: nothing.

        With ReturnToService=2 nothing is done. BusyError under another's drain, which stays.

        slurmctld reckons when a node was booted from its uptime, in which the time for which a
        guest stood still is missing. If that is after its last answer, and ReturnToService is 0 or
        1, the node was "unexpectedly rebooted": it is DOWN and its jobs fail. To lift a drain
        counts as an answer, from 22.05 to 26.05 (node_mgr.c). Meanwhile nobody finds the node, so
        that it gets no job: until it has really answered it is NOT_RESPONDING.
        """
        service = _RETURN_TO_SERVICE.search(self._commands.run(["scontrol", "show", "config"]))
        if service is None or service[1] == "2":
            return
        node = self._node_or_none(name)
        if node is None:
            return
        if node.drained_by_others:
            raise BusyError(
                name,
                f"somebody else drained it ({node.reason}), and with ReturnToService={service[1]} "
                "Slurm would take its return for a reboot",
                "lift that drain, or set ReturnToService=2 in slurm.conf",
            )
        reason = node.reason if node.drained and node.reason else f"{OUR_REASON} it stood still"
        self._address(node, NOWHERE)
        if not node.drained:
            self.set_drain(name, reason)
        self.scontrol(name, "update", f"NodeName={name}", "State=UNDRAIN")
        if node.drained:
            self.set_drain(name, reason)
        self._address(node, node.address)

    def _address(self, node: Node, address: str) -> None:
        """Change where its slurmd is looked for, unless nobody finds it there anyway."""
        if node.address not in ("", NOWHERE):
            self.scontrol(node.name, "update", f"NodeName={node.name}", f"NodeAddr={address}")

    def set_down(self, name: str, reason: str) -> None:
        """Mark the node DOWN; Slurm then requeues or ends its jobs.

        For nodes that are dead: with ReturnToService=2 one that lives is soon back by itself.
        Its requeued jobs are eligible at once, and a suspended one among them is not held. The reason of
        another's drain stays: with ours the drain would be lifted as ours.
        """
        node = self._node(name)
        if node.base is NodeBase.DOWN:
            return
        said = (node.reason or f"drained ({reason})") if node.drained_by_others else reason
        losers = [j for j in self.all_jobs().values() if j.holds_nodes and name in j.nodes]
        for job in losers:
            if job.state is JobState.SUSPENDED:
                self._wake_in_slurm(job.id)
        self.scontrol(name, "update", f"NodeName={name}", "State=DOWN", f"Reason={reason_text(said)}")
        asked_s = time.time()
        for job in self.read_jobs([job.id for job in losers]).values():
            self._hurry(job, asked_s)

    def set_drain(self, name: str, reason: str) -> None:
        """Drain, whatever the node's state."""
        said = f"Reason={reason_text(reason)}"
        self.scontrol(name, "update", f"NodeName={name}", "State=DRAIN", said)

    def _node(self, name: str) -> Node:
        node = self._node_or_none(name)
        if node is None:
            raise NotFoundError(name, "Slurm does not know this node")
        return node

    def _node_or_none(self, name: str) -> Node | None:
        return self.read_nodes([name]).get(name)

    # --- jobs ----------------------------------------------------------------------------------

    def suspend_job(self, job_id: str) -> bool:
        """Stop the job's clock; works while its node does not answer.

        Return False if it was suspended already, which Slurm's answer does not tell (22.05 to
        26.05): somebody else's call in the milliseconds between our look and ours counts as ours.
        NotFoundError when it has ended, BusyError while it is not running, RefusedError for one
        component of a heterogeneous job.
        """

        def suspended(job: Job) -> bool:
            return job.state is JobState.SUSPENDED

        if suspended(self._job(job_id)):
            return False
        return self._on_job(job_id, ["scontrol", "suspend"], suspended)

    def resume_job(self, job_id: str) -> None:
        """Let a suspended job go on. Errors as for `suspend_job`."""
        self._on_job(job_id, ["scontrol", "resume"], lambda j: j.state is JobState.RUNNING)

    def set_time_limit(self, job_id: str, limit_s: float) -> None:
        """Let the job run for so long in all, rounded up to a minute, whatever its partition says.

        An absolute limit, so that the call may be repeated. NotFoundError when it has ended.
        """
        self._update_job(job_id, f"TimeLimit={ceil(limit_s / 60)}")

    def requeue_job(self, job_id: str) -> None:
        """Back to PENDING and eligible at once. RefusedError for a --no-requeue job.

        A heterogeneous job is requeued as a whole: Slurm does not requeue one component.
        A job whose node does not confirm the end of the old run within `settle_s` becomes
        eligible 15 seconds later if the node answers by then, or at once by `set_down`.
        NotFoundError when the job has ended: a job that ended is never started again.
        """
        if self._job(job_id).state is JobState.SUSPENDED:
            self._wake_in_slurm(job_id)
        # "Incomplete": plain requeue would start a job anew that has ended in this moment.
        self._on_job(
            job_id,
            ["scontrol", "requeue", "Incomplete"],
            lambda j: j.state in (JobState.PENDING, JobState.RUNNING),
            _whole(job_id),
        )
        asked_s = time.time()
        deadline_s = time.monotonic() + self._settle_s
        job = self._job(job_id)
        while "COMPLETING" in job.flags and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
            job = self._job(job_id)
        if job.state in ENDED:
            raise NotFoundError(f"job {job_id}", f"it has ended ({job.state.value})")
        if "COMPLETING" in job.flags:
            self._begin(job_id, f"now+{_LATER_S}")
        self._hurry(job, asked_s)

    def cancel_job(self, job_id: str) -> None:
        """End the job."""
        try:
            self._commands.run(["scancel", checked(job_id, JOB_ID, "job id")], f"job {job_id}")
        except NotFoundError:
            return

    def hold_job(self, job_id: str) -> None:
        """See WorkloadManager; held by root or SlurmUser it is JobHeldAdmin."""
        self._pending(job_id)
        # Of a job whose partition has no node Slurm says no to each change, and makes it (22.05 to 26.05).
        self._on_job(job_id, ["scontrol", "hold"], lambda j: j.reason == _HELD, _whole(job_id))

    def pin_job(self, job_id: str, nodes: Sequence[str]) -> None:
        """See WorkloadManager."""
        job = self._pending(job_id)
        for name in nodes:
            self._node(checked(name, NODE_NAME, "node name"))
        reserve(self, pin_of(job_id), job, nodes)
        self._name_reservation(job_id, pin_of(job_id))

    def pin_inside(self, job_id: str, nodes: Sequence[str]) -> None:
        """See WorkloadManager; the pin is a reservation that is called `inside_pin(job_id)`."""
        job = self._job(job_id)
        if job.state in ENDED:
            raise NotFoundError(f"job {job_id}", "it has ended")
        if not job.active:
            raise BusyError(f"job {job_id}", f"it does not run ({job.state.value})")
        for name in nodes:
            self._node(checked(name, NODE_NAME, "node name"))
        reserve(self, inside_pin(job_id), job, nodes)

    def unpin_job(self, job_id: str) -> None:
        """See WorkloadManager."""
        checked(job_id, JOB_ID, "job id")
        with contextlib.suppress(NotFoundError):
            if self._job(job_id).state is JobState.PENDING:
                self._name_reservation(job_id, "")
        release_pin(self, job_id)

    def release_job(self, job_id: str) -> None:
        """See WorkloadManager."""
        if self._job(job_id).state in ENDED:
            raise NotFoundError(f"job {job_id}", "it has ended")
        self._on_job(job_id, ["scontrol", "release"], _released, _whole(job_id))

    def revoke_job(self, job_id: str, why: str) -> None:
        """See WorkloadManager; one that begins in this moment is left alone."""
        self._pending(job_id)
        with contextlib.suppress(RefusedError):  # somebody else's AdminComment
            self.tell(job_id, f"{OUR_REASON} {why}", aloud=True)
        target = checked(job_id, JOB_ID, "job id")
        self._commands.run(["scancel", "--state=PENDING", target], f"job {job_id}")
        if self._job(job_id).state in ACTIVE:
            raise BusyError(f"job {job_id}", "it has begun in this moment")

    def _pending(self, job_id: str) -> Job:
        """Return the job, which must be waiting."""
        job = self._job(job_id)
        if job.state in ENDED:
            raise NotFoundError(f"job {job_id}", f"it has ended ({job.state.value})")
        if job.state is not JobState.PENDING:
            raise BusyError(f"job {job_id}", f"it is {job.state.value}")
        return job

    def signal_job(self, job_id: str, signal: str) -> None:
        """See WorkloadManager; --full: of a batch job its script, too, and all that it has started."""
        if not re.fullmatch(r"[A-Z][A-Z0-9]{1,5}", signal):
            raise RefusedError(f"job {job_id}", f"{signal!r} is no signal's name", "use one such as TERM")
        target = checked(job_id, JOB_ID, "job id")
        if self._job(job_id).state is not JobState.RUNNING:
            raise BusyError(f"job {job_id}", "it does not run, so that no signal reaches it now")
        self._commands.run(["scancel", "--full", f"--signal={signal}", target], f"job {job_id}")

    def tell(self, job_id: str, text: str, over: str = "", *, aloud: bool = False) -> None:
        """See WorkloadManager; the owner's own Comment is never touched."""
        tell_owner(self._commands, job_id, text, over, aloud)

    def submit_pilot(self, pilot: PilotSpec) -> str:
        """See PilotSender."""
        return pilots.submit(self._commands, pilot)

    def withdraw_pilot(self, job_id: str) -> None:
        """See PilotSender."""
        pilots.withdraw(self._commands, job_id)

    def _hurry(self, job: Job, asked_s: float) -> None:
        """Lift the two minutes for which Slurm lets a job wait that was requeued at `asked_s`.

        But not within the same second: a node that ran it before refuses a credential that is not
        younger, in whole seconds, than the end of the old run, and Slurm then ends the job.
        """
        settled = job.state is JobState.PENDING and "COMPLETING" not in job.flags
        if settled and job.restarts > 0 and job.eligible_s > time.time():
            time.sleep(max(0.0, int(asked_s) + 1.02 - time.time()))
            self._begin(job.id, "now")

    def _wake_in_slurm(self, job_id: str) -> None:
        """Resume a job that is about to be requeued.

        Suspending takes a job's priority, and only resuming gives it back: requeued without, it
        would be held for ever (JobHeldAdmin), and we could not tell that from an admin's hold.
        """
        with contextlib.suppress(BusyError, NotFoundError):
            self._commands.run(["scontrol", "resume", _whole(job_id)], f"job {job_id}")

    def _begin(self, job_id: str, when: str) -> None:
        try:
            self._update_job(_whole(job_id), f"StartTime={when}")
        except (BusyError, RefusedError):
            if self._job(job_id).state is JobState.PENDING:
                raise  # otherwise it started in this moment, which is what we wanted

    def _name_reservation(self, job_id: str, name: str) -> None:
        """Have a pending job name this reservation, or none; a failure is none when it does."""
        try:
            self._update_job(job_id, f"ReservationName={name}")
        except UnreachableError:
            raise
        except DriverError:
            if _shown(self._commands, job_id, "reservation") != {name} - {""}:
                raise

    def _update_job(self, job_id: str, change: str) -> None:
        target = f"JobId={checked(job_id, JOB_ID, 'job id')}"
        self._commands.run(["scontrol", "update", target, change], f"job {job_id}")

    def _on_job(self, job_id: str, argv: list[str], done: Callable[[Job], bool], target: str = "") -> bool:
        """Run a command on a job; a failure is none when the job is as it should be: False is returned."""
        subject = f"job {job_id}"
        try:
            self._commands.run([*argv, checked(target or job_id, JOB_ID, "job id")], subject)
        except UnreachableError:
            raise
        except DriverError as error:
            # 22.05 says "Unexpected message received" for an unknown job and for a dead slurmctld.
            job = self._job(job_id)
            if done(job) and not isinstance(error, RefusedError):
                return False
            if job.state not in ACTIVE and isinstance(error, BusyError):
                raise BusyError(subject, f"it is {job.state.value}") from error
            raise
        return True

    def _job(self, job_id: str) -> Job:
        job = self.read_jobs([job_id]).get(job_id)
        if job is None:
            raise NotFoundError(f"job {job_id}", "Slurm does not know this job")
        return job

    def reservation_lines(self) -> list[str]:
        """Return all reservations as scontrol prints them, one a line."""
        lines = self._commands.run(SHOW_RESERVATIONS).split("\n")
        return [line for line in lines if line.startswith("ReservationName=")]

    def version(self) -> tuple[int, int]:
        """Return Slurm's release, such as (24, 11)."""
        return self.settings().version.major

    def scontrol(self, subject: str, *argv: str) -> None:
        """Run scontrol."""
        self._commands.run(["scontrol", *argv], subject)


def _released(job: Job) -> bool:
    return job.state in ACTIVE or (job.state is JobState.PENDING and not job.reason.startswith("JobHeld"))


def _whole(job_id: str) -> str:
    """Name a job; a component of a heterogeneous one stands for all of it, by its leader's number."""
    return job_id.partition("+")[0]


def tell_owner(commands: SlurmTools, job_id: str, text: str, over: str, aloud: bool) -> None:
    """See WorkloadManager.tell. The owner's Comment is never touched."""
    target = checked(job_id, JOB_ID, "job id")
    subject = f"job {job_id}"
    if aloud and "_" not in target:
        # Refused while the job is suspended; nobody may be there any more. scontrol reads the
        # number alone, which of a heterogeneous job is its leader's.
        with contextlib.suppress(DriverError):
            commands.run(["scontrol", "notify", target.partition("+")[0], one_line(text)], subject)
    lines = _shown(commands, target, "admin_comment")
    said = {plain for line in lines if (plain := without_word(line))}
    if over and said != {one_line(over)}:
        return  # something else has been said since
    theirs = sorted(line for line in said if not line.startswith(OUR_REASON))
    if theirs and (len(theirs) > 1 or not word_of(text)):
        raise RefusedError(subject, f"its AdminComment is somebody else's: {theirs[0][:100]}")
    words = () if word_of(text) else sorted({word_of(line) for line in lines} - {""})[:1]
    ours = " ".join(filter(None, (one_line(text), *words)))
    comment = with_word_of(theirs[0], ours) if theirs else ours
    try:
        commands.run(["scontrol", "update", f"JobId={target}", f"AdminComment={comment}"], subject)
    except UnreachableError:
        raise
    except DriverError:
        if _shown(commands, target, "admin_comment") != {comment} - {""}:
            raise


def _shown(commands: SlurmTools, target: str, what: str) -> set[str]:
    """Return what squeue shows of a job, of all its records: an array has several once a task has begun."""
    asked = ["squeue", "-h", "-j", target, "-O", f"{what}:"]
    return {line.strip() for line in commands.run(asked, f"job {target}").split("\n")} - {"", "(null)"}
