"""Reads the text of a file of ours, and the keys at its top."""

from __future__ import annotations

from pathlib import Path

from backfill.config.problems import Place
from backfill.config.reader import Reader
from backfill.config.tree import Entries, parse

MAX_BYTES = 1_000_000


def read_text(reader: Reader, path: Path, what_file: str) -> str | None:
    """Return the whole file, or None and a note of why not: `what_file` is how the sentence calls it."""
    whole_file = Place(0, 0)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        denied = isinstance(error, PermissionError)
        remedy = "read it as root or as the daemon's user" if denied else "check the path"
        reader.note(whole_file, "", f"the {what_file} cannot be read: {why}", remedy)
        return None
    if len(data) > MAX_BYTES:
        what = f"the {what_file} is larger than {MAX_BYTES} bytes"
        reader.note(whole_file, "", what, "is it the right file?")
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        place = Place(before.count(b"\n") + 1, error.start - (before.rfind(b"\n") + 1) + 1)
        what = f"the byte 0x{data[error.start]:02x} is not UTF-8"
        reader.note(place, "", what, "save the file as UTF-8")
        return None


def read_keys(reader: Reader, text: str, what_file: str, example: str) -> Entries | None:
    """Return the mapping that the file is, or None where it is none; every flaw of the text is noted.

    `example` is what to do about a file without keys.
    """
    tree, flaws = parse(text)
    for flaw in flaws:
        reader.note(flaw.place, "", flaw.what, flaw.remedy.replace("policy file", what_file))
    if isinstance(tree, Entries):
        return tree
    if not flaws:
        what = f"the {what_file} is empty" if tree is None else f"the {what_file} has no keys"
        reader.note(tree.place if tree is not None else Place(1, 1), "", what, example)
    return None
