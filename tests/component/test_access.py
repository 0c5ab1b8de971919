"""Who may what: tokens, sessions and roles, which the daemon verifies, and the log that tells of it."""

from __future__ import annotations

import base64
import hmac
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from backfill.config import ConfigError, load
from backfill.core.policies.access import People, Role, Roles
from backfill.drivers.identity.audit import AuditFiles
from backfill.drivers.identity.directory import NssDirectory
from backfill.drivers.identity.tokens import SlurmTokens
from backfill.engine.gate import ACTS_PER_MIN, SESSION_S, Caller, GateError, Gatekeeper
from backfill.ports.errors import RefusedError
from backfill.ui.cli import main
from backfill.ui.client import AskError, Client
from backfill.ui.web.tls import TlsError, check_pair, ending, self_made
from tests.component.living_daemon import WALL_S, AuditMemory, LivingDaemon, living
from tests.component.web_service import ADA, BO, CY, DI, Names, asked, with_roles

KEY = b"0123456789abcdef0123456789abcdef"
Files = Callable[..., Path]


# --- Slurm's tokens ------------------------------------------------------------------------------


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "jwt.key"
    path.write_bytes(KEY)
    path.chmod(0o600)
    return path


def token(secret: Any = KEY, algorithm: str = "HS256", **claims: object) -> str:
    now = int(time.time())
    body = {"exp": now + 600, "iat": now, "sun": "ada", **claims}
    return jwt.encode({k: v for k, v in body.items() if v is not None}, secret, algorithm)


def test_a_token_of_slurms_names_its_user(key: Path) -> None:
    """As `scontrol token` makes it; the same by another claim where the site says so."""
    claim = SlurmTokens(key, None).read(token())
    assert claim.user == "ada"
    assert claim.until_s > time.time()
    assert SlurmTokens(key, None, "username").read(token(username="bo")).user == "bo"


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (lambda: token(exp=int(time.time()) - 10), "it has expired"),
        (lambda: token(secret=b"another-cluster-has-another-key!"), "not signed with this cluster's key"),
        (
            lambda: token(iat=int(time.time()) + 300),
            "it was issued in the future; see to this machine's clock",
        ),
        (lambda: token(secret="", algorithm="none"), "its algorithm 'none' is none of this cluster's"),
        (lambda: token(KEY * 2, algorithm="HS384"), "its algorithm 'HS384' is none"),
        (lambda: token(exp=None), "it cannot be read"),
        (lambda: token(sun=None), "it names no user (sun)"),
        (lambda: token(sun=["ada"]), "it names no user (sun)"),
        (lambda: token()[:-4] + "AAAA", "not signed with this cluster's key"),
        (lambda: "nonsense", "it cannot be read"),
        (lambda: "x" * 10_000, "it is too long"),
        (lambda: "\ud800", "it cannot be read"),
    ],
)
def test_a_token_that_is_not_to_be_believed_is_refused(bad: Callable[[], str], why: str, key: Path) -> None:
    """Each in one sentence; which algorithm holds is never the token's to say."""
    with pytest.raises(RefusedError) as caught:
        SlurmTokens(key, None).read(bad())
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_set_of_public_keys_is_taken_too(tmp_path: Path, key: Path) -> None:
    """By the key's name; a public key is no secret for HS256, and a name that is not there is refused."""
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(private.public_key()))
    jwks = tmp_path / "jwks.json"
    jwks.write_text(json.dumps({"keys": [{**public, "kid": "k1", "alg": "RS256", "use": "sig"}]}))
    tokens = SlurmTokens(None, jwks)
    now = int(time.time())
    body = {"exp": now + 60, "iat": now, "sun": "bo"}
    assert tokens.read(jwt.encode(body, private, "RS256", {"kid": "k1"})).user == "bo"
    for bad in (jwt.encode(body, private, "RS256", {"kid": "k2"}), token()):
        with pytest.raises(RefusedError):
            tokens.read(bad)


