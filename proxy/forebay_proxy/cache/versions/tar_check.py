"""Whether a shard that is named like a tar begins like one: for ``forebay warm``, declared sets, and people who ask why a job failed.

It checks 512 bytes: as they arrive (``Sink``), else in the store. Names that are not those of a tar (a Parquet file that somebody
warms) are never judged, nor are encoded bodies. A reader gets its bytes in any case, and decides itself what to refuse. Not
thread-safe: used on the event loop alone.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from forebay_proxy.cache.integrity.segment_reader import SegmentReader
from forebay_proxy.cache.readers.reader import ShardReader
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core.errors import CacheError
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.requests import NotTar
from forebay_proxy.core.shard import shown
from forebay_proxy.wire.tar.first_bytes import LOOK_BYTES, is_named_tar, why_no_tar

__all__ = ["TarCheck"]

log = logging.getLogger("forebay")


class TarCheck:
    """Checks entries; the result stays with the entry (``VersionTrust.no_tar``)."""

    def __init__(self, segment_reader: SegmentReader, events: Events) -> None:
        self._segment_reader = segment_reader
        self._events = events

    def ended(self, reading: ShardReader) -> None:
        """Report a shard that a reader has read from its start, if it is no tar. Does not wait."""
        entry, entered = reading.entry, reading.entered
        if entered is None or entered[0] != 0:
            return
        size = self._unseen(entry)
        if size is not None and 0 not in entry.segments.unverified and entry.stored.file is not None:
            buffer = memoryview(bytearray(size))
            with suppress(CacheError):
                if entry.stored.file.read_now(0, buffer):
                    entry.trust.no_tar = why_no_tar(bytes(buffer))
        if why := entry.trust.no_tar:
            name = shown(entry.name)
            if not entry.trust.no_tar_told:
                entry.trust.no_tar_told = True
                log.warning("shard %s: %s", name, why)
            self._events.emit(NotTar(name, why, reading.reader.job if reading.reader else ""))

    async def of(self, entry: Entry) -> str:
        """Why ``entry`` is no tar, in words; "" if it may be one, its name is not a tar's, or the first block cannot be read."""
        size = self._unseen(entry)
        if size is not None:
            with suppress(CacheError):  # the disk fails, or does not answer: a reader gets the error
                beginning = await (await self._segment_reader.stored(entry)).read(0, size) if size else b""
                why = why_no_tar(beginning)
                if not why or await self._segment_reader.trusted(entry, 0):  # bytes that went bad on the disk say nothing about the origin
                    entry.trust.no_tar = why
        return entry.trust.no_tar or ""

    def doubts(self, entry: Entry) -> bool:
        """Whether ``of`` finds, or may find, that it is no tar. Does not wait."""
        return bool(entry.trust.no_tar) or self._unseen(entry) is not None

    @staticmethod
    def _unseen(entry: Entry) -> int | None:
        """How many bytes to check; None if that is done, or the entry is not judged."""
        length = entry.version.length
        judged = is_named_tar(entry.name) and not entry.version.encoding
        if entry.trust.no_tar is not None or not judged or length is None or (length and not entry.segments.has(0)):
            return None
        return min(LOOK_BYTES, length)
