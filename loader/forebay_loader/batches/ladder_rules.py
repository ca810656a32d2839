"""When a batch size is left for another: the numbers, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LadderRules"]


@dataclass(frozen=True)
class LadderRules:
    """Shares of 1, and numbers of windows. A window is a number of steps of one batch size."""

    least_gain: float = 0.10  # more samples a second than now, or the next size is not tried: larger batches are no end in themselves
    kept_gain: float = 0.05  # what a size must give over the one below to be kept; below least_gain, or noise would turn decisions round
    calm_stall: float = (
        0.10  # of the time; while the trainer waits for data more than this, nothing is tried; below, a trial shows its gain
    )
    high_stall: float = 0.05  # of the time; where it waits more than this, a size must earn its place again
    windows: int = 2  # that must say the same before anything is done: one pause for a checkpoint says nothing
    first_hold: int = 8  # windows for which a size that was given back is not tried again; twice as many each time
    last_hold: int = 256
