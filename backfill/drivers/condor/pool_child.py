"""Asks an HTCondor pool through HTCondor's own bindings; reads and writes one JSON object per line.

This file is run, never imported, and imports nothing of ours: HTCondor's library may hang in a call,
or end the process. Its interpreter may be another. How the pool is reached stands in the environment
(_CONDOR_*). A request is {"call": "observe", "constraint": ..., "most": ..., "runs": ..., "within_s": ...};
the answer is {"idle": ..., "runs": [...], "answered": [...], "silent": {...}}, or {"error": {"said": ...}}.
With {"call": "parse", "constraint": ...} it is {"parsed": true or false}, and no pool is asked. The first
line says which bindings these are.
"""

from __future__ import annotations

import importlib
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import Any

# The library is loaded already, and a fork of it asks at once.
_FORK = multiprocessing.get_context("fork")
_AT_ONCE = 16  # access points that are asked at the same time

# Of vanilla and the other universes only vanilla jobs are matched with pilots; 1: waiting.
WAITING = "JobUniverse == 5 && JobStatus == 1"
# By which job of Slurm a pilot is known to the pool: its script advertises SlurmJob, and the access
# point notes that of each machine that a payload was on (SYSTEM_JOB_MACHINE_ATTRS); the latest is 0.
PILOT = "MachineAttrSlurmJob0"
RUN = (
    "ClusterId",
    "ProcId",
    "NumShadowStarts",
    "NumJobCompletions",
    "RemoteHost",
    "JobCurrentStartDate",
    "JobCurrentStartExecutingDate",
    "EpochWriteDate",
    "LastVacateTime",
    PILOT,
    # Whether a payload that has ended by itself is tried again, and what that mostly depends on.
    "OnExitRemove",
    "ExitCode",
    "ExitBySignal",
    "JobMaxRetries",
    "JobSuccessExitCode",
)


def places(htcondor: Any) -> list[Any]:
    """Where the access points of the pool are."""
    names = ["Name", "MyAddress", "CondorVersion"]
    ads = htcondor.Collector().query(htcondor.AdType.Schedd, projection=names)
    return list(ads)


