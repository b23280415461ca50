"use strict";
// The page asks the API as any client does. What it gets is written as text, never as markup.

const LOOK_MS = 1000, HISTORY = 120, DECISIONS = 100, EVENTS = 100, ROWS = 50, DROPS = 50, DENSE = 60;
const TROUBLES = 6, NAMES = 4;
const KINDS = { vif: "a guest's interface", uplink: "uplink", own: "weir itself" };
const SIGNS = { running: "●", connected: "◐", halted: "◑", waiting: "○", stopped: "✕" };
const by = (id) => document.getElementById(id);

const page = {
  token: sessionStorage.getItem("token"),
  needsToken: document.documentElement.dataset.token === "needed",
  stats: null, last: null, ports: new Map(), tiles: new Map(), rows: new Map(), chosen: null,
  sort: "name", down: false, most: ROWS, find: "", looking: null, stop: new AbortController(), decisions: [],
};

// Elements

function make(tag, attributes = {}, ...children) {
  const element = tag === "svg" || tag === "polyline"
    ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function set(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/** Has `parent` hold `children` in this order, and the focus stay where it is. */
function arrange(parent, children) {
  const focused = document.activeElement;
  let at = parent.firstElementChild;
  for (const child of children) {
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
  }
  while (at) {
    const next = at.nextElementSibling;
    at.remove();
    at = next;
  }
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
}

// Numbers

function scaled(value, units, base = 1000) {
  let step = 0;
  while (value >= base && step + 1 < units.length) [value, step] = [value / base, step + 1];
  const digits = value === 0 || value >= 100 || (step === 0 && Number.isInteger(value)) ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)}${units[step]}`;
}
const count = (value) => scaled(value, ["", " k", " M", " G", " T"]);
const rate = (value) => count(value < 10 ? Math.round(value * 10) / 10 : Math.round(value));
const bits = (value) => scaled(Math.round(value), [" bit/s", " kbit/s", " Mbit/s", " Gbit/s", " Tbit/s"]);
const time = (ns) => scaled(ns, [" ns", " µs", " ms", " s"]);
const percent = (part) => `${(part * 100).toFixed(part < 0.1 ? 1 : 0)} %`;
const sum = (numbers) => numbers.reduce((all, one) => all + one, 0);
const byText = (a, b) => a.localeCompare(b, "en", { numeric: true });
const byName = (a, b) => byText(a.port.name, b.port.name);
const clock = () => new Date().toLocaleTimeString([], { hour12: false });

function age(seconds) {
  const [days, hours, minutes] = [seconds / 86400, (seconds % 86400) / 3600, (seconds % 3600) / 60].map(Math.floor);
  return days ? `${days} d ${hours} h` : hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min`
    : `${Math.floor(seconds)} s`;
}

/** Where a port is: the name of its line in the drawing. */
function network(port) {
  const { access, network: name, trunk, mirror } = port.vlan;
  if (mirror) return "Mirrors";
  if (access) return `VLAN ${access}`;
  if (name) return `Network ${name}`;
  return trunk || port.kind !== "vif" ? "Several networks" : "VLAN 1";
}

function membership(port) {
  const { trunk, mirror } = port.vlan;
  if (mirror) return `no network; gets copies of ${mirror.join(", ")}`;
  if (!trunk) return network(port);
  const allowed = trunk.allowed === "all" ? "all VLANs" : `VLANs ${trunk.allowed.only.join(", ")}`;
  return trunk.native ? `${allowed}, ${trunk.native} untagged` : allowed;
}

// Asking

async function ask(path) {
  const headers = page.token ? { authorization: `Bearer ${page.token}` } : {};
  const response = await fetch(path, { headers, signal: page.stop.signal, redirect: "error" });
  if (response.status === 401) throw Object.assign(new Error("The token is not weir's."), { login: true });
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  const text = problem.detail ?? `weir answers with ${response.status}`;
  throw Object.assign(new Error(text), { status: response.status });
}

const json = async (path) => (await ask(path)).json();

function start() {
  page.stop.abort();
  clearTimeout(page.looking);
  page.stop = new AbortController();
  if (document.hidden) return;
  if (page.needsToken && !page.token) return login("");
  look(page.stop.signal);
  follow(page.stop.signal);
}

