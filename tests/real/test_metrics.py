"""A real Prometheus: our alerts by its own tests, and every query of the board about a daemon at work."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from backfill.core.model.lifecycle import Phase
from backfill.ui.client import Client
from backfill.ui.web.exposition import exposition
from tests.component.living_daemon import LivingDaemon, living, parked

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "config/monitoring"
RULES = MONITORING / "backfill.rules.yaml"
BOARD = MONITORING / "backfill.dashboard.json"
_PATIENCE_S = 120.0


def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    """Prometheus's own `promtool test rules`; the file is valid to it as well."""
    cases = tmp_path / "alerts.test.yaml"
    cases.write_text((ROOT / "tests/real/alerts.test.yaml").read_text().replace("RULES", str(RULES)))
    for argv in (["promtool", "check", "rules", str(RULES)], ["promtool", "test", "rules", str(cases)]):
        told = subprocess.run(argv, capture_output=True, text=True, timeout=_PATIENCE_S)
        assert told.returncode == 0, told.stdout + told.stderr


@contextmanager
def served(daemon: LivingDaemon) -> Iterator[int]:
    """The daemon's metrics at a port of this machine."""
    client = Client(str(daemon.socket))

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text, kind = exposition(client.ask("metrics")["families"], self.headers["Accept"] or "")
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its own name
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


class Prometheus:
    """One that scrapes once a second."""

    def __init__(self, port: int) -> None:
        self._port = port

    def value(self, query: str) -> list[dict[str, Any]]:
        """What an instant query gives."""
        address = f"http://127.0.0.1:{self._port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
        with urllib.request.urlopen(address, timeout=_PATIENCE_S) as answer:
            found: dict[str, Any] = json.load(answer)
        assert found["status"] == "success", found
        result: list[dict[str, Any]] = found["data"]["result"]
        return result

    def await_value(self, query: str, at_least: float) -> float:
        """Wait until a query gives at least so much."""
        until_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until_s:
            try:
                found = self.value(query)
            except OSError:
                found = []  # it is just starting
            if found and float(found[0]["value"][1]) >= at_least:
                return float(found[0]["value"][1])
            time.sleep(0.1)
        raise AssertionError(f"{query} did not reach {at_least} within {_PATIENCE_S:g} s")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def prometheus(directory: Path, target: int) -> Iterator[Prometheus]:
    port = free_port()
    config = directory / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s, evaluation_interval: 1s}\n"
        f"rule_files: ['{RULES}']\n"
        "scrape_configs:\n"
        "  - job_name: backfill\n"
        f"    static_configs: [{{targets: ['127.0.0.1:{target}']}}]\n"
    )
    argv = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    with (directory / "log").open("w") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, env={"PATH": os.environ["PATH"]})
        try:
            yield Prometheus(port)
        finally:
            process.terminate()
            process.wait(_PATIENCE_S)


def queries() -> list[str]:
    """Those of the board's panels."""
    board = json.loads(BOARD.read_text())
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has seen an instance made, pushed aside and brought back."""
    with (
        living(tmp_path_factory.mktemp("daemon")) as daemon,
        served(daemon) as target,
        prometheus(tmp_path_factory.mktemp("prometheus"), target) as found,
    ):
        _, high = parked(daemon)
        for number in (1, 2):  # of a series by call, only the second event is an increase
            found.await_value("sum(backfill_evictions_total)", number)
            daemon.sim.finish_job(high)
            daemon.until(lambda: daemon.phase("vn1") is Phase.READY)
            found.await_value("sum(backfill_returns_total)", number)
            high = daemon.sim.submit("batch", 5000.0, required_nodes=("bm1",))
            daemon.until(lambda: daemon.phase("vn1") is Phase.PARKED)
        found.await_value("sum(backfill_evictions_total)", 3)
        yield found


def test_every_query_of_the_board_returns_data(asked: Prometheus) -> None:
    assert len(queries()) > 30
    assert [query for query in queries() if not asked.value(query)] == []


def test_a_scrape_is_small_and_whole(asked: Prometheus) -> None:
    """No sample was refused, and there are fewer series than the bound."""
    assert asked.value('up{job="backfill"}')[0]["value"][1] == "1"
    samples = float(asked.value('scrape_samples_scraped{job="backfill"}')[0]["value"][1])
    kept = float(asked.value('scrape_samples_post_metric_relabeling{job="backfill"}')[0]["value"][1])
    assert 100 < samples == kept < 1000
