"""The live page in a real browser: what happens is seen there, the click says why, and roles hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from backfill.core.model.lifecycle import Phase
from backfill.ports.storage import Record
from backfill.ui.client import Client
from backfill.ui.web import answers
from tests.component.living_daemon import LivingDaemon, living, parked
from tests.component.web_service import ADA, BO, CY, DI, Names, served, with_roles
from tests.real.browser import Page, page

pytestmark = [pytest.mark.real, pytest.mark.soak]
_AXE = Path(str(files("axe_core_python") / "axe.min.js"))
_TEXT = "document.body.innerText"
_BAD = """axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}).then((found) =>
  found.violations.map((one) => one.id + ": " + one.nodes.map((n) => n.html.slice(0, 150)).join(" | ")))"""


class Scene:
    """A daemon at work, its page, and a browser that looks at it."""

    def __init__(self, daemon: LivingDaemon, port: int, tab: Page) -> None:
        self.daemon, self.tab, self.address = daemon, tab, f"http://127.0.0.1:{port}/"

    def enter(self, user: str) -> None:
        """Begin anew as this user."""
        self.tab.visit("about:blank")  # the page of the last one would load itself anew meanwhile
        self.tab.call("Network.clearBrowserCookies")
        self.tab.console.clear()
        self.tab.asked.clear()
        self.tab.visit(self.address)
        self.tab.await_js('!document.getElementById("login").hidden')
        self.tab.js(
            f'document.getElementById("token").value = "{user}";'
            'document.getElementById("login").requestSubmit()'
        )
        if user in (ADA, BO, CY, DI):
            self.tab.await_js('!document.getElementById("inside").hidden')

    def says(self, words: str) -> None:
        """Wait until the page says this."""
        self.tab.await_js(f"{_TEXT}.includes({json.dumps(words)})")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with (
        living(tmp_path_factory.mktemp("daemon"), with_roles(), tokens=Names()) as daemon,
        served(daemon.socket) as port,
        page(tmp_path_factory.mktemp("browser")) as tab,
    ):
        tab.size(1400, 1000)
        yield Scene(daemon, port, tab)


@pytest.fixture(scope="module")
def high(scene: Scene) -> str:
    """The main job happens while somebody looks; the id of the job that pushed the instance aside."""
    scene.enter(CY)
    return parked(scene.daemon)[1]


def test_the_main_job_is_seen_while_it_happens(scene: Scene, high: str) -> None:
    """An instance comes to work, is pushed aside for a job, and the click says what `explain` says."""
    scene.says("1 parked")
    scene.says(f"given to {high}")
    scene.tab.await_js('document.querySelectorAll("#legend span").length > 10')
    data: Any = scene.tab.js('fetch("/api/v1/timeline").then((reply) => reply.json())')
    answers.TimelineAnswer.model_validate(data)
    looks = {data["looks"][look][0] for look in data["runs"][0]["spans"][3::5]}
    assert {"job on bare metal", "job on an instance", "booting", "stands still in memory"} <= looks
    scene.tab.await_js(
        "[...document.querySelectorAll('#nodes button')].some((one) => one.textContent === 'vn1')"
    )
    scene.tab.js(
        "[...document.querySelectorAll('#nodes button')].find((one) => one.textContent === 'vn1').click()"
    )
    told = Client(str(scene.daemon.socket)).ask("explain", subject="vn1")
    scene.says(told["node"]["reason"])
    scene.says(told["story"][-1]["text"])
    scene.says("; click again for news")  # it stays as it is, while the rest of the page goes on
    assert _complaints(scene) == []


@pytest.mark.usefixtures("high")
def test_the_picture_is_drawn_and_a_click_on_it_explains(scene: Scene) -> None:
    """Somewhere on the canvas there is colour, and what lies there is explained."""
    scene.enter(CY)
    scene.tab.await_js('document.querySelectorAll("#legend span").length > 10')
    box = (
        '(b => [b.left, b.top, b.width, b.height])(document.getElementById("chart0").getBoundingClientRect())'
    )
    scene.tab.js('document.getElementById("chart0").scrollIntoView()')
    scene.tab.drawn()
    left, top, width, _ = scene.tab.js(box)
    middle = top + 22 + 2 * 20 + 8  # the third lane: below bm1's job and its instance; its job runs all along
    tip = '(t => t.style.display === "block" ? t.textContent : "")(document.getElementById("tip"))'
    for x in range(int(left + width) - 20, int(left) + 60, -4):
        scene.tab.mouse("mouseMoved", x, middle)
        if scene.tab.js(tip):
            break
    else:
        raise AssertionError("nothing lies on the lane of bm2")
    for what in ("mousePressed", "mouseReleased"):
        scene.tab.mouse(what, x, middle, button="left", clickCount=1)
    scene.says("Its story")


def test_what_was_asked_for_last_stays_although_another_answer_comes_later(scene: Scene) -> None:
    """Else the button beside it would evict what somebody had looked at before."""
    scene.enter(BO)
    scene.tab.js(
        "window.slow = new Promise((go) => { window.go = go; }); window.quick = window.fetch;"
        'window.fetch = async (path, how) => { if (path.endsWith("/bm1")) await window.slow;'
        "const reply = await window.quick(path, how);"
        'if (path.endsWith("/bm1")) setTimeout(() => { window.late = true; }, 100); return reply; }; 0'
    )
    for name in ("bm1", "bm2"):
        scene.tab.js(
            f'document.getElementById("subject").value = "{name}";'
            'document.getElementById("ask").requestSubmit()'
        )
    scene.tab.await_js('document.querySelector("#why h3")?.textContent === "bm2"')
    scene.tab.js("window.go(); 0")
    scene.tab.await_js("window.late === true")
    assert scene.tab.js('document.querySelector("#why h3").textContent') == "bm2"


def test_an_operator_evicts_and_sees_it_and_a_reader_cannot(scene: Scene) -> None:
    """A reader's page has no such button, and what it would send is refused all the same."""
    scene.enter(CY)
    _explain(scene, "bm2")
    assert "Evict" not in scene.tab.js(_TEXT)
    refused = scene.tab.js(
        'fetch("/api/v1/me").then((me) => me.json()).then((me) =>'
        'fetch("/api/v1/evictions", {method: "POST", headers: {"Content-Type": "application/json",'
        '"X-CSRF-Token": me.csrf}, body: \'{"subject": "bm2"}\'}))'
        ".then((reply) => reply.status)"
    )
    assert refused == 403
    scene.enter(BO)
    scene.tab.js("sessionStorage.clear()")
    scene.tab.visit(scene.address)  # as a second tab is: it has the cookie, and saw no login
    scene.tab.await_js('!document.getElementById("inside").hidden')
    _explain(scene, "bm2")
    scene.says("Evict")
    scene.tab.js('document.getElementById("reason").value = "new memory"')
    scene.tab.js('document.querySelector("#why form").requestSubmit()')
    scene.says("bm2: closed; what is there is pushed aside")
    scene.says("closed: new memory")
    assert scene.daemon.daemon.world.closed == {"bm2": "new memory"}
    scene.tab.await_js("document.querySelector('#why form button').textContent === 'Open again'")
    scene.tab.js("document.querySelector('#why form button').click()")
    scene.says("bm2: open again")
    assert scene.daemon.daemon.world.closed == {}


