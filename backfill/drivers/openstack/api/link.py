"""Requests to one cloud: a time limit for each, repeated where that is safe, typed errors."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import openstack.config
import yaml
from keystoneauth1.exceptions import CatalogException, EndpointNotFound, HttpError, Unauthorized
from openstack import exceptions as sdk
from openstack.connection import Connection

from backfill.drivers.openstack.api.errors import (
    FOREIGN,
    PASSING,
    NotAdmittedError,
    asked_rest_s,
    status_of,
    translate,
)
from backfill.drivers.openstack.settings import Patience
from backfill.ports.errors import BadOutputError, DriverError, RefusedError, UnreachableError
from backfill.ports.hostbook import HostBook

Body = dict[str, Any]
# The last in which hypervisors tell their size; hosts can be named in a creation since 2.74.
MICROVERSION = "2.79"
_NOT_THERE = 404
# What these services refuse with such a status, they say in JSON; a page comes from a gateway before them.
_REFUSALS = frozenset({400, 403, 409})
_NAMES = {"compute": "Nova", "block_storage": "Cinder", "network": "Neutron"}
_SAID_IN_JSON = {
    "compute": _REFUSALS | {_NOT_THERE},
    "block_storage": _REFUSALS | {_NOT_THERE},
    "network": _REFUSALS,  # an extension that it lacks is a 404 in plain text
}
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 5.0
# Keystone locks out whoever comes again and again with a wrong password.
_REFUSED_REST_S = 30.0


class Answer:
    """The answer of a service: `body` (empty for none) and its clock, as the Date header has it."""

    def __init__(self, body: Body, date: str) -> None:
        self.body, self.date = body, date

    def entries(self, key: str) -> list[Body]:
        """Return the list of this name; BadOutputError if there is none, which is not an empty one."""
        found = self.body.get(key)
        if not isinstance(found, list):
            raise BadOutputError(key, f"the cloud's answer has no list of them, but {sorted(self.body)}")
        return found


class ApiLink:
    """One entry of clouds.yaml. Safe from several threads; connects on first use."""

    def __init__(
        self,
        cloud: str,
        clouds_yaml: str,
        patience: Patience,
        hosts: Sequence[str] = (),
        book: HostBook | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`hosts`: those of ours that are in this cloud; `book` knows in which project they were."""
        self.cloud = cloud
        self._file = clouds_yaml
        self._patience = patience
        self._sleep = sleep
        self._jitter = random.Random(cloud)  # noqa: S311 - spreads retries, hides nothing
        self._connection: Connection | None = None
        self._refused: tuple[float, Exception | None] = (0.0, None)  # until when, why
        self._hosts = tuple(hosts) or (cloud,)
        self._book = HostBook() if book is None else book
        self._connecting = threading.Lock()  # one at a time: whoever comes meanwhile gets the same

    def get(self, service: str, path: str, subject: str, **query: str) -> Answer:
        """Read; repeated with growing pauses while the service is overloaded or restarts."""
        return self._patiently(service, "GET", path, subject, {"params": query})

    def delete(self, service: str, path: str, subject: str) -> None:
        """Delete; repeated like a reading, since it changes nothing the second time."""
        self._patiently(service, "DELETE", path, subject, {})

    def put(self, service: str, path: str, subject: str, body: Body) -> Answer:
        """Replace; repeated like a reading."""
        return self._patiently(service, "PUT", path, subject, {"json": body})

    def post(self, service: str, path: str, subject: str, body: Body) -> Answer:
        """Send once and never again: whoever needs it done looks first what came of it.

        Raises the library's own error, from which `errors` tells whether it was carried out.
        """
        return self._send(service, "POST", path, {"json": body})

    def project_id(self, subject: str) -> str:
        """Return the id of the project that the credential is for."""
        try:
            connection = self._connected()
            with _signing_in():
                return str(connection.session.get_project_id())
        except FOREIGN as error:
            raise translate(error, subject, self.cloud) from error

    def offers(self, service_type: str, subject: str) -> bool:
        """Return True if the cloud's catalogue has a service of this type, such as block-storage."""
        try:
            connection = self._connected()
            with _signing_in():
                return connection.session.get_endpoint(service_type=service_type) is not None
        except EndpointNotFound:
            return False
        except FOREIGN as error:
            raise translate(error, subject, self.cloud) from error

    def close(self) -> None:
        """Give back the sockets."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    # --- inside --------------------------------------------------------------------------------

    def pause_before(self, attempt: int, rest_s: float = 0.0) -> None:
        """Wait before another try: longer each time, never exactly as long as the others do.

        At least `rest_s`, which is what the cloud has asked for.
        """
        longest_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2**attempt)
        self._sleep(rest_s + longest_s * self._jitter.uniform(0.5, 1.0))

    def _patiently(
        self, service: str, method: str, path: str, subject: str, more: Mapping[str, Any]
    ) -> Answer:
        for attempt in range(self._patience.tries):
            try:
                return self._send(service, method, path, more)
            except FOREIGN as error:
                last = attempt == self._patience.tries - 1
                rest_s = asked_rest_s(error)
                if last or status_of(error) not in PASSING or rest_s > _LONGEST_WAIT_S:
                    raise translate(error, subject, self.cloud) from error
            self.pause_before(attempt, rest_s)
        raise AssertionError("the loop ends by itself")

    def _send(self, service: str, method: str, path: str, more: Mapping[str, Any]) -> Answer:
        connection = self._connected()
        extra = {"microversion": MICROVERSION} if service == "compute" else {}
        # The proxy's own default is one retry, also for a POST that was not answered in time.
        try:
            with _signing_in():
                # For the first request to a service the SDK asks Keystone where that is.
                proxy = getattr(connection, service)
                response = proxy.request(
                    path, method, connect_retries=0, timeout=self._patience.call_s, **extra, **more
                )
        except Unauthorized as error:
            self._leave(connection, error)
            raise
        except OSError as error:  # not of the network: as a file of certificates that is being replaced
            raise UnreachableError(path, f"cloud {self.cloud} cannot be asked: {error}") from error
        said, status = response.headers.get("Content-Type", ""), response.status_code
        if status in _SAID_IN_JSON.get(service, ()) and "json" not in said:
            whose = _NAMES[service]
            raise BadOutputError(
                path, f"cloud {self.cloud} answered {status}, and it was not {whose} that did"
            )
        sdk.raise_from_response(response)
        date = response.headers.get("Date", "")
        if not response.content:
            return Answer({}, date)
        try:
            body = response.json()
        except ValueError as error:
            text = response.text[:80]
            raise BadOutputError(path, f"cloud {self.cloud} answered '{text}'") from error
        return Answer(body if isinstance(body, dict) else {}, date)

    def _leave(self, connection: Connection, error: Unauthorized) -> None:
        """No token any more: after a rest clouds.yaml is read anew, and may have another one."""
        if self._connection is connection:
            self._refused = (time.monotonic() + _REFUSED_REST_S, error)
            self._connection = None

    def _connected(self) -> Connection:
        with self._connecting:
            if self._connection is None:
                until_s, refusal = self._refused
                if refusal is not None and time.monotonic() < until_s:
                    raise refusal
                try:
                    self._connection = self._connect()
                except (*FOREIGN, DriverError) as error:
                    if isinstance(translate(error, self.cloud, self.cloud), RefusedError):
                        self._refused = (time.monotonic() + _REFUSED_REST_S, error)
                    raise
            return self._connection

    def _check_project(self, made: Connection) -> None:
        """Refuse another project or region than the known one: there all of our servers would seem gone."""
        project, region = f"project {made.session.get_project_id()}", _region_of(made)
        now = f"{project} in region {region}" if region else project
        for host in self._hosts:
            why = self._book.contradiction(host, now, alone=False)
            if why and self._book.contradiction(host, project, alone=False):  # known without its region
                made.close()
                raise NotAdmittedError(
                    host,
                    f"{self.cloud} in clouds.yaml is for {now}, but {why}",
                    "restore a credential for that one; to change projects for good, remove the instances "
                    "first",
                )
        for host in self._hosts:
            self._book.met(host, now)

    def _connect(self) -> Connection:
        """Sign in, so that a mistake in clouds.yaml is told as one, and not by a later request."""
        # What it has to say comes with the errors as well.
        logging.getLogger("keystoneauth").setLevel(logging.ERROR)
        try:
            region = _entries(self._file, self.cloud).get_one(
                cloud=self.cloud, api_timeout=self._patience.call_s
            )
            _check_address(self.cloud, region.config.get("auth", {}).get("auth_url"))
            made = Connection(config=region)
            with _signing_in():
                made.session.get_token()
            self._check_project(made)
        except (*FOREIGN, DriverError):
            raise
        except Exception as error:  # a wrong word, a certificate's file that is missing …
            raise NotAdmittedError(
                self.cloud, f"its entry in clouds.yaml cannot be used: {error}", "correct it there"
            ) from error
        return made


def _region_of(made: Connection) -> str:
    """Return the region whose Nova is asked, as the catalogue names it; empty: it leads to none."""
    get_access = getattr(getattr(made.session, "auth", None), "get_access", None)
    if get_access is None:
        return ""
    with suppress(EndpointNotFound, CatalogException):
        found = get_access(made.session).service_catalog.endpoint_data_for(
            service_type="compute",
            interface=made.config.get_interface("compute") or "public",
            region_name=made.config.get_region_name("compute"),
        )
        return str(found.region_name or "")
    return ""


@contextmanager
def _signing_in() -> Iterator[None]:
    """Sort the errors of signing in: an error with a status is Keystone's own answer.

    That an application credential is gone is a 404 there; it must not be taken for a server's.
    """
    try:
        yield
    except HttpError as error:
        if error.http_status in (400, 403, _NOT_THERE):
            raise Unauthorized(f"Keystone says {error.message}") from error
        raise


def _check_address(cloud: str, auth_url: object) -> None:
    """Refuse an address without a scheme: the SDK takes it, and finds no services then."""
    if auth_url and not str(auth_url).startswith(("http://", "https://")):
        raise NotAdmittedError(
            cloud, f"auth_url '{auth_url}' in clouds.yaml is no address", "begin it with https:// or http://"
        )


def _entries(file: str, cloud: str) -> openstack.config.OpenStackConfig:
    """All of clouds.yaml; with a file that is named, whatever OS_… says in the environment."""
    if not file:
        return _usual(cloud)
    try:
        # The SDK passes over a file that it cannot read, and stumbles over one of another shape.
        why = _misshapen(yaml.safe_load(Path(file).read_text()), cloud)
        if not why:
            return openstack.config.OpenStackConfig(config_files=[file], load_envvars=False)
    except OSError as error:
        why = f"it cannot be read ({error.strerror})"
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        why = _where_no_yaml(error)
    raise NotAdmittedError(file, why, "see openstack.clouds_yaml")


def _where_no_yaml(error: Exception) -> str:
    """Say where it is no YAML; PyYAML's own words show the line, and a password in it."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return "it is not YAML: it has characters that are none"
    return f"it is not YAML: see line {mark.line + 1}, column {mark.column + 1}"


