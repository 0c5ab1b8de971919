"""The munge key reaches a guest by the way into it, and the cloud never sees it."""

from __future__ import annotations

import base64
import json
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import run
from typing import Any

import pytest

from backfill.drivers.openstack.api.states import AWAITS_KEY
from backfill.drivers.openstack.guest import command as way
from backfill.drivers.openstack.guest import handover
from backfill.drivers.openstack.guest.handover import Handover
from backfill.drivers.openstack.servers.making import create
from backfill.drivers.openstack.settings import Guest
from backfill.ports.errors import DriverError, RefusedError, UnreachableError, UnreadableError
from tests.unit.test_cloud_applying import MemoryCloud
from tests.unit.test_openstack_making import SPEC, cloud_of

KEY = b"\x00\xffSECRET-MUNGE-KEY\n" * 8


class Notes:
    """The part of a cloud that keeps notes on servers."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, str, str | None]] = []

    def metadata(self, server: dict[str, Any], key: str, value: str | None) -> None:
        server["metadata"].pop(key, None)
        self.taken.append((str(server["name"]), key, value))


def server(name: str = "vn1", status: str = "ACTIVE", **notes: str) -> dict[str, Any]:
    found = {"backfill_cluster": "c1", "backfill_address": "10.77.1.1/16", AWAITS_KEY: "1"} | notes
    return {"id": f"id-{name}", "name": name, "status": status, "metadata": found}


def script(folder: Path, text: str) -> tuple[str, ...]:
    """A way into guests that is a script."""
    path = folder / "way"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return (str(path), "{address}")


def guest_of(folder: Path, text: str) -> Guest:
    key = folder / "munge.key"
    key.write_bytes(KEY)
    return Guest("10.0.0.1", "10.0.0.1:6817", str(key), command=script(folder, text))


def until(holds: Callable[[], bool]) -> None:
    """Poll until it holds."""
    deadline_s = time.monotonic() + 30.0
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def test_the_key_goes_over_standard_input_to_the_guest_that_awaits_it(tmp_path: Path) -> None:
    """Byte by byte, in no argument and no variable of a process; then the note is taken back."""
    text = f'cat >{tmp_path}/got; echo "$@" >{tmp_path}/argv; env >{tmp_path}/env'
    notes, giving = Notes(), Handover(guest_of(tmp_path, text))
    others = [server("vn2", "BUILD"), server("vn3", "PAUSED"), server("vn4")]
    del others[2]["metadata"][AWAITS_KEY]
    one = server()
    giving.look(notes, [one, *others])  # type: ignore[arg-type]  # all that is asked of it
    until(lambda: notes.taken != [])
    giving.close()
    assert notes.taken == [("vn1", AWAITS_KEY, None)]
    assert (tmp_path / "got").read_bytes() == KEY
    assert (tmp_path / "argv").read_text() == f"10.77.1.1 {way.KEY_PROGRAM}\n"
    assert "SECRET" not in (tmp_path / "env").read_text()


def test_a_guest_that_boots_is_tried_until_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ssh says with 255 that there is nobody yet."""
    monkeypatch.setattr(handover, "_AGAIN_S", 0.01)
    text = f"n=$(cat {tmp_path}/n 2>/dev/null || echo 0); echo $((n + 1)) >{tmp_path}/n; "
    text += f"[ $n -ge 3 ] || exit 255; cat >{tmp_path}/got"
    notes, giving = Notes(), Handover(guest_of(tmp_path, text))
    giving.look(notes, [server()])  # type: ignore[arg-type]  # as above
    until(lambda: notes.taken != [])
    giving.close()
    assert (tmp_path / "n").read_text() == "4\n"
    assert (tmp_path / "got").read_bytes() == KEY


