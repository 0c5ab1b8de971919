"""What instances have left, and how jobs take their shares of it: in one piece, nothing twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill.core.model.fleet import Flavour
from backfill.core.policies.demand import JobShare
from backfill.core.remainders import Offering, Pieces, Remainder, Remainders, instances_for, whole
from backfill.core.undo import UndoLog

PLAIN, CMS = Offering("", ()), Offering("cms-7", ("shm",))
FLAVOUR = Flavour(cpus=4, memory_mb=1000, memory_margin_mb=0)

Found = tuple[Offering, int, int, int]  # with what left, and how often

lefts = st.lists(
    st.tuples(st.sampled_from((PLAIN, CMS)), st.integers(0, 4), st.integers(0, 10), st.integers(1, 3)),
    max_size=6,
)
shares = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 10), st.integers(1, 3), st.integers(1, 5)), max_size=6
)


def made(found: list[Found], given: bool | None) -> Remainders:
    """Half of it is there, the other half comes."""
    pieces = Pieces()
    all_ = [(offering, Remainder(mb == 10, cpus, mb), many) for offering, cpus, mb, many in found]
    for one in all_[::2]:
        pieces.add(*one)
    return Remainders(pieces, all_[1::2], memory_is_given=given)


def state(pieces: Pieces) -> tuple[object, ...]:
    """All that is there, in its order, and the sums."""
    every = list(pieces.fitting(JobShare(1, -99, 1), (PLAIN, CMS)))
    return every, [pieces.how_many(*one) for one in every], +pieces.cpus


@given(lefts, lefts, shares, st.booleans())
def test_what_a_plan_tries_is_taken_back(
    found: list[Found], tried: list[Found], wanted: list[tuple[int, int, int, int]], exclusive: bool
) -> None:
    """Of what comes and goes; and what jobs would take changes nothing of it."""
    log = UndoLog()
    pieces = Pieces(log)
    all_ = [(offering, Remainder(False, cpus, mb), many) for offering, cpus, mb, many in found]
    for one in all_:
        pieces.add(*one)
    before = state(pieces)
    with log.tentatively():
        for one in all_[1::2]:
            pieces.drop(*one)
        for offering, cpus, memory_mb, many in tried:
            pieces.add(offering, Remainder(True, cpus, memory_mb, empty=cpus == 4), many)
        there = Remainders(pieces, memory_is_given=True)
        for cpus, memory_mb, nodes, jobs in wanted:
            there.place(JobShare(cpus, memory_mb, nodes, exclusive), jobs, (PLAIN, CMS))
    assert state(pieces) == before
    for one in all_:
        pieces.drop(*one)
    assert state(pieces) == ([], [], {})


@given(lefts, shares, st.sampled_from((True, False, None)))
def test_what_is_given_is_gone_and_no_more(
    found: list[Found], wanted: list[tuple[int, int, int, int]], given: bool | None
) -> None:
    """CPUs add up, and of those that were passed over nothing is touched."""
    there = made(found, given)
    before = there.cpus((PLAIN,))
    placed = 0
    for cpus, memory_mb, nodes, jobs in wanted:
        share = JobShare(cpus, memory_mb, nodes)
        fitted = there.fits(share, (PLAIN,))
        lacking = there.place(share, jobs, (PLAIN,))
        assert 0 <= lacking <= jobs * nodes
        assert fitted or lacking
        placed += cpus * (jobs * nodes - lacking)
    assert there.cpus((PLAIN,)) == before - placed >= 0
    assert there.cpus((CMS,)) == sum(cpus * many for offering, cpus, _, many in found if offering is CMS)


@given(lefts, st.integers(1, 4), st.integers(1, 10), st.integers(1, 40))
def test_of_equal_jobs_as_many_find_a_place_as_can(
    found: list[Found], cpus: int, memory_mb: int, jobs: int
) -> None:
    """Each instance is filled as far as its CPUs and its memory go."""
    there = made(found, True)
    most = sum(min(left // cpus, left_mb // memory_mb) * many for _, left, left_mb, many in found)
    assert there.place(JobShare(cpus, memory_mb, 1), jobs, (PLAIN, CMS)) == max(0, jobs - most)


def test_the_smallest_piece_that_will_do_is_taken() -> None:
    """So that what is large stays for the large."""
    there = made([(PLAIN, 4, 10, 1), (PLAIN, 2, 5, 1), (PLAIN, 2, 3, 1)], True)
    assert there.place(JobShare(2, 3, 1), 1, (PLAIN,)) == 0
    assert there.place(JobShare(2, 5, 1), 1, (PLAIN,)) == 0
    assert there.place(JobShare(4, 10, 1), 1, (PLAIN,)) == 0


@pytest.mark.parametrize(("given", "lacking"), [(True, 2), (None, 0), (False, 0)])
def test_who_asks_for_no_memory_has_all_of_it_where_slurm_gives_it(given: bool | None, lacking: int) -> None:
    """Of an instance on which a job has some of it, there is none for them."""
    there = made([(PLAIN, 4, 10, 1), (PLAIN, 3, 9, 1)], given)
    assert there.place(JobShare(1, 0, 1), 3, (PLAIN,)) == lacking
    assert there.place(JobShare(1, 9, 1), 1, (PLAIN,)) == 0


def test_the_shares_of_a_wide_job_are_on_as_many_instances() -> None:
    """What it has found stays its own while it lacks others."""
    there = made([(PLAIN, 4, 10, 2)], True)
    assert not there.fits(JobShare(1, 1, 3), (PLAIN,))
    assert there.place(JobShare(1, 1, 3), 1, (PLAIN,)) == 1
    assert there.cpus((PLAIN, CMS)) == 6
    assert there.place(JobShare(4, 1, 1), 1, (PLAIN,)) == 1
    assert there.place(JobShare(1, 1, 2), 3, (PLAIN,)) == 0


def test_an_exclusive_job_has_an_instance_without_any_other() -> None:
    """Whatever is left beside others, and however little it asks for: nothing is left beside it."""
    part, empty = Remainder(True, 3, 10), whole(FLAVOUR)
    pieces = Pieces()
    pieces.add(PLAIN, part, 2)
    pieces.add(PLAIN, empty)
    there = Remainders(pieces, [(PLAIN, empty, 1)], memory_is_given=False)
    alone = JobShare(1, 0, 1, exclusive=True)
    assert there.fits(alone._replace(nodes=2), (PLAIN,))
    assert not there.fits(alone._replace(nodes=3), (PLAIN,))
    assert there.place(alone, 3, (PLAIN,)) == 1
    assert there.cpus((PLAIN,)) == 2 * part.cpus
    assert there.open(PLAIN, empty, alone, 3) == 3
    assert there.place(JobShare(1, 0, 1), 9, (PLAIN,)) == 3
    assert there.place(alone, 1, (PLAIN,)) == 1


@given(lefts, st.integers(1, 4), st.integers(0, 10), st.integers(1, 9), st.sampled_from((True, False, None)))
def test_as_many_exclusive_jobs_find_a_place_as_instances_are_empty(
    found: list[Found], cpus: int, memory_mb: int, jobs: int, given: bool | None
) -> None:
    """And large enough; what others leave is not touched."""
    pieces = Pieces()
    for offering, left, left_mb, many in found:
        pieces.add(offering, Remainder(left_mb == 10, left, left_mb, empty=left_mb == 10), many)
    there = Remainders(pieces, memory_is_given=given)
    most = sum(many for _, left, left_mb, many in found if left >= cpus and left_mb == 10)
    assert there.place(JobShare(cpus, memory_mb, 1, exclusive=True), jobs, (PLAIN, CMS)) == max(
        0, jobs - most
    )
    part = sum(left * many for _, left, left_mb, many in found if left_mb < 10)
    assert there.cpus((PLAIN, CMS)) >= part


@pytest.mark.parametrize("given", [True, False, None])
def test_where_others_have_begun_there_is_no_place_for_an_exclusive_job(given: bool | None) -> None:
    """Also of those that wait themselves and come first."""
    pieces = Pieces()
    pieces.add(PLAIN, whole(FLAVOUR))
    there = Remainders(pieces, memory_is_given=given)
    assert there.place(JobShare(1, 100, 1), 1, (PLAIN,)) == 0
    assert there.place(JobShare(1, 100, 1, exclusive=True), 1, (PLAIN,)) == 1


def test_others_may_take_all_of_a_kind() -> None:
    """Nothing of the other kinds."""
    there = made([(PLAIN, 4, 10, 2), (CMS, 3, 10, 1)], True)
    assert there.offered == [PLAIN, CMS]
    there.take_all((PLAIN,))
    assert there.offered == [CMS]
    assert there.place(JobShare(1, 1, 1), 4, there.offered) == 1
    assert there.offered == [CMS]


@pytest.mark.parametrize(
    ("wanted", "given", "count"),
    [
        ([], True, 0),
        ([(JobShare(1, 0, 1), 8)], False, 2),
        ([(JobShare(1, 0, 1), 8)], True, 8),
        ([(JobShare(1, 600, 1), 4)], True, 4),
        ([(JobShare(1, 600, 1), 4)], False, 1),
        ([(JobShare(1, 100, 1, exclusive=True), 4), (JobShare(1, 100, 1), 4)], None, 5),
        ([(JobShare(1, 100, 2, exclusive=True), 2), (JobShare(1, 100, 1), 4)], None, 5),
        ([(JobShare(3, 100, 1), 2), (JobShare(1, 100, 1), 2)], True, 2),
        ([(JobShare(1, 100, 3), 2)], True, 3),
        ([(JobShare(3, 100, 2), 2), (JobShare(1, 100, 1), 5)], True, 5),
    ],
)
def test_so_many_instances_hold_them_all(
    wanted: list[tuple[JobShare, int]], given: bool | None, count: int
) -> None:
    """And no more than anybody wants to know."""
    assert whole(FLAVOUR) == Remainder(True, 4, 1000, empty=True)
    assert instances_for(wanted, FLAVOUR, 99, memory_is_given=given) == count
    assert instances_for(wanted, FLAVOUR, 2, memory_is_given=given) == min(2, count)