def test_public_keys_are_no_secret_to_sign_with(tmp_path: Path, key: Path) -> None:
    """Who knows the set, as everybody may, signs with its text: refused, whatever else is accepted."""
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(private.public_key()))
    jwks = tmp_path / "jwks.json"
    jwks.write_text(json.dumps({"keys": [{**public, "kid": "k1"}]}))

    def part(value: bytes) -> bytes:
        return base64.urlsafe_b64encode(value).rstrip(b"=")

    head = part(json.dumps({"alg": "HS256", "typ": "JWT", "kid": "k1"}).encode())
    body = part(json.dumps({"exp": int(time.time()) + 60, "sun": "root"}).encode())
    for secret in (jwks.read_bytes(), public["n"].encode()):
        signature = part(hmac.digest(secret, head + b"." + body, "sha256"))
        forged = b".".join((head, body, signature)).decode()
        for tokens in (SlurmTokens(None, jwks), SlurmTokens(key, jwks)):
            with pytest.raises(RefusedError):
                tokens.read(forged)


@pytest.mark.parametrize("algorithm", ["ES256", "ES384", "RS256"])
def test_a_key_of_another_kind_than_the_token_asks_for_is_not_tried(algorithm: str, tmp_path: Path) -> None:
    """Anybody can write an algorithm into a token's head: a refusal like any other."""
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    curve = ec.generate_private_key(ec.SECP256R1())
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(private.public_key()))
    point = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(curve.public_key()))
    jwks = tmp_path / "jwks.json"
    jwks.write_text(json.dumps({"keys": [{**public, "kid": "rsa"}, {**point, "kid": "ec"}]}))
    tokens, body = SlurmTokens(None, jwks), {"exp": int(time.time()) + 60, "sun": "bo"}
    assert tokens.read(jwt.encode(body, private, "RS512", {"kid": "rsa"})).user == "bo"
    assert tokens.read(jwt.encode(body, curve, "ES256", {"kid": "ec"})).user == "bo"
    head = {"alg": algorithm, "kid": "ec" if algorithm == "RS256" else "rsa"}
    words = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in (head, body)
    ]
    with pytest.raises(RefusedError, match=f"its algorithm '{algorithm}' is not that of its key"):
        tokens.read(".".join([*words, "AAAA"]))


def test_a_key_that_changes_is_read_again(key: Path) -> None:
    tokens = SlurmTokens(key, None)
    key.write_bytes(KEY[::-1])
    with pytest.raises(RefusedError):
        tokens.read(token())
    assert tokens.read(token(secret=KEY[::-1])).user == "ada"


def test_a_key_that_cannot_be_used_is_told(tmp_path: Path, key: Path) -> None:
    """One that others can read, one that is not there, a short one, and a set that is none."""
    for path, mode, text, why in (
        (key, 0o644, KEY, "others on this machine can read or write this key"),
        (tmp_path / "none", None, b"", "it cannot be read: No such file"),
        (key, 0o600, b"short", "it is too short for a key"),
    ):
        if mode is not None:
            path.write_bytes(text)
            path.chmod(mode)
        with pytest.raises(RefusedError, match=why):
            SlurmTokens(path, None)
    jwks = tmp_path / "jwks"
    jwks.write_text("[]")
    with pytest.raises(RefusedError, match="it is no set of public keys"):
        SlurmTokens(None, jwks)
    jwks.chmod(0o646)  # everybody may read it, but who can write it signs for anybody
    with pytest.raises(RefusedError, match="others on this machine can write these keys; chmod o-w"):
        SlurmTokens(None, jwks)


# --- roles ---------------------------------------------------------------------------------------


