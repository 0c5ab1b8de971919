"""Nodes that stand in Slurm for those to come: kept as they have to be while the daemon runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from backfill.config import Config
from backfill.ports.errors import DriverError

_LOG = logging.getLogger("backfill")
EVERY_S = 60.0


class RoomWatch:
    """Looks after them once a minute: whoever updates all nodes of Slurm wakes them, and jobs get them.

    `make` puts right what is not, for the jobs of a policy file, and tells what could not be done.
    """

    def __init__(self, config: Config, make: Callable[[Config], list[str]], every_s: float = EVERY_S) -> None:
        self._config, self._make, self._every_s = config, make, every_s
        self._told: list[str] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rooms", daemon=True)

    def start(self) -> None:
        """Begin, in a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Begin nothing more."""
        self._over.set()

    def adopt(self, config: Config) -> None:
        """Go by another policy file, which may have wider jobs. Raises nothing."""
        try:
            self._look(config)
        except DriverError as error:
            _LOG.warning("Slurm may refuse jobs while it has no node that could run them: %s", error)
        except Exception:  # noqa: BLE001 - the file is taken over all the same, and it is tried again
            _LOG.exception("nodes for jobs to come could not be made: tried again in %g s", self._every_s)

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            try:
                self._look(self._config)
            except DriverError as error:
                _LOG.debug("nodes for jobs to come are not looked at: %s", error)
            except Exception:  # noqa: BLE001 - such as no memory for a program; the next look may find it
                _LOG.exception("nodes for jobs to come are not looked at: tried again in %g s", self._every_s)

    def _look(self, config: Config) -> None:
        with self._lock:
            self._config = config
            told = self._make(config)
            for sentence in told:
                if sentence not in self._told:
                    _LOG.warning("%s", sentence)
            self._told = told
