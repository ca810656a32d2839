"""``forebay doctor``: looks at the machine, the sidecar and an origin; or, with ranks and workers, at a set before the run reads it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from forebay_proxy.cli.doctor.machine_checks import environment_findings, origin_findings, sidecar_findings
from forebay_proxy.cli.doctor.report import report
from forebay_proxy.cli.doctor.set_rules import EpochShare, Level, Readers, RuleFinding, SetFacts, epoch_shares, findings
from forebay_proxy.cli.index.sizes_json import SizesJson, file_name
from forebay_proxy.cli.options import SURVEY_SETTINGS, Seams, config_option, json_option, load_settings, survey_options, url_option
from forebay_proxy.cli.output import error_line, many, notice, say, say_json, show_table, wrapped, write_whole
from forebay_proxy.cli.run.env import ways_in
from forebay_proxy.cli.sources import named_texts, understood
from forebay_proxy.config.settings import Settings
from forebay_proxy.core.errors import ConfigError, ForebayError
from forebay_proxy.core.exit_codes import ExitCode
from forebay_proxy.core.quantities import TotalBytes
from forebay_proxy.core.shard import Shard
from forebay_proxy.wire.commands.sources import Source

__all__ = ["doctor"]

_SIZES = "sizes.json"  # where 'forebay index' writes it
_NO_SIDECAR = "http://127.0.0.1:7070"


@click.command()
@click.argument("urls", nargs=-1)
@survey_options
@click.option("--ranks", type=click.IntRange(min=1), metavar="N", help="Processes that train: WORLD_SIZE. With --workers: judge the set.")
@click.option("--workers", type=click.IntRange(min=0), metavar="N", help="DataLoader workers of each: num_workers.")
@click.option(
    "--batch", type=click.IntRange(min=1), default=1, metavar="N", help="Samples of a batch of one rank, as workers make it.  [default: 1]"
)
@click.option("--sizes", metavar="PATH", help="Samples by file name, as 'forebay index' writes them.  [default: ./sizes.json]")
@click.option("--samples", type=click.IntRange(min=0), metavar="N", help="Samples of every shard, where nothing else tells.")
@click.option(
    "--report",
    "report_to",
    metavar="FILE",
    help="Write findings, status and the log's end into a new file, to paste into a bug.",
)
@json_option
@config_option
@url_option
@click.pass_obj
def doctor(
    seams: Seams, /, urls: tuple[str, ...], lists: tuple[str, ...], as_json: bool, config: Path | None, url: str | None,
    report_to: str | None, **flags: Any,
) -> int:  # fmt: skip
    """Find what stands in the way: this shell, the sidecar, the cache's disk, a shard's origin. With --ranks: does a set suit a run?

    \b
    Examples:
      forebay doctor                                 the shell, the running sidecar, its disk
      forebay doctor 's3://bucket/{000..099}.tar'    and the origin: credentials, first byte, bytes a second, ranges, version, clock
      forebay doctor --report bug.json               the same into a file to paste into a bug; no secret is in it
      forebay doctor 's3://bucket/{000000..000999}.tar' --ranks 8 --workers 6
      forebay doctor shards.txt --sizes sizes.json --ranks 64 --workers 4 \\
          --batch 256 --cache-size 500GB
      forebay doctor 's3://bucket/{000..099}.tar' --samples 5000 \\
          --shard-size 400MB --ranks 8 --workers 8 --json

    URLS are URLs, brace patterns, 'pipe:' commands, or files of them. Of the first one's origin up to nine segments of 8 MiB are fetched,
    with this environment's credentials and past the sidecar. 64 MiB are written beside the cache and removed.

    With --ranks and --workers: no shard is fetched, and no sidecar is needed. Samples are as the sizes.json says that 'forebay index'
    wrote; lengths are asked of the origin (HEAD). The table says what becomes of an epoch's samples in each way of sharing them out: the
    steps of the ranks with the fewest and the most, and samples that are lost or come twice. Exit code 1: something is to be mended, and
    its row says how; advice alone is 0.
    """
    sources = list(understood(named_texts(urls, lists))) if urls or lists else []
    if flags["ranks"] is None and flags["workers"] is None:
        return _machine(
            sources, urls, url, report_to, load_settings({name: flags[name] for name in SURVEY_SETTINGS}, config), as_json=as_json
        )
    if flags["ranks"] is None or flags["workers"] is None:
        raise click.UsageError("--ranks and --workers belong together: who reads the set?")
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


def _machine(
    sources: Sequence[Source], urls: Sequence[str], url: str | None, report_to: str | None, settings: Settings, *, as_json: bool
) -> int:
    """The checks that need no set."""
    if report_to is not None and Path(report_to).is_file():
        raise ConfigError(f"{report_to} exists already", next_step="name another file with --report")
    found = list(environment_findings(os.environ))
    of_sidecar, status = sidecar_findings(url, os.environ)
    found += of_sidecar
    if sources:
        if not as_json:
            notice("asking the origin for up to nine segments, 20 s at most")
        first = sources[0]
        found += origin_findings(Shard.of(first.url, first.headers), settings, os.environ)
    if as_json:
        say_json({"findings": [asdict(one) for one in found]})
    else:
        if urls and not urls[0].startswith("-"):
            show_table(ways_in(urls[0], str(status["url"]) if status else _NO_SIDECAR, os.environ))
            say("")
        _show(found, [])
    if report_to is not None:
        write_whole({Path(report_to): report(found, status, os.environ)}, next_step="name another file with --report")
        notice(f"wrote {report_to}: findings, status, versions, the end of the log; read it before you paste it")
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
