"""A real daemon on a real unix socket, with a simulated cluster around it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from queue import SimpleQueue

from backfill.core.model.cluster import Job
from backfill.core.model.fleet import Flavour, Rung
from backfill.core.model.lifecycle import ManagedNode, Phase
from backfill.core.policies.ladder import Ladder, RungRule
from backfill.core.policies.scale import Scale
from backfill.core.policy import PolicySet, Priorities, Template
from backfill.drivers.identity.directory import NssDirectory
from backfill.drivers.simulated.provisioner import SimulatedProvisioner
from backfill.drivers.simulated.slurm.books import Manners
from backfill.drivers.simulated.world import SimulatedWorld
from backfill.drivers.store.memory import MemoryJournal
from backfill.engine.daemon import Daemon, Pace, Right
from backfill.engine.errands import Body, Player
from backfill.engine.gate import Gatekeeper
from backfill.engine.listener import Listener
from backfill.engine.looking import Outside
from backfill.engine.messages import HookCall, Query, Stop
from backfill.engine.policyfile import PolicyFile
from backfill.engine.queries import Queries
from backfill.ports.errors import RefusedError
from backfill.ports.identity import AuditLog, TokenReader
from backfill.ports.storage import Clock

HOSTS = ("bm1", "bm2")
WALL_S = 1_800_000_000.0  # what the clock on the wall says to whoever asks about tokens
_STEP_S = 0.05
_PATIENCE_S = 30.0


def policies(give_up_after: int = 3, boot_within_s: float = 1000.0) -> PolicySet:
    """Generous deadlines: simulated time runs on while a busy machine lets the daemon wait."""
    return PolicySet(
        cluster="sim",
        priorities=Priorities(low=("htc",), high=("batch",)),
        instances=Template(
            names=("vn1", "vn2"),
            addresses=("10.77.1.1/16", "10.77.1.2/16"),
            flavour=Flavour(cpus=1, memory_mb=256),
        ),
        hosts=HOSTS,
        ladder=Ladder((RungRule(Rung.PAUSE, within_s=600.0, for_s=36000.0),)),
        scale=Scale(idle_s=36000.0, boot_within_s=boot_within_s, give_up_after=give_up_after),
        answer_within_s=600.0,
    )


class AuditMemory:
    """An audit log that lives as long as its test."""

    def __init__(self) -> None:
        self.entries: list[dict[str, object]] = []
        self.full = False

    def write(self, entry: Mapping[str, object]) -> None:
        """Store one line, or refuse as a full disk does."""
        if self.full:
            raise RefusedError("audit.log", "the audit log cannot be written: No space left on device")
        self.entries.append(dict(entry))


def a_gate(daemon: Daemon, audit: AuditLog | None = None, tokens: TokenReader | None = None) -> Gatekeeper:
    """The gate of a daemon, by its policies and this machine's users."""
    return Gatekeeper(
        lambda: daemon.cycle.policies.access, NssDirectory(), audit or AuditMemory(), tokens, lambda: WALL_S
    )


def played(text: str) -> Body:
    """What is said of a policy file that is to be played on the journal; nothing is played."""
    if text.startswith("wrong"):
        return {"problems": ["policy.yaml:1:1: wrong is not a known key"]}
    day = {
        "metal_core_h": 4.0,
        "worked_core_h": 2.0,
        "lost_core_h": 0.5,
        "low_completed": 3,
        "evictions": 1,
        "room_median_s": 0.1,
        "room_worst_s": None,
        "steps": {"pauses": 1},
    }
    found = {"start_s": 0.0, "end_s": 86_400.0, "hosts": 2, "cpus": 1, "high_jobs": 1, "low_jobs": 3}
    more = {"notes": ["a note"], "changed": ["ladder"]}
    return {"found": {**found, **more, "figures": {"was done": day, "policy": day, "against": day}}}


