"""How evenly the ranks of a job are loaded: the most of a figure over its mean. Pure.

In data-parallel training the slowest rank sets the pace, so a mean hides what is wrong: of eight ranks of which one stalls for a third of
its time, the mean says 4 %. 1.0 is even; 1.25 is a rank with a quarter more than the mean. Samples and steps over 1.0 are ranks that part
(unequal shards without equal steps); stall over 1.0 beside equal steps is one rank's machine, disk or shards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["FIGURES", "RankBalance", "Skew", "rank_balance"]

FIGURES = ("samples", "steps", "stall_s", "reader_wait_s")
# Below this a mean is noise: two ranks that stalled for 1 ms and for 3 are not out of balance.
LEAST_S = 1.0
# From here on it matters. Totals come every 10 s, so a minute's sums of two ranks may differ by a sixth though the ranks do not.
PARTS = {"samples": 1.2, "steps": 1.2, "stall_s": 1.5}


@dataclass(frozen=True, slots=True)
class Skew:
    """One figure over all ranks: its ``mean``, the ``most``, and the ``rank`` that has it."""

    mean: float
    most: float
    rank: str

    @property
    def ratio(self) -> float:
        """``most`` over ``mean``; 1.0 where there is nothing to compare."""
        return self.most / self.mean if self.mean > 0 else 1.0


@dataclass(frozen=True, slots=True)
class RankBalance:
    """The skews of one job, by figure (``FIGURES``), over so many ``ranks``."""

    ranks: int
    skews: Mapping[str, Skew]

    def ratio(self, figure: str) -> float:
        """Most over mean of ``figure``. Seconds of which ranks have hardly any are even."""
        skew = self.skews[figure]
        return 1.0 if figure.endswith("_s") and skew.most < LEAST_S else skew.ratio

    @property
    def is_uneven(self) -> bool:
        """Whether ranks part: in samples or steps, or in stall by so much that one rank has most of it."""
        return any(self.ratio(figure) >= most for figure, most in PARTS.items())

    def __str__(self) -> str:
        """What is out of balance, for a person: ``"steps 1.10 (rank 3), stall 2.40 (rank 0)"``; or that nothing is."""
        names = [(figure, f"{figure.removesuffix('_s').replace('_', ' ')} {self.ratio(figure):.2f}") for figure in FIGURES]
        told = [f"{name} (rank {self.skews[figure].rank})" for figure, name in names if self.ratio(figure) >= 1.005]
        return ", ".join(told) or "even"


def rank_balance(rows: Iterable[Mapping[str, Any]]) -> RankBalance | None:
    """Of the last minute of the processes in ``rows`` (``MeterBoard.rows`` of one job); None where there are none.

    Two processes of a rank count together.
    """
    loads = dict[str, Counter[str]]()
    for row in rows:
        lately = row["lately"]
        load = loads.setdefault(row["rank"], Counter())
        for figure in FIGURES:
            load[figure] += sum(lately[figure].values()) if figure.endswith("_s") else lately[figure]
    if not loads:
        return None
    return RankBalance(len(loads), {figure: _skew({rank: load[figure] for rank, load in loads.items()}) for figure in FIGURES})


def _skew(values: Mapping[str, float]) -> Skew:
    rank = max(values, key=lambda name: values[name])
    return Skew(sum(values.values()) / len(values), values[rank], rank)
