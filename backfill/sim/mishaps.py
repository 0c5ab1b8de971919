"""Lets the mishaps of a scenario happen to the simulated cluster and its daemon."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from backfill.drivers.simulated.faults import Odd
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.ports.errors import UnreachableError
from backfill.sim.rehearsal import Rehearsal
from backfill.sim.scenario import FaultEntry, Mishap

_UNSEEN = {
    Mishap.JOBS_UNSEEN: Odd.NO_JOBS,
    Mishap.NODES_UNSEEN: Odd.NO_NODES,
    Mishap.HALF_UNSEEN: Odd.HALF,
    Mishap.INSTANCES_UNSEEN: Odd.NO_INSTANCES,
}


def befall(fault: FaultEntry, sim: SimulatedWorld, daemon: Rehearsal) -> Callable[[], None] | None:
    """Let it happen now; returns what ends it, None where nothing has to be ended."""
    match fault.what:
        case Mishap.DAEMON_KILLED:
            return _kill(daemon)
        case Mishap.SLURM_SILENT:
            sim.stop_slurm()
            return sim.start_slurm
        case Mishap.HOST_CUT:
            sim.cut_host(fault.host)
            return partial(sim.join_host, fault.host)
        case Mishap.HOST_DEAD:
            sim.kill_host(fault.host)
            return partial(sim.power_host, fault.host)
        case Mishap.FILES_OUT:
            sim.stop_file_server()
            return sim.start_file_server
        case _:
            _once(fault, fault.what, sim)
            return None


def _once(fault: FaultEntry, what: Mishap, sim: SimulatedWorld) -> None:
    """What is over by itself."""
    match what:
        case Mishap.CALL_FAILS:
            error = UnreachableError(fault.call, "failed, as the scenario wants it to")
            sim.faults.fail(fault.call, error, subject=fault.host or None, times=fault.times)
        case Mishap.NEVER_BOOTS:
            sim.faults.never_boots(fault.node, fault.times)
        case Mishap.CLOCK_SET:
            sim.set_clock(fault.by_s)
        case _:
            sim.faults.misread(_UNSEEN[what], subject=fault.host or None, times=fault.times)


def _kill(daemon: Rehearsal) -> Callable[[], None]:
    """Kill it, if it lives; whoever starts it again finds it dead, or started by others."""
    daemon.kill()

    def start() -> None:
        if not daemon.alive:
            daemon.start()

    return start
