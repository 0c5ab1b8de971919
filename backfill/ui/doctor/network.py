"""Asks addresses whether somebody is there: a connection that is taken or refused is an answer."""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Iterable, Mapping

_WITHIN_S = 1.0
_MOST = 256
_THERE = (0, errno.ECONNREFUSED, errno.ECONNRESET)


def answering(addresses: Mapping[str, str], port: int, within_s: float = _WITHIN_S) -> dict[str, str]:
    """Return those of the addresses, by name, at which a machine answers within the time."""
    found: dict[str, str] = {}
    names = list(addresses)
    for begin in range(0, len(names), _MOST):
        part = names[begin : begin + _MOST]
        found |= {
            name: addresses[name] for name in _answering(((n, addresses[n]) for n in part), port, within_s)
        }
    return found


def _answering(addresses: Iterable[tuple[str, str]], port: int, within_s: float) -> list[str]:
    found: list[str] = []
    with selectors.DefaultSelector() as waiting:
        for name, address in addresses:
            asking = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            asking.setblocking(False)
            said = asking.connect_ex((address, port))
            if said in _THERE:
                found.append(name)
            if said == errno.EINPROGRESS:
                waiting.register(asking, selectors.EVENT_WRITE, name)
            else:
                asking.close()
        until_s = time.monotonic() + within_s
        while waiting.get_map() and (left_s := until_s - time.monotonic()) > 0:
            for key, _ in waiting.select(left_s):
                asked = key.fileobj
                assert isinstance(asked, socket.socket)
                if asked.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in _THERE:
                    found.append(key.data)
                waiting.unregister(asked)
                asked.close()
        for key in list(waiting.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
    return found


def connect_problem(endpoint: str, within_s: float = 2.0) -> str | None:
    """Return why no connection to `IP:PORT` comes about; None: it does."""
    address, _, port = endpoint.rpartition(":")
    try:
        socket.create_connection((address.strip("[]"), int(port)), within_s).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def listen_problem(endpoint: str) -> str | None:
    """Return why nobody could listen at `IP:PORT`; None: one could, or somebody does."""
    address, _, port = endpoint.rpartition(":")
    if not connect_problem(endpoint, 1.0):
        return None
    try:
        socket.create_server((address, int(port))).close()
    except OSError as error:
        return error.strerror or str(error)
    return None
