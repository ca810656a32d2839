"use strict";
// Reads /v1/status every two seconds and shows it. Text is only ever set as text, never as markup: names of shards come from outside.

const REFRESH_MS = 2000; // as often as a person can read it; one answer costs the sidecar well under a millisecond
const JOBS_SHOWN = 8;
const ROWS_SHOWN = 200; // a node has at most a few dozen readers; beyond this the page says so instead of growing

// The metrics' words for how a request was served, as people say it.
const RESULTS = { hit: "from the cache", collapsed: "shared a fetch", partial: "in part from the cache", miss: "fetched", bypass: "not stored", relayed: "in parts, not stored" };

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

// Waiting readers differ in shape and in word, not only in colour.
function state(plan) {
  const [shape, word] = plan.waiting ? ["\u25B2", "waits"]
    : plan.position >= plan.length ? ["\u25A0", "at its end"]
    : plan.position > 0 ? ["\u25CF", "reads"] : ["\u25CB", "announced"];
  const cell = element("td", "", plan.waiting ? "state waits" : "state");
  const mark = element("span", shape, "mark");
  mark.setAttribute("aria-hidden", "true");
  cell.append(mark, ` ${word}`);
  return cell;
}

function offPlan(openings) {
  const wrong = openings.skipped + openings.repeated + openings.unplanned;
  const cell = element("td", wrong ? `${wrong} of ${wrong + openings.planned}` : "-", "right");
  if (wrong) cell.title = `${openings.skipped} after passing some over, ${openings.repeated} once more, ${openings.unplanned} unannounced`;
  return cell;
}