/** Looks at the switch, and again after a second, or after ten times what it took. */
async function look(signal) {
  page.looking = null;
  const begun = performance.now();
  try {
    const [stats, why] = await Promise.all([json("v1/switch"), page.chosen && policies(page.chosen)]);
    if (signal.aborted) return;
    take(stats);
    if (why?.name === page.chosen) decide(why);
    show();
    say(by("status"), "");
    document.body.classList.remove("stale");
  } catch (error) {
    if (signal.aborted) return;
    if (error.login) return login(error.message);
    const what = error.status ? error.message : "weir does not answer";
    say(by("status"), `${what}. ${page.last ? `What is shown is of ${page.last}. ` : ""}The page asks again.`);
    document.body.classList.add("stale");
  }
  page.looking = setTimeout(look, Math.max(LOOK_MS, 10 * (performance.now() - begun)), signal);
}

/** None if the port has gone since. */
const policies = (name) => json(`v1/ports/${encodeURIComponent(name)}/policies`).catch((error) => {
  if (error.status !== 404) throw error;
});

/** Reads events as they come, and begins anew if that ends. */
async function follow(signal) {
  try {
    const reader = (await ask("v1/events")).body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const blocks = (text + value).split("\n\n");
      text = blocks.pop();
      for (const line of blocks.flatMap((block) => block.split("\n"))) {
        if (line.startsWith("data: ")) tell(JSON.parse(line.slice(6)));
      }
    }
  } catch (error) {
    if (error.login) return;
  }
  if (!signal.aborted) setTimeout(() => signal.aborted || follow(signal), 5 * LOOK_MS);
}

function login(why) {
  page.stop.abort();
  page.token = null;
  sessionStorage.removeItem("token");
  by("view").hidden = by("forget").hidden = true;
  by("login").hidden = false;
  say(by("refused"), why);
  say(by("summary"), "");
  say(by("status"), "");
  by("token").focus();
}

// What is known

function take(stats) {
  const before = page.stats;
  // A weir that began anew counts from zero.
  const seconds = before && stats.uptime_s > before.uptime_s ? stats.uptime_s - before.uptime_s : 0;
  const grown = (now, then) => (seconds ? Math.max(0, now - (then ?? now)) / seconds : 0);
  const ports = new Map();
  for (const port of stats.ports) {
    const known = seconds ? page.ports.get(port.name) : undefined;
    const then = known?.port;
    const drops = Object.entries(port.drops).map(([reason, all]) => ({
      port: port.name, reason, all, now: then ? grown(all, then.drops[reason] ?? 0) : 0,
    }));
    const rates = {
      rx: grown(port.rx.frames, then?.rx.frames), rxBits: 8 * grown(port.rx.bytes, then?.rx.bytes),
      tx: grown(port.tx.frames, then?.tx.frames), txBits: 8 * grown(port.tx.bytes, then?.tx.bytes),
      calls: grown(port.rx.calls, then?.rx.calls), cpu: grown(port.worker_ns, then?.worker_ns) / 1e9,
      drops: sum(drops.map((drop) => drop.now)),
    };
    const history = known?.history ?? [];
    history.push(rates);
    if (history.length > HISTORY) history.shift();
    ports.set(port.name, { port, rates, drops, history, holds: known?.holds ?? [], traffic: known?.traffic });
  }
  const cpu = (all) => sum(all.workers.map((worker) => worker.cpu_ns));
  page.busy = before ? grown(cpu(stats), cpu(before)) / 1e9 : 0;
  Object.assign(page, { stats, ports, last: clock() });
}

/** Takes note of what the chosen port's policies have decided. */
function decide(why) {
  const known = page.ports.get(page.chosen);
  if (known) known.traffic = why.traffic;
  if (!known || !why.queues) return;
  known.holds.push({
    hold: Math.max(0, ...why.queues.map((queue) => queue.hold_ns)),
    max: Math.max(0, ...why.queues.map((queue) => queue.hold_ns_max)),
  });
  if (known.holds.length > HISTORY) known.holds.shift();
  for (const { queue, hold_ns, hold_ns_max, reason } of why.queues) {
    const last = page.decisions.find((it) => it.queue === queue);
    if (last && last.hold_ns === hold_ns && last.hold_ns_max === hold_ns_max && last.reason === reason) continue;
    page.decisions.unshift({ since: clock(), queue, hold_ns, hold_ns_max, reason });
  }
  page.decisions.length = Math.min(page.decisions.length, DECISIONS);
}

// What is shown

