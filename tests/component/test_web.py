"""The web service: its answers are the daemon's, of the shape that OpenAPI tells, and it has bounds."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import fields, replace
from math import inf
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from pydantic import BaseModel
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from backfill.core.model.fleet import Checkpoint
from backfill.core.model.lifecycle import Phase
from backfill.core.model.operations import HostAllocation, Operation, Source
from backfill.core.model.pilots import PoolPicture
from backfill.ports.errors import RefusedError
from backfill.ui.cli import main
from backfill.ui.client import AskError, Client
from backfill.ui.commands.web import endpoint
from backfill.ui.web import answers, replies
from backfill.ui.web.client_bounds import MOST_BODY_BYTES, RATE_PER_S, ClientBounds, Rates
from backfill.ui.web.gateway import Gateway
from tests.component.living_daemon import LivingDaemon, living, parked, policies
from tests.component.web_service import ROLES, Names, asked, served, with_roles

ROOT = Path(__file__).parents[2]
_PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivingDaemon]:
    with living(tmp_path_factory.mktemp("daemon"), with_roles(), tokens=Names()) as made:
        parked(made)
        yield made


@pytest.fixture(scope="module")
def web(daemon: LivingDaemon) -> Iterator[httpx.Client]:
    with asked(daemon.socket) as client:
        yield client


SHAPES: list[tuple[str, type[BaseModel]]] = [
    ("status", answers.StatusAnswer),
    ("hosts", answers.HostsAnswer),
    ("nodes", answers.NodesAnswer),
    ("instances", answers.InstancesAnswer),
    ("plan", answers.PlanAnswer),
    ("fleets", answers.FleetsAnswer),
    ("events", answers.EventsAnswer),
    ("timeline", answers.TimelineAnswer),
    ("operations", answers.OperationsAnswer),
    ("mine", answers.MineAnswer),
    ("harvest", answers.HarvestAnswer),
    ("metrics", answers.MetricsAnswer),
    ("checkpoints", answers.CheckpointsAnswer),
    ("explain/vn1", answers.ExplainAnswer),
    ("explain/bm1", answers.ExplainAnswer),
]


@pytest.mark.parametrize(("path", "shape"), SHAPES, ids=[path for path, _ in SHAPES])
def test_answers_have_the_shape_that_openapi_tells(
    path: str, shape: type[BaseModel], web: httpx.Client
) -> None:
    """Exactly: a field that the daemon's answer gains, or loses, is one here too."""
    found = web.get(f"/api/v1/{path}")
    assert found.status_code == 200
    shape.model_validate(found.json(), strict=False)


@pytest.mark.parametrize(
    ("record", "shape"),
    [
        (Operation, answers.CallTold),
        (HostAllocation, answers.ClaimTold),
        (Source, answers.SourceTold),
        (PoolPicture, answers.PoolTold),
        (Checkpoint, answers.CheckpointTold),
    ],
)
def test_records_have_the_shape_that_openapi_tells(record: type, shape: type[BaseModel]) -> None:
    """Also those of which this daemon has none, as it asks no pool."""
    kind: Any = record
    assert {one.name for one in fields(kind)} == set(shape.model_fields)


def test_the_api_is_documented(web: httpx.Client) -> None:
    """OpenAPI 3.1, without a page from elsewhere."""
    told = web.get("/openapi.json").json()
    assert told["openapi"].startswith("3.1")
    assert {f"/api/v1/{path}" for path, _ in SHAPES if "/" not in path} <= set(told["paths"])
    assert web.get("/docs").status_code == 404


def test_what_was_never_seen_is_not_found(web: httpx.Client) -> None:
    found = web.get("/api/v1/explain/vn77")
    assert (found.status_code, found.json()) == (
        404,
        {"error": "'vn77' is no node, host, job or fleet that was ever seen"},
    )


