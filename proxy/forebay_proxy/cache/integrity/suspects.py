"""What is remembered of shards whose bytes turned out wrong after some of them had been served. Not thread-safe: the event loop's only.

Two things. How often: the first time may be an accident on the way and is worth a second fetch, the next is told to the reader. And that
a stream which was cut off must not go on where it stopped: its beginning may be wrong. A strong ETag promises the same bytes, so the shard
gets another one, and whoever resumes with the old is told 412.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from forebay_proxy.core.errors import ShardError, bare

__all__ = ["SuspectVersions"]

# Longer than a loader goes on trying to resume, so no stream is pieced together of two fetches; and what went wrong hours ago says nothing
# about the next fetch.
SPOILT_S = 3600.0
# Each try costs the whole shard, and a digest that is wrong at the origin stays so: a loop of retrying readers must not fetch it all day.
REFUSED_S = 30.0
UNASKED_S = 600.0  # the same for a fetch that no reader asked for
MOST = 4096  # names; who is forgotten is fetched once more


class SuspectVersions:
    """By shard name."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._spoilt: OrderedDict[str, tuple[int, bool, float]] = OrderedDict()  # how often, a row of them?, until when
        self._refused: dict[str, tuple[ShardError, float]] = {}

    def spoilt(self, name: str, *, by_origin: bool = True) -> bool:
        """Bytes of ``name`` were wrong; whether this is not the second time in a row that they came so."""
        count, again = self._known(name)
        self._spoilt[name] = count + 1, again or by_origin, self._clock() + SPOILT_S
        self._spoilt.move_to_end(name)
        if len(self._spoilt) > MOST:
            self._spoilt.popitem(last=False)
        return not again

    def trusted(self, name: str) -> None:
        """A whole fetch of ``name`` was right: the row is broken. Its ETag stays the new one."""
        count, again = self._known(name)
        if again:
            self._spoilt[name] = count, False, self._clock() + SPOILT_S
            self._spoilt.move_to_end(name)

    def count(self, name: str) -> int:
        """How often bytes of ``name`` were wrong lately; another number is another ETag."""
        return self._known(name)[0]

    def _known(self, name: str) -> tuple[int, bool]:
        count, again, until = self._spoilt.get(name, (0, False, 0.0))
        return (count, again) if until > self._clock() else (0, False)

    def refuse(self, name: str, error: ShardError) -> None:
        """Do not open ``name`` for a while."""
        self._refused.pop(name, None)
        self._refused[name] = bare(error), self._clock()
        if len(self._refused) > MOST:
            del self._refused[next(iter(self._refused))]

    def expire(self) -> None:
        """Drop what is refused no longer, and who is not distrusted any more."""
        now = self._clock()
        while self._refused and self._refused[oldest := next(iter(self._refused))][1] + UNASKED_S <= now:
            del self._refused[oldest]
        while self._spoilt and self._spoilt[oldest := next(iter(self._spoilt))][2] <= now:
            del self._spoilt[oldest]

    def recall(self, name: str, *, ahead: bool = False) -> None:
        """Raises the error that ``name`` is refused with, if it is; ``ahead``: no reader asks for it."""
        error, since = self._refused.get(name, (None, 0.0))
        if error is not None and self._clock() < since + (UNASKED_S if ahead else REFUSED_S):
            raise bare(error)
