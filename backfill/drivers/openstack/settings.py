"""Settings of the OpenStack driver; built from the policy file by the assembly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CloudPlace:
    """One of our hosts in OpenStack: an entry of clouds.yaml, seen as one pool with quota.

    With `compute` it is that one compute host, which takes a credential of an administrator.
    """

    cloud: str
    compute: str = ""


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits of waiting, seconds."""

    call_s: float = 20.0  # one request
    fence_s: float = 10.0  # of a call that lets a server run: its answer about the jobs is older after that
    act_s: float = 120.0  # until a server is seen in the state that was asked for
    settle_s: float = 30.0  # until a server appears whose creation was not confirmed
    poll_s: float = 0.25  # between two lists while something is awaited
    full_s: float = 60.0  # until the list is read as a whole again, not only what has changed
    usage_s: float = 60.0  # until quota, used hours and ids of names are read again
    bench_s: float = 300.0  # a flavour in a zone that had no room is not tried for so long
    tries: int = 5  # of a request that may be repeated


@dataclass(frozen=True, slots=True)
class Guest:
    """Facts that a guest gets at birth, and the way to speak to it later.

    `command` runs a program in the guest, such as ssh; "{address}" in it is the guest's address.
    `munge_key` names the key that each guest is handed by that way; empty: the image has it.
    """

    controller: str
    conf_server: str
    munge_key: str = ""
    slurmd_options: str = "-Z"
    command: tuple[str, ...] = ()
    answer_s: float = 10.0
    # Addresses of all our nodes by name: guests know one another.
    peers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of new servers. `flavours` and `zones` are tried in this order; "" is any zone."""

    flavours: tuple[str, ...]
    network: str
    zones: tuple[str, ...] = ("",)
    images: dict[str, str] = field(default_factory=dict)  # ours -> Glance's; there are no others
    vnic_type: str = "normal"
    group_policy: str = ""  # such as soft-anti-affinity; empty: no server group
    volume_gb: int = 0  # boot from a new volume of this size; 0: from the image
    config_drive: bool = True
    key_pair: str = ""  # of the credential's user; empty: none
    networks: dict[str, str] = field(default_factory=dict)  # ours -> Neutron's, beside the usual one


@dataclass(frozen=True, slots=True)
class OpenStackConfig:
    """All of it. `places` is by the name of our host; `clouds_yaml` "" is where the SDK looks."""

    cluster: str
    places: dict[str, CloudPlace]
    shape: Shape
    guest: Guest
    clouds_yaml: str = ""
    hours_cap: float = 0.0  # instance hours of each project in a month; 0: no cap
    patience: Patience = field(default_factory=Patience)