def test_the_highest_role_counts() -> None:
    access = Roles(People(("*",)), People((), ("ops",)), People(("ada",)))
    assert access.role("ada", ("ops",)) is Role.ADMIN
    assert access.role("bo", ("users", "ops")) is Role.OPERATOR
    assert access.role("cy", ()) is Role.READER
    assert Roles().role("ada", ("wheel",)) is None
    assert Role.ADMIN.covers(Role.READER)
    assert not Role.READER.covers(Role.OPERATOR)


def test_groups_are_the_machines() -> None:
    directory = NssDirectory()
    assert directory.user(0) == "root"
    assert "root" in directory.groups("root")
    assert directory.groups("nobody-of-this-name") == frozenset()
    assert directory.user(2**31 - 7) == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("operator: {}", "access.operator names nobody"),
        ("operator: {users: ['*']}", "access.operator.users lets everybody be operator"),
        ("reader: {groups: ['*']}", "access.reader.groups names a group *"),
        ("writer: {users: [ada]}", "writer"),
    ],
)
def test_a_role_that_makes_no_sense_is_told(text: str, why: str, tmp_path: Path) -> None:
    """With its line, before the daemon starts."""
    from tests.component.test_policy_reload import FILE

    path = tmp_path / "policy.yaml"
    path.write_text(FILE + f"access:\n  {text}\n")
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert why in str(caught.value)
    assert "policy.yaml:12" in str(caught.value)


# --- over HTTP -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivingDaemon]:
    with living(tmp_path_factory.mktemp("daemon"), with_roles(), tokens=Names()) as made:
        made.until(lambda: len(made.daemon.world.hosts) == 2)
        yield made


@pytest.fixture(scope="module")
def web(daemon: LivingDaemon) -> Iterator[httpx.Client]:
    with asked(daemon.socket, "") as client:
        yield client


