"""Signing in to a cloud: each mistake in clouds.yaml, and a cloud's refusal, is one sentence."""

from __future__ import annotations

import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from openstack import exceptions as sdk
from requests import Response

from backfill.drivers.openstack.api.errors import asked_rest_s, status_of, translate
from backfill.drivers.openstack.api.link import ApiLink
from backfill.drivers.openstack.settings import Patience
from backfill.drivers.store.host_book import WrittenHostBook
from backfill.ports.errors import DriverError, NoCapacityError, RefusedError, UnreachableError

ADDRESS = "http://127.0.0.1:9/v3"  # nobody listens there
AUTH = {
    "username": "u",
    "password": "p",
    "project_name": "p",
    "user_domain_id": "default",
    "project_domain_id": "default",
}


def entry(auth_url: str = ADDRESS, **more: str) -> str:
    """clouds.yaml with one cloud; `more` is beside its `auth`."""
    auth = ", ".join(f"{key}: '{value}'" for key, value in {"auth_url": auth_url, **AUTH}.items())
    beside = "".join(f", {key}: '{value}'" for key, value in more.items())
    return f"clouds: {{east: {{auth: {{{auth}}}{beside}}}}}"


def told(tmp_path: Path, content: str) -> DriverError:
    """What the first request says with such a file."""
    file = tmp_path / "clouds.yaml"
    file.write_text(content)
    with pytest.raises(DriverError) as problem:
        ApiLink("east", str(file), Patience(tries=1)).get("compute", "/servers", "vn1")
    return problem.value


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("clouds: {west: {}}", "it has no cloud east, only west"),
        ("[east]", "it has no mapping `clouds:`"),
        ("clouds: {east: hello}", "what it has below east is no mapping with `auth:`"),
        ("clouds: [", "it is not YAML"),
        ("clouds: \0", "it is not YAML"),
        (None, "it cannot be read .No such file"),
    ],
)
def test_the_file_that_the_policy_names_is_the_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, words: str
) -> None:
    """Whatever the environment names; what is wrong with it is one sentence."""
    other, file = tmp_path / "other.yaml", tmp_path / "clouds.yaml"
    other.write_text("clouds: {east: {auth: {auth_url: 'http://127.0.0.1:9/v3'}}}")
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(other))
    if content is not None:
        file.write_text(content)
    with pytest.raises(RefusedError, match=f"{words}.*; see"):
        ApiLink("east", str(file), Patience()).get("compute", "/servers", "vn1")


@pytest.mark.parametrize("secret", ['"Hush7', "*Hush7", "!Hush7", "&Hush7 &Hush7 x", "{Hush7: [", "@Hush7"])
def test_a_mistake_in_yaml_tells_where_it_is_and_no_secret(tmp_path: Path, secret: str) -> None:
    """PyYAML shows the line itself; the reason is read by whoever may ask for the hosts' state."""
    file = tmp_path / "clouds.yaml"
    file.write_text(f"clouds:\n  east:\n    auth:\n      password: {secret}\n")
    with pytest.raises(RefusedError, match=r"it is not YAML: see line \d, column \d+; see") as found:
        ApiLink("east", str(file), Patience()).get("compute", "/servers", "vn1")
    assert "Hush7" not in str(found.value)


def test_where_the_sdk_looks_there_may_be_nothing_or_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it is said where that is, or what is there instead."""
    monkeypatch.setattr("openstack.config.loader.CONFIG_FILES", [str(tmp_path / "clouds.yaml")])
    monkeypatch.delenv("OS_CLIENT_CONFIG_FILE", raising=False)
    with pytest.raises(RefusedError, match=r"^east: there is no clouds\.yaml here, in ~/"):
        ApiLink("east", "", Patience()).get("compute", "/servers", "vn1")
    (tmp_path / "clouds.yaml").write_text(entry().replace("east", "west"))
    with pytest.raises(RefusedError, match=r"^east: /.*clouds\.yaml has no such cloud, only west;"):
        ApiLink("east", "", Patience()).get("compute", "/servers", "vn1")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (entry(auth_type="magic"), "The plugin magic could not be found"),
        (entry().replace("username", "usrname"), "unexpected keyword argument 'usrname'"),
        (entry().replace("password: 'p', ", ""), "password is a required attribute"),
        (entry("127.0.0.1:9/v3"), "auth_url '127.0.0.1:9/v3' in clouds.yaml is no address; begin"),
        (entry("https://127.0.0.1:9", cacert="/nosuch.pem"), "invalid path: /nosuch.pem"),
        (entry().replace("auth_url", "url"), "were not given: auth_url; check region and auth"),
    ],
)
def test_a_mistake_in_an_entry_is_refused(tmp_path: Path, content: str, words: str) -> None:
    """Also those that openstacksdk itself stumbles over."""
    found = told(tmp_path, content)
    assert isinstance(found, RefusedError)
    assert words in str(found)
    assert "east" in str(found)


def test_a_refusal_is_not_fetched_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keystone would lock the account: for a while the first answer is given again."""
    file = tmp_path / "clouds.yaml"
    file.write_text(entry(auth_type="magic"))
    link = ApiLink("east", str(file), Patience(tries=1))
    words = []
    for _ in range(2):
        with pytest.raises(RefusedError) as problem:
            link.get("compute", "/servers", "vn1")
        words.append(str(problem.value))
        file.unlink(missing_ok=True)
    assert words[0] == words[1]
    later_s = time.monotonic() + 3600
    monkeypatch.setattr("backfill.drivers.openstack.api.link.time.monotonic", lambda: later_s)
    with pytest.raises(RefusedError, match="cannot be read"):
        link.get("compute", "/servers", "vn1")


