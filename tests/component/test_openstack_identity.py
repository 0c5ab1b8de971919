"""Which server is which, whatever people change of its name and its notes."""

from __future__ import annotations

from typing import Any

import pytest

from backfill.core.model.fleet import Instance, InstanceState
from backfill.drivers.openstack.api.link import Answer
from backfill.drivers.openstack.api.states import Server, instance_of, is_ours, unique_tag
from backfill.drivers.openstack.provider import OpenStackProvider
from backfill.drivers.openstack.servers.making import by_name, create, delete
from backfill.drivers.openstack.settings import CloudPlace, Guest, OpenStackConfig, Shape
from backfill.ports.errors import AlreadyThereError, BusyError
from tests.component.test_openstack_asking import PagedLink
from tests.unit.test_cloud_applying import MemoryCloud
from tests.unit.test_openstack_making import SPEC as FIRST
from tests.unit.test_openstack_making import cloud_of
from tests.unit.test_openstack_pure import SPEC, server

LIST = "/servers/detail"
EARLY = "2026-11-21T22:00:05Z"
TAGS = ["backfill.c1", unique_tag(SPEC.tag)]


def without(*keys: str, **more: Any) -> Server:
    """Our server, whose notes of these keys somebody has unset; of none: all of them."""
    found = server(tags=TAGS, **more)
    lost = [f"backfill_{key}" for key in keys] or list(found["metadata"])
    found["metadata"] = {key: value for key, value in found["metadata"].items() if key not in lost}
    return found


def provider_on(link: PagedLink) -> OpenStackProvider:
    config = OpenStackConfig("c1", {"east": CloudPlace("east")}, Shape(("tiny",), "nodes"), Guest("", ""))
    return OpenStackProvider(config, lambda *given: link)


class ListLink(PagedLink):
    """Lists what it is told to."""

    def __init__(self, *servers: Server) -> None:
        super().__init__()
        self.show(*servers)

    def show(self, *servers: Server) -> None:
        self.pages[LIST] = {"servers": list(servers)}

    def get(self, service: str, path: str, subject: str, **query: str) -> Answer:
        if path == LIST:
            return Answer(self.pages[LIST], "")
        return super().get(service, path, subject, **query)


def seen_by(provider: OpenStackProvider) -> dict[str, Instance]:
    observed = provider.observe("east")
    assert observed.host.reachable, observed.host.problem
    return dict(observed.instances)


def test_a_renamed_server_is_the_same_instance() -> None:
    """`openstack server set --name` changes what people see, and nothing else."""
    link = ListLink(server(updated=EARLY))
    provider = provider_on(link)
    before = seen_by(provider)
    link.show(server(name="foo", updated="2026-11-22T00:00:00Z"))
    assert seen_by(provider) == before
    assert provider.read("east", "vn1") == before["vn1"]
    assert provider.read("east", "foo") is None


@pytest.mark.parametrize("keys", [("cluster",), ("host",), ("node",), ("cluster", "node", "generation")])
def test_what_the_tags_or_the_only_place_tell_needs_no_note(keys: tuple[str, ...]) -> None:
    """The daemon has just started, and the server has a name of its own."""
    found = seen_by(provider_on(ListLink(without(*keys, name="foo"))))
    assert found == seen_by(provider_on(ListLink(server(tags=TAGS))))
    assert found["vn1"].tag == SPEC.tag


def test_a_server_without_all_its_notes_is_unknown_and_not_gone() -> None:
    """The tags say whose it is, and nothing says what it takes and where it answers."""
    (found,) = seen_by(provider_on(ListLink(without(name="foo")))).values()
    assert (found.name, found.tag, found.state) == ("vn1", SPEC.tag, InstanceState.UNKNOWN)
    assert found.problem.endswith(
        "restore it with `openstack server set --property backfill_cpus=CPUS "
        "--property backfill_memory_mb=MEMORY_MB --property backfill_address=ADDRESS u1`"
    )


def test_a_server_that_nobody_can_tell_apart_has_the_name_that_people_see() -> None:
    """Only the tag of the whole cluster is left."""
    found = instance_of({**without(), "tags": TAGS[:1]}, "east")
    assert (found.name, found.state) == ("vn1", InstanceState.UNKNOWN)
    assert "backfill_node, backfill_generation" in found.problem


def test_notes_that_are_unset_while_the_daemon_runs_are_remembered(caplog: pytest.LogCaptureFixture) -> None:
    """It is said once how to put them back; what somebody changes counts as it is now."""
    link = ListLink(server(tags=TAGS, updated=EARLY))
    provider = provider_on(link)
    before = seen_by(provider)
    for second in range(2):
        link.show({**without(updated=f"2026-11-22T00:00:0{second}Z", name="foo"), "tags": []})
        assert seen_by(provider) == before
    (told,) = caplog.messages
    assert "server u1 of vn1 has lost its metadata" in told
    assert "--property backfill_host=east" in told
    changed = server(updated="2026-11-22T00:00:05Z")
    changed["metadata"]["backfill_cpus"] = "2"
    link.show(changed)
    assert seen_by(provider)["vn1"].resources.cpus == 2


