"""Who asks the web service: what they show is passed on to the daemon, which alone verifies it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyCookie, APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer

from backfill.ui.client import Answer, AskError
from backfill.ui.parser import NO_PERMISSION
from backfill.ui.web.gateway import Gateway

COOKIE = "backfill-session"
_MOST_TOKEN = 8192

_bearer = HTTPBearer(auto_error=False, description="A token of `scontrol token`.")
_slurm = APIKeyHeader(
    name="X-SLURM-USER-TOKEN", auto_error=False, description="The same, as slurmrestd has it."
)
_cookie = APIKeyCookie(name=COOKIE, auto_error=False, description="The page's session.")
_csrf = APIKeyHeader(
    name="X-CSRF-Token",
    auto_error=False,
    description="With a session: what /api/v1/session and /api/v1/me tell.",
)


def gateway_of(request: Request) -> Gateway:
    """Return the application's gateway to the daemon."""
    found: Gateway = request.app.state.gateway
    return found


@dataclass(frozen=True, slots=True)
class Asker:
    """One client with what it shows of itself."""

    gateway: Gateway
    shown: dict[str, str]
    address: str

    async def ask(self, question: str, **body: object) -> Answer:
        """Ask as this client. AskError where there is no answer."""
        return await self.gateway.ask(question, **body, **{"as": self.shown}, address=self.address)

    async def shared(self, question: str, **body: object) -> Answer:
        """Return an answer that others may have asked for, a second old at most, if they may read."""
        found = await self.gateway.known(self.shown, self.address)
        if not found["role"]:
            raise _forbidden(f"'{question}' takes the role reader, which {found['user']} does not have")
        whose = found["user"] if found["hidden"] else ""  # theirs is another answer than everybody's
        return await self.gateway.shared(question, self.shown, self.address, whose, **body)

    async def need_all(self, question: str) -> None:
        """AskError unless nothing is hidden from this client: what follows is the same for everybody."""
        found = await self.gateway.known(self.shown, self.address)
        if found["hidden"]:
            hidden = ", ".join(found["hidden"])
            raise _forbidden(f"'{question}' takes the role operator, as Slurm's PrivateData hides {hidden}")


def _asker(
    request: Request,
    gateway: Annotated[Gateway, Depends(gateway_of)],
    bearer: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
    slurm: Annotated[str | None, Security(_slurm)],
    session: Annotated[str | None, Security(_cookie)],
    csrf: Annotated[str | None, Security(_csrf)],
) -> Asker:
    address = request.client.host if request.client else ""
    token = bearer.credentials if bearer is not None else slurm
    shown = {"token": token} if token else {"session": session or "", "csrf": csrf or ""}
    return Asker(gateway, {key: text[:_MOST_TOKEN] for key, text in shown.items()}, address)


def _forbidden(why: str) -> AskError:
    return AskError(why, NO_PERMISSION, {"error": why, "kind": "forbidden"})


Asks = Annotated[Asker, Depends(_asker)]
