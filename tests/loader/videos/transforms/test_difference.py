"""What changed, pixel by pixel."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forebay_loader.videos.transforms import frame_difference


@given(st.integers(0, 5), st.integers(1, 4), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_plain_subtraction_says_the_same(count: int, height: int, width: int, seed: int) -> None:
    """Number by number, in Python's integers; torch like numpy."""
    frames = numpy.random.default_rng(seed).integers(0, 256, (count, height, width, 3), numpy.uint8)
    found = frame_difference(frames)
    assert found.dtype == numpy.int16
    assert found.shape == (max(count - 1, 0), height, width, 3)
    for place, change in numpy.ndenumerate(found):
        assert change == int(frames[(place[0] + 1, *place[1:])]) - int(frames[place])
    other = frame_difference(torch.from_numpy(frames))
    assert other.dtype == torch.int16
    assert numpy.array_equal(other.numpy(), found)


@pytest.mark.parametrize("frames", [numpy.zeros((2, 2), numpy.float32), torch.zeros(2, 2), numpy.zeros((), numpy.uint8)])
def test_others_are_refused(frames: Any) -> None:
    """By their type, which is named."""
    with pytest.raises(TypeError, match="frames are T x H x W x C uint8; got"):
        frame_difference(frames)
