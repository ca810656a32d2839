"""``forebay plan``: what a cache would do for a training run, before the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from forebay_proxy.cli.options import config_option, json_option
from forebay_proxy.cli.output import notice, say_json
from forebay_proxy.cli.plan.arguments import PlanArguments
from forebay_proxy.cli.plan.flags import plan_flags
from forebay_proxy.cli.plan.report import estimate_json, outcomes_json, show_estimate, show_outcomes
from forebay_proxy.cli.seams import Seams
from forebay_proxy.core.quantities import format_duration
from forebay_proxy.policy.eviction.ledger import OVERHEAD_STEP_BYTES
from forebay_proxy.simulate.estimate import Estimate, PlannedRun
from forebay_proxy.simulate.replay import replay

__all__ = ["plan"]

_OVERHEAD_BYTES = 4 * OVERHEAD_STEP_BYTES  # what the sidecar's ledger counts for index, log and lock of hundreds of shards
_SEGMENTS_S = 4_000  # replayed in a second of one core
_MOST_SEGMENTS = 30_000_000  # two hours; a larger one is a slip of the keyboard


@click.command()
@click.argument("urls", nargs=-1)
@plan_flags
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
    asked = PlanArguments.of(urls, lists, config, flags)
    if asked.recording is None:
        return _estimate(asked, seams, as_json=as_json)
    return _replay(asked, seams, as_json=as_json)


def _estimate(asked: PlanArguments, seams: Seams, *, as_json: bool) -> int:
    asked.need(cache_size="500GB", origin_bandwidth="10Gbit", rate="800MB/s")
    cache_bytes, flags = asked.cache_bytes, asked.flags
    lengths, how = asked.lengths(seams)
    estimate = Estimate(PlannedRun(sum(lengths.values()), cache_bytes, flags["origin_bandwidth"], flags["rate"], flags["workers"] or 1))
    if as_json:
        say_json({"shards": len(lengths), "lengths": how, **estimate_json(estimate)})
    else:
        show_estimate(estimate, len(lengths), how)
    return 0


def _replay(asked: PlanArguments, seams: Seams, *, as_json: bool) -> int:
    assert asked.recording is not None, "asked for a replay"
    cache_bytes, recording = asked.cache_bytes, asked.recording
    lengths, how = asked.lengths(seams)
    workload = asked.workload(lengths)
    segments = workload.read_segments
    if segments > _MOST_SEGMENTS:
        step = "take fewer --epochs, or a tenth of shards and cache"
        raise click.UsageError(f"{segments} segments would be read, hours of replaying; {step}")
    if segments > 60 * _SEGMENTS_S:
        notice(f"{segments} segments are read: about {format_duration(segments / _SEGMENTS_S)} of replaying")
    if recording.skipped:
        notice(f"{recording.skipped} lines of the log open no shard (no GET of one from its start, or not answered 200 or 206); left out")
    outcomes = replay(workload, cache_bytes, overhead_bytes=_OVERHEAD_BYTES)
    if as_json:
        say_json({"kind": recording.kind, "lengths": how, **outcomes_json(outcomes)})
    else:
        show_outcomes(outcomes, recording.kind, workload, how)
    return 0
