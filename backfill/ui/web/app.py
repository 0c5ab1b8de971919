"""The web service: it asks the daemon, knows nothing itself and holds no key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from backfill.ui.client import AskError
from backfill.ui.web import acting, monitoring, pages, reading, sessions, streaming
from backfill.ui.web.client_bounds import RATE_PER_S, ClientBounds
from backfill.ui.web.gateway import Gateway
from backfill.ui.web.history import History
from backfill.ui.web.replies import no_answer, not_understood, refused


def make_app(gateway: Gateway, per_s: float = RATE_PER_S) -> FastAPI:
    """Make the application around one gateway to the daemon.

    `per_s`: requests that one address may make in a second in the long run.
    """

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        gateway.close()

    app = FastAPI(
        title="backfill",
        version="1",
        summary="Virtual nodes on the idle hosts of a Slurm cluster",
        lifespan=life,
        docs_url=None,  # its page would come from elsewhere
        redoc_url=None,
    )
    app.state.gateway = gateway
    app.state.history = History()
    app.state.streams = streaming.Streams()
    app.state.checks = acting.TextChecks()
    app.add_middleware(ClientBounds, per_s=per_s)
    app.add_exception_handler(AskError, no_answer)
    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(RequestValidationError, not_understood)
    for part in (monitoring, sessions, reading, streaming, acting, pages):
        app.include_router(part.api)
    return app
