"""The proof before a node takes jobs: what is judged, how long it may fail, and what follows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from backfill.core.learning import follow
from backfill.core.model import changes as ch
from backfill.core.model.cluster import Node, NodeBase
from backfill.core.model.fleet import Flavour
from backfill.core.model.lifecycle import ManagedNode, NodeProof, Phase
from backfill.core.model.readiness import Fact, GuestReport, image_streak, judge_registration, judge_report
from backfill.core.model.records import decode, encode, remembered
from backfill.core.model.refusals import Code
from backfill.core.model.sentences import sentence, why
from backfill.core.policies.readiness import Readiness
from backfill.core.world import World
from tests.component.living_daemon import LivingDaemon, living, policies

GOOD = GuestReport(
    correction_s=400.0,
    offset_s=0.002,
    bound_s=0.003,
    source="the controller's time server",
    cpus=1,
    memory_mb=224,
    addresses=("127.0.0.1", "10.77.1.1"),
    facts=(Fact("munge:to the guest", True), Fact("files:/home", True, "", 0.01)),
)
FLAVOUR = Flavour(cpus=1, memory_mb=256)


def failing(report: GuestReport) -> list[tuple[str, str]]:
    checks = judge_report(report, "10.77.1.1/16", 1, 208, 1.0)
    return [(c.name, c.sentence) for c in checks if not c.ok]


def test_a_good_report_proves_all() -> None:
    """Everything as promised: all hold, however far the clock was off before it was set."""
    assert failing(GOOD) == []


@pytest.mark.parametrize(
    ("change", "name", "said"),
    [
        ({"offset_s": 400.0}, "clock", "+400.0000 s"),
        ({"offset_s": -0.9, "bound_s": 0.2}, "clock", "1 s is the limit"),
        ({"offset_s": None, "source": "no answer"}, "clock", "could not be measured: no answer"),
        ({"cpus": 0}, "resources", "0 CPUs and 224 MB instead of the promised 1 and 208"),
        ({"memory_mb": 200}, "resources", "instead of the promised"),
        ({"addresses": ("127.0.0.1",)}, "address", "it has no address, not 10.77.1.1"),
        ({"addresses": ("10.77.1.9",)}, "address", "it has 10.77.1.9, not 10.77.1.1"),
        ({"facts": (Fact("files:/home", False, "not mounted"),)}, "files:/home", "not mounted"),
    ],
)
def test_each_point_fails_by_itself(change: dict[str, object], name: str, said: str) -> None:
    """One thing wrong fails one check, with a sentence that says what was found."""
    ((failed, sentence),) = failing(replace(GOOD, **change))  # type: ignore[arg-type]
    assert failed == name
    assert said in sentence


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"offset_s": None, "source": "it does not answer"}, "guests reach its UDP port"),
        (
            {
                "offset_s": None,
                "source": "the time server x cannot be asked: it does not know the time itself",
            },
            "local stratum",
        ),
        ({"bound_s": 2.0, "source": "the daemon's clock"}, "surroundings.time_server"),
        (Fact("munge:to the guest", False, "Invalid credential"), "surroundings.munge_key"),
        (Fact("munge:from the guest", False, "Expired credential"), "munged runs on both sides"),
        (Fact("files:/home", False, "not mounted"), "the file server runs and exports the path"),
        (Fact("files:/home", False, "it hangs"), "the file server runs"),
        (Fact("files:/home", False, "cannot be written: Permission denied"), "build the image anew"),
        (Fact("files:/home", False, "cannot be written: Read-only file system"), "`ro`"),
        (Fact("files:/home", False, "cannot be written: No space left on device"), "make room"),
        ({"memory_mb": 1}, "memory_margin_mb"),
        ({"addresses": ("10.77.1.9",)}, "a second machine with this address"),
        (Fact("salt", False, "hosts differs"), "`backfill provision NODE`"),
    ],
)
def test_whoever_reads_that_something_fails_reads_what_to_do(change: Any, remedy: str) -> None:
    """What really leads on: another finding of the same check may need another remedy."""
    told = {"facts": (change,)} if isinstance(change, Fact) else change
    checks = judge_report(replace(GOOD, **told), "10.77.1.1/16", 1, 208, 1.0)
    (failed,) = (c for c in checks if not c.ok)
    assert remedy in failed.remedy
    assert all(c.remedy == "" for c in checks if c.ok)


def test_a_slurmd_is_held_to_what_was_promised() -> None:
    """Not heard at all, with too little, with more than enough."""
    seen = Node("vn1", NodeBase.IDLE, cpus=1, memory_mb=100, slurmd_start_s=5.0)
    silent = judge_registration(replace(seen, slurmd_start_s=0.0), 1, 208)
    assert (silent.ok, silent.sentence) == (False, "it has not registered with Slurm yet")
    assert "`backfill explain NODE` tells how its console ended" in silent.remedy
    small = judge_registration(seen, 1, 208)
    assert small.sentence == "it registered with 1 CPUs and 100 MB instead of 1 and 208"
    assert "memory_margin_mb" in small.remedy
    assert judge_registration(replace(seen, memory_mb=300), 1, 208).ok


def test_the_last_report_is_kept_over_a_restart() -> None:
    """A daemon that starts over knows from the journal what its nodes have proven."""
    node = ManagedNode("vn1", "10.77.1.1/16", "bm1", 1, Phase.READY, 5.0, 1.0, proof=NodeProof(report=GOOD))
    (change,) = remembered([encode(ch.NodeManaged(node))])
    assert isinstance(change, ch.NodeManaged)
    assert change.node.proof.report == GOOD
    assert decode(encode(ch.Proven("vn1", 1, 5.0, GOOD))).report == GOOD


# --- the proof in the life of a node -------------------------------------------------------------


@contextmanager
def ailing(directory: Path, rules: Readiness, *facts: Fact) -> Iterator[LivingDaemon]:
    """A daemon with a waiting job, whose first instance proves all but these."""
    with living(directory, replace(policies(), readiness=rules)) as daemon:
        daemon.sim.provider.ailments["vn1"] = facts
        daemon.sim.submit("htc", 5.0)
        yield daemon


def refused(daemon: LivingDaemon, text: str) -> bool:
    return any(text in why(r) for r in daemon.daemon.cycle.last.refusals)


def released(daemon: LivingDaemon) -> bool:
    node = daemon.sim.slurm.read_nodes(["vn1"]).get("vn1")
    return node is not None and not node.drained


def test_a_node_that_proves_nothing_is_never_released(tmp_path: Path) -> None:
    """While a check fails the node stays drained; after the check's time it is taken away."""
    was_open = []
    with ailing(tmp_path, Readiness(files_within_s=5.0), Fact("files:/home", False, "not mounted")) as daemon:
        daemon.until(lambda: refused(daemon, "files:/home is not proven: not mounted"))

        def failed() -> bool:
            was_open.append(released(daemon) and daemon.phase("vn1") is not Phase.BOOTING)
            return daemon.phase("vn1") is Phase.FAILED

        daemon.until(failed)
        assert not any(was_open)
        assert "file server" in daemon.daemon.world.managed["vn1"].reason


