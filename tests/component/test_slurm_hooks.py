"""The hook asks, waits no longer than it may, and never harms a job: both forms of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from backfill.drivers.slurm.hooks.build import HookError, build_guest_hook, build_hook
from tests.component.hook_daemon import HookDaemon

PROLOG = {
    "SLURM_SCRIPT_CONTEXT": "prolog_slurmctld",
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NODELIST": "n[1,3,7]",
    "SLURM_JOB_PARTITION": "high",
    "SLURM_JOB_UID": "1000",
    "SLURM_JOB_RESTART_COUNT": "2",
}
ON_HOST = {
    "SLURM_SCRIPT_CONTEXT": "prolog_slurmd",
    "SLURM_JOB_ID": "12",
    "SLURMD_NODENAME": "n3",
    "SLURM_NODELIST": "n[1,3,7]",
    "SLURM_JOB_PARTITION": "high",
    "SLURM_JOB_UID": "1000",
}
Build = Callable[..., Path]
NEVER_MS = 600_000  # a hook that waits so long does not come back in time for `run`


@pytest.fixture(params=["gcc", None], ids=["c", "python"])
def build(request: pytest.FixtureRequest, tmp_path: Path) -> Build:
    """Build the hook in one of its forms, with a log beside it."""

    def make(endpoint: str, timeout_ms: int = 5000) -> Path:
        hook = tmp_path / "hook"
        return build_hook(hook, endpoint, timeout_ms, tmp_path / "hook.log", request.param)

    return make


def run(hook: Path, env: dict[str, str]) -> float:
    """Call the hook as Slurm does, with nothing but these variables; the seconds it took.

    One that waits for as long as `NEVER_MS` allows fails here.
    """
    begun_s = time.monotonic()
    done = subprocess.run([hook], env=env, cwd="/", capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    return time.monotonic() - begun_s


def log_of(hook: Path) -> str:
    """What the hook complained about."""
    log = hook.with_name("hook.log")
    return log.read_text() if log.exists() else ""


def test_a_prolog_asks_and_waits_for_the_answer(build: Build, tmp_path: Path) -> None:
    """One line with job, nodes, partition, user and restart count; nothing is logged."""
    with HookDaemon(tmp_path / "s") as daemon:
        hook = build(daemon.endpoint)
        run(hook, PROLOG)
        assert daemon.requests == [
            "backfill1 allocated job=12 nodes=n[1,3,7] partition=high uid=1000 restart=2\n"
        ]
    assert log_of(hook) == ""


def test_on_a_host_it_speaks_for_its_own_node(build: Build, tmp_path: Path) -> None:
    """Where Slurm does not tell the restart count it is -1."""
    with HookDaemon(tmp_path / "s") as daemon:
        run(build(daemon.endpoint), ON_HOST)
        assert daemon.requests == ["backfill1 allocated job=12 nodes=n3 partition=high uid=1000 restart=-1\n"]


def test_a_guests_hook_asks_whom_its_file_names(tmp_path: Path) -> None:
    """Without the file nobody, and one that cannot be read is complained of: the job goes on."""
    hook, told = tmp_path / "hook", tmp_path / "told"
    build_guest_hook(hook, str(told), str(tmp_path / "hook.log"))
    with HookDaemon(tmp_path / "s") as daemon:
        run(hook, ON_HOST)
        assert daemon.requests == []
        assert log_of(hook) == ""
        told.write_text(f"{daemon.endpoint} 5000\n")
        run(hook, ON_HOST)
        assert [line.split()[1:4] for line in daemon.requests] == [["allocated", "job=12", "nodes=n3"]]
    for text in ("", daemon.endpoint, f"{daemon.endpoint} soon", f"{daemon.endpoint} 0"):
        told.write_text(text)
        run(hook, ON_HOST)
    assert log_of(hook).count("no endpoint and timeout in") == 4


@pytest.mark.parametrize("context", ["epilog_slurmctld", "epilog_slurmd"])
def test_an_epilog_tells_and_does_not_wait(build: Build, tmp_path: Path, context: str) -> None:
    """It is done although the daemon never answers, and the message has arrived."""
    with HookDaemon(tmp_path / "s", reply=None) as daemon:
        hook = build(daemon.endpoint, timeout_ms=NEVER_MS)
        run(hook, {**PROLOG, **ON_HOST, "SLURM_SCRIPT_CONTEXT": context})
        (line,) = daemon.await_requests(1)
        assert line.startswith("backfill1 ended job=12 nodes=n")
    assert log_of(hook) == ""


def test_a_refusal_is_logged_and_the_job_goes_on(build: Build, tmp_path: Path) -> None:
    """The daemon's sentence is in the log."""
    with HookDaemon(tmp_path / "s", reply="no vn3 cannot be stopped") as daemon:
        hook = build(daemon.endpoint)
        run(hook, PROLOG)
    assert "vn3 cannot be stopped; the job goes on" in log_of(hook)
    assert log_of(hook).count("\n") == 1


