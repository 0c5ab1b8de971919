#!/usr/bin/python3 -ISE
"""The same hook as hook.c, word for word, for places without a compiler. Always exits with 0."""

# Only modules that are built into the interpreter: each import from a file costs milliseconds.
import _signal  # type: ignore[import-not-found]  # it has no stub; `signal` imports much more
import _socket
import posix
import sys
import time

ENDPOINT = "unix:/run/backfill/hook.sock"
TIMEOUT_MS = 1000
LOG_PATH = ""
NEXT = ""  # the site's own program, which then runs in this one's place

DEADLINE_S = time.monotonic() + TIMEOUT_MS / 1000
ADDRESS_TAKEN = (98, 99)  # EADDRINUSE, EADDRNOTAVAIL


def env(name: str) -> bytes:
    return posix.environ.get(name.encode(), b"")


CHECKING = env("SLURM_SCRIPT_CONTEXT") == b"check"


def shown(name: str) -> str:
    return env(name).decode("utf-8", "replace")


def complain(why: str) -> None:
    """Write one line to the log, never waiting for anything."""
    if CHECKING:
        posix.write(2, f"{' '.join(why.split())[:500]}\n".encode("utf-8", "replace"))
        posix._exit(1)
    if not LOG_PATH or shown("SLURM_SCRIPT_CONTEXT") == "arrival":
        return
    flags = posix.O_WRONLY | posix.O_APPEND | posix.O_CREAT | posix.O_NONBLOCK | posix.O_NOCTTY
    file = posix.open(LOG_PATH, flags, 0o640)
    who = f"{shown('SLURM_SCRIPT_CONTEXT')} job={shown('SLURM_JOB_ID')}"
    what = f"node={shown('SLURMD_NODENAME')}: {' '.join(why.split())[:500]}; the job goes on"
    line = f"{time.time():.0f} backfill-hook {who} {what}\n"
    posix.write(file, line.encode("utf-8", "replace"))


def left_s() -> float:
    left = DEADLINE_S - time.monotonic()
    if left <= 0:
        raise TimeoutError("no answer from the daemon in time")
    return left


def connect_unix(path: str) -> _socket.socket:
    while True:
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        sock.settimeout(left_s())
        try:
            sock.connect(path)
        except BlockingIOError:  # the daemon's queue is full, because many jobs start at once
            time.sleep(0.002)
        else:
            return sock


def connect_tcp(host: str, port: int) -> _socket.socket:
    """From a privileged port, which proves to the daemon that root asks."""
    for i in range(424):
        sock = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        sock.settimeout(left_s())
        try:
            sock.bind(("", 600 + (posix.getpid() * 7 + i) % 424))
            sock.connect((host, port))
        except OSError as error:
            if error.errno not in ADDRESS_TAKEN:
                raise
        else:
            return sock
    raise OSError("no privileged port is free")


def printable(value: bytes) -> bytes:
    return bytes(c if c > 32 and c != 127 else 63 for c in value)


def request(verb: bytes, on_host: bool) -> bytes:
    words = (
        (b"job", b"0" if verb == b"arrived" or CHECKING else env("SLURM_JOB_ID")),
        (b"nodes", env("SLURMD_NODENAME" if on_host else "SLURM_JOB_NODELIST")),
        (b"partition", env("SLURM_JOB_PARTITION")),
        (b"uid", env("SLURM_JOB_UID")),
        (b"restart", env("SLURM_JOB_RESTART_COUNT") or b"-1"),
    )
    return (
        b"backfill1 " + verb + b"".join(b" " + key + b"=" + printable(value) for key, value in words) + b"\n"
    )


def ask(text: bytes, wait: bool) -> bytes:
    """Send the request and return the first line of the reply, empty when none is awaited."""
    kind, _, place = ENDPOINT.partition(":")
    host, _, port = place.rpartition(":")
    sock = connect_unix(place) if kind == "unix" else connect_tcp(host, int(port))
    while text:
        sock.settimeout(left_s())
        text = text[sock.send(text) :]
    reply = b""
    while wait and b"\n" not in reply and len(reply) < 512:
        sock.settimeout(left_s())
        got = sock.recv(512)
        if not got:
            break
        reply += got
    return reply.split(b"\n")[0]


def try_log() -> None:
    if LOG_PATH:
        flags = posix.O_WRONLY | posix.O_APPEND | posix.O_CREAT | posix.O_NONBLOCK | posix.O_NOCTTY
        try:
            posix.close(posix.open(LOG_PATH, flags, 0o640))
        except OSError as error:
            complain(f"cannot write to its log {LOG_PATH}: {error.strerror}")


def main() -> None:
    context = shown("SLURM_SCRIPT_CONTEXT")
    ended, arrival = context.startswith("epilog"), context == "arrival"
    if CHECKING:
        try_log()
    if not ended and not arrival and not CHECKING and not context.startswith("prolog"):
        complain("not started as a prolog or epilog: " + context)
        return
    if arrival:
        time.sleep(0.1)  # job_submit runs before the job is in the queue
    verb = b"arrived" if arrival else b"ended" if ended else b"allocated"
    waits = not ended and not arrival
    reply = ask(request(verb, context.endswith("_slurmd")), wait=waits)
    answer = reply.decode("utf-8", "replace")
    if CHECKING and answer.startswith("ok"):
        posix.write(1, f"backfill-check: {answer}\n".encode("utf-8", "replace"))
        posix._exit(0)
    if answer.startswith("no "):
        complain("the daemon has no room: " + answer[3:])
    elif waits and not answer.startswith("ok"):
        complain("the daemon answered strangely: " + answer)


def finish() -> None:
    """End our part: with 0, or as the site's own program, as if Slurm had started that."""
    if CHECKING:
        posix._exit(1)
    if NEXT:
        _signal.setitimer(_signal.ITIMER_REAL, 0)
        # What the interpreter has changed for itself must not be inherited.
        for number in (_signal.SIGPIPE, _signal.SIGALRM, _signal.SIGTERM):
            _signal.signal(number, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        try:
            posix.execv(NEXT, [NEXT, *sys.argv[1:]])
        except OSError:
            posix._exit(127)
    posix._exit(0)


def go_on(number: int, _: object) -> None:
    # Told to end before the site's program has run: do not claim that it went well.
    if NEXT and not CHECKING and number == _signal.SIGTERM:
        _signal.signal(number, _signal.SIG_DFL)
        _signal.raise_signal(number)
    finish()


if __name__ == "__main__":
    # Also when Slurm loses patience, or a log on a dead disk hangs, the job must not pay.
    _signal.signal(_signal.SIGTERM, go_on)
    _signal.signal(_signal.SIGALRM, go_on)
    _signal.setitimer(_signal.ITIMER_REAL, TIMEOUT_MS / 1000 + 1)
    try:
        main()
    except BaseException as error:  # noqa: BLE001 - whatever it is, the job goes on
        complain("cannot ask the daemon: " + str(error))
    finally:
        # Not sys.exit: nothing that Python still wants to do may change the status.
        finish()
