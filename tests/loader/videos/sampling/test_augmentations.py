"""Played at another speed, or with frames lost."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clip_infos import clip_infos, steady

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.sampling import clip, clips, fps, frame_drop, time_warp, uniform


@given(clip_infos(), st.integers(1, 30), st.floats(0, 1), st.integers())
def test_a_warp_keeps_order_and_ends(info: ClipInfo, n: int, strength: float, seed: int) -> None:
    """The first and the last stay, none goes before another, and the mask is the same."""
    plain, warped = uniform(n)(info, seed), time_warp(uniform(n), strength)(info, seed)
    assert (warped.frames[0], warped.frames[-1]) == (plain.frames[0], plain.frames[-1])
    assert list(warped.frames) == sorted(warped.frames)
    assert warped.mask == plain.mask


@given(st.integers(2, 30), st.floats(0, 1), st.integers())
def test_the_speed_stays_in_its_bounds(n: int, strength: float, seed: int) -> None:
    """From 1 - strength to 1 + strength of the plain one."""
    plain, warped = uniform(n)(steady(100_000), seed).frames, time_warp(uniform(n), strength)(steady(100_000), seed).frames
    for (before, behind), (first, second) in zip(pairwise(plain), pairwise(warped), strict=True):
        assert (1 - strength) * (behind - before) - 2 <= second - first <= (1 + strength) * (behind - before) + 2


def test_no_strength_no_warp() -> None:
    """0 is the plain window."""
    assert time_warp(uniform(9), 0.0)(steady(100), 5) == uniform(9)(steady(100), 5)


def test_a_warp_bends_both_ways() -> None:
    """By the seed: the middle frame comes earlier, or later."""
    middles = {time_warp(uniform(3), 1.0)(steady(1001), seed).frames[1] for seed in range(50)}
    assert min(middles) < 400
    assert max(middles) > 600


def test_filled_places_stay_filled() -> None:
    """The last frame is repeated, after the warp too; windows stay windows."""
    warped = time_warp(clip(1.75, 8), 1.0)(steady(48), 1)
    assert warped.frames[6:] == (47, 47)
    assert warped.mask == (True,) * 6 + (False,) * 2
    assert len(time_warp(clips(3, 4), 1.0)(steady(48), 1).frames) == 12


@given(clip_infos(), st.floats(0, 1), st.integers())
def test_a_lost_frame_is_the_one_before(info: ClipInfo, share: float, seed: int) -> None:
    """And is masked; the others stay as they were."""
    plain, dropped = fps(30, 16)(info, seed), frame_drop(fps(30, 16), share)(info, seed)
    for place, (frame, real) in enumerate(zip(*dropped, strict=True)):
        if real or not plain.mask[place]:
            assert frame in (plain.frames[place], dropped.frames[place - 1])
        else:
            assert frame == dropped.frames[place - 1]


@pytest.mark.parametrize(("share", "lost"), [(0.0, 0), (1.0, 99)])
def test_none_or_all_but_the_first(share: float, lost: int) -> None:
    """The ends of the scale."""
    found = frame_drop(uniform(100), share)(steady(100), 3)
    assert found.mask.count(False) == lost
    assert len(set(found.frames)) == 100 - lost


def test_about_its_share_is_lost() -> None:
    """A tenth of ten thousand."""
    assert frame_drop(uniform(10_000), 0.1)(steady(10_000), 1).mask.count(False) == pytest.approx(1000, rel=0.2)


@pytest.mark.parametrize("augmentation", [time_warp, frame_drop])
@pytest.mark.parametrize(("arguments", "error"), [(("uniform(8)",), TypeError), ((len, 1.5), ValueError), ((len, -0.1), ValueError)])
def test_wrong_arguments_are_named_at_once(augmentation: object, arguments: tuple[object], error: type[Exception]) -> None:
    """Where they are given, not in a worker."""
    with pytest.raises(error, match=r"^(sampler|strength|share) takes"):
        augmentation(*arguments)
