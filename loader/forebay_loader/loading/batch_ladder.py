"""``fb.WebLoader(batch_ladder=…)``: batches of the user's size put together to larger ones, as many as the controller says.

Workers go on making batches of the user's size; the training process puts some of them together. So the order of samples does not depend
on the batch size, nobody has to tell a worker anything, and the next step already has the new size. The figures by which the controller
decides are taken here, at the one place that sees both sides of a step: until a batch is there the trainer waits, afterwards it works.
"""

from __future__ import annotations

import time
from itertools import chain, islice
from typing import Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence

from forebay_loader.base.notices import log
from forebay_loader.batches.batch_join import ALIKE, BatchJoin
from forebay_loader.batches.ladder_controller import LadderController, StepsWindow
from forebay_loader.batches.pad import PadCollation
from forebay_loader.loading.ladder_vote import LadderVote
from forebay_loader.meter.profile_ranges import profiled

__all__ = ["BatchLadder"]

FORMAT = 1
EARLY = 2  # steps, after which an error would lose training
MOST_DECISIONS = 100  # that are remembered


class BatchLadder:
    """``sizes`` ascend and are multiples of the first, the size of the batches that come in. ``every`` so many steps is decided.

    ``on_batch_size`` gets each new size, on every rank, before the first batch of it. ``clock`` gives seconds.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        on_batch_size: Optional[Callable[[int], Any]] = None,
        every: int = 50,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.decisions: list[dict[str, Any]] = []
        self._controller = LadderController(sizes)
        self._on_batch_size = on_batch_size
        self._every = every
        self._clock = clock
        self._told = self.size  # what the user knows
        self._steps = 0
        self._given = 0  # batches of the user's size, in the iteration that was begun last
        self._window = StepsWindow()
        self._vote: Optional[LadderVote] = None
        self._apart = False  # another rank has left this iteration: nothing is decided until all begin the next

    def __repr__(self) -> str:
        return f"<BatchLadder {self.size} of {self._controller.ladder}, {self._steps} steps>"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_vote": None}

    @property
    def size(self) -> int:
        """The samples of a batch, now."""
        return self._controller.size

    def out_of_memory(self) -> int:
        """A step at this size ran out of memory: neither it nor a larger one is used again. Gives the size that comes next.

        With several ranks that size is agreed on as all others are, at the next decision. ``RuntimeError`` at the user's own size.
        """
        controller = self._controller
        if controller.rung == 0:
            raise RuntimeError(f"a step ran out of memory at {self.size} samples, the first size of batch_ladder: make that one smaller")
        controller.limit(controller.rung - 1)
        if self._vote is None:
            self._adopt(controller.ceiling, "a step ran out of memory")
        return controller.ladder[controller.ceiling]

    def state_dict(self) -> dict[str, Any]:
        """The size, what is known of steps, and each decision; plain values. ``batches`` of the user's size were given in the iteration."""
        return {
            "format": FORMAT,
            "steps": self._steps,
            "batches": self._given,
            "decisions": list(self.decisions),
            "controller": self._controller.state_dict(),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on with the size of the state; rank 0's counts. ``ValueError`` for the state of another ladder."""
        if state_dict.get("format") != FORMAT:
            raise ValueError(f"the state of this ladder is of format {state_dict.get('format')!r}, and this version knows {FORMAT}")
        self._controller.load_state_dict(state_dict["controller"])
        self._steps, self._window = int(state_dict["steps"]), StepsWindow()
        self.decisions = [dict(one) for one in state_dict["decisions"]]

    def climb(
        self, batches: Iterable[Any], vote: Callable[[], Optional[LadderVote]], padding: Optional[PadCollation] = None
    ) -> Iterator[Any]:
        """The samples of ``batches`` in batches of the size that is decided on; the last may be smaller. ``vote`` is asked for once.

        ``padding``: what has padded them. ``ValueError`` for batches that cannot be put together.
        """
        source = iter(batches)
        try:
            first = list(islice(source, 1))  # before the ranks speak of sizes: it is there that they find each other
            if self._vote is None:
                self._vote = vote()
            self._begin()
            again = chain(first, source)
            del first  # a batch is not kept beyond its step
            yield from self._climb(again, BatchJoin(self._controller.ladder[0], padding))
        finally:
            if self._vote is not None and not self._apart:
                self._vote.leave()
            if hasattr(source, "close"):
                source.close()  # now: it tells the other ranks

    def _climb(self, source: Iterator[Any], join: BatchJoin) -> Iterator[Any]:
        first = True  # what it waited for, workers that start, no batch size changes
        while True:
            if self._steps and self._steps % self._every == 0:
                self._decide()
            self._tell()
            parts_wanted = self.size // self._controller.ladder[0]
            asked_s = self._clock()
            parts = list(islice(source, parts_wanted))
            stall_s = self._clock() - asked_s
            if not parts:
                return
            self._given += len(parts)
            whole = len(parts) == parts_wanted and not first
            made = self._together(join, parts)
            whole = whole and len(made) == 1
            del parts
            while made:
                self._steps += 1
                yield made.pop(0)
            if whole:
                steps, busy_s, stalls_s = self._window
                working_s = self._clock() - asked_s - stall_s  # putting together included: it is a price of the size
                self._window = StepsWindow(steps + 1, busy_s + working_s, stalls_s + stall_s)
            first = False

    def _together(self, join: BatchJoin, parts: list[Any]) -> list[Any]:
        """One batch; ``parts``, from the user's own size on, where they do not go together and no other rank has to take as many steps."""
        join.look(parts[0])
        if len(parts) == 1:
            self._check(join, parts[0])
            return parts[:]
        try:
            with profiled("forebay.collate"):
                return [join(parts)]
        except ValueError as error:
            if self._vote is not None or self._steps < EARLY:
                raise
            self._grow_no_more(str(error))
            self._adopt(0, "batches do not fit together")
            self._tell()
            return parts[:]

    def _check(self, join: BatchJoin, batch: Any) -> None:
        """Batches that cannot be put together are an error before anything was trained, and later the end of growing, not of the run."""
        grows = self._controller.rung == 0 < self._controller.ceiling
        differs = join.differs(batch) if grows else ""
        if differs and self._steps < EARLY:
            raise ValueError(f"batch_ladder puts batches together, and these do not fit: {differs}. {ALIKE}")
        if differs:
            self._grow_no_more(f"{differs}. {ALIKE}")

    def _grow_no_more(self, why: str) -> None:
        self._controller.limit(0)
        log.warning("batch size stays at %d from step %d on: %s", self._controller.ladder[0], self._steps, why)

    def _begin(self) -> None:
        self._given, self._apart = 0, False
        if self._vote is None:
            return
        start = self._vote.begin(self._controller.ladder, self._every, self._steps, self._controller.rung)
        self._apart = start is None
        if start is not None:
            if not start.same:
                self._steps, self._window = 0, StepsWindow()
            self._adopt(start.rung, "rank 0 is there")

    def _decide(self) -> None:
        window, self._window = self._window, StepsWindow()
        if self._vote is None:
            move = self._controller.decide(window)
            self._note(move.why if move is not None else "")
        elif not self._apart:
            self._apart = not self._decide_together(self._vote, window)

    def _decide_together(self, vote: LadderVote, window: StepsWindow) -> bool:
        """Whether all ranks were there. A step takes as long as on the slowest rank, and waits for the last one's data."""
        figures = vote.figures(self._controller.ceiling, round(1e6 * window.stall_s / window.steps) if window.steps else 0)
        if figures is None:
            return False
        before, why = self._controller.rung, "rank 0 decided"
        self._controller.limit(figures.ceiling)
        if vote.decides:
            whole_s = window.busy_s + window.stall_s
            stall_s = min(whole_s, max(window.stall_s, 1e-6 * figures.stall_us * window.steps))
            move = self._controller.decide(StepsWindow(window.steps, whole_s - stall_s, stall_s))
            why = move.why if move is not None else why
        rung = vote.decided(self._controller.rung)
        if rung is None:
            self._controller.adopt(before)
            return False
        self._adopt(rung, why)
        return True

    def _adopt(self, rung: int, why: str) -> None:
        self._controller.adopt(rung)
        self._note(why)

    def _note(self, why: str) -> None:
        """Remember, and on rank 0 say, what the size is changed for."""
        if self.size == (self.decisions[-1]["size"] if self.decisions else self._controller.ladder[0]):
            return
        before = self.decisions[-1]["size"] if self.decisions else self._controller.ladder[0]
        self.decisions = [*self.decisions, {"step": self._steps, "size": self.size, "why": why}][-MOST_DECISIONS:]
        if self._vote is None or self._vote.decides:
            log.warning("batch size %d -> %d at step %d: %s", before, self.size, self._steps, why)

    def _tell(self) -> None:
        if self.size != self._told:
            self._told = self.size
            if self._on_batch_size is not None:
                self._on_batch_size(self.size)
