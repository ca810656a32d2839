"""Stores plans as lists of names, and finds the plans that mention a shard. Plans are written and removed in slices. Pure.

It promises ``PlanRegistry`` two things: a plan that is not live is never found by ``ahead``, however much of it is stored; and no step
takes longer than one slice.

An entry takes 178 bytes if its name has 50 characters (585,270 entries of one reader, Python 3.11): the name, its place in the plan's list,
and its mention in one dict of all names. When that dict grows at half a million names, it holds the event loop for 23 ms, the longest
pause.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import inf

from forebay_proxy.policy.plans import reader_plan
from forebay_proxy.policy.plans.entries import Entries
from forebay_proxy.policy.plans.reader_plan import ReaderPace, ReaderPlan, check_held
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["INDEX_BITS", "SLICE", "PlanStorage", "ReverseIndex"]

SLICE = 512  # entries: two milliseconds of the event loop if each is a new name
INDEX_BITS = 32
INDEX_MASK = (1 << INDEX_BITS) - 1


class ReverseIndex:
    """Which plans mention a shard, and at which index.

    A mention is one integer: 32 bits for the plan's number, then 32 for the index. Sorted, the mentions of one plan are adjacent and in
    order.
    """

    def __init__(self) -> None:
        self._mentions: dict[str, int | array[int]] = {}  # an array if there are several: a resampled shard is mentioned a thousand times

    def __len__(self) -> int:
        return len(self._mentions)

    def of(self, name: str) -> Sequence[int]:
        """Every mention of the shard, in order. Do not keep it: it changes."""
        found = self._mentions.get(name, ())
        return (found,) if isinstance(found, int) else found

    def first_from(self, name: str, plan: int, index: int) -> int | None:
        """The first index, ``index`` or later, at which the plan mentions the shard; None if there is none."""
        mentions = self.of(name)
        place = bisect_left(mentions, plan << INDEX_BITS | index)
        if place == len(mentions) or mentions[place] >> INDEX_BITS != plan:
            return None
        return mentions[place] & INDEX_MASK

    def add(self, name: str, plan: int, index: int) -> None:
        """The plan with this serial number mentions the shard at ``index``."""
        mention = plan << INDEX_BITS | index
        other = self._mentions.setdefault(name, mention)
        if isinstance(other, array):
            insort(other, mention)
        elif other != mention:
            self._mentions[name] = array("Q", sorted((other, mention)))

    def remove(self, name: str, plan: int, index: int) -> None:
        """Remove a mention, which must exist."""
        found = self._mentions[name]
        if isinstance(found, array):
            found.pop(bisect_left(found, plan << INDEX_BITS | index))
            if len(found) == 1:
                self._mentions[name] = found[0]
        else:
            del self._mentions[name]

    def clear(self) -> None:
        """Remove all mentions."""
        self._mentions = {}


class PlanStorage:
    """Every stored plan, live or not. Not thread-safe: used on the event loop alone."""

    def __init__(self, tell: Callable[[Iterable[str]], None]) -> None:
        """``tell`` is called with the shards whose time of need has changed."""
        self._tell = tell
        self.mentions = ReverseIndex()
        self._by_serial: list[ReaderPlan | None] = [None]
        self._vacant: list[int] = []
        self._reclaimer: deque[Iterator[None]] = deque()
        self.entries_held = 0  # of all plans, including entries that were read or withdrawn but not removed yet
        self.name_bytes = 0  # characters of their names and URLs

    # Writing

    @contextmanager
    def entering(self, reader: ReaderName, epoch: int | None, set_name: str | None, now: float) -> Iterator[ReaderPlan]:
        """A new plan, not live yet. If it is not live at the end of the ``with``, it is removed."""
        serial = self._vacant.pop() if self._vacant else len(self._by_serial)
        plan = ReaderPlan(reader, epoch, set_name, ReaderPace(now, now), serial)
        self._by_serial[serial : serial + 1] = [plan]  # in the place of a removed plan, or at the end
        try:
            yield plan
        finally:
            if not plan.live and not plan.ended:
                self.discard(plan, 1)

    def write(self, plan: ReaderPlan, entries: Entries, instead_of: ReaderPlan | None = None) -> Iterator[None]:
        """Write ``entries`` into ``plan``, in slices. Raises ``PlansFull``, ``InvalidShardUrl``."""
        # While the new plan is written, the old one is stored too.
        spare, spare_bytes = (len(instead_of), instead_of.name_bytes + instead_of.text_bytes) if instead_of else (0, 0)
        count = len(entries)
        while self._reclaimer and self.entries_held + count - spare > reader_plan.MOST_SHARDS:
            self.tidy(1)
            yield
        check_held(shards=self.entries_held + count - spare)
        plan.credentials = [(0, entries.credential)]
        for start in range(0, count, SLICE):
            names, texts = entries.names(start, start + SLICE)
            self._write(plan, names, texts)
            check_held(shards=self.entries_held - spare, name_bytes=self.name_bytes - spare_bytes)
            self.tidy(1)  # so that removal keeps up with writing
            yield

    def _write(self, plan: ReaderPlan, names: list[str], texts: dict[str, str]) -> None:
        name_bytes, text_bytes = sum(map(len, names)), sum(map(len, texts.values()))
        plan.names.extend(names)
        plan.texts.update(texts)
        plan.name_bytes += name_bytes
        plan.text_bytes += text_bytes
        self.entries_held += len(names)
        self.name_bytes += name_bytes + text_bytes

    def copy_ahead(self, plan: ReaderPlan, source: ReaderPlan) -> None:
        """Write the entries that are ahead in ``source`` into ``plan``."""
        names = source.names[source.position :]
        plan.credentials = [(max(0, start - source.position), credential) for start, credential in source.credentials]
        self._write(plan, names, {name: source.texts[name] for name in names if name in source.texts} if source.texts else {})

    def exchange_credentials(self, plan: ReaderPlan, other: ReaderPlan) -> None:
        """The same shards were announced again, perhaps with newer credentials: keep the newer ones."""
        plan.texts, other.texts = other.texts, plan.texts
        plan.text_bytes, other.text_bytes = other.text_bytes, plan.text_bytes
        plan.credentials, other.credentials = other.credentials, plan.credentials

    def mention(self, plan: ReaderPlan) -> Iterator[None]:
        """Add the mentions of ``plan``, in slices. They count only when it is live."""
        while plan.mentioned_to < len(plan):
            self._mention(plan)
            yield

    def _mention(self, plan: ReaderPlan) -> None:
        add, start = self.mentions.add, plan.mentioned_to
        for index, name in enumerate(plan.names[start : start + SLICE], start):
            add(name, plan.serial, index)
        plan.mentioned_to = min(len(plan), start + SLICE)

    def extend(self, plan: ReaderPlan, more: ReaderPlan) -> Iterator[None]:
        """Append the entries of ``more`` to ``plan``, in slices, as long as ``plan`` is live."""
        credential = more.credential_at(0)
        if credential != plan.credential_at(len(plan)):
            plan.credentials.append((len(plan), credential))
        plan.texts.update(more.texts)
        plan.text_bytes, more.text_bytes = plan.text_bytes + more.text_bytes, 0
        moved = 0
        try:
            while moved < len(more) and plan.live:
                part = more.names[moved : moved + SLICE]
                size = sum(map(len, part))
                plan.names.extend(part)
                plan.name_bytes, more.name_bytes = plan.name_bytes + size, more.name_bytes - size
                moved += len(part)
                self._mention(plan)
                self._tell(part)
                yield
        finally:
            del more.names[:moved]

    # Removing

    def sweep(self, plan: ReaderPlan, slices: int) -> None:
        """Remove the mentions that the reader has passed: ``slices`` of them now, the rest in ``tidy``."""
        if self._sweep(plan):
            self._begin(self._sweeping(plan), slices)

    def discard(self, plan: ReaderPlan, slices: int) -> None:
        """Remove ``plan``, which has ended: ``slices`` of it now, the rest in ``tidy``."""
        self._begin(self._discarding(plan), slices)

    def tidy(self, slices: int | None = None) -> None:
        """Remove ``slices`` slices of what is left to remove; with None, everything."""
        while self._reclaimer and slices != 0:
            if next(self._reclaimer[0], self) is self:
                self._reclaimer.popleft()
            slices = None if slices is None else slices - 1

    def _begin(self, reclaimer: Iterator[None], slices: int) -> None:
        if all(next(reclaimer, self) is not self for _ in range(slices)):
            self._reclaimer.append(reclaimer)

    def _sweep(self, plan: ReaderPlan) -> bool:
        """Remove the mentions of one slice. Returns whether there may be more."""
        start, stop = plan.mentioned_from, plan.position if plan.live else plan.mentioned_to
        part = plan.names[start : min(stop, start + SLICE)]
        for index, name in enumerate(part, start):
            self.mentions.remove(name, plan.serial, index)
        plan.mentioned_from += len(part)
        self._tell(part)
        return plan.mentioned_from < stop

    def _sweeping(self, plan: ReaderPlan) -> Iterator[None]:
        while self._sweep(plan):
            yield

    def _discarding(self, plan: ReaderPlan) -> Iterator[None]:
        yield from self._sweeping(plan)
        plan.position = plan.mentioned_from = plan.mentioned_to = 0
        while plan.names:
            before = len(plan.names)
            del plan.names[-SLICE:]
            self.entries_held -= before - len(plan.names)
            yield
        self.name_bytes -= plan.name_bytes + plan.text_bytes
        plan.name_bytes, plan.text_bytes, plan.texts = 0, 0, {}
        self._by_serial[plan.serial] = None
        self._vacant.append(plan.serial)
        if not self.entries_held:
            self.mentions.clear()

    # Questions

    def ahead(self, name: str) -> Iterator[tuple[ReaderPlan, int]]:
        """Where live plans mention the shard ahead of their readers. Read it to its end before changing anything."""
        for mention in self.mentions.of(name):
            plan, index = self._by_serial[mention >> INDEX_BITS], mention & INDEX_MASK
            if plan is not None and plan.live and index >= plan.position:
                yield plan, index

    def first_need(self, name: str) -> float:
        """When the first live plan opens the shard; infinity if none has it ahead."""
        need = inf
        for mention in self.mentions.of(name):  # not through ``ahead``: the generator costs more than the search
            plan, index = self._by_serial[mention >> INDEX_BITS], mention & INDEX_MASK
            if plan is not None and plan.live and index >= plan.position:
                need = min(need, plan.need_at(index))
        return need

    def next_mention(self, plan: ReaderPlan, name: str) -> int | None:
        """The index at which ``plan`` mentions the shard next; None if it does not."""
        if plan.position < len(plan) and plan.names[plan.position] == name:
            return plan.position
        return self.mentions.first_from(name, plan.serial, plan.position)
