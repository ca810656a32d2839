"""The facts that parts of the cache report to one another and to background tasks. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core.digests import Digest
from forebay_proxy.core.events import Fact
from forebay_proxy.transfer.fetches import Fetch
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = [
    "CacheChanged",
    "DigestsOffered",
    "EntryLeft",
    "EntryRetired",
    "FileHeld",
    "ReaderResumed",
    "ReadersLeft",
    "SegmentGone",
    "SegmentMissed",
    "SegmentSpoilt",
    "ShardCompleted",
    "VersionOutdated",
]


@dataclass(frozen=True, slots=True)
class CacheChanged(Fact):
    """A segment was stored, evicted or read while readers have plans: a request that found no room may find some now."""


@dataclass(frozen=True, slots=True)
class SegmentGone(Fact):
    """A stored segment of this shard left."""

    name: str


@dataclass(frozen=True, slots=True)
class SegmentMissed(Fact):
    """A fetch ended, and its segment is not stored."""

    entry: Entry
    index: int
    fetch: Fetch


@dataclass(frozen=True, slots=True)
class SegmentSpoilt(Fact):
    """Bytes of a stored segment were wrong on the disk, and may have been read."""

    entry: Entry
    index: int


@dataclass(frozen=True, slots=True)
class DigestsOffered(Fact):
    """An answer of the origin names these digests of the whole shard."""

    entry: Entry
    digests: tuple[Digest, ...]


@dataclass(frozen=True, slots=True)
class ShardCompleted(Fact):
    """All of a shard is stored."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class VersionOutdated(Fact):
    """The origin has another version now, or this one cannot be completed: it serves the readers inside, and leaves."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class EntryLeft(Fact):
    """A reader or a fetch has left ``entry``, which may now be compared, removed or forgotten."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class ReadersLeft(Fact):
    """The last reader inside a version has left it."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class EntryRetired(Fact):
    """No segment of a version is left, and no reader is in it."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class FileHeld(Fact):
    """Segments could not leave: an unknown descriptor of the file is still held."""

    entry: Entry


@dataclass(frozen=True, slots=True)
class ReaderResumed(Fact):
    """A named reader waited for bytes inside a shard, and goes on."""

    reader: ReaderName
