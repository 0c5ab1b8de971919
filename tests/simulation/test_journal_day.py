"""A day out of a journal: what was done is counted, and a replay under the same policy comes to the same."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from backfill.core.model import changes as ch
from backfill.core.model.cluster import Job, JobState
from backfill.core.model.fleet import Host
from backfill.core.model.quantities import Resources
from backfill.core.model.records import encode
from backfill.core.policies.budgets import Budget, Budgets
from backfill.core.policies.ladder import Ladder
from backfill.core.policies.quotas import Quota, Quotas
from backfill.drivers.store.sqlite import SqliteJournal
from backfill.ports.storage import Record
from backfill.sim.replay.costs import ReplayCosts
from backfill.sim.replay.day import EmptyDayError, JournalDay, journal_day
from backfill.sim.replay.day_replay import day_figures
from backfill.ui.cli import main
from backfill.ui.preview import DayPlayer
from tests.property.days import Day
from tests.property.test_queue import LADDERS, rules

LOW, HIGH = [(40.0, 1.0), (60.0, 2.0), (50.0, 3.0)], [(20.0, 30.0), (10.0, 90.0)]
START_S = 1_700_000_000.0


def lived(ladder: int = 0) -> tuple[Day, JournalDay]:
    """Three low-priority jobs; a high-priority one takes a host meanwhile, another one later."""
    day = Day(rules(LADDERS[ladder], 0))
    day.fill(LOW, HIGH, [], odd=False)
    day.run.run(400.0)
    records = list(day.run.journal.read())
    return day, journal_day(records, day.run.policies, START_S, START_S + 400.0)


def test_what_was_done_is_counted() -> None:
    """Work is that of Slurm's clock: what stands still does not work."""
    _, day = lived()
    done = day.figures
    assert done.low_completed == 3
    assert done.worked_core_h * 3600 == pytest.approx(150.0, abs=6.0)
    assert done.metal_core_h * 3600 == pytest.approx(30.0, abs=3.0)
    assert done.lost_core_h == 0.0
    assert done.evictions >= 1
    assert done.room_worst_s is not None


def test_the_same_policy_comes_to_the_same() -> None:
    """The measure of how far the comparison may be trusted stands beside it."""
    run, day = lived()
    done, again = day.figures, day_figures(day, run.run.policies, ReplayCosts())
    assert again.low_completed == done.low_completed
    assert again.worked_core_h == pytest.approx(done.worked_core_h, rel=0.1)
    assert again.metal_core_h == pytest.approx(done.metal_core_h, rel=0.1)
    assert again.steps["instances made"] == done.steps["instances made"]


def test_another_ladder_shows_what_it_would_have_cost() -> None:
    """A policy that requeues at once loses work that the one in force has kept."""
    run, day = lived()
    harsh = replace(run.run.policies, ladder=Ladder(LADDERS[3]))
    kept, lost = (day_figures(day, one, ReplayCosts()) for one in (run.run.policies, harsh))
    assert kept.lost_core_h == 0.0
    assert lost.lost_core_h > 0.0
    assert lost.steps["requeues"] > kept.steps["requeues"]


def test_only_what_is_of_the_day_counts() -> None:
    """The second half of the same journal: what ran into it counts from its beginning."""
    run, whole = lived()
    records = list(run.run.journal.read())
    half = journal_day(records, run.run.policies, START_S + 40.0, START_S + 400.0)
    assert half.figures.worked_core_h < whole.figures.worked_core_h
    assert half.figures.low_completed == 3


def test_budgets_hold_at_the_hours_of_the_day() -> None:
    """It was at 22:13: a budget of that hour would have forbidden everything, one of the morning nothing."""
    run, day = lived()
    worked = []
    for hour in (22, 8):
        budgets = Budgets((Budget("0", schedule=f"0 {hour} * * *"),))
        policies = replace(run.run.policies, budgets=budgets)
        worked.append(day_figures(day, policies, ReplayCosts()).worked_core_h)
    assert worked[0] == 0.0
    assert worked[1] > 0.0


