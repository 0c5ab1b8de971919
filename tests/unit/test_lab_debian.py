"""Why a root of Debian could not be installed, in one sentence."""

from __future__ import annotations

from backfill.lab.debian import failure


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
    assert "Failed to fetch" in said


def test_a_package_that_is_not_there_is_named() -> None:
    log = ["E: Unable to locate package nosuch", "E: mmdebstrap failed to run"]
    assert failure("trixie", log) == "Debian trixie has no package nosuch; leave it out"


def test_a_log_without_errors_ends_the_sentence() -> None:
    assert failure("forky", ["a", "b", "c", "d"]).endswith(": b / c / d")
