"""A cloud that fails in all the usual ways: nothing twice, nothing left, no stuck cycle."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from openstack.connection import Connection

from backfill.core.model.fleet import CloneMethod, InstanceState
from backfill.drivers.openstack.provider import OpenStackProvider
from backfill.drivers.openstack.settings import CloudPlace
from backfill.ports.errors import DriverError, RefusedError, UnreachableError
from tests.contract.instance_rig import spec
from tests.real.openstack_rig import QUICK, OpenStackRig, config, sweep, wait
from tests.real.tenant_rig import CREATE, HANGS_S, LIST, PATIENT, TenantRig

pytestmark = [pytest.mark.real, pytest.mark.gate]


def test_an_answer_that_is_lost_after_nova_acted_makes_no_second_server(impatient: TenantRig) -> None:
    """The server is found by its tag; the POST went out once."""
    impatient.proxy.fail("POST", CREATE, stall_s=HANGS_S, acted=True)
    impatient.provider.create(spec(impatient))
    wait(lambda: impatient.state() is InstanceState.RUNNING)
    impatient.provider.create(spec(impatient))
    assert impatient.proxy.count("POST", CREATE) == 1
    assert len(impatient.servers()) == 1


def test_a_request_that_never_arrived_is_told_and_made_good(impatient: TenantRig) -> None:
    """The outcome is unknown, the sentence says so; the next call makes one."""
    impatient.proxy.fail("POST", CREATE, stall_s=HANGS_S)
    with pytest.raises(UnreachableError, match=r"vn1: it is unknown whether Nova has made it"):
        impatient.provider.create(spec(impatient))
    assert impatient.servers() == []
    impatient.born()
    assert impatient.proxy.count("POST", CREATE) == 2
    assert len(impatient.servers()) == 1


@pytest.mark.parametrize("status", [500, 502, 503])
def test_a_failing_creation_is_not_repeated_blindly(tenant: TenantRig, status: int) -> None:
    """A gateway's error leaves it open whether Nova acted: looked for, never sent again."""
    tenant.proxy.fail("POST", CREATE, status=status)
    with pytest.raises(UnreachableError, match="unknown whether Nova has made it"):
        tenant.provider.create(spec(tenant))
    assert tenant.proxy.count("POST", CREATE) == 1


def test_a_storm_of_429_delays_readings_and_tells_creators(tenant: TenantRig) -> None:
    """Readings are repeated with pauses; a creation is given back to the engine at once."""
    tenant.born()
    tenant.proxy.fail("GET", LIST, times=3, status=429, headers={"Retry-After": "1"})
    assert tenant.provider.observe("pool").host.reachable
    tenant.proxy.fail("GET", LIST, times=100, status=429)
    seen = tenant.provider.observe("pool").host
    assert not seen.reachable
    assert "429" in seen.problem
    assert "limits the rate" in seen.problem
    tenant.proxy.heal()
    tenant.proxy.fail("POST", CREATE, status=429)
    with pytest.raises(UnreachableError, match="429"):
        tenant.provider.create(spec(tenant, "vn2"))
    assert [s["name"] for s in tenant.servers()] == ["vn1"]


def test_an_action_that_was_refused_by_a_gateway_is_sent_again_after_a_look(impatient: TenantRig) -> None:
    """503 before Nova: again. An answer that is lost after Nova acted: not again."""
    impatient.born()
    impatient.proxy.fail("POST", "/action$", status=503)
    impatient.provider.pause("pool", "vn1")
    assert impatient.state() is InstanceState.PAUSED
    assert impatient.proxy.count("POST", "/action$") == 2
    impatient.proxy.fail("POST", "/action$", stall_s=HANGS_S, acted=True)
    impatient.provider.thaw("pool", "vn1")
    assert impatient.state() is InstanceState.RUNNING
    assert impatient.proxy.count("POST", "/action$") == 3


def test_a_token_that_expires_is_nobodys_business(tenant: TenantRig) -> None:
    """A 401 leads to a new token and the same request once more, a POST included."""
    tenant.born()
    tenant.proxy.fail("GET", LIST, status=401)
    assert tenant.provider.observe("pool").host.reachable
    tenant.proxy.fail("POST", "/action$", status=401)
    tenant.provider.pause("pool", "vn1")
    assert tenant.state() is InstanceState.PAUSED


def test_a_list_that_lags_neither_loses_nor_doubles_a_server(tenant: TenantRig) -> None:
    """What lists do not show yet is known from its own reading."""
    tenant.proxy.fail("GET", LIST, times=1000, edit=lambda body: {**body, "servers": []})
    tenant.proxy.fail("GET", r"/servers\?", times=1000, edit=lambda body: {**body, "servers": []})
    tenant.provider.create(spec(tenant))
    tenant.provider.create(spec(tenant))
    assert tenant.provider.read("pool", "vn1") is not None
    assert tenant.proxy.count("POST", CREATE) == 1
    tenant.proxy.heal()
    wait(lambda: tenant.state() is InstanceState.RUNNING)
    assert len(tenant.servers()) == 1


