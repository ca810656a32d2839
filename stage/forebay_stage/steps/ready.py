"""The ready-made steps: each function makes one of its options. Its name, options and first line are what ``forebay stage --help`` shows.

What needs Pillow or PyAV is imported when such a step is made, so that the others need neither.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from forebay_proxy.core.errors import ConfigError
from forebay_stage.steps.checks import Sample, Step

__all__ = ["clips", "frames", "min_side", "require", "resize"]

FORMATS = ("jpg", "png", "webp")
MOST_RATE = 1000.0


def resize(side: int = 0, longest: int = 0, quality: int = 0, format: str = "", field: str = "") -> Step:
    """Makes pictures smaller until the shorter side is at most side pixels, and the longer one at most longest.

    No picture is made larger. ``quality`` (1 to 100) and ``format`` (jpg, png, webp) encode it again; ``field`` names the one picture that
    is meant. A picture that needs no change keeps its bytes. What is encoded again is turned upright and loses its EXIF data. Masks have to
    be spared by ``field``, as their colours are mixed too.
    """
    if not (side or longest or quality or format):
        raise ValueError("it needs one of side, longest, quality or format")
    _check_picture(side, longest, quality, format)
    pictures = _needs("pictures", "forebay[stage]")
    return partial(pictures.resized, side=side, longest=longest, quality=quality, format=format, field=field)


def min_side(pixels: int, field: str = "") -> Step:
    """Leaves out samples that have a picture whose shorter side is below so many pixels.

    ``field`` names the one picture that is looked at.
    """
    if pixels < 1:
        raise ValueError(f"pixels={pixels} is below 1")
    return partial(_needs("pictures", "forebay[stage]").large_enough, pixels=pixels, field=field)


def frames(rate: float = 0.0, count: int = 0, side: int = 0, quality: int = 0, format: str = "jpg", field: str = "") -> Step:
    """Makes samples of single pictures from a video: rate pictures a second, or count of them, evenly spread.

    Each sample has the other fields too, and the number of its frame in its key: ``KEY_00012``. A frame is taken once, so a short video may
    give fewer. ``field`` names the video, where a sample has several. A sample without a video is left as it is.
    """
    if (rate > 0) == (count > 0):
        raise ValueError("it needs either rate or count, above 0")
    if not 0 <= rate <= MOST_RATE or count < 0:
        raise ValueError(f"rate={rate:g} and count={count}: a rate is at most {MOST_RATE:g}, and a count not below 0")
    _check_picture(side, 0, quality, format)
    return partial(
        _needs("videos", "forebay[stage,video]").frames_of,
        rate=rate, count=count, side=side, quality=quality, format=format or "jpg", field=field,
    )  # fmt: skip


def clips(seconds: float, field: str = "") -> Step:
    """Cuts a video into clips of at least so many seconds, each from one keyframe to another; the last may be shorter.

    Packets are copied, so no picture changes. The clips are ``KEY_00000`` and so on, with the other fields too. Each begins at a keyframe
    that no earlier picture depends on, and is decoded in part to see that it can be. A sample without a video is left as it is.
    """
    if not 0 < seconds < float("inf"):
        raise ValueError(f"seconds={seconds:g}: a number above 0 is wanted")
    return partial(_needs("clips", "forebay[video]").clips_of, seconds=seconds, field=field)


def require(*field: str) -> Step:
    """Leaves out samples that lack one of these fields."""
    if not field or not all(field):
        raise ValueError("it needs the names of fields, such as require,jpg,txt")
    return partial(_complete, fields=field)


def _complete(sample: Sample, *, fields: tuple[str, ...]) -> Sample | None:
    return sample if all(name in sample for name in fields) else None


def _check_picture(side: int, longest: int, quality: int, format: str) -> None:
    if side < 0 or longest < 0:
        raise ValueError(f"side={side} and longest={longest}: pixels are not below 0")
    if format not in ("", *FORMATS):
        raise ValueError(f"format={format} is none of {', '.join(FORMATS)}")
    if not 0 <= quality <= 100:
        raise ValueError(f"quality={quality} is not from 1 to 100")
    if quality and format == "png":
        raise ValueError("png has no quality: it loses nothing")


def _needs(module: str, packages: str) -> Any:
    try:
        return import_module(f"forebay_stage.steps.{module}")
    except ImportError as error:
        raise ConfigError(f"a step needs {error.name}, which is not installed", next_step=f"pip install '{packages}'") from error
