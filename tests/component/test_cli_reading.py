"""What people read of a living daemon: every reading command, as JSON and in words."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from backfill.ui.cli import main
from backfill.ui.client import Client
from backfill.ui.commands.look import _show_status
from backfill.ui.explain.picture import Answers
from backfill.ui.explain.subjects import explain_job
from tests.component.living_daemon import LivingDaemon, living, parked


class Story:
    """The main job, brought about once: vn1 on bm1 was paused for a high-priority job."""

    def __init__(self, daemon: LivingDaemon) -> None:
        self.daemon = daemon
        self.low, self.high = parked(daemon)
        self.waiting = daemon.sim.submit("htc", 100.0)
        self.misfit = daemon.sim.submit("htc", 100.0, cpus=64)
        daemon.until(lambda: {self.waiting, self.misfit} <= daemon.daemon.world.jobs.keys())


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    with living(tmp_path_factory.mktemp("daemon")) as daemon:
        yield Story(daemon)


@pytest.fixture(autouse=True)
def _socket(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BACKFILL_SOCKET", str(story.daemon.socket))


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0
    output = capsys.readouterr()
    assert output.err == ""
    return output.out


@pytest.mark.parametrize("question", ["status", "hosts", "nodes", "instances", "plan"])
def test_json_is_the_daemons_answer_unchanged(
    question: str, story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, question, "--json")
    assert text.count("\n") == 1
    assert json.loads(text) == Client(str(story.daemon.socket)).ask(question)


def test_json_of_an_explanation_is_the_daemons_answer(
    story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = Client(str(story.daemon.socket)).ask("explain", subject="vn1")
    assert json.loads(shown(capsys, "explain", "vn1", "--json")) == answer


def test_status_tells_who_has_the_hosts_and_what_is_not_done(
    story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, "status")
    assert f"bm1 to job {story.high} for " in text
    assert "2 low-priority jobs waiting" in text
    assert "1 parked" in text
    assert "bm[1-2],slurm" in text
    assert f"bm1: no new instance: bm1 was given to job {story.high}" in text


def test_piped_output_has_no_colours(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("status", "hosts", "nodes", "instances", "plan", "events"):
        assert "\x1b" not in shown(capsys, command)


def test_hosts_are_told_with_their_state(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    header, first, second = shown(capsys, "hosts").splitlines()
    assert header.split()[:2] == ["HOST", "STATE"]
    assert first.split()[:2] == ["bm1", "given"]
    assert f"Slurm gave it to job {story.high}" in first
    assert "vn1" not in second


def test_whose_days_the_books_of_status_have_is_said(
    story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    """All other times are local: a day of UTC has to be named as one."""
    client = Client(str(story.daemon.socket))
    lost = {"day": "2026-11-24", "workload": "", "cause": "ladder", "runs": 1, "core_s": 3600.0}
    brought = {"days": [{"day": "2026-11-24", "done": 1, "worked_s": 60.0, "lost": {}}], "pilots": []}
    _show_status({**client.ask("status"), "work_lost": [lost], "payloads": brought}, client)
    text = capsys.readouterr().out
    assert "work lost, by day (UTC)\n  2026-11-24  1.00 core h" in text
    assert "payloads, by day (UTC)\n  2026-11-24  1 payload done" in text


def test_nodes_are_told_with_phase_and_reason(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    _, row, _, _, *proof = shown(capsys, "nodes", "vn1").splitlines()
    assert row.split()[:2] == ["vn1", "parked"]
    assert row.endswith(f"host bm1 was given to job {story.high}")
    assert [line.split()[:2] for line in proof] == [
        ["slurmd", "yes"],
        ["clock", "yes"],
        ["munge:to", "the"],
        ["resources", "yes"],
        ["address", "yes"],
    ]


def test_instances_are_told_with_their_state(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    _, row = shown(capsys, "instances").splitlines()
    assert row.split()[:3] == ["vn1", "bm1", "paused"]


def test_plan_tells_refusals_with_reasons(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "plan")
    assert "nothing would be begun now" in text
    assert f"refused: vn1: no return to bm1: bm1 was given to job {story.high}" in text


def test_a_parked_node_is_explained_before_its_story(
    story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    """First what it does, why, what it waits for and what would change it; then the story."""
    text = shown(capsys, "explain", "vn1", "--lines", "100")
    answer, _, told = text.partition("\nstory")
    assert answer.startswith("vn1 stands still on bm1 and its work waits, for ")
    for part in (
        f"why        host bm1 was given to job {story.high}",
        f"jobs       job {story.low}: suspended in Slurm with the instance, nothing is lost",
        "instance   is paused: stopped, its memory kept on bm1",
        f"awaited    the end of job {story.high} on bm1",
        f"refused    no return to bm1: bm1 was given to job {story.high}",
        "change     it goes on where it stopped as soon as bm1 is free",
    ):
        assert part in answer
    steps = ["is now booting", "is now ready", "is now evicting", "pause instance", "is now parked"]
    places = [told.index(step) for step in steps]
    assert places == sorted(places)


def test_a_suspended_job_is_explained_by_its_node(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "explain", "job", story.low)
    assert text.startswith(f"job {story.low} (counting) stands still on vn1; nothing of it is lost")
    assert f"its node vn1 is parked: host bm1 was given to job {story.high}" in text
    assert "it goes on by itself when bm1 is free" in text
    assert "vn1 on bm1 is now evicting" in text  # out of the node's story


def test_a_high_priority_job_is_told_what_made_room_for_it(
    story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, "explain", story.high)
    assert f"job {story.high} (urgent) runs on bm1" in text
    assert "pushed aside for it: vn1" in text
    assert f"told job {story.high} that the room is free" in text


def test_a_waiting_job_is_told_why_no_instance_is_made(
    story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, "explain", story.waiting)
    assert f"job {story.waiting} waits in partition htc" in text
    assert "Slurm says: Resources" in text
    assert f"bm1: no new instance: bm1 was given to job {story.high}" in text


def test_a_job_that_no_instance_can_carry_is_told_so(
    story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, "explain", story.misfit)
    assert "no instance: it wants more than one instance offers (1 CPUs, 208 MB" in text


def test_a_host_is_explained_with_what_is_on_it(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "explain", "bm1")
    assert text.startswith(f"bm1 belongs to job {story.high} now")
    assert "instances  vn1 parked" in text
    assert f"instances come back when job {story.high} has left it" in text
    assert "bm1 shows vn1 as paused" in text


def test_the_story_can_be_shortened(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "explain", "vn1", "--lines", "2")
    assert "story (the last 2 of " in text
    assert len(text.partition("\nstory")[2].splitlines()) == 4  # title, date, two lines


def test_an_unknown_subject_gets_the_nearest_name(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "vm1"]) == 1
    assert "did you mean 'vn1'?" in capsys.readouterr().err


def test_the_daemons_no_is_json_too(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    """A script that asked for JSON finds the error on stdout, a person the sentence on stderr."""
    assert main(["explain", "nobody", "--json"]) == 1
    output = capsys.readouterr()
    assert "nobody" in json.loads(output.out)["error"]
    assert output.err.startswith("backfill: 'nobody' is no node")


@pytest.mark.parametrize(
    ("words", "status", "hint"),
    [
        (["nodes", "vn9"], 1, "there is no node of ours 'vn9'; did you mean 'vn1'?"),
        (["nodes", "vn[1-"], 64, "brackets do not match; write it as"),
        (["evict", "vn["], 64, "brackets do not match; write it as"),
        (["provision", "vn["], 64, "brackets do not match; write it as"),
        (["nodes", ""], 64, "'' names nothing; name a host or a node"),
        (["evict", ""], 64, "'' names nothing; name a host or a node"),
        (["evict", " ", "--undo"], 64, "' ' names nothing; name a host or a node"),
        (["provision", ""], 64, "'' names nothing; name a host or a node"),
        (["explain", "vn1", "bm1"], 64, "one subject at a time: backfill explain vn1"),
    ],
)
def test_a_wrong_name_is_told_with_a_hint(
    words: list[str], status: int, hint: str, story: Story, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that is not there is a no; what is no name at all is a mistake of the command line."""
    assert main(words) == status
    assert hint in capsys.readouterr().err


