"""Steps and journal lines as sentences that an operator understands."""

from __future__ import annotations

import re
from typing import assert_never

from backfill.core.model import actions as act
from backfill.core.model import changes as ch
from backfill.core.model.cluster import NOWHERE
from backfill.core.model.plan import Action, AnswerClaim, EndClaim, ForgetNode, SetFleet, SetMachines, SetNode
from backfill.core.model.records import decode
from backfill.core.model.refusals import Refusal
from backfill.core.model.sentences import line
from backfill.core.world import World
from backfill.ports.storage import Record

_WORDS = re.compile(r"(?<!^)(?=[A-Z])")


def sentence(step: Action) -> str:
    """One line for one step: what, about whom, why."""
    return f"{_what(step)}: {step.reason}"


def _what(step: Action) -> str:
    match step:
        case SetNode(node=node):
            return f"{node.name}{f' on {node.host}' if node.host else ''} is now {node.phase}"
        case SetFleet():
            return f"{step.fleet.id} is {step.fleet.state}"
        case SetMachines(machines=own):
            return f"the machines of job {own.job} are {own.state}"
        case ForgetNode():
            return f"{step.name} is gone"
        case AnswerClaim():
            verdict = "the room is free" if step.ok else "the room is NOT proven free"
            return f"told job {step.job_id} that {verdict}"
        case EndClaim():
            return f"the claim of job {step.job_id}{' on ' if step.hosts else ''}{', '.join(step.hosts)} ends"
        case _:
            return _call(step)


def _call(step: act.DriverAction) -> str:
    if isinstance(step, act.SlurmAction):
        return _in_slurm(step)
    if isinstance(step, act.InstanceAction):
        return _on_instance(step)
    if isinstance(step, act.GuestAction):
        return _in_guest(step)
    if isinstance(step, act.DeviceAction):
        return _on_devices(step)
    return _more(step)


def _more(step: act.CheckpointAction | act.ParentAction | act.PilotAction) -> str:
    if isinstance(step, act.CheckpointAction):
        return _on_checkpoint(step)
    if isinstance(step, act.ParentAction):
        return _on_parents(step)
    if isinstance(step, act.PilotAction):
        return _on_pilot(step)
    assert_never(step)


def _in_slurm(step: act.SlurmAction) -> str:
    if isinstance(step, act.NodeAction):
        return f"{_on_node(step)} node {step.subject}"
    if isinstance(step, act.JobAction):
        return _on_job(step)
    return _for_own_machines(step)


def _on_node(step: act.NodeAction) -> str:
    match step:
        case act.CreateNode():
            return "create"
        case act.DeleteNode():
            return "delete"
        case act.DrainNode():
            return "drain"
        case act.UndrainNode():
            return "undrain"
        case act.SetAddress():
            return "hide" if step.address == NOWHERE else "show"
        case act.DownNode():
            return "down"
        case _:
            assert_never(step)


_VERBS: dict[type, str] = {
    act.SuspendJob: "suspend",
    act.ResumeJob: "resume",
    act.RequeueJob: "requeue",
    act.CancelJob: "cancel",
    act.KickJob: "kick",
}


def _on_job(step: act.JobAction) -> str:
    match step:
        case act.SuspendJob() | act.ResumeJob() | act.RequeueJob() | act.CancelJob() | act.KickJob():
            return f"{_VERBS[type(step)]} job {step.job_id} on {step.subject}"
        case act.LimitJob():
            return f"set the time limit of job {step.job_id} to {step.limit_s / 60:.0f} min"
        case act.WarnJob():
            return f"tell job {step.job_id} that its room goes"
        case act.TellJob():
            return f"tell the owner of job {step.job_id}"
        case _:
            assert_never(step)


def _for_own_machines(step: act.OwnMachinesAction) -> str:
    match step:
        case act.HoldJob():
            return f"hold job {step.job_id}"
        case act.PinJob():
            return f"keep {', '.join(step.nodes)} for job {step.job_id}"
        case act.UnpinJob():
            return f"keep nothing for job {step.job_id} any more"
        case act.ReleaseJob():
            return f"let job {step.job_id} go"
        case act.NameMachines():
            return f"tell job {step.job_id} of its machines"
        case act.EndInside():
            return f"end job {step.job_id} on {step.subject}, as job {step.of} is over"
        case act.RevokeJob():
            return f"revoke job {step.job_id}"
        case _:
            assert_never(step)


