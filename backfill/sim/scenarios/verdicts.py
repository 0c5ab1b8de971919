"""Judges a scenario that was played: one sentence with a yes or no for each expectation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import median

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState
from backfill.core.model.fleet import Instance, InstanceState, Rung
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.model.records import decode
from backfill.ports.storage import Record
from backfill.sim.scenarios.payloads import PayloadStock
from backfill.sim.scenarios.scenario import Assertion, Expectation, Scenario

_AT_WORK = frozenset({Phase.READY, Phase.DRAINING})


@dataclass(frozen=True, slots=True)
class ScenarioVerdict:
    """One expectation, as it turned out. `details`: what exactly went wrong, a sentence each.

    `title` does not depend on how it turned out.
    """

    ok: bool
    text: str
    details: tuple[str, ...] = ()
    title: str = ""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The facts after a play. Jobs and delays by the jobs' names in the scenario."""

    jobs: Mapping[str, Job]
    delays_s: Mapping[str, float]
    complaints: tuple[str, ...]
    left: tuple[str, ...]
    records: tuple[Record, ...]
    late: bool = False
    payloads: PayloadStock | None = None


def judge(scenario: Scenario, evidence: Evidence) -> Iterator[ScenarioVerdict]:
    """Yield a verdict for each expectation, in their order, and one more if it did not end in time."""
    if evidence.late:
        text = f"it was not over after {scenario.limit_s:g} s and was broken off"
        yield ScenarioVerdict(False, text, title="over in time")
    for expectation in scenario.expect:
        verdict = _CHECKS[expectation.check](scenario, expectation, evidence)
        yield replace(verdict, title=expectation.title)


def hosts_of_jobs(records: Iterable[Record]) -> dict[str, list[str]]:
    """By job id, the hosts on which an instance worked for it, in order."""
    host_of: dict[str, str] = {}
    node_of: dict[str, str] = {}
    found: dict[str, list[str]] = {}
    for record in records:
        if record.kind != "change" or record.body.get("t") not in ("NodeManaged", "JobSeen"):
            continue
        _follow(decode(record.body), host_of, node_of)
        for job_id, node_name in node_of.items():
            host = host_of.get(node_name)
            if host is not None and found.setdefault(job_id, [])[-1:] != [host]:
                found[job_id].append(host)
    return found


def _follow(change: ch.Change, host_of: dict[str, str], node_of: dict[str, str]) -> None:
    """Keep up which node works on which host, and which job runs on which node."""
    match change:
        case ch.NodeManaged(node=node):
            host_of.pop(node.name, None)
            if node.phase in _AT_WORK:
                host_of[node.name] = node.host
        case ch.JobSeen(job=job):
            node_of.pop(job.id, None)
            if job.state is JobState.RUNNING and len(job.nodes) == 1:
                node_of[job.id] = job.nodes[0]
        case _:
            pass


# --- one function per check ----------------------------------------------------------------------


def _counters_whole(scenario: Scenario, _: Expectation, evidence: Evidence) -> ScenarioVerdict:
    counting = [e for e in scenario.jobs if e.count]
    names = [n for e in counting for n in e.all_names]
    wrong = (*evidence.complaints, *_unfinished(names, evidence))
    if wrong:
        return ScenarioVerdict(False, "not every counter went on without a gap or duplicate", wrong)
    numbers = sum(e.count * len(e.all_names) for e in counting)
    return ScenarioVerdict(
        True,
        f"{len(names)} counters went on without a gap and without a duplicate: {numbers} numbers, each once",
    )


def _unfinished(names: Iterable[str], evidence: Evidence) -> Iterator[str]:
    """Whoever was cut off has no gap, and has not said all of its numbers."""
    for name in names:
        job = evidence.jobs.get(name)
        if job is None:
            yield f"{name} was never submitted"
        elif job.state is not JobState.COMPLETED:
            yield f"{name} (job {job.id}) is {job.state.lower()}"


def _ended_once(_: Scenario, __: Expectation, evidence: Evidence) -> ScenarioVerdict:
    wrong = [
        f"{name} (job {job.id}) is {job.state.lower()} after {job.restarts} restarts"
        for name, job in evidence.jobs.items()
        if job.state is not JobState.COMPLETED or job.restarts
    ]
    if wrong:
        return ScenarioVerdict(False, "not every job ended exactly once", tuple(wrong))
    return ScenarioVerdict(True, f"all {len(evidence.jobs)} jobs ended exactly once, with 0 restarts")


