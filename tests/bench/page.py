"""How fluid the timelines of a replay are in a browser, by how many rectangles they have.

The view is dragged back and forth and zoomed, once per frame: all of it, and an eighth. The
browser draws in software, since there is no graphics card here. Prints one line of JSON last:
milliseconds per frame (medians and 95 %), and medians as a ratio to the 16.7 ms of 60 per second.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median, quantiles

from backfill.sim.traces.models import lublin
from backfill.sim.traces.swf import swf_lines
from backfill.ui.commands.replay import main
from tests.bench.rig import result
from tests.component.replay_files import KILL, LIMITS, SMALL
from tests.real.browser import Page, page
from tests.unit.policy_files import text

_JOBS = {"50k": 2100, "200k": 8400}
BUDGET_MS = 1000 / 60
DRIVE = """(async (kind, count) => {
  const c = document.getElementById("chart0"), b = c.getBoundingClientRect(), times = [];
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const tell = (Kind, type, more) => c.dispatchEvent(new Kind(type, { bubbles: true,
    cancelable: true, clientX: b.left + b.width / 2, clientY: b.top + 100, ...more }));
  if (kind === "pan") tell(PointerEvent, "pointerdown");
  let last = await frame();
  for (let i = 0; i < count; i++) {
    if (kind === "pan") tell(PointerEvent, "pointermove",
      { clientX: b.left + b.width / 2 + 40 * Math.sin(i / 5) });
    else tell(WheelEvent, "wheel", { deltaY: Math.sin(i / 8) > 0 ? -100 : 100 });
    const now = await frame();
    times.push(now - last);
    last = now;
  }
  if (kind === "pan") tell(PointerEvent, "pointerup");
  return times;
})"""


def measured() -> dict[str, object]:
    """All figures by name."""
    found: dict[str, object] = {}
    with tempfile.TemporaryDirectory() as folder, page(Path(folder) / "browser") as tab:
        for name, jobs in _JOBS.items():
            file, rectangles = _written(Path(folder), jobs)
            found[f"rectangles_{name}"] = rectangles
            tab.size(1400, 900)
            tab.open(file)
            tab.js('document.getElementById("chart0").scrollIntoView()')
            tab.drawn()
            found |= _moved(tab, f"{name}_all")
            tab.js('for (let i = 0; i < 3; i++) document.getElementById("in").click()')
            tab.drawn()
            found |= _moved(tab, f"{name}_eighth")
    return found


def _written(folder: Path, jobs: int) -> tuple[Path, int]:
    """A page about two policies, and how many rectangles it has."""
    (folder / "t.swf").write_text("".join(swf_lines(lublin(1, jobs, 128, 0.7), ())))
    (folder / "a.yaml").write_text(text(LIMITS, instances=SMALL))
    (folder / "b.yaml").write_text(text(LIMITS, KILL, instances=SMALL))
    out = folder / f"{jobs}.html"
    command = [str(folder / "t.swf"), "--cluster", "128x1", "--report", str(out)]
    main([*command, "--policy", str(folder / "a.yaml"), "--against", str(folder / "b.yaml")])
    spans = out.read_text().split('"spans":[')[1:]
    return out, sum((part.split("]")[0].count(",") + 1) // 5 for part in spans)


def _moved(tab: Page, name: str) -> dict[str, object]:
    found: dict[str, object] = {}
    for kind in ("pan", "zoom"):
        times = tab.js(f'{DRIVE}("{kind}", 120)')
        found[f"{name}_{kind}_ms"] = round(median(times), 1)
        found[f"{name}_{kind}_p95_ms"] = round(quantiles(times, n=20)[-1], 1)
        found[f"{name}_{kind}_ratio"] = round(median(times) / BUDGET_MS, 2)
    return found


if __name__ == "__main__":
    result(**measured())
