"""The policy file's section about an OpenStack project. Field names are the file's keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class VnicType(StrEnum):
    """How an instance's port is bound."""

    NORMAL = "normal"
    DIRECT = "direct"  # a virtual function of the card (SR-IOV): fast, and forbids live migration


class GroupPolicy(StrEnum):
    """How servers are spread over compute hosts."""

    NONE = "none"
    SOFT_ANTI_AFFINITY = "soft-anti-affinity"
    ANTI_AFFINITY = "anti-affinity"
    SOFT_AFFINITY = "soft-affinity"


@dataclass(frozen=True, slots=True)
class CloudGuestEntry:
    """What servers are told by user data, which their jobs can read, and the way into guests."""

    # The controller's address.
    controller: str = field(metadata={"form": "ip"})
    # Where slurmd gets its configuration: address and port of slurmctld.
    conf_server: str = field(metadata={"form": "endpoint"})
    # Runs a program in the guest, such as [ssh, -oBatchMode=yes, "root@{address}"]; {address} is
    # replaced by the guest's.
    command: tuple[str, ...]
    # The cluster's munge key, handed to each guest by `command` and never told to the cloud; empty:
    # the image has it.
    munge_key: str = field(default="", metadata={"form": "path"})
    # Options with which the guest's slurmd is started.
    slurmd_options: str = "-Z"
    # A program in the guest that takes longer has failed.
    answer_s: float = 10.0


@dataclass(frozen=True, slots=True)
class CloudLimits:
    """Patience with the cloud."""

    call_s: float = 20.0  # one request
    act_s: float = 300.0  # until a server is in the state that was asked for
    settle_s: float = 30.0  # until a server shows whose creation was not confirmed
    poll_s: float = 0.5  # between two lists while something is awaited
    full_s: float = 60.0  # until the whole list is read again, not only what has changed
    usage_s: float = 60.0  # until quota, used hours and ids of names are read again
    bench_s: float = 300.0  # a flavour in a zone that had no room is left alone for so long


@dataclass(frozen=True, slots=True)
class OpenStackEntry:
    """How servers are made in OpenStack."""

    # Flavours in the order of preference: the next one when there is no room for one.
    flavours: tuple[str, ...]
    # The network of the ports, which get the addresses of instances.addresses.
    network: str
    # What guests are told.
    guest: CloudGuestEntry
    # Where the credentials are; empty: where openstacksdk looks.
    clouds_yaml: str = field(default="", metadata={"form": "path"})
    # Availability zones in the order of preference; empty: the cloud chooses.
    zones: tuple[str, ...] = ()
    # Glance's name of instances.image, if it has another there.
    images: dict[str, str] = field(default_factory=dict)
    # How ports are bound.
    vnic_type: VnicType = VnicType.NORMAL
    # A server group with this policy.
    spread: GroupPolicy = GroupPolicy.NONE
    # Boot from a new volume of this size; 0: from the image.
    volume_gb: int = 0
    # Give the user data on a config drive, too.
    config_drive: bool = True
    # Instance hours that each project may use in a calendar month; 0: no cap.
    hours_cap: float = 0.0
    # Patience.
    limits: CloudLimits = field(default_factory=CloudLimits)
