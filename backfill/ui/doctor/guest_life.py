"""`backfill doctor --boot`: one real guest's whole life, in which every rung's own work is done once.

It is made by the daemon's drivers under a cluster's name of its own, so that a daemon that runs leaves it
alone, and has a node that is in no partition.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from backfill.config import Config
from backfill.config.model import DomainType, Provider, RegistrationKind
from backfill.core.model.cluster import NodeBase
from backfill.core.model.fleet import InstanceSpec, InstanceState, Tag
from backfill.core.model.readiness import MUNGE, Check, Fact, judge_registration, judge_report
from backfill.drivers.slurm.driver import SlurmManager
from backfill.ports.capabilities import GuestFence, Prover
from backfill.ports.errors import DriverError, NotFoundError
from backfill.ports.provider import InstanceProvider
from backfill.ports.workload import Credentials, NodeSpec
from backfill.ui.assemble import credentials, providers, slurm_manager
from backfill.ui.doctor.facts import Facts, HostFacts
from backfill.ui.doctor.findings import Defect, Finding, Grade

NAME = "backfill-doctor"
_CONSOLE_LINES = 5
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the guest is to live."""

    host: str
    address: str


class _NoPlaceError(Exception):
    """There is no room to try it; the message is one sentence."""


def live(facts: Facts, wanted_host: str, tell: Tell) -> Iterator[Finding]:
    """Make a guest, let it prove itself, stop it in both ways, and end it; at the first fault, end it."""
    try:
        place = _place(facts, wanted_host)
    except _NoPlaceError as error:
        mend = "wait until a host is idle, or name one: --host"
        yield Finding(Defect.GUEST, wanted_host or "hosts", str(error), mend, Grade.UNKNOWN)
        return
    manager = slurm_manager(facts.config)
    policies = replace(facts.config.policies, cluster=f"{facts.config.policies.cluster}-doctor")
    config = replace(facts.config, policies=policies, salt=None)
    by_host = providers(config, None)
    guest = _Guest(config, place, manager, by_host[place.host], credentials(config, manager), tell)
    try:
        with guest.ended():
            guest.live()
        yield from _clock(place.host, guest.correction_s)
    except DriverError as error:
        what = f"{guest.step} of a guest on {place.host} failed: {error.problem}{guest.last_words}"
        libvirt = config.libvirt
        silent = not guest.answered and libvirt is not None and libvirt.hardware.domain_type is DomainType.KVM
        yield Finding(Defect.GUEST, place.host, what, mending(error.remedy, place.host, never_ran=silent))
    finally:
        for provider in set(by_host.values()):
            provider.close()


def _clock(host: str, correction_s: float) -> Iterator[Finding]:
    """Check the host's clock: a guest that boots takes the time from it."""
    if abs(correction_s) > _FAR_S:
        what = f"a guest that had just booted on {host} was {correction_s:+.0f} s from this machine's clock"
        yield Finding(Defect.HOST_CLOCK, host, what, f"chronyc makestep on {host}, and let chronyd run there")


_FAR_S = 10.0  # an emulated guest loses some by itself


def mending(remedy: str, host: str, *, never_ran: bool) -> str:
    """Return what mends a guest's fault. `never_ran`: none with KVM has ever said a word here."""
    known = remedy or "mend that, then backfill doctor --boot again"
    if not never_ran:
        return known
    return (
        f"{known}. A host that is a virtual machine itself may offer KVM and boot nothing with it: if no "
        f"guest boots on {host}, write libvirt.hardware.domain_type: qemu (backfill setup --emulated)"
    )


def _place(facts: Facts, wanted: str) -> _Place:
    """Find a host that is idle, and an address that nobody has."""
    template = facts.config.policies.instances
    used = {name for host in facts.hosts for name in host.ours} | facts.taken.keys()
    if facts.slurm is not None:
        used |= facts.slurm.nodes.keys()
    pairs = zip(template.names, template.addresses, strict=True)
    free = [address for name, address in pairs if name not in used]
    if not free:
        raise _NoPlaceError("every address of instances.addresses is in use")
    hosts = [host for host in facts.hosts if _idle(facts, host) and wanted in ("", host.name)]
    if not hosts:
        which = f"host {wanted} is not" if wanted else "no libvirt host is"
        raise _NoPlaceError(f"{which} idle and without instances of ours")
    return _Place(hosts[0].name, free[-1])


def _idle(facts: Facts, host: HostFacts) -> bool:
    entry = next(e for e in facts.config.hosts if e.name == host.name)
    if host.problem or host.ours or entry.provider is not Provider.LIBVIRT:
        return False
    node = facts.slurm.nodes.get(entry.node or "") if facts.slurm is not None else None
    return node is None or (node.base is NodeBase.IDLE and not node.drained)


