"""Moves between libvirt's test hosts: what stands in their way, and what is claimed when they break off."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from backfill.core.model.fleet import InstanceState
from backfill.drivers.libvirt.connection.hypervisor import Hypervisor
from backfill.ports.errors import AlreadyThereError, BusyError, RefusedError
from tests.contract.instance_rig import CLUSTER, born, state
from tests.contract.libvirt_testdriver import STRANGER, TestDriverRig


class BrokenOffError(BaseException):
    """The daemon died here."""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TestDriverRig]:
    made = TestDriverRig(tmp_path)
    yield made
    made.end()


@pytest.fixture
def there(rig: TestDriverRig) -> Hypervisor:
    """The host to which all moves go."""
    return rig.provider._pool.on("hv2")


def claims(rig: TestDriverRig) -> str:
    """The hosts that may have the instance."""
    return Path(rig.config.directory, CLUSTER, "vn1", "claims").read_text()


def twin(rig: TestDriverRig, generation: int = 1) -> str:
    """What defines a domain like that of `vn1`, of this generation, on another host."""
    return (
        rig.provider._pool.on("hv1").document("vn1").replace(' generation="1"', f' generation="{generation}"')
    )


@pytest.mark.parametrize("active", [False, True])
def test_a_strangers_machine_at_the_target_stays(rig: TestDriverRig, there: Hypervisor, active: bool) -> None:
    """Whether it runs or not: the move is refused, and both have what they had."""
    host = born(rig)
    rig.provider.suspend(host, "vn1")
    there.define("vn1", STRANGER.format(name="vn1"))
    if active:
        there.start("vn1")
    with pytest.raises(AlreadyThereError, match="hv2 has a machine of this name that is not ours"):
        rig.provider.migrate(host, "vn1", "hv2")
    found = there.find("vn1")
    assert found is not None
    assert found.active is active
    assert state(rig) is InstanceState.SUSPENDED


@pytest.mark.parametrize(
    ("generation", "told"), [(1, "hv2 is receiving it"), (2, "another one is active on hv2")]
)
def test_what_is_active_at_the_target_stays(
    rig: TestDriverRig, there: Hypervisor, generation: int, told: str
) -> None:
    """The same one, while it is active here too, or another generation of it: neither is touched."""
    host = born(rig)
    there.define("vn1", twin(rig, generation))
    there.start("vn1")
    with pytest.raises(BusyError, match=told):
        rig.provider.migrate(host, "vn1", "hv2")
    assert state(rig) is state(rig, host="hv2") is InstanceState.RUNNING


def test_a_move_on_disk_that_breaks_off_is_claimed_by_both_hosts(
    rig: TestDriverRig, there: Hypervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the target has of it then, it counts; the next call brings it over."""
    host = born(rig)
    rig.provider.suspend(host, "vn1")

    def die(name: str, document: str) -> None:
        raise BrokenOffError(name)

    with monkeypatch.context() as patch:
        patch.setattr(there, "define", die)
        with pytest.raises(BrokenOffError):
            rig.provider.migrate(host, "vn1", "hv2")
    assert claims(rig) == "hv1\nhv2\n"
    rig.provider.migrate(host, "vn1", "hv2")
    assert claims(rig) == "hv2\n"
    assert state(rig, host="hv2") is InstanceState.SUSPENDED
    rig.provider.delete("hv2", "vn1")


def test_a_move_in_memory_is_claimed_by_both_hosts_until_it_has_failed(
    rig: TestDriverRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the target, which has nothing of it, keeps nobody from starting it anew."""
    host = born(rig)
    rig.provider.pause(host, "vn1")
    sent: list[str] = []

    def fail(name: str, *_how: object) -> None:
        sent.append(claims(rig))
        raise RefusedError(name, "the test host cannot send it")

    monkeypatch.setattr(rig.provider._pool.on(host), "migrate", fail)
    with pytest.raises(RefusedError, match="cannot send it"):
        rig.provider.migrate(host, "vn1", "hv2")
    assert sent == ["hv1\nhv2\n"]
    assert claims(rig) == "hv1\n"
    assert state(rig) is InstanceState.PAUSED
