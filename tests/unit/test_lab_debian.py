"""Where a root of Debian comes from, and why it could not be installed, in one sentence."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest

from backfill.lab import debian
from backfill.lab.debian import failure
from backfill.lab.spec import LabError

BOOKWORM = """\
Others|main|bookworm|bookworm|https://releases.example/
Debian|main|bookworm|bookworm|http://mirror.example/debian/
Debian|main|bookworm-updates|bookworm-updates|http://mirror.example/debian/
Debian|main|bookworm-security|bookworm-security|http://mirror.example/security/
Debian|contrib|trixie|trixie|http://contrib.example/
"""


def machine(monkeypatch: pytest.MonkeyPatch, suite: str, sources: str, system: str = "debian") -> None:
    """Let this machine run another release, and its apt know these sources."""
    told = {"ID": system, "VERSION_CODENAME": suite}
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: told)
    monkeypatch.setattr(debian, "_run", lambda *_: sources)
    monkeypatch.setattr(debian, "KEYRING", Path("/nowhere"))
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")


def test_a_later_suite_comes_from_the_mirror_of_the_machines_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian's, not that of somebody who names his suites alike."""
    machine(monkeypatch, "bookworm", BOOKWORM)
    assert debian.mirror("trixie") == "http://mirror.example/debian/"
    assert debian.archive("trixie") == (
        "deb http://mirror.example/debian/ trixie main",
        "deb http://mirror.example/debian/ trixie-updates main",
        "deb http://mirror.example/security/ trixie-security main",
    )


def test_a_source_of_the_suite_itself_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is named by what the suite is just now, and without its lists."""
    new = "Site|main|stable|trixie|http://new.example/\n|main|trixie-security||http://safe.example/\n"
    machine(monkeypatch, "bookworm", BOOKWORM + new)
    assert [line.split()[1] for line in debian.archive("trixie")] == [
        "http://new.example/",
        "http://mirror.example/debian/",
        "http://safe.example/",
    ]


def test_a_controller_of_debian_13_builds_its_own_release(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "trixie", BOOKWORM.replace("bookworm", "trixie"))
    assert debian.mirror("trixie") == "http://mirror.example/debian/"
    assert debian.mirror("bookworm") == "http://mirror.example/debian/"


@pytest.mark.parametrize(
    ("suite", "system", "sources"),
    [("jammy", "ubuntu", BOOKWORM.replace("bookworm", "jammy")), ("trixie", "debian", "")],
)
def test_otherwise_it_comes_from_debian(
    monkeypatch: pytest.MonkeyPatch, suite: str, system: str, sources: str
) -> None:
    """Another system's mirror has no Debian; mmdebstrap knows Debian's own."""
    machine(monkeypatch, suite, sources, system)
    assert debian.mirror("bookworm") == ""
    assert debian.archive("bookworm") == ()


def test_an_image_without_security_updates_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would notice that they are missing."""
    machine(monkeypatch, "bookworm", "".join(BOOKWORM.splitlines(keepends=True)[:3]))
    with pytest.raises(LabError, match="name one of trixie-security in /etc/apt"):
        debian.archive("trixie")


def test_lines_name_the_keys_where_these_are_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """From Debian 13 on apt trusts none by itself."""
    machine(monkeypatch, "trixie", BOOKWORM.replace("bookworm", "trixie"))
    (tmp_path / "keys").touch()
    monkeypatch.setattr(debian, "KEYRING", tmp_path / "keys")
    lines = debian.archive("trixie")
    assert [line.startswith(f"deb [signed-by={tmp_path}/keys] ") for line in lines] == [True] * 3


def test_the_cause_is_told_and_not_what_followed() -> None:
    """A mirror that did not answer, behind which mmdebstrap complains of itself."""
    log = [
        "I: running apt-get update...",
        "Err:1 http://deb.example trixie InRelease",
        "  502  Bad Gateway",
        "E: Failed to fetch http://deb.example/InRelease",
        "I: main() received signal PIPE: waiting for setup...",
        "E: mmdebstrap failed to run",
    ]
    said = failure("trixie", log)
    assert said.startswith("mmdebstrap could not install Debian trixie: Err:1 http://deb.example")
    assert "InRelease: 502  Bad Gateway / E: Failed to fetch" in said


def test_a_package_that_is_not_there_is_named() -> None:
    log = ["E: Unable to locate package nosuch", "E: mmdebstrap failed to run"]
    assert failure("trixie", log) == "Debian trixie has no package nosuch; leave it out"


def test_a_log_without_errors_ends_the_sentence() -> None:
    assert failure("forky", ["a", "b", "c", "d"]).endswith(": b / c / d")
