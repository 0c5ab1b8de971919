"""The filter of guests' network cards, which libvirt holds on each host. Pure: values in, text out.

All rules look at single frames (libvirt makes ebtables of them), so that they hold on a bridge without
any help of the kernel's connection tracking, and a guest that was moved or paused finds its own again.
"""

from __future__ import annotations

import ipaddress
import uuid
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, tostring

_UUIDS = uuid.UUID("1f4c4f52-7c3b-4a2e-8a43-0d7b9a1f3c55")
# Earlier are the rules that refuse what is forged, later the one that refuses all the rest.
_FORGED, _ALLOWED, _REST = "-500", "0", "1000"


@dataclass(frozen=True, slots=True)
class GuestFilter:
    """One filter for all guests of a cluster. `networks`: whom they may reach, in CIDR notation."""

    cluster: str
    networks: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return its name at every libvirtd."""
        return f"backfill-{self.cluster}"

    def document(self) -> str:
        """Return what libvirt defines it by: a guest speaks as itself, and to these networks."""
        whole = Element("filter", {"name": self.name, "chain": "root"})
        SubElement(whole, "uuid").text = str(uuid.uuid5(_UUIDS, self.name))
        _rule(whole, "drop", "out", _FORGED, "mac", match="no", srcmacaddr="$MAC")
        _rule(whole, "drop", "out", _FORGED, "arp", match="no", arpsrcipaddr="$IP")
        _rule(whole, "drop", "out", _FORGED, "ip", match="no", srcipaddr="$IP")
        _rule(whole, "accept", "inout", _ALLOWED, "arp")
        for network in self.networks:
            known = ipaddress.ip_network(network)
            address, length = str(known.network_address), str(known.prefixlen)
            _rule(whole, "accept", "out", _ALLOWED, "ip", dstipaddr=address, dstipmask=length)
            _rule(whole, "accept", "in", _ALLOWED, "ip", srcipaddr=address, srcipmask=length)
        _rule(whole, "drop", "inout", _REST)
        return tostring(whole, encoding="unicode")


def _rule(whole: Element, action: str, way: str, priority: str, kind: str = "", **words: str) -> None:
    rule = SubElement(whole, "rule", {"action": action, "direction": way, "priority": priority})
    if kind:
        SubElement(rule, kind, words)


def refer(card: Element, name: str, address: str) -> None:
    """Let the card pass only what this filter allows to a guest of that address."""
    reference = SubElement(card, "filterref", {"filter": name})
    SubElement(reference, "parameter", {"name": "IP", "value": str(ipaddress.ip_interface(address).ip)})
