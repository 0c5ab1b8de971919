"""Waking a guest through its agent, against an agent of the tests."""

from __future__ import annotations

import base64
import hashlib
import os
import shlex
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from backfill.core.model.readiness import Stated
from backfill.drivers.libvirt.guest import agent
from backfill.drivers.libvirt.guest.agent import AgentSilentError
from backfill.ports.errors import BadOutputError, DriverError, UnreachableError


class Agent:
    """Runs one program per call; `silent` times it does not answer at all."""

    def __init__(self, output: str, complaint: str = "", code: int = 0, silent: int = 0) -> None:
        self.output, self.complaint, self.code, self.silent = output, complaint, code, silent
        self.commands: list[tuple[str, list[str]]] = []
        self.given: list[bytes] = []
        self.polls_left = 2

    def __call__(self, command: str, arguments: dict[str, Any]) -> Any:
        if self.silent:
            self.silent -= 1
            raise AgentSilentError
        if command == "guest-exec":
            self.commands.append((arguments["path"], arguments["arg"]))
            self.given.append(base64.b64decode(arguments.get("input-data", "")))
            return {"pid": 77}
        assert (command, arguments) == ("guest-exec-status", {"pid": 77})
        self.polls_left -= 1
        if self.polls_left > 0:
            return {"exited": False}
        return {
            "exited": True,
            "exitcode": self.code,
            "out-data": base64.b64encode(self.output.encode()).decode(),
            "err-data": base64.b64encode(self.complaint.encode()).decode(),
        }


def test_waking_gives_the_time_and_returns_the_correction() -> None:
    """What passed since the call is added to the time."""
    guest = Agent("12.500000\n")
    assert agent.wake(guest, "vn1", 1_700_000_000.0, 5.0) == 12.5
    ((path, (moment,)),) = guest.commands
    assert path == agent.WAKE_PROGRAM
    assert 0 <= float(moment) - 1_700_000_000.0 < 5.0


def test_a_key_is_never_an_argument() -> None:
    """Every job in the guest could read it there."""
    guest = Agent("correction 0.1\nself 1 200 10.0.1.1,\nkey ok 0.001 it is new\nnow 1700000000.0\n")
    request = agent.ProofRequest(1_700_000_000.0, "", True, key_place="/etc/slurm/slurm.jwks", key=b"secret")
    report, _ = agent.prove(guest, "vn1", request, 5.0)
    assert [(fact.name, fact.ok, fact.said) for fact in report.facts] == [("key", True, "it is new")]
    guest.polls_left = 2
    agent.give_key(guest, "vn1", "/etc/slurm/slurm.jwks", b"secret", 5.0)
    assert guest.given == [b"secret", b"secret"]
    (_, proof), (path, words) = guest.commands
    assert proof[1:] == ["key=/etc/slurm/slurm.jwks", "register"]
    assert (path, words) == (agent.KEY_PROGRAM, ["/etc/slurm/slurm.jwks"])


def test_a_silent_agent_is_asked_again() -> None:
    """Right after a restore it needs a moment."""
    guest = Agent("0.1", silent=2)
    assert agent.wake(guest, "vn1", 1_700_000_000.0, 5.0) == 0.1
    assert len(guest.commands) == 1


def test_an_agent_that_never_answers_is_unreachable() -> None:
    """After the limit, with a hint where to look."""
    with pytest.raises(UnreachableError, match=r"within 0\.01 s.*console"):
        agent.wake(Agent("", silent=10**6), "vn1", 1_700_000_000.0, 0.01)


def test_a_program_that_fails_is_quoted() -> None:
    """Its complaint is what the operator needs."""
    with pytest.raises(DriverError, match="cannot set the clock"):
        agent.wake(Agent("", "cannot set the clock", 1), "vn1", 1_700_000_000.0, 5.0)


@pytest.mark.parametrize(
    ("call", "output"),
    [
        (lambda guest: agent.wake(guest, "vn1", 1.7e9, 5.0), "soon"),
        (lambda guest: agent.wake(guest, "vn1", 1.7e9, 5.0), "nan"),
        (lambda guest: agent.wake(guest, "vn1", 1.7e9, 5.0), "1" * 70_000),
        (lambda guest: agent.job_processes(guest, "vn1", 5.0), "many 0"),
        (lambda guest: agent.job_processes(guest, "vn1", 5.0), "² 0"),
        (lambda guest: agent.job_processes(guest, "vn1", 5.0), "1"),
    ],
)
def test_nonsense_is_not_taken_for_an_answer(call: Callable[[Agent], Any], output: str) -> None:
    """A guest of another image must not be believed."""
    with pytest.raises(BadOutputError, match="answered"):
        call(Agent(output))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("ok 7 things are as the states say\n", None),
        ("/etc/hosts differs\n", "/etc/hosts differs"),
        ("", "it cannot be seen"),
    ],
)
def test_only_a_guest_that_says_so_is_as_its_states_say(said: str, told: str | None) -> None:
    stated = Stated("sum", (("/etc/key", "text", "sum of both"),))
    guest = Agent(said)
    assert agent.differs(guest, "vn1", stated, 5.0) == told
    ((_, words),) = guest.commands
    assert words[2:] == ["sum"]
    assert guest.given == [b"/etc/key\ntext\nsum of both\n"]


