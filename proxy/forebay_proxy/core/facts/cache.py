"""What is told of the cache, its disk, and how far its bytes are believed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "CacheEvent",
    "CacheRecovered",
    "DigestChecked",
    "DiskChanged",
    "DiskOperationFailed",
    "Evicted",
    "IndexDone",
    "IntegrityFailed",
    "ReservationRefused",
    "SegmentVerified",
]


@dataclass(frozen=True, slots=True)
class ReservationRefused:
    """No room for a segment. ``reason``: no-room, disk, quota."""

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
    """The cache disk is in another state than before: normal or down."""

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
class IndexDone:
    """A sample index was built, read from the disk, refused (the shard can have none), or its making failed. ``result`` says which."""

    result: str


CacheEvent = (
    CacheRecovered
    | DigestChecked
    | DiskChanged
    | DiskOperationFailed
    | Evicted
    | IndexDone
    | IntegrityFailed
    | ReservationRefused
    | SegmentVerified
)
