"use strict";
// The live page: asks the API of its own service, writes what it hears as text, and never as HTML.
(() => {
  const at = (id) => document.getElementById(id);
  const state = { entered: false, role: "", hidden: [], lines: null, labels: {}, hosts: [], subject: "", preview: "", today: null, now_s: 0, timer: 0, turn: 0 };
  const EVERY_MS = 2000, PATIENCE_MS = 20000, MOST_TROUBLE = 8, MOST_ROWS = 200, MOST_STEPS = 100;
  const FAILED = ["failed", "given-up"];

  // --- asking ------------------------------------------------------------------------------------
  // A reply and what it says. Each browser has words of its own for why there is none: these say as much.
  // An act is not cut off: it would be carried out all the same.
  async function heard(path, how) {
    const reads = how.method === "GET";
    try {
      const reply = await fetch("/api/v1/" + path, { ...how, credentials: "same-origin", signal: reads ? AbortSignal.timeout(PATIENCE_MS) : undefined });
      return [reply, reply.status === 204 ? {} : await reply.json()];
    } catch { throw new Error(reads ? "the service does not answer" : "the service did not answer: see whether it was done before you repeat it"); }
  }
  async function call(path, method = "GET", body = undefined, token = "") {
    const headers = { Accept: "application/json" };
    if (body !== undefined) headers["Content-Type"] = "application/json";
    if (token) headers.Authorization = "Bearer " + token;
    if (method !== "GET") {
      // Asked for anew: another tab may have begun another session.
      if (!token) headers["X-CSRF-Token"] = (await call("me")).csrf;
      headers["Idempotency-Key"] = crypto.getRandomValues(new Uint32Array(4)).join("-");
    }
    const [reply, found] = await heard(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
    if (!reply.ok && reply.status !== 304) throw Object.assign(new Error(found.error || reply.statusText), { status: reply.status });
    return found;
  }
  function say(text, bad = false) { at("message").textContent = text; at("message").className = bad ? "trouble" : ""; }

  // --- writing -----------------------------------------------------------------------------------
  function make(tag, text = "", more = {}) { return Object.assign(document.createElement(tag), { textContent: text }, more); }
  function fill(list, texts, tag = "li") { list.replaceChildren(...texts.map((text) => make(tag, text))); }
  // So many of them at most, and how many more there are.
  function some(texts, most) { return texts.length > most ? [...texts.slice(0, most), `and ${texts.length - most} more`] : texts; }
  // `more`: what of all there is the rows are, where they are not all of it.
  function table(id, heads, rows, empty, more = "") {
    if (!rows.length) { at(id).replaceChildren(make("caption", empty)); return; }
    const head = make("tr"), body = make("tbody");
    head.append(...heads.map((text, i) => make("th", text, { scope: "col", className: typeof rows[0][i] === "number" ? "number" : "" })));
    for (const row of rows) {
      const line = make("tr");
      line.append(...row.map((cell) => {
        const of = make("td");
        if (cell && cell.subject) of.append(link(cell.subject)); else if (cell && cell.phase) of.append(phase(cell.phase)); else of.textContent = cell === null || cell === undefined ? "" : String(cell);
        if (typeof cell === "number") of.className = "number";
        return of;
      }));
      body.append(line);
    }
    const top = make("thead"); top.append(head);
    at(id).replaceChildren(...(more ? [make("caption", more)] : []), top, body);
  }
  // The entries that there is room for, of `total`: those in trouble have come first.
  function shown(entries, total) {
    const first = entries.slice(0, MOST_ROWS);
    return [first, first.length < total ? `${first.length} of ${total}, those in trouble first; the commands of backfill show all` : ""];
  }
  function link(subject) { const made = make("button", subject, { type: "button" }); made.addEventListener("click", () => explain(subject)); return made; }
  function phase(text) { return make("span", text, { className: FAILED.includes(text) ? "phase off" : "phase" }); }
  // With its date where that is not today's, by the daemon's clock.
  function when(s) { const then = new Date(s * 1000); return then.toDateString() === new Date(state.now_s * 1000).toDateString() ? then.toLocaleTimeString() : then.toLocaleString(); }
  function long(s) { return s < 120 ? Math.round(s) + " s" : s < 7200 ? Math.round(s / 60) + " min" : s < 172800 ? (s / 3600).toFixed(1) + " h" : (s / 86400).toFixed(1) + " d"; }
  // A time on the axis or in a hint, as exact as `step` is.
  function clock(s, step) {
    const day = new Date((state.began + s) * 1000);
    return step >= 86400 ? day.toLocaleDateString() : day.toLocaleTimeString([], step >= 60 ? { hour: "2-digit", minute: "2-digit" } : {});
  }

  // --- what, why, and acts -----------------------------------------------------------------------
  async function explain(subject) {
    if (!subject) return;
    state.subject = subject; at("subject").value = subject;
    const latest = (write) => { if (state.subject === subject) write(); }; // somebody may have asked for another meanwhile
    try { const found = await call("explain/" + encodeURIComponent(subject)); latest(() => told(found)); } catch (error) { latest(() => at("why").replaceChildren(make("p", error.message))); }
  }
  function told(found) {
    const parts = [], { node, host, job } = found, name = found.subject;
    parts.push(make("h3", name, { className: "what" }));
    parts.push(make("p", `as it was at ${new Date(state.now_s * 1000).toLocaleTimeString()}; click again for news`)); // the rest of the page goes on
    if (node) parts.push(make("p", `${name} is ${node.phase} on ${node.host} since ${when(node.since_s)}: ${node.reason}`));
    if (host) parts.push(make("p", `host ${name}: ${host.reachable ? "answers" : "does not answer: " + host.problem}; ` + (takers(host).length ? "given to job " + takers(host).join(", ") : "given to nobody") + (host.instances.length ? "; instances: " + host.instances.join(", ") : "") + (host.closed ? "; closed: " + host.closed : "")));
    if (job) parts.push(make("p", `job ${name} ${job.name || ""} of ${job.user} is ${job.state}` + (job.nodes && job.nodes.length ? " on " + job.nodes.join(", ") : "")));
    if (found.slurm) parts.push(make("p", "Slurm shows it as " + found.slurm));
    for (const refusal of found.refusals) parts.push(make("p", "not done: " + refusal.sentence, { className: "not" }));
    for (const entry of found.operations) parts.push(make("p", `${entry.running ? "under way" : "tried again later"}: ${entry.key}${entry.problem ? ": " + entry.problem : ""}`));
    if ((node || host) && ["operator", "admin"].includes(state.role)) parts.push(buttons(name, host || node));
    if (!found.story.length) { at("why").replaceChildren(...parts); return; }
    const story = make("ol", "", { tabIndex: 0 });
    story.setAttribute("aria-label", "Story of " + name);
    story.append(...found.story.map((line) => { const one = make("li"); one.append(make("span", when(line.at_s)), line.text); return one; }));
    parts.push(make("h3", "Its story"), story);
    at("why").replaceChildren(...parts);
    story.scrollTop = story.scrollHeight;
  }
  // The jobs that have a host: a closing by hand is told apart.
  const takers = (host) => host.given_to.filter((job) => /^[0-9]/.test(job));
  // What can be done about a host or node now: it is closed, or open.
  function buttons(name, place) {
    const bar = make("form", "", { className: "bar act" }), label = make("label", "Reason"), reason = make("input", "", { id: "reason", maxLength: 1000 });
    label.htmlFor = "reason";
    const act = (text, on) => {
      const one = make("button", text, { type: on ? "submit" : "button", className: on ? "grave" : "" });
      const go = async (event) => {
        event.preventDefault();
        try { await call("evictions", "POST", { subject: name, on, reason: reason.value }); say(`${name}: ${on ? "closed; what is there is pushed aside" : "open again"}`); if (state.subject === name) await explain(name); } catch (error) { say(error.message, true); }
      };
      if (on) bar.addEventListener("submit", go); else one.addEventListener("click", go);
      return one;
    };
    if (place.closed) bar.append(make("span", "closed by hand", { className: "soft" }), act("Open again", false));
    else bar.append(label, reason, act("Evict", true));
    return bar;
  }

  // A job by its id and its name.
  function named(id) { const text = state.labels[id]; return text ? `${id} ${text.length > 20 ? text.slice(0, 19) + "…" : text}` : id; }

  // --- the picture -------------------------------------------------------------------------------
  function draw(found) {
    state.began = found.start_s; state.labels = found.labels;
    if (state.lines) { state.lines.grow(found); return; }
    const patterns = { rise: "rise", dots: "dots", fall: "fall" };
    at("legend").replaceChildren(...found.looks.map(([text, colour, pattern]) => { const one = make("span", text, { className: patterns[pattern] || "" }); one.style.setProperty("--c", colour); return one; }));
    state.lines = timelines(found, { clock, named, chosen: explain });
  }
  function status(found) {
    state.now_s = found.now_s;
    at("cluster").textContent = found.cluster; document.title = found.cluster + " | backfill";
    at("sentence").textContent = found.sentence;
    const trouble = [];
    for (const one of found.refusals) if (one.code === "barred") trouble.push(one.sentence);
    if (found.clock) trouble.push(found.clock);
    for (const [source, seen] of Object.entries(found.sources)) if (seen.problem) trouble.push(`${source}: ${seen.problem}`);
    if (found.phases["given-up"]) trouble.push(`${found.phases["given-up"]} nodes are given up and wait for a person`);
    for (const one of found.hooks_not_believed) trouble.push(`${one.count} times: ${one.why}`);
    for (const problem of found.policy.problems || []) trouble.push("policy file: " + problem);
    for (const call of found.operations) if (call.problem && call.final) trouble.push(`${call.key}: ${call.problem}`);
    at("trouble-part").hidden = !trouble.length;
    fill(at("trouble"), some(trouble, MOST_TROUBLE));
    const codes = new Map();
    for (const one of found.refusals) { const known = codes.get(one.code) || { count: 0, one }; known.count++; codes.set(one.code, known); }
    const most = [...codes.values()].sort((a, b) => b.count - a.count).slice(0, 50);
    table("refused", ["times", "code", "for example", "about"], most.map(({ count, one }) => [count, one.code, one.sentence, /^(cluster)$/.test(one.subject) ? one.subject : { subject: one.subject.replace(/^job /, "") }]), "nothing is refused");
    at("policy").textContent = (found.policy.source || "given at the start") + (found.policy.loaded_s ? `, in force since ${when(found.policy.loaded_s)}` : "");
  }
  // The cluster in a few numbers; what is in trouble stands out.
  function tiles(about, hosts) {
    const { phases } = about, sum = (...names) => names.reduce((all, name) => all + (phases[name] || 0), 0), today = state.today || { worked: "–", lost: "–" };
    const silent = hosts.silent, all = Object.values(phases).reduce((a, b) => a + b, 0);
    const rows = [
      ["hosts answer", String(hosts.total - silent), ` of ${hosts.total}`, silent > 0],
      ["nodes of ours are ready", String(sum("ready")), ` of ${all}`],
      ["stand still for others", String(sum("parked", "evicting", "throttled"))],
      ["given up or failed", String(sum("given-up", "failed")), "", sum("given-up", "failed") > 0],
      ["low-priority jobs wait", String(about.low_priority_jobs_waiting)],
      ["core hours worked today", today.worked], ["core hours lost today", today.lost], ["core hours idle today", today.idle || "–"],
    ];
    at("tiles").replaceChildren(...rows.map(([text, number, more, bad]) => {
      const one = make("div", "", { className: bad ? "bad" : "" }), value = make("dd", number);
      if (more) value.append(make("small", more));
      one.append(make("dt", text), value);
      return one;
    }));
    at("tiles").hidden = false;
  }
  async function round() {
    if (document.hidden) return;
    const turn = state.turn++;
    if (state.role && !state.hidden.includes("nodes")) {
      const whole = !state.hidden.length;
      const [about, lines] = await Promise.all([call("status"), whole ? call("timeline") : null]);
      status(about);
      if (lines) draw(lines);
      if (state.today) tiles(about, state.hosts);
      if (turn % 3 === 0) {
        const [hosts, nodes, plan, past] = await Promise.all([call("hosts?limit=1000&trouble_first=true"), call("nodes?limit=1000&trouble_first=true"), whole ? call("plan") : { actions: [] }, call("harvest")]);
        state.today = harvest.take(past, table);
        state.hosts = Object.assign(hosts.hosts, { total: hosts.total, silent: hosts.in_trouble });
        tiles(about, state.hosts);
        const [someHosts, moreHosts] = shown(hosts.hosts, hosts.total), [someNodes, moreNodes] = shown(nodes.nodes, nodes.total);
        table("hosts", ["host", "answers", "given to", "instances", "closed"], someHosts.map((h) => [{ subject: h.name }, h.reachable ? "yes" : "NO: " + h.problem, takers(h).join(", "), h.instances.join(", "), h.closed]), "there is no host", moreHosts);
        table("nodes", ["node", "phase", "since", "host", "jobs", "why"], someNodes.map((n) => [{ subject: n.name }, { phase: n.phase }, when(n.since_s), n.host, (n.jobs.length ? n.jobs : n.held.map((h) => h.id)).join(", "), n.reason]), "there is no virtual node now", moreNodes);
        fill(at("plan"), some(plan.actions.map((step) => step.sentence), MOST_STEPS));
        at("subjects").replaceChildren(...[...hosts.hosts, ...nodes.nodes].map((one) => make("option", "", { value: one.name })));
      }
    }
    if (turn % 3 === 0) {
      const { jobs, now_s } = await call("mine");
      state.now_s = now_s;
      at("mine-part").hidden = !jobs.length && Boolean(state.role);
      table("mine", ["job", "state", "stands still", "why", "its host is free by"], jobs.map((j) => [state.role ? { subject: j.id } : j.id, j.state, j.paused_since_s === null ? "" : `since ${when(j.paused_since_s)}, for ${long(now_s - j.paused_since_s)}`, j.why, j.host_free_s === null ? "" : when(j.host_free_s)]), "none of your jobs is on an instance or waits for one");
    }
  }
  // --- a policy file that is thought of -----------------------------------------------------------
  const FIGURES = [["metal_core_h", "core hours of jobs on hosts' own nodes", 2], ["worked_core_h", "core hours of jobs on instances", 2], ["lost_core_h", "of them lost", 2], ["low_completed", "low-priority jobs completed", 0], ["evictions", "evictions", 0], ["room_median_s", "seconds until room was free, median", 3], ["room_worst_s", "seconds until room was free, longest", 3]];
  function unpreviewed(error) { at("preview").disabled = false; fill(at("checked"), [error.message]); }
  async function previewed(silent_s = 0) {
    const later = (so_far_s) => setTimeout(() => previewed(so_far_s).catch(unpreviewed), 1500);
    let told;
    try { told = await call(state.preview); } catch (error) {
      // Whoever is too busy, or just starts, answers again; it is played meanwhile.
      if (silent_s >= 60 || (error.status && error.status !== 503)) throw error;
      later(silent_s + 1.5); return;
    }
    if (told.state === "running") { later(0); return; }
    at("preview").disabled = false;
    if (told.problems.length) { at("previewed").hidden = true; fill(at("checked"), told.problems); return; }
    const day = told.found, columns = ["was done", "policy", "against"].map((name) => day.figures[name]);
    const figure = (value, digits) => value === null ? "–" : value.toFixed(digits);
    const rows = FIGURES.map(([key, text, digits]) => [text, ...columns.map((one) => figure(one[key], digits))]);
    for (const name of Object.keys(columns[0].steps)) rows.push([name, ...columns.map((one) => String(one.steps[name]))]);
    at("preview-said").textContent = `From ${new Date(day.start_s * 1000).toLocaleString()} on: ${day.high_jobs} high-priority and ${day.low_jobs} low-priority jobs on ${day.hosts} hosts with ${day.cpus} CPUs. Changed: ${day.changed.join(", ") || "nothing"}. How far the first two columns are apart is how far the third may be trusted.`;
    fill(at("checked"), day.notes);
    table("preview-table", ["", "what was done", "the file in force, replayed", "this text, replayed"], rows, "");
    at("previewed").hidden = false;
  }
  async function again() {
    clearTimeout(state.timer);
    try { await round(); if (at("message").dataset.trouble) { say(""); delete at("message").dataset.trouble; } } catch (error) {
      if (error.status === 401) { outside(); return; }
      const since = state.now_s ? `; no answer since ${when(state.now_s)}` : ""; // what is shown is as old
      say(error.message + since, true); at("message").dataset.trouble = "1";
    }
    state.timer = setTimeout(again, EVERY_MS);
  }

  // --- coming and going --------------------------------------------------------------------------
  // What the last user saw is nothing for the next one: the whole document goes, not only what is shown.
  function outside() {
    clearTimeout(state.timer);
    if (state.entered) { at("inside").hidden = true; location.replace(location.pathname); return; }
    at("login").hidden = false;
  }
  async function inside() {
    const me = await call("me");
    state.role = me.role; state.hidden = me.hidden;
    at("who").textContent = `${me.user}, ${me.role || "who sees their own jobs"}`;
    at("login").hidden = true; at("inside").hidden = false; at("leave").hidden = false;
    at("readers").hidden = at("places").hidden = !me.role || me.hidden.includes("nodes"); at("reload").hidden = me.role !== "admin";
    at("preview").hidden = !["operator", "admin"].includes(me.role);
    at("lines-part").hidden = at("plan-part").hidden = me.hidden.length > 0; // they tell of everybody's jobs
    state.turn = 0; state.entered = true;
    await again();
  }
  at("login").addEventListener("submit", async (event) => {
    event.preventDefault();
    const token = at("token").value.trim(); at("token").value = "";
    try {
      await call("session", "POST", undefined, token); say("");
      await inside();
    } catch (error) { say(error.message, true); }
  });
  at("leave").addEventListener("click", async () => {
    try { await call("session", "DELETE"); } catch (error) { if (error.status !== 401) { say(error.message, true); return; } }
    outside();
  });
  at("ask").addEventListener("submit", (event) => { event.preventDefault(); explain(at("subject").value.trim()); });
  at("check").addEventListener("submit", async (event) => {
    event.preventDefault();
    try { const { problems } = await call("policy/check", "POST", { text: at("text").value }); fill(at("checked"), problems.length ? problems : ["nothing is wrong with it"]); } catch (error) { fill(at("checked"), [error.message]); }
  });
  at("preview").addEventListener("click", async () => {
    if (!at("check").reportValidity()) return;
    fill(at("checked"), ["It is played in a process of its own; that takes seconds or minutes."]); at("previewed").hidden = true; at("preview").disabled = true;
    try { state.preview = (await call("policy/previews", "POST", { text: at("text").value })).follow.replace("/api/v1/", ""); await previewed(); } catch (error) { unpreviewed(error); }
  });
  at("reload").addEventListener("click", async () => {
    try { const { problems, changed } = await call("policy/reload", "POST"); fill(at("checked"), problems.length ? problems : ["taken over; changed: " + (changed.join(", ") || "nothing")]); } catch (error) { fill(at("checked"), [error.message]); }
  });
  document.addEventListener("visibilitychange", () => { if (!document.hidden && !at("inside").hidden) again(); });
  inside().catch((error) => { outside(); if (error.status !== 401) say(error.message, true); });
})();
