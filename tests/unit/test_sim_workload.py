"""Workload models repeat with their seed and have the shapes that their sources publish."""

from __future__ import annotations

import gzip
import hashlib
import itertools
from math import exp, log
from pathlib import Path
from statistics import fmean, median, pstdev

import pytest

from backfill.sim.traces.draws import gamma, gamma_cdf, lognormal, normal, seeded, uniform_int
from backfill.sim.traces.models import (
    ALL,
    BATCH,
    HTC_LONGEST_S,
    INTERACTIVE,
    ModelJob,
    htc_pilot,
    lublin,
    offered_load,
    poisson,
    scaled_to_load,
    with_estimates,
)
from backfill.sim.traces.reader import read_trace
from backfill.ui.cli import main as command
from backfill.ui.parser import BAD_DATA, OK, USAGE

DRAWS = 20_000


def fingerprint(jobs: list[ModelJob]) -> str:
    return hashlib.sha256(repr([tuple(job) for job in jobs]).encode()).hexdigest()[:16]


def test_same_seed_same_history() -> None:
    """The drawn jobs are these, on every machine and in every version of Python."""
    assert fingerprint(lublin(1, 1000, 256)) == "4c73e545f85d6c63"
    assert fingerprint(lublin(1, 1000, 256, 0.8, (BATCH, INTERACTIVE))) == "7da814a958333a67"
    assert fingerprint(poisson(1, 1000, 10.0)) == "bc0f8c1de5a0824a"
    assert fingerprint(htc_pilot(1, 1000, 60.0, 100, ((1, 0.8), (8, 0.2)))) == "c2cf632de51877a8"


def test_another_seed_another_history() -> None:
    """Seeds matter."""
    assert lublin(1, 50, 256) != lublin(2, 50, 256)


def test_distributions_have_their_moments() -> None:
    """Means, deviations and medians of the drawn values are the theoretical ones within 3 %."""
    rng = seeded(5)
    gammas = [gamma(rng, 4.2, 0.94) for _ in range(DRAWS)]
    assert fmean(gammas) == pytest.approx(4.2 * 0.94, rel=0.03)
    assert pstdev(gammas) == pytest.approx(4.2**0.5 * 0.94, rel=0.03)
    normals = [normal(rng) for _ in range(DRAWS)]
    assert (fmean(normals), pstdev(normals)) == pytest.approx((0, 1), abs=0.03)
    assert median(lognormal(rng, 50, 2) for _ in range(DRAWS)) == pytest.approx(50, rel=0.06)
    assert {uniform_int(rng, 2, 4) for _ in range(100)} == {2, 3, 4}
    below = sum(value <= 5 for value in gammas) / DRAWS
    assert gamma_cdf(5, 4.2, 0.94) == pytest.approx(below, abs=0.02)
    assert gamma_cdf(2, 1, 1) == pytest.approx(1 - exp(-2))
    assert gamma_cdf(0, 1, 1) == 0


def test_lublin_sizes() -> None:
    """A quarter is serial, most others are powers of two, and none exceeds the machine."""
    sizes = [job.processors for job in lublin(3, DRAWS, 200)]
    assert sizes.count(1) / DRAWS == pytest.approx(ALL.serial, abs=0.02)
    powers = sum(size & (size - 1) == 0 for size in sizes) / DRAWS
    assert powers >= ALL.serial + ALL.power_of_two - 0.02
    assert max(sizes) <= 200


def test_lublin_run_times_grow_with_size() -> None:
    """The larger a job, the more often it is of the long kind."""
    jobs = lublin(3, DRAWS, 256)
    small = [log(job.run_s) for job in jobs if job.processors <= 4]
    large = [log(job.run_s) for job in jobs if job.processors >= 64]
    assert fmean(large) > fmean(small) + 0.5
    assert all(1 <= job.run_s <= exp(12) for job in jobs)


