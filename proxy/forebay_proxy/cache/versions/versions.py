"""Which versions a shard's name means now: the latest version that its origin has named, and the versions that it shows to other
credentials; and how long that holds: whether a job may read a stored version without asking the origin about it first (``--revalidate``).
A reader that names no job cannot say that a new run began: for it a comparison holds for the burst of readings it was made in, and for a
minute.

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Container
from dataclasses import replace

from forebay_proxy.cache.resident.entry import Entry, fresh_key
from forebay_proxy.cache.resident.space import SpaceManager
from forebay_proxy.cache.versions.shard_faults import ShardFaults
from forebay_proxy.core.expiry import Expiring
from forebay_proxy.core.shard import Shard, Version, store_key
from forebay_proxy.origins.response import check_length
from forebay_proxy.policy.plans.live_jobs import Bursts

__all__ = ["Versions"]

MOST_VARIANTS = 16  # of a shard, beside the latest: a user or two have theirs; what made-up credentials are shown leaves again
# A minute is what a person waits before asking why the new data is not read, and costs the origin one small request a shard and minute at
# most, of shards that are read. So long it is also left alone where it did not answer.
NO_JOB_S = 60.0
MOST_SILENT = 1024  # origins


class Versions:
    """The versions in use by shard name."""

    def __init__(
        self, *, room: SpaceManager, faults: ShardFaults, clock: Callable[[], float], hmac_key: bytes, revalidate: str | float
    ) -> None:
        """``hmac_key``: the key of the credentials' HMACs; no credential itself is kept. ``revalidate``: "job", "never", or for how many
        seconds a comparison holds.
        """
        self.current: dict[str, Entry] = {}  # the latest that the origin has named
        self._variants: dict[str, list[Entry]] = {}  # what it shows to other credentials, where that is something else; none is stale
        self._room = room
        self._revalidate = revalidate
        self._faults = faults
        self._clock = clock
        self._hmac_key = hmac_key
        self.bursts = Bursts(clock)
        self._silent: Expiring[str, bool] = Expiring(NO_JOB_S, MOST_SILENT, clock)  # origins that could not be asked just now
        # Of versions that nothing tells apart: begun by chance, or another process would give other bytes an ETag of this one's again.
        self._serial = secrets.randbits(63)

    def __repr__(self) -> str:
        return f"<Versions of {len(self.current)} shards>"

    def mac(self, shard: Shard) -> str:
        """What the credential of ``shard`` is known by; "" for none."""
        return shard.credential.mac(self._hmac_key)

    def readable(self, shard: Shard) -> Entry | None:
        """The version in use that the origin has shown to the credential of ``shard``; None where it must be asked first."""
        mac = self.mac(shard)
        entry = self.meant(shard.name, mac)
        return entry if entry is not None and entry.access.may_read(mac, self._clock()) else None

    def meant(self, name: str, mac: str, elsewhere: Container[Entry] = ()) -> Entry | None:
        """The entry that ``name`` means to this credential: one that it may read, else the latest, which the origin has yet to show it;
        None: not known.

        ``elsewhere``: entries that the origin shows to other credentials only.
        """
        latest = self.current.get(name)
        if latest is None:
            return None
        now = self._clock()
        for entry in (latest, *self._variants.get(name, [])):
            if entry not in elsewhere and entry.access.may_read(mac, now):
                return entry
        return None if latest in elsewhere else latest

    def is_same(self, entry: Entry, shard: Shard, version: Version) -> bool:
        """Whether ``version``, which the origin names to ``shard``, is about the bytes of ``entry``.

        A strong ETag, a version id or a generation tells variants apart too (RFC 9110, section 8.8.3.2); a date and a length do not.
        """
        if not entry.same_version(version):
            return False
        return not version.is_weak or entry.access.chosen == shard.credential.chosen_by({*entry.access.vary, *version.vary}, self._hmac_key)

    def found(self, entry: Entry) -> None:
        """An earlier process stored it."""
        before = self.current.get(entry.name)
        if before is not None:
            self._variants.setdefault(entry.name, []).append(before)
        self.current[entry.name] = entry

    def known_by(self, entry: Entry, shard: Shard) -> None:
        """``shard``'s credential reads bytes that an earlier process stored: its access is recorded from now on."""
        if entry.access.variant is None:
            entry.access.variant = shard.credential.variant(self._hmac_key)

    def forget(self, entry: Entry) -> None:
        """``entry`` is not what its name means any more, to anybody."""
        others = self._variants.get(entry.name, [])
        if self.current.get(entry.name) is entry:
            if others:
                self.current[entry.name] = others.pop()
            else:
                del self.current[entry.name]
        elif entry in others:
            others.remove(entry)
        if not others:
            self._variants.pop(entry.name, None)

    def admit(self, shard: Shard, job: str, version: Version, *, ranged: bool) -> Entry:
        """The entry of a version the origin has just named to ``shard``; what the name meant before, to this variant of the request, is
        outdated.

        Raises ``OriginError`` for a length that no shard may have here, whoever said it: an answer, a hub, a file system.
        """
        check_length(shard.name, version.length)
        entry = self._entered(shard, version, ranged=ranged)
        if entry.passes:
            entry.in_use.stale = True  # serves this reader, and leaves: nothing would tell whether the next one may have the same
            return entry
        self._show(entry, shard)
        # now, not when the opener runs again: whoever looks in between must not ask the origin once more
        self.checked(entry, job)
        return entry

    def _entered(self, shard: Shard, version: Version, *, ranged: bool) -> Entry:
        """The entry of ``version``, which is shown to ``shard`` too; a new one where the entry that is here cannot be gone on with."""
        mac, variant = self.mac(shard), shard.credential.variant(self._hmac_key)
        chosen = shard.credential.chosen_by(version.vary, self._hmac_key) if version.is_weak else ""
        key = store_key(shard.name, version.identity, chosen)
        entry = self._room.entries.get(key) if version.identity else None
        if entry is not None and entry.same_version(version) and _can_go_on(entry, ranged):
            entry.in_use.stale = False
            entry.access.admit(mac)
            self.known_by(entry, shard)
            entry.dated(version)
            self._room.claim(entry)
            return entry
        self._serial += 1
        taken = not version.identity or key in self._room.entries
        key = fresh_key(shard, version, self._serial) if taken else key
        entry = Entry(key, shard, version, self._room.layout, ranged=ranged, transient=taken)
        entry.access.macs = {mac}
        entry.access.variant, entry.access.vary, entry.access.chosen = variant, version.vary, chosen
        entry.trust.remade = self._faults.count(shard.name)
        self._room.entries[entry.key] = entry
        return entry

    def _show(self, entry: Entry, shard: Shard) -> None:
        """``entry`` is what the origin shows to ``shard``: the entry that it showed to this variant before is outdated, but not for other
        variants.
        """
        name = entry.name
        others = [known for known in (*self._variants.get(name, []), self.current.get(name)) if known is not None and known is not entry]
        for other in others:
            self.not_shown(other, shard)
            if other.in_use.stale and other.version.modified == entry.version.modified:  # two writes in one second: the date tells nothing
                entry.version = replace(entry.version, second_over=False)
        others = [other for other in others if not other.in_use.stale]
        for other in others[:-MOST_VARIANTS]:
            self._room.outdated(other)
        self.current[name] = entry
        if others:
            self._variants[name] = others[-MOST_VARIANTS:]
        else:
            self._variants.pop(name, None)

    def not_shown(self, entry: Entry, shard: Shard) -> None:
        """The origin shows something else to requests of the variant of ``shard``: to all of them; of the others nothing is known."""
        if entry.access.variant is None or entry.access.variant == shard.credential.variant(self._hmac_key):
            self._room.outdated(entry)
        else:
            entry.access.refuse(self.mac(shard))

    # How long that holds

    def is_fresh(self, entry: Entry, job: str) -> bool:
        """Whether ``job`` ("": none was named) may read the stored version without asking the origin about it first."""
        if self._revalidate == "never" or entry.immutable:
            return True
        age_s = self._clock() - entry.trust.checked_at
        if self._revalidate == "job":
            if job:
                return job in entry.trust.checked_jobs
            return entry.trust.checked_at >= self.bursts.began(entry.group) and age_s < NO_JOB_S
        return age_s < float(self._revalidate)

    def checked(self, entry: Entry, job: str) -> None:
        """The origin holds this version still, or cannot say: ``job`` need not ask again."""
        entry.trust.checked(job, self._clock())

    def silenced(self, origin: str) -> None:
        """``origin`` cannot be asked now: where each shard is compared again and again, each would wait out its silence once more."""
        self._silent.put(origin, True)

    def is_silent(self, origin: str) -> bool:
        """Whether ``origin`` could not be asked a moment ago."""
        return self._silent.get(origin) is not None


def _can_go_on(entry: Entry, ranged: bool) -> bool:
    """Whether what is here of a version can be completed; part of a body that cannot be asked in pieces is of no use for another."""
    return entry.in_use.fault is None and (entry.segments.complete or entry.in_use.whole is not None or (entry.ranged and ranged))
