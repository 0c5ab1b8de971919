"""Two daemons with state directories of their own on one cluster: one works, the other refuses."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from backfill.drivers.store.lease import BEAT_S, GIVE_UP_S, TAKE_OVER_S, Keeper, Lease, lease_path
from backfill.ports.errors import BusyError, RefusedError, UnreadableError


@dataclass
class Machine:
    """A monotonic clock of its own; `meanwhile` happens whenever somebody sleeps."""

    now_s: float

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.meanwhile()

    def meanwhile(self) -> None:
        """Nothing happens."""


@dataclass
class Beside(Machine):
    """Another daemon beats while this one sleeps."""

    other: Lease | None = None

    def meanwhile(self) -> None:
        assert self.other is not None
        assert self.other.beat() is None


def lease(tmp_path: Path, name: str, machine: Machine) -> Lease:
    (tmp_path / name).mkdir(exist_ok=True)
    return Lease(tmp_path / "backfill.lease", tmp_path / name, machine.monotonic, machine.sleep)


def test_a_second_daemon_refuses_and_says_whose_the_cluster_is(tmp_path: Path) -> None:
    """At the first beat that it sees, with the way to take over."""
    first = lease(tmp_path, "one", Machine(5.0))
    first.take()
    machine = Beside(9e9, other=first)
    with pytest.raises(BusyError) as caught:
        lease(tmp_path, "two", machine).take()
    assert str(tmp_path / "one") in str(caught.value)
    assert "--take-over" in str(caught.value)
    assert machine.now_s < 9e9 + 2
    assert first.beat() is None


def test_a_dead_daemon_is_followed_after_a_while(tmp_path: Path) -> None:
    """By the follower's own clock, however far the clocks of both are apart."""
    lease(tmp_path, "one", Machine(9e9)).take()
    machine = Machine(1.0)
    second = lease(tmp_path, "two", machine)
    second.take()
    assert machine.now_s >= 1.0 + TAKE_OVER_S
    assert second.beat() is None


def test_the_same_state_directory_goes_on_at_once(tmp_path: Path) -> None:
    """A crash needs nobody's help and no wait."""
    lease(tmp_path, "one", Machine(1.0)).take()
    machine = Machine(2.0)
    again = lease(tmp_path, "one", machine)
    again.take()
    assert machine.now_s == 2.0
    assert again.beat() is None


def test_a_copy_of_the_state_directory_on_another_machine_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first may still be at work: its lease is watched like anybody's."""
    first = lease(tmp_path, "one", Machine(1.0))
    first.take()
    monkeypatch.setattr("socket.gethostname", lambda: "backup")
    with pytest.raises(BusyError, match="is at work on this cluster"):
        lease(tmp_path, "one", Beside(1.0, other=first)).take()


def test_a_person_takes_over_and_the_other_notices(tmp_path: Path) -> None:
    """It does not act any more from its next beat on, and does not take it back."""
    first = lease(tmp_path, "one", Machine(1.0))
    first.take()
    machine = Machine(1.0)
    second = lease(tmp_path, "two", machine)
    second.take(at_once=True)
    assert machine.now_s < 1.0 + BEAT_S
    assert "was taken over by" in str(first.beat())
    first.release()
    assert second.beat() is None


def test_a_daemon_that_ends_in_peace_leaves_no_lease(tmp_path: Path) -> None:
    """The next one need not wait."""
    first = lease(tmp_path, "one", Machine(1.0))
    first.take()
    first.release()
    machine = Machine(1.0)
    lease(tmp_path, "two", machine).take()
    assert machine.now_s == 1.0


def test_what_nobody_can_read_is_somebodys(tmp_path: Path) -> None:
    """A newer program's lease, or half a file: it is watched, not ignored."""
    (tmp_path / "backfill.lease").write_text("{")
    machine = Machine(1.0)
    lease(tmp_path, "two", machine).take()
    assert machine.now_s >= 1.0 + TAKE_OVER_S


def test_a_holder_that_cannot_write_gives_up_before_another_may_follow(tmp_path: Path) -> None:
    """It is in doubt until it was the holder at two beats: another may be taking over meanwhile."""
    assert GIVE_UP_S < TAKE_OVER_S / 1.5
    machine = Machine(1.0)
    mine = lease(tmp_path, "one", machine)
    mine.take()
    keeper = Keeper(mine, look_again_s=0.0)
    place = tmp_path / "backfill.lease"
    place.unlink()
    place.mkdir()  # as a directory neither can be read nor replaced
    assert keeper.once()
    assert keeper.doubt() is None
    machine.now_s += GIVE_UP_S + 1
    assert keeper.once()
    assert "backfill.lease: the lease cannot be read" in str(keeper.doubt())
    place.rmdir()
    assert keeper.once()
    assert keeper.doubt() is not None
    machine.now_s += 5
    assert keeper.once()
    assert keeper.doubt() is None
    other = lease(tmp_path, "two", Machine(1.0))
    other.take(at_once=True)
    assert not keeper.once()
    assert str(tmp_path / "two") in keeper.lost


