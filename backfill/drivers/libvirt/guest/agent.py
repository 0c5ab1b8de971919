"""A word with a guest: one program run through its agent, the answer awaited and read."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import libvirt
import libvirt_qemu

from backfill.core.model.readiness import GuestReport, Stated, figure
from backfill.drivers.libvirt.errors import AGENT_COMMAND_TIMEOUT
from backfill.drivers.libvirt.guest.report import read_report
from backfill.ports.errors import BadOutputError, DriverError, UnreachableError

WAKE_PROGRAM = "/usr/local/sbin/backfill-wake"
PROVE_PROGRAM = "/usr/local/sbin/backfill-prove"
KEY_PROGRAM = "/usr/local/sbin/backfill-key"
JOBS_PROGRAM = "/usr/local/sbin/backfill-jobs"
HOOK_PROGRAM = "/usr/local/sbin/backfill-devices"
# Where jobs in virtual machines look for them: HSF-TN-2016-02.
JOB_FEATURES, MACHINE_FEATURES = "/run/backfill/jobfeatures", "/etc/machinefeatures"
# What a guest's programs print goes into reports and sentences, and so into the journal.
_MOST_OUTPUT = 65_536
_USAGE = 2  # how our programs end that do not know a word
_FIRST_POLL_S, _LONGEST_POLL_S = 0.005, 0.05
_AGENT_WAIT_S = 2
_SILENT = (libvirt.VIR_ERR_AGENT_UNRESPONSIVE, libvirt.VIR_ERR_AGENT_UNSYNCED, AGENT_COMMAND_TIMEOUT)
Ask = Callable[[str, dict[str, object]], Any]


def wake(ask: Ask, name: str, now_s: float, limit_s: float) -> float:
    """Set the guest's clock and make slurmd report; returns the clock's correction in seconds.

    `now_s` is the time at which this is called; what passes until the guest is asked is added.
    """
    began_s = time.monotonic()

    def program() -> list[str]:
        return [WAKE_PROGRAM, f"{now_s + time.monotonic() - began_s:.6f}"]

    output = ask_until(ask, name, program, limit_s)
    try:
        return figure(output)
    except ValueError:
        raise BadOutputError(name, f"{WAKE_PROGRAM} answered '{output[:80]}'") from None


@dataclass(frozen=True, slots=True)
class ProofRequest:
    """A request to a guest to prove itself; the credential comes from the controller's munge.

    Jobs can read the arguments of all programs: credential and key come by standard input.
    """

    now_s: float
    credential: str
    register: bool
    time_server: str = ""
    mounts: tuple[str, ...] = ()  # a path, with `:ro` where it need not be writable
    salt: bool = False
    # Slurm's own key as it is now, and where it belongs; empty: the one of the seed is for ever.
    key_place: str = ""
    key: bytes = b""

    @property
    def checks(self) -> tuple[str, ...]:
        """Return what its answer has to tell of, as the program names it."""
        return (
            *(("munge-in",) if self.credential else ()),
            *(f"files:{mount}" for mount in self.mounts),
            *(("salt",) if self.salt else ()),
            *(("key",) if self.key_place else ()),
        )

    def given(self) -> bytes:
        """Return what its standard input brings: a line with the credential, then the key."""
        return (f"{self.credential}\n".encode() if self.credential else b"") + self.key

    def arguments(self, later_s: float) -> list[str]:
        """Return the program's arguments, `later_s` after the request was made."""
        return self._words(later_s, "credential")

    def older_arguments(self, later_s: float) -> list[str]:
        """Return the arguments for a program that finds the key alone in its standard input."""
        return self._words(later_s, f"credential={self.credential}")

    def _words(self, later_s: float, credential: str) -> list[str]:
        return [
            f"{self.now_s + later_s:.6f}",
            *([f"server={self.time_server}"] if self.time_server else []),
            *([credential] if self.credential else []),
            *(f"mount={mount}" for mount in self.mounts),
            *(["salt"] if self.salt else []),
            *([f"key={self.key_place}"] if self.key_place else []),
            *(["register"] if self.register else []),
        ]


