"""The web service at a port of this machine, as uvicorn runs it, and a client of it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import uvicorn
from starlette.types import ASGIApp

from backfill.core.policies.access import People, Roles
from backfill.core.policy import PolicySet
from backfill.ports.errors import RefusedError
from backfill.ports.identity import TokenClaim
from backfill.ui.web.app import make_app
from backfill.ui.web.client_bounds import Doorway, PatientLoop, PatientProtocol
from backfill.ui.web.gateway import Gateway
from tests.component.living_daemon import WALL_S, policies

ADA, BO, CY, DI = "ada", "bo", "cy", "di"  # admin, operator, reader, and somebody without a role
ROLES = Roles(reader=People((CY,)), operator=People((BO,)), admin=People((ADA,)))


class Names:
    """Takes a token for the name of its user, as long as it is one of these."""

    def read(self, token: str) -> TokenClaim:
        """Believe it if it is a name."""
        if token not in (ADA, BO, CY, DI):
            raise RefusedError("the token is refused", "it is not signed with this cluster's key")
        return TokenClaim(token, WALL_S + 600.0)


def with_roles() -> PolicySet:
    """The policies of a living daemon, with a role for some of them."""
    return replace(policies(), access=ROLES)


def _run(server: uvicorn.Server, listening: socket.socket) -> None:
    with asyncio.Runner(loop_factory=PatientLoop) as runner:
        runner.run(server.serve([listening]))


@contextmanager
def served(
    path: Path, within_s: float = 30.0, pair: tuple[Path, Path] | None = None, app: ASGIApp | None = None
) -> Iterator[int]:
    """The service at a port of this machine, as uvicorn runs it. `pair`: its certificate and key.

    `app`: what answers in its place.
    """

    class Hasty(PatientProtocol):
        pass

    Hasty.within_s = within_s
    config = uvicorn.Config(
        app or make_app(Gateway(str(path)), per_s=1e6),
        http=Hasty,
        ws="none",
        log_config=None,
        lifespan="on",
        ssl_certfile=pair[0] if pair else None,
        ssl_keyfile=pair[1] if pair else None,
    )
    with Doorway(socket.create_server(("127.0.0.1", 0))) as listening:
        server = uvicorn.Server(config)
        thread = threading.Thread(target=lambda: _run(server, listening))
        thread.start()
        try:
            yield int(listening.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def asked(path: Path, user: str = CY) -> Iterator[httpx.Client]:
    """A client of a service that asks the daemon at this socket, and shows this user's token."""
    headers = {"Authorization": f"Bearer {user}"} if user else {}
    with (
        served(path) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60.0, headers=headers) as client,
    ):
        yield client