def test_a_node_that_recovers_in_time_is_released(tmp_path: Path) -> None:
    """What begins to hold within its time is as good as what held at once."""
    ailment = Fact("munge:from the guest", False, "Expired credential")
    with ailing(tmp_path, Readiness(munge_within_s=600.0), ailment) as daemon:
        daemon.until(lambda: refused(daemon, "Expired credential"))
        assert not released(daemon)
        daemon.sim.provider.ailments.clear()
        daemon.until(lambda: daemon.phase("vn1") is Phase.READY)
        assert released(daemon)


def test_a_node_that_takes_long_is_asked_less_often(tmp_path: Path) -> None:
    """Every question takes CPU time from a guest that needs it to become ready."""
    asked_s: list[float] = []
    with ailing(tmp_path, Readiness(salt_within_s=600.0), Fact("salt", False, "no")) as daemon:

        def often() -> bool:
            node = daemon.daemon.world.managed.get("vn1")
            woken_s = None if node is None else node.proof.woken_s
            if woken_s is not None and woken_s > max([0.0, *asked_s]):
                asked_s.append(woken_s)
            return len(asked_s) >= 25

        daemon.until(often)
        # A tenth of the time so far, however late a busy machine lets the daemon be.
        assert all(b - a > 0.09 * (a - asked_s[0]) for a, b in pairwise(asked_s))
        assert asked_s[-1] - asked_s[-2] > 2 * Readiness().retry_s
        daemon.sim.provider.ailments.clear()
        daemon.until(lambda: daemon.phase("vn1") is Phase.READY)