def observe(htcondor: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Tell what waits, up to `most`, and the latest runs, up to `runs` of each access point.

    `answered` names the access points that have; `silent` has what was said of each of the others.
    """
    began_s = time.monotonic()
    found = places(htcondor)
    waves = [found[at : at + _AT_ONCE] for at in range(0, len(found), _AT_ONCE)]
    answers: dict[str, dict[str, Any]] = {}
    for number, wave in enumerate(waves, 1):
        answers |= ask_all(htcondor, wave, asked, began_s + asked["within_s"] * number / len(waves))
    known = [answer for answer in answers.values() if "silent" not in answer]
    return {
        "idle": min(asked["most"], sum(answer["idle"] for answer in known)),
        "runs": [one for answer in known for one in answer["runs"]],
        "answered": [name for name, answer in answers.items() if "silent" not in answer],
        "silent": {name: answer["silent"] for name, answer in answers.items() if "silent" in answer},
    }


def ask_all(
    htcondor: Any, wave: list[Any], asked: dict[str, Any], until_s: float
) -> dict[str, dict[str, Any]]:
    """Ask these access points at the same time; return the answers by their names.

    Each in a process of its own, which can be ended. Of one that takes connections and says nothing the
    library waits 20 s for its jobs, and without end for its history (measured with 25.14).
    """
    asking = []
    for place in wave:
        ours, theirs = _FORK.Pipe(duplex=False)
        process = _FORK.Process(target=tell, args=(theirs, htcondor, place, asked), daemon=True)
        process.start()
        theirs.close()
        asking.append((str(place.get("Name")), process, ours))
    return {name: heard(process, ours, until_s) for name, process, ours in asking}


def tell(out: Connection, htcondor: Any, place: Any, asked: dict[str, Any]) -> None:
    """Send what an access point answers, or what was said instead."""
    try:
        out.send(ask_one(htcondor, place, asked))
    except Exception as error:  # noqa: BLE001 - the library ends in its own ways
        out.send({"silent": words(error)})


def ask_one(htcondor: Any, place: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Ask an access point what waits there, and what has ended."""
    own = asked["constraint"]
    constraint = f"{WAITING} && ({own})" if own else WAITING
    schedd = htcondor.Schedd(place)
    idle = len(schedd.query(constraint=constraint, projection=["ClusterId"], limit=asked["most"]))
    runs = told(ended(schedd, asked["runs"]), str(place.get("Name")))
    return {"idle": idle, "runs": list(runs)}


def heard(process: ForkProcess, answers: Connection, until_s: float) -> dict[str, Any]:
    """Return what the process tells until then, and end it."""
    try:
        if answers.poll(max(0.0, until_s - time.monotonic())):
            told: dict[str, Any] = answers.recv()
            return told
    except EOFError:
        return {"silent": "HTCondor's library ended the process that asked"}
    finally:
        process.kill()
        process.join()
        answers.close()
    return {"silent": "it said nothing in time"}


def ended(schedd: Any, most: int) -> Iterator[Any]:
    """Yield records of the latest runs. An access point that records no single runs has none to tell."""
    if most:
        yield from schedd.jobEpochHistory("true", projection=list(RUN), match=most)


def told(ads: Iterable[Any], access_point: str) -> Iterator[dict[str, Any]]:
    """Yield runs. What has no payload's number, as a record that was cut off, is none."""
    named = [ad for ad in ads if all(type(ad.get(name)) is int for name in ("ClusterId", "ProcId"))]
    before: dict[tuple[int, int], tuple[int, int]] = {}
    for ad in sorted(named, key=lambda ad: number(ad, "NumShadowStarts")):
        payload = (ad["ClusterId"], ad["ProcId"])
        exits, vacated_s = number(ad, "NumJobCompletions"), number(ad, "LastVacateTime")
        exits_before, vacated_before_s = before.get(payload, (0, 0))
        yield run(ad, access_point, exits > exits_before, vacated_s != vacated_before_s)
        before[payload] = (exits, vacated_s)


def run(ad: Any, access_point: str, exited: bool, vacated: bool) -> dict[str, Any]:
    """One run; `pilot` is empty of one that was elsewhere. `exited`: the payload ended by itself once more.

    `vacated`: it was evicted last at another time than the record of the run before tells, if there is one.
    The dates in a record, but for that of its writing, may be those of an earlier run.
    """
    ended_s, started_s = number(ad, "EpochWriteDate"), number(ad, "JobCurrentStartDate")
    began_s = number(ad, "JobCurrentStartExecutingDate")
    worked = began_s > 0 and began_s >= started_s
    evicted = vacated and 0 < started_s <= number(ad, "LastVacateTime")
    pilot, host = str(ad.get(PILOT)), ad.get("RemoteHost")
    return {
        "id": f"{access_point}#{ad['ClusterId']}.{ad['ProcId']}#{number(ad, 'NumShadowStarts')}",
        "pilot": pilot if type(ad.get(PILOT)) in (int, str) and pilot.isdecimal() else "",
        "host": host.rpartition("@")[2] if isinstance(host, str) else "",
        "ended_s": ended_s,
        "worked_s": max(0, ended_s - began_s) if worked else 0,
        "done": exited and not evicted and not retried(ad),
    }


def retried(ad: Any) -> bool:
    """Return True if a payload that has ended by itself is tried again, as far as its record tells."""
    try:
        return ad.eval("OnExitRemove") is False
    except Exception:  # noqa: BLE001 - each generation of the bindings has an error of its own
        return False


def number(ad: Any, name: str) -> int:
    """Read a whole number; 0 where the record does not have it. The bindings' undefined is an int as well."""
    value = ad.get(name)
    return int(value) if type(value) in (int, float) and math.isfinite(value) else 0


def bindings() -> Any:
    """HTCondor's module; the second generation of it where there is one."""
    try:
        return importlib.import_module("htcondor2")
    except ImportError:
        return importlib.import_module("htcondor")


def parse(htcondor: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Tell whether HTCondor can read the constraint, by itself and where it is put."""
    classad = importlib.import_module("classad" + htcondor.__name__.removeprefix("htcondor"))
    try:
        for text in (asked["constraint"], f"{WAITING} && ({asked['constraint']})"):
            classad.ExprTree(text)
    except Exception:  # noqa: BLE001 - each generation of the bindings has an error of its own
        return {"parsed": False}
    return {"parsed": True}


_CALLS = {"observe": observe, "parse": parse}


def main() -> None:
    """Answer line by line until the end of the input."""
    try:
        htcondor = bindings()
        say({"bindings": str(htcondor.version())})
    except Exception as error:  # noqa: BLE001 - the library ends in its own ways
        say({"error": {"said": f"{sys.executable} has no HTCondor bindings ({error})"}})
        return
    for line in sys.stdin:
        try:
            asked = json.loads(line)
            say(_CALLS[asked["call"]](htcondor, asked))
        except Exception as error:  # noqa: BLE001 - as above
            say({"error": {"said": words(error)}})


def words(error: Exception) -> str:
    """Return what an error says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def say(answer: dict[str, Any]) -> None:
    """One line; the library's own words go elsewhere."""
    os.write(OUT, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    # What the library prints by itself must not get between the answers.
    OUT = os.dup(1)
    os.dup2(2, 1)
    main()
