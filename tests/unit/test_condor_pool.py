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
    asked = pool(tokens, answering(tmp_path, {"idle": 3, "runs": [RUN, EARLIER]}))
    seen = asked.observe()
    asked.close()
    assert seen.idle == 3
    assert [(run.id, run.pilot, run.node, run.done) for run in seen.runs] == [
        ("ap#2.0#1", "7", "vn1", False),
        ("ap#1.0#1", "7", "vn1", True),
    ]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("os._exit(3)", "it ended"),
        ("print('{}', flush=True)\nsys.stdin.readline()\nos.kill(os.getpid(), 11)", "it ended"),
        ("time.sleep(600)", "no answer within 1 s"),
        ("print('{}', flush=True)\ntime.sleep(600)", "no answer within 1 s"),
        ("print('nonsense', flush=True)", "cannot read its answer"),
    ],
)
def test_a_library_that_crashes_or_hangs_is_one_error(
    tmp_path: Path, tokens: Path, body: str, said: str
) -> None:
    """And the next question starts a process anew."""
    asked = pool(tokens, python(tmp_path, body), within_s=1.0)
    for _ in range(2):
        with pytest.raises(DriverError, match=said):
            asked.observe()
    asked.close()


def test_a_python_without_the_bindings_is_named(tmp_path: Path, tokens: Path) -> None:
    """As its own first words say."""
    said = {"error": {"said": "/usr/bin/python3 has no HTCondor bindings (No module named 'htcondor')"}}
    asked = pool(tokens, python(tmp_path, f"print({json.dumps(said)!r}, flush=True)"))
    refuses(asked, UnreachableError, "/usr/bin/python3 has no HTCondor bindings")


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
