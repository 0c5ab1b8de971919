"""Acts over HTTP and from another machine: done once, by those who may, and followed as they go on."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from fastapi import Request
from starlette.types import Message

from backfill.core.model.lifecycle import Phase
from backfill.engine.repeats import KEPT_S, Repeats
from backfill.ui.cli import main
from backfill.ui.client import AskError, Client
from backfill.ui.web import answers, streaming
from backfill.ui.web.app import make_app
from backfill.ui.web.asker import Asker
from backfill.ui.web.gateway import Gateway
from tests.component.living_daemon import LivingDaemon, living, parked
from tests.component.test_policy_reload import FILE, WRONG
from tests.component.web_service import ADA, BO, CY, DI, Names, asked, with_roles


class Story:
    """A daemon at work, and its service."""

    def __init__(self, daemon: LivingDaemon, web: httpx.Client) -> None:
        self.daemon, self.web = daemon, web
        self.url = str(web.base_url).rstrip("/")
        self.low, self.high = parked(daemon)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with (
        living(tmp_path_factory.mktemp("daemon"), with_roles(), tokens=Names()) as daemon,
        asked(daemon.socket, "") as web,
    ):
        yield Story(daemon, web)


@pytest.fixture
def web(story: Story) -> httpx.Client:
    return story.web


def bearer(user: str, key: str = "") -> dict[str, str]:
    return {"Authorization": f"Bearer {user}", **({"Idempotency-Key": key} if key else {})}


def closed(story: Story) -> set[str]:
    return set(story.daemon.daemon.world.closed)


def test_an_operator_evicts_and_a_reader_cannot(story: Story) -> None:
    """The answer says where to follow it; opening goes the same way."""
    order = {"subject": "bm2", "reason": "work on it"}
    for user, status in ((CY, 403), (DI, 403), ("mallory", 401)):
        assert story.web.post("/api/v1/evictions", json=order, headers=bearer(user)).status_code == status
    assert closed(story) == set()
    done = story.web.post("/api/v1/evictions", json=order, headers=bearer(BO))
    assert (done.status_code, done.headers["Location"]) == (202, "/api/v1/explain/bm2")
    answers.OrderAnswer.model_validate(done.json())
    assert closed(story) == {"bm2"}
    found = story.web.get(done.json()["follow"], headers=bearer(CY)).json()
    assert found["host"]["closed"] == "work on it"
    again = {"subject": "bm2", "on": False}
    assert story.web.post("/api/v1/evictions", json=again, headers=bearer(BO)).status_code == 202
    assert closed(story) == set()


def test_what_cannot_be_done_is_told(web: httpx.Client) -> None:
    """A host that is not there, a body that is none, and a word too many."""
    for body, status, why in (
        ({"subject": "bm9"}, 409, "'bm9' is neither a host nor a node of ours"),
        ({"subject": "bm1", "of": True}, 422, "body.of: "),
        ({"subject": "bm1", "on": "yes"}, 422, "body.on: "),
        ({}, 422, "body.subject: "),
    ):
        found = web.post("/api/v1/evictions", json=body, headers=bearer(BO))
        assert found.status_code == status
        assert found.json()["error"].startswith(why)
    assert web.post("/api/v1/retries", json={"subject": "vn1"}, headers=bearer(BO)).status_code == 409


def test_a_reason_in_another_character_set_leaves_all_answers_readable(story: Story) -> None:
    """As a terminal that does not write UTF-8 gives it: what it says is told to everybody ever after."""
    client = Client(str(story.daemon.socket))
    client.ask("evict", subject="bm2", reason=b"work \xe0 bm2".decode("utf-8", "surrogateescape"))
    paths = ["hosts", "events", "status", "plan", "timeline", "explain/bm2"]
    found = {path: story.web.get(f"/api/v1/{path}", headers=bearer(CY)) for path in paths}
    client.ask("evict", subject="bm2", on=False)
    assert {path: reply.status_code for path, reply in found.items()} == dict.fromkeys(paths, 200)
    (host,) = (one for one in found["hosts"].json()["hosts"] if one["name"] == "bm2")
    assert host["closed"] == "work \udce0 bm2"


def test_an_order_with_the_same_key_is_done_once(story: Story) -> None:
    """The answer comes again; a key that was given with another order is refused."""
    first = story.web.post("/api/v1/fleets", json={"n": 1}, headers=bearer(BO, "k1"))
    assert first.status_code == 202
    again = story.web.post("/api/v1/fleets", json={"n": 1}, headers=bearer(BO, "k1"))
    assert again.json() == first.json()
    assert len(story.daemon.daemon.world.fleets) == 1
    other = story.web.post("/api/v1/fleets", json={"n": 2}, headers=bearer(BO, "k1"))
    assert other.status_code == 422
    assert "was given with another order" in other.json()["error"]
    name = first.json()["answer"]["id"]
    assert story.web.delete(f"/api/v1/fleets/{name}", headers=bearer(BO)).status_code == 202


def test_keys_are_each_users_own_and_forgotten_in_time() -> None:
    now_s = 0.0
    repeats = Repeats(lambda: now_s)
    order: dict[str, object] = {"ask": "fleet", "n": 1, "key": "k", "as": {"token": "x"}}
    assert repeats.begin("bo", order) is None
    again = repeats.begin("bo", {**order, "as": {"token": "another of the same user"}})
    assert again is not None
    assert (again["kind"], str(again["error"])[:36]) == ("busy", "this order is just being carried out")
    repeats.end("bo", order, {"id": "f1"})
    assert repeats.begin("bo", order) == {"id": "f1"}
    assert repeats.begin("ada", order) is None
    repeats.end("ada", order, {"error": "it failed"})
    assert repeats.begin("ada", order) is None
    now_s = KEPT_S + 1.0
    assert repeats.begin("bo", order) is None
    with pytest.raises(ValueError, match="give a shorter one"):
        repeats.begin("bo", {**order, "key": "x" * 200})
    for number in range(3000):
        repeats.begin("bo", {"key": str(number)})
    assert len(repeats._known) <= 1000


def test_a_policy_file_is_checked_and_only_an_admin_has_it_taken_over(web: httpx.Client) -> None:
    """A check changes nothing, and is for who may read."""
    good = web.post("/api/v1/policy/check", json={"text": FILE}, headers=bearer(CY))
    assert good.json() == {"problems": []}
    bad = web.post("/api/v1/policy/check", json={"text": WRONG}, headers=bearer(CY)).json()["problems"]
    assert len(bad) == 1
    assert bad[0].startswith("policy.yaml:10:")
    assert web.post("/api/v1/policy/check", json={"text": FILE}, headers=bearer(DI)).status_code == 403
    assert web.post("/api/v1/policy/reload", headers=bearer(BO)).status_code == 403
    told = web.post("/api/v1/policy/reload", headers=bearer(ADA)).json()
    assert told["problems"] == ["this daemon was not started with a policy file"]


def test_policy_texts_are_checked_one_at_a_time(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every answer shares Python's lock with a check: many of them would leave nobody any."""
    go_on, at_once, most = threading.Event(), [0], [0]

    def slow(text: str) -> list[str]:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        go_on.wait(30.0)
        at_once[0] -= 1
        return []

    monkeypatch.setattr("backfill.ui.web.acting._problems", slow)

    def check(_: int) -> int:
        found = story.web.post("/api/v1/policy/check", json={"text": "a: 1"}, headers=bearer(CY))
        if found.status_code == 503:
            go_on.set()  # so many wait that no more may
        return found.status_code

    with ThreadPoolExecutor(8) as crowd:
        replies = sorted(crowd.map(check, range(8)))
    assert most == [1]
    assert set(replies) == {200, 503}


