"""Owners of jobs that wait for room are told why: rarely, a few at a time, and never a lie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from backfill.core.model import changes as ch
from backfill.core.model.actions import TellJob
from backfill.core.model.cluster import Job, JobState
from backfill.core.model.refusals import Code, Goal, Refusal, because, limit, refusal
from backfill.core.model.sentences import sentence
from backfill.core.policies.notice import Notice
from backfill.core.policy import PolicySet
from backfill.core.reconcile.notices import Told, tell_waiting
from backfill.core.world import World
from backfill.drivers.store.memory import MemoryJournal
from backfill.engine.cycle import Cycle
from backfill.engine.notices import EVERY_S, WaitingRoom
from tests.component.living_daemon import policies

NOW_S = 1_000_000.0
FULL = (refusal("cluster", Goal.NEW_INSTANCE, limit("limits.max_instances", 2)),)
SAID = "backfill: as of 1970-01-12 13:46 UTC it waits: limits.max_instances = 2 is reached"


def job(number: int, job_id: str = "", **fields: object) -> Job:
    """A low-priority job that waits for room since long ago."""
    made = Job(
        id=job_id or str(number),
        raw_id=number,
        partition="htc",
        state=JobState.PENDING,
        submit_s=1000.0 + number,
        reason="Resources",
        cpus=1,
        num_nodes=1,
    )
    return replace(made, **fields)  # type: ignore[arg-type]  # the fields are Job's


def running(waiting: Job) -> Job:
    return replace(waiting, state=JobState.RUNNING, nodes=("vn1",))


def world_of(jobs: Iterable[Job], now_s: float = NOW_S) -> World:
    world = World()
    world.apply(ch.Tick(now_s))
    world.apply(ch.SourceSeen("slurm", now_s))
    for one in jobs:
        world.apply(ch.JobSeen(one, now_s))
    return world


def told(
    jobs: Iterable[Job], refusals: Sequence[Refusal] = FULL, policy: PolicySet | None = None
) -> dict[str, str]:
    """What is said at first sight, by the id that Slurm is given."""
    words, _ = tell_waiting(world_of(jobs), policy or policies(), refusals, {})
    return {word.job_id: word.text for word in words}


def test_ten_thousand_waiting_jobs_are_a_few_updates() -> None:
    """Those that wait longest, so many a minute; nobody twice for the same reason."""
    world = world_of(job(number) for number in range(1, 10_001))
    known: dict[str, Told] = {}
    asked: list[str] = []
    for minute in range(5):
        world.apply(ch.Tick(NOW_S + 10 * minute))
        words, known = tell_waiting(world, policies(), FULL, known)
        asked += [word.job_id for word in words]
    assert asked == [str(number) for number in range(1, 31)]
    everything = {str(number): Told(NOW_S, FULL[0].reason) for number in range(1, 10_001)}
    assert tell_waiting(world, policies(), FULL, everything)[0] == []


def test_only_low_jobs_that_wait_for_room_long_enough_are_told() -> None:
    """Not what Slurm itself explains, not the high-priority ones, nobody who has just come."""
    others = [
        job(2, reason="Dependency"),
        job(3, reason="JobHeldUser"),
        job(4, partition="batch"),
        job(5, state=JobState.RUNNING, nodes=("vn1",)),
        job(6, submit_s=NOW_S - 60),
        job(7, eligible_s=NOW_S - 60),  # requeued a minute ago
    ]
    assert told([job(1), *others]) == {"1": SAID}


def test_the_jobs_own_reason_goes_before_that_of_all() -> None:
    """One that could never run here is told so, and not that there is no room at present."""
    too_big = because(Code.JOB_TOO_BIG, cpus=1, memory_mb=256, nodes=1)
    own = refusal("job 1", Goal.INSTANCE, too_big)
    said = told([job(1), job(2)], [own, *FULL])
    assert said["1"].endswith(f"it waits: {sentence(too_big)}")
    assert said["2"] == SAID


def test_where_hosts_are_the_reason_the_commonest_is_told() -> None:
    """One sentence for many hosts; none at all while an instance may be on its way."""
    taken = [because(Code.HOST_TAKEN, host=f"bm{n}", jobs=(str(n),)) for n in range(1, 4)]
    hosts = [refusal(f"bm{n}", Goal.NEW_INSTANCE, why) for n, why in enumerate(taken, 1)] + [
        refusal("bm4", Goal.NEW_INSTANCE, because(Code.HOST_UNREACHABLE, host="bm4"))
    ]
    (said,) = told([job(1)], hosts).values()
    expected = "none of 4 hosts has room for another instance (bm1: bm1 was given to job 1)"
    assert said.endswith(f"it waits: {expected}")
    (said,) = told([job(1)], hosts[:1]).values()
    assert "no host has room" in said
    assert told([job(1)], [refusal("vn1", Goal.REMOVAL, because(Code.BUDGET, most=1))]) == {}


def test_an_array_is_told_as_one_and_never_taken_apart() -> None:
    """By its own number while all tasks wait; not at all when that would reach those that run."""
    waiting = [job(20, f"20_{task}") for task in range(5)]
    assert list(told(waiting)) == ["20"]
    running = job(31, "20_5", state=JobState.RUNNING, nodes=("vn1",))
    assert told([*waiting, running]) == {}
    apart = job(32, "20_6")
    assert list(told([*waiting, apart])) == ["20_6"]
    assert list(told([job(40, "40+0"), job(41, "40+1")])) == ["40+0"]


def test_another_reason_is_told_later_and_the_same_one_never() -> None:
    """Numbers that change make no other reason; who has started is forgotten."""
    world = world_of([job(1)])
    _, known = tell_waiting(world, policies(), FULL, {})
    more = [refusal("cluster", Goal.NEW_INSTANCE, limit("limits.max_instances", 3))]
    other = [refusal("cluster", Goal.NEW_INSTANCE, because(Code.NO_NAME))]
    world.apply(ch.Tick(NOW_S + 30))
    assert tell_waiting(world, policies(), other, known)[0] == []
    later = world_of([job(1)], NOW_S + 3601)
    assert tell_waiting(later, policies(), more, known)[0] == []
    assert len(tell_waiting(later, policies(), other, known)[0]) == 1
    assert tell_waiting(world_of([]), policies(), FULL, known) == ([], {})


def test_it_can_be_switched_off_and_nothing_is_said_from_an_old_picture() -> None:
    """By either key; and what we have not seen lately may have changed."""
    for notice in (Notice(admin_comment=False), Notice(waiting_after_s=0.0)):
        assert told([job(1)], policy=replace(policies(), notice=notice)) == {}
    world = world_of([job(1)])
    world.apply(ch.Tick(NOW_S + 1000))
    assert tell_waiting(world, policies(), FULL, {}) == ([], {})


def test_while_some_are_being_told_nobody_else_is() -> None:
    """A slow slurmctld is asked no more than it answers; their turn comes a minute later."""
    journal = MemoryJournal()
    cycle = Cycle(world_of([job(1)]), policies(), journal, lambda action: None, lambda claim: None)
    cycle.last = replace(cycle.last, refusals=FULL)
    begun: list[Sequence[TellJob]] = []

    def tell(words: Sequence[TellJob]) -> bool:
        begun.append(words)
        return len(begun) > 1

    room = WaitingRoom(cycle, tell)
    for at_s in (0.0, 1.0, EVERY_S, EVERY_S + 1, 2 * EVERY_S):
        room.look(at_s)
    assert [len(words) for words in begun] == [1, 1]
    (note,) = journal.read()
    assert (note.subject, note.body["why"]) == ("1", SAID)


def test_who_has_begun_loses_the_sentence_again() -> None:
    """Also where nothing is wrong any more; of an array by any task; who is gone is forgotten."""
    tasks = [job(20, f"20_{task}") for task in range(3)]
    waits = [job(1), job(2), job(3), *tasks]
    _, known = tell_waiting(world_of(waits), policies(), FULL, {})
    assert known.keys() == {"1", "2", "3", "20"}
    world = world_of([running(job(1)), job(3), running(job(21, "20_0")), *tasks[1:]])
    words, left = tell_waiting(world, policies(), [], known)
    assert {(w.job_id, w.text, w.over) for w in words} == {("1", "", SAID), ("20", "", SAID)}
    assert "1" not in left
    assert tell_waiting(world, policies(), FULL, left)[1].keys() == {"3"}


def test_sentences_that_go_count_like_those_that_come() -> None:
    """A slurmctld that has started a thousand jobs is not asked for a thousand updates."""
    waits = [job(number) for number in range(1, 31)]
    known = {str(n): Told(NOW_S, FULL[0].reason, SAID) for n in range(1, 11)}
    world = world_of([running(one) if one.raw_id <= 10 else one for one in waits])
    asked = []
    for _ in range(3):
        words, known = tell_waiting(world, policies(), FULL, known)
        asked.append([word.job_id for word in words])
    assert [len(ids) for ids in asked] == [6, 6, 6]
    assert asked[0] + asked[1][:4] == [str(n) for n in range(1, 11)]


def test_whom_salloc_or_srun_keeps_waiting_is_told_there() -> None:
    """At the terminal, if the policy says so; batch jobs have none."""
    world = world_of([job(1, interactive=True), job(2)])
    words, _ = tell_waiting(world, policies(), FULL, {})
    assert {(word.job_id, word.aloud) for word in words} == {("1", True), ("2", False)}
    quiet = replace(policies(), notice=Notice(terminal=False))
    assert not any(word.aloud for word in tell_waiting(world, quiet, FULL, {})[0])
