"""Translates the errors of openstacksdk and of keystoneauth into the typed errors of the ports."""

from __future__ import annotations

from keystoneauth1 import exceptions as ka
from openstack import exceptions as sdk

from backfill.ports import (
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

SLOW_DOWN = 429
PASSING = frozenset({SLOW_DOWN, 502, 503, 504})  # may be over soon; a GET can be repeated
_BY_STATUS: dict[int, type[DriverError]] = {
    400: RefusedError,
    401: RefusedError,
    403: RefusedError,
    404: NotFoundError,
    409: BusyError,
    413: NoCapacityError,
    501: RefusedError,
}
# Nova and Neutron answer 403, 409 or 413 for quota; only the text tells it from a denial.
_QUOTA = (
    "quota exceeded", "exceeds quota", "over quota", "maximum number of", "overlimit",
    "exceeds allowed gigabytes quota",
)  # fmt: skip
_NO_ROOM = ("no valid host", "insufficient compute resources", "exceeded max scheduling attempts",
            "not enough", "no space left")  # fmt: skip
_REMEDY: dict[int, str] = {
    401: "check the credential in clouds.yaml; an application credential may have expired",
    403: "the credential lacks the role for it",
    SLOW_DOWN: "the cloud limits the rate of requests; it is asked again later",
}


def status_of(error: BaseException) -> int:
    """The HTTP status that the error carries, 0 if it carries none."""
    found = getattr(error, "status_code", None) or getattr(error, "http_status", None)
    return found if isinstance(found, int) else 0


def is_quota(text: str) -> bool:
    """Whether a refusal speaks of a quota."""
    return any(word in text.lower() for word in _QUOTA)


def is_no_room(text: str) -> bool:
    """Whether a server's fault says that there was no room for it."""
    return is_quota(text) or is_no_zone(text) or any(word in text.lower() for word in _NO_ROOM)


def is_no_zone(text: str) -> bool:
    """Whether a zone was refused: Nova does not know it, or none of its hosts is in service."""
    return "availability zone is not available" in text.lower()


def acted_is_unknown(error: BaseException) -> bool:
    """Whether the request may have been carried out although it failed."""
    status = status_of(error)
    if status:
        return status >= 500 and status != 501
    return not isinstance(error, (ka.Unauthorized, sdk.ConfigException, ka.EndpointNotFound))


def translate(error: Exception, subject: str, cloud: str) -> DriverError:
    """The typed error for `error`, which came up while `subject` was handled in `cloud`."""
    text = _text(error)
    status = status_of(error)
    if status:
        return _by_status(status, text, subject, cloud)
    if isinstance(error, sdk.ConfigException):
        return RefusedError(subject, f"cloud {cloud} cannot be used: {text}", "see clouds.yaml")
    if isinstance(error, (ka.EndpointNotFound, ka.AuthPluginException, ka.CatalogException)):
        return RefusedError(
            subject, f"cloud {cloud} cannot be used: {text}", "check region and auth in clouds.yaml"
        )
    if isinstance(error, (ka.ConnectFailure, ka.ConnectTimeout, sdk.ResourceTimeout)):
        return UnreachableError(subject, f"cloud {cloud} did not answer: {text}")
    if isinstance(error, ka.ClientException):
        return UnreachableError(
            subject, f"cloud {cloud} cannot be reached: {text}",
            "is auth_url in clouds.yaml that of Keystone?",
        )  # fmt: skip
    return BadOutputError(subject, f"cloud {cloud} answered what cannot be read: {text}")


def _by_status(status: int, text: str, subject: str, cloud: str) -> DriverError:
    said = f"cloud {cloud} said {status}: {text}"
    if status in (403, 409, 413) and is_quota(text):
        return NoCapacityError(subject, said, "free something there, or have the quota raised")
    kind = _BY_STATUS.get(status, UnreachableError if status >= 500 else RefusedError)
    if status == SLOW_DOWN:
        kind = UnreachableError
    remedy = "the fault is in the cloud: its operator finds it in that service's log"
    return kind(subject, said, remedy if status == 500 else _REMEDY.get(status, ""))


def _text(error: Exception) -> str:
    """One line; what the server said comes before what the library made of it."""
    said = getattr(error, "details", None) or getattr(error, "message", None) or str(error)
    return " ".join(str(said).split())[:300] or type(error).__name__
