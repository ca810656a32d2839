"use strict";
// Shows what GET /v1/events sends every two seconds; where that breaks, what GET /v1/status says, until the stream is there again.
// Text is only ever set as text, never as markup: names come from outside.

const REFRESH_MS = 2000; // as often as a person can read it
const SILENT_MS = 7000; // three frames have not come
const NAME = 44;

// The metrics' words for how a request was served, as people say it.
const RESULTS = { hit: "from the cache", collapsed: "shared a fetch", partial: "in part from the cache", miss: "fetched", bypass: "not stored", relayed: "in parts, not stored" };
const HEADLINES = { fine: ["\u2714", "No wait"], look: ["\u25B2", "Look"], act: ["\u2716", "Act"] };
const CAUSES = { origin: "origin", proxy: "proxy", disk: "disk", read: "read", decode: "decode", map: "user code", collate: "collate", transfer: "transfer", start: "start", other: "not known" };

const byId = (id) => document.getElementById(id);
function setText(id, text) { if (byId(id).textContent !== text) byId(id).textContent = text; } // an unchanged one is not read out again

const count = (number) => (Number.isFinite(number) ? number.toLocaleString("en") : "-");
const percent = (part) => `${(100 * part).toFixed(part < 0.1 ? 1 : 0)} %`;
const share = (part, whole) => (whole > 0 ? `${(100 * part / whole).toFixed(1)} %` : "-");

function bytes(number) {
  if (!Number.isFinite(number)) return "-";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let power = 0;
  while (number >= 1000 && power < units.length - 1) { number /= 1000; power += 1; }
  return `${power ? number.toFixed(number < 10 ? 2 : 1) : Math.round(number)} ${units[power]}`;
}

function seconds(number) {
  if (!Number.isFinite(number)) return "-";
  if (number < 1) return `${(1000 * number).toFixed(0)} ms`;
  if (number < 120) return `${number.toFixed(1)} s`;
  return number < 7200 ? `${(number / 60).toFixed(0)} min` : `${(number / 3600).toFixed(1)} h`;
}

// Names differ at their ends: what is too long is cut in its middle.
function cut(name, most = NAME) {
  return name.length <= most ? name : `${name.slice(0, Math.floor(most / 3))}\u2026${name.slice(name.length - (most - Math.floor(most / 3) - 1))}`;
}

