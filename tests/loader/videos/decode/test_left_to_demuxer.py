"""MP4s that their own reader leaves alone, and FFmpeg's demuxer reads: the same pictures as PyAV's, counted; others stay refused."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import pytest
from support.mp4_boxes import box, patched, places

av = pytest.importorskip("av", reason="the extra `video` is not installed")

from support.clip_answers import sound_only  # noqa: E402 -- needs av
from support.clips import frame_number, rendered  # noqa: E402 -- needs av

from forebay_loader.base.counters import COUNTS  # noqa: E402
from forebay_loader.videos.errors import CorruptVideo, UnsupportedVideo  # noqa: E402
from forebay_loader.videos.sources.choice import source_of  # noqa: E402

STSD = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd")


def compressed(clip: bytes) -> bytes:
    """Its moov as QuickTime compresses one: it is the last box, so no offset moves."""
    begin, end = places(clip, b"moov")[0]
    assert end == len(clip)
    moov = clip[begin:end]
    packed = box(b"cmvd", struct.pack(">I", len(moov)), zlib.compress(moov))
    return clip[:begin] + box(b"moov", box(b"cmov", box(b"dcom", b"zlib"), packed))


def numbers(clip: bytes) -> list[int]:
    """As PyAV decodes them."""
    with av.open(io.BytesIO(clip)) as container:
        return [frame_number(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]


def demuxed() -> int:
    return COUNTS.snapshot()["video_demuxed"]


def test_a_compressed_index() -> None:
    """All of its frames, alone too, and counted once."""
    before, clip = demuxed(), compressed(rendered(frames=30, b_frames=2))
    with source_of(clip) as source:
        assert [frame_number(picture) for picture in source.frames(range(source.open().frames))] == list(range(30)) == numbers(clip)
        assert frame_number(source.frame(17)) == 17
    assert demuxed() == before + 1


def test_what_its_own_reader_reads_is_not_counted() -> None:
    before = demuxed()
    with source_of(rendered()) as source:
        source.frame(0)
    assert demuxed() == before


@pytest.mark.parametrize("codec", ["targa", "gif"])
def test_a_codec_that_only_the_demuxer_knows(codec: str) -> None:
    """By its four characters."""
    room = io.BytesIO()
    with av.open(room, "w", format="mov") as out:
        stream: Any = out.add_stream(codec, rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, {"targa": "bgr24", "gif": "gray"}[codec]
        for number in range(5):
            frame = av.VideoFrame(64, 48, stream.pix_fmt)
            for plane in frame.planes:
                plane.update(bytes([40 * number]) * plane.buffer_size)
            frame.pts = number
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    with source_of(room.getvalue()) as source:
        assert [int(picture.max()) for picture in source.frames(range(5))] == [0, 40, 80, 120, 160]


def test_sound_alone_in_an_mp4() -> None:
    """As of any container: there is sound, and no frame."""
    with av.open(io.BytesIO(rendered(audio="aac"))) as there, av.open(room := io.BytesIO(), "w", format="mp4") as out:
        copy = out.add_stream_from_template(there.streams.audio[0])
        for packet in there.demux(audio=0):
            if packet.size:
                packet.stream = copy
                out.mux(packet)
    with source_of(room.getvalue(), name="a.m4a") as source:
        assert source.open().frames == 0
        assert source.audio(0.0, 0.5)[0].shape[1] == round(source.audio(0.0, 0.5)[1] * 0.5)
        with pytest.raises(UnsupportedVideo, match=r"a\.m4a: there is no video"):
            source.frames([0])


def test_an_edit_list_that_shows_a_part_twice() -> None:
    """In the order in which PyAV shows it, each frame as often."""
    clip = rendered(frames=48, gop=12)
    begin, end = places(clip, b"moov", b"trak", b"edts", b"elst")[0]
    first = clip[begin + 16 : begin + 28]
    twice = struct.pack(">I4sIII", end - begin + 12, b"elst", 0, 2, 0)[:16] + first + first
    assert first
    grown = clip
    for path in ((b"moov",), (b"moov", b"trak"), (b"moov", b"trak", b"edts")):
        at, stop = places(clip, *path)[0]
        grown = patched(grown, at, ">I", stop - at + 12)
    grown = grown[:begin] + twice + grown[end:]
    assert places(clip, b"moov")[0][1] == len(clip)  # it lies behind the media, so no offset moves
    there = numbers(grown)
    assert there == [*range(48), *range(48)]
    with source_of(grown) as source:
        assert [frame_number(picture) for picture in source.frames(range(source.open().frames))] == there


def test_one_that_is_cut_is_no_shorter_clip() -> None:
    """FFmpeg would give the frames before the cut, and say nothing."""
    clip = rendered(moov_first=True).replace(b"avc1", b"zzz1")
    with source_of(clip[:-500], name="a.mp4") as source, pytest.raises(CorruptVideo, match=r"^a\.mp4: "):
        source.open()


def test_what_neither_reads() -> None:
    """Both reasons."""
    clip = rendered().replace(b"avc1", b"zzz1")
    with source_of(clip, name="a.mp4") as source, pytest.raises(UnsupportedVideo, match=r"^a\.mp4: no decoder for 'zzz1', and FFmpeg"):
        source.open()


def test_what_is_encrypted_or_corrupt_is_left_to_nobody() -> None:
    """FFmpeg would give pictures of it: of noise, or of half a clip."""
    clip = rendered()
    before = demuxed()
    with source_of(clip.replace(b"avc1", b"encv")) as source, pytest.raises(UnsupportedVideo, match="encrypted"):
        source.open()
    at = places(clip, *STSD[:-1], b"stsz")[0][0]
    with source_of(patched(clip, at + 16, ">I", 2**31)) as source, pytest.raises(CorruptVideo):
        source.open()
    assert demuxed() == before


def test_sound_of_another_container_is_as_before() -> None:
    with source_of(sound_only()) as source:
        assert source.open().frames == 0
