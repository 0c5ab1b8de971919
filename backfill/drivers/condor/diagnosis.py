"""Why a pool gives no answer: HTCondor's library says the same for all reasons, so they are sought here."""

from __future__ import annotations

import base64
import binascii
import json
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from backfill.drivers.condor.settings import CondorConfig
from backfill.ports.errors import DriverError, RefusedError, UnreachableError

SUBJECT = "the HTCondor pool"
_PORT = 9618
_CONNECT_S = 5.0


def explain(config: CondorConfig, said: str) -> DriverError:
    """Return the error for a question without an answer, of which HTCondor has said this."""
    return _tokens(config) or _network(config) or _rest(config, said)


def _rest(config: CondorConfig, said: str) -> DriverError:
    if config.constraint:
        remedy = f"see condor.constraint, and that the token in {config.tokens} is good for READ"
    else:
        remedy = f"see that the token in {config.tokens} is one of this pool, and good for READ"
    return RefusedError(SUBJECT, f"it answers at {config.collector}, but not to us ({said})", remedy)


def _tokens(config: CondorConfig) -> RefusedError | None:
    """Return what is wrong with all tokens, if none is good."""
    make = "make one there: condor_token_create -identity backfill@POOL -authz READ"
    try:
        files = sorted(path for path in Path(config.tokens).iterdir() if path.is_file())
        ends = [end for path in files for end in _ends(path.read_text())]
    except OSError as error:
        why = error.strerror or type(error).__name__
        return RefusedError(SUBJECT, f"no token can be read in {config.tokens}: {why}", make)
    if not ends:
        return RefusedError(SUBJECT, f"there is no token in {config.tokens}", make)
    latest_s = max(ends, key=lambda end: float("inf") if end is None else end)
    if latest_s is None or latest_s > time.time():
        return None
    day = datetime.fromtimestamp(latest_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return RefusedError(SUBJECT, f"the token in {config.tokens} expired at {day}", make)


def _ends(text: str) -> Iterator[float | None]:
    """Yield when each token of a file ends; None: never, as far as it says."""
    for line in text.split():
        parts = line.split(".")
        if len(parts) != 3:
            continue
        try:
            claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        except (ValueError, binascii.Error):
            continue
        end = claims.get("exp") if isinstance(claims, dict) else None
        yield float(end) if isinstance(end, int | float) else None


def _network(config: CondorConfig) -> UnreachableError | None:
    """Return that nobody listens there, if so."""
    first = config.collector.split(",")[0].strip()
    host, _, port = first.partition(":")
    try:
        with socket.create_connection((host, int(port or _PORT)), timeout=_CONNECT_S):
            return None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        said = f"nothing answers at {first}: {why}"
        return UnreachableError(SUBJECT, said, "see that its collector runs, and condor.collector")
