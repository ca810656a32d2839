"""This process's totals, as the sidecar gets them and as a progress bar shows them."""

from __future__ import annotations

import time
from typing import Callable, Dict, Mapping, Tuple

from forebay_loader.base.counters import counters
from forebay_loader.base.kept_folders import folders_now
from forebay_loader.meter.clock.stall_clock import StallClock
from forebay_loader.meter.totals import StallTotals
from forebay_proxy.wire.protocol.meter import CAUSES, DERIVED, MeterBody

__all__ = ["SLOWEST_S", "Postfix", "Window", "own_totals"]

SLOWEST_S = 30.0  # a worker that was slow an hour ago is not the slowest now
POSTFIX_S = 0.5  # a bar may ask at every step, but nobody reads faster than this
RECENT_S = 10.0


class Window:
    """The difference over about the last ``seconds``, by two earlier values."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._older = self._newer = StallTotals()
        self._newer_at_s = clock()

    def recent(self, totals: StallTotals) -> StallTotals:
        """The difference over one to two times ``seconds``, or since the start if that is shorter."""
        if totals.wall_s < self._older.wall_s:  # a forked child starts again
            self._older = self._newer = StallTotals()
        found = totals.since(self._older)
        if self._clock() - self._newer_at_s >= self._seconds:
            self._older, self._newer, self._newer_at_s = self._newer, totals, self._clock()
        return found


def own_totals(clock: StallClock, window: Window) -> MeterBody:
    """The totals of ``clock`` as one message. ``window`` is kept between messages."""
    totals = clock.totals()
    recent, stand = window.recent(totals), clock.stand()
    slowest = recent.slowest
    return MeterBody(
        wall_s=totals.wall_s,
        stall_s=_every_cause(totals.stall_s),
        steps=totals.steps,
        reader_wait_s=_every_cause(totals.reader_wait_s),
        samples=totals.samples,
        skipped=totals.skipped,
        batch_size=totals.batch_size,
        workers=clock.workers,
        slowest_worker=None if slowest is None or slowest.worker < 0 else slowest.worker,
        slowest_shard=None if slowest is None or not slowest.shard else slowest.shard,
        slowest_function=recent.function or None,
        pending_s=max(0.0, totals.pending_s),
        pending=totals.pending_cause or None,
        loader=stand and stand.number,
        loader_passes=stand and stand.passes,
        loader_steps=stand and stand.steps,
        step_s=stand.for_s if stand is not None and not stand.ended else None,
        ended_s=stand.for_s if stand is not None and stand.ended else None,
        derived=_derived(),
        folders=folders_now(),
    )


def _derived() -> Dict[str, Dict[str, int]]:
    """The counters of derived caches, for each kind that counted anything."""
    counted = counters()
    found = {kind: {name: counted[f"{kind}_{name}"] for name in names} for kind, names in DERIVED.items()}
    return {kind: counts for kind, counts in found.items() if any(counts.values())}


class Postfix:
    """``fb.postfix()``: the last ten seconds or so."""

    def __init__(self, totals: Callable[[], StallTotals], clock: Callable[[], float] = time.monotonic) -> None:
        self._totals, self._clock = totals, clock
        self._window = Window(RECENT_S, clock)
        self._said: Tuple[float, Dict[str, str]] = float("-inf"), {}

    def __call__(self) -> Dict[str, str]:
        at_s, said = self._said
        if self._clock() - at_s >= POSTFIX_S:
            said = _words(self._window.recent(self._totals()))
            self._said = self._clock(), said
        return dict(said)


def _words(recent: StallTotals) -> Dict[str, str]:
    if not recent.wall_s:
        return {}
    cause = f" {recent.cause}" if recent.cause and recent.share >= 0.001 else ""
    return {"stall": f"{100 * recent.share:.1f}%{cause}", "data": f"{recent.data_s:.3f}s"}


def _every_cause(seconds: Mapping[str, float]) -> Dict[str, float]:
    return {cause: seconds.get(cause, 0.0) for cause in CAUSES}
