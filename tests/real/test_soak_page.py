"""The pages of replays in a real browser: drawn whole, quiet, and they follow mouse and keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backfill.sim.traces.models import lublin
from backfill.sim.traces.swf import swf_lines
from backfill.ui.cli import main as command
from backfill.ui.commands.replay import main
from tests.component.replay_files import KILL, LIMITS, SMALL, replayed, written
from tests.real.browser import NoBrowserError, Page, browser, page
from tests.unit.policy_files import text

pytestmark = [pytest.mark.real, pytest.mark.soak]
_AXIS = 22  # height of the axis above the lanes, as in timelines.js
# One row of pixels in the middle of each lane: whether anything there has a colour.
_ROWS = """((id, lanes) => {
  const c = document.getElementById(id), g = c.getContext("2d");
  const tall = Math.min(20, (c.clientHeight - TOP) / lanes), ratio = devicePixelRatio;
  return Array.from({ length: lanes }, (_, n) => {
    const y = Math.floor((TOP + (n + 0.5) * tall) * ratio), from = Math.floor(c.width * 0.12);
    const d = g.getImageData(from, y, c.width - from, 1).data;
    for (let i = 0; i < d.length; i += 4)
      if (Math.max(d[i], d[i + 1], d[i + 2]) - Math.min(d[i], d[i + 1], d[i + 2]) > 15) return true;
    return false;
  });
})""".replace("TOP", str(_AXIS))
_PICTURE = 'document.getElementById("chart0").toDataURL()'
_TOLD = 'document.getElementById("said").textContent'
_TIP = '(t => t.style.display === "block" ? t.textContent : "")(document.getElementById("tip"))'


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with page(tmp_path_factory.mktemp("browser")) as made:
        yield made


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two policies, two hosts, three visitors and 40 grid jobs."""
    files = written(tmp_path_factory.mktemp("small"))
    out = files / "page.html"
    options = ("--backlog", "htc:1:40", "--against", str(files / "kill.yaml"))
    assert replayed(files, *options, "--report", str(out)) == 0
    return out


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More than 50,000 rectangles."""
    where = tmp_path_factory.mktemp("large")
    (where / "t.swf").write_text("".join(swf_lines(lublin(1, 6000, 64, 0.7), ())))
    (where / "a.yaml").write_text(text(LIMITS, instances=SMALL))
    (where / "b.yaml").write_text(text(LIMITS, KILL, instances=SMALL))
    policies = ["--policy", str(where / "a.yaml"), "--against", str(where / "b.yaml")]
    out = where / "page.html"
    assert main([str(where / "t.swf"), "--cluster", "64x1", *policies, "--report", str(out)]) == 0
    return out


def _data(file: Path) -> Any:
    return json.loads(file.read_text().split('id="data">')[1].split("</script>")[0])


def _opened(tab: Page, file: Path) -> Any:
    """Load it, and look at the first chart in a window of usual size."""
    tab.console.clear()
    tab.asked.clear()
    tab.size(1400, 900)
    tab.open(file)
    tab.js('document.getElementById("chart0").scrollIntoView()')
    tab.drawn()
    return _data(file)


def _box(tab: Page) -> tuple[float, float, float, float]:
    """Left, top, width and height of the first chart in the window."""
    left, top, width, height = tab.js(
        '(b => [b.left, b.top, b.width, b.height])(document.getElementById("chart0").getBoundingClientRect())'
    )
    return left, top, width, height


def _found(tab: Page, data: Any, lane: int, what: str) -> tuple[float, float]:
    """Where on a lane the hint tells of `what`: the mouse goes along it until it does."""
    left, top, width, height = _box(tab)
    lanes = sum(depth for _, depth in data["runs"][0]["rows"])
    y = top + _AXIS + (lane + 0.5) * min(20, (height - _AXIS) / lanes)
    for x in range(int(left) + 60, int(left + width), 2):
        tab.mouse("mouseMoved", x, y)
        if what in tab.js(_TIP):
            return float(x), y
    raise AssertionError(f"no hint on lane {lane} tells of {what}")


def test_without_a_browser_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoBrowserError, match="make setup-browser"):
        browser()


@pytest.mark.parametrize("which", ["small", "large"])
def test_every_lane_is_drawn_without_a_word_to_the_console(
    tab: Page, which: str, request: pytest.FixtureRequest
) -> None:
    """And nothing but the file itself is asked for, from nobody."""
    file: Path = request.getfixturevalue(which)
    data = _opened(tab, file)
    assert tab.console == []
    assert tab.asked == [file.as_uri()]
    for number, run in enumerate(data["runs"]):
        tab.js(f'document.getElementById("chart{number}").scrollIntoView()')
        tab.drawn()
        lanes = sum(depth for _, depth in run["rows"])
        used = set(run["spans"][::5])
        shown = tab.js(f'{_ROWS}("chart{number}", {lanes})')
        assert [n for n in range(lanes) if shown[n] != (n in used)] == []
    if which == "large":
        assert sum(len(run["spans"]) for run in data["runs"]) > 5 * 50_000


def test_a_hint_and_a_click_tell_of_a_job(tab: Page, small: Path) -> None:
    """The hint names host, job, when and how long; a click shows it wherever it was."""
    data = _opened(tab, small)
    x, y = _found(tab, data, 0, "high-priority job 2:")
    assert tab.js(_TIP).startswith("bm1\nhigh-priority job 2: from ")
    before = tab.js(_PICTURE)
    for what in ("mousePressed", "mouseReleased"):
        tab.mouse(what, x, y, button="left", clickCount=1)
    tab.drawn()
    assert "high-priority job 2 | pause.yaml: 2 stretches" in tab.js(_TOLD)
    assert "on bm1, bm2 | kill.yaml: 2 stretches" in tab.js(_TOLD)
    assert tab.js(_PICTURE) != before
    tab.key("Escape")
    tab.drawn()
    assert (tab.js(_TOLD), tab.js(_PICTURE)) == ("", before)


def test_a_name_that_is_typed_is_found(tab: Page, small: Path) -> None:
    """One that does not occur is named."""
    _opened(tab, small)
    typed = 'f => { const box = document.getElementById("find"); box.value = f; '
    typed = f'({typed} box.dispatchEvent(new Event("change")); }})'
    tab.js(f'{typed}("vn1")')
    assert tab.js(_TOLD).startswith("instance vn1 | pause.yaml: ")
    tab.js(f'{typed}("nobody")')
    assert tab.js(_TOLD) == "there is no job or instance called nobody"


@pytest.mark.parametrize("which", ["small", "large"])
def test_wheel_mouse_and_keys_move_the_view(tab: Page, which: str, request: pytest.FixtureRequest) -> None:
    """`all` shows again what was there at first, to the pixel."""
    _opened(tab, request.getfixturevalue(which))
    left, top, width, height = _box(tab)
    x, y = left + width / 2, top + height / 2
    pictures = [tab.js(_PICTURE)]
    for _ in range(3):
        tab.mouse("mouseWheel", x, y, deltaX=0, deltaY=-100)
    tab.drawn()
    pictures.append(tab.js(_PICTURE))
    tab.mouse("mousePressed", x, y, button="left", clickCount=1)
    tab.mouse("mouseMoved", x - 200, y, button="left")
    tab.mouse("mouseReleased", x - 200, y, button="left", clickCount=1)
    tab.drawn()
    pictures.append(tab.js(_PICTURE))
    for key in ("ArrowRight", "+"):
        tab.key(key)
        tab.drawn()
        pictures.append(tab.js(_PICTURE))
    assert len(set(pictures)) == 5
    tab.js('document.getElementById("all").click()')
    tab.drawn()
    assert tab.js(_PICTURE) == pictures[0]
    assert tab.console == []


def test_at_night_on_a_telephone_and_on_paper(tab: Page, small: Path, tmp_path: Path) -> None:
    """The canvas follows the colours; no side is wider than a narrow window; paper is light."""
    _opened(tab, small)
    corner = 'Array.from(document.getElementById("chart0").getContext("2d")'
    corner += ".getImageData(1, 1, 1, 1).data)"
    assert tab.js(corner) == [255, 255, 255, 255]
    tab.size(480, 900, dark=True)
    tab.js('document.getElementById("chart0").scrollIntoView()')
    tab.drawn()
    assert tab.js(corner) == [18, 23, 29, 255]
    assert tab.js("document.documentElement.scrollWidth") <= 480
    tab.js("dispatchEvent(new Event('beforeprint'))")
    assert tab.js(corner) == [255, 255, 255, 255]
    tab.js("dispatchEvent(new Event('afterprint'))")
    assert tab.js(corner) == [18, 23, 29, 255]
    tab.printed(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
    # Of being looked at pixel by pixel, which is our own doing, the browser does complain.
    assert [text for text in tab.console if "readback" not in text] == []


def test_the_page_of_a_scenario(tab: Page, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is quiet, asks for nothing, and lies within its window and its paper."""
    out = tmp_path / "first_day.html"
    assert command(["replay", "first_day", "--report", str(out)]) == 0
    assert str(out) in capsys.readouterr().out
    tab.console.clear()
    tab.asked.clear()
    tab.size(480, 900)
    tab.open(out)
    assert tab.js("document.documentElement.scrollWidth") <= 480
    tab.size(800, 900)
    tab.call("Emulation.setEmulatedMedia", media="print")
    wide = "Math.max(...Array.from(document.querySelectorAll('svg, table'), "
    assert tab.js(f"{wide} e => e.getBoundingClientRect().right))") <= 800
    tab.call("Emulation.setEmulatedMedia", media="")
    assert tab.console == []
    assert tab.asked == [out.as_uri()]
