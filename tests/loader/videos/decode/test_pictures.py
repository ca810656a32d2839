"""Arrays of frames: size, rotation, and pixels of every format."""

from __future__ import annotations

import io
import shutil
import subprocess
from pathlib import Path
from typing import Any

import av
import numpy
import pytest
from support.clips import frame_number, pictures_of, rendered

from forebay_loader.videos.decode.pictures import Pictures
from forebay_loader.videos.errors import UnsupportedVideo
from forebay_loader.videos.sources.choice import source_of

FFMPEG, RAW = ["ffmpeg", "-v", "error", "-i"], ["-vsync", "0", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("turn", [0, 90, 180, 270])
@pytest.mark.parametrize("container", ["mp4", "mov", "matroska", "webm"])
def test_pictures_are_upright(container: str, turn: int, mirrored: bool, tmp_path: Path) -> None:
    """The container's matrix turns and mirrors them, all of a clip and by number, as the ffmpeg command does where it is installed."""
    codec = "libvpx-vp9" if container == "webm" else "libx264"
    data = rendered(codec=codec, container=container, frames=6, rotation_deg=turn, mirrored=mirrored)
    turned = [numpy.rot90(picture, turn // 90) for picture in pictures_of(data)]
    upright = numpy.stack([picture[:, ::-1] if mirrored else picture for picture in turned])
    with source_of(data) as source:
        assert numpy.array_equal(source.frames(range(6)), upright)
        assert numpy.array_equal(source.frame(5), upright[5])
    if shutil.which("ffmpeg"):
        (tmp_path / "clip").write_bytes(data)
        shown = subprocess.run([*FFMPEG, tmp_path / "clip", *RAW], stdout=subprocess.PIPE, check=True, timeout=60).stdout
        assert numpy.abs(numpy.frombuffer(shown, numpy.uint8).reshape(upright.shape) - upright.astype(int)).max() < 4


def test_the_size_is_of_the_upright_picture() -> None:
    """Height first, whichever way the picture was coded; the shorter side is found after the turn."""
    data = rendered(rotation_deg=90)
    with source_of(data, size=(60, 40)) as source:
        assert source.frame(0).shape == (60, 40, 3)
    with source_of(data, size=48) as source:
        assert source.frame(0).shape == (64, 48, 3)


def test_a_smaller_picture_shows_the_same() -> None:
    """Resized as libswscale does it, in the same pass."""
    data = rendered()
    with av.open(io.BytesIO(data)) as container:
        there = next(container.decode(video=0)).reformat(width=64, height=48, format="rgb24").to_ndarray()
    with source_of(data, size=48) as source:
        assert numpy.array_equal(source.frame(0), there)
        assert frame_number(source.frame(37)) == 37


def test_a_width_that_fills_no_whole_line() -> None:
    """Lines of a decoder's picture are longer than the picture."""
    data = rendered(width=106, height=98)
    with source_of(data) as source:
        assert numpy.array_equal(source.frames([0, 30]), numpy.stack([pictures_of(data)[number] for number in (0, 30)]))


@pytest.mark.parametrize(
    "how",
    [
        {"pix_fmt": "yuvj420p"},
        {"pix_fmt": "gray"},
    ],
    ids=["full range", "grey"],
)
def test_odd_pixels(how: dict[str, Any]) -> None:
    """Eight bits of red, green and blue, as PyAV converts them."""
    data = rendered(**how)
    with source_of(data) as source:
        assert numpy.array_equal(source.frame(3), pictures_of(data)[3])


@pytest.mark.parametrize(("width", "height"), [(0, 96), (1 << 16, 1 << 16)])
def test_a_header_may_say_anything(width: int, height: int) -> None:
    """No memory is taken for it."""
    with pytest.raises(UnsupportedVideo, match=f"{width} x {height}"):
        Pictures(width, height)
