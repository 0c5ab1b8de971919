"""Asks the daemon over its unix socket: one JSON object there, one back, then it hangs up."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import stat
import struct
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from backfill.core.model.quantities import parse_hostlist
from backfill.core.model.visible import escaped, visible
from backfill.ui.parser import DEFAULT_POLICY, NO, NO_PERMISSION, OK, UNAVAILABLE, USAGE, say
from backfill.ui.terminal import carried

USUAL_POLICY = Path(DEFAULT_POLICY)  # this very object where nobody gave --config
DEFAULT_SOCKET = "/run/backfill/daemon.sock"
# The daemon itself gives up after 10 s and says so; this is for one that hangs.
_PATIENCE_S = 15.0

Answer = dict[str, Any]


class AskError(Exception):
    """No usable answer. `str()` is the sentence, `code` the exit status, `answer` what came."""

    def __init__(self, sentence: str, code: int, answer: Answer | None = None) -> None:
        super().__init__(sentence)
        self.code = code
        self.answer = answer


class Asking(Protocol):
    """A daemon that can be asked, here or elsewhere."""

    def ask(self, question: str, **body: object) -> Answer:
        """Return the answer with all texts safe to be seen. AskError where there is none."""

    def ask_exactly(self, question: str, **body: object) -> Answer:
        """Return the same as it came."""


class Client:
    """The daemon at one socket; holds no connection."""

    def __init__(self, path: str, patience_s: float = _PATIENCE_S) -> None:
        self.path = path
        self._patience_s = patience_s

    def ask(self, question: str, **body: object) -> Answer:
        """Return the daemon's answer with all texts safe to be seen: each job's name is its owner's.

        Raises AskError where there is none, or where it is an error.
        """
        return cast(Answer, shown(self.ask_exactly(question, **body)))

    def ask_exactly(self, question: str, **body: object) -> Answer:
        """Return the answer as it came."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
                sock.settimeout(self._patience_s)
                sock.connect(self.path)
                daemon_uid = _peer_uid(sock)
                with contextlib.suppress(BrokenPipeError):  # it may have said already why not
                    sock.sendall(json.dumps({"ask": question, **body}).encode() + b"\n")
                with sock.makefile("rb") as lines:
                    line = lines.readline()
        except OSError as error:
            raise self._no_answer(error) from error
        answer = self._read(line)
        if "error" in answer:
            busy = answer.get("kind") == "busy"  # as if nobody answered: it can be asked again
            code = UNAVAILABLE if busy else refusal_code(answer["error"], os.geteuid(), daemon_uid)
            raise AskError(visible(answer["error"]), code, answer)
        warn_unwritten(answer)
        return answer

    def _read(self, line: bytes) -> Answer:
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            what = "hung up without an answer" if not line else "gave no JSON object"
            raise AskError(f"what listens on {self.path} {what}; is it our daemon?", UNAVAILABLE)
        return answer

    def _no_answer(self, error: OSError) -> AskError:
        match error:
            case PermissionError():
                return AskError(f"you may not open {self.path}; ask its owner, or try as root", NO_PERMISSION)
            case TimeoutError():
                return AskError(
                    f"the daemon on {self.path} did not answer within {self._patience_s:g} s; "
                    "its log says what it is doing",
                    UNAVAILABLE,
                )
            case _:
                return AskError(f"no daemon answers on {self.path}: {_silent(self.path, error)}", UNAVAILABLE)


def warn_unwritten(answer: Answer) -> None:
    """Warn of an order that was taken and could not be written down."""
    if problem := answer.get("unwritten"):
        why = f"its journal cannot be written ({visible(problem)})"
        say(f"this holds only until the daemon ends, as {why}; once it can be, this is written as well")


def _silent(path: str, error: OSError) -> str:
    """Say why nobody answers there, with the remedy."""
    asking = "`systemctl status backfill` tells why"
    if error.errno is None:  # the only one that is none of the system's
        return "no socket's path can be so long; name the daemon's by --socket"
    with contextlib.suppress(OSError):
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return "it is not a socket; name the daemon's by --socket"
    match error:
        case FileNotFoundError():
            return f"there is no such file; {asking}"
        case ConnectionRefusedError():
            return f"nobody listens there any more; {asking}"
        case _:
            return f"{error.strerror}; {asking}"


def _peer_uid(sock: socket.socket) -> int:
    """Return the user that the daemon runs as."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", data)[1])


def refusal_code(error: str, uid: int, daemon_uid: int) -> int:
    """Tell the refusal of a user, which has a status of its own, by the daemon's sentence."""
    stranger = uid not in (0, daemon_uid)
    return NO_PERMISSION if stranger and "own user only" in error else NO


