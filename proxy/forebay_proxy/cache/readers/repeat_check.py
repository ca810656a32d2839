"""Segments that were hashed when they were here before, come again, and are read before they have landed: the same bytes, or an error."""

from __future__ import annotations

import xxhash

from forebay_proxy.cache.integrity.digest_gate import DigestGate
from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.core.segments import segment_span
from forebay_proxy.transfer.flights import Flight

__all__ = ["RepeatCheck"]


class RepeatCheck:
    """One reader's part of the comparison; ``gate`` knows the sums from before. A difference makes the entry's ``fault``."""

    def __init__(self, gate: DigestGate, entry: Entry) -> None:
        self._gate = gate
        self._entry = entry
        self._uncompared: dict[int, Flight] = {}
        self._summed = -1, xxhash.xxh3_64()  # the one of them that is being read, if from its start, and the sum of what was read

    def __repr__(self) -> str:
        return f"<RepeatCheck of {self._entry.name}: segments {sorted(self._uncompared)}>"

    def __bool__(self) -> bool:
        """Whether the reader was given bytes that are not compared yet."""
        return bool(self._uncompared)

    def expect(self, index: int, flight: Flight | None) -> None:
        """The reader is about to read segment ``index``, which ``flight`` (None: the disk) brings."""
        if flight is not None and index not in flight.stored and self._gate.knows(self._entry, index):
            self._uncompared[index] = flight

    def add(self, index: int, position: int, data: bytes | memoryview) -> bool:
        """Sum up ``data`` of segment ``index``, read at ``position``; whether that was its end, and the sum was compared.

        What only passes through memory nobody else has whole.
        """
        if index not in self._uncompared:
            return False
        first, size = segment_span(index, self._entry.shown_version.length)
        if position == first:
            self._summed = index, xxhash.xxh3_64()
        of, hasher = self._summed
        if of != index:
            return False  # read from its middle on
        hasher.update(data)
        if position + len(data) != first + size:
            return False
        del self._uncompared[index]
        self._gate.came_again(self._entry, index, hasher.intdigest())
        return True

    async def finish(self) -> None:
        """Wait until what was not summed up here has landed, and so been compared; or until it will not land."""
        for index, flight in self._uncompared.items():
            await self._gate.compared(self._entry, index, flight)
        self._uncompared.clear()