def test_events_are_lines_with_number_and_time(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(capsys, "events", "--limit", "3").splitlines()
    assert len(lines) == 3
    numbers = [int(line.split()[0]) for line in lines]
    assert numbers == sorted(numbers)
    assert all("T" in line.split()[1] for line in lines)


def test_events_go_on_after_a_number(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    first = [json.loads(x) for x in shown(capsys, "events", "--json", "-n", "5").splitlines()]
    after = str(first[1]["id"])
    rest = shown(capsys, "events", "--json", "--after", after, "-n", "3").splitlines()
    assert [json.loads(x)["id"] for x in rest] == [e["id"] for e in first[2:5]]
    begun = [json.loads(x)["id"] for x in shown(capsys, "events", "--json", "--after", "0").splitlines()]
    assert begun == sorted(begun)
    assert begun[0] < first[0]["id"]
    both = [json.loads(x) for x in shown(capsys, "events", "--json", "-n", "1000").splitlines()]
    assert begun == [event["id"] for event in both[:50]]


def test_what_is_wrong_with_an_instance_is_told(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    """By the list of all, and by its node's explanation, among what is not done as well."""
    why = "cannot use /srv/shared/vn1/memory.save: Permission denied; run this as root"
    instance = story.daemon.sim.instance("vn1")
    instances = story.daemon.daemon.world.instances
    for problem in (why, ""):
        instance.unreadable = problem
        story.daemon.until(lambda p=problem: instances["bm1", "vn1"].problem == p)  # type: ignore[misc]
        listed, explained = shown(capsys, "instances"), shown(capsys, "explain", "vn1")
        assert (f"vn1 on bm1: {why}" in listed) is bool(problem)
        assert (f"work as usual: {why}" in explained) is bool(problem)


PENDING: dict[str, object] = {
    "id": "7",
    "name": "",
    "state": "PENDING",
    "nodes": [],
    "flags": [],
    "restarts": 0,
    "partition": "htc",
    "submit_s": 1.0,
}


def test_a_job_that_slurm_holds_is_told_how_it_goes_on() -> None:
    """Nobody but an admin may release it; of one whose start failed, what mostly was the cause."""
    for reason, cause in (
        ("launch failed requeued held", True),
        ("JobHeldAdmin", False),
        ("Resources", None),
    ):
        told = explain_job(
            {"job": {**PENDING, "restarts": 1, "reason": reason}, "refusals": []}, Answers(now_s=9.0)
        )
        text = " ".join(f"{label} {sentence}" for label, sentence in told.lines)
        assert ("scontrol release 7" in text) is (cause is not None), reason
        assert ("libvirt.surroundings.no_ops" in text) is bool(cause), reason


def explained(job: dict[str, object], *nodes: dict[str, object], **more: object) -> str:
    """What is told of a job while these are our nodes."""
    picture = Answers(now_s=10_000.0, nodes={str(node["name"]): node for node in nodes})
    told = explain_job({"job": {**PENDING, **job}, "refusals": [], **more}, picture)
    return "\n".join([told.headline, *(f"{label} {sentence}" for label, sentence in told.lines)])


IDLE: dict[str, object] = {
    "name": "vn1",
    "phase": "ready",
    "since_s": 100.0,
    "reason": "it has proven itself",
    "jobs": [],
    "held": [],
    "still_since_s": None,
    "host": "bm1",
}


def test_nodes_are_named_to_a_job_only_if_they_may_take_it() -> None:
    """Slurm gives nothing to a held one, and what waits in another partition never comes to ours."""
    assert "vn1, ready and idle, may take it" in explained({"reason": "Resources"}, IDLE)
    assert "vn1" not in explained({"reason": "Resources"}, IDLE, for_instances=False)
    for reason, who in (("JobHeldUser", "its owner or an admin"), ("JobHeldAdmin", "an admin")):
        text = explained({"reason": reason}, IDLE)
        assert f"Slurm starts it no more until {who} says so: scontrol release 7" in text
        assert "vn1" not in text


SUSPENDED: dict[str, object] = {"state": "SUSPENDED", "nodes": ["vn1"], "reason": ""}


def test_a_job_that_somebody_else_has_suspended_is_not_told_to_go_on_by_itself() -> None:
    """Its node may work as usual, or stand still as well; what we have stopped is told as before."""
    others = {**IDLE, "held": [{"id": "7", "ours": False}]}
    parked = {**others, "phase": "parked", "reason": "bm1 is taken", "still_since_s": 9_000.0}
    for node in (others, parked, IDLE):
        text = explained(SUSPENDED, node)
        assert text.startswith("job 7 is suspended on vn1, and not by us")
        assert "scontrol resume 7" in text
        assert ("its node vn1 is parked: bm1 is taken" in text) is (node is parked)
        assert "charged" not in text
    ours = {**parked, "held": [{"id": "7", "ours": True}]}
    text = explained(SUSPENDED, ours)
    assert text.startswith("job 7 stands still on vn1; nothing of it is lost")
    assert "it goes on by itself when bm1 is free" in text


def test_how_long_a_job_stands_still_outlives_the_phases_of_its_node() -> None:
    held = [{"id": "7", "ours": True}]
    node = {**IDLE, "phase": "returning", "since_s": 9_999.0, "held": held, "still_since_s": 2_800.0}
    assert "the 2h00m for which it has stood still" in explained(SUSPENDED, node)


def test_a_job_that_waits_is_told_what_the_instance_for_it_has_failed_of() -> None:
    """An image that is missing, say; where another instance is under way, that one counts."""
    job = {**PENDING, "reason": "Resources"}
    failed = {
        "name": "vn1",
        "phase": "failed",
        "reason": "failure 1 of 3: no image",
        "jobs": [],
        "host": "bm1",
    }
    booting = {**failed, "name": "vn2", "phase": "booting", "reason": ""}
    for nodes, expected in (([failed], True), ([failed, booting], False)):
        picture = Answers(now_s=9.0, nodes={str(node["name"]): node for node in nodes})
        told = explain_job({"job": job, "refusals": []}, picture)
        text = " ".join(sentence for _, sentence in told.lines)
        assert ("vn1 was made and has failed: failure 1 of 3: no image" in text) is expected
