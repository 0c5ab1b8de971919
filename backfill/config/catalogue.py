"""The image catalogue in its own file, what the planner is to know of each image, and which there are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from backfill.config.cloud import OpenStackEntry
from backfill.config.files import read_keys, read_text
from backfill.config.images import Catalogue, ImageEntry
from backfill.config.model import LibvirtEntry, Provider
from backfill.config.problems import Problem, quote
from backfill.config.reader import BAD, Reader
from backfill.config.shapes import section
from backfill.config.tree import Entries, Scalar, Tree
from backfill.core.policies.environments import Environment, Environments
from backfill.core.policy import Template


def path_of(policy_file: str | Path, libvirt: LibvirtEntry | None) -> Path | None:
    """Return the path of the catalogue; None where there is none."""
    if libvirt is None or not libvirt.catalogue:
        return None
    return Path(policy_file).parent / libvirt.catalogue


def leave_out(reader: Reader, found: dict[str, Any]) -> None:
    """Open no file that a text from outside names: what depends on its images has nothing to say."""
    libvirt = found.get("libvirt")
    if not isinstance(libvirt, LibvirtEntry) or not libvirt.catalogue:
        take_in(reader, found)
        return
    found["libvirt"] = BAD


def confined(text: str, name: str, known: str) -> list[Problem]:
    """Return why no file may be made of a text from outside: its catalogue would be read, and is not `known`.

    Nothing else of it is looked at, so that it takes a moment whatever the text is.
    """
    reader = Reader(name)
    tree: Tree | None = read_keys(reader, text, "policy file", "give its keys")
    for step in ("libvirt", "catalogue"):
        tree = dict(_named(tree)).get(step) if isinstance(tree, Entries) else None
    if isinstance(tree, Scalar) and tree.text not in ("", known):
        what = f"is {quote(tree.text)}, and a preview reads only the catalogue of the policy file in force"
        remedy = f"write {known}" if known else "write its images into libvirt.images"
        reader.note(tree.place, "libvirt.catalogue", what, remedy)
    return reader.problems


def _named(tree: Entries) -> Iterator[tuple[str, Tree]]:
    return ((name.text, value) for name, value in tree.pairs)


def take_in(reader: Reader, found: dict[str, Any]) -> Reader | None:
    """Put the catalogue's images among the values, and their rules among the policies.

    Returns the catalogue's own reader, with its problems and their places; None without one.
    """
    own, libvirt = None, found.get("libvirt")
    if isinstance(libvirt, LibvirtEntry):
        path = path_of(reader.file, libvirt)
        if path is not None and libvirt.images:
            what = "is set, and libvirt.images is there too"
            reader.note(None, "libvirt.catalogue", what, "keep one of them")
        elif path is not None:
            own = Reader(str(path))
            images = _read(own, path)
            if images is None:
                found["libvirt"] = BAD  # what depends on the images has nothing to say now
                return own
            libvirt = found["libvirt"] = replace(libvirt, images=images)
    given = found.get("environments", Environments())
    if given is not BAD:
        images = libvirt.images if isinstance(libvirt, LibvirtEntry) else {}
        rules = tuple(entry.rule(name) for name, entry in sorted(images.items()))
        entries = (*given.entries, *_environments(images))
        particular = tuple(rule for rule in rules if rule.says_something)
        found["environments"] = Environments(entries, particular, _named_images(found, entries, images))
    return own


def _named_images(
    found: dict[str, Any], entries: tuple[Environment, ...], images: dict[str, ImageEntry]
) -> tuple[str, ...]:
    """Return all images that the file names for hosts of any kind."""
    hosts, openstack, instances = (found.get(name, BAD) for name in ("hosts", "openstack", "instances"))
    if hosts is BAD or not isinstance(openstack, OpenStackEntry) or not isinstance(instances, Template):
        return tuple(sorted(images))
    providers = {host.provider for host in hosts}
    if Provider.OPENSTACK not in providers:
        return tuple(sorted(images))
    named = {instances.image, *openstack.images, *(entry.image for entry in entries)}
    return tuple(sorted(named | images.keys() if Provider.LIBVIRT in providers else named))


def _environments(images: dict[str, ImageEntry]) -> Iterator[Environment]:
    for name, entry in images.items():
        if entry.environment:
            yield Environment(entry.environment, name, entry.users, entry.accounts)


def _read(own: Reader, path: Path) -> dict[str, ImageEntry] | None:
    text = read_text(own, path, "image catalogue")
    images = None if text is None else _images(own, text)
    return None if own.problems else images


def _images(own: Reader, text: str) -> dict[str, ImageEntry] | None:
    tree = read_keys(own, text, "image catalogue", "give images")
    if tree is None:
        return None
    images: dict[str, ImageEntry] = own.keys(section(Catalogue), tree, "")["images"]
    return images
