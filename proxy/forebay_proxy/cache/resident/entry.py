"""One version of a shard in this process: its stored segments, readers, fetches and credentials, and how far its bytes are trusted.

An ``Entry`` has the version's segments, its file on the disk (``VersionFile``), its present use (``VersionUse``), its checks
(``VersionTrust``), and the credentials that may read it (``CredentialAccess``). A credential may read if the origin has answered it with
this version, or has recently confirmed that it may. Not thread-safe.
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

# Jobs per version: clients may invent names of jobs. A forgotten one costs one small request to the origin if it comes back.
MOST_JOBS = 64
PROOF_S = 600.0  # promised in docs/security.md: how long another credential is admitted after the origin accepted it
# Credentials per version: clients may invent them (a public origin accepts all). A forgotten one costs one small request when it comes
# back.
MOST_CREDENTIALS = 256


class Entry:
    """A shard version. It lives while any segment of it is stored, being fetched or being read."""

    __slots__ = ("access", "group", "immutable", "in_use", "key", "name", "origin", "ranged", "segments", "stored", "trust", "version")

    def __init__(self, key: str, shard: Shard, version: Version, layout: SegmentLayout, *, ranged: bool, transient: bool = False) -> None:
        """``transient``: it must not outlive this process, because nothing could recognise it again."""
        self.key = key
        self.name = shard.name
        self.group = shard.group
        self.origin = shard.origin
        self.immutable = shard.is_immutable  # its name can never mean another version
        self.version = version
        self.ranged = ranged  # False: the origin sends only whole bodies, so this entry stays or leaves whole
        self.segments = Segments(layout, version.length)
        self.stored = VersionFile(transient=transient)
        self.in_use = VersionUse()
        self.access = CredentialAccess()
        self.trust = VersionTrust()

    def __repr__(self) -> str:
        return f"<Entry {self.name} {self.segments}, {self.in_use!r}>"

    @classmethod
    def of_row(cls, shard: Shard, row: Row, boot: str, layout: SegmentLayout) -> Entry:
        """The entry for an index row; segments of another boot or folder are verified before their first use."""
        entry = cls(row.key, shard, row.version, layout, ranged=True)
        entry.segments = Segments(layout, row.version.length, row.sums.copy())
        entry.access.restore(row.access, row.chosen)
        entry.stored.claimed = entry.stored.filed = True
        if row.boot != boot:
            entry.segments.unverified = set(entry.segments.stored())
        return entry

    def row(self, boot: str) -> Row:
        """The row to write now. If any segment must be verified before its next use, the whole row is not trusted after a restart."""
        kept = "" if self.segments.unverified else boot
        sums = self.segments.sums.copy()
        last = self.last_index
        if self.trust.digest_pending and last is not None and self.segments.has(last):
            sums[last] = 0  # after a kill it is fetched, and compared, again
        return Row.of(self.name, self.version, self.access.claimable(), kept, sums, self.access.chosen)

    @property
    def durable(self) -> bool:
        """Whether it may outlive this process: it has an identity and a length, and is not outdated."""
        last = self.last_index
        is_whole_or_ranged = not self._only_withheld if self.ranged else self.segments.complete and not self.trust.digest_pending
        return not self.stored.transient and last is not None and is_whole_or_ranged and not self.in_use.stale

    @property
    def _only_withheld(self) -> bool:
        """Whether at most the last segment is stored, and no reader may have it yet."""
        last = self.last_index
        return self.trust.digest_pending and last is not None and self.segments.stored_count == self.segments.has(last)

    @property
    def is_empty(self) -> bool:
        """Whether no segment of the version is stored, and no reader is in it."""
        return self.in_use.idle and not self.segments.stored_count

    @property
    def shown_key(self) -> str:
        """The key for the ETag that clients see: that of the version, even if the entry has another one.

        The entry has another one if the version's own key was taken by a body that broke off, or by an incomplete entry. A saved training
        state names this key for weeks.
        """
        identity = self.version.identity
        key = store_key(self.name, identity, self.access.chosen) if identity else self.key
        key = key if not self.version.encoding else store_key(key, f"encoded {self.version.encoding}")
        return key if not self.trust.remade else store_key(key, f"remade {self.trust.remade}")

    @property
    def shown_version(self) -> Version:
        """The version as clients see it: without the origin's validators if bytes served under them were wrong.

        It also leaves out those of an encoded body, which was not requested. Many origins use the same validators for the plain bytes, and
        a client that resumes after a restart would get the rest of those.
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
        """Whether it cannot be stored: it has no identity or no length, and each reader gets a body of its own."""
        return not self.version.identity or self.version.length is None

    @property
    def why_passed(self) -> str:
        """Why it cannot be stored, and how to change that."""
        if "*" in self.version.vary:
            return "its origin sends 'Vary: *' (leave that header out there)"
        if not self.version.identity:
            return "its origin names no version (let it send an ETag or Last-Modified)"
        return "its origin tells no length (let it send Content-Length)"

    def dated(self, version: Version) -> bool:
        """Take over the date that the origin now gives these bytes. Returns whether it changed (an old row has none)."""
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
    """What keeps a shard version cached, and what ends it. Not thread-safe: used on the event loop alone."""

    readers: int = 0
    fetching: int = 0  # running fetches, and preparations that outlast theirs
    whole: Fetch | None = None  # the running body of an origin without Range
    answer: Answer | None = None  # of an opening, for the reader that asked
    leaving: dict[int, asyncio.Future[None]] = field(default_factory=dict)  # segments being removed; resolved when that has ended
    departing: dict[int, int] = field(default_factory=dict)  # their checksums, in case they stay
    stuck_until: float = 0.0  # monotonic seconds: a removal failed, and is not tried again before
    stale: bool = False  # the origin has another version now; this one serves its readers, then leaves
    fault: ShardError | None = None  # why no reader may go on

    def __repr__(self) -> str:
        return f"<VersionUse {self.readers} readers, {self.fetching} fetches, {len(self.leaving)} leaving{', stale' if self.stale else ''}>"

    @property
    def idle(self) -> bool:
        """Whether no reader is inside, no fetch is running, and no segment is being removed."""
        return not self.readers and not self.fetching and not self.leaving

    def withdraw(self, index: int) -> None:
        """A segment that was being written is abandoned: until ``Reclaimer.abandon`` has freed it, no fetch may start it again."""
        self.leaving[index] = asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False, repr=False)
