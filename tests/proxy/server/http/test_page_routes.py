"""The status page: its text without JavaScript, and what a real browser makes of it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from support.browser import Page, browsing, needs_chromium
from support.http_server import World, listening

from forebay_proxy.server.http.page_routes import for_page, rendered
from forebay_proxy.wire.protocol.meter import CAUSES

ACT = {
    "severity": "act", "cause": "origin rate", "share": 0.43, "sentence": "training waited 43 % of the last minute",
    "do": "it brings no more: read from a nearer copy", "line": "forebay warm 'PATTERN'",
}  # fmt: skip
EVIL = "<img src=x onerror=alert(1)>\"'&"


def meter_of(rank: str, job: str = "job", *, ended: bool = False, **stall: float) -> dict[str, Any]:
    sums = {"wall_s": 60.0, "stall_s": dict.fromkeys(CAUSES, 0.0) | stall, "steps": 100, "samples": 6400, "skipped": 0}
    return {
        "reader": f"{job}/{rank}/main/1.0", "job": job, "rank": rank, "silent_s": 1.0, "ended": ended, "batch_size": 64, "workers": 4,
        "slowest_worker": 2, "slowest_shard": "s3://b/1.tar", "unequal": None, "lately": sums, **sums,
    }  # fmt: skip


def origin_of(name: str, error: str = "") -> dict[str, Any]:
    return {
        "origin": name, "in_flight": 3, "slots": 8, "rate_bytes_s": 5e6, "first_byte_s": 0.1, "bytes": 1, "requests": 2, "last_code": 206,
        "last_answer_s_ago": 1, "codes_last_minute": {"206": 7}, "throttled": 0, "retries": 0, "failures": 0, "last_error": error,
        "last_error_s_ago": 3 if error else None,
    }  # fmt: skip


def reader_of(number: int, waiting_for: str = "", name: str = "job") -> dict[str, Any]:
    shard = f"s3://bucket/a/rather/long/folder/of/shards/train-{number:06d}.tar"
    return {
        "reader": f"{name}/0/{number}/7.1", "shard": shard, "position_bytes": 5, "length_bytes": 10, "waited_s": 0.5,
        "waiting_for": waiting_for,
    }  # fmt: skip


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with listening() as made:
        yield made


async def test_the_page_loads_nothing_from_elsewhere(world: World) -> None:
    """Its policy forbids it, and its files do not try."""
    reply = await world.ask("GET", "/")
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert reply.headers["x-content-type-options"] == "nosniff"
    for path in re.findall(r'(?:src|href)="([^"]+)"', reply.body.decode()):
        assert path.startswith(("/page/", "/v1/", "/metrics", "data:")), path
        if not path.startswith("data:"):
            assert (await world.ask("GET", path)).status == 200
    for name in ("status.html", "status.css", "status.js", "drawing.js"):
        text = files("forebay_proxy").joinpath("page", name).read_text()
        assert [word for word in ("http://", "https://", "innerHTML", "style=", "eval(") if word in text] == []


async def test_without_javascript_the_page_says_the_verdict_and_who_waits() -> None:
    """In its own text, with every name escaped; and it is loaded anew by itself."""
    status = {
        "verdict": ACT,
        "meters": [meter_of("0", EVIL, origin=26.0), meter_of("1", origin=70.0)],
        "readers": [reader_of(1), reader_of(2, f"{EVIL}: no answer")],
    }
    async with listening(origins=[origin_of("s3://b", EVIL)], **status) as world:
        text = (await world.ask("GET", "/")).body.decode()
    for part in (
        'class="wide act"', '<span id="word">Act:</span> <span id="share">training waits 43 %</span>', "cause: origin rate",
        "forebay warm &#x27;PATTERN&#x27;", "<td>43 %</td><td>origin</td>", "<td>100 %</td>", "<td>3 of 100 announced, of 1,000</td>",
        "forebay status", 'http-equiv="refresh"',
    ):  # fmt: skip
        assert part in text, part
    assert "<img" not in text
    assert text.count("&lt;img src=x") == 3
    assert "<!--" not in text


def test_a_status_without_anything_makes_a_page() -> None:
    """A start, or a sidecar of another version."""
    assert rendered("<!--WORD--> <!--SHARE--><!--TABLES-->", {}) == b"Look "


def test_a_page_gets_no_more_rows_than_it_shows() -> None:
    """Those that wait first, the others counted; and no settings, nor jobs by the hundred."""
    shown = for_page(
        {"readers": [*map(reader_of, range(100)), reader_of(100, "o")], "settings": {}, "jobs": {}, "plans": [1], "plans_total": 9}
    )
    assert (len(shown["readers"]), shown["readers_total"], shown["readers"][0]["waiting_for"]) == (64, 101, "o")
    assert (shown["plans"], shown["plans_total"], "settings" in shown, "jobs" in shown) == ([], 9, False, False)


async def text_of(page: Page, selector: str) -> str:
    return str(
        await page.value(f"[...document.querySelectorAll({selector!r})].map(each => each.innerText.replace(/\\s+/g, ' ')).join(' | ')")
    )


@needs_chromium
async def test_a_real_browser_shows_the_status(tmp_path: Path) -> None:
    """Chromium passes the checks meant for foreign pages, and runs the script without a complaint of console or policy.

    The numbers are those of ``/v1/status``; the verdict has word, icon and colour; names are text; who waits stands first, and in
    sight on a phone.
    """
    status: dict[str, Any] = {
        "verdict": ACT, "meters": [meter_of("0", origin=24.0, decode=1.8), meter_of("1", EVIL, ended=True, decode=73.0),
                                    {**meter_of("2"), "silent": "silent for 4 min"}],
        "origins": [origin_of("s3://b", "503 Slow Down")], "readers": [reader_of(1, name=EVIL), reader_of(2, "s3://b: 503 Slow Down")],
        "recent_errors": [{"at": 1000.0, "what": "503", "error": EVIL, "job": "job", "count": 4}],
        "events": [{"at": 1000.0, "what": f"job {EVIL} ended"}],
        "sets": [
            {"set": EVIL, "shards": 585_270, "complete": 292_635, "stored_bytes": 5_000_000, "state": "waits for room",
             "opened": {"t": 1234},
             "failures": [{"count": 2, "shard": "s3://b/1.tar", "cause": "no tar", "next_step": "look"}]},
        ],
    }  # fmt: skip
    async with listening(**status) as world, browsing(tmp_path) as page:
        world.page.names = [f"s3://b/{EVIL}{number:04d}.tar" for number in range(10_000)]
        world.page.readers = [[17, 0.5, True, EVIL]]
        await page.go(f"http://127.0.0.1:{world.port}/")
        await page.until("map.names.length === 10000 && past.length === 2 && document.querySelectorAll('#readers tr').length === 2")
        assert await text_of(page, ".headline") == "✖ Act: training waits 43 % cause: origin rate"
        assert await page.value("getComputedStyle(byId('verdict')).backgroundColor") == "rgb(179, 38, 30)"
        assert await text_of(page, "#do, #line") == f"{ACT['do']} | {ACT['line']}"
        rank, ended, killed = (await text_of(page, "#ranks tr")).split(" | ")
        assert [part for part in ("rank 0", "43.0 %", "origin 40.0 %", "107") if part not in rank] == []
        assert [part for part in ("rank 1 (ended)", "100.0 %") if part not in ended] == []
        assert "silent for 4 min" in killed
        assert await page.value("[...document.querySelectorAll('#ranks tr')].map(row => getComputedStyle(row).opacity)") == [
            "1",
            "0.5",
            "0.5",
        ]
        assert "shard 3 of 100 announced, of 1,000, epoch 1" in await text_of(page, "#progress")
        assert "5.00 MB/s 100 ms 3 of 8 7 x 206 0 503 Slow Down, 3.0 s ago" in await text_of(page, "#origins")
        assert (await text_of(page, "#readers tr")).startswith("▲ s3://b: 503 Slow Down job/0/2/7.1 s3://bucket/a/…")
        assert "4 x 503: <img" in await text_of(page, "#errors")
        assert "job <img src=x onerror=alert(1)>" in await text_of(page, "#events")
        assert "docs/slow.md" in await text_of(page, "footer")
        assert "292,635 of 585,270 shards" in await text_of(page, "#sets")
        assert "1.00 MB (33.3 %)" in await text_of(page, "#bytes")
        assert await page.value("document.querySelectorAll('main img').length") == 0
        assert "read in this epoch, still here read in this epoch, and gone" in await text_of(page, "#map-key")
        assert "10,000 shards: 10,000 here" in await text_of(page, "#map-sum")
        assert await page.value("byId('map').focus() ?? byId('map').dispatchEvent(new KeyboardEvent('keydown', {key: 'End'}))")
        assert await text_of(page, "#map-cell") == f"s3://b/{EVIL}9999.tar: here"
        status["meters"][0]["skipped"] = 77  # that row is made anew; the others stay, as a table made anew costs frames of the map
        await page.value("document.querySelectorAll('#ranks tr').forEach((row, place) => { row.place = place; })")
        await page.until("byId('ranks').textContent.includes('77')")
        assert await page.value("[...document.querySelectorAll('#ranks tr')].map(row => row.place ?? null)") == [None, 1, 2]
        await page.value("byId('history').open = true")
        assert "3.00 MB/s 4.00 MB/s" in await page.until("byId('history-rows').innerText.replace(/\\s+/g, ' ')")
        await page.size(390, 844, phone=True)
        await page.until(
            "document.documentElement.scrollWidth <= 390 && document.querySelector('#readers td').getBoundingClientRect().right < 390"
        )
        await page.scheme("dark")
        assert await page.value("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 26)"
        assert page.complaints == []


@needs_chromium
async def test_a_page_left_open_over_a_restart_goes_on(tmp_path: Path) -> None:
    """It says that what it shows is old, and shows the successor's status, history and map once that answers. A clock that is set back
    stops no curve."""
    async with browsing(tmp_path) as page:
        async with listening() as world:
            port = world.port
            await page.go(f"http://127.0.0.1:{port}/")
            await page.until("map.names.length === 2 && stream !== null")
        assert "what stands here is old" in await page.until("document.body.classList.contains('lost') && byId('state').innerText")
        async with listening(port=port, instance="b" * 16) as world:
            world.page.names.append("s3://b/2.tar")
            await page.until("!document.body.classList.contains('lost') && stream !== null && map.names.length === 3")
            assert await page.value("byId('state').innerText") == "running"
            world.page.rows.append([1010.0 - 3600.0, 0.5, None, 3e6, 4e6, None, None])
            await page.until("past.length === 3")
            assert "NaN" not in await page.value("byId('curves').innerHTML")
            assert "M98.88 " in await page.value("byId('curves').innerHTML")  # the first of three rows, at the right edge


async def test_history_and_map_are_answered(world: World) -> None:
    """As the sidecar's parts give them."""
    assert (await world.ask("GET", "/v1/history")).json["columns"][0] == "at"
    assert (await world.ask("GET", "/v1/shards/map")).json["cells"] == "hh"