def prove(ask: Ask, name: str, request: ProofRequest, limit_s: float) -> tuple[GuestReport, str]:
    """Let the guest set its clock and prove itself; returns its report and its credential."""
    began_s = time.monotonic()
    asked_s = began_s

    def run(arguments: Callable[[float], list[str]], given: bytes) -> str:
        def program() -> list[str]:
            nonlocal asked_s
            asked_s = time.monotonic()
            return [PROVE_PROGRAM, *arguments(asked_s - began_s)]

        return ask_until(ask, name, program, limit_s, given)

    try:
        output = run(request.arguments, request.given())
    except UsageError:
        if not request.credential:
            raise
        # A guest of an older image, which may hold work that stood still while backfill was upgraded. A job
        # may read the credential there; its payload makes it useless to Slurm, and only root decodes it.
        output = run(request.older_arguments, request.key)
    heard_s = time.monotonic()
    # Between asking and hearing the guest read its clock once more: that bounds its offset, too.
    window = (request.now_s + asked_s - began_s, request.now_s + heard_s - began_s)
    return read_report(name, output, window, request.checks)


# What Salt's module `backfill_look` does, without a minion that makes all its loaders for it. Seals come by
# standard input: a job that reads one in the arguments can try out what a short secret may be.
_LOOK = """
[ "$(sha256sum </etc/backfill/stated)" = "$0  -" ] ||
    { echo "its states come to something else now than when it was made"; exit; }
while read -r path && read -r text && read -r sum; do
    [ "$({ printf %s "$text"; cat "$path"; } | sha256sum)" = "$sum  -" ] || { echo "$path differs"; exit; }
done
/usr/local/sbin/backfill-stated || :
"""


def differs(ask: Ask, name: str, stated: Stated, limit_s: float) -> str | None:
    """Find the first thing in the guest that is not as its states say; None: all is."""
    seals = "".join(f"{word}\n" for seal in stated.seals for word in seal).encode()
    told = ask_until(ask, name, lambda: ["/bin/sh", "-c", _LOOK, stated.listed], limit_s, seals)
    return None if told.startswith("ok ") else told or "it cannot be seen"


def hook(ask: Ask, name: str, when: str, limit_s: float) -> None:
    """Let the image's program for devices do its part; an image without one has nothing to do."""
    script = 'test ! -x "$0" || exec "$0" "$1"'
    ask_until(ask, name, lambda: ["/bin/sh", "-c", script, HOOK_PROGRAM, when], limit_s)


def hand_over(ask: Ask, name: str, owner: str, regions: int, limit_s: float) -> None:
    """Wait until the guest shows so many regions, and let the programs of this user map them.

    An image without the program for devices leaves them to root.
    """
    script = 'test ! -x "$0" || exec "$0" plugged "$1" "$2"'
    argv = ["/bin/sh", "-c", script, HOOK_PROGRAM, owner, str(regions)]
    ask_until(ask, name, lambda: argv, limit_s)


# Each file is there as a whole or not at all, whenever a job looks; one that cannot be written does not
# keep the other from it.
# The agent may have a stricter umask than the folders' readers can do with. Two runs may overlap, as it
# is asked again where it was silent: each writes a file of its own.
_ANNOUNCE = """
umask 022
failed=
for file in "$2/$0/shutdowntime_job" "$3/shutdowntime"; do
    new=$file.$$
    said=$({
        mkdir -p "${file%/*}" && echo "$1" >"$new" && chmod 644 "$new" && mv "$new" "$file"
    } 2>&1) && continue
    rm -f "$new" 2>/dev/null
    failed="${failed:+$failed, }$file cannot be written (${said##*: })"
done
if grep -qsz "^SLURM_JOB_ID=$0\\$" /proc/[0-9]*/environ && mkdir "$2/$0/watched" 2>/dev/null; then
    setsid sh -c "$4" "$0" "$2/$0" "$3/shutdowntime" </dev/null >/dev/null 2>&1 &
fi
[ -z "$failed" ] || { echo "$failed" >&2; exit 1; }
"""
# Both files go with the job: the next one on the machine would take the time for its own. What has been
# written for another job meanwhile stays. A job that cannot be seen is not waited for; that is found out
# before the watcher starts, or one that ends by then would leave its files.
_WITHDRAW = """
while grep -qsz "^SLURM_JOB_ID=$0\\$" /proc/[0-9]*/environ; do sleep 5; done
[ "$(cat "$1/shutdowntime_job")" != "$(cat "$2")" ] || rm -f "$2"
rm -rf "$1"
"""


# It goes on by itself: what it prints and how it ends is nobody's concern.
_RUN_FOR = """
user=$0 SLURM_JOB_ID=$1
shift
export SLURM_JOB_ID
id -u "$user" >/dev/null || exit 1
command -v "$1" >/dev/null || { echo "there is no program $1" >&2; exit 1; }
setsid runuser -u "$user" -- "$@" </dev/null >/dev/null 2>&1 &
"""


