"""OGM: pictures in Ogg as people packed them before Matroska, by hand. FFmpeg reads it and writes none."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator

import av

__all__ = ["as_ogm"]


def as_ogm(clip: bytes) -> bytes:
    """The pictures of ``clip``, MPEG-4 part 2, a packet a page, which says how many lie before it: when it is decoded."""
    with av.open(io.BytesIO(clip)) as container:
        stream = container.streams.video[0]
        rate, extra = stream.average_rate, stream.codec_context.extradata or b""
        packets = [bytes(packet) for packet in container.demux(stream) if packet.size]
    packets[0] = extra + packets[0]
    head = struct.pack("<8s4sIqqIIHHii", b"video\0\0\0", b"XVID", 56, int(10_000_000 / rate), 1, 1, 1 << 20, 24, 0, 128, 96)
    comment = b"\x03vorbis" + struct.pack("<I", 0) + struct.pack("<I", 0) + b"\x01"
    return b"".join(_pages([b"\x01" + head, comment, *(b"\x08" + packet for packet in packets)]))


def _pages(packets: list[bytes]) -> Iterator[bytes]:
    for number, packet in enumerate(packets):
        lacing = b"\xff" * (len(packet) // 255) + bytes([len(packet) % 255])
        assert len(lacing) <= 255
        kind = 2 if number == 0 else 4 if number == len(packets) - 1 else 0
        head = struct.pack("<4sBBqIIIB", b"OggS", 0, kind, max(0, number - 2), 1, number, 0, len(lacing)) + lacing
        page = head + packet
        yield page[:22] + struct.pack("<I", _checksum(page)) + page[26:]


def _checksum(page: bytes) -> int:
    """Ogg's: CRC-32 of 0x04C11DB7, from zero, unreflected."""
    found = 0
    for byte in page:
        found ^= byte << 24
        for _ in range(8):
            found = (found << 1) ^ (0x104C11DB7 if found & 0x80000000 else 0)
    return found
