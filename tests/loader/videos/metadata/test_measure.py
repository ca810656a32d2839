"""One clip measured, by a source that was never a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from support.clip_infos import steady
from support.clips import rendered
from support.painted_source import PaintedSource
from support.remuxing import remuxed

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.errors import CorruptVideo
from forebay_loader.videos.metadata import measure
from forebay_loader.videos.metadata.motion import measured
from forebay_loader.videos.sources.choice import source_of


def test_motion_where_it_flickers() -> None:
    """The third quarter, and a still one elsewhere."""
    source = PaintedSource(steady(640, 10.0), lambda number: number % 20 * 12 if 320 <= number < 480 else 0)
    motion = measured(source).motion
    assert motion is not None
    assert len(motion) == 32
    assert min(motion[17:23]) > 0.05
    assert max([*motion[:15], *motion[25:]]) == 0


def test_sound_where_it_sounds() -> None:
    """From the middle on, over chunks of a minute."""
    source = PaintedSource(steady(1500, 10.0, audio_rate_hz=1000), tone_s=75.0)
    energy = measured(source).audio_energy
    assert energy is not None
    assert energy.tolist() == [0.0] * 16 + [0.5] * 16
    assert source.heard == [(0.0, 60.0), (60.0, 120.0), (120.0, 150.0)]


def test_unheard_is_unknown() -> None:
    """Silence would be another answer."""
    source = PaintedSource(steady(20, audio_rate_hz=1000))
    assert measured(source, audio=False).audio_energy is None
    assert source.heard == []


def test_no_track_no_energy() -> None:
    """There is nothing to be known of."""
    assert measured(PaintedSource(steady(20))).audio_energy is None


def test_sound_alone_has_no_motion() -> None:
    """And is heard."""
    info = ClipInfo(0, steady(0).times_s, 1.0, 0, 0, audio_rate_hz=1000)
    found = measured(PaintedSource(info))
    assert found.motion is None
    assert found.audio_energy is not None


def test_one_frame_is_still() -> None:
    """There is no neighbour."""
    assert set(measured(PaintedSource(steady(1))).motion or ()) == {0.0}


def test_sound_that_ends_early_ends_it() -> None:
    """No endless asking behind the end of the track."""

    class Short(PaintedSource):
        def audio(self, begin_s: float, end_s: float) -> tuple[Any, int]:
            samples, rate_hz = super().audio(begin_s, end_s)
            return samples[:, : 0 if begin_s >= 60 else None], rate_hz

    source = Short(steady(10_000, 10.0, audio_rate_hz=1000))
    assert measured(source).audio_energy is not None
    assert len(source.heard) == 2


@pytest.mark.parametrize("container", ["mp4", "matroska"])
def test_sound_that_begins_late(container: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its peaks stand where it sounds, though the first parts that are listened to hold none of it."""

    def later(kind: str, number: int, packet: Any) -> bool:
        if kind == "audio":
            packet.pts += round(1 / packet.time_base)
            packet.dts += round(1 / packet.time_base)
        return True

    monkeypatch.setattr(measure, "_CHUNK_S", 0.25)
    with source_of(remuxed(rendered(frames=48, container=container, audio="aac"), container, later)) as source:
        energy = measured(source, spans=8).audio_energy
    assert energy is not None
    assert [value > 0.1 for value in energy] == [False] * 4 + [True] * 4


def test_what_the_source_says_stays() -> None:
    """Only two fields are new."""
    info = steady(20)
    found = measured(PaintedSource(info))
    assert (found.times_s, found.keyframes, found.duration_s) == (info.times_s, info.keyframes, info.duration_s)


def test_errors_pass() -> None:
    """Whoever scans names the clip and goes on."""

    class Broken(PaintedSource):
        def frames(self, indices: Sequence[int]) -> Any:
            raise CorruptVideo("no picture")

    with pytest.raises(CorruptVideo):
        measured(Broken(steady(20)))
