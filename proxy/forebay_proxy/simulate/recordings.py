"""Reads what can be replayed: a plan, a list of URLs, an access log. Pure: text in, readers and their order out.

========================  ============================================================================================================
what                      how it is told
========================  ============================================================================================================
a plan                    JSON as ``PUT /v1/plans`` takes it; of several readers: a list, or lines, of such objects with a ``reader``
a list                    URLs or brace patterns, one a line; lines that begin with # do not count. NDJSON (a JSON string a line) too
Forebay's access log      as ``forebay serve --access-log FILE`` writes it: replayed in the order in which its answers began
========================  ============================================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.shard import Shard
from forebay_proxy.simulate.workload import ReaderEpoch
from forebay_proxy.wire.protocol.plan import InvalidPlan, InvalidReader, ReaderName, decode
from forebay_proxy.wire.urls.patterns import InvalidPattern, expand
from forebay_proxy.wire.urls.quoting import InvalidShardUrl
from forebay_proxy.wire.urls.shard_url import parse_origin_url

__all__ = ["ALONE", "Recording", "read_recording"]

ALONE = ReaderName("replay", "0", "0", "0.0")  # whoever names no reader
NEXT_STEP = "see 'forebay plan --help' for what can be replayed"


@dataclass
class Recording:
    """``orders``: what each reader read, epoch by epoch. ``turns``: who opened a shard, in the order of an access log; empty where only
    each reader's own order is known. ``lengths``: bytes by name, as far as the file tells. ``skipped``: lines that open no shard."""

    kind: str
    orders: dict[ReaderName, list[ReaderEpoch]] = field(default_factory=dict)
    turns: list[ReaderName] = field(default_factory=list)
    lengths: dict[str, int] = field(default_factory=dict)
    skipped: int = 0

    def shards(self) -> list[Shard]:
        """All of them once, in the order in which they are first named."""
        named = {shard.name: shard for epochs in self.orders.values() for epoch in epochs for shard in epoch.shards}
        return list(named.values())


