"""Hands other than ours on the managed file, its copies, and the programs that it names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from backfill.drivers.slurm.conf.files import read_or_empty
from backfill.drivers.slurm.conf.managed import named_in, parse
from backfill.ports.errors import RefusedError
from tests.unit.conf_cluster import ConfCluster, with_node


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
