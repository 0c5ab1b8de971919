"""Commands for fleets as people give them: checked as a whole before anything is begun."""

from __future__ import annotations

from dataclasses import replace

from backfill.core.model.fleet import CloneMethod, Fleet, FleetState
from backfill.core.policies.cloning import Choice
from backfill.core.policies.environments import Environments
from backfill.core.policy import PolicySet
from backfill.core.room import NodeNeed, places_ever
from backfill.core.world import World
from backfill.engine.checkpoint_order import CommandError


def fleet_order(world: World, policies: PolicySet, body: dict[str, object]) -> Fleet:
    """Return the new order. CommandError when it can never be carried out."""
    try:
        size = int(str(body.get("n", "")))
    except ValueError:
        raise CommandError("a fleet needs a number of instances") from None
    image = _image(policies.environments, str(body.get("image") or ""))
    _can_ever_fit(world, policies, size, image)
    _image_allows(policies, image or policies.instances.image, size)
    number = 1 + max((_number(one.id) for one in world.fleets.values() if not one.job), default=0)
    identity = f"fleet-{max(number, int(world.now_s))}"
    return Fleet(identity, size, FleetState.WAITING, world.now_s, image, _method(body))


def _image(known: Environments, word: str) -> str:
    """Return the master image that is meant; an environment's name means its image."""
    image = known.image_of(word)
    if image and known.images and image not in known.images:
        images = ", ".join(known.images)
        raise CommandError(f"there is no image '{word}'; there are: {images}")
    return image


def _method(body: dict[str, object]) -> CloneMethod | None:
    word = str(body.get("method") or "")
    if not word:
        return None
    if word == Choice.AUTO:
        return CloneMethod.INSTANT  # many at once is what the instant way is for
    try:
        return CloneMethod(word)
    except ValueError:
        known = ", ".join(Choice)
        raise CommandError(f"'{word}' is no way of cloning; known: {known}") from None


def _can_ever_fit(world: World, policies: PolicySet, size: int, image: str) -> None:
    """Refuse at once what no waiting can help."""
    if size < 1:
        raise CommandError("a fleet has one instance at least")
    shape, limits = policies.instances.flavour.resources, policies.limits
    need = NodeNeed(image=policies.environments.somewhere(image))
    places = sum(places_ever(world, policies, name, shape, need) for name in policies.hosts)
    with_it = f"all hosts with image {need.image}" if need.image else "all hosts"
    for most, what in (
        (len(policies.instances.names), "instances.names has {} names"),
        (limits.max_instances, "limits.max_instances is {}"),
        (places, f"{with_it} together have room for {{}}"),
    ):
        if size > most:
            raise CommandError(f"{size} instances can never be had: {what.format(most)}")


def _image_allows(policies: PolicySet, image: str, size: int) -> None:
    """Refuse at once what the image's own limits never let be."""
    rule, shape = policies.environments.rule(image), policies.instances.flavour.resources
    names = sum(not policies.name_reserved(n, image) for n in policies.instances.names)
    for most, what in (
        (names, f"image {image} may have {{}} names"),
        (rule.most_cpus // shape.cpus if rule.most_cpus else size, f"image {image} may have {{}}"),
        (
            rule.most_memory_mb // shape.memory_mb if rule.most_memory_mb else size,
            f"the memory of image {image} is enough for {{}}",
        ),
    ):
        if size > most:
            raise CommandError(f"{size} instances can never be had: {what.format(most)}")


def _number(identity: str) -> int:
    return int(identity.rpartition("-")[2])


def leaving(world: World, identity: str) -> Fleet:
    """Return the order as it is to be deleted. CommandError when there is none of this name."""
    fleet = world.fleets.get(identity)
    if fleet is None:
        known = ", ".join(world.fleets) or "none"
        raise CommandError(f"there is no fleet '{identity}'; there are: {known}")
    return replace(fleet, state=FleetState.LEAVING, reason="deleted by hand")
