"""Slurm's PrivateData: who may not see others' jobs in Slurm does not see them here, by any door."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from backfill.core.model.cluster import Job, JobState, SlurmSettings, SlurmVersion
from backfill.core.model.plan import Plan
from backfill.core.model.refusals import Code, Goal, because, refusal
from backfill.core.policies.access import Role
from backfill.core.world import World
from backfill.drivers.slurm.settings import read_settings
from backfill.engine import connection_limiter
from backfill.engine.gate import Caller, GateError
from backfill.engine.privacy import JOBS, NODES, Body, Privacy, Veil
from backfill.engine.summary import summary
from backfill.ports.errors import UnreachableError
from backfill.ui.client import AskError, Client
from tests.component.living_daemon import LivingDaemon, living, parked
from tests.component.web_service import ADA, BO, CY, DI, Names, asked, with_roles

SECRET = "urgent"  # the name of somebody else's job


@dataclass(frozen=True, slots=True)
class Scene:
    """Where cy's job `low` stands still for ada's `high`, and ada's `other` waits."""

    daemon: LivingDaemon
    low: str
    high: str
    other: str


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("private")
    with living(folder, with_roles(), tokens=Names(), private="jobs,usage") as daemon:
        low, high = parked(daemon, low_user=CY, high_user=ADA)
        other = daemon.sim.submit("htc", 60.0, name="waits", user=ADA)
        daemon.until(lambda: other in daemon.daemon.world.jobs)
        yield Scene(daemon, low, high, other)


@pytest.fixture(scope="module")
def web(scene: Scene) -> Iterator[httpx.Client]:
    with asked(scene.daemon.socket) as client:
        yield client


