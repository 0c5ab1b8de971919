"""What the tests of devices by constraint ask of a simulated cluster whose hosts have some."""

from __future__ import annotations

from backfill.core.model.devices import Holding, Sharing, VirtualFunction
from backfill.core.policies.devices import DeviceRule, Devices
from backfill.drivers.simulated.world import SimulatedWorld

REGION = DeviceRule("shm", region_mb=16, sharing=Sharing.ANYONE)
CARD = DeviceRule("vf", functions=1, sharing=Sharing.ANYONE)
RULES = Devices((REGION, CARD))


def held(sim: SimulatedWorld) -> dict[str, Holding]:
    return {holding.job: holding for holding in sim.provider.holdings()}


def plugged(sim: SimulatedWorld, job: str) -> bool:
    there = held(sim).get(job)
    return there is not None and there.plugged


def functions(sim: SimulatedWorld, *hosts: str, each: int = 1) -> None:
    sim.provider.functions += [
        VirtualFunction(host, f"0000:3b:02.{n}") for host in hosts for n in range(each)
    ]
