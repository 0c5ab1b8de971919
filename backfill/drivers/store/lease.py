"""One daemon per cluster: a lease in a directory that all controllers of the cluster share.

Clocks of different machines are never compared. Whoever holds the lease counts it up; whoever finds
one of somebody else watches it, and takes it over when it has stood still for long enough by the
watcher's own clock. A holder that cannot count it up gives up before anybody may take it over; one
that stood still itself looks again before it acts. What cannot be read is never free.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from backfill.ports.errors import BusyError, DriverError, RefusedError, UnreadableError

_LOG = logging.getLogger("backfill.lease")

BEAT_S = 5.0  # so often it is counted up
GIVE_UP_S = 30.0  # a holder that could not do so for so long does no more than give hosts back
TAKE_OVER_S = 60.0  # one that stood still for so long is taken over
_LOOK_S = 1.0  # so often a watcher looks
_SETTLE_S = 2.0  # two that take it over at once: the one that wrote last has it
_LOOK_AGAIN_S = 1.0  # so long a daemon that stood still waits for its first beat
# The rights or the mount are so: it will not change by itself, and Slurm's state is not ours.
_FOR_GOOD = (errno.EACCES, errno.EPERM, errno.EROFS)


def _uptime() -> float:
    """Read a clock that nobody sets and that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Held:
    """The content of the lease. `id` is that of a state directory, `life` of one daemon there."""

    id: str
    life: str
    host: str
    pid: int
    state_dir: str
    count: int = 0

    def __str__(self) -> str:
        return f"the daemon of {self.host} (process {self.pid}, {self.state_dir})"


