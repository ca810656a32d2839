"""One version of a shard in this process: its stored segments, its readers and fetches, its credentials, and how far its bytes are trusted.

An ``Entry`` holds the version's segments, its file on the disk (``VersionFile``), its use now (``VersionUse``), its checks
(``VersionTrust``), and which credentials may read it (``CredentialAccess``): those the origin has shown it to, or said yes to a moment ago.
Not thread-safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from forebay_proxy.cache.resident.digest_state import DigestState
from forebay_proxy.core.errors import ShardError
from forebay_proxy.core.segments import SegmentLayout, Segments
from forebay_proxy.core.shard import Pin, Shard, Version, store_key
from forebay_proxy.store.files.shard_file import ShardFile
from forebay_proxy.store.index.row import Row
from forebay_proxy.transfer.fetches import Answer, Fetch

__all__ = ["CredentialAccess", "Entry", "VersionFile", "VersionTrust", "VersionUse"]

# Of each version, because clients may make up names of jobs. One that is forgotten costs one small request to the origin if it comes back.
MOST_JOBS = 64
PROOF_S = 600.0  # the contract: another credential is let in for 10 minutes once the origin has said yes
# Of each version, because clients may make up credentials (a public origin says yes to all of them). One that is forgotten costs one small
# request to the origin when it comes back.
MOST_CREDENTIALS = 256


class Entry:
    """A shard version. It lives while anything of it is stored, in the air or being read."""

    __slots__ = ("access", "group", "immutable", "in_use", "key", "name", "origin", "ranged", "segments", "stored", "trust", "version")

    def __init__(self, key: str, shard: Shard, version: Version, layout: SegmentLayout, *, ranged: bool, transient: bool = False) -> None:
        """``transient``: it must not outlive this process, because nothing could recognise it again."""
        self.key = key
        self.name = shard.name
        self.group = shard.group
        self.origin = shard.origin
        self.immutable = shard.is_immutable  # its name can never mean another version
        self.version = version
        self.ranged = ranged  # False: the origin gives the whole body or nothing, and so this entry stays or leaves whole
        self.segments = Segments(layout, version.length)
        self.stored = VersionFile(transient=transient)
        self.in_use = VersionUse()
        self.access = CredentialAccess()
        self.trust = VersionTrust()

    def __repr__(self) -> str:
        return f"<Entry {self.name} {self.segments}, {self.in_use!r}>"

    @classmethod
    def of_row(cls, shard: Shard, row: Row, boot: str, layout: SegmentLayout) -> Entry:
        """What the index claims; segments of another boot or folder are verified before their first use."""
        entry = cls(row.key, shard, row.version, layout, ranged=True)
        entry.segments = Segments(layout, row.version.length, row.sums.copy())
        entry.access.restore(row.access, row.chosen)
        entry.stored.claimed = entry.stored.filed = True
        if row.boot != boot:
            entry.segments.unverified = set(entry.segments.stored())
        return entry

    def row(self, boot: str) -> Row:
        """What may be claimed now. Segments to be verified before their next use keep the whole row from being trusted after a restart."""
        kept = "" if self.segments.unverified else boot
        sums = self.segments.sums.copy()
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
    def is_empty(self) -> bool:
        """Whether no segment of the version is here, and no reader is in it."""
        return self.in_use.idle and not self.segments.stored_count

    @property
    def shown_key(self) -> str:
        """The key that clients see in an ETag made here: of the version, also where its own key is taken by a body that broke off, or is
        not all here any more. A state of a training names it for weeks.
        """
        identity = self.version.identity
        key = store_key(self.name, identity, self.access.chosen) if identity else self.key
        key = key if not self.version.encoding else store_key(key, f"encoded {self.version.encoding}")
        return key if not self.trust.remade else store_key(key, f"remade {self.trust.remade}")

    @property
    def shown_version(self) -> Version:
        """The version as clients see it: without the origin's validators where bytes that were served under them were wrong.

        Nor with those of an encoded body, which was not asked for: many origins have the same ones for it as for the plain bytes, and a
        client that goes on after a restart would get the rest of those.
        """
        if not self.trust.remade and not self.version.encoding:
            return self.version
        return replace(self.version, pin=Pin(), modified="", second_over=False)

    @property
    def last_index(self) -> int | None:
        """The index of the last segment; None while the length is unknown, -1 for an empty shard."""
        return None if self.version.length is None else self.segments.layout.count(self.version.length) - 1

    @property
    def passes(self) -> bool:
        """Whether nothing of it can be kept: it has no identity or no length, and each reader gets a body of its own."""
        return not self.version.identity or self.version.length is None

    @property
    def why_passed(self) -> str:
        """Why nothing of it can be kept, and what would mend it."""
        if "*" in self.version.vary:
            return "its origin sends 'Vary: *' (leave that header out there)"
        if not self.version.identity:
            return "its origin names no version (let it send an ETag or Last-Modified)"
        return "its origin tells no length (let it send Content-Length)"

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


@dataclass(slots=True, eq=False, repr=False)
class VersionUse:
    """What keeps a shard version here, and what ends it. Not thread-safe: the event loop's only."""

    readers: int = 0
    fetching: int = 0  # fetches that have not ended, and preparations that outlast theirs
    whole: Fetch | None = None  # the one body of an origin without Range, on its way
    answer: Answer | None = None  # of an opening, for the reader that comes for it
    leaving: dict[int, asyncio.Future[None]] = field(default_factory=dict)  # segments being removed; resolved when that is done, or undone
    departing: dict[int, int] = field(default_factory=dict)  # their checksums, should they stay after all
    stuck_until: float = 0.0  # monotonic seconds: something could not be removed, which is not tried again before
    stale: bool = False  # the origin has another version now: this one serves its readers, then leaves
    fault: ShardError | None = None  # why nobody may read on

    def __repr__(self) -> str:
        return f"<VersionUse {self.readers} readers, {self.fetching} fetches, {len(self.leaving)} leaving{', stale' if self.stale else ''}>"

    @property
    def idle(self) -> bool:
        """No reader is inside, no fetch is running, no segment is being removed."""
        return not self.readers and not self.fetching and not self.leaving

    def withdraw(self, index: int) -> None:
        """A segment that was being written will not be claimed: until ``Reclaimer.abandon`` has freed it, no fetch begins it anew."""
        self.leaving[index] = asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False, repr=False)
