"""A recording: which reader read which shards, in which order, and when. Pure; the pieces that every reader of such files needs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.shard import Shard
from forebay_proxy.simulate.paces import RecordedOpening, own_seconds
from forebay_proxy.simulate.workload import Script
from forebay_proxy.wire.protocol.plan import ReaderName
from forebay_proxy.wire.protocol.reader_name import InvalidReader
from forebay_proxy.wire.urls.quoting import InvalidShardUrl
from forebay_proxy.wire.urls.shard_url import parse_origin_url

__all__ = ["ALONE", "NEXT_STEP", "Recording", "bad", "json_of", "reader_of", "shard_of"]

ALONE = ReaderName("replay", "0", "0", "0.0")
NEXT_STEP = "see 'forebay plan --help' for what can be replayed"


@dataclass
class Recording:
    """``orders``: the shards of each reader, epoch by epoch; ``openings``: the same with what was recorded of each, and ``numbers``: the
    epochs as they were told, both of an access log. ``lengths``: bytes by name, as far as the file tells. ``skipped``: lines of an access
    log that open no shard."""

    kind: str
    orders: dict[ReaderName, list[list[Shard]]] = field(default_factory=dict)
    openings: dict[ReaderName, list[list[RecordedOpening]]] = field(default_factory=dict)
    numbers: dict[ReaderName, list[int]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    skipped: int = 0

    @property
    def is_timed(self) -> bool:
        return bool(self.openings)

    @property
    def moments(self) -> dict[ReaderName, list[float]]:
        """When each reader opened its shards."""
        return {reader: [each.moment for epoch in epochs for each in epoch] for reader, epochs in self.openings.items()}

    @property
    def in_step(self) -> bool:
        """Whether the readers of each job were seen to begin their epochs together."""
        begun: dict[tuple[str, int], float] = {}  # (job, epoch) -> its first opening
        ended: dict[tuple[str, int], float] = {}  # and its last
        if any(numbers != sorted(set(numbers)) for numbers in self.numbers.values()):
            return False  # one began again from an earlier epoch
        for reader, epochs in self.openings.items():
            for number, epoch in zip(self.numbers[reader], epochs, strict=True):
                key = reader.job, number
                begun[key] = min(epoch[0].moment, begun.get(key, epoch[0].moment))
                ended[key] = max(epoch[-1].moment, ended.get(key, epoch[-1].moment))
        return bool(begun) and all(ended.get((job, number - 1), moment) <= moment for (job, number), moment in begun.items())

    def shards(self) -> list[Shard]:
        """All of them once, in the order in which they are first named."""
        named = {shard.name: shard for epochs in self.orders.values() for epoch in epochs for shard in epoch}
        return list(named.values())

    def scripts(self, rate: float | None) -> tuple[Script, ...]:
        """The readers as recorded, at their moments; with ``rate`` (bytes a second of each) one shard right after the other instead."""
        own = own_seconds(self.openings, self.lengths) if rate is None else {}
        return tuple(self._script(reader, rate, own.get(reader, ())) for reader in self.orders)

    def _script(self, reader: ReaderName, rate: float | None, own_s: tuple[tuple[float, ...], ...]) -> Script:
        epochs, openings = tuple(map(tuple, self.orders[reader])), self.openings.get(reader, [])
        numbers = tuple(self.numbers[reader]) if openings else None
        if rate is not None:
            return Script(reader, epochs, rate, numbers=numbers)
        # Where it is known how long a reader took by itself, the next shard's turn follows from that: only an epoch has its moment.
        moments = tuple(tuple(each.moment for each in (epoch[:1] if own_s else epoch)) for epoch in openings)
        return Script(reader, epochs, moments=moments, own_s=own_s, numbers=numbers)

    def opened(
        self, reader: ReaderName, moment: float, shard: Shard, length: int | None,
        *, epoch: int | None = None, waited_s: float | None = None, seconds: float | None = None,
    ) -> None:  # fmt: skip
        """One opening of an access log; a reader's stand in their order. ``epoch``: the one it told; None: still the one before."""
        numbers = self.numbers.setdefault(reader, [])
        if not numbers or (epoch is not None and epoch != numbers[-1]):
            numbers.append(epoch or 0)
            self.orders.setdefault(reader, []).append([])
            self.openings.setdefault(reader, []).append([])
        self.orders[reader][-1].append(shard)
        self.openings[reader][-1].append(RecordedOpening(moment, shard, waited_s, seconds))
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