function show() {
  by("login").hidden = true;
  by("view").hidden = false;
  by("forget").hidden = !page.token;
  const { version, host, uptime_s, workers } = page.stats;
  const known = [...page.ports.values()];
  const moved = sum(known.map((it) => it.rates.tx));
  const threads = `${workers.length} ${workers.length === 1 ? "worker" : "workers"}`;
  document.title = host ? `weir on ${host}` : "weir";
  say(by("title"), document.title);
  say(by("summary"), `version ${version}, up ${age(uptime_s)}; ${threads}, ${percent(page.busy)} of a CPU; ` +
    `${rate(moved)} frames/s; ${states(known)}`);
  troubles(known);
  if (page.chosen && !page.ports.has(page.chosen)) choose(null);
  const found = known.filter((it) => isFound(it.port));
  draw(found);
  list(found);
  open();
  dropped(known);
}

/** How many ports there are in each state. */
function states(known) {
  const all = Object.keys(SIGNS).map((state) => [state, known.filter((it) => it.port.state === state).length]);
  const counted = all.filter(([, number]) => number).map(([state, number]) => `${number} ${state}`);
  return `${known.length === 1 ? "1 port" : `${known.length} ports`}: ${counted.join(", ") || "none"}`;
}

/** Why ports carry no frames: each reason once, with the ports that it holds for. */
function troubles(known) {
  const ports = new Map();
  for (const { port } of [...known].sort(byName)) {
    const { state, stopped_reason: stopped, blocked, sessions } = port;
    const last = state === "running" ? null : sessions?.last_error;
    const why = state === "stopped" ? `stopped: ${stopped ?? "no reason is known"}`
      : blocked ? `blocked: a loop with ${blocked.with}` : last && `${state}, last error: ${last}`;
    if (why) ports.set(why, [...(ports.get(why) ?? []), port.name]);
  }
  const all = [...ports].sort(([, a], [, b]) => b.length - a.length);
  const more = (shown, number) => (number > shown ? ` and ${number - shown} more` : "");
  const lines = all.slice(0, TROUBLES).map(([why, names]) =>
    `${names.slice(0, NAMES).join(", ")}${more(NAMES, names.length)}: ${why}`);
  if (all.length > TROUBLES) lines.push(`${all.length - TROUBLES} more reasons`);
  by("troubles").hidden = !lines.length;
  if (lines.join("\n") === [...by("troubles").children].map((it) => it.textContent).join("\n")) return;
  by("troubles").replaceChildren(...lines.map((line) => make("li", {}, line)));
}

function isFound({ name, mac, state, ...port }) {
  return `${name} ${mac ?? ""} ${state} ${network(port)}`.toLowerCase().includes(page.find);
}

function draw(found) {
  const groups = new Map();
  for (const it of found) {
    const key = network(it.port);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(it);
  }
  const order = ([a], [b]) => (b === "Several networks") - (a === "Several networks")
    || byText(a, b);
  const drawing = by("drawing");
  drawing.classList.toggle("dense", found.length > DENSE);
  for (const name of page.tiles.keys()) if (!page.ports.has(name)) page.tiles.delete(name);
  const nets = [...groups].sort(order).map(([key, members]) => {
    const old = [...drawing.children].find((net) => net.dataset.key === key);
    const net = old ?? make("div", { class: "net", "data-key": key },
      make("h3", {}, make("span", {}, key), make("small")), make("ul", { class: "tiles" }));
    say(net.querySelector("small"), members.length === 1 ? "1 port" : `${members.length} ports`);
    // Uplinks first: the way out is above.
    members.sort((a, b) => (a.port.kind === "vif") - (b.port.kind === "vif") || byName(a, b));
    arrange(net.lastElementChild, members.map(tile));
    return net;
  });
  arrange(drawing, nets.length ? nets : [nothing()]);
  const tiles = [...drawing.querySelectorAll(".tile")];
  const first = tiles.find((it) => it.tabIndex === 0) ?? tiles[0];
  // The keys of arrows go from one to another; the tabulator enters once.
  for (const it of tiles) it.tabIndex = it === first ? 0 : -1;
}

function nothing() {
  return make("p", { class: "empty" }, page.ports.size ? "No port is like this." : "The switch has no ports.");
}

