"""PayloadPool over HTCondor's bindings, in a process of their own that may hang or end as it likes."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from backfill.drivers.child import Child
from backfill.drivers.condor.diagnosis import SUBJECT, explain, none_answers, none_known, silent_told
from backfill.drivers.condor.settings import CondorConfig
from backfill.ports.errors import BadOutputError
from backfill.ports.pools import PayloadRun, PoolObservation

_LOG = logging.getLogger(__name__)
_SCRIPT = Path(__file__).with_name("pool_child.py")
# The access points have this share of the time; the rest is for the start and the collector.
_ACCESS_POINTS = 0.7
# So far ahead the clock of an access point may be. A later time, or one before 1970, is no time of a run;
# a record without its time says 0.
_AHEAD_S = 86400.0
# A collector that was started again knows its access points after minutes; of one that has gone it knows
# as long (CLASSAD_LIFETIME).
_LOST_S = 900.0
_LOST = "the collector no longer knows it"


class CondorPool:
    """See PayloadPool."""

    def __init__(self, config: CondorConfig) -> None:
        self._config = config
        self._child = Child([config.python, str(_SCRIPT)], _environment(config), SUBJECT, config.within_s)
        self._silent: frozenset[str] = frozenset()
        self._listed: dict[str, float] = {}  # access points, by when the collector last knew them
        self._left_out = False

    def observe(self) -> PoolObservation:
        """See PayloadPool."""
        config, began_s = self._config, time.time()
        asked = {
            "call": "observe",
            "constraint": config.constraint,
            "most": config.most_idle,
            "runs": config.most_runs,
            "within_s": config.within_s * _ACCESS_POINTS,
        }
        answer = self._child.ask(asked)
        if "error" in answer:
            raise explain(config, str(answer["error"].get("said"))[:300].rstrip(". "))
        try:
            runs = [_run(told) for told in answer["runs"]]
            idle, answered = int(answer["idle"]), [str(name) for name in answer["answered"]]
            silent = {str(name): str(said)[:300].rstrip(". ") for name, said in answer["silent"].items()}
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadOutputError(SUBJECT, f"cannot read its answer: {error!r}") from error
        silent = self._lost([*answered, *silent]) | silent
        if not answered:
            raise none_answers(config, silent) if silent else none_known()
        self._tell(silent, answered)
        runs = self._likely(runs, began_s)
        runs.sort(key=lambda run: (run.ended_s, run.id))
        return PoolObservation(began_s, idle, runs, tuple(sorted(silent)))

    def _lost(self, listed: Iterable[str]) -> dict[str, str]:
        """Return access points that the collector knew a while ago, and does not know now."""
        now_s = time.monotonic()
        self._listed |= dict.fromkeys(listed, now_s)
        self._listed = {name: at_s for name, at_s in self._listed.items() if now_s - at_s <= _LOST_S}
        return {name: _LOST for name, at_s in self._listed.items() if at_s < now_s}

    def _tell(self, silent: Mapping[str, str], answered: Iterable[str]) -> None:
        """Let the log say once of each that it has fallen silent, and that it answers again."""
        fresh = {name: said for name, said in silent.items() if name not in self._silent}
        if fresh:
            _LOG.warning("%s; what waits and ends there is not known", silent_told(fresh))
        for name in sorted(self._silent.intersection(answered)):
            _LOG.info("access point %s answers again", name)
        self._silent = frozenset(silent)

    def _likely(self, runs: list[PayloadRun], now_s: float) -> list[PayloadRun]:
        """Leave out runs whose times cannot be; the log says so once for as long as there are some."""
        last_s = now_s + _AHEAD_S
        good: list[PayloadRun] = []
        odd: list[PayloadRun] = []
        for run in runs:
            likely = 0.0 <= run.worked_s <= last_s and 0.0 < run.ended_s <= last_s
            (good if likely else odd).append(run)
        if odd and not self._left_out:
            _LOG.warning(
                "%s: run %s is left out, as it is said to have ended at %.0f s after %.0f s; "
                "see the clock of its access point, and that its HTCondor writes EpochWriteDate",
                SUBJECT,
                odd[0].id,
                odd[0].ended_s,
                odd[0].worked_s,
            )
        self._left_out = bool(odd)
        return good

    def reads_constraint(self) -> bool:
        """Return True if HTCondor can read the constraint. Asks no pool; raises without bindings."""
        answer = self._child.ask({"call": "parse", "constraint": self._config.constraint})
        if "error" in answer or not isinstance(parsed := answer.get("parsed"), bool):
            raise BadOutputError(SUBJECT, f"cannot read its answer: {answer!r:.200}")
        return parsed

    def close(self) -> None:
        """End the process."""
        self._child.close()


def _environment(config: CondorConfig) -> dict[str, str]:
    """HTCondor's configuration, all of it, so that this machine's own does not count."""
    timeout_s = str(max(1, int(config.within_s / 2)))
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "LC_ALL": "C.UTF-8",
        "CONDOR_CONFIG": "ONLY_ENV",
        "_CONDOR_COLLECTOR_HOST": config.collector,
        "_CONDOR_SEC_TOKEN_DIRECTORY": config.tokens,
        "_CONDOR_SEC_CLIENT_AUTHENTICATION_METHODS": "IDTOKENS",
        "_CONDOR_QUERY_TIMEOUT": timeout_s,
        "_CONDOR_TOOL_TIMEOUT_MULTIPLIER": "1",
    }


def _run(told: dict[str, Any]) -> PayloadRun:
    return PayloadRun(
        str(told["id"]),
        str(told["pilot"]),
        str(told["host"]),
        float(told["ended_s"]),
        float(told["worked_s"]),
        bool(told["done"]),
    )
