"""What people order, and how the daemon's absence and refusals are told."""

from __future__ import annotations

import itertools
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from backfill.core.model.cluster import JobState
from backfill.core.model.lifecycle import Phase
from backfill.ports.errors import RefusedError
from backfill.ui.cli import main
from backfill.ui.client import AskError, Client, refusal_code
from tests.component.living_daemon import LivingDaemon, living, policies


def test_evict_closes_a_host_and_undo_brings_the_work_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with living(tmp_path) as daemon:
        where = ["--socket", str(daemon.socket)]
        job = daemon.sim.submit("htc", 5000.0)
        daemon.until(lambda: bool(daemon.sim.job(job).nodes))
        host = daemon.sim.instance("vn1").host
        assert main(["evict", host, "--reason", "new disks", *where]) == 0
        assert f"{host} is closed, its instances are pushed aside: vn1" in capsys.readouterr().out
        daemon.until(lambda: daemon.phase("vn1") is Phase.PARKED)
        assert daemon.sim.job(job).state is JobState.SUSPENDED
        assert main(["hosts", *where]) == 0
        row = next(x for x in capsys.readouterr().out.splitlines() if x.startswith(host))
        assert row.split()[1] == "closed"
        assert row.endswith("new disks")
        assert main(["explain", host, *where]) == 0
        assert f"`backfill evict {host} --undo` opens it again" in capsys.readouterr().out
        assert main(["evict", host, "--undo", *where]) == 0
        assert capsys.readouterr().out == f"{host} is open again\n"
        daemon.until(lambda: daemon.phase("vn1") is Phase.READY)


def test_an_order_that_cannot_be_written_down_is_taken_with_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told as done, and the next daemon would have opened the host again."""

    def full(records: object) -> None:
        raise RefusedError("journal", "database or disk is full", "make room")

    with living(tmp_path) as daemon:
        where = ["--socket", str(daemon.socket)]
        monkeypatch.setattr(daemon.journal, "append", full)
        assert main(["evict", "bm1", *where]) == 0
        shown = capsys.readouterr()
        assert "bm1 is closed" in shown.out
        assert "this holds only until the daemon ends, as its journal cannot be written" in shown.err
        assert "database or disk is full" in shown.err
        assert main(["evict", "bm9", *where]) == 1
        assert "cannot be written" not in capsys.readouterr().err
        monkeypatch.undo()
        daemon.until(lambda: not daemon.daemon.cycle.unwritten)
        assert main(["evict", "bm1", "--undo", *where]) == 0
        assert capsys.readouterr().err == ""


def test_evicting_a_node_keeps_it_away_until_it_is_undone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with living(tmp_path) as daemon:
        where = ["--socket", str(daemon.socket)]
        job = daemon.sim.submit("htc", 5000.0)
        daemon.until(lambda: bool(daemon.sim.job(job).nodes))
        assert main(["evict", "vn1", "--json", *where]) == 0
        assert json.loads(capsys.readouterr().out) == {"subject": "vn1", "closed": True}
        daemon.until(lambda: daemon.phase("vn1") is Phase.PARKED)
        # While a call about it is in flight its return is not even considered.
        daemon.until(lambda: any(r.subject == "vn1" for r in daemon.daemon.cycle.last.refusals))
        assert main(["explain", "vn1", *where]) == 0
        assert "`backfill evict vn1 --undo` opens it again" in capsys.readouterr().out


def test_one_unknown_name_among_several_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with living(tmp_path) as daemon:
        daemon.until(lambda: len(daemon.daemon.world.hosts) == 2)
        assert main(["evict", "bm[1-3]", "--socket", str(daemon.socket)]) == 1
        assert "there is no host or node of ours 'bm3'" in capsys.readouterr().err
        assert daemon.daemon.world.closed == {}


def test_only_a_host_that_is_silent_is_off_for_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was on it is given up; one that answers is not off, and neither is a node."""
    with living(tmp_path) as daemon:
        where = ["--socket", str(daemon.socket)]
        daemon.until(lambda: len(daemon.daemon.world.hosts) == 2)
        assert main(["evict", "bm1", "--off", *where]) == 1
        assert "'bm1' answers, so it is not off" in capsys.readouterr().err
        daemon.sim.cut_host("bm1")
        daemon.until(lambda: not daemon.daemon.world.hosts["bm1"].reachable)
        assert main(["evict", "bm1", "--off", "--reason", "burnt", *where]) == 0
        assert "bm1 is off for good" in capsys.readouterr().out
        assert daemon.daemon.world.off == {"bm1": "burnt"}
        with pytest.raises(AskError, match="cannot be both opened and marked off for good; choose one"):
            Client(str(daemon.socket)).ask("evict", subject="bm1", on=False, off=True)
        assert daemon.daemon.world.off == {"bm1": "burnt"}
        assert main(["evict", "bm1", "--undo", *where]) == 0
        assert daemon.daemon.world.off == {}