def _complaints(scene: Scene) -> list[str]:
    """What the browser wrote down, but for that nobody was logged in at first."""
    return [line for line in scene.tab.console if "/api/v1/me" not in line]


def _explain(scene: Scene, subject: str) -> None:
    scene.tab.js(f'document.getElementById("subject").value = "{subject}"')
    scene.tab.js('document.getElementById("ask").requestSubmit()')
    scene.says("Its story")


def test_who_is_not_believed_stays_outside(scene: Scene) -> None:
    scene.enter("mallory")
    scene.says("it is not signed with this cluster's key")
    assert scene.tab.js('document.getElementById("inside").hidden')


def test_somebody_without_a_role_sees_their_own_jobs_alone(scene: Scene) -> None:
    scene.enter(DI)
    scene.says("none of your jobs is on an instance")
    assert scene.tab.js('document.getElementById("readers").hidden')


def test_a_policy_file_is_checked_on_the_page(scene: Scene) -> None:
    scene.enter(CY)
    scene.tab.js(
        'document.getElementById("text").value = "cluster: c\\nladdr: []\\n";'
        'document.getElementById("check").requestSubmit()'
    )
    scene.says("policy.yaml:2:1: laddr is not a known key; did you mean ladder?")


def test_a_policy_file_is_played_on_the_last_day_before_it_is_taken_over(scene: Scene) -> None:
    """By an operator: what was done stands beside both replays. A reader has no such button."""
    scene.enter(CY)
    assert scene.tab.js('document.getElementById("preview").hidden')
    scene.enter(BO)
    scene.tab.js('document.getElementById("text").value = "wrong: 1"')
    scene.tab.js('document.getElementById("preview").click()')
    scene.says("policy.yaml:1:1: wrong is not a known key")
    scene.tab.js('document.getElementById("text").value = "cluster: sim"')
    scene.tab.js('document.getElementById("preview").click()')
    scene.says("How far the first two columns are apart is how far the third may be trusted.")
    rows = scene.tab.js(
        "[...document.querySelectorAll('#preview-table tr')].map((row) => row.cells[1].textContent)"
    )
    assert rows[:3] == ["what was done", "4.00", "2.00"]


