"""Hands other than ours on the managed file, its copies, and the programs that it names."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from backfill.core.model.cluster import Node, NodeBase, SlurmVersion
from backfill.drivers.slurm.conf import transaction
from backfill.drivers.slurm.conf.dry import DryVerdict
from backfill.drivers.slurm.conf.files import read_or_empty
from backfill.drivers.slurm.conf.managed import named_in, parse
from backfill.drivers.slurm.conf.nodes import Lines
from backfill.drivers.slurm.conf.rules import reset_partition
from backfill.drivers.slurm.conf.site import ConfLine
from backfill.drivers.slurm.conf.transaction import RolledBackError
from backfill.ports.errors import BusyError, RefusedError
from tests.component.conf_cluster import ConfCluster, CrashError, line, with_node, without_nodes


@pytest.fixture
def cluster(tmp_path: Path) -> ConfCluster:
    made = ConfCluster(tmp_path)
    made.transactions.apply(with_node("vn1"), dry=False)
    made.steps.clear()
    return made


def names(cluster: ConfCluster) -> set[str]:
    """The nodes of the file as it is, which must be whole."""
    return set(parse(cluster.managed.read_text()).names())


@pytest.mark.parametrize(
    "change",
    [
        lambda ours: ours + "# für Kurt\n".encode("latin-1"),
        lambda ours: ours.replace(b"\n", b"\r\n"),
        lambda ours: b"\xef\xbb\xbf" + ours,
        lambda ours: ours + b"\0",
    ],
    ids=["latin-1", "line ends", "byte order mark", "null"],
)
def test_bytes_of_others_are_noticed_shown_and_kept(
    cluster: ConfCluster, change: Callable[[bytes], bytes]
) -> None:
    """An editor that means well is another hand, too; the copy has exactly what it left."""
    foreign = change(cluster.managed.read_bytes())
    cluster.managed.write_bytes(foreign)
    with pytest.raises(RefusedError, match="see `backfill slurm diff`"):
        cluster.transactions.current()
    shown = cluster.transactions.preview(with_node("vn2"), force=True)
    assert shown.encode().decode() == shown
    assert "\r" not in shown
    assert named_in(read_or_empty(cluster.managed)) >= {"vn1"}
    done = cluster.transactions.apply(with_node("vn2"), dry=False, force=True)
    assert Path(done.backup).read_bytes() == foreign
    assert "vn2" in names(cluster)


def test_rollback_names_what_it_cannot_go_back_to(cluster: ConfCluster) -> None:
    """A copy that is not there, and one that names a program which has been removed since."""
    with pytest.raises(RefusedError, match=r"/no/copy: there is no such copy$"):
        cluster.transactions.rollback(Path("/no/copy"), dry=False)
    program = cluster.directory / "prolog"
    program.touch()
    hooked = (("PrologSlurmctld", str(program)),)
    cluster.transactions.apply(lambda m: m.with_section("hooks", hooked), dry=False)
    cluster.transactions.apply(lambda m: m.with_section("hooks", ()), dry=False)
    program.unlink()
    with pytest.raises(RefusedError, match=r"PrologSlurmctld: there is no program .*prolog any"):
        cluster.transactions.rollback(dry=False)


def test_force_says_that_the_hooks_went_with_the_file(cluster: ConfCluster) -> None:
    """They cannot be told from what somebody else has put there."""
    hooked = (("PrologSlurmctld", "/bin/true"),)
    cluster.transactions.apply(lambda m: m.with_section("hooks", hooked), dry=False)
    cluster.managed.write_text(cluster.managed.read_text() + "# by hand\n")
    done = cluster.transactions.apply(with_node("vn2"), dry=False, force=True)
    assert done.notes == ("the hooks stood in the replaced file; run `backfill slurm hooks install`",)


def test_a_link_that_root_has_made_stays_a_link(cluster: ConfCluster) -> None:
    """Two controllers may share the file so."""
    shared = cluster.directory / "shared.conf"
    cluster.managed.rename(shared)
    cluster.managed.symlink_to(shared)
    cluster.transactions.apply(with_node("vn2"), dry=False)
    assert cluster.managed.is_symlink()
    cluster.transactions.note_states(lambda m: m.only_nodes(m.nodes[:1]))
    assert cluster.managed.is_symlink()
    assert set(parse(shared.read_text()).names()) == {"vn1"}


def test_an_edit_during_the_trial_is_not_written_over(cluster: ConfCluster) -> None:
    """From the first look to the writing seconds may pass, and no copy would have that edit."""
    theirs = cluster.managed.read_text() + "NodeName=kurt\n"
    cluster.at["note"] = lambda: cluster.managed.write_text(theirs)
    with pytest.raises(BusyError, match="somebody else has changed it in this moment"):
        cluster.transactions.apply(with_node("vn2"), dry=False)
    assert cluster.managed.read_text() == theirs
    assert not cluster.transactions.unfinished()


def test_a_full_disk_does_not_keep_the_new_text_in_its_place(cluster: ConfCluster) -> None:
    """The note about the way back cannot be written; what Slurm does not take is taken back all the same."""
    before = cluster.managed.read_text()

    def lost_and_full() -> None:
        cluster.gone.add("bm2")
        (cluster.directory / "state/.unfinished.json.backfill-new").mkdir(exist_ok=True)

    cluster.at["look"] = lost_and_full
    with pytest.raises(RolledBackError, match="node bm2 is gone"):
        cluster.transactions.apply(with_node("vn2"), dry=False)
    assert cluster.managed.read_text() == before


def test_a_node_that_has_got_a_job_meanwhile_keeps_its_line(cluster: ConfCluster) -> None:
    """A change is cut off that takes it out, and Slurm has not read it: to go on would end the job."""
    before = cluster.managed.read_text()
    cluster.crash_at = "reload"
    with pytest.raises(CrashError):
        cluster.transactions.apply(without_nodes, dry=False)
    cluster.states["vn1"] = Node("vn1", NodeBase.ALLOCATED)
    cluster.runs("7", "vn1")
    reloads = cluster.reloads()
    assert "was taken back: vn1: job 7 holds it" in cluster.transactions.recover()
    assert (cluster.managed.read_text(), cluster.reloads()) == (before, reloads)
    assert cluster.transactions.recover() == ""


def test_a_job_on_a_new_node_outweighs_what_else_went_wrong(cluster: ConfCluster) -> None:
    """A CLOUD node takes jobs as soon as Slurm knows it; another node's failure must not end them."""

    def comes_and_goes() -> None:
        cluster.states |= {"vn2": Node("vn2", NodeBase.ALLOCATED), "bm2": Node("bm2", NodeBase.DOWN)}
        cluster.runs("7", "vn2")

    cluster.at["look"] = comes_and_goes
    with pytest.raises(
        RolledBackError, match=r"it stays although node bm2 went DOWN .*: vn2: job 7 holds it"
    ):
        cluster.transactions.apply(with_node("vn2"), dry=False)
    assert names(cluster) == {"vn1", "vn2"}
    assert (cluster.reloads(), cluster.transactions.unfinished()) == (2, False)


