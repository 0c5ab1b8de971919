"use strict";
// Draws the timelines: one canvas per policy, one view for all. Only what is visible is drawn, and
// what is narrower than a pixel is drawn once per pixel, so that the number of stretches hardly counts.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const LEFT = 110, TOP = 22, tip = document.getElementById("tip");
  const view = { from: 0, to: data.length_s, y: 0, lane: 0 };
  const charts = data.runs.map((run, i) => {
    const lanes = [];
    run.rows.forEach(([, depth], host) => { for (let k = 0; k < depth; k++) lanes.push({ host, first: k === 0, spans: [] }); });
    // Five numbers per stretch: lane, start, length (both in tenths of a second), look, name.
    for (let k = 0; k < run.spans.length; k += 5) lanes[run.spans[k]].spans.push(k);
    const canvas = document.getElementById("chart" + i);
    return { run, lanes, canvas, g: canvas.getContext("2d") };
  });
  const most = Math.max(1, ...charts.map((c) => c.lanes.length));
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const width = (c) => c.canvas.clientWidth - LEFT;
  const height = (c) => c.canvas.clientHeight - TOP;
  const fit = () => { view.from = 0; view.to = Math.max(1, data.length_s); view.y = 0; view.lane = Math.max(4, Math.min(18, height(charts[0]) / most)); };

  // The first stretch of a lane that ends after `at`; those of one lane and look do not overlap much.
  function first(run, spans, at) {
    let low = 0, high = spans.length;
    while (low < high) { const mid = (low + high) >> 1; if (run.ends[spans[mid] / 5] <= at) low = mid + 1; else high = mid; }
    return low;
  }
  // Running maxima of the ends, so that the search above is right although jobs lie in instances.
  charts.forEach(({ run, lanes }) => {
    run.ends = new Float64Array(run.spans.length / 5);
    lanes.forEach(({ spans }) => {
      let most = 0;
      spans.forEach((k) => { most = Math.max(most, run.spans[k + 1] + run.spans[k + 2]); run.ends[k / 5] = most; });
    });
  });

  function draw(c) {
    const ratio = window.devicePixelRatio || 1, w = c.canvas.clientWidth, h = c.canvas.clientHeight;
    if (c.canvas.width !== Math.round(w * ratio) || c.canvas.height !== Math.round(h * ratio)) {
      c.canvas.width = Math.round(w * ratio); c.canvas.height = Math.round(h * ratio);
    }
    const g = c.g, scale = width(c) / (view.to - view.from), run = c.run;
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, w, h);
    g.font = "11px system-ui, sans-serif"; g.textBaseline = "middle";
    grid(c, g, w, h, scale);
    g.save(); g.beginPath(); g.rect(0, TOP, w, h - TOP); g.clip();
    const begin = Math.max(0, Math.floor(view.y / view.lane)), end = Math.min(c.lanes.length, Math.ceil((view.y + h - TOP) / view.lane));
    for (let n = begin; n < end; n++) {
      const { host, first: top, spans } = c.lanes[n], y = TOP + n * view.lane - view.y;
      if (top) {
        g.fillStyle = css("--line"); g.fillRect(0, y, w, 1);
        if (view.lane * run.rows[host][1] >= 9) { g.fillStyle = css("--soft"); g.fillText(run.rows[host][0], 4, y + Math.max(6, view.lane / 2), LEFT - 8); }
      }
      const last = new Float64Array(data.looks.length).fill(-1);
      for (let i = first(run, spans, view.from * 10); i < spans.length; i++) {
        const k = spans[i], at = run.spans[k + 1] / 10, look = run.spans[k + 3];
        if (at > view.to) break;
        const x = LEFT + (at - view.from) * scale, right = x + (run.spans[k + 2] / 10) * scale;
        if (right < LEFT || right <= last[look]) continue; // that pixel shows this look already
        const x0 = Math.max(LEFT, x), wide = Math.max(1, right - x0), job = look < 2;
        last[look] = x0 + wide;
        g.fillStyle = data.looks[look][1];
        const inset = job && look === 1 ? Math.max(1, view.lane * 0.22) : 0.5;
        g.fillRect(x0, y + inset, wide, Math.max(1, view.lane - 2 * inset));
        if (job && wide > 40 && view.lane >= 12) { g.fillStyle = "#fff"; g.fillText(run.names[run.spans[k + 4]], x0 + 3, y + view.lane / 2, wide - 6); }
      }
    }
    g.restore();
  }

  const STEPS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 2592000, 31536000];
  function clock(s) {
    const d = Math.floor(s / 86400), t = [3600, 60, 1].map((u, i) => String(Math.floor((s % (i ? u * 60 : 86400)) / u)).padStart(2, "0"));
    return (d ? d + "d " : "") + t.join(":");
  }
  function grid(c, g, w, h, scale) {
    const step = STEPS.find((s) => s * scale > 90) || STEPS[STEPS.length - 1];
    for (let t = Math.ceil(view.from / step) * step; t <= view.to; t += step) {
      const x = LEFT + (t - view.from) * scale;
      g.fillStyle = css("--line"); g.fillRect(x, 0, 1, h);
      g.fillStyle = css("--soft"); g.fillText(clock(t), x + 3, TOP / 2);
    }
  }

  let asked = false;
  const redraw = () => { if (!asked) { asked = true; requestAnimationFrame(() => { asked = false; charts.forEach(draw); }); } };
  function clamp() {
    const span = Math.min(Math.max(view.to - view.from, 0.1), data.length_s * 1.5 + 1);
    const middle = Math.min(Math.max((view.from + view.to) / 2, 0), data.length_s);
    view.from = middle - span / 2; view.to = middle + span / 2;
    view.lane = Math.min(Math.max(view.lane, 2), 40);
    view.y = Math.max(0, Math.min(view.y, most * view.lane - height(charts[0])));
  }
  function zoom(c, x, factor) {
    const at = view.from + ((x - LEFT) / width(c)) * (view.to - view.from);
    view.from = at + (view.from - at) * factor; view.to = at + (view.to - at) * factor;
  }
  function hit(c, x, y) {
    const n = Math.floor((y - TOP + view.y) / view.lane), t = view.from + ((x - LEFT) / width(c)) * (view.to - view.from);
    if (y < TOP || x < LEFT || !c.lanes[n]) return "";
    const { run } = c, { host, spans } = c.lanes[n], found = [];
    for (let i = first(run, spans, t * 10); i < spans.length && run.spans[spans[i] + 1] / 10 <= t; i++) {
      const k = spans[i], a = run.spans[k + 1] / 10, d = run.spans[k + 2] / 10;
      if (a + d > t) found.push(`${data.looks[run.spans[k + 3]][0]} ${run.names[run.spans[k + 4]]}: ${clock(a)} for ${d.toFixed(1)} s`);
    }
    return found.length ? [run.rows[host][0], ...found].join("\n") : "";
  }
  charts.forEach((c) => {
    let held = null;
    c.canvas.addEventListener("wheel", (e) => {
      e.preventDefault();
      if (e.shiftKey) view.y += e.deltaY || e.deltaX; else if (e.ctrlKey || e.altKey) view.lane *= e.deltaY < 0 ? 1.15 : 1 / 1.15;
      else zoom(c, e.offsetX, e.deltaY < 0 ? 1 / 1.2 : 1.2);
      clamp(); redraw();
    }, { passive: false });
    c.canvas.addEventListener("pointerdown", (e) => { held = [e.clientX, e.clientY]; c.canvas.setPointerCapture(e.pointerId); });
    c.canvas.addEventListener("pointerup", () => { held = null; });
    c.canvas.addEventListener("pointerleave", () => { tip.style.display = "none"; });
    c.canvas.addEventListener("pointermove", (e) => {
      if (held) {
        const by = ((e.clientX - held[0]) / width(c)) * (view.to - view.from);
        view.from -= by; view.to -= by; view.y -= e.clientY - held[1]; held = [e.clientX, e.clientY];
        clamp(); redraw();
      }
      const text = hit(c, e.offsetX, e.offsetY);
      tip.textContent = text; tip.style.whiteSpace = "pre"; tip.style.display = text ? "block" : "none";
      tip.style.left = Math.min(e.clientX + 12, innerWidth - 320) + "px"; tip.style.top = e.clientY + 14 + "px";
    });
  });
  document.getElementById("all").addEventListener("click", () => { fit(); redraw(); });
  document.getElementById("in").addEventListener("click", () => { zoom(charts[0], LEFT + width(charts[0]) / 2, 0.5); clamp(); redraw(); });
  document.getElementById("out").addEventListener("click", () => { zoom(charts[0], LEFT + width(charts[0]) / 2, 2); clamp(); redraw(); });
  addEventListener("resize", redraw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  fit(); redraw();
})();