class _HereAction(argparse.Action):
    """Names something of this machine, and then no web service that only the environment names."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        url = getattr(namespace, "url", None)
        if url and url is not parser.get_default("url"):
            raise argparse.ArgumentError(self, "not allowed with argument --url")
        setattr(namespace, self.dest, values)
        namespace.url = ""


class _UrlAction(argparse.Action):
    """Names the web service, where no option has named something of this machine."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        for dest in ("socket", "config"):
            if getattr(namespace, dest, None) is not parser.get_default(dest):
                raise argparse.ArgumentError(self, f"not allowed with argument --{dest}")
        namespace.url = values


def add_socket(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the daemon."""
    parser.add_argument(
        "--socket",
        action=_HereAction,
        metavar="PATH",
        default=os.environ.get("BACKFILL_SOCKET") or DEFAULT_SOCKET,
        help=f"the daemon's socket (otherwise $BACKFILL_SOCKET, otherwise {DEFAULT_SOCKET})",
    )


def add_place(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the daemon, here or behind its web service."""
    add_socket(parser)
    add_url(parser)


def add_policy(parser: argparse.ArgumentParser, about: str) -> None:
    """Add the option that names the policy file for work on this machine; `about` says of what."""
    parser.add_argument(
        "--config",
        action=_HereAction,
        metavar="FILE",
        type=Path,
        default=USUAL_POLICY,
        help=f"{about} (otherwise {DEFAULT_POLICY})",
    )


def add_url(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a daemon behind its web service."""
    parser.add_argument(
        "--url",
        action=_UrlAction,
        metavar="URL",
        default=os.environ.get("BACKFILL_URL") or "",
        help="the daemon's web service, with the token in $SLURM_JWT (otherwise $BACKFILL_URL)",
    )
    parser.add_argument("--ca", type=Path, metavar="FILE", help="with --url: certificates to trust")


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that only looks."""
    parser.add_argument("--json", action="store_true", help="print the daemon's answer as JSON")
    add_place(parser)


def guarded(work: Callable[[Asking], int], args: argparse.Namespace) -> int:
    """Work with the daemon that `args` names; every AskError becomes its sentence and status."""
    try:
        return work(_named(args))
    except AskError as error:
        if getattr(args, "json", False) and error.answer is not None:
            print_json(error.answer)
        sys.stdout.flush()
        say(str(error))
        return error.code


def names_of(hostlist: str) -> tuple[str, ...]:
    """Return the names that somebody typed as a hostlist. AskError where there is none in it."""
    try:
        names = parse_hostlist(hostlist)
    except ValueError as error:
        raise AskError(f"{error}; write it as bm1 or vn[1-3]", USAGE) from error
    if not names:
        raise AskError(f"'{hostlist}' names nothing; name a host or a node, such as bm1 or vn[1-3]", USAGE)
    return names


def _named(args: argparse.Namespace) -> Asking:
    if getattr(args, "url", ""):
        from backfill.ui.remote import RemoteClient  # TLS is loaded for those alone who need it

        return RemoteClient(args.url, args.ca)
    return Client(socket_of(args))


def socket_of(args: argparse.Namespace) -> str:
    """Return the path that --socket names. AskError where it names none."""
    if not args.socket:
        raise AskError(f"--socket is empty; name the daemon's, such as {DEFAULT_SOCKET}", USAGE)
    try:
        return str(Path(args.socket).expanduser())
    except RuntimeError as error:
        user = args.socket.partition("/")[0]
        raise AskError(
            f"--socket {args.socket}: there is no home of {user}; write the whole path", USAGE
        ) from error


def present(
    args: argparse.Namespace, question: str, show: Callable[[Answer, Asking], None], **body: object
) -> int:
    """Ask, then print the answer unchanged (`--json`) or let `show` print it for people."""

    def work(client: Asking) -> int:
        if args.json:
            print_json(client.ask_exactly(question, **body))
        else:
            show(client.ask(question, **body), client)
        return OK

    return guarded(work, args)


def print_json(answer: object) -> None:
    """One document on one line; what a terminal would obey is written as JSON's own escapes."""
    text = json.dumps(answer, ensure_ascii=False)
    print(escaped(text) if carried(text) else json.dumps(answer))


def shown(value: object) -> object:
    """Make the texts in plain data safe to be seen."""
    match value:
        case str():
            return visible(value)
        case dict():
            return {visible(str(key)): shown(entry) for key, entry in value.items()}
        case list():
            return [shown(entry) for entry in value]
        case _:
            return value
