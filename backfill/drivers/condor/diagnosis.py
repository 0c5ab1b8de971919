"""Why a pool gives no answer: HTCondor's library says the same for all reasons, so they are sought here."""

from __future__ import annotations

import base64
import binascii
import json
import os
import pwd
import socket
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from backfill.drivers.condor.settings import CondorConfig
from backfill.ports.errors import DriverError, RefusedError, UnreachableError

SUBJECT = "the HTCondor pool"
_PORT = 9618
_CONNECT_S = 5.0
_NEVER_S = 1e11  # in the year 5138


@dataclass(frozen=True, slots=True)
class TokensSeen:
    """The tokens in the directory. `problem`: why the pool takes none; `ends_s`: when the one that it takes
    ends, None: never, as far as it says.
    """

    problem: RefusedError | None = None
    ends_s: float | None = None


def explain(config: CondorConfig, said: str) -> DriverError:
    """Return the error for a question without an answer, of which HTCondor has said this."""
    return look_at_tokens(config.tokens).problem or _network(config) or _rest(config, said)


def none_answers(config: CondorConfig, silent: Mapping[str, str]) -> DriverError:
    """Return the error for a pool whose collector answers, and none of its access points."""
    remedy = "see that its condor_schedd runs, and can be reached from here"
    if config.constraint:
        remedy = f"{remedy}; see condor.constraint"
    return look_at_tokens(config.tokens).problem or UnreachableError(SUBJECT, silent_told(silent), remedy)


def none_known() -> UnreachableError:
    """Return the error for a pool whose collector answers, and knows no queue of payloads."""
    remedy = "see that a condor_schedd reports to condor.collector"
    return UnreachableError(SUBJECT, "its collector knows no access point", remedy)


def silent_told(silent: Mapping[str, str]) -> str:
    """Say which access points do not answer, and what HTCondor says of each."""
    return ", ".join(f"access point {name} does not answer ({said})" for name, said in sorted(silent.items()))


def _rest(config: CondorConfig, said: str) -> DriverError:
    if config.constraint:
        remedy = f"see condor.constraint, and that the token in {config.tokens} is good for READ"
    else:
        remedy = f"see that the token in {config.tokens} is one of this pool, and good for READ"
    return RefusedError(SUBJECT, f"it answers at {config.collector}, but not to us ({said})", remedy)


def look_at_tokens(directory: str) -> TokensSeen:
    """Look at what proves to the pool who we are, as the user who runs this."""
    make = "make one there: condor_token_create -identity backfill@POOL -authz READ"
    passed_over = ""
    try:
        for path in sorted(path for path in Path(directory).iterdir() if path.is_file()):
            if why := _passed_over(path):
                passed_over = f"HTCondor does not take the token in {path}: {why}"
            elif ends := [*_ends(path.read_text(errors="replace"))]:
                return _good_until(path, ends[0])
    except OSError as error:
        why = error.strerror or type(error).__name__
        return TokensSeen(RefusedError(SUBJECT, f"no token can be read in {directory}: {why}", make))
    if passed_over:
        return TokensSeen(RefusedError(SUBJECT, passed_over, f"chown {_who()} and chmod 600 that file"))
    return TokensSeen(RefusedError(SUBJECT, f"there is no token in {directory}", make))


def _good_until(path: Path, end_s: float | None) -> TokensSeen:
    """HTCondor takes the first token by the names of files, good or not (measured with 25.14)."""
    if end_s is None or end_s > time.time():
        return TokensSeen(None, end_s)
    day = f"at {datetime.fromtimestamp(end_s, UTC):%Y-%m-%d %H:%M UTC}" if end_s >= 0.0 else "long ago"
    remedy = "replace that file by a new one: condor_token_create -identity backfill@POOL -authz READ"
    return TokensSeen(RefusedError(SUBJECT, f"the token in {path} expired {day}", remedy), end_s)


def _passed_over(path: Path) -> str:
    """Return why HTCondor takes no notice of a file with tokens, silently (measured with 25.14)."""
    found = path.stat()
    if found.st_uid != os.geteuid():
        return f"it belongs to uid {found.st_uid}, not to {_who()}, who asks"
    if found.st_mode & 0o077:
        return f"its mode is {stat.S_IMODE(found.st_mode):04o}, by which others may get at it"
    return ""


def _who() -> str:
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _ends(text: str) -> Iterator[float | None]:
    """Yield when each token of a file ends; None: never, as far as it says."""
    for line in text.split():
        parts = line.split(".")
        if len(parts) != 3:
            continue
        try:
            claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        except (ValueError, RecursionError, binascii.Error):
            continue
        yield _end(claims.get("exp") if isinstance(claims, dict) else None)


def _end(told: object) -> float | None:
    """Return when a token ends that tells so; None: never, or at a time that no calendar reaches."""
    if isinstance(told, bool) or not isinstance(told, int | float):
        return None
    return float(max(-1.0, told)) if told < _NEVER_S else None


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
