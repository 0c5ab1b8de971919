"""The InstanceProvider of OpenStack projects: the driver's face."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from backfill.core.model.fleet import Host, Instance, InstanceSpec, InstanceState
from backfill.core.model.quantities import NOTHING, Resources
from backfill.drivers.openstack.api.cloud import Cloud
from backfill.drivers.openstack.api.errors import FOREIGN, translate
from backfill.drivers.openstack.api.link import ApiLink
from backfill.drivers.openstack.api.states import (
    Server,
    fault_of,
    foremost,
    instance_among,
    instance_of,
    mark,
    node_of,
)
from backfill.drivers.openstack.capacity import Gauge, pool_room
from backfill.drivers.openstack.guest import command
from backfill.drivers.openstack.guest.handover import Handover
from backfill.drivers.openstack.servers import making, moving
from backfill.drivers.openstack.settings import OpenStackConfig, Patience
from backfill.ports.errors import BusyError, DriverError, NoCapacityError, NotFoundError, UnreachableError
from backfill.ports.hostbook import HostBook
from backfill.ports.provider import HostObservation

_LOG = logging.getLogger("backfill.openstack")
MakeLink = Callable[[str, str, Patience, Sequence[str], HostBook | None], ApiLink]
_CONSOLE_LINES = 60


class OpenStackProvider:
    """See `backfill.ports.provider.InstanceProvider`. Connections open on first use.

    A host is either one compute host, seen with an administrator's credential, or a whole project
    as one pool whose room is its quota.
    """

    def __init__(
        self, config: OpenStackConfig, make_link: MakeLink = ApiLink, book: HostBook | None = None
    ) -> None:
        self._config = config
        self._clouds: dict[str, Cloud] = {}
        self._gauges: dict[str, Gauge] = {}
        self._strays: dict[str, list[str]] = {}  # as they were told of last, by cloud
        self._handover = Handover(config.guest)
        for entry in dict.fromkeys(place.cloud for place in config.places.values()):
            hosts = [host for host, place in config.places.items() if place.cloud == entry]
            link = make_link(entry, config.clouds_yaml, config.patience, hosts, book)
            computes = {
                place.compute: host
                for host, place in config.places.items()
                if place.cloud == entry and place.compute
            }
            self._clouds[entry] = Cloud(config, link, computes)
            self._gauges[entry] = Gauge(self._clouds[entry])

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts, in the order of the configuration."""
        return tuple(self._config.places)

    # --- reading -------------------------------------------------------------------------------

    def observe(self, host: str) -> HostObservation:
        """Read one host; one whose cloud does not answer is an answer."""
        cloud = self._cloud(host)
        seen_s = time.time()
        try:
            every = cloud.board.fresh().values()
            self._tell_strays(cloud, every)
            servers = [s for s in every if cloud.place_of(s) == host]
            self._handover.look(cloud, servers)
            room = self._room(cloud, host)
        except DriverError as error:
            return HostObservation(seen_s, Host(host, None, NOTHING, False, str(error)))
        instances = _instances(servers, host)
        seen = Host(
            host,
            None,
            room,
            saves_paused=False,
            keeps=False,
            shares=False,
            sizes=self._sizes(cloud, host),
            networks=tuple(self._config.shape.networks),
        )
        return HostObservation(seen_s, seen, instances)

    def read(self, host: str, name: str) -> Instance | None:
        """Read one instance fresh."""
        servers = self._cloud(host).servers_on(host, name)
        return instance_among(servers, host) if servers else None

    def console(self, host: str, name: str) -> str:
        """Read the last lines of the guest's console; for a server in ERROR, why it is."""
        cloud = self._cloud(host)
        server = cloud.need(host, name)
        if fault_of(server):
            return f"Nova: {fault_of(server)}"
        body = {"os-getConsoleOutput": {"length": _CONSOLE_LINES}}
        try:
            answer = cloud.link.post("compute", f"/servers/{server['id']}/action", name, body)
        except FOREIGN as error:
            raise translate(error, name, cloud.link.cloud) from error
        return str(answer.body.get("output") or "")

    # --- birth and death -----------------------------------------------------------------------

    def create(self, spec: InstanceSpec) -> None:
        """Ask for it once; it is seen building in the next observation."""
        cloud = self._alive(spec.host)
        try:
            making.create(cloud, spec)
        except NoCapacityError:
            self._gauges[cloud.link.cloud].forget()  # somebody was faster
            raise

    def delete(self, host: str, name: str, *, generation: int | None = None) -> None:
        """End it and remove its port; gone already is fine."""
        making.delete(self._cloud(host), host, name, generation)

    # --- stopping and moving -------------------------------------------------------------------

    def pause(self, host: str, name: str) -> None:
        """Stop its CPUs; returns when Nova says so."""
        moving.pause(self._alive(host), host, name)

    def thaw(self, host: str, name: str, *, shut: bool = False) -> None:
        """Let its CPUs go on; BusyError where that would be long after the fence was asked."""
        asked_s = time.monotonic()
        moving.thaw(self._alive(host), host, name, asked_s)

    def suspend(self, host: str, name: str) -> float:
        """Memory to the compute host's disk, from running only; returns its size in MB."""
        return moving.suspend(self._alive(host), host, name)

    def restore(self, host: str, name: str) -> None:
        """Let it be thawed."""
        moving.restore(self._alive(host), host, name)

    def shelve(self, host: str, name: str) -> None:
        """Give its room back and keep its disk only. Memory is lost: no rung of the ladder."""
        moving.shelve(self._alive(host), host, name)

    def migrate(self, host: str, name: str, target: str) -> None:
        """Move it to another compute host of the same cloud, as an administrator."""
        cloud = self._alive(host)
        if self._cloud(target) is not cloud:
            # Whether it is there at all comes first, as with any other call.
            cloud.need(host, name)
            raise moving.refused(name, host, target)
        self._alive(target)
        moving.migrate(cloud, host, name, target)

    def cancel_move(self, host: str, name: str) -> None:
        """Stop a live migration that is under way; not moving: nothing to do."""
        moving.cancel(self._cloud(host), host, name)

    # --- the guest -----------------------------------------------------------------------------

    def wake(self, host: str, name: str, now_s: float) -> float:
        """Set the guest's clock and make slurmd report; returns the correction in seconds."""
        return command.wake(self._config.guest, name, self._awake(host, name), now_s)

    def job_processes(self, host: str, name: str) -> tuple[int, int]:
        """Count the processes of Slurm jobs in the guest: (going, stopped)."""
        return command.job_processes(self._config.guest, name, self._awake(host, name))

    def close(self) -> None:
        """Give back all connections."""
        self._handover.close()
        for cloud in self._clouds.values():
            cloud.link.close()

    # --- inside --------------------------------------------------------------------------------

    def _cloud(self, host: str) -> Cloud:
        place = self._config.places.get(host)
        if place is None:
            raise NotFoundError(host, "this provider has no such host")
        return self._clouds[place.cloud]

    def _alive(self, host: str) -> Cloud:
        """Return the host's cloud. What is sent to a dead compute host would hang there for ever."""
        cloud = self._cloud(host)
        if self._config.places[host].compute:
            self._see_up(cloud, host)
        return cloud

    def _tell_strays(self, cloud: Cloud, servers: Iterable[Server]) -> None:
        """Say once which of ours no host of the policy file accounts for: it had another name."""
        entry, found = cloud.link.cloud, []
        for server in servers:
            host = cloud.place_of(server)
            if host not in cloud.places:
                found.append(f"{node_of(server)} ({host})")
        found.sort()
        if found and found != self._strays.get(entry):
            _LOG.warning(
                "cloud %s: %s carry the name of a host that the policy file does not have in this cloud, and "
                "are looked after by nobody; give the host that name again, or correct their metadata "
                "backfill_host, or delete them there",
                entry,
                ", ".join(found),
            )
        self._strays[entry] = found

    def _room(self, cloud: Cloud, host: str) -> Resources:
        """Return the host's whole capacity; UnreachableError if its compute service is down."""
        place, gauge = self._config.places[host], self._gauges[cloud.link.cloud]
        if not place.compute:
            quota, now_s = gauge.quota(), time.monotonic()
            if cloud.backoff.is_full(now_s):
                quota = replace(quota, group=0)
            servers = cloud.board.known()
            return pool_room(quota, servers, self._config.hours_cap, cloud.given_back(now_s))
        self._see_up(cloud, host)
        return gauge.size(place.compute, host)

    def _see_up(self, cloud: Cloud, host: str) -> None:
        """Raise UnreachableError if its compute service is down."""
        place, computes = self._config.places[host], self._gauges[cloud.link.cloud].computes()
        if place.compute not in computes:
            raise UnreachableError(
                host,
                f"cloud {place.cloud} has no compute host {place.compute}",
                "see `compute` of this host in the policy file",
            )
        if down := computes[place.compute]:
            raise UnreachableError(host, down, "ask the cloud's operator")

    def _sizes(self, cloud: Cloud, host: str) -> tuple[Resources, ...]:
        """Return the sizes of our flavours; nothing while they cannot be read, as a creation will say why."""
        try:
            return tuple(cloud.size_of(name, host) for name in self._config.shape.flavours)
        except DriverError:
            return ()

    def _awake(self, host: str, name: str) -> str:
        """Return the address of a guest that can answer."""
        server = self._cloud(host).need(host, name)
        state = instance_of(server, host).state
        if state is not InstanceState.RUNNING:
            raise BusyError(name, f"it is {state} on {host}, its guest cannot answer")
        return mark(server, "address").split("/")[0]


def _instances(servers: Iterable[Server], host: str) -> dict[str, Instance]:
    """Return the instances of a host; of several servers of one node, the one that counts."""
    by_node: dict[str, list[Server]] = {}
    for server in foremost(servers):
        by_node.setdefault(node_of(server), []).append(server)
    return {name: instance_among(found, host) for name, found in by_node.items()}
