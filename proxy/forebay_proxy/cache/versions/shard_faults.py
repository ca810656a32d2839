"""Remembers faults of shards for a while: the origin refused a shard, or its bytes were wrong. No I/O.

If an origin refused a shard to a credential, it is not asked again for ``REMEMBERED_S``.

If a shard's bytes were wrong after some had been served, two things are remembered. The first is how often: the first time may be an
accident in transit and is worth a second fetch; the next time the reader gets an error. The second is that a stream that was cut off must
not resume, because its beginning may be wrong. A strong ETag promises the same bytes, so the shard gets another ETag. A client that resumes
with the old one gets 412.
"""

from __future__ import annotations

from collections.abc import Callable

from forebay_proxy.core.errors import ShardError, ShardForbidden, ShardNotFound, bare
from forebay_proxy.core.expiry import Expiring

__all__ = ["ShardFaults"]

REMEMBERED_S = 5.0  # 401, 403 and 404 are not asked again for so long, per (URL, credential)
# Longer than a loader tries to resume, so no stream is joined from two fetches. After hours, a fault says nothing about the next fetch.
SPOILT_S = 3600.0
# Each try costs the whole shard, and a wrong digest at the origin stays wrong: retrying readers must not fetch it all day.
REFUSED_S = 30.0
UNASKED_S = 600.0  # the same for a prefetch
MOST = 4096  # names; a forgotten one is asked for, or fetched, once more


class ShardFaults:
    """The faults, by shard name. Not thread-safe: used on the event loop alone."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._refusals: Expiring[tuple[str, str], ShardError] = Expiring(REMEMBERED_S, MOST, clock)  # by name and HMAC
        self._wrong: Expiring[str, ShardError] = Expiring(UNASKED_S, MOST, clock)  # shards not to be opened
        self._spoilt: Expiring[str, tuple[int, bool]] = Expiring(SPOILT_S, MOST, clock)  # how often, and whether in a row

    def origin_refused(self, name: str, mac: str, error: ShardError) -> None:
        """The origin answered this credential with ``error``. Only refusals are remembered; other errors may be over at once."""
        if isinstance(error, (ShardForbidden, ShardNotFound)):
            self._refusals.put((name, mac), bare(error))

    def spoilt(self, name: str, *, by_origin: bool = True) -> bool:
        """Note that bytes of ``name`` were wrong. False: the second time in a row, so fetching them again will not help."""
        count, again = self._spoilt.get(name) or (0, False)
        self._spoilt.put(name, (count + 1, again or by_origin))
        return not again

    def trusted(self, name: str) -> None:
        """A whole fetch of ``name`` was right: the row ends. Its ETag stays the new one."""
        count, again = self._spoilt.get(name) or (0, False)
        if again:
            self._spoilt.put(name, (count, False))

    def count(self, name: str) -> int:
        """How often bytes of ``name`` were wrong recently; another number gives another ETag."""
        return (self._spoilt.get(name) or (0, False))[0]

    def refuse(self, name: str, error: ShardError) -> None:
        """Do not open ``name`` for a while."""
        self._wrong.put(name, bare(error))

    def recall(self, name: str, mac: str, *, ahead: bool = False) -> None:
        """Raises the error with which ``name`` is refused, to all or to this credential. ``ahead``: for a prefetch."""
        error = self._wrong.get(name, UNASKED_S if ahead else REFUSED_S) or self._refusals.get((name, mac))
        if error is not None:
            raise bare(error)

    def expire(self) -> None:
        """Call it once a second: forget what is too old."""
        for table in (self._refusals, self._wrong, self._spoilt):
            table.expire()