def completed(*told: tuple[Job, float] | float, day_s: float = START_S) -> int:
    """How many jobs were completed in the day, as these pictures of one tell; a number: a start then."""
    host = ch.HostSeen(Host("bm1", "bm1", Resources(2, 8192)), START_S)
    records = [Record(START_S, "change", "bm1", encode(host))]
    for one in told:
        if isinstance(one, float):
            records.append(Record(one, "daemon", "cluster", {"event": "start", "managed": 0}))
        else:
            records.append(Record(one[1], "change", "1", encode(ch.JobSeen(*one))))
    return journal_day(records, rules(LADDERS[0], 0), day_s, START_S + 400.0).figures.low_completed


def test_a_job_is_completed_once_and_only_if_it_did_not_fail() -> None:
    """Slurm shows COMPLETING before the end, and the end itself once more to a daemon that starts."""
    runs = Job("1", 1, "htc", JobState.RUNNING, nodes=("vn1",), cpus=1, start_s=START_S)
    done = replace(runs, state=JobState.COMPLETED)
    ends = replace(done, flags=frozenset({"COMPLETING"}))
    failed = replace(runs, state=JobState.FAILED)
    began, at_s = (runs, START_S + 1.0), START_S + 9.0
    assert completed(began, (ends, at_s)) == 0
    assert completed(began, (ends, at_s), (failed, at_s + 1.0)) == 0
    assert completed(began, (ends, at_s), (done, at_s + 1.0)) == 1
    assert completed(began, (done, at_s), at_s + 5.0, (done, at_s + 6.0)) == 1
    again = replace(done, restarts=1)
    assert completed(began, (done, at_s), (replace(runs, restarts=1), at_s), (again, at_s + 6.0)) == 2
    assert completed((done, at_s), at_s + 50.0, (done, at_s + 51.0), day_s=START_S + 40.0) == 0


def test_of_what_ran_before_the_day_the_rest_is_work() -> None:
    """A job of 21 hours that ended an hour into the day would be 20 hours of work that was done before it."""
    hour_s = 3600.0
    host = ch.HostSeen(Host("bm1", "bm1", Resources(2, 8192)), START_S - 30 * hour_s)
    first = Job("1", 1, "htc", JobState.RUNNING, nodes=("vn1",), cpus=1, start_s=START_S - 20 * hour_s)
    still = replace(first, id="2", raw_id=2, nodes=("vn2",), start_s=START_S - hour_s)
    changes: list[tuple[float, ch.Change]] = [
        (START_S - 30 * hour_s, host),
        (START_S - 20 * hour_s, ch.JobSeen(first, START_S - 20 * hour_s)),
        (START_S - hour_s, ch.JobSeen(still, START_S - hour_s)),
        (START_S + hour_s, ch.JobSeen(replace(first, state=JobState.COMPLETED), START_S + hour_s)),
    ]
    records = [Record(at_s, "change", "1", encode(change)) for at_s, change in changes]
    day = journal_day(records, rules(LADDERS[0], 0), START_S, START_S + 24 * hour_s)
    assert day.figures.worked_core_h == pytest.approx(25.0)
    # The other one has computed for longer than is usual: so it is over with the day.
    assert sorted(day.low.run) == [hour_s, 24 * hour_s]


def test_a_journal_without_hosts_says_so() -> None:
    with pytest.raises(EmptyDayError, match="let the daemon run for a while first"):
        journal_day([], rules(LADDERS[0], 0), 0.0, 86_400.0)


POLICY = """cluster: sim
priorities: {low: [htc], high: [batch]}
hosts:
  - {name: bm1, provider: simulated}
  - {name: bm2, provider: simulated}
  - {name: bm3, provider: simulated}
instances: {names: "vn[1-6]", addresses: 10.77.1.1/16, flavour: {cpus: 2, memory_mb: 256}}
"""


LIBVIRT = """libvirt:
  directory: /srv/b
  bridge: br0
  surroundings: {controller: 10.0.0.1, conf_server: "10.0.0.1:6817", munge_key: /etc/munge/munge.key}
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a policy file and the journal of a daemon."""
    folder = tmp_path_factory.mktemp("site")
    run, _ = lived()
    journal = SqliteJournal(folder / "journal.db")
    journal.append(replace(record, id=0) for record in run.run.journal.read())
    journal.close()
    (folder / "policy.yaml").write_text(POLICY)
    return folder


