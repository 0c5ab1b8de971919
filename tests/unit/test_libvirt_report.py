"""Reading what the proving program in a guest prints."""

from __future__ import annotations

import pytest

from backfill.core.model.readiness import Fact, judge_report
from backfill.drivers.libvirt.guest.agent import ProofRequest
from backfill.drivers.libvirt.guest.report import mount_to_prove, read_report
from backfill.ports.errors import BadOutputError

GOOD = """\
offset -0.000213 0.001500
correction 400.250000
munge-in ok 0.003
munge-out ok 0.004 MUNGE:AwQDAAA:
files:/home no 4.000 it hangs
files:/software:ro ok 0.010
self 2 480 127.0.0.1,10.77.1.1,
now 1700000000.500000
"""
WINDOW = (1_700_000_000.0, 1_700_000_001.0)


def test_a_whole_report_is_read() -> None:
    """Clock, promises, addresses, every check, and the credential for the controller."""
    report, credential = read_report("vn1", GOOD, WINDOW)
    assert (report.correction_s, report.offset_s, report.bound_s) == (400.25, -0.000213, 0.0015)
    assert (report.cpus, report.memory_mb) == (2, 480)
    assert report.addresses == ("127.0.0.1", "10.77.1.1")
    assert credential == "MUNGE:AwQDAAA:"
    assert report.facts == (
        Fact("munge:to the guest", True, "", 0.003),
        Fact("files:/home", False, "it hangs", 4.0),
        Fact("files:/software", True, "", 0.01),
    )


def test_what_was_asked_and_is_not_told_is_not_proven() -> None:
    """The program of an older image left out what was beyond its sixteenth check."""
    asked = ProofRequest(
        1_700_000_000.0,
        "MUNGE:ours:",
        False,
        mounts=("/home", "/software:ro", "/data:ro"),
        salt=True,
        key_place="/etc/slurm/slurm.key",
    )
    report, _ = read_report("vn1", GOOD, WINDOW, asked.checks)
    untold = "the proving program does not tell of it"
    assert [fact for fact in report.facts if untold in fact.said] == [
        Fact("files:/data", False, untold),
        Fact("salt", False, untold),
        Fact("key", False, untold),
    ]
    without = "\n".join(line for line in GOOD.splitlines() if not line.startswith("munge"))
    report, credential = read_report("vn1", without, WINDOW, ProofRequest(1.7e9, "MUNGE:", False).checks)
    assert (report.facts[-1], credential) == (Fact("munge:to the guest", False, untold), "")
    judged = judge_report(report, "10.77.1.1/16", 2, 480, 1.0)
    assert [check.remedy for check in judged if untold in check.sentence] == [
        "build the image anew: its proof is an older one"
    ]


def test_without_a_time_server_the_call_bounds_the_clock() -> None:
    """The guest read its clock between question and answer, so it is off by no more than that."""
    text = "\n".join(line for line in GOOD.splitlines() if not line.startswith("offset"))
    report, _ = read_report("vn1", text, WINDOW)
    assert report.offset_s == pytest.approx(0.0)
    assert report.bound_s == pytest.approx(0.5)
    assert report.source == "the daemon's clock"


def test_a_silent_time_server_is_no_proof() -> None:
    """Then the offset is unknown, with the reason, although the call would bound it."""
    text = "clock no 0 the time server 10.77.0.1 cannot be asked: it is silent\n" + GOOD
    report, _ = read_report("vn1", text, WINDOW)
    assert report.offset_s is None
    assert "it is silent" in report.source


def test_a_munge_that_cannot_encode_is_a_failed_check() -> None:
    """Then there is no credential, and the guest says why."""
    text = GOOD.replace("munge-out ok 0.004 MUNGE:AwQDAAA:", "munge-out no 0.004 Socket error")
    report, credential = read_report("vn1", text, WINDOW)
    assert credential == ""
    assert Fact("munge:made in the guest", False, "Socket error", 0.004) in report.facts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "self 1 2",
        GOOD.replace("self 2", "self two"),
        # No text of JSON can hold these, so the journal could not be read any more.
        GOOD.replace("correction 400.250000", "correction nan"),
        GOOD.replace("offset -0.000213", "offset inf"),
        GOOD.replace("munge-in ok 0.003", "munge-in ok -inf"),
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    """A program of another version cannot be misread."""
    with pytest.raises(BadOutputError, match="rebuild the guest image"):
        read_report("vn1", text, WINDOW)


def test_no_bound_makes_an_offset_smaller() -> None:
    """A guest that claims to be off by a minute, give or take less than nothing, is off."""
    text = GOOD.replace("offset -0.000213 0.001500", "offset 60.0 -60.0")
    report, _ = read_report("vn1", text, WINDOW)
    clock = judge_report(report, "10.77.1.1/16", 2, 480, clock_offset_s=1.0)[0]
    assert not clock.ok


def test_the_request_names_every_check() -> None:
    """What the guest was told at its boot is what it has to prove."""
    mounts = ("10.0.0.1:/home /home nfs4 rw,hard", "10.0.0.1:/sw /software nfs4 ro,hard")
    asked = ProofRequest(
        1.7e9, "MUNGE:x:", True, "10.0.0.1", tuple(mount_to_prove(m) for m in mounts), salt=True
    )
    assert asked.arguments(0.25) == [
        "1700000000.250000",
        "server=10.0.0.1",
        "credential",
        "mount=/home",
        "mount=/software:ro",
        "salt",
        "register",
    ]
    assert ProofRequest(1.7e9, "", False).arguments(0.0) == ["1700000000.000000"]
