"""Asks an HTCondor pool through HTCondor's own bindings; reads and writes one JSON object per line.

This file is run, never imported, and imports nothing of ours: HTCondor's library may hang in a call,
or end the process. Its interpreter may be another. How the pool is reached stands in the environment
(_CONDOR_*). A request is {"call": "observe", "constraint": ..., "most": ..., "runs": ...}; the answer is
{"idle": ..., "runs": [...]}, or {"error": {"said": ...}}. With {"call": "parse", "constraint": ...} it is
{"parsed": true or false}, and no pool is asked. The first line says which bindings these are.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

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
    PILOT,
)


def places(htcondor: Any) -> list[Any]:
    """Where the access points of the pool are."""
    names = ["Name", "MyAddress", "CondorVersion"]
    ads = htcondor.Collector().query(htcondor.AdType.Schedd, projection=names)
    return list(ads)


def observe(htcondor: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """Tell what waits, up to `most`, and the latest runs, up to `runs` of each access point."""
    own = asked["constraint"]
    constraint = f"{WAITING} && ({own})" if own else WAITING
    idle, runs = 0, []
    for place in places(htcondor):
        schedd = htcondor.Schedd(place)
        if idle < asked["most"]:
            limit = asked["most"] - idle
            idle += len(schedd.query(constraint=constraint, projection=["ClusterId"], limit=limit))
        runs += [run(ad, str(place.get("Name"))) for ad in ended(schedd, asked["runs"])]
    return {"idle": idle, "runs": runs}


def ended(schedd: Any, most: int) -> Iterator[Any]:
    """Yield records of the latest runs. An access point that records no single runs has none to tell."""
    if most:
        yield from schedd.jobEpochHistory("true", projection=list(RUN), match=most)


def run(ad: Any, access_point: str) -> dict[str, Any]:
    """One run; `pilot` is empty of one that was elsewhere. Only the last run of a payload completes it."""
    ended_s = number(ad, "EpochWriteDate")
    began_s = number(ad, "JobCurrentStartExecutingDate") or number(ad, "JobCurrentStartDate") or ended_s
    pilot, host = ad.get(PILOT), ad.get("RemoteHost")
    return {
        "id": f"{access_point}#{ad['ClusterId']}.{ad['ProcId']}#{number(ad, 'NumShadowStarts')}",
        "pilot": str(pilot) if isinstance(pilot, str | int) else "",
        "host": host.rpartition("@")[2] if isinstance(host, str) else "",
        "ended_s": ended_s,
        "worked_s": max(0, ended_s - began_s),
        "done": number(ad, "NumJobCompletions") > 0,
    }


def number(ad: Any, name: str) -> int:
    """Read a whole number; 0 where the record does not have it."""
    value = ad.get(name)
    return int(value) if isinstance(value, int | float) else 0


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
            say({"error": {"said": " ".join(str(error).split()) or type(error).__name__}})


def say(answer: dict[str, Any]) -> None:
    """One line; the library's own words go elsewhere."""
    os.write(OUT, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    # What the library prints by itself must not get between the answers.
    OUT = os.dup(1)
    os.dup2(2, 1)
    main()
