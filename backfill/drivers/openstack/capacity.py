"""Computes the room: a compute host's size, or a project's quota and its instance hours."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from backfill.core.model.quantities import NOTHING, Resources
from backfill.drivers.openstack.api.cloud import Cloud
from backfill.drivers.openstack.api.states import Server, noted_size, seconds, wanted_back
from backfill.drivers.openstack.servers import volumes
from backfill.ports.errors import DriverError, UnreachableError

_LOG = logging.getLogger("backfill.openstack")
_WITHOUT_LIMIT = 1_000_000
# By so much the clocks of a cloud's machines may differ.
_SKEW_S = 10.0


@dataclass(frozen=True, slots=True)
class ProjectQuota:
    """A project's limits and use at one moment; -1 of Nova is a very large number here.

    `ours` and `count`: what our servers took of it then, and how many they were.
    """

    most: Resources
    used: Resources  # by everybody
    slots: int  # servers that might still be made; below zero: so many are too many
    hours: float  # instance hours used in this month
    read_s: float = math.inf  # by the cloud's clock: servers made later are not in `used`
    ours: Resources = NOTHING
    count: int = 0
    group: int = _WITHOUT_LIMIT  # servers that our server group takes


class Gauge:
    """Reads what changes slowly every now and then only; one per cloud."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._quota: ProjectQuota | None = None
        self._read_s = -math.inf  # monotonic
        self._told = False  # that it cannot be read

    def computes(self) -> dict[str, str | None]:
        """Every compute host by Nova's name, fresh, with the reason why it cannot be used, if it cannot.

        RefusedError for a mere member.
        """
        link = self._cloud.link
        listed = link.get("compute", "/os-services", "compute hosts", binary="nova-compute")
        return {s["host"]: _why_down(s) for s in listed.entries("services")}

    def size(self, compute: str, subject: str) -> Resources:
        """Return the size of a compute host. UnreachableError where Nova tells none, as of a renamed one."""
        listed = self._cloud.link.get("compute", "/os-hypervisors/detail", "compute hosts")
        for found in listed.entries("hypervisors"):
            if found["service"]["host"] == compute:
                return Resources(int(found["vcpus"]), int(found["memory_mb"]))
        raise UnreachableError(
            subject, f"Nova lists no hypervisor of its compute host {compute}", "ask the cloud's operator"
        )

    def quota(self) -> ProjectQuota:
        """Return the project's quota, at most `usage_s` old; as it was, where it cannot be read."""
        now_s = time.monotonic()
        if now_s - self._read_s > self._cloud.config.patience.usage_s:
            known = self._quota
            self._quota = self._read_quota() if known is None else self._read_anew(known)
            self._read_s = now_s
        assert self._quota is not None
        return self._quota

    def forget(self) -> None:
        """Read the quota anew next time."""
        self._read_s = -math.inf

    def _read_anew(self, known: ProjectQuota) -> ProjectQuota:
        """Nova answers, and what is there can be looked after without these books; it is said once.

        Nothing new begins where hours are capped: Nova keeps to its quota by itself, and to no such cap.
        """
        try:
            quota, self._told = self._read_quota(), False
        except DriverError as error:
            if not self._told:
                _LOG.warning(
                    "cloud %s: its quota cannot be read, and counts as it was: %s",
                    self._cloud.link.cloud,
                    error.problem,
                )
            self._told = True
            return replace(known, group=0) if self._cloud.config.hours_cap else known
        return quota

    def _read_quota(self) -> ProjectQuota:
        config, ours = self._cloud.config, self._cloud.board.known()
        answer = self._cloud.link.get("compute", "/limits", "quota")
        limits: dict[str, Any] = answer.body["limits"]["absolute"]
        left = _limit(limits["maxTotalInstances"]) - int(limits["totalInstancesUsed"])
        members = limits.get("maxServerGroupMembers", -1) if config.shape.group_policy else -1
        return ProjectQuota(
            Resources(_limit(limits["maxTotalCores"]), _limit(limits["maxTotalRAMSize"])),
            Resources(int(limits["totalCoresUsed"]), int(limits["totalRAMUsed"])),
            min(left, self._volumes()),
            self._hours() if config.hours_cap else 0.0,
            parsedate_to_datetime(answer.date).timestamp() if answer.date else math.inf,
            _total(map(size_of, ours)),
            len(ours),
            _limit(members),
        )

    def _volumes(self) -> int:
        """Return the number of servers that Cinder's quota leaves room for; all if none boots from a volume.

        A Cinder that does not answer stops creations, not the reading of what is there.
        """
        size_gb = self._cloud.config.shape.volume_gb
        if not size_gb:
            return _WITHOUT_LIMIT
        try:
            return _limit(volumes.slots(self._cloud.link, size_gb))
        except DriverError:
            return _WITHOUT_LIMIT

    def _hours(self) -> float:
        """Instance hours since the month began, those of servers that are gone included."""
        now = datetime.fromtimestamp(time.time(), UTC)
        start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
        project = self._cloud.link.project_id("quota")
        return sum(
            float(usage.get("hours", 0.0))
            for usage in self._usages(
                f"/os-simple-tenant-usage/{project}", start.isoformat(), now.replace(tzinfo=None).isoformat()
            )
        )

    def _usages(self, path: str, start: str, end: str) -> Iterator[dict[str, Any]]:
        """Every server of that time; Nova tells of a thousand at most in one answer."""
        marker: dict[str, str] = {}
        while True:
            body = self._cloud.link.get("compute", path, "quota", start=start, end=end, **marker).body
            page = body.get("tenant_usage", {}).get("server_usages", [])
            yield from page
            if not page or not body.get("tenant_usage_links"):
                return
            marker = {"marker": str(page[-1]["instance_id"])}


