"""Which batch size of a ladder: decided from what windows of steps took. Pure: figures in, a move or none out; no clock, no chance.

A step costs something whatever its size (kernel launches, the optimizer, an all-reduce) and something for each sample. Where the first part
dominates, a larger batch gives more samples a second. How large it is shows at two sizes at least, so the first rung above is tried: once
two sizes are known, a line through them says what the next one would give, and it is tried only where that pays. What was tried has to show
its gain. What was grown is given back, a rung at a time, where the trainer waits for data and the size below would give as much: then data
is the limit, and a larger batch is only a larger batch. A size that was given back is not tried again for a time, which doubles.

The ladder's first size is the user's: there is no rung below. Where a step ran out of memory, there is none above either.
"""

from __future__ import annotations

from statistics import median_high, median_low
from typing import Any, Mapping, NamedTuple, Optional, Sequence

from forebay_loader.batches.ladder_rules import LadderRules
from forebay_loader.batches.step_cost import StepCost, fitted

__all__ = ["LadderController", "LadderMove", "StepsWindow"]

FORMAT = 1
KEPT = 3  # windows of which the middle one counts
DRIFT = 1.25  # a step that takes so many times as long as once at this size is another step: what was known of other sizes is void
LONG_KEPT = 4  # times its hold: a size that was kept so long begins with the shortest hold again


class StepsWindow(NamedTuple):
    """So many steps of one size: ``stall_s`` for which the trainer waited for data, and ``busy_s`` for all else."""

    steps: int = 0
    busy_s: float = 0.0
    stall_s: float = 0.0

    @property
    def step_s(self) -> float:
        """What a step takes that waits for nothing."""
        return max(self.busy_s / self.steps, 1e-9)

    @property
    def stall(self) -> float:
        """The share of its time."""
        whole = self.busy_s + self.stall_s
        return self.stall_s / whole if whole > 0 else 0.0


class LadderMove(NamedTuple):
    """From the next step on batches have ``size`` samples."""

    size: int
    why: str


class _Measured(NamedTuple):
    """Seconds of a step of one size: when it was first measured, and last."""

    first_s: float
    last_s: float


class _Hold(NamedTuple):
    """A size is not tried before this window; how long that was."""

    until: int
    windows: int


