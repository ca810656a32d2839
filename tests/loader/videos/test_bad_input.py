"""What is wrong, or odd, with clips that people train on: as a stage meets them, a typed error that names clip and shard, or the right
frames. What each part does about it is told in its own tests; absurd numbers and cuts everywhere: tests/property/test_mp4_mutations.py."""

from __future__ import annotations

import struct
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
import pytest
from support.clips import frame_number, pictures_of, rendered
from support.lengths import ordinarily
from support.mp4_boxes import FTYP, HandTrack, box, film, patched, places
from support.remuxing import joined

import forebay_loader as fb
from forebay_loader.videos.errors import CorruptVideo, VideoError

SHARD = "s3://bucket/clips-000.tar"
NAMED = r"^a/b\.{} in s3://bucket/clips-000\.tar: "
STBL = (b"moov", b"trak", b"mdia", b"minf", b"stbl")


def given(data: bytes, suffix: str = "mp4") -> Any:
    """The frames that a stage gives of a sample with ``data``."""
    stage = fb.video(None, members=suffix)
    (sample,) = stage([{"__key__": "a/b", "__url__": f"{SHARD}?X-Amz-Signature=secret", suffix: data}])
    return sample["frames"]


def refused(data: bytes, suffix: str = "mp4") -> VideoError:
    """The error, which names clip and shard, and no secret."""
    with pytest.raises(VideoError, match=NAMED.format(suffix)) as caught:
        given(data, suffix)
    assert "secret" not in str(caught.value)
    return caught.value


def numbers(frames: Any) -> list[int]:
    return [frame_number(frame) for frame in frames]


@pytest.mark.parametrize("how", [{}, {"moov_first": True}, {"fragmented": True}], ids=["moov last", "moov first", "fragmented"])
@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_mp4(how: dict[str, bool], share: float) -> None:
    """Never a shorter clip, wherever it was cut."""
    clip = rendered(**how, audio="aac")
    refused(clip[: int(len(clip) * share)])


@pytest.mark.parametrize("text", ["ffconcat version 1.0\nfile b.mp4\n", "#EXTM3U\n#EXTINF:9,\nb.mp4\n#EXT-X-ENDLIST\n"])
def test_a_list_of_other_files(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is no clip: whoever made a shard does not choose which files of this machine are read."""
    monkeypatch.chdir(tmp_path)
    Path("b.mp4").write_bytes(rendered())
    refused(text.encode())


def test_more_descriptions_than_there_are() -> None:
    """No sample asks for one of them: the frames are right."""
    clip = rendered()
    assert numbers(given(patched(clip, places(clip, *STBL, b"stsd")[0][0] + 12, ">I", 2**32 - 1))) == list(range(48))


def crowded(where: str, many: bytes) -> bytes:
    return FTYP + many + film(HandTrack(sizes=()), ftyp=b"") if where == "beside moov" else film(HandTrack(sizes=()), more=many)


@pytest.mark.parametrize("where", ["beside moov", "in moov"])
def test_a_million_boxes(where: str) -> None:
    """Of eight bytes of nothing each: their memory is not a multiple of it. Looked at as it is asked for: what the system counts as ours
    depends on who else wants memory."""
    many = box(b"free") * ordinarily(30_000, of=1_000_000, what="boxes whose memory is looked at")
    clip = crowded(where, many)
    refused(crowded(where, box(b"free")))  # what is imported on the way
    tracemalloc.start()
    found = refused(clip)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(found, CorruptVideo)
    assert peak < 4 * len(many)


@pytest.mark.parametrize("container", ["mp4", "matroska", "mpegts", "avi", "asf"])
def test_one_frame(container: str) -> None:
    assert numbers(given(rendered(frames=1, container=container))) == [0]


@pytest.mark.parametrize("container", ["h264", "mpegts"])
def test_frames_of_several_sizes(container: str) -> None:
    """All have the size of the first, and none is lost."""
    small, large = (rendered(container=container, frames=12, width=width, height=height) for width, height in ((128, 96), (256, 192)))
    frames = given(joined(small, large, 1.0) if container == "mpegts" else small + large)
    assert frames.shape == (24, 96, 128, 3)
    assert numbers(frames) == [*range(12), *range(12)]


@pytest.mark.parametrize("rate_hz", [1, 7, 100, 768_000, (1 << 31) - 1, (1 << 32) - 1])
@pytest.mark.parametrize("container", ["avi", "matroska"])
def test_sound_of_any_rate(container: str, rate_hz: int) -> None:
    """Its header may say anything: sound, or the clip's error."""
    data = bytearray(rendered(container=container, codec="mpeg4", audio="pcm_s16le"))
    if container == "avi":
        struct.pack_into("<I", data, data.find(b"strf", data.find(b"auds")) + 12, rate_hz)
    else:
        struct.pack_into(">d", data, data.find(b"\xb5\x88" + struct.pack(">d", 48_000)) + 2, rate_hz)
    with suppress(VideoError):
        list(fb.video("uniform(2)", audio=16_000)([{"__key__": "a", "__url__": SHARD, "mp4": bytes(data)}]))


def x265(transfer: str) -> dict[str, str]:
    said = f"colorprim=bt2020:transfer={transfer}:colormatrix=bt2020nc:range=limited"
    return {"x265-params": f"log-level=none:pools=none:frame-threads=1:{said}"}


HDR: dict[str, dict[str, Any]] = {
    "PQ, BT.2020, 10 bits": {"codec": "libx265", "pix_fmt": "yuv420p10le", "codec_options": x265("smpte2084")},
    "HLG, BT.2020, 10 bits": {"codec": "libx265", "pix_fmt": "yuv420p10le", "codec_options": x265("arib-std-b67")},
    "12 bits": {"codec": "libx265", "pix_fmt": "yuv420p12le", "codec_options": x265("smpte2084")},
    "4:2:2, 10 bits": {"codec": "libx265", "pix_fmt": "yuv422p10le", "codec_options": x265("smpte2084")},
    "4:4:4, 10 bits": {"codec": "libx265", "pix_fmt": "yuv444p10le", "codec_options": x265("smpte2084")},
    "H.264, 10 bits": {"pix_fmt": "yuv420p10le"},
    "AV1, 10 bits": {"codec": "libsvtav1", "pix_fmt": "yuv420p10le"},
    "ProRes, 10 bits": {"codec": "prores_ks", "pix_fmt": "yuv422p10le", "container": "mov"},
}


@pytest.mark.parametrize("name", HDR)
def test_high_dynamic_range(name: str) -> None:
    """Eight bits without tone mapping, as PyAV gives them, and each frame is its own."""
    data = rendered(**HDR[name], frames=12)
    frames = given(data)
    assert numpy.array_equal(frames, numpy.stack(pictures_of(data)))
    if "x265" not in str(HDR[name]):  # their curve moves light and dark
        assert numbers(frames) == list(range(12))