class _Guest:
    """The guest on its way. `step`: what is being tried; `answered`: it has, once."""

    def __init__(
        self,
        config: Config,
        place: _Place,
        manager: SlurmManager,
        provider: InstanceProvider,
        munge: Credentials | None,
        tell: Tell,
    ) -> None:
        self._config, self._place, self._manager = config, place, manager
        self._provider, self._munge, self._tell = provider, munge, tell
        self._registers = config.slurm.registration is RegistrationKind.DYNAMIC
        self.step = ""
        self.last_words = ""
        self.correction_s = 0.0  # of its clock, when it was asked for the first time
        self.answered = False

    def live(self) -> None:
        """Its whole life. DriverError: what failed."""
        host, provider = self._place.host, self._provider
        if self._registers:
            self._do("the node in Slurm", self._make_node)
        self._do("the creation", lambda: provider.create(self._spec()))
        self._do("the boot and the proof", lambda: self._prove(register=True))
        if self._registers:
            self._do("the registration", self._register)
        self._do("the pause", lambda: provider.pause(host, NAME))
        self._expect(InstanceState.PAUSED)
        self._do("the thaw", lambda: self._go_on(restore=False))
        self._do("the suspend", lambda: provider.suspend(host, NAME))
        self._expect(InstanceState.SUSPENDED)
        self._do("the return from disk", lambda: self._go_on(restore=True))

    @contextlib.contextmanager
    def ended(self) -> Iterator[None]:
        """Leave nothing of it, nor of one whose doctor was killed."""
        self._end()
        try:
            yield
        except DriverError:
            with contextlib.suppress(DriverError):
                lines = self._provider.console(self._place.host, NAME).splitlines()[-_CONSOLE_LINES:]
                self.last_words = "; its console ended: " + " / ".join(lines) if lines else ""
            raise
        finally:
            self._end()

    def _end(self) -> None:
        self._provider.delete(self._place.host, NAME)
        with contextlib.suppress(NotFoundError):
            if self._registers:
                self._manager.delete_node(NAME)
        libvirt = self._config.libvirt
        assert libvirt is not None
        entry = next(e for e in self._config.hosts if e.name == self._place.host)
        for directory in {libvirt.directory, entry.directory or libvirt.directory}:
            shutil.rmtree(Path(directory, self._config.policies.cluster), ignore_errors=True)

    def _spec(self) -> InstanceSpec:
        template = self._config.policies.instances
        tag = Tag(self._config.policies.cluster, NAME, 1)
        return InstanceSpec(
            NAME, self._place.host, tag, template.flavour, template.image, self._place.address
        )

    def _make_node(self) -> None:
        flavour = self._config.policies.instances.flavour
        address = self._place.address.split("/")[0]
        # Without a feature it is in no partition: no job can come.
        self._manager.create_node(NodeSpec(NAME, address, flavour.cpus, flavour.node_memory_mb, ()))

    def _do(self, step: str, work: Callable[[], object]) -> None:
        self.step = step
        began_s = time.monotonic()
        work()
        self._tell(f"{step}: {time.monotonic() - began_s:.2f} s")

    def _expect(self, state: InstanceState) -> None:
        seen = self._provider.read(self._place.host, NAME)
        if seen is None or seen.state is not state:
            now = seen.state.value if seen is not None else "gone"
            problem = f"it is {now} and not {state.value}"
            raise DriverError(NAME, problem + (f" ({seen.problem})" if seen and seen.problem else ""))

    def _go_on(self, *, restore: bool) -> None:
        if restore:
            self._provider.restore(self._place.host, NAME)
        if self._registers:
            self._manager.vouch(NAME)
        self._provider.thaw(self._place.host, NAME)
        if isinstance(self._provider, GuestFence):
            self._provider.release(self._place.host, NAME, time.time(), ())
        self._prove(register=False)

    def _prove(self, *, register: bool) -> None:
        """Ask until all is proven, at most as long as a boot may take."""
        until_s = time.monotonic() + self._config.policies.scale.boot_within_s
        while True:
            try:
                failing = [check for check in self._checks(register) if not check.ok]
                if not failing:
                    return
                late: DriverError = DriverError(NAME, failing[0].sentence, failing[0].remedy)
            except DriverError as error:  # it does not answer yet
                late = error
            if time.monotonic() > until_s:
                raise late
            time.sleep(self._config.policies.readiness.retry_s)

    def _checks(self, register: bool) -> tuple[Check, ...]:
        if not isinstance(self._provider, Prover):
            return ()
        ours = self._munge.make() if self._munge is not None else ""
        report, theirs = self._provider.prove(self._place.host, NAME, time.time(), ours, register)
        if not self.answered:
            self.answered, self.correction_s = True, report.correction_s
        if self._munge is not None:
            problem = self._munge.check(theirs) if theirs else "it made no credential"
            fact = Fact(f"{MUNGE}:from the guest", not problem, problem or "")
            report = replace(report, facts=(*report.facts, fact))
        flavour = self._config.policies.instances.flavour
        offset_s = self._config.policies.readiness.clock_offset_s
        return judge_report(report, self._place.address, flavour.cpus, flavour.node_memory_mb, offset_s)

    def _register(self) -> None:
        flavour = self._config.policies.instances.flavour
        until_s = time.monotonic() + self._config.policies.scale.boot_within_s
        while True:
            node = self._manager.read_nodes([NAME]).get(NAME)
            if node is not None:
                check = judge_registration(node, flavour.cpus, flavour.node_memory_mb)
                if check.ok:
                    return
                if time.monotonic() > until_s:
                    raise DriverError(NAME, check.sentence, check.remedy)
            elif time.monotonic() > until_s:
                raise DriverError(NAME, "Slurm does not show its node any more")
            time.sleep(self._config.policies.readiness.retry_s)
