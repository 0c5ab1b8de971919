"""What is told to a guest's fence, what it answers, and cables that are pulled."""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from backfill.core.model.fleet import Instance, InstanceState, Tag
from backfill.core.model.quantities import Resources
from backfill.drivers.libvirt.connection.cables import cards_to_change
from backfill.drivers.libvirt.connection.domain_xml import Frozen, Label, label_text, parse_label
from backfill.drivers.libvirt.fencing import freeze, release
from backfill.drivers.libvirt.guest import fencing
from backfill.drivers.libvirt.settings import LibvirtConfig, Surroundings
from backfill.ports.errors import BadOutputError, DriverError, RefusedError, UnreachableError

_DOMAIN = """<domain><devices>
<interface type='bridge'><mac address='52:54:00:00:00:01'/>{link}</interface>
<disk type='file'/></devices></domain>"""


def guest(output: str, exit_code: int = 0) -> tuple[Callable[[str, dict[str, object]], Any], list[list[str]]]:
    """An agent whose program writes this, and the arguments it was started with."""
    calls: list[list[str]] = []

    def ask(command: str, arguments: dict[str, Any]) -> Any:
        if command == "guest-exec":
            calls.append([arguments["path"], *arguments["arg"]])
            return {"pid": 1}
        told = base64.b64encode(output.encode()).decode()
        return {"exited": True, "exitcode": exit_code, "out-data": told}

    return ask, calls


def test_who_is_to_end_is_told_with_the_time() -> None:
    """By number, in order."""
    ask, calls = guest("correction 61.5\nended 42 7\n")
    assert fencing.clear(ask, "vn1", 1.7e9, (43, 42), 5.0) == 61.5
    ((program, verb, clock, *jobs),) = calls
    assert (program, verb, jobs) == (fencing.FENCE_PROGRAM, "clear", ["42", "43"])
    assert float(clock) == pytest.approx(1.7e9, abs=60)


def test_an_image_without_a_fence_holds_nothing_up() -> None:
    """Where nobody is to end, its guests go on as they always did."""
    ask, calls = guest("")
    assert fencing.clear(ask, "vn1", 1.7e9, (), 5.0) == 0.0
    assert calls[0][:3] == ["/bin/sh", "-c", 'test ! -x "$0" || exec "$0" "$@"']
    assert calls[0][3:5] == [fencing.FENCE_PROGRAM, "clear"]


@pytest.mark.parametrize("said", ["ended 42 7", "correction soon", "correction nan", "correction"])
def test_a_fence_that_does_not_tell_the_clocks_error_is_not_believed(said: str) -> None:
    """Whether it has set the clock is not known."""
    with pytest.raises(BadOutputError, match="did not tell how far the clock was off"):
        fencing.clear(guest(said)[0], "vn1", 1.7e9, (), 5.0)


def test_a_guest_without_the_program_cannot_freeze() -> None:
    """The caller is told, and nothing is believed to be frozen."""
    with pytest.raises(DriverError, match="backfill-fence failed in the guest"):
        fencing.hold(guest("no such file", exit_code=127)[0], "vn1", 5.0)


class AskedGuest:
    """A pool of one running guest, whose answers may be lost on their way."""

    config = LibvirtConfig(
        "sim",
        {"bm1": "test:///"},
        "/instances",
        "br0",
        Surroundings("10.77.0.1", "10.77.0.1:6817", "/key"),
        {},
    )

    def __init__(self) -> None:
        self.label = Label(Tag("sim", "vn1", 1), Resources(1, 256), 1.5)
        self.lost = False
        self.done: list[str] = []

    def need(self, _host: str, _name: str) -> tuple[Any, Instance]:
        """Return what its hypervisor shows."""
        tag, shape = self.label.tag, self.label.resources
        return self, Instance("vn1", "bm1", InstanceState.RUNNING, tag, shape)

    def on(self, _host: str) -> AskedGuest:
        """Return its hypervisor."""
        return self

    def with_agent(self, name: str, _work: object, _limit_s: float) -> float:
        """Ask the guest, which does as it is told."""
        self.done.append("ask")
        if self.lost:
            raise UnreachableError(name, "its answer was lost")
        return 61.5

    def set_frozen(self, _name: str, frozen: Frozen) -> None:
        """Write it down."""
        self.label = replace(self.label, frozen=frozen)

    def set_link(self, _name: str, up: bool) -> None:
        """Pull its cable, or put it back."""
        self.done.append("up" if up else "down")


