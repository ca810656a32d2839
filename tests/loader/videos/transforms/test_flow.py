"""Optical flow: where squares of pixels went, by a search over all places, and each pair once."""

from __future__ import annotations

import os
import sys
from typing import Any
from unittest import mock

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

with mock.patch.dict(os.environ):  # its import sets LD_LIBRARY_PATH, and this process starts programs of other tests
    cv2 = pytest.importorskip("cv2", reason="optical flow is the extra `flow`: opencv-python-headless is not installed")

from forebay_loader.videos.transforms import optical_flow

SIDE = 64


def textured(seed: int = 0) -> Any:
    """Smooth and different everywhere, as pictures are."""
    noise = numpy.random.default_rng(seed).integers(0, 256, (SIDE + 32, SIDE + 32), numpy.uint8)
    return cv2.GaussianBlur(noise, (0, 0), 2.0)


def moved(picture: Any, right: int, down: int) -> Any:
    """A window on ``picture`` in which all moved so far."""
    return picture[16 - down : 16 - down + SIDE, 16 - right : 16 - right + SIDE]


def searched(before: Any, behind: Any, top: int, left: int, reach: int = 8) -> tuple[int, int]:
    """(right, down) of the 16 x 16 square at (top, left): where the sum of squares is least, all places tried."""
    square = before[top : top + 16, left : left + 16].astype(int)
    places = [(right, down) for right in range(-reach, reach + 1) for down in range(-reach, reach + 1)]

    def difference(place: tuple[int, int]) -> int:
        there = behind[top + place[1] : top + place[1] + 16, left + place[0] : left + place[0] + 16].astype(int)
        return int(((there - square) ** 2).sum())

    return min(places, key=difference)


@settings(max_examples=15, deadline=None)
@given(st.integers(-4, 4), st.integers(-4, 4), st.sampled_from(["dis", "farneback"]), st.integers(0, 9))
def test_a_search_over_all_places_says_the_same(right: int, down: int, method: str, seed: int) -> None:
    """To half a pixel, in the middle of the picture."""
    before, behind = moved(textured(seed), 0, 0), moved(textured(seed), right, down)
    plain = searched(before, behind, 24, 24)
    assert plain == (right, down)
    flow = optical_flow(numpy.stack([before, behind]), method)
    assert flow.shape == (1, SIDE, SIDE, 2)
    assert flow.dtype == numpy.float32
    assert numpy.median(flow[0, 16:48, 16:48], axis=(0, 1)) == pytest.approx(plain, abs=0.5)


def test_colours_are_made_grey() -> None:
    """As OpenCV does it."""
    frames = numpy.stack([moved(textured(), 0, 0), moved(textured(), 2, 0)])
    assert numpy.array_equal(optical_flow(numpy.repeat(frames[..., None], 3, axis=3)), optical_flow(frames))


@pytest.mark.parametrize("count", [0, 1])
def test_no_pair_no_flow(count: int) -> None:
    """An empty array of the right shape."""
    assert optical_flow(numpy.zeros((count, 20, 30, 3), numpy.uint8)).shape == (0, 20, 30, 2)


def test_each_pair_once() -> None:
    """A frame that is repeated moved nowhere; a pair that comes again has the same flow."""
    picture = textured()
    first, second = moved(picture, 0, 0), moved(picture, 3, 1)
    frames, numbers = numpy.stack([first, second, second, first, second]), [7, 9, 9, 7, 9]
    calls = []
    real = cv2.calcOpticalFlowFarneback
    with mock.patch.object(cv2, "calcOpticalFlowFarneback", lambda *how: calls.append(1) or real(*how)):
        found = optical_flow(frames, "farneback", numbers=numbers)
        assert len(calls) == 2
        plain = optical_flow(frames, "farneback")
    assert not found[1].any()
    assert numpy.array_equal(found[3], found[0])
    assert numpy.array_equal(found[[0, 2, 3]], plain[[0, 2, 3]])


def test_frames_that_lie_apart_in_memory() -> None:
    """A view of every other column is a picture too."""
    wide = numpy.random.default_rng(1).integers(0, 256, (2, 20, 40, 3), numpy.uint8)
    assert numpy.array_equal(optical_flow(wide[:, :, ::2]), optical_flow(wide[:, :, ::2].copy()))


def test_threads_are_as_before() -> None:
    """OpenCV's number is the program's."""
    cv2.setNumThreads(3)
    try:
        optical_flow(numpy.zeros((2, 20, 20), numpy.uint8))
        assert cv2.getNumThreads() == 3
    finally:
        cv2.setNumThreads(-1)


@pytest.mark.parametrize(
    ("frames", "how", "error", "told"),
    [
        (numpy.zeros((2, 20, 20), numpy.float32), {}, TypeError, "float32"),
        ([[1]], {}, TypeError, "list"),
        (numpy.zeros((2, 20, 20, 4), numpy.uint8), {}, ValueError, "got shape"),
        (numpy.zeros((2, 8, 20, 3), numpy.uint8), {}, ValueError, "from 16"),
        (numpy.zeros((2, 20, 20), numpy.uint8), {"method": "raft"}, ValueError, "dis, farneback; got 'raft'"),
        (numpy.zeros((2, 20, 20), numpy.uint8), {"numbers": [1]}, ValueError, "1 of 2"),
    ],
)
def test_others_are_refused(frames: Any, how: dict[str, Any], error: type[Exception], told: str) -> None:
    """With what would be right."""
    with pytest.raises(error, match=told):
        optical_flow(frames, **how)


def test_without_opencv_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is asked for, and not before."""
    name = "forebay_loader.videos.transforms"
    monkeypatch.setitem(sys.modules, "cv2", None)
    monkeypatch.delitem(sys.modules, f"{name}.flow", raising=False)
    transforms = sys.modules[name]
    with pytest.raises(ModuleNotFoundError, match=r"install forebay\[flow\]"):
        _ = transforms.optical_flow
