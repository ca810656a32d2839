"""What went wrong with a shard, for as long as that is remembered: its origin refused it, or its bytes were wrong. No I/O.

What an origin refused a moment ago, and to which credential, is not asked again at once.

Of a shard whose bytes turned out wrong after some of them had been served two things are remembered. How often: the first time may be an
accident on the way and is worth a second fetch, the next is told to the reader. And that a stream which was cut off must not go on where it
stopped, because its beginning may be wrong. A strong ETag promises the same bytes, so the shard gets another one, and a client that resumes
with the old one is told 412.
"""

from __future__ import annotations

from collections.abc import Callable

from forebay_proxy.core.errors import ShardError, ShardForbidden, ShardNotFound, bare
from forebay_proxy.core.expiry import Expiring

__all__ = ["ShardFaults"]

REMEMBERED_S = 5.0  # the contract: 401, 403 and 404 are not asked again for 5 s per (URL, credential)
# Longer than a loader goes on trying to resume, so no stream is pieced together of two fetches; and what went wrong hours ago says nothing
# about the next fetch.
SPOILT_S = 3600.0
# Each try costs the whole shard, and a digest that is wrong at the origin stays so: a loop of retrying readers must not fetch it all day.
REFUSED_S = 30.0
UNASKED_S = 600.0  # the same for a fetch that no reader asked for
MOST = 4096  # names; who is forgotten is asked for, or fetched, once more


class ShardFaults:
    """By shard name. Not thread-safe: the event loop's only."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._refusals: Expiring[tuple[str, str], ShardError] = Expiring(REMEMBERED_S, MOST, clock)  # and MAC of the credential
        self._wrong: Expiring[str, ShardError] = Expiring(UNASKED_S, MOST, clock)  # not to be opened
        self._spoilt: Expiring[str, tuple[int, bool]] = Expiring(SPOILT_S, MOST, clock)  # how often, and whether in a row

    def origin_refused(self, name: str, mac: str, error: ShardError) -> None:
        """``error`` was the answer for ``name`` to this credential. Other errors than refusals may be over at once, and are not kept."""
        if isinstance(error, (ShardForbidden, ShardNotFound)):
            self._refusals.put((name, mac), bare(error))

    def spoilt(self, name: str, *, by_origin: bool = True) -> bool:
        """Note that bytes of ``name`` were wrong. False: the second time in a row, so fetching them again will not help."""
        count, again = self._spoilt.get(name) or (0, False)
        self._spoilt.put(name, (count + 1, again or by_origin))
        return not again

    def trusted(self, name: str) -> None:
        """A whole fetch of ``name`` was right: the row is broken. Its ETag stays the new one."""
        count, again = self._spoilt.get(name) or (0, False)
        if again:
            self._spoilt.put(name, (count, False))

    def count(self, name: str) -> int:
        """How often bytes of ``name`` were wrong lately; another number is another ETag."""
        return (self._spoilt.get(name) or (0, False))[0]

    def refuse(self, name: str, error: ShardError) -> None:
        """Do not open ``name`` for a while."""
        self._wrong.put(name, bare(error))

    def recall(self, name: str, mac: str, *, ahead: bool = False) -> None:
        """Raises the error that ``name`` is refused with, if it is, to all or to this credential; ``ahead``: no reader asks for it."""
        error = self._wrong.get(name, UNASKED_S if ahead else REFUSED_S) or self._refusals.get((name, mac))
        if error is not None:
            raise bare(error)

    def expire(self) -> None:
        """Once a second: drop what is remembered no longer."""
        for table in (self._refusals, self._wrong, self._spoilt):
            table.expire()