def test_a_process_of_its_own_plays_it_for_the_daemon(site: Path) -> None:
    """What the daemon is told: the three columns, what changes, and nothing left on the disk."""
    player = DayPlayer(site / "policy.yaml", site / "journal.db", "400s")
    found = player(POLICY + "scale: {warm: 1}\n")["found"]
    assert isinstance(found, dict)
    assert found["changed"] == ["scale"]
    assert list(found["figures"]) == ["was done", "policy", "against"]
    assert found["figures"]["policy"]["low_completed"] == found["figures"]["was done"]["low_completed"] == 3


def test_the_catalogue_in_force_is_read_for_a_text_that_names_it(site: Path, tmp_path: Path) -> None:
    """It lies beside the policy file; the text is tried in a folder of its own."""
    policy = f"{POLICY}{LIBVIRT}  catalogue: images.yaml\n"
    (tmp_path / "policy.yaml").write_text(policy)
    image = "{kernel: /k, initrd: /i, disk: /d.raw, disk_format: raw, cmdline: quiet}"
    (tmp_path / "images.yaml").write_text(f"images: {{default: {image}}}\n")
    player = DayPlayer(tmp_path / "policy.yaml", site / "journal.db", "400s")
    found = player(f"{policy}scale: {{warm: 1}}\n")
    assert found.get("problems", []) == []
    (tmp_path / "images.yaml").write_text("images: 7\n")
    assert "the policy file in force has mistakes now" in str(player(policy)["problems"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cluster: sim\nladdr: []\n", "policy.yaml:2:1: laddr is not a known key; did you mean ladder?"),
        (POLICY.replace("cluster: sim", "cluster: other"), "the two policies differ in cluster"),
        (
            f"{POLICY}{LIBVIRT}  catalogue: /etc/shadow\n",
            "reads only the catalogue of the policy file in force; write its images",
        ),
    ],
)
def test_what_cannot_be_played_says_why(text: str, says: str, site: Path) -> None:
    problems = DayPlayer(site / "policy.yaml", site / "journal.db", "400s")(text)["problems"]
    assert isinstance(problems, list)
    assert says in "\n".join(problems)
    assert "/tmp" not in "\n".join(problems)


