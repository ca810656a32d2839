"""``frames``: which frames become pictures, under which keys, and that memory does not grow with the video."""

from __future__ import annotations

import io
from typing import Any

import numpy
import pytest

pytest.importorskip("av", reason="the extra `video` is not installed")
pytest.importorskip("PIL", reason="the pictures' steps need Pillow")

from PIL import Image
from support.clips import frame_number, rendered, sound_only

from forebay_loader.videos.sources.clip_source import ClipSource
from forebay_stage.errors import SampleFailed
from forebay_stage.steps import applied, step_of, videos

CLIP = rendered(frames=60, fps=24, b_frames=2)


def made(step: str, **fields: bytes) -> list[dict[str, Any]]:
    return list(applied([step_of(step)], {"__key__": "a", "__url__": "s.tar", **fields}))


def numbers(samples: list[dict[str, Any]], field: str = "jpg") -> list[int]:
    """What the pictures show, which is what the keys say."""
    shown = [frame_number(numpy.asarray(Image.open(io.BytesIO(sample[field])))) for sample in samples]
    assert [sample["__key__"] for sample in samples] == [f"a_{number:05d}" for number in shown]
    return shown


def failure(step: str, **fields: bytes) -> str:
    with pytest.raises(SampleFailed) as caught:
        made(step, **fields)
    return caught.value.cause


@pytest.mark.parametrize(
    ("step", "wanted"),
    [
        ("frames,rate=2", [0, 12, 24, 36, 48]),
        ("frames,1", [0, 24, 48]),
        ("frames,rate=0.1", [0]),
        ("frames,rate=1000", list(range(60))),
        ("frames,count=4", [0, 19, 39, 59]),
        ("frames,count=1", [0]),
        ("frames,count=100", list(range(60))),
    ],
)
def test_which_frames(step: str, wanted: list[int]) -> None:
    """``rate`` takes what is shown every so often, ``count`` an even spread; none twice."""
    assert numbers(made(step, mp4=CLIP)) == wanted


def test_variable_rates_count_by_time() -> None:
    """Of frames at uneven times, that one is taken which is shown at the moment."""
    assert numbers(made("frames,rate=1", mp4=rendered(frames=4, times_ms=(0, 900, 1500, 2600)))) == [0, 1, 2]


def test_other_fields_go_along() -> None:
    """Each picture has the texts of its video; the video itself is gone, and the name of its field says which it was."""
    samples = made("frames,count=2,format=webp,side=48", txt=b"text", **{"left.mp4": CLIP})
    assert [set(sample) for sample in samples] == [{"__key__", "__url__", "txt", "left.webp"}] * 2
    assert {Image.open(io.BytesIO(sample["left.webp"])).size for sample in samples} == {(64, 48)}


def test_a_small_video_is_not_made_larger() -> None:
    """``side`` is at most."""
    assert Image.open(io.BytesIO(made("frames,count=1,side=4000", mp4=CLIP)[0]["jpg"])).size == (128, 96)


def test_some_frames_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more frames are decoded at once than the bytes allow, and the pictures are the same."""
    whole, asked = made("frames,rate=1000", mp4=CLIP), []
    frames = ClipSource.frames
    monkeypatch.setattr(videos, "PIXEL_BYTES", 7 * 128 * 96 * 3)
    monkeypatch.setattr(ClipSource, "frames", lambda self, indices: asked.append(len(indices)) or frames(self, indices))
    assert made("frames,rate=1000", mp4=CLIP) == whole
    assert asked == [7] * 8 + [4]


def test_what_cannot_be_taken_apart_fails() -> None:
    """No picture in it, bytes that are no video, two videos, a field that is taken: the sample fails."""
    assert "no picture" in failure("frames,count=2", mp4=sound_only())
    assert "mp4" in failure("frames,count=2", mp4=b"<html>")
    assert "mp4 and mov" in failure("frames,count=2", mp4=CLIP, mov=CLIP)
    assert "take the place of the field 'jpg'" in failure("frames,count=2", mp4=CLIP, jpg=b"")
    assert len(made("frames,count=2,field=mov", mp4=CLIP, mov=CLIP)) == 2


def test_a_sample_without_video_stays() -> None:
    """It comes out as it went in."""
    assert made("frames,count=2", txt=b"text") == [{"__key__": "a", "__url__": "s.tar", "txt": b"text"}]