def test_a_holder_that_stood_still_looks_before_it_acts(tmp_path: Path) -> None:
    """A stopped process, a machine that slept: the first decision knows that the lease is lost."""
    machine = Machine(1.0)
    mine = lease(tmp_path, "one", machine)
    mine.take()
    keeper = Keeper(mine, look_again_s=60.0)
    keeper.start()
    try:
        assert keeper.doubt() is None
        lease(tmp_path, "two", Machine(9e9)).take()
        machine.now_s += 2 * TAKE_OVER_S
        assert keeper.doubt() is not None
        assert str(tmp_path / "two") in keeper.lost
    finally:
        keeper.stop()
    assert "two" in (tmp_path / "backfill.lease").read_text()


def test_a_watcher_that_stood_still_has_seen_nothing(tmp_path: Path) -> None:
    """Its clock ran on, the other's beats were not looked at: it looks for the whole time."""
    lease(tmp_path, "one", Machine(1.0)).take()

    @dataclass
    class Sleepy(Machine):
        looks: int = 0

        def meanwhile(self) -> None:
            self.looks += 1
            self.now_s += 1000.0

    machine = Sleepy(1.0)
    lease(tmp_path, "two", machine).take()
    assert machine.looks >= TAKE_OVER_S / 2


def test_of_two_that_take_over_at_once_one_works(tmp_path: Path) -> None:
    """Whoever wrote last; the other one sees it before it acts."""
    lease(tmp_path, "dead", Machine(1.0)).take()
    late = lease(tmp_path, "late", Machine(1.0))

    @dataclass
    class Raced(Machine):
        taken: bool = False

        def meanwhile(self) -> None:
            if "early" in (tmp_path / "backfill.lease").read_text() and not self.taken:
                self.taken = True
                late.take(at_once=True)

    with pytest.raises(BusyError, match="late"):
        lease(tmp_path, "early", Raced(1.0)).take()
    assert late.beat() is None


def test_of_two_that_find_no_lease_one_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both saw that nobody has it."""
    first, second = (lease(tmp_path, name, Machine(1.0)) for name in ("one", "two"))
    first.take()
    read, blind = Lease._read, iter([True])
    monkeypatch.setattr(Lease, "_read", lambda self: None if next(blind, False) else read(self))
    with pytest.raises(BusyError, match="one"):
        second.take()
    assert first.beat() is None


def test_a_lease_that_cannot_be_read_is_not_free(tmp_path: Path) -> None:
    """Nor is it one that nobody could ever hold: the daemon does not start."""
    (tmp_path / "backfill.lease").mkdir()
    with pytest.raises(UnreadableError, match="the lease cannot be read: Is a directory"):
        lease(tmp_path, "one", Machine(1.0)).take()


def test_a_directory_that_is_not_ours_to_write_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither root nor Slurm's user: no lease, and one sentence; another's is still respected."""

    def denied(_: Path, mode: str = "r", **__: object) -> None:
        raise PermissionError(13, "Permission denied") if "x" in mode else FileNotFoundError

    mine, first = (lease(tmp_path, name, Machine(1.0)) for name in ("mine", "first"))
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", denied)
        with pytest.raises(RefusedError, match="the lease cannot be written: Permission denied"):
            mine.take()
    first.take()
    mine._sleep = Beside(1.0, other=first).sleep
    with pytest.raises(BusyError, match="first"):
        mine.take()


def test_a_copy_of_the_state_directory_beside_it_waits(tmp_path: Path) -> None:
    """It has the same id, and its lock keeps nobody away."""
    first = lease(tmp_path, "one", Machine(1.0))
    first.take()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy/daemon.id").write_text((tmp_path / "one/daemon.id").read_text())
    with pytest.raises(BusyError, match="is at work on this cluster"):
        lease(tmp_path, "copy", Beside(1.0, other=first)).take()


def test_words_in_no_language_end_no_thread(tmp_path: Path) -> None:
    """Bytes that are no text: another's."""
    mine = lease(tmp_path, "one", Machine(1.0))
    mine.take()
    (tmp_path / "backfill.lease").write_bytes(b"\xff\xfe")
    assert "was taken over by" in str(mine.beat())


def test_a_dead_file_system_is_not_taken_for_another_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is known again later; a directory that is not there or not for us stays so."""

    def dead(_: Path) -> bytes:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(Path, "read_bytes", dead)
    with pytest.raises(UnreadableError, match="Stale file handle"):
        lease_path(str(tmp_path), "site")


def test_the_lease_lies_beside_slurmctlds_state(tmp_path: Path) -> None:
    """Where this machine sees the directory of this very cluster; nowhere else."""
    assert lease_path(str(tmp_path), "site") is None
    (tmp_path / "clustername").write_text("other")
    assert lease_path(str(tmp_path), "site") is None
    (tmp_path / "clustername").write_text("site\n")
    assert lease_path(str(tmp_path), "site") == tmp_path / "backfill.lease"
