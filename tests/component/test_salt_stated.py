"""The list of what a node's states come to, and how a guest checks itself by it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backfill.drivers.salt.stated import stated, whole_files
from backfill.lab.guestroot import GUEST_FILES
from backfill.ports.provider import SeedFile

Check = Callable[[bytes | None], tuple[int, str]]


def state(kind: str, name: str, **more: Any) -> dict[str, Any]:
    """One state of a low state, as Salt shows it."""
    module, _, function = kind.partition(".")
    own = {"__id__": f"id-{name}", "__sls__": "node", "__sls_included_from__": ["node"]}
    return {"state": module, "fun": function, "name": name, "order": 1, **own, **more}


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Check:
    """The guest's own program, on this machine: status and sentence for a list."""
    folder = tmp_path_factory.mktemp("stated")
    program = folder / "backfill-stated"
    source = str(GUEST_FILES / "stated.c")
    subprocess.run(["gcc", "-Wall", "-Werror", "-o", str(program), source], check=True)

    def work(listed: bytes | None) -> tuple[int, str]:
        (folder / "list").unlink(missing_ok=True)
        if listed is not None:
            (folder / "list").write_bytes(listed)
        done = subprocess.run([program, folder / "list"], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout.strip()

    return work


def test_everything_that_holds_is_counted(check: Check, tmp_path: Path) -> None:
    """Files by content and mode, directories, people; what does nothing is not asked for."""
    path = tmp_path / "limits"
    path.write_text("a\nb\n")
    path.chmod(0o644)
    found = check(
        stated(
            [
                state("file.managed", str(path), contents="a\nb", mode="0644", backup="minion"),
                state("file.directory", str(tmp_path), mode="0700"),
                state("group.present", "root", gid=0),
                state("user.present", "root", uid=0, gid=0, home="/root", shell="/bin/bash"),
                state("mount.mounted", "/proc", device="proc", opts="rw,nosuid"),
                state("cmd.run", "restart", onchanges=[{"file": "limits"}]),
                state("test.nop", "nothing"),
                state("file.decode", "/etc/munge/munge.key", contents_pillar="secret"),
                state("file.managed", "/run/backfill/salt", contents="ok"),
            ]
        )
    )
    # A user's home, which Salt would make, is a thing of its own.
    assert found == (0, "ok 6 things are as the states say")


@pytest.mark.parametrize(
    ("text", "mode", "told"),
    [
        ("a\nc\n", 0o644, "differs"),
        ("a\nb\nc\n", 0o644, "differs"),
        ("a\n", 0o644, "differs"),
        ("a\nb\n", 0o600, "has another mode"),
        (None, 0, "No such file or directory"),
    ],
)
def test_a_file_that_is_not_as_it_shall_be_is_named(
    check: Check, tmp_path: Path, text: str | None, mode: int, told: str
) -> None:
    path = tmp_path / "with a space"
    if text is not None:
        path.write_text(text)
        path.chmod(mode)
    after = state("file.directory", "/nowhere")  # the first that differs is told
    listed = stated([state("file.managed", str(path), contents="a\nb", mode="0644"), after])
    assert check(listed) == (1, f"{path} {told}")


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (state("file.directory", "/etc/passwd"), "/etc/passwd is no directory"),
        (state("file.directory", "/", user="nobody"), "/ has another owner"),
        (
            state("file.managed", "/etc/passwd", replace=False, group="nogroup"),
            "/etc/passwd has another group",
        ),
        (state("group.present", "nogroup", gid=1), "nogroup is a group with another number"),
        (state("group.present", "strangers", gid=1), "strangers is no group here yet"),
        (state("user.present", "nemo", uid=7, gid=7, home="/n", shell="/s"), "nemo is no user here yet"),
        (
            state("user.present", "root", uid=0, gid=0, home="/root", shell="/bin/none"),
            "root is a user with another number, group, home or shell",
        ),
        (
            state(
                "user.present", "nobody", uid=65534, gid=65534, home="/nonexistent", shell="/usr/sbin/nologin"
            ),
            "/nonexistent No such file or directory",
        ),
        (state("mount.mounted", "/nowhere", device="10.0.0.1:/x"), "/nowhere is not mounted as it shall be"),
        (state("mount.mounted", "/proc", device="other", opts="rw"), "/proc is not mounted as it shall be"),
        (
            state("mount.mounted", "/proc", device="proc", opts="nosuid,ro"),
            "/proc is not mounted as it shall be",
        ),
    ],
)
def test_whatever_differs_is_told_in_one_sentence(check: Check, what: dict[str, Any], told: str) -> None:
    assert check(stated([what])) == (3 if what["state"] == "mount" else 1, told)


