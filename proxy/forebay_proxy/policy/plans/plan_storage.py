"""Plans as lists of names: taken in slices, mentioned, swept behind their readers, cleared away in slices; and who mentions a shard. Pure.

What it promises ``PlanRegistry``: a plan that is not live is nowhere ahead, however much of it is written down; and nothing here runs
longer than a slice. An entry takes 178 bytes where its name has 50 characters (585,270 entries of one reader, Python 3.11): the name, its
place in the plan's list, and its mention in one dict of all names. That dict grows all at once: 23 ms among half a million names, which is
the longest that the event loop is held while such a plan is taken.
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

SLICE = 512  # entries: two milliseconds of the event loop where each is a new name
INDEX_BITS = 32
INDEX_MASK = (1 << INDEX_BITS) - 1


class ReverseIndex:
    """Which plans mention a shard, and where in them.

    A mention is one integer: the number of the plan, 32 bits, then the index in it. Sorted, those of one plan stand together, in its order.
    """

    def __init__(self) -> None:
        self._mentions: dict[
            str, int | array[int]
        ] = {}  # an array where there are several: a resampled shard is mentioned a thousand times

    def __len__(self) -> int:
        return len(self._mentions)

    def of(self, name: str) -> Sequence[int]:
        """Every mention of the shard, in order. Not to be kept: it changes."""
        found = self._mentions.get(name, ())
        return (found,) if isinstance(found, int) else found

    def first_from(self, name: str, plan: int, index: int) -> int | None:
        """The first index, ``index`` or later, at which the plan mentions the shard."""
        mentions = self.of(name)
        place = bisect_left(mentions, plan << INDEX_BITS | index)
        if place == len(mentions) or mentions[place] >> INDEX_BITS != plan:
            return None
        return mentions[place] & INDEX_MASK

    def add(self, name: str, plan: int, index: int) -> None:
        """The plan of this serial number mentions the shard at ``index``."""
        mention = plan << INDEX_BITS | index
        other = self._mentions.setdefault(name, mention)
        if isinstance(other, array):
            insort(other, mention)
        elif other != mention:
            self._mentions[name] = array("Q", sorted((other, mention)))

    def remove(self, name: str, plan: int, index: int) -> None:
        """It does not any more; it must have."""
        found = self._mentions[name]
        if isinstance(found, array):
            found.pop(bisect_left(found, plan << INDEX_BITS | index))
            if len(found) == 1:
                self._mentions[name] = found[0]
        else:
            del self._mentions[name]

    def clear(self) -> None:
        """Nobody mentions anything any more."""
        self._mentions = {}


class PlanStorage:
    """Every plan that is written down, live or not. Not thread-safe: the event loop's only."""

    def __init__(self, tell: Callable[[Iterable[str]], None]) -> None:
        """``tell`` hears of the shards that are needed at another time than before."""
        self._tell = tell
        self.mentions = ReverseIndex()
        self._by_serial: list[ReaderPlan | None] = [None]
        self._vacant: list[int] = []
        self._reclaimer: deque[Iterator[None]] = deque()
        self.entries_held = 0  # of all plans, what is read or withdrawn already but not cleared away included
        self.name_bytes = 0  # characters of their names and URLs

    # Writing down

    @contextmanager
    def entering(self, reader: ReaderName, epoch: int | None, set_name: str | None, now: float) -> Iterator[ReaderPlan]:
        """A new plan, not live yet; one that has not been live at the end either is cleared away."""
        serial = self._vacant.pop() if self._vacant else len(self._by_serial)
        plan = ReaderPlan(reader, epoch, set_name, ReaderPace(now, now), serial)
        self._by_serial[serial : serial + 1] = [plan]  # in the place of a former one, or behind all
        try:
            yield plan
        finally:
            if not plan.live and not plan.ended:
                self.discard(plan, 1)

    def write(self, plan: ReaderPlan, entries: Entries, instead_of: ReaderPlan | None = None) -> Iterator[None]:
        """Write ``entries`` into ``plan``, in slices. Raises ``PlansFull``, ``InvalidShardUrl``."""
        spare, spare_bytes = (len(instead_of), instead_of.name_bytes + instead_of.text_bytes) if instead_of else (0, 0)  # for a moment
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
            self.tidy(1)  # so clearing away keeps up with taking
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
        """Write what is ahead in ``source`` into ``plan``."""
        names = source.names[source.position :]
        plan.credentials = [(max(0, start - source.position), credential) for start, credential in source.credentials]
        self._write(plan, names, {name: source.texts[name] for name in names if name in source.texts} if source.texts else {})

    def exchange_credentials(self, plan: ReaderPlan, other: ReaderPlan) -> None:
        """The same shards were announced once more, perhaps with fresher credentials."""
        plan.texts, other.texts = other.texts, plan.texts
        plan.text_bytes, other.text_bytes = other.text_bytes, plan.text_bytes
        plan.credentials, other.credentials = other.credentials, plan.credentials

    def mention(self, plan: ReaderPlan) -> Iterator[None]:
        """Let all of ``plan`` be found by shard, in slices. It is not ahead before it is live."""
        while plan.mentioned_to < len(plan):
            self._mention(plan)
            yield

    def _mention(self, plan: ReaderPlan) -> None:
        add, start = self.mentions.add, plan.mentioned_to
        for index, name in enumerate(plan.names[start : start + SLICE], start):
            add(name, plan.serial, index)
        plan.mentioned_to = min(len(plan), start + SLICE)

    def extend(self, plan: ReaderPlan, more: ReaderPlan) -> Iterator[None]:
        """Move the entries of ``more`` behind those of ``plan``, in slices, for as long as that lives."""
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

    # Clearing away

    def sweep(self, plan: ReaderPlan, slices: int) -> None:
        """Nothing that the reader has passed is mentioned any more: so many slices of it now, the rest with ``tidy``."""
        if self._sweep(plan):
            self._begin(self._sweeping(plan), slices)

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

    def _sweep(self, plan: ReaderPlan) -> bool:
        """A slice; whether there may be more."""
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

    # Asking

    def ahead(self, name: str) -> Iterator[tuple[ReaderPlan, int]]:
        """Where live plans mention the shard ahead of their readers. Nothing may be changed before it is read to its end."""
        for mention in self.mentions.of(name):
            plan, index = self._by_serial[mention >> INDEX_BITS], mention & INDEX_MASK
            if plan is not None and plan.live and index >= plan.position:
                yield plan, index

    def first_need(self, name: str) -> float:
        """When the shard is opened by the first live plan that has it ahead; never (infinite) if none has."""
        need = inf
        for mention in self.mentions.of(name):  # not by way of ``ahead``: a generator costs more than what it finds
            plan, index = self._by_serial[mention >> INDEX_BITS], mention & INDEX_MASK
            if plan is not None and plan.live and index >= plan.position:
                need = min(need, plan.need_at(index))
        return need

    def next_mention(self, plan: ReaderPlan, name: str) -> int | None:
        """Where ``plan`` mentions the shard next."""
        if plan.position < len(plan) and plan.names[plan.position] == name:
            return plan.position
        return self.mentions.first_from(name, plan.serial, plan.position)
