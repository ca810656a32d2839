"""``forebay plan``: what a cache would do for a training run, before the run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from forebay_proxy.cli.options import SURVEY_SETTINGS, Seams, config_option, json_option, load_settings, quantity, survey_options
from forebay_proxy.cli.output import many, notice, say, say_json, show_table, wrapped
from forebay_proxy.cli.sources import named_texts, understood
from forebay_proxy.config.settings import Settings, flag_name
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.quantities import TotalBytes, format_bits, format_duration, format_rate, format_size, parse_rate
from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.eviction.ledger import OVERHEAD_STEP_BYTES
from forebay_proxy.simulate.estimate import Estimate
from forebay_proxy.simulate.replay import ReplayOutcome, replay
from forebay_proxy.simulate.workload import ALL, ALONE, Recording, Workload, read_recording, shuffled

__all__ = ["plan"]

_EPOCHS = 4  # in a line of 80 columns; --json has them all
_OVERHEAD_BYTES = 4 * OVERHEAD_STEP_BYTES  # what the sidecar's ledger counts for index, log and lock of hundreds of shards
_SEGMENTS_S = 4_000  # replayed in a second of one core
_MOST_SEGMENTS = 30_000_000  # two hours; a larger one is a slip of the keyboard
_FIGURES = (
    "ahead_bytes", "smallest_useful_bytes", "hit_bytes", "origin_bytes", "lru_hit_bytes", "sufficient_bytes",
    "trainer_s", "first_epoch_s", "epoch_s", "waiting_ratio", "verdict",
)  # fmt: skip
_NEEDED = {"cache_size": "500GB", "origin_bandwidth": "10Gbit", "rate": "800MB/s"}


def _ahead(text: str) -> int:
    if text == "all":
        return ALL
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ValueError(f"{text!r} is not a number of shards; write 16, or all for whole epochs")
    return int(text)


_rate, _count = quantity(parse_rate), click.IntRange(min=1)


@click.command()
@click.argument("urls", nargs=-1)
@survey_options
@click.option("--origin-bandwidth", callback=_rate, metavar="RATE", help="Estimate: what origin and line give, as 10Gbit.")
@click.option("--rate", callback=_rate, metavar="RATE", help="Estimate: what all readers take together, as 800MB/s.")
@click.option("--workers", "--readers", type=_count, metavar="N", help="Readers of a job: ranks x DataLoader workers.  [default: 1]")
@click.option("--replay", "file", metavar="FILE", help="Replay a list or an access log through the cache's own code.")
@click.option("--epochs", type=_count, metavar="N", help="Replay: epochs to read.  [default: 2, or as recorded]")
@click.option("--shuffle", type=int, metavar="SEED", help="Replay: a fresh order each epoch.  [default: as listed]")
@click.option(
    "--ahead", callback=quantity(_ahead), default="16", show_default=True, metavar="N|all", help="Replay: shards a reader announces."
)
@json_option
@config_option
@click.pass_obj
def plan(seams: Seams, /, urls: tuple[str, ...], lists: tuple[str, ...], as_json: bool, config: Path | None, **flags: Any) -> int:
    """Say what a cache can do for a training run: estimate it, or replay it.

    \b
    Examples:
      forebay plan 's3://bucket/shard-{000000..000999}.tar' --cache-size 500GB \\
          --origin-bandwidth 10Gbit --rate 800MB/s --workers 64
      forebay plan shards.txt --shard-size 250MB --cache-size 500GB \\
          --origin-bandwidth 10Gbit --rate 800MB/s
      forebay plan --replay shards.txt --shard-size 250MB --epochs 5 --shuffle 1 \\
          --cache-size 500GB --workers 8
      forebay plan --replay access.log --cache-size 500GB --json

    Lengths are asked of the origin (HEAD, with this environment's credentials) unless they are given. The estimate is what no cache can
    beat, and what Forebay comes close to. A replay runs the openings of a file, in order, through the cache's own decisions, beside LRU: it
    tells what is fetched, in bytes. It knows no seconds.

    \b
    --replay takes ('-' is stdin):
      a list      of URLs or patterns, one a line; readers take turns
      access log  as forebay serve --access-log FILE writes it, in the order of
                  its openings
    """
    settings = load_settings({name: flags[name] for name in SURVEY_SETTINGS}, config)
    shards = {shard.name: shard for shard in (Shard.of(source.url, source.headers) for source in understood(named_texts(urls, lists)))}
    if flags["cache_size"] is None and isinstance(settings.cache_size, TotalBytes):
        flags["cache_size"] = settings.cache_size.count
    if flags["file"] is None:
        return _estimate(list(shards.values()), settings, seams, flags, as_json=as_json)
    if shards:
        raise click.UsageError("--replay names what is read; no URLs go with it")
    for name in ("rate", "origin_bandwidth"):
        if flags[name] is not None:
            raise click.UsageError(f"{flag_name(name)} is for an estimate: a replay counts bytes, and knows no seconds")
    return _replay(read_recording(_text(flags["file"])), settings, seams, flags, as_json=as_json)


def _estimate(shards: Sequence[Shard], settings: Settings, seams: Seams, flags: dict[str, Any], *, as_json: bool) -> int:
    if not shards:
        raise click.UsageError("name at least one URL, a list with --from, or a file to --replay")
    if missing := [f"{flag_name(name)} {example}" for name, example in _NEEDED.items() if flags[name] is None]:
        raise click.UsageError(f"an estimate needs {' and '.join(missing)} too (with your own figures)")
    lengths, how = _lengths(shards, {}, settings, seams, flags)
    estimate = Estimate(sum(lengths.values()), flags["cache_size"], flags["origin_bandwidth"], flags["rate"], flags["workers"] or 1)
    if as_json:
        figures = {name: getattr(estimate, name) for name in _FIGURES}
        say_json({"shards": len(lengths), "lengths": how, **asdict(estimate), **figures})
        return 0
    show_table([
        ("working set", f"{format_size(estimate.dataset_bytes)} in {many(len(lengths), 'shard')} ({how})"),
        ("cache", format_size(estimate.cache_bytes)),
        ("trainer", f"takes {format_rate(estimate.rate_bytes_s)}, with {many(estimate.workers, 'reader')} (--workers)"),
        ("origin", f"gives {format_rate(estimate.origin_bytes_s)} ({format_bits(estimate.origin_bytes_s)})"),
        ("smallest useful cache", f"{format_size(estimate.smallest_useful_bytes)}: below it hardly more than read-ahead fits"),
        ("read from the cache", f"{_share(estimate.hit_bytes, estimate.dataset_bytes)} an epoch, from the second on"),
        ("  with LRU instead", f"{_share(estimate.lru_hit_bytes, estimate.dataset_bytes)}, each epoch shuffled anew"),
        ("read from the origin", f"{format_size(estimate.origin_bytes)} an epoch" if estimate.origin_bytes else "nothing any more"),
        ("first epoch", f"at least {format_duration(estimate.first_epoch_s)}"),
        ("further epochs", f"at least {format_duration(estimate.epoch_s)}; the trainer alone takes {format_duration(estimate.trainer_s)}"),
    ])  # fmt: skip
    say("")
    for line in wrapped(estimate.verdict):
        say(line)
    return 0


def _replay(recording: Recording, settings: Settings, seams: Seams, flags: dict[str, Any], *, as_json: bool) -> int:
    if flags["cache_size"] is None:
        raise click.UsageError("--cache-size is missing: how many bytes may the cache hold, as 500GB")
    lengths, how = _lengths(recording.shards(), recording.lengths, settings, seams, flags)
    workload = _workload(recording, lengths, flags)
    segments = workload.read_segments
    if segments > _MOST_SEGMENTS:
        step = "take fewer --epochs, or a tenth of shards and cache"
        raise click.UsageError(f"{segments} segments would be read, hours of replaying; {step}")
    if segments > 60 * _SEGMENTS_S:
        notice(f"{segments} segments are read: about {format_duration(segments / _SEGMENTS_S)} of replaying")
    if recording.skipped:
        notice(f"{recording.skipped} lines of the log open no shard (no GET of one from its start, or not answered 200 or 206); left out")
    outcomes = replay(workload, flags["cache_size"], overhead_bytes=_OVERHEAD_BYTES)
    if as_json:
        say_json({"kind": recording.kind, "lengths": how, "policies": [outcome.as_json() for outcome in outcomes]})
        return 0
    ahead = "whole epochs" if workload.ahead == ALL else many(workload.ahead, "shard")
    read = f"{many(len(lengths), 'shard')}, {format_size(workload.dataset_bytes)} ({how})"
    who = f"{many(len(workload.orders), 'reader')} announcing {ahead}"
    for line in wrapped(f"{recording.kind}: {read}; {who}; cache: {format_size(flags['cache_size'])}"):
        say(line)
    say("")
    show_table([("policy", "from origin", "hit ratio", "peak disk", "hits by epoch"), *map(_row, outcomes)])
    return 0


def _lengths(
    shards: Sequence[Shard], known: dict[str, int], settings: Settings, seams: Seams, flags: dict[str, Any]
) -> tuple[dict[str, int], str]:
    """(bytes of every shard by name, how they are known). Asks the origin if nothing else tells."""
    missing = [shard for shard in shards if shard.name not in known]
    if not missing:
        return known, "as recorded"
    if flags["shard_size"] is not None:
        return {**{shard.name: flags["shard_size"] for shard in missing}, **known}, "as given"
    found = seams.survey(missing, settings, flags["ask"])
    lengths = {shard.name: known.get(shard.name, found.lengths.get(shard.name, found.mean_bytes)) for shard in shards}
    return lengths, "asked of the origin" if found.asked == found.total else f"estimated: {found.asked} of {found.total} shards asked"


def _workload(recording: Recording, lengths: dict[str, int], flags: dict[str, Any]) -> Workload:
    """As recorded; a list is read as the flags say: shuffled, in epochs, by many."""
    if recording.kind == "list":
        return shuffled(
            recording.orders[ALONE][0].shards, lengths, epochs=flags["epochs"] or 2, seed=flags["shuffle"],
            readers=flags["workers"] or 1, ahead=flags["ahead"],
        )  # fmt: skip
    for name in ("epochs", "shuffle", "workers"):
        if flags[name] is not None:
            raise click.UsageError(f"--{name} is for a list of shards; this {recording.kind} says itself who read what")
    return Workload(recording.orders, lengths, flags["ahead"], recording.turns)


def _text(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}", next_step="check --replay") from error


def _share(count: int, total: int) -> str:
    return f"{format_size(count)} ({100 * count / total:.0f} %)" if total else format_size(count)


def _row(outcome: ReplayOutcome) -> tuple[str, ...]:
    epochs = [f"{100 * epoch.hit_ratio:.1f} %" for _, epoch in sorted(outcome.epochs.items())]
    shown = [*epochs[:_EPOCHS], "…"] if len(epochs) > _EPOCHS else epochs
    ratio = f"{100 * outcome.hit_ratio:.1f} %"
    return outcome.policy, format_size(outcome.origin_bytes), ratio, format_size(outcome.peak_bytes), ", ".join(shown)
