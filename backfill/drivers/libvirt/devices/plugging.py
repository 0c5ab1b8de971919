"""Devices into running guests and out of them, as the book says who holds what."""

from __future__ import annotations

import logging
import pwd
import re
import time
from collections.abc import Sequence
from secrets import SystemRandom, token_hex

from backfill.core.model.devices import Holding, Region, Sharing, VirtualFunction, Wanted, allocate
from backfill.core.model.fleet import InstanceState
from backfill.core.model.refusals import Reason
from backfill.core.model.sentences import sentence
from backfill.drivers.libvirt.devices.device_xml import free_port, hostdev_xml, present_in, shmem_xml
from backfill.drivers.libvirt.guest import agent
from backfill.drivers.libvirt.pool import Pool
from backfill.ports.errors import BusyError, DriverError, NoCapacityError, UnreachableError

_POLL_S = 0.02
_LOG = logging.getLogger("backfill.devices")
# Other leftovers that are removed when a region is given back, and the time for all.
_MOST_OTHERS, _REMOVED_WITHIN_S = 64, 1.0
_UNKNOWN = "shared memory that nobody holds stays on %s: %s"
_STAYS = (
    "files of shared memory that nobody holds stay on %s: %d, such as /dev/shm/%s; "
    "look who made that, and remove it"
)
_READABLE = (
    "every user of the host can read shared memory %s on %s, which an older version of backfill began: "
    "it stays so until its job ends"
)


def hold(pool: Pool, wanted: Wanted, sharing: Sharing) -> Holding:
    """Allocate and attach. See `DeviceHolder.hold`."""
    pool.need(wanted.host, wanted.instance)
    known = pool.devices.of(wanted.instance)
    if known is not None and known.job == wanted.job and known.host != wanted.host:
        # It came here with its job, and whoever brought it died before this.
        return _plugged(pool, wanted.host, wanted.instance)
    functions = pool.on(wanted.host).virtual_functions() if wanted.functions else []
    given = pool.devices.decide(
        wanted.instance,
        lambda held: allocate(wanted, functions, held, sharing, pool.config.cluster, token_hex(16)),
    )
    if isinstance(given, Reason):
        raise NoCapacityError(wanted.instance, sentence(given))
    return _plugged(pool, wanted.host, wanted.instance)


def _plugged(pool: Pool, host: str, name: str) -> Holding:
    plug(pool, host, name)
    held = pool.devices.of(name)
    if held is None:
        raise BusyError(name, "its devices were given back meanwhile")
    return held


def plug(pool: Pool, host: str, name: str) -> None:
    """Attach what it holds. See `DeviceHolder.plug`."""
    need_running(pool, host, name)
    before = pool.devices.of(name)
    if before is None:
        return
    holding = before if before.host == host else _move_holding(pool, before, host)
    functions, regions = present_in(pool.on(host).live_document(name))
    for address in holding.functions:
        if address not in functions:
            pool.on(host).attach(name, hostdev_xml(address))
    # The guest counts them by their place, so they go in one after the other.
    for region in holding.regions:
        if region.id not in regions:
            _plug_region(pool, host, name, region)
    if holding.regions:
        _hand_over(pool, host, name, holding)
    pool.devices.note(name, plugged=True)
    if before.regions and before.host != host:
        sweep(pool, before.host, before.regions)


def _plug_region(pool: Pool, host: str, name: str, region: Region) -> None:
    with pool.one_by_one(f"regions of {host}"):
        private = pool.on(host).make_shared_file(region.id, region.size_mb)
    if not private:
        _LOG.warning(_READABLE, region.id, host)
    port = free_port(pool.on(host).live_document(name))
    pool.on(host).attach(name, shmem_xml(region.id, region.size_mb, port, token_hex(8)))


def _hand_over(pool: Pool, host: str, name: str, holding: Holding) -> None:
    """Its own job's programs may map the regions then, and nobody else's."""
    limit_s, many, owner = pool.config.limits.agent_s, len(holding.regions), _number_of(holding.owner)
    pool.on(host).with_agent(name, lambda ask: agent.hand_over(ask, name, owner, many, limit_s), 2 * limit_s)


def _number_of(user: str) -> str:
    """Return the user's number, where it is known here: guests need not know the names of users."""
    try:
        return str(pwd.getpwnam(user).pw_uid)
    except KeyError:
        return user


def _move_holding(pool: Pool, old: Holding, host: str) -> Holding:
    """Hold the same on another host: other functions, and the region of its fellows there."""
    wanted = old.wanted_on(host)
    functions = pool.on(host).virtual_functions() if old.functions else []
    given = pool.devices.decide(
        old.instance,
        lambda held: allocate(
            wanted,
            functions,
            [h for h in held if h.instance != old.instance],
            Sharing.ANYONE,
            pool.config.cluster,
            token_hex(16),
        ),
    )
    if isinstance(given, Reason):
        raise NoCapacityError(old.instance, sentence(given))
    return given


