"""An HTCondor pool that is asked in a process of its own, and every way in which it does not answer."""

from __future__ import annotations

import base64
import json
import socket
import stat
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from backfill.drivers.condor.diagnosis import look_at_tokens
from backfill.drivers.condor.pool import CondorPool
from backfill.drivers.condor.settings import CondorConfig
from backfill.ports.errors import DriverError, RefusedError, UnreachableError

RUN = {"id": "ap#1.0#1", "pilot": "7", "host": "vn1", "ended_s": 20, "worked_s": 8, "done": True}
EARLIER = {**RUN, "id": "ap#2.0#1", "ended_s": 10, "done": False}


def jwt(**claims: object) -> str:
    parts = ({"alg": "HS256"}, claims)
    words = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*words, "signature"])


def write(place: Path, **claims: object) -> None:
    """A token that its owner alone may read: HTCondor takes no other."""
    path = place / "pool"
    path.touch(mode=0o600)
    path.write_text(jwt(**claims))


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    place = tmp_path / "tokens"
    place.mkdir()
    write(place, iss="pool", exp=int(time.time()) + 3600)
    return place


def python(tmp_path: Path, body: str) -> str:
    """An interpreter that runs this instead of what it is given."""
    path = tmp_path / "python"
    path.write_text(f"#!{sys.executable}\nimport json, os, sys, time\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def answering(tmp_path: Path, answer: object) -> str:
    body = f"print('{{}}', flush=True)\nfor line in sys.stdin: print({json.dumps(answer)!r}, flush=True)"
    return python(tmp_path, body)


def pool(tokens: Path, interpreter: str, **more: object) -> CondorPool:
    config = CondorConfig(interpreter, "127.0.0.1:1", str(tokens), within_s=5.0)
    return CondorPool(replace(config, **more))  # type: ignore[arg-type]


def refuses(asked: CondorPool, kind: type[DriverError], said: str) -> None:
    """It raises this error, with these words."""
    with pytest.raises(kind, match=said):
        asked.observe()
    asked.close()


def test_what_waits_and_what_has_ended(tmp_path: Path, tokens: Path) -> None:
    """The oldest run comes first."""
    asked = pool(
        tokens, answering(tmp_path, {"idle": 3, "runs": [RUN, EARLIER], "answered": ["ap"], "silent": {}})
    )
    seen = asked.observe()
    asked.close()
    assert seen.idle == 3
    assert [(run.id, run.pilot, run.node, run.done) for run in seen.runs] == [
        ("ap#2.0#1", "7", "vn1", False),
        ("ap#1.0#1", "7", "vn1", True),
    ]


def test_a_run_whose_times_cannot_be_is_left_out(
    tmp_path: Path, tokens: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No calendar has the year 33658. The other runs count, and the log says so once."""
    odd = [
        {**RUN, "id": "ap#9.0#1", "ended_s": 10**12},
        {**RUN, "id": "ap#8.0#1", "ended_s": -1},
        {**RUN, "id": "ap#5.0#1", "ended_s": 0, "worked_s": 0},  # of an access point that writes no time
        {**RUN, "id": "ap#7.0#1", "ended_s": float("nan")},
        {**RUN, "id": "ap#6.0#1", "worked_s": 10**12},
    ]
    answer = {"idle": 3, "runs": [*odd, RUN], "answered": ["ap"], "silent": {}}
    asked = pool(tokens, answering(tmp_path, answer))
    for _ in range(2):
        assert [run.id for run in asked.observe().runs] == ["ap#1.0#1"]
    asked.close()
    assert caplog.text.count("left out") == 1
    assert "run ap#9.0#1 is left out, as it is said to have ended at 1000000000000 s" in caplog.text


@pytest.mark.parametrize(
    ("body", "within_s", "said"),
    [
        ("os._exit(3)", 60.0, "it ended"),
        ("print('{}', flush=True)\nsys.stdin.readline()\nos.kill(os.getpid(), 11)", 60.0, "it ended"),
        ("time.sleep(600)", 0.2, r"no answer within 0\.2 s"),
        ("print('{}', flush=True)\ntime.sleep(600)", 0.4, r"no answer within 0\.4 s"),
        ("print('nonsense', flush=True)", 60.0, "cannot read its answer"),
    ],
)
def test_a_library_that_crashes_or_hangs_is_one_error(
    tmp_path: Path, tokens: Path, body: str, within_s: float, said: str
) -> None:
    """And the next question starts a process anew."""
    asked = pool(tokens, python(tmp_path, body), within_s=within_s)
    for _ in range(2):
        with pytest.raises(DriverError, match=said):
            asked.observe()
    asked.close()


def test_a_python_without_the_bindings_is_named(tmp_path: Path, tokens: Path) -> None:
    """As its own first words say."""
    said = {"error": {"said": "/usr/bin/python3 has no HTCondor bindings (No module named 'htcondor')"}}
    asked = pool(tokens, python(tmp_path, f"print({json.dumps(said)!r}, flush=True)"))
    refuses(asked, UnreachableError, "/usr/bin/python3 has no HTCondor bindings")


# HTCondor's bindings, whose access points behave as they are called.
_BINDINGS = """
import json, os, signal
from pathlib import Path

LISTED = Path({listed!r})

class AdType:
    Schedd = 1

class Collector:
    def query(self, kind, projection):
        return [{{"Name": name}} for name in json.loads(LISTED.read_text())]

class Schedd:
    def __init__(self, place):
        self.name = place["Name"]

    def query(self, constraint, projection, limit):
        if self.name == "refuses":
            raise RuntimeError("Failed to fetch ads")
        if self.name == "ends":
            os._exit(3)
        return [{{"ClusterId": 1}}] * min(3, limit)

    def jobEpochHistory(self, constraint, projection, match):
        if self.name == "records":
            import classad2
            return [classad2.ClassAd(text) for text in LISTED.with_name("records").read_text().splitlines()]
        while self.name.startswith("hangs"):
            signal.pause()
        runs = float("inf") if self.name == "endless" else 1
        ran = {{"ClusterId": 1, "ProcId": 0, "NumShadowStarts": runs}}
        return [{{**ran, "EpochWriteDate": 9, "MachineAttrSlurmJob0": "7"}}]

def version():
    return "25"
"""


def with_bindings(tmp_path: Path, names: list[str]) -> str:
    """An interpreter with bindings for a pool of these access points; it runs what it is given."""
    (tmp_path / "htcondor2.py").write_text(_BINDINGS.format(listed=str(tmp_path / "listed")))
    (tmp_path / "listed").write_text(json.dumps(names))
    body = f"sys.path.insert(0, {str(tmp_path)!r})\nimport runpy\n"
    return python(tmp_path, f"{body}runpy.run_path(sys.argv[1], run_name='__main__')")


def start_takes_s(asked: CondorPool) -> float:
    """How long this machine takes now until a process has started and answered."""
    began_s = time.monotonic()
    assert asked.reads_constraint()
    asked.close()
    return time.monotonic() - began_s


def test_access_points_that_are_silent_do_not_silence_the_others(
    tmp_path: Path, tokens: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """However they are silent, and however many: the others have been heard, and the log names them once."""
    silent = ["ends", "hangs1", "hangs2", "refuses"]
    interpreter = with_bindings(tmp_path, ["ap1", *silent, "ap2"])
    within_s = max(1.0, 8 * start_takes_s(pool(tokens, interpreter, within_s=60.0, constraint="true")))
    asked = pool(tokens, interpreter, within_s=within_s, constraint="true")
    assert asked.reads_constraint()  # the interpreter has started
    for _ in range(2):
        seen = asked.observe()
        assert (seen.idle, list(seen.silent)) == (6, silent)
        assert [(run.id, run.pilot) for run in seen.runs] == [("ap1#1.0#1", "7"), ("ap2#1.0#1", "7")]
    asked.close()
    assert caplog.text.count("access point hangs1 does not answer (it said nothing in time), ") == 1
    assert caplog.text.count("access point refuses does not answer (Failed to fetch ads)") == 1


def test_a_number_that_is_no_number_does_not_silence_an_access_point(tmp_path: Path, tokens: Path) -> None:
    """A ClassAd may have INF where a whole number is due."""
    asked = pool(tokens, with_bindings(tmp_path, ["endless"]), within_s=60.0)
    seen = asked.observe()
    asked.close()
    assert ([run.id for run in seen.runs], list(seen.silent)) == (["endless#1.0#0"], [])


# What is there in each record of a payload in a pilot.
_NAMED = "ClusterId = 1; ProcId = 0; MachineAttrSlurmJob0 = 7; JobMaxRetries = 5"
_RETRIES = "OnExitRemove = NumJobCompletions > JobMaxRetries || ExitCode =?= 0"


def runs_in(tmp_path: Path, tokens: Path, *records: str) -> list[tuple[str, float, bool]]:
    """What an access point with these records of runs, the latest first as it has them, tells of them."""
    (tmp_path / "records").write_text("\n".join(f"[{record}]" for record in records))
    asked = pool(tokens, with_bindings(tmp_path, ["records"]), within_s=60.0)
    seen = asked.observe()
    asked.close()
    assert list(seen.silent) == []
    return [(run.id, run.worked_s, run.done) for run in seen.runs]


def test_a_run_that_ended_by_itself_does_not_complete_the_next(tmp_path: Path, tokens: Path) -> None:
    """A payload with retries: it failed, then its pilot was evicted, then it was done. It is done once."""
    failed = (
        f"{_NAMED}; NumShadowStarts = 1; NumJobCompletions = 1; ExitCode = 1; {_RETRIES}; "
        "JobCurrentStartDate = 100; JobCurrentStartExecutingDate = 110; EpochWriteDate = 120"
    )
    evicted = (
        f"{_NAMED}; NumShadowStarts = 2; NumJobCompletions = 1; ExitCode = 1; {_RETRIES}; "
        "JobCurrentStartDate = 200; JobCurrentStartExecutingDate = 210; LastVacateTime = 250; "
        "EpochWriteDate = 250"
    )
    done = (
        f"{_NAMED}; NumShadowStarts = 3; NumJobCompletions = 2; ExitCode = 0; {_RETRIES}; "
        "JobCurrentStartDate = 300; JobCurrentStartExecutingDate = 310; LastVacateTime = 250; "
        "EpochWriteDate = 400"
    )
    expected = [("records#1.0#1", 10.0, False), ("records#1.0#2", 40.0, False), ("records#1.0#3", 90.0, True)]
    assert runs_in(tmp_path, tokens, done, evicted, failed) == expected
    # Of a long history only the latest is told.
    assert runs_in(tmp_path, tokens, evicted) == expected[1:2]
    assert runs_in(tmp_path, tokens, done) == expected[2:]


def test_a_run_that_began_in_the_second_of_an_eviction_may_be_done(tmp_path: Path, tokens: Path) -> None:
    """Its record has still when the run before it was evicted, by the second."""
    evicted = (
        f"{_NAMED}; NumShadowStarts = 1; JobCurrentStartDate = 100; JobCurrentStartExecutingDate = 110; "
        "LastVacateTime = 250; EpochWriteDate = 250"
    )
    done = (
        f"{_NAMED}; NumShadowStarts = 2; NumJobCompletions = 1; ExitCode = 0; {_RETRIES}; "
        "JobCurrentStartDate = 250; JobCurrentStartExecutingDate = 251; LastVacateTime = 250; "
        "EpochWriteDate = 400"
    )
    expected = [("records#1.0#1", 140.0, False), ("records#1.0#2", 149.0, True)]
    assert runs_in(tmp_path, tokens, done, evicted) == expected


def test_a_run_that_never_began_to_work_has_not_worked(tmp_path: Path, tokens: Path) -> None:
    """Its record has the date at which the run before it began, or none."""
    first = f"{_NAMED}; NumShadowStarts = 1; JobCurrentStartDate = 100; EpochWriteDate = 130"
    worked = (
        f"{_NAMED}; NumShadowStarts = 2; JobCurrentStartDate = 200; JobCurrentStartExecutingDate = 210; "
        "EpochWriteDate = 250"
    )
    never = (
        f"{_NAMED}; NumShadowStarts = 3; JobCurrentStartDate = 9000; JobCurrentStartExecutingDate = 210; "
        "EpochWriteDate = 9005"
    )
    assert runs_in(tmp_path, tokens, never, worked, first) == [
        ("records#1.0#1", 0.0, False),
        ("records#1.0#2", 40.0, False),
        ("records#1.0#3", 0.0, False),
    ]


def test_a_record_that_names_no_payload_does_not_silence_an_access_point(
    tmp_path: Path, tokens: Path
) -> None:
    """One that was cut off as its disk was full, for example: the other runs are told."""
    whole = f"{_NAMED}; NumShadowStarts = 1; NumJobCompletions = 1; EpochWriteDate = 130"
    cut = "ClusterId = 1; ProcId = undefined; NumShadowStarts = 2"
    odd = 'ClusterId = "1"; ProcId = 0; NumShadowStarts = 3'
    assert runs_in(tmp_path, tokens, odd, cut, whole) == [("records#1.0#1", 0.0, True)]


@pytest.mark.parametrize(
    ("said", "pilot"),
    [
        ('"7"', "7"),
        ("7", "7"),
        ("undefined", ""),
        ("error", ""),
        ("true", ""),
        ('"$SLURM_JOB_ID"', ""),
        ('""', ""),
    ],
)
def test_a_run_on_a_machine_that_names_no_job_was_in_no_pilot(
    tmp_path: Path, tokens: Path, said: str, pilot: str
) -> None:
    """The access point then notes undefined, which is 2 in HTCondor's bindings: not our job 2."""
    record = f"ClusterId = 1; ProcId = 0; NumShadowStarts = 1; EpochWriteDate = 9; {{}} = {said}"
    record += f"; NumJobCompletions = {said}"
    (tmp_path / "records").write_text(f"[{record.format('MachineAttrSlurmJob0')}]")
    asked = pool(tokens, with_bindings(tmp_path, ["records"]), within_s=60.0)
    seen = asked.observe()
    asked.close()
    assert [(run.pilot, run.done) for run in seen.runs] == [(pilot, said == "7")]


def test_a_collector_that_knows_no_access_point_says_nothing_of_payloads(
    tmp_path: Path, tokens: Path
) -> None:
    """It has just been started, for example: that is no sign that nothing waits."""
    told = "its collector knows no access point; see that a condor_schedd reports to condor.collector"
    refuses(pool(tokens, with_bindings(tmp_path, []), within_s=60.0), UnreachableError, told)


def test_an_access_point_that_the_collector_has_lost_is_silent_for_a_while(
    tmp_path: Path, tokens: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What waits there is not known; one that does not come back is none of the pool."""
    caplog.set_level("INFO")
    asked = pool(tokens, with_bindings(tmp_path, ["ap1", "ap2"]), within_s=60.0)
    assert (asked.observe().idle, list(asked.observe().silent)) == (6, [])
    (tmp_path / "listed").write_text('["ap2"]')
    for _ in range(2):
        seen = asked.observe()
        assert (seen.idle, list(seen.silent)) == (3, ["ap1"])
    assert caplog.text.count("access point ap1 does not answer (the collector no longer knows it)") == 1
    monkeypatch.setattr("backfill.drivers.condor.pool._LOST_S", 0.0)
    assert list(asked.observe().silent) == []
    assert "answers again" not in caplog.text
    asked.close()


def test_no_more_payloads_are_counted_than_were_asked_for(tmp_path: Path, tokens: Path) -> None:
    """Each access point tells as many as that, and nobody wants them all; more than are asked at once."""
    names = [f"ap{number}" for number in range(20)]
    asked = pool(tokens, with_bindings(tmp_path, names), within_s=60.0, most_idle=50)
    seen = asked.observe()
    assert (seen.idle, len(seen.runs), list(seen.silent)) == (50, 20, [])
    asked.close()


def test_a_pool_without_an_access_point_that_answers(tmp_path: Path, tokens: Path) -> None:
    """Each is named with what was said of it, and the token is not blamed."""
    told = (
        r"access point ends does not answer \(HTCondor's library ended the process that asked\), access "
        r"point refuses does not answer \(Failed to fetch ads\); see that its condor_schedd runs, and"
    )
    interpreter = with_bindings(tmp_path, ["refuses", "ends"])
    refuses(pool(tokens, interpreter, within_s=60.0), UnreachableError, told)
    refuses(
        pool(tokens, interpreter, within_s=60.0, constraint="1"), UnreachableError, r"see condor\.constraint"
    )
    write(tokens, exp=1_700_000_000)
    refuses(pool(tokens, interpreter, within_s=60.0), RefusedError, "expired at 2023-11-14")


REFUSED = {"error": {"said": "Failed communication with collector."}}


def test_a_token_that_has_expired(tmp_path: Path, tokens: Path) -> None:
    """HTCondor says the same of everything; the token itself says when."""
    write(tokens, exp=1_700_000_000)
    refuses(
        pool(tokens, answering(tmp_path, REFUSED)),
        RefusedError,
        r"the token in \S+/pool expired at 2023-11-14 22:13 UTC; replace that file",
    )


def test_a_token_that_others_may_read(tmp_path: Path, tokens: Path) -> None:
    """HTCondor passes over it in silence, as over one that belongs to somebody else."""
    (tokens / "pool").chmod(0o644)
    refuses(
        pool(tokens, answering(tmp_path, REFUSED)),
        RefusedError,
        r"does not take the token in \S+/pool: its mode is 0644, .* chmod 600 that file",
    )
    write(tokens, exp=int(time.time()) + 3600)
    (tokens / "pool").chmod(0o400)
    assert look_at_tokens(str(tokens)).problem is None


def test_no_token_at_all(tmp_path: Path, tokens: Path) -> None:
    """An empty directory, and none."""
    (tokens / "pool").unlink()
    refuses(pool(tokens, answering(tmp_path, REFUSED)), RefusedError, "there is no token in")
    tokens.rmdir()
    refuses(
        pool(tokens, answering(tmp_path, REFUSED)),
        RefusedError,
        r"no token can be read in .*: No such file or directory",
    )


def jwt_of(claims: bytes) -> bytes:
    return b"e30." + base64.urlsafe_b64encode(claims).rstrip(b"=") + b".signature"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\x1f\x8b\xff\xfe", "there is no token in"),
        (jwt_of(b"[" * 100_000), "there is no token in"),
        (jwt_of(b'{"exp": 1' + b"0" * 400 + b"}"), "nothing answers at"),
        (jwt_of(b'{"exp": -1' + b"0" * 400 + b"}"), "expired long ago"),
        (jwt_of(b'{"exp": NaN}'), "nothing answers at"),
        (jwt_of(b'{"exp": true}'), "nothing answers at"),
        (jwt_of(b'{"exp": -1e18}'), r"the token in \S+/pool expired long ago; replace that file"),
    ],
)
def test_a_file_that_is_no_token_is_none(tmp_path: Path, tokens: Path, content: bytes, told: str) -> None:
    """An editor's or an archive's file beside the token, or one with a time that no calendar has."""
    (tokens / "pool").write_bytes(content)
    refuses(pool(tokens, answering(tmp_path, REFUSED)), DriverError, told)


def test_nobody_listens_there(tmp_path: Path, tokens: Path) -> None:
    """The address is named, and what the network says."""
    refuses(
        pool(tokens, answering(tmp_path, REFUSED)),
        UnreachableError,
        r"nothing answers at 127\.0\.0\.1:1: Connection refused",
    )


def test_a_pool_that_does_not_know_us(tmp_path: Path, tokens: Path) -> None:
    """It listens, and the token is still good as far as it says: so it is of another pool."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        collector = f"127.0.0.1:{server.getsockname()[1]}"
        refuses(
            pool(tokens, answering(tmp_path, REFUSED), collector=collector),
            RefusedError,
            "it answers at .*, but not to us",
        )
        refuses(
            pool(tokens, answering(tmp_path, REFUSED), collector=collector, constraint="("),
            RefusedError,
            r"see condor\.constraint",
        )
