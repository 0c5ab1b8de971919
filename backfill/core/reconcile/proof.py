"""The proof before a node takes jobs: asked for in one call, repeated until it holds or is late."""

from __future__ import annotations

from backfill.core.model.actions import WakeInstance
from backfill.core.model.fence import judge
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.readiness import Check, judge_report
from backfill.core.model.refusals import Code, Goal, Reason, Words, because, call_failed
from backfill.core.reconcile.builder import PlanBuilder, Progress

# A node that has been waited for is asked again after this part of that time.
_PATIENCE = 0.1
# slurmd is given so long to be heard. It reports within 30 ms, but from 24.11 on it starts itself anew first,
# which took 11 s on a busy emulated guest.
_UNHEARD_S = 20.0


def checks_of(builder: PlanBuilder, node: ManagedNode) -> tuple[Check, ...]:
    """Return what the node's last report proves; nothing where its provider cannot look inside."""
    report = node.proof.report
    if report is None:
        return ()
    flavour = builder.policies.instances.promised_by(node, builder.instance(node))
    rules = builder.policies.readiness
    return judge_report(report, node.address, flavour.cpus, flavour.node_memory_mb, rules.clock_offset_s)


def proven(
    builder: PlanBuilder, node: ManagedNode, reason: str, register: bool = True
) -> tuple[bool, Reason | None]:
    """Drive the proof of this phase: (True, None) when it holds, (False, why) when it has failed.

    (False, None) while it is under way: the caller comes back with the next plan. `register`: its
    slurmd is to report to Slurm with the first try.
    """
    if not node.woken_since:
        return False, _ask(builder, node, reason, register)
    failing = [c for c in checks_of(builder, node) if not c.ok]
    if not failing:
        return True, None
    began_s = _began_s(builder, node)
    for check in failing:
        limit_s = began_s + builder.policies.readiness.within_s(check.name)
        if builder.now_s >= limit_s:
            return False, not_proven(check)
        builder.wake_at(limit_s)
    builder.refuse(node.name, Goal.RELEASE, not_proven(failing[0]))
    return False, _ask_again(builder, node, failing[0], began_s)


def _began_s(builder: PlanBuilder, node: ManagedNode) -> float:
    """From when the limits of its proof count."""
    first_s, sighted_s = node.proof.first_s, builder.world.sighted_since_s
    return sighted_s if first_s is None else max(first_s, sighted_s)


def read_since_woken(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if Slurm's picture of the node is of after its clock and slurmd were set right."""
    woken_s = node.proof.woken_s
    return woken_s is None or builder.world.node_read_s(node.name) >= woken_s


def ask_on(builder: PlanBuilder, node: ManagedNode) -> None:
    """Ask again although it is late, as the caller can do nothing else with the node."""
    for check in checks_of(builder, node):
        if not check.ok:
            _ask_again(builder, node, check, _began_s(builder, node))
            return


def report_again(builder: PlanBuilder, node: ManagedNode) -> None:
    """Have its slurmd report once more: Slurm does not hear the node, so a report may be lost.

    slurmctld hears it otherwise at a ping, of which some come 100 s later, or do not arrive either.
    """
    if _is_time(builder, node, _UNHEARD_S, _began_s(builder, node)):
        _ask(builder, node, "Slurm does not hear it", register=True)


def _ask_again(builder: PlanBuilder, node: ManagedNode, check: Check, began_s: float) -> Reason | None:
    if not _is_time(builder, node, builder.policies.readiness.retry_s, began_s):
        return None
    return _ask(builder, node, f"again: {check.name}", register=False)


def _is_time(builder: PlanBuilder, node: ManagedNode, retry_s: float, began_s: float) -> bool:
    """Return True when the next try is due: each costs the guest CPU that it needs to become ready."""
    woken_s = node.since_s if node.proof.woken_s is None else node.proof.woken_s
    again_s = woken_s + max(retry_s, (woken_s - began_s) * _PATIENCE)
    builder.wake_at(again_s)
    return builder.now_s >= again_s


def _ask(builder: PlanBuilder, node: ManagedNode, reason: str, register: bool) -> Reason | None:
    """Ask the guest; return what is wrong for ever."""
    stood = node.phase is Phase.RETURNING
    over = ended(builder, node) if stood else ()
    copies = tuple(held.id for held in judge(node.name, node.held, builder.world.jobs).lost) if over else ()
    wake = WakeInstance(
        subject=node.name,
        generation=node.generation,
        reason=reason,
        host=node.host,
        register=register,
        stood=stood,
        ended=over,
        copies=copies,
    )
    if builder.do(wake) is not Progress.FINAL:
        return None
    operation = builder.operation(wake)
    return call_failed(operation.problem if operation else "its clock could not be set")


def fenced(builder: PlanBuilder, node: ManagedNode) -> bool:
    """Return True if its jobs were frozen in its guest before it stopped, so that some can end there."""
    instance = builder.instance(node)
    return instance is not None and instance.frozen


def ended(builder: PlanBuilder, node: ManagedNode) -> tuple[int, ...]:
    """Numbers of the jobs of which nothing may run on in its guest: Slurm has put them back, or ended."""
    lost = judge(node.name, node.held, builder.world.jobs).lost
    found = (builder.world.jobs.get(held.id) for held in lost)
    return tuple(job.raw_id for job in found if job is not None)


def not_proven(check: Check) -> Reason:
    """Return what a check found wrong, and what to do."""
    said, remedy = Words(check.sentence), Words(check.remedy)
    return because(Code.NOT_PROVEN, check=check.name, said=said, remedy=remedy)