def test_the_look_compares_list_and_secrets(tmp_path: Path) -> None:
    """What the guest's shell does, with a list, a secret and a program of this machine."""
    (tmp_path / "list").write_bytes(b"end\n")
    (tmp_path / "key").write_bytes(b"key")
    program = tmp_path / "stated"
    program.write_text("#!/bin/sh\necho ok 1 things\n")
    program.chmod(0o755)
    script = agent._LOOK.replace("/etc/backfill/stated", str(tmp_path / "list"))
    script = script.replace("/usr/local/sbin/backfill-stated", str(program))

    def told(listed: bytes, key: bytes) -> str:
        sums = [hashlib.sha256(text).hexdigest() for text in (listed, b"text" + key)]
        argv, seals = ["sh", "-c", script, sums[0]], f"{tmp_path / 'key'}\ntext\n{sums[1]}\n"
        done = subprocess.run(argv, input=seals, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert told(b"end\n", b"key") == "ok 1 things"
    assert told(b"end\n", b"another") == f"{tmp_path}/key differs"
    assert "something else now" in told(b"folder\nend\n", b"key")
    (tmp_path / "key").unlink()
    assert told(b"end\n", b"key") == f"{tmp_path}/key differs"
    program.write_text("#!/bin/sh\necho /etc/hosts differs\nexit 1\n")
    (tmp_path / "key").write_bytes(b"key")
    assert told(b"end\n", b"key") == "/etc/hosts differs"


def test_job_processes_are_counted() -> None:
    """Going and stopped."""
    assert agent.job_processes(Agent("3 1\n"), "vn1", 5.0) == (3, 1)


def until(holds: Callable[[], bool]) -> None:
    """Let what was begun in the background go on."""
    deadline_s = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < deadline_s
        os.sched_yield()


def in_shell(guest: Agent, *moved: tuple[str, Path], path: str = "/usr/bin:/bin", umask: int = -1) -> str:
    """What the program that was asked for complains of, run here, with some of its words replaced."""
    ((program, words),) = guest.commands
    for old, new in moved:
        words = [str(new) if word == old else word for word in words]
    done = subprocess.run([program, *words], env={"PATH": path}, capture_output=True, text=True, umask=umask)
    return done.stderr


def test_the_features_of_a_job_name_its_shutdown(tmp_path: Path) -> None:
    """In whole seconds, for the job and for the machine; a later time takes the place."""
    for ends_s in (1_700_000_100.7, 1_700_000_200.0):
        guest = Agent("")
        agent.announce(guest, "vn1", 7, ends_s, 5.0)
        own, all_of_it = tmp_path / "jobs", tmp_path / "machine"
        in_shell(guest, (agent.JOB_FEATURES, own), (agent.MACHINE_FEATURES, all_of_it))
        assert (own / "7" / "shutdowntime_job").read_text() == f"{int(ends_s)}\n"
        assert (all_of_it / "shutdowntime").read_text() == f"{int(ends_s)}\n"
        assert sorted(p.name for p in all_of_it.iterdir()) == ["shutdowntime"]


@pytest.mark.parametrize(("later", "slow"), [("", False), ("1700000300\n", False), ("", True)])
def test_the_features_go_with_the_job(tmp_path: Path, later: str, slow: bool) -> None:
    """The next one on the machine is told nothing of it; what was written for that one meanwhile stays.

    Also where the job ends before the one who watches it has started.
    """
    ended = tmp_path / "ended"
    wait = f"until [ -e {ended} ]; do :; done\n" if slow else ""
    for name, does in (("sleep", ""), ("setsid", f'{wait}exec /usr/bin/setsid "$@"\n')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{does}")
        (tmp_path / name).chmod(0o755)
    own, machine, number = tmp_path / "jobs", tmp_path / "machine", 1_000_000_000 + os.getpid()
    moved = (agent.JOB_FEATURES, own), (agent.MACHINE_FEATURES, machine)
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={"SLURM_JOB_ID": str(number)}) as job:
        for ends_s in (1_700_000_100.0, 1_700_000_200.0):
            guest = Agent("")
            agent.announce(guest, "vn1", number, ends_s, 5.0)
            assert in_shell(guest, *moved, path=f"{tmp_path}:/usr/bin:/bin") == ""
        assert (machine / "shutdowntime").read_text() == "1700000200\n"
        if later:
            (machine / "shutdowntime").write_text(later)
        assert (own / str(number)).exists()
        job.communicate()
    ended.touch()
    until(lambda: not (own / str(number)).exists())
    assert [path.read_text() for path in machine.iterdir()] == ([later] if later else [])


def test_every_user_finds_the_features_whatever_the_agents_umask(tmp_path: Path) -> None:
    """Their folders can be entered, and the files be read."""
    guest = Agent("")
    agent.announce(guest, "vn1", 7, 1.0, 5.0)
    own, machine = tmp_path / "jobs", tmp_path / "machine"
    assert in_shell(guest, (agent.JOB_FEATURES, own), (agent.MACHINE_FEATURES, machine), umask=0o077) == ""
    assert {path.stat().st_mode & 0o777 for path in (own, own / "7", machine)} == {0o755}
    for file in (own / "7" / "shutdowntime_job", machine / "shutdowntime"):
        assert file.stat().st_mode & 0o777 == 0o644


def test_who_asks_again_may_overtake_the_first_run(tmp_path: Path) -> None:
    """The agent was silent, and its first run comes to its end only after the second one."""
    programs, machine = tmp_path / "bin", tmp_path / "machine"
    programs.mkdir()
    overtaking = f'[ -e "{tmp_path}/once" ] || {{ : >"{tmp_path}/once"; sh -c "$AGAIN" || exit 9; }}'
    (programs / "mv").write_text(f'#!/bin/sh\n{overtaking}\nexec /bin/mv "$@"\n')
    (programs / "mv").chmod(0o755)
    guest = Agent("")
    agent.announce(guest, "vn1", 7, 1.0, 5.0)
    ((program, words),) = guest.commands
    words = [str({agent.JOB_FEATURES: machine, agent.MACHINE_FEATURES: machine}.get(w, w)) for w in words]
    again = shlex.join([program, *words])
    env = {"PATH": f"{programs}:/usr/bin:/bin", "AGAIN": again}
    done = subprocess.run([program, *words], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in machine.iterdir()) == ["7", "shutdowntime"]


def test_features_that_cannot_be_written_are_a_complaint(tmp_path: Path) -> None:
    """A file is where the directory should be; the other one is written all the same."""
    (tmp_path / "jobs").write_text("")
    guest = Agent("")
    agent.announce(guest, "vn1", 7, 1.0, 5.0)
    said = in_shell(guest, (agent.JOB_FEATURES, tmp_path / "jobs"), (agent.MACHINE_FEATURES, tmp_path / "m"))
    assert said == f"{tmp_path}/jobs/7/shutdowntime_job cannot be written (Not a directory)\n"
    assert (tmp_path / "m/shutdowntime").read_text() == "1\n"


def test_features_on_a_full_or_closed_disk_leave_what_was_there(tmp_path: Path) -> None:
    """One sentence tells of both; nothing half written is left, and an earlier time stays."""
    full, programs = tmp_path / "m", tmp_path / "bin"
    full.mkdir()
    (full / "shutdowntime").write_text("5\n")
    programs.mkdir()
    (programs / "mv").write_text("#!/bin/sh\necho mv: No space left on device >&2\nexit 1\n")
    (programs / "mv").chmod(0o755)
    guest, path = Agent(""), f"{programs}:/usr/bin:/bin"
    agent.announce(guest, "vn1", 7, 1.0, 5.0)
    said = in_shell(guest, (agent.JOB_FEATURES, Path("/proc/sys")), (agent.MACHINE_FEATURES, full), path=path)
    (line,) = said.splitlines()
    assert line.startswith("/proc/sys/7/shutdowntime_job cannot be written (")
    assert line.endswith(f", {full}/shutdowntime cannot be written (No space left on device)")
    assert [path.name for path in full.iterdir()] == ["shutdowntime"]
    assert (full / "shutdowntime").read_text() == "5\n"


def test_a_command_runs_as_the_jobs_user_and_nobody_waits_for_it(tmp_path: Path) -> None:
    """Whatever is in its words; where there is no such user or program that is said."""
    told = tmp_path / "told"
    (tmp_path / "runuser").write_text(
        f'#!/bin/sh\necho "$SLURM_JOB_ID" "$@" >{told}.new; mv {told}.new {told}\n'
    )
    (tmp_path / "runuser").chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    guest = Agent("")
    agent.run_for(guest, "vn1", 7, "root", ("true", "; touch x"), 5.0)
    assert in_shell(guest, path=path) == ""
    until(told.exists)
    assert told.read_text() == "7 -u root -- true ; touch x\n"
    guest = Agent("")
    agent.run_for(guest, "vn1", 7, "root", ("no-such-program",), 5.0)
    assert "there is no program no-such-program" in in_shell(guest, path=path)
    guest = Agent("")
    agent.run_for(guest, "vn1", 7, "no-such-user", ("true",), 5.0)
    assert "no-such-user" in in_shell(guest, path=path)