def test_without_a_daemon_it_costs_nothing(build: Build, tmp_path: Path) -> None:
    """No socket, or a socket that nobody serves: the job goes on at once, and the log says so."""
    hook = build(f"unix:{tmp_path}/none", timeout_ms=NEVER_MS)
    run(hook, PROLOG)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "none"))
    run(hook, PROLOG)
    lines = log_of(hook).splitlines()
    assert len(lines) == 2
    assert all("backfill-hook prolog_slurmctld job=12" in line for line in lines)


def test_a_hung_daemon_delays_no_longer_than_the_limit(build: Build, tmp_path: Path) -> None:
    """The limit holds, and the log says what happened."""
    with HookDaemon(tmp_path / "s", reply=None) as daemon:
        hook = build(daemon.endpoint, timeout_ms=300)
        assert run(hook, PROLOG) >= 0.3
    assert "no answer from the daemon in time" in log_of(hook) or "timed out" in log_of(hook)


def test_a_full_queue_delays_no_longer_than_the_limit(build: Build, tmp_path: Path) -> None:
    """A daemon that no longer accepts is like one that hangs."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen(0)
        waiting = []
        for _ in range(2):
            client = socket.socket(socket.AF_UNIX)
            client.setblocking(False)
            waiting.append((client, client.connect_ex(str(tmp_path / "s"))))
        assert waiting[-1][1] != 0  # the queue is full
        hook = build(f"unix:{tmp_path}/s", timeout_ms=300)
        assert run(hook, PROLOG) >= 0.3
        for client, _ in waiting:
            client.close()
    assert log_of(hook).count("\n") == 1


def test_many_at_once(build: Build, tmp_path: Path) -> None:
    """Thirty jobs that start in one moment all get their answer."""
    with HookDaemon(tmp_path / "s") as daemon:
        hook = build(daemon.endpoint, timeout_ms=NEVER_MS)
        calls = [subprocess.Popen([hook], env={**PROLOG, "SLURM_JOB_ID": str(i)}) for i in range(30)]
        assert [call.wait(120) for call in calls] == [0] * 30
        jobs = {line.split()[2] for line in daemon.requests}
    assert log_of(hook) == ""
    assert jobs == {f"job={i}" for i in range(30)}


def test_long_node_lists_are_not_cut(build: Build, tmp_path: Path) -> None:
    """A hundred kilobytes of node names arrive whole."""
    nodes = ",".join(f"rack{i}-node[1-9]" for i in range(5000))
    with HookDaemon(tmp_path / "s") as daemon:
        run(build(daemon.endpoint), {**PROLOG, "SLURM_JOB_NODELIST": nodes})
        (line,) = daemon.requests
    assert line.split()[3] == f"nodes={nodes}"


def test_strange_values_cannot_break_the_line(build: Build, tmp_path: Path) -> None:
    """Spaces and line breaks become question marks; missing variables are empty."""
    with HookDaemon(tmp_path / "s") as daemon:
        hook = build(daemon.endpoint)
        run(hook, {"SLURM_SCRIPT_CONTEXT": "prolog_slurmctld", "SLURM_JOB_PARTITION": "a b\nc=d"})
        assert daemon.requests == ["backfill1 allocated job= nodes= partition=a?b?c=d uid= restart=-1\n"]


def test_tcp_comes_from_a_privileged_port(build: Build) -> None:
    """The daemon believes only root, which alone can have such a port; also many at once."""
    with HookDaemon("127.0.0.1") as daemon:
        hook = build(daemon.endpoint, timeout_ms=NEVER_MS)
        calls = [subprocess.Popen([hook], env=ON_HOST) for _ in range(10)]
        assert [call.wait(120) for call in calls] == [0] * 10
        assert len(daemon.requests) == 10
        assert all(0 < port < 1024 for _, port in daemon.peers)
    assert log_of(hook) == ""


def test_a_log_that_cannot_be_written_changes_nothing(build: Build, tmp_path: Path) -> None:
    """A pipe that nobody reads, or a directory, in place of the log does not block the job."""
    hook = build(f"unix:{tmp_path}/none", timeout_ms=NEVER_MS)
    os.mkfifo(tmp_path / "hook.log")
    run(hook, PROLOG)
    (tmp_path / "hook.log").unlink()
    (tmp_path / "hook.log").mkdir()
    run(hook, PROLOG)


def test_started_by_nobody_it_says_so_and_succeeds(build: Build, tmp_path: Path) -> None:
    """Without Slurm's environment there is nothing to ask."""
    hook = build(f"unix:{tmp_path}/none")
    run(hook, {})
    assert "not started as a prolog or epilog" in log_of(hook)


