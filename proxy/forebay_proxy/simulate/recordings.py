"""Reads what can be replayed: a plan, a list of URLs, an access log. Pure: text in, readers out.

========================  ============================================================================================================
what                      how it is told
========================  ============================================================================================================
a plan                    JSON as ``PUT /v1/plans`` takes it; of several readers: a list, or lines, of such objects with a ``reader``
a list                    URLs or brace patterns, one a line; lines that begin with # do not count. NDJSON (a JSON string a line) too
Forebay's access log      as ``forebay serve --access-log FILE`` writes it
openings                  JSON lines ``{"t": seconds, "reader": "job/rank/worker/opener", "shard": URL, "length": bytes}``, one an opening
                          with ``"epoch"``, ``"waited_s"`` and ``"seconds"`` (see ``paces``) where they are known
nginx's, Apache's         "combined" or "common" lines; a GET answered 200 or 206 whose path ends like a tar is an opening by that client
========================  ============================================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.shard import Shard
from forebay_proxy.simulate.access_log import WEB_LINE, openings, web_log
from forebay_proxy.simulate.recording import (
    ALONE,
    NEXT_STEP,
    Recording,
    bad,
    json_of,
    reader_of,
    shard_of,
)
from forebay_proxy.simulate.served_log import is_served, served_log
from forebay_proxy.wire.protocol.plan import InvalidPlan, decode
from forebay_proxy.wire.urls.patterns import InvalidPattern, expand

__all__ = ["read_recording"]


def read_recording(text: str) -> Recording:
    """What ``text`` tells. Raises ``ConfigError`` naming the first bad line by its number."""
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    lines = [(number, line) for number, line in lines if not line.startswith("#")]
    if not lines:
        raise ConfigError("there is nothing in it to replay", next_step=NEXT_STEP)
    if is_served(lines):
        return served_log(lines)
    head = lines[0][1]
    if head[0] in "{[" and (whole := _whole(text)) is not None:
        return _document(whole)
    if head[0] == "{":
        return _objects(lines)
    if head[0] == '"' and WEB_LINE.match(head) is None:
        return _list((number, json_of(number, line)) for number, line in lines)
    if head[0] == "[":
        raise ConfigError(f"line {lines[0][0]} begins a JSON list that does not end", next_step=NEXT_STEP)
    return web_log(lines) if WEB_LINE.match(head) else _list(lines)


def _whole(text: str) -> Any:
    """The plans of a file that is one JSON document; None where it is not, or is one line of an access log."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return None if isinstance(value, dict) and "shard" in value else value


def _document(value: Any) -> Recording:
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        value = {"shards": value}
    return _plans(enumerate(value if isinstance(value, list) else [value], 1), "entry")


def _objects(lines: list[tuple[int, str]]) -> Recording:
    parsed = [(number, json_of(number, line)) for number, line in lines]
    first = parsed[0][1]
    return openings(parsed) if isinstance(first, dict) and "shard" in first else _plans(parsed, "line")


# Plans and lists


def _plans(entries: Iterable[tuple[int, Any]], unit: str) -> Recording:
    recording = Recording("plan")
    for number, value in entries:
        if not isinstance(value, dict):
            raise bad(number, 'is no plan; write {"shards": ["s3://bucket/00000.tar", …]}', unit)
        fields = dict(value)
        reader = reader_of(number, fields.pop("reader", None), unit)
        try:
            body = decode("application/json", json.dumps(fields).encode())
        except InvalidPlan as error:
            raise bad(number, f"is no plan: {error}", unit) from None
        recording.orders.setdefault(reader, []).append([shard_of(number, text, unit) for text in body.shards])
    return recording


def _list(lines: Iterable[tuple[int, Any]]) -> Recording:
    shards: list[Shard] = []
    for number, text in lines:
        if not isinstance(text, str):
            raise bad(number, "is not a JSON string, as the lines before it are")
        try:
            shards += [shard_of(number, one) for one in expand(text)]
        except InvalidPattern as error:
            raise bad(number, f"is no URL or pattern: {error}") from None
    return Recording("list", {ALONE: [shards]})
