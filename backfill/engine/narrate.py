"""Steps as sentences that an operator understands."""

from __future__ import annotations

import re

from backfill.core import actions as act
from backfill.core.plan import AnswerClaim, EndClaim, ForgetNode, SetNode

_WORDS = re.compile(r"(?<!^)(?=[A-Z])")


def sentence(step: object) -> str:
    """One line for one step: what, about whom, why."""
    match step:
        case SetNode():
            where = f" on {step.node.host}" if step.node.host else ""
            return f"{step.node.name}{where} is now {step.node.phase}: {step.reason}"
        case ForgetNode():
            return f"{step.name} is gone: {step.reason}"
        case AnswerClaim():
            verdict = "the room is free" if step.ok else "the room is NOT proven free"
            return f"told job {step.job_id} that {verdict}: {step.reason}"
        case EndClaim():
            return f"the claim of job {step.job_id} ends: {step.reason}"
        case act.SuspendJob() | act.ResumeJob() | act.RequeueJob() | act.CancelJob():
            verb = type(step).__name__.removesuffix("Job").lower()
            return f"{verb} job {step.job_id} on {step.name}: {step.reason}"
        case act.MigrateInstance():
            return f"migrate {step.name} from {step.host} to {step.target}: {step.reason}"
        case act.CreateInstance():
            return f"create instance {step.name} on {step.spec.host}: {step.reason}"
        case _:
            words = _WORDS.sub(" ", type(step).__name__).lower()
            name = getattr(step, "name", "")
            return f"{words} {name}: {getattr(step, 'reason', '')}"
