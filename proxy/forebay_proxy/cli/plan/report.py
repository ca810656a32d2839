"""What ``forebay plan`` found, as tables and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from forebay_proxy.cli.output import many, say, show_table, wrapped
from forebay_proxy.core.quantities import format_bits, format_duration, format_rate, format_size
from forebay_proxy.simulate.estimate import Estimate
from forebay_proxy.simulate.replay import ReplayOutcome
from forebay_proxy.simulate.workload import ALL, Workload

__all__ = ["estimate_json", "outcomes_json", "show_estimate", "show_outcomes"]

_EPOCHS = 4  # in a line of 80 columns; --json has them all


def show_estimate(estimate: Estimate, shards: int, how: str) -> None:
    """The figures, then the verdict."""
    run = estimate.run
    show_table([
        ("working set", f"{format_size(run.dataset_bytes)} in {many(shards, 'shard')} ({how})"),
        ("cache", format_size(run.cache_bytes)),
        ("trainer", f"takes {format_rate(run.rate_bytes_s)}, with {many(run.workers, 'reader')} (--workers)"),
        ("origin", f"gives {format_rate(run.origin_bytes_s)} ({format_bits(run.origin_bytes_s)})"),
        ("smallest useful cache", f"{format_size(estimate.smallest_useful_bytes)}: below it hardly more than read-ahead fits"),
        ("read from the cache", f"{_share(estimate.hit_bytes, run.dataset_bytes)} an epoch, from the second on"),
        ("  with LRU instead", f"{_share(estimate.lru_hit_bytes, run.dataset_bytes)}, each epoch shuffled anew"),
        ("read from the origin", f"{format_size(estimate.origin_bytes)} an epoch" if estimate.origin_bytes else "nothing any more"),
        ("first epoch", f"at least {format_duration(estimate.first_epoch_s)}"),
        ("further epochs", f"at least {format_duration(estimate.epoch_s)}; the trainer alone takes {format_duration(estimate.trainer_s)}"),
    ])  # fmt: skip
    say("")
    for line in wrapped(estimate.verdict):
        say(line)


def estimate_json(estimate: Estimate) -> dict[str, Any]:
    """Inputs and figures; bytes, seconds, ratios."""
    names = (
        "ahead_bytes", "smallest_useful_bytes", "hit_bytes", "origin_bytes", "lru_hit_bytes", "sufficient_bytes",
        "trainer_s", "first_epoch_s", "epoch_s", "waiting_ratio", "verdict",
    )  # fmt: skip
    return {**asdict(estimate.run), **{name: getattr(estimate, name) for name in names}}


def show_outcomes(outcomes: Sequence[ReplayOutcome], kind: str, workload: Workload, how: str) -> None:
    """What was replayed, a row a policy."""
    ahead = "nothing" if workload.ahead is None else "whole epochs" if workload.ahead == ALL else many(workload.ahead, "shard")
    shards = f"{many(len(workload.lengths), 'shard')}, {format_size(workload.dataset_bytes)} ({how})"
    what = f"{kind}: {shards}; {many(len(workload.orders), 'reader')} announcing {ahead}; cache: {format_size(outcomes[0].capacity_bytes)}"
    for line in wrapped(what):
        say(line)
    say("")
    show_table([("policy", "from origin", "hit ratio", "peak disk", "hits by epoch"), *map(_row, outcomes)])


def _row(outcome: ReplayOutcome) -> tuple[str, ...]:
    epochs = [f"{100 * epoch.hit_ratio:.1f} %" for _, epoch in sorted(outcome.epochs.items())]
    shown = [*epochs[:_EPOCHS], "…"] if len(epochs) > _EPOCHS else epochs
    ratio = f"{100 * outcome.hit_ratio:.1f} %"
    return outcome.policy, format_size(outcome.origin_bytes), ratio, format_size(outcome.peak_bytes), ", ".join(shown)


def outcomes_json(outcomes: Sequence[ReplayOutcome]) -> dict[str, Any]:
    """All figures of all policies, epoch by epoch; bytes and ratios."""
    return {"policies": [_outcome_json(outcome) for outcome in outcomes]}


def _outcome_json(outcome: ReplayOutcome) -> dict[str, Any]:
    names = ("read_bytes", "origin_bytes", "hit_bytes", "hit_ratio")
    epochs = [asdict(epoch) for _, epoch in sorted(outcome.epochs.items())]
    return {**asdict(outcome), **{name: getattr(outcome, name) for name in names}, "epochs": epochs}


def _share(count: int, total: int) -> str:
    return f"{format_size(count)} ({100 * count / total:.0f} %)" if total else format_size(count)
