"""A camera, as far as it can be had without one: FFmpeg's own synthetic device."""

from __future__ import annotations

import pytest

from forebay_loader.videos.errors import UnsupportedVideo
from forebay_loader.videos.sources.choice import source_of
from forebay_loader.videos.sources.live_source import CameraSource


def test_frames_of_a_camera() -> None:
    """As they come, of the size that it has."""
    with source_of("lavfi://testsrc=size=64x48:rate=25") as source:
        assert (source.open().width, source.open().height) == (64, 48)
        found = source.frames([0, 1, 30])
    assert found.shape == (3, 48, 64, 3)
    assert (found[0] != found[2]).any()


def test_a_camera_that_is_not_there() -> None:
    """Named by its device."""
    with pytest.raises(UnsupportedVideo, match=r"^/dev/video97: cannot be opened"):
        CameraSource("/dev/video97").open()


def test_options_are_the_devices() -> None:
    """FFmpeg's synthetic one shows what its option says, whatever its name says."""
    with CameraSource("lavfi://color=size=32x32", options={"graph": "testsrc=size=64x48:rate=25"}) as source:
        assert source.frame(0).shape == (48, 64, 3)
