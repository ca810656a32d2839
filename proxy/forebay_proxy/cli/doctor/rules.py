"""The rules that a set and a run should keep, and what to do where one is broken. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from forebay_proxy.cli.doctor.epoch_shares import EpochShare, Readers
from forebay_proxy.cli.output import many
from forebay_proxy.core.quantities import format_size
from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.simulate.estimate import SLOW_ANSWER_S, SLOW_CONNECTION_BYTES_S

__all__ = ["Level", "RuleFinding", "SetFacts", "findings"]

# Shards a worker. With k of them a sample comes at nearly the same time in every epoch with a correlation of 1/k^2 (what moves is the place
# of its shard among k, what stays is its place in the shard), and a shard that does not divide makes a worker's epoch 1/k longer.
# From ten on that is 1 % and 10 %.
GOOD_SHARDS = 10
# Most over mean of samples a shard: with ten shards a worker the largest makes its worker's epoch 2.5 % longer, as decoding does too.
UNEVEN = 1.25
# Below, answers take a twentieth of the time or more from a far store; above, a restart reads much again, and few shards are left to share.
LEAST_BYTES, MOST_BYTES = 100_000_000, 1_000_000_000
HELD_SEGMENTS = 2  # of each reader: the one it is in, and the next
_NAMED = 3


class Level(StrEnum):
    """How a rule is kept."""

    OK = "ok"
    ADVICE = "advice"
    FAULT = "fault"
    UNKNOWN = "not known"


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """One rule: how it is kept, with figures; ``next_step`` where something is to be done."""

    rule: str
    level: Level
    text: str
    next_step: str = ""


@dataclass(frozen=True)
class SetFacts:
    """What is known of a set. ``names`` of its shards as listed; ``counts``: samples of each, None where not known, and ``counted_by``.

    ``lengths``: bytes of those shards that were asked, and ``measured_by``; ``cache_bytes``: what the cache may hold, 0 where nobody said.
    ``broken``: shards of which no sample can be counted, and why; ``torn``: what is amiss with samples. Both by the names of shards.
    """

    names: Sequence[str]
    counts: Sequence[int | None]
    counted_by: str
    lengths: Sequence[int] = ()
    measured_by: str = ""
    cache_bytes: int = 0
    broken: Mapping[str, str] = field(default_factory=dict)
    torn: Mapping[str, str] = field(default_factory=dict)

    @property
    def known(self) -> list[int]:
        return [count for count in self.counts if count is not None]

    @property
    def all_counts(self) -> list[int]:
        """Of all shards: broken ones have none, others that are not known as many as the mean. Empty where none is known."""
        known = self.known
        mean = round(sum(known) / len(known)) if known else 0
        names = zip(self.names, self.counts, strict=True)
        return [(0 if name in self.broken else mean) if count is None else count for name, count in names] if known else []

    @property
    def total_bytes(self) -> int:
        return sum(self.lengths) * len(self.names) // len(self.lengths) if self.lengths else 0


def findings(facts: SetFacts, readers: Readers, shares: Sequence[EpochShare]) -> list[RuleFinding]:
    """One a rule, in the order in which a person would mend them. ``shares``: of ``epoch_shares``, empty where nothing is counted."""
    return [
        *_listed(facts),
        *_broken(facts),
        *_samples(facts),
        *_whole(facts),
        _per_worker(facts, readers),
        *_even(readers, shares),
        _bytes(facts),
        *_cache(facts, readers),
    ]


def _listed(facts: SetFacts) -> Iterator[RuleFinding]:
    twice = [name for name, times in Counter(facts.names).items() if times > 1]
    if twice:
        text = f"{many(len(twice), 'shard')} listed more than once: {_some(twice)}"
        yield RuleFinding("list", Level.ADVICE, text, "their samples come as often in each epoch; name each once unless that is meant")


def _broken(facts: SetFacts) -> Iterator[RuleFinding]:
    """A row for each of the first: their causes differ."""
    step = "fetch or write it again, or leave it out ('forebay check' reads one); it counts as 0 samples here"
    for at, (name, why) in enumerate(facts.broken.items()):
        if at == _NAMED:
            yield RuleFinding("broken shards", Level.FAULT, f"and {len(facts.broken) - _NAMED} more: {_some(list(facts.broken)[_NAMED:])}")
            return
        yield RuleFinding("broken shard", Level.FAULT, why if name in why else f"{name}: {why}", step)


def _samples(facts: SetFacts) -> Iterator[RuleFinding]:
    known = facts.known
    if not known:
        step = "'forebay index' with these URLs counts them, or give --sizes sizes.json, or --samples N"
        yield RuleFinding("samples a shard", Level.UNKNOWN, f"not counted: {facts.counted_by}", step)
        return
    mean = sum(known) / len(known)
    uneven = max(known) / mean if mean else 1.0
    text = f"{min(known):,} / {mean:,.1f} / {max(known):,} (least, mean, most; {facts.counted_by})"
    if uneven > UNEVEN:
        step = "'forebay index' lets ranks share samples instead of shards; or write shards of equal numbers"
        yield RuleFinding("samples a shard", Level.ADVICE, f"{text}: the largest has {uneven:.2f} times the mean", step)
    else:
        yield RuleFinding("samples a shard", Level.OK, text)
    unknown = [name for name, count in zip(facts.names, facts.counts, strict=True) if count is None and name not in facts.broken]
    if unknown:
        text = f"{many(len(unknown), 'shard')} taken for the mean: {_some(unknown)}"
        yield RuleFinding("not counted", Level.UNKNOWN, text, "'forebay index' with these URLs counts them")
    empty = [name for name, count in zip(facts.names, facts.counts, strict=True) if count == 0]
    if empty:
        text = f"{many(len(empty), 'shard')} without a sample: {_some(empty)}"
        yield RuleFinding("empty shards", Level.FAULT, text, "leave them out: a worker that gets only such shards raises, or ends at once")


def _whole(facts: SetFacts) -> Iterator[RuleFinding]:
    if facts.torn:
        first, amiss = next(iter(facts.torn.items()))
        said, _, step = amiss.partition("; ")
        text = f"samples of {many(len(facts.torn), 'shard')} are not whole: {_some(list(facts.torn))}. {first}: {said}"
        yield RuleFinding("whole samples", Level.FAULT, text, step)


def _per_worker(facts: SetFacts, readers: Readers) -> RuleFinding:
    shards, count = len(facts.names), readers.count
    text = f"{many(shards, 'shard')} for {readers.ranks} x {readers.a_rank} = {many(count, 'reader')}"
    more = f"{count * GOOD_SHARDS:,} shards or more"
    if shards < readers.ranks:
        step = f"write {more}; fb.WebLoader shares samples once 'forebay index' has counted them"
        return RuleFinding("shards a worker", Level.FAULT, f"{text}: {readers.ranks - shards} ranks have none, which is an error", step)
    if shards < count:
        step = f"at most {shards // readers.ranks} workers a rank, or {more}; fb.WebDataset lets the workers of a rank share a shard"
        idle = count - shards
        return RuleFinding("shards a worker", Level.FAULT, f"{text}: {many(idle, 'worker')} without one (webdataset 1.x raises)", step)
    each = shards / count
    if each < GOOD_SHARDS:
        same, longer = 100 / int(each) ** 2, 100 / int(each)
        why = f"{each:.3g} each: {same:.0f} % of a sample's place in the epoch stays the same, one more shard is {longer:.0f} % more work"
        step = f"better {GOOD_SHARDS} or more: fewer workers, or smaller shards"
        return RuleFinding("shards a worker", Level.ADVICE, f"{text}, {why}", step)
    return RuleFinding("shards a worker", Level.OK, f"{text}, {each:,.3g} each")


def _even(readers: Readers, shares: Sequence[EpochShare]) -> Iterator[RuleFinding]:
    if not shares or readers.ranks == 1:
        return
    plain = shares[0]
    if plain.least_steps == plain.most_steps:
        yield RuleFinding("steps a rank", Level.OK, f"{plain.most_steps:,} on every rank, as the shards are listed")
        return
    text = f"{plain.least_steps:,} to {plain.most_steps:,} where shards are split: {plain.note}"
    step = "fb.WebLoader makes them equal (docs/equal-steps.md); the table says what that costs"
    yield RuleFinding("steps a rank", Level.ADVICE, text, step)


def _bytes(facts: SetFacts) -> RuleFinding:
    if not facts.lengths:
        return RuleFinding("bytes a shard", Level.UNKNOWN, facts.measured_by, "or give --shard-size")
    mean = sum(facts.lengths) // len(facts.lengths)
    sizes = f"{format_size(min(facts.lengths))} / {format_size(mean)} / {format_size(max(facts.lengths))}"
    text = f"{sizes} (least, mean, most; {facts.measured_by})"
    if mean < LEAST_BYTES:
        answer = 100 * SLOW_ANSWER_S * SLOW_CONNECTION_BYTES_S / max(1, mean)
        why = f"an answer of 100 ms takes as long as {answer:.0f} % of the bytes at 50 MB/s"
        step = "100 MB to 1 GB: join shards, as far as the workers leave enough of them"
        return RuleFinding("bytes a shard", Level.ADVICE, f"{text}: {why}", step)
    if mean > MOST_BYTES:
        step = "100 MB to 1 GB: split them; a restart reads less again, and workers share the set more evenly"
        return RuleFinding("bytes a shard", Level.ADVICE, text, step)
    return RuleFinding("bytes a shard", Level.OK, text)


def _cache(facts: SetFacts, readers: Readers) -> Iterator[RuleFinding]:
    if not facts.cache_bytes:
        return
    needed, total, room = readers.count * HELD_SEGMENTS * SEGMENT_BYTES, facts.total_bytes, format_size(facts.cache_bytes)
    if facts.cache_bytes < needed and (not total or facts.cache_bytes < total):
        text = f"{room} for {many(readers.count, 'reader')}, each of which holds {HELD_SEGMENTS} segments of 8 MiB: {format_size(needed)}"
        yield RuleFinding("cache", Level.FAULT, text, "a larger --cache-size, or fewer workers: bytes without room pass through memory")
    elif total > facts.cache_bytes:
        held = int(len(facts.names) * facts.cache_bytes / total)
        text = f"{room} hold {held:,} of {len(facts.names):,} shards ({100 * facts.cache_bytes // total} % of {format_size(total)})"
        yield RuleFinding("cache", Level.OK, text, "'forebay plan' says what the rest costs in each epoch")
    else:
        yield RuleFinding("cache", Level.OK, f"{room} hold all of it" + (f" ({format_size(total)})" if total else ""))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"
