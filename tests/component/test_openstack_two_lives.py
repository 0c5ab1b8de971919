"""Two servers of one node: one of an earlier life came back, as when a deferred deletion is taken back."""

from __future__ import annotations

from typing import Any

import pytest

from backfill.core.model.fleet import Instance, InstanceState
from backfill.drivers.openstack.api.states import LAUNCHED, Server
from backfill.drivers.openstack.provider import OpenStackProvider
from backfill.drivers.openstack.settings import CloudPlace, Guest, OpenStackConfig, Patience, Shape
from tests.component.test_openstack_asking import MemoryLink
from tests.unit.test_openstack_pure import SPEC, server

NAME, CLUSTER = SPEC.name, SPEC.tag.cluster


class TwoLives(MemoryLink):
    """A project with these servers, by their ids; those that are deleted are shown as such."""

    def __init__(self, *servers: Server) -> None:
        super().__init__()
        self.pages = {"/servers/detail": {"servers": list(servers)}, "/ports": {"ports": []}}
        self.deleted: list[str] = []

    def project_id(self, subject: str) -> str:
        return "p1"

    def delete(self, service: str, path: str, subject: str) -> None:
        self.deleted.append(path.rpartition("/")[2])
        for one in self.pages["/servers/detail"]["servers"]:
            if one["id"] in self.deleted:
                one["status"] = "DELETED"


def of(generation: int | None, status: str = "ACTIVE", identity: str = "", **more: Any) -> Server:
    """A server of that life; None: nobody can tell of which."""
    made = server(status, id=identity or f"u{generation}", created=f"2026-11-2{generation or 9}T22:00:00Z")
    notes = {**made["metadata"], "backfill_generation": str(generation), "backfill_host": "pool"}
    if generation is None:
        del notes["backfill_generation"]
    return {**made, "metadata": notes, **more}


def provider_of(link: TwoLives) -> OpenStackProvider:
    config = OpenStackConfig(
        CLUSTER,
        {"pool": CloudPlace("east")},
        Shape(("tiny",), "nodes"),
        Guest("", ""),
        patience=Patience(poll_s=0, act_s=5),
    )
    return OpenStackProvider(config, lambda *_more: link)


def shown(provider: OpenStackProvider, monkeypatch: pytest.MonkeyPatch) -> Instance:
    """What a reading of the host and one of the instance alone show; both show the same."""
    monkeypatch.setattr(provider, "_room", lambda _cloud, _host: SPEC.flavour.resources)
    seen = provider.observe("pool").instances[NAME]
    assert provider.read("pool", NAME) == seen
    return seen


# As lists of Nova's are, the newest first, and the other way round.
@pytest.mark.parametrize("order", [1, -1])
def test_the_end_of_an_earlier_life_spares_the_present_one(
    order: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a job; what came back is named, and goes alone."""
    link = TwoLives(*[of(2), of(1)][::order])
    provider = provider_of(link)
    seen = shown(provider, monkeypatch)
    assert (seen.tag.generation, seen.state) == (2, InstanceState.RUNNING)
    assert "openstack server delete u1" in seen.problem
    provider.delete("pool", NAME, generation=1)
    assert link.deleted == ["u1"]
    alone = shown(provider, monkeypatch)
    assert (alone.tag.generation, alone.problem) == (2, "")


def test_the_present_life_ends_alone_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all servers of it, as a creation whose answer was lost has made; then the other one is shown."""
    link = TwoLives(of(2), of(2, "ERROR", "u2b"), of(1))
    provider = provider_of(link)
    provider.delete("pool", NAME, generation=2)
    assert sorted(link.deleted) == ["u2", "u2b"]
    assert shown(provider, monkeypatch).tag.generation == 1
    provider.delete("pool", NAME)
    assert sorted(link.deleted) == ["u1", "u2", "u2b"]


@pytest.mark.parametrize(("beside", "goes"), [((), ["x"]), ((2,), ["u2"])])
def test_one_of_which_nobody_knows_the_life_goes_only_where_it_can_be_no_other(
    beside: tuple[int, ...], goes: list[str]
) -> None:
    """Its notes are lost: a boot that failed is cleared as ever, and work of another life stays."""
    link = TwoLives(of(None, identity="x"), *map(of, beside))
    provider_of(link).delete("pool", NAME, generation=2)
    assert link.deleted == goes


@pytest.mark.parametrize(
    ("servers", "first"),
    [
        ([of(1), of(2, "ERROR")], "u1"),  # it never ran
        ([of(1), of(2, "ERROR", **{LAUNCHED: "2026-11-22T22:00:00Z"})], "u2"),  # it may
        ([of(2), of(2, "ERROR", "u0")], "u2"),
        ([of(2), of(None, identity="u9")], "u2"),
    ],
)
def test_the_latest_that_may_have_work_is_shown(
    servers: list[Server], first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for order in (1, -1):
        provider = provider_of(TwoLives(*servers[::order]))
        assert provider._cloud("pool").need("pool", NAME)["id"] == first
        generation = shown(provider, monkeypatch).tag.generation
        assert generation == int(first[1:])