def test_a_text_is_not_checked_in_the_daemons_process(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There only its catalogue is looked for: what it costs to check is the other process's."""
    checked: list[object] = []

    def findings(values: object) -> tuple[()]:
        checked.append(values)
        return ()

    monkeypatch.setattr("backfill.config.rules.findings", findings)
    player = DayPlayer(site / "policy.yaml", site / "journal.db", "400s")
    (problem,) = cast("list[str]", player(f"{POLICY}ladder: []\n")["problems"])
    assert "ladder is empty" in problem
    assert len(checked) == 1  # the policy file in force


@pytest.mark.parametrize("begin", ["", "\ufeff", "\ufeff\ufeff"])
def test_no_other_catalogue_is_opened_however_the_text_begins(begin: str, site: Path) -> None:
    """What the daemon's process reads is what the other one will read."""
    player = DayPlayer(site / "policy.yaml", site / "journal.db", "400s")
    told = player(f"{begin}{POLICY}libvirt: {{'catalogue': \"/etc/shadow\"}}\n")["problems"]
    assert "reads only the catalogue of the policy file in force" in str(told)


def test_quotas_hold_for_the_owners_of_the_day() -> None:
    """A job of the journal has the owner that it had."""
    run, day = lived()
    theirs, others = (
        day_figures(day, replace(run.run.policies, quotas=Quotas((Quota(0, user=user),))), ReplayCosts())
        for user in ("user", "somebody")
    )
    assert theirs.low_completed == 0
    assert others.low_completed == 3


def test_what_a_day_cannot_follow_is_said(site: Path) -> None:
    player = DayPlayer(site / "policy.yaml", site / "journal.db", "400s")
    hosts = POLICY.replace("provider: simulated}", "provider: simulated, keep_cpus: 1}", 1)
    told = player(f"{hosts}daemon: {{host_poll_s: 60}}\nquotas: [{{cpus: 4, account: chem}}]\n")["found"]
    notes = "\n".join(cast("dict[str, list[str]]", told)["notes"])
    assert "not replayed of policy.yaml: quotas[0] (account)" in notes
    assert "not replayed of policy.yaml: daemon.host_poll_s" in notes
    assert "not replayed: keep_cpus and keep_memory_mb of hosts" in notes


def test_the_command_prints_the_columns(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ("--journal", str(site / "journal.db"), "--policy", str(site / "policy.yaml"))
    assert main(["replay", *files, "--last", "400s"]) == 0
    told = capsys.readouterr().out
    assert "2 high-priority and 3 low-priority jobs on 3 hosts with 2 CPUs" in told
    assert main(["replay", *files, "--last", "400s", "--seeds", "3"]) == 64


DAY_S = 86_400.0
END_S = START_S + 20 * DAY_S


def old_site(folder: Path, *later: Record) -> Path:
    """A daemon that began nine days ago with a running job and 50 that wait, none of which has changed.

    A job of an earlier daemon was gone when it began. `later`: what it wrote in the end.
    """
    since_s = END_S - 9 * DAY_S
    long = Job("1", 1, "batch", JobState.RUNNING, nodes=("bm1",), cpus=2, submit_s=since_s, start_s=since_s)
    waiting = [
        Job(str(number), number, "htc", JobState.PENDING, cpus=1, submit_s=since_s, time_limit_s=7200)
        for number in range(2, 52)
    ]
    ghost = replace(long, id="99", raw_id=99, start_s=since_s - DAY_S)
    host = Host("bm1", "bm1", Resources(2, 8192))
    told: list[tuple[float, object]] = [
        (since_s - DAY_S, ch.ClockRead(since_s - DAY_S, "b", 1.0, began=True)),
        (since_s - DAY_S, ch.JobSeen(ghost, since_s - DAY_S)),
        (since_s, ch.ClockRead(since_s, "b", 1.0 + DAY_S, began=True)),
        (since_s, ch.HostSeen(host, since_s)),
        *((since_s, ch.JobSeen(job, since_s)) for job in (long, *waiting)),
        (since_s + 5.0, ch.JobGone("2", since_s + 5.0)),
    ]
    journal = SqliteJournal(folder / "journal.db")
    for at_s, value in told:
        about: Any = value
        match value:
            case ch.JobSeen():
                subject = value.job.id
            case ch.HostSeen():
                subject = value.host.name
            case _:
                subject = getattr(value, "id", "cluster")
        journal.append([Record(at_s, "change", subject, encode(about))])
    journal.append([*later, Record(END_S, "change", "cluster", encode(ch.Tick(END_S)))])
    journal.close()
    (folder / "policy.yaml").write_text(POLICY)
    return folder


def told_of(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    files = ("--journal", str(folder / "journal.db"), "--policy", str(folder / "policy.yaml"))
    assert main(["replay", *files, "--last", "1d", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_what_has_not_changed_for_long_is_known(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The journal tells of changes only: what ran and waited all the time belongs to the day."""
    found = told_of(old_site(tmp_path), capsys)
    assert (found["high_jobs"], found["low_jobs"], found["hosts"]) == (1, 49, 1)
    assert found["figures"]["was done"]["metal_core_h"] == pytest.approx(48.0)


def test_what_a_new_daemon_did_not_find_is_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It began at noon, tells of what there is, and the long job is not among it."""
    noon_s = END_S - DAY_S / 2
    host = Host("bm1", "bm1", Resources(2, 8192))
    start = Record(noon_s, "daemon", "cluster", {"event": "start"})
    seen = Record(noon_s, "change", "bm1", encode(ch.HostSeen(host, noon_s)))
    found = told_of(old_site(tmp_path, start, seen), capsys)
    assert (found["high_jobs"], found["low_jobs"]) == (1, 0)
    assert found["figures"]["was done"]["metal_core_h"] == pytest.approx(24.0)
