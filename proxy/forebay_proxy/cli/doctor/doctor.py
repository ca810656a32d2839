"""``forebay doctor``: looks at a set, and at who will read it, before the run does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from forebay_proxy.cli.doctor.epoch_shares import EpochShare, Readers, epoch_shares
from forebay_proxy.cli.doctor.rules import Level, RuleFinding, SetFacts, findings
from forebay_proxy.cli.index.sizes_json import SizesJson, file_name
from forebay_proxy.cli.options import (
    SURVEY_SAMPLE,
    SURVEY_SETTINGS,
    Seams,
    config_option,
    from_option,
    json_option,
    load_settings,
    one_setting,
    quantity,
    total_bytes,
)
from forebay_proxy.cli.output import error_line, many, say, say_json, show_table, wrapped
from forebay_proxy.cli.sources import named_texts, understood
from forebay_proxy.config.settings import Settings
from forebay_proxy.core.errors import ConfigError, ForebayError
from forebay_proxy.core.exit_codes import ExitCode
from forebay_proxy.core.quantities import TotalBytes
from forebay_proxy.core.shard import Shard

__all__ = ["doctor"]

_SIZES = "sizes.json"  # where 'forebay index' writes it

_size, _count = quantity(total_bytes), click.IntRange(min=1)


@click.command()
@click.argument("urls", nargs=-1)
@from_option
@click.option("--ranks", type=_count, required=True, metavar="N", help="Processes that train: WORLD_SIZE.")
@click.option("--workers", type=click.IntRange(min=0), required=True, metavar="N", help="DataLoader workers of each: num_workers.")
@click.option("--batch", type=_count, default=1, metavar="N", help="Samples of a batch of one rank, as workers make it.  [default: 1]")
@click.option("--sizes", metavar="PATH", help="Samples by file name, as 'forebay index' writes them.  [default: ./sizes.json]")
@click.option("--samples", type=click.IntRange(min=0), metavar="N", help="Samples of every shard, where nothing else tells.")
@click.option("--shard-size", callback=_size, metavar="SIZE", help="Length of every shard, instead of asking the origin.")
@click.option("--ask", type=_count, metavar="N", default=SURVEY_SAMPLE, show_default=True, help="Of how many shards the length is asked.")
@click.option("--cache-size", callback=_size, metavar="SIZE", help="What the cache may hold.  [FOREBAY_CACHE_SIZE]")
@one_setting(SURVEY_SETTINGS[0])
@one_setting(SURVEY_SETTINGS[1])
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
    names = [shard.name for shard in shards]
    facts = SetFacts(names, counts, counted_by, lengths, measured_by, flags["cache_size"] or own)
    shares = epoch_shares(facts.all_counts, readers) if sum(facts.all_counts) else []
    found = findings(facts, readers, shares)
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
    how = "asked of the origin" if found.asked == found.total else f"{found.asked} of {found.total} shards asked"
    return list(found.lengths.values()), how


def _show(found: Sequence[RuleFinding], shares: Sequence[EpochShare]) -> None:
    """A row a rule, what to do under it; then the ways of sharing out; the verdict last."""
    rows = list[tuple[str, ...]]()
    for one in found:
        rows.append((one.level.value, one.rule, one.text))
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
    say(_verdict(found))


def _row(share: EpochShare) -> tuple[str, ...]:
    steps = f"{share.least_steps:,}" if share.least_steps == share.most_steps else f"{share.least_steps:,} to {share.most_steps:,}"
    return share.way, steps, f"{share.lost:,}", f"{share.repeated:,}"


def _verdict(found: Sequence[RuleFinding]) -> str:
    levels = [one.level for one in found]
    parts = []
    if faults := levels.count(Level.FAULT):
        parts.append(f"{many(faults, 'fault')} to mend before the run")
    if advice := levels.count(Level.ADVICE):
        parts.append(f"{many(advice, 'thing')} that could be better")
    if unknown := levels.count(Level.UNKNOWN):
        parts.append(f"{many(unknown, 'thing')} not known")
    return "; ".join(parts) or "nothing to mend"


def _as_json(facts: SetFacts, readers: Readers, found: Sequence[RuleFinding], shares: Sequence[EpochShare]) -> dict[str, Any]:
    """All figures; ``level`` of a rule is ok, advice, fault or not known."""
    known = facts.known
    return {
        "shards": len(facts.names), "ranks": readers.ranks, "workers": readers.workers, "batch": readers.batch,
        "counted": len(known), "counted_by": facts.counted_by, "samples": sum(facts.all_counts),
        "least_samples": min(known, default=None), "most_samples": max(known, default=None),
        "shard_bytes": {"least": min(facts.lengths, default=None), "most": max(facts.lengths, default=None), "asked": len(facts.lengths)},
        "total_bytes": facts.total_bytes, "cache_bytes": facts.cache_bytes,
        "rules": [{**asdict(one), "level": one.level.value} for one in found],
        "ways": [asdict(share) for share in shares],
    }  # fmt: skip
