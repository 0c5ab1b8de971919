"""Asks a daemon on another machine through its web service: the same questions as over the socket."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
import uuid
from pathlib import Path
from typing import Any, cast

from backfill.core.model.sentences import visible
from backfill.ui.client import Answer, AskError, shown
from backfill.ui.parser import NO, NO_PERMISSION, UNAVAILABLE

_WITHIN_S = 30.0
_PAGED = ("hosts", "nodes", "instances", "checkpoints")
_READ = ("status", "plan", "fleets", "mine", "metrics")
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
_CODES = {401: NO_PERMISSION, 403: NO_PERMISSION, 429: UNAVAILABLE, 503: UNAVAILABLE}


class RemoteClient:
    """The daemon behind one address. The token is that of SLURM_JWT, as Slurm's own commands have it."""

    def __init__(self, url: str, ca: Path | None = None) -> None:
        """`ca`: the certificates to be trusted beside the machine's. AskError for a bad one."""
        self._url = url.rstrip("/")
        if not _can_be_called(self._url):
            raise AskError(f"'{url}' is no address of a web service; write it as https://ctl:6834", NO)
        try:
            context = ssl.create_default_context()
            if ca is not None:
                context.load_verify_locations(ca)
        except (OSError, ssl.SSLError) as error:
            raise AskError(f"{ca} holds no certificates: {error}; give a file in PEM", NO) from error
        self._opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context), urllib.request.ProxyHandler({})
        )

    def ask(self, question: str, **body: object) -> Answer:
        """Return the daemon's answer with all texts safe to be seen. AskError where there is none."""
        return cast(Answer, shown(self.ask_exactly(question, **body)))

    def ask_exactly(self, question: str, **body: object) -> Answer:
        """Return the answer as it came."""
        if question in _PAGED:
            return self._whole(question)
        if question in _READ:
            return self._call("GET", question)
        if question == "events":
            return self._call("GET", f"events?{urllib.parse.urlencode(body)}")
        if question in _OF_ONE:
            path, name = _OF_ONE[question]
            return self._call("GET", f"{path}/{urllib.parse.quote(str(body[name]), safe='')}")
        if question == "fleet":
            return self._fleet(body)
        if question in _ORDERS:
            answer = self._call("POST", _ORDERS[question], body or None)
            return answer if question == "reload" else cast(Answer, answer["answer"])
        raise AskError(f"'{question}' is asked on the daemon's machine only; leave --url out there", NO)

    def _fleet(self, body: dict[str, object]) -> Answer:
        if "delete" in body:
            gone = urllib.parse.quote(str(body["delete"]), safe="")
            return cast(Answer, self._call("DELETE", f"fleets/{gone}")["answer"])
        given = {key: value for key, value in body.items() if value is not None}
        return cast(Answer, self._call("POST", "fleets", given)["answer"])

    def _whole(self, name: str) -> Answer:
        """All pages in one answer."""
        answer = self._call("GET", name)
        while (after := answer.pop("next", None)) is not None:
            more = self._call("GET", f"{name}?{urllib.parse.urlencode({'after': after})}")
            answer = {**answer, name: [*answer[name], *more[name]], "next": more["next"]}
        for about in ("total", "in_trouble"):
            answer.pop(about, None)  # the socket's answer is one page
        return answer

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Answer:
        headers = {"Accept": "application/json"}
        if token := os.environ.get("SLURM_JWT", ""):
            headers["Authorization"] = f"Bearer {token}"
        if method != "GET":
            headers |= {"Idempotency-Key": uuid.uuid4().hex, "Content-Type": "application/json"}
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(  # noqa: S310  the scheme was looked at
            f"{self._url}/api/v1/{path}", data, headers, method=method
        )
        try:
            with self._opener.open(request, timeout=_WITHIN_S) as reply:
                return cast(Answer, json.load(reply))
        except urllib.error.HTTPError as error:
            raise self._refused(error) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            why = getattr(error, "reason", error)
            raise AskError(
                f"no web service of backfill answers on {self._url}: {why}", UNAVAILABLE
            ) from error

    def _refused(self, error: urllib.error.HTTPError) -> AskError:
        try:
            answer = json.load(error)
            sentence = visible(str(answer["error"]))
        except (ValueError, KeyError, TypeError):
            answer, sentence = None, f"{self._url} answered {error.code}; is it our web service?"
        if error.code == 401:
            sentence += "; put it into SLURM_JWT"
        return AskError(sentence, _CODES.get(error.code, NO), answer)


def _can_be_called(url: str) -> bool:
    """Return True if it is http or https, and has a host, no blank, and a number where a port is."""
    try:
        parts = urllib.parse.urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:
        return False
    return known and bool(parts.hostname) and url.isprintable() and " " not in url
