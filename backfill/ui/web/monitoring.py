"""What monitoring asks of the web service, without saying who it is."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import PlainTextResponse, Response

from backfill.ui.web import answers
from backfill.ui.web.asker import gateway_of
from backfill.ui.web.exposition import OPENMETRICS, exposition
from backfill.ui.web.gateway import Gateway
from backfill.ui.web.replies import HEADERS, MONITORING, AsciiJson, Documented

Asked = Annotated[Gateway, Depends(gateway_of)]
api = APIRouter(tags=["monitoring"], responses=MONITORING)
_NOT_READY: Documented = {
    503: {"model": answers.ReadyAnswer | answers.Trouble, "description": "It is not, or does not answer."}
}
_TEXT: Documented = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
_METRICS: Documented = {
    200: {"content": {kind: {"schema": {"type": "string"}} for kind in ("text/plain", OPENMETRICS)}}
}


@api.head("/livez", include_in_schema=False)
@api.get("/livez", response_class=Response, responses=_TEXT)
async def livez() -> Response:
    """Tell that this service lives; nothing is said of the daemon."""
    return PlainTextResponse("ok\n", headers=HEADERS)


@api.head("/readyz", include_in_schema=False)
@api.get("/readyz", response_model=answers.ReadyAnswer, responses=_NOT_READY)
async def readyz(gateway: Asked) -> Response:
    """Tell whether the daemon answers, may act, and knows Slurm as it is now."""
    answer = await gateway.shared("ready", {}, "monitoring")
    return AsciiJson(answer, 200 if answer["ready"] else 503, headers=HEADERS)


@api.head("/metrics", include_in_schema=False)
@api.get("/metrics", response_class=Response, responses=_METRICS)
async def metrics(gateway: Asked, request: Request) -> Response:
    """Tell what Prometheus reads, in the form that it accepts."""
    found = await gateway.shared("metrics", {}, "monitoring")
    text, kind = exposition(found["families"], request.headers.get("Accept", "")[:1024])
    return Response(text, headers={**HEADERS, "Content-Type": kind})
