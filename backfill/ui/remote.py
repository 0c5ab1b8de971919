"""Asks a daemon on another machine through its web service: the same questions as over the socket."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import ssl
import urllib.error
import urllib.parse
import urllib.request
import uuid
from pathlib import Path
from typing import Any, NoReturn, cast

from backfill.core.model.visible import visible
from backfill.ui.client import Answer, AskError, shown, warn_unwritten
from backfill.ui.parser import BAD_DATA, NO, NO_PERMISSION, UNAVAILABLE, USAGE

_WITHIN_S = 30.0
_PAGED = ("hosts", "nodes", "instances", "checkpoints")
_READ = ("status", "plan", "fleets", "mine", "metrics")
# A list that our service's answer has, and the answer of another one has not; for orders it is `answer`.
_TELLING = {
    **{name: name for name in (*_PAGED, "fleets", "events")},
    "status": "refusals",
    "plan": "refusals",
    "mine": "jobs",
    "metrics": "families",
    "explain": "story",
    "previewed": "problems",
    "errand": "problems",
}
_ORDERS = {
    "evict": "evictions",
    "reclaim": "reclaims",
    "retry": "retries",
    "poke": "poke",
    "checkpoint": "checkpoints",
    "reload": "policy/reload",
    "preview": "policy/previews",
    "verify": "checkpoints/verifications",
    "restore": "checkpoints/restores",
    "remove-checkpoints": "checkpoints/removals",
    "expire": "checkpoints/expiry",
    "drift": "drift",
    "provision": "provisions",
    "leaks": "leaks",
}
# Questions about one thing, and what of them its name is.
_OF_ONE = {
    "explain": ("explain", "subject"),
    "previewed": ("policy/previews", "id"),
    "errand": ("errands", "id"),
}
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.*?(-----END CERTIFICATE-----|\Z)", re.DOTALL)
_CODES = {401: NO_PERMISSION, 403: NO_PERMISSION, 429: UNAVAILABLE, 503: UNAVAILABLE}


class RemoteClient:
    """The daemon behind one address. The token is that of SLURM_JWT, as Slurm's own commands have it."""

    def __init__(self, url: str, ca: Path | None = None) -> None:
        """`ca`: the certificates to be trusted beside the machine's. AskError for a bad one."""
        self._url = url.rstrip("/")
        if not _can_be_called(self._url):
            raise AskError(f"'{url}' is no address of a web service; write it as https://ctl:6834", USAGE)
        self._token = _token()
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), _NoRedirect()]
        if ca is not None:  # without, the machine's own are read at the first connection that needs them
            handlers.append(urllib.request.HTTPSHandler(context=_trusting(ca)))
        self._opener = urllib.request.build_opener(*handlers)

    def ask(self, question: str, **body: object) -> Answer:
        """Return the daemon's answer with all texts safe to be seen. AskError where there is none."""
        return cast(Answer, shown(self.ask_exactly(question, **body)))

    def ask_exactly(self, question: str, **body: object) -> Answer:
        """Return the answer as it came."""
        if question in _PAGED:
            return self._whole(question)
        if question in _READ:
            return self._read(question, question)
        if question == "events":
            return self._read(question, f"events?{urllib.parse.urlencode(body)}")
        if question in _OF_ONE:
            path, name = _OF_ONE[question]
            return self._read(question, f"{path}/{urllib.parse.quote(str(body[name]), safe='')}")
        if question == "fleet":
            return self._fleet(body)
        if question in _ORDERS:
            return self._order("POST", _ORDERS[question], body or None, question)
        raise AskError(f"'{question}' is asked on the daemon's machine only; leave --url out there", NO)

    def _fleet(self, body: dict[str, object]) -> Answer:
        if "delete" in body:
            return self._order("DELETE", f"fleets/{urllib.parse.quote(str(body['delete']), safe='')}")
        given = {key: value for key, value in body.items() if value is not None}
        return self._order("POST", "fleets", given)

    def _whole(self, name: str) -> Answer:
        """All pages in one answer."""
        answer = self._read(name, name)
        while (after := answer.pop("next", None)) is not None:
            more = self._read(name, f"{name}?{urllib.parse.urlencode({'after': after})}")
            answer = {**answer, name: [*answer[name], *more[name]], "next": more.get("next")}
        for about in ("total", "in_trouble"):
            answer.pop(about, None)  # the socket's answer is one page
        return answer

    def _read(self, question: str, path: str) -> Answer:
        answer = self._call("GET", path)
        return answer if isinstance(answer.get(_TELLING[question]), list) else self._not_ours()

    def _order(
        self, method: str, path: str, body: dict[str, Any] | None = None, question: str = ""
    ) -> Answer:
        answer = self._call(method, path, body)
        if question == "reload":
            return answer if isinstance(answer.get("problems"), list) else self._not_ours()
        taken = answer.get("answer")
        if not isinstance(taken, dict):
            self._not_ours()
        warn_unwritten(taken)
        return taken

    def _not_ours(self) -> NoReturn:
        raise AskError(
            f"{self._url} answers, but not as our web service does; name that one: https://ctl:6834",
            UNAVAILABLE,
        )

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Answer:
        headers = {"Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if method != "GET":
            headers |= {"Idempotency-Key": uuid.uuid4().hex, "Content-Type": "application/json"}
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(  # noqa: S310  the scheme was looked at
            f"{self._url}/api/v1/{path}", data, headers, method=method
        )
        try:
            with self._opener.open(request, timeout=_WITHIN_S) as reply:
                answer = json.load(reply)
        except urllib.error.HTTPError as error:
            raise self._refused(error) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = getattr(error, "reason", error)
            raise AskError(
                f"no web service of backfill answers on {self._url}: {_told(why)}", UNAVAILABLE
            ) from error
        return answer if isinstance(answer, dict) else self._not_ours()

    def _refused(self, error: urllib.error.HTTPError) -> AskError:
        if error.code in _REDIRECTS:
            where = visible(error.headers.get("Location", "another address"))
            return AskError(f"{self._url} redirects to {where}; give --url the address that answers", NO)
        try:
            answer = json.load(error)
            sentence = visible(str(answer["error"]))
        except (ValueError, KeyError, TypeError):
            answer, sentence = None, f"{self._url} answered {error.code}; is it our web service?"
        if sentence == http.client.responses.get(error.code):  # the path, and not what it is about
            at = visible(error.url)
            sentence = f"{at}: {sentence}; give --url without a path, as in https://ctl:6834"
        if error.code == 401 and not self._token:
            sentence += "; put it into SLURM_JWT: export $(scontrol token)"
        return AskError(sentence, _CODES.get(error.code, NO), answer)


def _told(why: object) -> str:
    """Say it without the system's number, with the remedy where that is known."""
    match why:
        case ConnectionRefusedError():
            return f"{why.strerror}; `systemctl status backfill-web` there tells why"
        case socket.gaierror():
            return f"{why.strerror}; name a host that is known here"
        case _:
            return str(why)


def _trusting(ca: Path) -> ssl.SSLContext:
    context = ssl.create_default_context()
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise AskError(_damaged(ca), BAD_DATA) from error
    except OSError as error:
        error.filename = str(ca)  # OpenSSL tells of no file
        raise
    return context


def _damaged(ca: Path) -> str:
    """Say which of a file's certificates is none, by its line."""
    text = ca.read_text(encoding="ascii", errors="replace")
    for found in _PEM.finditer(text):
        try:
            ssl.create_default_context(cadata=found[0])
        except (ssl.SSLError, ValueError):
            line = text.count("\n", 0, found.start()) + 1
            return f"{ca}:{line}: the certificate there is damaged; copy it anew"
    return f"{ca} holds no certificates; give a file in PEM: -----BEGIN CERTIFICATE-----"


_REDIRECTS = (301, 302, 303, 307, 308)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Takes a redirect for the answer: following it would show the token to whoever is named."""

    def redirect_request(self, *_: object) -> None:
        """Follow nothing."""


def _token() -> str:
    """Read SLURM_JWT, also as `scontrol token` prints it. No message may hold any of it: it is a secret."""
    token = os.environ.get("SLURM_JWT", "").strip().removeprefix("SLURM_JWT=").strip()
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise AskError(
            "SLURM_JWT holds characters that no token has; set it anew: export $(scontrol token)",
            NO_PERMISSION,
        )
    return token


def _can_be_called(url: str) -> bool:
    """Return True if it is http or https, and has a host, no blank, and a number where a port is."""
    try:
        parts = urllib.parse.urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:
        return False
    return known and bool(parts.hostname) and url.isprintable() and " " not in url
