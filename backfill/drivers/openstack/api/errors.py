"""Translates the errors of openstacksdk and of keystoneauth into the typed errors of the ports."""

from __future__ import annotations

import re
import time
from email.utils import parsedate_to_datetime

from keystoneauth1 import exceptions as ka
from openstack import exceptions as sdk

from backfill.drivers.openstack.api.shortage import is_quota
from backfill.ports.errors import (
    BadOutputError,
    BusyError,
    DriverError,
    NoCapacityError,
    NotFoundError,
    RefusedError,
    UnreachableError,
)

# Both hierarchies: a wrong password, for example, is no SDKException.
FOREIGN = (sdk.SDKException, ka.ClientException)

SLOW_DOWN, _TOO_LARGE = 429, 413
_UNHEARD = 408  # a load balancer's: it has waited for the request in vain
PASSING = frozenset({_UNHEARD, SLOW_DOWN, 502, 503, 504})  # may be over soon; a GET can be repeated


class NotAdmittedError(RefusedError):
    """The cloud does not take our credential, or it cannot be used: that says nothing of the call.

    It may be over soon: Keystone rotates its keys, somebody replaces the credential.
    """

    retry = True


_BY_STATUS: dict[int, type[DriverError]] = {
    400: RefusedError,
    401: NotAdmittedError,
    403: RefusedError,
    404: NotFoundError,
    _UNHEARD: UnreachableError,
    409: BusyError,
    413: NoCapacityError,
    SLOW_DOWN: UnreachableError,
    501: RefusedError,
}
_UNTRUSTED = "certificate verify failed"
# How urllib3 wraps a failure that has one short reason.
_NESTED = ": HTTP"
_CAUSE = re.compile(r"\[(?:Errno -?\d+|SSL: \w+)\] ([^'\"()]*[^'\"() ])")
_REMEDY: dict[int, str] = {
    401: "check the credential in clouds.yaml; an application credential may have expired",
    403: "the credential lacks the role for it",
    406: "Nova of the release Train (microversion 2.79) or a newer one is needed",
    SLOW_DOWN: "the cloud limits the rate of requests; it is asked again later",
}


def status_of(error: BaseException) -> int:
    """Return the HTTP status that the error carries, 0 if it carries none.

    413 is what older services say for 429; they said it for quotas, too.
    """
    found = getattr(error, "status_code", None) or getattr(error, "http_status", None)
    if found == _TOO_LARGE and asked_rest_s(error) and not is_quota(_text(error)):
        return SLOW_DOWN
    return found if isinstance(found, int) else 0


def asked_rest_s(error: BaseException) -> float:
    """For how long the cloud wants to be left alone: its Retry-After, in seconds or as a date."""
    headers = getattr(getattr(error, "response", None), "headers", None) or {}
    said = str(headers.get("Retry-After", "")).strip()
    if said.isdecimal():  # not isdigit: '²' is a digit, and no number
        return float(said)
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
    except ValueError:
        return 0.0


def acted_is_unknown(error: BaseException) -> bool:
    """Return True if the request may have been carried out although it failed."""
    status = status_of(error)
    if status:
        return status == _UNHEARD or (status >= 500 and status != 501)
    return not isinstance(error, (ka.Unauthorized, sdk.ConfigException, ka.EndpointNotFound))


def translate(error: Exception, subject: str, cloud: str) -> DriverError:
    """Make the typed error for `error`, which came up while `subject` was handled in `cloud`."""
    if isinstance(error, DriverError):
        return error
    text = _text(error)
    status = status_of(error)
    if status:
        return _by_status(status, text, subject, cloud)
    if isinstance(error, sdk.ConfigException):
        return NotAdmittedError(subject, f"cloud {cloud} cannot be used: {text}", "see clouds.yaml")
    if isinstance(error, (ka.EndpointNotFound, ka.AuthPluginException, ka.CatalogException)):
        return NotAdmittedError(
            subject, f"cloud {cloud} cannot be used: {text}", "check region and auth in clouds.yaml"
        )
    if _UNTRUSTED in text:
        return UnreachableError(
            subject,
            f"cloud {cloud} does not prove who it is: {text}",
            "set cacert in clouds.yaml to the certificate of its authority",
        )
    if isinstance(error, (ka.ConnectFailure, ka.ConnectTimeout, sdk.ResourceTimeout)):
        return UnreachableError(subject, f"cloud {cloud} did not answer: {text}")
    if isinstance(error, ka.ClientException):
        return UnreachableError(
            subject,
            f"cloud {cloud} cannot be reached: {text}",
            "is auth_url in clouds.yaml that of Keystone?",
        )
    return BadOutputError(subject, f"cloud {cloud} answered what cannot be read: {text}")


def _by_status(status: int, text: str, subject: str, cloud: str) -> DriverError:
    said = f"cloud {cloud} said {status}: {text}"
    if status in (403, 409, 413) and is_quota(text):
        return NoCapacityError(subject, said, "free something there, or have the quota raised")
    kind = _BY_STATUS.get(status, UnreachableError if status >= 500 else RefusedError)
    remedy = "the fault is in the cloud: its operator finds it in that service's log"
    return kind(subject, said, remedy if status == 500 else _REMEDY.get(status, ""))


def _text(error: BaseException) -> str:
    """One line; what the server said comes before what the library made of it."""
    said = getattr(error, "details", None) or getattr(error, "message", None) or str(error)
    line = " ".join(str(said).split())
    if _NESTED in line:  # the address comes first, and what the system said last
        line = ": ".join((line.partition(_NESTED)[0], *_CAUSE.findall(line)[-1:]))
    return line[:300].rstrip(".") or type(error).__name__  # a remedy may follow
