"""A word with a guest through the site's own command, such as ssh: wake it, count its jobs."""

from __future__ import annotations

import subprocess
import time
from ipaddress import ip_address

from backfill.core.model.readiness import figure
from backfill.drivers.openstack.settings import Guest
from backfill.ports.errors import BadOutputError, DriverError, RefusedError, UnreachableError, UnreadableError

WAKE_PROGRAM = "/usr/local/sbin/backfill-wake"
JOBS_PROGRAM = "/usr/local/sbin/backfill-jobs"
KEY_PROGRAM = "/usr/local/sbin/backfill-key"
_NO_WAY_IN = 255  # of ssh: no connection


def wake(guest: Guest, name: str, address: str, now_s: float) -> float:
    """Set the guest's clock and make slurmd report; returns the correction in seconds."""
    began_s = time.monotonic()
    output = _run(guest, name, address, WAKE_PROGRAM, f"{now_s + time.monotonic() - began_s:.6f}")
    try:
        return figure(output)
    except ValueError:
        raise BadOutputError(name, f"{WAKE_PROGRAM} answered '{output[:80]}'") from None


def job_processes(guest: Guest, name: str, address: str) -> tuple[int, int]:
    """Count the processes of Slurm jobs in the guest: (going, stopped)."""
    words = _run(guest, name, address, JOBS_PROGRAM).split()
    if len(words) != 2 or not all(word.isdecimal() for word in words):
        raise BadOutputError(name, f"{JOBS_PROGRAM} answered '{' '.join(words)[:80]}'")
    return int(words[0]), int(words[1])


def give_key(guest: Guest, name: str, address: str, key: bytes) -> None:
    """Hand the munge key to the guest; it has it when this returns."""
    known = guest.peers.get(name, address)
    if known != address:
        raise RefusedError(
            name,
            f"its address is {known} in the policy file, and its metadata say {address}",
            "correct its metadata backfill_address, or delete it",
        )
    _run(guest, name, address, KEY_PROGRAM, given=key)


def _run(guest: Guest, name: str, address: str, *program: str, given: bytes = b"") -> str:
    """Run a program in the guest and return its output. `given` is its input, which no process list shows."""
    if not guest.command:
        raise RefusedError(name, "there is no way into its guest", "set openstack.guest.command, such as ssh")
    try:
        ip_address(address)
    except ValueError:  # ssh would take some words for its own options
        raise UnreadableError(
            name, f"its metadata backfill_address is no address: '{address[:80]}'", "correct it"
        ) from None
    argv = [word.replace("{address}", address) for word in guest.command]
    try:
        done = subprocess.run([*argv, *program], capture_output=True, timeout=guest.answer_s, input=given)
    except subprocess.TimeoutExpired as error:
        raise UnreachableError(name, f"its guest did not answer within {guest.answer_s:g} s") from error
    except OSError as error:
        raise RefusedError(name, f"{argv[0]} cannot be run: {error.strerror}") from error
    said = done.stderr.decode(errors="replace").strip()[:120]
    if done.returncode == _NO_WAY_IN:
        raise UnreachableError(name, f"its guest cannot be reached: {said}")
    if done.returncode:
        raise DriverError(name, f"{program[0]} failed in the guest: {said}")
    return done.stdout.decode(errors="replace").strip()
