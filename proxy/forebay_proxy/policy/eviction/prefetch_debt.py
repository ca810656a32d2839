"""Which reader each unread prefetched segment was fetched for, and which reader owes how many bytes of its room. Pure; the event loop's
only.

Each segment that leaves while it is still needed costs a fetch, so a reader may have it happen twice an epoch, no more. The reader for
which it left *owes* its bytes, and that debt lies on the segment that stands in the room: on the segment that was fetched (prefetched or
demanded), while it is in the air, while it is read, and after. The next segment in that room takes the debt over with it. So the room goes
round among all readers for the rest of the epoch, and reading a segment entitles no reader to another displacement. (Were it, lead would
eat what is kept, one segment for each that is read, as far as the window goes: simulated, 5 % of the data set in five epochs of eight
staggered readers.) The debt ends where the segment it lies on is itself needed again, by the next epoch or another job: then the room is
kept room.

What that gains over a bound on lead alone (no debts: something needed leaves for a reader with less than so many segments unread, those
it asked for itself included). Two segments: 3.0 % more bytes with real sidecars, 1063 against 1032 MiB an epoch in four runs each, and 3 %
over what is allowed (``python benchmarks/plans.py bytes --quick --case "8 readers, windows"``). One segment: 2.8 % fewer there, but over a
far line an epoch takes up to 7 % longer (simulated: 30 MB/s a connection after 150 ms, a cache of a quarter of the set).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from forebay_proxy.core.events import Events
from forebay_proxy.policy.eviction.facts import DebtSettled

__all__ = ["DISPLACED_PER_READER", "PrefetchDebts"]

DISPLACED_PER_READER = 2  # the contract: so many segments that are still needed may leave for one reader


@dataclass(slots=True)
class _Noted:
    """One segment: for which reader it came, how much of it is lead, and who owes how much of the room it stands in."""

    reader: Hashable
    size: int  # bytes, of a prefetched one
    is_lead: bool  # prefetched, here or on its way, and not read yet
    owed: dict[Hashable, int]
    is_read: bool = False  # to its end


class GivenLead:
    """Lead that was given back, by segment: for whom it came, and its bytes."""

    def __init__(self) -> None:
        self.places: dict[tuple[str, int], tuple[Hashable, int]] = {}  # (store key, segment) -> for whom it came, its bytes
        self._keys: Counter[str] = Counter()

    def __contains__(self, key: str) -> bool:
        """Whether something of this store key was lead, and was given back."""
        return key in self._keys

    def add(self, place: tuple[str, int], reader: Hashable, size: int) -> None:
        """``size`` bytes that came for ``reader`` are given back."""
        self.places[place] = reader, size
        self._keys[place[0]] += 1

    def of(self, reader: Hashable) -> list[tuple[tuple[str, int], int]]:
        """The segments that came for ``reader`` and are left, with their bytes."""
        return [(place, size) for place, (of, size) in self.places.items() if of == reader]

    def end(self, place: tuple[str, int]) -> None:
        """It was read, has left, or is lead again."""
        if self.places.pop(place, None) is not None:
            self._keys[place[0]] -= 1
            if not self._keys[place[0]]:
                del self._keys[place[0]]

    def check(self) -> None:
        """The counts are those of what is noted. Raises ``AssertionError``."""
        assert self._keys == Counter(key for key, _ in self.places), self._keys


class PrefetchDebts:
    """Counted from the moment room is granted until the segment leaves or fails to come, and as lead until its reader passes it.

    Where ``noted`` and ``given_back.places`` are empty, as wherever readers announce nothing, there is nothing to ask.
    """

    def __init__(self, segment_bytes: int, events: Events | None = None) -> None:
        """Without ``events`` nobody hears which debts are settled."""
        self._most_owed = DISPLACED_PER_READER * segment_bytes
        self._events = events or Events()
        self.noted: dict[tuple[str, int], _Noted] = {}  # (store key, segment)
        self.leads: dict[Hashable, dict[str, set[int]]] = {}  # reader -> store key -> segments; not to be changed from outside
        self._debts: dict[Hashable, set[tuple[str, int]]] = {}  # reader -> where what it owes lies
        self._owed: Counter[Hashable] = Counter()
        self.given_back = GivenLead()
        self.unread_bytes = 0  # prefetched, here or on their way, and not read

    def __repr__(self) -> str:
        return f"<PrefetchDebts {len(self)} segments, {self.unread_bytes} bytes unread, {self._owed.total()} owed by {len(self._owed)}>"

    def __len__(self) -> int:
        return len(self.noted)

    def may(self, reader: Hashable, size: int) -> bool:
        """Whether something needed may leave for ``size`` bytes of ``reader``: it owes little, and has less than two segments of lead.

        Of any lead: were only the displacing ones counted, the room of what the epoch has read would be spent on lead first, and two more
        be displaced on top of it (measured: 11 % more bytes with eight readers, then 8 %).
        """
        if self._owed[reader] + size > self._most_owed:
            return False
        return sum(map(len, self.leads.get(reader, {}).values())) < DISPLACED_PER_READER

    def note(
        self, key: str, index: int, reader: Hashable, size: int = 0, owed: Mapping[Hashable, int] | None = None, *, is_lead: bool = True
    ) -> None:
        """Segment ``index`` of ``key``, of ``size`` bytes, comes for ``reader``: ahead of its need, or (``is_lead`` False) on demand.

        ``owed``: bytes that left though they were needed, by the reader they left for.
        """
        self.drop(key, index)
        if not is_lead and not owed:
            return
        noted = self.noted[key, index] = _Noted(reader, size, is_lead, dict(owed or {}))
        if is_lead:
            self.leads.setdefault(reader, {}).setdefault(key, set()).add(index)
            self.unread_bytes += size
        for debtor, count in noted.owed.items():
            self._owed[debtor] += count
            self._debts.setdefault(debtor, set()).add((key, index))

    def move(self, place: tuple[str, int], key: str, index: int, size: int) -> None:
        """What was noted under ``place`` turned out to be segment ``index`` of ``key``, of ``size`` bytes."""
        noted = self.noted.get(place)
        if noted is not None:
            is_lead, owed = noted.is_lead, dict(noted.owed)
            self.drop(*place)
            self.note(key, index, noted.reader, size if is_lead else 0, owed, is_lead=is_lead)

    def is_lead(self, key: str, index: int) -> bool:
        """Whether it was prefetched and is unread."""
        noted = self.noted.get((key, index))
        return noted is not None and noted.is_lead

    def owed_on(self, key: str, index: int) -> Mapping[Hashable, int]:
        """The bytes owed of the room it stands in, by reader."""
        noted = self.noted.get((key, index))
        return noted.owed if noted is not None else {}

    def debts(self, reader: Hashable) -> list[tuple[str, int]]:
        """The segments that were read and stand in room that ``reader`` owes."""
        return [place for place in self._debts.get(reader, ()) if self.noted[place].is_read]

    def read(self, key: str, index: int) -> None:
        """It was read to its end, or passed by, and its reader has gone on: nobody's lead any more, but its room is owed as before."""
        self.given_back.end((key, index))
        noted = self.noted.get((key, index))
        if noted is None:
            return
        if not noted.owed:
            self.drop(key, index)
            return
        noted.is_read = True
        if noted.is_lead:
            self._end_lead(key, index, noted)
            self._events.emit(DebtSettled(noted.reader))

    def hit(self, key: str, index: int) -> None:
        """If it was read to its end before, it was kept, so nothing is owed of its room."""
        noted = self.noted.get((key, index))
        if noted is not None and noted.is_read:
            self.drop(key, index)

    def drop(self, key: str, index: int) -> None:
        """It is gone, or needed itself; nothing where it was not noted."""
        self.given_back.end((key, index))
        noted = self.noted.pop((key, index), None)
        if noted is None:
            return
        if noted.is_lead:
            self._end_lead(key, index, noted)
        for debtor in noted.owed:
            self._pay_off(debtor, (key, index), noted)
        for reader in {noted.reader: None, **noted.owed}:
            self._events.emit(DebtSettled(reader))

    def _end_lead(self, key: str, index: int, noted: _Noted) -> None:
        noted.is_lead = False
        self.unread_bytes -= noted.size
        mine = self.leads[noted.reader]
        mine[key].discard(index)
        if not mine[key]:
            del mine[key]
        if not mine:
            del self.leads[noted.reader]

    def _pay_off(self, debtor: Hashable, place: tuple[str, int], noted: _Noted) -> None:
        self._owed[debtor] -= noted.owed[debtor]
        if not self._owed[debtor]:
            del self._owed[debtor]
        self._debts[debtor].discard(place)
        if not self._debts[debtor]:
            del self._debts[debtor]

    def passed(self, reader: Hashable, keeps: Callable[[str], bool]) -> None:
        """``reader`` moved on: of its lead only the store keys that ``keeps`` names still lie ahead of it."""
        mine = self.leads.get(reader, {})
        for key in [key for key in mine if not keeps(key)]:
            for index in list(mine[key]):
                self.read(key, index)

    # Lead of idle readers

    def give_back(self, reader: Hashable) -> list[str]:
        """``reader`` is idle: its lead is lead no more, and whoever wants its room may have it. Returns the store keys of it."""
        mine = {key: {index: self.noted[key, index].size for index in indices} for key, indices in self.leads.get(reader, {}).items()}
        self.passed(reader, lambda key: False)
        for key, sizes in mine.items():
            for index, size in sizes.items():
                self.given_back.add((key, index), reader, size)
        return list(mine)

    def restore_lead(self, reader: Hashable, most_bytes: int) -> list[str]:
        """``reader`` moves: the segments left of those it gave back are its lead again, while there is no more than ``most_bytes`` of it in
        all. Returns the store keys of it."""
        mine = self.given_back.of(reader)
        for (key, index), size in mine:
            if self.unread_bytes + size <= most_bytes:
                owed = dict(self.owed_on(key, index))
                self.note(key, index, reader, size, owed)
        return list({key for (key, _), _ in mine})

    def forget(self, reader: Hashable) -> None:
        """``reader`` is gone, and all that is counted on it."""
        for place, _ in self.given_back.of(reader):
            self.given_back.end(place)
        self.passed(reader, lambda key: False)
        for place in list(self._debts.get(reader, ())):
            noted = self.noted[place]
            self._pay_off(reader, place, noted)
            del noted.owed[reader]
            if not noted.owed and not noted.is_lead:
                del self.noted[place]

    def owed(self) -> dict[Hashable, int]:
        """How many bytes each reader owes; readers that owe none are not named."""
        return dict(self._owed)

    def check(self) -> None:
        """The sums are those of what is noted. Raises ``AssertionError``."""
        debts: Counter[Hashable] = Counter()
        for place, noted in self.noted.items():
            assert noted.is_lead or noted.owed, place
            debts.update(noted.owed)
        assert debts == self._owed, (debts, self._owed)
        self.given_back.check()
        assert self.unread_bytes == sum(noted.size for noted in self.noted.values() if noted.is_lead), self