def test_everybody_sees_their_own_jobs_alone(story: Story) -> None:
    """Without any role: what stands still, since when, why."""
    world = story.daemon.daemon.world
    owner = world.jobs[story.low].user
    assert story.web.get("/api/v1/mine").status_code == 401
    assert story.web.get("/api/v1/mine", headers=bearer(DI)).json()["jobs"] == []
    found = Client(str(story.daemon.socket)).ask("mine")
    answers.MineAnswer.model_validate(found)
    if owner == Client(str(story.daemon.socket)).ask("whoami")["user"]:
        assert story.low in {job["id"] for job in found["jobs"]}


def test_a_session_acts_only_from_its_own_page(story: Story) -> None:
    """The cookie alone, which another site's form could send, moves nothing."""
    with httpx.Client(base_url=story.url, timeout=60.0) as page:
        csrf = page.post("/api/v1/session", headers=bearer(BO)).json()["csrf"]
        order = {"subject": "bm2"}
        for headers in ({}, {"X-CSRF-Token": "guessed"}):
            refused = page.post("/api/v1/evictions", json=order, headers=headers)
            assert refused.status_code == 403
            assert refused.json()["error"] == "this did not come from our own page"
        assert closed(story) == set()
        mine = {"X-CSRF-Token": csrf}
        assert page.post("/api/v1/evictions", json=order, headers=mine).status_code == 202
        assert page.post("/api/v1/evictions", json={**order, "on": False}, headers=mine).status_code == 202