def pool_room(
    quota: ProjectQuota, servers: Iterable[Server], hours_cap: float, given_back: Resources
) -> Resources:
    """Return a project's room for our instances: its quota less the use of others in it.

    Nothing when its instance hours are used up; less by what its operator wants back, and by what
    was `given_back` lately. Our servers count as the instances that they are: what their flavours
    take beyond that is no room.
    """
    if hours_cap and quota.hours >= hours_cap:
        return NOTHING
    all_of_them = list(servers)
    sizes = sorted(map(asked_of, all_of_them), key=lambda size: (size.memory_mb, size.cpus))
    held, taken = _total(sizes), _total(map(size_of, all_of_them))
    wanted = _total((asked_of(s) for s in all_of_them if wanted_back(s)), given_back)
    # The use is a while old: what is ours of it are neither those made since nor those that remain.
    until_s = quota.read_s + _SKEW_S
    before = [s for s in all_of_them if seconds(str(s.get("created", ""))) <= until_s]
    ours = _larger(quota.ours, _total(map(size_of, before)))
    others = _not_below_zero(quota.used - ours)
    room = quota.most - others - (taken - held) - wanted
    most = quota.slots + max(quota.count, len(before))
    if len(sizes) >= min(most, quota.group):  # what we have is all we can have, or more
        kept = _total(sizes[: max(0, most)]) - wanted
        room = Resources(min(room.cpus, kept.cpus), min(room.memory_mb, kept.memory_mb))
    return _not_below_zero(room)


def _total(sizes: Iterable[Resources], start: Resources = NOTHING) -> Resources:
    return sum(sizes, start)


def _larger(one: Resources, other: Resources) -> Resources:
    return Resources(max(one.cpus, other.cpus), max(one.memory_mb, other.memory_mb))


def size_of(server: Server) -> Resources:
    """Return its share of the quota."""
    flavour = server.get("flavor", {})
    if "vcpus" in flavour:
        return Resources(int(flavour["vcpus"]), int(flavour["ram"]))
    return asked_of(server)


def asked_of(server: Server) -> Resources:
    """Return what it asks of the quota."""
    return noted_size(server)


def _why_down(service: dict[str, Any]) -> str | None:
    if service.get("forced_down"):
        return "its operator has declared its nova-compute dead"
    if service.get("state") != "up":
        return f"its nova-compute has not reported since {service.get('updated_at')}"
    return None


def _limit(value: object) -> int:
    number = int(str(value))
    return _WITHOUT_LIMIT if number < 0 else number


def _not_below_zero(room: Resources) -> Resources:
    return Resources(max(0, room.cpus), max(0, room.memory_mb))