function rows(id, items, total, cells, nothing) {
  const made = items.slice(0, ROWS_SHOWN).map((item) => {
    const row = document.createElement("tr");
    row.append(...cells(item));
    return row;
  });
  const note = items.length === 0 ? nothing : total > made.length ? `and ${total - made.length} more: see the JSON` : "";
  if (note) {
    const row = document.createElement("tr");
    const cell = element("td", note, "quiet");
    cell.colSpan = 8;
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
  document.title = `Forebay \u00B7 ${status.host ?? status.url}${status.state === "ready" ? "" : ` \u00B7 ${status.state}`}`;
  setText("verdict", status.verdict?.sentence ?? "");
  setText("state", status.state);
  byId("state").className = `badge ${status.state}`;
  setText("where", `${status.url} · ${status.cache_dir}`);
  setText("chosen", (status.chosen ?? []).join(" \u00B7 "));
  const log = status.log ? ` \u00B7 log ${status.log}` : "";
  setText("about", `version ${status.forebay}, pid ${status.pid}, up ${seconds(status.uptime_s)}${log} ·`);
  const ill = status.cache.disk_state !== "normal" ? [`cache disk ${status.cache.disk_state}: ${status.cache.disk_reason}`] : [];
  const notices = [...ill, ...(status.troubles ?? []), ...status.notices];
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
  list("requests", Object.entries(status.requests).map(([name, count]) => [RESULTS[name] ?? name, String(count)]));
  list("waits", [["readers waited", seconds(status.reader_wait_s)], ["errors", String(status.errors)]]);
  rows("readers", status.readers, status.readers.length, (reader) => [
    element("td", reader.reader, "name"),
    element("td", reader.shard, "name"),
    progress(reader.position_bytes, reader.length_bytes, reader.length_bytes === null ? bytes(reader.position_bytes) : `${bytes(reader.position_bytes)} of ${bytes(reader.length_bytes)}`),
    element("td", seconds(reader.waited_s), "right"),
    element("td", reader.waiting_for ?? "", reader.waiting_for ? "state waits" : ""),
  ], "nobody is reading");
  showRanks(status.meters ?? []);
  showOrigins(status.origins ?? []);
  showErrors(status.recent_errors ?? []);
  showSets(status.sets ?? []);
  setText("leads", Object.entries(status.leads).slice(0, JOBS_SHOWN).map(([job, least]) =>
    `least lead of ${job}: ${seconds(least.seconds)}, ${bytes(least.bytes)}`).join(" \u00B7 "));
  rows("plans", status.plans, status.plans_total, (plan) => [
    element("td", plan.reader, "name"),
    state(plan),
    element("td", plan.epoch ?? "-"),
    progress(plan.position, plan.length, `${plan.position} of ${plan.length}`),
    element("td", plan.rate.toPrecision(2), "right"),
    element("td", `${seconds(plan.lead_s)}, ${bytes(plan.lead_bytes)}`, "right"),
    element("td", seconds(plan.waited_s), "right"),
    offPlan(plan.openings),
  ], "no plan is announced");
}

// As `forebay status` says it: the causes that are a tenth of the stall at least.
function showRanks(meters) {
  byId("ranks-section").hidden = meters.length === 0;
  rows("ranks", meters, meters.length, (rank) => {
    const { stall_s: causes, wall_s: wall, steps } = rank.lately;
    const stall = Object.values(causes).reduce((sum, count) => sum + count, 0);
    const named = Object.entries(causes).filter(([, count]) => count > 0 && count >= stall / 10).sort((a, b) => b[1] - a[1]);
    return [
      element("td", `${rank.job} ${rank.rank}${rank.ended ? " (ended)" : ""}`, "name"),
      element("td", share(stall, wall), "right"),
      element("td", named.map(([cause, count]) => `${cause} ${(100 * count / stall).toFixed(0)} %`).join(", ")),
      element("td", steps > 0 ? `${(wall / steps).toFixed(3)} s` : "-", "right"),
      element("td", rank.batch_size ?? "-", "right"),
      element("td", rank.slowest_worker ?? "-", "right"),
      element("td", rank.slowest_shard ?? "-", "name"),
      element("td", rank.skipped, "right"),
    ];
  }, "");
}

function answers(codes) {
  return Object.entries(codes).map(([code, count]) => `${count} x ${code === "0" ? "no answer" : code}`).join(", ");
}

function showOrigins(origins) {
  byId("origins-section").hidden = origins.length === 0;
  rows("origins", origins, origins.length, (origin) => [
    element("td", origin.origin, "name"),
    element("td", `${bytes(origin.rate_bytes_s)}/s`, "right"),
    element("td", origin.in_flight, "right"),
    element("td", answers(origin.codes_last_minute) || `last ${origin.last_code ?? "-"}`),
    element("td", origin.throttled, "right"),
    element("td", origin.retries, "right"),
    element("td", origin.last_error ? `${origin.last_error}, ${seconds(origin.last_error_s_ago)} ago` : ""),
  ], "");
}

function showErrors(errors) {
  byId("errors-section").hidden = errors.length === 0;
  rows("errors", errors, errors.length, (error) => [
    element("td", new Date(1000 * error.at).toLocaleTimeString()),
    element("td", error.what),
    element("td", error.count, "right"),
    element("td", error.error),
  ], "");
}

function showSets(sets) {
  byId("sets-section").hidden = sets.length === 0;
  rows("sets", sets, sets.length, (set) => {
    const opened = Object.entries(set.opened);
    const shards = `${set.shards.toLocaleString("en")} shard${set.shards === 1 ? "" : "s"}`;
    const jobs = opened.slice(0, JOBS_SHOWN).map(([job, count]) => `${job || "readers without a name"}: ${count.toLocaleString("en")}`);
    if (opened.length > JOBS_SHOWN) jobs.push(`and ${opened.length - JOBS_SHOWN} more jobs`);
    const counted = Number.isFinite(set.complete);
    return [
      element("td", set.set, "name"),
      setState(set),
      counted ? progress(set.complete, set.shards, `${set.complete.toLocaleString("en")} of ${shards}`) : element("td", shards),
      element("td", bytes(set.stored_bytes ?? NaN), "right"),
      element("td", jobs.join(" \u00B7 ") || "nobody reads it", "name"),
    ];
  }, "");
}

function setState(set) {
  const cell = element("td", set.state);
  for (const each of set.failures ?? []) {
    const which = each.count === 1 ? each.shard : `${each.count.toLocaleString("en")} shards (${each.shard} and others)`;
    cell.append(element("p", `${which} cannot be fetched: ${each.cause}${each.next_step ? "; " : ""}${each.next_step}`, "state waits"));
  }
  return cell;
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