def test_only_what_a_mount_may_bring_is_worth_waiting_for(check: Check) -> None:
    """A run that must come is not put off; below a mount that is missing so is what is there."""
    mount = state("mount.mounted", "/nowhere", device="10.0.0.1:/x")
    folder = state("file.directory", "/nowhere/below")
    assert check(stated([folder, mount])) == (3, "/nowhere/below No such file or directory")
    for sure in (state("group.present", "strangers", gid=1), state("cmd.run", "make")):
        assert check(stated([mount, sure]))[0] == 1
    assert check(None)[0] == 1


@pytest.mark.parametrize(
    "what",
    [
        state("cmd.run", "make"),
        state("file.managed", "/etc/motd", source="salt://motd"),
        state("file.decode", "/etc/secret", contents_pillar="secret"),
        state("group.present", "any"),
        state("user.present", "any"),
        state("mount.mounted", "/home", device="x:/home", mount=False),
        state("service.running", "slurmd"),
        # One word more than what the guest compares, or than it can read.
        state("file.managed", "/etc/motd", contents="a {{ b }}", template="jinja"),
        state("file.managed", "/etc/motd", contents="a", unless="true"),
        state("file.directory", "/tmp", recurse=["mode"]),
        state("file.directory", "/tmp", clean=True),
        state("user.present", "root", uid=0, gid=0, home="/root", shell="/bin/bash", groups=["x"]),
        state("user.present", "root", uid=0, gid="root", home="/root", shell="/bin/bash"),
        state("group.present", "root", gid=0, members=["root"]),
        state("cmd.run", "make", onchanges=[{"file": "a"}], check_cmd=["false"]),
        state("something.new", "that nobody foresaw"),
    ],
)
def test_what_cannot_be_seen_waits_for_a_run(check: Check, what: dict[str, Any]) -> None:
    """A state of which only Salt knows what it comes to is never believed."""
    status, told = check(stated([what]))
    assert (status, told) == (1, f"its states have not succeeded yet, and only a run proves {what['__id__']}")


@pytest.mark.parametrize(
    "listed", [b"", b"folder - - - /\n", b"file 0644 - - 9 /etc/passwd\nroo", b"what is this\nend\n"]
)
def test_half_a_list_proves_nothing(check: Check, listed: bytes) -> None:
    """Its last line must be there, and nothing in it that is not understood."""
    if listed.startswith(b"file"):
        listed = listed.replace(b"9", str(os.path.getsize("/etc/passwd")).encode())
    status, told = check(listed)
    assert status in (1, 2)
    assert not told.startswith("ok")


def test_a_doubt_waits_for_a_run(check: Check) -> None:
    """Nobody knows whether the list is right where its states may be others than they seem."""
    assert check(stated([], "top.sls")) == (
        1,
        "its states have not succeeded yet, and only a run proves top.sls",
    )


def test_states_that_say_more_than_is_compared_have_another_list() -> None:
    """So that a change of the tree is never taken for none, whatever it changes."""
    said = [state("mount.mounted", "/home", device="x:/home", opts=o) for o in ("rw", "rw,soft")]
    one, other = (stated([mount]) for mount in said)
    assert one != other
    assert one.split(b"end\n")[0] == other.split(b"end\n")[0]


def test_whole_files_are_those_that_states_write_by_themselves() -> None:
    """A text ends with one line break; marks, links to a source and secrets are left to Salt."""
    states = [
        state("file.managed", "/etc/a", contents="a\n\n"),
        state("file.managed", "/etc/b", source="salt://b"),
        state("file.managed", "/run/backfill/salt", contents="ok"),
        state("file.decode", "/etc/munge/munge.key", contents_pillar="secret"),
    ]
    assert whole_files(states) == {"/etc/a": SeedFile(b"a\n", 0o644)}


@pytest.mark.parametrize(
    ("said", "mode"),
    [
        ({"mode": "0600"}, 0o600),
        ({"mode": 640}, 0o640),
        ({"mode": "4755"}, 0o755),
        ({"mode": "keep"}, 0o400),
        ({}, 0o644),
    ],
)
def test_a_file_is_as_open_as_its_state_says(said: dict[str, Any], mode: int) -> None:
    """Salt reads the digits of a number; one that it cannot read opens nothing; without one its own holds."""
    files = whole_files([state("file.managed", "/etc/a", contents="a", **said)])
    assert files == {"/etc/a": SeedFile(b"a\n", mode)}
