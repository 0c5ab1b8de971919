"""What becomes of a creation when the cloud's answers get lost, on a cloud that lives in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from keystoneauth1 import exceptions as ka
from openstack import exceptions as sdk

from backfill.core.model.fleet import Flavour, InstanceSpec, Tag
from backfill.drivers.openstack.api.cloud import Cloud
from backfill.drivers.openstack.api.link import Answer
from backfill.drivers.openstack.servers.making import create, delete
from backfill.drivers.openstack.settings import CloudPlace, Guest, OpenStackConfig, Patience, Shape
from backfill.ports.errors import BusyError, DriverError, NotFoundError, RefusedError, UnreachableError
from tests.unit.test_cloud_applying import MemoryCloud

PATIENCE = Patience(settle_s=0)
SPEC = InstanceSpec("vn1", "east", Tag("c1", "vn1", 1), Flavour(1, 256), "node", "10.77.1.1/16")


class LossyCloud(MemoryCloud):
    """Loses the answer to a creation, and fails afterwards as it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.answer: Answer | None = None  # to the creation; None: it is lost
        self.looking: DriverError | None = None  # why servers cannot be looked for by tag

    def get(self, service: str, path: str, subject: str, **query: str) -> Answer:
        if path == "/servers" and "tags" in query and self.looking is not None:
            raise self.looking
        return super().get(service, path, subject, **query)

    def post(self, service: str, path: str, subject: str, body: dict[str, Any]) -> Answer:
        if path != "/servers":
            return super().post(service, path, subject, body)
        if self.answer is None:
            raise ka.ConnectFailure("the line went dead")
        return self.answer


def cloud_of(link: MemoryCloud, **shape: Any) -> Cloud:
    """The driver's cloud on this link."""
    config = OpenStackConfig(
        "c1",
        {"east": CloudPlace("west")},
        Shape(("tiny",), "nodes", images={"node": "node"}, **shape),
        Guest("", ""),
        patience=PATIENCE,
    )
    return Cloud(config, link, {})


@pytest.mark.parametrize(
    ("answer", "looking", "words"),
    [
        (None, None, "the line went dead"),
        (None, RefusedError("vn1", "the credential has expired"), "looked for.*has expired"),
        (Answer({}, ""), None, "names no server"),
    ],
)
def test_a_server_that_may_be_there_keeps_its_port(
    answer: Answer | None, looking: DriverError | None, words: str
) -> None:
    """Whatever comes of looking for it: without its port it could not work."""
    link = LossyCloud()
    link.answer, link.looking = answer, looking
    with pytest.raises(UnreachableError, match=f"unknown whether Nova has made it.*{words}"):
        create(cloud_of(link), SPEC)
    assert [port["name"] for port in link.kinds["ports"]] == ["backfill.c1.vn1"]
    assert link.deleted == []


@pytest.mark.parametrize("wanted", [Flavour(2, 256), Flavour(1, 512)])
def test_a_flavour_that_is_too_small_is_told_before_anything_is_made(wanted: Flavour) -> None:
    """The node would boot, and register with less than was promised to Slurm."""
    link = LossyCloud()
    words = f"vn1: an instance of {wanted.resources} fits into no flavour.*tiny .*256 MB.*openstack.flavours"
    with pytest.raises(RefusedError, match=words):
        create(cloud_of(link), replace(SPEC, flavour=wanted))
    assert link.kinds["ports"] == []


def test_a_larger_instance_gets_the_first_flavour_that_is_large_enough() -> None:
    """A job asks for machines of its own size."""
    link = LossyCloud()
    link.kinds["flavors"].append({"id": "f2", "name": "large", "vcpus": 4, "ram": 4096})
    link.answer = Answer({}, "")
    cloud = cloud_of(link)
    cloud = Cloud(
        replace(cloud.config, shape=replace(cloud.config.shape, flavours=("tiny", "large"))), link, {}
    )
    assert cloud.fitting(Flavour(1, 256).resources, "vn1") == {"tiny", "large"}
    assert cloud.fitting(Flavour(2, 512).resources, "vn1") == {"large"}
    link.kinds["flavors"].pop(0)  # the cloud's operator has deleted it: it is told when its turn comes
    assert cloud_of(link).fitting(Flavour(2, 512).resources, "vn1") == {"tiny"}


def test_a_network_by_its_name_is_another_one_in_neutron() -> None:
    """The port is made there; a name that nobody has told us is refused before anything is made."""
    link = LossyCloud()
    link.kinds["networks"].append({"id": "n9", "name": "project-lan", "project_id": "p1"})
    cloud = cloud_of(link, networks={"lan": "project-lan"})
    with pytest.raises(UnreachableError):  # its answer is lost, and the port stays
        create(cloud, replace(SPEC, network="lan"))
    assert [port["network_id"] for port in link.kinds["ports"]] == ["n9"]
    with pytest.raises(RefusedError, match="no network wan; known networks: lan"):
        create(cloud, replace(SPEC, network="wan"))


