"""Denser where something happens."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clip_infos import clip_infos, steady

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.sampling import NotScanned, adaptive


def of(frames: int, *motion: float) -> ClipInfo:
    return steady(frames, 10.0, motion=array("f", motion))


def test_the_floor_spreads_them() -> None:
    """1 is even, whatever moves."""
    assert adaptive(4, floor=1.0)(of(400, 0, 0, 1, 0), 0).frames == (50, 150, 250, 350)


def test_by_sound() -> None:
    """The other row of numbers."""
    info = steady(400, 10.0, audio_rate_hz=8000, motion=array("f", [1, 0]), audio_energy=array("f", [0, 1]))
    assert min(adaptive(4, by="audio", floor=0.0)(info, 0).frames) >= 200


def test_no_sound_is_loud_nowhere() -> None:
    """A clip without a sound track among others is no error: evenly."""
    assert adaptive(4, by="audio")(steady(400, 10.0), 0).frames == (50, 150, 250, 350)


def test_pictures_that_begin_late() -> None:
    """Spans are of the clip's time from 0, as a scan counts them: what moves in the last quarter of it does so whenever pictures begin."""
    info = steady(50, 10.0, begin_s=5.0, motion=array("f", [0, 0, 0, 1]))
    times_s = [info.times_s[frame] for frame in adaptive(10, floor=0.0)(info, 0).frames]
    assert times_s == pytest.approx([7.6 + 0.25 * k for k in range(10)], abs=0.11)


def test_late_pictures_of_which_nothing_moves() -> None:
    """Evenly over the time in which there are any."""
    info = steady(40, 10.0, begin_s=4.0, motion=array("f", [1, 0, 0, 0, 0]))
    assert adaptive(4)(info, 0).frames == (5, 15, 25, 35)


@pytest.mark.parametrize(("by", "facts"), [("motion", {}), ("audio", {"audio_rate_hz": 8000}), ("motion", {"motion": array("f")})])
def test_unknown_is_said(by: str, facts: dict[str, object]) -> None:
    """Spread evenly in silence it would look as if it worked."""
    with pytest.raises(NotScanned, match=f"nothing is known of the clip's {by}; `forebay index --video`"):
        adaptive(4, by=by)(steady(40, **facts), 0)


@given(clip_infos(spans=7), st.integers(1, 80), st.sampled_from(["regular", "random"]), st.floats(0, 1), st.integers())
def test_different_ones_as_long_as_there_are(info: ClipInfo, n: int, choice: str, floor: float, seed: int) -> None:
    """Ascending and none twice, whatever the energy is; all of them where there are no more."""
    found = adaptive(n, choice=choice, floor=floor)(info, seed).frames
    assert len(found) == n
    assert list(found) == sorted(found)
    assert len(set(found)) == min(n, info.frames)


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=9), st.integers(1, 30))
def test_each_span_gets_its_share(motion: list[float], n: int) -> None:
    """To one frame more or less at each of its ends."""
    info = of(1000 * len(motion), *motion)
    found = adaptive(n, floor=0.2)(info, 0).frames
    together = sum(motion)
    for span, energy in enumerate(motion):
        share = 0.2 / len(motion) + 0.8 * energy / together if together else 1 / len(motion)
        got = sum(1000 * span <= frame < 1000 * (span + 1) for frame in found)
        assert abs(got - n * share) <= 1.01 + 0.01 * n


def test_other_seeds_other_frames() -> None:
    """By ``choice="random"``, each in its own share."""
    assert len({adaptive(8, choice="random")(of(4000, 0, 1), seed).frames for seed in range(20)}) == 20
