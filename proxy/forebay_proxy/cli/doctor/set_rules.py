"""Rules of a set, and of who will read it. Pure.

Webdataset deals shards out: rank r of R reads ``shards[r::R]``, its worker w of W ``[w::W]`` of those. So ranks have different numbers of
samples unless shards are equal and divide evenly, and somebody must decide what happens at the end of the shortest one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from forebay_proxy.cli.output import many
from forebay_proxy.core.quantities import format_size
from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.simulate.estimate import SLOW_ANSWER_S, SLOW_CONNECTION_BYTES_S

__all__ = ["EpochShare", "Level", "Readers", "RuleFinding", "SetFacts", "epoch_shares", "findings", "samples_taken"]


@dataclass(frozen=True, slots=True)
class Readers:
    """``ranks`` of ``workers`` each; with 0 workers the rank reads itself. A batch has ``batch`` samples and is made in a worker."""

    ranks: int
    workers: int
    batch: int = 1

    @property
    def a_rank(self) -> int:
        return max(1, self.workers)

    @property
    def count(self) -> int:
        return self.ranks * self.a_rank

    def steps(self, shares: Sequence[int]) -> int:
        """Batches that workers make of so many samples each, a last partial one included."""
        return sum(-(-share // self.batch) for share in shares)

    def split(self, counts: Sequence[int]) -> list[list[int]]:
        """Samples of each worker of each rank, for shards in the order in which they are listed."""
        of_ranks = [counts[rank :: self.ranks] for rank in range(self.ranks)]
        return [[sum(shards[worker :: self.a_rank]) for worker in range(self.a_rank)] for shards in of_ranks]


@dataclass(frozen=True, slots=True)
class EpochShare:
    """An epoch in one ``way``: steps of the rank with the fewest and the most, samples that nobody trains on or that come twice."""

    way: str
    least_steps: int
    most_steps: int
    lost: int
    repeated: int
    note: str


def samples_taken(shares: Sequence[int], steps: int, batch: int) -> int:
    """What the first ``steps`` batches of a rank hold: a DataLoader takes one of each worker in turn, past those that have ended."""
    batches = [-(-share // batch) for share in shares]

    def by_round(turn: int) -> int:
        return sum(min(count, turn) for count in batches)

    rounds = bisect_right(range(max(batches, default=0) + 1), steps, key=by_round) - 1
    rest, taken = steps - by_round(rounds), 0
    for share, count in zip(shares, batches, strict=True):
        more = rest > 0 and count > rounds
        rest -= more
        taken += min(share, (min(count, rounds) + more) * batch)
    return taken


def epoch_shares(counts: Sequence[int], readers: Readers) -> list[EpochShare]:
    """Each way of sharing out an epoch, the plainest first. ``counts``: samples of each shard, at least one."""
    split, shards, total = readers.split(counts), len(counts), sum(counts)
    steps = [readers.steps(shares) for shares in split]
    least, most = min(steps), max(steps)
    note = "all ranks end together"
    if least < most:
        longer, shorter = steps.index(most), steps.index(least)
        note = f"rank {longer} takes {most - least} more than rank {shorter}, and waits for it in the gradient all-reduce"
    lost = total - sum(samples_taken(shares, least, readers.batch) for shares in split)
    found = [
        EpochShare("shards, as webdataset splits", least, most, 0, 0, note),
        EpochShare("shards, equal steps by a vote", least, least, lost, 0, "fb.WebLoader where samples are not counted"),
    ]
    for each, tail in ((-(-total // readers.count), "repeat"), (total // readers.count, "drop")):
        equal, over = readers.steps([each] * readers.a_rank), each * readers.count - total
        note = "fb.WebLoader where forebay index has counted"
        found.append(EpochShare(f"samples, tail='{tail}'", equal, equal, max(0, -over), max(0, over), note))
    # As many draws as there are shards, each of any shard: (1 - 1/n)^n of them are never drawn.
    missed, drawn = round(total * (1 - 1 / shards) ** shards), -(-total // (readers.ranks * readers.batch))
    note = f"expected of an epoch of with_epoch({drawn}) on the loader; other samples in each"
    return [*found, EpochShare("resampled", drawn, drawn, missed, missed, note)]


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
    """

    names: Sequence[str]
    counts: Sequence[int | None]
    counted_by: str
    lengths: Sequence[int] = ()
    measured_by: str = ""
    cache_bytes: int = 0

    @property
    def known(self) -> list[int]:
        return [count for count in self.counts if count is not None]

    @property
    def all_counts(self) -> list[int]:
        """Of all shards: those that are not known have as many as the mean. Empty where none is known."""
        known = self.known
        mean = round(sum(known) / len(known)) if known else 0
        return [mean if count is None else count for count in self.counts] if known else []

    @property
    def total_bytes(self) -> int:
        return sum(self.lengths) * len(self.names) // len(self.lengths) if self.lengths else 0