function tile({ port, rates }) {
  let item = page.tiles.get(port.name);
  if (!item) {
    const button = make("button", { type: "button", class: "tile", tabindex: "-1", title: port.name },
      make("span", { class: "sign", "aria-hidden": "true" }), make("span", { class: "name" }, port.name),
      make("span", { class: "said" }), make("span", { class: "rate" }), make("span", { class: "rate bad" }));
    button.addEventListener("click", () => choose(port.name, true));
    item = make("li", {}, button);
    page.tiles.set(port.name, item);
  }
  const [sign, , said, flow, drops] = item.firstElementChild.children;
  set(item, "class", port.state);
  set(item.firstElementChild, "aria-current", String(port.name === page.chosen));
  say(sign, SIGNS[port.state] ?? "");
  say(said, `, ${port.kind === "vif" ? "" : `${KINDS[port.kind]}, `}${port.state}`);
  const [received, sent] = [rates.rx, rates.tx].map((it) => rate(it).replace(" ", "\u00a0"));
  say(flow, port.state === "running" ? `↓\u00a0${received} ↑\u00a0${sent}\u00a0/s` : port.state);
  say(drops, rates.drops ? `${rate(rates.drops)} dropped/s` : "");
  return item;
}

const COLUMNS = [
  ["name", "Port", (it) => it.port.name, "name"],
  ["state", "State", (it) => it.port.state],
  ["network", "Network", (it) => network(it.port), "optional"],
  ["rx", "Received/s", (it) => it.rates.rx, "number"],
  ["tx", "Sent/s", (it) => it.rates.tx, "number least"],
  ["bits", "Bit/s", (it) => it.rates.rxBits + it.rates.txBits, "number optional"],
  ["calls", "Calls/s", (it) => it.rates.calls, "number optional"],
  ["held", "Held, 99 of 100", (it) => it.port.hold_ns.p99, "number spare"],
  ["budget", "Of budget", (it) => used(it.port), "number optional"],
  ["cpu", "CPU", (it) => it.rates.cpu, "number optional"],
  ["drops", "Dropped/s", (it) => it.rates.drops, "number"],
];

const used = (port) => (port.latency_budget_ns ? port.hold_ns.p99 / port.latency_budget_ns : 0);

function list(found) {
  const of = COLUMNS.find(([key]) => key === page.sort)[2];
  const sign = page.down ? -1 : 1;
  const compare = (a, b) => (typeof of(a) === "string" ? byText(of(a), of(b)) : of(a) - of(b));
  const sorted = [...found].sort((a, b) => sign * compare(a, b) || byName(a, b)).slice(0, page.most);
  for (const name of page.rows.keys()) if (!page.ports.has(name)) page.rows.delete(name);
  arrange(by("rows"), sorted.map(row));
  by("more").hidden = found.length <= page.most;
  say(by("more"), `Show more of ${found.length} ports`);
  for (const header of by("columns").children) {
    if (header.dataset.key === page.sort) set(header, "aria-sort", page.down ? "descending" : "ascending");
    else header.removeAttribute("aria-sort");
  }
}

function row(it) {
  const { port, rates } = it;
  let cells = page.rows.get(port.name);
  if (!cells) {
    cells = make("tr", {}, ...COLUMNS.map(([, , , kind]) => make("td", { class: kind ?? "" })));
    const name = make("button", { type: "button" }, port.name);
    name.addEventListener("click", () => choose(port.name, true));
    cells.firstElementChild.append(name);
    cells.children[8].append(make("span"), make("span", { class: "gauge", "aria-hidden": "true" }, make("i")));
    page.rows.set(port.name, cells);
  }
  const [, state, where, rx, tx, flow, calls, held, budget, cpu, drops] = cells.children;
  say(state, port.state);
  state.classList.toggle("bad", port.state === "stopped");
  say(where, network(port));
  say(rx, rate(rates.rx));
  say(tx, rate(rates.tx));
  say(flow, bits(rates.rxBits + rates.txBits));
  say(calls, rate(rates.calls));
  say(held, port.kind === "vif" ? time(port.hold_ns.p99) : "–");
  gauge(budget, port);
  say(cpu, percent(rates.cpu));
  say(drops, rate(rates.drops));
  drops.classList.toggle("bad", rates.drops > 0);
  return cells;
}

function gauge(cell, port) {
  const [text, bar] = cell.children;
  const has = port.kind === "vif" && port.latency_budget_ns > 0;
  say(text, has ? percent(used(port)) : "–");
  bar.hidden = !has;
  bar.classList.toggle("full", used(port) > 1);
  bar.firstElementChild.style.width = `${Math.min(100, 100 * used(port))}%`;
}