def test_a_moment_without_an_answer_does_not_end_a_preview(scene: Scene) -> None:
    """Its result was lost to the page then, and another one could not be begun meanwhile."""
    scene.enter(BO)
    scene.tab.js(
        "window.silent = 0; window.quick = window.fetch; window.fetch = async (path, how) => {"
        'if (!path.includes("previews/") || window.silent > 1) return window.quick(path, how);'
        'window.silent += 1; if (window.silent === 1) throw new TypeError("no network");'
        'return new Response(JSON.stringify({error: "it is too busy"}), {status: 503}); }; 0'
    )
    scene.tab.js('document.getElementById("text").value = "cluster: sim"')
    scene.tab.js('document.getElementById("preview").click()')
    scene.says("How far the first two columns are apart is how far the third may be trusted.")
    assert scene.tab.js("window.silent") == 2
    assert not scene.tab.js('document.getElementById("preview").disabled')


def test_the_harvest_is_seen_over_hours_and_days(scene: Scene) -> None:
    """Bars and the same numbers as a table; today's are in the tiles."""
    hour_s = scene.daemon.daemon.world.now_s // 3600 * 3600
    journal = scene.daemon.journal
    body: dict[str, object] = {"room": 7200.0, "metal": 3600.0, "worked": 1800.0, "lost": 360.0}
    journal.append(
        [Record(hour_s, "harvest", "harvest", {"hour_s": hour_s - 86_400.0 * day, **body}) for day in (0, 3)]
    )
    scene.daemon.daemon.harvest.recall(journal)
    scene.enter(CY)
    scene.says(
        "0.50 core hours were worked on instances in these 24 hours (50 % of what hosts' own jobs left)"
    )
    bars = "document.querySelectorAll('#harvest-picture rect').length"
    assert scene.tab.js(bars) == 4
    scene.tab.js('document.getElementById("by-day").click()')
    scene.says("1.00 core hours were worked on instances in these eight days")
    assert scene.tab.js(bars) == 8


@pytest.mark.parametrize(("width", "dark"), [(1400, False), (1400, True), (390, False)])
@pytest.mark.usefixtures("high")
def test_everybody_can_use_it(width: int, dark: bool, scene: Scene) -> None:
    """axe finds nothing, light and dark, on a telephone as well; nothing is wider than the window."""
    scene.enter(BO)
    scene.tab.size(width, 900, dark=dark)
    scene.tab.await_js('document.querySelectorAll("#hosts tbody tr").length === 2')
    _explain(scene, "vn1")
    scene.tab.js('document.querySelectorAll("details").forEach((one) => { one.open = true; })')
    # Our own rules let no foreign script in: this one comes by the browser's own door.
    scene.tab.js(_AXE.read_text(encoding="utf-8") + "; 1")
    assert scene.tab.js(_BAD) == []
    assert scene.tab.js("document.documentElement.scrollWidth <= innerWidth")
    scene.tab.size(1400, 1000)