def bearer(user: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {user}"}


def test_nobody_reads_without_a_token(web: httpx.Client) -> None:
    """Monitoring does; a token that is not believed, and a user without a role, do not."""
    assert web.get("/metrics").status_code == 200
    found = web.get("/api/v1/status")
    assert (found.status_code, found.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert "say who you are" in found.json()["error"]
    assert web.get("/api/v1/status", headers=bearer("mallory")).status_code == 401
    refused = web.get("/api/v1/status", headers=bearer(DI))
    assert refused.status_code == 403
    assert refused.json()["error"] == "'status' takes the role reader, which di does not have"
    assert web.get("/api/v1/status", headers=bearer(CY)).status_code == 200
    assert web.get("/api/v1/status", headers={"X-SLURM-USER-TOKEN": BO}).status_code == 200


def test_an_answer_that_is_kept_is_for_those_who_may_read(web: httpx.Client) -> None:
    """Asked right after a reader has had it."""
    assert web.get("/api/v1/hosts", headers=bearer(CY)).status_code == 200
    assert web.get("/api/v1/hosts", headers=bearer(DI)).status_code == 403
    assert web.get("/api/v1/hosts").status_code == 401


def test_everybody_is_told_who_they_are(web: httpx.Client) -> None:
    found = web.get("/api/v1/me", headers=bearer(BO)).json()
    assert found == {"user": "bo", "role": "operator", "by": "token", "hidden": [], "csrf": ""}
    assert web.get("/api/v1/me").status_code == 401


def test_a_session_reads_by_its_cookie(web: httpx.Client, daemon: LivingDaemon) -> None:
    """No script can read it, and no other site's page sends it; it ends when it is told to."""
    begun = web.post("/api/v1/session", headers=bearer(CY))
    cookie = begun.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert set(begun.json()) == {"user", "role", "by", "csrf", "until_s"}
    assert begun.json()["until_s"] == WALL_S + 600.0  # not beyond the token's own end
    me = web.get("/api/v1/me")  # as another tab of the page asks, which has the cookie alone
    assert (me.json()["by"], me.json()["csrf"]) == ("session", begun.json()["csrf"])
    assert me.headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in me.headers
    assert web.get("/api/v1/status").status_code == 200
    assert web.delete("/api/v1/session").status_code == 403  # without the word that only our page knows
    assert web.get("/api/v1/me").status_code == 200  # so nobody is logged out
    name = web.cookies["backfill-session"]
    assert web.delete("/api/v1/session", headers={"X-CSRF-Token": begun.json()["csrf"]}).status_code == 204
    with pytest.raises(AskError, match="the session is over"):
        Client(str(daemon.socket)).ask("whoami", address="10.0.0.1", **{"as": {"session": name}})
    assert web.post("/api/v1/session").status_code == 401


@pytest.mark.parametrize(
    ("through", "secure"), [("", False), ("http", False), ("HTTPS", True), ("https, http", True)]
)
def test_behind_a_server_with_tls_the_cookie_is_for_tls_alone(
    through: str, secure: bool, web: httpx.Client
) -> None:
    """Else a browser shows it to whoever listens, as soon as somebody has it ask without."""
    begun = web.post("/api/v1/session", headers={**bearer(CY), "X-Forwarded-Proto": through})
    assert ("; Secure" in begun.headers["Set-Cookie"]) is secure
    web.cookies.clear()


@pytest.mark.parametrize(("token_s", "lasts_s"), [(600.0, 600.0), (7200.0, SESSION_S)])
def test_a_session_is_over_in_time(token_s: float, lasts_s: float) -> None:
    """With its token, and after an hour at the latest: the daemon itself says so, whatever a cookie says."""
    wall = [WALL_S]
    gate = Gatekeeper(lambda: Roles(), NssDirectory(), AuditMemory(), None, lambda: wall[0])
    begun = gate.log_in(Caller("ada", Role.READER, "token", "10.0.0.9", WALL_S + token_s))
    asked: dict[str, object] = {"as": {"session": begun["session"]}, "address": "10.0.0.9"}
    wall[0] += lasts_s - 1
    assert gate.caller(asked, 0, acts=False).user == "ada"
    wall[0] += 1
    with pytest.raises(GateError, match="the session is over; log in again"):
        gate.caller(asked, 0, acts=False)


def test_what_nobody_was_given_is_no_session(daemon: LivingDaemon) -> None:
    """Not even what is no Unicode: it is answered, too."""
    begun = relayed(daemon, "login", CY)
    for shown in ({"session": "\ud800"}, {"session": begun["session"], "csrf": "\ud800"}):
        with pytest.raises(AskError, match=r"the session is over|did not come from our own page"):
            Client(str(daemon.socket)).ask("logout", address="10.0.0.1", **{"as": shown})


# --- the daemon itself ----------------------------------------------------------------------------


def relayed(daemon: LivingDaemon, question: str, user: str, **body: object) -> Any:
    """What somebody hears whose question another process passes on, although root runs it."""
    return Client(str(daemon.socket)).ask(question, address="10.0.0.9", **{"as": {"token": user}}, **body)


def test_who_passes_on_gets_no_right_of_its_own(daemon: LivingDaemon) -> None:
    """The tests run as the daemon's own user, who may do everything; a relayed question may not."""
    client = Client(str(daemon.socket))
    assert client.ask("whoami")["role"] == "admin"
    for body in ({"address": ""}, {"address": "10.0.0.9"}, {"address": None}):
        with pytest.raises(AskError, match="say who you are"):
            client.ask("evict", subject="bm1", **body)
    for user in (CY, DI):
        with pytest.raises(AskError, match="takes the role operator"):
            relayed(daemon, "evict", user, subject="bm1")
    with pytest.raises(AskError, match="takes the role admin"):
        relayed(daemon, "reload", BO)
    assert daemon.daemon.world.closed == {}


def test_an_operator_acts_and_the_log_tells(daemon: LivingDaemon) -> None:
    """Before the act and after it: who, from where, what, and how it ended."""
    daemon.audit.entries.clear()
    relayed(daemon, "evict", BO, subject="bm1", reason="work on it")
    relayed(daemon, "evict", ADA, subject="bm1", on=False)
    with pytest.raises(AskError):
        relayed(daemon, "evict", CY, subject="bm1")
    with pytest.raises(AskError):
        relayed(daemon, "evict", BO, subject="bm9")
    told = [(e["user"], e["role"], e["from"], e["what"], str(e["result"])[:7]) for e in daemon.audit.entries]
    assert told == [
        ("bo", "operator", "10.0.0.9", "evict", "begun"),
        ("bo", "operator", "10.0.0.9", "evict", "ok"),
        ("ada", "admin", "10.0.0.9", "evict", "begun"),
        ("ada", "admin", "10.0.0.9", "evict", "ok"),
        ("cy", "reader", "10.0.0.9", "evict", "refused"),
        ("bo", "operator", "10.0.0.9", "evict", "begun"),
        ("bo", "operator", "10.0.0.9", "evict", "failed:"),
    ]
    assert daemon.audit.entries[0]["about"] == {"subject": "bm1", "reason": "work on it"}


def test_a_failed_login_is_in_the_log(daemon: LivingDaemon) -> None:
    daemon.audit.entries.clear()
    with pytest.raises(AskError, match="not signed with this cluster's key"):
        relayed(daemon, "whoami", "mallory")
    assert [(e["what"], e["from"]) for e in daemon.audit.entries] == [("login", "10.0.0.9")]


def test_nothing_that_lets_anybody_in_is_in_the_log(key: Path) -> None:
    """Neither a token, nor a session, nor its word against other pages' acts, good ones or bad."""
    audit = AuditMemory()
    gate = Gatekeeper(lambda: Roles(operator=People(("ada",))), NssDirectory(), audit, SlurmTokens(key, None))
    good, bad = token(), token(secret=b"another-cluster-has-another-key!")
    caller = gate.caller({"as": {"token": good}, "address": "10.0.0.9"}, 0, acts=False)
    session = gate.log_in(caller)
    shown = {"session": session["session"], "csrf": session["csrf"], "token": ""}
    act: dict[str, object] = {"ask": "evict", "as": shown, "address": "10.0.0.9", "subject": "bm1"}
    gate.begun(gate.caller(act, 0, acts=True), "evict", act)
    wrongs: list[object] = [{"token": bad}, {**shown, "csrf": "guessed"}, {"session": "guessed"}]
    for wrong in wrongs:
        with pytest.raises(GateError):
            gate.caller({"as": wrong, "address": "10.0.0.9"}, 0, acts=True)
    gate.log_out(act, caller)
    written = json.dumps(audit.entries)
    assert [entry["what"] for entry in audit.entries] == ["login", "evict", *["login"] * 3, "logout"]
    for secret in (good, bad, session["session"], session["csrf"], "guessed"):
        assert str(secret) not in written


def test_what_cannot_be_written_down_is_not_done(daemon: LivingDaemon) -> None:
    """But for those at the machine itself, who have to mend it."""
    daemon.audit.full = True
    try:
        with pytest.raises(AskError, match="nothing is done that cannot be written down"):
            relayed(daemon, "evict", BO, subject="bm2")
        assert daemon.daemon.world.closed == {}
        Client(str(daemon.socket)).ask("evict", subject="bm2")
        Client(str(daemon.socket)).ask("evict", subject="bm2", on=False)
    finally:
        daemon.audit.full = False


def web_gate(wall: list[float]) -> tuple[Gatekeeper, AuditMemory]:
    """A gate with the clock of `wall`, and its log."""
    audit = AuditMemory()
    return Gatekeeper(lambda: with_roles().access, NssDirectory(), audit, Names(), lambda: wall[0]), audit


def relay(gate: Gatekeeper, user: str) -> Caller:
    """Who somebody is whose token another process passes on."""
    return gate.caller({"as": {"token": user}, "address": "10.0.0.9"}, 0, acts=False)


def test_nobody_acts_without_end() -> None:
    """So many in a minute, each user by themselves."""
    now_s = 1000.0
    gate = Gatekeeper(with_roles().access.__class__, NssDirectory(), AuditMemory(), Names(), lambda: now_s)
    bo = Caller(BO, Role.OPERATOR, "token", "10.0.0.1")
    for _ in range(ACTS_PER_MIN):
        gate.count(bo)
    with pytest.raises(GateError, match="acts in a minute are enough"):
        gate.count(bo)
    gate.count(Caller(ADA, Role.ADMIN, "token"))
    now_s += 61.0
    gate.count(bo)


def test_a_flood_of_logins_fills_no_log_and_ends_no_other_session() -> None:
    """Whoever has a token may log in, also without a role: as often as they may act, and not without end."""
    gate, audit = web_gate(wall := [WALL_S])
    theirs = gate.log_in(relay(gate, ADA))
    for _ in range(9):
        for _ in range(ACTS_PER_MIN):
            gate.log_in(relay(gate, DI))
        with pytest.raises(GateError, match="acts in a minute are enough"):
            gate.log_in(relay(gate, DI))
        wall[0] += 61.0
    shown: dict[str, object] = {"as": {"session": theirs["session"]}, "address": "10.0.0.1"}
    assert gate.caller(shown, 0, acts=False).user == ADA
    assert len(audit.entries) == 1 + 9 * ACTS_PER_MIN


def test_who_has_no_session_ends_none(web: httpx.Client, daemon: LivingDaemon) -> None:
    """Nothing was done, so there is nothing to write down: it could be said without end."""
    daemon.audit.entries.clear()
    for _ in range(3):
        assert web.delete("/api/v1/session", headers=bearer(DI)).status_code == 204
        Client(str(daemon.socket)).ask("logout")
    assert daemon.audit.entries == []


def test_a_flood_of_refusals_does_not_fill_the_log() -> None:
    """So many of a minute are written down, and of the others how many they were."""
    audit, now_s = AuditMemory(), 1000.0
    gate = Gatekeeper(Roles, NssDirectory(), audit, Names(), lambda: now_s)
    for _ in range(1000):
        with pytest.raises(GateError):
            gate.caller({"address": "10.0.0.1", "as": {"token": "mallory"}}, 0, acts=False)
    assert len(audit.entries) == 120
    now_s += 61.0
    with pytest.raises(GateError):
        gate.caller({"address": "10.0.0.1", "as": {"token": "mallory"}}, 0, acts=False)
    assert [e["result"] for e in audit.entries[120:121]] == ["880 more refusals were not written down"]


def test_the_log_is_bounded_and_rotated(tmp_path: Path) -> None:
    """The latest lines are kept, in files of which none is too large."""
    log = AuditFiles(tmp_path / "audit.log", most_bytes=1000, files=3)
    for number in range(400):
        log.write({"number": number})
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["audit.log", "audit.log.1", "audit.log.2"]
    assert all(file.stat().st_size <= 1000 for file in files)
    assert files[0].stat().st_mode & 0o777 == 0o640
    lines = [json.loads(line)["number"] for file in reversed(files) for line in file.read_text().splitlines()]
    assert lines == list(range(lines[0], 400))
    with pytest.raises(RefusedError, match="the audit log cannot be written"):
        AuditFiles(tmp_path / "no" / "audit.log")


# Writes a line into the log of its argument where all files may be so long.
_ON_A_FULL_DISK = """
import resource, sys
from pathlib import Path
from backfill.drivers.identity.audit import AuditFiles
log = AuditFiles(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
log.write({"number": 2})
"""


def test_a_line_that_fits_in_part_is_not_left_there(tmp_path: Path) -> None:
    """A disk that fills up takes the first half of a line without an error: then nothing was written down."""
    path = tmp_path / "audit.log"
    log = AuditFiles(path)
    log.write({"number": 1})
    room = str(path.stat().st_size + 5)
    words = [sys.executable, "-c", _ON_A_FULL_DISK, str(path), room]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "the audit log cannot be written: No space left on device" in ended.stderr
    log.write({"number": 3})
    assert [json.loads(line)["number"] for line in path.read_text().splitlines()] == [1, 3]


# --- TLS -----------------------------------------------------------------------------------------


def test_a_certificate_is_made_for_trials(tmp_path: Path) -> None:
    """Once: the next start has the same one. Its key is closed to others."""
    cert, key = self_made(tmp_path / "tls", time.time())
    assert key.stat().st_mode & 0o777 == 0o600
    before = cert.read_bytes()
    assert self_made(tmp_path / "tls", time.time()) == (cert, key)
    assert cert.read_bytes() == before


def test_a_certificate_for_trials_is_for_the_address_that_is_listened_on(tmp_path: Path) -> None:
    """That is what the service prints, and what a client is given."""
    found = x509.load_pem_x509_certificate(self_made(tmp_path, time.time(), "10.0.0.1")[0].read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = names.get_values_for_type(x509.IPAddress)
    assert list(map(str, addresses)) == ["10.0.0.1", "127.0.0.1", "::1"]


@pytest.mark.parametrize("wrong", ["ended", "address", "damaged", "cut off"])
def test_a_certificate_for_trials_that_no_client_takes_is_made_anew(tmp_path: Path, wrong: str) -> None:
    """A service of a trial is found still running a year later, or at another address."""
    now_s = time.time()
    cert, key = self_made(tmp_path, now_s - (366 * 86400 if wrong == "ended" else 0), "10.0.0.1")
    before = cert.read_bytes()
    if wrong == "damaged":
        cert.write_bytes(before[:-40])
    if wrong == "cut off":
        cert.unlink()
    address = "10.0.0.2" if wrong == "address" else "10.0.0.1"
    assert self_made(tmp_path, now_s, address) == (cert, key)
    made = cert.read_bytes()
    assert made != before
    assert ending(cert, now_s) == ""
    assert key.stat().st_mode & 0o777 == 0o600
    self_made(tmp_path, now_s, address)
    assert cert.read_bytes() == made


def test_the_end_of_a_certificate_is_told_a_month_before(tmp_path: Path) -> None:
    """And that it is over, where it is."""
    now_s = time.time()
    cert, _ = self_made(tmp_path, now_s)
    end = x509.load_pem_x509_certificate(cert.read_bytes()).not_valid_after_utc
    assert ending(cert, end.timestamp() - 31 * 86400) == ""
    day = f"{end:%Y-%m-%d}"
    soon = ending(cert, end.timestamp() - 29 * 86400)
    assert soon == f"the certificate {cert} ends on {day}; renew it, and start the service anew"
    assert f"ended on {day}, and no client takes it" in ending(cert, end.timestamp() + 1)


def test_a_pair_that_cannot_be_used_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No key, a key that others can read, and the key of another certificate: one sentence each."""
    cert, key = self_made(tmp_path / "one", time.time())
    _, other = self_made(tmp_path / "two", time.time())
    with pytest.raises(TlsError, match="are no certificate and its key"):
        check_pair(cert, other)
    words = ["web", "--listen", "10.0.0.1:1", "--cert", str(cert)]
    assert main(words) == 64
    assert "a certificate and its key belong together" in capsys.readouterr().err
    assert main([*words, "--key", str(tmp_path / "none")]) == 65
    assert "cannot be read: No such file" in capsys.readouterr().err
    key.chmod(0o640)
    assert main([*words, "--key", str(key)]) == 65
    told = capsys.readouterr().err
    assert f"others can read the key {key}; chmod 600 it" in told
    assert told.count("\n") == 1
