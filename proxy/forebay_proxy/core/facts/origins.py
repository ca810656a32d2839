"""What is told of origins, and of the fetches that ask them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "FetchJoined",
    "FetchRetried",
    "NotStorable",
    "OpeningDone",
    "OriginAnswered",
    "OriginBytes",
    "OriginEvent",
    "OriginFailed",
    "OriginOddity",
    "Refetched",
    "Revalidated",
    "SegmentFetched",
    "SharedAnswered",
    "SharedBytes",
    "SharedFailed",
]


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

    seconds: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class Revalidated:
    """A stored version was compared with its origin. ``result``: same, changed, unreachable (served all the same)."""

    result: str


@dataclass(frozen=True, slots=True)
class SegmentFetched:
    """A segment is complete: on disk (``stored``) or passed through memory."""

    seconds: float
    stored: bool
    prefetched: bool


@dataclass(frozen=True, slots=True)
class FetchJoined:
    """A reader joined a fetch that was already in the air: one origin request fewer."""


@dataclass(frozen=True, slots=True)
class NotStorable:
    """An answer said ``Vary: *``: its bytes are passed on, and no other request is given them."""

    origin: str


@dataclass(frozen=True, slots=True)
class Refetched:
    """Bytes asked for a second time because a bypass reader fell out of its window."""


@dataclass(frozen=True, slots=True)
class SharedAnswered:
    """A shard was looked for in the shared tier. ``result``: hit, waited (another sidecar brings it), fetched (by this one), given-up."""

    result: str


@dataclass(frozen=True, slots=True)
class SharedBytes:
    """Bytes of shards that were ``read`` from the shared tier, or ``written`` to it."""

    count: int
    way: str


@dataclass(frozen=True, slots=True)
class SharedFailed:
    """The shared tier was of no use. ``reason``: unavailable, timeout, refused, full, wrong, foreign, other."""

    reason: str


OriginEvent = (
    FetchRetried
    | FetchJoined
    | NotStorable
    | OpeningDone
    | OriginAnswered
    | OriginBytes
    | OriginFailed
    | OriginOddity
    | Refetched
    | Revalidated
    | SegmentFetched
    | SharedAnswered
    | SharedBytes
    | SharedFailed
)
