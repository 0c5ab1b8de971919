"""Changing Slurm's configuration: whole or not at all, never under a job, never over others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path

import pytest

from backfill.core.model.cluster import JobState, Node, NodeBase, SlurmVersion
from backfill.drivers.slurm.conf import transaction
from backfill.drivers.slurm.conf.dry import DryVerdict, judge
from backfill.drivers.slurm.conf.managed import LineState, Managed, Method, NodeLine, WantedNodes, parse
from backfill.drivers.slurm.conf.transaction import RolledBackError
from backfill.ports.errors import BusyError, DriverError, RefusedError, UnreachableError, UnreadableError
from backfill.ports.workload import ClusterObservation, NodeSpec
from tests.component.conf_cluster import ConfCluster, CrashError, line, with_node, without_nodes

STEPS = ("backup", "note", "write", "reload", "look", "end")


@pytest.fixture
def cluster(tmp_path: Path) -> ConfCluster:
    made = ConfCluster(tmp_path)
    made.transactions.apply(with_node("vn1"), dry=False)
    made.steps.clear()
    return made


def names(cluster: ConfCluster) -> set[str]:
    """The nodes of the file as it is, which must be whole."""
    return set(parse(cluster.managed.read_text()).names())


def test_apply_writes_keeps_a_copy_and_reloads(cluster: ConfCluster) -> None:
    """Mode and owner stay, a dated copy of the old text is there, Slurm was told once."""
    before = cluster.managed.read_text()
    cluster.managed.chmod(0o640)
    if os.geteuid() == 0:  # nobody else may give it away
        os.chown(cluster.managed, 65534, 65534)
    owner = cluster.managed.stat()
    done = cluster.transactions.apply(with_node("vn2"), dry=False)
    assert names(cluster) == {"vn1", "vn2"}
    assert Path(done.backup).read_text() == before
    assert cluster.managed.stat().st_mode & 0o777 == 0o640
    after = cluster.managed.stat()
    assert (after.st_uid, after.st_gid) == (owner.st_uid, owner.st_gid)
    assert cluster.reloads() == 2
    again = cluster.transactions.apply(with_node("vn2"), dry=False)
    assert (again.diff, again.reloaded, cluster.reloads()) == ("", "", 2)


def test_apply_leaves_a_line_what_its_node_offers_just_now(cluster: ConfCluster) -> None:
    """Not what jobs may not ask for any more, and not what belongs to all."""
    base = NodeSpec("vn1", "10.1.0.1", 2, 500, ("backfill",))
    asked = NodeSpec("backfill-features", "127.0.0.1", 2, 500, ("backfill", "vf"))
    wanted = WantedNodes(Method.CONF, [base], "/bin/true", 60, asked)
    transactions = cluster.transactions
    for lent, kept in ((("vf",), ("vf",)), (("gpu",), ()), (("vf",), ("vf",)), ((), ())):
        line = NodeLine(replace(base, features=("backfill", *lent)), LineState.UNKNOWN)
        after = wanted.change(Managed((line,)), transactions.site())
        kept_line = after.node("vn1")
        assert kept_line is not None
        assert kept_line.spec.features == ("backfill", *kept)


def test_preview_changes_nothing(cluster: ConfCluster) -> None:
    """Not a byte, and Slurm is not asked."""
    before, calls = cluster.managed.read_text(), len(cluster.tools.calls)
    assert "+NodeName=vn2" in cluster.transactions.preview(with_node("vn2"))
    assert cluster.managed.read_text() == before
    assert len(cluster.tools.calls) == calls


def test_a_file_changed_by_others_is_never_overwritten_silently(cluster: ConfCluster) -> None:
    """It is refused and left; by force it is replaced, and a copy of it is kept."""
    foreign = cluster.managed.read_text() + "NodeName=vn9 CPUs=1\n"
    cluster.managed.write_text(foreign)
    with pytest.raises(RefusedError, match=r"somebody else has changed it.*--force"):
        cluster.transactions.apply(with_node("vn2"), dry=False)
    assert cluster.managed.read_text() == foreign
    done = cluster.transactions.apply(with_node("vn2"), dry=False, force=True)
    assert names(cluster) == {"vn1", "vn2"}
    assert Path(done.backup).read_text() == foreign


def test_force_does_not_remove_the_line_of_a_busy_node(cluster: ConfCluster) -> None:
    """Not even a line that others have written: its job would be lost with it."""
    foreign = cluster.managed.read_text() + "NodeName=vn[8-9] CPUs=1\n"
    cluster.managed.write_text(foreign)
    cluster.runs("7", "vn9")
    with pytest.raises(BusyError, match="job 7 holds it"):
        cluster.transactions.apply(with_node("vn2"), dry=False, force=True)
    assert cluster.managed.read_text() == foreign


@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.SUSPENDED])
def test_the_line_of_a_node_with_a_job_stays(cluster: ConfCluster, state: JobState) -> None:
    """Removing it would end the job; so would changing it, or hiding the node."""
    cluster.transactions.apply(lambda m: m.with_nodes(line("vn1", LineState.UNKNOWN)), dry=False)
    cluster.states["vn1"] = Node("vn1", NodeBase.IDLE, frozenset({"DRAIN"}))
    cluster.runs("7", "vn1", state)
    before = cluster.managed.read_text()
    changed, hidden = line("vn1", LineState.UNKNOWN, cpus=4), line("vn1", LineState.FUTURE)
    for change in (without_nodes, lambda m: m.with_nodes(changed), lambda m: m.with_nodes(hidden)):
        with pytest.raises(BusyError, match="job 7 holds it"):
            cluster.transactions.apply(change, dry=False)
    assert cluster.managed.read_text() == before
    cluster.jobs.clear()
    cluster.transactions.apply(without_nodes, dry=False)
    assert names(cluster) == set()


def test_the_line_of_a_node_that_may_get_a_job_stays(cluster: ConfCluster) -> None:
    """Idle and not drained: a job may come before Slurm has read the file."""
    cluster.states["vn1"] = Node("vn1", NodeBase.IDLE)
    with pytest.raises(BusyError, match="drain it first"):
        cluster.transactions.apply(without_nodes, dry=False)
    assert names(cluster) == {"vn1"}


def test_what_slurm_does_not_take_is_taken_back(cluster: ConfCluster) -> None:
    """It does not show the new node: the old file is back and was reloaded."""
    before = cluster.managed.read_text()
    cluster.ignores = True
    with pytest.raises(RolledBackError, match="taken back, nothing is lost: Slurm does not know"):
        cluster.transactions.apply(with_node("vn2"), dry=False)
    assert cluster.managed.read_text() == before
    assert cluster.reloads() == 3
    assert cluster.transactions.recover() == ""


def test_a_refused_reload_is_taken_back(cluster: ConfCluster) -> None:
    """Slurm answers, but says no to every reload: the old file is back and that is the end."""
    before = cluster.managed.read_text()
    cluster.tools.answer("scontrol reconfigure", err="Unable to contact slurm controller", status=1)
    with pytest.raises(RolledBackError, match="all is not well"):
        cluster.transactions.apply(with_node("vn2"), dry=False)
    assert cluster.managed.read_text() == before
    assert cluster.transactions.recover() == ""


@pytest.mark.parametrize("garbled", [False, True])
def test_a_slurmctld_that_reads_its_files_is_not_restarted(
    cluster: ConfCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, garbled: bool
) -> None:
    """Both reloads were in vain: it is waited for on the way back, whether it is silent or makes no sense."""
    before, ran = cluster.managed.read_text(), tmp_path / "restarted"
    cluster.restart = ("touch", str(ran))
    alive = cluster.look
    looks = iter((True, True, False))  # before the change, after a reload, on the way back

    def look() -> ClusterObservation:
        if not next(looks, True):
            raise DriverError("slurmctld", "garbled") if garbled else UnreachableError("slurmctld", "busy")
        return alive()

    monkeypatch.setattr(cluster, "look", look)
    cluster.tools.answer("scontrol reconfigure", err="Unable to contact slurm controller", status=1)
    transactions = cluster.transactions
    patient = replace(transactions.place, health_s=0.05)
    object.__setattr__(transactions, "place", patient)
    with pytest.raises(RolledBackError):
        transactions.apply(with_node("vn2"), dry=False)
    assert not ran.exists()
    assert cluster.managed.read_text() == before


def interrupted(cluster: ConfCluster, step: str = "reload") -> str:
    """Let a process die in the middle of adding vn2; returns what stood in the file before."""
    before = cluster.managed.read_text()
    cluster.crash_at = step
    with pytest.raises(CrashError):
        cluster.transactions.apply(with_node("vn2"), dry=False)
    return before


@pytest.mark.parametrize(
    ("verdict", "back"),
    [(DryVerdict(True, "X is no word"), True), (DryVerdict(True), False), (DryVerdict(False, "no"), False)],
)
def test_a_slurmctld_that_died_is_waited_for(
    cluster: ConfCluster, monkeypatch: pytest.MonkeyPatch, verdict: DryVerdict, back: bool
) -> None:
    """Only what it cannot start with is taken back meanwhile: jobs may run on what it has started with."""
    before = interrupted(cluster)
    written = cluster.managed.read_text()
    monkeypatch.setattr(transaction, "dry_start", lambda *_: verdict)
    cluster.deaf = True
    for _ in range(2):
        with pytest.raises(UnreachableError, match="until slurmctld answers"):
            cluster.transactions.recover()
        assert cluster.managed.read_text() == (before if back else written)
    cluster.deaf = False
    assert ("taken back, nothing is lost" if back else "was finished") in cluster.transactions.recover()
    assert cluster.managed.read_text() == (before if back else written)
    assert cluster.transactions.recover() == ""


def test_what_a_dry_slurmctld_refuses_is_not_written(
    cluster: ConfCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not a byte, and Slurm is not told; where it could not be tried, it is done and said."""
    before, reloads = cluster.managed.read_text(), cluster.reloads()
    verdicts = [DryVerdict(True, "X is no word"), DryVerdict(False, "no munge")]
    monkeypatch.setattr(transaction, "dry_start", lambda *_: verdicts.pop(0))
    with pytest.raises(RefusedError, match="slurmctld does not take it: X is no word"):
        cluster.transactions.apply(with_node("vn2"))
    assert (cluster.managed.read_text(), cluster.reloads()) == (before, reloads)
    assert cluster.transactions.apply(with_node("vn2")).notes == ("not tried by a dry start: no munge",)
    assert names(cluster) == {"vn1", "vn2"}


