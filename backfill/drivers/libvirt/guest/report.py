"""Reads the output of the proving program in a guest (lab/guest/prove.c) as a report."""

from __future__ import annotations

from collections.abc import Sequence

from backfill.core.model.readiness import FILES, MUNGE, Fact, GuestReport, figure
from backfill.ports.errors import BadOutputError

_UNTOLD = "the proving program does not tell of it"
_NAMES = {"munge-in": f"{MUNGE}:to the guest", "munge-out": f"{MUNGE}:made in the guest"}


def mount_to_prove(entry: str) -> str:
    """Return the path of an fstab-like entry, with `:ro` where it is mounted read-only."""
    _source, path, _kind, options = entry.split()[:4]
    return f"{path}:ro" if "ro" in options.split(",") else path


def read_report(
    name: str, output: str, window: tuple[float, float], checks: Sequence[str] = ()
) -> tuple[GuestReport, str]:
    """Read the report and the guest's credential.

    `window`: the controller's time, epoch seconds, between which the guest read its clock last.
    `checks`: what was asked for, by the program's own words; what is not told has not passed.
    Raises BadOutputError for anything that the program does not print.
    """
    try:
        return _ReportReader(output, window).report(checks)
    except (ValueError, KeyError, IndexError):
        told = " | ".join(output.splitlines())[:200]
        raise BadOutputError(
            name, f"its proving program answered '{told}'", "rebuild the guest image"
        ) from None


class _ReportReader:
    """Sorts the program's lines."""

    def __init__(self, output: str, window: tuple[float, float]) -> None:
        self._window = window
        self._values: dict[str, list[str]] = {}
        self._facts: list[Fact] = []
        self._credential = ""
        self._clock = ""
        self._told: set[str] = set()
        for line in output.splitlines():
            self._take(line)

    def _take(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word in ("correction", "offset", "self", "now"):
            self._values[word] = rest.split()
            return
        verdict, took_s, *said = rest.split(" ", 2)
        ok, text = {"ok": True, "no": False}[verdict], said[0].strip() if said else ""
        if word == "munge-out" and ok:
            self._credential = text  # whether it is good is for the controller to say
        elif word == "clock":
            self._clock = text
        else:
            self._told.add(word)
            self._facts.append(Fact(_name(word), ok, text, figure(took_s)))

    def report(self, checks: Sequence[str]) -> tuple[GuestReport, str]:
        """All together."""
        self._facts += [Fact(_name(word), False, _UNTOLD) for word in checks if word not in self._told]
        offset_s, bound_s, source = self._offset()
        cpus, memory_mb, *addresses = self._values["self"]
        report = GuestReport(
            correction_s=figure(self._values["correction"][0]),
            offset_s=offset_s,
            bound_s=bound_s,
            source=source,
            cpus=int(cpus),
            memory_mb=int(memory_mb),
            addresses=tuple(a for a in "".join(addresses).split(",") if a),
            facts=tuple(self._facts),
        )
        return report, self._credential

    def _offset(self) -> tuple[float | None, float, str]:
        """Take the time server's word; where there is none, what the window allows."""
        if self._clock:
            return None, 0.0, self._clock
        if "offset" in self._values:
            offset, bound = self._values["offset"]
            return figure(offset), abs(figure(bound)), "the controller's time server"
        first_s, last_s = self._window
        middle_s, bound_s = (first_s + last_s) / 2, (last_s - first_s) / 2
        return middle_s - figure(self._values["now"][0]), bound_s, "the daemon's clock"


def _name(word: str) -> str:
    if word.startswith("files:"):
        return f"{FILES}:{word.removeprefix('files:').removesuffix(':ro')}"
    return _NAMES.get(word, word)
