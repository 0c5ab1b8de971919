"""What the daemon counts: of a whole story, within bounds whatever happens, and as documented."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import cast

import pytest

from backfill.core.model import actions as act
from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState
from backfill.core.model.fleet import Host, Instance, InstanceState, Rung, Tag
from backfill.core.model.lifecycle import Cause, EvictionCause, ManagedNode, NodeStop, Phase
from backfill.core.model.operations import HostAllocation
from backfill.core.model.plan import AnswerClaim
from backfill.core.model.quantities import Resources
from backfill.core.model.refusals import Code, Goal, because, limit, refusal
from backfill.core.world import World
from backfill.engine import gauges, metering, payload_book, work_account
from backfill.engine.families import Counts, Family, FamilyKind, Spreads
from backfill.engine.metering import Meter
from backfill.engine.work_account import _Work
from backfill.ui.cli import main
from backfill.ui.client import AskError, Client
from backfill.ui.web.exposition import exposition
from tests.component.living_daemon import LivingDaemon, living, parked

ROOT = Path(__file__).parents[2]
FAMILIES = [
    value
    for module in (gauges, work_account, payload_book, metering)
    for value in vars(module).values()
    if isinstance(value, Family)
]
MOST_SERIES = 1200  # each code adds one, each action about seven: room for some before anybody has to think


class Told:
    """The daemon's answer, by series."""

    def __init__(self, families: list[dict[str, object]]) -> None:
        self.values: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        for family in families:
            for suffix, labels, value in family["samples"]:  # type: ignore[attr-defined]  # a list
                self.values[f"{family['name']}{suffix}", frozenset(labels.items())] = value

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.values.get((name, frozenset(labels.items())))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivingDaemon]:
    """The main job: vn1 was paused for a high-priority job, and is back at work."""
    with living(tmp_path_factory.mktemp("daemon")) as made:
        _, high = parked(made)
        made.sim.slurm.cancel_job(high)
        made.until(lambda: made.phase("vn1") is Phase.READY)
        yield made


@pytest.fixture(scope="module")
def told(daemon: LivingDaemon) -> Told:
    return Told(Client(str(daemon.socket)).ask("metrics")["families"])


def test_a_story_is_counted(told: Told) -> None:
    """One join, one eviction by pausing for a job, its hook told so, one return."""
    assert told("backfill_joins_total", outcome="ready") == 1
    assert told("backfill_evictions_total", rung="pause", cause="job") == 1
    assert told("backfill_eviction_seconds_count", rung="pause") == 1
    assert told("backfill_room_answer_seconds_count", answer="free") == 2  # for the blocker as well
    assert told("backfill_returns_total", outcome="back") == 1
    assert told("backfill_return_seconds_count") == 1
    assert told("backfill_fence_verdicts_total", verdict="let_go_on") == 1
    for step in ("make", "register", "prove", "release", "total"):
        assert told("backfill_join_seconds_count", step=step) == 1, step


def test_steps_of_a_join_add_up_to_its_time(told: Told) -> None:
    parts = [told("backfill_join_seconds_sum", step=s) for s in ("make", "register", "prove", "release")]
    total = told("backfill_join_seconds_sum", step="total")
    assert total is not None
    assert sum(part or 0.0 for part in parts) == pytest.approx(total)


def test_what_is_so_now_is_told(told: Told) -> None:
    assert told("backfill_info", cluster="sim") == 1
    assert told("backfill_nodes", phase="ready") == 1
    assert told("backfill_hosts", state="reachable") == 2
    assert told("backfill_instances", state="running") == 1
    assert told("backfill_barred", by="journal") == 0
    assert told("backfill_policy_valid") == 1
    for source in ("slurm", "oldest_host"):
        assert (told("backfill_picture_age_seconds", source=source) or 0.0) < 60


def test_calls_are_counted_by_kind(told: Told) -> None:
    assert told("backfill_operation_seconds_count", kind="CreateInstance") == 1
    assert (told("backfill_operation_seconds_count", kind="PauseInstance") or 0) >= 1
    assert told("backfill_operation_failures_total", kind="PauseInstance") is None


def test_work_counts_only_while_the_instance_runs(daemon: LivingDaemon) -> None:
    """Core seconds grow with simulated time at the job's one core, and stand still in a pause."""

    def harvested() -> float:
        told = Told(Client(str(daemon.socket)).ask("metrics")["families"])
        return told("backfill_harvested_core_seconds_total", partition="htc") or 0.0

    before, began_s = harvested(), daemon.daemon.world.now_s
    daemon.until(lambda: daemon.daemon.world.now_s >= began_s + 5.0)
    worked = harvested() - before
    assert 4.0 <= worked <= daemon.daemon.world.now_s - began_s + 1.0


