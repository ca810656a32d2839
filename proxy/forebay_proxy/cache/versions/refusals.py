"""What an origin refused a moment ago, and to whom: it is not asked again at once. Not thread-safe: the event loop's only."""

from __future__ import annotations

from collections.abc import Callable

from forebay_proxy.core.errors import ShardError, ShardForbidden, ShardNotFound, bare

__all__ = ["RefusalCache"]

REMEMBERED_S = 5.0  # the contract: 401, 403 and 404 are not asked again for 5 s per (URL, credential)
REMEMBERED_MOST = 4096


class RefusalCache:
    """Refusals by shard name and the MAC of the credential that was refused."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._refusals: dict[tuple[str, str], tuple[ShardError, float]] = {}

    def __len__(self) -> int:
        return len(self._refusals)

    def remember(self, name: str, mac: str, error: ShardError) -> None:
        """``error`` was the answer for ``name`` to this credential. Other errors than refusals may be over at once, and are not kept."""
        if isinstance(error, (ShardForbidden, ShardNotFound)):
            self._refusals.pop((name, mac), None)
            if len(self._refusals) >= REMEMBERED_MOST:
                self._refusals.clear()
            self._refusals[name, mac] = bare(error), self._clock() + REMEMBERED_S

    def recall(self, name: str, mac: str) -> None:
        """Raises the ``ShardError`` that this credential was refused ``name`` with a moment ago, if it was."""
        self.expire()
        remembered = self._refusals.get((name, mac))
        if remembered is not None:
            raise bare(remembered[0])

    def expire(self) -> None:
        """Drop what is remembered no longer."""
        now = self._clock()
        while self._refusals and self._refusals[oldest := next(iter(self._refusals))][1] <= now:  # in the order of their ends
            del self._refusals[oldest]