def test_lublin_has_a_daily_cycle() -> None:
    """More jobs arrive in the afternoon than before dawn, and submissions are in order."""
    jobs = lublin(3, DRAWS, 256)
    hours = [job.submit_s // 3600 % 24 for job in jobs]
    afternoon = sum(13 <= hour < 17 for hour in hours)
    dawn = sum(2 <= hour < 6 for hour in hours)
    assert afternoon > 4 * dawn
    assert all(one.submit_s <= other.submit_s for one, other in itertools.pairwise(jobs))


def test_a_machine_of_one_processor_gets_serial_jobs() -> None:
    """Sizes shrink with the machine down to one processor."""
    assert {job.processors for job in lublin(1, 200, 1)} == {1}


def test_load_is_what_was_asked_for() -> None:
    """Arrivals are stretched so that the work offered is the wanted share of the machine."""
    assert offered_load(lublin(1, 5000, 256, load=1.4), 256) == pytest.approx(1.4, rel=0.01)
    assert scaled_to_load([ModelJob(5, 1, 1)], 4, 0.5) == [ModelJob(5, 1, 1)]


def test_poisson_arrivals() -> None:
    """Gaps have the wanted mean, sizes and run times the wanted range."""
    jobs = poisson(1, DRAWS, 10.0)
    assert jobs[-1].submit_s / DRAWS == pytest.approx(10, rel=0.03)
    assert {job.processors for job in jobs} == {2, 8}
    assert (min(job.run_s for job in jobs), max(job.run_s for job in jobs)) == (140, 350)


def test_htc_run_times_are_those_of_a_grid() -> None:
    """Median and 90th percentile are near those of the log that the model was fitted to."""
    jobs = htc_pilot(1, DRAWS, 60.0, backlog=500)
    runs = sorted(job.run_s for job in jobs)
    assert median(runs) == pytest.approx(255, rel=0.1)
    assert runs[DRAWS * 9 // 10] == pytest.approx(15_286, rel=0.25)
    assert fmean(runs) == pytest.approx(8_013, rel=0.15)
    assert runs[-1] <= HTC_LONGEST_S
    assert sum(job.submit_s == 0 for job in jobs) >= 500


def test_estimates_cover_the_run_time() -> None:
    """An estimate is a round value between the run time and its multiple."""
    jobs = with_estimates(poisson(1, 500, 10.0), seed=2, factor=5)
    assert all(job.estimate_s % 300 == 0 for job in jobs)
    assert all(job.run_s <= job.estimate_s <= 5 * job.run_s + 300 for job in jobs)


def test_a_file_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the same exit status as in `replay`."""
    out = tmp_path / "none" / "x.swf"
    assert command(["workload", "htc", "--jobs", "3", "-o", str(out)]) == BAD_DATA
    assert f"cannot write {out}: " in capsys.readouterr().err


def test_a_trace_that_is_named_as_packed_is_packed(tmp_path: Path) -> None:
    """It was plain text with that name. The same seed makes the same file."""
    plain, packed, again = tmp_path / "x.swf", tmp_path / "x.swf.gz", tmp_path / "y.swf.gz"
    for out in (plain, packed, again):
        assert command(["workload", "htc", "--jobs", "3", "-o", str(out)]) == OK
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert packed.read_bytes() == again.read_bytes()
    assert list(read_trace(packed).run) == list(read_trace(plain).run)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--jobs", "x"], "--jobs: 'x' is no whole number; give one from 1 on"),
        (["--jobs", "0"], "--jobs: 0 is less than 1; give at least 1"),
        (["--jobs", "5", "--seed", "1.5"], "--seed: '1.5' is no whole number; give one"),
        (["--jobs", "5", "--load", "much"], "--load: much is not above 0"),
        (["--jobs", "5", "--backlog", "-1"], "--backlog: -1 is less than 0"),
        (["--jobs", "5", "--estimate-factor", "0.5"], "0.5 is less than 1; an estimate is never"),
    ],
)
def test_values_that_make_no_sense(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], sentence: str
) -> None:
    """They are refused in words of the user, and nothing is written."""
    out = tmp_path / "x.swf"
    assert command(["workload", "htc", *options, "-o", str(out)]) == USAGE
    assert sentence in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("model", "options", "sentence"),
    [
        ("poisson", ["--load", "0.5"], "--load is for lublin and lublin-typed; leave it out for poisson"),
        ("htc", ["--load", "0.5"], "--load is for lublin and lublin-typed; leave it out for htc"),
        ("lublin", ["--mean-gap-s", "5"], "--mean-gap-s is for poisson and htc; leave it out for lublin"),
        ("poisson", ["--backlog", "0"], "--backlog is for htc; leave it out for poisson"),
    ],
)
def test_an_option_of_another_model_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, options: list[str], sentence: str
) -> None:
    out = tmp_path / "x.swf"
    assert command(["workload", model, "--jobs", "5", *options, "-o", str(out)]) == USAGE
    assert sentence in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(("processors", "sizes"), [(1, {1}), (4, {2, 4}), (256, {2, 8})])
def test_no_job_is_larger_than_the_machine(tmp_path: Path, processors: int, sizes: set[int]) -> None:
    out = tmp_path / "x.swf"
    options = ["--jobs", "50", "--processors", str(processors)]
    assert command(["workload", "poisson", *options, "-o", str(out)]) == 0
    jobs = [line.split() for line in out.read_text().splitlines() if line and not line.startswith(";")]
    assert {int(job[7]) for job in jobs} == sizes