def test_of_jobs_whose_guest_was_asked_before_nobody_knows_whether_they_ran() -> None:
    """An answer that was lost on its way may have been yes: they may stand still since then."""
    guest = AskedGuest()
    guest.lost = True
    with pytest.raises(UnreachableError):
        freeze(guest, "bm1", "vn1")  # type: ignore[arg-type]  # all of a pool that is used
    assert guest.label.frozen.value == "perhaps"
    guest.lost = False
    assert not freeze(guest, "bm1", "vn1")  # type: ignore[arg-type]
    assert guest.label.frozen.value == "yes"
    guest.set_frozen("vn1", Frozen.NO)
    assert freeze(guest, "bm1", "vn1")  # type: ignore[arg-type]


@pytest.mark.parametrize("frozen", [Frozen.NO, Frozen.PERHAPS])
def test_of_jobs_that_may_have_run_none_is_ended_unrun(frozen: Frozen) -> None:
    """The guest is not even asked, and its door stays shut."""
    guest = AskedGuest()
    guest.set_frozen("vn1", frozen)
    with pytest.raises(RefusedError, match="its jobs were not frozen before it stopped"):
        release(guest, "bm1", "vn1", 1.7e9, (42,))  # type: ignore[arg-type]  # as above
    assert guest.done == []
    assert guest.label.frozen is frozen


def test_the_door_opens_when_the_guest_has_ended_what_was_to_end() -> None:
    """Not where its answer was lost: then nothing is known, and it is asked again."""
    guest = AskedGuest()
    guest.set_frozen("vn1", Frozen.YES)
    guest.lost = True
    with pytest.raises(UnreachableError):
        release(guest, "bm1", "vn1", 1.7e9, (42,))  # type: ignore[arg-type]  # as above
    assert (guest.done, guest.label.frozen) == (["ask"], Frozen.YES)
    guest.lost = False
    assert release(guest, "bm1", "vn1", 1.7e9, (42,)) == 61.5  # type: ignore[arg-type]  # as above
    assert (guest.done, guest.label.frozen) == (["ask", "ask", "up"], Frozen.NO)


def test_a_label_tells_that_its_guest_froze_its_jobs() -> None:
    """Written for a domain that exists, and read again; an older label says nothing of it."""
    label = Label(Tag("c", "vn1", 3), Resources(1, 256), 1.5)
    for frozen in Frozen:
        marked = replace(label, frozen=frozen)
        assert parse_label(label_text(marked)) == marked
    assert "frozen" not in label_text(label)


@pytest.mark.parametrize(
    ("link", "up", "changed"),
    [
        ("", False, True),
        ("", True, False),
        ("<link state='down'/>", True, True),
        ("<link state='down'/>", False, False),
    ],
)
def test_only_cables_that_are_not_as_wanted_are_touched(link: str, up: bool, changed: bool) -> None:
    """The rest of the card is told as it is, or libvirt would take it for another."""
    cards = cards_to_change(_DOMAIN.format(link=link), up)
    assert len(cards) == changed
    for card in cards:
        assert f'<link state="{"up" if up else "down"}"' in card
        assert "52:54:00:00:00:01" in card


def test_a_card_of_the_hosts_has_no_cable() -> None:
    """It is left as it is."""
    assert cards_to_change(_DOMAIN.format(link="").replace("'bridge'", "'hostdev'"), up=False) == []
