"""What ``forebay plan`` found, as tables, as a chart, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from shutil import get_terminal_size
from typing import Any

from forebay_proxy.cli.output import is_terminal, many, say, show_table, wrapped
from forebay_proxy.core.quantities import format_bits, format_duration, format_rate, format_size
from forebay_proxy.simulate.estimate import Estimate
from forebay_proxy.simulate.origin import SimulatedLine
from forebay_proxy.simulate.outcome import SimulatedOutcome
from forebay_proxy.simulate.workload import ALL, Workload

__all__ = ["assumed", "chart", "estimate_json", "outcomes_json", "show_estimate", "show_outcomes"]

_CELLS = 40  # of the longest bar: fits beside the names in 80 columns
_BESIDE = 26  # columns: names before a bar, and the figure behind it
_EIGHTHS = " ▏▎▍▌▋▊▉"


def show_estimate(estimate: Estimate, shards: int, how: str) -> None:
    """The figures, then the verdict."""
    run = estimate.run
    show_table([
        ("", ""),
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


def assumed(kind: str, workload: Workload, line: SimulatedLine, cache_bytes: int, how: str) -> tuple[str, str]:
    """What a replay reads, and what it takes cache, line and readers to be: a figure without that says nothing."""
    scripts = workload.scripts
    rates = {script.rate for script in scripts}
    rate = next(iter(rates)) if len(rates) == 1 else None
    if rate:
        pace = f"reading {format_rate(rate)}" + (" each" if len(scripts) > 1 else "")
    else:
        timed = "reading at the recorded pace" if any(script.own_s for script in scripts) else "reading at the recorded times"
        pace = timed if any(script.moments for script in scripts) else "reading as fast as bytes come (no --rate)"
    ahead = "whole epochs" if workload.ahead == ALL else many(workload.ahead or 0, "shard")
    width = format_rate(line.bytes_s) if line.bytes_s else "without a limit (no --origin-bandwidth)"
    each = f", {format_rate(line.connection_bytes_s)} a connection" if line.connection_bytes_s else ""
    return (
        f"{kind}: {many(len(workload.lengths), 'shard')}, {format_size(workload.dataset_bytes)} ({how}); "
        f"{many(len(scripts), 'reader')} {pace}, announcing {ahead}",
        f"cache: {format_size(cache_bytes)}; origin: {width}{each}, first byte after {round(line.latency_s * 1000)} ms, "
        f"{line.connections} requests at once",
    )


def show_outcomes(outcomes: Sequence[SimulatedOutcome], what: Sequence[str]) -> None:
    """What was assumed, a row a policy, the optimum, and a chart."""
    for paragraph in what:
        for line in wrapped(paragraph):
            say(line)
    say("")
    rows = [("policy", "from origin", "hit ratio", "waited", "of time", "run", "peak disk"), *map(_row, outcomes)]
    best = min(outcomes, key=lambda outcome: outcome.optimal_bytes)
    ratio = f"{100 * (1 - best.optimal_bytes / max(1, best.read_bytes)):.1f} %"
    rows.append(("the optimum", format_size(best.optimal_bytes), ratio, "", "", "", ""))
    show_table(rows)
    say("")
    for line in chart(outcomes, min(_CELLS, max(8, get_terminal_size().columns - _BESIDE)) if is_terminal() else _CELLS):
        say(line)


def _row(outcome: SimulatedOutcome) -> tuple[str, ...]:
    return (
        outcome.policy,
        format_size(outcome.origin_bytes),
        f"{100 * outcome.hit_ratio:.1f} %",
        format_duration(outcome.waited_s),
        f"{100 * outcome.wait_ratio:.1f} %",
        format_duration(outcome.seconds),
        format_size(outcome.peak_bytes),
    )


def outcomes_json(outcomes: Sequence[SimulatedOutcome]) -> dict[str, Any]:
    """All figures of all policies, epoch by epoch; bytes, seconds, ratios."""
    return {
        "policies": [
            {**asdict(outcome), "hit_bytes": outcome.hit_bytes, "hit_ratio": outcome.hit_ratio, "wait_ratio": outcome.wait_ratio}
            for outcome in outcomes
        ]
    }


def chart(outcomes: Sequence[SimulatedOutcome], cells: int = _CELLS) -> list[str]:
    """Bars in plain text: the hit ratio and the readers' waiting, of each policy and epoch; ``cells``: columns of the longest."""
    lines = ["hits, of the bytes read, by epoch"]
    for outcome in outcomes:
        for number, epoch in enumerate(outcome.epochs):
            ratio = max(0.0, 1 - epoch.origin_bytes / epoch.read_bytes) if epoch.read_bytes else 0.0
            lines.append(f"  {outcome.policy if not number else '':<12}{number + 1:>3} {_bar(ratio, cells)} {100 * ratio:.1f} %")
    lines.append("readers waiting, of their time")
    lines += [f"  {outcome.policy:<12}    {_bar(outcome.wait_ratio, cells)} {100 * outcome.wait_ratio:.1f} %" for outcome in outcomes]
    return lines


def _bar(ratio: float, cells: int) -> str:
    """A bar to an eighth of a character: differences of 0.3 % show."""
    eighths = round(min(1.0, ratio) * cells * 8)
    full, rest = divmod(eighths, 8)
    return f"{'█' * full}{_EIGHTHS[rest] if rest else ''}".ljust(cells)


def _share(count: int, total: int) -> str:
    return f"{format_size(count)} ({100 * count / total:.0f} %)" if total else format_size(count)
