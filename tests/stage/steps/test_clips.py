"""``clips``: every frame is in one clip, unchanged, and each clip is a video by itself."""

from __future__ import annotations

import struct
from typing import Any

import numpy
import pytest

pytest.importorskip("av", reason="the extra `video` is not installed")

from support.clips import frame_number, rendered
from support.mp4_boxes import patched, places
from support.remuxing import remuxed

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.sources.clip_bytes import MemoryClip
from forebay_loader.videos.sources.clip_source import ClipSource
from forebay_stage.errors import SampleFailed
from forebay_stage.steps import applied, step_of


def made(step: str, **fields: bytes) -> list[dict[str, Any]]:
    return list(applied([step_of(step)], {"__key__": "a", "__url__": "s.tar", **fields}))


def failure(step: str, **fields: bytes) -> str:
    with pytest.raises(SampleFailed) as caught:
        made(step, **fields)
    return caught.value.cause


def watched(data: bytes) -> tuple[ClipInfo, Any, Any]:
    """What is known of a clip, all frames, all sound."""
    with ClipSource(MemoryClip(data)) as source:
        info = source.open()
        return info, source.frames(range(info.frames)), source.audio(0, info.duration_s)[0]


@pytest.mark.parametrize(
    "order",
    [
        {"field": "mp4"},
        {"field": "mp4", "b_frames": 2, "audio": "aac"},
        {"field": "mp4", "codec": "libx265", "b_frames": 2},
        {"field": "mp4", "codec": "libsvtav1"},
        {"field": "mp4", "b_frames": 2, "rotation_deg": 90},
        {"field": "mp4", "fragmented": True, "audio": "aac"},
        {"field": "mp4", "start_ms": 500, "b_frames": 2, "audio": "aac"},
        {"field": "m4v", "b_frames": 2},
        {"field": "mov", "container": "mov", "audio": "pcm_s16le"},
        {"field": "mkv", "container": "matroska", "b_frames": 2, "audio": "flac"},
        {"field": "webm", "container": "webm", "codec": "libvpx-vp9", "audio": "libopus"},
    ],
    ids=lambda order: "-".join(str(value) for value in order.values()),
)
def test_every_frame_is_in_one_clip(order: dict[str, Any]) -> None:
    """Frames of all clips, one after the other, are those of the video, pixel by pixel; each clip is as long as asked for."""
    field = order["field"]
    data = rendered(frames=60, fps=24, gop=12, **{name: value for name, value in order.items() if name != "field"})
    info, frames, sound = watched(data)
    clips = made("clips,seconds=1", txt=b"text", **{field: data})
    assert [(clip["__key__"], clip["txt"]) for clip in clips] == [(f"a_{number:05d}", b"text") for number in range(3)]
    parts = [watched(clip[field]) for clip in clips]
    assert [part[0].frames for part in parts] == [24, 24, 12]
    assert numpy.array_equal(numpy.concatenate([part[1] for part in parts]), frames)
    for part, first in zip(parts, (0, 24, 48), strict=True):
        begin = info.times_s[first] if first else 0.0  # the first clip begins as late as the video
        assert list(part[0].times_s) == pytest.approx([time - begin for time in info.times_s[first : first + part[0].frames]], abs=0.002)
    assert sum(part[2].shape[-1] for part in parts) == pytest.approx(sound.shape[-1], abs=3 * 2048)


@pytest.mark.parametrize("b_frames", [0, 2])
def test_hidden_frames_stay_hidden(b_frames: int) -> None:
    """Of a video that was trimmed by its edit list, clips show what the video shows: from the 8th frame to the 40th."""
    data = rendered(frames=60, gop=12, b_frames=b_frames)
    entry = places(data, b"moov", b"trak", b"edts", b"elst")[0][0] + 16
    (begin,) = struct.unpack_from(">i", data, entry + 4)
    clips = made("clips,seconds=0.5", mp4=patched(data, entry, ">Ii", 32 * 1000 // 24, begin + 8 * 512))
    shown = [[frame_number(frame) for frame in watched(clip["mp4"])[1]] for clip in clips]
    assert shown == [list(range(8, 24)), list(range(24, 36)), list(range(36, 40))]


def test_a_clip_begins_at_a_keyframe() -> None:
    """Where keyframes are further apart than asked for, clips are longer."""
    clips = made("clips,seconds=0.1", mp4=rendered(frames=60, gop=25))
    assert [watched(clip["mp4"])[0].frames for clip in clips] == [25, 25, 10]


def test_no_cut_where_pictures_depend_on_earlier_ones() -> None:
    """The groups of an open-GOP video cannot be decoded by themselves: it stays whole."""
    data = rendered(codec="libx265", frames=48, b_frames=3, open_gop=True)
    clips = made("clips,seconds=0.5", mp4=data)
    parts = [watched(clip["mp4"])[1] for clip in clips]
    assert numpy.array_equal(numpy.concatenate(parts), watched(data)[1])
    assert [frame_number(frame) for part in parts for frame in part] == list(range(48))
    assert len(clips) == 1


@pytest.mark.parametrize(("field", "container"), [("mp4", "mp4"), ("mkv", "matroska")])
def test_same_bytes_each_time(field: str, container: str) -> None:
    """No time of day and no random number is in a clip."""
    data = rendered(container=container)
    assert made("clips,seconds=1", **{field: data}) == made("clips,seconds=1", **{field: data})


def test_what_cannot_be_cut_fails() -> None:
    """No picture in it, no video, a playlist that names a file, another container: the sample fails."""
    assert "no picture" in failure("clips,1", mp4=remuxed(rendered(audio="aac"), "mp4", lambda kind, *_: kind == "audio"))
    assert "mp4: it cannot be cut" in failure("clips,1", mp4=b"<html>")
    assert "it cannot be cut" in failure("clips,1", mp4=b"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n/etc/hostname\n#EXT-X-ENDLIST\n")
    assert "clips can be cut of m4v, mkv, mov, mp4, webm" in failure("clips,1,field=avi", avi=rendered(container="avi", codec="mpeg4"))


def test_frames_of_clips() -> None:
    """Steps follow each other: three clips, two pictures of each, keys all different."""
    samples = list(applied([step_of("clips,1"), step_of("frames,count=2")], {"__key__": "a", "__url__": "", "mp4": rendered(frames=60)}))
    assert len({sample["__key__"] for sample in samples}) == 6


def test_a_sample_without_video_stays() -> None:
    """It comes out as it went in."""
    assert made("clips,1", txt=b"text") == [{"__key__": "a", "__url__": "s.tar", "txt": b"text"}]