def test_a_given_up_node_is_explained_and_can_be_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with living(tmp_path, policies(give_up_after=1, boot_within_s=20.0)) as daemon:
        where = ["--socket", str(daemon.socket)]
        daemon.sim.faults.never_boots("vn1", times=1)
        job = daemon.sim.submit("htc", 50.0)
        daemon.until(lambda: daemon.phase("vn1") is Phase.GIVEN_UP)
        assert main(["explain", "vn1", *where]) == 0
        text = capsys.readouterr().out
        assert text.startswith("vn1 has failed too often and was given up")
        assert "it did not register with Slurm within 20 s" in text
        assert "remove the cause, then `backfill retry vn1` frees its name at once" in text
        assert main(["retry", "vn1", *where]) == 0
        assert "its name is used again" in capsys.readouterr().out
        daemon.until(lambda: bool(daemon.sim.job(job).nodes))


def test_what_a_node_failed_at_that_is_over_is_not_under_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its failure stands with the node; nobody repeats the call, so it is not told as one that waits."""
    with living(tmp_path, policies(give_up_after=1)) as daemon:
        daemon.sim.faults.fail("create", RefusedError("vn1", "no image"), subject="vn1", times=-1)
        daemon.sim.submit("htc", 50.0)
        daemon.until(lambda: daemon.phase("vn1") is Phase.GIVEN_UP)
        for question in ("status", "plan"):
            assert main([question, "--socket", str(daemon.socket)]) == 0
            text = capsys.readouterr().out
            assert "create instance vn1 failed" not in text, question
            assert "under way" not in text, question
            assert "no name is left" not in text, question


def test_only_a_failed_node_can_be_tried_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with living(tmp_path) as daemon:
        where = ["--socket", str(daemon.socket)]
        assert main(["retry", "vn1", *where]) == 1
        assert "there is no failed node 'vn1'; there is none yet" in capsys.readouterr().err
        daemon.sim.submit("htc", 5000.0)
        daemon.until(lambda: daemon.phase("vn1") is Phase.READY)
        assert main(["retry", "vn1", *where]) == 1
        assert "vn1 is ready: nothing is to be tried again" in capsys.readouterr().err


def test_poke_makes_the_daemon_look(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with living(tmp_path) as daemon:
        assert main(["poke", "--socket", str(daemon.socket)]) == 0
        assert "being read now" in capsys.readouterr().out


@contextmanager
def followed(daemon: LivingDaemon) -> Iterator[subprocess.Popen[str]]:
    """`backfill events --follow`; it is killed rather than let a test hang."""
    # What started the tests may ignore Ctrl-C, as background jobs of a shell do.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "backfill"]
    command += ["events", "--follow", "--json"]
    command += ["--socket", str(daemon.socket), "--limit", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        watchdog = threading.Timer(60.0, process.kill)
        watchdog.start()
        try:
            yield process
        finally:
            watchdog.cancel()
            process.kill()


def events_of(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)


def test_followed_events_come_in_order_and_ctrl_c_ends_quietly(tmp_path: Path) -> None:
    with living(tmp_path) as daemon, followed(daemon) as process:
        coming = events_of(process)
        last = next(coming)["id"]
        daemon.sim.submit("htc", 5000.0)
        daemon.until(lambda: daemon.phase("vn1") is Phase.READY)
        for event in coming:
            assert event["id"] > last
            last = event["id"]
            if event["subject"] == "vn1" and "is now ready" in event["text"]:
                break
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait() == 130


def test_followed_events_survive_the_daemons_restart(tmp_path: Path) -> None:
    with living(tmp_path) as daemon, followed(daemon) as process:
        coming = events_of(process)
        before = next(coming)["id"]
        daemon.stop()
        assert process.stderr is not None
        assert "waiting until it answers" in process.stderr.readline()
        daemon.start()
        told = (e["body"]["event"] for e in coming if e["kind"] == "daemon" and e["id"] > before)
        after_stop = itertools.dropwhile(lambda event: event != "stop", told)
        assert [next(after_stop), next(after_stop)] == ["stop", "start"]


@pytest.mark.parametrize("command", ["status", "events", "poke", "hosts"])
def test_without_a_daemon_one_sentence_says_how_to_start_it(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none.sock"
    assert main([command, "--socket", str(path)]) == 69
    output = capsys.readouterr()
    assert output.out == ""
    told = "there is no such file; `systemctl status backfill` tells why"
    assert output.err == f"backfill: no daemon answers on {path}: {told}\n"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("file", "it is not a socket; name the daemon's by --socket"),
        (".", "it is not a socket; name the daemon's by --socket"),
        ("x" * 200, "no socket's path can be so long; name the daemon's by --socket"),
        ("file/sock", "Not a directory; `systemctl status backfill` tells why"),
        ("none/sock", "there is no such file; `systemctl status backfill` tells why"),
    ],
)
def test_what_is_no_daemons_socket_is_told_apart(
    name: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    assert main(["status", "--socket", str(tmp_path / name)]) == 69
    assert capsys.readouterr().err.endswith(f": {told}\n")


def test_a_dead_daemons_socket_is_no_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
    assert main(["status", "--socket", str(path)]) == 69
    told = "nobody listens there any more; `systemctl status backfill` tells why"
    assert capsys.readouterr().err == f"backfill: no daemon answers on {path}: {told}\n"


def test_a_web_service_that_does_not_answer_is_told_with_the_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = "http://127.0.0.1:1"
    assert main(["status", "--url", url]) == 69
    told = "Connection refused; `systemctl status backfill-web` there tells why"
    assert capsys.readouterr().err == f"backfill: no web service of backfill answers on {url}: {told}\n"


@pytest.mark.parametrize(
    ("line", "told"), [(b"", "hung up without an answer"), (b"SSH-2.0\n", "gave no JSON object")]
)
def test_something_else_on_the_socket_is_told_apart(
    line: bytes, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        with answering(server, line):
            assert main(["status", "--socket", str(path)]) == 69
    assert told in capsys.readouterr().err


@contextmanager
def answering(server: socket.socket, line: bytes) -> Iterator[None]:
    """Something that gives its first client this line, whatever it says."""

    def answer() -> None:
        client, _ = server.accept()
        with client:
            client.recv(4096)
            client.sendall(line)

    other = threading.Thread(target=answer)
    other.start()
    yield
    other.join()


def test_something_else_on_the_port_is_no_web_service(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, answering(server, b"SSH-2.0\n"):
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert main(["status", "--url", url]) == 69
    assert capsys.readouterr().err.startswith(f"backfill: no web service of backfill answers on {url}: SSH")


@pytest.mark.parametrize(
    "url",
    ["http://[::1", "http://a b/", "http://127.0.0.1:abc", "http://127.0.0.1:99999", "http:///x", "ctl:6834"],
)
def test_an_address_that_nobody_can_call_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--url", url]) == 64
    told = f"backfill: '{url}' is no address of a web service; write it as https://ctl:6834\n"
    assert capsys.readouterr().err == told


def test_a_refused_user_has_a_status_of_its_own() -> None:
    """Root and the daemon's own user may act; anybody else is refused with 77."""
    sentence = "'evict' is for root and the daemon's own user only"
    assert refusal_code(sentence, uid=1000, daemon_uid=999) == 77
    assert refusal_code(sentence, uid=0, daemon_uid=999) == 1
    assert refusal_code("'x' is no node", uid=1000, daemon_uid=999) == 1


def test_reclaim_is_for_burst_hosts_and_says_what_to_do_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with living(tmp_path) as daemon:
        where = ["--socket", str(daemon.socket)]
        daemon.until(lambda: len(daemon.daemon.world.hosts) == 2)
        assert main(["reclaim", "bm1", *where]) == 1
        assert "clear it with `backfill evict bm1`" in capsys.readouterr().err
        assert main(["reclaim", "bm7", *where]) == 1
        assert "there is no host 'bm7'" in capsys.readouterr().err
        daemon.sim.hosts["bm1"].node = None
        daemon.until(lambda: daemon.daemon.world.hosts["bm1"].node is None)
        assert main(["reclaim", "bm1", "--keep", "-1", *where]) == 64
        assert "-1 is less than 0; give at least 0" in capsys.readouterr().err
        assert main(["reclaim", "bm1", "--keep", "2", "--reason", "repair", *where]) == 0
        assert "bm1: 2 may stay" in capsys.readouterr().out
        assert daemon.daemon.world.kept == {"bm1": (2, "repair")}
        assert main(["reclaim", "bm1", "--undo", *where]) == 0
        assert daemon.daemon.world.kept == {}