def test_a_slurmctld_that_stays_silent_leaves_the_way_back_unfinished(
    cluster: ConfCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old file is back, and whether all is well is not known: each start looks again until it is."""
    before, alive = cluster.managed.read_text(), cluster.look
    silence: Iterator[bool] = iter(())

    def look() -> ClusterObservation:
        cluster.deaf = next(silence)
        return alive()

    monkeypatch.setattr(cluster, "look", look)
    changes = cluster.transactions
    for act in (lambda: changes.apply(with_node("vn2"), dry=False), changes.recover):
        silence = chain([False], repeat(True))  # it answers as this begins, and then no more
        with pytest.raises(RolledBackError, match="but all is not well: slurmctld: no answer"):
            act()
        assert cluster.managed.read_text() == before
    silence = repeat(False)
    assert "taken back, nothing is lost" in changes.recover()
    assert changes.recover() == ""


@pytest.mark.parametrize("step", ["look", "end"])
def test_an_interrupted_change_is_not_judged_by_what_was_long_ago(cluster: ConfCluster, step: str) -> None:
    """The jobs of that time have ended and are forgotten, and another one runs on the new node."""
    cluster.runs("7", "bm1")
    interrupted(cluster, step)
    written = cluster.managed.read_text()
    cluster.jobs.clear()
    assert "was finished" in cluster.transactions.recover()
    assert cluster.managed.read_text() == written


@pytest.mark.parametrize("step", ["reload", "write back"])
def test_the_line_of_a_node_in_use_is_not_taken_back(cluster: ConfCluster, step: str) -> None:
    """Slurm has taken the new line, and a job has come: the line stays, or comes back into the file."""
    cluster.ignores = step == "write back"
    interrupted(cluster, step)
    written = cluster.managed.read_text()
    assert "NodeName=vn2" in written
    cluster.ignores = False
    cluster.states["vn2"] = Node("vn2", NodeBase.ALLOCATED)
    cluster.runs("8", "vn2")
    cluster.tools.answer("scontrol reconfigure", err="no", status=1)
    assert "was kept: vn2: job 8 holds it" in cluster.transactions.recover()
    assert cluster.managed.read_text() == written
    assert cluster.transactions.recover() == ""


def test_silence_at_a_reload_is_no_refusal(cluster: ConfCluster) -> None:
    """slurmctld reads its files and does not answer: it is asked once more, and nothing is taken back."""
    cluster.tools.answer_once("scontrol reconfigure", err="Unable to contact slurm controller", status=1)
    assert cluster.transactions.apply(with_node("vn2"), dry=False).reloaded == "reconfigure"
    assert names(cluster) == {"vn1", "vn2"}
    assert cluster.reloads() == 3


def test_a_dead_slurmctld_is_restarted_with_the_old_file(
    cluster: ConfCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On the way back it is neither waited for nor asked again: the way forward has done both."""
    before, ran = cluster.managed.read_text(), tmp_path / "restarted"
    cluster.restart = ("touch", str(ran))
    asked = cluster.reloads()
    alive = cluster.look
    dead: list[str] = []

    def at(step: str) -> None:
        if step == "reload":
            dead.append(step)

    def look() -> ClusterObservation:
        cluster.deaf = bool(dead) and not ran.exists()
        return alive()

    monkeypatch.setattr(cluster, "look", look)
    cluster.tools.answer("scontrol reconfigure", err="Unable to contact slurm controller", status=1)
    transactions = cluster.transactions
    object.__setattr__(transactions, "at", at)
    with pytest.raises(RolledBackError, match="taken back, nothing is lost"):
        transactions.apply(with_node("vn2"), dry=False)
    assert ran.exists()
    assert cluster.reloads() == asked + 1
    assert cluster.managed.read_text() == before
    assert cluster.transactions.recover() == ""


def test_what_a_dry_slurmctld_says() -> None:
    """Ready, refused with the reason, or neither."""
    doubled = "slurmctld: error: X 1 specified more than once, latest value used\n"
    refused = f"slurmctld: error: unrecognized key: Y\n{doubled}slurmctld: fatal: Unable to process\n"
    assert judge(f"{doubled}slurmctld: Running as primary controller\n") == DryVerdict(True)
    assert judge(refused) == DryVerdict(True, "Unable to process: unrecognized key: Y")
    dated = refused.replace("slurmctld: ", "[2026-11-21T23:42:43.147] ")
    assert judge(dated) == judge(refused)
    assert not judge("slurmctld: error: no munge\n").tried
    assert not judge("").tried


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        (lambda c: c.runs("7", "bm1", JobState.NODE_FAIL), "job 7 lost its node"),
        (lambda c: c.runs("7", "bm1", restarts=1), "job 7 lost its node"),
        (lambda c: c.jobs.clear(), "job 7 is gone"),
        (lambda c: c.gone.add("bm2"), "node bm2 is gone"),
        (lambda c: c.states.update(bm2=Node("bm2", NodeBase.DOWN)), "node bm2 went DOWN"),
    ],
    ids=["failed", "requeued", "forgotten", "node gone", "node down"],
)
def test_what_is_lost_is_noticed(
    cluster: ConfCluster, loss: Callable[[ConfCluster], object], told: str
) -> None:
    """A job or a node that was well before and is not after: back."""
    cluster.runs("7", "bm1")
    moves = iter([loss])

    def look_again(step: str) -> None:
        if step == "look" and next(moves, None) is not None:
            loss(cluster)

    transactions = cluster.transactions
    object.__setattr__(transactions, "at", look_again)
    with pytest.raises(RolledBackError, match=told):
        transactions.apply(with_node("vn2"), dry=False)
    assert names(cluster) == {"vn1"}


