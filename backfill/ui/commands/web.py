"""`backfill web`: serve metrics and the API over HTTP, as a service of its own."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import time
from ipaddress import ip_address
from pathlib import Path

from backfill.ui.client import AskError, Client, add_socket, socket_of
from backfill.ui.parser import BAD_CONFIG, BAD_DATA, OK, UNAVAILABLE, USAGE, say, whole

DEFAULT_PORT = 6834
_BACKLOG = 128
# Connections at a time; one more is told so and closed.
_MOST_CLIENTS = 256
_IDLE_S = 15
_FIRST_LOOK_S = 2.0  # how long the daemon may take to be missed at the start


def add_web_arguments(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.add_argument(
        "--listen",
        metavar="ADDRESS:PORT",
        default=f"127.0.0.1:{DEFAULT_PORT}",
        help=f"where to listen (127.0.0.1:{DEFAULT_PORT}); other than loopback needs a certificate",
    )
    parser.add_argument("--cert", type=Path, metavar="FILE", help="the certificate with its chain, PEM")
    parser.add_argument("--key", type=Path, metavar="FILE", help="its key, which no other user can read")
    parser.add_argument(
        "--self-signed",
        type=Path,
        metavar="DIRECTORY",
        help="for trials: make a certificate there once, and print its fingerprint",
    )
    parser.add_argument(
        "--rate",
        type=whole(1),
        default=20,
        metavar="N",
        help="requests that one address may make per second (20)",
    )
    add_socket(parser)


def run_web(args: argparse.Namespace) -> int:
    """Serve until SIGTERM."""
    try:
        return _serve(args)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "backfill"):
            raise
        say(f"{package} is not installed; pip install 'backfill[web]'")
        return BAD_CONFIG  # the unit would start it anew for ever after 69


def _serve(args: argparse.Namespace) -> int:
    import uvicorn

    from backfill.ui.web.app import make_app
    from backfill.ui.web.client_bounds import Doorway, PatientLoop, PatientProtocol
    from backfill.ui.web.gateway import Gateway
    from backfill.ui.web.tls import TlsError

    try:
        address, port = endpoint(args.listen)
        pair = _pair(args, loopback=ip_address(address).is_loopback)
        asked = socket_of(args)
    except (ValueError, AskError) as error:
        say(str(error))
        return USAGE
    except TlsError as error:
        say(str(error))
        return BAD_DATA
    if os.geteuid() == 0:
        say("this runs as root, which it has no need of; backfill-web.service gives it a user of its own")
    try:
        server = _listening(address, port)
    except OSError as error:
        say(f"{args.listen} cannot be listened on: {error.strerror or error}; choose another one by --listen")
        return UNAVAILABLE
    _warn_without_daemon(asked)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    config = uvicorn.Config(
        make_app(Gateway(asked), args.rate),
        http=PatientProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_MOST_CLIENTS,
        timeout_keep_alive=_IDLE_S,
        timeout_graceful_shutdown=3,
        ssl_certfile=pair[0] if pair else None,
        ssl_keyfile=pair[1] if pair else None,
    )
    say(f"listening on {'https' if pair else 'http'}://{args.listen}")
    with asyncio.Runner(loop_factory=PatientLoop) as runner:
        runner.run(uvicorn.Server(config).serve(sockets=[Doorway(server)]))
    return OK


def _warn_without_daemon(path: str) -> None:
    """Say once that whoever asks gets no answer yet; it may come later."""
    try:
        Client(path, _FIRST_LOOK_S).ask("status")
    except AskError as error:
        say(f"{error}; until then every question here ends with 503")


def endpoint(text: str) -> tuple[str, int]:
    """Split `ADDRESS:PORT`. ValueError, one sentence, for anything else."""
    address, _, port = text.rpartition(":")
    address = address.strip("[]")
    try:
        ip_address(address)
    except ValueError:
        port = ""
    if not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"'{text}' is no address and port; write it as 127.0.0.1:{DEFAULT_PORT}")
    return address, int(port)


def _pair(args: argparse.Namespace, *, loopback: bool) -> tuple[Path, Path] | None:
    """Read certificate and key; None for one that needs none. ValueError or TlsError, a sentence."""
    from backfill.ui.web.tls import check_pair, ending, fingerprint, self_made

    if args.self_signed is not None:
        if args.cert or args.key:
            raise ValueError("--self-signed makes a certificate of its own; leave --cert and --key out")
        pair = self_made(args.self_signed, time.time(), endpoint(args.listen)[0])
        say(f"the certificate {pair[0]} has the fingerprint SHA-256 {fingerprint(pair[0])}")
        return pair
    if (args.cert is None) is not (args.key is None):
        raise ValueError("a certificate and its key belong together; give --cert and --key")
    if args.cert is not None:
        check_pair(args.cert, args.key)
        if told := ending(args.cert, time.time()):
            say(f"warning: {told}")
        return (args.cert, args.key)
    if not loopback:
        raise ValueError(
            f"{args.listen} is no loopback address, and without TLS everybody on the way reads the tokens; "
            "give --cert and --key, or for a trial --self-signed DIRECTORY"
        )
    return None


def _listening(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.create_server((address, port), family=family, backlog=_BACKLOG)
    server.set_inheritable(True)
    return server