def test_the_command_prints_what_prometheus_reads(
    daemon: LivingDaemon, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Onto standard output, as JSON, or into a file that is replaced whole."""
    assert main(["metrics", "--socket", str(daemon.socket)]) == 0
    text = capsys.readouterr().out
    assert 'backfill_evictions_total{cause="job",rung="pause"} 1.0' in text
    assert "# TYPE backfill_eviction_seconds histogram" in text
    assert main(["metrics", "--json", "--socket", str(daemon.socket)]) == 0
    assert {"name", "type", "help", "samples"} == set(json.loads(capsys.readouterr().out)["families"][0])
    out = tmp_path / "backfill.prom"
    assert main(["metrics", "--out", str(out), "--socket", str(daemon.socket)]) == 0
    assert "backfill_joins_total" in out.read_text()
    assert main(["metrics", "--out", str(tmp_path / "no" / "x"), "--socket", str(daemon.socket)]) == 65
    assert "cannot write" in capsys.readouterr().err


def test_a_file_does_not_outlive_the_daemon_that_it_tells_of(
    daemon: LivingDaemon, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Left as it was, it would show a daemon at work for ever, and no alert could fire."""
    out, nobody = tmp_path / "backfill.prom", tmp_path / "nobody.sock"
    assert main(["metrics", "--out", str(out), "--socket", str(daemon.socket)]) == 0
    assert "backfill_up 1.0" in out.read_text().splitlines()
    assert main(["metrics", "--out", str(out), "--socket", str(nobody)]) == 69
    assert "no daemon answers" in capsys.readouterr().err
    samples = [line for line in out.read_text().splitlines() if not line.startswith("#")]
    assert samples == ["backfill_up 0.0"]
    assert main(["metrics", "--socket", str(nobody)]) == 69
    assert capsys.readouterr().out == ""


def test_a_daemon_that_is_too_busy_to_answer_is_not_said_to_be_down(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has answered, and one such moment would take all its metrics away; the file's age tells of more."""
    busy = {"error": "too many questions at once", "kind": "busy"}

    def turned_away(client: Client, question: str) -> None:
        raise AskError(busy["error"], 69, busy)

    monkeypatch.setattr(Client, "ask_exactly", turned_away)
    out = tmp_path / "backfill.prom"
    out.write_text("before\n")
    assert main(["metrics", "--out", str(out), "--socket", "any"]) == 69
    assert out.read_text() == "before\n"
    assert capsys.readouterr().err == "backfill: too many questions at once\n"


def test_of_a_daemon_that_one_may_not_ask_nothing_is_known(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not said to be down; the file's age tells that something is wrong."""

    def refused(client: Client, question: str) -> None:
        raise AskError(f"you may not ask {client.path} for {question}", 77)

    monkeypatch.setattr(Client, "ask_exactly", refused)
    out = tmp_path / "backfill.prom"
    assert main(["metrics", "--out", str(out)]) == 77
    assert not out.exists()
    assert "you may not ask" in capsys.readouterr().err


def test_openmetrics_is_told_to_who_asks_for_it() -> None:
    text, kind = exposition(
        [Counts(Family("x", FamilyKind.COUNTER, "X.")).told()], "application/openmetrics-text; version=1.0.0"
    )
    assert kind.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


@pytest.mark.parametrize("accept", ["text/plain; version=abc; escaping=x", "application/openmetrics-text;=,"])
def test_whoever_asks_for_what_makes_no_sense_gets_a_form_that_does(accept: str) -> None:
    text, kind = exposition([Counts(Family("x", FamilyKind.COUNTER, "X.")).told()], accept)
    assert kind.startswith(("text/plain; version=0.0.4", "application/openmetrics-text"))
    assert "x_total 0.0\n" in text


def node(name: str, phase: Phase, since_s: float = 10.0, **more: object) -> ManagedNode:
    return ManagedNode(name, "10.0.0.1/16", "h", 1, phase, since_s, 1.0, **more)  # type: ignore[arg-type]


def instance(name: str, state: InstanceState) -> Instance:
    return Instance(name, "h", state, Tag("c", name, 1), Resources(1, 1))


def filled(world: World) -> Meter:
    """Everything that can be told apart has happened."""
    meter = Meter(world)
    for code in Code:
        meter.refused(refusal("x", Goal.RETURN, limit("a", 1) if code is Code.LIMIT else because(code)))
    for kind in vars(act).values():
        if isinstance(kind, type) and issubclass(kind, act.Head):
            meter.called(cast("act.DriverAction", object.__new__(kind)), 0.1, "it failed")
    for rung, cause, why in product(Rung, EvictionCause, Cause):
        meter._evictions.add(rung.value, cause.value)
        meter._eviction_s.observe(1.0, rung.value)
        meter._condemned(why)
    for answer, event in zip(("free", "not_proven"), ("allocated", "ended"), strict=True):
        meter._room_s.observe(1.0, answer)
        meter.hook(event)
    for label in ("make", "register", "prove", "release", "total"):
        meter._join_s.observe(1.0, label)
        meter._joins.add(label)  # as many as there are outcomes of either
        meter._returns.add(label)
    for number in range(100):
        job = Job(str(number), number, f"p{number}", JobState.RUNNING)
        meter._work._harvested.setdefault(meter._work._place(job), _Work())
        meter._work._lost.add(f"p{number}")
    return meter


def test_series_are_bounded_whatever_happens(daemon: LivingDaemon) -> None:
    """All codes, kinds, rungs and causes, and more partitions than there are, beside every gauge.

    What is refused now is told by the most frequent codes; nothing of it is lost.
    """
    counted = len(Told(filled(World()).told()).values)
    told = Client(str(daemon.socket)).ask("metrics")["families"]
    names = {family.name for family in vars(gauges).values() if isinstance(family, Family)}
    now = sum(len(f["samples"]) for f in told if f["name"] in names and f["name"] != "backfill_refused")
    every = gauges.most_refused({(code.value,): float(number) for number, code in enumerate(Code, 1)})
    assert sum(every.values()) == len(Code) * (len(Code) + 1) / 2
    assert every["other",] > 0
    assert counted + now + len(every) < MOST_SERIES


def test_what_alerts_and_the_board_count_begins_at_nothing() -> None:
    """Of a series that comes with its first event, Prometheus sees no increase by that one."""
    told = Told(Meter(World()).told())
    for rung, cause in product(Rung, EvictionCause):
        assert told("backfill_evictions_total", rung=rung.value, cause=cause.value) == 0
        assert told("backfill_eviction_seconds_count", rung=rung.value) == 0
    for why in Cause:
        assert told("backfill_destroyed_total", cause=why.value) == 0
    for code in metering.GUARD_CODES - {Code.LIMIT}:
        assert told("backfill_guard_trips_total", guard=code.value) == 0
    for outcome in ("back", "put_off", "evicted", "removed"):
        assert told("backfill_returns_total", outcome=outcome) == 0
    for outcome in ("ready", "evicted", "failed", "removed"):
        assert told("backfill_joins_total", outcome=outcome) == 0
    for answer in ("free", "not_proven"):
        assert told("backfill_room_answer_seconds_count", answer=answer) == 0
    for verdict in ("let_go_on", "stale", "not_borne_out"):
        assert told("backfill_fence_verdicts_total", verdict=verdict) == 0


def test_an_eviction_is_timed_until_the_hypervisor_shows_it() -> None:
    """Not until a call returned; and one that never left the CPUs is none."""
    world = World()
    meter = Meter(world)

    def take(change: ch.Change) -> None:
        before = world.managed.get(change.node.name) if isinstance(change, ch.NodeManaged) else None
        world.apply(change)
        meter.took(change, before)

    take(ch.Tick(10.0))
    for name in ("vn1", "vn2"):
        take(ch.InstanceSeen(instance(name, InstanceState.RUNNING), 9.0))
        take(ch.NodeManaged(node(name, Phase.READY, 5.0)))
        stop = NodeStop(10.0, kind=Rung.PAUSE, cause=EvictionCause.BUDGET)
        take(ch.NodeManaged(node(name, Phase.EVICTING, 10.0, stop=stop)))
    take(ch.InstanceStopped("h", "vn1", 10.2))
    take(ch.NodeManaged(node("vn2", Phase.RETURNING, 11.0)))
    take(ch.InstanceStopped("h", "vn2", 12.0))
    told = Told(meter.told())
    assert told("backfill_evictions_total", rung="pause", cause="budget") == 1
    assert told("backfill_eviction_seconds_sum", rung="pause") == pytest.approx(0.2)


def test_a_run_that_slurm_begins_anew_is_lost_and_one_that_ended_is_not() -> None:
    """And while Slurm shows a job as suspended, or its instance stands still, nothing is worked."""
    world = World()
    meter = Meter(world)

    def take(change: ch.Change) -> None:
        before = world.managed.get(change.node.name) if isinstance(change, ch.NodeManaged) else None
        world.apply(change)
        meter.took(change, before)

    def job(number: int, state: JobState, restarts: int = 0) -> ch.JobSeen:
        nodes = ("vn1",) if state is not JobState.PENDING else ()
        seen = Job(str(number), number, "htc", state, nodes=nodes, cpus=2, restarts=restarts)
        return ch.JobSeen(seen, world.now_s)

    take(ch.Tick(0.5))
    take(ch.HostSeen(Host("h", "h", Resources(8, 8)), 0.5))
    take(ch.InstanceSeen(instance("vn1", InstanceState.RUNNING), 0.5))
    take(ch.NodeManaged(node("vn1", Phase.READY, 0.5)))
    take(job(1, JobState.RUNNING))
    take(job(2, JobState.RUNNING))
    take(ch.Tick(10.5))
    take(ch.InstanceStopped("h", "vn1", 10.5))
    take(ch.Tick(100.5))
    take(ch.InstanceSeen(instance("vn1", InstanceState.RUNNING), 100.5))
    take(ch.Tick(105.5))
    take(job(1, JobState.COMPLETED))
    take(job(2, JobState.PENDING, restarts=1))
    take(ch.Tick(200.5))
    told = Told(meter.told())
    assert told("backfill_harvested_core_seconds_total", partition="htc") == pytest.approx(60.0)
    assert told("backfill_lost_core_seconds_total", partition="htc") == pytest.approx(30.0)


def test_a_hook_that_is_told_no_is_counted_as_not_proven() -> None:
    world = World()
    meter = Meter(world)
    world.apply(ch.Tick(10.0))
    meter.step(AnswerClaim("7", False, "no"), HostAllocation("7", ("h",), 8.0, waiting=True))
    meter.step(AnswerClaim("8", True, "nobody knows this one"), None)
    told = Told(meter.told())
    assert told("backfill_room_answer_seconds_sum", answer="not_proven") == pytest.approx(2.0)
    assert told("backfill_room_answer_seconds_count", answer="free") == 0


def test_buckets_count_what_is_not_larger() -> None:
    """As Prometheus has it: cumulative, the bound itself included."""
    spread = Spreads(Family("x_seconds", FamilyKind.HISTOGRAM, "X."), (0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 3.0):
        spread.observe(value)
    told = Told([spread.told()])
    assert [told("x_seconds_bucket", le=le) for le in ("0.1", "1", "+Inf")] == [2, 3, 4]
    assert told("x_seconds_sum") == pytest.approx(3.65)


def test_further_labels_count_as_other() -> None:
    counts = Counts(Family("x", FamilyKind.COUNTER, "X.", ("a",)), most=2)
    for label in ("p", "q", "r", "s", "p"):
        counts.add(label)
    told = Told([counts.told()])
    assert [told("x_total", a=a) for a in ("p", "q", "other")] == [2, 1, 2]


def row(family: Family) -> str:
    ending = "_total" if family.kind is FamilyKind.COUNTER else ""
    labels = ", ".join(f"`{label}`" for label in family.labels) or "—"
    return f"| `{family.name}{ending}` | {family.kind} | {labels} | {family.help} |"


def test_the_documentation_lists_every_family() -> None:
    """In one table, as the code describes them."""
    page = (ROOT / "docs/metrics.md").read_text()
    listed = [line for line in page.splitlines() if line.startswith("| `backfill_")]
    assert listed == [row(family) for family in FAMILIES]


def test_alerts_and_board_ask_for_what_there_is() -> None:
    """A family that is renamed is renamed there too."""
    known = {f.name for f in FAMILIES}
    known |= {f"{f.name}_total" for f in FAMILIES if f.kind is FamilyKind.COUNTER}
    parts = ("_bucket", "_count", "_sum")
    known |= {f.name + part for f in FAMILIES if f.kind is FamilyKind.HISTOGRAM for part in parts}
    for name in ("backfill.rules.yaml", "backfill.dashboard.json"):
        text = (ROOT / "config/monitoring" / name).read_text()
        assert set(re.findall(r"\bbackfill_\w+", text)) - known == set(), name