@pytest.mark.parametrize("name", ["slurm.conf", "gres.conf"])
def test_a_site_that_is_being_edited_is_tried_before_the_daemon_adds_a_line(
    cluster: ConfCluster, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """slurmctld may not have read it yet, and could end at our reload by somebody's half-written line."""
    verdicts: list[DryVerdict] = []
    monkeypatch.setattr(transaction, "dry_start", lambda *_: verdicts.pop(0))
    lines = Lines(cluster.transactions)
    lines.want(line("vn2"))
    path = cluster.conf.with_name(name)
    path.write_text((path.read_text() if path.exists() else "") + "Half=wri\n")
    verdicts.append(DryVerdict(True, "Half is no word"))
    reloads = cluster.reloads()
    with pytest.raises(BusyError, match="slurmctld does not take it: Half is no word") as raised:
        lines.want(line("vn3"))
    assert raised.value.retry  # whoever edits it goes on: no node is to be given up for that
    assert (names(cluster), cluster.reloads()) == ({"vn1", "vn2"}, reloads)
    verdicts.append(DryVerdict(True))
    lines.want(line("vn3"))
    lines.want(line("vn4"))  # Slurm has read it by now
    assert (names(cluster), verdicts) == ({"vn1", "vn2", "vn3", "vn4"}, [])


def test_the_states_of_partitions_are_looked_up_in_one_go(
    cluster: ConfCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through all lines for each of them took seconds at a large site, for every node."""
    names_of_many = [f"p{number}" for number in range(100)]
    cluster.conf.write_text(cluster.conf.read_text() + "".join(f"PartitionName={n}\n" for n in names_of_many))
    cluster.partitions = {name: {"State": "UP"} for name in names_of_many}
    site, read = cluster.transactions.site(), ConfLine.value
    keys: list[str] = []

    def counted(line: ConfLine, key: str) -> str | None:
        keys.append(key)
        return read(line, key)

    monkeypatch.setattr(ConfLine, "value", counted)
    assert reset_partition(site, cluster.settings(), restart=True) is None
    assert len(keys) <= 2 * len(site.lines)


def test_a_person_can_say_that_a_trial_is_wrong(
    cluster: ConfCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slurmctld without network may want what the living one has; nodes are added all the same."""
    verdict = DryVerdict(True, "no such socket")
    monkeypatch.setattr(transaction, "dry_start", lambda *_: verdict)
    lines = Lines(cluster.transactions)
    cluster.conf.write_text(cluster.conf.read_text() + "Socket=x\n")
    with pytest.raises(BusyError, match="or say `backfill slurm apply --no-dry-start`"):
        lines.want(line("vn2"))
    cluster.transactions.apply(lambda now: now, dry=False)  # nothing has to be written
    lines.want(line("vn2"))
    assert names(cluster) == {"vn1", "vn2"}


@pytest.mark.parametrize("beside", ["link", "folder"])
def test_a_file_that_cannot_be_read_hides_no_change_of_the_others(cluster: ConfCluster, beside: str) -> None:
    """Beside slurm.conf lies what only root may read, or a link to nothing."""
    odd = cluster.conf.with_name("odd.conf")
    odd.symlink_to("/no/where") if beside == "link" else odd.mkdir()
    cluster.transactions.apply(with_node("vn2"), dry=False)
    assert not cluster.transactions.is_site_new()
    cluster.conf.with_name("gres.conf").write_text("Half=wri\n")
    assert cluster.transactions.is_site_new()


def test_a_sum_that_cannot_be_read_costs_a_trial(
    cluster: ConfCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root was killed before it gave it to the daemon, and no line was added any more."""
    verdicts = [DryVerdict(True)]
    monkeypatch.setattr(transaction, "dry_start", lambda *_: verdicts.pop())
    kept = cluster.directory / "state/site.sha256"
    kept.unlink()
    kept.mkdir()
    Lines(cluster.transactions).want(line("vn2"))
    assert (names(cluster), verdicts) == ({"vn1", "vn2"}, [])


def test_root_who_may_give_nothing_away_works_all_the_same(
    cluster: ConfCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container without CAP_CHOWN, or on a file system that knows no owners."""

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "chown", refuse)
    cluster.transactions.apply(with_node("vn2"), dry=False)
    assert names(cluster) == {"vn1", "vn2"}


def test_what_root_leaves_in_the_state_directory_is_the_daemons(cluster: ConfCluster) -> None:
    """The daemon is SlurmUser where root says `backfill slurm apply`, and could not begin any more."""
    if os.geteuid() != 0:  # nobody else can give a file away
        return
    state = cluster.directory / "daemons"
    state.mkdir()
    os.chown(state, 65534, 65534)
    ours = replace(cluster.transactions, place=replace(cluster.transactions.place, state_dir=state / "conf"))
    ours.apply(with_node("vn2"), dry=False)
    cluster.crash_at = "reload"
    with pytest.raises(CrashError):
        ours.apply(with_node("vn3"), dry=False)
    made = list(state.rglob("*"))
    assert {path.name for path in made} >= {"conf", "lock", "backups", "unfinished.json", "site.sha256"}
    assert {(path.stat().st_uid, path.stat().st_gid) for path in made} == {(65534, 65534)}


@pytest.mark.parametrize(
    ("written", "shown", "told"),
    [
        (
            "PartitionName=htc Nodes=bm1",
            "DOWN",
            "is DOWN, and would be UP again as .*slurm.conf, line 4 has it",
        ),
        ("PartitionName=htc State=drain", "UP", "is UP, and would be DRAIN again"),
        ("PartitionName=DEFAULT State=UP\nPartitionName=htc", "INACTIVE", "is INACTIVE, .*line 5 has it"),
        ("PartitionName=other", "UP", "is not in slurm.conf, and would be gone"),
    ],
)
def test_a_partition_that_somebody_has_closed_is_not_opened(
    cluster: ConfCluster, written: str, shown: str, told: str
) -> None:
    """A reload forgets what scontrol was told; ReconfigFlags lets it remember, but not a restart."""
    cluster.conf.write_text(cluster.conf.read_text() + f"{written}\n")
    cluster.partitions = {"htc": {"State": shown}}
    before, reloads = cluster.managed.read_text(), cluster.reloads()
    with pytest.raises(BusyError, match=f"by a reload partition htc {told}.*KeepPartState") as raised:
        cluster.transactions.apply(with_node("vn2"), dry=False)
    assert raised.value.retry  # a maintenance ends: no node is to be given up for that
    assert (cluster.managed.read_text(), cluster.reloads()) == (before, reloads)
    cluster.raw = {"ReconfigFlags": "KeepPartState"}
    cluster.version, cluster.restart = SlurmVersion(22, 5, 8), ("true",)
    with pytest.raises(BusyError, match=told) as raised:
        cluster.transactions.apply(with_node("vn2"), dry=False)
    assert "KeepPartState" not in raised.value.remedy  # it does not help
    cluster.version = SlurmVersion(24, 11, 5)
    cluster.transactions.apply(with_node("vn2"), dry=False)
    assert names(cluster) == {"vn1", "vn2"}


def test_partitions_as_slurm_conf_has_them_are_no_reason(cluster: ConfCluster) -> None:
    """Whatever the case of its words, and with the State that Slurm gives to one without."""
    more = "PartitionName=DEFAULT State=Down\nPartitionName=a\nPartitionName=b State=up\n"
    more += "PartitionName=c State=drained\n"  # Slurm looks only at how the word begins
    cluster.conf.write_text(cluster.conf.read_text() + more)
    cluster.partitions = {"a": {"State": "DOWN"}, "b": {"State": "UP"}, "c": {"State": "DRAIN"}}
    cluster.transactions.apply(with_node("vn2"), dry=False)
    assert names(cluster) == {"vn1", "vn2"}
