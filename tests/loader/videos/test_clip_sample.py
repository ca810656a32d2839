"""One sample's clips: the sound that belongs to the frames, and what a clip may take."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any

import numpy
import pytest
from support.clips import rendered

import forebay_loader as fb
from forebay_loader.videos import clip_pass
from forebay_loader.videos.clip_pass import ClipPass
from forebay_loader.videos.decode.frames import ClipTimer
from forebay_loader.videos.errors import UnsupportedVideo, VideoTimeout
from forebay_loader.videos.sources import clip_source
from forebay_loader.videos.sources.choice import source_of


def sample(clip: bytes, suffix: str = "mp4") -> dict[str, Any]:
    return {"__key__": "a", "__url__": "s3://b/0.tar", suffix: clip}


def test_sound_begins_with_the_first_picture() -> None:
    """Where pictures begin later, what is heard before them belongs to no frame."""
    data = rendered(start_ms=700, audio="aac", audio_s=4.0)
    found = fb.video(audio=True).decoded(sample(data))
    with source_of(data) as source:
        info = source.open()
        there, rate_hz = source.audio(info.begin_s, info.duration_s)
    assert info.begin_s == pytest.approx(0.7, abs=0.01)
    assert found["audio"].shape == there.shape == (1, 2 * rate_hz)
    assert numpy.array_equal(found["audio"], there)


@pytest.mark.parametrize("how", ["stage", "decoder"])
def test_sound_that_cannot_be_read_is_no_silence(how: str) -> None:
    """Whoever asks for it is told which clip it is; whoever does not gets the pictures."""
    data = rendered(audio="aac").replace(b"mp4a", b"enca")
    assert len(fb.video().decoded(sample(data))["frames"]) == 48
    with pytest.raises(UnsupportedVideo, match="its sound cannot be read"):
        fb.video(audio=True).decoded(sample(data)) if how == "stage" else fb.video(audio=True)(".mp4", data)


def test_a_clip_has_one_time_for_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening, pictures and sound together: each alone would be within it."""
    steps = count()
    monkeypatch.setattr(clip_source, "ClipTimer", partial(ClipTimer, clock=lambda: float(next(steps))))
    clip = rendered(container="matroska", audio="aac")
    with pytest.raises(VideoTimeout, match=r"a\.mkv in s3://b/0\.tar"):
        fb.video(audio=True, time_limit_s=250.0).decoded(sample(clip, "mkv"))
    fb.video(time_limit_s=250.0).decoded(sample(clip, "mkv"))


def test_what_is_forgotten_is_drawn_anew_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over more clips than fit into memory."""
    monkeypatch.setattr(clip_pass, "MOST_CLIPS", 2)
    of = ClipPass(0)
    seen = [of.visit(name) for name in ("a", "b", "c", "a", "a", "b", "c", "a")]
    assert [one.again for one in seen[:3]] == [(0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 1, 0)]
    visits = [one for name, one in zip(("a", "b", "c", "a", "a", "b", "c", "a"), seen, strict=True) if name == "a"]
    assert len(set(visits)) == 4