@pytest.mark.parametrize("image", ["gold", "8c56a0a7-3c0f-4a5e-9d8a-0f1d5a2b3c4d"])
def test_no_image_is_booted_that_the_settings_do_not_name(image: str) -> None:
    """Neither by the name that Glance knows nor by its id: its owner would get the cluster's key."""
    link = LossyCloud()
    known = {"8c56a0a7-3c0f-4a5e-9d8a-0f1d5a2b3c4d": "gold"}
    link.kinds["images"] += [{"id": i, "name": name, "status": "active"} for i, name in known.items()]
    with pytest.raises(RefusedError, match=f"no image {image}; openstack.images has: node"):
        create(cloud_of(link), replace(SPEC, image=image))
    assert link.kinds["ports"] == []


class TwiceDeleting(MemoryCloud):
    """Answers as after a deletion whose first answer was lost: what was there is gone."""

    def delete(self, service: str, path: str, subject: str) -> None:
        super().delete(service, path, subject)
        raise NotFoundError(subject, "there is no such thing")


def test_a_port_that_has_gone_already_is_gone() -> None:
    """A repeated deletion finds nothing, and that is what was wanted."""
    link = TwiceDeleting()
    link.kinds["ports"].append({"id": "p1", "name": "backfill.c1.vn1", "project_id": "p1"})
    delete(cloud_of(link), "east", "vn1")
    assert link.kinds["ports"] == []


@pytest.mark.parametrize(("guarded", "groups"), [(True, ["g1"]), (False, None), (None, ["g1"])])
def test_a_network_without_port_security_gets_ports_without_groups(
    guarded: bool | None, groups: list[str] | None
) -> None:
    """Neutron refuses such a port; a network service without that extension says nothing of it."""
    link = LossyCloud()
    link.kinds["security-groups"] = [{"id": "g1", "name": "backfill-c1", "project_id": "p1"}]
    if guarded is not None:
        link.kinds["networks"][1]["port_security_enabled"] = guarded
    with pytest.raises(UnreachableError):
        create(cloud_of(link), SPEC)
    (port,) = link.kinds["ports"]
    assert port.get("security_groups") == groups


class ReplacedImage(MemoryCloud):
    """Nova refuses an image, or a network's port, that is there no more."""

    def post(self, service: str, path: str, subject: str, body: dict[str, Any]) -> Answer:
        known = {f["id"] for f in (*self.kinds["images"], *self.kinds["networks"])}
        used = body.get("server", {}).get("imageRef") or body["port"]["network_id"]
        if used in known:
            return super().post(service, path, subject, body)
        if path == "/ports":
            raise sdk.HttpException(message=f"Network {used} could not be found.", http_status=404)
        raise sdk.HttpException(message="Can not find requested image", http_status=400)


@pytest.mark.parametrize(("kind", "words"), [("images", "requested image"), ("networks", "Network n2")])
def test_what_was_replaced_a_moment_ago_is_looked_for_anew(kind: str, words: str) -> None:
    """Its id was remembered: neither the node nor its image is at fault, and the next try has the new one."""
    link = ReplacedImage()
    cloud, another = (
        cloud_of(link),
        replace(SPEC, name="vn2", tag=Tag("c1", "vn2", 1), address="10.77.1.2/16"),
    )
    create(cloud, SPEC)
    link.kinds[kind][-1] = {**link.kinds[kind][-1], "id": "new"}
    with pytest.raises(BusyError, match=rf"{words}.*; names are looked up anew"):
        create(cloud, another)
    create(cloud, another)
    assert len(link.kinds["servers"]) == 2


def test_a_refusal_of_what_was_just_looked_up_counts() -> None:
    link = LossyCloud()
    link.kinds["images"].clear()
    for _ in range(2):
        with pytest.raises(RefusedError, match="no image of this name"):
            create(cloud_of(link), SPEC)
    assert link.kinds["ports"] == []


class RefusingNova(MemoryCloud):
    """Nova takes no server, whatever names have been looked up."""

    def post(self, service: str, path: str, subject: str, body: dict[str, Any]) -> Answer:
        if path == "/servers":
            raise sdk.HttpException(message="Invalid key_name provided", http_status=400)
        return super().post(service, path, subject, body)


def test_what_is_refused_right_after_all_names_were_looked_up_is_refused() -> None:
    """And so is the same again, once it has looked them up a second time."""
    cloud = cloud_of(RefusingNova())
    with pytest.raises(RefusedError, match="key_name"):
        create(cloud, SPEC)
    with pytest.raises(BusyError, match="names are looked up anew"):
        create(cloud, SPEC)
    with pytest.raises(RefusedError, match="key_name"):
        create(cloud, SPEC)


def test_a_poll_between_two_tries_makes_no_refusal_one_of_old_names() -> None:
    """It looks up flavours for the room's sizes: for ever they would be from before the try."""
    cloud = cloud_of(RefusingNova())
    for _ in range(2):  # lives of the node
        cloud.size_of("tiny", "east")
        with pytest.raises(BusyError, match="names are looked up anew"):
            create(cloud, SPEC)
        cloud.size_of("tiny", "east")
        with pytest.raises(RefusedError, match="key_name"):
            create(cloud, SPEC)