# --- breakers ------------------------------------------------------------------------------------


HOSTS = ("bm1", "bm2")
REST = Readiness(break_after=3, rest_s=600.0)


def step(world: World, host: str, phase: Phase) -> None:
    """One node on `host` that was booting takes this phase."""
    booting = ManagedNode("vn1", "", host, 1, Phase.BOOTING, 0.0, 0.0)
    after = replace(booting, phase=phase, fail=True, reason="clock is not proven")
    follow(world.streaks, booting, after, world.now_s)


def test_a_host_that_fails_again_and_again_rests() -> None:
    """Three failures in a row on one host close it, and only it, for a while; then one try."""
    world = World()
    for _ in range(2):
        step(world, "bm1", Phase.REMOVING)
    assert REST.open_breaker(world.streaks, world.now_s, "bm1", HOSTS) is None
    step(world, "bm1", Phase.REMOVING)
    why = REST.open_breaker(world.streaks, world.now_s, "bm1", HOSTS)
    assert why is not None
    assert why.code is Code.HOST_FAILS
    assert sentence(why).startswith("3 instances in a row failed on host bm1")
    assert sentence(why).endswith("clock is not proven")
    assert REST.rest_ends_s(world.streaks, world.now_s) == 600.0
    assert REST.open_breaker(world.streaks, world.now_s, "bm2", HOSTS) is None
    assert REST.open_breaker(world.streaks, world.now_s, image_streak(""), HOSTS) is None
    world.apply(ch.Tick(600.0))
    assert REST.open_breaker(world.streaks, world.now_s, "bm1", HOSTS) is None


def test_an_image_that_fails_everywhere_rests() -> None:
    """Failures on several hosts are the image's: nothing more is made of it anywhere."""
    world = World()
    for host in ("bm1", "bm2", "bm1"):
        step(world, host, Phase.REMOVING)
    why = REST.open_breaker(world.streaks, world.now_s, image_streak(""), HOSTS)
    assert why is not None
    assert why.code is Code.IMAGE_FAILS


def test_one_success_closes_the_breaker() -> None:
    """A node that becomes ready ends the streaks of its host and of the image."""
    world, rules = World(), Readiness(break_after=1)
    step(world, "bm1", Phase.REMOVING)
    step(world, "bm2", Phase.REMOVING)
    step(world, "bm1", Phase.READY)
    assert rules.open_breaker(world.streaks, world.now_s, "bm1", HOSTS) is None
    assert rules.open_breaker(world.streaks, world.now_s, image_streak(""), HOSTS) is None
    assert rules.open_breaker(world.streaks, world.now_s, "bm2", HOSTS)


@pytest.mark.parametrize(("was", "closed"), [(Phase.RETURNING, {"bm1"}), (Phase.DRAINING, set())])
def test_what_did_not_boot_shows_nothing_of_the_image(was: Phase, closed: set[str]) -> None:
    """What came back shows that its host is well; what took a job just before its drain shows nothing."""
    world = World()
    for host in HOSTS:
        step(world, host, Phase.REMOVING)
    before = ManagedNode("vn2", "", "bm1", 1, was, 0.0, 0.0)
    follow(world.streaks, before, replace(before, phase=Phase.READY), world.now_s)
    assert set(world.streaks) == {"bm1", "bm2", image_streak("")} - closed
