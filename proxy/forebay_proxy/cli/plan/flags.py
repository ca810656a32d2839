"""The flags of ``forebay plan``, and how their quantities are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from forebay_proxy.cli.options import SURVEY_SAMPLE, SURVEY_SETTINGS, from_option, one_setting, quantity, total_bytes
from forebay_proxy.core.quantities import parse_rate
from forebay_proxy.simulate.workload import ALL

__all__ = ["plan_flags"]

Function = TypeVar("Function", bound=Callable[..., Any])


def _ahead(text: str) -> int:
    if text == "all":
        return ALL
    if not (text.isascii() and text.isdigit() and int(text)):
        raise ValueError(f"{text!r} is not a number of shards; write 16, or all for whole epochs")
    return int(text)


_size, _rate = quantity(total_bytes), quantity(parse_rate)
_count = click.IntRange(min=1)

_FLAGS = (
    from_option,
    click.option("--cache-size", callback=_size, metavar="SIZE", help="What the cache may hold, as 500GB.  [FOREBAY_CACHE_SIZE]"),
    click.option("--origin-bandwidth", callback=_rate, metavar="RATE", help="Estimate: what origin and line give, as 10Gbit."),
    click.option("--rate", callback=_rate, metavar="RATE", help="Estimate: what all readers take together, as 800MB/s."),
    click.option("--workers", "--readers", type=_count, metavar="N", help="Readers of a job: ranks x DataLoader workers.  [default: 1]"),
    click.option("--shard-size", callback=_size, metavar="SIZE", help="Length of every shard, instead of asking the origin."),
    click.option(
        "--ask",
        type=_count,
        metavar="N",
        default=SURVEY_SAMPLE,
        show_default=True,
        help="Of how many shards, evenly spread, the origin is asked.",
    ),
    *map(one_setting, SURVEY_SETTINGS),
    click.option("--replay", "file", metavar="FILE", help="Replay a list or an access log through the cache's own code."),
    click.option("--epochs", type=_count, metavar="N", help="Replay: epochs to read.  [default: 2, or as recorded]"),
    click.option("--shuffle", type=int, metavar="SEED", help="Replay: a fresh order each epoch.  [default: as listed]"),
    click.option("--jobs", type=_count, metavar="N", default=1, show_default=True, help="Replay: jobs that read the whole list each."),
    click.option(
        "--ahead", callback=quantity(_ahead), default="16", show_default=True, metavar="N|all", help="Replay: shards a reader announces."
    ),
)


def plan_flags(function: Function) -> Function:
    """All of them, in this order in the help."""
    for flag in reversed(_FLAGS):
        function = flag(function)
    return function
