"""`backfill daemon --config FILE`: check everything first, then run until told to stop."""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TextIO

from backfill.config import Config, ConfigError, conflicts, hints, load
from backfill.config.catalogue import path_of
from backfill.core.expiry import Expiry
from backfill.core.model.clock import as_then
from backfill.core.model.visible import visible
from backfill.drivers.salt.driver import SaltProvisioner
from backfill.drivers.slurm.driver import SlurmManager
from backfill.drivers.slurm.settings import check_settings, slurm_uid
from backfill.drivers.store.host_book import WrittenHostBook
from backfill.drivers.store.lease import Keeper, Lease, lease_path
from backfill.drivers.store.prompt import PromptJournal
from backfill.drivers.store.schema import foreseen
from backfill.drivers.store.sqlite import SqliteJournal
from backfill.engine.clock import SteadyClock
from backfill.engine.connection_limiter import Trust
from backfill.engine.daemon import Daemon, Pace
from backfill.engine.listener import Listener
from backfill.engine.looking import Outside
from backfill.engine.messages import Message, Reread, Stop
from backfill.engine.policyfile import PolicyFile, Reading, differing
from backfill.engine.queries import Queries
from backfill.engine.tidy import expire
from backfill.ports.errors import DriverError, RefusedError
from backfill.ports.hostbook import HostBook
from backfill.ports.provider import InstanceProvider
from backfill.ui import slurm_parts
from backfill.ui.assemble import (
    OnEvent,
    credentials,
    distinct,
    gate,
    keepers,
    payload_pool,
    providers,
    provisioner,
    slurm_manager,
)
from backfill.ui.commands.file_check import check_files, unit_user, unusable
from backfill.ui.commands.hook_check import check_hooks
from backfill.ui.commands.options_check import check_options
from backfill.ui.preview import DayPlayer
from backfill.ui.rooms import RoomWatch

_LOG = logging.getLogger("backfill")
# A hook gives up by its own timeout, which may be long; ours only bounds a hook that hangs.
_HOOK_PATIENCE_S = 600.0

OK, UNAVAILABLE, BAD_CONFIG = 0, 69, 78


