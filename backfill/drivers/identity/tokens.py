"""Slurm's own tokens (`auth/jwt`): verified by the key, or the set of public keys, that slurmctld uses."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import jwt

from backfill.ports.errors import RefusedError
from backfill.ports.identity import TokenClaim

# Clocks of machines differ by so much, and no more, seconds.
_LEEWAY_S = 2
_LONGEST_TOKEN = 8192
_HASHED = ("HS256",)
# Algorithms of public keys, by the kind of the key (RFC 7518, 6.1).
_SIGNED = {"RSA": ("RS256", "RS384", "RS512"), "EC": ("ES256", "ES384")}
_REMEDY = "get one from `scontrol token`"


class SlurmTokens:
    """Reads tokens; the key's file is read again when it has changed. Safe from several threads."""

    def __init__(self, key: Path | None, jwks: Path | None, claim: str = "sun") -> None:
        """`key`: of HS256; `jwks`: a set of public keys; `claim`: which one names the user.

        RefusedError where a file cannot be used.
        """
        self._key, self._jwks, self._claim = key, jwks, claim
        self._known: dict[Path, tuple[tuple[int, int], Any]] = {}
        if key is not None:
            self._secret(key)
        if jwks is not None:
            self._keys(jwks)

    def read(self, token: str) -> TokenClaim:
        """Return what a token says. RefusedError, one sentence, for any that is not to be believed."""
        if len(token) > _LONGEST_TOKEN:
            raise _refused("it is too long")
        try:
            head = jwt.get_unverified_header(token)
            found = self._verified(token, head)
        except jwt.ExpiredSignatureError as error:
            raise _refused("it has expired") from error
        except jwt.ImmatureSignatureError as error:
            raise _refused(
                "it was issued in the future", "see to this machine's clock and the issuer's"
            ) from error
        except jwt.InvalidSignatureError as error:
            raise _refused("it is not signed with this cluster's key") from error
        except (jwt.PyJWTError, UnicodeError) as error:
            raise _refused(f"it cannot be read ({error})") from error
        user = found.get(self._claim)
        if not isinstance(user, str) or not user or len(user) > 256:
            raise _refused(f"it names no user ({self._claim})")
        return TokenClaim(user, float(found["exp"]))

    def _verified(self, token: str, head: dict[str, Any]) -> dict[str, Any]:
        """Verify the token by the key's own algorithm, never by the one that the token asks for."""
        algorithm = str(head.get("alg", ""))
        if algorithm in _HASHED and self._key is not None:
            key = self._secret(self._key)
        elif self._jwks is not None and any(algorithm in suiting for suiting in _SIGNED.values()):
            key = self._public(self._jwks, str(head.get("kid", "")), algorithm)
        else:
            raise _refused(f"its algorithm '{algorithm[:20]}' is none of this cluster's")
        options: Any = {"require": ["exp"], "verify_aud": False}
        found: dict[str, Any] = jwt.decode(
            token, key, algorithms=[algorithm], options=options, leeway=_LEEWAY_S
        )
        return found

    def _public(self, path: Path, name: str, algorithm: str) -> Any:
        for known in self._keys(path).keys:
            if known.key_id == name or (not name and len(self._keys(path).keys) == 1):
                if algorithm not in _SIGNED.get(known.key_type or "", ()):
                    raise _refused(f"its algorithm '{algorithm}' is not that of its key")
                return known.key
        raise _refused("it is signed with a key that this cluster does not have")

    def _secret(self, path: Path) -> bytes:
        def secret(data: bytes) -> bytes:
            if len(data) < 16:
                raise RefusedError(str(path), "it is too short for a key", "name the key that slurmctld has")
            return data

        found: bytes = self._read(path, secret, private=True)
        return found

    def _keys(self, path: Path) -> jwt.PyJWKSet:
        def keys(data: bytes) -> jwt.PyJWKSet:
            try:
                return jwt.PyJWKSet.from_dict(json.loads(data))
            except (ValueError, jwt.PyJWTError, AttributeError) as error:
                raise RefusedError(
                    str(path), f"it is no set of public keys: {error}", "name slurmctld's jwks file"
                ) from error

        found: jwt.PyJWKSet = self._read(path, keys, private=False)
        return found

    def _read(self, path: Path, make: Any, *, private: bool) -> Any:
        """Return the file as `make` understands it, read again when it has changed."""
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                stamp = (status.st_mtime_ns, status.st_ino)
                known = self._known.get(path)
                if known is not None and known[0] == stamp:
                    return known[1]
                data = file.read(1 << 20)
        except OSError as error:
            raise RefusedError(
                str(path), f"it cannot be read: {error.strerror}", "let the daemon's user read it"
            ) from error
        if private and status.st_mode & stat.S_IRWXO:
            raise RefusedError(
                str(path),
                "others on this machine can read or write this key",
                "chmod o-rwx it, and make a new one",
            )
        if status.st_mode & stat.S_IWOTH:
            raise RefusedError(
                str(path),
                "others on this machine can write these keys",
                "chmod o-w it, and look at whose keys are in it",
            )
        made = make(data)
        self._known[path] = (stamp, made)
        return made


def _refused(why: str, remedy: str = _REMEDY) -> RefusedError:
    return RefusedError("the token is refused", why, remedy)
