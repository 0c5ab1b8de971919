"""The OpenStack driver's pure parts: states, errors of both hierarchies, room, the backoff."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from keystoneauth1 import exceptions as ka
from openstack import exceptions as sdk

from backfill.core.model.fleet import Flavour, InstanceSpec, InstanceState, Tag
from backfill.core.model.quantities import NOTHING, Resources
from backfill.drivers.openstack.api.cloud import CapacityBackoff, choice_of, text_of
from backfill.drivers.openstack.api.errors import NotAdmittedError, acted_is_unknown, translate
from backfill.drivers.openstack.api.shortage import is_no_room
from backfill.drivers.openstack.api.states import (
    LAUNCHED,
    POWER,
    RECLAIM,
    RESTORED,
    Server,
    host_of,
    instance_of,
    is_ours,
    metadata_of,
    state_of,
    unique_tag,
)
from backfill.drivers.openstack.capacity import ProjectQuota, pool_room
from backfill.drivers.openstack.guest.identity import user_data
from backfill.drivers.openstack.settings import Guest
from backfill.ports.errors import (
    BadOutputError,
    BusyError,
    DriverError,
    NoCapacityError,
    NotFoundError,
    RefusedError,
    UnreachableError,
)

SPEC = InstanceSpec("vn1", "east", Tag("c1", "vn1", 3), Flavour(1, 256), "node", "10.0.1.1/16")


def server(status: str = "ACTIVE", **more: Any) -> Server:
    return {
        "id": "u1",
        "name": "vn1",
        "status": status,
        "created": "2026-11-21T22:00:00Z",
        "metadata": metadata_of(SPEC, "small@"),
        "flavor": {"vcpus": 1, "ram": 512},
        **more,
    }


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("BUILD", InstanceState.BUILDING),
        ("ACTIVE", InstanceState.RUNNING),
        ("MIGRATING", InstanceState.RUNNING),
        ("PAUSED", InstanceState.PAUSED),
        ("SUSPENDED", InstanceState.SUSPENDED),
        ("SHUTOFF", InstanceState.OFF),
        ("SHELVED_OFFLOADED", InstanceState.OFF),
        ("RESCUE", InstanceState.OFF),
        ("VERIFY_RESIZE", InstanceState.RUNNING),
        ("ERROR", InstanceState.CRASHED),
        ("SOMETHING_NEW", InstanceState.UNKNOWN),
    ],
)
def test_states(status: str, state: InstanceState) -> None:
    """Shelved is off, and so is one in whose place something else was booted (rescue)."""
    assert state_of(server(status)) is state


@pytest.mark.parametrize(
    ("launched", "power", "state"),
    [
        (None, 0, InstanceState.CRASHED),
        ("2026-11-21T22:00:05.000000", 6, InstanceState.CRASHED),
        ("2026-11-21T22:00:05.000000", 1, InstanceState.UNKNOWN),
        ("2026-11-21T22:00:05.000000", 3, InstanceState.UNKNOWN),
        ("2026-11-21T22:00:05.000000", 4, InstanceState.UNKNOWN),
        ("2026-11-21T22:00:05.000000", 0, InstanceState.UNKNOWN),
        ("2026-11-21T22:00:05.000000", None, InstanceState.UNKNOWN),
    ],
)
def test_an_error_is_the_end_only_of_what_never_ran(
    launched: str | None, power: int | None, state: InstanceState
) -> None:
    """Nova puts a server there when a call failed, or a person does: its guest may live on."""
    more = {LAUNCHED: launched, POWER: power, "fault": {"message": "Failed to suspend"}}
    seen = instance_of(server("ERROR", **more), "east")
    assert seen.state is state
    told = "Failed to suspend" in seen.problem and "operator" in seen.problem
    assert told is (state is InstanceState.UNKNOWN)


def test_the_cloud_is_told_whose_a_jobs_own_machine_is() -> None:
    """So that its own books can be summed up by job and user; of any other server nothing is said."""
    theirs = metadata_of(replace(SPEC, job="7", user="ada"), "small@")
    assert theirs == {**metadata_of(SPEC, "small@"), "backfill_job": "7", "backfill_user": "ada"}


@pytest.mark.parametrize("said", [None, "", "many"])
def test_a_server_whose_generation_is_lost_is_no_stale_copy(said: str | None) -> None:
    """By its tag it is known; without that too it is unknown, and says what to put back."""
    notes = dict(metadata_of(SPEC, "small@"))
    notes.pop("backfill_generation")
    if said is not None:
        notes["backfill_generation"] = said
    seen = instance_of(server(metadata=notes, tags=["backfill.c1", unique_tag(SPEC.tag)]), "east")
    assert (seen.tag.generation, seen.state) == (3, InstanceState.RUNNING)
    seen = instance_of(server(metadata=notes, tags=["backfill.c1"]), "east")
    assert seen.state is InstanceState.UNKNOWN
    assert "backfill_generation" in seen.problem


def test_a_server_that_found_no_room_says_so() -> None:
    """Its fault tells; one that failed otherwise is only crashed."""
    for words, is_room in (("No valid host was found.", True), ("Image is corrupt", False)):
        seen = instance_of(server("ERROR", fault={"message": words}), "east")
        assert (seen.state, bool(seen.no_room)) == (InstanceState.CRASHED, is_room)


def test_a_restored_server_counts_as_paused_until_it_is_thawed() -> None:
    """Nova has it on disk still; the mark says that it may be thawed."""
    seen = server("SUSPENDED")
    seen["metadata"][RESTORED] = "1"
    assert state_of(seen) is InstanceState.PAUSED


def test_what_nova_keeps_tells_who_it_is() -> None:
    """Tag, size and host come back; another cluster's and deleted ones are not ours."""
    seen = instance_of(server(), "east")
    assert (seen.tag, seen.resources) == (SPEC.tag, Resources(1, 256))
    assert seen.boot_s == 1795298400.0
    assert host_of(server(), {}) == "east"
    assert host_of(server(**{"OS-EXT-SRV-ATTR:host": "c2"}), {"c2": "hv2"}) == "hv2"
    assert is_ours(server(), "c1")
    assert not is_ours(server(), "other")
    assert not is_ours(server("DELETED"), "c1")


