"""WebDataset shards of real photographs: crops and flips of the JPEGs that scikit-image and scikit-learn carry in their wheels.

The class of a sample says which photograph it was cut from and whether it was mirrored: something for a small network to learn. JPEG does
not compress further, so no layer between origin and trainer can cheat.
"""

from __future__ import annotations

import importlib.util
import io
import multiprocessing
import os
import random
import sys
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

__all__ = ["Built", "NoPhotographs", "build", "member_boundary", "photographs", "sample_names"]

# Photographs, all of them JPEG in the wheel: (package, path in it).
_PICTURES = (
    ("sklearn", "datasets/images/china.jpg"),  # a temple in Beijing, CC BY 2.0
    ("sklearn", "datasets/images/flower.jpg"),  # a dahlia, CC BY 2.0
    ("skimage", "data/rocket.jpg"),  # a launch, public domain
    ("skimage", "data/retina.jpg"),  # the back of an eye, public domain
    ("skimage", "data/hubble_deep_field.jpg"),  # galaxies, public domain (NASA)
)
# High quality and no colour subsampling: about 100 kB a sample, the size of the photographs people train on.
_QUALITY = 96
_CROP = (660, 440)  # pixels at most


class NoPhotographs(Exception):
    """The packages that carry the photographs are not installed."""


@dataclass(frozen=True)
class Built:
    """What was made: the shards' names in ``directory``, how many samples and bytes they hold together."""

    directory: Path
    names: tuple[str, ...]
    samples: int
    bytes: int


def photographs() -> list[Path]:
    """The JPEG files, in the order of their classes. Looks in ``$FOREBAY_PHOTOGRAPHS``, beside the environment, among its packages."""
    found = [path for package, name in _PICTURES if (path := _find(package, name)) is not None]
    if not found:
        raise NoPhotographs("no photographs here; this fetches them: pip install --no-deps scikit-image scikit-learn")
    return found


def _find(package: str, name: str) -> Path | None:
    places = [Path(sys.prefix, "photographs", package)]
    if "FOREBAY_PHOTOGRAPHS" in os.environ:
        places.insert(0, Path(os.environ["FOREBAY_PHOTOGRAPHS"], package))
    spec = importlib.util.find_spec(package)  # finds a package without importing it, and without what it depends on
    if spec is not None and spec.origin:
        places.append(Path(spec.origin).parent)
    return next((place / name for place in places if (place / name).is_file()), None)


def build(directory: Path, count: int, shard_bytes: int, progress: Callable[[int], None] = lambda done: None) -> Built:
    """Write ``count`` shards of about ``shard_bytes`` each into ``directory``; ``progress`` hears how many are done.

    The same arguments give the same samples. Raises ``NoPhotographs``.
    """
    pictures = photographs()
    names = tuple(f"photos-{index:04d}.tar" for index in range(count))
    samples = 0
    spawned = multiprocessing.get_context("spawn")  # not forked: a thread may be drawing the status line
    with ProcessPoolExecutor(min(count, os.cpu_count() or 1), spawned) as pool:
        jobs = [pool.submit(_write_shard, directory / name, index, shard_bytes, pictures) for index, name in enumerate(names)]
        for done, job in enumerate(as_completed(jobs), 1):
            samples += job.result()
            progress(done)
    return Built(directory, names, samples, sum((directory / name).stat().st_size for name in names))


def _write_shard(path: Path, index: int, shard_bytes: int, pictures: list[Path]) -> int:
    """One shard; returns how many samples it holds."""
    chance = random.Random(f"forebay demo {index}")
    originals = [_load(picture) for picture in pictures]
    count = 0
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        while tar.offset < shard_bytes:
            picture, mirrored = chance.randrange(len(originals)), chance.random() < 0.5
            key, label = f"{index:04d}-{count:05d}", 2 * picture + mirrored
            _add(tar, f"{key}.jpg", _crop(originals[picture], chance, mirrored))
            _add(tar, f"{key}.cls", str(label).encode())
            count += 1
    return count


def _load(picture: Path) -> Image.Image:
    with Image.open(picture) as image:
        return image.convert("RGB")


def _crop(original: Image.Image, chance: random.Random, mirrored: bool) -> bytes:
    """A crop of 60 to 100 % of the largest size as JPEG."""
    scale = chance.uniform(0.6, 1.0)
    width, height = (int(min(limit, side) * scale) for limit, side in zip(_CROP, original.size, strict=True))
    left, top = chance.randint(0, original.width - width), chance.randint(0, original.height - height)
    crop = original.crop((left, top, left + width, top + height))
    if mirrored:
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    out = io.BytesIO()
    crop.save(out, "JPEG", quality=_QUALITY, subsampling=0)
    return out.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def _samples(path: Path) -> Iterator[tuple[str, int]]:
    """(sample name, offset of its first header) in the order of the shard."""
    previous = ""
    with tarfile.open(path) as tar:
        for member in tar:
            key = member.name.partition(".")[0]
            if key != previous:
                yield key, member.offset
            previous = key


def sample_names(path: Path) -> list[str]:
    return [key for key, _ in _samples(path)]


def member_boundary(path: Path, share: float) -> tuple[int, int]:
    """Where the sample at ``share`` (0 to 1) of the shard begins: (offset in bytes, samples before it).

    A body cut there is still a well-formed tar, only shorter: nothing in it says that something is missing.
    """
    offsets = [offset for _, offset in _samples(path)]
    before = int(len(offsets) * share)
    return offsets[before], before
