"""Slurm's tools are run with a clean environment and a time limit, and their failures named."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from backfill.drivers.slurm.commands import SlurmTools, meaning_of
from backfill.ports.errors import (
    AlreadyThereError,
    BusyError,
    DriverError,
    NoCapacityError,
    NotFoundError,
    RefusedError,
    UnreachableError,
)


def tool(directory: Path, text: str) -> None:
    """Write a stand-in for squeue."""
    script = directory / "squeue"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)


@pytest.mark.parametrize(
    ("complaint", "kind"),
    [
        # Collected from 22.05.8 by hand, and from slurm_errno.c of 24.11 and 26.05.
        ("slurm_load_jobs error: Unable to contact slurm controller (connect failure)", UnreachableError),
        ("slurm_load_jobs error: Socket timed out on send/recv operation", UnreachableError),
        ("delete_node nodename=n6: Zero Bytes were transmitted or received", UnreachableError),
        (
            'squeue: error: Munge encode failed: Failed to access "/run/munge/munge.socket.2"\n'
            "slurm_load_partitions: Protocol authentication error",
            UnreachableError,
        ),
        ("scontrol: fatal: Could not establish a configuration source", UnreachableError),
        (
            "scontrol: error: s_p_parse_file: cannot stat file /x: No such file, retrying in 1sec",
            UnreachableError,
        ),
        ("slurm_load_jobs error: Invalid job id specified", NotFoundError),
        ("Invalid job id specified for job 9999", NotFoundError),
        ("slurm_update error: Invalid node name specified", NotFoundError),
        ("Node n99 not found", NotFoundError),
        ("Job/step already completing or completed for job 5", NotFoundError),
        ("Requested operation is presently disabled for job 10", RefusedError),
        ("Only batch jobs are accepted or processed", RefusedError),
        ("Operation not permitted on individual component of heterogeneous job for job 14+1", RefusedError),
        ("Access/permission denied for job 9_3", RefusedError),
        ("slurm_update error: Invalid user id", RefusedError),
        ("slurm_update error: Invalid node state specified", RefusedError),
        ("delete_node nodename=n6: Requested nodes are busy", BusyError),
        ("Job can not be altered now, try again later", BusyError),
        ("Job is pending execution for job 5", BusyError),
        ("Job is not suspended for job 5", BusyError),
        ("Unexpected message received for job 99999", BusyError),
        ("Rate limit exceeded, please retry momentarily", BusyError),
        ("Node already exists in the node table", AlreadyThereError),
        ("Unable to add node, node table is full", NoCapacityError),
    ],
)
def test_what_slurm_says_has_a_type(complaint: str, kind: type[DriverError]) -> None:
    """Each known complaint becomes exactly one kind of error, with Slurm's words in it."""
    error = meaning_of("job 5", "scontrol suspend 5", 1, complaint)
    assert type(error) is kind
    assert error.problem
    assert "\n" not in str(error)


def test_an_unknown_complaint_is_shown_as_it_is() -> None:
    """The operator sees what was run and what Slurm said."""
    error = meaning_of("job 5", "scontrol suspend 5", 1, "slurm_suspend error: Moon is full.\n")
    assert type(error) is DriverError
    assert str(error) == "job 5: 'scontrol suspend 5' failed: Moon is full"
    assert "status 3" in str(meaning_of("job 5", "x", 3, ""))


def test_a_complaint_alone_is_no_empty_answer(tmp_path: Path) -> None:
    """Whatever the exit status says; a warning beside an answer, or of another kind, is none."""
    tool(tmp_path, "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2")
    with pytest.raises(UnreachableError, match="Unable to contact"):
        SlurmTools(bin_dir=tmp_path).run(["squeue"])
    tool(tmp_path, "echo 'squeue: error: Ignoring obsolete FastSchedule=1 option' >&2")
    assert SlurmTools(bin_dir=tmp_path).run(["squeue"]) == ""
    # A column that this release does not have.
    tool(tmp_path, "echo 'squeue: error: Invalid job format specification: exclusive' >&2")
    assert SlurmTools(bin_dir=tmp_path).run(["squeue"]) == ""
    tool(tmp_path, "echo 7; echo 'error: Socket timed out' >&2")
    assert SlurmTools(bin_dir=tmp_path).run(["squeue"]) == "7\n"


def test_the_environment_is_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's SQUEUE_FORMAT or SLURM_CLUSTERS changes what we read; times are epoch seconds."""
    monkeypatch.setenv("SQUEUE_STATES", "PENDING")
    monkeypatch.setenv("SLURM_CLUSTERS", "other")
    conf = tmp_path / "slurm.conf"
    conf.touch()
    tool(tmp_path, "env")
    lines = SlurmTools(conf=conf, bin_dir=tmp_path).run(["squeue"], env={"SQUEUE_FORMAT2": "x"})
    seen = dict(line.split("=", 1) for line in lines.splitlines())
    assert "SQUEUE_STATES" not in seen
    assert "SLURM_CLUSTERS" not in seen
    assert seen["SLURM_CONF"] == str(conf)
    assert seen["SQUEUE_FORMAT2"] == "x"
    assert (seen["SLURM_TIME_FORMAT"], seen["TZ"]) == ("%s", "UTC")


def test_a_hung_tool_is_ended_with_its_children(tmp_path: Path) -> None:
    """The call ends at its time limit, and no process is left."""
    pids = tmp_path / "pids"
    tool(tmp_path, f"sleep 600 & echo $! $$ >{pids}; wait; touch {tmp_path}/done")
    with pytest.raises(UnreachableError, match=r"no answer to 'squeue' within 0\.3 s"):
        SlurmTools(bin_dir=tmp_path, timeout_s=0.3).run(["squeue"])
    assert not (tmp_path / "done").exists()
    for pid in pids.read_text().split():
        deadline_s = time.monotonic() + 60
        while _alive(int(pid)) and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert not _alive(int(pid))


def _alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_missing_tool_and_a_missing_configuration_say_what_to_do(tmp_path: Path) -> None:
    """Both are said at once; Slurm's own tools would wait for a minute."""
    with pytest.raises(UnreachableError, match="install slurm-client"):
        SlurmTools(bin_dir=tmp_path / "nowhere").run(["squeue"])
    tool(tmp_path, "sleep 60")
    with pytest.raises(UnreachableError, match=r"there is no file .*slurm\.conf"):
        SlurmTools(conf=tmp_path / "slurm.conf", bin_dir=tmp_path).run(["squeue"])


def test_a_prefix_stands_before_the_command_and_its_environment(tmp_path: Path) -> None:
    """Behind nsenter or ssh the tools still get their environment."""
    tool(tmp_path, 'echo "$SLURM_TIME_FORMAT $FROM_PREFIX $*"')
    commands = SlurmTools(bin_dir=tmp_path, prefix=("env", "FROM_PREFIX=yes"))
    assert commands.run(["squeue", "-a"]) == "%s yes -a\n"


def test_bytes_that_are_no_text_do_not_stop_us(tmp_path: Path) -> None:
    """Output in any encoding is read; what is no UTF-8 is marked."""
    tool(tmp_path, r"printf 'a\377b'")
    assert SlurmTools(bin_dir=tmp_path).run(["squeue"]) == "a\N{REPLACEMENT CHARACTER}b"
    tool(tmp_path, r"printf 'bad \377 luck\007' >&2; exit 1")
    with pytest.raises(DriverError) as caught:
        SlurmTools(bin_dir=tmp_path).run(["squeue"], "job 1")
    assert str(caught.value).isprintable()
    assert os.fsencode(str(caught.value))
