"""Which reader opens which shards, and in which order: made from a list of shards, or read from what was recorded. Pure.

What can be replayed is a list (URLs or brace patterns, one a line; lines that begin with # do not count), and Forebay's access log, as
``forebay serve --access-log FILE`` writes it: in the order in which its answers began.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.segments import DEFAULT_LAYOUT
from forebay_proxy.core.shard import Shard
from forebay_proxy.wire.protocol.plan import InvalidReader, ReaderName
from forebay_proxy.wire.urls.patterns import InvalidPattern, expand
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, parse_origin_url

__all__ = ["ALL", "ALONE", "Opening", "ReaderEpoch", "Recording", "Workload", "read_recording", "shuffled"]


ALL = 0  # a reader announces whole epochs


@dataclass(slots=True)
class ReaderEpoch:
    """What one reader reads in one epoch, in order; ``number``: of the epoch, as the loader tells it."""

    number: int
    shards: list[Shard] = field(default_factory=list)


Orders = Mapping[ReaderName, Sequence[ReaderEpoch]]


@dataclass(frozen=True, slots=True)
class Opening:
    """A reader opens the shard at ``position`` of an epoch; ``is_last``: it reads nothing after it."""

    reader: ReaderName
    epoch: ReaderEpoch
    position: int
    is_last: bool

    @property
    def shard(self) -> Shard:
        return self.epoch.shards[self.position]


@dataclass(frozen=True, slots=True)
class Workload:
    """All readers, and the lengths (bytes) of all their shards by name.

    ``turns``: who opens its next shard, in order. Empty: readers take turns, epoch by epoch.
    ``ahead``: how many shards a reader keeps announced, ``ALL`` for whole epochs; none beyond the epoch it is in.
    """

    orders: Orders
    lengths: Mapping[str, int]
    ahead: int = ALL
    turns: Sequence[ReaderName] = ()

    @property
    def dataset_bytes(self) -> int:
        return sum(self.lengths.values())

    @property
    def read_segments(self) -> int:
        """How much there is to replay: a shard is one segment at least, however short."""
        counts = {name: max(1, DEFAULT_LAYOUT.count(length)) for name, length in self.lengths.items()}
        return sum(counts[shard.name] for epochs in self.orders.values() for epoch in epochs for shard in epoch.shards)

    def openings(self) -> Iterator[Opening]:
        """All openings, in order."""
        left = {reader: sum(len(epoch.shards) for epoch in epochs) for reader, epochs in self.orders.items()}
        places = {reader: ((epoch, at) for epoch in epochs for at in range(len(epoch.shards))) for reader, epochs in self.orders.items()}
        for reader in self.turns or _in_turn(self.orders):
            epoch, position = next(places[reader])
            left[reader] -= 1
            yield Opening(reader, epoch, position, is_last=not left[reader])


def _in_turn(orders: Orders) -> Iterator[ReaderName]:
    for number in sorted({epoch.number for epochs in orders.values() for epoch in epochs}):
        left = Counter({reader: sum(len(each.shards) for each in epochs if each.number == number) for reader, epochs in orders.items()})
        while left := +left:
            yield from list(left)
            left.subtract(list(left))


def shuffled(
    shards: Sequence[Shard], lengths: Mapping[str, int],
    *, epochs: int = 1, seed: int | None = 0, readers: int = 1, ahead: int = ALL,
) -> Workload:  # fmt: skip
    """A job reads every shard once an epoch, in an order of its own (``seed``; None: as listed), dealt out to its readers in turn."""
    orders: dict[ReaderName, list[ReaderEpoch]] = {}
    for epoch in range(epochs):
        order = list(shards)
        if seed is not None:
            random.Random(f"{seed}/0/{epoch}").shuffle(order)  # noqa: S311 -- an order to be had again, no secret
        for number in range(readers):
            name = ReaderName("job0", "0", str(number), f"{number}.0")
            orders.setdefault(name, []).append(ReaderEpoch(epoch, order[number::readers]))
    return Workload(orders, lengths, ahead)


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
    shards: list[Shard] = []
    for number, line in lines:
        try:
            shards += [_shard(number, one) for one in expand(line)]
        except InvalidPattern as error:
            raise _bad(number, f"is no URL or pattern: {error}") from None
    return Recording("list", {ALONE: [ReaderEpoch(0, shards)]})


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
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
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


def _bad(number: int, what: str) -> ConfigError:
    return ConfigError(f"line {number} {what}", next_step=NEXT_STEP)


def _reader(number: int, text: Any) -> ReaderName:
    if text is None:
        return ALONE
    try:
        return ReaderName.parse(text)
    except (InvalidReader, AttributeError, TypeError):
        raise _bad(number, f"names no reader: {text!r:.80}; write job/rank/worker/opener, as train-7/0/3/4711.1") from None


def _shard(number: int, text: Any) -> Shard:
    try:
        return Shard.of(parse_origin_url(text))
    except (InvalidShardUrl, AttributeError, TypeError) as error:
        raise _bad(number, f"names no shard: {error}") from None