# As Nova says it where Keystone keeps the limits, which is what it recommends since 2023.
UNIFIED = "is over a limit for [Resource servers is over limit of 2 due to current usage 2 and delta 1]"


def _http(status: int, text: str) -> sdk.HttpException:
    return sdk.HttpException(message=text, http_status=status, details=text)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (_http(403, "Quota exceeded for instances: Requested 1, used 2 of 2"), NoCapacityError),
        (_http(403, "Policy doesn't allow os_compute_api:servers to be performed"), RefusedError),
        (_http(409, "Quota exceeded for resources: ['port']."), NoCapacityError),
        (_http(403, f"Project p1 {UNIFIED}"), NoCapacityError),
        (_http(409, "Cannot 'pause' instance while it is in vm_state building"), BusyError),
        (_http(404, "Instance could not be found"), NotFoundError),
        (_http(400, "Invalid image"), RefusedError),
        (_http(429, "Too many requests"), UnreachableError),
        (_http(503, "Service unavailable"), UnreachableError),
        (_http(500, "Unexpected"), UnreachableError),
        (ka.Unauthorized("wrong password"), NotAdmittedError),
        (ka.ConnectFailure("refused"), UnreachableError),
        (ka.ConnectTimeout("timed out"), UnreachableError),
        (ka.EndpointNotFound("no compute in region"), NotAdmittedError),
        (sdk.ConfigException("Cloud x was not found."), NotAdmittedError),
        (sdk.ResourceTimeout("waited"), UnreachableError),
        (sdk.SDKException("odd"), BadOutputError),
    ],
)
def test_both_hierarchies_become_typed_errors(error: Exception, kind: type[DriverError]) -> None:
    """The subject and the cloud are named; quota is told from a denial by its text."""
    found = translate(error, "vn1", "east")
    assert type(found) is kind
    assert str(found).startswith("vn1: cloud east ")


def test_what_may_have_happened_although_it_failed() -> None:
    """Timeouts and 5xx leave it open; a refusal does not."""
    open_ends = (ka.ConnectTimeout("t"), ka.ConnectFailure("c"), _http(503, ""), _http(500, ""))
    assert all(acted_is_unknown(error) for error in open_ends)
    refusals = (_http(403, "no"), _http(429, "slow"), _http(409, "busy"), ka.Unauthorized("p"))
    assert not any(acted_is_unknown(error) for error in refusals)
    assert is_no_room("No valid host was found. There are not enough hosts available.")
    assert not is_no_room("Image vanished")


def test_room_of_a_pool() -> None:
    """Quota, less others' use, less what our flavours take beyond what we asked for."""
    quota = ProjectQuota(Resources(10, 8192), Resources(3, 2048), 7, 0.0)
    # One server of ours takes 1 CPU and 512 MB for 256 MB; others use 2 CPUs and 1536 MB.
    assert pool_room(quota, [server()], 0, NOTHING) == Resources(8, 8192 - 1536 - 256)


def test_room_shrinks_when_it_is_wanted_back() -> None:
    """By a mark on a server, by what was given back lately, when no slot or no hour is left."""
    quota = ProjectQuota(Resources(10, 8192), Resources(1, 512), 7, 0.0)
    marked = server()
    marked["metadata"][RECLAIM] = "maintenance"
    free = pool_room(quota, [server()], 0, NOTHING)
    assert pool_room(quota, [marked], 0, NOTHING) == free - Resources(1, 256)
    assert pool_room(quota, [server()], 0, Resources(2, 512)) == free - Resources(2, 512)
    full = ProjectQuota(quota.most, quota.used, 0, 0.0)
    assert pool_room(full, [server()], 0, NOTHING) == Resources(1, 256)
    spent = ProjectQuota(quota.most, quota.used, 7, 100.0)
    assert pool_room(spent, [server()], 100.0, NOTHING) == NOTHING


