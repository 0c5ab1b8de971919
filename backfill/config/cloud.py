"""The policy file's section about an OpenStack project. Field names are the file's keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from backfill.core.model.keys import Option, about, key


class VnicType(Option):
    """Ways of binding an instance's port."""

    NORMAL = "normal"
    DIRECT = "direct", "a virtual function of the card (SR-IOV): fast, and forbids live migration"


class GroupPolicy(StrEnum):
    """Ways of spreading servers over compute hosts."""

    NONE = "none"
    SOFT_ANTI_AFFINITY = "soft-anti-affinity"
    ANTI_AFFINITY = "anti-affinity"
    SOFT_AFFINITY = "soft-affinity"


@dataclass(frozen=True, slots=True)
class CloudGuestEntry:
    """What servers are told by user data, which their jobs can read, and the way into guests."""

    controller: str = field(metadata=about("The controller's address.", form="ip"))
    conf_server: str = field(
        metadata=about(
            "Where slurmd gets its configuration: address and port of slurmctld; of several controllers all, "
            "separated by commas, the primary first.",
            form="endpoints",
        )
    )
    command: tuple[str, ...] = field(
        metadata=about(
            'Runs a program in the guest, such as [ssh, -oBatchMode=yes, "root@{address}"]; {address} is '
            "replaced by the guest's."
        )
    )
    munge_key: str = key(
        "",
        "The cluster's munge key, given to each guest by `command` and never to the cloud; "
        "empty: the image has it.",
        form="path",
    )
    slurmd_options: str = key("-Z", "Options for the guest's slurmd.")
    answer_s: float = key(10.0, "A program in the guest that takes longer has failed.")


@dataclass(frozen=True, slots=True)
class CloudLimits:
    """Patience with the cloud."""

    call_s: float = key(20.0, "one request")
    act_s: float = key(300.0, "until a server is in the requested state")
    settle_s: float = key(30.0, "until a server whose creation was not confirmed appears")
    poll_s: float = key(0.5, "between two lists while the daemon waits for something")
    full_s: float = key(60.0, "until the whole list is read again, not only what has changed")
    usage_s: float = key(60.0, "until quota, used hours and ids of names are read again")
    bench_s: float = key(300.0, "how long a flavour in a zone without room is skipped")


@dataclass(frozen=True, slots=True)
class OpenStackEntry:
    """How servers are made in OpenStack."""

    flavours: tuple[str, ...] = field(
        metadata=about("Flavours in order of preference: if there is no room for one, the next is used.")
    )
    network: str = field(
        metadata=about("The network of the ports, which get the addresses of instances.addresses.")
    )
    guest: CloudGuestEntry = field(metadata=about("What guests are told."))
    clouds_yaml: str = key("", "Where the credentials are; empty: where openstacksdk looks.", form="path")
    zones: tuple[str, ...] = key((), "Availability zones in order of preference; empty: the cloud chooses.")
    images: dict[str, str] = field(
        default_factory=dict,
        metadata=about(
            "Glance's name or id for every image of which servers may be made; "
            "without an entry instances.image has the same name there."
        ),
    )
    vnic_type: VnicType = key(VnicType.NORMAL, "How ports are bound.")
    key_pair: str = key(
        "", "Key pair that servers get, such as the one that `backfill cloud apply` makes; empty: none."
    )
    spread: GroupPolicy = key(GroupPolicy.NONE, "A server group with this policy.")
    volume_gb: int = key(0, "Boot from a new volume of this size; 0: from the image.")
    config_drive: bool = key(True, "Also give the user data on a config drive.")
    hours_cap: float = key(0.0, "Instance hours that each project may use in a calendar month; 0: no cap.")
    limits: CloudLimits = field(default_factory=CloudLimits, metadata=about("Patience."))