def test_events_come_as_they_happen(story: Story) -> None:
    """And a client that comes again goes on behind the last one that it has seen."""
    last = Client(str(story.daemon.socket)).ask("events", limit=1)["read_to"]

    def first(last: str) -> tuple[str, str]:
        """The first of bm2; nodes have a life of their own."""
        headers = {**bearer(CY), "Last-Event-ID": last}
        with story.web.stream("GET", "/api/v1/stream", headers=headers) as found:
            assert found.headers["content-type"].startswith("text/event-stream")
            number = ""
            for line in found.iter_lines():
                number = line.removeprefix("id: ") if line.startswith("id: ") else number
                event = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else {}
                if event.get("subject") == "bm2":
                    assert number.startswith(f"{event['id']}-")
                    return number, str(event["text"])
        raise AssertionError

    client = Client(str(story.daemon.socket))
    client.ask("evict", subject="bm2", reason="to be seen")
    client.ask("evict", subject="bm2", on=False)
    seen, text = first(str(last))
    assert text == "bm2 was closed: to be seen"
    again, text = first(seen)
    assert (again != seen, text) == (True, "bm2 was opened: evicted by hand")
    number = seen.partition("-")[0]
    assert first(number) == (again, text)
    assert first(f"{number}-1")[0] not in (seen, again)  # it was another event: all that came since then
    refused = {**bearer(CY), "Last-Event-ID": "9" * 20}
    assert story.web.get("/api/v1/stream", headers=refused).status_code == 422
    assert story.web.get("/api/v1/stream").status_code == 401


