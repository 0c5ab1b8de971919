"""The live page beside a real cluster: Slurm's own tokens, real guests, a real browser.

With BACKFILL_PICTURES=DIRECTORY it leaves there what it saw, for the documents.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest

import backfill
from backfill.lab.spec import JOB_USER, SLURM_USER
from backfill.lab.waiting import wait_until
from backfill.sim.scenarios.player import Outcome, play
from backfill.sim.scenarios.reader import load_scenario
from backfill.ui.commands.demo_lab import LabStage
from tests.real.browser import Page, page
from tests.real.daemon_rig import PAUSE, DaemonRig, daemon_lab
from tests.real.test_demo import patient_first_day
from tests.real.test_metrics import Prometheus, prometheus, queries

pytestmark = [pytest.mark.real, pytest.mark.soak]
_ROOT = Path(backfill.__file__).parents[1]
_TEXT = "document.body.innerText"
_LOOKS = """fetch("/api/v1/timeline").then((reply) => reply.json()).then((found) => [...new Set(
  found.runs[0].spans.filter((_, at) => at % 5 === 3).map((look) => found.looks[look][0]))])"""
# What the main job looks like, in the words of the legend.
_MAIN_JOB = {
    "job on bare metal",
    "booting",
    "at work on an instance",
    "job on an instance",
    "evicting",
    "stands still in memory",
    "moving",
    "returning",
}
OPERATOR, READER = "bo", "cy"
_PATIENCE_S = 600.0


class Scene:
    """A lab with a daemon, the service of its own beside it, a browser, and a Prometheus that scrapes it."""

    def __init__(self, rig: DaemonRig, key: Path, address: str, tab: Page, watch: Prometheus) -> None:
        self.rig, self.key, self.address, self.tab, self.watch = rig, key, address, tab, watch

    def token(self, user: str, lifespan_s: int = 7200) -> str:
        """One that slurmctld itself has made."""
        said = self.rig.ctl("scontrol", "token", f"username={user}", f"lifespan={lifespan_s}")
        return said.removeprefix("SLURM_JWT=")

    def knock(self, token: str) -> None:
        """Show a token at the page's door."""
        self.tab.call("Network.clearBrowserCookies")
        self.tab.visit(self.address)
        self.tab.await_js('!document.getElementById("login").hidden')
        self.tab.js(
            f'document.getElementById("token").value = {json.dumps(token)};'
            'document.getElementById("login").requestSubmit()'
        )

    def enter(self, user: str) -> None:
        """Begin anew as this user."""
        self.knock(self.token(user))
        self.tab.await_js('!document.getElementById("inside").hidden')

    def says(self, words: str) -> None:
        """Wait until the page says this."""
        self.rig.until(
            lambda: self.tab.js(f"{_TEXT}.includes({json.dumps(words)})"),
            _PATIENCE_S,
            f"{words!r} on the page, which says {self.tab.js(_TEXT)!r}",
        )

    def explain(self, subject: str) -> str:
        """Ask for this; what stands beside the picture then."""
        self.tab.js(
            f'document.getElementById("subject").value = "{subject}";'
            'document.getElementById("why").replaceChildren();'
            'document.getElementById("ask").requestSubmit()'
        )
        return str(self.tab.await_js('document.getElementById("why").innerText'))

    def picture(self, name: str, *, whole: bool = False) -> None:
        """Keep what is seen, where somebody wants pictures."""
        if folder := os.environ.get("BACKFILL_PICTURES"):
            self.tab.drawn()
            self.tab.picture(Path(folder, f"{name}.png"), whole=whole)


@contextmanager
def _web(sock: Path) -> Iterator[int]:
    """`backfill web` as one starts it; its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    command = [sys.executable, "-m", "backfill", "web", "--listen", f"127.0.0.1:{port}", "--rate", "1000"]
    process = subprocess.Popen([*command, "--socket", str(sock)], cwd=_ROOT)
    try:
        assert wait_until(lambda: _answers(port), _PATIENCE_S)
        yield port
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def scene(open_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    key = open_path / "jwt_hs256.key"
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(32))
    shutil.chown(key, SLURM_USER)
    jwt_conf = ("AuthAltTypes=auth/jwt", f"AuthAltParameters=jwt_key={key}")
    with daemon_lab("page", extra_conf=jwt_conf) as rig:
        scenario = tmp_path_factory.mktemp("scenario") / "first_day.yaml"
        scenario.write_text(patient_first_day())
        keys = load_scenario(scenario).policy_keys
        access = {"reader": {"users": [READER]}, "operator": {"users": [OPERATOR]}}
        rig.start(**{**keys, "daemon": {"tokens": {"jwt_key": str(key)}}, "access": access})
        with (
            _web(rig.lab.daemon_socket) as port,
            prometheus(tmp_path_factory.mktemp("prometheus"), port) as watch,
            page(tmp_path_factory.mktemp("browser")) as tab,
        ):
            tab.size(1400, 1000)
            yield Scene(rig, key, f"http://127.0.0.1:{port}/", tab, watch)


class Playing(threading.Thread):
    """The demo's own scenario on the lab, while somebody looks."""

    def __init__(self, rig: DaemonRig, scenario: Path) -> None:
        super().__init__(name="demo")
        self._rig, self._scenario = rig, load_scenario(scenario)
        self.outcome: Outcome | None = None

    def run(self) -> None:
        stage = LabStage(self._rig.lab, self._scenario.count_every_s)
        try:
            self.outcome = play(self._scenario, stage)
        finally:
            stage.close()


