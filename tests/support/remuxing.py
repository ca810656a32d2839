"""Clips whose packets are as no encoder leaves them: some left out, others at another time, or in another container."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator

import av

__all__ = ["Change", "as_ogm", "as_vfw", "joined", "remuxed"]


Change = Callable[
    [str, int, av.Packet], bool
]  # (video or audio, its number in the stream, the packet, which may be changed): whether it stays


def remuxed(data: bytes, container: str, change: Change, **options: str) -> bytes:
    """The packets of ``data`` in ``container`` that ``change`` keeps; ``options`` are the muxer's."""
    made = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(made, "w", format=container, container_options=options) as out:
        streams = {stream.index: out.add_stream_from_template(stream) for stream in source.streams}
        counts = dict.fromkeys(streams, 0)
        for packet in source.demux():
            if not packet.size:
                continue
            number = counts[packet.stream_index]
            counts[packet.stream_index] += 1
            if change(packet.stream.type, number, packet):
                packet.stream = streams[packet.stream_index]
                out.mux(packet)
    return made.getvalue()


def joined(first: bytes, second: bytes, after_s: float) -> bytes:
    """Two transport streams as one broadcast: the second is ``after_s`` later on the clock than it was."""

    def later(kind: str, number: int, packet: av.Packet) -> bool:
        packet.pts += round(after_s / packet.time_base)
        packet.dts += round(after_s / packet.time_base)
        return True

    return first + remuxed(second, "mpegts", later)


# OGM: pictures in Ogg as people packed them before Matroska, by hand. FFmpeg reads it and writes none.
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


# Matroska that holds pictures as AVI held them (V_MS/VFW/FOURCC): its blocks' times say nothing of reordering. FFmpeg writes none.
_KINDS = {"h264": (b"H264", b"V_MPEG4/ISO/AVC"), "mpeg4": (b"DIVX", b"V_MPEG4/ISO/ASP")}  # the four bytes, and the name that is replaced


def as_vfw(clip: bytes) -> bytes:
    """The pictures of ``clip``, 128 x 96 of H.264 or MPEG-4, in a track whose description is AVI's header of pictures."""
    made = io.BytesIO()
    with av.open(io.BytesIO(clip)) as source, av.open(made, "w", format="matroska") as out:
        there = source.streams.video[0]
        four, name = _KINDS[there.codec_context.name]
        stream, extra = out.add_stream_from_template(there), there.codec_context.extradata or b""
        head = struct.pack("<IiiHH4sIiiII", 40 + len(extra), 128, 96, 1, 24, four, 128 * 96 * 3, 0, 0, 0, 0)
        stream.codec_context.extradata = head + extra
        for packet in source.demux(there):
            if packet.size:
                packet.stream = stream
                out.mux(packet)
    data = made.getvalue()
    assert data.count(name) == 1
    return data.replace(name, b"V_MS/VFW/FOURCC")
