"""The live page and its parts: nothing of it comes from elsewhere, and no script but ours may run."""

from __future__ import annotations

from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import Response

from backfill.ui import report
from backfill.ui.web import answers
from backfill.ui.web.asker import Asks
from backfill.ui.web.history import History
from backfill.ui.web.replies import HEADERS, TROUBLE, Known, trouble

_OWN = Path(__file__).parent / "static"
_DRAWING = Path(report.__file__).parent
_PARTS = {
    "page.js": (_OWN / "page.js", "text/javascript"),
    "harvest.js": (_OWN / "harvest.js", "text/javascript"),
    "page.css": (_OWN / "page.css", "text/css"),
    "timelines.js": (_DRAWING / "timelines.js", "text/javascript"),
    "timelines.css": (_DRAWING / "replay.css", "text/css"),
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)
api = APIRouter(responses=TROUBLE)


@api.head("/", include_in_schema=False)
@api.get("/", include_in_schema=False)
async def page() -> Response:
    """Send the page."""
    return _file(_OWN / "page.html", "text/html")


@api.head("/static/{name}", include_in_schema=False)
@api.get("/static/{name}", include_in_schema=False)
async def part(name: str) -> Response:
    """Send a part of the page."""
    if name not in _PARTS:
        return trouble(404, "Not Found")
    return _file(*_PARTS[name])


@api.get("/api/v1/timeline", response_model=answers.TimelineAnswer, tags=["reading"])
async def timeline(request: Request, asker: Asks, known: Known = "") -> Response:
    """Tell the latest hours as stretches of time: five numbers each (lane, begin, length, look, name)."""
    await asker.need_all("timeline")
    history: History = request.app.state.history
    drawn = await history.told(asker)
    if drawn.tag in known:
        return Response(status_code=304, headers={**HEADERS, "ETag": drawn.tag})
    return Response(drawn.body, media_type="application/json", headers={**HEADERS, "ETag": drawn.tag})


def _file(path: Path, kind: str) -> Response:
    headers = {**HEADERS, "Content-Security-Policy": _POLICY}
    return Response(path.read_bytes(), media_type=f"{kind}; charset=utf-8", headers=headers)
