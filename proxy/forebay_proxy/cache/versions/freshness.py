"""How long an origin's answers hold: that a version is still current, that a request was refused, that bytes were wrong. No I/O.

``Freshness``: whether a job may read a stored version without asking the origin about it first (``--revalidate``). A reader that names no
job cannot say that a new run began: for it a comparison holds for the burst of readings it was made in, and for a minute.

``RefusalCache``: what an origin refused a moment ago, and to which credential, is not asked again at once.

``SuspectVersions``: what is remembered of shards whose bytes turned out wrong after some of them had been served. Two things. How often:
the first time may be an accident on the way and is worth a second fetch, the next is told to the reader. And that a stream which was cut
off must not go on where it stopped, because its beginning may be wrong. A strong ETag promises the same bytes, so the shard gets another
one, and a client that resumes with the old one is told 412.

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core.errors import ShardError, ShardForbidden, ShardNotFound, bare
from forebay_proxy.policy.plans.live_jobs import Bursts

__all__ = ["Freshness", "RefusalCache", "SuspectVersions"]

# A minute is what a person waits before asking why the new data is not read, and costs the origin one small request a shard and minute at
# most, of shards that are read. So long it is also left alone where it did not answer.
NO_JOB_S = 60.0
REMEMBERED_S = 5.0  # the contract: 401, 403 and 404 are not asked again for 5 s per (URL, credential)
REMEMBERED_MOST = 4096
# Longer than a loader goes on trying to resume, so no stream is pieced together of two fetches; and what went wrong hours ago says nothing
# about the next fetch.
SPOILT_S = 3600.0
# Each try costs the whole shard, and a digest that is wrong at the origin stays so: a loop of retrying readers must not fetch it all day.
REFUSED_S = 30.0
UNASKED_S = 600.0  # the same for a fetch that no reader asked for
MOST_SUSPECTS = 4096  # names; who is forgotten is fetched once more


class Freshness:
    """Which comparisons with an origin still hold, and which origins cannot be asked. Not thread-safe: the event loop's only."""

    def __init__(self, revalidate: str | float, clock: Callable[[], float]) -> None:
        """``revalidate``: "job", "never", or for how many seconds a comparison holds."""
        self.bursts = Bursts(clock)
        self._revalidate = revalidate
        self._clock = clock
        self._silent: dict[str, float] = {}  # origins that could not be asked whether a shard changed, and until when they are not asked

    def is_fresh(self, entry: Entry, job: str) -> bool:
        """Whether ``job`` ("": none was named) may read the stored version without asking the origin about it first."""
        if self._revalidate == "never" or entry.immutable:
            return True
        age_s = self._clock() - entry.trust.checked_at
        if self._revalidate == "job":
            if job:
                return job in entry.trust.checked_jobs
            return entry.trust.checked_at >= self.bursts.began(entry.group) and age_s < NO_JOB_S
        return age_s < float(self._revalidate)

    def checked(self, entry: Entry, job: str) -> None:
        """The origin holds this version still, or cannot say: ``job`` need not ask again."""
        entry.trust.checked(job, self._clock())

    def silenced(self, origin: str) -> None:
        """``origin`` cannot be asked now: where each shard is compared again and again, each would wait out its silence once more."""
        now = self._clock()
        self._silent = {known: until for known, until in self._silent.items() if until > now}
        self._silent[origin] = now + NO_JOB_S

    def is_silent(self, origin: str) -> bool:
        """Whether ``origin`` could not be asked a moment ago."""
        return self._silent.get(origin, 0.0) > self._clock()


class RefusalCache:
    """Refusals by shard name and the MAC of the credential that was refused."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._refusals: dict[tuple[str, str], tuple[ShardError, float]] = {}

    def __len__(self) -> int:
        return len(self._refusals)

    def remember(self, name: str, mac: str, error: ShardError) -> None:
        """``error`` was the answer for ``name`` to this credential. Other errors than refusals may be over at once, and are not kept."""
        if isinstance(error, (ShardForbidden, ShardNotFound)):
            self._refusals.pop((name, mac), None)
            if len(self._refusals) >= REMEMBERED_MOST:
                self._refusals.clear()
            self._refusals[name, mac] = bare(error), self._clock() + REMEMBERED_S

    def recall(self, name: str, mac: str) -> None:
        """Raises the ``ShardError`` that this credential was refused ``name`` with a moment ago, if it was."""
        self.expire()
        remembered = self._refusals.get((name, mac))
        if remembered is not None:
            raise bare(remembered[0])

    def expire(self) -> None:
        """Drop what is remembered no longer."""
        now = self._clock()
        while self._refusals and self._refusals[oldest := next(iter(self._refusals))][1] <= now:  # in the order of their ends
            del self._refusals[oldest]


class SuspectVersions:
    """How often the bytes of a shard were wrong lately, by its name, and which names are not opened for a while."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._spoilt: OrderedDict[str, tuple[int, bool, float]] = OrderedDict()  # how often, a row of them?, until when
        self._refused: dict[str, tuple[ShardError, float]] = {}

    def spoilt(self, name: str, *, by_origin: bool = True) -> bool:
        """Note that bytes of ``name`` were wrong. False: the second time in a row, so fetching them again will not help."""
        count, again = self._known(name)
        self._spoilt[name] = count + 1, again or by_origin, self._clock() + SPOILT_S
        self._spoilt.move_to_end(name)
        if len(self._spoilt) > MOST_SUSPECTS:
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
        if len(self._refused) > MOST_SUSPECTS:
            del self._refused[next(iter(self._refused))]

    def expire(self) -> None:
        """Drop refusals that hold no longer, and names that are suspect no longer."""
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
