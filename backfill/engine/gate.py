"""Who asks, and what they may: the daemon itself verifies it, whoever passes the question on.

A question of a service that passes on what others ask has `address`, and gets no right from the user
as whom that service runs: what counts then is the token or the session that comes with it.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from backfill.core.policies.access import Role, Roles
from backfill.engine.connection_limiter import trusted, user_told
from backfill.ports.errors import DriverError, RefusedError
from backfill.ports.identity import AuditLog, Directory, TokenReader

_LOG = logging.getLogger("backfill.gate")
Body = dict[str, object]

# A session ends with its token, and after this at the latest.
SESSION_S = 3600.0
_MOST_SESSIONS, _MOST_OF_ONE = 512, 16
# Refusals that the audit log takes in a minute from all; the further ones are counted.
_REFUSALS_PER_MIN = 120
# Acts and logins of one user in a minute.
ACTS_PER_MIN = 60
_MOST_USERS = 1024
_MINUTE_S = 60.0


class GateError(Exception):
    """Somebody is not let in: one sentence, and of which kind it is."""

    def __init__(self, sentence: str, kind: str) -> None:
        super().__init__(sentence)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who asks. `role` None: they may see what is theirs alone."""

    user: str
    role: Role | None
    how: str  # "socket", "token", "session", or "" for somebody who has not said who they are
    address: str = ""  # of another machine, or of a browser's
    until_s: float = 0.0

    def may(self, role: Role) -> bool:
        """Return True if what takes this role is theirs to do."""
        return self.role is not None and self.role.covers(role)


@dataclass(frozen=True, slots=True)
class _Session:
    user: str
    csrf: str
    until_s: float