def _on_instance(step: act.InstanceAction) -> str:
    match step:
        case act.CreateInstance():
            return f"create instance {step.subject} on {step.spec.host}"
        case act.DeleteInstance():
            return f"delete instance {step.subject}"
        case act.SuspendInstance():
            return f"suspend instance {step.subject}"
        case act.RestoreInstance():
            return f"restore instance {step.subject}"
        case act.MigrateInstance():
            return f"migrate {step.subject} from {step.host} to {step.target}"
        case act.CancelMove():
            return f"cancel move {step.subject}"
        case _:
            assert_never(step)


def _in_guest(step: act.GuestAction) -> str:
    match step:
        case act.PauseInstance():
            return f"pause instance {step.subject}"
        case act.ThrottleInstance():
            return f"throttle instance {step.subject}"
        case act.ThawInstance():
            return f"thaw instance {step.subject}"
        case act.WakeInstance():
            return f"wake instance {step.subject}"
        case act.ProbeJobs():
            return f"probe jobs {step.subject}"
        case _:
            assert_never(step)


def _on_devices(step: act.DeviceAction) -> str:
    match step:
        case act.HoldDevices():
            return f"hold devices {step.subject}"
        case act.ReturnDevices():
            return f"return devices {step.subject}"
        case act.UnplugDevices():
            return f"unplug devices {step.subject}"
        case act.PlugDevices():
            return f"plug devices {step.subject}"
        case _:
            assert_never(step)


def _on_checkpoint(step: act.CheckpointAction) -> str:
    match step:
        case act.KeepCheckpoint():
            return f"keep checkpoint {step.wanted.id} of {step.subject}"
        case act.PutBackCheckpoint():
            return f"put back checkpoint {step.id} of {step.subject}"
        case _:
            assert_never(step)


def _on_parents(step: act.ParentAction) -> str:
    match step:
        case act.MakeParent():
            return f"make a parent of {step.image} on {step.subject}"
        case act.CancelParents():
            return f"end what is to become a parent on {step.subject}"
        case _:
            assert_never(step)


def _on_pilot(step: act.PilotAction) -> str:
    match step:
        case act.SubmitPilot():
            return f"send {step.subject} for {step.limit_s / 60:.0f} min"
        case act.WithdrawPilot():
            return f"withdraw {step.subject}, job {step.job_id}"
        case act.TellPilot():
            return f"tell pilot {step.job_id} on {step.subject} when its room goes"
        case _:
            assert_never(step)


def story_line(record: Record) -> str:
    """Return a journal line as a sentence; empty for what only replay needs."""
    match record.kind:
        case "intent" | "phase":
            return sentence(decode(record.body))
        case "outcome":
            return _outcome(record)
        case "plan" | "harvest":
            return ""
        case "refusal":
            refusal = decode(record.body)
            assert isinstance(refusal, Refusal)
            return line(refusal)
        case "change":
            return _change(decode(record.body))
        case "clock":
            return clock_began(decode(record.body))
        case _:
            return f"{record.kind}: {record.body.get('event', '')} {record.body.get('why', '')}"


def _outcome(record: Record) -> str:
    what = _WORDS.sub(" ", str(record.body["key"]).split(":")[0]).lower()
    elapsed_ms = float(str(record.body["elapsed_s"])) * 1000
    problem = record.body["problem"]
    verdict = f"failed: {problem}" if problem else "done"
    return f"{what} {record.subject} {verdict} after {elapsed_ms:.0f} ms"


def _change(change: ch.Change) -> str:
    """Observations that a reader of a story wants to see."""
    match change:
        case ch.NodeSeen() | ch.JobSeen() | ch.InstanceSeen() | ch.InstanceStopped() | ch.InstanceGone():
            return _seen(change)
        case ch.Claimed():
            return f"Slurm gave {', '.join(change.hosts or change.nodes)} to job {change.job_id}"
        case ch.MemoryWritten() | ch.CheckpointKept() | ch.CheckpointPutBack():
            return _written(change)
        case ch.Woken() | ch.CopiesEnded() | ch.Proven() | ch.Probed() | ch.LastWords() | ch.WorkLost():
            return _guest(change)
        case ch.HoldSet():
            return _hold(change)
        case ch.ClockSet():
            return (
                f"the machine's clock was set: it is now {_ahead(-change.ahead_s)} our time, and "
                "nothing is over because of it"
            )
        case ch.SourceFailed():
            return f"{change.source} could not be read: {change.problem}"
        case _:
            return _pilot(change)


def _hold(change: ch.HoldSet) -> str:
    if change.keep is None:
        return f"{change.subject} was {'closed' if change.on else 'opened'}: {change.reason}"
    most = f"only {change.keep} instances" if change.on else "any number"
    return f"{most} may stay on {change.subject}: {change.reason}"


