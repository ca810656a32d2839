"""Plans as numbers: taken in slices, mentioned, swept behind their readers, and cleared away in slices; and which mention a shard. Pure.

What it promises ``PlanRegistry``: a plan that is not live is nowhere ahead, however much of it is written down; nothing here runs longer
than a slice; and what was taken is given back to the catalog, whichever way the taking ended.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from math import inf

from forebay_proxy.core.shard import Shard
from forebay_proxy.policy.plans.reader_plan import MentionedSpan, PlanEntries, ReaderPace, ReaderPlan, check_entries, check_names, fits
from forebay_proxy.policy.plans.sets.templates import Entries, Picked
from forebay_proxy.policy.plans.shard_ids import ShardIds
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["INDEX_BITS", "SLICE", "PlanStorage", "ReverseIndex"]

SLICE = 128  # entries: half a millisecond of the event loop where each is a new name
INDEX_BITS = 32
INDEX_MASK = (1 << INDEX_BITS) - 1
_NONE, _MANY = 0, 1  # no plan has the number 0


class ReverseIndex:
    """Which plans mention a shard, and where in them: arrays by number, and a dict only for what is mentioned more than once.

    A mention is one integer: the number of the plan, 32 bits, then the index in it. Sorted, those of one plan stand together, in its order.
    A dict for all was tried: of half a million mentions it takes 107 bytes each where the array takes 9.
    """

    def __init__(self) -> None:
        self._one = array("Q", [_NONE])
        self._more: dict[int, array[int]] = {}  # an array, not a list: a resampled shard is mentioned a thousand times, 8 bytes each

    def __repr__(self) -> str:
        return f"<ReverseIndex of {len(self)} shards, {len(self._more)} of them more than once>"

    def __len__(self) -> int:
        return sum(1 for mention in self._one if mention)

    def of(self, number: int) -> Sequence[int]:
        """Every mention of the shard, in order. Not to be kept: it changes."""
        if number >= len(self._one) or not (mention := self._one[number]):
            return ()
        return self._more[number] if mention == _MANY else (mention,)

    def first_from(self, number: int, plan: int, index: int) -> int | None:
        """The first index, ``index`` or later, at which the plan mentions the shard."""
        mentions = self.of(number)
        wanted = plan << INDEX_BITS | index
        place = bisect_left(mentions, wanted)
        if place == len(mentions) or mentions[place] >> INDEX_BITS != plan:
            return None
        return mentions[place] & INDEX_MASK

    def add(self, number: int, plan: int, index: int) -> None:
        """The plan of this serial number mentions the shard at ``index``."""
        mention = plan << INDEX_BITS | index
        if number >= len(self._one):
            self._one.extend([_NONE] * (number + 1 - len(self._one)))
        other = self._one[number]
        if not other:
            self._one[number] = mention
        elif other == _MANY:
            insort(self._more[number], mention)
        else:
            self._more[number] = array("Q", sorted((other, mention)))
            self._one[number] = _MANY

    def remove(self, number: int, plan: int, index: int) -> None:
        """It does not any more; it must have."""
        mention = plan << INDEX_BITS | index
        if self._one[number] != _MANY:
            assert self._one[number] == mention
            self._one[number] = _NONE
            return
        more = self._more[number]
        more.pop(bisect_left(more, mention))
        if len(more) == 1:
            self._one[number] = more[0]
            del self._more[number]

    def clear(self) -> None:
        """Nobody mentions anything any more."""
        self._one, self._more = array("Q", [_NONE]), {}


class PlanStorage:
    """Every plan that is written down, live or not. Not thread-safe: the event loop's only."""

    def __init__(self, shard_ids: ShardIds, tell: Callable[[Iterable[int]], None]) -> None:
        """``tell`` hears of the numbers that are needed at another time than before."""
        self._shard_ids = shard_ids
        self._tell = tell
        self._reverse_index = ReverseIndex()
        self._by_serial: list[ReaderPlan | None] = [None]
        self._vacant: list[int] = []
        self._reclaimer: deque[Iterator[None]] = deque()
        self.entries_held = 0  # of all plans, what is read or withdrawn already but not cleared away included
        self.own_bytes = 0  # of the names of shards that plans keep beside the catalog

    def __repr__(self) -> str:
        return f"<PlanStorage of {self.entries_held} entries, {len(self._reclaimer)} to be cleared away>"

    # Writing down

    @contextmanager
    def entering(self, reader: ReaderName, epoch: int | None, set_name: str | None, now: float) -> Iterator[ReaderPlan]:
        """A new plan, not live yet; one that has not been live at the end either is cleared away."""
        serial = self._vacant.pop() if self._vacant else len(self._by_serial)
        plan = ReaderPlan(reader, epoch, set_name, ReaderPace(now, now), MentionedSpan(serial))
        self._by_serial[serial : serial + 1] = [plan]  # in the place of a former one, or behind all
        try:
            yield plan
        finally:
            if not plan.live and not plan.ended:
                self.discard(plan, 1)

    def write(self, plan: ReaderPlan, entries: Entries, instead_of: ReaderPlan | None = None) -> Iterator[None]:
        """Write ``entries`` into ``plan``, in slices. Raises ``PlansFull``, ``InvalidShardUrl``."""
        spare = len(instead_of) if instead_of is not None else 0  # both are here for a moment
        count = len(entries)
        while self._reclaimer and not fits(self.entries_held + count - spare):
            self.tidy(1)
            yield
        check_entries(self.entries_held + count - spare)
        if isinstance(entries, Picked):
            plan.entries.dress = entries.template.dress
        for start in range(0, count, SLICE):
            numbers = self._shard_ids.retain(entries, start, start + SLICE)
            plan.entries.numbers.extend(numbers)
            self.entries_held += len(numbers)
            self._keep(plan.entries, self._shard_ids.strangers(numbers, entries, start))
            check_entries(self.entries_held - spare)
            check_names(self._shard_ids.held_bytes + self.own_bytes)
            self.tidy(1)  # so clearing away keeps up with taking
            yield

    def copy(self, plan: ReaderPlan, source: ReaderPlan) -> Iterator[None]:
        """Write what is ahead in ``source`` into ``plan``, in slices."""
        numbers, own = source.entries.numbers[source.position :], source.entries.own
        plan.entries.dress = source.entries.dress
        for start in range(0, len(numbers), SLICE):
            part = numbers[start : start + SLICE]
            self._shard_ids.retain_again(part)
            plan.entries.numbers.extend(part)
            self.entries_held += len(part)
            self._keep(plan.entries, {number: own[number] for number in part if number in own})
            yield

    def _keep(self, entries: PlanEntries, own: dict[int, Shard]) -> None:
        before = len(entries.own)
        entries.own.update(own)
        if len(entries.own) > before:
            self.own_bytes += sum(len(shard.name) for shard in islice(entries.own.values(), before, None))

    def exchange_credentials(self, plan: ReaderPlan, other: ReaderPlan) -> None:
        """The same shards were announced once more, perhaps with fresher credentials."""
        entries, others = plan.entries, other.entries
        entries.own, others.own = others.own, entries.own
        entries.dress, others.dress = others.dress, entries.dress

    def mention(self, plan: ReaderPlan) -> Iterator[None]:
        """Let all of ``plan`` be found by shard, in slices. It is not ahead before it is live."""
        while plan.mentioned.end < len(plan):
            self._mention(plan)
            yield

    def _mention(self, plan: ReaderPlan) -> None:
        span, add = plan.mentioned, self._reverse_index.add
        for index, number in enumerate(plan.entries.numbers[span.end : span.end + SLICE], span.end):
            add(number, span.serial, index)
        span.end = min(len(plan), span.end + SLICE)

    def extend(self, plan: ReaderPlan, more: ReaderPlan) -> Iterator[None]:
        """Move the entries of ``more`` behind those of ``plan``, in slices, for as long as that lives."""
        entries, others = plan.entries, more.entries
        if not entries.numbers:
            entries.dress = others.dress
        foreign = others.dress != entries.dress
        self._keep(entries, others.own)
        moved = 0
        try:
            while moved < len(more) and plan.live:
                part = others.numbers[moved : moved + SLICE]
                entries.numbers.extend(part)
                moved += len(part)
                if foreign:
                    shard, put_on = self._shard_ids.shard, others.dress.put_on if others.dress is not None else None
                    bare = {number: shard(number) for number in part if number not in others.own}
                    self._keep(entries, {number: one if put_on is None else put_on(one) for number, one in bare.items()})
                self._mention(plan)
                self._tell(part)
                yield
        finally:
            del others.numbers[:moved]

    # Clearing away

    def sweep(self, plan: ReaderPlan, slices: int) -> None:
        """Nothing that the reader has passed is mentioned any more: so many slices of it now, the rest with ``tidy``."""
        self._begin(self._sweeping(plan), slices)

    def sweep_one(self, plan: ReaderPlan) -> bool:
        """The same where it is one shard, of which nobody is told; False where it is not one."""
        span = plan.mentioned
        if plan.position - span.begin != 1:
            return False
        self._reverse_index.remove(plan.entries.numbers[span.begin], span.serial, span.begin)
        span.begin = plan.position
        return True

    def discard(self, plan: ReaderPlan, slices: int) -> None:
        """Nothing of ``plan``, which ended, is kept: so many slices of it now, the rest with ``tidy``."""
        self._begin(self._discarding(plan), slices)

    def tidy(self, slices: int | None = None) -> None:
        """Clear away so many slices of what is left; all of it without a number."""
        while self._reclaimer and slices != 0:
            if next(self._reclaimer[0], self) is self:
                self._reclaimer.popleft()
            slices = None if slices is None else slices - 1

    def _begin(self, reclaimer: Iterator[None], slices: int) -> None:
        if all(next(reclaimer, self) is not self for _ in range(slices)):
            self._reclaimer.append(reclaimer)

    def _sweeping(self, plan: ReaderPlan) -> Iterator[None]:
        span, remove = plan.mentioned, self._reverse_index.remove
        while span.begin < (stop := plan.position if plan.live else span.end):
            part = plan.entries.numbers[span.begin : min(stop, span.begin + SLICE)]
            for index, number in enumerate(part, span.begin):
                remove(number, span.serial, index)
            span.begin += len(part)
            self._tell(part)
            yield

    def _discarding(self, plan: ReaderPlan) -> Iterator[None]:
        yield from self._sweeping(plan)
        entries, span = plan.entries, plan.mentioned
        plan.position = span.begin = span.end = 0
        while entries.numbers:
            part = entries.numbers[-SLICE:]
            del entries.numbers[-len(part) :]
            self._shard_ids.release(part)
            self.entries_held -= len(part)
            yield
        self.own_bytes -= sum(len(shard.name) for shard in entries.own.values())
        entries.own = {}
        self._by_serial[span.serial] = None
        self._vacant.append(span.serial)
        if not self.entries_held:
            self._reverse_index.clear()

    # Asking

    def ahead(self, number: int) -> Iterator[tuple[ReaderPlan, int]]:
        """Where live plans mention the shard ahead of their readers. Nothing may be changed before it is read to its end."""
        for mention in self._reverse_index.of(number):
            plan, index = self._by_serial[mention >> INDEX_BITS], mention & INDEX_MASK
            if plan is not None and plan.live and index >= plan.position:
                yield plan, index

    def first(self, number: int) -> tuple[float, ReaderPlan | None, int]:
        """(when the shard is opened by some live plan, the plan, its index); never and none if no plan has the shard ahead."""
        need, first, at = inf, None, 0
        for mention in self._reverse_index.of(number):  # not by way of ``ahead``: a generator costs more than what it finds
            plan, index = self._by_serial[mention >> INDEX_BITS], mention & INDEX_MASK
            if plan is not None and plan.live and index >= plan.position and (when := plan.need_at(index)) < need:
                need, first, at = when, plan, index
        return need, first, at

    def next_mention(self, plan: ReaderPlan, number: int) -> int | None:
        """Where ``plan`` mentions the shard next."""
        if plan.position < len(plan) and plan.entries.numbers[plan.position] == number:
            return plan.position
        return self._reverse_index.first_from(number, plan.mentioned.serial, plan.position)
