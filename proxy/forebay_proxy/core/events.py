"""What rooms report. Rooms emit frozen facts and know no listener; metrics, log and page listen, tests record. Pure.

What is counted is named here. A fact that one room has and another acts on (a segment left, the index was begun anew) is a ``Fact`` too,
and lives beside the room that emits it; ``app/composition.py`` says who hears it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = [
    "Aborted",
    "AccessLogged",
    "CacheRecovered",
    "ClientRefused",
    "DigestChecked",
    "DiskChanged",
    "DiskOperationFailed",
    "DoorAnswered",
    "Event",
    "Events",
    "Evicted",
    "Fact",
    "FetchRetried",
    "FlightBoarded",
    "IntegrityFailed",
    "LoopLagged",
    "NotStorable",
    "NotTar",
    "OpeningDone",
    "OptimalBytes",
    "OriginAnswered",
    "OriginBytes",
    "OriginFailed",
    "OriginOddity",
    "PlanChanged",
    "ReaderWaited",
    "Refetched",
    "RequestDone",
    "RequestOutcome",
    "ReservationRefused",
    "Revalidated",
    "SegmentFetched",
    "SegmentVerified",
    "Served",
    "ShardOpened",
]


class RequestOutcome(Enum):
    """How a request was served; the value is the ``result`` label."""

    HIT = "hit"  # every segment was stored when asked for
    COLLAPSED = "collapsed"  # nothing fetched for it alone: it boarded flights others had started
    PARTIAL = "partial"  # some stored, some fetched
    MISS = "miss"  # nothing was here
    BYPASS = "bypass"  # at least one segment could not be stored for lack of room or a failing disk


@dataclass(frozen=True, slots=True)
class OriginAnswered:
    """One origin request ended its headers. ``code`` 0: no answer came."""

    origin: str
    method: str
    code: int
    first_byte_s: float


@dataclass(frozen=True, slots=True)
class OriginBytes:
    """Body bytes that came from an origin. ``kind`` is demand, prefetch or refetch."""

    origin: str
    count: int
    kind: str


@dataclass(frozen=True, slots=True)
class OptimalBytes:
    """A reading ended for which the best schedule would have fetched ``count`` bytes (``OptimumMeter``)."""

    count: int


@dataclass(frozen=True, slots=True)
class OriginFailed:
    """An origin request was in vain. ``reason`` is a short word: connect, reset, timeout, throttled, status, short, changed, wrong."""

    origin: str
    reason: str
    cause: str = ""  # in words, without any URL


@dataclass(frozen=True, slots=True)
class OriginOddity:
    """An answer that is not as HTTP has it, and was of use all the same.

    ``kind``: range-as-200 (the range asked for, but status 200), whole-for-range (a whole body from an origin that honours ranges),
    version-returned (one that was denied is shown again: several servers behind one name).
    """

    origin: str
    kind: str


@dataclass(frozen=True, slots=True)
class FetchRetried:
    """A fetch asked again. ``resumed``: from the next missing byte of a broken body, not from the start."""

    origin: str
    reason: str
    resumed: bool


@dataclass(frozen=True, slots=True)
class OpeningDone:
    """A shard's version and length became known (or not: ``error`` is then the class name)."""

    origin: str
    seconds: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class Revalidated:
    """A stored version was compared with its origin. ``result``: same, changed, unreachable (served all the same)."""

    result: str


@dataclass(frozen=True, slots=True)
class SegmentFetched:
    """A segment is complete: on disk (``stored``) or passed through memory."""

    origin: str
    bytes: int
    seconds: float
    stored: bool
    prefetched: bool


@dataclass(frozen=True, slots=True)
class FlightBoarded:
    """A reader joined a fetch that was already in the air: one origin request fewer."""


@dataclass(frozen=True, slots=True)
class NotStorable:
    """An answer said ``Vary: *``: its bytes are passed on, and no other request is given them."""

    origin: str


@dataclass(frozen=True, slots=True)
class Refetched:
    """Bytes asked for a second time because a bypass reader fell out of its window."""

    origin: str
    bytes: int


@dataclass(frozen=True, slots=True)
class ReservationRefused:
    """No room for a segment. ``reason``: no-room, disk, inodes, quota."""

    reason: str


@dataclass(frozen=True, slots=True)
class Evicted:
    """A segment left. ``reason``: plan, guess, stale, admin, unused. ``used``: whether any reader had read it since it landed."""

    bytes: int
    reason: str
    age_s: float
    used: bool


@dataclass(frozen=True, slots=True)
class DiskOperationFailed:
    """The cache directory failed an operation. ``errno_name`` as ENOSPC."""

    operation: str
    errno_name: str


@dataclass(frozen=True, slots=True)
class DiskChanged:
    """The cache disk is in another state than before: normal, unstable or down."""

    state: str


@dataclass(frozen=True, slots=True)
class IntegrityFailed:
    """Stored or fetched bytes were not what they should be. ``stage``: origin, read, recovery."""

    stage: str


@dataclass(frozen=True, slots=True)
class DigestChecked:
    """A whole shard was compared with the digest its origin names. ``result``: agrees, differs, unchecked (given out without)."""

    algorithm: str
    result: str


@dataclass(frozen=True, slots=True)
class SegmentVerified:
    """A stored segment was read whole and compared with its checksum. ``why``: recovery, digest, verify, sample."""

    why: str
    right: bool


