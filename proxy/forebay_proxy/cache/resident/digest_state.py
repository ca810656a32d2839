"""The state of comparing a shard version with its whole-body digest: the origin's digest, the hash so far, and the result.

While the result is pending, readers do not get the last segment, as long as a result is possible. Otherwise the segment is given out, and
the version counts as unchecked. Not thread-safe: used on the event loop alone.
"""

from __future__ import annotations

from array import array
from enum import Enum

from forebay_proxy.core.digests import Digest, DigestHasher, hasher_of
from forebay_proxy.core.tasks import Broadcast

__all__ = ["DigestState", "DigestVerdict"]


class DigestVerdict(Enum):
    """The result of a comparison."""

    PENDING = "pending"
    AGREES = "agrees"
    DIFFERS = "differs"


class DigestState:
    """The state of one version. ``expected`` None: the origin is still being asked for its digest."""

    def __init__(self, expected: Digest | None) -> None:
        self.expected: Digest | None = None
        self.verdict = DigestVerdict.PENDING
        self.released = False  # a reader got the last segment because nothing could be compared then; the next one may have to wait again
        self.given_up = False  # the disk fails, or the origin does not answer: no reader waits any more
        self.waiting = 0  # readers waiting for the last segment
        self.changed = Broadcast()
        # The checksums of the segments hashed so far, in order. A segment that is fetched again after an eviction must have the same bytes.
        self.sums = array("Q")
        self._hasher: DigestHasher | None = None
        if expected is not None:
            self.expect(expected)

    def __repr__(self) -> str:
        released = ", released" if self.released else ""
        return f"<DigestState {self.expected or 'asking'}, {len(self.sums)} hashed, {self.verdict.value}{released}>"

    def expect(self, digest: Digest) -> None:
        self.expected = digest
        self.given_up = False
        self._hasher = hasher_of(digest.algorithm)

    @property
    def next(self) -> int:
        """The index of the next segment to hash."""
        return len(self.sums)

    @property
    def closed(self) -> bool:
        """Whether the last segment has not been given out yet."""
        return self.verdict is DigestVerdict.PENDING and not self.released

    def hasher(self) -> DigestHasher:
        """A copy of the hash so far, to continue with; ``took`` stores it. A copy that is not stored changes nothing."""
        assert self._hasher is not None
        return self._hasher.copy()

    def took(self, hasher: DigestHasher, value: int) -> None:
        """``hasher`` now includes the next segment, whose checksum is ``value``."""
        self._hasher = hasher
        self.sums.append(value)

    def contradicts(self, index: int, value: int) -> bool:
        """Whether a segment that came again differs from the one that was hashed."""
        return index < len(self.sums) and self.sums[index] != (value or 1)

    def computed(self) -> Digest:
        """The digest of the segments hashed so far."""
        assert self._hasher is not None
        assert self.expected is not None
        return Digest(self.expected.algorithm, self._hasher.digest())
