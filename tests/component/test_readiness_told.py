"""What people are told of proofs that fail, and of breakers."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from backfill.core.model.changes import NodeManaged
from backfill.core.model.fleet import Flavour
from backfill.core.model.lifecycle import Phase
from backfill.core.model.readiness import Fact
from backfill.core.model.sentences import why
from backfill.core.policies.readiness import Readiness
from backfill.engine.messages import Query
from backfill.ui.cli import main
from tests.component.living_daemon import LivingDaemon, living, policies

# Each of these fails by itself, after a time of its own.
FACTS = [
    Fact("munge:from the guest", False, "Invalid credential"),
    Fact("files:/home", False, "not mounted"),
    Fact("salt", False, "limits differs"),
]
NAMES = ("vn1", "vn2")
RULES = Readiness(munge_within_s=2.0, files_within_s=2.0, salt_within_s=2.0, break_after=2, rest_s=5_000.0)


class Ailing:
    """A daemon with a waiting job, whose instances do not prove one thing."""

    def __init__(self, daemon: LivingDaemon, capsys: pytest.CaptureFixture[str]) -> None:
        self.daemon = daemon
        self._where = ["--socket", str(daemon.socket)]
        self._capsys = capsys

    def ail(self, fact: Fact | None) -> None:
        """No instance proves this; None: all are well."""
        self.daemon.sim.provider.ailments = dict.fromkeys(NAMES, (fact,)) if fact else {}

    def shown(self, *argv: str) -> str:
        """What a command prints."""
        assert main([*argv, *self._where]) == 0
        return self._capsys.readouterr().out

    def reported(self) -> bool:
        """Whether the first node's guest has been looked into."""
        node = self.daemon.daemon.world.managed.get("vn1")
        return node is not None and node.proof.report is not None

    def broken(self) -> bool:
        """Whether a breaker is open."""
        refusals = self.daemon.daemon.cycle.last.refusals
        return any("instances in a row failed" in why(r) for r in refusals)


@pytest.fixture
def ailing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Ailing]:
    with living(tmp_path, replace(policies(give_up_after=9), readiness=RULES)) as daemon:
        yield Ailing(daemon, capsys)


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.name)
def test_a_proof_that_fails_is_told_with_its_remedy(ailing: Ailing, fact: Fact) -> None:
    """While it fails in the table of the node, and afterwards as the reason for its end."""
    ailing.ail(fact)
    ailing.daemon.sim.submit("htc", 5.0)
    ailing.daemon.until(ailing.reported)
    row = next(x for x in ailing.shown("nodes", "vn1").splitlines() if x.startswith(fact.name))
    assert re.search(rf"{fact.name} +NO .*{fact.said}", row)
    ailing.daemon.until(lambda: ailing.daemon.phase("vn1") is Phase.FAILED)
    reason = ailing.daemon.daemon.world.managed["vn1"].reason
    assert f"{fact.name} is not proven: {fact.said}; " in reason
    assert reason.split("; ")[1] in row
    assert fact.said in ailing.shown("explain", "vn1")


def test_a_breaker_opens_says_so_and_closes(ailing: Ailing) -> None:
    """By `status`, by `plan`, and to whoever asks why his job waits; one success ends it."""
    ailing.ail(FACTS[1])
    job = ailing.daemon.sim.submit("htc", 5.0)
    ailing.daemon.until(ailing.broken, step_s=0.5)  # minutes pass before the second one is tried
    for argv in (["status"], ["plan"], ["explain", job]):
        told = ailing.shown(*argv)
        assert "instances in a row failed on" in told, argv
        assert "files:/home is not proven: not mounted" in told, argv
    ailing.ail(None)
    ailing.daemon.sim.step_to(ailing.daemon.sim.now_s + RULES.rest_s)
    ailing.daemon.until(lambda: any(ailing.daemon.phase(n) is Phase.READY for n in NAMES))
    ailing.daemon.until(lambda: not ailing.broken())
    assert "in a row failed" not in ailing.shown("status")
    assert "in a row failed" not in ailing.shown("explain", job)


def test_a_node_with_an_old_record_is_held_to_what_it_was_given(ailing: Ailing) -> None:
    """The policy file has larger instances by now, and nobody promised that to this one."""
    daemon = ailing.daemon.daemon
    ailing.daemon.sim.submit("htc", 5_000.0)
    ailing.daemon.until(lambda: ailing.daemon.phase("vn1") is Phase.READY)

    def older() -> Generator[None, None, None]:
        larger = replace(daemon.cycle.policies.instances, flavour=Flavour(cpus=2, memory_mb=512))
        daemon.cycle.policies = replace(daemon.cycle.policies, instances=larger)
        daemon.cycle.take([NodeManaged(replace(daemon.world.managed["vn1"], flavour=None))])
        yield

    daemon.inbox.put(Query(older))
    ailing.daemon.until(lambda: daemon.world.managed["vn1"].flavour is None)
    (shown,) = json.loads(ailing.shown("nodes", "--json"))["nodes"]
    assert {check["name"]: check["ok"] for check in shown["checks"] if not check["ok"]} == {}
    assert {"slurmd", "resources"} <= {check["name"] for check in shown["checks"]}