class LivingDaemon:
    """Simulated time passes only inside `until`, in step with the daemon's own thread."""

    def __init__(
        self,
        directory: Path,
        policy: PolicySet | None = None,
        policyfile: PolicyFile | None = None,
        clock: Callable[[SimulatedWorld], Clock] = attrgetter("clock"),
        right: Right | None = None,
        tokens: TokenReader | None = None,
        private: str = "none",
    ) -> None:
        self._right, self._tokens = right, tokens
        self.audit = AuditMemory()
        self.play: Player = played
        self._policyfile = policyfile
        self.sim = SimulatedWorld(boot_s=1.0, manners=Manners(hook_timeout_s=3600.0, private=private))
        self.sim.add_partition("htc", tier=1, feature="backfill")
        self.sim.add_partition("batch", tier=10, feature="metal")
        for host in HOSTS:
            self.sim.add_host(host, cpus=1, features=("metal",))
        self.sim.hook(self._allocated, self._ended)
        self._clock = clock(self.sim)
        self.socket = directory / "daemon.sock"
        self._policy = policy if policy is not None else policies()
        self.journal = MemoryJournal()
        self.provisioner = SimulatedProvisioner()
        self.start()

    def start(self) -> None:
        """Start the daemon, with what the journal remembers."""
        by_host = dict.fromkeys(HOSTS, self.sim.provider)
        outside = Outside(self.sim.slurm, by_host, self._clock, by_host, provisioner=self.provisioner)
        pace = Pace(poll_s=0.1, host_poll_s=0.1, watch_s=0.01, workers=4, policy_s=0.05)
        self.daemon = Daemon(
            self._policy, outside, self.journal, pace, policyfile=self._policyfile, right=self._right
        )
        self.daemon.privacy.read()
        gate = a_gate(self.daemon, self.audit, self._tokens)
        self._queries = Queries(self.daemon, gate, lambda text: self.play(text))
        self.turns = self._queries._turns
        self._listener = Listener(self.daemon.inbox, self._queries.answer, 30.0, refused=self.daemon.refused)
        self._listener.listen_unix(self.socket)
        self._thread = threading.Thread(target=self._run, name="daemon")
        self.why = ""
        self._thread.start()

    def _run(self) -> None:
        self.why = self.daemon.run()

    def ended(self) -> str:
        """Why the daemon ended; waits for it."""
        self._thread.join(_PATIENCE_S)
        return self.why

    def stop(self) -> None:
        """End the daemon and take its socket away."""
        self._listener.close()
        self._queries.close()
        self.daemon.inbox.put(Stop("the test is over"))
        self._thread.join()

    def until(self, done: Callable[[], bool], step_s: float = _STEP_S) -> None:
        """Let simulated time pass until `done`, so much at once; TimeoutError after 30 real seconds."""
        deadline_s = time.monotonic() + _PATIENCE_S
        while not self._asked(done):
            if time.monotonic() > deadline_s:
                phases = {m.name: f"{m.phase}: {m.reason}" for m in self._managed()}
                raise TimeoutError(f"not reached in time; nodes: {phases}")
            self.sim.step_to(self.sim.now_s + step_s)

    def phase(self, node: str) -> Phase | None:
        """The node's phase; only inside `until`."""
        managed = self.daemon.world.managed.get(node)
        return managed.phase if managed is not None else None

    def _managed(self) -> list[ManagedNode]:
        return list(self.daemon.world.managed.values())

    def _asked(self, done: Callable[[], bool]) -> bool:
        """Evaluate in the daemon's own thread, after a whole cycle of it."""
        self.daemon.poke()
        reply: SimpleQueue[object] = SimpleQueue()
        self.daemon.inbox.put(Query(done, reply))
        return bool(reply.get(timeout=_PATIENCE_S))

    def _allocated(self, job: Job, nodes: tuple[str, ...]) -> None:
        """PrologSlurmctld: the job starts when the daemon has answered."""
        call = HookCall("allocated", job.id, nodes, "", lambda line: self.sim.release(job.id))
        self.daemon.inbox.put(call)

    def _ended(self, job: Job, nodes: tuple[str, ...]) -> None:
        self.daemon.inbox.put(HookCall("ended", job.id, nodes))


@contextmanager
def living(
    directory: Path,
    policy: PolicySet | None = None,
    policyfile: PolicyFile | None = None,
    tokens: TokenReader | None = None,
    private: str = "none",
) -> Iterator[LivingDaemon]:
    """A daemon that ends with the block. `private`: Slurm's PrivateData."""
    daemon = LivingDaemon(directory, policy, policyfile, tokens=tokens, private=private)
    try:
        yield daemon
    finally:
        daemon.stop()


def parked(daemon: LivingDaemon, low_user: str = "", high_user: str = "") -> tuple[str, str]:
    """Bring about the main job: vn1 on bm1 paused for a high-priority job. Ids: low, high."""
    blocker = daemon.sim.submit("batch", 5000.0, required_nodes=("bm2",), name="blocker")
    daemon.until(lambda: daemon.sim.job(blocker).nodes == ("bm2",))
    low = daemon.sim.submit("htc", 5000.0, name="counting", user=low_user)
    daemon.until(lambda: daemon.phase("vn1") is Phase.READY and bool(daemon.sim.job(low).nodes))
    high = daemon.sim.submit("batch", 5000.0, required_nodes=("bm1",), name="urgent", user=high_user)
    daemon.until(lambda: daemon.phase("vn1") is Phase.PARKED)
    return low, high
