"""Which batch size of a ladder: decided from what windows of steps took. Pure: figures in, a move or none out; no clock, no chance.

Where a step costs something whatever its size (kernel launches, the optimizer, an all-reduce), a larger batch gives more samples a second.
How much shows only when it is tried. So the next size is tried while the trainer hardly waits for data, and kept if it gives a tenth more.
It is given back where the trainer waits for data and the size below would give as much. A size that was given back is tried again after a
time, which doubles. The first size is the user's: there is none below. After a step ran out of memory, its size and those above are not
used again.
"""

from __future__ import annotations

from statistics import median_high, median_low
from typing import Any, Mapping, NamedTuple, Sequence

__all__ = ["LadderController", "StepsWindow"]

LEAST_GAIN = 0.10  # more samples a second than the size below, or a trial is over: larger batches are no end in themselves
KEPT_GAIN = 0.05  # what a size must give while the trainer waits; below LEAST_GAIN, or noise would turn decisions round
CALM_STALL = 0.10  # of the time: a trainer that waits longer than this for data tries nothing
HIGH_STALL = 0.05  # of the time: a trainer that waits longer than this gives back a size that data does not pay for
WINDOWS = 2  # that must say the same: one pause for a checkpoint says nothing
KEPT = 3  # windows of which the middle one counts
FIRST_HOLD, LAST_HOLD = 8, 256  # windows for which a size that was given back is not tried; twice as many each time
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


class LadderController:
    """``ladder``: sizes that ascend, the user's first. ``rung`` counts them from 0."""

    def __init__(self, ladder: Sequence[int]) -> None:
        self.ladder = tuple(ladder)
        self.rung = 0
        self.ceiling = len(self.ladder) - 1
        self._seen = 0  # windows
        self._settled = False  # the first window at a size is not counted: allocators and autotuners get used to it
        self._recent: list[StepsWindow] = []
        self._step_s: dict[int, float] = {}  # by rung
        self._holds: dict[int, tuple[int, int]] = {}  # by rung: not tried before this window; how long that was
        self._on_trial = False

    @property
    def size(self) -> int:
        return self.ladder[self.rung]

    def decide(self, window: StepsWindow) -> str:
        """Go on with one more ``window`` at this size: why the size is another one now, "" where it is not."""
        self._seen += 1
        if self.rung > self.ceiling:
            return self._go(self.ceiling, "a step ran out of memory")
        if not window.steps:
            return ""
        if not self._settled:
            self._settled = True
            return ""
        self._recent = [*self._recent, window][-KEPT:]
        if len(self._recent) < WINDOWS:
            return ""
        self._step_s[self.rung] = median_low(window.step_s for window in self._recent)
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
            "ladder": list(self.ladder),
            "rung": self.rung,
            "ceiling": self.ceiling,
            "seen": self._seen,
            "measured": sorted(self._step_s.items()),
            "holds": [[rung, *one] for rung, one in sorted(self._holds.items())],
            "on_trial": self._on_trial,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on as decided there. ``ValueError`` for the state of another ladder."""
        if tuple(state_dict["ladder"]) != self.ladder:
            raise ValueError(f"the state is of the ladder {tuple(state_dict['ladder'])}, and this one is {self.ladder}: give the same")
        self._go(int(state_dict["rung"]), "")
        self.ceiling, self._seen = int(state_dict["ceiling"]), int(state_dict["seen"])
        self._on_trial = bool(state_dict.get("on_trial"))
        self._step_s = {int(rung): float(seconds[-1]) for rung, *seconds in state_dict["measured"]}
        self._holds = {int(rung): (until, windows) for rung, until, windows in state_dict["holds"]}

    def _go(self, rung: int, why: str) -> str:
        self.rung, self._recent, self._settled, self._on_trial = rung, [], False, False
        return why

    def _back(self) -> str:
        """Down, where this size does not give what it must."""
        stalled = self._least_stall() > HIGH_STALL
        if self.rung == 0 or not (self._on_trial or stalled):
            return ""
        gain, needed = self._rate() / self._rate_below() - 1, LEAST_GAIN if self._on_trial else KEPT_GAIN
        if gain >= needed:
            self._on_trial = False
            return ""
        self._hold()
        size, below = self.size, self.ladder[self.rung - 1]
        why = f"{size} gives {_percent(gain)} more samples a second than {below}, and {_percent(needed)} were asked for"
        if stalled:
            waits = _percent(self._least_stall())
            why = f"the trainer waits for data {waits} of the time, and {below} would give about as many samples a second"
        return self._go(self.rung - 1, why)

    def _on(self) -> str:
        """Up, to try."""
        above = self.rung + 1
        if above > self.ceiling or self._seen < self._holds.get(above, (0, 0))[0]:
            return ""
        if any(window.stall > CALM_STALL for window in self._recent[-WINDOWS:]):
            return ""
        why = self._go(above, f"trying whether {self.ladder[above]} gives more samples a second than {self.size}")
        self._on_trial = True
        return why

    def _least_stall(self) -> float:
        return min(window.stall for window in self._recent[-WINDOWS:])

    def _rate(self) -> float:
        """Samples a second, waiting included."""
        return median_high(window.steps * self.size / (window.busy_s + window.stall_s) for window in self._recent)

    def _rate_below(self) -> float:
        """What the rung below would give if it waited for nothing. Not known, it is as much as here: the side of smaller batches."""
        below = self._step_s.get(self.rung - 1)
        return self.size / self._step_s[self.rung] if below is None else self.ladder[self.rung - 1] / below

    def _hold(self) -> None:
        """Do not try this rung for a time."""
        until, before = self._holds.get(self.rung, (-1, 0))
        windows = min(2 * before, LAST_HOLD) if self._seen <= until + LONG_KEPT * before else FIRST_HOLD
        self._holds[self.rung] = self._seen + windows, windows


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
