"""Draws docs/board.png: the Grafana board of the tests' scripted day, from a real Prometheus. It needs prometheus, promtool and chromium.

    python benchmarks/board.py

Titles, places, units, thresholds and queries are those of forebay.json, values are Prometheus' answers, and an alert fires where its
expression held for as long as its rule asks. The drawing is this script's: it is no screenshot of Grafana.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("tests", "proxy")]

import yaml  # noqa: E402
from PIL import Image  # noqa: E402
from support.browser import browsing  # noqa: E402
from support.prometheus import Prometheus, promtool, running_prometheus  # noqa: E402
from support.scripted_day import PHASES, STEP_S, series  # noqa: E402

FILES = ROOT / "proxy" / "forebay_proxy" / "dashboard"
BOARD = json.loads((FILES / "forebay.json").read_text("utf-8"))
RULES = [rule for group in yaml.safe_load((FILES / "alerts.yml").read_text("utf-8"))["groups"] for rule in group["rules"]]
ROWS = ("Is training waiting?", "What does it cost, and save?", "Are the origins the reason?")
END = 149  # minutes of the day: until a second job trains
START = int(time.time()) // 86400 * 86400 - 86400  # yesterday: retention deletes nothing, and the day begins at 00:00
UNITS = {"percentunit": "%", "short": "", "s": "s", "reqps": "req/s", "Bps": "B/s", "bytes": "B", "currencyUSD": "$"}
COLORS = ("#3a8f3a", "#c99700", "#2f78c4", "#e0601c", "#c4213a", "#1f9d9d", "#8a4bb8", "#7a6a53", "#d0509b", "#5a6b8c")
NAMED = {"green": "#284", "orange": "#d71", "red": "#c24", "blue": "#37c", "page": "#c24", "ticket": "#e92", "start": "#84b"}
COLUMN, LINE, GAP, WIDTH = 52, 27, 6, 1386  # pixels
HEAD = f"""<meta charset=utf-8><style>
body {{ margin: 0; padding: 10px 14px; width: {WIDTH}px; background: #eceef1; color: #22262c; font: 12px/1.35 sans-serif }}
h1 {{ margin: 0; font-size: 17px }} h2 {{ margin: 12px 0 6px; font-size: 15px }} p {{ margin: 0 }}
main {{ display: grid; grid-template-columns: repeat(24, {COLUMN}px); grid-auto-rows: {LINE}px; gap: {GAP}px }}
section {{ background: #fff; border: 1px solid #d5d9df; border-radius: 3px; position: relative; overflow: hidden }}
section b {{ position: absolute; left: 8px; top: 5px }} svg {{ position: absolute; left: 0; bottom: 0 }}
text {{ font-size: 11px; fill: #444 }} .line {{ fill: none; stroke-width: 1.5px; vector-effect: non-scaling-stroke }}
div {{ position: absolute; height: 1em; white-space: nowrap }} strong {{ display: block; margin: 30px; text-align: center; font-size: 3em }}
ul {{ position: absolute; left: 62px; bottom: 0; margin: 0; padding: 0; height: 28px; line-height: 14px }}
li, i {{ display: inline-block; margin-right: 12px }} i {{ width: 12px; height: 4px; margin: 0 4px 2px 0 }}
</style><h1>Forebay: a scripted day</h1><p>Drawn by benchmarks/board.py from what Prometheus answers; not a screenshot of Grafana.
Bands: red, yellow: the panel's alert fires; purple: a sidecar starts. Equal curves hide each other, those of 0 all day are left out."""
Curve = list[float | None]  # a value a minute
Event = tuple[str, str, str, list[tuple[int, int]]]  # name, severity, the alert's panel ("": all), from when until when


def asked(prometheus: Prometheus, query: str) -> list[tuple[dict[str, str], Curve]]:
    """Labels and a value for each minute, or None. All nodes and jobs, 9 cents a GB, the time shown."""
    query = re.sub(r"\$(job|instance|train)\b", ".*", query).replace("$price", "0.09")
    query = query.replace("$__rate_interval", f"{4 * STEP_S}s").replace("$__range", f"{END}m")
    shown = prometheus.query_range(query, START, START + END * 60, 60)
    found = [(curve["metric"], {(at - START) // 60: float(value) for at, value in curve["values"] if value != "NaN"}) for curve in shown]
    return [(labels, [values.get(minute) for minute in range(END + 1)]) for labels, values in found]


def events(prometheus: Prometheus) -> list[Event]:
    """Starts of sidecars, and alerts whose expressions held at each minute of their ``for``, its ends included: hence the 30 s."""
    recorded = {rule["record"]: f"({rule['expr']})" for rule in RULES if "record" in rule}
    alarms = [(rule["alert"], rule["labels"]["severity"], rule["annotations"]["panel"], rule) for rule in RULES if "alert" in rule]
    found = []
    for *what, rule in [("Sidecar", "start", "", BOARD["annotations"]["list"][0]), *alarms]:
        query, hold = re.sub(r"\w+:forebay_\w+:\w+", lambda name: recorded[name[0]], rule["expr"]), rule.get("for", "0m")
        curves = [values for _, values in asked(prometheus, f"count_over_time(({query})[{hold}30s:1m]) > {hold[:-1]}")]
        if times := runs([any(values[minute] for values in curves) for minute in range(END + 1)]):
            found.append((*what, times))
    return sorted(found, key=lambda event: event[3])


def runs(holds: list[bool]) -> list[tuple[int, int]]:
    """First and last minute of each run of True."""
    edges = [minute for minute, (was, now) in enumerate(itertools.pairwise([False, *holds, False])) if was != now]
    return [(first, end - 1) for first, end in zip(edges[::2], edges[1::2], strict=True)]


def said(value: float, unit: str) -> str:
    """As Grafana writes it."""
    if unit in ("percentunit", "currencyUSD"):
        return f"{100 * value:.3g} %" if unit == "percentunit" else f"${value:,.2f}"
    base, infix = (1024, "i") if unit == "bytes" else (1000, "")
    power = min(int(math.log(value, base)), 4) if value >= base and unit != "s" else 0
    return f"{value / base**power:.3g} {['', 'k', 'M', 'G', 'T'][power]}{infix if power else ''}{UNITS[unit]}".strip()


def plot(curves: list[tuple[Curve, Curve, str]], top: float, fill: float, box: str, marks: str = "") -> str:
    """Curves with what is under them down to their floors, from 0 to ``top``; they break where there is no value."""
    svg = f'<svg {box} viewBox="0 0 {END} 1" preserveAspectRatio="none">{marks}'
    for tops, floors, color in curves:
        for first, last in runs([value is not None for value in tops]):
            line = " L".join(f"{minute} {1 - (tops[minute] or 0) / top:.4f}" for minute in range(first, last + 1))
            back = " L".join(f"{minute} {1 - (floors[minute] or 0) / top:.4f}" for minute in range(last, first - 1, -1))
            svg += f'<path d="M{line} L{back}Z" fill="{color}" fill-opacity="{fill}"/><path d="M{line}" stroke="{color}" class="line"/>'
    return svg + "</svg>"


def stat(panel: dict[str, Any], values: Curve, width: int) -> str:
    """The last number in the color of its threshold, over its curve."""
    look = panel["fieldConfig"]["defaults"]
    last = next(value for value in reversed(values) if value is not None)
    color = NAMED[[step["color"] for step in look["thresholds"]["steps"] if step["value"] is None or last >= step["value"]][-1]]
    paint, ink, title = (color, "#fff", "#fff") if panel["options"]["colorMode"] == "background" else ("#fff", color, "inherit")
    curve = plot([(values, [0.0] * (END + 1), ink)], 1.05 * max(filter(None, values), default=1), 0.25, f'width="{width}" height="40"')
    number = f'<strong style="color: {ink}">{said(last, look["unit"])}</strong>'
    return f'<section style="background: {paint}; color: {title}; GRID">{number}{curve}'


def chart(panel: dict[str, Any], curves: dict[str, Curve], width: int, height: int, marks: str) -> str:
    """Axes, curves and a legend; ``marks`` go behind, in minutes by shares of the height."""
    look = panel["fieldConfig"]["defaults"]
    floors, layers = [0.0] * (END + 1), []
    for values, color in zip(curves.values(), itertools.cycle(COLORS)):
        tops = [None if value is None else value + (floor or 0) for value, floor in zip(values, floors, strict=True)]
        layers.append((tops, floors, color))
        if "stacking" in look["custom"]:
            floors = [floor if top is None else top for top, floor in zip(tops, floors, strict=True)]
    most = max((top or 0 for tops, _, _ in layers for top in tops), default=0) or 1
    step = next(size * 10.0**power for power in range(-4, 16) for size in (1, 2, 5) if most <= 5 * size * 10.0**power)
    lines, left, high, svg = math.ceil(most / step), 62, height - 80, f'<svg width="{width}" height="{height}">'
    for y, value in ((32 + high * (1 - number / lines), step * number) for number in range(lines + 1)):
        svg += f'<path d="M{left} {y}H{width - 12}" stroke="#e3e6ea"/>'
        svg += f'<text x="{left - 5}" y="{y + 4}" text-anchor="end">{said(value, look["unit"])}</text>'
    for minute in range(0, END, 30):
        x = left + minute * (width - left - 12) / END
        svg += f'<text x="{x}" y="{48 + high}" text-anchor="middle">{minute // 60:02}:{minute % 60:02}</text>'
    box, fill = f'x="{left}" y="32" width="{width - left - 12}" height="{high}"', look["custom"]["fillOpacity"] / 100
    legend = "".join(f'<li><i style="background: {color}"></i>{name}' for name, color in zip(curves, itertools.cycle(COLORS)))
    return f'<section style="GRID">{svg}{plot(layers, step * lines, fill, box, marks)}</svg><ul>{legend}</ul>'


def drawn(panel: dict[str, Any], row_y: int, prometheus: Prometheus, happened: list[Event]) -> str:
    """One panel at its place."""
    answers = [(target["legendFormat"], answer) for target in panel["targets"] for answer in asked(prometheus, target["expr"])]
    curves = {legend.replace("{{", "{").replace("}}", "}").format(**labels): values for legend, (labels, values) in answers}
    curves = {name: values for name, values in curves.items() if any(values)} or curves
    marks, place = "", panel["gridPos"]
    for _, severity, link, times in happened:
        for first, last in times if not link or re.search(rf"viewPanel={panel['id']}\b", link) else ():
            marks += f'<rect x="{first}" width="{last + 1 - first}" height="1" fill="{NAMED[severity]}" fill-opacity="0.3"/>'
    width, height = place["w"] * (COLUMN + GAP) - GAP - 2, place["h"] * (LINE + GAP) - GAP - 2
    html = stat(panel, *curves.values(), width) if panel["type"] == "stat" else chart(panel, curves, width, height, marks)
    grid = f"grid-area: {place['y'] - row_y} / {place['x'] + 1} / span {place['h']} / span {place['w']}"
    return f"{html.replace('GRID', grid)}<b>{panel['title']}</b></section>"


def day(happened: list[Event]) -> str:
    """What happens in it, and below that what fires."""
    html, bars, minute = '<div style="left: 8px">the script</div>', [], (WIDTH - 160) / END
    for number, (name, phase) in enumerate(PHASES.items()):
        bars.append((bars[-1][1] if bars else 0, phase.until_min, 2 + 16 * (number % 2), "#dfe5ee", name))
    for y, (name, severity, _, times) in zip(itertools.count(40, 17), happened):
        html += f'<div style="left: 8px; top: {y - 2}px">{name}, {severity}</div>'
        bars += [(first, last + 1, y, NAMED[severity], "") for first, last in times]
    for first, last, y, color, text in (bar for bar in bars if bar[0] < END):
        place = f"left: {150 + first * minute}px; width: {(min(last, END) - first) * minute}px; top: {y}px"
        html += f'<div style="{place}; background: {color}">{text}</div>'
    return f'<h2>The day, and the alerts (no part of the board)</h2><section style="height: {42 + 17 * len(happened)}px">{html}</section>'


async def make(into: Path) -> None:
    """The picture."""
    wanted = {"up", *re.findall(r"\b(?:forebay|process)_[a-z0-9_]+", json.dumps([BOARD, RULES]))}
    lines, html = [], HEAD
    for name, values in series(wanted).items():
        since = START if name.startswith("process_start_time") else 0
        lines += [f"{name.replace(', ', ',')} {value + since} {START + n * STEP_S}" for n, value in enumerate(values) if value is not None]
    with tempfile.TemporaryDirectory(prefix="forebay-board-") as name:
        directory, told, site = Path(name), Path(name, "day.txt"), Path(name, "board.html")
        told.write_text("\n".join([*lines, "# EOF\n"]), "utf-8")
        promtool("tsdb", "create-blocks-from", "openmetrics", "-q", str(told), str(directory / "data"))
        with running_prometheus(directory, "127.0.0.1:9", FILES / "alerts.yml", every_s=60) as prometheus:
            happened = events(prometheus)
            for row in (row for row in BOARD["panels"] if row["title"] in ROWS):
                panels = row["panels"] or [panel for panel in BOARD["panels"] if panel["type"] != "row"]
                parts = [drawn(panel, panels[0]["gridPos"]["y"] - 1, prometheus, happened) for panel in panels]
                html += f"<h2>{row['title']}</h2><main>{''.join(parts)}</main>{'' if row['panels'] else day(happened)}"
        site.write_text(html, "utf-8")
        async with browsing(directory / "profile") as page:
            await page.size(WIDTH + 28, 900)
            await page.go(site.as_uri())
            await page.until("document.readyState == 'complete' && document.querySelectorAll('section').length > 0")
            into.write_bytes(await page.picture(whole=True))
    picture, palette = Image.open(into).convert("RGB"), Image.new("P", (1, 1))
    common = sorted(picture.getcolors(1 << 24), reverse=True)[:256]
    palette.putpalette([part for _, color in common for part in color])
    picture.quantize(palette=palette, dither=Image.Dither.NONE).save(into, optimize=True)
    print(into, into.stat().st_size, picture.size)


if __name__ == "__main__":
    asyncio.run(make(ROOT / "docs" / "board.png"))
