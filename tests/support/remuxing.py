"""Clips whose packets are as no encoder leaves them: some left out, others at another time, or in another container."""

from __future__ import annotations

import io
from collections.abc import Callable

import av

__all__ = ["Change", "joined", "remuxed"]

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
