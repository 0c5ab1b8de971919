"""The Credentials port over munge's own programs, on the machine where the daemon runs."""

from __future__ import annotations

import math
import os
import subprocess
import tempfile
import time
from pathlib import Path

from backfill.ports.errors import BadOutputError, DriverError, UnreachableError

# From here on unmunge's exit status is a verdict on the credential (munge.h, munge_err_t); below,
# it could not ask its munged, or failed itself.
_VERDICTS = 8
_LOOK_S = 0.02
# Slurm puts the hash of a message there and takes nothing else for one. An empty payload it takes for any
# message, unless CommunicationParameters has block_null_hash: whoever read it could speak as we do.
_PAYLOAD = "backfill-proof"
# munged also lets clocks differ by as much as a credential lives. Less than a minute would make a guest's
# busy seconds, or a clock that is a little off, look like a wrong key.
LIFE_S = 60.0
_REPLAYED = 17  # EMUNGE_CRED_REPLAYED: it was understood before, which proves as much


class MungeCredentials:
    """See `backfill.ports.workload.Credentials`; needs `munge` and `unmunge`, and a munged that runs."""

    def __init__(
        self,
        munge: str = "munge",
        unmunge: str = "unmunge",
        within_s: float = 5.0,
        socket: str = "",
        reader: int = 0,
        life_s: float = LIFE_S,
    ):
        """`socket`: of another munged than the machine's own. `reader`: the only user who may decode what
        is made here; in guests that is root. `life_s`: for how long it can be decoded."""
        self._munge, self._unmunge, self._within_s = munge, unmunge, within_s
        self._where = [f"--socket={socket}"] if socket else []
        self._how = [f"--string={_PAYLOAD}", f"--ttl={math.ceil(life_s)}", f"--restrict-uid={reader}"]

    def make(self) -> str:
        """Encode a word that is of no use to Slurm: the credential itself is what counts."""
        done = self._run([self._munge, *self._how, *self._where], "")
        text = done.stdout.strip()
        if done.returncode != 0:
            problem = done.stderr.strip() or f"{self._munge} ended with {done.returncode}"
            raise DriverError("munge", problem, "see that munged runs on the controller")
        if not text.startswith("MUNGE:") or " " in text:
            raise BadOutputError("munge", f"{self._munge} printed something that is no credential")
        return text

    def check(self, credential: str) -> str | None:
        """Let the controller's munged decode it."""
        done = self._run([self._unmunge, "--no-output", *self._where], credential)
        if done.returncode in (0, _REPLAYED):
            return None
        said = done.stderr.strip().removeprefix("unmunge: ")
        if done.returncode < _VERDICTS:
            problem = said or f"{self._unmunge} ended with {done.returncode}"
            raise DriverError("munge", problem, "see that munged runs on the controller")
        return said or "the controller's munge refuses it"

    def _run(self, argv: list[str], given: str) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                argv, input=given, capture_output=True, text=True, timeout=self._within_s, check=False
            )
        except OSError as error:
            raise DriverError(
                "munge", f"{argv[0]} cannot be run: {error.strerror}", "install the package munge"
            ) from error
        except subprocess.TimeoutExpired:
            raise UnreachableError(
                "munge",
                f"{argv[0]} did not answer within {self._within_s:g} s",
                "see that munged runs on the controller",
            ) from None


def try_key(key: Path, munged: str = "munged", within_s: float = 10.0) -> str | None:
    """Return why this key is not that of the munged that runs here; None: each understands the other.

    A munged of our own with that key makes and reads credentials, so the key of the one that runs
    need not be readable. Raises DriverError where none of that can be tried.
    """
    here = MungeCredentials(reader=os.geteuid())
    with tempfile.TemporaryDirectory(prefix="backfill-munge-") as scratch:
        argv = [munged, "--foreground", "--force", "--num-threads=1", f"--key-file={key}"]
        argv += [f"--{what}-file={scratch}/{what}" for what in ("pid", "seed", "log")]
        socket = Path(scratch, "socket")
        log = Path(scratch, "err")
        try:
            with log.open("w") as err:
                own = subprocess.Popen([*argv, f"--socket={socket}"], stdout=err, stderr=err)
        except OSError as error:
            raise DriverError("munge", f"{munged} cannot be run: {error.strerror}") from error
        try:
            _await_munged(own, socket, log, time.monotonic() + within_s)
            there = MungeCredentials(socket=str(socket), reader=os.geteuid())
            return here.check(there.make()) or there.check(here.make())
        finally:
            own.kill()
            own.wait()


def _await_munged(own: subprocess.Popen[bytes], socket: Path, log: Path, until_s: float) -> None:
    """Wait until it listens. DriverError, with its last words, where it does not."""
    while not socket.exists():
        ended = own.poll() is not None
        if ended or time.monotonic() > until_s:
            said = (log.read_text(errors="replace").splitlines() or ["nothing"])[-1]
            raise DriverError("munge", f"munged does not start with this key: {said}")
        time.sleep(_LOOK_S)
