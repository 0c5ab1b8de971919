"use strict";
// The harvest over time: a bar for each hour or day, and the same in numbers. Told by page.js.
const harvest = (() => {
  const at = (id) => document.getElementById(id), SPACE = at("harvest-picture").namespaceURI, HOUR_S = 3600, DAY_S = 86400;
  const PARTS = [["metal", "jobs on hosts' own nodes"], ["worked", "jobs on instances"], ["lost", "of that lost"], ["idle", "idle"]];
  const EMPTY = "nothing is booked yet: that takes a minute";
  let known = null, days = false;
  function drawn(tag, more) { const one = document.createElementNS(SPACE, tag); for (const [name, value] of Object.entries(more)) one.setAttribute(name, value); return one; }
  const core = (s) => { const h = s / HOUR_S; return h >= 100 ? Math.round(h).toLocaleString("en") : h.toFixed(h < 10 ? 2 : 1); };
  // What came about in that time. Hours are those of UTC, and in some zones a day begins within one: it is divided.
  function between(name, from_s, to_s) {
    return known.hours.reduce((sum, hour) => {
      const end_s = Math.max(hour.from_s + 1, Math.min(hour.from_s + HOUR_S, known.now_s));
      const share = (Math.min(end_s, to_s) - Math.max(hour.from_s, from_s)) / (end_s - hour.from_s);
      return sum + hour[name] * Math.max(0, share);
    }, 0);
  }
  // What there is to show: slots of equal length up to now, empty ones as well.
  function slots() {
    const long = days ? DAY_S : HOUR_S, count = days ? 8 : 24, found = [];
    const start = (s) => { if (!days) return Math.floor(s / HOUR_S) * HOUR_S; const day = new Date(s * 1000); day.setHours(0, 0, 0, 0); return day / 1000; };
    const last = start(known.now_s);
    for (let i = count - 1; i >= 0; i--) found.push({ from_s: start(last - i * long + (days ? DAY_S / 2 : 0)) });
    found.forEach((slot, i) => { for (const name of ["room", "metal", "worked", "lost"]) slot[name] = between(name, slot.from_s, i + 1 < found.length ? found[i + 1].from_s : Infinity); });
    for (const one of found) one.idle = Math.max(0, one.room - one.metal - one.worked);
    return found;
  }
  const named = (s) => days ? new Date(s * 1000).toLocaleDateString([], { weekday: "short", day: "numeric" }) : new Date(s * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  function picture(found) {
    const box = at("harvest-picture"), width = Math.max(280, box.clientWidth), high = 190, foot = 20, head = 14, side = 44;
    const most = Math.max(1, ...found.map((one) => Math.max(one.room, one.metal + one.worked))), step = (width - side) / found.length;
    const y = (value) => high - foot - (high - foot - head) * value / most, made = [];
    box.setAttribute("viewBox", `0 0 ${width} ${high}`);
    for (const part of [0, .5, 1]) {
      made.push(drawn("line", { x1: side, x2: width, y1: y(most * part), y2: y(most * part), class: "axis" }));
      const text = drawn("text", { x: side - 6, y: y(most * part) + 4, "text-anchor": "end" }); text.textContent = part ? core(most * part) : "0"; made.push(text);
    }
    found.forEach((one, i) => {
      const group = drawn("g", {}), title = drawn("title", {}), x = side + i * step + step * .12;
      title.textContent = `${named(one.from_s)}: ${PARTS.map(([name, text]) => text + " " + core(one[name])).join(", ")} core hours`;
      group.append(title);
      let below = 0;
      for (const [name, value] of [["metal", one.metal], ["worked", Math.max(0, one.worked - one.lost)], ["lost", Math.min(one.lost, one.worked)], ["idle", one.idle]]) {
        if (value > 0) group.append(drawn("rect", { x, width: step * .76, y: y(below + value), height: Math.max(.5, y(below) - y(below + value)), class: "f-" + name }));
        below += value;
      }
      made.push(group);
      if (days || i % (width < 600 ? 6 : 3) === 0) { const text = drawn("text", { x: side + (i + .5) * step, y: high - 5, "text-anchor": "middle" }); text.textContent = named(one.from_s); made.push(text); }
    });
    box.replaceChildren(...made);
  }
  function sentence(found) {
    const all = (name) => found.reduce((sum, one) => sum + one[name], 0), made = all("worked"), left = all("room") - all("metal");
    const share = left > 0 ? ` (${Math.min(100, Math.round(100 * made / left))} % of what hosts' own jobs left)` : "";
    const line = at("harvested"), number = document.createElement("b");
    number.textContent = core(made) + " core hours";
    line.replaceChildren(number, ` were worked on instances in these ${days ? "eight days" : "24 hours"}${share}; ${core(all("lost"))} of them were lost, ${core(all("idle"))} stayed idle.`);
  }
  // Numbers of today, from midnight on, for the tiles.
  function today() {
    const day = new Date(known.now_s * 1000); day.setHours(0, 0, 0, 0);
    const all = (name) => between(name, day / 1000, Infinity);
    return { worked: core(all("worked")), lost: core(all("lost")), idle: core(Math.max(0, all("room") - all("metal") - all("worked"))) };
  }
  function show(table) {
    if (!known) return;
    const found = slots(), some = found.some((one) => one.room || one.worked);
    at("harvest-picture").classList.toggle("none", !some); at("harvest-legend").hidden = !some;
    if (some) { picture(found); sentence(found); } else at("harvested").textContent = EMPTY;
    if (table) tell = table;
    tell("harvest", [days ? "day" : "hour", ...PARTS.map(([, text]) => text)], found.filter((one) => one.room || one.worked).reverse().map((one) => [named(one.from_s), ...PARTS.map(([name]) => core(one[name]))]), EMPTY);
    if (!at("harvest-legend").children.length) at("harvest-legend").replaceChildren(...PARTS.map(([name, text]) => { const one = document.createElement("span"); one.textContent = text; one.className = "f-" + name; return one; }));
  }
  let tell = () => {};
  for (const [id, value] of [["by-hour", false], ["by-day", true]]) at(id).addEventListener("click", () => {
    days = value;
    at("by-hour").setAttribute("aria-pressed", String(!days)); at("by-day").setAttribute("aria-pressed", String(days));
    show();
  });
  addEventListener("resize", () => show());
  return { take: (answer, table) => { known = answer; show(table); return today(); } };
})();