def _usual(cloud: str) -> openstack.config.OpenStackConfig:
    """Whatever openstacksdk finds; that it finds nothing is told with the places."""
    found = openstack.config.OpenStackConfig()
    names = [name for name in found.get_cloud_names() if name != "defaults"]
    if cloud in names:
        return found
    if found.config_filename:
        why = f"{found.config_filename} has no such cloud, only {', '.join(names) or 'others'}"
        raise NotAdmittedError(cloud, why, "correct the name, or name the file: openstack.clouds_yaml")
    raise NotAdmittedError(
        cloud,
        "there is no clouds.yaml here, in ~/.config/openstack or in /etc/openstack",
        "write one, or name it: openstack.clouds_yaml",
    )


def _misshapen(content: object, cloud: str) -> str | None:
    """Return the reason why `cloud` cannot be found in it; None: it is there."""
    clouds = content.get("clouds") if isinstance(content, dict) else None
    if not isinstance(clouds, dict):
        return "it has no mapping `clouds:`"
    if cloud not in clouds:
        return f"it has no cloud {cloud}, only {', '.join(map(str, clouds)) or 'an empty list'}"
    entry = clouds[cloud]
    if not isinstance(entry, dict) or not isinstance(entry.get("auth", {}), dict):
        return f"what it has below {cloud} is no mapping with `auth:`"
    return None