def test_who_follows_stays_while_the_daemon_is_too_busy_to_answer(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All who follow ask the same: one answer that was not to be had in time would end all of them."""
    monkeypatch.setattr("backfill.engine.queries._ANSWER_WITHIN_S", 0.05)
    client = Client(str(story.daemon.socket))
    last = {**bearer(CY), "Last-Event-ID": str(client.ask("events", limit=1)["read_to"])}
    with story.web.stream("GET", "/api/v1/stream", headers=last) as found, ExitStack() as busy:
        lines = found.iter_lines()
        next(lines)
        for turns in story.daemon.turns.values():
            busy.enter_context(turns.taken(30.0))
        told = next(line for line in lines if line == "event: trouble")
        assert told
        assert "too many questions at once" in next(lines)
        busy.close()
        client.ask("evict", subject="bm2", reason="seen after all")
        assert any("bm2 was closed: seen after all" in line for line in lines)
        client.ask("evict", subject="bm2", on=False)


@pytest.mark.parametrize(("near", "most", "which"), [(True, 64, ""), (False, 32, " of this address")])
def test_who_follows_leaves_room_for_other_questions(
    story: Story, monkeypatch: pytest.MonkeyPatch, near: bool, most: int, which: str
) -> None:
    """One address alone does not keep all others from following, unless it stands for many."""
    for module in ("client_bounds", "streaming"):
        monkeypatch.setattr(f"backfill.ui.web.{module}.is_loopback", lambda address: near)
    followers = []
    with ExitStack() as crowd:
        for _ in range(most):
            follower = story.web.stream("GET", "/api/v1/stream", headers=bearer(CY))
            lines = crowd.enter_context(follower).iter_lines()
            followers.append((lines, next(lines)))  # who lets go of the lines hangs up
        with story.web.stream("GET", "/api/v1/stream", headers=bearer(CY)) as refused:
            assert refused.status_code == 503
            refused.read()
        assert refused.json()["error"] == f"{most} clients{which} follow already; read /api/v1/events"
        for _ in range(20):
            crowd.enter_context(socket.create_connection((story.web.base_url.host, story.web.base_url.port)))
        assert story.web.get("/livez").status_code == 200


def test_who_comes_at_the_same_time_is_counted_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each was let in before any of them followed: so many follow, and the others are told so."""
    monkeypatch.setattr("backfill.ui.web.streaming._MOST_STREAMS", 2)
    app = make_app(Gateway(str(tmp_path / "none")))
    asker = Asker(app.state.gateway, {}, "10.0.0.9")
    scope = {"type": "http", "app": app, "method": "GET", "headers": []}

    async def follow() -> int:
        never: asyncio.Future[dict[str, str]] = asyncio.Future()

        async def receive() -> Message:
            return await never  # the client stays

        async def send(message: Message) -> None:
            assert message["type"].startswith("http.response")

        replies = [await streaming.stream(Request(scope), asker, after=1) for _ in range(5)]
        tasks = [asyncio.ensure_future(reply(scope, receive, send)) for reply in replies]
        ended, still = await asyncio.wait(tasks, timeout=30.0, return_when=asyncio.FIRST_COMPLETED)
        for task in still:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(isinstance(task.exception(), AskError) for task in ended)
        assert not app.state.streams.open
        return len(still)

    assert asyncio.run(follow()) == 2


# --- the command line, from another machine --------------------------------------------------------


@pytest.fixture
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JWT", BO)


@pytest.mark.usefixtures("_token")
@pytest.mark.parametrize(
    "words", [["status"], ["hosts"], ["nodes"], ["instances"], ["plan"], ["events"], ["explain", "vn1"]]
)
def test_commands_say_the_same_from_elsewhere(
    words: list[str], story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    """As over the socket, but for how long ago something was."""
    assert main([*words, "--url", story.url]) == 0
    there = capsys.readouterr().out
    assert main([*words, "--socket", str(story.daemon.socket)]) == 0
    here = capsys.readouterr().out
    assert [line.split()[:1] for line in there.splitlines()] == [
        line.split()[:1] for line in here.splitlines()
    ]


@pytest.mark.usefixtures("_token")
def test_an_operator_acts_from_elsewhere(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--url", story.url, "evict", "bm2", "--reason", "far away"]) == 0
    assert "bm2 is closed" in capsys.readouterr().out
    assert closed(story) == {"bm2"}
    assert main(["evict", "bm2", "--undo", "--url", story.url]) == 0
    assert closed(story) == set()
    assert story.daemon.phase("vn1") is Phase.PARKED


@pytest.mark.usefixtures("_token")
def test_a_socket_on_the_command_line_goes_before_a_service_of_the_environment(
    story: Story, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise an act meant for a daemon here would be done by one elsewhere. Both are one too many."""
    monkeypatch.setenv("BACKFILL_URL", "http://127.0.0.1:1")
    there = ["--socket", str(story.daemon.socket)]
    assert main(["evict", "bm2", *there]) == 0
    assert closed(story) == {"bm2"}
    assert main(["evict", "bm2", "--undo", *there]) == 0
    assert main(["status"]) == 69
    capsys.readouterr()
    for words in (["status", *there, "--url", story.url], ["--url", story.url, "status", *there]):
        assert main(words) == 64
        assert "--url: not allowed with argument --socket" in capsys.readouterr().err


def test_who_may_not_is_told_from_elsewhere(
    story: Story, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each with its status: no token, no role, nobody there, no address, no certificates."""
    monkeypatch.delenv("SLURM_JWT", raising=False)
    assert main(["status", "--url", story.url]) == 77
    assert "put it into SLURM_JWT" in capsys.readouterr().err
    monkeypatch.setenv("SLURM_JWT", CY)
    assert main(["evict", "bm2", "--url", story.url]) == 77
    assert "takes the role operator, which cy does not have" in capsys.readouterr().err
    assert main(["status", "--url", "http://127.0.0.1:1"]) == 69
    assert "no web service of backfill answers" in capsys.readouterr().err
    assert main(["status", "--url", "ftp://ctl"]) == 64
    assert "is no address of a web service" in capsys.readouterr().err
    (tmp_path / "ca").write_text("nothing")
    assert main(["status", "--url", "https://ctl", "--ca", str(tmp_path / "ca")]) == 65
    assert "holds no certificates" in capsys.readouterr().err
    with pytest.raises(AskError):
        Client(str(story.daemon.socket)).ask("evict", address="10.0.0.1", subject="bm2")
