"""Whether a rank of a data-parallel job waits for one that has no more batches. Pure.

With unequal shards one rank's loader ends first. The others get one batch more, and stand in its gradient all-reduce for ever. No byte
is waited for, so nothing else shows it. The sidecar sees it where both ranks are on its machine. It says so of ranks A and B of one job
only if all of this holds, for the same loader (the n-th that each rank has read):

- B's pass has ended ``ENDED_S`` ago, and B has asked no loader for a batch since;
- A has got more batches from that loader than B ever, has begun no more passes than B, and is inside its loop;
- A has not asked for the next batch for ``STOOD_S``, and for ``TIMES_A_STEP`` of its steps until then.

So these are not told: ranks that end at the same batch, a loop on one rank alone over a loader of its own (validation), a slow rank that
has no more batches than the others, ranks that go on all the same (``join()``), and ranks on other machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from forebay_proxy.wire.protocol.meter import MeterBody
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["RankStand", "unequal_steps"]

STOOD_S = 10.0
TIMES_A_STEP = 5
ENDED_S = 15.0  # a process that has begun another pass has told so by then: it does every 10 s
NOW_S = 25.0  # what was told longer ago is not so now


@dataclass(frozen=True, slots=True)
class RankStand:
    """What one process told last, ``silent_s`` ago."""

    told: MeterBody
    silent_s: float

    @property
    def steps(self) -> int:
        return self.told.loader_steps or 0

    @property
    def passes(self) -> int:
        return self.told.loader_passes or 0

    @property
    def stood_s(self) -> float:
        """For how long it stands in a step; 0 where it moves."""
        step_s = self.told.step_s or 0.0
        before_s = max(0.0, self.told.wall_s - step_s) / max(1, self.told.steps)
        return step_s if self.silent_s < NOW_S and step_s >= max(STOOD_S, TIMES_A_STEP * before_s) else 0.0

    @property
    def ended_s(self) -> float:
        """For how long its pass has ended; 0 where it has not, or only just."""
        ended_s = self.told.ended_s
        return 0.0 if ended_s is None or ended_s + self.silent_s < ENDED_S else ended_s + self.silent_s

    def has_left(self, other: RankStand) -> bool:
        """Whether it has ended, with fewer batches than ``other`` has, which stands."""
        same = self.told.loader == other.told.loader and self.passes >= other.passes
        return same and bool(self.ended_s and other.stood_s) and self.steps < other.steps


def unequal_steps(stands: Mapping[ReaderName, RankStand]) -> tuple[ReaderName, str] | None:
    """Of one job's ranks: who stands for longest, and a sentence on it; None where nobody waits for a rank that has ended."""
    pairs = [(reader, left) for reader, stand in stands.items() for left, other in stands.items() if other.has_left(stand)]
    if not pairs:
        return None
    reader, left = max(pairs, key=lambda pair: (stands[pair[0]].stood_s, stands[pair[1]].ended_s))
    stand, ended = stands[reader], stands[left]
    others = len({one for one, _ in pairs}) - 1
    passes = f" in {ended.passes} passes" if ended.passes > 1 else ""
    return reader, (
        f"rank {left.rank} has had no more batches for {ended.ended_s:.0f} s, after {ended.steps}{passes}; rank {reader.rank}"
        f"{f' (and {others} more)' if others else ''} stands in step {stand.steps} for at least {stand.stood_s:.0f} s, probably in an "
        f"all-reduce that waits for rank {left.rank}: ranks have unequal numbers of batches; "
        f"fb.WebLoader makes them equal, or batches_per_epoch=n"
    )
