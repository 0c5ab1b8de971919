"""`backfill cloud`: a whole cluster in an OpenStack project, as a template or made directly."""

from __future__ import annotations

import argparse
import ipaddress
import json
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from backfill.config import Config, ConfigError, load
from backfill.config.cloud import OpenStackEntry
from backfill.config.model import Provider
from backfill.ports.errors import DriverError, RefusedError
from backfill.ui.parser import BAD_DATA, NO, OK, UNAVAILABLE, add_config, add_verbs, say

if TYPE_CHECKING:
    from backfill.drivers.openstack.appliance.template import Appliance

_VERBS = {
    "template": "write a Heat template (HOT) of controller, network, security group and ports",
    "apply": "make the same without Heat; existing parts stay",
    "remove": "delete what `apply` made",
}


class CannotError(Exception):
    """The policy file does not say what is needed; the message is one sentence."""


def add_cloud_arguments(parser: argparse.ArgumentParser) -> None:
    """Subcommands of `backfill cloud`."""
    for verb, one in add_verbs(parser, _VERBS).items():
        add_config(one)
        one.add_argument("--image", default="", metavar="IMAGE", help="the controller's")
        one.add_argument("--flavour", default="", metavar="NAME", help="the controller's")
        key = one.add_mutually_exclusive_group()
        key.add_argument("--key", default="", metavar="NAME", help="the controller's key pair")
        key.add_argument(
            "--public-key", default="", metavar="FILE", help="also make the cluster a key pair with this key"
        )
        one.add_argument(
            "--external",
            default="",
            metavar="NETWORK",
            help="also make a router to this network, and the controller an address there",
        )
        if verb != "template":
            one.add_argument(
                "--cloud", default="", metavar="CLOUD", help="which cloud, if hosts are in several"
            )
            one.add_argument("--json", action="store_true", help="print one JSON document")


def run_cloud(args: argparse.Namespace) -> int:
    """Carry it out."""
    try:
        config = load(args.config)
        entry = _section(config)
        wanted = _cluster(config, entry, args)
        if args.verb == "template":
            return _template(wanted)
        return _act(entry, _chosen(config, args.cloud), wanted, args)
    except ConfigError as error:
        for problem in error.problems:
            say(str(problem))
        return BAD_DATA
    except CannotError as error:
        say(str(error))
        return BAD_DATA
    except DriverError as error:
        say(str(error))
        # A credential that is not taken may be soon; to whoever waits for the command it is refused.
        return UNAVAILABLE if error.retry and not isinstance(error, RefusedError) else NO


def _section(config: Config) -> OpenStackEntry:
    if config.openstack is None or not _clouds(config):
        raise CannotError(f"{config.source}: no host has provider: openstack; add one")
    return config.openstack


def _clouds(config: Config) -> list[str]:
    found = (h.cloud for h in config.hosts if h.provider is Provider.OPENSTACK)
    return list(dict.fromkeys(found))


def _chosen(config: Config, wish: str) -> str:
    """Choose the one cloud that the hosts are in, or the one that is wished for."""
    clouds = _clouds(config)
    if wish and wish not in clouds:
        raise CannotError(f"{config.source}: no host is in cloud {wish}; choose one of {', '.join(clouds)}")
    if not wish and len(clouds) > 1:
        raise CannotError(
            f"{config.source}: its hosts are in the clouds {', '.join(clouds)}; name one by --cloud"
        )
    return wish or clouds[0]


def _cluster(config: Config, entry: OpenStackEntry, args: argparse.Namespace) -> Appliance:
    # openstacksdk is an extra: only who uses this needs it.
    from backfill.drivers.openstack.api.states import is_id
    from backfill.drivers.openstack.appliance.template import Appliance

    template = config.policies.instances
    inside = ipaddress.ip_interface(template.addresses[0]).network
    if ipaddress.ip_address(entry.guest.controller) not in inside:
        raise CannotError(
            f"{config.source}: openstack.guest.controller = {entry.guest.controller} is outside "
            f"the instances' network {inside}; give the controller an address there"
        )
    if is_id(entry.network):
        raise CannotError(
            f"{config.source}: openstack.network is the id of a network that is there; give a name "
            "to the one that is to be made"
        )
    wanted = Appliance(
        name=config.policies.cluster,
        network=entry.network,
        cidr=str(inside),
        controller=entry.guest.controller,
        image=args.image or entry.images.get(template.image, template.image),
        flavour=args.flavour or entry.flavours[0],
        key=args.key,
        external=args.external,
        pool={
            name: address.split("/")[0]
            for name, address in zip(template.names, template.addresses, strict=True)
        },
        public_key=_public_key(args.public_key),
    )
    if args.external and not wanted.gateway:
        raise CannotError(
            f"{config.source}: instances.addresses and the controller take all of {inside}; leave "
            "one address to the router"
        )
    return wanted


def _public_key(file: str) -> str:
    """Read the first line of a .pub file; whatever else it is goes to no cloud."""
    if not file:
        return ""
    try:
        lines = Path(file).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CannotError(f"{file}: it cannot be read: {error}") from error
    words = lines[0].split() if len(lines) == 1 else []
    if len(words) < 2 or not words[0].startswith(("ssh-", "ecdsa-", "sk-")):
        raise CannotError(f"{file}: it is not one public key; give the .pub file that ssh-keygen made")
    return lines[0]


def _template(wanted: Appliance) -> int:
    from backfill.drivers.openstack.appliance.template import template

    print(yaml.safe_dump(template(wanted), sort_keys=False), end="")
    return OK


def _act(entry: OpenStackEntry, cloud: str, wanted: Appliance, args: argparse.Namespace) -> int:
    from backfill.drivers.openstack.api.link import ApiLink
    from backfill.drivers.openstack.appliance.applying import apply, remove
    from backfill.drivers.openstack.settings import Patience

    link = ApiLink(cloud, entry.clouds_yaml, Patience(call_s=entry.limits.call_s))
    try:
        if args.verb == "remove":
            gone = remove(link, wanted)
            told = f"removed: {', '.join(gone)}" if gone else "nothing of it was there"
            print(json.dumps({"removed": gone}) if args.json else told)
            return OK
        done = apply(link, wanted, entry.limits.act_s)
    finally:
        link.close()
    if args.json:
        print(json.dumps([{"name": n, "id": i, "made": made} for n, i, made in done]))
    else:
        for name, identity, made in done:
            print(f"{name:<18} {identity}  {'made' if made else 'was there'}")
    return OK
