"""A daemon that is killed after one of its steps, and started again."""

from __future__ import annotations

from collections.abc import Callable

from backfill.sim.scenarios.rehearsal import Rehearsal


def nothing() -> None:
    """Let all be as it is."""


class Death:
    """Kills the daemon of `run` after the `number`th step from now on, and starts it `down_s` later.

    `meanwhile` is done as it dies. `steps`: all that it did from now on, in all its lives; `at_s`: when
    it died, None: it has not.
    """

    def __init__(
        self, run: Rehearsal, number: int, down_s: float = 3.0, meanwhile: Callable[[], object] = nothing
    ) -> None:
        self._run, self._number, self._down_s, self._meanwhile = run, number, down_s, meanwhile
        self.steps: list[str] = []
        self.at_s: float | None = None
        run.on_step = self._step

    def _step(self, what: str) -> bool:
        self.steps.append(what)
        if len(self.steps) != self._number:
            return False
        self._meanwhile()
        sim = self._run.sim
        sim.at(sim.now_s + self._down_s, lambda: self._rise(sim.now_s - self._down_s))
        return True

    def _rise(self, died_s: float) -> None:
        assert not self._run.alive, f"nobody killed it after {self.steps[self._number - 1]}"
        self.at_s = died_s
        self._run.start()