def _as(user: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {user}"}


def _ids(value: object) -> set[str]:
    """Every number that stands by itself in an answer's texts."""
    match value:
        case str():
            return set(re.findall(r"(?<![\w.])\d+(?!\w|\.\d)", value))
        case dict():
            return set().union(*map(_ids, value.values()))
        case list():
            return set().union(*map(_ids, value))
        case _:
            return set()


@pytest.mark.parametrize(
    "path", ["status", "hosts", "nodes", "instances", "fleets", "explain/vn1", "explain/bm1"]
)
def test_a_reader_never_reads_of_others_jobs(path: str, scene: Scene, web: httpx.Client) -> None:
    """Neither their ids nor names nor users, in whatever field; the same answer tells an operator."""
    high = scene.high
    seen = web.get(f"/api/v1/{path}").json()
    all_of_it = web.get(f"/api/v1/{path}", headers=_as(BO)).json()
    assert "error" not in seen
    for secret in (high, scene.other):
        assert secret not in _ids(seen)
    assert SECRET not in json.dumps(seen)
    assert '"ada"' not in json.dumps(seen)
    if path not in ("instances", "fleets"):
        assert high in _ids(all_of_it)
    again = web.get(f"/api/v1/{path}").json()  # an operator's answer is not kept for a reader
    assert high not in _ids(again)


def test_ones_own_jobs_are_seen_as_ever(scene: Scene, web: httpx.Client) -> None:
    low = scene.low
    (node,) = web.get("/api/v1/nodes").json()["nodes"]
    assert [held["id"] for held in node["held"]] == [low]
    told = web.get(f"/api/v1/explain/{low}").json()
    assert told["job"]["user"] == CY
    assert told["story"]
    (mine,) = web.get("/api/v1/mine").json()["jobs"]
    assert mine["id"] == low


def test_anothers_job_looks_like_one_that_never_was(scene: Scene, web: httpx.Client) -> None:
    high = scene.high
    there, never = (web.get(f"/api/v1/explain/{name}") for name in (high, "424242"))
    assert (there.status_code, never.status_code) == (404, 404)
    assert there.json()["error"].replace(high, "") == never.json()["error"].replace("424242", "")
    assert web.get(f"/api/v1/explain/{high}", headers=_as(BO)).status_code == 200


@pytest.mark.parametrize("path", ["events", "plan", "timeline", "stream"])
def test_what_tells_of_all_jobs_takes_an_operator(path: str, web: httpx.Client) -> None:
    """Also while an operator's answer to the same question is still kept."""
    if path != "stream":
        assert web.get(f"/api/v1/{path}", headers=_as(BO)).status_code == 200
    refused = web.get(f"/api/v1/{path}")
    assert refused.status_code == 403
    assert "PrivateData" in refused.json()["error"]


def test_everybody_learns_what_is_hidden_from_them(web: httpx.Client) -> None:
    assert web.get("/api/v1/me").json()["hidden"] == [JOBS]
    assert web.get("/api/v1/me", headers=_as(ADA)).json()["hidden"] == []
    assert web.get("/api/v1/me", headers=_as(DI)).json()["hidden"] == [JOBS]


def test_a_user_of_the_machine_sees_no_more_by_the_socket(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is neither root nor the daemon's user: they are asked for by their user id."""
    client, high = Client(str(scene.daemon.socket)), scene.high
    assert high in _ids(client.ask("hosts"))
    monkeypatch.setattr(connection_limiter, "trusted", lambda uid: False)
    monkeypatch.setattr("backfill.engine.gate.trusted", lambda uid: False)
    monkeypatch.setattr("backfill.engine.queries.trusted", lambda uid: False)
    assert high not in _ids(client.ask("hosts"))
    with pytest.raises(AskError, match="'events' takes the role operator, as Slurm's PrivateData"):
        client.ask("events")


def test_hidden_nodes_leave_ones_own_jobs(tmp_path: Path) -> None:
    """PrivateData=nodes, or all."""
    with living(tmp_path, with_roles(), tokens=Names(), private="all") as daemon:
        parked(daemon, low_user=CY, high_user=ADA)
        with asked(daemon.socket) as web:
            assert web.get("/api/v1/me").json()["hidden"] == [JOBS, NODES]
            for path in ("status", "hosts", "nodes", "instances", "explain/bm1", "timeline"):
                assert web.get(f"/api/v1/{path}").status_code == 403
                assert web.get(f"/api/v1/{path}", headers=_as(BO)).status_code == 200
            (mine,) = web.get("/api/v1/mine").json()["jobs"]
            assert "another's job" in mine["why"] or not _ids(mine["why"])
            assert web.get("/readyz").status_code == 200
            assert web.get("/metrics").status_code == 200


def test_it_is_read_anew_and_kept_while_slurm_does_not_answer() -> None:
    """Until Slurm was read for the first time, everything is hidden."""
    answers: list[str | None] = [None, "jobs", None, "none"]

    def settings() -> SlurmSettings:
        private = answers.pop(0)
        if private is None:
            raise UnreachableError("slurmctld", "it does not answer")
        return SlurmSettings(SlurmVersion(24, 11, 1), "c", 0, 0, "", raw={"PrivateData": private})

    privacy, reader = Privacy(settings), Caller(CY, Role.READER, "token")
    seen = []
    for _ in [*answers]:
        privacy.read()
        seen.append(privacy.hidden_from(reader))
    assert seen == [{JOBS, NODES}, {JOBS}, {JOBS}, set()]
    assert Privacy(settings).hidden_from(Caller(BO, Role.OPERATOR, "token")) == set()


def test_texts_keep_names_addresses_and_counts() -> None:
    """Only what is the id of another's job is taken out."""
    jobs = {
        "3": Job("3", 3, "htc", JobState.RUNNING, user="ada"),
        "4": Job("4", 4, "htc", JobState.RUNNING, user="cy"),
    }
    veil = Veil("cy", frozenset({JOBS}), jobs.get)
    told = {
        "given to 3": "given to another's job",
        "bm1 given to 4, bm2 given to 99, 98": "bm1 given to 4, bm2 given to another's job",
        "job 4 waits": "job 4 waits",
        "job 3, 4 has left": "another's job has left",
        "job 99 has ended": "another's job has ended",
        "vn3 at 10.3.3.3, 7 tries, 3-1700000": "vn3 at 10.3.3.3, 7 tries, another's job-1700000",
    }
    for text, safe in told.items():
        assert veil.over("mine", {"jobs": [{"why": text}]})["jobs"] == [{"why": safe}]


@pytest.mark.parametrize(
    ("shown", "private"),
    [
        ("none", set()),
        ("jobs,usage,cloud", {"jobs", "usage"}),
        ("(null)", set()),
        ("all", {"accounts", "events", "jobs", "nodes", "partitions", "reservations", "usage", "users"}),
    ],
)
def test_private_data_is_read_as_scontrol_shows_it(shown: str, private: set[str]) -> None:
    config = f"SLURM_VERSION = 24.11.1\nSlurmdTimeout = 0 sec\nPrivateData             = {shown}\n"
    assert read_settings(config, "", 0).private == private


def test_machines_and_pilots_of_others_are_left_out() -> None:
    """A fleet that is a job's own names that job; a pilot is a job, too."""
    jobs = {
        "3": Job("3", 3, "htc", JobState.RUNNING, user=ADA),
        "4": Job("4", 4, "htc", JobState.RUNNING, user=CY),
    }
    veil = Veil(CY, frozenset({JOBS}), jobs.get)
    fleets = [
        {"id": name, "job": job, "reason": ""} for name, job in (("f1", ""), ("job-3", "3"), ("job-4", "4"))
    ]
    assert [one["id"] for one in veil.over("fleets", {"fleets": fleets})["fleets"]] == ["f1", "job-4"]
    nothing: Body = {"job": None, "node": None, "host": None, "refusals": [], "operations": [], "story": []}
    told = veil.over("explain", {**nothing, "subject": "job-3", "fleet": fleets[1]})
    assert told["kind"] == "unknown"
    empty = {"sentence": "", "claims": [], "refusals": [], "operations": []}
    pilots = {"days": [], "pilots": [{"pilot": "3"}, {"pilot": "4"}]}
    assert veil.over("status", {**empty, "payloads": pilots})["payloads"]["pilots"] == [{"pilot": "4"}]


def test_why_anothers_job_gets_nothing_is_not_told_in_the_first_sentence() -> None:
    """It may name its owner and account, of whom there is no trace but that."""
    because_of = because(Code.ENVIRONMENT, user=BO, account="physics", environment="big", allowed="dept")
    sentence = summary(World(), Plan(refusals=(refusal("job 12", Goal.INSTANCE, because_of),)))
    assert "physics" in sentence
    answer = {
        "sentence": sentence,
        "claims": [],
        "refusals": [],
        "operations": [],
        "payloads": {"pilots": []},
    }
    seen = Veil(ADA, frozenset({JOBS}), lambda job_id: None).over("status", answer)
    assert seen["sentence"] == summary(World(), Plan())


def test_a_question_that_nobody_has_thought_of_takes_an_operator() -> None:
    """What is new tells nothing of others until somebody has said what of it may be told."""
    veil = Veil(CY, frozenset({JOBS}), lambda job_id: None)
    with pytest.raises(GateError, match="'novelty' takes the role operator"):
        veil.require("novelty", {})
    for question in ("mine", "metrics", "ready", "harvest", "status"):
        veil.require(question, {})
