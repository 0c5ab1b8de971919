"""The page's sessions: begun with a token, short, and of no use to another site's page."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from backfill.ui.web import answers
from backfill.ui.web.asker import COOKIE, Asks
from backfill.ui.web.replies import HEADERS, TROUBLE, AsciiJson

api = APIRouter(prefix="/api/v1", tags=["session"], responses=TROUBLE)
# With it comes the word for a session's acts.
_KEPT_NOWHERE = {**HEADERS, "Cache-Control": "no-store"}


@api.get("/me", response_model=answers.MeAnswer)
async def me(asker: Asks) -> Response:
    """Tell who asks, and what they may."""
    return AsciiJson(await asker.ask("whoami"), headers=_KEPT_NOWHERE)


@api.post("/session", response_model=answers.SessionAnswer)
async def begin(request: Request, asker: Asks) -> Response:
    """Begin a session by a token: a cookie that no script reads, and a word to be sent with each act."""
    answer = dict(await asker.ask("login"))
    reply = AsciiJson(
        {key: value for key, value in answer.items() if key != "session"}, headers=_KEPT_NOWHERE
    )
    reply.set_cookie(
        COOKIE, str(answer["session"]), httponly=True, secure=_by_tls(request), samesite="strict", path="/"
    )
    return reply


@api.delete("/session", status_code=204, response_class=Response)
async def end(asker: Asks) -> Response:
    """End the session."""
    await asker.ask("logout")
    reply = Response(status_code=204, headers=HEADERS)
    reply.delete_cookie(COOKIE, path="/")
    return reply


def _by_tls(request: Request) -> bool:
    """Return True if the client itself speaks TLS: with us, or with a server before us that says so."""
    told = request.headers.get("X-Forwarded-Proto", "").partition(",")[0].strip().lower()
    return "https" in (request.url.scheme, told)
