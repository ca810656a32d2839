"""The status page, and the data that it reads beyond ``/v1/status``: recent history, the map of shards, and the event stream.

The page works without JavaScript: its verdict and main tables are written into its HTML here, and the script replaces them. All names come
from outside, so every one is escaped.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any, Protocol

from aiohttp import web

from forebay_proxy.server.http.event_stream import EventStream
from forebay_proxy.server.http.problem import answer_json
from forebay_proxy.server.http.request_record import RequestRecord

__all__ = ["PAGE_PATHS", "PageRoutes", "PageSources", "for_page"]

# The page loads our own files only, and no other page may frame it.
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
# Paths that the status page reads. Watching the page does not keep an idle sidecar alive.
PAGE_PATHS = frozenset({"/", "/v1/events", "/v1/history", "/v1/shards/map"})
_MOST = {
    "readers": 64,
    "plans": 0,
    "meters": 64,
    "sets": 16,
    "origins": 16,
    "progress": 32,
    "derived": 16,
    "events": 20,
}  # rows that a page gets every two seconds
_NOT_SHOWN = ("settings", "jobs", "anonymous", "fingerprint", "tasks", "fd_socket")

Handler = Callable[[web.BaseRequest, RequestRecord], Awaitable[web.StreamResponse]]


class _History(Protocol):
    def as_json(self) -> dict[str, Any]: ...
    def last(self) -> list[float | None] | None: ...


class _ShardMap(Protocol):
    async def whole(self) -> dict[str, Any]: ...
    async def cells(self) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class PageSources:
    """What the status page shows beyond ``/v1/status``."""

    history: _History
    shard_map: _ShardMap


class PageRoutes:
    """The status page's handlers. ``routes``: handler by path and method."""

    def __init__(self, status: Callable[[], dict[str, Any]], sources: PageSources) -> None:
        self._status = status
        self._sources = sources
        self._files = _files()
        self.events = EventStream(self._frame)
        self.routes: dict[str, dict[str, Handler]] = {
            "/": {"GET": self._show_page},
            **{path: {"GET": self._show_file} for path in self._files if path != "/"},
            "/v1/events": {"GET": self.events.answer},
            "/v1/history": {"GET": self._show_history},
            "/v1/shards/map": {"GET": self._show_map},
        }

    async def _show_page(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        template, content_type = self._files["/"]
        return web.Response(body=rendered(template.decode(), self._status()), headers={"Content-Type": content_type, **_PAGE_HEADERS})

    async def _show_file(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        body, content_type = self._files[request.raw_path.partition("?")[0]]
        return web.Response(body=body, headers={"Content-Type": content_type, **_PAGE_HEADERS})

    async def _show_history(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        return answer_json(self._sources.history.as_json())

    async def _show_map(self, request: web.BaseRequest, record: RequestRecord) -> web.StreamResponse:
        return answer_json(await self._sources.shard_map.whole())

    async def _frame(self) -> bytes:
        shards = await self._sources.shard_map.cells()
        status = {**for_page(self._status()), "history_last": self._sources.history.last()}
        return b"".join(
            b"event: %s\ndata: %s\n\n" % (name, json.dumps(data, separators=(",", ":")).encode())
            for name, data in ((b"status", status), (b"shards", shards))
        )


def for_page(status: Mapping[str, Any]) -> dict[str, Any]:
    """``/v1/status`` for the page: without fields it does not show, and each list cut to ``_MOST`` rows. Waiting readers come first."""
    shown = {name: value for name, value in status.items() if name not in _NOT_SHOWN}
    if "readers" in shown:
        shown["readers"] = sorted(shown["readers"], key=lambda row: not row.get("waiting_for"))
    for name, most in _MOST.items():
        rows = shown.get(name, [])
        shown[name] = rows[:most]
        shown[f"{name}_total"] = max(len(rows), shown.get(f"{name}_total", 0))
    return shown


# The page's text


HEADLINES = {"fine": ("✔", "No wait"), "look": ("▲", "Look"), "act": ("✖", "Act")}


def rendered(template: str, status: Mapping[str, Any]) -> bytes:
    """The page with the present verdict, and with tables for browsers without JavaScript."""
    verdict = status.get("verdict") or {"severity": "look", "share": None, "cause": "", "sentence": "", "do": "", "line": ""}
    icon, word = HEADLINES.get(verdict["severity"], HEADLINES["look"])
    fine, share, cause = verdict["severity"] == "fine", verdict["share"], verdict["cause"]
    waits = "" if share is None else "for data" if fine else f"training waits {100 * share:.0f} %"
    why = f"cause: {cause}" if cause and not fine else ""
    texts = {
        "SEVERITY": verdict["severity"], "ICON": icon, "WORD": word if fine or not waits else f"{word}:", "SHARE": waits,
        "CAUSE": why, "SENTENCE": verdict["sentence"], "DO": verdict["do"], "LINE": verdict["line"], "STATE": status.get("state", ""),
        "WHERE": f"{status.get('url', '')} · {status.get('cache_dir', '')}",
    }  # fmt: skip
    for name, text in texts.items():
        template = template.replace(f"<!--{name}-->", escape(str(text)))
    return template.replace("<!--TABLES-->", _tables(status)).encode()


def _tables(status: Mapping[str, Any]) -> str:
    """Tables of ranks, progress, derived caches, origins and readers."""
    shown = for_page(status)
    return "".join((
        _table("Ranks", ("rank", "waited", "most for"), (
            (
                f"{row['job']} {row['rank']}{' (ended)' if row['ended'] else ''}", _waited(row["lately"]),
                row.get("silent") or _most_for(row["lately"]),
            )
            for row in shown["meters"]
        )),
        _table("Progress", ("job", "epoch", "shard"), (
            (row["job"], "-" if row["epoch"] is None else row["epoch"], _of_how_many(row))
            for row in shown["progress"]
        )),
        _table("Derived caches", ("job", "kind", "GB on disk", "hits", "made"), (
            (row["job"], row["kind"], f"{row['bytes'] / 1e9:.1f} of {row['limit_bytes'] / 1e9:.1f}", row["hits"], row.get("made", "-"))
            for row in shown["derived"]
        )),
        _table("Origins", ("origin", "MB/s now", "last error"), (
            (row["origin"], f"{row['rate_bytes_s'] / 1e6:.1f}", row["last_error"]) for row in shown["origins"]
        )),
        _table("Readers", ("waits now for", "reader", "shard"), (
            (row.get("waiting_for") or "-", row["reader"], row["shard"]) for row in shown["readers"]
        )),
        _table("What happened", ("at (UTC)", "what"), (
            (time.strftime("%H:%M:%S", time.gmtime(row["at"])), row["what"]) for row in shown["events"]
        )),
    ))  # fmt: skip


def _of_how_many(row: Mapping[str, Any]) -> str:
    """What is announced may be all of the set, or a part: of this node, or of what comes."""
    announced, whole = row["length"], row.get("of")
    told = "" if announced == whole else " announced" if whole is None else f" announced, of {whole:,}"
    return f"{row['position']:,} of {announced:,}{told}"


def _waited(lately: Mapping[str, Any]) -> str:
    wall_s = lately["wall_s"]
    return f"{100 * min(1.0, sum(lately['stall_s'].values()) / wall_s):.0f} %" if wall_s else "-"


def _most_for(lately: Mapping[str, Any]) -> str:
    causes = lately["stall_s"]
    return max(causes, key=causes.__getitem__) if any(causes.values()) else "-"


def _table(title: str, heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    lines = "".join(f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    head = "".join(f"<th>{name}</th>" for name in heads)
    return f"<section><h2>{title}</h2><table><thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></section>" if lines else ""


def _files() -> dict[str, tuple[bytes, str]]:
    """Body and content type by path, read once."""
    folder = files("forebay_proxy").joinpath("page")
    kinds = {
        "/": ("status.html", "text/html"),
        "/page/status.js": ("status.js", "text/javascript"),
        "/page/drawing.js": ("drawing.js", "text/javascript"),
        "/page/status.css": ("status.css", "text/css"),
    }
    return {path: (folder.joinpath(name).read_bytes(), f"{kind}; charset=utf-8") for path, (name, kind) in kinds.items()}