def findings(facts: SetFacts, readers: Readers, shares: Sequence[EpochShare]) -> Iterator[RuleFinding]:
    """One a rule, in the order in which a person would mend them. ``shares``: of ``epoch_shares``, empty where nothing is counted."""
    if twice := [name for name, times in Counter(facts.names).items() if times > 1]:
        text = f"{many(len(twice), 'shard')} listed more than once: {_some(twice)}"
        yield RuleFinding("list", Level.ADVICE, text, "their samples come as often in each epoch; name each once unless that is meant")
    yield from _samples(facts)
    yield RuleFinding("shards a worker", *_per_worker(len(facts.names), readers))
    if shares and readers.ranks > 1 and shares[0].least_steps == shares[0].most_steps:
        yield RuleFinding("steps a rank", Level.OK, f"{shares[0].most_steps:,} on every rank, as the shards are listed")
    elif shares and readers.ranks > 1:
        text = f"{shares[0].least_steps:,} to {shares[0].most_steps:,} where shards are split: {shares[0].note}"
        step = "fb.WebLoader makes them equal (docs/equal-steps.md); the table says what that costs"
        yield RuleFinding("steps a rank", Level.ADVICE, text, step)
    yield RuleFinding("bytes a shard", *_bytes(facts))
    if facts.cache_bytes:
        yield RuleFinding("cache", *_cache(facts, readers))


_Found = tuple[Level, str, str]  # how a rule is kept, the figures, and what to do


def _samples(facts: SetFacts) -> Iterator[RuleFinding]:
    known, counted = facts.known, list(zip(facts.names, facts.counts, strict=True))
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
    if unknown := [name for name, count in counted if count is None]:
        text = f"{many(len(unknown), 'shard')} taken for the mean: {_some(unknown)}"
        yield RuleFinding("not counted", Level.UNKNOWN, text, "'forebay index' with these URLs counts them")
    if empty := [name for name, count in counted if count == 0]:
        text = f"{many(len(empty), 'shard')} without a sample: {_some(empty)}"
        yield RuleFinding("empty shards", Level.FAULT, text, "leave them out: a worker that gets only such shards raises, or ends at once")


def _per_worker(shards: int, readers: Readers) -> _Found:
    count = readers.count
    text = f"{many(shards, 'shard')} for {readers.ranks} x {readers.a_rank} = {many(count, 'reader')}"
    more = f"{count * GOOD_SHARDS:,} shards or more"
    if shards < readers.ranks:
        step = f"write {more}; fb.WebLoader shares samples once 'forebay index' has counted them"
        return Level.FAULT, f"{text}: {readers.ranks - shards} ranks have none, which is an error", step
    if shards < count:
        step = f"at most {shards // readers.ranks} workers a rank, or {more}; fb.WebDataset lets the workers of a rank share a shard"
        return Level.FAULT, f"{text}: {many(count - shards, 'worker')} without one (webdataset 1.x raises)", step
    each = shards / count
    if each < GOOD_SHARDS:
        same, longer = 100 / int(each) ** 2, 100 / int(each)
        why = f"{each:.3g} each: {same:.0f} % of a sample's place in the epoch stays the same, one more shard is {longer:.0f} % more work"
        return Level.ADVICE, f"{text}, {why}", f"better {GOOD_SHARDS} or more: fewer workers, or smaller shards"
    return Level.OK, f"{text}, {each:,.3g} each", ""


def _bytes(facts: SetFacts) -> _Found:
    if not facts.lengths:
        return Level.UNKNOWN, facts.measured_by, "or give --shard-size"
    mean = sum(facts.lengths) // len(facts.lengths)
    sizes = f"{format_size(min(facts.lengths))} / {format_size(mean)} / {format_size(max(facts.lengths))}"
    text = f"{sizes} (least, mean, most; {facts.measured_by})"
    if mean < LEAST_BYTES:
        answer = 100 * SLOW_ANSWER_S * SLOW_CONNECTION_BYTES_S / max(1, mean)
        why = f"an answer of 100 ms takes as long as {answer:.0f} % of the bytes at 50 MB/s"
        return Level.ADVICE, f"{text}: {why}", "100 MB to 1 GB: join shards, as far as the workers leave enough of them"
    if mean > MOST_BYTES:
        return Level.ADVICE, text, "100 MB to 1 GB: split them; a restart reads less again, and workers share the set more evenly"
    return Level.OK, text, ""


def _cache(facts: SetFacts, readers: Readers) -> _Found:
    needed, total, room = readers.count * HELD_SEGMENTS * SEGMENT_BYTES, facts.total_bytes, format_size(facts.cache_bytes)
    if facts.cache_bytes < needed and (not total or facts.cache_bytes < total):
        text = f"{room} for {many(readers.count, 'reader')}, each of which holds {HELD_SEGMENTS} segments of 8 MiB: {format_size(needed)}"
        return Level.FAULT, text, "a larger --cache-size, or fewer workers: bytes without room pass through memory"
    if total > facts.cache_bytes:
        held = int(len(facts.names) * facts.cache_bytes / total)
        text = f"{room} hold {held:,} of {len(facts.names):,} shards ({100 * facts.cache_bytes // total} % of {format_size(total)})"
        return Level.OK, text, "'forebay plan' says what the rest costs in each epoch"
    return Level.OK, f"{room} hold all of it" + (f" ({format_size(total)})" if total else ""), ""


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"