def test_a_tag_of_another_cluster_makes_no_server_ours() -> None:
    """Also one whose name begins as ours does."""
    assert is_ours(without(), "c1")
    assert not is_ours({**without(), "tags": ["backfill.c1.x", "backfill.c1.x.vn1.3"]}, "c1")


class TaggedCloud(MemoryCloud):
    """One server, which has the port of vn1; lists know of names and tags."""

    def __init__(self, one: Server) -> None:
        super().__init__()
        self.kinds["servers"] = [one]
        port = {"id": "p1", "name": "backfill.c1.vn1", "project_id": "p1", "device_id": one["id"]}
        self.kinds["ports"] = [port]

    def get(self, service: str, path: str, subject: str, **query: str) -> Answer:
        if path != LIST:
            return super().get(service, path, subject, **query)
        (one,) = self.kinds["servers"]
        named = query.get("name", one["name"]).strip("^$") == one["name"]
        tagged = "tags" not in query or query["tags"] in one["tags"]
        return Answer({"servers": [one] if named and tagged else []}, "")


def test_the_port_of_a_living_server_is_not_removed() -> None:
    """Nothing of it proves it ours any more, but it works by that port."""
    link = TaggedCloud({**without(), "tags": []})
    with pytest.raises(BusyError, match=r"vn1: its port backfill\.c1\.vn1 still belongs to server u1"):
        delete(cloud_of(link), "east", "vn1")
    assert link.kinds["ports"] != []
    assert link.deleted == []


def test_the_port_of_a_living_server_is_not_made_anew() -> None:
    """Also when it has another address than the new instance is to have."""
    link = TaggedCloud({**without(), "name": "foo", "tags": []})
    with pytest.raises(BusyError, match="still belongs to server u1"):
        create(cloud_of(link), FIRST)
    assert link.deleted == []


def test_a_server_that_got_the_name_of_another_one_is_not_that() -> None:
    """It is neither in the way of a creation nor cleared away as the remains of an earlier one."""
    other = server("SHUTOFF", name="vn2", tags=TAGS)
    link = TaggedCloud(other)
    assert by_name(cloud_of(link), "vn2") == []
    (found,) = by_name(cloud_of(link), "vn1")
    assert found["id"] == "u1"


class CarelessCloud(TaggedCloud):
    """Its database takes letters of either case for the same, as MySQL does."""

    def get(self, service: str, path: str, subject: str, **query: str) -> Answer:
        return super().get(service, path, subject, **{k: v.upper() for k, v in query.items()})


def test_a_strangers_server_whose_name_only_looks_alike_is_not_in_the_way() -> None:
    """The node could never be made, and its name would be given up."""
    link = CarelessCloud({**server(), "name": "VN1", "metadata": {}, "tags": []})
    assert by_name(cloud_of(link), "vn1") == []
    (found,) = by_name(cloud_of(link), "VN1")
    assert found["id"] == "u1"


def test_a_renamed_server_is_not_made_a_second_time() -> None:
    """Its generation is in the way, as if it still had its name."""
    renamed = server(name="foo", tags=TAGS)
    link = TaggedCloud(renamed)
    with pytest.raises(AlreadyThereError, match="generation 3 of it is running on east"):
        create(cloud_of(link), FIRST)


@pytest.mark.parametrize(
    "changed", [{"generation": "2"}, {"node": "vn7"}, {"generation": "2", "node": "vn7"}]
)
def test_notes_that_contradict_the_tag_are_not_acted_upon(changed: dict[str, str]) -> None:
    """Somebody has changed them: with a lower generation it would be destroyed as a stale copy, at work."""
    one = server(tags=TAGS)
    one["metadata"] |= {f"backfill_{key}": value for key, value in changed.items()}
    (found,) = seen_by(provider_on(ListLink(one))).values()
    assert (found.name, found.tag, found.state) == ("vn1", SPEC.tag, InstanceState.UNKNOWN)
    assert f"its tag {unique_tag(SPEC.tag)} contradicts its metadata" in found.problem
    assert all(f"backfill_{key}={value}" in found.problem for key, value in changed.items())
    assert "--property backfill_node=vn1 --property backfill_generation=3 u1" in found.problem


def test_a_host_that_another_cloud_is_does_not_hide_a_server(caplog: pytest.LogCaptureFixture) -> None:
    """Its note was changed: the job in it would count as lost, and begin a second time.

    A daemon that begins knows no better, and says so.
    """
    places = {"east": CloudPlace("east"), "west": CloudPlace("west")}
    config = OpenStackConfig("c1", places, Shape(("tiny",), "nodes"), Guest("", ""))
    link = ListLink(server(tags=TAGS, updated=EARLY))
    provider = OpenStackProvider(config, lambda *given: link)
    before = seen_by(provider)
    moved = server(tags=TAGS)
    for second, host in enumerate(("west", "nosuch")):
        moved = server(tags=TAGS, updated=f"2026-11-22T00:00:0{second}Z")
        moved["metadata"]["backfill_host"] = host
        link.show(moved)
        assert seen_by(provider) == before
    moved["metadata"]["backfill_host"] = "west"
    caplog.clear()
    assert seen_by(OpenStackProvider(config, lambda *given: link)) == {}
    assert (
        "vn1 (west) carry the name of a host that the policy file does not have in this cloud" in caplog.text
    )
