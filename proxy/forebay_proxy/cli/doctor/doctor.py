"""``forebay doctor``: looks at a set, and at who will read it, before the run does."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import click

from forebay_proxy.cli.doctor.diagnosis import diagnosis_json, show_diagnosis
from forebay_proxy.cli.doctor.epoch_shares import Readers, epoch_shares
from forebay_proxy.cli.doctor.known_facts import known_facts
from forebay_proxy.cli.doctor.rules import Level, findings
from forebay_proxy.cli.options import config_option, json_option, load_settings, one_setting, url_option
from forebay_proxy.cli.output import say_json
from forebay_proxy.cli.plan.flags import SETTINGS, quantity, total_bytes
from forebay_proxy.cli.seams import Seams
from forebay_proxy.cli.sources import is_list, read_list, understood
from forebay_proxy.core.exit_codes import ExitCode

__all__ = ["doctor"]

_SAMPLE = 32  # as in the plan's flags


class _Doctor(click.Command):
    """One whose missing options are told together."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given, _, _ = self.make_parser(ctx).parse_args(list(args))
        missing = [param.opts[0] for param in self.params if param.required and given.get(param.name or "") is None]
        if len(missing) > 1 and not {"-h", "--help"} & set(args):
            raise click.UsageError(f"missing options {' and '.join(missing)}", ctx)
        return super().parse_args(ctx, args)


_size, _count = quantity(total_bytes), click.IntRange(min=1)


@click.command(cls=_Doctor)
@click.argument("urls", nargs=-1)
@click.option("--from", "lists", multiple=True, metavar="FILE", help="Also the URLs in FILE, one a line; '-' is stdin.")
@click.option("--ranks", type=_count, required=True, metavar="N", help="Processes that train: WORLD_SIZE.")
@click.option("--workers", type=click.IntRange(min=0), required=True, metavar="N", help="DataLoader workers of each: num_workers.")
@click.option("--batch", type=_count, default=1, metavar="N", help="Samples of a batch of one rank, as workers make it.  [default: 1]")
@click.option("--sizes", metavar="PATH", help="Samples of each shard by file name, as 'forebay index' and OpenCLIP write them.")
@click.option("--samples", type=click.IntRange(min=0), metavar="N", help="Samples of every shard, where nothing else tells.")
@click.option("--shard-size", callback=_size, metavar="SIZE", help="Length of every shard, instead of asking the origin.")
@click.option("--ask", type=_count, metavar="N", default=_SAMPLE, show_default=True, help="Of how many shards the length is asked.")
@click.option("--cache-size", callback=_size, metavar="SIZE", help="What the cache may hold.  [default: the running sidecar's]")
@one_setting(SETTINGS[0])
@one_setting(SETTINGS[1])
@json_option
@config_option
@url_option
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

    URLS are URLs, brace patterns, 'pipe:' commands, or files of them. Samples are counted by --sizes, else by the sample indexes of the
    running sidecar ('forebay index' makes them). Lengths are asked of that sidecar, which asks the origin (HEAD) for shards that it does
    not hold; without one, of the origin. No shard is fetched.

    The table says what becomes of an epoch's samples in each way of sharing them out: the steps of the ranks with the fewest and the most,
    samples that are lost or come twice, and those lost where the last batch must be full. Exit code 1: a rule is broken, and the row says
    what to do; advice alone is 0.
    """
    files = [*lists, *filter(is_list, urls)]
    texts = chain((text for text in urls if not is_list(text)), *(read_list(path) for path in files))
    sources = list(understood(texts))
    if not sources:
        raise click.UsageError("name at least one URL, or a list with --from")
    if flags["sizes"] is not None and flags["samples"] is not None:
        raise click.UsageError("--sizes and --samples say the same thing; give one of them")
    settings = load_settings({name: flags[name] for name in SETTINGS}, config)
    readers = Readers(flags["ranks"], flags["workers"], flags["batch"])
    facts = known_facts(sources, settings, seams, flags)
    shares = epoch_shares(facts.all_counts, readers) if sum(facts.all_counts) else []
    found = findings(facts, readers, shares)
    if as_json:
        say_json(diagnosis_json(facts, readers, found, shares))
    else:
        show_diagnosis(found, shares)
    return ExitCode.PART_FAILED if any(one.level is Level.FAULT for one in found) else ExitCode.DONE
