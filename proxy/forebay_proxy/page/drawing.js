"use strict";
// Curves (SVG) and the map of shards (canvas). Nothing here asks the sidecar.

const SVG = "http" + "://www.w3.org/2000/svg"; // a name, not an address
const ROWS = 180; // as many as the sidecar keeps, one every 5 s

function svg(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

// One small picture: ``rows`` are values or null; gaps stay gaps.
function curve(title, rows, said, least) {
  const values = rows.filter((value) => value !== null);
  const most = Math.max(least, ...values);
  const x = (place) => (100 * (1 - (rows.length - 1 - place) / (ROWS - 1))).toFixed(2); // by number: a clock that is set moves no curve
  const y = (value) => (38 - 36 * Math.min(1, value / most)).toFixed(2);
  let line = "", area = "", run = [];
  const close = () => {
    if (!run.length) return;
    const points = run.map(([place, value]) => `${x(place)} ${y(value)}`).join("L");
    line += `M${points}`;
    area += `M${x(run[0][0])} 40L${points}L${x(run[run.length - 1][0])} 40Z`;
    run = [];
  };
  rows.forEach((value, place) => { if (value === null) close(); else run.push([place, value]); });
  close();
  const box = document.createElement("div");
  box.className = "curve";
  const head = document.createElement("h3");
  const last = rows.length ? rows[rows.length - 1] : null;
  const strong = document.createElement("strong");
  strong.textContent = last === null ? "-" : said(last);
  const small = document.createElement("small");
  small.textContent = values.length ? ` max. ${said(Math.max(...values))}` : "";
  head.textContent = title;
  const picture = svg("svg", { viewBox: "0 0 100 40", preserveAspectRatio: "none", role: "img", "aria-label": `${title}: now ${strong.textContent},${small.textContent || " nothing told"}` });
  picture.append(svg("path", { class: "area", d: area }), svg("path", { d: line }));
  const axis = document.createElement("p");
  for (const word of ["15 min ago", "now"]) axis.append(Object.assign(document.createElement("span"), { textContent: word }));
  box.append(head, strong, small, picture, axis);
  return box;
}

// The letters of /v1/shards/map in words; a capital letter: and read in this epoch.
const CELLS = { h: "here", p: "partly here", c: "coming", l: "leaving", n: "planned next", a: "not here" };

class ShardMap {
  constructor(canvas, told) {
    this.canvas = canvas;
    this.told = told; // says in words which cell is pointed at
    this.names = []; this.prefix = ""; this.version = -1; this.cells = ""; this.readers = []; this.before = new Map();
    this.layer = document.createElement("canvas"); // the cells; readers move above it, so that a frame is one copy and a few dots
    this.drawn = ""; this.picked = -1; this.heardAt = 0; this.framed = false;
    canvas.addEventListener("pointermove", (event) => this.pick(this.at(event)));
    canvas.addEventListener("pointerleave", () => this.pick(-1));
    canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.layout()).observe(canvas.parentElement);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.layout());
  }

  name(index) { return this.prefix + this.names[index]; }

  whole(told) {
    this.names = told.names; this.prefix = told.prefix; this.version = told.version;
    this.picked = Math.min(this.picked, this.names.length - 1);
    this.update(told);
    this.layout();
  }

  update(told) {
    const places = new Map(this.readers.map((reader) => [reader[3], this.place(reader, 1)]));
    this.before = places;
    this.cells = told.cells; this.readers = told.readers; this.heardAt = performance.now();
    this.paint();
    this.frame();
    if (this.picked >= 0) this.say();
  }

  layout() {
    const width = Math.max(16, this.canvas.parentElement.clientWidth - 34), // less the section's padding
       count = Math.max(1, this.names.length);
    const size = Math.max(4, Math.min(20, Math.floor(Math.sqrt(width * 230 / count))));
    this.size = size; this.columns = Math.max(1, Math.floor(width / size));
    const height = size * Math.ceil(count / this.columns) + 2;
    this.ratio = window.devicePixelRatio || 1;
    for (const canvas of [this.canvas, this.layer]) { canvas.width = width * this.ratio; canvas.height = height * this.ratio; }
    this.canvas.style.height = `${height}px`;
    this.canvas.style.width = `${width}px`;
    const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    this.colours = { here: colour("--stored"), coming: colour("--reserved"), leaving: colour("--doomed"), none: colour("--line"), next: colour("--quiet"), reader: colour("--ink"), ground: colour("--card") };
    this.drawn = "";
    this.paint();
    this.frame();
  }

  // Only cells whose letter has changed.
  paint() {
    const pen = this.layer.getContext("2d");
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    for (let index = 0; index < this.cells.length; index += 1) {
      if (this.cells[index] === this.drawn[index]) continue;
      const x = (index % this.columns) * this.size, y = Math.floor(index / this.columns) * this.size;
      pen.clearRect(x, y, this.size, this.size);
      drawCell(pen, this.cells[index], x, y, this.size - (this.size > 6 ? 2 : 1), this.colours);
    }
    this.drawn = this.cells;
  }

  place(reader, part) {
    const to = reader[0] + reader[1] * .999, from = this.before.get(reader[3]) ?? to;
    return Math.abs(to - from) > 3 ? to : from + (to - from) * part;
  }

  frame() {
    if (this.framed) return;
    this.framed = true;
    requestAnimationFrame((now) => {
      this.framed = false;
      const pen = this.canvas.getContext("2d");
      pen.setTransform(1, 0, 0, 1, 0, 0);
      pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
      pen.drawImage(this.layer, 0, 0);
      pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
      const part = STILL.matches ? 1 : Math.min(1, (now - this.heardAt) / 2000);
      for (const reader of this.readers) {
        const place = this.place(reader, part), index = Math.floor(place), size = this.size;
        const x = (index % this.columns + place % 1) * size, y = (Math.floor(index / this.columns) + .5) * size;
        const wide = Math.max(3, size / 3);
        pen.beginPath();
        if (reader[2]) { pen.moveTo(x - wide, y + wide); pen.lineTo(x, y - wide); pen.lineTo(x + wide, y + wide); pen.closePath(); } else pen.arc(x, y, wide, 0, 7);
        pen.fillStyle = reader[2] ? this.colours.leaving : this.colours.reader;
        pen.strokeStyle = this.colours.ground;
        pen.lineWidth = 1.5;
        pen.fill();
        pen.stroke();
      }
      if (this.picked >= 0) {
        pen.strokeStyle = this.colours.reader;
        pen.lineWidth = 2;
        pen.strokeRect((this.picked % this.columns) * this.size, Math.floor(this.picked / this.columns) * this.size + 1, this.size, this.size);
      }
      if (part < 1 && this.readers.length) this.frame();
    });
  }

  at(event) {
    const column = Math.floor(event.offsetX / this.size), index = Math.floor(event.offsetY / this.size) * this.columns + column;
    return column < this.columns && index < this.names.length ? index : -1;
  }

  key(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.columns, ArrowUp: -this.columns, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined || !this.names.length) return;
    event.preventDefault();
    this.pick(Math.max(0, Math.min(this.names.length - 1, Math.max(0, this.picked) + (this.picked < 0 && Number.isFinite(step) ? 0 : step))));
  }

  pick(index) {
    if (index === this.picked) return;
    this.picked = index;
    this.say();
    this.frame();
  }

  say() {
    if (this.picked < 0) return this.told("");
    const letter = this.cells[this.picked] ?? "a", inside = this.readers.filter((reader) => reader[0] === this.picked);
    const read = letter < "a" ? ", read in this epoch" : "", by = inside.map((reader) => `; ${reader[3]} is ${Math.round(100 * reader[1])} % through it${reader[2] ? " and waits" : ""}`);
    return this.told(`${this.name(this.picked)}: ${CELLS[letter.toLowerCase()]}${read}${by.join("")}`);
  }

  counts() {
    const letters = {}, counts = {};
    let read = 0;
    for (const letter of this.cells) letters[letter] = (letters[letter] ?? 0) + 1;
    for (const [letter, times] of Object.entries(letters)) {
      counts[letter.toLowerCase()] = (counts[letter.toLowerCase()] ?? 0) + times;
      read += letter < "a" ? times : 0;
    }
    return { counts, read };
  }
}

