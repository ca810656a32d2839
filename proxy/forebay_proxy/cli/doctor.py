"""``forebay doctor``: looks at a set, and at who will read it, before the run does.

Webdataset deals shards out: rank r of R reads ``shards[r::R]``, its worker w of W ``[w::W]`` of those. So ranks have different numbers of
samples unless shards are equal and divide evenly, and somebody must decide what happens at the end of the shortest one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import click

from forebay_proxy.cli.index.sizes_json import SizesJson, file_name
from forebay_proxy.cli.options import SURVEY_SETTINGS, Seams, config_option, json_option, load_settings, survey_options
from forebay_proxy.cli.output import error_line, many, say, say_json, show_table, wrapped
from forebay_proxy.cli.sources import named_texts, understood
from forebay_proxy.config.settings import Settings
from forebay_proxy.core.errors import ConfigError, ForebayError
from forebay_proxy.core.exit_codes import ExitCode
from forebay_proxy.core.quantities import TotalBytes, format_size
from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.core.shard import Shard
from forebay_proxy.simulate.estimate import SLOW_ANSWER_S, SLOW_CONNECTION_BYTES_S

__all__ = ["EpochShare", "Level", "Readers", "RuleFinding", "SetFacts", "doctor", "epoch_shares", "findings", "samples_taken"]

_SIZES = "sizes.json"  # where 'forebay index' writes it


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


@click.command()
@click.argument("urls", nargs=-1)
@survey_options
@click.option("--ranks", type=click.IntRange(min=1), required=True, metavar="N", help="Processes that train: WORLD_SIZE.")
@click.option("--workers", type=click.IntRange(min=0), required=True, metavar="N", help="DataLoader workers of each: num_workers.")
@click.option(
    "--batch", type=click.IntRange(min=1), default=1, metavar="N", help="Samples of a batch of one rank, as workers make it.  [default: 1]"
)
@click.option("--sizes", metavar="PATH", help="Samples by file name, as 'forebay index' writes them.  [default: ./sizes.json]")
@click.option("--samples", type=click.IntRange(min=0), metavar="N", help="Samples of every shard, where nothing else tells.")
@json_option
@config_option
@click.pass_obj
def doctor(seams: Seams, /, urls: tuple[str, ...], lists: tuple[str, ...], as_json: bool, config: Path | None, **flags: Any) -> int:
    """Check whether a set suits a run: samples, shards and bytes a worker, what an epoch loses, room in the cache.

    \b
    Examples:
      forebay doctor 's3://bucket/{000000..000999}.tar' --ranks 8 --workers 6
      forebay doctor shards.txt --sizes sizes.json --ranks 64 --workers 4 \\
          --batch 256 --cache-size 500GB
      forebay doctor 's3://bucket/{000..099}.tar' --samples 5000 \\
          --shard-size 400MB --ranks 8 --workers 8 --json

    URLS are URLs, brace patterns, 'pipe:' commands, or files of them. Samples are as the sizes.json says that 'forebay index' wrote.
    Lengths are asked of the origin (HEAD, with this environment's credentials). No shard is fetched, and no sidecar is needed.

    The table says what becomes of an epoch's samples in each way of sharing them out: the steps of the ranks with the fewest and the most,
    and samples that are lost or come twice. Exit code 1: a rule is broken, and the row says what to do; advice alone is 0.
    """
    sources = list(understood(named_texts(urls, lists)))
    if not sources:
        raise click.UsageError("name at least one URL, or a list with --from")
    if flags["sizes"] is not None and flags["samples"] is not None:
        raise click.UsageError("--sizes and --samples say the same thing; give one of them")
    settings = load_settings({name: flags[name] for name in SURVEY_SETTINGS}, config)
    readers = Readers(flags["ranks"], flags["workers"], flags["batch"])
    shards = [Shard.of(source.url, source.headers) for source in sources]
    counts, counted_by = _counts([source.url.text() for source in sources], flags["samples"], flags["sizes"])
    lengths, measured_by = _lengths(shards, settings, seams, flags["shard_size"], flags["ask"])
    own = settings.cache_size.count if isinstance(settings.cache_size, TotalBytes) else 0
    facts = SetFacts([shard.name for shard in shards], counts, counted_by, lengths, measured_by, flags["cache_size"] or own)
    shares = epoch_shares(facts.all_counts, readers) if sum(facts.all_counts) else []
    found = list(findings(facts, readers, shares))
    if as_json:
        say_json(_as_json(facts, readers, found, shares))
    else:
        _show(found, shares)
    return ExitCode.PART_FAILED if any(one.level is Level.FAULT for one in found) else ExitCode.DONE


def _counts(urls: Sequence[str], samples: int | None, sizes: str | None) -> tuple[list[int | None], str]:
    """Samples of each, and who counted them."""
    if samples is not None:
        return [samples] * len(urls), "as given"
    if sizes is None and not Path(_SIZES).is_file():
        return [None] * len(urls), f"no {_SIZES} is here"
    path = sizes or _SIZES
    told = SizesJson(Path(path)).counts()
    found = [told.get(file_name(url)) for url in urls]
    known = sum(count is not None for count in found)
    if not known:
        return found, f"{path} knows none of these shards"
    return found, path if known == len(found) else f"{path}, {known:,} of {len(found):,} shards"


def _lengths(shards: Sequence[Shard], settings: Settings, seams: Seams, given: int | None, ask: int) -> tuple[list[int], str]:
    """Raises ``ConfigError`` where the settings do not let an origin be asked: its next step names the flag."""
    if given is not None:
        return [given], "as given"
    try:
        found = seams.survey(list({shard.name: shard for shard in shards}.values()), settings, ask)
    except ConfigError:
        raise
    except ForebayError as error:
        return [], error_line(error)
    return list(
        found.lengths.values()
    ), "asked of the origin" if found.asked == found.total else f"{found.asked} of {found.total} shards asked"


def _show(found: Sequence[RuleFinding], shares: Sequence[EpochShare]) -> None:
    """A row a rule, what to do under it; then the ways of sharing out; the verdict last."""
    rows = list[tuple[str, ...]]()
    for one in found:
        rows.append((one.level, one.rule, one.text))
        if one.next_step:
            rows.append(("", "", f"-> {one.next_step}"))
    show_table(rows)
    if shares:
        say("")
        show_table([("an epoch, shared out by", "steps a rank", "lost", "twice"), *map(_row, shares)])
        for note in dict.fromkeys(share.note for share in shares):
            for line in wrapped(f"{' and '.join(share.way for share in shares if share.note == note)}: {note}"):
                say(line)
    say("")
    levels = Counter(one.level for one in found)
    faults, advice, unknown = levels[Level.FAULT], levels[Level.ADVICE], levels[Level.UNKNOWN]
    verdict = [f"{many(faults, 'fault')} to mend before the run"] if faults else []
    verdict += [f"{many(advice, 'thing')} that could be better"] if advice else []
    verdict += [f"{many(unknown, 'thing')} not known"] if unknown else []
    say("; ".join(verdict) or "nothing to mend")


def _row(share: EpochShare) -> tuple[str, ...]:
    steps = f"{share.least_steps:,}" if share.least_steps == share.most_steps else f"{share.least_steps:,} to {share.most_steps:,}"
    return share.way, steps, f"{share.lost:,}", f"{share.repeated:,}"


def _as_json(facts: SetFacts, readers: Readers, found: Sequence[RuleFinding], shares: Sequence[EpochShare]) -> dict[str, Any]:
    """All figures; ``level`` of a rule is ok, advice, fault or not known."""
    known = facts.known
    return {
        "shards": len(facts.names), **asdict(readers),
        "counted": len(known), "counted_by": facts.counted_by, "samples": sum(facts.all_counts),
        "least_samples": min(known, default=None), "most_samples": max(known, default=None),
        "shard_bytes": {"least": min(facts.lengths, default=None), "most": max(facts.lengths, default=None), "asked": len(facts.lengths)},
        "total_bytes": facts.total_bytes, "cache_bytes": facts.cache_bytes,
        "rules": [asdict(one) for one in found],
        "ways": [asdict(share) for share in shares],
    }  # fmt: skip