class VersionTrust:
    """How far a shard version may be believed. Not thread-safe: the event loop's only."""

    checked_jobs: set[str] = field(default_factory=set)  # that need not ask the origin again; "" is who names none
    checked_at: float = 0.0  # monotonic seconds
    digest_state: DigestState | None = None  # set once the origin has named a digest of the whole, or is asked for it
    no_digest: bool = False  # it names none, or none that can be computed here
    denials: int = 0  # how often in a row the origin said that it has another version
    wrong: int = 0  # segments found to be other bytes than were stored, or none
    remade: int = 0  # how often bytes served under this name were wrong: such a version gets another ETag each time
    no_tar: str | None = None  # why it is no tar, though its name says so; "": it may be one; None: nobody has looked
    no_tar_told: bool = False  # in the log

    def __repr__(self) -> str:
        return f"<VersionTrust {len(self.checked_jobs)} jobs, {self.digest_state!r}, {self.wrong} wrong>"

    def checked(self, job: str, now: float) -> None:
        """The origin said at ``now`` (monotonic seconds) that this is what it holds; ``job`` need not ask again."""
        if len(self.checked_jobs) >= MOST_JOBS:
            self.checked_jobs.clear()
        self.checked_jobs.add(job)
        self.checked_at = now

    def was_hashed(self, index: int) -> bool:
        """Whether a segment was hashed when it was here before; one that has the same name must be the same bytes."""
        return self.digest_state is not None and index < self.digest_state.next

    @property
    def digest_pending(self) -> bool:
        """Whether the last segment still waits for the whole to be compared with its digest."""
        return self.digest_state is not None and self.digest_state.closed