function element(name, text, className) {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function named(name, className = "", most = NAME) {
  const cell = element("td", cut(name, most), className);
  if (name.length > most) cell.title = name;
  return cell;
}

function list(id, pairs) {
  byId(id).replaceChildren(...pairs.flatMap(([name, value]) => [element("dt", name), element("dd", value)]));
}

// Parts of a whole as one bar: [class, part] each, of 1.
function bar(parts, said, className = "") {
  const cell = element("td", "", className), box = element("div", "", "bar"), picture = svg("svg", { width: "100%", height: "100%" });
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", said);
  let from = 0;
  for (const [kind, part] of parts) {
    picture.append(svg("rect", { class: kind, x: `${100 * from}%`, width: `${100 * part}%`, height: "100%" }));
    from += part;
  }
  box.append(picture);
  cell.append(box);
  return cell;
}

function progress(position, length, className = "") {
  const cell = element("td", "", className);
  if (length > 0) {
    const made = document.createElement("progress");
    made.max = length;
    made.value = position;
    cell.append(made);
  }
  return cell;
}

// Rows that say what they said stay as they are: a table made anew costs several frames of the map. ``shared``: what all rows depend on.
const standing = {};
function rows(id, items, total, cells, nothing, shared = "") {
  const before = standing[id] ?? new Map(), now = standing[id] = new Map();
  const made = items.map((item, place) => {
    const said = shared + JSON.stringify(item, (name, value) => (name === "silent_s" ? undefined : value));
    const key = now.has(said) ? `${said} ${place}` : said;
    let row = before.get(key);
    if (!row) {
      row = document.createElement("tr");
      row.append(...cells(item, row));
    }
    now.set(key, row);
    return row;
  });
  const note = items.length === 0 ? nothing : total > made.length ? `and ${count(total - made.length)} more: see the JSON` : "";
  if (note) {
    const row = document.createElement("tr");
    const cell = element("td", note, "quiet");
    cell.colSpan = 8;
    row.append(cell);
    made.push(row);
  }
  const body = byId(id);
  made.forEach((row, place) => { if (body.children[place] !== row) body.insertBefore(row, body.children[place] ?? null); });
  while (body.children.length > made.length) body.lastElementChild.remove();
  const section = byId(`${id}-section`);
  if (section) section.hidden = items.length === 0;
}

function showVerdict(status) {
  const verdict = status.verdict ?? { severity: "look", share: null, cause: "", sentence: "", do: "", line: "" };
  const [icon, word] = HEADLINES[verdict.severity] ?? HEADLINES.look;
  const waits = verdict.share === null ? "" : verdict.severity === "fine" ? "for data" : `training waits ${percent(verdict.share)}`;
  const why = verdict.severity === "fine" ? "" : verdict.cause;
  byId("verdict").className = `wide ${verdict.severity}`;
  setText("icon", icon);
  setText("word", waits && verdict.severity !== "fine" ? `${word}:` : word);
  setText("share", waits);
  setText("cause", why && `cause: ${why}`);
  setText("do", verdict.do);
  // A span a word: a browser breaks lines within "--cache-size", which is copied by hand then.
  const words = verdict.line.split(" ").filter(Boolean);
  byId("line").replaceChildren(...words.flatMap((word, at) => [element("span", word), at + 1 < words.length ? " " : ""]));
  byId("copy").hidden = !verdict.line;
  setText("sentence", verdict.sentence);
  document.title = `${icon} ${[word, waits, why].filter(Boolean).join(" ")} \u00B7 Forebay ${status.host ?? status.url}`;
}

function showRanks(meters, total) {
  const rates = meters.map((rank) => (rank.lately.wall_s > 0 ? rank.lately.samples / rank.lately.wall_s : 0)), most = Math.max(1e-9, ...rates);
  const seen = new Set(meters.filter((rank) => !rank.silent).flatMap(({ lately }) => Object.keys(lately.stall_s).filter((cause) => lately.stall_s[cause] > 0.005 * lately.wall_s)));
  rows("ranks", meters, total, (rank, row) => {
    const { stall_s: causes, wall_s: wall, samples } = rank.lately;
    const stall = Object.values(causes).reduce((sum, each) => sum + each, 0);
    const sorted = Object.entries(causes).filter(([, each]) => each > 0).sort((a, b) => b[1] - a[1]);
    const parts = sorted.filter(([, each]) => each >= stall / 10).map(([cause, each]) => `${CAUSES[cause] ?? cause} ${share(each, wall)}`).join(", ");
    row.className = rank.ended || rank.silent ? "ended" : "";
    const worker = rank.slowest_worker === null || rank.slowest_worker === undefined ? "" : `worker ${rank.slowest_worker}`;
    const who = element("td", `rank ${rank.rank}${rank.ended ? " (ended)" : ""}`), job = element("small", cut(rank.job, 26));
    who.title = rank.reader ?? rank.job;
    who.append(job);
    return [
      who,
      bar(wall > 0 ? sorted.map(([cause, each]) => [`c-${cause}`, Math.min(1, each / wall)]) : [], parts || "no wait"),
      element("td", share(Math.min(stall, wall), wall), "right"),
      element("td", rank.silent || parts),
      element("td", wall > 0 ? (samples / wall).toFixed(0) : "-", "right"),
      bar(wall > 0 ? [["rate", samples / wall / most]] : [], "samples a second, of the fastest rank's", "roomy"),
      element("td", count(rank.skipped), "right roomy"),
      named([worker, rank.slowest_shard ?? ""].filter(Boolean).join(", "), "roomy"),
    ];
  }, "", most);
  byId("causes-key").replaceChildren(...Object.keys(CAUSES).filter((cause) => seen.has(cause)).map((cause) => element("span", CAUSES[cause], `key c-${cause}`)));
}

function showProgress(status) {
  rows("progress", status.progress ?? [], status.progress_total ?? 0, (job) => {
    const least = status.leads[job.job];
    const told = job.length === job.of ? "" : ` announced${Number.isFinite(job.of) ? `, of ${count(job.of)}` : ""}`; // of this node, or of what comes
    const epoch = job.epoch === null ? "" : `, epoch ${job.epoch}`;
    return [
      named(job.job),
      element("td", `shard ${count(job.position)} of ${count(job.length)}${told}${epoch}`),
      progress(job.position, job.length, "roomy"),
      element("td", least ? `${seconds(least.seconds)}, ${bytes(least.bytes)}` : "-", "right"),
      element("td", count(job.readers), "right roomy"),
    ];
  }, "", JSON.stringify(status.leads));
}

function showDerived(caches, total) {
  rows("derived", caches, total, (cache) => {
    const job = named(cache.job), kind = element("small", [cache.kind, ...cache.folders.map((each) => each.folder), cache.off ? `given up ${count(cache.off)} x` : ""].filter(Boolean).join(", "));
    job.append(" ", kind);
    const numbers = ["hits", "made", "kept", "dropped", "damaged"].map((name) => element("td", count(cache[name]), ["dropped", "damaged"].includes(name) ? "right roomy" : "right"));
    return [job, element("td", cache.folders.length ? `${bytes(cache.bytes)} of ${bytes(cache.limit_bytes)}` : "-"), progress(cache.bytes, cache.limit_bytes, "roomy"), ...numbers];
  }, "");
}

function answers(codes) {
  return Object.entries(codes).map(([code, times]) => `${count(times)} x ${code === "0" ? "failed" : code}`).join(", ");
}

function showOrigins(origins, total) {
  rows("origins", origins, total, (origin) => {
    const recent = origin.last_error && origin.last_error_s_ago < 60;
    return [
      named(origin.origin),
      element("td", `${bytes(origin.rate_bytes_s)}/s`, "right"),
      element("td", seconds(origin.first_byte_s ?? NaN), "right"),
      element("td", Number.isFinite(origin.slots) ? `${origin.in_flight} of ${origin.slots}` : String(origin.in_flight), "right"),
      element("td", answers(origin.codes_last_minute) || `last ${origin.last_code ?? "-"}`, "roomy"),
      element("td", count(origin.throttled), "right roomy"),
      element("td", origin.last_error ? `${origin.last_error}, ${seconds(origin.last_error_s_ago)} ago` : "", recent ? "waits" : ""),
    ];
  }, "");
}

function showSets(sets, total) {
  rows("sets", sets, total, (set) => {
    const opened = Object.entries(set.opened).map(([job, times]) => `${cut(job) || "readers without a name"}: ${count(times)}`);
    const shards = `${count(set.shards)} shard${set.shards === 1 ? "" : "s"}`, counted = Number.isFinite(set.complete);
    const here = counted ? progress(set.complete, set.shards) : element("td", "");
    here.append(counted ? `${count(set.complete)} of ${shards}` : shards);
    const state = element("td", set.state);
    for (const each of set.failures ?? []) {
      const which = each.count === 1 ? each.shard : `${count(each.count)} shards (${each.shard} and others)`;
      state.append(element("p", `${which} cannot be fetched: ${each.cause}${each.next_step ? "; " : ""}${each.next_step}`, "waits"));
    }
    const jobs = opened.length > 8 ? [...opened.slice(0, 8), `and ${opened.length - 8} more jobs`] : opened;
    return [named(set.set), state, here, element("td", bytes(set.stored_bytes ?? NaN), "right roomy"), element("td", jobs.join(" \u00B7 ") || "nobody reads it", "roomy")];
  }, "");
}

function showReaders(readers, total) {
  rows("readers", readers, total, (reader) => [
    element("td", reader.waiting_for ? `\u25B2 ${reader.waiting_for}` : "\u25CF reads", reader.waiting_for ? "waits" : "quiet"),
    named(reader.reader, "", 30),
    named(reader.shard),
    element("td", reader.length_bytes === null ? bytes(reader.position_bytes) : `${bytes(reader.position_bytes)} of ${bytes(reader.length_bytes)}`, "roomy"),
    element("td", seconds(reader.waited_s), "right roomy"),
  ], "nobody is reading");
}

function showTotals(status) {
  const { cache, bytes: moved } = status, held = ["stored", "reserved", "doomed", "overhead"], bound = cache.effective_bytes ?? cache.capacity_bytes;
  setText("disk-held", bytes(held.reduce((sum, name) => sum + cache[`${name}_bytes`], 0)));
  setText("disk-bound", bytes(bound));
  setText("disk-shards", count(cache.shards));
  setText("disk-flights", count(cache.in_flight));
  let from = 0;
  for (const name of held) {
    const width = bound > 0 ? 100 * cache[`${name}_bytes`] / bound : 0;
    byId(`bar-${name}`).setAttribute("x", `${from}%`);
    byId(`bar-${name}`).setAttribute("width", `${width}%`);
    from += width;
  }
  list("bytes", [
    ["sent to readers", bytes(moved.sent)],
    ["of them from the cache", `${bytes(moved.hit)} (${share(moved.hit, moved.sent)})`],
    ["fetched from origins", bytes(moved.origin)],
    ["saved", bytes(moved.saved)],
  ]);
  const served = Object.entries(status.requests).filter(([, times]) => times > 0).map(([name, times]) => [RESULTS[name] ?? name, count(times)]);
  list("requests", [...served, ["readers waited", seconds(status.reader_wait_s)], ["answered with an error", count(status.errors)]]);
}

function show(status) {
  showVerdict(status);
  setText("state", status.state === "ready" ? "running" : status.state);
  byId("state").className = `badge ${status.state}`;
  setText("where", `${status.url} \u00B7 ${status.cache_dir}`);
  setText("about", `version ${status.forebay}, pid ${status.pid}, up ${seconds(status.uptime_s)}${status.log ? `, log ${status.log}` : ""} \u00B7`);
  setText("chosen", (status.chosen ?? []).join(" \u00B7 "));
  const ill = status.cache.disk_state !== "normal" ? [`cache disk ${status.cache.disk_state}: ${status.cache.disk_reason}`] : [];
  const notices = [...ill, ...(status.troubles ?? []), ...status.notices];
  byId("notices").hidden = notices.length === 0;
  byId("notices").replaceChildren(...notices.map((text) => element("li", text)));
  const all = (name) => [status[name] ?? [], status[`${name}_total`] ?? (status[name] ?? []).length];
  showRanks(...all("meters"));
  showProgress(status);
  showSets(...all("sets"));
  showDerived(...all("derived"));
  showOrigins(...all("origins"));
  showReaders(...all("readers"));
  rows("errors", status.recent_errors ?? [], 0, (error) => [
    element("td", new Date(1000 * error.at).toLocaleTimeString(), "tight"), element("td", `${count(error.count)} x`, "right"), element("td", `${error.what}: ${error.error}`),
  ], "");
  const [happened, more] = all("events");
  rows("events", happened, more, (event) => [element("td", new Date(1000 * event.at).toLocaleTimeString(), "tight"), element("td", event.what)], "");
  showTotals(status);
}

// The last minutes

const CURVES = [
  ["training waits", 1, percent, 0.2], ["samples/s", 2, (rate) => rate.toFixed(0), 1], ["from origins", 3, (rate) => `${bytes(rate)}/s`, 1],
  ["to readers", 4, (rate) => `${bytes(rate)}/s`, 1], ["of that from the cache", 5, percent, 1], ["least lead", 6, seconds, 1],
];
let past = [];

function showHistory() {
  byId("curves").replaceChildren(...CURVES.map(([title, column, said, least]) => curve(title, past.map((row) => row[column]), said, least)));
  if (!byId("history").open) return;
  byId("history-rows").replaceChildren(...past.filter((_, index) => (past.length - 1 - index) % 12 === 0).reverse().map((row) => {
    const line = document.createElement("tr");
    line.append(element("td", new Date(1000 * row[0]).toLocaleTimeString()), ...CURVES.map(([, column, said]) => element("td", row[column] === null ? "-" : said(row[column]))));
    return line;
  }));
}

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(`the sidecar answers ${answer.status}`);
  return answer.json();
}

