"""The packets of one stream of a clip that is in memory: where one lies in one piece in the clip it is a view of it, and no copy."""

from __future__ import annotations

import bisect
from typing import Any, List

from forebay_loader.videos.decode.frames import Buffer

__all__ = ["ClipFile", "PacketStore"]

_HEAD_BYTES = 64  # of what stands before a packet where its container says it begins: block heads, chunk heads


class ClipFile:
    """A clip in memory as PyAV reads files. ``io.BytesIO`` would copy all of a view."""

    def __init__(self, data: Buffer) -> None:
        self._data = memoryview(data)
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        part = bytes(self._data[self._at :] if size < 0 else self._data[self._at : self._at + size])
        self._at += len(part)
        return part

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, len(self._data))[whence])
        return self._at

    def tell(self) -> int:
        return self._at


class PacketStore:
    """A ``ReadPart`` over packets, which lie one after the other from byte 0."""

    def __init__(self, data: Buffer) -> None:
        self._data = memoryview(data)
        self._parts: List[Buffer] = []
        self._ends: List[int] = [0]

    def __len__(self) -> int:
        return len(self._parts)

    def add(self, packet: Any) -> None:
        copy = bytes(packet)
        begin = packet.pos if packet.pos is not None and packet.pos >= 0 else len(self._data)
        at = bytes(self._data[begin : begin + len(copy) + _HEAD_BYTES]).find(copy)
        self._parts.append(copy if at < 0 else self._data[begin + at : begin + at + len(copy)])
        self._ends.append(self._ends[-1] + len(copy))

    def sizes(self) -> List[int]:
        return [len(part) for part in self._parts]

    def part(self, number: int) -> Buffer:
        return self._parts[number]

    def __call__(self, at: int, size: int) -> Buffer:
        place = bisect.bisect_right(self._ends, at) - 1
        end = min(at + size, self._ends[-1])
        if place >= len(self._parts) or end <= at:
            return b""
        if end <= self._ends[place + 1]:
            return memoryview(self._parts[place])[at - self._ends[place] : end - self._ends[place]]
        past = bisect.bisect_left(self._ends, end)
        return b"".join(self._parts[place:past])[at - self._ends[place] : end - self._ends[place]]
