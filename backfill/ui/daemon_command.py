"""`backfill daemon --config FILE`: check everything first, then run until told to stop."""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import TextIO

from backfill.config import ConfigError, conflicts, hints, load
from backfill.config.model import Config
from backfill.core.policy import PolicySet
from backfill.drivers.slurm.driver import SlurmManager
from backfill.drivers.slurm.settings import check_settings
from backfill.drivers.store.sqlite import SqliteJournal
from backfill.engine.clock import SteadyClock
from backfill.engine.daemon import Daemon, Pace
from backfill.engine.listener import Listener
from backfill.engine.looking import Outside
from backfill.engine.messages import Message, Reread, Stop
from backfill.engine.policyfile import PolicyFile
from backfill.engine.questions import Questions
from backfill.ports import DriverError, InstanceProvider
from backfill.ui import slurm_parts
from backfill.ui.assemble import (
    credentials,
    distinct,
    keepers,
    providers,
    provisioner,
    slurm_manager,
)
from backfill.ui.policy_reload import PolicyReloader

_LOG = logging.getLogger("backfill")
# A hook gives up by its own timeout, which may be long; ours only bounds a hook that hangs.
_HOOK_PATIENCE_S = 600.0
# How long the story of nodes and jobs that have ended can be told.
_KEEP_S = 30 * 86400.0

OK, UNAVAILABLE, BAD_CONFIG = 0, 69, 78


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `backfill daemon`."""
    parser.add_argument("--config", required=True, metavar="FILE", type=Path, help="policy file")
    parser.add_argument("--verbose", action="store_true", help="log every detail")
    parser.add_argument(
        "--check", action="store_true", help="check the file against the cluster and end"
    )


def run(args: argparse.Namespace) -> int:
    """Run the daemon in the foreground; the service manager puts it into the background."""
    logging.basicConfig(
        level=logging.DEBUG if args.verbose else logging.INFO,
        format="%(asctime)s.%(msecs)03d %(levelname)s %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    logging.getLogger("apscheduler").setLevel(logging.WARNING)
    try:
        config = load(args.config)
    except ConfigError as error:
        return _refuse(str(error), BAD_CONFIG)
    manager = slurm_manager(config)
    pokes: list[Daemon] = []

    salt = provisioner(config, lambda node: _poke(pokes))
    if salt is not None:
        salt.warm()  # beside everything else
    try:
        by_host = providers(config, lambda host, name: _poke(pokes, host), salt)
        problems = _against_the_cluster(config, manager, by_host)
        if salt is not None and args.check:
            salt.check()
    except DriverError as error:
        return _refuse(f"{args.config}: {error}", UNAVAILABLE)
    if problems:
        return _refuse("\n".join(f"{args.config}: {p}" for p in problems), BAD_CONFIG)
    if args.check:
        print(f"{args.config}: fits the cluster")
        return OK
    try:
        with _only_one(Path(config.daemon.state_dir)):
            _settle(config, manager)
            outside = Outside(
                manager, by_host, SteadyClock(), keepers(by_host), credentials(manager), salt
            )
            return _work(config, manager, outside, pokes)
    except (DriverError, RuntimeError) as error:
        return _refuse(str(error), UNAVAILABLE)


def _make_room(config: Config, manager: SlurmManager) -> None:
    """For the jobs of a policy file that was just taken over, which may be wider than before."""
    try:
        told = slurm_parts.make_room(config, manager)
    except DriverError as error:
        told = [f"Slurm may refuse jobs while it has no node that could run them: {error}"]
    for sentence in told:
        _LOG.warning("%s", sentence)


def _settle(config: Config, manager: SlurmManager) -> None:
    for sentence in slurm_parts.settle(config, manager):
        _LOG.warning("%s", sentence)


def _poke(daemons: list[Daemon], *sources: str) -> None:
    for daemon in daemons:
        daemon.poke(*sources)


def _against_the_cluster(
    config: Config, manager: SlurmManager, by_host: Mapping[str, InstanceProvider]
) -> list[str]:
    """Everything in which file and living cluster contradict each other; hints are logged."""
    settings = manager.settings()
    nodes = manager.observe().nodes
    reachable = {name: provider.observe(name).host for name, provider in by_host.items()}
    for hint in hints(config, settings, nodes, reachable):
        _LOG.warning("%s: %s", config.source, hint)
    longest_s = config.policies.ladder.longest_stop_s
    unfit = check_settings(
        settings,
        longest_s if longest_s is not None else float("inf"),
        config.slurm.registration.value,
    )
    found = list(conflicts(config, settings, nodes, reachable))
    # Both look at SlurmdTimeout and MaxNodeCount; the file's own words name the line to change.
    return found or unfit


def _only_one(state_dir: Path) -> TextIO:
    """Hold the lock that keeps a second daemon from the same journal."""
    state_dir.mkdir(parents=True, exist_ok=True)
    lock = (state_dir / "daemon.lock").open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        pid = lock.read().strip() or "unknown"
        lock.close()
        raise RuntimeError(
            f"another daemon (pid {pid}) works with {state_dir}; stop it first"
        ) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _tidy(policies: PolicySet, outside: Outside, journal: SqliteJournal) -> None:
    """Once an hour: old stories, and checkpoints whose time is over."""
    now_s = outside.clock.now()
    try:
        journal.prune(_KEEP_S, now_s)
    except DriverError as error:
        _LOG.warning("old stories stay in the journal: %s", error)
    for keeper in distinct(outside.keepers.values()):
        try:
            keeper.tend()
            for identity in policies.checkpoints.expired(keeper.checkpoints(), now_s):
                keeper.drop(identity)
                _LOG.info("checkpoint %s is removed: its time is over", identity)
        except DriverError as error:
            _LOG.warning("checkpoints could not be tidied: %s", error)


def _work(config: Config, manager: SlurmManager, outside: Outside, pokes: list[Daemon]) -> int:
    by_host = outside.providers
    settings = config.daemon
    journal = SqliteJournal(Path(settings.state_dir) / "journal.db")
    pace = Pace(settings.poll_s, settings.host_poll_s, settings.watch_s, settings.workers,
                settings.policy_s)  # fmt: skip
    reloader = PolicyReloader(
        config,
        lambda new: _against_the_cluster(new, manager, by_host),
        lambda new: _make_room(new, manager),
    )
    policyfile = PolicyFile(reloader)
    policyfile.source, policyfile.loaded_s = str(config.source), outside.clock.now()
    daemon = Daemon(
        config.policies,
        outside,
        journal,
        pace,
        tidy=lambda: _tidy(daemon.cycle.policies, outside, journal),
        policyfile=policyfile,
    )
    listener = Listener(daemon.inbox, Questions(daemon).answer, _HOOK_PATIENCE_S)
    _on_signals(daemon.inbox)
    try:
        listener.listen_unix(Path(settings.socket))
        if settings.listen:
            address, _, port = settings.listen.rpartition(":")
            listener.listen_tcp(address, int(port))
        pokes.append(daemon)
        why = daemon.run()
        _LOG.info("stopped: %s", why)
        return OK
    finally:
        listener.close()
        for provider in set(outside.providers.values()):
            provider.close()
        if outside.provisioner is not None:
            outside.provisioner.close()
        journal.close()


def _on_signals(inbox: SimpleQueue[Message]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda n, _: inbox.put(Stop(signal.Signals(n).name)))
    signal.signal(signal.SIGHUP, lambda n, _: inbox.put(Reread()))


def _refuse(problem: str, code: int) -> int:
    print(problem, file=sys.stderr)
    return code