def test_what_a_tenant_may_not_is_a_clear_refusal(clouds: Path) -> None:
    """Two projects are two clouds, and in one of them Nova chooses the host."""
    places = {"east": CloudPlace("east"), "east2": CloudPlace("east"), "west": CloudPlace("west")}
    provider = OpenStackProvider(config(clouds, places, patience=PATIENT))
    try:
        provider.create(replace(spec(_Named(provider)), host="east"))
        for target, why in (("west", "different clouds"), ("east2", "Nova chooses")):
            with pytest.raises(RefusedError, match=why):
                provider.migrate("east", "vn1", target)
        instant = replace(spec(_Named(provider), "vn2"), method=CloneMethod.INSTANT)
        with pytest.raises(RefusedError, match="Nova makes no clones"):
            provider.create(instant)
    finally:
        sweep(clouds, "east")
        provider.close()


class _Named(OpenStackRig):
    """As much of a rig as `spec` needs."""

    def __init__(self, provider: OpenStackProvider) -> None:
        self.provider = provider


def test_an_api_that_hangs_does_not_stop_others(clouds: Path, tmp_path: Path) -> None:
    """Another cloud is read meanwhile; the hanging reading ends as an observation."""
    tenant = TenantRig(clouds, tmp_path, patience=replace(PATIENT, call_s=HANGS_S))
    other = OpenStackProvider(config(clouds, {"west": CloudPlace("west")}, patience=QUICK))
    tenant.proxy.fail("GET", LIST, times=100, stall_s=HANGS_S)
    seen: list[Any] = []
    slow = threading.Thread(target=lambda: seen.append(tenant.provider.observe("pool")))
    try:
        slow.start()
        wait(lambda: tenant.proxy.count("GET", LIST) == 1)
        assert other.observe("west").host.reachable
        assert not seen
    finally:
        tenant.proxy.heal()
        slow.join(HANGS_S)
        tenant.end()
        other.close()
    assert not seen[0].host.reachable
    assert "did not answer" in seen[0].host.problem


def test_a_reading_that_is_not_answered_ends_by_its_limit(impatient: TenantRig) -> None:
    """The limit of one request, not the cloud, says when a cycle goes on."""
    impatient.proxy.fail("GET", LIST, times=100, stall_s=HANGS_S)
    seen = impatient.provider.observe("pool").host
    assert not seen.reachable
    assert "did not answer" in seen.problem


def test_a_credential_that_is_wrong_is_one_clear_sentence(clouds: Path, tmp_path: Path) -> None:
    """keystoneauth's own error, which is no SDKException."""
    known = json.loads(clouds.read_text())
    known["clouds"]["east"]["auth"]["application_credential_secret"] = "wrong"
    file = tmp_path / "clouds.yaml"
    file.write_text(json.dumps(known))
    provider = OpenStackProvider(config(file, {"pool": CloudPlace("east")}, patience=PATIENT))
    seen = provider.observe("pool").host
    assert not seen.reachable
    assert "check the credential in clouds.yaml" in seen.problem
    with pytest.raises(DriverError, match="credential"):
        provider.pause("pool", "vn1")
    provider.close()


def test_a_credential_that_is_replaced_needs_no_restart(
    tenant: TenantRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is withdrawn while the daemon runs: told as that, and the file's new one is taken."""
    monkeypatch.setattr("backfill.drivers.openstack.api.link._REFUSED_REST_S", 0.0)
    known = json.loads(tenant.behind.read_text())
    auth = known["clouds"]["east"]["auth"]
    user = Connection(
        region_name="RegionOne",
        auth={
            "auth_url": auth["auth_url"],
            "username": "east",
            "password": "east",
            "project_name": "east",
            "user_domain_id": "default",
            "project_domain_id": "default",
        },
    )
    path = f"/users/{user.current_user_id}/application_credentials"

    def written(secret: str) -> str:
        wanted = {"application_credential": {"name": secret, "secret": secret}}
        answer = user.identity.post(path, json=wanted).json()["application_credential"]
        auth["application_credential_id"] = answer["id"]
        auth["application_credential_secret"] = secret
        tenant.behind.write_text(json.dumps(known))
        return f"{path}/{answer['id']}"

    made = [written("first")]
    try:
        assert tenant.provider.observe("pool").host.reachable
        assert user.identity.delete(made[0]).ok
        tenant.proxy.fail("GET", LIST, status=401)  # Nova believes in a token for five minutes
        for _ in range(2):
            assert "credential in clouds.yaml" in tenant.provider.observe("pool").host.problem
        made.append(written("second"))
        assert tenant.provider.observe("pool").host.reachable
    finally:
        for one in made:
            user.identity.delete(one)
        user.close()


def test_waiters_share_the_lists(tenant: TenantRig) -> None:
    """Operations on many servers are seen finished in common lists, not in one wait for each."""
    names = [f"vn{n}" for n in range(1, 7)]
    for name in names:
        tenant.provider.create(spec(tenant, name))
    wait(lambda: all(tenant.state(n) is InstanceState.RUNNING for n in names))
    before, began_s = tenant.proxy.count("GET", LIST), time.monotonic()
    threads = [threading.Thread(target=tenant.provider.pause, args=("pool", name)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {tenant.state(n) for n in names} == {InstanceState.PAUSED}
    lists = tenant.proxy.count("GET", LIST) - before - len(names)
    assert lists <= 2 + 2 * (time.monotonic() - began_s) / PATIENT.poll_s
    assert tenant.proxy.count("GET", "/servers/[0-9a-f-]+$") <= 2 * len(names)