def read_recording(text: str) -> Recording:
    """What ``text`` tells. Raises ``ConfigError`` naming the first bad line by its number."""
    lines = [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    lines = [(number, line) for number, line in lines if not line.startswith("#")]
    if not lines:
        raise ConfigError("there is nothing in it to replay", next_step=NEXT_STEP)
    if any(_answer(line) is not None for _, line in lines[:2]):  # the first may be torn
        return _access_log(lines)
    head = lines[0][1]
    if head[0] in "{[" and (whole := _json(text)) is not None:
        return _document(whole)
    if head[0] == "{":
        return _plans(((number, _json_line(number, line)) for number, line in lines), "line")
    if head[0] == '"':
        return _list((number, _json_line(number, line)) for number, line in lines)
    if head[0] == "[":
        raise ConfigError(f"line {lines[0][0]} begins a JSON list that does not end", next_step=NEXT_STEP)
    return _list(lines)


# Plans and lists


def _document(value: Any) -> Recording:
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        value = {"shards": value}
    return _plans(enumerate(value if isinstance(value, list) else [value], 1), "entry")


def _plans(entries: Iterable[tuple[int, Any]], unit: str) -> Recording:
    recording = Recording("plan")
    for number, value in entries:
        if not isinstance(value, dict):
            raise _bad(number, 'is no plan; write {"shards": ["s3://bucket/00000.tar", …]}', unit)
        fields = dict(value)
        reader = _reader(number, fields.pop("reader", None), unit)
        try:
            body = decode("application/json", json.dumps(fields).encode())
        except InvalidPlan as error:
            raise _bad(number, f"is no plan: {error}", unit) from None
        epochs = recording.orders.setdefault(reader, [])
        epochs.append(ReaderEpoch(len(epochs), [_shard(number, text, unit) for text in body.shards]))
    return recording


def _list(lines: Iterable[tuple[int, Any]]) -> Recording:
    shards: list[Shard] = []
    for number, text in lines:
        if not isinstance(text, str):
            raise _bad(number, "is not a JSON string, as the lines before it are")
        try:
            shards += [_shard(number, one) for one in expand(text)]
        except InvalidPattern as error:
            raise _bad(number, f"is no URL or pattern: {error}") from None
    return Recording("list", {ALONE: [ReaderEpoch(0, shards)]})


# Access logs


def _access_log(lines: list[tuple[int, str]]) -> Recording:
    """An opening is what the sidecar counts as one: a GET answered with bytes from the shard's first on; a range from further on resumes a
    stream, or is a part of one. Lines torn by a kill or a full disk are stepped over, and counted with those that open no shard.
    """
    recording = Recording("access log")
    told = ((number, _answer(line)) for number, line in lines)
    openings = sorted((_began(number, answer), number, answer) for number, answer in told if answer is not None and _opens(answer))
    recording.skipped = len(lines) - len(openings)
    if not openings:
        step = "record a run: forebay serve --access-log FILE"
        raise ConfigError(f"none of its {len(lines)} lines is a GET that was answered with a shard from its start", next_step=step)
    for _, number, answer in openings:
        reader, epoch = _reader(number, answer.get("reader")), answer.get("epoch")
        query = answer.get("query")  # where a query is kept secret its digest stands for it
        shard = _shard(number, f"{answer['shard']}?{query}" if isinstance(query, str) else answer["shard"])
        epochs = recording.orders.setdefault(reader, [])
        if not epochs or (type(epoch) is int and epoch != epochs[-1].number):  # one that told none is still in the one before
            epochs.append(ReaderEpoch(epoch if type(epoch) is int else 0))
        epochs[-1].shards.append(shard)
        recording.turns.append(reader)
        if length := _length(answer):
            recording.lengths[shard.name] = max(length, recording.lengths.get(shard.name, 0))
    return recording


def _answer(line: str) -> dict[str, Any] | None:
    value = _json(line)
    return value if isinstance(value, dict) and {"time", "shard", "status"} <= value.keys() else None


def _opens(answer: dict[str, Any]) -> bool:
    span = answer.get("range")
    starts = span is None or (isinstance(span, list) and span[:1] == [0])
    return starts and answer.get("method") == "GET" and answer["status"] in (200, 206)


def _began(number: int, answer: dict[str, Any]) -> float:
    try:
        return datetime.fromisoformat(answer["time"]).timestamp()
    except (TypeError, ValueError, OverflowError):
        raise _bad(number, "is not as forebay serve --access-log writes it") from None


def _length(answer: dict[str, Any]) -> int | None:
    length = answer.get("length")
    if type(length) is int and length >= 0:
        return length
    is_whole = answer["status"] == 200 and answer.get("cut") is None and type(answer.get("bytes")) is int
    return int(answer["bytes"]) if is_whole else None


# Pieces of all of them


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _json_line(number: int, line: str) -> Any:
    value = _json(line)
    if value is None:
        raise _bad(number, "is not JSON, as the lines before it are")
    return value


def _bad(number: int, what: str, unit: str = "line") -> ConfigError:
    return ConfigError(f"{unit} {number} {what}", next_step=NEXT_STEP)


def _reader(number: int, text: Any, unit: str = "line") -> ReaderName:
    if text is None:
        return ALONE
    try:
        return ReaderName.parse(text)
    except (InvalidReader, AttributeError, TypeError):
        raise _bad(number, f"names no reader: {text!r:.80}; write job/rank/worker/opener, as train-7/0/3/4711.1", unit) from None


def _shard(number: int, text: Any, unit: str = "line") -> Shard:
    try:
        return Shard.of(parse_origin_url(text))
    except (InvalidShardUrl, AttributeError, TypeError) as error:
        raise _bad(number, f"names no shard: {error}", unit) from None