def test_the_demo_happens_on_the_page_while_it_runs(scene: Scene, tmp_path: Path) -> None:
    """Each stage of the main job is drawn before the demo is over, and the click says what `explain` says."""
    file = tmp_path / "first_day.yaml"
    file.write_text(patient_first_day())
    scene.enter(READER)
    playing = Playing(scene.rig, file)
    playing.start()
    seen: dict[str, float] = {}
    told: dict[str, Any] = {}
    while playing.is_alive():
        for look in scene.tab.js(_LOOKS):
            seen.setdefault(look, time.time())
        if "stands still in memory" in seen and not told:
            told = scene.rig.ask("explain", subject="vn1")
            shown = scene.explain("vn1")
            # What happened between the two looks is more; what the daemon said is all there.
            assert told["story"][-1]["text"] in shown
            scene.picture("page_demo")
        time.sleep(0.2)
    playing.join()
    assert playing.outcome is not None
    verdicts = [v.text for v in playing.outcome.verdicts if not v.ok]
    assert verdicts == [], scene.rig.picture()
    assert set(seen) >= _MAIN_JOB
    assert seen["booting"] <= seen["at work on an instance"] <= seen["evicting"] <= seen["moving"]
    assert max(seen[look] for look in _MAIN_JOB) < playing.outcome.end_s
    said = scene.rig.backfill("explain", "vn1", "--lines", "1000").splitlines()
    shown = scene.explain("vn1")
    assert all(line["text"] in shown for line in scene.rig.ask("explain", subject="vn1")["story"])
    assert any(told["story"][-1]["text"] in line for line in said)
    scene.picture("page_demo_over")


def test_a_prometheus_that_scrapes_it_has_data_for_the_whole_board(scene: Scene) -> None:
    """What the demo did is in it: evictions, a return, and cores that worked on instances.

    When it is over no instance is left, so that what counts is what each query gave on the way.
    """
    for what in ("evictions", "returns", "harvested_core_seconds"):
        scene.watch.await_value(f"sum(backfill_{what}_total)", 1)
    given = "count_over_time(({})[15m:2s])"
    assert [query for query in queries() if not scene.watch.value(given.format(query))] == []
    scene.watch.await_value("sum(increase(backfill_evictions_total[15m]))", 1)


def test_an_operator_evicts_on_the_page_and_the_guest_stands_still(scene: Scene) -> None:
    """A reader has no button, and what they would send is refused; after it the job goes on."""
    rig = scene.rig
    rig.restart(**{**rig.changes, "ladder": [PAUSE], "scale": {"idle_s": 600}})
    job = rig.low()
    node, host = rig.where(job)
    scene.enter(READER)
    assert f"{node} is ready on {host}" in scene.explain(node)
    assert "Evict" not in scene.tab.js(_TEXT)
    refused = scene.tab.js(
        'fetch("/api/v1/me").then((me) => me.json()).then((me) =>'
        'fetch("/api/v1/evictions", {method: "POST", headers: {"Content-Type": "application/json",'
        f'"X-CSRF-Token": me.csrf}}, body: \'{{"subject": "{host}"}}\'}}))'
        ".then((reply) => reply.status)"
    )
    assert refused == 403
    assert rig.instances()[node] == (host, "running")
    scene.enter(OPERATOR)
    scene.explain(host)
    scene.tab.js(
        'document.getElementById("reason").value = "new memory";'
        'document.querySelector("#why form").requestSubmit()'
    )
    scene.says(f"{host}: closed; what is there is pushed aside")
    scene.says("new memory")
    rig.becomes(node, "parked")
    scene.says("parked")
    assert rig.virsh(host, "domstate", node).split() == ["paused"]
    scene.picture("page")
    scene.tab.size(390, 844, dark=True)
    scene.picture("page_dark_phone")
    scene.tab.size(1400, 1000)
    scene.explain(host)
    scene.tab.js(
        "[...document.querySelectorAll('#why button')].find((b) => b.textContent === 'Open again').click()"
    )
    scene.says(f"{host}: open again")
    rig.becomes(node, "ready")
    rig.counting(job)
    audit = (rig.lab.dir / "daemon/audit.log").read_text().splitlines()
    acts = [(e["user"], e["what"], e["result"]) for e in map(json.loads, audit) if e["what"] == "evict"]
    assert acts[0][:2] == (READER, "evict")
    assert acts[0][2].startswith("refused: ")
    assert acts[1:] == [(OPERATOR, "evict", "begun"), (OPERATOR, "evict", "ok")] * 2
    rig.finish(job)