const STILL = matchMedia("(prefers-reduced-motion: reduce)");

// States differ in shape, not only in colour: full, half, crossed, barred, an empty frame; what was read is paler, with a hole.
function drawCell(pen, letter, x, y, size, colours) {
  const kind = letter.toLowerCase();
  const edge = (colour) => { pen.strokeStyle = colour; pen.lineWidth = 1; pen.strokeRect(x + 1, y + 1.5, size - 1, size - 1); };
  const fill = (colour, top, height) => { pen.fillStyle = colour; pen.fillRect(x + .5, y + 1 + top, size, height); };
  pen.globalAlpha = letter !== kind ? .45 : 1;
  if (kind === "h") fill(colours.here, 0, size);
  else if (kind === "p") { edge(colours.here); fill(colours.here, size / 2, size / 2); }
  else if (kind === "c") { fill(colours.coming, 0, size); }
  else if (kind === "l") { edge(colours.leaving); pen.beginPath(); pen.moveTo(x + 1, y + 1.5); pen.lineTo(x + size, y + size + .5); pen.stroke(); }
  else if (kind === "n") { edge(colours.reader); fill(colours.reader, size / 2 - 1, 2); }
  else if (letter === "A") fill(colours.next, 0, size);
  else edge(colours.none);
  pen.globalAlpha = 1;
  if (letter !== kind && size > 5) { pen.fillStyle = colours.ground; pen.fillRect(x + .5 + size / 3, y + 1 + size / 3, size / 3, size / 3); }
}
