"""A recording: who read which shards, in which order, and when. Pure; the pieces that every reader of such files needs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from forebay_proxy.errors import ConfigError
from forebay_proxy.replay.workload import Script
from forebay_proxy.shard import Shard
from forebay_proxy.wire.plan import ReaderName
from forebay_proxy.wire.readers import InvalidReader
from forebay_proxy.wire.urls import InvalidShardUrl, parse_origin_url

__all__ = ["ALONE", "NEXT_STEP", "Recording", "bad", "json_of", "reader_of", "shard_of"]

ALONE = ReaderName("replay", "0", "0", "0.0")
NEXT_STEP = "see 'forebay plan --help' for what can be replayed"


@dataclass
class Recording:
    """``orders``: the shards of each reader, epoch by epoch. ``moments``: seconds from the first opening, where they were recorded.
    ``lengths``: bytes by name, as far as the file tells. ``skipped``: lines of an access log that open no shard."""

    kind: str
    orders: dict[ReaderName, list[list[Shard]]] = field(default_factory=dict)
    moments: dict[ReaderName, list[float]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    skipped: int = 0

    @property
    def is_timed(self) -> bool:
        return bool(self.moments)

    def shards(self) -> list[Shard]:
        """All of them once, in the order in which they are first named."""
        named = {shard.name: shard for epochs in self.orders.values() for epoch in epochs for shard in epoch}
        return list(named.values())

    def scripts(self, rate: float | None) -> tuple[Script, ...]:
        """The readers as recorded, at their moments; with ``rate`` (bytes a second of each) one shard right after the other instead."""
        return tuple(
            Script(reader, tuple(map(tuple, epochs)), rate, 0.0, tuple(self.moments[reader]) if self.moments and rate is None else None)
            for reader, epochs in self.orders.items()
        )

    def opened(self, reader: ReaderName, moment: float, shard: Shard, length: int | None) -> None:
        """One line of an access log."""
        self.orders.setdefault(reader, [[]])[0].append(shard)
        self.moments.setdefault(reader, []).append(moment)
        if length:
            self.lengths[shard.name] = max(length, self.lengths.get(shard.name, 0))


def json_of(number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise bad(number, "is not JSON, as the lines before it are") from None


def bad(number: int, what: str, unit: str = "line") -> ConfigError:
    return ConfigError(f"{unit} {number} {what}", next_step=NEXT_STEP)


def reader_of(number: int, text: Any, unit: str = "line") -> ReaderName:
    if text is None:
        return ALONE
    try:
        return ReaderName.parse(text)
    except (InvalidReader, AttributeError, TypeError):
        raise bad(number, f"names no reader: {text!r:.80}; write job/rank/worker/opener, as train-7/0/3/4711.1", unit) from None


def shard_of(number: int, text: Any, unit: str = "line") -> Shard:
    try:
        return Shard.of(parse_origin_url(text))
    except (InvalidShardUrl, AttributeError, TypeError) as error:
        raise bad(number, f"names no shard: {error}", unit) from None