@dataclass(frozen=True, slots=True)
class CacheRecovered:
    """The index was loaded at start: segments ``kept`` from the last run, and ``dropped`` because they could not be trusted."""

    kept: int
    dropped: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ReaderWaited:
    """A reader waited for bytes that were not here yet. Hidden by prefetch it is harmless; it is not a stall of the trainer."""

    job: str
    seconds: float
    reader: ReaderName | None = None


@dataclass(frozen=True, slots=True)
class PlanChanged:
    """A reader's plan was replaced, extended, withdrawn, expired or finished."""

    job: str
    what: str


@dataclass(frozen=True, slots=True)
class ShardOpened:
    """A reader with a plan opened a shard. ``how`` that fits: planned, skipped (some were passed over), repeated, unplanned."""

    reader: ReaderName
    how: str


@dataclass(frozen=True, slots=True)
class Served:
    """Of which shard a request was, and for whom. ``range``: the first and the last byte of a 206. ``cut``: see ``Aborted``, or "".

    ``began_at``: when it began, by the sidecar's monotonic clock.
    """

    shard: str  # its name, which may hold a query that nobody should see: not for logs as it is
    reader: ReaderName | None
    epoch: int | None  # as the reader's plan told it
    length: int | None
    range: tuple[int, int] | None
    waited_s: float
    cut: str
    began_at: float


@dataclass(frozen=True, slots=True)
class RequestDone:
    """One client request ended. ``outcome`` is None for anything that is not a shard (status, plans, errors before an opening)."""

    method: str
    code: int
    outcome: RequestOutcome | None
    bytes_sent: int
    first_byte_s: float
    seconds: float
    hit_bytes: int = 0  # of bytes_sent: read from the store
    job: str = ""  # of the reader that asked; "" for an anonymous one
    served: Served | None = None  # None where no shard was named
    error: str = ""  # why not, in words that people and logs may see


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """A descriptor's lease ended. ``done``: the request, as one that was answered with the whole shard; it was counted at once."""

    done: RequestDone


@dataclass(frozen=True, slots=True)
class AccessLogged:
    """Lines of the access log were written, or dropped because its disk took them too slowly or not at all. ``result``: which."""

    result: str
    count: int


@dataclass(frozen=True, slots=True)
class DoorAnswered:
    """The fd door answered one client. ``answer``: passed (a descriptor), or why not: incomplete, encoded, digest, half, disk, …"""

    answer: str


@dataclass(frozen=True, slots=True)
class IndexDone:
    """A sample index was built, read from the disk, refused (the shard can have none), or its making failed. ``result`` says which."""

    result: str


@dataclass(frozen=True, slots=True)
class Aborted:
    """A response was cut after its headers were out. ``reason``: origin_failed, changed, client_gone, shutdown."""

    reason: str
    job: str = ""  # of the reader that was cut off; "" for an anonymous one
    cause: str = ""  # in words that people and logs may see


@dataclass(frozen=True, slots=True)
class NotTar:
    """A reader read a shard whose name says tar, and whose first bytes do not. ``shard`` and ``why`` are words for people and logs."""

    shard: str
    why: str
    job: str = ""  # of the reader; "" for an anonymous one


@dataclass(frozen=True, slots=True)
class ClientRefused:
    """A client without permission was refused, or an origin was. ``reason``: uid, browser, token, origin."""

    reason: str


@dataclass(frozen=True, slots=True)
class LoopLagged:
    """The event loop came back this much later than asked: time during which no reader was served."""

    seconds: float


Event = (
    Aborted | AccessLogged | ClientRefused | DigestChecked | DiskChanged | DiskOperationFailed | DoorAnswered | Evicted | FetchRetried
    | FlightBoarded | IndexDone | IntegrityFailed | LeaseEnded | LoopLagged | OpeningDone | OptimalBytes | OriginAnswered | OriginBytes
    | NotStorable | NotTar
    | OriginFailed | OriginOddity | PlanChanged | ReaderWaited | CacheRecovered | Refetched | RequestDone | ReservationRefused | Revalidated
    | SegmentFetched | SegmentVerified | ShardOpened
)  # fmt: skip


class Fact:
    """Something that happened in one room and that others act on at once: a frozen dataclass beside the room that emits it."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class RequestFailed(Fact):
    """A client was answered with an error, beside its ``RequestDone``. ``code``: 400 or above; ``error``: why, for people and logs."""

    code: int
    error: str
    job: str = ""  # of the reader that asked; "" for an anonymous one


F = TypeVar("F")


class Events:
    """The board on which rooms pin their facts; a listener is called with those it named, in the order in which listeners came.

    Not thread-safe: the event loop's only.
    """

    def __init__(self) -> None:
        self._of_all: tuple[Callable[[Any], object], ...] = ()
        self._of_kind: dict[type, list[Callable[[Any], object]]] = {}

    def on(self, kind: type[F], listener: Callable[[F], object]) -> None:
        """Call ``listener`` with every fact of ``kind`` from now on, before ``emit`` returns. It must be quick and must not raise."""
        self._of_kind.setdefault(kind, list(self._of_all)).append(listener)

    def listen(self, listener: Callable[[Any], object], kinds: Iterable[type] | None = None) -> None:
        """As ``on``, for each of ``kinds``; None: for every fact."""
        if kinds is not None:
            for kind in kinds:
                self.on(kind, listener)
            return
        self._of_all += (listener,)
        for listeners in self._of_kind.values():
            listeners.append(listener)

    def emit(self, event: Event | Fact) -> None:
        for listener in self._of_kind.get(type(event), self._of_all):
            listener(event)
