"""Matroska that holds pictures as AVI held them (V_MS/VFW/FOURCC): its blocks' times say nothing of reordering. FFmpeg writes none."""

from __future__ import annotations

import io
import struct

import av

__all__ = ["as_vfw"]

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
