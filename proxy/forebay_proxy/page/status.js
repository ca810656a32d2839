"use strict";
// Reads /v1/status every two seconds and shows it. Text is only ever set as text, never as markup: names of shards come from outside.

const REFRESH_MS = 2000; // as often as a person can read it; one answer costs the sidecar well under a millisecond
const ROWS_SHOWN = 200; // a node has at most a few dozen readers; beyond this the page says so instead of growing

const byId = (id) => document.getElementById(id);
const setText = (id, text) => { byId(id).textContent = text; };

function bytes(count) {
  if (!Number.isFinite(count)) return "-";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let power = 0;
  while (count >= 1000 && power < units.length - 1) { count /= 1000; power += 1; }
  return `${power ? count.toFixed(count < 10 ? 2 : 1) : count} ${units[power]}`;
}

function seconds(count) {
  if (!Number.isFinite(count)) return "-";
  if (count < 120) return `${count.toFixed(1)} s`;
  return count < 7200 ? `${(count / 60).toFixed(0)} min` : `${(count / 3600).toFixed(1)} h`;
}

function element(name, text, className) {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}

function list(id, pairs) {
  byId(id).replaceChildren(...pairs.flatMap(([name, value]) => [element("dt", name), element("dd", value)]));
}

function share(part, whole) {
  return whole > 0 ? `${(100 * part / whole).toFixed(1)} %` : "-";
}

function progress(position, length, text) {
  const cell = document.createElement("td");
  if (length > 0) {
    const bar = document.createElement("progress");
    bar.max = length;
    bar.value = position;
    cell.append(bar, " ");
  }
  cell.append(text);
  return cell;
}

function rows(id, items, cells, nothing) {
  const made = items.slice(0, ROWS_SHOWN).map((item) => {
    const row = document.createElement("tr");
    row.append(...cells(item));
    return row;
  });
  const note = items.length === 0 ? nothing : items.length > ROWS_SHOWN ? `and ${items.length - ROWS_SHOWN} more` : "";
  if (note) {
    const row = document.createElement("tr");
    const cell = element("td", note, "quiet");
    cell.colSpan = 4;
    row.append(cell);
    made.push(row);
  }
  byId(id).replaceChildren(...made);
}

function showDisk(cache) {
  const held = ["stored", "reserved", "doomed", "overhead"];
  const bound = cache.effective_bytes ?? cache.capacity_bytes;
  setText("disk-held", bytes(held.reduce((sum, name) => sum + cache[`${name}_bytes`], 0)));
  setText("disk-bound", bytes(bound));
  setText("disk-shards", cache.shards);
  setText("disk-flights", cache.in_flight);
  let from = 0;
  for (const name of held) {
    const width = bound > 0 ? 100 * cache[`${name}_bytes`] / bound : 0;
    byId(`bar-${name}`).setAttribute("x", `${from}%`);
    byId(`bar-${name}`).setAttribute("width", `${width}%`);
    from += width;
  }
}

function show(status) {
  document.title = `Forebay ${status.state}`;
  setText("state", status.state);
  byId("state").className = `badge ${status.state}`;
  setText("where", `${status.url} · ${status.cache_dir}`);
  setText("about", `version ${status.forebay}, pid ${status.pid}, up ${seconds(status.uptime_s)} ·`);
  const ill = status.cache.disk_state !== "normal" ? [`cache disk ${status.cache.disk_state}: ${status.cache.disk_reason}`] : [];
  const notices = [...ill, ...status.notices];
  byId("notices").hidden = notices.length === 0;
  byId("notices").replaceChildren(...notices.map((text) => element("li", text)));
  showDisk(status.cache);
  const moved = status.bytes;
  list("bytes", [
    ["sent to readers", bytes(moved.sent)],
    ["of them from the cache", `${bytes(moved.hit)} (${share(moved.hit, moved.sent)})`],
    ["fetched from origins", bytes(moved.origin)],
    ["saved", bytes(moved.saved)],
  ]);
  list("requests", Object.entries(status.requests).map(([name, count]) => [name, String(count)]));
  list("waits", [["readers waited", seconds(status.reader_wait_s)], ["errors", String(status.errors)]]);
  rows("readers", status.readers, (reader) => [
    element("td", reader.reader, "name"),
    element("td", reader.shard, "name"),
    progress(reader.position_bytes, reader.length_bytes, `${bytes(reader.position_bytes)} of ${bytes(reader.length_bytes ?? NaN)}`),
    element("td", seconds(reader.waited_s), "right"),
  ], "nobody is reading");
  rows("plans", status.plans, (plan) => [
    element("td", plan.reader, "name"),
    element("td", plan.epoch ?? "-"),
    progress(plan.position, plan.length, `${plan.position} of ${plan.length}`),
    element("td", bytes(plan.ahead_bytes), "right"),
  ], "no plan is announced");
}

async function refresh() {
  try {
    const answer = await fetch("/v1/status", { cache: "no-store" });
    if (!answer.ok) throw new Error(`the sidecar answers ${answer.status}`);
    show(await answer.json());
  } catch (error) {
    setText("state", "no answer");
    byId("state").className = "badge lost";
    byId("state").title = String(error);
  }
  setTimeout(refresh, document.hidden ? 5 * REFRESH_MS : REFRESH_MS);
}

refresh();
