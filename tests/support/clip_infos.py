"""What is known of clips that nobody rendered: by their numbers, and any that hypothesis thinks of."""

from __future__ import annotations

from array import array

from hypothesis import strategies as st

from forebay_loader.videos.clip_info import ClipInfo

__all__ = ["clip_infos", "steady"]

TICKS = 90_000  # a second, as MPEG counts


def steady(frames: int, fps: float = 24.0, gop: int = 12, begin_s: float = 0.0, **facts: object) -> ClipInfo:
    """``frames`` at a constant rate, a keyframe every ``gop``."""
    times_s = array("d", [begin_s + number / fps for number in range(frames)])
    keyframes = tuple(range(0, frames, gop))
    return ClipInfo(frames, times_s, begin_s + frames / fps, 64, 48, keyframes=keyframes, **facts)  # type: ignore[arg-type]


@st.composite
def clip_infos(draw: st.DrawFn, most: int = 60, spans: int = 0) -> ClipInfo:
    """Any rate, variable or not, a first frame at any time, any keyframes but the first; ``spans`` of motion and sound."""
    gaps = draw(st.lists(st.integers(1, 2 * TICKS), min_size=1, max_size=most))
    if draw(st.booleans()):
        gaps = [gaps[0]] * len(gaps)
    begin = draw(st.sampled_from([0, 0, 3754, TICKS]))
    ticks = [begin]
    for gap in gaps:
        ticks.append(ticks[-1] + gap)
    keyframes = tuple(sorted({0, *draw(st.lists(st.integers(0, len(gaps) - 1), max_size=12))}))
    energy = st.lists(st.floats(0, 1, width=32), min_size=spans, max_size=spans).map(lambda values: array("f", values))
    return ClipInfo(
        len(gaps), array("d", [tick / TICKS for tick in ticks[:-1]]), ticks[-1] / TICKS, 64, 48, keyframes=keyframes, audio_rate_hz=48_000,
        motion=draw(energy) if spans else None, audio_energy=draw(energy) if spans else None,
    )  # fmt: skip