class Session:
    """What Keystone says of a credential: its project."""

    def __init__(self, project: str) -> None:
        self.project = project

    def get_token(self) -> str:
        return "token"

    def get_project_id(self) -> str:
        return self.project


class Signed:
    """A connection that a cloud has let in."""

    def __init__(self, project: str) -> None:
        self.session, self.closed = Session(project), False

    def close(self) -> None:
        self.closed = True


def test_a_credential_of_another_project_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All servers would be gone there; another credential of the same project is taken."""
    file = tmp_path / "clouds.yaml"
    file.write_text(entry())
    made = [Signed(project) for project in ("A", "B", "A", "B", "B")]
    left = iter(made)
    monkeypatch.setattr("backfill.drivers.openstack.api.link.Connection", lambda config: next(left))
    monkeypatch.setattr("backfill.drivers.openstack.api.link._REFUSED_REST_S", 0.0)
    book = WrittenHostBook(tmp_path / "hosts.json")
    link = ApiLink("east", str(file), Patience(tries=1), ["pool", "burst"], book)
    assert link.project_id("vn1") == "A"
    book.hold({"pool", "burst"})
    link.close()
    with pytest.raises(
        RefusedError, match=r"pool: east in .* for project B, but until now it was project A; restore a cred"
    ):
        link.get("compute", "/servers", "vn1")
    assert made[1].closed
    assert link.project_id("vn1") == "A"
    # A daemon that begins knows it as well, as long as something of ours is there.
    book = WrittenHostBook(tmp_path / "hosts.json")
    book.hold({"burst"})
    begun = ApiLink("east", str(file), Patience(tries=1), ["pool", "burst"], book)
    with pytest.raises(RefusedError, match=r"burst: .*it was project A"):
        begun.project_id("vn1")
    book.hold({"pool", "burst"})  # and the other one is not taken for B's by that
    assert book.contradiction("pool", "project A", alone=False) == ""
    book.hold(())
    assert begun.project_id("vn1") == "B"


def test_nobody_at_the_address_is_told_briefly(tmp_path: Path) -> None:
    """The address and the system's word for it."""
    found = told(tmp_path, entry())
    assert isinstance(found, UnreachableError)
    assert str(found).endswith("to http://127.0.0.1:9/v3/auth/tokens: Connection refused")


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[str]:
    """The address of a server whose certificate nobody has signed."""
    files = [str(tmp_path / name) for name in ("key.pem", "cert.pem")]
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-subj",
            "/CN=localhost",
            "-keyout",
            files[0],
            "-out",
            files[1],
        ],
        check=True,
        capture_output=True,
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files[1], files[0])
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"https://localhost:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_certificate_that_nobody_vouches_for(tmp_path: Path, stranger: str) -> None:
    """What is wrong with it, and where its authority is named."""
    words = str(told(tmp_path, entry(stranger)))
    assert "certificate verify failed: self-signed certificate" in words
    assert "set cacert in clouds.yaml" in words


def refusal(status: int, text: str, **headers: str) -> sdk.HttpException:
    """As the SDK raises it."""
    made = sdk.HttpException(message=text, http_status=status, details=text)
    made.response = Response()
    made.response.headers.update({k.replace("_", "-"): v for k, v in headers.items()})
    return made


def test_how_long_a_cloud_wants_to_be_left_alone() -> None:
    """Seconds, a date, nothing, or nonsense."""
    assert asked_rest_s(refusal(429, "slow", Retry_After="7")) == 7
    dated = refusal(503, "", Retry_After=formatdate(time.time() + 90, usegmt=True))
    assert 80 < asked_rest_s(dated) <= 90
    for other in ("", "soon", "²", "-5", "Mon, 01 Jan 2001 00:00:00 GMT"):
        assert asked_rest_s(refusal(429, "slow", Retry_After=other)) == 0
    assert asked_rest_s(ValueError("no answer at all")) == 0


def test_413_is_a_rate_or_a_quota() -> None:
    """Older services say it for both."""
    rate = refusal(413, "This request was rate-limited.", Retry_After="30")
    assert status_of(rate) == 429
    assert isinstance(translate(rate, "vn1", "east"), UnreachableError)
    quota = refusal(413, "Quota exceeded for instances", Retry_After="0")
    assert isinstance(translate(quota, "vn1", "east"), NoCapacityError)


def test_a_nova_that_is_too_old_is_told() -> None:
    """It refuses the microversion."""
    old = refusal(406, "Version 2.79 is not supported by the API. Minimum is 2.1 and maximum 2.60.")
    assert "Nova of the release Train" in str(translate(old, "vn1", "east"))