async function loadHistory() {
  past = (await ask("/v1/history")).rows;
  showHistory();
}

// The map of shards

const map = new ShardMap(byId("map"), (text) => setText("map-cell", text || "Point at a cell, or use the arrow keys on the map, to read a shard's name."));

async function loadMap() {
  map.whole(await ask("/v1/shards/map"));
  showMapSums();
}

function showMapSums() {
  const { counts, read } = map.counts();
  const parts = Object.keys(CELLS).filter((letter) => counts[letter]).map((letter) => `${count(counts[letter])} ${CELLS[letter]}`);
  setText("map-sum", map.names.length ? `${count(map.names.length)} shards: ${parts.join(", ")}; ${count(read)} read in this epoch` : "no shard is here or announced");
}

function showMapKey() {
  const cells = [...Object.entries(CELLS), ["H", "read in this epoch, still here"], ["A", "read in this epoch, and gone"]].map(([letter, text]) => {
    const sample = document.createElement("canvas"), item = element("span", "");
    sample.width = sample.height = 13;
    drawCell(sample.getContext("2d"), letter, 0, 0, 11, map.colours);
    item.append(sample, text);
    return item;
  });
  byId("map-key").replaceChildren(...cells, element("span", "\u25CF a reader"), element("span", "\u25B2 a reader that waits"));
}

