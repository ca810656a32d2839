"""What is known of a shard version's whole-body digest: what the origin says, how far it has been computed here, and how it came out.

While it is pending, readers are kept out of the last segment as long as the verdict can be come by; where it cannot, the segment is given
out and the version counts as unchecked. Not thread-safe: the event loop's only.
"""

from __future__ import annotations

from array import array
from enum import Enum

from forebay_proxy.core.digests import Digest, DigestHasher, hasher_of
from forebay_proxy.core.tasks import Broadcast

__all__ = ["DigestState", "DigestVerdict"]


class DigestVerdict(Enum):
    """How a comparison came out."""

    PENDING = "pending"
    AGREES = "agrees"
    DIFFERS = "differs"


class DigestState:
    """One version's. ``expected`` None: the origin is still being asked for its digest."""

    def __init__(self, expected: Digest | None) -> None:
        self.expected: Digest | None = None
        self.verdict = DigestVerdict.PENDING
        self.released = False  # somebody was given the end although nothing could be compared then; the next one may have to wait again
        self.given_up = False  # the disk fails, or the origin does not say what it should be: nobody waits for it any more
        self.waiting = 0  # readers before the last segment
        self.changed = Broadcast()
        # The checksums of the segments hashed so far, in order. What comes again later (evicted, and fetched anew) must be the same bytes.
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
        """The index of the segment that is to be hashed next."""
        return len(self.sums)

    @property
    def closed(self) -> bool:
        """Whether nobody has been given the last segment yet."""
        return self.verdict is DigestVerdict.PENDING and not self.released

    def hasher(self) -> DigestHasher:
        """A copy of the digest so far, to go on with; ``took`` gives it back. A copy that is not given back changes nothing."""
        assert self._hasher is not None
        return self._hasher.copy()

    def took(self, hasher: DigestHasher, value: int) -> None:
        """The next segment, whose checksum is ``value``, is in ``hasher``."""
        self._hasher = hasher
        self.sums.append(value)

    def contradicts(self, index: int, value: int) -> bool:
        """Whether a segment that has come (again) is not the one that was hashed."""
        return index < len(self.sums) and self.sums[index] != (value or 1)

    def computed(self) -> Digest:
        """The digest of what was hashed so far."""
        assert self._hasher is not None
        assert self.expected is not None
        return Digest(self.expected.algorithm, self._hasher.digest())
