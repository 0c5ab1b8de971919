"""One proof of a guest: a credential there, its report and a credential back, as changes."""

from __future__ import annotations

from dataclasses import replace

from backfill.core import changes as ch
from backfill.core.actions import WakeInstance
from backfill.core.readiness import MUNGE, Fact
from backfill.engine.looking import Outside, guests_now
from backfill.ports.capabilities import Prover


def prove(outside: Outside, action: WakeInstance) -> list[ch.Change]:
    """Let the guest set its clock and prove itself; a provider that cannot look inside wakes it."""
    provider, credentials = outside.providers[action.host], outside.credentials
    name, generation = action.subject, action.generation
    if not isinstance(provider, Prover):
        correction_s = provider.wake(action.host, name, guests_now(outside))
        return [ch.Woken(name, generation, outside.clock.now(), correction_s)]
    ours = credentials.make() if credentials is not None else ""
    now_s = guests_now(outside)
    report, theirs = provider.prove(action.host, name, now_s, ours, action.register)
    at_s = outside.clock.now()
    if credentials is not None:
        problem = credentials.check(theirs) if theirs else "it made no credential"
        fact = Fact(f"{MUNGE}:from the guest", not problem, problem)
        report = replace(report, facts=(*report.facts, fact))
    return [ch.Woken(name, generation, at_s, report.correction_s), ch.Proven(name, generation, at_s, report)]
