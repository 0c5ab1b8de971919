"""The Credentials port over munge's own programs, on the machine where the daemon runs."""

from __future__ import annotations

import subprocess

from backfill.ports.errors import BadOutputError, DriverError, UnreachableError

_REPLAYED = 17  # EMUNGE_CRED_REPLAYED: it was understood before, which proves as much


class MungeCredentials:
    """See `backfill.ports.workload.Credentials`; needs `munge` and `unmunge`, and a munged that runs."""

    def __init__(self, munge: str = "munge", unmunge: str = "unmunge", within_s: float = 5.0):
        self._munge, self._unmunge, self._within_s = munge, unmunge, within_s

    def make(self) -> str:
        """Encode nothing: the credential itself is what counts."""
        done = self._run([self._munge, "--no-input"], "")
        text = done.stdout.strip()
        if done.returncode != 0:
            problem = done.stderr.strip() or f"{self._munge} ended with {done.returncode}"
            raise DriverError("munge", problem, "see that munged runs on the controller")
        if not text.startswith("MUNGE:") or " " in text:
            raise BadOutputError("munge", f"{self._munge} printed something that is no credential")
        return text

    def check(self, credential: str) -> str:
        """Let the controller's munged decode it."""
        done = self._run([self._unmunge, "--no-output"], credential)
        if done.returncode in (0, _REPLAYED):
            return ""
        return done.stderr.strip().removeprefix("unmunge: ") or "the controller's munge refuses it"

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
