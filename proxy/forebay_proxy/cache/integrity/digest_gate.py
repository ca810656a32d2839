"""Where readers of a shard's end wait until the whole of it was compared with its digest, or nothing can be compared any more.

A reader of the last segment waits for the verdict, but never for a segment that is not being fetched: where a segment passed through
memory, left before its turn, or was never asked for, the end is released at once, counted as unchecked. A segment that was hashed once and
is fetched again must be the same bytes: a reader that read it before it was stored gets its last bytes after the comparison. Where a cache
is smaller than its data that is each epoch's way, and the whole shard is not compared again: without it, readers of other bytes ended well
(tried).

Not thread-safe: the event loop's only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from forebay_proxy.cache.resident.digest_state import DigestState, DigestVerdict
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.resident.facts import SegmentRefetched
from forebay_proxy.cache.resident.space import SpaceManager
from forebay_proxy.core.errors import bare
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.cache import DigestChecked
from forebay_proxy.transfer.fetches import Fetch, FetchTable

__all__ = ["DigestGate"]

# An origin that must be asked apart (S3) is asked when the body is, so its answer is nearly always here first. A reader waits this much for
# one that is late: a retried request, or a throttled one, is no reason to stop training.
ASKED_S = 1.0


class DigestGate:
    """The readers' side of all seals."""

    def __init__(self, *, room: SpaceManager, table: FetchTable, events: Events) -> None:
        self._room = room
        self._table = table
        self._events = events

    def release(self, entry: Entry, digest_state: DigestState) -> None:
        """Nothing can be compared: the end is everybody's."""
        if digest_state.closed:
            digest_state.released = True
            self._events.emit(DigestChecked(digest_state.expected.algorithm if digest_state.expected else "unknown", "unchecked"))
            self._room.claim(entry)
            digest_state.changed.send()

    def give_up(self, entry: Entry, digest_state: DigestState) -> None:
        """Nobody waits for this verdict any more."""
        digest_state.given_up = True
        if digest_state.waiting:
            self.release(entry, digest_state)
        digest_state.changed.send()

    def must_wait(self, entry: Entry, index: int) -> bool:
        """Whether a reader must wait before it reads segment ``index``."""
        digest_state = entry.trust.digest_state
        if digest_state is None or index != entry.last_index or entry.in_use.fault is not None:
            return False
        if (
            digest_state.verdict is DigestVerdict.AGREES
        ):  # a last segment that comes again is compared with the first one once it has landed
            return not entry.segments.has(index) and self._comes(entry, index)
        if digest_state.given_up or not self._can_end(entry, digest_state):
            self.release(entry, digest_state)
            return False
        return True

    async def passed(self, entry: Entry, index: int) -> None:
        """Wait until ``must_wait`` no longer says so."""
        digest_state = entry.trust.digest_state
        assert digest_state is not None
        digest_state.waiting += 1
        try:
            if digest_state.expected is None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(ASKED_S):
                        await self._while(
                            lambda: (
                                entry.trust.digest_state is digest_state and digest_state.expected is None and self.must_wait(entry, index)
                            ),
                            digest_state,
                        )
                if digest_state.expected is None and entry.trust.digest_state is digest_state:
                    self.give_up(entry, digest_state)
            await self._while(lambda: entry.trust.digest_state is digest_state and self.must_wait(entry, index), digest_state)
        finally:
            digest_state.waiting -= 1

    def came_again(self, entry: Entry, index: int, checksum: int) -> None:
        """A reader had all of a segment that was hashed before (``VersionTrust.was_hashed``)."""
        self._events.emit(SegmentRefetched(entry, index, checksum))

    async def compared(self, entry: Entry, index: int, fetch: Fetch) -> None:
        """Wait until a known segment that ``fetch`` brings has landed, and so been compared; or until it will not land."""
        digest_state = entry.trust.digest_state
        if digest_state is not None:
            await self._while(lambda: entry.in_use.fault is None and not (index in fetch.stored or fetch.done), digest_state)

    @staticmethod
    async def _while(condition: Callable[[], bool], digest_state: DigestState) -> None:
        while condition():
            await digest_state.changed.wait()

    def _can_end(self, entry: Entry, digest_state: DigestState) -> bool:
        """Whether everything that is not hashed yet is here, or on its way to the disk."""
        count = entry.segments.layout.count(entry.version.length or 0)
        return all(entry.segments.has(index) or self._comes(entry, index) for index in range(digest_state.next, count))

    def _comes(self, entry: Entry, index: int) -> bool:
        fetch = self._table.find(entry.key, index)
        return fetch is not None and not fetch.bypass and not fetch.done

    async def verdict(self, entry: Entry) -> None:
        """Wait for what can still be compared of ``entry``; raises ``DigestDiffers``."""
        last = entry.last_index
        if last is not None and self.must_wait(entry, last):
            await self.passed(entry, last)
        if entry.in_use.fault is not None:
            raise bare(entry.in_use.fault)