class Lease:
    """The lease as one daemon has it. `beat` is called from a thread of its own."""

    def __init__(
        self,
        path: Path,
        state_dir: Path,
        uptime: Callable[[], float] = _uptime,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.path = path
        self._uptime, self._sleep = uptime, sleep
        host, life = socket.gethostname(), uuid.uuid4().hex
        where = str(state_dir.resolve())
        self._mine = Held(_identity(state_dir), life, host, os.getpid(), where)
        self._beaten_s = self._sure_s = uptime()

    def take(self, *, at_once: bool = False) -> None:
        """Hold it, perhaps after having watched another's. BusyError: another daemon is at work.

        `at_once`: whoever has it, because a person knows that it has ended. RefusedError: nobody
        seems to have it, and we may not write there. UnreadableError: nobody knows whose it is.
        """
        other = None if at_once else self._read()
        if other is not None and not self._ours(other):
            other = self._watch(other)
        if other is None and not at_once and not self._write(new=True):
            raise self._busy(self._read())  # somebody else was faster
        if other is not None or at_once:
            self._write()
        if at_once or (other is not None and not self._ours(other)):
            self._sleep(_SETTLE_S)
            other = self._read()
            if other is None or other.life != self._mine.life:
                raise self._busy(other)
        self._beaten_s = self._sure_s = self._uptime()

    def beat(self) -> str | None:
        """Count it up. Say whose it is when it is not ours any more, or None.

        Raises DriverError while the directory cannot be used; see `failing`.
        """
        began_s = self._uptime()
        other = self._read()
        if other is not None and other.life != self._mine.life:
            return f"the lease of this cluster was taken over by {other}"
        self._mine = replace(self._mine, count=self._mine.count + 1)
        if not self._write(new=other is None):
            return f"the lease of this cluster was taken over by {self._read()}"
        # After a long silence another may have read it before we wrote, and take it over just now:
        # it is ours for sure when it still is at the next beat.
        if began_s - self._beaten_s <= GIVE_UP_S:
            self._sure_s = began_s
        self._beaten_s = began_s
        return None

    @property
    def silent_s(self) -> float:
        """For how long it is not known to be ours."""
        return self._uptime() - self._sure_s

    @property
    def failing(self) -> bool:
        """Return True if it could not be counted up for so long that another may take it over soon."""
        return self.silent_s > GIVE_UP_S

    def release(self) -> None:
        """Let the next one have it without a wait, if it is still ours."""
        # Where that fails it stands still from now on, which says the same a little later.
        with suppress(OSError, DriverError):
            other = self._read()
            if other is not None and other.life == self._mine.life:
                self.path.unlink(missing_ok=True)

    def _ours(self, other: Held) -> bool:
        """Left by a daemon of the same state directory and machine: only one can be there.

        The directory's name counts, too: a copy of it has the same id.
        """
        mine = self._mine
        return (other.id, other.host, other.state_dir) == (mine.id, mine.host, mine.state_dir)

    def _watch(self, first: Held) -> Held | None:
        """Look at another's until it was seen to stand still for long; none: it was let go."""
        _LOG.warning(
            "%s: this cluster has %s; waiting %.0f s to see whether it still works (not with --take-over)",
            self.path,
            first,
            TAKE_OVER_S,
        )
        still_s, looked_s = 0.0, self._uptime()
        while still_s < TAKE_OVER_S:
            self._sleep(_LOOK_S)
            now = self._read()
            if now is None:
                return None
            if now != first:
                raise self._busy(now)
            # No more than was looked at: we may have stood still ourselves.
            now_s = self._uptime()
            still_s += min(now_s - looked_s, 2 * _LOOK_S)
            looked_s = now_s
        return first

    def _busy(self, other: Held | None) -> BusyError:
        return BusyError(
            str(self.path),
            f"{other or 'another daemon'} is at work on this cluster",
            "stop that one first; if it is not yours to stop, do not start a second one. "
            f"One that has died is followed {TAKE_OVER_S:.0f} s later, or at once with --take-over",
        )

    def _read(self) -> Held | None:
        try:
            text = self.path.read_bytes().decode(errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._cannot("the lease cannot be read", error, UnreadableError) from error
        try:
            body = json.loads(text)
            return Held(**{key: body[key] for key in Held.__slots__})
        except (ValueError, KeyError, TypeError):
            return Held("", text, "another machine", 0, "in words that are not ours")

    def _write(self, *, new: bool = False) -> bool:
        """Write it as a whole; false where it was to be a `new` one and there is one."""
        draft = self.path.with_name(f"{self.path.name}.{self._mine.id}")
        text = json.dumps(asdict(self._mine))
        try:
            if new:
                with self.path.open("x", encoding="utf-8") as file:
                    file.write(text)
            else:
                draft.write_text(text, encoding="utf-8")
                draft.replace(self.path)
        except FileExistsError:
            return False
        except OSError as error:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            kind = RefusedError if error.errno in _FOR_GOOD else UnreadableError
            raise self._cannot("the lease cannot be written", error, kind) from error
        return True

    def _cannot(self, what: str, error: OSError, kind: type[DriverError]) -> DriverError:
        return kind(str(self.path), f"{what}: {error.strerror}")


def lease_path(state_save: str, cluster: str) -> Path | None:
    """Return the path of a cluster's lease: beside slurmctld's own state, which controllers share.

    None where that directory is not the cluster's as this machine sees it, or not for us to see.
    Raises UnreadableError where that is not known now.
    """
    place = Path(state_save)
    try:
        there = (place / "clustername").read_bytes().decode(errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except OSError as error:
        raise UnreadableError(str(place), f"slurmctld's state cannot be read: {error.strerror}") from error
    return place / "backfill.lease" if there == cluster else None


def _identity(state_dir: Path) -> str:
    """Return a name of its own for each state directory, kept there."""
    file = state_dir / "daemon.id"
    try:
        known = file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        known = ""
    except OSError as error:
        raise RefusedError(str(file), f"cannot be read: {error.strerror}") from error
    if known:
        return known
    made = uuid.uuid4().hex
    try:
        file.write_text(f"{made}\n", encoding="utf-8")
    except OSError as error:
        raise RefusedError(str(file), f"cannot be written: {error.strerror}") from error
    return made


class Keeper:
    """Counts the lease up in a thread of its own, and tells whether we may still act."""

    def __init__(self, lease: Lease, look_again_s: float = _LOOK_AGAIN_S) -> None:
        self._lease, self._look_again_s = lease, look_again_s
        self._over = threading.Event()
        self._wanted = threading.Event()
        self._tried = threading.Event()
        self._doubted = False
        self._problem = ""
        self.lost = ""  # whose the lease is now
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        """Begin, in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """End, and let go of the lease."""
        self._over.set()
        self._wanted.set()
        self._thread.join(BEAT_S)
        if not self._thread.is_alive():
            self._lease.release()

    def doubt(self) -> str | None:
        """Return the reason to do no more than give hosts back now; None: nothing is in doubt.

        Called before each decision. Where we stood still ourselves (a stopped process, a machine
        that slept), the beat comes first; a dead directory delays us once by no more than a moment.
        """
        if not self._lease.failing:
            self._doubted = False
            return None
        if not self._doubted:
            self._doubted = True
            self._tried.clear()
            self._wanted.set()
            self._tried.wait(self._look_again_s)
        return self._problem or (
            f"{self._lease.path}: the lease was not counted up for more than {GIVE_UP_S:.0f} s"
        )

    def _run(self) -> None:
        going_on = True
        while going_on:
            self._wanted.wait(BEAT_S)
            self._wanted.clear()
            going_on = not self._over.is_set() and self.once()

    def once(self) -> bool:
        """One beat; false when the lease is another's now."""
        try:
            self.lost = self._lease.beat() or ""
            self._problem = ""
        except DriverError as error:
            self._problem = str(error)
        finally:
            self._tried.set()
        if self.lost:
            _LOG.error("%s", self.lost)
        return not self.lost