def clock_told(world: World) -> str:
    """Say that the times that the daemon tells are not those of the machine's clock, or nothing."""
    if not world.ahead_s:
        return ""
    return (
        "the machine's clock was set while the daemon ran, and nothing is over because of it; "
        f"until the daemon's next start it is {_ahead(-world.ahead_s)} the times told here"
    )


def clock_set(by_s: float) -> str:
    """Return what an operator is told when the machine's clock was set while we ran."""
    way = "forward" if by_s > 0 else "back"
    return (
        f"the machine's clock was set {way} by {length(abs(by_s))}; nothing is over because of it, "
        "as deadlines go by our own time; see to its time server"
    )


def clock_began(read: ch.ClockRead) -> str:
    """Return what was found at a start; empty where our time just goes on."""
    if not read.moved_s:
        return ""
    way = "later" if read.moved_s > 0 else "earlier"
    return (
        f"all deadlines are {length(abs(read.moved_s))} {way}: the machine was booted, or its "
        "clock set, since our time was written down last, and nothing is over because of that"
    )


def length(seconds: float) -> str:
    """Return a length of time as people say it: `40 s`, `15 min`, `6 h`, `6 h 5 min`, `400 d 6 h`."""
    whole = round(seconds)
    parts = []
    for name, size_s in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if whole >= size_s:
            parts.append(f"{whole // size_s} {name}")
            whole %= size_s
    return " ".join(parts[:2]) or "0 s"


def _ahead(by_s: float) -> str:
    return f"{length(abs(by_s))} {'ahead of' if by_s > 0 else 'behind'}"


def _written(change: ch.MemoryWritten | ch.CheckpointKept | ch.CheckpointPutBack) -> str:
    """Return what went to disk, and how that compares with what was predicted."""
    match change:
        case ch.CheckpointPutBack():
            return f"{change.name} has the state of checkpoint {change.id}"
        case ch.CheckpointKept():
            return f"checkpoint {change.id} of {change.name} is kept: {change.size_mb:.0f} MB"
        case ch.MemoryWritten():
            told = (
                f"{change.expected_s:.2f} s were predicted"
                if change.expected_s
                else ("nothing was predicted: the first one from this host")
            )
            return (
                f"{change.host} wrote {change.written_mb:.0f} MB of {change.name} in "
                f"{change.took_s:.2f} s; {told}"
            )


def _guest(change: ch.Woken | ch.CopiesEnded | ch.Proven | ch.Probed | ch.LastWords | ch.WorkLost) -> str:
    """Return what was learnt inside of a guest."""
    match change:
        case ch.Woken():
            return f"the clock of {change.name} was {change.correction_s:.3f} s off and is set"
        case ch.CopiesEnded():
            return f"{change.name} ended what stood still in it of job {', '.join(change.jobs)}"
        case ch.Proven():
            wrong = [f"{f.name}: {f.said}" for f in change.report.facts if not f.ok]
            return f"{change.name} has not proven {'; '.join(wrong)}" if wrong else ""
        case ch.Probed():
            if not change.stuck:
                return ""
            return f"the jobs on {change.name} stand still although Slurm shows them as running"
        case ch.LastWords():
            return f"the console of {change.name} ended: {' | '.join(change.text.splitlines())}"
        case ch.WorkLost():
            of = f", {change.workload}" if change.workload else ""
            return (
                f"job {change.job_id}{of} has worked for {change.core_s:.0f} core s in vain: {change.cause}"
            )


def _pilot(change: ch.Change) -> str:
    """Of pilots and their pool; empty for all that nobody wants to read."""
    match change:
        case ch.PoolRead():
            problem = change.picture.problem
            return f"the pool gave no answer: {problem}" if problem else ""
        case ch.PilotTold():
            return f"pilot {change.job_id} was told when its room goes"
        case ch.PayloadEnded():
            what = "done" if change.done else "lost"
            return f"a payload of pilot {change.job_id} was {what} after {change.worked_s:.0f} s"
        case _:
            return ""


def _seen(change: ch.NodeSeen | ch.JobSeen | ch.InstanceSeen | ch.InstanceStopped | ch.InstanceGone) -> str:
    match change:
        case ch.InstanceStopped():
            return f"{change.host} shows {change.name} as paused"
        case ch.NodeSeen():
            why = f" ({change.node.reason})" if change.node.reason else ""
            return f"Slurm shows {change.node.name} as {change.node.state_text}{why}"
        case ch.JobSeen():
            where = f" on {', '.join(change.job.nodes)}" if change.job.nodes else ""
            return f"Slurm shows job {change.job.id} as {change.job.state}{where}"
        case ch.InstanceSeen():
            return f"{change.instance.host} shows {change.instance.name} as {change.instance.state}"
        case ch.InstanceGone():
            return f"{change.host} has no {change.name} any more"