def _waited_longer(scenario: Scenario, wanted: Expectation, evidence: Evidence) -> ScenarioVerdict:
    delays = []
    for name in (wanted.job, wanted.than):
        known = [evidence.delays_s[n] for n in scenario.entry(name).all_names if n in evidence.delays_s]
        if not known:
            return ScenarioVerdict(False, f"it is not known how long {name} waited for its start")
        delays.append(median(known) * 1000)
    ours_ms, idle_ms = delays
    more_ms = ours_ms - idle_ms
    how = f"{more_ms:.0f} ms longer" if more_ms >= 0 else f"{-more_ms:.0f} ms less"
    # On a busy machine everything takes longer, on an idle host too: then that is the measure.
    allowed_ms = max(wanted.within_s * 1000, wanted.times * idle_ms)
    return ScenarioVerdict(
        more_ms <= allowed_ms,
        f"{wanted.job} waited {how} for its host than the same job on an idle one "
        f"({ours_ms:.0f} ms against {idle_ms:.0f} ms, from Slurm's allocation to its first "
        f"command; allowed: {allowed_ms:.0f} ms)",
    )


def _moved(scenario: Scenario, wanted: Expectation, evidence: Evidence) -> ScenarioVerdict:
    ran = hosts_of_jobs(evidence.records)
    wrong = []
    for name in scenario.entry(wanted.job).all_names:
        job = evidence.jobs.get(name)
        hosts = ran.get(job.id, []) if job is not None else []
        if len(hosts) < 2 or hosts[-1] != wanted.to:
            wrong.append(f"{name} ran on {', then '.join(hosts) or 'no host'}")
    if wrong:
        return ScenarioVerdict(False, f"not every {wanted.job} went on at {wanted.to}", tuple(wrong))
    return ScenarioVerdict(True, f"every {wanted.job} was pushed aside and went on at {wanted.to}")


def _began_within(scenario: Scenario, wanted: Expectation, evidence: Evidence) -> ScenarioVerdict:
    waits_s = {}
    for name in scenario.entry(wanted.job).all_names:
        job = evidence.jobs.get(name)
        if job is None or not job.start_s:
            return ScenarioVerdict(False, f"{name} never began")
        waits_s[name] = job.start_s - job.submit_s
    longest = max(waits_s, key=waits_s.__getitem__)
    text = f"{longest} began {waits_s[longest]:.1f} s after it was submitted"
    if len(waits_s) > 1:
        text += f", the longest wait of {len(waits_s)}"
    return ScenarioVerdict(waits_s[longest] <= wanted.within_s, f"{text} (allowed: {wanted.within_s:g} s)")


def _pushed_aside(scenario: Scenario, wanted: Expectation, evidence: Evidence) -> ScenarioVerdict:
    wrong = [
        f"{name} was stopped by {', '.join(sorted(rungs)) or 'no rung'}"
        for name, rungs in _rungs(scenario, wanted, evidence)
        if wanted.by not in rungs
    ]
    if wrong:
        return ScenarioVerdict(False, f"not every {wanted.job} was stopped by {wanted.by}", tuple(wrong))
    return ScenarioVerdict(True, f"every {wanted.job} was stopped by {wanted.by}")


def _never_stopped(scenario: Scenario, wanted: Expectation, evidence: Evidence) -> ScenarioVerdict:
    wrong = [
        f"{name} was stopped by {', '.join(sorted(rungs))}"
        for name, rungs in _rungs(scenario, wanted, evidence)
        if rungs
    ]
    if wrong:
        return ScenarioVerdict(False, f"not every {wanted.job} was left alone", tuple(wrong))
    return ScenarioVerdict(True, f"no {wanted.job} was stopped")


def _rungs(scenario: Scenario, wanted: Expectation, evidence: Evidence) -> Iterator[tuple[str, set[Rung]]]:
    """Each copy of the job, and the rungs that stopped it."""
    rungs = rungs_of_jobs(evidence.records)
    for name in scenario.entry(wanted.job).all_names:
        job = evidence.jobs.get(name)
        yield name, set() if job is None else rungs.get(job.id, set())


def _restarted_at_most(scenario: Scenario, wanted: Expectation, evidence: Evidence) -> ScenarioVerdict:
    names = scenario.entry(wanted.job).all_names
    jobs = [(name, evidence.jobs[name]) for name in names if name in evidence.jobs]
    wrong = [
        f"{name} (job {job.id}) is {job.state.lower()} after {job.restarts} restarts"
        for name, job in jobs
        if job.state is not JobState.COMPLETED or job.restarts > wanted.times
    ]
    if wrong or len(jobs) < len(names):
        text = f"not every {wanted.job} completed with {wanted.times} restarts at most"
        return ScenarioVerdict(False, text, tuple(wrong) or ("not all of them were submitted",))
    most = max(job.restarts for _, job in jobs)
    text = f"every {wanted.job} completed, with {most} restarts at most (allowed: {wanted.times})"
    return ScenarioVerdict(True, text)


def _nothing_left(_: Scenario, __: Expectation, evidence: Evidence) -> ScenarioVerdict:
    if evidence.left:
        return ScenarioVerdict(False, f"still there: {', '.join(evidence.left)}")
    return ScenarioVerdict(True, "no instance and no virtual node is left")


