"""What the shared tier says of one version of a shard: a small JSON object beside its bytes, written after them. Pure.

Whoever finds a manifest finds all of the bytes, and the checksum of each segment of them: S3's metadata has no room for these (2 KiB).
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from typing import Any

import xxhash

from forebay_proxy.core.shard import Version

__all__ = ["Manifest", "NotOurs", "object_name"]

_FORMAT = 1


class NotOurs(ValueError):
    """An object under our prefix that no Forebay wrote, or that was written for something else."""


def object_name(shard: str, version: Version, segment_bytes: int) -> str:
    """What objects of this version begin with. The origin's version is in it, so an object under a name never changes its meaning; and the
    size of segments, so that sidecars of two sizes do not read one another's.
    """
    text = "\n".join((shard, version.identity, version.encoding, str(version.length), str(segment_bytes)))
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    return f"forebay-{_FORMAT}/{digest[:2]}/{digest}"


@dataclass(frozen=True, slots=True)
class Manifest:
    """``sums``: xxh3 (64 bits) of each segment, in order. ``etag``: of the object that holds the bytes."""

    shard: str
    identity: str
    length: int
    segment_bytes: int
    sums: tuple[int, ...]
    etag: str

    def encoded(self) -> bytes:
        sums = b"".join(value.to_bytes(8, "big") for value in self.sums)
        said = {
            "forebay": _FORMAT, "shard": self.shard, "identity": self.identity, "length": self.length, "segment_bytes": self.segment_bytes,
            "sums": base64.b64encode(sums).decode("ascii"), "etag": self.etag,
        }  # fmt: skip
        return json.dumps({**said, "check": xxhash.xxh3_64_hexdigest(json.dumps(said).encode("ascii"))}).encode("ascii")

    @classmethod
    def decoded(cls, data: bytes, shard: str, version: Version, segment_bytes: int) -> Manifest:
        """Raises ``NotOurs`` for anything but a whole manifest of this very version."""
        try:
            said: dict[str, Any] = json.loads(data)
            sums = base64.b64decode(said["sums"], validate=True)
            found = cls(
                said["shard"], said["identity"], said["length"], said["segment_bytes"],
                tuple(int.from_bytes(sums[at : at + 8], "big") for at in range(0, len(sums), 8)), said["etag"],
            )  # fmt: skip
            right = isinstance(found.etag, str) and found.encoded() == data
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError, RecursionError) as error:
            raise NotOurs("it is no manifest of Forebay's") from error
        if not right:  # it says something else than what its check is of, or says it in another way than Forebay writes
            raise NotOurs("it is no whole manifest of Forebay's")
        if (found.shard, found.identity, found.length, found.segment_bytes) != (shard, version.identity, version.length, segment_bytes):
            raise NotOurs("it is the manifest of another shard or version")
        if len(found.sums) != -(-found.length // segment_bytes):
            raise NotOurs(f"it has {len(found.sums)} checksums for {found.length} bytes")
        return found
