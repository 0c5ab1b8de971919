"""Steps and journal lines as sentences that an operator understands."""

from __future__ import annotations

import re

from backfill.core import actions as act
from backfill.core import changes as ch
from backfill.core.cluster import NOWHERE
from backfill.core.plan import AnswerClaim, EndClaim, ForgetNode, Refusal, SetFleet, SetNode
from backfill.core.records import decode
from backfill.ports import Record

_WORDS = re.compile(r"(?<!^)(?=[A-Z])")


def sentence(step: object) -> str:
    """One line for one step: what, about whom, why."""
    match step:
        case SetNode():
            where = f" on {step.node.host}" if step.node.host else ""
            return f"{step.node.name}{where} is now {step.node.phase}: {step.reason}"
        case SetFleet() | ForgetNode():
            now = f"{step.fleet.id} is {step.fleet.state}" if isinstance(step, SetFleet) else (
                f"{step.name} is gone"
            )  # fmt: skip
            return f"{now}: {step.reason}"
        case AnswerClaim():
            verdict = "the room is free" if step.ok else "the room is NOT proven free"
            return f"told job {step.job_id} that {verdict}: {step.reason}"
        case EndClaim():
            return f"the claim of job {step.job_id} ends: {step.reason}"
        case (
            act.SuspendJob() | act.ResumeJob() | act.RequeueJob() | act.CancelJob() | act.KickJob()
        ):
            verb = type(step).__name__.removesuffix("Job").lower()
            return f"{verb} job {step.job_id} on {step.name}: {step.reason}"
        case act.MigrateInstance():
            return f"migrate {step.name} from {step.host} to {step.target}: {step.reason}"
        case act.CreateInstance():
            return f"create instance {step.name} on {step.spec.host}: {step.reason}"
        case _:
            return f"{_verb(step)} {getattr(step, 'name', '')}: {getattr(step, 'reason', '')}"


def _verb(step: object) -> str:
    if isinstance(step, act.SetAddress):
        return "hide node" if step.address == NOWHERE else "show node"
    return _WORDS.sub(" ", type(step).__name__).lower()


def story_line(record: Record) -> str:
    """A journal line as a sentence; empty for what only replay needs."""
    match record.kind:
        case "intent" | "phase":
            return sentence(decode(record.body))
        case "outcome":
            return _outcome(record)
        case "plan":
            return ""
        case "refusal":
            refusal = decode(record.body)
            assert isinstance(refusal, Refusal)
            return str(refusal)
        case "change":
            return _change(decode(record.body))
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
        case (
            ch.NodeSeen()
            | ch.JobSeen()
            | ch.InstanceSeen()
            | ch.InstanceStopped()
            | ch.InstanceGone()
        ):
            return _seen(change)
        case ch.Claimed():
            return f"Slurm gave {', '.join(change.hosts or change.nodes)} to job {change.job_id}"
        case ch.MemoryWritten() | ch.CheckpointKept() | ch.CheckpointPutBack():
            return _written(change)
        case ch.Woken() | ch.Proven() | ch.Probed() | ch.LastWords():
            return _guest(change)
        case ch.HoldSet(keep=int(keep)):
            what = f"only {keep} instances may stay on" if change.on else "any number may stay on"
            return f"{what} {change.subject}: {change.reason}"
        case ch.HoldSet():
            return f"{change.subject} was {'closed' if change.on else 'opened'}: {change.reason}"
        case ch.SourceFailed():
            return f"{change.source} could not be read: {change.problem}"
        case _:
            return ""


def _written(change: ch.MemoryWritten | ch.CheckpointKept | ch.CheckpointPutBack) -> str:
    """What went to disk, and how that compares with what was predicted."""
    match change:
        case ch.CheckpointPutBack():
            return f"{change.name} has the state of checkpoint {change.id}"
        case ch.CheckpointKept():
            return f"checkpoint {change.id} of {change.name} is kept: {change.size_mb:.0f} MB"
        case ch.MemoryWritten():
            told = f"{change.expected_s:.2f} s were predicted" if change.expected_s else (
                "nothing was predicted: the first one from this host"
            )  # fmt: skip
            return (
                f"{change.host} wrote {change.written_mb:.0f} MB of {change.name} in "
                f"{change.took_s:.2f} s; {told}"
            )


def _guest(change: ch.Woken | ch.Proven | ch.Probed | ch.LastWords) -> str:
    """What was learnt inside of a guest."""
    match change:
        case ch.Woken():
            return f"the clock of {change.name} was {change.correction_s:.3f} s off and is set"
        case ch.Proven():
            wrong = [f"{f.name}: {f.said}" for f in change.report.facts if not f.ok]
            return f"{change.name} has not proven {'; '.join(wrong)}" if wrong else ""
        case ch.Probed():
            if not change.stuck:
                return ""
            return f"the jobs on {change.name} stand still although Slurm shows them as running"
        case ch.LastWords():
            return f"the console of {change.name} ended: {' | '.join(change.text.splitlines())}"


def _seen(
    change: ch.NodeSeen | ch.JobSeen | ch.InstanceSeen | ch.InstanceStopped | ch.InstanceGone,
) -> str:
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
