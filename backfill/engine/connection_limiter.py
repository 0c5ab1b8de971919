"""Limits connections: users who may only ask are few at a time, so a hook always finds a thread.

It also knows whose hooks are believed, and remembers those that were not, for people to see.
"""

from __future__ import annotations

import os
import pwd
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

# Each takes a thread and a file descriptor of the daemon, whose number is limited.
MOST_STRANGERS, MOST_OF_ONE = 32, 8
# A host's slurmd calls once for each job that starts or ends there.
MOST_FROM_AFAR, MOST_FROM_ONE_HOST = 2048, 256
# Answers of strangers that are made at the same time: the daemon's own thread shares Python's lock
# with whoever makes one.
MOST_ANSWERS = 1
# Answers that are made or being taken by who has asked; of them for one stranger, who may take none.
MOST_ANSWERS_KEPT, MOST_KEPT_FOR_ONE = 8, 2


TOO_MANY = "too many questions at once; ask again in a moment"


class CrowdedError(Exception):
    """Too many ask at the same time."""


def trusted(uid: int) -> bool:
    """Return True if a user may act: root and the daemon's own."""
    return uid in (0, os.getuid())


def user_told(uid: int) -> str:
    """`slurm (uid 64030)`, or the number alone where the name is not known."""
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except (KeyError, OverflowError):
        return f"uid {uid}"


class Trust:
    """The users on this machine whose hooks we believe. Safe from several threads."""

    def __init__(self, slurm_uid: int | None = None) -> None:
        self.slurm_uid = slurm_uid  # SlurmUser, as whom slurmctld runs its hooks

    def hook(self, uid: int) -> bool:
        """Return True if what this user's hooks say is believed: root's, the daemon's own, SlurmUser's."""
        return trusted(uid) or (self.slurm_uid is not None and uid == self.slurm_uid)

    def told(self) -> str:
        """Name the users whose hooks are believed, for people."""
        known = {os.getuid(): "the daemon's own user", 0: "root"}
        if self.slurm_uid is not None and self.slurm_uid not in known:
            known[self.slurm_uid] = f"SlurmUser, {user_told(self.slurm_uid)},"
        return " and ".join(reversed(known.values()))


@dataclass(slots=True)
class Unheard:
    """Hooks of one kind that were not believed: how many, and since when and until when."""

    why: str
    count: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    logged_s: float = 0.0


@dataclass(slots=True)
class Refused:
    """Hooks that were not believed, by reason. Safe from several threads; bounded."""

    most: int = 16
    total: int = 0  # of all reasons, also of those that are forgotten
    _known: dict[str, Unheard] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, why: str, now_s: float) -> bool:
        """One more for this reason; whether that is to be logged: the first one of each minute."""
        with self._lock:
            known = self._known.get(why)
            if known is None:
                if len(self._known) >= self.most:
                    del self._known[min(self._known, key=lambda w: self._known[w].last_s)]
                known = self._known[why] = Unheard(why, first_s=now_s)
            fresh = known.count == 0 or now_s - known.logged_s >= _QUIET_S
            known.count += 1
            self.total += 1
            known.last_s = now_s
            if fresh:
                known.logged_s = now_s
            return fresh

    def all(self) -> list[Unheard]:
        """Each reason with its number, the latest last."""
        with self._lock:
            found = [replace(unheard) for unheard in self._known.values()]
        return sorted(found, key=lambda unheard: unheard.last_s)


_QUIET_S = 60.0


class ConnectionLimiter:
    """Counts clients of users who are not trusted, and of other machines. For several threads."""

    def __init__(
        self, most: int = MOST_STRANGERS, each: int = MOST_OF_ONE, trust: Trust | None = None
    ) -> None:
        self._trust = trust or Trust()
        self._local = (most, each)
        self._inside: Counter[object] = Counter()
        self._lock = threading.Lock()

    def admit(self, uid: int, address: str = "") -> bool:
        """Return True if a client of this user, or of this machine, may come in now; `leave` follows."""
        if not address and self._trust.hook(uid):
            return True
        most, each = self._local if not address else (MOST_FROM_AFAR, MOST_FROM_ONE_HOST)
        all_of, one = _places(uid, address)
        with self._lock:
            if self._inside[all_of] >= most or self._inside[one] >= each:
                return False
            self._inside.update((all_of, one))
            return True

    def leave(self, uid: int, address: str = "") -> None:
        """Note that a client that was admitted has gone."""
        if not address and self._trust.hook(uid):
            return
        with self._lock:
            for place in _places(uid, address):
                self._inside[place] -= 1
                if self._inside[place] <= 0:
                    del self._inside[place]


def _places(uid: int, address: str) -> tuple[object, object]:
    return ("afar", f"from {address}") if address else ("here", uid)


class Turns:
    """Lets so many work at a time; the others wait for their turn, but not for ever."""

    def __init__(self, most: int = MOST_ANSWERS, each: int | None = None) -> None:
        """`each`: how many of them one user may have; None: all."""
        self._most, self._each = most, most if each is None else each
        self._inside: Counter[int] = Counter()
        self._change = threading.Condition()

    @contextmanager
    def taken(self, within_s: float, uid: int = 0) -> Iterator[None]:
        """Yield a turn to this user; raise CrowdedError when none has come within this time."""
        with self._change:
            if not self._change.wait_for(lambda: self._free(uid), within_s):
                raise CrowdedError
            self._inside[uid] += 1
        try:
            yield
        finally:
            with self._change:
                self._inside -= Counter((uid,))  # who has none left is forgotten
                self._change.notify_all()

    def _free(self, uid: int) -> bool:
        return self._inside.total() < self._most and self._inside[uid] < self._each
