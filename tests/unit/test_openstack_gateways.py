"""Answers that somebody else gives in Nova's place: a gateway, a load balancer, Keystone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from keystoneauth1 import exceptions as ka
from openstack import exceptions as sdk
from requests import Response

from backfill.drivers.openstack.api.errors import NotAdmittedError, acted_is_unknown, translate
from backfill.drivers.openstack.api.link import ApiLink
from backfill.drivers.openstack.provider import OpenStackProvider
from backfill.drivers.openstack.settings import CloudPlace, Guest, OpenStackConfig, Patience, Shape
from backfill.ports.errors import (
    BadOutputError,
    BusyError,
    DriverError,
    NotFoundError,
    RefusedError,
    UnreachableError,
)
from tests.unit.test_openstack_pure import server

PAGE = "<html><body><h1>{} Maintenance</h1></body></html>"


def answer(status: int, body: dict[str, Any] | None = None) -> Response:
    """As requests has it: a service's own in JSON, or a gateway's page."""
    made = Response()
    made.status_code = status
    text = PAGE.format(status) if body is None else json.dumps(body)
    made._content = text.encode()
    made.headers["Content-Type"] = "text/html" if body is None else "application/json"
    made.url = "http://cloud/servers"
    return made


class Service:
    """Answers each request by its method, as every service of the cloud."""

    def __init__(self, answers: dict[str, Response]) -> None:
        self.answers, self.asked = answers, list[str]()
        self.compute = self.network = self.block_storage = self

    def request(self, path: str, method: str, **more: Any) -> Response:
        self.asked.append(method)
        return self.answers[method]


def link_to(service: Service, monkeypatch: pytest.MonkeyPatch) -> ApiLink:
    link = ApiLink("east", "", Patience(tries=2), sleep=lambda wait_s: None)
    monkeypatch.setattr(link, "_connect", lambda: service)
    return link


def pausing(refusal: Response, monkeypatch: pytest.MonkeyPatch) -> DriverError:
    """What comes of a pause that is answered by this."""
    one = server()
    one["metadata"]["backfill_host"] = "east"
    service = Service({"GET": answer(200, {"servers": [one], "server": one}), "POST": refusal})
    config = OpenStackConfig(
        "c1",
        {"east": CloudPlace("east")},
        Shape(("tiny",), "nodes"),
        Guest("", ""),
        patience=Patience(act_s=0),
    )
    provider = OpenStackProvider(config, lambda *given: link_to(service, monkeypatch))
    with pytest.raises(DriverError) as found:
        provider.pause("east", "vn1")
    return found.value


@pytest.mark.parametrize("status", [400, 403, 404, 409])
def test_no_page_of_a_gateway_is_novas_no(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause that is refused for good leads to the next rung, where the work may be lost."""
    found = pausing(answer(status), monkeypatch)
    assert isinstance(found, BadOutputError)
    assert found.retry
    assert f"cloud east answered {status}, and it was not Nova that did" in str(found)


@pytest.mark.parametrize(
    ("status", "kind"), [(400, RefusedError), (403, RefusedError), (404, NotFoundError), (409, BusyError)]
)
def test_what_nova_itself_says_counts(
    status: int, kind: type[DriverError], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = pausing(answer(status, {"error": {"message": "no"}}), monkeypatch)
    assert type(found) is kind
    assert "cloud east said" in str(found)


def test_a_credential_that_is_not_taken_now_may_be_taken_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keystone rotates its keys, or somebody replaces the credential: the same call is worth its retry."""
    found = pausing(
        answer(401, {"error": {"message": "The request you have made requires authentication."}}), monkeypatch
    )
    assert isinstance(found, NotAdmittedError)
    assert isinstance(found, RefusedError)  # people are told so
    assert found.retry
    assert "check the credential in clouds.yaml" in str(found)


def test_a_clouds_yaml_that_is_being_edited_refuses_nothing_for_good(tmp_path: Path) -> None:
    """Nobody was asked: the same call is sent once the file is whole again."""
    file = tmp_path / "clouds.yaml"
    for text in ("clouds: {east: {auth: {auth_url:", "clouds: {west: {}}", ""):
        file.write_text(text)
        with pytest.raises(RefusedError, match=r"clouds\.yaml") as found:
            ApiLink("east", str(file), Patience(tries=1)).get("compute", "/servers", "vn1")
        assert found.value.retry


class Withdrawn:
    """Its credential is gone: Keystone says 404 to whoever asks for anything."""

    def __getattr__(self, name: str) -> Any:
        raise ka.NotFound("Could not find Application Credential: 7")

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("service", ["compute", "block_storage", "network"])
def test_a_service_that_keystone_does_not_lead_to_has_lost_nothing(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the first request it is asked where that service is: its 404 is not of a server or a volume."""
    link = ApiLink("east", "", Patience(tries=1))
    monkeypatch.setattr(link, "_connect", Withdrawn)
    for ask in (lambda: link.get(service, "/servers/u1", "vn1"), lambda: link.project_id("vn1")):
        with pytest.raises(NotAdmittedError, match="Could not find Application Credential"):
            ask()


class Misread(Withdrawn):
    """Its entry in clouds.yaml lacks a domain: Keystone understands no request for a token."""

    def __getattr__(self, name: str) -> Any:
        raise ka.BadRequest("Expecting to find domain in user")


def test_a_credential_that_keystone_cannot_read_refuses_nothing_for_good(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pause that was never sent is worth its retry, as with a wrong password."""
    link = ApiLink("east", "", Patience(tries=1))
    monkeypatch.setattr(link, "_connect", Misread)
    for ask in (lambda: link.get("compute", "/servers/u1", "vn1"), lambda: link.project_id("vn1")):
        with pytest.raises(NotAdmittedError, match="Expecting to find domain in user"):
            ask()


class NoCertificates(Service):
    """What requests says while the file of the authorities is being replaced: no error of its own."""

    def request(self, path: str, method: str, **more: Any) -> Response:
        raise OSError("Could not find a suitable TLS CA certificate bundle")


def test_what_is_amiss_on_our_own_machine_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    link = link_to(NoCertificates({}), monkeypatch)
    with pytest.raises(UnreachableError, match="cloud east cannot be asked: Could not find a suitable TLS"):
        link.get("compute", "/servers", "vn1")


def test_a_load_balancer_that_heard_no_request_refuses_nothing() -> None:
    """408: it is sent again where that is safe, or looked for."""
    late = sdk.HttpException(message="Request Time-out", http_status=408)
    assert translate(late, "vn1", "east").retry
    assert acted_is_unknown(late)


def test_a_reading_that_timed_out_at_a_load_balancer_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service({"GET": answer(408)})
    with pytest.raises(DriverError, match="408"):
        link_to(service, monkeypatch).get("compute", "/servers", "vn1")
    assert service.asked == ["GET", "GET"]
