"use strict";
// Draws the timelines of a replay, and of a daemon as they grow: one canvas per policy, one view for all. Only what is visible is drawn, and it
// is reckoned pixel by pixel, so that a browser without a graphics card is quick as well, and that
// many short stretches are as dark as they are long.
// `hooks.chosen(name)` hears of a click, `hooks.clock(seconds, step)` writes a time, `hooks.named(name)` says more of
// a job than its id. Returns `grow(data)`.
const timelines = (data, hooks = {}) => {
  const at = (id) => document.getElementById(id), tip = at("tip"), said = at("said"), find = at("find");
  const TOP = 22, MOST_TIP = 8, JOBS = 2; // looks below JOBS are jobs, this one is an instance that runs, then its other states
  const named = hooks.named || ((name) => name);
  const view = { from: 0, to: data.length_s, y: 0, lane: 0 };
  let left = 60, chosen = null, colours = {}, patterns = [];
  // Five numbers per stretch: lane, start, length (in tenths of a second), look, name
  const shape = (run) => {
    const lanes = run.rows.flatMap(([, depth], host) => Array.from({ length: depth }, (_, k) => ({ host, top: k === 0, layers: [[], []] })));
    for (let k = 0; k < run.spans.length; k += 5) lanes[run.spans[k]].layers[run.spans[k + 3] < JOBS ? 1 : 0].push(k);
    for (const lane of lanes) lane.layers = lane.layers.map((keys) => layer(run.spans, keys)); // jobs lie on their instances
    return { name: run.title, rows: run.rows, names: run.names, lanes };
  };
  const charts = data.runs.map((run, i) => {
    const canvas = at("chart" + i);
    return { ...shape(run), canvas, g: canvas.getContext("2d"), stale: true, pick: -1 };
  });
  function layer(spans, keys) {
    const n = keys.length, found = { n, from: new Int32Array(n), to: new Int32Array(n), most: new Int32Array(n), look: new Uint8Array(n), name: new Int32Array(n) };
    let most = 0;
    keys.forEach((k, i) => {
      found.from[i] = spans[k + 1]; found.to[i] = spans[k + 1] + spans[k + 2]; found.look[i] = spans[k + 3]; found.name[i] = spans[k + 4];
      found.most[i] = most = Math.max(most, found.to[i]); // of all so far, so that one can search
    });
    return found;
  }
  // The first stretch that may end after `time`, in tenths of a second.
  function first(layer, time) {
    let low = 0, high = layer.n;
    while (low < high) { const mid = (low + high) >> 1; if (layer.most[mid] <= time) low = mid + 1; else high = mid; }
    return low;
  }

  let most = 1;
  const count = () => { most = Math.max(1, ...charts.map((c) => c.lanes.length)); };
  count();
  const wide = (c) => Math.max(1, c.canvas.clientWidth - left), high = (c) => c.canvas.clientHeight - TOP;
  function measure() {
    const { g, canvas } = charts[0], room = Math.min(most <= 26 ? most * 20 : Math.max(520, most * 4), 640);
    g.font = "11px system-ui, sans-serif";
    const widest = Math.max(...data.runs[0].rows.map(([name]) => g.measureText(named(name)).width));
    left = Math.min(Math.max(40, widest + 12), Math.max(40, canvas.clientWidth * 0.3));
    for (const c of charts) c.canvas.parentNode.style.height = TOP + Math.max(48, room) + 2 + "px";
  }
  function fit() { view.from = 0; view.to = Math.max(1, data.length_s); view.y = 0; view.lane = Math.min(20, high(charts[0]) / most); clamp(); }
  // Colours; a pattern besides, since not everybody tells all colours apart
  function paint() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["ink", "soft", "line", "ground", "card"]) colours[name] = style.getPropertyValue("--" + name).trim();
    ["red", "green", "blue"].forEach((name, i) => { colours[name] = Float64Array.from(data.looks, ([, colour]) => rgb(colour)[i]); });
    colours.solid = Uint32Array.from(data.looks, ([, colour]) => pixel(...rgb(colour)));
    patterns = data.looks.map(([, , kind]) => kind ? charts[0].g.createPattern(tile(kind), "repeat") : null);
  }
  function rgb(colour) {
    const long = colour.length === 4 ? colour.replace(/[^#]/g, "$&$&") : colour;
    return [1, 3, 5].map((i) => parseInt(long.slice(i, i + 2), 16));
  }
  const pixel = (r, g, b) => 0xff000000 | (b << 16) | (g << 8) | r;
  function tile(kind) {
    const t = Object.assign(document.createElement("canvas"), { width: 6, height: 6 }), g = t.getContext("2d");
    g.fillStyle = g.strokeStyle = "rgba(27,36,48,.4)"; g.lineWidth = 1.4;
    if (kind === "dots") g.fillRect(1, 1, 2, 2);
    else for (const x of [-6, 0, 6]) { g.beginPath(); g.moveTo(x, kind === "rise" ? 6 : 0); g.lineTo(x + 6, kind === "rise" ? 0 : 6); g.stroke(); }
    return t;
  }

  function draw(c, ratio) {
    const w = c.canvas.clientWidth, h = c.canvas.clientHeight, g = c.g, scale = wide(c) / (view.to - view.from);
    for (const [side, size] of [["width", w], ["height", h]]) if (c.canvas[side] !== Math.round(size * ratio)) c.canvas[side] = Math.round(size * ratio);
    g.setTransform(ratio, 0, 0, ratio, 0, 0); g.globalAlpha = 1; g.fillStyle = colours.ground; g.fillRect(0, 0, w, h);
    g.font = "11px system-ui, sans-serif"; g.textBaseline = "middle";
    const begin = Math.max(0, Math.floor(view.y / view.lane)), end = Math.min(c.lanes.length, Math.ceil((view.y + h - TOP) / view.lane));
    hosts(c, g, w, begin, end);
    bitmap(c, ratio, begin, end);
    g.putImageData(c.image, Math.round(left * ratio), Math.round(TOP * ratio));
    grid(g, w, h, scale);
    g.save(); g.beginPath(); g.rect(left, TOP, w - left, h - TOP); g.clip();
    if (view.lane >= 7) for (let n = begin; n < end; n++) for (const layer of c.lanes[n].layers) marks(c, g, layer, TOP + n * view.lane - view.y, scale);
    g.restore();
    const whole = c.lanes.length * view.lane, shown = h - TOP; // where one is, if not all lanes are shown
    if (whole > shown + 1) { g.globalAlpha = 0.6; g.fillStyle = colours.soft; g.fillRect(w - 5, TOP + (view.y / whole) * shown, 4, Math.max(12, (shown / whole) * shown)); }
    c.stale = false;
  }
  // A band for every other host, and as many names as there is room for.
  function hosts(c, g, w, begin, end) {
    let free = -99;
    for (let n = begin; n < end; n++) {
      if (!c.lanes[n].top && n > begin) continue;
      const { host } = c.lanes[n], [name, depth] = c.rows[host];
      let start = n; while (!c.lanes[start].top) start--;
      const y = TOP + start * view.lane - view.y, tall = depth * view.lane;
      if (host % 2) { g.fillStyle = colours.card; g.fillRect(0, y, w, tall); }
      const middle = Math.min(Math.max(y + Math.min(tall / 2, 10), TOP + 7), y + Math.max(tall - 5, tall / 2));
      if (middle < Math.max(free, TOP + 5)) continue;
      g.fillStyle = colours.soft; g.fillText(named(name), 6, middle, left - 10); free = middle + 13;
    }
  }
  // The lanes as pixels. Of each lane two lines are reckoned, without jobs and with them, and repeated.
  function bitmap(c, ratio, begin, end) {
    const W = Math.max(1, Math.round(wide(c) * ratio)), H = Math.max(1, Math.round(high(c) * ratio)), tall = view.lane * ratio;
    if (!c.image || c.image.width !== W || c.image.height !== H) {
      c.image = c.g.createImageData(W, H); c.pixels = new Uint32Array(c.image.data.buffer);
      c.states = new Uint32Array(W); c.jobs = new Uint32Array(W); c.more = new Float32Array(4 * W);
    }
    const { pixels, states, jobs } = c, edge = Math.min(Math.round(ratio), Math.floor(tall * 0.15));
    const blanks = [colours.ground, colours.card].map((colour) => pixel(...rgb(colour)) >>> 0);
    pixels.fill(blanks[0]);
    for (let n = begin; n < end; n++) {
      const lane = c.lanes[n], y0 = Math.round(n * tall - view.y * ratio), y1 = Math.max(y0 + 1, Math.round((n + 1) * tall - view.y * ratio));
      const blank = blanks[lane.host % 2], inset = lane.layers[0].n ? Math.floor((y1 - y0) * 0.2) : 0;
      states.fill(blank); blend(c, lane.layers[0], W, states);
      jobs.set(states); blend(c, lane.layers[1], W, jobs);
      for (let y = Math.max(0, y0); y < Math.min(H, y1); y++) {
        if (y - y0 < edge) pixels.fill(blank, y * W, (y + 1) * W);
        else pixels.set(Math.min(y - y0, y1 - 1 - y) < inset ? states : jobs, y * W);
      }
    }
  }
  // Lay a lane's stretches over a line of pixels. Each is covered by as much as there is in it, but by a
  // fifth at least, so that nothing is ever invisible.
  function blend({ more, pick }, layer, W, line) {
    const px = W / (view.to - view.from) / 10, origin = view.from * 10, to = view.to * 10;
    const { red, green, blue, solid } = colours, of = chosen ? chosen.kind : -1;
    const part = (x, cover, look) => { const k = 4 * x; more[k] += cover * red[look]; more[k + 1] += cover * green[look]; more[k + 2] += cover * blue[look]; more[k + 3] += cover; };
    let low = W, top = -1;
    for (let i = first(layer, origin); i < layer.n && layer.from[i] < to; i++) {
      let a = (layer.from[i] - origin) * px, b = (layer.to[i] - origin) * px;
      if (b - a > 5) b -= 1; // neighbours can be told apart
      if (b <= 0) continue;
      const look = layer.look[i], share = of < 0 || (pick === layer.name[i] && kind(look) === of) ? 1 : 0.22;
      a = Math.max(0, a); b = Math.min(W, Math.max(b, a + 0.2));
      const x0 = Math.floor(a), x1 = Math.min(W - 1, Math.ceil(b) - 1);
      if (x0 < low) low = x0;
      if (x1 > top) top = x1;
      part(x0, share * (Math.min(b, x0 + 1) - a), look);
      if (x1 === x0) continue;
      part(x1, share * (b - x1), look);
      if (share === 1) line.fill(solid[look], x0 + 1, x1); else for (let x = x0 + 1; x < x1; x++) part(x, share, look);
    }
    for (let x = low, k = 4 * low; x <= top; x++, k += 4) {
      const sum = more[k + 3];
      if (!sum) continue;
      const f = sum > 1 ? 1 / sum : 1, rest = sum > 1 ? 0 : 1 - sum, under = line[x]; // side by side in an instance
      line[x] = pixel((under & 255) * rest + more[k] * f, ((under >> 8) & 255) * rest + more[k + 1] * f, ((under >> 16) & 255) * rest + more[k + 2] * f);
      more[k] = more[k + 1] = more[k + 2] = more[k + 3] = 0;
    }
  }
  // Patterns and names, where there is room for them.
  function marks(c, g, layer, y, scale) {
    const to = view.to * 10, px = scale / 10, origin = left - view.from * scale, inset = view.lane * 0.15;
    for (let i = first(layer, view.from * 10); i < layer.n && layer.from[i] <= to; i++) {
      const look = layer.look[i], x = Math.max(left, origin + layer.from[i] * px), width = origin + layer.to[i] * px - 1 - x;
      if (width < 6) continue;
      g.globalAlpha = chosen && !picked(c, look, layer.name[i]) ? 0.22 : 1;
      if (patterns[look]) { g.fillStyle = patterns[look]; g.fillRect(x, y + inset, Math.min(width, wide(c)), view.lane - inset); }
      const id = c.names[layer.name[i]], fits = (text) => text.length * 6.4 + 8 <= width, text = fits(named(id)) ? named(id) : id;
      if (view.lane < 12 || look === JOBS || !fits(text)) continue;
      g.fillStyle = look < JOBS ? "#fff" : "#1b2430"; g.fillText(text, x + 4, y + view.lane / 2 + 0.5);
    }
    g.globalAlpha = 1;
  }

  const STEPS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 604800, 1209600, 2592000, 7776000, 31536000];
  const two = (n) => String(n).padStart(2, "0");
  // A time since the beginning, as exact as `step` is.
  function clock(s, step = 1) {
    if (hooks.clock) return hooks.clock(s, step);
    const d = Math.floor(s / 86400), r = s - d * 86400, day = d ? d + " d" : "";
    if (step >= 86400) return d + " d";
    const hm = two(Math.floor(r / 3600)) + ":" + two(Math.floor((r % 3600) / 60));
    if (step >= 60) return day ? day + " " + hm : hm;
    const sec = step >= 1 ? two(Math.floor(r % 60)) : (r % 60).toFixed(step < 0.1 ? 2 : 1).padStart(step < 0.1 ? 5 : 4, "0");
    return (day ? day + " " : "") + hm + ":" + sec;
  }
  const long = (s) => s < 120 ? s.toFixed(1) + " s" : s < 7200 ? (s / 60).toFixed(1) + " min" : s < 172800 ? (s / 3600).toFixed(1) + " h" : (s / 86400).toFixed(1) + " d";
  function grid(g, w, h, scale) {
    const step = STEPS.find((s) => s * scale > 92) || STEPS[STEPS.length - 1];
    g.fillStyle = colours.ground; g.fillRect(0, 0, w, TOP - 1);
    for (let k = Math.ceil(view.from / step); k * step <= view.to; k++) {
      const x = left + (k * step - view.from) * scale, text = k < 0 ? "" : clock(k * step + 1e-6, step);
      g.globalAlpha = 0.6; g.fillStyle = colours.line; g.fillRect(x, 0, 1, h); g.globalAlpha = 1;
      if (x + 4 + g.measureText(text).width < w) { g.fillStyle = colours.soft; g.fillText(text, x + 4, TOP / 2); }
    }
    g.fillStyle = colours.line; g.fillRect(0, TOP - 1, w, 1); g.fillRect(left - 1, 0, 1, h);
  }
  // One more look when the browser is ready for it; charts that are out of sight wait
  let asked = false;
  const seen = (c) => { const box = c.canvas.getBoundingClientRect(); return box.bottom > 0 && box.top < innerHeight; };
  function redraw() { charts.forEach((c) => { c.stale = true; }); soon(); }
  function soon() {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => { asked = false; charts.filter((c) => c.stale && seen(c)).forEach((c) => draw(c, devicePixelRatio || 1)); });
  }
  function clamp() {
    const span = Math.min(Math.max(view.to - view.from, 0.1), data.length_s * 1.5 + 1), middle = Math.min(Math.max((view.from + view.to) / 2, 0), data.length_s);
    view.from = middle - span / 2; view.to = middle + span / 2;
    view.lane = Math.min(Math.max(view.lane, 1.5), 40);
    view.y = Math.max(0, Math.min(view.y, most * view.lane - high(charts[0])));
  }
  function zoom(c, x, factor) {
    const at = view.from + ((x - left) / wide(c)) * (view.to - view.from);
    view.from = at + (view.from - at) * factor; view.to = at + (view.to - at) * factor;
  }
  function tall(y, factor) { const n = (view.y + y - TOP) / view.lane; view.lane = Math.min(Math.max(view.lane * factor, 1.5), 40); view.y = n * view.lane - y + TOP; }
  function pan(share, lanes) { const by = share * (view.to - view.from); view.from += by; view.to += by; view.y += lanes * view.lane; }
  // What lies under the pointer; what is hardly to be seen can be hit as well
  function hit(c, x, y) {
    const n = Math.floor((y - TOP + view.y) / view.lane), lane = c.lanes[n], per = (view.to - view.from) / wide(c) * 10, t = view.from * 10 + (x - left) * per;
    if (y < TOP || x < left || !lane) return null;
    const near = (slack) => lane.layers.flatMap((layer) => {
      const found = [];
      for (let i = first(layer, t - slack); i < layer.n && layer.from[i] <= t + slack; i++) if (layer.to[i] > t - slack) found.push({ look: layer.look[i], name: layer.name[i], from: layer.from[i], to: layer.to[i] });
      return found;
    });
    let found = near(0);
    if (!found.length) found = near(2 * per);
    return found.length ? { host: c.rows[lane.host][0], found } : null;
  }
  // The row at a height, also where nothing is.
  function rowAt(c, y) { const lane = c.lanes[Math.floor((y - TOP + view.y) / view.lane)]; return y >= TOP && lane ? c.rows[lane.host][0] : ""; }
  function told(c, what) {
    const lines = what.found.slice(0, MOST_TIP).map((s) => `${data.looks[s.look][0]} ${named(c.names[s.name])}: from ${clock(s.from / 10)} for ${long((s.to - s.from) / 10)}`);
    if (what.found.length > MOST_TIP) lines.push(`and ${what.found.length - MOST_TIP} more`);
    return [what.host, ...lines].join("\n");
  }
  function hint(text, x, y) {
    tip.textContent = text; tip.style.display = text ? "block" : "none";
    tip.style.left = Math.max(4, Math.min(x + 12, innerWidth - tip.offsetWidth - 8)) + "px";
    tip.style.top = (y + 18 + tip.offsetHeight > innerHeight ? y - 10 - tip.offsetHeight : y + 16) + "px";
  }
  // One job or instance, wherever it was
  const kind = (look) => Math.min(look, JOBS), picked = (c, look, name) => name === c.pick && kind(look) === chosen.kind;
  function each(c, name, of, visit) {
    c.lanes.forEach((lane, n) => lane.layers.forEach((layer) => { for (let i = 0; i < layer.n; i++) if (layer.name[i] === name && kind(layer.look[i]) === of) visit(lane, layer, i, n); }));
  }
  function choose(next) {
    chosen = next;
    charts.forEach((c) => { c.pick = chosen ? c.names.indexOf(chosen.name) : -1; });
    said.textContent = !chosen ? "" : (data.kinds || ["high-priority job", "low-priority job", "instance"])[chosen.kind] + " " + chosen.name + charts.map((c) => {
      let count = 0, sum = 0; const where = new Set();
      each(c, c.pick, chosen.kind, (lane, layer, i) => { count++; sum += layer.to[i] - layer.from[i]; where.add(c.rows[lane.host][0]); });
      const names = [...where];
      return ` | ${c.name}: ` + (count ? `${count} ${count > 1 ? "stretches" : "stretch"}, ${long(sum / 10)} in all, on ${names.slice(0, 6).join(", ")}${names.length > 6 ? ` and ${names.length - 6} more` : ""}` : "nowhere");
    }).join("");
    redraw();
  }
  function search(text) {
    if (!text) { choose(null); return; }
    let from = Infinity, to = -1, lane = -1, of = -1;
    for (const wanted of [0, 1, 2]) charts.forEach((c) => {
      const name = c.names.indexOf(text);
      if (name >= 0 && (of < 0 || of === wanted)) each(c, name, wanted, (_, layer, i, n) => { of = wanted; if (lane < 0) lane = n; from = Math.min(from, layer.from[i] / 10); to = Math.max(to, layer.to[i] / 10); });
    });
    if (of < 0) { choose(null); said.textContent = `there is no job or instance called ${text}`; return; }
    const margin = Math.max(1, (to - from) * 0.15);
    view.from = from - margin; view.to = to + margin; view.y = (lane - 3) * view.lane; clamp();
    choose({ kind: of, name: text });
  }

  const KEYS = {
    ArrowLeft: () => pan(-0.1, 0), ArrowRight: () => pan(0.1, 0), ArrowUp: () => pan(0, -3), ArrowDown: () => pan(0, 3),
    "+": (c) => zoom(c, left + wide(c) / 2, 1 / 1.3), "-": (c) => zoom(c, left + wide(c) / 2, 1.3), Home: fit, Escape: () => choose(null),
  };
  charts.forEach((c) => {
    let held = null;
    const on = c.canvas.addEventListener.bind(c.canvas);
    on("wheel", (e) => {
      e.preventDefault();
      if (e.shiftKey) view.y += e.deltaY || e.deltaX; else if (e.ctrlKey || e.altKey) tall(e.offsetY, e.deltaY < 0 ? 1.15 : 1 / 1.15);
      else zoom(c, e.offsetX, e.deltaY < 0 ? 1 / 1.2 : 1.2);
      clamp(); redraw();
    }, { passive: false });
    on("pointerdown", (e) => { held = { x: e.clientX, y: e.clientY, moved: 0 }; if (e.isTrusted) c.canvas.setPointerCapture(e.pointerId); });
    on("pointerup", (e) => {
      const click = held && held.moved < 4, what = click && hit(c, e.offsetX, e.offsetY), last = what && what.found[what.found.length - 1];
      held = null;
      if (click) choose(last ? { kind: kind(last.look), name: c.names[last.name] } : null);
      if (click && hooks.chosen) hooks.chosen(last ? c.names[last.name] : (rowAt(c, e.offsetY) || ""));
    });
    on("pointercancel", () => { held = null; });
    on("pointerleave", () => hint("", 0, 0));
    on("pointermove", (e) => {
      if (held) {
        const dx = e.clientX - held.x, dy = e.clientY - held.y;
        pan(-dx / wide(c), -dy / view.lane); held = { x: e.clientX, y: e.clientY, moved: held.moved + Math.abs(dx) + Math.abs(dy) };
        clamp(); redraw();
      }
      const what = hit(c, e.offsetX, e.offsetY);
      hint(what ? told(c, what) : "", e.clientX, e.clientY);
    });
    on("keydown", (e) => { const act = KEYS[e.key]; if (act && !e.ctrlKey && !e.metaKey) { e.preventDefault(); act(c); clamp(); redraw(); } });
  });
  const button = (id, act) => at(id).addEventListener("click", () => { act(charts[0]); clamp(); redraw(); });
  button("all", () => { choose(null); fit(); }); button("in", (c) => zoom(c, left + wide(c) / 2, 0.5)); button("out", (c) => zoom(c, left + wide(c) / 2, 2));
  find.addEventListener("change", () => search(find.value.trim()));
  addEventListener("resize", () => { measure(); clamp(); redraw(); });
  addEventListener("scroll", soon, { passive: true });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { paint(); redraw(); });
  // Paper is light, has no second look, and more dots than a screen.
  const paper = (light) => { document.documentElement.classList.toggle("light", light); paint(); charts.forEach((c) => draw(c, light ? 3 : devicePixelRatio || 1)); };
  addEventListener("beforeprint", () => paper(true));
  addEventListener("afterprint", () => paper(false));
  // The same, told anew and later: who sees all of it goes on seeing all, who looks at the end goes on looking
  // there, others stay where they are.
  function grow(next) {
    const whole = view.from <= 0 && view.to >= data.length_s * 0.999, ends = view.to >= data.length_s * 0.999, by = ends ? next.length_s - data.length_s : data.start_s - next.start_s, first = !data.length_s;
    data = next;
    charts.forEach((c, i) => { Object.assign(c, shape(next.runs[i])); c.pick = chosen ? c.names.indexOf(chosen.name) : -1; });
    count(); measure();
    if (first) fit(); else if (whole) { view.from = 0; view.to = Math.max(1, next.length_s); clamp(); } else { view.from += by; view.to += by; clamp(); }
    redraw();
  }
  measure(); fit(); paint(); charts.forEach((c) => draw(c, devicePixelRatio || 1));
  return { grow };
};
