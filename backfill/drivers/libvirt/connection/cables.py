"""The cables of a guest's network cards, by the words of its domain document."""

from __future__ import annotations

from xml.etree.ElementTree import SubElement, fromstring, tostring

_STATES = {True: "up", False: "down"}


def cards_to_change(document: str, up: bool) -> list[str]:
    """Return the cards whose cable is not as wanted, as it shall be, each as a document of its own.

    A card of the host's that the guest has for itself has no cable of ours.
    """
    wanted, changed = _STATES[up], []
    for card in fromstring(document).findall("./devices/interface"):  # noqa: S314 - libvirt's own words
        link = card.find("link")
        state = "up" if link is None else link.get("state", "up")
        if state == wanted or card.get("type") == "hostdev":
            continue
        link = SubElement(card, "link") if link is None else link
        link.set("state", wanted)
        changed.append(tostring(card, encoding="unicode"))
    return changed
