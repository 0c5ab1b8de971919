"""The head of a memory image: what a trial changes in it, and what it leaves alone."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from backfill.drivers.libvirt.checkpoints.save_image import for_trial, is_whole, read_head, rewrite, seal
from backfill.ports.errors import BadOutputError, RefusedError

DOCUMENT = (
    "<domain><name>vn1</name><uuid>6d3c2f0e-8f1b-4a55-9a55-2f6a3a3b7c11</uuid>"
    "<metadata><x/></metadata><devices><disk><source file='/a'/><target dev='vda'/></disk>"
    "<disk><source file='/b'/><target dev='vdb'/></disk>"
    "<interface type='bridge'><target dev='vnet0'/></interface>"
    "<serial type='file'><source path='/c'/></serial>"
    "<channel type='unix'><source mode='bind' path='/d'/></channel></devices></domain>"
)


def image(path: Path, cookie: bytes = b"", room: int = 65536) -> Path:
    data = DOCUMENT.encode() + b"\0"
    offset = len(data) if cookie else 0
    data += cookie + b"\0" * room
    head = struct.pack("=16s19I", b"LibvirtQemudSave", 2, len(data), 1, 0, offset, *[0] * 14)
    path.write_bytes(head + data + b"the stream of QEMU")
    return path


@pytest.mark.parametrize("cookie", [b"", b"<cookie/>"])
def test_a_trial_is_another_domain_with_the_same_memory(tmp_path: Path, cookie: bytes) -> None:
    """Other name, identity and files, no mark of ours, no link; stopped; stream and cookie kept."""
    old = image(tmp_path / "old", cookie)
    head = read_head(old)
    assert (head.document, head.cookie) == (DOCUMENT, cookie)
    name, changed = for_trial(head, tmp_path / "disk", tmp_path / "seed", tmp_path / "log")
    before = old.read_bytes()
    rewrite(old, changed)
    again = read_head(old)
    assert name.startswith("vn1-trial-")
    assert f"<name>{name}</name>" in again.document
    for gone in ("6d3c2f0e", "metadata", "vnet0", "'/a'", 'file="/b"', 'path="/d"'):
        assert gone not in again.document
    assert '<link state="down"' in again.document
    assert again.cookie == cookie
    assert again.words[2] == 0
    after = old.read_bytes()
    assert len(after) == len(before)
    assert after.endswith(b"\0the stream of QEMU")


def test_a_head_that_would_move_the_stream_is_refused(tmp_path: Path) -> None:
    """QEMU has noted places in the file; nothing is written."""
    old = image(tmp_path / "old", room=0)
    _, changed = for_trial(read_head(old), *[tmp_path / ("x" * 200)] * 3)
    before = old.read_bytes()
    with pytest.raises(RefusedError, match="does not fit"):
        rewrite(old, changed)
    assert old.read_bytes() == before


def test_what_is_no_image_is_refused(tmp_path: Path) -> None:
    """Cut off, unfinished, or something else."""
    path = tmp_path / "x"
    for content in (b"", b"LibvirtQemudPart" + b"\0" * 76, b"something else" * 20):
        path.write_bytes(content)
        with pytest.raises(BadOutputError, match="no complete memory image"):
            read_head(path)


def stream(path: Path, magic: bytes = b"LibvirtQemudPart", form: int = 0, cut: int = 0) -> Path:
    """An image as QEMU leaves it, `cut` bytes short: the description of the devices stands last."""
    said = json.dumps({"page_size": 4096, "devices": [{"name": "ram"}]}).encode()
    end = b"\x00\x06" + len(said).to_bytes(4, "big") + said
    head = struct.pack("=16s19I", magic, 2, 64, 0, form, 0, *[0] * 14)
    content = head + bytes(64) + b"\x06{" * 50_000 + end
    path.write_bytes(content[: len(content) - cut])
    return path


def test_an_image_is_whole_when_qemus_stream_has_its_end(tmp_path: Path) -> None:
    """Sealed or not; libvirtd may have died before it could seal it."""
    unsealed = stream(tmp_path / "a")
    assert is_whole(unsealed)
    assert is_whole(stream(tmp_path / "b", b"LibvirtQemudSave"))
    seal(unsealed)
    assert unsealed.read_bytes()[:16] == b"LibvirtQemudSave"
    assert is_whole(unsealed)


@pytest.mark.parametrize("cut", [1, 2, 40, 60, 70, 99_000, 100_160, 100_230, 100_300])
def test_an_image_that_is_cut_off_is_not_whole(tmp_path: Path, cut: int) -> None:
    """In its description, before it, in the head, or empty."""
    assert not is_whole(stream(tmp_path / "cut", cut=cut))


def test_what_we_cannot_judge_is_not_whole(tmp_path: Path) -> None:
    """A compressed stream has no end that shows; other files are no images."""
    assert not is_whole(stream(tmp_path / "packed", form=2))
    assert not is_whole(stream(tmp_path / "other", b"SomethingElse..."))
    longer = stream(tmp_path / "longer")
    longer.write_bytes(longer.read_bytes() + b"x")
    assert not is_whole(longer)
