"""The image catalogue in its own file, what the planner is to know of each image, and which there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from backfill.config.files import read_keys, read_text
from backfill.config.images import Catalogue, ImageEntry
from backfill.config.model import HostEntry, LibvirtEntry, Provider
from backfill.config.problems import Problem, quote
from backfill.config.reader import BAD, Reader
from backfill.config.shapes import section
from backfill.config.tree import Entries, Scalar, Tree
from backfill.core.policies.environments import Environment, Environments


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
        made_of = _made_of(found, entries, images)
        named = tuple(sorted(frozenset(images) if made_of is None else frozenset().union(*made_of.values())))
        lacking = {} if made_of is None else _lacking(found["hosts"], made_of, entries)
        found["environments"] = Environments(entries, particular, named, lacking)
    return own


def _made_of(
    found: dict[str, Any], entries: tuple[Environment, ...], images: dict[str, ImageEntry]
) -> dict[Provider, frozenset[str]] | None:
    """Return the images of which instances can be made, by the kind of host; None while nobody can tell.

    A cloud has those that openstack.images maps, that of all, and what environments name and libvirt lacks.
    Simulated hosts are not among them: they have every image.
    """
    hosts, openstack, instances = found["hosts"], found.get("openstack"), found["instances"]
    if BAD in (hosts, openstack, instances):
        return None
    kinds, local = {host.provider for host in hosts}, frozenset(images)
    if Provider.OPENSTACK not in kinds or openstack is None:
        return {Provider.LIBVIRT: local}
    named, beside = frozenset(entry.image for entry in entries), Provider.LIBVIRT in kinds
    cloud = named - local if beside else named
    made_of = {Provider.OPENSTACK: cloud.union({instances.image}, openstack.images)}
    return made_of | {Provider.LIBVIRT: local} if beside else made_of


def _lacking(
    hosts: Iterable[HostEntry], made_of: dict[Provider, frozenset[str]], entries: tuple[Environment, ...]
) -> dict[str, frozenset[str]]:
    """Return by image the hosts that lack it, for images that some host lacks."""
    named = frozenset(entry.image for entry in entries).union(*made_of.values())
    ours = [(host.name, made_of[host.provider]) for host in hosts if host.provider in made_of]
    lacking = {image: frozenset(name for name, there in ours if image not in there) for image in named}
    return {image: without for image, without in lacking.items() if without}


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
