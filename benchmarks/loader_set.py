"""The samples every contender reads: real JPEGs of a size that is asked for, each another, with a class beside it, in plain tars."""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

__all__ = ["Made", "make_set"]

_PICTURES = 16  # decoded anew each time they come; what follows the end of the picture makes each file another
_SIDES = {10_000: 160, 100_000: 512}


@dataclass(frozen=True)
class Made:
    """``shards`` of ``samples`` samples in all."""

    shards: list[Path]
    samples: int


def make_set(directory: Path, kilobytes: int, samples: int, shards: int, *, classes: bool = True, texts: bool = False) -> Made:
    """``shards`` tars in ``directory``; a sample is a ``.jpg`` of ``kilobytes`` (10^3) and, if ``classes``, a ``.cls`` of a few bytes.

    ``texts``: also a ``.txt``, so that a sample has three files.
    """
    directory.mkdir(parents=True)
    content = _contents(kilobytes * 1000)
    each = samples // shards
    paths = []
    for shard in range(shards):
        path = directory / f"train-{shard:04d}.tar"
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
            for number in range(shard * each, shard * each + each):
                _add(tar, f"{number:08d}.jpg", next(content))
                if classes:
                    _add(tar, f"{number:08d}.cls", b"%d" % (number % 1000))
                if texts:
                    _add(tar, f"{number:08d}.txt", b"picture %d of this set, and what is to be seen on it" % number)
        paths.append(path)
    return Made(paths, each * shards)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.uname = len(data), 1_700_000_000, "train"
    tar.addfile(entry, io.BytesIO(data))


def _contents(size: int) -> Iterator[bytes]:
    draw = random.Random(size)
    side = _SIDES.get(size, 160)
    pictures = [_picture(draw, side, size) for _ in range(_PICTURES)]
    while True:
        for picture in pictures:
            yield picture + draw.randbytes(max(size - len(picture), 16))  # decoders stop where the picture ends


def _picture(draw: random.Random, side: int, most: int) -> bytes:
    """Soft shapes with some grain, as photographs have, in the best quality that fits ``most`` bytes."""
    image = Image.frombytes("RGB", (12, 12), draw.randbytes(432)).resize((side, side * 3 // 4), Image.Resampling.BICUBIC)
    grain = Image.frombytes("RGB", image.size, draw.randbytes(image.width * image.height * 3))
    image = Image.blend(image, grain, 0.12)
    low, high = 5, 95
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if len(_jpeg(image, middle)) < most - 16 else (low, middle - 1)
    return _jpeg(image, low)


def _jpeg(image: Image.Image, quality: int) -> bytes:
    made = io.BytesIO()
    image.save(made, "JPEG", quality=quality)
    return made.getvalue()
