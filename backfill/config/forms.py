"""The kinds of text that have a form: paths, addresses, names. Each says what is wrong, or ""."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from urllib.parse import urlsplit

from backfill.config.zones import zone
from backfill.core.model.clock import parse_cron

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_SHARE = re.compile(r"[0-9]{1,6}|(100|[0-9]{1,2})%")
_SCHEMES = ("qemu", "test")
_SERVICE = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")

ALLOWED = {
    "text": "text",
    "name": "a name of letters, digits, '.', '_' and '-'",
    "path": "an absolute path",
    "ip": "an IP address, such as 10.0.0.1",
    "endpoint": "an IPv4 address with a port, such as 10.0.0.1:6817",
    "endpoints": "an IP address with a port, such as 10.0.0.1:6817 or [fd00::1]:6817, or several, separated "
    "by commas",
    "service": "a host, or host:port, such as cm.example.org:9618",
    "network": "an IPv4 address or network, such as 10.0.2.0/24",
    "mount": "four words as in fstab, such as '10.0.0.1:/home /home nfs4 rw,hard'",
    "uri": "a libvirt address, such as qemu+tcp://10.0.0.11/system",
    "share": "a whole number, or a share such as 20%",
    "schedule": "a time as cron has it, such as '0 8 * * mon-fri' or '@daily'",
    "zone": "UTC, or the IANA name of a time zone, such as Europe/Berlin",
}


def wrong(form: str, text: str) -> str | None:
    """Say what is wrong with `text` for this form, or None."""
    if not text.isprintable():
        return "has a line break or another control character"
    find = _WRONG.get(form)
    return find(text) if find is not None else None


def _wrong_schedule(text: str) -> str | None:
    try:
        parse_cron(text)
    except ValueError as error:
        return str(error)
    return None


def _wrong_zone(text: str) -> str | None:
    try:
        zone(text)
    except ValueError as error:
        return str(error)
    return None


def _is_endpoint(text: str) -> bool:
    """Return True for `ip:port`; IPv6 stands in brackets, or its end would be taken for the port."""
    host, _, port = text.rpartition(":")
    number = int(port) if re.fullmatch(r"[0-9]{1,5}", port) else 0
    in_brackets = re.fullmatch(r"\[(.+)\]", host)
    address = address_in(in_brackets[1] if in_brackets else host)
    return 0 < number < 65536 and address is not None and (":" in address) == bool(in_brackets)


def _is_endpoint_of_hooks(text: str) -> bool:
    """Return True for `ipv4:port`: our hooks call no other."""
    return _is_endpoint(text) and not text.startswith("[")


def _wrong_endpoints(text: str) -> str:
    seen = set()
    for one in endpoints_in(text):
        if not _is_endpoint(one):
            return "is not an address with a port, nor several separated by commas"
        place = address_of_endpoint(one), int(one.rpartition(":")[2])
        if place in seen:
            return f"has {one} twice"
        seen.add(place)
    return ""


def _is_service(text: str) -> bool:
    found = [_SERVICE.fullmatch(one.strip()) for one in text.split(",")]
    return all(one is not None and 0 < int(one[1] or 1) < 65536 for one in found)


def network_in(text: str) -> str | None:
    """Return the IPv4 network, in CIDR notation, that `text` is; None when it is none."""
    try:
        return str(ipaddress.IPv4Network(text))
    except ValueError:
        return None


def _is_mount(text: str) -> bool:
    words = text.split()
    return len(words) == 4 and ":/" in words[0] and words[1].startswith("/")


def _is_uri(text: str) -> bool:
    try:
        parts = urlsplit(text)
        _ = parts.hostname, parts.port
    except ValueError:
        return False
    return parts.scheme.partition("+")[0] in _SCHEMES and "://" in text


def address_in(text: str) -> str | None:
    """Return the IP address, in its usual writing, that `text` is; None when it is none."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        return None


def address_of_endpoint(text: str) -> str | None:
    """Return the IP address of `ip:port`."""
    return address_in(text.rpartition(":")[0].strip("[]"))


def endpoints_in(text: str) -> list[str]:
    """Return each of `ip:port, ip:port`."""
    return [one.strip() for one in text.split(",")]


def addresses_of_endpoints(text: str) -> list[str]:
    """Return the IP addresses of `ip:port,ip:port`."""
    return [address for one in endpoints_in(text) if (address := address_of_endpoint(one)) is not None]


def address_of_uri(text: str) -> str | None:
    """Return the IP address in a URI; None when it names its machine otherwise or not at all."""
    hostname = urlsplit(text).hostname if text else None
    return address_in(hostname) if hostname else None


def _unless(good: Callable[[str], object], what: str) -> Callable[[str], str]:
    return lambda text: "" if good(text) else what


# What is wrong with a text, by its form.
_WRONG: dict[str, Callable[[str], str | None]] = {
    "name": _unless(_NAME.fullmatch, "is not a name"),
    "path": _unless(lambda text: text.startswith("/"), "is not an absolute path"),
    "ip": _unless(lambda text: address_in(text), "is not an IP address"),
    "endpoint": _unless(_is_endpoint_of_hooks, "is not an IPv4 address with a port"),
    "endpoints": _wrong_endpoints,
    "service": _unless(_is_service, "is no host, and no host with a port"),
    "network": _unless(network_in, "is not an IPv4 address or network"),
    "mount": _unless(_is_mount, "is not a line of fstab"),
    "uri": _unless(_is_uri, "is not a libvirt address"),
    "share": _unless(_SHARE.fullmatch, "is no share"),
    "schedule": _wrong_schedule,
    "zone": _wrong_zone,
}
