"""How the API replies: the daemon's answers as they are, errors as one sentence, entries in pages."""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import sha256
from math import inf
from typing import Annotated, Any

from fastapi import Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from backfill.ui.client import Answer, AskError
from backfill.ui.web import answers

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-cache",
}
Documented = dict[int | str, dict[str, Any]]


def troubles(**texts: str) -> Documented:
    """Make what OpenAPI tells of errors: `_404="There is none."`."""
    return {
        int(name[1:]): {"model": answers.Trouble, "description": text} for name, text in sorted(texts.items())
    }


MONITORING = troubles(
    _413="The body is too large.",
    _422="The request cannot be understood.",
    _429="Too many requests from this address, or too many acts of this user.",
    _503="The daemon does not answer, or is too busy.",
)
TROUBLE = MONITORING | troubles(
    _401="Nobody has said who they are, or what they showed is not believed.", _403="They may not do that."
)
# What of an answer is another one each time, although nothing has happened.
_PASSING = ("now_s", "clock")
# By what kind of error the daemon answers with.
_STATUS = {"stranger": 401, "forbidden": 403, "unknown": 404, "unreadable": 422, "often": 429, "busy": 503}


class AsciiJson(JSONResponse):
    """JSON of ASCII alone: what is no Unicode, such as a reason in another character set, can be sent too."""

    def render(self, content: object) -> bytes:
        """Write it without blanks."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


Known = Annotated[str, Header(alias="If-None-Match", max_length=1024)]


def page(answer: Answer, name: str, key: Callable[[dict[str, Any]], str], after: str, limit: int) -> Answer:
    """Return the entries behind `after` in order of their keys, so many at most, how to go on, and how
    many there are in all."""
    behind = sorted((e for e in answer[name] if not after or key(e) > after), key=key)
    next_ = key(behind[limit - 1]) if len(behind) > limit else None
    return {**answer, name: behind[:limit], "next": next_, "total": len(answer[name])}


def told(answer: Answer, known: str = "", *, every_s: float = inf) -> Response:
    """Answer as the daemon does, or that nothing is new about it.

    `every_s`: after so long the time alone is news, where what the answer says is reckoned from `now_s`.
    """
    lasting = {key: value for key, value in answer.items() if key not in _PASSING}
    if every_s < inf:
        lasting["now"] = answer["now_s"] // every_s
    tag = f'W/"{sha256(json.dumps(lasting).encode()).hexdigest()[:32]}"'
    headers = {**HEADERS, "ETag": tag}
    if tag in (word.strip() for word in known.split(",")):
        return Response(status_code=304, headers=headers)
    return AsciiJson(answer, headers=headers)


_MORE = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "10"}, 503: {"Retry-After": "1"}}


async def no_answer(_: Request, error: Exception) -> Response:
    """Tell that the daemon does not answer, or with an error."""
    assert isinstance(error, AskError)
    status = 503 if error.answer is None else _STATUS.get(error.answer.get("kind", ""), 409)
    return trouble(status, str(error), _MORE.get(status))


async def refused(_: Request, error: Exception) -> Response:
    """There is no such path, or not with this method; or the body cannot be read at all."""
    assert isinstance(error, HTTPException)
    if error.status_code == 400:
        return trouble(422, "body: it is no JSON in UTF-8")
    return trouble(error.status_code, str(error.detail), dict(error.headers or {}))


async def not_understood(_: Request, error: Exception) -> Response:
    """Tell that a parameter is not what it must be."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return trouble(422, f"{place}: {first['msg']}")


def trouble(status: int, sentence: str, headers: dict[str, str] | None = None) -> Response:
    """Answer with an error: one sentence."""
    return AsciiJson({"error": sentence}, status, headers={**HEADERS, **(headers or {})})
