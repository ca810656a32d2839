"""The index of clips that FFmpeg wrote, beside what PyAV reads of them. What ``needed`` names suffices: ../decode/test_frames.py."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass

import pytest
from support.mp4_boxes import TURNED, patched, places, reads_of

av = pytest.importorskip("av", reason="the extra `video` is not installed")

from support.clips import frame_number, rendered  # noqa: E402 -- needs av

from forebay_loader.videos.mp4.index import Mp4Index, read_index  # noqa: E402
from forebay_loader.videos.mp4.track import Track  # noqa: E402
from forebay_loader.videos.sources.choice import source_of  # noqa: E402

VARIABLE = tuple(number * 40 + number % 5 * 7 + (200 if number > 20 else 0) for number in range(48))

CLIPS: dict[str, dict[str, object]] = {
    "H.264": {},
    "H.264, moov first": {"moov_first": True, "audio": "aac"},
    "H.264, B-frames": {"b_frames": 2},
    "H.264, open GOP": {"b_frames": 3, "open_gop": True},
    "H.264, one frame": {"frames": 1},
    "H.264, all intra": {"gop": 1},
    "H.264, negative offsets": {"b_frames": 2, "movflags": "negative_cts_offsets"},
    "HEVC": {"codec": "libx265"},
    "HEVC, open GOP": {"codec": "libx265", "b_frames": 3, "open_gop": True},
    "HEVC, B-frames": {"codec": "libx265", "b_frames": 3},
    "HEVC, variable rate": {"codec": "libx265", "b_frames": 3, "times_ms": VARIABLE},
    "HEVC, late pictures": {"codec": "libx265", "b_frames": 3, "start_ms": 500, "audio": "aac"},
    "HEVC, AC-3": {"codec": "libx265", "b_frames": 3, "audio": "ac3", "channels": 6},
    "HEVC, ten bits": {"codec": "libx265", "pix_fmt": "yuv420p10le"},
    "AV1": {"codec": "libsvtav1"},
    "AV1, open GOP": {"codec": "libsvtav1", "open_gop": True},
    "AV1, variable rate": {"codec": "libsvtav1", "times_ms": VARIABLE},
    "AV1, late pictures": {"codec": "libsvtav1", "start_ms": 500, "audio": "aac"},
    "AV1, Opus": {"codec": "libsvtav1", "audio": "libopus", "channels": 2},
    "MPEG-4, B-frames": {"codec": "mpeg4", "b_frames": 2},
    "VP9": {"codec": "libvpx-vp9"},
    "Motion JPEG": {"codec": "mjpeg"},
    "ProRes in QuickTime": {"codec": "prores_ks", "pix_fmt": "yuv422p10le", "container": "mov", "audio": "aac", "channels": 2},
    "variable rate": {"times_ms": VARIABLE},
    "variable rate, B-frames": {"times_ms": VARIABLE, "b_frames": 2},
    "late pictures": {"start_ms": 500, "audio": "aac"},
    "late pictures, B-frames": {"start_ms": 500, "b_frames": 2},
    "turned by 90": {"rotation_deg": 90},
    "turned by 180": {"rotation_deg": 180},
    "turned by 270": {"rotation_deg": 270},
    "AAC, 22 kHz": {"audio": "aac", "audio_rate_hz": 22050},
    "AAC, 96 kHz, six channels": {"audio": "aac", "audio_rate_hz": 96000, "channels": 6},
    "Opus": {"audio": "libopus", "channels": 2},
    "FLAC": {"audio": "flac", "channels": 2},
    "ALAC": {"audio": "alac", "channels": 2},
    "AC-3": {"audio": "ac3", "channels": 6},
    "MP3": {"audio": "libmp3lame", "audio_rate_hz": 44100},
    "sound longer than pictures": {"audio": "aac", "audio_s": 3.5},
    "sound shorter than pictures": {"audio": "aac", "audio_s": 0.5, "moov_first": True},
}
NAMES = {"mp3float": "mp3"}  # which of two decoders this FFmpeg prefers


@dataclass(frozen=True)
class Sample:
    """What both say of one sample, times in ticks of the track."""

    size: int
    pts: int
    dts: int
    key: bool


def wide_mdat(clip: bytes) -> bytes:
    """The same bytes under a 64-bit header: FFmpeg leaves eight bytes (a box free) before mdat for it."""
    begin, end = places(clip, b"mdat")[0]
    assert places(clip, b"free")[0] == (begin - 8, begin)
    return patched(clip, begin - 8, ">I4sQ", 1, b"mdat", end - begin + 8)  # type: ignore[arg-type]


def endless(clip: bytes, kind: bytes) -> bytes:
    """The last box without a size."""
    begin, end = places(clip, kind)[-1]
    assert end == len(clip)
    return patched(clip, begin, ">I", 0)


def turned(clip: bytes) -> bytes:
    """The movie's own matrix beside the track's."""
    return patched(clip, places(clip, b"moov", b"mvhd")[0][0] + 44, ">9i", *TURNED[90])


def edited(clip: bytes) -> bytes:
    """From the 8th frame to the 40th: its edit list begins in the middle of a group, and ends in one."""
    entry = places(clip, b"moov", b"trak", b"edts", b"elst")[0][0] + 16
    (begin,) = struct.unpack_from(">i", clip, entry + 4)
    return patched(clip, entry, ">Ii", 32 * 1000 // 24, begin + 8 * 512)


VARIANTS = {
    "64-bit mdat": lambda: wide_mdat(rendered(b_frames=2, audio="aac")),
    "mdat without a size": lambda: endless(rendered(b_frames=2, moov_first=True), b"mdat"),
    "moov without a size": lambda: endless(rendered(b_frames=2), b"moov"),
    "movie turned": lambda: turned(rendered(rotation_deg=90)),
}


def clip_of(name: str) -> bytes:
    return VARIANTS[name]() if name in VARIANTS else rendered(**CLIPS[name])


def index_of(clip: bytes) -> Mp4Index:
    return read_index(reads_of(clip)[0], len(clip), "a.mp4")


def by_index(track: Track) -> dict[int, Sample]:
    rows = zip(track.offsets.tolist(), track.sizes.tolist(), track.pts.tolist(), track.dts.tolist(), track.key, strict=True)
    return {offset: Sample(size, pts, dts, bool(key)) for offset, size, pts, dts, key in rows}


def by_pyav(clip: bytes, sort: str, timescale: int) -> dict[int, Sample]:
    with av.open(io.BytesIO(clip)) as container:
        stream = container.streams.get(**{sort: 0})[0]

        def ticks(time: int) -> int:
            return round(time * stream.time_base * timescale)

        packets = [packet for packet in container.demux(stream) if packet.size]
        return {packet.pos: Sample(packet.size, ticks(packet.pts), ticks(packet.dts), packet.is_keyframe) for packet in packets}


@pytest.mark.parametrize("name", [*CLIPS, *VARIANTS])
def test_what_is_read_is_what_pyav_says(name: str) -> None:
    """Of each sample place, size, both times and keyframe; of decoders name, extradata, pixels, rate, channels; the turn of the pictures;
    the times of frames in seconds, in the order in which PyAV gives them."""
    clip = clip_of(name)
    index = index_of(clip)
    assert by_index(index.video) == by_pyav(clip, "video", index.video.timescale)
    assert (index.audio is not None) == ("audio" in CLIPS.get(name, {}) or name == "64-bit mdat")
    with av.open(io.BytesIO(clip)) as container:
        video = container.streams.video[0].codec_context
        assert index.video.decoder == NAMES.get(video.name, video.name)
        assert index.video.extradata == (video.extradata or b"")
        assert (index.video.width, index.video.height) == (video.width, video.height)
        frames = list(container.decode(video=0))
        assert (index.video.rotation_deg + frames[0].rotation) % 360 == 0  # PyAV's is counter-clockwise
        info = index.to_info()
        assert list(info.times_s) == pytest.approx([float(frame.pts * frame.time_base) for frame in frames], abs=1e-6)
        assert info.times_s[-1] < info.duration_s
        if index.audio:
            assert by_index(index.audio) == by_pyav(clip, "audio", index.audio.timescale)
            audio = container.streams.audio[0].codec_context
            assert index.audio.decoder == NAMES.get(audio.name, audio.name)
            assert index.audio.extradata == (audio.extradata or b"")
            assert (index.audio.rate_hz, index.audio.channels) == (audio.rate, audio.channels)


@pytest.mark.parametrize("name", ["H.264, open GOP", "HEVC, open GOP"])
def test_open_groups_have_leading_pictures(name: str) -> None:
    """So that a test of their frames has something to show."""
    assert sum(index_of(clip_of(name)).video.leading) >= 6


@pytest.mark.parametrize("name", ["H.264, B-frames", "HEVC, B-frames", "AV1"])
def test_an_edit_in_the_middle_of_a_group(name: str) -> None:
    """Frames outside are not numbered, those inside are decoded from the keyframe before the edit; as PyAV shows them."""
    clip = edited(clip_of(name))
    with source_of(clip) as source:
        assert [frame_number(source.frame(number)) for number in range(source.open().frames)] == list(range(8, 40))
    with av.open(io.BytesIO(clip)) as container:
        shown = [(frame_number(frame.to_ndarray(format="rgb24")), frame.pts) for frame in container.decode(video=0)]
    assert [number for number, _ in shown] == list(range(8, 40))
    assert index_of(clip).to_info().times_s[0] == 0.0