def _payloads_once(scenario: Scenario, _: Expectation, evidence: Evidence) -> ScenarioVerdict:
    entry, found = scenario.payloads, evidence.payloads
    if entry is None or found is None:
        return ScenarioVerdict(False, "there is no pool whose payloads could be counted")
    wrong = list(found.kept.twice)
    if len(found.kept.done) < entry.copies:
        wrong.append(f"{entry.copies - len(found.kept.done)} of {entry.copies} payloads are not done")
    if wrong:
        return ScenarioVerdict(False, "not every payload was done exactly once", tuple(wrong))
    return ScenarioVerdict(
        True,
        f"all {entry.copies} payloads are done, each once by the pool's books, and none was at work twice",
    )


def _payloads_kept(_: Scenario, wanted: Expectation, evidence: Evidence) -> ScenarioVerdict:
    found = evidence.payloads
    if found is None:
        return ScenarioVerdict(False, "there is no pool whose payloads could be counted")
    text = f"{100 * found.lost:.2f} % of what payloads computed was in vain, in {found.runs_lost} runs"
    return ScenarioVerdict(100 * found.lost <= wanted.percent, f"{text} (allowed: {wanted.percent:g} %)")


_CHECKS: dict[Assertion, Callable[[Scenario, Expectation, Evidence], ScenarioVerdict]] = {
    Assertion.COUNTERS_WHOLE: _counters_whole,
    Assertion.ENDED_ONCE: _ended_once,
    Assertion.WAITED_LONGER: _waited_longer,
    Assertion.BEGAN_WITHIN: _began_within,
    Assertion.MOVED: _moved,
    Assertion.PUSHED_ASIDE: _pushed_aside,
    Assertion.NEVER_STOPPED: _never_stopped,
    Assertion.RESTARTED_AT_MOST: _restarted_at_most,
    Assertion.NOTHING_LEFT: _nothing_left,
    Assertion.PAYLOADS_ONCE: _payloads_once,
    Assertion.PAYLOADS_KEPT: _payloads_kept,
}


_READ = frozenset(kind.__name__ for kind in (ch.NodeManaged, ch.JobSeen, ch.InstanceSeen, ch.InstanceStopped))
_GIVING_WAY = frozenset({Phase.EVICTING, Phase.PARKED, Phase.MOVING})
_STATES = {InstanceState.PAUSED: Rung.PAUSE, InstanceState.SUSPENDED: Rung.SUSPEND}


def rungs_of_jobs(records: Iterable[Record]) -> dict[str, set[Rung]]:
    """By job id, the rungs that had their effect while the job was on the node.

    What counts is what was seen, not what was ordered: an instance that stood still or was on
    disk, a node that went to another host, a job that was started anew.
    """
    reader = _Reader()
    for record in records:
        if record.kind == "change" and record.body.get("t") in _READ:
            reader.take(decode(record.body))
    return reader.found


class _Reader:
    def __init__(self) -> None:
        self.found: dict[str, set[Rung]] = {}
        self._nodes: dict[str, ManagedNode] = {}
        self._jobs: dict[str, Job] = {}

    def take(self, change: ch.Change) -> None:
        match change:
            case ch.NodeManaged(node=node):
                self._node(node)
            case ch.JobSeen(job=job):
                self._job(job)
            case ch.InstanceSeen(instance=instance):
                self._instance(instance)
            case ch.InstanceStopped(name=name):
                self._stands(name, Rung.PAUSE)
            case _:
                pass

    def _node(self, node: ManagedNode) -> None:
        before = self._nodes.get(node.name)
        self._nodes[node.name] = node
        if node.phase is Phase.THROTTLED:
            self._book(node, Rung.THROTTLE)
        if before is not None and before.phase is Phase.MOVING and node.host != before.host:
            self._book(node, Rung.MIGRATE)

    def _instance(self, instance: Instance) -> None:
        rung = _STATES.get(instance.state)
        if rung is not None:
            self._stands(instance.name, rung)

    def _stands(self, name: str, rung: Rung) -> None:
        """On its way back a restored instance stands still as well: then no rung did it."""
        node = self._nodes.get(name)
        if node is not None and node.phase in _GIVING_WAY and node.stopping.kind is rung:
            self._book(node, rung)

    def _job(self, job: Job) -> None:
        before = self._jobs.get(job.id)
        self._jobs[job.id] = job
        if before is not None and job.restarts > before.restarts:
            self.found.setdefault(job.id, set()).add(Rung.REQUEUE)
        if job.state is JobState.CANCELLED:
            self.found.setdefault(job.id, set()).add(Rung.CANCEL)

    def _book(self, node: ManagedNode, rung: Rung) -> None:
        for job in self._jobs.values():
            if job.active and node.name in job.nodes:
                self.found.setdefault(job.id, set()).add(rung)