@pytest.mark.parametrize("step", STEPS)
def test_a_crash_leaves_a_whole_file_and_the_next_start_finishes(cluster: ConfCluster, step: str) -> None:
    """Before the write nothing has happened; after it the change is carried to its end."""
    cluster.crash_at = step
    with pytest.raises(CrashError):
        cluster.transactions.apply(with_node("vn2"), dry=False)
    written = step in ("reload", "look", "end")
    assert names(cluster) == ({"vn1", "vn2"} if written else {"vn1"})
    told = cluster.transactions.recover()
    assert names(cluster) == ({"vn1", "vn2"} if written else {"vn1"})
    assert bool(told) == (step not in ("backup", "note"))
    assert cluster.transactions.recover() == ""
    cluster.transactions.apply(with_node("vn2"), dry=False)
    assert names(cluster) == {"vn1", "vn2"}


@pytest.mark.parametrize("step", ["write back", "reload", "look"])
def test_a_crash_on_the_way_back_goes_on_going_back(cluster: ConfCluster, step: str) -> None:
    """What Slurm did not take is not tried again by a start."""
    cluster.ignores = True
    went: list[str] = []

    def at(name: str) -> None:
        went.append(name)
        if name == step and "write back" in went:
            raise CrashError(name)

    transactions = cluster.transactions
    object.__setattr__(transactions, "at", at)
    with pytest.raises(CrashError):
        transactions.apply(with_node("vn2"), dry=False)
    assert "taken back" in cluster.transactions.recover()
    assert names(cluster) == {"vn1"}