@dataclass(slots=True, eq=False, repr=False)
class VersionFile:
    """A shard version on the disk. Its bytes' checksums are in ``Entry.segments``. Not thread-safe: the event loop's only."""

    transient: bool = False  # it must not outlive this process, because nothing could recognise the version again
    file: ShardFile | None = None  # the open one
    filed: bool = False  # a file of the version exists on the disk
    misplaced: bool = False  # something has the file's name that cannot be removed now
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while the file is made or removed
    claimed: bool = False  # the index has a row of the version
    charged_bytes: int = 0  # of the file: what the ledger counts for its segments
    beyond_bytes: int = 0  # of the file: what it holds beyond that
    writing: set[int] = field(default_factory=set)  # segments allocated in the file, and not stored yet
    stored_at: dict[int, float] = field(default_factory=dict)  # segment -> monotonic seconds

    def __repr__(self) -> str:
        state = "open" if self.file is not None else "closed" if self.filed else "none"
        return f"<VersionFile {state}, {self.charged_bytes} bytes, {len(self.writing)} being written{', claimed' if self.claimed else ''}>"

    def made(self, file: ShardFile) -> None:
        """The version has a new, empty ``file``."""
        self.file, self.filed = file, True

    def removed(self) -> None:
        """There is no file any more; what was closed or never opened is gone too."""
        self.file, self.filed = None, False
        self.charged_bytes = 0
        self.writing.clear()


class CredentialAccess:
    """Credentials are known by their HMACs, "" for none at all. Not thread-safe: the event loop's only."""

    __slots__ = ("_proofs", "chosen", "macs", "variant", "vary")

    def __init__(self) -> None:
        self.macs = {""}  # those the version was shown to; the others prove themselves
        self.variant: str | None = ""  # of the credential it was opened with, less signatures; None: an earlier process did
        self.vary: tuple[str, ...] = ()  # request headers that it was chosen by
        self.chosen = ""  # HMAC of what chose it; where its identity is weak, another choice is another version
        self._proofs: dict[str, float] = {}  # HMAC -> monotonic seconds until which it may read

    def __repr__(self) -> str:
        return f"<CredentialAccess {len(self.macs)} shown, {len(self._proofs)} proved>"

    def restore(self, macs: Iterable[str], chosen: str) -> None:
        """Take over the HMACs that an earlier process claimed; the variant is not known where only some credentials may read."""
        known = set(macs)
        self.macs, self.variant, self.chosen = known or {""}, None if known else "", chosen

    def claimable(self) -> tuple[str, ...]:
        """The HMACs for the index. None where no credential is needed: after a restart a request with one proves it anew."""
        return () if "" in self.macs else tuple(sorted(self.macs))

    def admit(self, mac: str) -> None:
        """The origin has shown the version to this credential, or to none."""
        if not mac or len(self.macs) < MOST_CREDENTIALS:  # the others prove themselves
            self.macs.add(mac)

    def may_read(self, mac: str, now: float) -> bool:
        """Whether the origin was asked with this credential; it may show other bytes with a credential than without.

        ``now`` is in monotonic seconds, as for ``proved``.
        """
        return mac in self.macs or self._proofs.get(mac, 0.0) > now

    def refuse(self, mac: str) -> None:
        """The origin shows this credential something else."""
        self.macs.discard(mac)
        self._proofs.pop(mac, None)

    def proved(self, mac: str, now: float) -> None:
        """The origin said yes to this credential: it may read for ``PROOF_S`` seconds."""
        self._proofs = {known: until for known, until in self._proofs.items() if until > now}
        if len(self._proofs) >= MOST_CREDENTIALS:
            del self._proofs[next(iter(self._proofs))]
        self._proofs[mac] = now + PROOF_S
