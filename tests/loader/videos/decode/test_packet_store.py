"""Packets of a clip in memory, as a file of their own."""

from __future__ import annotations

import io

import av
import pytest
from support.clips import rendered

from forebay_loader.videos.decode.demux import ClipFile, PacketStore


@pytest.mark.parametrize("container", ["matroska", "mpegts", "avi"])
def test_it_reads_as_if_the_packets_lay_one_after_the_other(container: str) -> None:
    """Within one, over several, behind the last."""
    data = rendered(container=container, codec="mpeg4", frames=12)
    store = PacketStore(data)
    there = b""
    with av.open(io.BytesIO(data)) as opened:
        for packet in opened.demux(video=0):
            if packet.size:
                store.add(packet)
                there += bytes(packet)
    assert (len(store), sum(store.sizes())) == (12, len(there))
    for begin in range(0, len(there), 97):
        for size in (0, 1, 50, 5000, len(there)):
            assert bytes(store(begin, size)) == there[begin : begin + size]
    assert bytes(store(len(there), 9)) == b""


def test_a_view_as_a_file() -> None:
    """What FFmpeg asks of one."""
    file = ClipFile(memoryview(b"0123456789"))
    assert (file.read(3), file.tell(), file.seek(-2, 2), file.read(), file.read(1), file.seek(1), file.seek(1, 1)) == (
        b"012",
        3,
        8,
        b"89",
        b"",
        1,
        2,
    )
