"""One version of a shard as this process knows it: what is here of it, who is inside, who may read it, how far it is believed.

Not thread-safe.
"""

from __future__ import annotations

from array import array
from dataclasses import replace

from forebay_proxy.cache.resident.credential_access import CredentialAccess
from forebay_proxy.cache.resident.version_file import VersionFile
from forebay_proxy.cache.resident.version_trust import VersionTrust
from forebay_proxy.cache.resident.version_use import VersionUse
from forebay_proxy.core.segments import Segments, segment_count
from forebay_proxy.core.shard import Pin, Shard, Version, store_key
from forebay_proxy.store.index.row import Row

__all__ = ["Entry"]


class Entry:
    """A shard version. It lives while anything of it is stored, in the air or being read."""

    __slots__ = ("access", "group", "immutable", "in_use", "key", "name", "origin", "ranged", "segments", "stored", "trust", "version")

    def __init__(self, key: str, shard: Shard, version: Version, *, ranged: bool, transient: bool = False) -> None:
        """``transient``: it must not outlive this process, because nothing could recognise it again."""
        self.key = key
        self.name = shard.name
        self.group = shard.group
        self.origin = shard.origin
        self.immutable = shard.is_immutable  # its name can never mean another version
        self.version = version
        self.ranged = ranged  # False: the origin gives the whole body or nothing, and so this entry stays or leaves whole
        self.segments = Segments(version.length)
        self.stored = VersionFile(transient=transient)
        self.in_use = VersionUse()
        self.access = CredentialAccess()
        self.trust = VersionTrust()

    def __repr__(self) -> str:
        return f"<Entry {self.name} {self.segments}, {self.in_use!r}>"

    @classmethod
    def of_row(cls, shard: Shard, row: Row, boot: str) -> Entry:
        """What the index claims; segments of another boot or folder are verified before their first use."""
        entry = cls(row.key, shard, row.version, ranged=True)
        entry.segments = Segments(row.length, array("Q", row.sums))
        entry.access.restore(row.access, row.chosen)
        entry.stored.claimed = entry.stored.filed = True
        if row.boot != boot:
            entry.segments.unverified = set(entry.segments.stored())
        return entry

    def row(self, boot: str) -> Row:
        """What may be claimed now. Segments to be verified before their next use keep the whole row from being trusted after a restart."""
        kept = "" if self.segments.unverified else boot
        sums = array("Q", self.segments.sums)
        last = self.last_index
        if self.trust.digest_pending and last is not None and self.segments.has(last):
            sums[last] = 0  # after a kill it is fetched, and compared, once more
        return Row.of(self.name, self.version, self.access.claimable(), kept, sums, self.access.chosen)

    @property
    def durable(self) -> bool:
        """Whether it may outlive this process: it has an identity to be recognised by, and a length."""
        last = self.last_index
        is_whole_or_ranged = not self._only_withheld if self.ranged else self.segments.complete and not self.trust.digest_pending
        return not self.stored.transient and last is not None and is_whole_or_ranged and not self.in_use.stale

    @property
    def _only_withheld(self) -> bool:
        """Whether the last segment is all there is, and still nobody's."""
        last = self.last_index
        return self.trust.digest_pending and last is not None and self.segments.stored_count == self.segments.has(last)

    @property
    def shown_key(self) -> str:
        """The key that clients see in an ETag made here."""
        return self.key if not self.trust.remade else store_key(self.key, f"remade {self.trust.remade}")

    @property
    def shown_version(self) -> Version:
        """The version as clients see it: without the origin's validators where bytes that were served under them were wrong."""
        return self.version if not self.trust.remade else replace(self.version, pin=Pin(), modified="", second_over=False)

    @property
    def last_index(self) -> int | None:
        """The index of the last segment; None while the length is unknown, -1 for an empty shard."""
        return None if self.version.length is None else segment_count(self.version.length) - 1

    def set_length(self, length: int) -> None:
        """The length became known with the end of the body."""
        self.version = replace(self.version, length=length)
        self.segments.set_length(length)

    def dated(self, version: Version) -> bool:
        """Take over the date that the origin gives these bytes now; whether it is another than before (an old row knows none)."""
        changed = bool(version.modified) and version.modified != self.version.modified
        if changed:
            self.version = replace(self.version, modified=version.modified, second_over=version.second_over)
        return changed

    def same_version(self, version: Version) -> bool:
        """Whether an answer of the origin is about these very bytes."""
        mine = self.version
        lengths = mine.length is None or version.length is None or mine.length == version.length
        return bool(mine.identity) and mine.identity == version.identity and lengths and mine.encoding == version.encoding


def fresh_key(shard: Shard, version: Version, serial: int) -> str:
    """A store key that no other version has: for one without an identity, or whose own key is taken by a body that broke off."""
    return store_key(shard.name, f"{version.identity}\n{serial}")
