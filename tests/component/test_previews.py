"""Previews of a policy file: for operators, told as they are."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from backfill.engine.errands import MOST_TEXT, Body
from backfill.ui.cli import main
from backfill.ui.web import answers
from tests.component.living_daemon import LivingDaemon, living, played
from tests.component.web_service import BO, CY, Names, asked, with_roles

_PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LivingDaemon]:
    with living(tmp_path_factory.mktemp("daemon"), with_roles(), tokens=Names()) as made:
        yield made


@pytest.fixture(scope="module")
def web(daemon: LivingDaemon) -> Iterator[httpx.Client]:
    with asked(daemon.socket, BO) as client:
        yield client


def test_an_operator_follows_one_by_the_api(web: httpx.Client) -> None:
    begun = web.post("/api/v1/policy/previews", json={"text": "cluster: c"})
    assert begun.status_code == 202
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        told = answers.PreviewAnswer.model_validate(web.get(begun.headers["Location"]).json())
        if told.state != "running":
            break
        assert time.monotonic() < deadline_s
    assert told.found is not None
    assert told.found.figures["against"].worked_core_h == 2.0
    assert web.get("/api/v1/policy/previews/preview-99").status_code == 404


def test_the_audit_log_tells_of_one_that_the_daemon_did_not_outlive(tmp_path: Path) -> None:
    """Who began it reads there that its end is not known, and not only that it was begun."""
    go_on = threading.Event()

    def played_for_ever(text: str) -> Body:
        go_on.wait(_PATIENCE_S)
        return played(text)

    with living(tmp_path, with_roles(), tokens=Names()) as short, asked(short.socket, BO) as client:
        short.play = played_for_ever
        assert client.post("/api/v1/policy/previews", json={"text": "cluster: c"}).status_code == 202
    go_on.set()
    results = [entry["result"] for entry in short.audit.entries if entry["what"] == "preview"]
    assert results == [
        "begun",
        "unknown: the daemon ended while this was under way; look, and begin it again",
    ]


def test_a_reader_may_look_and_not_begin(web: httpx.Client, daemon: LivingDaemon) -> None:
    refused = web.post(
        "/api/v1/policy/previews", json={"text": "a"}, headers={"Authorization": f"Bearer {CY}"}
    )
    assert refused.status_code == 403


def test_a_text_that_no_question_can_carry_is_refused(web: httpx.Client) -> None:
    """What the daemon would hang up on is said in a sentence."""
    for text in ("x" * (MOST_TEXT + 1), "\n" * (MOST_TEXT // 2 + 1), ""):
        assert web.post("/api/v1/policy/previews", json={"text": text}).status_code == 422


def test_the_command_line_shows_it(
    daemon: LivingDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new.yaml"
    file.write_text("cluster: c\n")
    assert main(["policy", "compare", str(file), "--socket", str(daemon.socket)]) == 0
    told = capsys.readouterr().out
    assert "changed: ladder" in told
    assert "core hours of jobs on instances" in told
    assert "new.yaml" in told
    file.write_text("wrong: c\n")
    assert main(["policy", "compare", str(file), "--socket", str(daemon.socket)]) == 65
    assert "wrong is not a known key" in capsys.readouterr().err
