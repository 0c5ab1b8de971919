"""`backfill daemon --check` calls the hook as Slurm would, and says what keeps it from us."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import pytest

from backfill.config import load
from backfill.config.model import Config
from backfill.core.model.cluster import SlurmSettings
from backfill.drivers.slurm.hooks.build import build_hook
from backfill.drivers.slurm.settings import read_settings, slurm_uid
from backfill.engine.connection_limiter import Refused, Trust
from backfill.engine.listener import Listener
from backfill.engine.messages import Message
from backfill.ui.commands.hook_check import check_hooks
from tests.component.hook_daemon import HookDaemon

# As whom a test can start a program: root can as anybody.
SLURM = 64030 if os.getuid() == 0 else os.getuid()
SAMPLE = Path(__file__).parents[2] / "config/policy.yaml"
CONFIG = """SLURM_VERSION           = 22.05.8
ClusterName             = lab
SelectType              = select/cons_tres
SlurmdTimeout           = 0 sec
PrologSlurmctld         = {prolog}
SlurmUser               = slurm({uid})
"""


class Site:
    """A place for the hook and the daemon's socket which SlurmUser may enter, or not."""

    def __init__(self, directory: Path, compiler: str | None) -> None:
        self.directory = directory
        self.program = directory / "prolog_slurmctld"
        self.socket = directory / "sock"
        self.compiler = compiler
        self.build()
        policy = load(SAMPLE)
        hooks = replace(policy.slurm.hooks, directory=str(directory), log=str(self.log))
        self.config: Config = replace(
            policy,
            daemon=replace(policy.daemon, socket=str(self.socket)),
            slurm=replace(policy.slurm, hooks=hooks),
        )

    @property
    def log(self) -> Path:
        return self.directory / "log" / "hook.log"

    def build(self, follows: str = "", socket: str = "") -> None:
        self.log.parent.mkdir(exist_ok=True)
        self.log.parent.chmod(0o777)
        endpoint = f"unix:{socket or self.socket}"
        build_hook(self.program, endpoint, 20_000, self.log, self.compiler, follows)

    def settings(self, prolog: str | None = None) -> SlurmSettings:
        named = str(self.program) if prolog is None else prolog
        return read_settings(CONFIG.format(prolog=named, uid=SLURM), "", 0)

    def problem(self) -> str:
        """The one thing that is missing."""
        found = check_hooks(self.config, self.settings())
        assert found.proven == ()
        (problem,) = found.problems
        return problem


@pytest.fixture(params=["gcc", None], ids=["compiled", "Python"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    directory = Path(tempfile.mkdtemp(prefix="hk-"))
    directory.chmod(0o755)
    yield Site(directory, request.param)
    shutil.rmtree(directory)


def test_who_slurmuser_is_is_read_from_slurm(site: Site) -> None:
    """By its number, as the kernel tells it of who calls."""
    assert slurm_uid(site.settings()) == SLURM
    assert slurm_uid(replace(site.settings(), raw={})) is None


def test_a_hook_is_proven_from_end_to_end(site: Site) -> None:
    """With no daemon there, a listener like its own answers; nothing is left of it."""
    found = check_hooks(site.config, site.settings())
    assert found.problems == ()
    (sentence,) = found.proven
    assert f"uid {SLURM}" in sentence
    assert sentence.endswith("ok it was heard")
    assert not site.socket.exists()
    assert "the job goes on" not in site.log.read_text()


def test_the_sites_own_program_is_not_started(site: Site) -> None:
    """It would do for no job what it does for one."""
    ran = site.directory / "ran"
    own = site.directory / "own"
    own.write_text(f"#!/bin/sh\ntouch {ran}\n")
    own.chmod(0o755)
    site.build(follows=str(own))
    assert check_hooks(site.config, site.settings()).problems == ()
    assert not ran.exists()
    site.build(follows=str(own), socket=f"{site.directory}/nobody")
    assert "cannot reach the daemon" in site.problem() or "cannot ask" in site.problem()
    assert not ran.exists()


def test_the_daemon_that_runs_answers_itself(site: Site) -> None:
    """What it says is passed on."""
    with HookDaemon(site.socket, "ok no host of ours is among the nodes") as daemon:
        found = check_hooks(site.config, site.settings())
        assert daemon.requests[-1].startswith("backfill1 allocated job=0 nodes= ")
    assert "by the daemon that runs" in found.proven[0]
    assert found.proven[0].endswith("no host of ours is among the nodes")


def test_a_daemon_that_does_not_believe_it_is_found_out(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was started when SlurmUser was another."""
    monkeypatch.setattr("backfill.engine.listener._peer", lambda client: (65534, ""))
    inbox: SimpleQueue[Message] = SimpleQueue()
    door = Listener(inbox, lambda body, uid: {}, 5.0, Trust(), Refused())
    door.listen_unix(site.socket)
    try:
        problem = site.problem()
    finally:
        door.close()
    assert "are not believed, only those of root" in problem
    assert "backfill policy reload" in problem


def test_what_is_missing_is_named_with_its_remedy(site: Site) -> None:
    """Not there, not named, too old, for another place, with a log that it may not write."""
    other = check_hooks(site.config, site.settings(prolog=""))
    assert "PrologSlurmctld does not name it" in other.problems[0]
    site.build(socket=f"{site.directory}/nobody")
    assert f"built for another place than unix:{site.socket}" in site.problem()
    site.build()
    site.log.parent.rename(site.directory / "gone")
    assert "slurm.hooks.log" in site.problem()
    site.program.write_text("#!/bin/sh\nexit 0\n")
    assert "built by an older backfill" in site.problem()
    site.program.unlink()
    assert "which is not there" in site.problem()
    assert check_hooks(site.config, site.settings(prolog="/site/own")).problems == ()


def test_directories_that_slurmuser_may_not_enter_are_named(site: Site) -> None:
    """As with umask 027; root alone can try that, as for anybody else nobody is locked out."""
    if os.getuid() != 0:
        assert os.getuid() == SLURM
        return
    site.directory.chmod(0o750)
    problem = site.problem()
    assert f"(uid {SLURM})" in problem or f"uid {SLURM}" in problem
    assert "chmod o+x" in problem