class VersionTrust:
    """How far a shard version may be trusted. Not thread-safe: used on the event loop alone."""

    checked_jobs: set[str] = field(default_factory=set)  # jobs that need not ask the origin again; "" for readers without one
    checked_at: float = 0.0  # monotonic seconds
    digest_state: DigestState | None = None  # set once the origin has named a digest of the whole, or is asked for it
    no_digest: bool = False  # it names none, or none that can be computed here
    denials: int = 0  # how often in a row the origin said that it has another version
    wrong: int = 0  # segments found wrong or unreadable
    remade: int = 0  # how often bytes served under this name were wrong: each time the version gets another ETag
    no_tar: str | None = None  # why it is no tar, though its name says so; "": it may be one; None: not checked
    no_tar_told: bool = False  # whether the log has it

    def __repr__(self) -> str:
        return f"<VersionTrust {len(self.checked_jobs)} jobs, {self.digest_state!r}, {self.wrong} wrong>"

    def checked(self, job: str, now: float) -> None:
        """At ``now`` (monotonic seconds) the origin confirmed this version; ``job`` need not ask again."""
        if len(self.checked_jobs) >= MOST_JOBS:
            self.checked_jobs.clear()
        self.checked_jobs.add(job)
        self.checked_at = now

    def was_hashed(self, index: int) -> bool:
        """Whether the segment was hashed when it was stored before; fetched again, it must have the same bytes."""
        return self.digest_state is not None and index < self.digest_state.next

    @property
    def digest_pending(self) -> bool:
        """Whether the last segment still waits for the comparison of the whole with its digest."""
        return self.digest_state is not None and self.digest_state.closed


@dataclass(slots=True, eq=False, repr=False)
class VersionFile:
    """A shard version on the disk. Its checksums are in ``Entry.segments``. Not thread-safe: used on the event loop alone."""

    transient: bool = False  # it must not outlive this process, because nothing could recognise the version again
    file: ShardFile | None = None  # the open file
    filed: bool = False  # a file of the version exists on the disk
    misplaced: bool = False  # the file's name is taken by something that cannot be removed now
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
        """The version has no file any more, open or closed."""
        self.file, self.filed = None, False
        self.charged_bytes = 0
        self.writing.clear()


class CredentialAccess:
    """The credentials that may read a version, by their HMACs; "" is no credential. Not thread-safe: used on the event loop alone."""

    __slots__ = ("_proofs", "chosen", "macs", "variant", "vary")

    def __init__(self) -> None:
        self.macs = {""}  # those that the origin answered with the version; others must be proved
        self.variant: str | None = ""  # of the credential it was opened with, without signatures; None: an earlier process opened it
        self.vary: tuple[str, ...] = ()  # the request headers by which it was selected
        self.chosen = ""  # HMAC of their values; if its identity is weak, another selection is another version
        self._proofs: dict[str, float] = {}  # HMAC -> monotonic seconds until which it may read

    def __repr__(self) -> str:
        return f"<CredentialAccess {len(self.macs)} shown, {len(self._proofs)} proved>"

    def restore(self, macs: Iterable[str], chosen: str) -> None:
        """Take over the HMACs that an earlier process claimed. If only some credentials may read, the variant is unknown."""
        known = set(macs)
        self.macs, self.variant, self.chosen = known or {""}, None if known else "", chosen

    def claimable(self) -> tuple[str, ...]:
        """The HMACs for the index. Empty if no credential is needed: after a restart, a request with one is proved again."""
        return () if "" in self.macs else tuple(sorted(self.macs))

    def admit(self, mac: str) -> None:
        """The origin has answered a request with this credential (or none) with the version."""
        if not mac or len(self.macs) < MOST_CREDENTIALS:  # beyond that, credentials are proved each time
            self.macs.add(mac)

    def may_read(self, mac: str, now: float) -> bool:
        """Whether this credential may read; with and without a credential, an origin may send different bytes.

        ``now`` is in monotonic seconds, as for ``proved``.
        """
        return mac in self.macs or self._proofs.get(mac, 0.0) > now

    def refuse(self, mac: str) -> None:
        """The origin answers this credential with something else."""
        self.macs.discard(mac)
        self._proofs.pop(mac, None)

    def proved(self, mac: str, now: float) -> None:
        """The origin accepted this credential: it may read for ``PROOF_S`` seconds."""
        self._proofs = {known: until for known, until in self._proofs.items() if until > now}
        if len(self._proofs) >= MOST_CREDENTIALS:
            del self._proofs[next(iter(self._proofs))]
        self._proofs[mac] = now + PROOF_S