def test_slurms_own_time_limit_ends_it_without_harm(build: Build, tmp_path: Path) -> None:
    """SIGTERM, which Slurm sends first, gives status 0 too."""
    with HookDaemon(tmp_path / "s", reply=None) as daemon:
        hook = build(daemon.endpoint, timeout_ms=NEVER_MS)
        call = subprocess.Popen([hook], env=PROLOG)
        daemon.await_requests(1)
        call.send_signal(signal.SIGTERM)
        assert call.wait(120) == 0


def test_building_replaces_in_one_step_and_leaves_nothing_beside(tmp_path: Path) -> None:
    """An existing hook is there, old or new, at every moment; the result is executable."""
    hook = tmp_path / "hook"
    hook.write_text("old")
    assert build_hook(hook, "unix:/run/x", 1000, None) == hook
    assert os.access(hook, os.X_OK)
    assert hook.read_bytes()[:4] == b"\x7fELF"
    assert build_hook(hook, "unix:/run/x", 1000, None, compiler="no-such-compiler") == hook
    assert hook.read_text().startswith("#!/usr/bin/python3 -ISE\n")
    assert os.listdir(tmp_path) == ["hook"]


@pytest.mark.parametrize("error", [subprocess.TimeoutExpired("gcc", 60.0), PermissionError(13, "no")])
def test_where_the_compiler_hangs_or_cannot_be_run_the_hook_is_in_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: object, **__: object) -> NoReturn:
        raise error

    monkeypatch.setattr("backfill.drivers.slurm.hooks.build.subprocess.run", fails)
    hook = build_hook(tmp_path / "hook", "unix:/run/x", 1000, None)
    assert hook.read_text().startswith("#!/usr/bin/python3 -ISE\n")
    assert os.listdir(tmp_path) == ["hook"]


@pytest.mark.parametrize(
    ("endpoint", "timeout_ms", "log"),
    [
        ("unix:relative", 1000, None),
        ("unix:/" + "x" * 107, 1000, None),
        ('unix:/a"b', 1000, None),
        ("tcp:localhost:1", 1000, None),
        ("tcp:127.0.0.1:0", 1000, None),
        ("tcp:127.0.0.1", 1000, None),
        ("http://x", 1000, None),
        ("unix:/run/x", 0, None),
        ("unix:/run/x", 1000, Path("relative.log")),
        ("unix:/run/x", 1000, Path('/var/log/"; int x = "')),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    tmp_path: Path, endpoint: str, timeout_ms: int, log: Path | None
) -> None:
    """One sentence, and no file."""
    with pytest.raises(HookError, match="hook"):
        build_hook(tmp_path / "dir" / "hook", endpoint, timeout_ms, log)
    assert os.listdir(tmp_path) == []
