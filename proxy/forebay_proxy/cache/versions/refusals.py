"""What went wrong with a shard, for as long as that is remembered: its origin refused it, or its bytes were wrong. No I/O.

``RefusalCache``: what an origin refused a moment ago, and to which credential, is not asked again at once.

``SuspectVersions``: what is remembered of shards whose bytes turned out wrong after some of them had been served. Two things. How often:
the first time may be an accident on the way and is worth a second fetch, the next is told to the reader. And that a stream which was cut
off must not go on where it stopped, because its beginning may be wrong. A strong ETag promises the same bytes, so the shard gets another
one, and a client that resumes with the old one is told 412.

Nearly always nothing is remembered, so the tables are to be seen: what is empty need not be asked.

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from forebay_proxy.core.errors import ShardError, ShardForbidden, ShardNotFound, bare

__all__ = ["RefusalCache", "SuspectVersions"]

REMEMBERED_S = 5.0  # the contract: 401, 403 and 404 are not asked again for 5 s per (URL, credential)
REMEMBERED_MOST = 4096
# Longer than a loader goes on trying to resume, so no stream is pieced together of two fetches; and what went wrong hours ago says nothing
# about the next fetch.
SPOILT_S = 3600.0
# Each try costs the whole shard, and a digest that is wrong at the origin stays so: a loop of retrying readers must not fetch it all day.
REFUSED_S = 30.0
UNASKED_S = 600.0  # the same for a fetch that no reader asked for
MOST_SUSPECTS = 4096  # names; who is forgotten is fetched once more


class RefusalCache:
    """Refusals by shard name and the MAC of the credential that was refused."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.refusals: dict[tuple[str, str], tuple[ShardError, float]] = {}

    def __len__(self) -> int:
        return len(self.refusals)

    def remember(self, name: str, mac: str, error: ShardError) -> None:
        """``error`` was the answer for ``name`` to this credential. Other errors than refusals may be over at once, and are not kept."""
        if isinstance(error, (ShardForbidden, ShardNotFound)):
            self.refusals.pop((name, mac), None)
            if len(self.refusals) >= REMEMBERED_MOST:
                self.refusals.clear()
            self.refusals[name, mac] = bare(error), self._clock() + REMEMBERED_S

    def recall(self, name: str, mac: str) -> None:
        """Raises the ``ShardError`` that this credential was refused ``name`` with a moment ago, if it was."""
        self.expire()
        remembered = self.refusals.get((name, mac))
        if remembered is not None:
            raise bare(remembered[0])

    def expire(self) -> None:
        """Drop what is remembered no longer."""
        now = self._clock()
        while self.refusals and self.refusals[oldest := next(iter(self.refusals))][1] <= now:  # in the order of their ends
            del self.refusals[oldest]


class SuspectVersions:
    """How often the bytes of a shard were wrong lately, by its name, and which names are not opened for a while."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.known: OrderedDict[str, tuple[int, bool, float]] = OrderedDict()  # how often, a row of them?, until when
        self.refused: dict[str, tuple[ShardError, float]] = {}  # why, since when

    def spoilt(self, name: str, *, by_origin: bool = True) -> bool:
        """Note that bytes of ``name`` were wrong. False: the second time in a row, so fetching them again will not help."""
        count, again = self._count_of(name)
        self.known[name] = count + 1, again or by_origin, self._clock() + SPOILT_S
        self.known.move_to_end(name)
        if len(self.known) > MOST_SUSPECTS:
            self.known.popitem(last=False)
        return not again

    def trusted(self, name: str) -> None:
        """A whole fetch of ``name`` was right: the row is broken. Its ETag stays the new one."""
        count, again = self._count_of(name)
        if again:
            self.known[name] = count, False, self._clock() + SPOILT_S
            self.known.move_to_end(name)

    def count(self, name: str) -> int:
        """How often bytes of ``name`` were wrong lately; another number is another ETag."""
        return self._count_of(name)[0]

    def _count_of(self, name: str) -> tuple[int, bool]:
        count, again, until = self.known.get(name, (0, False, 0.0))
        return (count, again) if until > self._clock() else (0, False)

    def refuse(self, name: str, error: ShardError) -> None:
        """Do not open ``name`` for a while."""
        self.refused.pop(name, None)
        self.refused[name] = bare(error), self._clock()
        if len(self.refused) > MOST_SUSPECTS:
            del self.refused[next(iter(self.refused))]

    def expire(self) -> None:
        """Drop refusals that hold no longer, and names that are suspect no longer."""
        now = self._clock()
        while self.refused and self.refused[oldest := next(iter(self.refused))][1] + UNASKED_S <= now:
            del self.refused[oldest]
        while self.known and self.known[oldest := next(iter(self.known))][2] <= now:
            del self.known[oldest]

    def recall(self, name: str, *, ahead: bool = False) -> None:
        """Raises the error that ``name`` is refused with, if it is; ``ahead``: no reader asks for it."""
        error, since = self.refused.get(name, (None, 0.0))
        if error is not None and self._clock() < since + (UNASKED_S if ahead else REFUSED_S):
            raise bare(error)
