"""The index of waiting jobs answers as a plain list would."""

from __future__ import annotations

import random
from array import array

import pytest

from backfill.sim.schedulers.fast_pool import WaitingJobs

JOBS = 600


@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_a_plain_list(seed: int) -> None:
    """Joining, leaving and every question, in any mix, with short and with long queues."""
    rng = random.Random(seed)
    sizes = array("q", (rng.choice([1, 1, 1, 2, 8]) for _ in range(JOBS)))
    estimates = array("q", (rng.choice([rng.randint(1, 9), rng.randint(1, 999)]) for _ in sizes))
    index = WaitingJobs(sizes, estimates)
    plain: list[int] = []
    coming = list(range(JOBS))
    while coming or plain:
        if coming and rng.random() < 0.6:
            job = coming.pop(0)
            index.add(job)
            plain.append(job)
        elif plain:
            job = plain.pop(rng.choice([0, rng.randrange(len(plain))]))
            index.remove(job)
        assert index.count == len(plain)
        assert index.sizes == sorted({sizes[job] for job in plain})
        after, longest = rng.randint(-1, JOBS), rng.choice([0, 3, 9, 500, 999])
        assert index.next_after(after) == next((j for j in plain if j > after), -1)
        for size in index.sizes:
            same = [job for job in plain if sizes[job] == size and job > after]
            short = [job for job in same if estimates[job] <= longest]
            assert index.first(size, after) == next(iter(same), -1)
            assert index.first_short(size, after, longest) == next(iter(short), -1)
