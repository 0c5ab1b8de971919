"""What the command line reads and orders can be read and ordered through the API, and is by --url."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill.core.model.lifecycle import Phase
from backfill.ui.cli import main
from backfill.ui.command_line import COMMANDS, build_parser, command_parsers
from backfill.ui.web.app import make_app
from backfill.ui.web.gateway import Gateway
from tests.component.living_daemon import LivingDaemon, living
from tests.component.web_service import BO, CY, Names, asked, with_roles

# By command, the paths below /api/v1 that it asks.
ASKS = {
    "status": {"GET status"},
    "hosts": {"GET hosts", "GET status"},
    "nodes": {"GET nodes", "GET status"},
    "instances": {"GET instances", "POST leaks", "GET errands/{name}"},
    "explain": {"GET explain/{subject}"},
    "plan": {"GET plan", "GET status"},
    "events": {"GET events"},
    "metrics": {"GET metrics"},
    "evict": {"GET hosts", "GET nodes", "POST evictions"},
    "provision": {"POST provisions", "GET errands/{name}"},
    "drift": {"POST drift", "GET errands/{name}"},
    "checkpoint list": {"GET checkpoints"},
    "checkpoint create": {"POST checkpoints"},
    "checkpoint restore": {"POST checkpoints/restores", "GET errands/{name}"},
    "checkpoint verify": {"POST checkpoints/verifications", "GET errands/{name}"},
    "checkpoint delete": {"POST checkpoints/removals", "GET errands/{name}"},
    "checkpoint expire": {"POST checkpoints/expiry", "GET errands/{name}"},
    "reclaim": {"GET hosts", "POST reclaims"},
    "fleet create": {"POST fleets", "GET fleets"},
    "fleet list": {"GET fleets"},
    "fleet delete": {"DELETE fleets/{name}"},
    "retry": {"GET nodes", "POST retries"},
    "poke": {"POST poke"},
    "policy compare": {"POST policy/previews", "GET policy/previews/{name}"},
    "policy reload": {"POST policy/reload"},
}
_FILES = "it reads files of the machine that it runs on, and asks no daemon"
_ROOT = "it changes what root owns on the controller and the hosts, which no daemon of ours may"
_SELF = "it is such a program itself"
# By command, why it has no --url. A group of commands stands for all below it.
ON_THE_MACHINE = {
    "policy check": f"{_FILES}; POST policy/check checks a text, too",
    "policy schema": _FILES,
    "images": _FILES,
    "image": _FILES,
    "replay": _FILES,
    "workload": _FILES,
    "completion": _FILES,
    "version": _FILES,
    "slurm": _ROOT,
    "setup": _ROOT,
    "doctor": "it proves what only this machine can: its own files, rights and ways to the hosts",
    "daemon": _SELF,
    "web": _SELF,
    "lab": "it builds a cluster of namespaces on this machine",
    "demo": "it builds a cluster of namespaces on this machine",
    "run": "it becomes salloc on the node of the job that calls it, and asks Slurm alone",
    "cloud": "it goes to OpenStack with its user's own rights, before there is a daemon",
}
# What no command asks, and who does.
FOR_PAGES = {
    "GET me": "the page: who looks",
    "POST session": "the page: a token is no cookie",
    "DELETE session": "the page",
    "GET timeline": "the page's drawing",
    "GET harvest": "the page's bars",
    "GET mine": "the page of a user without a role; squeue is their command",
    "GET stream": "programs that follow events; `events --follow` reads GET events again and again",
    "GET operations": "programs that follow calls; `status` tells them with the rest",
    "POST policy/check": "the page; `policy check` is the same check without a daemon",
}


def _leaves(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    below = command_parsers(parser)
    if not below:
        yield name, parser
    for verb, one in below.items():
        yield from _leaves(one, f"{name} {verb}")


def _commands() -> dict[str, argparse.ArgumentParser]:
    """Every command that can be given, with its parser."""
    found: dict[str, argparse.ArgumentParser] = {}
    for command in COMMANDS:
        parser = command_parsers(build_parser([command]))[command.name]
        found |= dict(_leaves(parser, command.name))
    return found


def _far(parser: argparse.ArgumentParser) -> bool:
    return "--url" in parser._option_string_actions


def test_each_command_goes_through_the_api_or_it_is_said_why_not() -> None:
    """By what the parsers themselves say; what is said of no command any more is wrong as well."""
    commands = _commands()
    far = {name for name, parser in commands.items() if _far(parser)}
    assert far == set(ASKS)
    near = set(commands) - far
    unexplained = [n for n in near if n not in ON_THE_MACHINE and n.split()[0] not in ON_THE_MACHINE]
    assert unexplained == []
    assert {n for n in ON_THE_MACHINE if not any(f"{one} ".startswith(f"{n} ") for one in near)} == set()


def _offered() -> set[str]:
    """What OpenAPI tells."""
    gateway = Gateway("nowhere")
    told = make_app(gateway).openapi()["paths"]
    gateway.close()
    return {
        f"{method.upper()} {path.removeprefix('/api/v1/')}"
        for path, methods in told.items()
        if path.startswith("/api/v1/")
        for method in methods
    }


def test_the_api_offers_what_commands_ask_and_nothing_that_nobody_does() -> None:
    used = set().union(*ASKS.values())
    assert used | set(FOR_PAGES) == _offered()
    assert not used & set(FOR_PAGES)


# --- and they work ---------------------------------------------------------------------------------


class Far:
    """A daemon with a job on vn1, and the command line of an operator elsewhere."""

    def __init__(self, daemon: LivingDaemon, url: str) -> None:
        self.daemon, self._url = daemon, url
        self.job = daemon.sim.submit("htc", 5000.0)
        daemon.until(lambda: daemon.phase("vn1") is Phase.READY and bool(daemon.daemon.world.jobs_on("vn1")))
        daemon.provisioner.enrol("vn1", 1, "10.77.1.1/16")

    def run(self, *words: str) -> int:
        return main([*words, "--url", self._url])

    def kept(self) -> str:
        """The id of a checkpoint of the job."""
        before = len(self.daemon.sim.provider.checkpoints())
        assert self.run("checkpoint", "create", self.job) == 0
        self.daemon.until(lambda: len(self.daemon.sim.provider.checkpoints()) > before)
        self.daemon.until(lambda: self.daemon.phase("vn1") is Phase.READY)
        return self.daemon.sim.provider.checkpoints()[-1].id


@pytest.fixture
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Far]:
    monkeypatch.setenv("SLURM_JWT", BO)
    with living(tmp_path, with_roles(), tokens=Names()) as daemon, asked(daemon.socket, "") as web:
        yield Far(daemon, str(web.base_url).rstrip("/"))


Capture = pytest.CaptureFixture[str]


def test_checkpoints_are_kept_looked_at_and_removed_from_elsewhere(far: Far, capsys: Capture) -> None:
    """Without a policy file on that machine; a mistake in a name removes nothing."""
    identity = far.kept()
    assert far.run("checkpoint", "list") == 0
    assert identity in capsys.readouterr().out
    assert far.run("checkpoint", "verify", identity) == 0
    assert capsys.readouterr().out == f"{identity}: complete and unchanged\n"
    assert far.run("checkpoint", "verify", identity, "--restore-on", "bm9") == 1
    assert "'bm9' is no host" in capsys.readouterr().err
    assert far.run("checkpoint", "expire") == 0
    assert capsys.readouterr().out == "nothing has expired\n"
    assert far.run("checkpoint", "delete", identity, "9-9") == 1
    assert "there is no checkpoint '9-9'" in capsys.readouterr().err
    assert len(far.daemon.sim.provider.checkpoints()) == 1
    assert far.run("checkpoint", "delete", identity, "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"removed": [identity]}
    assert far.daemon.sim.provider.checkpoints() == ()
    ended = [e["result"] for e in far.daemon.audit.entries if e["what"] == "remove-checkpoints"]
    assert ended == ["begun", "failed: there is no checkpoint '9-9'", "begun", "ok"]


def test_a_job_goes_on_from_a_checkpoint_from_elsewhere(far: Far, capsys: Capture) -> None:
    """While it is put back, nobody removes it."""
    identity = far.kept()
    assert far.run("checkpoint", "restore", identity) == 0
    assert f"job {far.job} goes on from {identity}: vn1 stops" in capsys.readouterr().out
    assert far.run("checkpoint", "delete", identity) == 1
    assert f"{identity} is just being used for vn1" in capsys.readouterr().err
    far.daemon.until(lambda: far.daemon.daemon.world.managed["vn1"].order is None)
    far.daemon.until(lambda: far.daemon.phase("vn1") is Phase.READY)
    assert far.run("checkpoint", "restore", "9-9") == 1
    assert "there is no checkpoint '9-9'" in capsys.readouterr().err


def test_salt_is_run_from_elsewhere(far: Far, capsys: Capture) -> None:
    """Only where a look or Salt itself shows a difference; a node without a key is refused."""
    far.daemon.provisioner.drifted["vn1"] = (("limits", "one line differs"),)
    far.daemon.sim.provider.unlike["vn1"] = "/etc/security/limits.conf differs"
    assert far.run("drift") == 1
    assert "DRIFTED" in capsys.readouterr().out
    assert far.run("provision", "vn1") == 0
    assert "changed" in capsys.readouterr().out
    assert far.daemon.provisioner.drifted == {}
    assert far.run("provision", "vn7") == 1
    assert "there is no node with a key at the Salt master 'vn7'" in capsys.readouterr().err


def test_metrics_and_leaks_are_read_from_elsewhere(far: Far, tmp_path: Path, capsys: Capture) -> None:
    assert far.run("metrics", "--out", str(tmp_path / "backfill.prom")) == 0
    assert 'backfill_nodes{phase="ready"} 1.0' in (tmp_path / "backfill.prom").read_text()
    assert far.run("instances", "--leaks") == 0
    assert capsys.readouterr().out == "nothing is left over\n"


def test_what_takes_minutes_takes_an_operator(
    far: Far, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JWT", CY)
    for words in (["drift"], ["provision", "vn1"], ["checkpoint", "expire"], ["instances", "--leaks"]):
        assert far.run(*words) == 77
        assert "takes the role operator" in capsys.readouterr().err
    assert far.run("checkpoint", "list") == 0
