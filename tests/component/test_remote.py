"""The daemon asked over HTTP: the token stays secret, and who answers is looked at before it is believed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from backfill.ui.cli import main

SECRET = "eyJhbGciOiJIUzI1NiJ9.c2VjcmV0"


class _Answering(ThreadingHTTPServer):
    """Gives every request the same answer, and remembers what token each one showed."""

    def __init__(self, status: int, answer: object, headers: dict[str, str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.answer, self.headers = status, answer, headers
        self.shown: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: _Answering

    def do_GET(self) -> None:
        self.server.shown.append(self.headers.get("Authorization"))
        self.send_response(self.server.status)
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(json.dumps(self.server.answer).encode())

    do_POST = do_GET  # noqa: N815  as http.server calls it

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def answering(answer: object, status: int = 200, **headers: str) -> Iterator[_Answering]:
    with _Answering(status, answer, headers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JWT", raising=False)


@pytest.mark.parametrize("written", [SECRET, f"{SECRET}\r", f" {SECRET}\n", f"SLURM_JWT={SECRET}"])
def test_a_token_is_sent_as_people_paste_it(
    written: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a line's end behind it, or whole as `scontrol token` prints it."""
    monkeypatch.setenv("SLURM_JWT", written)
    with answering({"error": "the token is refused"}, 401) as server:
        assert main(["status", "--url", server.url]) == 77
    assert server.shown == [f"Bearer {SECRET}"]
    said = capsys.readouterr().err
    assert "the token is refused" in said
    assert "put it into SLURM_JWT" not in said


@pytest.mark.parametrize("wrong", [f"{SECRET}\r\nX: y", f"{SECRET}é", f"token {SECRET}", f"\x1b{SECRET}"])
def test_a_token_that_is_none_is_never_shown(
    wrong: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither to people nor to a service: the sentence names the variable alone."""
    monkeypatch.setenv("SLURM_JWT", wrong)
    with answering({}) as server:
        assert main(["status", "--url", server.url]) == 77
    told = "".join(capsys.readouterr())
    assert "SLURM_JWT holds characters that no token has" in told
    assert SECRET not in told
    assert server.shown == []


def test_a_redirect_is_not_followed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The token would go along to whoever is named."""
    monkeypatch.setenv("SLURM_JWT", SECRET)
    with answering({}) as other, answering({}, 302, Location=other.url) as server:
        assert main(["status", "--url", server.url]) == 1
    assert other.shown == []
    assert f"redirects to {other.url}; give --url the address that answers" in capsys.readouterr().err


@pytest.mark.parametrize("answer", [{}, [], "yes", {"nodes": 3, "answer": 3, "problems": None}])
@pytest.mark.parametrize(
    "words",
    [["status"], ["nodes"], ["plan"], ["events"], ["explain", "vn1"], ["poke"], ["policy", "reload"]],
    ids=" ".join,
)
def test_another_service_is_told_from_ours(
    words: list[str], answer: object, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(answer) as server:
        assert main([*words, "--url", server.url]) == 69
    assert "answers, but not as our web service does; name that one" in capsys.readouterr().err


_PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize(
    ("written", "status", "told"),
    [
        (None, 65, "/ca.crt: No such file or directory; check the path"),
        ("a folder", 65, "/ca.crt: Is a directory; check the path"),
        ("", 65, "/ca.crt holds no certificates; give a file in PEM: -----BEGIN CERTIFICATE-----"),
        (f"# ours\n{_PEM}", 65, "/ca.crt:2: the certificate there is damaged; copy it anew"),
    ],
)
def test_certificates_that_are_none_are_told_with_file_and_line(
    written: str | None, status: int, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bad input, as any other file; nobody is asked."""
    ca = tmp_path / "ca.crt"
    if written == "a folder":
        ca.mkdir()
    elif written is not None:
        ca.write_text(written)
    assert main(["status", "--url", "https://localhost:1", "--ca", str(ca)]) == status
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert told in said


def test_certificates_that_one_may_not_read_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def closed(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("ssl.SSLContext.load_verify_locations", closed)
    assert main(["status", "--url", "https://localhost:1", "--ca", "/closed/ca.crt"]) == 77
    told = "backfill: /closed/ca.crt: Permission denied; ask its owner, or try as root\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("words", [["status"], ["checkpoint", "list"], ["drift"], ["instances", "--leaks"]])
def test_certificates_without_a_service_are_a_mistake(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They would be ignored; the environment may name the service."""
    monkeypatch.delenv("BACKFILL_URL", raising=False)
    assert main([*words, "--ca", "/none"]) == 64
    assert "--ca goes with --url; give both" in capsys.readouterr().err
    monkeypatch.setenv("BACKFILL_URL", "https://localhost:1")
    assert main([*words, "--ca", "/none"]) == 65


def test_a_path_too_much_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """`Not Found` alone says neither what nor why; a sentence about a node is left as it is."""
    with answering({"error": "Not Found"}, 404) as server:
        assert main(["status", "--url", f"{server.url}/api/v1"]) == 1
        assert (
            f"{server.url}/api/v1/api/v1/status: Not Found; give --url without a path"
            in capsys.readouterr().err
        )
        server.answer = {"error": "nothing is known of vn9"}
        assert main(["explain", "vn9", "--url", server.url]) == 1
        assert capsys.readouterr().err == "backfill: nothing is known of vn9\n"