/** The chosen port. */
function open() {
  const known = page.ports.get(page.chosen);
  by("port").hidden = !known;
  if (!known) return;
  const { port, rates, history, holds, traffic } = known;
  say(by("port-title"), port.name);
  const facts = [
    ["State", port.stopped_reason ? `${port.state}: ${port.stopped_reason}` : port.state],
    ["Kind", KINDS[port.kind]],
    ["Member of", membership(port)],
    ["Address", port.mac ?? "–"],
    ["Received", `${count(port.rx.frames)} frames, ${bits(rates.rxBits)}`],
    ["Sent", `${count(port.tx.frames)} frames, ${bits(rates.txBits)}`],
    ["Workers' time", percent(rates.cpu)],
  ];
  if (port.kind === "vif") {
    const { p50, p99, max } = port.hold_ns;
    const breaches = Object.entries(port.budget_breaches).map(([reason, n]) => `${count(n)} ${reason}`);
    facts.push(
      ["Latency budget", time(port.latency_budget_ns)],
      ["Held since it was added", `half ${time(p50)}, 99 of 100 ${time(p99)}, longest ${time(max)}`],
      ["Later than the budget", breaches.join(", ") || "never"],
      ["Calls are decided by", port.calls?.moderation ?? "–"],
      ["Queue pairs in use", port.queue_pairs ? `${port.queue_pairs.in_use} of ${port.queue_pairs.configured}` : "–"],
    );
  }
  if (traffic) facts.push(["Can reach", reach(traffic)], ["Last heard", heard(traffic)]);
  if (traffic?.astray) facts.push(["Its addresses", traffic.astray]);
  const { last_error: error, last_error_s: ago } = port.sessions;
  if (error) facts.push(["Last error of a session", ago == null ? error : `${age(ago)} ago: ${error}`]);
  const all = facts.map(([name]) => name).join();
  if (by("facts").dataset.all !== all) {
    by("facts").dataset.all = all;
    by("facts").replaceChildren(...facts.map(([name]) => make("div", {}, make("dt", {}, name), make("dd"))));
  }
  facts.forEach(([, value], n) => say(by("facts").children[n].lastElementChild, value));
  const charts = [chart("Frames/s", rate, [["received", "a", history.map((it) => it.rx)],
    ["sent", "b", history.map((it) => it.tx)]])];
  if (port.kind === "vif") {
    charts.push(chart("Calls are held back", time, [["now", "a", holds.map((it) => it.hold)],
      ["at most", "limit", holds.map((it) => it.max)]]));
  }
  by("charts").replaceChildren(...charts);
  by("decided").hidden = port.kind !== "vif";
  const decided = page.decisions.map(({ since, queue, hold_ns, hold_ns_max, reason }) => make("tr", {},
    make("td", {}, since), make("td", { class: "number spare" }, String(queue)), make("td", { class: "number" }, time(hold_ns)),
    make("td", { class: "number spare" }, time(hold_ns_max)), make("td", {}, reason)));
  by("decisions").replaceChildren(...(decided.length ? decided : [empty(5, "Nothing has been decided yet.")]));
}

/** Whom a port reaches, as `weir explain` counts. */
function reach({ vlan, reaches, silent, isolated }) {
  const others = [silent && `${silent} without a running guest`, isolated && `${isolated} isolated as it is`];
  return [`${reaches || "no"} other ${reaches === 1 ? "port" : "ports"} in ${vlan}`, ...others].filter(Boolean).join(", ");
}

const heard = ({ heard_s: ago }) => (ago === null || ago === undefined ? "never" : ago < 2 ? "now" : `${age(ago)} ago`);

/** Lines over the last samples; each has a name, a class, and values. */
function chart(title, shown, lines) {
  const most = Math.max(1, ...lines.flatMap(([, , values]) => values));
  const place = (value, n, length) => `${100 - (length - 1 - n) * (100 / (HISTORY - 1))},${39 - (37 * value) / most}`;
  const drawn = lines.map(([, kind, values]) => make("polyline", {
    class: kind, points: values.map((value, n) => place(value, n, values.length)).join(" "),
  }));
  const keys = lines.map(([name, kind, values]) => make("span", { class: `key ${kind}` },
    `${name} ${shown(values.at(-1) ?? 0)}`));
  return make("figure", {}, make("figcaption", {}, `${title}: `, ...keys, `top ${shown(most)}`),
    make("svg", { viewBox: "0 0 100 40", preserveAspectRatio: "none", "aria-hidden": "true" }, ...drawn));
}