def test_nothing_comes_from_elsewhere(scene: Scene) -> None:
    scene.enter(CY)
    scene.tab.await_js('document.querySelectorAll("#hosts tbody tr").length === 2')
    assert {address for address in scene.tab.asked if not address.startswith(scene.address)} <= {"data:,"}
    assert _complaints(scene) == []


@pytest.mark.usefixtures("high")
def test_it_goes_on_by_keys_and_the_session_ends(scene: Scene) -> None:
    """The picture moves by arrows; after leaving, the cookie is of no use, and nothing is left to see."""
    scene.enter(CY)
    scene.tab.await_js('document.querySelectorAll("#legend span").length > 10')
    picture = 'document.getElementById("chart0").toDataURL()'
    scene.tab.js('document.getElementById("chart0").focus()')
    before = scene.tab.js(picture)
    scene.tab.key("+")
    scene.tab.drawn()
    assert scene.tab.js(picture) != before
    _explain(scene, "vn1")
    with scene.tab.loading():
        scene.tab.js('document.getElementById("leave").click()')
    scene.tab.await_js('!document.getElementById("login").hidden')
    assert "vn1" not in scene.tab.js("document.body.textContent")
    assert scene.tab.js('document.getElementById("subject").value') == ""
    assert scene.tab.js('fetch("/api/v1/status").then((reply) => reply.status)') == 401
    assert scene.daemon.phase("vn1") is Phase.PARKED


def test_a_session_that_ends_leaves_nothing_to_see(scene: Scene) -> None:
    """Another tab has logged out, say. Whoever comes next begins with an empty page, and it stays one."""
    scene.enter(CY)
    scene.tab.await_js('document.querySelectorAll("#nodes tbody tr").length > 0')
    scene.tab.js('document.getElementById("text").value = "cluster: sim"')
    with scene.tab.loading():
        scene.tab.call("Network.clearBrowserCookies")
    scene.tab.await_js('!document.getElementById("login").hidden')
    assert scene.tab.js('document.querySelectorAll("#nodes tbody tr").length') == 0
    assert scene.tab.js('document.getElementById("text").value') == ""
    scene.enter(BO)
    scene.says("Log out")


def test_where_slurm_keeps_jobs_private_a_reader_sees_what_is_left(tmp_path: Path) -> None:
    """No timelines and no plan of everybody's jobs; one's own, hosts and nodes are there."""
    with (
        living(tmp_path, with_roles(), tokens=Names(), private="jobs") as daemon,
        served(daemon.socket) as port,
        page(tmp_path / "browser") as tab,
    ):
        _, high = parked(daemon, low_user=CY, high_user=ADA)
        scene = Scene(daemon, port, tab)
        scene.enter(CY)
        scene.tab.await_js('document.querySelectorAll("#nodes tbody tr").length === 1')
        assert scene.tab.js('document.getElementById("lines-part").hidden')
        assert scene.tab.js('document.querySelector("#hosts tbody tr").cells[2].textContent') == ""
        scene.says("another's job")
        scene.enter(BO)
        scene.tab.await_js('document.querySelectorAll("#nodes tbody tr").length === 1')
        assert scene.tab.js('document.querySelector("#hosts tbody tr").cells[2].textContent') == high
        assert not scene.tab.js('document.getElementById("lines-part").hidden')


def test_what_is_in_trouble_stands_on_top(tmp_path: Path) -> None:
    """A daemon that may only give hosts back says so there; where nothing is booked there are no bars."""
    with (
        living(tmp_path, with_roles(), tokens=Names()) as daemon,
        served(daemon.socket) as port,
        page(tmp_path / "browser") as tab,
    ):
        scene = Scene(daemon, port, tab)
        scene.enter(CY)
        scene.says("nothing is booked yet")
        assert tab.js('getComputedStyle(document.getElementById("harvest-picture")).display') == "none"
        assert tab.js('document.getElementById("trouble-part").hidden')
        daemon.journal.full = True
        daemon.sim.submit("htc", 10.0)
        daemon.until(lambda: bool(daemon.daemon.world.barred))
        tab.await_js('document.getElementById("trouble").innerText.includes("database or disk is full")')