def test_a_bad_parameter_is_told_in_one_sentence(web: httpx.Client) -> None:
    found = web.get("/api/v1/hosts", params={"limit": "many"})
    assert found.status_code == 422
    assert found.json()["error"].startswith("query.limit: ")
    assert web.get("/api/v1/nothing").json() == {"error": "Not Found"}
    assert web.post("/api/v1/status").status_code == 405


def test_entries_come_in_pages(web: httpx.Client) -> None:
    """Until `next` is null: together they are all of them, each once."""
    names, after = [], ""
    while True:
        page = web.get("/api/v1/hosts", params={"limit": 1, "after": after}).json()
        names += [host["name"] for host in page["hosts"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert names == ["bm1", "bm2"]


def test_those_in_trouble_come_first_before_a_list_is_cut(tmp_path: Path) -> None:
    """Else a long one hides them. They are counted on all pages, so that nobody needs these to do so."""
    with (
        living(tmp_path, replace(policies(give_up_after=1), access=ROLES), tokens=Names()) as daemon,
        asked(daemon.socket) as web,
    ):

        def listed(name: str) -> list[str]:
            answer = web.get(f"/api/v1/{name}", params={"trouble_first": "true"}).json()
            cut = web.get(f"/api/v1/{name}", params={"limit": "1", "trouble_first": "true"}).json()
            assert cut == {
                **answer,
                name: answer[name][:1],
                **({"now_s": cut["now_s"]} if name == "nodes" else {}),
            }
            assert (cut["total"], cut["in_trouble"], cut["next"]) == (2, 1, None)
            by_name = web.get(f"/api/v1/{name}", params={"limit": "1"}).json()
            assert (by_name["in_trouble"], len(by_name[name])) == (1, 1)
            return [one["name"] for one in answer[name]]

        daemon.sim.faults.fail("create", RefusedError("vn2", "no image"), subject="vn2", times=-1)
        for _ in range(2):
            daemon.sim.submit("htc", 5000.0)
        daemon.until(lambda: daemon.phase("vn1") is Phase.READY and daemon.phase("vn2") is Phase.GIVEN_UP)
        daemon.sim.hosts["bm2"].reachable = False
        daemon.until(lambda: not daemon.daemon.world.hosts["bm2"].reachable)
        assert listed("nodes") == ["vn2", "vn1"]
        assert listed("hosts") == ["bm2", "bm1"]
        # What it had failed at is tried no more, whoever tells it.
        assert web.get("/api/v1/operations").json()["operations"] == []
        assert 'backfill_operations{state="waiting"} 0.0' in web.get("/metrics").text


@pytest.mark.parametrize("name", ["hosts", "nodes"])
def test_an_order_that_changes_has_no_pages(name: str, web: httpx.Client) -> None:
    """One that recovers between two pages would be on none of them."""
    found = web.get(f"/api/v1/{name}", params={"trouble_first": "true", "after": "bm1"})
    assert found.status_code == 422
    assert found.json()["error"] == "query.after: it goes on by names; leave trouble_first out"


def test_an_answer_that_is_known_is_not_sent_again(web: httpx.Client) -> None:
    """Its tag is the same until something happens; that time passes is nothing."""
    first = web.get("/api/v1/nodes")
    again = web.get("/api/v1/nodes", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = web.get("/api/v1/nodes", headers={"If-None-Match": 'W/"other"'})
    assert other.status_code == 200


def test_time_is_news_where_an_answer_is_reckoned_from_it() -> None:
    """How long a job stands still is told from the answer's own time, so it must not be an old one."""

    def status(every_s: float, later_s: float) -> int:
        tag = replies.told({"now_s": 1000.0, "jobs": []}, every_s=every_s).headers["ETag"]
        return replies.told({"now_s": 1000.0 + later_s, "jobs": []}, tag, every_s=every_s).status_code

    assert [status(every_s, 40.0) for every_s in (inf, 1.0, 900.0)] == [304, 200, 304]


def test_the_latest_events_come_first_unless_a_beginning_is_named(web: httpx.Client) -> None:
    def ids(**asked: int) -> list[int]:
        return [event["id"] for event in web.get("/api/v1/events", params=asked).json()["events"]]

    every = ids(first=True, limit=1000)
    assert (ids(first=True, limit=3), ids(limit=3)) == (every[:3], every[-3:])
    assert ids(after=0, limit=3) == every[-3:]  # an older client's word for the latest
    assert ids(after=every[0], first=True, limit=2) == every[1:3]


def test_monitoring_is_answered(web: httpx.Client) -> None:
    assert web.get("/livez").text == "ok\n"
    assert web.get("/readyz").json() == {"ready": True, "why": ""}
    metrics = web.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain; version=")
    assert 'backfill_nodes{phase="parked"} 1.0' in metrics.text
    told = web.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert told.headers["content-type"].startswith("application/openmetrics-text")
    assert told.text.endswith("# EOF\n")


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/", "/static/page.js"])
def test_who_asks_for_the_head_alone_gets_it(path: str, web: httpx.Client) -> None:
    """As balancers and watchdogs do: the same as with GET, without a body."""
    whole, head = web.get(path), web.head(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["Content-Type"] == whole.headers["Content-Type"]
    assert set(head.headers) == set(whole.headers)


def test_the_page_and_its_parts_are_ours_alone(web: httpx.Client) -> None:
    """No script but those files may run, and none of them names another place."""
    page = web.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "script-src 'self'" in page.headers["Content-Security-Policy"]
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]
    parts = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert {part for part in parts if not part.startswith(("/static/", "#"))} == {"data:,"}
    for part in parts:
        if part.startswith("/static/"):
            found = web.get(part)
            assert found.status_code == 200
            assert "//" not in re.sub(r"^\s*//.*|(?<=\s)// .*", "", found.text, flags=re.MULTILINE)
    assert "style=" not in page.text
    assert web.get("/static/../page.py").status_code == 404
    assert web.get("/static/secret").status_code == 404


def test_the_timelines_tell_the_story(web: httpx.Client) -> None:
    """The paused instance below the job that took its host, and each job's own row."""
    found = web.get("/api/v1/timeline").json()
    run, looks = found["runs"][0], [look[0] for look in found["looks"]]
    rows = [name for name, lanes in run["rows"] for _ in range(lanes)]
    spans = [run["spans"][at : at + 5] for at in range(0, len(run["spans"]), 5)]
    told = {(rows[lane], looks[look], run["names"][name]) for lane, _, _, look, name in spans}
    assert ("bm1", "stands still in memory", "vn1") in told
    assert {name for row, look, name in told if row == "bm1" and look == "job on bare metal"}
    assert all(length >= 1 for _, _, length, _, _ in spans)
    assert {"bm1", "bm2"} <= set(rows)


def test_without_a_daemon_it_lives_and_says_so(tmp_path: Path) -> None:
    """503 with the sentence of the command line; it goes on as soon as one answers."""
    with asked(tmp_path / "no.sock") as client:
        assert client.get("/livez").status_code == 200
        for path in ("/readyz", "/metrics", "/api/v1/status"):
            found = client.get(path)
            assert found.status_code == 503
            assert "no daemon answers on" in found.json()["error"]
            assert found.headers["Retry-After"] == "1"
        with living(tmp_path, with_roles(), tokens=Names()) as daemon:
            daemon.socket.rename(tmp_path / "no.sock")
            assert client.get("/api/v1/status").status_code == 200


def test_a_daemon_that_may_not_act_is_not_ready(tmp_path: Path) -> None:
    """Neither one whose journal is full, nor one that does not see Slurm."""
    with living(tmp_path) as daemon, asked(daemon.socket) as client:
        daemon.until(lambda: daemon.daemon.world.source_read_s("slurm") > 0)
        daemon.journal.full = True
        daemon.sim.submit("htc", 10.0)
        daemon.until(lambda: bool(daemon.daemon.world.barred))
        found = client.get("/readyz")
        assert found.status_code == 503
        assert not found.json()["ready"]
        assert "journal" in found.json()["why"]


# --- bounds --------------------------------------------------------------------------------------


def test_a_large_body_is_refused(web: httpx.Client) -> None:
    found = web.post("/api/v1/status", content=b"x" * (MOST_BODY_BYTES + 1))
    assert found.status_code == 413
    assert "a body of more than" in found.json()["error"]


def test_one_address_may_ask_only_so_often() -> None:
    """The next one hears 429 at once; others are served, and in time the first one is again."""
    now_s = 0.0
    bounded = ClientBounds(_fine, per_s=2.0, monotonic=lambda: now_s)
    assert [_status(bounded, "10.0.0.1") for _ in range(6)] == [200] * 6
    assert _status(bounded, "10.0.0.1") == 429
    assert _status(bounded, "10.0.0.2") == 200
    now_s = 1.0
    assert _status(bounded, "10.0.0.1") == 200


async def _fine(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def _silence() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


def _status(app: ASGIApp, address: str, receive: Receive = _no_body) -> int:
    """What a client from this address hears."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def ask() -> None:
        await app({"type": "http", "client": (address, 1), "path": "/"}, receive, send)

    asyncio.run(ask())
    return int(sent[0]["status"])


def test_addresses_are_remembered_within_bounds() -> None:
    rates = Rates(RATE_PER_S)
    for number in range(10_000):
        rates.admit(f"10.0.{number >> 8}.{number & 255}", 0.0)
    assert len(rates._left) <= 4096


def test_a_body_that_does_not_come_ends_the_request() -> None:
    """A client that begins and goes silent is told so, within the time."""
    assert _status(ClientBounds(_fine, within_s=0.01), "10.0.0.1", _silence) == 408


def test_equal_questions_are_asked_once() -> None:
    """Many clients that ask the same cost the daemon one question; a failure is not kept."""
    asked: list[str] = []
    gate = threading.Event()

    gateway = Gateway("nowhere")

    def answer(question: str, **body: object) -> dict[str, Any]:
        asked.append(question)
        assert gate.wait(_PATIENCE_S)
        if question == "bad":
            raise AskError("no", 69)
        return {"n": len(asked)}

    gateway._client.ask_exactly = answer  # type: ignore[method-assign]  # no daemon is needed here

    async def many() -> None:
        waiting = [asyncio.ensure_future(gateway.shared("status", {}, "")) for _ in range(50)]
        await asyncio.sleep(0)
        gate.set()
        assert await asyncio.gather(*waiting) == [{"n": 1}] * 50
        for _ in range(2):
            with pytest.raises(AskError):
                await gateway.shared("bad", {}, "")

    asyncio.run(many())
    gateway.close()
    assert asked == ["status", "bad", "bad"]


def test_one_who_is_not_let_in_takes_nobody_along() -> None:
    """Two ask the same at once, and the session of the first has just ended."""
    gateway = Gateway("nowhere")

    def answer(question: str, **body: Any) -> dict[str, Any]:
        if body["as"] == {"session": "over"}:
            raise AskError("the session is over", 1, {"kind": "stranger"})
        return {"n": 1}

    gateway._client.ask_exactly = answer  # type: ignore[method-assign]  # no daemon is needed here

    async def both() -> None:
        over = asyncio.ensure_future(gateway.shared("status", {"session": "over"}, ""))
        good = asyncio.ensure_future(gateway.shared("status", {"session": "good"}, ""))
        assert await good == {"n": 1}
        with pytest.raises(AskError):
            await over

    asyncio.run(both())
    gateway.close()


def test_questions_beyond_the_bound_are_refused_at_once() -> None:
    gateway = Gateway("nowhere")
    gateway._waiting = 10_000
    with pytest.raises(AskError, match="too many questions"):
        asyncio.run(gateway.ask("status"))
    gateway.close()


def ended(port: int, begin: bytes) -> bytes:
    """What a client hears that says no more than this, until it is hung up on."""
    with socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S) as client:
        client.sendall(begin)
        heard = b""
        while piece := client.recv(4096):
            heard += piece
        return heard


def test_half_open_connections_are_hung_up_on(daemon: LivingDaemon) -> None:
    """One that says nothing, one that stops in its head, and one that stays after its answer."""
    with served(daemon.socket, within_s=0.2) as port:
        assert ended(port, b"") == b""
        assert ended(port, b"GET /livez HTTP/1.1\r\nHost:") == b""
        assert b"ok\n" in ended(port, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")


# --- the command ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("10.0.0.1:6834", "without TLS everybody on the way reads the tokens"),
        ("example.org:1", "is no address and port"),
        ("127.0.0.1", "is no address and port"),
        ("127.0.0.1:99999", "is no address and port"),
    ],
)
def test_where_it_may_not_listen_is_told(text: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["web", "--listen", text]) == 64
    told = capsys.readouterr().err
    assert why in told
    assert told.count("\n") == 1


def test_a_certificate_that_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the status of a file that cannot be read."""
    assert main(["web", "--cert", f"{tmp_path}/crt", "--key", f"{tmp_path}/key"]) == 65
    assert f"the certificate {tmp_path}/crt cannot be read: No such file" in capsys.readouterr().err


def test_without_a_daemon_its_start_says_so_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def served(_: uvicorn.Server, sockets: list[socket.socket]) -> None:
        sockets[0].close()  # nobody asks anything

    monkeypatch.setattr(uvicorn.Server, "serve", served)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert main(["web", "--listen", f"127.0.0.1:{port}", "--socket", f"{tmp_path}/none"]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "no daemon answers on" in line]
    assert len(told) == 1
    assert told[0].endswith("tells why; until then every question here ends with 503")


def test_a_port_that_is_taken_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        assert main(["web", "--listen", f"127.0.0.1:{other.getsockname()[1]}"]) == 69
    assert "cannot be listened on: Address already in use" in capsys.readouterr().err
    assert endpoint("[::1]:80") == ("::1", 80)


def test_the_daemon_says_of_which_kind_its_errors_are(daemon: LivingDaemon) -> None:
    """Programs go by the kind; the sentence is for people."""

    def kind(question: str, **body: object) -> str:
        with pytest.raises(AskError) as caught:
            Client(str(daemon.socket)).ask(question, **body)
        assert caught.value.answer is not None
        return str(caught.value.answer.get("kind", ""))

    assert kind("explain", subject="vn77") == "unknown"
    assert kind("events", limit="many") == "unreadable"


@pytest.mark.parametrize("package", ["uvicorn", "h11"])
def test_without_its_packages_the_service_ends_for_good(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], package: str
) -> None:
    """One sentence, also for a package of a package, and a status after which its unit does not try again."""
    for name in ("uvicorn.protocols.http.h11_impl", "backfill.ui.web.client_bounds", "backfill.ui.web.app"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    status = main(["web"])
    assert capsys.readouterr().err == f"backfill: {package} is not installed; pip install 'backfill[web]'\n"
    unit = (ROOT / "config/backfill-web.service").read_text()
    (kept,) = re.findall(r"^RestartPreventExitStatus=(.*)$", unit, re.MULTILINE)
    assert str(status) in kept.split()


def test_what_another_command_lacks_is_no_mistake_in_its_policy_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The daemon needs jwt as well, where its policy file names a key of tokens."""

    def lacking(words: list[str]) -> int:
        raise ModuleNotFoundError("No module named 'jwt'", name="jwt")

    monkeypatch.setattr("backfill.ui.cli._run", lacking)
    assert main(["daemon"]) == 69
    assert capsys.readouterr().err == "backfill: jwt is not installed; pip install 'backfill[web]'\n"