def room_for(pool: Pool, host: str, name: str) -> str | None:
    """Say why `host` could not give it what it holds elsewhere, or None."""
    old = pool.devices.of(name)
    if old is None or old.host == host:
        return None
    wanted = old.wanted_on(host)
    functions = pool.on(host).virtual_functions() if old.functions else []
    others = [h for h in pool.devices.all() if h.instance != name]
    given = allocate(wanted, functions, others, Sharing.ANYONE, pool.config.cluster, "")
    return sentence(given) if isinstance(given, Reason) else None


def unplug(pool: Pool, host: str, name: str) -> None:
    """Detach everything and wait until the guest has let it go. See `DeviceHolder.unplug`."""
    holding = pool.devices.of(name)
    if holding is None:
        return
    _take_out(pool, host, name, holding)
    pool.devices.note(name, plugged=False)


def _take_out(pool: Pool, host: str, name: str, holding: Holding) -> None:
    functions, regions = _there(pool, host, name, holding)
    if functions or regions:
        need_running(pool, host, name)
    for address in functions:
        pool.on(host).detach(name, hostdev_xml(address))
    for region in regions:
        pool.on(host).detach(name, shmem_xml(region.id, region.size_mb))
    _await_gone(pool, host, name, holding)


def _there(pool: Pool, host: str, name: str, holding: Holding) -> tuple[list[str], list[Region]]:
    """Return what of it is in the guest now."""
    functions, regions = present_in(pool.on(host).live_document(name))
    theirs = [address for address in holding.functions if address in functions]
    return theirs, [region for region in holding.regions if region.id in regions]


def _in_guest(pool: Pool, host: str, name: str, holding: Holding) -> bool:
    """Return True if anything of it is in the guest, or in the memory that would be saved with it."""
    if any(_there(pool, host, name, holding)):
        return True
    return bool(holding.regions) and pool.on(host).keeps_region(name)


def _await_gone(pool: Pool, host: str, name: str, holding: Holding) -> None:
    limit_s = pool.config.limits.agent_s
    deadline_s = time.monotonic() + limit_s
    while True:
        if not _in_guest(pool, host, name, holding):
            return
        if time.monotonic() > deadline_s:
            raise UnreachableError(
                name,
                f"its guest did not let go of its devices within {limit_s:g} s",
                "look at the instance's console",
            )
        time.sleep(_POLL_S)


def give_back(pool: Pool, host: str, name: str) -> None:
    """Detach, and let others have it. See `DeviceHolder.give_back`."""
    domain = pool.find(host, name)
    if domain is not None and domain.active:
        unplug(pool, host, name)
    holding = pool.devices.of(name)
    pool.devices.forget(name)
    if holding is not None and holding.regions:
        sweep(pool, host, holding.regions)


def plugged(pool: Pool, host: str, name: str) -> bool:
    """Return True if any device that it holds is in the guest."""
    holding = pool.devices.of(name)
    return holding is not None and _in_guest(pool, host, name, holding)


def virtual_functions(pool: Pool, host: str) -> tuple[VirtualFunction, ...]:
    """All that the host has. See `DeviceHolder.virtual_functions`."""
    return tuple(pool.on(host).virtual_functions())


def need_running(pool: Pool, host: str, name: str) -> None:
    """BusyError unless its guest runs, NotFoundError where it is not."""
    _, instance = pool.need(host, name)
    if instance.state is not InstanceState.RUNNING:
        # A guest takes part in both: it finds the device, and it lets go of it.
        raise BusyError(name, f"it is {instance.state} on {host}; devices need a running guest")


def sweep(pool: Pool, host: str, freed: Sequence[Region]) -> None:
    """Remove the shared regions of our cluster on the host that nobody holds: each is memory of it.

    libvirt never removes their files. `freed`: those that were given back just now, which go first. Of
    others of such names, which any user of the host can make up, so many go at a time.
    """
    whose = rf"backfill-{re.escape(pool.config.cluster)}-\d[\d_+]*(\.\d+)?-{re.escape(host)}"
    ours = re.compile(rf"{whose}(-[0-9a-f]{{32}})?")  # older versions gave names that could be guessed
    first = [region.id for region in freed]
    try:
        with pool.one_by_one(f"regions of {host}"):
            found = pool.devices.unheld(name for name in pool.on(host).shared_files() if ours.fullmatch(name))
            others = [name for name in found if name not in first]
            chosen = SystemRandom().sample(others, min(len(others), _MOST_OTHERS))
            going = [*(name for name in first if name in found), *chosen]
            stay = pool.on(host).remove_shared_files(going, _REMOVED_WITHIN_S) if going else []
    except DriverError as error:
        _LOG.warning(_UNKNOWN, host, error)
    else:
        if stay:
            _LOG.warning(_STAYS, host, len(stay), stay[0])