def test_what_is_wrong_is_told_once_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An image without the program: the next look tries anew, and the note stays."""
    notes, giving = Notes(), Handover(guest_of(tmp_path, "echo 'not found' >&2; exit 127"))
    for _ in range(3):
        giving.look(notes, [server()])  # type: ignore[arg-type]  # as above
        until(lambda: not giving._busy)
    giving.close()
    assert notes.taken == []
    told = [r.getMessage() for r in caplog.records]
    assert told == [
        "the munge key is not handed to the guest of vn1: vn1: "
        f"{way.KEY_PROGRAM} failed in the guest: not found"
    ]


def test_the_way_says_whether_the_guest_has_it(tmp_path: Path) -> None:
    """Nobody there, and an error, are two things."""
    for status, error in ((255, UnreachableError), (1, DriverError)):
        with pytest.raises(error, match="oh no"):
            way.give_key(guest_of(tmp_path, f"echo oh no >&2; exit {status}"), "vn1", "10.77.1.1", KEY)


def test_nothing_that_the_cloud_is_told_of_a_server_is_secret(tmp_path: Path) -> None:
    """The defect: the key was in its user data, for every job that asks the metadata address."""
    link = MemoryCloud()
    cloud = cloud_of(link)
    cloud.config = replace(cloud.config, guest=guest_of(tmp_path, "exit 0"))
    asked: list[str] = []
    post = link.post

    def listening(service: str, path: str, subject: str, body: dict[str, Any]) -> Any:
        asked.append(json.dumps(body))
        if path == "/servers":
            assert body["server"]["metadata"][AWAITS_KEY] == "1"
        return post(service, path, subject, body)

    link.post = listening  # type: ignore[method-assign]  # to hear what is sent
    create(cloud, SPEC)
    told = " ".join(asked)
    data = json.loads(next(a for a in asked if '"user_data"' in a))["server"]["user_data"]
    told += base64.b64decode(data).decode()
    for form in (KEY[2:20], base64.b64encode(KEY)[4:40], KEY.hex().encode()[4:40]):
        assert form.decode(errors="replace") not in told


def test_a_key_that_cannot_be_read_is_told_before_anything_is_made(tmp_path: Path) -> None:
    """Such a server would never be a node."""
    cloud = cloud_of(MemoryCloud())
    cloud.config = replace(cloud.config, guest=Guest("", "", str(tmp_path / "none")))
    with pytest.raises(RefusedError, match="cannot read the munge key"):
        create(cloud, SPEC)


def test_the_lab_guests_program_keeps_the_key_to_munge(tmp_path: Path) -> None:
    """The one that images take over: nobody but its owner may read it, and twice is fine."""
    source = Path(__file__).parents[2] / "backfill/lab/guest/backfill-key"
    assert source.stat().st_mode & stat.S_IXUSR
    text = source.read_text().replace("/etc/munge", str(tmp_path)).replace("chown munge", "true a")
    program = tmp_path / "program"
    program.write_text(text)
    key = tmp_path / "munge.key"
    for _ in range(2):
        run(["sh", str(program)], input=KEY, check=True)
        assert key.read_bytes() == KEY
        assert stat.S_IMODE(key.stat().st_mode) == 0o400
    assert run(["sh", str(program)], input=b"", capture_output=True, check=False).returncode == 1
    assert key.read_bytes() == KEY
    assert sorted(p.name for p in tmp_path.iterdir()) == ["munge.key", "program"]


@pytest.mark.parametrize(
    "address", ["-oProxyCommand=touch /tmp/x", "evil.example", "10.77.1.1 -v", "", "$(id)"]
)
def test_what_is_no_address_is_no_way_into_a_guest(address: str, tmp_path: Path) -> None:
    """Anybody in the project may write that note; ssh would take it for an option, or another machine."""
    guest = guest_of(tmp_path, f'echo "$@" >{tmp_path}/argv')
    for ask in (
        lambda: way.wake(guest, "vn1", address, 0.0),
        lambda: way.job_processes(guest, "vn1", address),
    ):
        with pytest.raises(UnreadableError, match="vn1: its metadata backfill_address is no address"):
            ask()
    assert not (tmp_path / "argv").exists()


def test_the_key_goes_to_no_address_but_the_nodes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By its note alone, whoever may write that could have the key sent to a machine of his own."""
    guest = replace(guest_of(tmp_path, f"cat >{tmp_path}/got"), peers={"vn1": "10.77.1.1"})
    notes, giving = Notes(), Handover(guest)
    giving.look(notes, [server(backfill_address="198.51.100.7/16")])  # type: ignore[arg-type]
    until(lambda: caplog.messages != [])
    giving.close()
    assert (
        "its address is 10.77.1.1 in the policy file, and its metadata say 198.51.100.7" in caplog.messages[0]
    )
    assert not (tmp_path / "got").exists()
    assert notes.taken == []