class LadderController:
    """``ladder``: sizes that ascend, the user's first. ``rung`` counts them from 0."""

    def __init__(self, ladder: Sequence[int], rules: LadderRules = LadderRules()) -> None:  # noqa: B008  # frozen
        self.ladder = tuple(ladder)
        self.rung = 0
        self.ceiling = len(self.ladder) - 1
        self._rules = rules
        self._seen = 0  # windows
        self._settled = False  # the first window at a size is not counted: allocators and autotuners get used to it
        self._recent: list[StepsWindow] = []
        self._measured: dict[int, _Measured] = {}  # by rung
        self._holds: dict[int, _Hold] = {}
        self._bar: Optional[float] = None  # the gain that this size, which is on trial, must show

    @property
    def size(self) -> int:
        return self.ladder[self.rung]

    @property
    def cost(self) -> Optional[StepCost]:
        """What is known of a step; None before two sizes were measured."""
        return fitted({self.ladder[rung]: one.last_s for rung, one in self._measured.items()})

    def decide(self, window: StepsWindow) -> Optional[LadderMove]:
        """What follows from one more ``window`` at this size; None where nothing does."""
        self._seen += 1
        if self.rung > self.ceiling:
            return self._go(self.ceiling, "a step ran out of memory")
        if not window.steps:
            return None
        if not self._settled:
            self._settled = True
            return None
        self._recent = [*self._recent, window][-KEPT:]
        if len(self._recent) < self._rules.windows:
            return None
        self._measure()
        return self._back() or self._on()

    def limit(self, ceiling: int) -> None:
        """No rung above ``ceiling`` is used any more; the user's own size always is."""
        self.ceiling = max(0, min(self.ceiling, ceiling))

    def adopt(self, rung: int) -> None:
        """Be at ``rung``, as another decided."""
        if rung != self.rung:
            self._go(rung, "")

    def state_dict(self) -> dict[str, Any]:
        """Plain values, for JSON too."""
        return {
            "format": FORMAT,
            "ladder": list(self.ladder),
            "rung": self.rung,
            "ceiling": self.ceiling,
            "seen": self._seen,
            "measured": [[rung, *one] for rung, one in sorted(self._measured.items())],
            "holds": [[rung, *one] for rung, one in sorted(self._holds.items())],
            "bar": self._bar,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on as decided there. ``ValueError`` for the state of another ladder."""
        if state_dict.get("format") != FORMAT:
            raise ValueError(f"the state of this ladder is of format {state_dict.get('format')!r}, and this version knows {FORMAT}")
        if tuple(state_dict["ladder"]) != self.ladder:
            raise ValueError(f"the state is of the ladder {tuple(state_dict['ladder'])}, and this one is {self.ladder}: give the same")
        self._go(int(state_dict["rung"]), "")
        self.ceiling, self._seen, self._bar = int(state_dict["ceiling"]), int(state_dict["seen"]), state_dict["bar"]
        self._measured = {int(rung): _Measured(*seconds) for rung, *seconds in state_dict["measured"]}
        self._holds = {int(rung): _Hold(*hold) for rung, *hold in state_dict["holds"]}

    def _go(self, rung: int, why: str) -> LadderMove:
        self.rung, self._recent, self._settled, self._bar = rung, [], False, None
        return LadderMove(self.size, why)

    def _measure(self) -> None:
        step_s = median_low(window.step_s for window in self._recent)
        known = self._measured.get(self.rung)
        if known is not None and not 1 / DRIFT < step_s / known.first_s < DRIFT:
            self._measured.clear()
            known = None
        self._measured[self.rung] = _Measured(step_s if known is None else known.first_s, step_s)

    def _back(self) -> Optional[LadderMove]:
        if self.rung == 0:
            return None
        stalled = all(stall > self._rules.high_stall for stall in self._stalls())
        bar = self._bar if self._bar is not None else self._rules.kept_gain if stalled else None
        if bar is None:
            return None
        gain = self._rate() / self._rate_below() - 1
        if gain >= bar:
            self._bar = None
            return None
        self._hold()
        below = self.ladder[self.rung - 1]
        if stalled:
            waits = _percent(min(self._stalls()))
            why = f"the trainer waits for data {waits} of the time, and {below} would give about as many samples a second"
            return self._go(self.rung - 1, why)
        why = f"{self.size} gives {_percent(gain)} more samples a second than {below}, and {_percent(bar)} were asked for"
        return self._go(self.rung - 1, why)

    def _on(self) -> Optional[LadderMove]:
        above = self.rung + 1
        if above > self.ceiling or self._seen < self._holds.get(above, _Hold(0, 0)).until:
            return None
        if any(stall > self._rules.calm_stall for stall in self._stalls()):
            return None
        gain, why = self._promised(above)
        if gain is not None and gain < self._rules.least_gain:
            return None
        move = self._go(above, why)
        self._bar = self._rules.least_gain if gain is None else self._rules.kept_gain
        return move

    def _promised(self, above: int) -> tuple[Optional[float], str]:
        """How many more samples a second the rung above should give; None where only trying it can tell."""
        here, there, cost = self._measured[self.rung].last_s, self._measured.get(above), self.cost
        if cost is None:
            return None, f"what a step of {self.size} costs whatever its size is not known: trying {self.ladder[above]} tells"
        there_s = cost.step_s(self.ladder[above]) if there is None else there.last_s
        gain = self.ladder[above] / there_s / (self.size / here) - 1
        share = _percent(cost.fixed_share(self.size))
        return gain, f"{share} of a step of {1e3 * here:.3g} ms do not depend on its size: {_percent(gain)} more samples a second expected"

    def _stalls(self) -> list[float]:
        return [window.stall for window in self._recent[-self._rules.windows :]]

    def _rate(self) -> float:
        """Samples a second, waiting included."""
        return median_high(window.steps * self.size / (window.busy_s + window.stall_s) for window in self._recent)

    def _rate_below(self) -> float:
        """What the rung below would give if it waited for nothing. Not known, it is as much as here: the side of smaller batches."""
        below = self._measured.get(self.rung - 1)
        here = self.size / self._measured[self.rung].last_s
        return here if below is None else self.ladder[self.rung - 1] / below.last_s

    def _hold(self) -> None:
        """Do not try this rung for a time."""
        last = self._holds.get(self.rung)
        again = last is not None and self._seen <= last.until + LONG_KEPT * last.windows
        windows = min(2 * last.windows, self._rules.last_hold) if again and last is not None else self._rules.first_hold
        self._holds[self.rung] = _Hold(self._seen + windows, windows)


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
