"""Actions on pilots that are sent on demand."""

from __future__ import annotations

from typing import assert_never

from backfill.core.model import actions as act
from backfill.core.model import changes as ch
from backfill.core.model.pilots import mark_of
from backfill.engine.looking import Outside, read_job
from backfill.ports.capabilities import JobWarner, PilotSender
from backfill.ports.errors import RefusedError
from backfill.ports.workload import PilotSpec


def with_pilot(outside: Outside, action: act.PilotAction) -> list[ch.Change]:
    """Send, withdraw or tell a pilot, and read its job."""
    match action:
        case act.SubmitPilot():
            spec = PilotSpec(
                action.subject,
                mark_of(action.slot),
                action.user,
                action.partition,
                action.script,
                action.directory,
                action.cpus,
                action.limit_s,
                action.options,
            )
            return read_job(outside, _sender(outside, action).submit_pilot(spec))
        case act.WithdrawPilot():
            _sender(outside, action).withdraw_pilot(action.job_id)
            return read_job(outside, action.job_id)
        case act.TellPilot():
            return [_tell(outside, action)]
        case _:
            assert_never(action)


def _sender(outside: Outside, action: act.PilotAction) -> PilotSender:
    if not isinstance(outside.manager, PilotSender):
        raise RefusedError(action.subject, "this way to Slurm sends no pilots")
    return outside.manager


def _tell(outside: Outside, action: act.TellPilot) -> ch.PilotTold:
    provider = outside.providers[action.host]
    if not isinstance(provider, JobWarner):
        raise RefusedError(action.subject, f"the provider of {action.host} cannot reach jobs in its guests")
    provider.announce(action.host, action.subject, action.number, action.ends_s)
    ends_s = action.ends_s + outside.clock.ahead()
    return ch.PilotTold(action.job_id, action.restarts, outside.clock.now(), ends_s)