class Gatekeeper:
    """Safe from several threads; asked in those of the listener, as a directory server may be slow."""

    def __init__(
        self,
        access: Callable[[], Roles],
        directory: Directory,
        audit: AuditLog,
        tokens: TokenReader | None = None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._access, self._directory, self._audit = access, directory, audit
        self._tokens, self._wall = tokens, wall
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()
        self._acts: OrderedDict[str, tuple[float, int]] = OrderedDict()
        self._refusals = (0.0, 0)
        self._lock = threading.Lock()

    # --- who -------------------------------------------------------------------------------------

    def caller(self, body: Body, uid: int, *, acts: bool) -> Caller:
        """Return who asks. GateError for a token or a session that is not to be believed.

        `acts`: a session has to show that the page itself asks, and not another one for it.
        """
        address = str(body.get("address") or "")[:64]
        shown = body.get("as")
        if isinstance(shown, dict) and shown.get("token"):
            return self._by_token(str(shown["token"]), address)
        if isinstance(shown, dict) and shown.get("session"):
            return self._by_session(str(shown["session"]), str(shown.get("csrf") or ""), address, acts)
        if "address" in body:
            return Caller("", None, "", address)
        if trusted(uid):
            return Caller(self._directory.user(uid) or user_told(uid), Role.ADMIN, "socket")
        user = self._directory.user(uid)
        return Caller(user or user_told(uid), self._role(user) if user else None, "socket")

    def _role(self, user: str) -> Role | None:
        return self._access().role(user, self._directory.groups(user))

    def _by_token(self, token: str, address: str) -> Caller:
        if self._tokens is None:
            raise self._stranger(
                address, "tokens are not accepted: daemon.tokens names no key in the policy file"
            )
        try:
            claim = self._tokens.read(token)
        except RefusedError as error:
            raise self._stranger(address, str(error)) from error
        return Caller(claim.user, self._role(claim.user), "token", address, claim.until_s)

    def _by_session(self, session: str, csrf: str, address: str, acts: bool) -> Caller:
        with self._lock:
            known = self._sessions.get(_hashed(session))
        if known is None or self._wall() >= known.until_s:
            raise self._stranger(address, "the session is over; log in again")
        if acts and not hmac.compare_digest(_bytes(csrf), _bytes(known.csrf)):
            why = "this did not come from our own page"
            raise self._stranger(address, why, known.user, kind="forbidden")  # the session itself goes on
        return Caller(known.user, self._role(known.user), "session", address, known.until_s)

    def _stranger(self, address: str, why: str, user: str = "", kind: str = "stranger") -> GateError:
        self.refused(Caller(user, None, "", address), "login", why)
        return GateError(why, kind)

    # --- sessions --------------------------------------------------------------------------------

    def log_in(self, caller: Caller) -> Body:
        """Begin a session for somebody who has shown a token. Of very many of one user the oldest end."""
        if caller.how != "token":
            raise GateError("a session begins with a token; get one from `scontrol token`", "stranger")
        self.count(caller)  # it takes no role, and each fills a line of the log
        name, csrf = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        until_s = min(caller.until_s, self._wall() + SESSION_S)
        with self._lock:
            self._sessions[_hashed(name)] = _Session(caller.user, csrf, until_s)
            own = [key for key, session in self._sessions.items() if session.user == caller.user]
            for key in own[:-_MOST_OF_ONE]:
                del self._sessions[key]
            while len(self._sessions) > _MOST_SESSIONS:
                self._sessions.popitem(last=False)
        self.done(caller, "login", {}, "ok")
        return {"session": name, "csrf": csrf, "until_s": until_s, **who(caller)}

    def csrf(self, body: Body) -> str:
        """Return what a page has to send with each act of its session; empty where there is none.

        Any tab of our page may read it; a page of another origin cannot, though its cookie comes along.
        """
        with self._lock:
            known = self._sessions.get(_session_hash(body))
        return "" if known is None else known.csrf

    def log_out(self, body: Body, caller: Caller) -> Body:
        """End a session, if there is one."""
        with self._lock:
            ended = self._sessions.pop(_session_hash(body), None)
        if ended is not None:
            self.done(caller, "logout", {}, "ok")
        return {}

    # --- what ------------------------------------------------------------------------------------

    def need(self, caller: Caller, role: Role, what: str) -> None:
        """Raise GateError unless the caller may do it. `what`: the question's name."""
        if caller.may(role):
            return
        if not caller.how:
            raise GateError("say who you are: send a token of this cluster (`scontrol token`)", "stranger")
        if caller.how == "socket":
            why = f"'{what}' is for root and the daemon's own user only"
            if self._access() != Roles():
                why += f", and for who is {role} by access in the policy file"
        else:
            why = f"'{what}' takes the role {role}, which {caller.user} does not have"
        self.refused(caller, what, why)
        raise GateError(why, "forbidden")

    def count(self, caller: Caller) -> None:
        """Raise GateError where somebody acts too often; the daemon's own user may."""
        if caller.how == "socket" and caller.may(Role.ADMIN):
            return
        now_s = self._wall()
        with self._lock:
            since_s, number = self._acts.pop(caller.user, (now_s, 0))
            if now_s - since_s >= _MINUTE_S or now_s < since_s:
                since_s, number = now_s, 0
            self._acts[caller.user] = (since_s, number + 1)
            if len(self._acts) > _MOST_USERS:
                self._acts.popitem(last=False)
        if number >= ACTS_PER_MIN:
            raise GateError(f"{ACTS_PER_MIN} acts in a minute are enough; try again in a moment", "often")

    # --- the audit log ---------------------------------------------------------------------------

    def begun(self, caller: Caller, what: str, body: Body) -> None:
        """Note an act before it is done. GateError where it cannot be noted: then it is not done.

        root and the daemon's own user act all the same: they must be able to mend the disk's trouble.
        """
        try:
            self._write(caller, what, body, "begun")
        except DriverError as error:
            if caller.how == "socket":
                _LOG.error("%s", error)
                return
            raise GateError(f"nothing is done that cannot be written down: {error}", "busy") from error

    def done(self, caller: Caller, what: str, body: Body, result: str) -> None:
        """Note how an act ended."""
        self._quietly(caller, what, body, result)

    def refused(self, caller: Caller, what: str, why: str) -> None:
        """Note a refusal, or a login that failed; of very many in a minute only their number."""
        now_s = self._wall()
        with self._lock:
            since_s, number = self._refusals
            over = 0
            if now_s - since_s >= _MINUTE_S or now_s < since_s:
                over, since_s, number = max(0, number - _REFUSALS_PER_MIN), now_s, 0
            self._refusals = (since_s, number + 1)
        if over:
            self._quietly(Caller("", None, ""), "", {}, f"{over} more refusals were not written down")
        if number < _REFUSALS_PER_MIN:
            self._quietly(caller, what, {}, f"refused: {why}")

    def _quietly(self, caller: Caller, what: str, body: Body, result: str) -> None:
        try:
            self._write(caller, what, body, result)
        except DriverError as error:
            _LOG.error("%s", error)

    def _write(self, caller: Caller, what: str, body: Body, result: str) -> None:
        said = {key: value for key, value in body.items() if key not in ("ask", "as", "address", "key")}
        self._audit.write(
            {
                "at_s": round(self._wall(), 3),
                "user": caller.user,
                "role": "" if caller.role is None else caller.role.value,
                "by": caller.how,
                "from": caller.address or "this machine",
                "what": what,
                "about": {key: str(value)[:200] for key, value in sorted(said.items())[:20]},
                "result": result[:500],
            }
        )


def who(caller: Caller) -> Body:
    """Say who somebody is."""
    return {"user": caller.user, "role": "" if caller.role is None else caller.role.value, "by": caller.how}


def _session_hash(body: Body) -> bytes:
    shown = body.get("as")
    return _hashed(str(shown.get("session") or "") if isinstance(shown, dict) else "")


def _hashed(name: str) -> bytes:
    """Return what is kept of a session's name: whoever reads our memory's dump cannot use it."""
    return sha256(_bytes(name)).digest()


def _bytes(text: str) -> bytes:
    """Return what somebody shows, also where it is no Unicode."""
    return text.encode("utf-8", "backslashreplace")
