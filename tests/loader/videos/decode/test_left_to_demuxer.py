"""MP4s that their own reader leaves alone, and FFmpeg's demuxer reads: the same pictures as PyAV's, counted; others stay refused."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import pytest
from support.mp4_boxes import box, patched, places

av = pytest.importorskip("av", reason="the extra `video` is not installed")

from support.clips import frame_number, rendered  # noqa: E402 -- needs av

from forebay_loader.base.counters import COUNTS  # noqa: E402
from forebay_loader.videos.errors import CorruptVideo, UnsupportedVideo, VideoError  # noqa: E402
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
    """All of its frames, alone too, and counted once; what its own reader reads is not."""
    before, plain = demuxed(), rendered(frames=30, b_frames=2)
    with source_of(plain) as source:
        source.frame(0)
    clip = compressed(plain)
    with source_of(clip) as source:
        assert [frame_number(picture) for picture in source.frames(range(source.open().frames))] == list(range(30)) == numbers(clip)
        assert frame_number(source.frame(17)) == 17
    assert demuxed() == before + 1


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


def with_edits(clip: bytes, *edits: tuple[int, int]) -> bytes:
    """``clip``, of whose pictures other parts are shown: (from tick, for so many milliseconds)."""
    begin, end = places(clip, b"moov", b"trak", b"edts", b"elst")[0]
    rows = b"".join(struct.pack(">IiI", length_ms, begin_tick, 1 << 16) for begin_tick, length_ms in edits)
    elst = struct.pack(">I4sII", 16 + len(rows), b"elst", 0, len(edits)) + rows
    for at, stop in [places(clip, *path)[0] for path in ((b"moov",), (b"moov", b"trak"), (b"moov", b"trak", b"edts"))]:
        clip = patched(clip, at, ">I", stop - at + len(elst) - (end - begin))
    changed = clip[:begin] + elst + clip[end:]
    assert places(changed, b"moov")[0][1] == len(changed)  # it lies behind the media, so no offset moves
    return changed


@pytest.mark.parametrize("b_frames", [0, 2])
@pytest.mark.parametrize(
    ("edits", "shown"),
    [
        ([(0, 2000), (0, 2000)], [*range(48), *range(48)]),
        ([(12 * 512, 500), (36 * 512, 500)], [*range(12, 24), *range(36, 48)]),
        ([(24 * 512, 1000), (0, 500)], [*range(24, 48), *range(12)]),
        ([(0, 250), (18 * 512, 250), (40 * 512, 250)], [*range(6), *range(18, 24), *range(40, 46)]),
    ],
)
def test_pieces(edits: list[tuple[int, int]], shown: list[int], b_frames: int) -> None:
    """A part shown twice, one left out, two exchanged, three from the middle of groups: as PyAV shows them, together and alone."""
    late = 512 * b_frames  # the first picture is decoded so long before it is shown
    clip = with_edits(rendered(frames=48, gop=12, b_frames=b_frames), *((begin + late, length_ms) for begin, length_ms in edits))
    expected = numbers(clip)
    if not b_frames:
        assert expected == shown
    with source_of(clip) as source:
        assert [frame_number(picture) for picture in source.frames(range(source.open().frames))] == expected
        assert [frame_number(source.frame(at)) for at in range(0, len(expected), 5)] == expected[::5]


FRAGMENTS: dict[str, dict[str, Any]] = {
    "of a group": {"movflags": "frag_keyframe+empty_moov", "b_frames": 2, "audio": "aac"},
    "of a group, HEVC": {"codec": "libx265", "movflags": "frag_keyframe+empty_moov", "b_frames": 3, "audio": "aac"},
    "of a group, AV1": {"codec": "libsvtav1", "movflags": "frag_keyframe+empty_moov", "audio": "aac"},
    "of a frame": {"movflags": "frag_every_frame+empty_moov+default_base_moof", "b_frames": 2},
    "of a track": {"movflags": "frag_keyframe+empty_moov+separate_moof", "b_frames": 2, "audio": "aac"},
    "behind samples": {"movflags": "frag_keyframe", "b_frames": 2, "audio": "aac"},
    "with edits": {"movflags": "frag_keyframe+delay_moov", "b_frames": 2, "audio": "pcm_s16le"},
    "DASH": {"movflags": "dash", "b_frames": 2, "audio": "aac"},
    "CMAF": {"movflags": "cmaf+frag_keyframe", "b_frames": 2, "audio": "aac"},
    "Smooth Streaming": {"container": "ismv", "audio": "aac"},
}


@pytest.mark.parametrize("how", FRAGMENTS)
def test_fragments(how: str) -> None:
    """All frames, and one alone; times are PyAV's, from the first; sound is there where there is any."""
    clip = rendered(**FRAGMENTS[how])
    with av.open(io.BytesIO(clip)) as container:
        times = [float(frame.pts * frame.time_base) for frame in container.decode(video=0)]
    before = demuxed()
    with source_of(clip) as source:
        info = source.open()
        assert list(info.times_s) == pytest.approx([time - times[0] for time in times], abs=1e-6)
        assert [frame_number(picture) for picture in source.frames(range(info.frames))] == list(range(48)) == numbers(clip)
        assert frame_number(source.frame(17)) == 17
        assert (info.audio_rate_hz > 0) == ("audio" in FRAGMENTS[how])
    assert demuxed() == before + 1


def test_encrypted_sound_of_fragments_is_refused() -> None:
    """FFmpeg would decode what it is without its key; the pictures are given."""
    with source_of(rendered(**FRAGMENTS["of a group"]).replace(b"mp4a", b"enca", 1)) as source:
        assert (source.open().frames, source.open().audio_rate_hz) == (48, 0)
        with pytest.raises(UnsupportedVideo, match=r"its sound cannot be read: encrypted \(enca\)"):
            source.audio(0.0, 1.0)


def test_a_fragment_whose_frames_end_beyond_the_file() -> None:
    """FFmpeg would give a part of the last."""
    clip = rendered(movflags="frag_keyframe+empty_moov+default_base_moof", frames=12)
    run = places(clip, b"moof", b"traf", b"trun")[-1]
    grown = patched(clip, run[1] - 4 * 2, ">I", 1 << 20)
    with source_of(grown, name="a.mp4") as source, pytest.raises(VideoError, match=r"^a\.mp4: fragmented, and FFmpeg's demuxer says"):
        source.frames([0])


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
