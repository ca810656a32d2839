"""Pictures: how large they are, and smaller ones that are encoded again. Needs Pillow."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from PIL import Image, UnidentifiedImageError
from PIL.ExifTags import Base

from forebay_stage.steps.checks import Sample

__all__ = ["encoded", "large_enough", "resized"]

_KINDS = {"jpg": "jpg", "jpeg": "jpg", "png": "png", "webp": "webp"}
_READ_ONLY = {"bmp": "jpg", "gif": "jpg"}  # and what they are encoded as, where nothing else is asked for
_NAMES = {"jpg": "JPEG", "png": "PNG", "webp": "WEBP"}
_READ = (*_NAMES.values(), "BMP", "GIF")  # and no others: EPS starts a program
_TURNS = dict(zip(range(2, 9), (
    Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.ROTATE_180, Image.Transpose.FLIP_TOP_BOTTOM, Image.Transpose.TRANSPOSE,
    Image.Transpose.ROTATE_270, Image.Transpose.TRANSVERSE, Image.Transpose.ROTATE_90,
), strict=True))  # fmt: skip  # by EXIF's orientation
_SAME = {"MPO": "JPEG"}  # what cameras of two lenses write: a JPEG with a second one behind it
QUALITY = 90
WHITE = (255, 255, 255, 255)
OVERSAMPLED = 2  # a JPEG is decoded at a fraction of its size where that is at least so often what is wanted


def resized(sample: Sample, *, side: int, longest: int, quality: int, format: str, field: str) -> Sample:
    """``sample`` with its pictures as ``ready.resize`` says."""
    made: Sample = {}
    for name, data in sample.items():
        kind = _kind(name, field)
        if kind is None:
            made[name] = data
            continue
        kind = format or kind
        stem, _, extension = name.rpartition(".")
        called = name if _KINDS.get(extension) == kind else f"{stem}.{kind}" if stem else kind
        if called in made or (called != name and called in sample):
            raise ValueError(f"the picture {name!r} would take the place of the field {called!r}: say which one is meant with field=")
        with _opened(data, name) as image:
            made[called] = _fitted(image, data, side, longest, quality, kind)
    return made


def large_enough(sample: Sample, *, pixels: int, field: str) -> Sample | None:
    """``sample``, or None where one of its pictures is smaller than ``pixels``. Only the pictures' headers are read."""
    for name, data in sample.items():
        if _kind(name, field) is not None:
            with _opened(data, name) as image:
                if min(image.size) < pixels:
                    return None
    return sample


def encoded(image: Image.Image, kind: str, quality: int, profile: bytes | None = None) -> bytes:
    """``image`` as a file of ``kind``: jpg, png or webp. A JPEG has no transparency: white shows through."""
    room = io.BytesIO()
    options: dict[str, Any] = {} if kind == "png" else {"quality": quality or QUALITY}
    image.save(room, _NAMES[kind], icc_profile=profile, **options)
    return room.getvalue()


def _kind(name: str, field: str) -> str | None:
    """As what the picture ``name`` is encoded, None for what is no picture or is not meant."""
    if name.startswith("__") or (field and name != field):
        return None
    return (_KINDS | _READ_ONLY).get(name.rpartition(".")[2], "jpg" if field else None)


@contextmanager
def _opened(data: bytes, name: str) -> Iterator[Image.Image]:
    """A picture of which only the header has been read. What Pillow warns of for its size is an error: it would fill the memory."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(io.BytesIO(data), formats=_READ) as image:
                yield image
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            said = "it is not a picture of a known format" if isinstance(error, UnidentifiedImageError) else str(error)
            raise ValueError(f"{name} ({len(data)} bytes): {said}") from error


def _fitted(image: Image.Image, data: bytes, side: int, longest: int, quality: int, kind: str) -> bytes:
    width, height = image.size
    scale = min(1.0, side / min(width, height) if side else 1.0, longest / max(width, height) if longest else 1.0)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    turn = _TURNS.get(image.getexif().get(Base.Orientation, 1))
    is_kind = _SAME.get(image.format or "", image.format) == _NAMES[kind]
    if size == image.size and is_kind and turn is None and not quality:
        return data
    profile = image.info.get("icc_profile") if image.mode == "RGB" else None  # of other modes it is about other colours
    image.draft(None, (size[0] * OVERSAMPLED, size[1] * OVERSAMPLED))
    plain = _plain(image, kind)
    if size != plain.size:
        plain = plain.resize(size, Image.Resampling.LANCZOS, reducing_gap=float(OVERSAMPLED))
    if turn is not None:
        plain = plain.transpose(turn)
    plain.info = {}  # of which PNG would write some
    return encoded(plain, kind, quality, profile)


def _plain(image: Image.Image, kind: str) -> Image.Image:
    """``image`` in eight bits a channel, without a palette."""
    if image.mode.startswith(("I", "F")):
        raise ValueError(f"its pixels have more than 8 bits (mode {image.mode}): resize knows no such pictures; spare it with field=")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        if kind != "jpg":
            return image
        image = Image.alpha_composite(Image.new("RGBA", image.size, WHITE), image)
    if image.mode in ("L", "RGB"):
        return image
    return image.convert("L" if image.mode == "1" else "RGB")
