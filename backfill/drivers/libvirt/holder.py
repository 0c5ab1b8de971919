"""The part of the provider that is about devices; see `backfill.ports.capabilities.DeviceHolder`."""

from __future__ import annotations

from backfill.core.devices import Holding, Sharing, VirtualFunction, Wanted
from backfill.drivers.libvirt import agent, plugging
from backfill.drivers.libvirt.pool import Pool


class LibvirtHolder:
    """Devices of a pool of libvirt hosts."""

    _pool: Pool

    def virtual_functions(self, host: str) -> tuple[VirtualFunction, ...]:
        """All that the host has, by libvirt's node devices."""
        return plugging.virtual_functions(self._pool, host)

    def holdings(self) -> tuple[Holding, ...]:
        """What instances hold."""
        return tuple(self._pool.devices.all())

    def hold(self, wanted: Wanted, sharing: Sharing) -> Holding:
        """Allocate and attach."""
        return plugging.hold(self._pool, wanted, sharing)

    def give_back(self, host: str, name: str) -> None:
        """Detach everything and let others have it."""
        plugging.give_back(self._pool, host, name)

    def unplug(self, host: str, name: str) -> None:
        """Take its devices out of a running guest."""
        plugging.unplug(self._pool, host, name)

    def plug(self, host: str, name: str) -> None:
        """Put what it holds into a running guest."""
        plugging.plug(self._pool, host, name)

    def room_for(self, host: str, name: str) -> str:
        """Say why `host` could not give it what it holds elsewhere."""
        return plugging.room_for(self._pool, host, name)

    def hook(self, host: str, name: str, when: str) -> None:
        """Run the image's program for it, if it has one."""
        limit_s = self._pool.config.limits.agent_s
        plugging.need_running(self._pool, host, name)
        self._pool.on(host).with_agent(name, lambda ask: agent.hook(ask, name, when, limit_s), 2 * limit_s)
