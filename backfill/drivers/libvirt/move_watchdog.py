"""Watches one move, and cancels it or switches it to post-copy in time."""

from __future__ import annotations

import contextlib
import threading
import time

from backfill.drivers.libvirt.hypervisor import Hypervisor
from backfill.drivers.libvirt.migration import Step, decide
from backfill.drivers.libvirt.settings import MoveTerms
from backfill.ports.errors import DriverError

_LOOK_EVERY_S = 0.2


class MoveWatchdog:
    """Watches inside of a `with`; `asked` is what was ordered for the move meanwhile."""

    def __init__(self, source: Hypervisor, name: str, terms: MoveTerms) -> None:
        self._source, self._name, self._terms = source, name, terms
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"watch-move-{name}", daemon=True)
        self.asked: frozenset[Step] = frozenset()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        """Look again and again until the move is over."""
        began_s = time.monotonic()
        while not self._over.wait(_LOOK_EVERY_S):
            # A host that does not answer now is asked again: the move itself reports its end.
            with contextlib.suppress(DriverError):
                self._look(time.monotonic() - began_s)

    def _look(self, elapsed_s: float) -> None:
        seen = self._source.progress(self._name)
        if seen is None:
            return
        step = decide(self._terms, elapsed_s, seen, self.asked)
        if step is Step.POST_COPY:
            self._source.post_copy(self._name)
        elif step is Step.CANCEL:
            self._source.cancel_move(self._name)
        self.asked |= {step}