def test_a_crash_and_then_a_foreign_edit(cluster: ConfCluster) -> None:
    """The foreign text stays, the unfinished change is dropped."""
    cluster.crash_at = "reload"
    with pytest.raises(CrashError):
        cluster.transactions.apply(with_node("vn2"), dry=False)
    cluster.managed.write_text("# mine now\n")
    assert "dropped" in cluster.transactions.recover()
    assert cluster.managed.read_text() == "# mine now\n"


def test_rollback_goes_back_and_forth(cluster: ConfCluster) -> None:
    """To the newest copy; what it replaced is a copy itself."""
    cluster.transactions.apply(with_node("vn2"), dry=False)
    cluster.transactions.rollback(dry=False)
    assert names(cluster) == {"vn1"}
    cluster.transactions.rollback(dry=False)
    assert names(cluster) == {"vn1", "vn2"}


def test_an_old_release_needs_a_restart_for_another_number_of_nodes(tmp_path: Path) -> None:
    """Refused beforehand where the policy forbids it; carried out by its command otherwise."""
    ran = tmp_path / "restarted"
    cluster = ConfCluster(tmp_path, version=SlurmVersion(22, 5, 8))
    with pytest.raises(RefusedError, match=r"only at a restart of slurmctld.*slurm.restart"):
        cluster.transactions.apply(with_node("vn1"), dry=False)
    cluster.restart = ("touch", str(ran))
    assert cluster.transactions.apply(with_node("vn1"), dry=False).reloaded == "restart"
    assert ran.exists()
    assert cluster.reloads() == 0
    changed = cluster.transactions.apply(lambda m: m.with_nodes(line("vn1", LineState.UNKNOWN)), dry=False)
    assert changed.reloaded == "reconfigure"


