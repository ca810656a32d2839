"""Access logs as recordings: openings as JSON lines, and the lines of nginx and Apache. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from math import isfinite
from typing import Any

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.shard import Shard
from forebay_proxy.simulate.recording import NEXT_STEP, Recording, bad, reader_of, shard_of
from forebay_proxy.wire.protocol.plan import ReaderName
from forebay_proxy.wire.urls.quoting import InvalidShardUrl
from forebay_proxy.wire.urls.shard_url import parse_proxy_target

__all__ = ["WEB_LINE", "openings", "web_log"]

WEB_LINE = re.compile(
    r'(?P<client>\S+) \S+ \S+ \[(?P<time>[^\]]{20,40})\] "(?P<method>[A-Z]+) (?P<path>\S+)(?: [^"]*)?" (?P<status>\d{3}) (?P<size>\d+|-)'
)
_TAR = re.compile(r"\.(?:tar|tgz|tar\.\w{1,4})$", re.IGNORECASE)
_TIME = "%d/%b/%Y:%H:%M:%S %z"


def openings(lines: list[tuple[int, Any]]) -> Recording:
    recording = Recording("access log")
    start: float | None = None
    for number, value in lines:
        if not isinstance(value, dict) or not _is_moment(value.get("t")) or "shard" not in value:
            raise bad(number, 'is no opening; write {"t": 1.5, "reader": "job/0/0/1.1", "shard": "s3://b/0.tar", "length": 1000}')
        for name, what in (("length", "length in bytes"), ("epoch", "epoch")):
            if value.get(name) is not None and (type(value[name]) is not int or value[name] < 0):
                raise bad(number, f"has no {what}: {value[name]!r:.40}")
        for name in ("waited_s", "seconds"):
            if value.get(name) is not None and not (_is_moment(value[name]) and value[name] >= 0):
                raise bad(number, f"has no {name}: {value[name]!r:.40}")
        start = value["t"] if start is None else start
        reader, shard = reader_of(number, value.get("reader")), shard_of(number, value["shard"])
        recording.opened(
            reader, max(0.0, value["t"] - start), shard, value.get("length"),
            epoch=value.get("epoch"), waited_s=value.get("waited_s"), seconds=value.get("seconds"),
        )  # fmt: skip
    return recording


def _is_moment(value: Any) -> bool:
    """JSON as Python reads it knows NaN and whole numbers of any length."""
    return type(value) in (int, float) and abs(value) < 1e18 and isfinite(value)


@dataclass
class _Client:
    """One client of a web server's log: successive pieces of one shard are one opening."""

    reader: ReaderName
    path: str = ""
    index: int = -1  # its place among the client's openings
    size: int = 0


def web_log(lines: list[tuple[int, str]]) -> Recording:
    recording = Recording("access log of a web server")
    clients: dict[str, _Client] = {}
    start: float | None = None
    for number, line in lines:
        match = WEB_LINE.match(line)
        if match is None:
            raise bad(number, "is not a line of an access log, as the lines before it are")
        path = match["path"].partition("?")[0]
        if match["method"] != "GET" or match["status"] not in ("200", "206") or not _TAR.search(path):
            recording.skipped += 1
            continue
        moment = _moment(number, match["time"])
        start = moment if start is None else start
        client = clients.setdefault(match["client"], _Client(ReaderName("replay", "0", str(len(clients)), "0.0")))
        size = 0 if match["size"] == "-" else int(match["size"])
        shard = _served(number, match["path"])
        is_next_piece = match["status"] == "206" and client.path == path
        client.size = client.size + size if is_next_piece else size
        client.path = path
        if is_next_piece:
            recording.lengths[shard.name] = max(client.size, recording.lengths.get(shard.name, 0))
        else:
            recording.opened(client.reader, max(0.0, moment - start), shard, size)
    if not recording.orders:
        raise ConfigError(f"none of its {len(lines)} lines is a GET of a .tar that was answered 200 or 206", next_step=NEXT_STEP)
    return recording


def _moment(number: int, text: str) -> float:
    try:
        return datetime.strptime(text, _TIME).timestamp()
    except ValueError:
        raise bad(number, f"has no time such as 10/Oct/2000:13:55:36 -0700: {text!r}") from None


def _served(number: int, target: str) -> Shard:
    """The shard of a request: by its proxy path if it went through a Forebay, else by its path on that server, whatever its name is."""
    try:
        return Shard.of(parse_proxy_target(target))
    except InvalidShardUrl:
        return shard_of(number, f"http://the-server-of-this-log{target}")