def test_a_token_that_is_not_to_be_believed_stays_outside(scene: Scene) -> None:
    """Each in one sentence, on the page; the good ones and those that expire are slurmctld's own."""
    now, key = int(time.time()), scene.key.read_bytes()

    def made(secret: bytes | str = key, algorithm: str = "HS256", **claims: object) -> str:
        return jwt.encode({"exp": now + 600, "iat": now, "sun": OPERATOR, **claims}, secret, algorithm)

    short = scene.token(OPERATOR, lifespan_s=5)
    until_s = jwt.decode(short, options={"verify_signature": False})["exp"]
    scene.rig.until(lambda: time.time() > until_s + 3, what="the end of a token")
    for token, why in (
        (short, "it has expired"),
        (made(secrets.token_bytes(32)), "it is not signed with this cluster's key"),
        (made()[:-4] + "AAAA", "it is not signed with this cluster's key"),
        (made("", "none"), "its algorithm 'none' is none of this cluster's"),
        (made(iat=now + 300), "it was issued in the future; see to this machine's clock and the issuer's"),
        ("nonsense", "it cannot be read"),
    ):
        scene.knock(token)
        scene.says(why)
        said = scene.tab.js('document.getElementById("message").textContent')
        assert "\n" not in said
        assert said.count(". ") == 0
        assert scene.tab.js('document.getElementById("inside").hidden')
    scene.picture("page_refused")
    scene.knock(made())
    scene.tab.await_js('!document.getElementById("inside").hidden')


def test_what_slurm_keeps_private_the_page_keeps_too(scene: Scene) -> None:
    """slurmctld's own PrivateData=jobs, taken up while the daemon runs; owner and operators see it."""
    rig = scene.rig
    scene.enter(READER)
    scene.tab.await_js('!document.getElementById("lines-part").hidden')
    # 22.05 shows a dynamic node ALLOCATED for ever that had a job while it was configured anew.
    rig.until(lambda: not rig.ctl("squeue", "-h"), what="the end of all jobs")
    conf, token = rig.lab.slurm_conf, scene.token(READER)
    before = conf.read_text()
    conf.write_text(f"{before}PrivateData=jobs\n")
    try:
        rig.ctl("scontrol", "reconfigure")
        rig.until(lambda: _hidden(scene, token) == ["jobs"], what="the daemon's reading of PrivateData")
        job = rig.low()
        node, _ = rig.where(job)
        # Slurm itself shows it to nobody else.
        nobody = rig.lab.run("ctl", ["squeue", "-h"], user="nobody")
        assert nobody.stdout == "", nobody.stdout
        scene.enter(READER)
        scene.tab.await_js('document.querySelectorAll("#nodes tbody tr").length > 0')
        assert scene.tab.js('document.getElementById("lines-part").hidden')
        assert f"'{job}' is no node, host, job or fleet that was ever seen" in scene.explain(job)
        paths = ("status", "hosts", "nodes", "instances", "fleets", "mine", "harvest", f"explain/{node}")
        for path in paths:
            told = scene.tab.js(f'fetch("/api/v1/{path}").then((reply) => reply.text())')
            assert f'"{job}"' not in told, path
            assert f"job {job} " not in told, path
            assert f'"{JOB_USER}"' not in told, path
        for path in ("events", "plan", "timeline", f"explain/{job}"):
            status = scene.tab.js(f'fetch("/api/v1/{path}").then((reply) => reply.status)')
            assert status in (403, 404), path
        scene.enter(JOB_USER)
        scene.says("My jobs")
        scene.tab.await_js(f'document.getElementById("mine").innerText.includes("{job}")')
        scene.enter(OPERATOR)
        scene.tab.await_js(f'document.getElementById("nodes").innerText.includes("{job}")')
        rig.finish(job)
    finally:
        conf.write_text(before)
        rig.ctl("scontrol", "reconfigure")
    rig.until(lambda: _hidden(scene, token) == [], what="the end of it")


def _hidden(scene: Scene, token: str) -> list[str]:
    """What is kept from the one who shows this token."""
    return list(scene.rig.ask("whoami", **{"as": {"token": token}}, address="127.0.0.1")["hidden"])