def test_the_file_is_introduced_once(tmp_path: Path) -> None:
    """It has to exist before slurm.conf may name it; what comes next is told, and then insisted upon."""
    cluster = ConfCluster(tmp_path)
    cluster.conf.write_text("ClusterName=test\n")
    add = "add the line 'Include backfill.conf' at its end"
    assert add in str(cluster.transactions.introduce())
    assert names(cluster) == set()
    assert cluster.transactions.introduce() is None
    with pytest.raises(RefusedError, match=add):
        cluster.transactions.apply(with_node("vn1"), dry=False)
    assert names(cluster) == set()
    assert cluster.tools.calls == []


def test_what_is_included_already_is_not_made(tmp_path: Path) -> None:
    """The line is there, so `apply` has to write the whole file and let Slurm read it."""
    cluster = ConfCluster(tmp_path)
    assert cluster.transactions.introduce() is None
    assert not cluster.managed.exists()


@pytest.mark.parametrize(
    ("site", "words"),
    [
        ("NodeName=vn[1-9] CPUs=1\nInclude backfill.conf\n", "line 1: defines vn2 too"),
        ("NodeName=x NodeAddr=10.1.0.2\nInclude backfill.conf\n", "the address 10.1.0.2 of vn2"),
        ("Include {dir}/backfill.conf\n", "without a directory"),
        ("Include backfill.conf\nInclude backfill.conf\n", "line 2: includes backfill.conf"),
        ("Include nothing.conf\nInclude backfill.conf\n", "nothing.conf: cannot be read"),
    ],
)
def test_a_site_that_contradicts_us(tmp_path: Path, site: str, words: str) -> None:
    """One sentence with the place, and nothing is written."""
    cluster = ConfCluster(tmp_path)
    cluster.conf.write_text(site.format(dir=cluster.conf.parent))
    unread = "cannot be read" in words
    with pytest.raises(UnreadableError if unread else RefusedError, match=words.replace("[", r"\[")):
        cluster.transactions.apply(with_node("vn2"), dry=False)
    assert not cluster.managed.exists()
    assert cluster.reloads() == 0


def test_a_node_that_slurm_could_misread_is_refused(cluster: ConfCluster) -> None:
    """A name for an address, and two nodes with one address."""
    bad = NodeSpec("vn2", "vn2.example", 2, 500, ())
    twin = NodeSpec("vn3", "10.1.0.1", 2, 500, ())
    for spec, words in ((bad, "bare IP"), (twin, "10.1.0.1 of vn1")):
        with pytest.raises(RefusedError, match=words):
            cluster.transactions.apply(
                lambda m, s=spec: m.with_nodes(  # type: ignore[misc]  # a default binds it
                    line("vn1"), type(line("vn1"))(s, LineState.FUTURE)
                ),
                dry=False,
            )
    assert names(cluster) == {"vn1"}