function dropped(known) {
  const drops = known.flatMap((it) => it.drops).filter((drop) => drop.all > 0);
  drops.sort((a, b) => b.now - a.now || b.all - a.all);
  const rows = drops.slice(0, DROPS).map(({ port, reason, all, now }) => make("tr", {}, make("td", {}, reason),
    make("td", {}, port), make("td", { class: now ? "number bad" : "number" }, `${rate(now)}/s`),
    make("td", { class: "number" }, count(all))));
  by("drops").replaceChildren(...(rows.length ? rows : [empty(4, "No frame has been dropped.")]));
}

const empty = (columns, text) => make("tr", {}, make("td", { colspan: columns, class: "empty" }, text));

/** The lines of events that are shown, by what they say without its numbers. */
const told = new Map();

/** Shows an event in its own words. One that comes again is counted in its line, which goes to the top. */
function tell({ event, ...about }) {
  const values = Object.entries(about).filter(([name, value]) => name !== "port" && value !== null && value !== "");
  const written = (of) => `${about.port ? `${about.port}: ` : ""}${event}` +
    (of.length ? ` (${of.map(([name, value]) => `${name} ${value}`).join(", ")})` : "");
  const key = written(values.filter(([, value]) => typeof value !== "number"));
  if (!told.size) by("events").replaceChildren();
  const { times, line } = told.get(key) ?? { times: 0, line: make("li") };
  told.delete(key);
  told.set(key, { times: times + 1, line });
  line.replaceChildren(make("time", {}, clock()), written(values) + (times ? `, ${times + 1} times` : ""));
  by("events").prepend(line);
  if (told.size > EVENTS) {
    // A map keeps the order in which its keys came.
    const [oldest, { line: last }] = told.entries().next().value;
    told.delete(oldest);
    last.remove();
  }
}

// What a reader does

function choose(name, goes) {
  const before = page.chosen;
  if (name !== before) page.decisions = [];
  page.chosen = name;
  if (page.stats) show();
  if (name && name !== before && page.looking) {
    clearTimeout(page.looking);
    look(page.stop.signal);
  }
  if (name && goes) {
    by("port-title").focus({ preventScroll: true });
    by("port").scrollIntoView({ block: "nearest" });
  }
  if (!name && before) page.tiles.get(before)?.firstElementChild.focus();
}

/** The tile to which an arrow leads from one. */
function beside(from, key) {
  const tiles = [...document.querySelectorAll(".tile")];
  const at = tiles.indexOf(from);
  if (key === "ArrowRight") return tiles[at + 1];
  if (key === "ArrowLeft") return tiles[at - 1];
  const box = from.getBoundingClientRect();
  const away = (it) => {
    const { top, left } = it.getBoundingClientRect();
    const down = key === "ArrowDown" ? top - box.top : box.top - top;
    return down > 1 ? down * 1000 + Math.abs(left - box.left) : Infinity;
  };
  const nearest = tiles.reduce((best, it) => (away(it) < away(best) ? it : best), from);
  return nearest === from ? undefined : nearest;
}

document.addEventListener("keydown", (event) => {
  const types = event.target.matches("input");
  if (event.ctrlKey || event.altKey || event.metaKey || by("view").hidden) return;
  if (event.key === "/" && !types) by("find").focus();
  else if (event.key === "Escape" && page.chosen) choose(null);
  else if (event.key.startsWith("Arrow") && event.target.matches(".tile")) {
    const to = beside(event.target, event.key);
    if (to) [event.target.tabIndex, to.tabIndex] = [-1, 0];
    to?.focus();
  } else return;
  event.preventDefault();
});

by("login").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = by("token").value.trim();
  by("token").value = "";
  if (!/^[\x21-\x7e]{16,1024}$/.test(token)) return login("A token has 16 to 1024 printable characters without spaces.");
  page.token = token;
  sessionStorage.setItem("token", token);
  start();
});
by("forget").addEventListener("click", () => login(""));
by("close").addEventListener("click", () => choose(null));
by("more").addEventListener("click", () => { page.most += 4 * ROWS; show(); });
by("find").addEventListener("input", () => { page.find = by("find").value.trim().toLowerCase(); if (page.stats) show(); });
document.addEventListener("visibilitychange", start);

for (const [key, title, , kind] of COLUMNS) {
  const button = make("button", { type: "button" }, title);
  button.addEventListener("click", () => {
    page.down = page.sort === key ? !page.down : (kind ?? "").includes("number");
    page.sort = key;
    if (page.stats) show();
  });
  by("columns").append(make("th", { scope: "col", class: kind ?? "", "data-key": key }, button));
}
start();
