"""Runs Slurm's command line tools and turns every way in which they fail into a typed error."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from backfill.ports.errors import (
    AlreadyThereError,
    BusyError,
    DriverError,
    NoCapacityError,
    NotFoundError,
    RefusedError,
    UnreachableError,
)

CONTROLLER = "slurmctld"
_PING = "check it with: scontrol ping"
NAME_CONF = "name Slurm's own by slurm.conf in the policy file"
_AS_ROOT = "run the daemon as root or as SlurmUser"

# What Slurm says (22.05 to 26.05, slurm_errno.c), what it means to us, and the next step.
# First match wins.
_MEANINGS: tuple[tuple[re.Pattern[str], type[DriverError], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), kind, remedy)
    for pattern, kind, remedy in (
        ("Rate limit exceeded", BusyError, "raise rl_bucket_size in SlurmctldParameters"),
        (
            r"authentication error|munge|authentication credential",
            UnreachableError,
            "check munged and the clock here",
        ),
        (
            r"Unable to contact slurm controller|Socket timed out|Zero Bytes were transmitted"
            r"|Communication (connection|shutdown) failure|Message (send|receive) failure"
            r"|Connection (refused|timed out)|Connection forced closed|Connection rejected",
            UnreachableError,
            _PING,
        ),
        (
            r"Unable to process configuration file|cannot stat file|configuration source"
            r"|DNS SRV lookup failed",
            UnreachableError,
            "name Slurm's own by SLURM_CONF, by slurm.conf in the policy file, or by setup's --slurm-conf",
        ),
        (
            r"Invalid job id specified|Invalid node name specified|Node \S+ not found"
            r"|Job/step already completing or completed|Job has already finished",
            NotFoundError,
            "",
        ),
        (r"already exists", AlreadyThereError, ""),
        (r"node table is full|MaxNodeCount", NoCapacityError, "raise MaxNodeCount in slurm.conf"),
        (r"Access/permission denied|Invalid user id|Operation not permitted$", RefusedError, _AS_ROOT),
        (
            r"presently disabled|not supported on this system|Only batch jobs are|heterogeneous job"
            r"|Invalid node state|invalid partition|Invalid account|Invalid qos|not permitted to use"
            r"|is conf|only compatible with|cannot be deleted|not dynamic",
            RefusedError,
            "",
        ),
        (
            r"nodes are busy|can not be altered now|is pending execution|is not suspended"
            r"|is current suspended|DB index is being set|no longer pending"
            r"|Unexpected message received|not running",
            BusyError,
            "",
        ),
    )
)


@dataclass(frozen=True, slots=True)
class SlurmTools:
    """Slurm's command line tools. Safe from several threads.

    `conf` becomes SLURM_CONF, `bin_dir` is where the tools are (PATH otherwise), `prefix` is put
    before every command line (such as nsenter and its options), `timeout_s` bounds every call.
    """

    conf: Path | None = None
    bin_dir: Path | None = None
    prefix: tuple[str, ...] = ()
    timeout_s: float = 10.0
    env: Mapping[str, str] = field(default_factory=dict)

    def run(
        self, argv: Sequence[str], subject: str = CONTROLLER, env: Mapping[str, str] | None = None
    ) -> str:
        """Run one tool to its end and return what it wrote; the errors are about `subject`."""
        return self.start(argv, subject, env).result()

    def start(
        self, argv: Sequence[str], subject: str = CONTROLLER, env: Mapping[str, str] | None = None
    ) -> Running:
        """Start one tool; its answer must be fetched with `result`."""
        if not self.prefix and self.conf is not None and not self.conf.is_file():
            # Slurm's tools themselves would wait a minute for the file to appear.
            raise UnreachableError(CONTROLLER, f"there is no file {self.conf}", NAME_CONF)
        tool = str(self.bin_dir / argv[0]) if self.bin_dir else argv[0]
        environment = self._environment(env or {})
        settings = [f"{key}={value}" for key, value in environment.items()] if self.prefix else []
        line = [*self.prefix, *(("env", *settings) if settings else ()), tool, *argv[1:]]
        try:
            process = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
                cwd="/",
            )
        except OSError as error:
            raise UnreachableError(
                CONTROLLER,
                f"cannot start {line[0]} ({error.strerror})",
                "install slurm-client or name the directory of Slurm's tools",
            ) from error
        return Running(process, " ".join(argv[:3]), subject, self.timeout_s)

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        # Built from nothing: SQUEUE_*, SINFO_* and SLURM_CLUSTERS would change what is printed.
        environment = {
            "PATH": os.environ.get("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"),
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "SLURM_TIME_FORMAT": "%s",
        }
        if self.conf is not None:
            environment["SLURM_CONF"] = str(self.conf)
        return {**environment, **self.env, **more}


@dataclass(frozen=True, slots=True)
class Running:
    """A tool that has been started."""

    process: subprocess.Popen[bytes]
    what: str
    subject: str
    timeout_s: float

    def result(self) -> str:
        """Wait for its end and return its standard output; raise what its failure means."""
        try:
            out, err = self.process.communicate(timeout=self.timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise UnreachableError(
                CONTROLLER, f"no answer to '{self.what}' within {self.timeout_s:g} s", _PING
            ) from None
        text = out.decode("utf-8", "replace")
        if self.process.returncode != 0:
            complaint = err.decode("utf-8", "replace").strip() or text.strip()
            raise meaning_of(self.subject, self.what, self.process.returncode, complaint)
        if not text.strip() and err:
            # Nothing but a complaint is no empty answer, whatever the exit status says.
            error = meaning_of(self.subject, self.what, 0, err.decode("utf-8", "replace"))
            if type(error) is not DriverError:
                raise error
        return text

    def kill(self) -> None:
        """End it with all that it started, and collect it."""
        with contextlib.suppress(ProcessLookupError):  # it may end by itself in this moment
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


def meaning_of(subject: str, what: str, status: int, complaint: str) -> DriverError:
    """Make the typed error for a tool's exit status and what it wrote to standard error."""
    lines = [line.strip() for line in complaint.splitlines() if line.strip()]
    said = re.sub(r"^(slurm_\w+|\w+: )?\s*error:\s*", "", lines[-1]) if lines else ""
    for pattern, kind, remedy in _MEANINGS:
        if pattern.search(complaint):
            about = CONTROLLER if kind is UnreachableError else subject
            return kind(about, _clean(said), remedy)
    said = _clean(said) or f"it ended with status {status} and said nothing"
    return DriverError(subject, f"'{what}' failed: {said}")


def _clean(text: str) -> str:
    """One line that is safe to print, without a full stop."""
    return "".join(c if c.isprintable() else " " for c in text)[:300].rstrip(". ")