// Staying in touch

let heardAt = performance.now(), instance = "", stream = null, polls = 0;

function heard(status) {
  heardAt = performance.now();
  document.body.classList.remove("lost");
  show(status);
  if (status.instance !== instance) { // the first one, or another sidecar than before
    instance = status.instance;
    loadHistory().catch(lost);
    loadMap().catch(lost);
  }
  const last = status.history_last;
  if (last && (!past.length || last[0] !== past[past.length - 1][0])) {
    past = [...past, last].slice(-ROWS);
    showHistory();
  }
}

function lost() {
  document.body.classList.add("lost");
  byId("state").className = "badge lost";
  setText("state", `no answer for ${seconds((performance.now() - heardAt) / 1000)}: what stands here is old`);
}

function listen() {
  stream = new EventSource("/v1/events");
  stream.addEventListener("status", (event) => heard(JSON.parse(event.data)));
  stream.addEventListener("shards", (event) => {
    const told = JSON.parse(event.data);
    if (told.version !== map.version) loadMap().catch(lost);
    else { map.update(told); showMapSums(); }
  });
  stream.onerror = () => {
    stream.close();
    stream = null;
    poll();
  };
}

async function poll() {
  try {
    heard(await ask("/v1/status"));
    if (polls % 5 === 4) await Promise.all([loadHistory(), loadMap()]);
    polls += 1;
  } catch {
    lost();
  }
  setTimeout(listen, REFRESH_MS);
}

setInterval(() => { if (performance.now() - heardAt > SILENT_MS) lost(); }, REFRESH_MS);

byId("copy").addEventListener("click", async () => {
  try {
    await navigator.clipboard.writeText(byId("line").textContent);
    setText("copy", "Copied");
  } catch { // a browser lets only local and encrypted pages do it: the line is selected, to be copied by hand
    getSelection().selectAllChildren(byId("line"));
    setText("copy", "Selected");
  }
  setTimeout(() => setText("copy", "Copy"), 2000);
});
byId("history").addEventListener("toggle", showHistory);

map.layout();
showMapKey();
showHistory();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showMapKey);
listen();
