"""Frames by time."""

from __future__ import annotations

from array import array

import pytest
from support.clip_infos import steady

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.sampling import SamplingError, TooFewFrames, fps


@pytest.mark.parametrize("rate", [24, 25, 30, 24000 / 1001])
def test_its_own_rate_is_every_frame(rate: float) -> None:
    """Once, the last included, and none beyond."""
    assert fps(rate)(steady(500, rate), 0) == (tuple(range(500)), (True,) * 500)


def test_a_variable_rate_goes_by_time() -> None:
    """A frame that is shown for three seconds comes three times at one a second, and is real each time."""
    info = ClipInfo(3, array("d", [0.0, 1.0, 4.0]), 5.0, 1, 1)
    assert fps(1)(info, 0) == ((0, 1, 1, 1, 2), (True,) * 5)


def test_past_the_end_the_policy_fills() -> None:
    """Ten frames at ten a second, from half a second on."""
    assert fps(10, 7, 0.5, policy="wrap")(steady(10, 10.0), 0) == ((5, 6, 7, 8, 9, 5, 6), (True,) * 5 + (False,) * 2)


def test_past_the_end_from_the_first() -> None:
    """There is nothing to repeat, by no policy."""
    with pytest.raises(TooFewFrames, match="0 of the 2"):
        fps(10, 2, 9.0)(steady(10, 10.0), 0)


def test_a_late_first_frame_is_the_begin() -> None:
    """Its time is where counting begins: nothing is shown before."""
    assert fps(2, 3)(steady(48, 24.0, begin_s=0.1), 0).frames == (0, 12, 24)


def test_a_still_of_no_duration() -> None:
    """One picture is one frame, and the rest is filled."""
    assert fps(4, 2)(ClipInfo(1, array("d", [0.0]), 0.0, 1, 1), 0) == ((0, 0), (True, False))


def test_random_begins_leave_room() -> None:
    """All frames real, wherever it begins, and it begins everywhere."""
    found = [fps(12, 12, "random")(steady(48), seed) for seed in range(200)]
    assert all(all(one.mask) for one in found)
    assert {one.frames[0] for one in found} == set(range(26))


def test_a_broken_duration_makes_no_endless_list() -> None:
    """A clip of thirty years."""
    with pytest.raises(SamplingError, match="more than 1048576"):
        fps(30)(ClipInfo(1, array("d", [0.0]), 1e9, 1, 1), 0)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((0,), ValueError), (("4",), TypeError), ((True,), TypeError), ((float("nan"),), ValueError), ((4, 0), ValueError),
        ((4, 2, -1.0), ValueError), ((4, 2, "begin"), TypeError), ((4, None, "random"), ValueError), ((4, 2, 0.0, "stop"), ValueError),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named_at_once(arguments: tuple[float], error: type[Exception]) -> None:
    """Where they are given, not in a worker."""
    with pytest.raises(error, match=r"^(rate|n|start_s|policy)"):
        fps(*arguments)
