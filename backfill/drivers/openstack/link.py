"""Requests to one cloud: a time limit for each, repeated where that is safe, typed errors."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import openstack.config
import yaml
from keystoneauth1.exceptions import EndpointNotFound
from openstack import exceptions as sdk
from openstack.connection import Connection

from backfill.drivers.openstack.errors import FOREIGN, PASSING, status_of, translate
from backfill.drivers.openstack.settings import Patience
from backfill.ports import BadOutputError, RefusedError

Body = dict[str, Any]
# The last in which hypervisors tell their size; hosts can be named in a creation since 2.74.
MICROVERSION = "2.79"
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.2, 5.0


class Answer:
    """What a service said: `body` (empty for none) and its clock, as the Date header has it."""

    def __init__(self, body: Body, date: str) -> None:
        self.body, self.date = body, date


class Link:
    """One entry of clouds.yaml. Safe from several threads; connects on first use."""

    def __init__(
        self,
        cloud: str,
        clouds_yaml: str,
        patience: Patience,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.cloud = cloud
        self._file = clouds_yaml
        self._patience = patience
        self._sleep = sleep
        self._jitter = random.Random(cloud)  # noqa: S311 - spreads retries, hides nothing
        self._connection: Connection | None = None

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
        """The project that the credential is for."""
        try:
            return str(self._connected().session.get_project_id())
        except FOREIGN as error:
            raise translate(error, subject, self.cloud) from error

    def offers(self, service_type: str, subject: str) -> bool:
        """Whether the cloud's catalogue has a service of this type, such as block-storage."""
        try:
            return self._connected().session.get_endpoint(service_type=service_type) is not None
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

    def pause_before(self, attempt: int) -> None:
        """Wait before another try: longer each time, never exactly as long as the others do."""
        longest_s = min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2**attempt)
        self._sleep(longest_s * self._jitter.uniform(0.5, 1.0))

    def _patiently(
        self, service: str, method: str, path: str, subject: str, more: Mapping[str, Any]
    ) -> Answer:
        for attempt in range(self._patience.tries):
            try:
                return self._send(service, method, path, more)
            except FOREIGN as error:
                last = attempt == self._patience.tries - 1
                if last or status_of(error) not in PASSING:
                    raise translate(error, subject, self.cloud) from error
            self.pause_before(attempt)
        raise AssertionError("the loop ends by itself")

    def _send(self, service: str, method: str, path: str, more: Mapping[str, Any]) -> Answer:
        proxy = getattr(self._connected(), service)
        extra = {"microversion": MICROVERSION} if service == "compute" else {}
        # The proxy's own default is one retry, also for a POST that was not answered in time.
        response = proxy.request(
            path, method, connect_retries=0, timeout=self._patience.call_s, **extra, **more
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

    def _connected(self) -> Connection:
        if self._connection is None:
            entries = _entries(self._file)
            region = entries.get_one(cloud=self.cloud, api_timeout=self._patience.call_s)
            self._connection = Connection(config=region)
        return self._connection


def _entries(file: str) -> openstack.config.OpenStackConfig:
    """All of clouds.yaml; with a file that is named, whatever OS_… says in the environment."""
    if not file:
        return openstack.config.OpenStackConfig()
    try:
        yaml.safe_load(Path(file).read_text())  # the SDK passes over a file that it cannot read
        return openstack.config.OpenStackConfig(config_files=[file], load_envvars=False)
    except OSError as error:
        why = f"it cannot be read ({error.strerror})"
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        why = f"it is not YAML: {' '.join(str(error).split())}"
    raise RefusedError(file, why, "see openstack.clouds_yaml")


__all__ = ["FOREIGN", "MICROVERSION", "Answer", "Body", "Link"]
