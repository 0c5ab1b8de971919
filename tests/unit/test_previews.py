"""Previews of a policy file: one at a time, for operators, told as they are, and remembered for a while."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from backfill.engine.checkpoint_order import CommandError
from backfill.engine.previews import MOST_TEXT, Body, Previews
from backfill.ui.cli import main
from backfill.ui.web import answers
from tests.unit.living_daemon import LivingDaemon, living
from tests.unit.web_service import BO, CY, Names, asked, with_roles

_PATIENCE_S = 60.0


def _ended(previews: Previews, name: object) -> Body:
    deadline_s = time.monotonic() + _PATIENCE_S
    while (told := previews.told({"id": name}))["state"] == "running":
        assert time.monotonic() < deadline_s
        time.sleep(0.001)
    return told


def test_one_is_played_at_a_time() -> None:
    """Whoever comes meanwhile is told which one it is; afterwards it is their turn."""
    go_on = threading.Event()

    def play(text: str) -> Body:
        go_on.wait(_PATIENCE_S)
        return {"found": {"text": text}}

    previews = Previews(play)
    name = previews.begin({"text": "a"})["id"]
    assert previews.told({"id": name}) == {"id": name, "state": "running", "problems": [], "found": None}
    with pytest.raises(CommandError, match=f"{name} is being played, one at a time"):
        previews.begin({"text": "b"})
    go_on.set()
    assert _ended(previews, name)["found"] == {"text": "a"}
    other = previews.begin({"text": "b"})["id"]
    assert _ended(previews, other)["found"] == {"text": "b"}


def test_problems_are_a_failure_and_old_ones_are_forgotten() -> None:
    previews = Previews(lambda text: {"problems": ["it does not fit"]})
    names = []
    for _ in range(9):
        names.append(previews.begin({"text": ""})["id"])
        assert _ended(previews, names[-1])["state"] == "failed"
    assert previews.told({"id": names[0]})["kind"] == "unknown"
    assert previews.told({"id": names[1]})["problems"] == ["it does not fit"]


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
