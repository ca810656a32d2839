"""One batch size for all ranks: they tell each other what their steps took, rank 0 decides, and all hear it before the same step.

These are votes between those on steps, on the same group and under the same rules: ranks that left a loop at different steps find each
other again, a rank that is missing is named, one that ended breaks the connection. On a group of their own the two kinds could wait for
each other, one rank in this vote and one in that. Where ranks do not vote on steps, this is the only vote. Each is waited for at once,
every so many steps: ranks that train together are at the same step anyway.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import NamedTuple, Optional, Sequence

from forebay_loader.base.errors import StepsError
from forebay_loader.base.notices import log
from forebay_loader.loading.step_vote import StepVote

__all__ = ["LadderFigures", "LadderStart", "LadderVote"]

_LEFT = -1  # of a rank that has left the iteration, where ranks do not vote on steps
_NO_WORD = 1 << 40  # of a rank that leaves a number to others, where the least counts


class LadderStart(NamedTuple):
    """How all ranks begin an iteration: at rank 0's ``rung``; and whether they have ``same`` counts of steps."""

    rung: int
    same: bool


class LadderFigures(NamedTuple):
    """Of all ranks: the lowest ``ceiling``, and the longest wait in a step."""

    ceiling: int
    stall_us: int


class LadderVote:
    """On ``ballot``; ``own`` where no others vote on it. Each answer is None where a rank has left this iteration."""

    def __init__(self, ballot: StepVote, *, own: bool) -> None:
        self._ballot = ballot
        self._own = own

    @property
    def decides(self) -> bool:
        """Whether this is rank 0."""
        return bool(self._ballot.rank == 0)

    def begin(self, ladder: Sequence[int], every: int, steps: int, rung: int) -> Optional[LadderStart]:
        """After the first batch of an iteration is there. Raises ``StepsError`` where ranks were given different ladders."""
        if self._own:
            self._ballot.begin()
        told = blake2b(repr((tuple(ladder), every)).encode(), digest_size=7).digest()
        said = self._ballot.aside(self._rank_0s(rung), common=steps + 1, digest=int.from_bytes(told, "big") + 1)
        if said is None or said.least == _LEFT:
            return None
        if not said.same:
            raise StepsError(
                f"ranks differ in batch_ladder or batch_ladder_steps; this one has {tuple(ladder)} and {every}. Give all ranks the same"
            )
        return LadderStart(said.least, said.alike)

    def figures(self, ceiling: int, stall_us: int) -> Optional[LadderFigures]:
        try:
            said = self._ballot.aside(ceiling, number=stall_us)
        except StepsError as error:
            if not self._own:
                raise
            log.warning("the batch size stays as it is until the next iteration: %s", error)  # ranks that need no vote may end apart
            return None
        return None if said is None or said.least == _LEFT else LadderFigures(said.least, said.number)

    def decided(self, rung: int) -> Optional[int]:
        """What rank 0 says; ``rung`` of any other rank is not heard."""
        said = self._ballot.aside(self._rank_0s(rung))
        return None if said is None or said.least == _LEFT else said.least

    def leave(self) -> None:
        """This rank leaves an iteration in which ranks were together: the others do not wait for it. Ranks that vote on steps know."""
        if self._own:
            self._ballot.leave(_LEFT)

    def _rank_0s(self, value: int) -> int:
        return value if self.decides else _NO_WORD
