"""Sound through FFmpeg's demuxer, a part at a time."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from support.clips import rendered

from forebay_loader.videos.decode.sound import SoundParts
from forebay_loader.videos.errors import VideoTimeout
from forebay_loader.videos.metadata import measure
from forebay_loader.videos.metadata.motion import measured
from forebay_loader.videos.sources.choice import source_of

CLIP: dict[str, Any] = {"container": "matroska", "frames": 240, "audio": "aac", "channels": 2}  # of ten seconds


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many samples each frame of sound had that was decoded."""
    found: list[int] = []
    take = SoundParts.take

    def counted(self: SoundParts, frame: Any, begin_s: Any) -> None:
        found.append(frame.samples)
        take(self, frame, begin_s)

    monkeypatch.setattr(SoundParts, "take", counted)
    return found


@pytest.mark.parametrize("container", ["matroska", "mpegts", "avi"])
def test_parts_are_those_of_the_whole(container: str, decoded: list[int]) -> None:
    """Sample by sample, and each is decoded once."""
    with source_of(rendered(**{**CLIP, "container": container})) as source:
        whole, rate_hz = source.audio(0.0, 10.0)
        decoded.clear()
        parts = [source.audio(begin, begin + 0.5)[0] for begin in numpy.arange(0.0, 10.0, 0.5)]
    assert numpy.array_equal(numpy.concatenate(parts, axis=1), whole)
    assert sum(decoded) <= 10.1 * rate_hz + 4096


def test_a_film_is_measured_in_one_pass(decoded: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """However many parts its sound is taken in."""
    monkeypatch.setattr(measure, "_CHUNK_S", 0.25)
    with source_of(rendered(**CLIP)) as source:
        found = measured(source)
    assert found.audio_energy is not None
    assert min(found.audio_energy) > 0.2
    assert sum(decoded) <= 10.1 * 48_000 + 4096


def test_backwards_and_overlapping(decoded: list[int]) -> None:
    """As alone: what was let go of is decoded again."""
    with source_of(rendered(**CLIP)) as source:
        whole, rate_hz = source.audio(0.0, 10.0)
        for begin_s, end_s in ((4.0, 6.0), (5.0, 7.0), (1.0, 2.0), (2.0, 3.0), (8.0, 9.0)):
            found = source.audio(begin_s, end_s)[0]
            assert numpy.array_equal(found, whole[:, round(begin_s * rate_hz) : round(end_s * rate_hz)]), begin_s


def test_a_call_that_failed_leaves_nothing_behind() -> None:
    """The next one begins anew, and gives what it would have given."""
    data = rendered(**CLIP)
    with source_of(data) as source:
        whole = source.audio(0.0, 10.0)[0]
    with source_of(data) as source:
        source.audio(0.0, 1.0)
        source._time_limit_s = -1.0  # type: ignore[attr-defined]
        with pytest.raises(VideoTimeout):
            source.audio(1.0, 9.0)
        source._time_limit_s = 60.0  # type: ignore[attr-defined]
        assert numpy.array_equal(source.audio(1.0, 2.0)[0], whole[:, 48_000:96_000])
