"""One version of a shard as this process knows it: what is here of it, who may read it, who is inside. Not thread-safe."""

from __future__ import annotations

import asyncio
from array import array
from dataclasses import replace

from forebay_proxy.cache.resident.digest_state import DigestState
from forebay_proxy.core.errors import ShardError
from forebay_proxy.core.segments import Segments, segment_count
from forebay_proxy.core.shard import Pin, Shard, Version, store_key
from forebay_proxy.store.files.shard_file import ShardFile
from forebay_proxy.store.index.row import Row
from forebay_proxy.transfer.flights import Flight

__all__ = ["Entry"]

PROOF_S = 600.0  # the contract: another credential is let in for 10 minutes once the origin has said yes
# Of each entry, because clients may make up credentials (a public origin says yes to all of them) and names of jobs. Who is forgotten
# costs one small request to the origin when it comes back.
MOST_CREDENTIALS = 256
MOST_JOBS = 64


class Entry:
    """A shard version. It lives while anything of it is stored, in the air or being read."""

    def __init__(self, key: str, shard: Shard, version: Version, *, ranged: bool, transient: bool = False) -> None:
        """``transient``: it must not outlive this process, because nothing could recognise it again."""
        self.key = key
        self.name = shard.name
        self.group = shard.group
        self.origin = shard.origin
        self.immutable = shard.is_immutable  # its name can never mean another version
        self.version = version
        self.transient = transient
        self.ranged = ranged  # False: the origin gives the whole body or nothing, and so this entry stays or leaves whole
        self.segments = Segments(version.length)
        self.file: ShardFile | None = None
        self.filed = False  # a file of it exists on the disk
        self.misplaced = False  # something has its file's name that cannot be removed now
        self.file_lock = asyncio.Lock()  # held while the file is made or removed
        self.stream: Flight | None = None  # the one body of an origin without Range
        self.readers = 0
        self.flying = 0
        self.stale = False  # the origin has another version now: serves who is inside, then leaves
        self.claimed = False  # the index has a row of it
        self.boot = ""
        self.access = {""}  # HMACs of the credentials that it was shown to, "" for none at all: the others prove themselves
        self.variant: str | None = ""  # of the credential it was opened with, less signatures; None: an earlier process did
        self.vary: tuple[str, ...] = ()  # request headers that it was chosen by
        self.chosen = ""  # HMAC of what chose it; where its identity is weak, another choice is another version
        self.leaving: dict[int, asyncio.Future[None]] = {}  # segments being removed
        self.stuck_until = 0.0  # something of it could not be removed: not tried again before
        self.departing: dict[int, int] = {}  # their checksums, should they stay after all
        self.charged_bytes = 0  # of the file: what the ledger counts for its segments
        self.writing: set[int] = set()  # segments allocated in that file, and not stored yet
        self.beyond_bytes = 0  # of the file: what it holds beyond that
        self._proofs: dict[str, float] = {}
        self.checked_jobs: set[str] = set()
        self.checked_at = 0.0
        self.landed_at: dict[int, float] = {}
        self.digest_state: DigestState | None = None  # set once the origin has named a digest of the whole
        self.unsealable = False  # it names none, or none that can be computed here
        self.fault: ShardError | None = None  # why nobody may read on
        self.denials = 0  # how often in a row the origin said that it has another version
        self.wrong = 0  # segments found to be other bytes than were stored
        self.no_tar: str | None = None  # why it is no tar, though its name says so; "": it may be one; None: nobody has looked
        self.no_tar_told = False  # in the log
        self.remade = 0  # how often bytes served under this name were wrong: such a version gets another ETag each time

    def __repr__(self) -> str:
        return f"<Entry {self.name} {self.segments}, {self.readers} readers, {self.flying} flying{', stale' if self.stale else ''}>"

    @classmethod
    def of_row(cls, shard: Shard, row: Row, boot: str) -> Entry:
        """What the index claims; segments of another boot or folder are verified before their first use."""
        entry = cls(row.key, shard, row.version, ranged=True)
        entry.segments = Segments(row.length, array("Q", row.sums))
        entry.access = set(row.access) or {""}
        entry.variant, entry.chosen = None if row.access else "", row.chosen
        entry.boot = row.boot
        entry.claimed = entry.filed = True
        if row.boot != boot:
            entry.segments.unverified = set(entry.segments.stored())
        return entry

    def row(self, boot: str) -> Row:
        """What may be claimed now. Segments to be verified before their next use keep the whole row from being trusted after a restart."""
        kept = "" if self.segments.unverified else boot
        sums = array("Q", self.segments.sums)
        last = self.last_index
        if self.sealed and last is not None and self.segments.has(last):
            sums[last] = 0  # after a kill it is fetched, and compared, once more
        # Of a shard that is shown without a credential, the row names none: whoever brings one proves it anew after a restart.
        access = () if "" in self.access else tuple(sorted(self.access))
        return Row.of(self.name, self.version, access, kept, sums, self.chosen)

    @property
    def durable(self) -> bool:
        """Whether it may outlive this process: it has an identity to be recognised by, and a length."""
        last = self.last_index
        is_whole_or_ranged = self.segments.complete and not self.sealed if not self.ranged else not self._only_sealed
        return not self.transient and last is not None and is_whole_or_ranged and not self.stale

    @property
    def _only_sealed(self) -> bool:
        """Whether the last segment is all there is, and still nobody's."""
        last = self.last_index
        return self.sealed and last is not None and self.segments.stored_count == self.segments.has(last)

    @property
    def sealed(self) -> bool:
        """Whether the last segment still waits for the whole to be compared with its digest."""
        return self.digest_state is not None and self.digest_state.closed

    @property
    def shown_key(self) -> str:
        """The key that clients see in an ETag made here."""
        return self.key if not self.remade else store_key(self.key, f"remade {self.remade}")

    @property
    def shown_version(self) -> Version:
        """The version as clients see it: without the origin's validators where bytes that were served under them were wrong."""
        return self.version if not self.remade else replace(self.version, pin=Pin(), modified="", settled=False)

    @property
    def stream_flying(self) -> bool:
        """Whether the one body of this origin without Range is in the air."""
        return self.stream is not None and not self.stream.done

    @property
    def idle(self) -> bool:
        return not self.readers and not self.flying and not self.leaving

    @property
    def last_index(self) -> int | None:
        """The index of the last segment; None while the length is unknown, -1 for an empty shard."""
        return None if self.version.length is None else segment_count(self.version.length) - 1

    def settle(self, length: int) -> None:
        """The length became known with the end of the body."""
        self.version = replace(self.version, length=length)
        self.segments.settle(length)

    def admit(self, mac: str) -> None:
        """The origin has shown it to this credential, or to none."""
        if not mac or len(self.access) < MOST_CREDENTIALS:  # the others prove themselves
            self.access.add(mac)

    def may_read(self, mac: str, now: float) -> bool:
        """Whether the origin was asked with this credential; what it shows to nobody may differ from what it shows to somebody."""
        return mac in self.access or self._proofs.get(mac, 0.0) > now

    def refuse(self, mac: str) -> None:
        """The origin shows this credential something else."""
        self.access.discard(mac)
        self._proofs.pop(mac, None)

    def proved(self, mac: str, now: float) -> None:
        """The origin said yes to this credential."""
        self._proofs = {known: until for known, until in self._proofs.items() if until > now}
        if len(self._proofs) >= MOST_CREDENTIALS:
            del self._proofs[next(iter(self._proofs))]
        self._proofs[mac] = now + PROOF_S

    def checked(self, job: str, now: float) -> None:
        """The origin said at ``now`` that this is what it holds; ``job`` need not ask again."""
        if len(self.checked_jobs) >= MOST_JOBS:
            self.checked_jobs.clear()
        self.checked_jobs.add(job)
        self.checked_at = now

    def dated(self, version: Version) -> bool:
        """Take over the date that the origin gives these bytes now; whether it is another than before (an old row knows none)."""
        changed = bool(version.modified) and version.modified != self.version.modified
        if changed:
            self.version = replace(self.version, modified=version.modified, settled=version.settled)
        return changed

    def same_version(self, version: Version) -> bool:
        """Whether an answer of the origin is about these very bytes."""
        mine = self.version
        lengths = mine.length is None or version.length is None or mine.length == version.length
        return bool(mine.identity) and mine.identity == version.identity and lengths and mine.encoding == version.encoding


def fresh_key(shard: Shard, version: Version, serial: int) -> str:
    """A store key that no other version has: for one without an identity, or whose own key is taken by a body that broke off."""
    return store_key(shard.name, f"{version.identity}\n{serial}")
