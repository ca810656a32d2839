"""The versions that a shard's name means now, and how long that holds.

A name means the latest version that its origin has named, and the versions that the origin gives to other credentials. ``--revalidate``
says how long a job may read a stored version without asking the origin again. A reader without a job cannot tell that a new run began: for
it a comparison holds for the burst of reads in which it was made, and for a minute at most.

Not thread-safe: used on the event loop alone.
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

MOST_VARIANTS = 16  # per shard, besides the latest: a user or two have their own; those of invented credentials leave again
# A person waits about a minute before asking why new data is not read. It costs the origin at most one small request per read shard and
# minute. An origin that did not answer is left alone for as long.
NO_JOB_S = 60.0
MOST_SILENT = 1024  # origins


class Versions:
    """The versions in use, by shard name."""

    def __init__(
        self, *, room: SpaceManager, faults: ShardFaults, clock: Callable[[], float], hmac_key: bytes, revalidate: str | float
    ) -> None:
        """Start without versions; no credential itself is stored.

        ``hmac_key`` is the key of the credentials' HMACs. ``revalidate``: "job", "never", or the seconds for which a comparison holds.
        """
        self.current: dict[str, Entry] = {}  # the latest that the origin has named
        self._variants: dict[str, list[Entry]] = {}  # other versions that it gives to other credentials; none is stale
        self._room = room
        self._revalidate = revalidate
        self._faults = faults
        self._clock = clock
        self._hmac_key = hmac_key
        self.bursts = Bursts(clock)
        self._silent: Expiring[str, bool] = Expiring(NO_JOB_S, MOST_SILENT, clock)  # origins that could not be asked recently
        # For versions that nothing tells apart. It starts at random, so that no other process gives other bytes the same ETag.
        self._serial = secrets.randbits(63)

    def __repr__(self) -> str:
        return f"<Versions of {len(self.current)} shards>"

    def mac(self, shard: Shard) -> str:
        """The HMAC of the credential of ``shard``; "" for none."""
        return shard.credential.mac(self._hmac_key)

    def readable(self, shard: Shard) -> Entry | None:
        """The version in use that the origin has given to the credential of ``shard``; None if it must be asked first."""
        mac = self.mac(shard)
        entry = self.meant(shard.name, mac)
        return entry if entry is not None and entry.access.may_read(mac, self._clock()) else None

    def meant(self, name: str, mac: str, elsewhere: Container[Entry] = ()) -> Entry | None:
        """The entry that ``name`` means to this credential: one that it may read, else the latest; None if unknown.

        The origin must be asked before the latest is used. ``elsewhere``: entries that the origin gives to other credentials only.
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
        """Add an entry that an earlier process stored."""
        before = self.current.get(entry.name)
        if before is not None:
            self._variants.setdefault(entry.name, []).append(before)
        self.current[entry.name] = entry

    def known_by(self, entry: Entry, shard: Shard) -> None:
        """``shard``'s credential reads bytes that an earlier process stored: note its variant from now on."""
        if entry.access.variant is None:
            entry.access.variant = shard.credential.variant(self._hmac_key)

    def forget(self, entry: Entry) -> None:
        """``entry`` is no longer what its name means, to anybody."""
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
        """The entry of a version that the origin has just named to ``shard``. What the name meant to this variant before is outdated.

        Raises ``OriginError`` for a length that no shard may have.
        """
        check_length(shard.name, version.length)
        entry = self._entered(shard, version, ranged=ranged)
        if entry.passes:
            entry.in_use.stale = True  # serves this reader, and leaves: nothing tells whether the next reader may have the same
            return entry
        self._show(entry, shard)
        # Now, not when the opener continues: a reader in between must not ask the origin again.
        self.checked(entry, job)
        return entry

    def _entered(self, shard: Shard, version: Version, *, ranged: bool) -> Entry:
        """The entry of ``version``, which ``shard`` may read too; a new one if the present entry cannot be continued."""
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
        """``entry`` is what the origin gives to ``shard``. What it gave to this variant before is outdated, but not for other variants."""
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
        """The origin gives something else to requests of ``shard``'s variant: to all of them; nothing is known of other variants."""
        if entry.access.variant is None or entry.access.variant == shard.credential.variant(self._hmac_key):
            self._room.outdated(entry)
        else:
            entry.access.refuse(self.mac(shard))

    # Freshness

    def is_fresh(self, entry: Entry, job: str) -> bool:
        """Whether ``job`` ("" for none) may read the stored version without asking the origin about it first."""
        if self._revalidate == "never" or entry.immutable:
            return True
        age_s = self._clock() - entry.trust.checked_at
        if self._revalidate == "job":
            if job:
                return job in entry.trust.checked_jobs
            return entry.trust.checked_at >= self.bursts.began(entry.group) and age_s < NO_JOB_S
        return age_s < float(self._revalidate)

    def checked(self, entry: Entry, job: str) -> None:
        """The origin still has this version, or cannot say: ``job`` need not ask again."""
        entry.trust.checked(job, self._clock())

    def silenced(self, origin: str) -> None:
        """``origin`` cannot be asked now. If each shard is compared repeatedly, each would wait for another timeout."""
        self._silent.put(origin, True)

    def is_silent(self, origin: str) -> bool:
        """Whether ``origin`` could not be asked recently."""
        return self._silent.get(origin) is not None


def _can_go_on(entry: Entry, ranged: bool) -> bool:
    """Whether the entry can be completed; a part of a body that comes only whole is useless for another."""
    return entry.in_use.fault is None and (entry.segments.complete or entry.in_use.whole is not None or (entry.ranged and ranged))