def add_daemon_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `backfill daemon`."""
    parser.add_argument("--config", required=True, metavar="FILE", type=Path, help="policy file")
    parser.add_argument("--verbose", action="store_true", help="log every detail")
    parser.add_argument("--check", action="store_true", help="compare the file with the cluster and exit")
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="do not wait for the lease of another daemon of this cluster; only if that one has ended",
    )


def run_daemon(args: argparse.Namespace) -> int:
    """Run the daemon in the foreground; the service manager puts it into the background."""
    _begin_log(logging.DEBUG if args.verbose else logging.INFO)
    try:
        config = load(args.config)
    except ConfigError as error:
        return _refuse(str(error), BAD_CONFIG)
    manager = slurm_manager(config)
    pokes: list[Daemon] = []

    salt = provisioner(config, lambda node: _poke(pokes))
    if salt is not None:
        salt.warm()  # beside everything else
    hint = None if args.check else lambda host, name: _poke(pokes, host)
    try:
        book = WrittenHostBook(Path(config.daemon.state_dir) / "hosts.json", write=not args.check)
        with _open_providers(config, hint, salt, book) as by_host:
            problems = _against_the_cluster(config, manager, by_host)
            if salt is not None and args.check:
                salt.check()
            if problems:
                return _refuse("\n".join(f"{args.config}: {p}" for p in problems), BAD_CONFIG)
            if args.check:
                return _checked(config, manager)
            return _begin(config, manager, by_host, salt, pokes, book, at_once=args.take_over)
    except DriverError as error:
        return _refuse(f"{args.config}: {error}", UNAVAILABLE)


@contextmanager
def _open_providers(
    config: Config, hint: OnEvent | None, salt: SaltProvisioner | None, book: HostBook
) -> Iterator[Mapping[str, InstanceProvider]]:
    """Connect to the hosts; whatever becomes of the start, leave nothing behind on them."""
    by_host = providers(config, hint, salt, book)
    try:
        yield by_host
    finally:
        for provider in set(by_host.values()):
            provider.close()


def _begin(
    config: Config,
    manager: SlurmManager,
    by_host: Mapping[str, InstanceProvider],
    salt: SaltProvisioner | None,
    pokes: list[Daemon],
    book: HostBook,
    *,
    at_once: bool,
) -> int:
    """Work, if no other daemon does."""
    try:
        with _only_one(Path(config.daemon.state_dir)), _the_only(config, manager, at_once=at_once) as right:
            _settle(config, manager)
            outside = Outside(
                manager,
                by_host,
                SteadyClock(),
                keepers(by_host),
                credentials(config, manager),
                salt,
                pool=payload_pool(config),
                book=book,
            )
            return _work(config, manager, outside, pokes, right)
    except (DriverError, RuntimeError) as error:
        return _refuse(str(error), UNAVAILABLE)


class OneLine(logging.Formatter):
    """Log one line for each message, whatever names users give to jobs; tracebacks have their own."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  it is logging's name
        record.message = visible(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802  as above
        lines = super().formatException(ei).split("\n")
        return "\n".join(f"  {visible(line)}" for line in lines)  # none looks like one of the log


def _begin_log(level: int) -> None:
    handler = logging.StreamHandler()
    line = "%(asctime)s.%(msecs)03d %(levelname)s %(message)s"
    handler.setFormatter(OneLine(line, "%Y-%m-%dT%H:%M:%S"))
    logging.basicConfig(level=level, handlers=[handler])


def _checked(config: Config, manager: SlurmManager) -> int:
    """Check for a file that fits the cluster its files, the journal, and whether a hook reaches us."""
    try:
        found = check_hooks(config, manager.settings())
        becomes = foreseen(Path(config.daemon.state_dir) / "journal.db")
    except (DriverError, ValueError) as error:
        return _refuse(str(error), UNAVAILABLE)
    for sentence in found.proven:
        print(f"{config.source}: {sentence}")
    if os.geteuid() == 0 and (user := unit_user()) not in ("", "root"):
        print(
            f"{config.source}: root looked at it, and the daemon is {user}: `backfill doctor` looks as {user}"
        )
    options = check_options(config)
    for sentence in filter(None, (options.lack, becomes)):
        print(f"{config.source}: {sentence}")
    problems = [*check_files(config), *found.problems, *options.problems]
    if problems:
        return _refuse("\n".join(f"{config.source}: {p}" for p in problems), BAD_CONFIG)
    print(f"{config.source}: fits the cluster")
    return OK


@contextmanager
def _the_only(config: Config, manager: SlurmManager, *, at_once: bool) -> Iterator[Keeper | None]:
    """Hold the lease that keeps a daemon of another state directory from the same cluster."""
    raw = manager.settings().raw
    state_save, cluster = raw.get("StateSaveLocation", ""), raw.get("ClusterName", "")
    path = lease_path(state_save, cluster)
    if path is None:
        _LOG.warning(
            "slurmctld's StateSaveLocation %s is not seen from here: a second daemon of this "
            "cluster, with another state_dir, would not be noticed",
            state_save,
        )
        yield None
        return
    lease = Lease(path, Path(config.daemon.state_dir))
    try:
        lease.take(at_once=at_once)
    except RefusedError as error:
        _LOG.warning("%s: a second daemon of this cluster would not be noticed", error)
        yield None
        return
    keeper = Keeper(lease)
    keeper.start()
    try:
        yield keeper
    finally:
        keeper.stop()


def _settle(config: Config, manager: SlurmManager) -> None:
    for problem in check_files(config):
        # No reason to end: what stands still has to come back, whatever new instances would lack.
        _LOG.warning("%s: %s", config.source, problem)
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
    longest_s = config.policies.longest_stop_s
    unfit = check_settings(
        settings, longest_s if longest_s is not None else float("inf"), config.slurm.registration.value
    )
    found = list(conflicts(config, settings, nodes, reachable))
    # Both look at SlurmdTimeout and MaxNodeCount; the file's own words name the line to change.
    return found or unfit


def _only_one(state_dir: Path) -> TextIO:
    """Hold the lock that keeps a second daemon from the same journal."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        lock = (state_dir / "daemon.lock").open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            pid = lock.read().strip() or "unknown"
            lock.close()
            raise RuntimeError(f"another daemon (pid {pid}) works with {state_dir}; stop it first") from None
        lock.truncate(0)
        os.write(lock.fileno(), str(os.getpid()).encode())  # unbuffered: on a full disk it fails here
    except OSError as error:
        raise RuntimeError(unusable(state_dir, error)) from None
    return lock


def _tidy(daemon: Daemon, journal: SqliteJournal, keep_s: float, expiry: Expiry) -> None:
    """Once an hour: old stories, and checkpoints that nobody needs.

    Nothing is older because somebody set the machine's clock.
    """
    outside, world = daemon.outside, daemon.world
    try:
        journal.prune(0.0, as_then(world.time_moves, outside.clock.now() - keep_s))
    except DriverError as error:
        _LOG.warning("old stories stay in the journal: %s", error)
    expire(expiry, distinct(outside.keepers.values()), outside, daemon.cycle.policies, world)


def _work(
    config: Config, manager: SlurmManager, outside: Outside, pokes: list[Daemon], right: Keeper | None
) -> int:
    by_host = outside.providers
    settings = config.daemon
    file = Path(settings.state_dir) / "journal.db"
    journal = SqliteJournal(file)
    prompt = PromptJournal(journal, str(file))
    pace = Pace(
        settings.poll_s,
        settings.host_poll_s,
        settings.watch_s,
        settings.workers,
        settings.policy_s,
        settings.full_pass_s,
        30.0 if config.condor is None else config.condor.every_s,
    )
    trust = Trust(slurm_uid(manager.settings()))

    def conflicts(new: Config) -> list[str]:
        trust.slurm_uid = slurm_uid(manager.settings())  # it may have changed, too
        return _against_the_cluster(new, manager, by_host)

    rooms = RoomWatch(config, lambda latest: slurm_parts.make_room(latest, manager))
    reloader = PolicyReloader(config, conflicts, rooms.adopt)
    policyfile, expiry = PolicyFile(reloader), Expiry()
    policyfile.source, policyfile.loaded_s = str(config.source), outside.clock.now()
    daemon = Daemon(
        config.policies,
        outside,
        prompt,
        pace,
        tidy=lambda: _tidy(daemon, journal, settings.journal_keep_s, expiry),
        policyfile=policyfile,
        right=right,
    )
    daemon.privacy.read()  # before anybody asks
    play = DayPlayer(config.source.absolute(), file.absolute())
    queries = Queries(daemon, gate(config, lambda: daemon.cycle.policies.access), play)
    listener = Listener(daemon.inbox, queries.answer, _HOOK_PATIENCE_S, trust, daemon.refused)
    _on_signals(daemon.inbox)
    try:
        listener.listen_unix(Path(settings.socket))
        if settings.listen:
            address, _, port = settings.listen.rpartition(":")
            listener.listen_tcp(address, int(port))
        pokes.append(daemon)
        rooms.start()
        why = daemon.run()
        _LOG.info("stopped: %s", why)
        return UNAVAILABLE if right is not None and right.lost else OK
    finally:
        rooms.stop()
        listener.close()
        queries.close()
        if outside.provisioner is not None:
            outside.provisioner.close()
        if outside.pool is not None:
            outside.pool.close()
        prompt.close()


def _on_signals(inbox: SimpleQueue[Message]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda n, _: inbox.put(Stop(signal.Signals(n).name)))
    signal.signal(signal.SIGHUP, lambda n, _: inbox.put(Reread()))


def _refuse(problem: str, code: int) -> int:
    print(problem, file=sys.stderr)
    return code


# What the daemon's parts are built from: a restart, which disturbs nothing, takes them over.
_FIXED_POLICIES = ("cluster", "hosts", "instances", "devices")
_FIXED_SECTIONS = ("hosts", "daemon", "slurm", "libvirt", "openstack", "salt", "condor")

# What in a file contradicts the living cluster, a sentence each. Raises DriverError.
Conflicts = Callable[[Config], list[str]]
_Stamp = tuple[int, int, int]
_Stamps = tuple[_Stamp | None, ...]


class PolicyReloader:
    """The `Reread` of a daemon that was started with a file.

    `make_room` is called with each file that is taken over.
    """

    def __init__(
        self, started: Config, conflicts: Conflicts, make_room: Callable[[Config], None] = lambda config: None
    ) -> None:
        self._path = Path(started.source)
        self._started = started
        self._conflicts = conflicts
        self._make_room = make_room
        self._catalogue = path_of(self._path, started.libvirt)
        self._stamp: _Stamps | None = self._stamps()  # None: nobody knows what is there now
        self._told: _Stamps | None = None  # which file it was said of that it could not be compared

    def __call__(self, force: bool) -> Reading | None:
        """Read the file, if it has changed since it was last read here or if `force`.

        A file that could not be compared with the cluster is read again the next time; that it
        could not is told once.
        """
        stamp = self._stamps()
        if not force and (stamp == self._stamp or None in stamp):
            return None  # a file that is just being replaced is not there for a moment
        told, self._told = self._told, None
        source = str(self._path)
        try:
            config = load(self._path)
            problems = [*self._fixed(config)] or [f"{source}: {p}" for p in self._conflicts(config)]
        except ConfigError as error:
            self._stamp = stamp
            return Reading(source, None, tuple(str(error).splitlines()))
        except Exception as error:  # noqa: BLE001 - it is tried again, whatever it was
            self._stamp, self._told = None, stamp
            if told == stamp and not force:
                return None
            if not isinstance(error, DriverError):
                _LOG.exception("comparing %s with the cluster failed in an unforeseen way", source)
            problem = f"{source}: it could not be compared with the cluster, which is tried again: {error}"
            return Reading(source, None, (problem,))
        self._stamp = stamp
        if problems:
            return Reading(source, None, tuple(problems))
        self._make_room(config)
        return Reading(source, config.policies)

    def _stamps(self) -> _Stamps:
        """When the file was last changed, and the catalogue that it names."""
        return tuple(_stamp(path) for path in (self._path, self._catalogue) if path is not None)

    def _fixed(self, config: Config) -> Iterable[str]:
        started = self._started
        others = differing(started.policies, config.policies)
        found = [name for name in _FIXED_POLICIES if name in others]
        found += [n for n in _FIXED_SECTIONS if getattr(config, n) != getattr(started, n)]
        for name in dict.fromkeys(found):
            yield (
                f"{self._path}:{config.lines.get(name, 0)}: {name} has changed, which a running "
                "daemon cannot take over; restart it (jobs and instances are not touched), or "
                "undo the change"
            )


def _stamp(path: Path) -> _Stamp | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino)