BORN_S = 1795298400.0  # of `server()`


def test_room_is_neither_promised_twice_nor_missed_while_the_quota_is_not_read_anew() -> None:
    """What others use is what they used then, whatever came and went of ours since."""
    read = ProjectQuota(Resources(8, 8192), Resources(3, 4096), 5, 0.0, BORN_S - 60, Resources(2, 1024), 2)
    new, old = server(), server(created="2026-11-21T21:00:00Z")
    free = Resources(7, 8192 - 3072)  # others have one CPU
    for servers in ([old, old], [old, old, new], [old], []):
        beyond = Resources(0, 256 * len(servers))  # what our flavours take and do not give
        assert pool_room(read, servers, 0, NOTHING) == free - beyond
    # One that was in the use already, although lists showed it only later.
    late = ProjectQuota(read.most, read.used, 5, 0.0, BORN_S + 60)
    assert pool_room(late, [server()] * 2, 0, NOTHING) == free - Resources(0, 512)


def test_a_quota_of_fewer_servers_takes_some_back_and_a_full_group_none() -> None:
    """Each of ours is one CPU and 256 MB; a group that is full only grows no more."""
    most, used = Resources(100, 100_000), Resources(5, 2560)
    for slots, group, kept in ((1, 99, 99), (0, 99, 5), (-2, 99, 3), (-9, 99, 0), (9, 5, 5)):
        quota = ProjectQuota(most, used, slots, 0.0, group=group)
        assert min(99, pool_room(quota, [server()] * 5, 0, NOTHING).cpus) == kept


def test_the_bench_lets_others_play_for_a_while() -> None:
    """The next choice in order; when all sit there, the reason and when it ends."""
    backoff, small = CapacityBackoff((("small", "az1"), ("small", "az2")), for_s=60), ["small"]
    assert backoff.pick("vn1", small, 0.0) == ("small", "az1")
    backoff.back_off(("small", "az1"), "No valid host", 0.0)
    assert backoff.pick("vn1", small, 1.0) == ("small", "az2")
    backoff.back_off(("small", "az2"), "No valid host", 10.0)
    with pytest.raises(NoCapacityError, match=r"No valid host.*next try in 40 s"):
        backoff.pick("vn1", small, 20.0)
    assert backoff.pick("vn1", small, 60.0) == ("small", "az1")
    assert choice_of(text_of(("small", ""))) == ("small", "")


def test_a_zone_that_is_closed_takes_all_its_flavours_along() -> None:
    """The next pair is in another zone."""
    backoff = CapacityBackoff((("s", "a"), ("m", "a"), ("s", "b")), 60.0)
    backoff.back_off_zone("a", "not available", 100.0)
    assert backoff.pick("vn1", "sm", 101.0) == ("s", "b")
    assert backoff.pick("vn1", "sm", 161.0) == ("s", "a")


def test_a_flavour_that_is_too_small_is_passed_over() -> None:
    """And where those that are large enough have no room, that is said, whatever the others have."""
    backoff = CapacityBackoff((("s", ""), ("m", "")), 60.0)
    assert backoff.pick("vn1", "m", 0.0) == ("m", "")
    backoff.back_off(("m", ""), "No valid host", 0.0)
    with pytest.raises(NoCapacityError, match=r"No valid host, of those that are large enough"):
        backoff.pick("vn1", "m", 1.0)
    assert not backoff.is_full(1.0)


def test_user_data_tell_a_guest_who_it_is_and_no_secret(tmp_path: Any) -> None:
    """cloud-config with the identity file of every provider: jobs in the guest can read it all."""
    key = tmp_path / "munge.key"
    key.write_bytes(b"secret")
    peers = {"vn1": "10.0.1.1", "vn2": "10.0.1.2"}
    guest = Guest("10.0.0.1", "10.0.0.1:6817", str(key), peers=peers)
    head, _, body = base64.b64decode(user_data(SPEC, guest)).decode().partition("\n")
    assert head == "#cloud-config"
    files = {f["path"]: f for f in json.loads(body)["write_files"]}
    assert list(files) == ["/etc/backfill/identity", "/etc/backfill/peers"]
    assert base64.b64decode(files["/etc/backfill/peers"]["content"]) == b"10.0.1.2 vn2\n"
    identity = base64.b64decode(files["/etc/backfill/identity"]["content"]).decode()
    assert "NODE_NAME=vn1\nADDRESS=10.0.1.1/16\n" in identity
    assert "secret" not in identity
    assert "munge" not in body
