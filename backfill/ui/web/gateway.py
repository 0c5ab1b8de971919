"""Asks the daemon for many clients: few questions at a time, equal ones once, none without a bound."""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256

from backfill.ui.client import Answer, AskError, Client
from backfill.ui.parser import UNAVAILABLE

# The daemon takes 8 questions of one user at a time: those of the command line of this user as well.
_THREADS = 4
_MOST_WAITING = 64
# So long an answer is given again to who asks the same: a flood of equal questions costs the daemon few.
# Those that are one user's alone do not push everybody's out.
_KEPT_S, _MOST_ANSWERS, _MOST_OWN = 1.0, 16, 8
# And so long who somebody is: a role that is taken away holds so much longer for reading.
_KNOWN_S, _MOST_KNOWN = 5.0, 512
# Kinds of refusals that are about who asks, not about what is asked.
_OF_THE_ASKER = ("stranger", "forbidden")


class BusyGatewayError(AskError):
    """Too many questions wait already."""

    def __init__(self) -> None:
        super().__init__("too many questions at once; ask again in a moment", UNAVAILABLE)


class _Kept:
    """Answers that are given again for a while, the latest of them; failures are not kept."""

    def __init__(self, kept_s: float, most: int, monotonic: Callable[[], float]) -> None:
        self._kept_s, self._most, self._monotonic = kept_s, most, monotonic
        self._answers: OrderedDict[str, tuple[float, asyncio.Future[Answer]]] = OrderedDict()

    async def get(self, key: str, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """Return the answer that there is, or will be in a moment; ask where there is none."""
        known = self._answers.get(key)
        if known is not None and (not known[1].done() or self._monotonic() - known[0] < self._kept_s):
            try:
                return await asyncio.shield(known[1])
            except AskError as error:
                if (error.answer or {}).get("kind") not in _OF_THE_ASKER:
                    raise
                # Whoever asked first is not let in any more: that says nothing about this one.
        asked = asyncio.ensure_future(ask())
        asked.add_done_callback(partial(self._settled, key))
        self._answers[key] = (self._monotonic(), asked)
        self._answers.move_to_end(key)
        while len(self._answers) > self._most:
            self._answers.popitem(last=False)
        return await asyncio.shield(asked)

    def forget(self) -> None:
        """Ask anew from now on."""
        self._answers.clear()

    def _settled(self, key: str, asked: asyncio.Future[Answer]) -> None:
        known = self._answers.get(key)
        failed = asked.cancelled() or asked.exception() is not None
        if known is None or known[1] is not asked:
            return
        if failed:
            del self._answers[key]
            return
        self._answers[key] = (self._monotonic(), asked)
        # What is not given again takes no room: an answer of a large cluster is megabytes.
        asyncio.get_running_loop().call_later(self._kept_s, self._drop, key, asked)

    def _drop(self, key: str, asked: asyncio.Future[Answer]) -> None:
        known = self._answers.get(key)
        if known is not None and known[1] is asked:
            del self._answers[key]


class Gateway:
    """The daemon at one socket, for one event loop."""

    def __init__(self, path: str, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._client = Client(path)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="ask")
        self._waiting = 0
        self._answers = _Kept(_KEPT_S, _MOST_ANSWERS, monotonic)
        self._own = _Kept(_KEPT_S, _MOST_OWN, monotonic)
        self._known = _Kept(_KNOWN_S, _MOST_KNOWN, monotonic)

    def close(self) -> None:
        """Ask nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def known(self, shown: dict[str, str], address: str) -> Answer:
        """Return who somebody is, as the daemon said a few seconds ago at most. AskError for nobody."""
        key = sha256(json.dumps([shown.get("token"), shown.get("session")]).encode()).hexdigest()
        return await self._known.get(key, partial(self.ask, "whoami", **{"as": shown}, address=address))

    async def shared(
        self, question: str, shown: dict[str, str], address: str, whose: str = "", **body: object
    ) -> Answer:
        """Return an answer that may be a second old, to somebody who is known to be allowed to read it.

        `whose`: the user whose own answer it is, where Slurm keeps others' jobs from them; empty:
        everybody's. AskError where there is none.
        """
        key = json.dumps([question, body, whose], sort_keys=True)
        ask = partial(self.ask, question, **body, **{"as": shown}, address=address)
        return await (self._own if whose else self._answers).get(key, ask)

    def forget(self) -> None:
        """Somebody has acted: what was told before is not told again."""
        self._answers.forget()
        self._own.forget()

    async def ask(self, question: str, **body: object) -> Answer:
        """Ask now. AskError where there is no answer, or where it is an error."""
        if self._waiting >= _MOST_WAITING:
            raise BusyGatewayError
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(
                self._threads, partial(self._client.ask_exactly, question, **body)
            )
        finally:
            self._waiting -= 1