def announce(ask: Ask, name: str, job: int, ends_s: float, limit_s: float) -> None:
    """Let the Machine/Job Features in the guest name the time of the job's shutdown."""
    words = (str(job), str(int(ends_s)), JOB_FEATURES, MACHINE_FEATURES, _WITHDRAW)
    ask_until(ask, name, lambda: ["/bin/sh", "-c", _ANNOUNCE, *words], limit_s)


def run_for(ask: Ask, name: str, job: int, user: str, command: Sequence[str], limit_s: float) -> None:
    """Start a program in the guest as this user, once more where the agent was silent before."""
    ask_until(ask, name, lambda: ["/bin/sh", "-c", _RUN_FOR, user, str(job), *command], limit_s)


def give_key(ask: Ask, name: str, place: str, key: bytes, limit_s: float) -> None:
    """Let the guest have this key there; where it had another, its slurmd reads the new one."""
    ask_until(ask, name, lambda: [KEY_PROGRAM, place], limit_s, key)


def job_processes(ask: Ask, name: str, limit_s: float) -> tuple[int, int]:
    """Count the processes of Slurm jobs in the guest: (going, stopped)."""
    output = ask_until(ask, name, lambda: [JOBS_PROGRAM], limit_s)
    words = output.split()
    if len(words) != 2 or not all(w.isdecimal() for w in words):
        raise BadOutputError(name, f"{JOBS_PROGRAM} answered '{output[:80]}'")
    return int(words[0]), int(words[1])


def ask_until(
    ask: Ask, name: str, program: Callable[[], list[str]], limit_s: float, given: bytes = b""
) -> str:
    """Run the program, again while the agent is silent: running it twice does no harm."""
    deadline_s = time.monotonic() + limit_s
    while True:
        try:
            return _run(ask, name, program(), deadline_s, given)
        except AgentSilentError:
            if time.monotonic() > deadline_s:
                raise UnreachableError(
                    name,
                    f"its guest agent did not answer within {limit_s:g} s",
                    "look at the instance's console",
                ) from None
            time.sleep(_LONGEST_POLL_S)


def _run(ask: Ask, name: str, argv: list[str], deadline_s: float, given: bytes) -> str:
    """Run a program in the guest and return what it wrote; AgentSilentError after the deadline."""
    words: dict[str, object] = {"path": argv[0], "arg": argv[1:], "capture-output": True}
    if given:  # for its standard input, where no job can read it as it could an argument
        words["input-data"] = base64.b64encode(given).decode()
    started = ask("guest-exec", words)
    poll_s = _FIRST_POLL_S
    while True:
        status = ask("guest-exec-status", {"pid": started["pid"]})
        if status["exited"]:
            return _output(status, name, argv[0])
        if time.monotonic() > deadline_s:
            raise AgentSilentError
        time.sleep(poll_s)
        poll_s = min(2 * poll_s, _LONGEST_POLL_S)


def _output(status: dict[str, Any], name: str, program: str) -> str:
    output = base64.b64decode(status.get("out-data", "")).decode(errors="replace").strip()
    complaint = base64.b64decode(status.get("err-data", "")).decode(errors="replace").strip()
    if status.get("exitcode") != 0:
        said = (complaint or output)[:500]
        kind = UsageError if status.get("exitcode") == _USAGE else DriverError
        raise kind(name, f"{program} failed in the guest: {said}")
    if len(output) > _MOST_OUTPUT:
        raise BadOutputError(name, f"{program} answered {len(output)} characters")
    return output


class UsageError(DriverError):
    """A program in the guest does not know one of the words that it was given."""


class AgentSilentError(Exception):
    """The guest agent did not answer this time; it may be starting, or the guest is busy."""


def agent_of(domain: Any) -> Ask:
    """Return a function that asks the agent in the domain's guest."""

    def ask(command: str, arguments: dict[str, object]) -> Any:
        request = {"execute": command, "arguments": arguments}
        try:
            answer = libvirt_qemu.qemuAgentCommand(domain, json.dumps(request), _AGENT_WAIT_S, 0)
        except libvirt.libvirtError as error:
            if error.get_error_code() in _SILENT:
                raise AgentSilentError from error
            raise
        return json.loads(answer)["return"]

    return ask
