"""The head of libvirt's saved memory: read, and written anew for a trial under another name.

Layout (libvirt, src/qemu/qemu_saveimage.h): 16 bytes of magic; version, length of the data, whether
the domain ran, compression, offset of the cookie, 14 unused, each of 4 bytes; then the data: the
domain document, a NUL, the cookie, padding; then QEMU's own stream. A new head is as long as the
old one: where libvirt is told to write the format `sparse`, QEMU has noted places in the file.
"""

from __future__ import annotations

import json
import os
import re
import struct
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree.ElementTree import Element, ParseError, SubElement, fromstring, tostring

from backfill.drivers.libvirt.connection.domain_xml import DomainFiles, bind, place
from backfill.ports.errors import BadOutputError, RefusedError

_HEAD = struct.Struct("=16s19I")
_MAGIC = b"LibvirtQemudSave"
_UNFINISHED = b"LibvirtQemudPart"  # until libvirtd hears that QEMU has written all
_LENGTH, _RAN, _FORMAT, _COOKIE = 1, 2, 3, 4  # places behind the magic
_RAW = 0
_MOST = 1 << 26
# QEMU ends its stream (migration/savevm.c) with a description of it: a mark, its length, JSON.
_END = re.compile(rb"\x06(.{4})\{", re.DOTALL)
_END_MOST = 1 << 20


@dataclass(frozen=True, slots=True)
class ImageHead:
    """The head of the file, before QEMU's stream."""

    words: tuple[int, ...]
    document: str
    cookie: bytes


def read_head(path: Path) -> ImageHead:
    """BadOutputError for a file that is no complete image."""
    with path.open("rb") as image:
        raw = image.read(_HEAD.size)
        magic, *words = _HEAD.unpack(raw) if len(raw) == _HEAD.size else (b"",)
        if magic != _MAGIC or not 0 < words[_LENGTH] <= _MOST:
            raise BadOutputError(str(path), "is no complete memory image of libvirt")
        data = image.read(words[_LENGTH])
    document, _, rest = data.partition(b"\0")
    offset = words[_COOKIE]
    cookie = data[offset:].rstrip(b"\0") if offset else b""
    if not rest and not document:
        raise BadOutputError(str(path), "the domain document in the memory image is cut off")
    return ImageHead(tuple(words), document.decode(), cookie)


def is_whole(path: Path) -> bool:
    """Return True if QEMU has written all of its stream, also where libvirt has not sealed the image."""
    with path.open("rb") as image:
        raw = image.read(_HEAD.size)
        magic, *words = _HEAD.unpack(raw) if len(raw) == _HEAD.size else (b"",)
        if magic not in (_MAGIC, _UNFINISHED) or words[_FORMAT] != _RAW:
            return False
        size = os.fstat(image.fileno()).st_size
        if not 0 < words[_LENGTH] <= size - _HEAD.size:
            return False
        image.seek(max(_HEAD.size + words[_LENGTH], size - _END_MOST))
        return _ends(image.read())


def _ends(stream: bytes) -> bool:
    """Return True if this is the end of a stream of QEMU's."""
    for mark in _END.finditer(stream):
        start = mark.end() - 1
        if int.from_bytes(mark[1], "big") == len(stream) - start:
            try:
                return "devices" in json.loads(stream[start:])
            except ValueError:
                return False
    return False


def seal(path: Path) -> None:
    """Mark a whole image as complete, as libvirtd would have done."""
    with path.open("r+b") as image:
        os.fsync(image.fileno())  # what it says must be on the disk before it says so
        image.write(_MAGIC)
        image.flush()
        os.fsync(image.fileno())


def for_trial(head: ImageHead, disk: Path, seed: Path, console: Path) -> tuple[str, ImageHead]:
    """Make a head with which the same memory is another domain: return its name, and the head.

    It has no mark of ours, so nobody takes it for an instance; its card has no link.
    """
    try:
        domain = fromstring(head.document)  # noqa: S314 - verified by its checksum, made by libvirt
    except ParseError as error:
        raise BadOutputError("memory image", f"its domain document is damaged: {error}") from error
    name = f"{domain.findtext('name', 'instance')}-trial-{uuid.uuid4().hex[:8]}"
    _set(domain, "name", name)
    _set(domain, "uuid", str(uuid.uuid4()))
    bind(domain, None)  # the host of the trial may have other NUMA nodes
    for old in domain.findall("metadata"):
        domain.remove(old)
    place(domain, DomainFiles(str(disk), str(seed), str(console)))
    _cut_link(domain)
    _drop_channel_paths(domain)
    return name, replace(head, document=tostring(domain, encoding="unicode"))


def _set(domain: Element, tag: str, text: str) -> None:
    found = domain.find(tag)
    (SubElement(domain, tag) if found is None else found).text = text


def _cut_link(domain: Element) -> None:
    for card in domain.findall("devices/interface"):
        for old in card.findall("link") + card.findall("target"):
            card.remove(old)
        SubElement(card, "link", {"state": "down"})


def _drop_channel_paths(domain: Element) -> None:
    """They belong to the domain of the old name; libvirt makes new ones."""
    for channel in domain.findall("devices/channel"):
        for source in channel.findall("source"):
            channel.remove(source)


def rewrite(path: Path, head: ImageHead) -> None:
    """Give the image another head; the stream behind it stays where it is.

    RefusedError where it does not fit: libvirt leaves 64 KiB for changes.
    """
    document = head.document.encode() + b"\0"
    data = document + (head.cookie + b"\0" if head.cookie else b"")
    words = list(head.words)
    if len(data) > words[_LENGTH]:
        raise RefusedError(str(path), "the changed domain document does not fit into its head")
    words[_RAN] = 0
    words[_COOKIE] = len(document) if head.cookie else 0
    with path.open("r+b") as image:
        image.write(_HEAD.pack(_MAGIC, *words) + data.ljust(words[_LENGTH], b"\0"))
