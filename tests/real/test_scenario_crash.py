"""The daemon is killed between any two steps and started again: nothing is lost, nothing twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.real.daemon_rig import MIGRATE, PAUSE, REQUEUE, SUSPEND, DaemonRig, daemon_lab

pytestmark = pytest.mark.real

ONE: dict[str, Any] = {"limits": {"max_instances": 1}}
BY_PAUSE = {"ladder": [PAUSE, REQUEUE], **ONE}
BY_SUSPEND = {"ladder": [SUSPEND, REQUEUE], **ONE}
MOVE_FIRST = {"ladder": [MIGRATE, PAUSE, REQUEUE], **ONE}
# One crash while the host is given up, one while the work is brought back. An intent that is stored
# is not begun yet; an outcome that is not stored has happened.
PAUSES = (
    ("after phase evicting", "after phase returning"),
    ("after intent PauseInstance", "after intent ThawInstance"),
    ("before outcome PauseInstance", "before outcome ThawInstance"),
    ("after outcome PauseInstance", "after outcome ThawInstance"),
    ("after intent DrainNode", "after intent WakeInstance"),
    ("before outcome DrainNode", "before outcome WakeInstance"),
    ("after intent SetAddress", "before outcome ResumeJob"),
    ("before outcome SetAddress", "after intent SetAddress"),
    ("after outcome SetAddress", "before outcome SetAddress"),
    ("after intent SuspendJob", "after intent ResumeJob"),
    ("before outcome SuspendJob", "before outcome ResumeJob"),
    ("before phase parked", "after intent UndrainNode"),
    ("after phase parked", "before outcome UndrainNode"),
)
SUSPENDS = (
    ("after intent SuspendInstance", "after intent RestoreInstance"),
    ("before outcome SuspendInstance", "before outcome RestoreInstance"),
)
MOVES = ("after phase moving", "after intent MigrateInstance", "before outcome MigrateInstance")
BOOT = (
    "after phase booting",
    "after intent CreateNode",
    "before outcome CreateNode",
    "after intent WakeInstance",
    "before outcome WakeInstance",
    "before outcome UndrainNode",
)
# On a busy machine an effect is seen before its call is back, and the next step begins.
REMOVAL = (
    "before outcome DrainNode,before phase removing",
    "after phase removing",
    "after intent DeleteInstance",
    "before outcome DeleteInstance,before intent DeleteNode",
    "after intent DeleteNode",
    "before outcome DeleteNode",
)


def in_test(moments: Sequence[tuple[str, str]], most: int) -> list[object]:
    """So many of them are in `make test`, all in the gate."""
    return [
        pytest.param(*pair, id=" / ".join(pair), marks=() if at < most else pytest.mark.gate)
        for at, pair in enumerate(moments)
    ]


@pytest.fixture(scope="module")
def bed() -> Iterator[DaemonRig]:
    with daemon_lab("crash") as rig:
        yield rig


def give_and_take(rig: DaemonRig, policy: dict[str, Any], giving: str, taking: str) -> None:
    """Push a counting job aside and bring it back, with a crash on each way."""
    rig.restart(**policy)
    low = rig.low()
    name, host = rig.where(low)
    rig.restart(crash=giving, **policy)
    high = rig.high(host, start=False)
    rig.crashed()
    rig.start(crash=taking, **policy)
    rig.becomes(name, "parked")
    rig.started(high)
    before = len(rig.words_at_s(low))
    rig.release(high)
    rig.crashed()
    rig.start(**policy)
    rig.becomes(name, "ready")
    rig.finish(low)
    assert rig.show(low)["Restarts"] == "0"
    assert len(rig.words_at_s(low)) > before


@pytest.mark.parametrize(("giving", "taking"), in_test(PAUSES, 3))
def test_killed_while_pausing_and_returning(rig: DaemonRig, giving: str, taking: str) -> None:
    """Whatever was begun is finished by the next daemon, once."""
    give_and_take(rig, BY_PAUSE, giving, taking)


@pytest.mark.parametrize(("giving", "taking"), in_test(SUSPENDS, 1))
def test_killed_while_suspending_and_restoring(rig: DaemonRig, giving: str, taking: str) -> None:
    """The same with memory on its way to disk and back."""
    give_and_take(rig, BY_SUSPEND, giving, taking)


@pytest.mark.gate
@pytest.mark.parametrize("moment", MOVES)
def test_killed_while_moving(rig: DaemonRig, moment: str) -> None:
    """A running instance is on one host in the end, and its job never stopped for long."""
    rig.restart(**MOVE_FIRST)
    low = rig.low()
    name, host = rig.where(low)
    rig.restart(crash=moment, **MOVE_FIRST)
    high = rig.high(host, start=False)
    rig.crashed()
    rig.start(**MOVE_FIRST)
    rig.becomes(name, "ready")
    rig.started(high)
    assert rig.where(low) == (name, rig.other(host))
    assert rig.domains() == {host: [], rig.other(host): [name]}
    rig.finish(low)
    rig.release(high)
    assert rig.show(low)["Restarts"] == "0"


@pytest.mark.gate
def test_killed_again_and_again_while_removing_and_booting(rig: DaemonRig) -> None:
    """One removal and one boot, each through six crashes: no leftover, no second instance."""
    rig.restart(scale={"idle_s": 600}, **ONE)
    first = rig.low()
    name, _ = rig.where(first)
    rig.finish(first)
    rig.stop()
    for moment in REMOVAL:
        rig.start(crash=moment, scale={"idle_s": 0}, **ONE)
        rig.crashed()
    rig.start(scale={"idle_s": 0}, **ONE)
    rig.until(lambda: not rig.nodes(), what="the removal")
    assert rig.node_states().keys() == set(rig.lab.hosts)
    assert rig.domains() == {host: [] for host in rig.lab.hosts}
    rig.stop()
    low = rig.low(start=False)
    for moment in BOOT:
        rig.start(crash=moment, **ONE)
        rig.crashed()
    rig.start(**ONE)
    rig.finish(low)
    assert sorted(rig.domains().values()) == [[], [name]]
