"""The table of an article on loading clips for training, made anew: from OpenCV as it is mostly written to what Forebay keeps.

32 clips of 300 frames (640 x 360, H.264 in groups of 30), 16 frames of each at 224 x 224, batches of 4, two workers:

| way | what it does |
|---|---|
| naive | a ``cv2.VideoCapture`` a sample, ``set`` and ``read`` a frame, no workers; a quarter of the clips, from local files |
| lazily opened | the same in two workers; a capture is opened at its first use, and stays open |
| fb.video, cold | ``uniform(16)`` from shards behind a slow origin, the sidecar's cache empty |
| all caches | the same, kept by ``fb.memo``: the epochs behind the first |
| random, decoded | ``clip('random', 16, 2)``, other frames in each epoch, from the sidecar's cache |
| fb.frames | the same, once all frames are kept |

Utilisation is that of a step that sleeps, 0.3 s to the 8.2 s of a naive batch, as in the article.
"""

from __future__ import annotations

import io
import shutil
import struct
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
from torch.utils.data import DataLoader, Dataset
from video_clips import clip

import forebay_loader as fb
from forebay_loader.videos.sampling.sampler import even_places

__all__ = ["STEP", "Passed", "busy", "even", "fill", "filling", "naive", "passed", "random_frames", "write_clips"]

BATCH, FRAMES, EDGE, WORKERS = 4, 16, 224, 2
RANDOM = f"clip('random', {FRAMES}, 2)"
STEP = 0.3 / 8.2  # of a naive batch
PATIENCE_S = 900.0
FILLER_ENDS_S = 7.0  # it ends 5 s after the last who trained


class OpenCV(Dataset[Any]):
    """As tutorials write it. ``kept_open``: a clip's capture stays open in the worker that first used it."""

    def __init__(self, paths: Sequence[Path], kept_open: bool) -> None:
        self._paths, self._kept_open = paths, kept_open
        self._open: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> tuple[Any, str]:
        import cv2  # noqa: PLC0415

        capture = self._open.get(number) or cv2.VideoCapture(str(self._paths[number]))
        frames = []
        for place in even_places(0, int(capture.get(cv2.CAP_PROP_FRAME_COUNT)) - 1, FRAMES):
            capture.set(cv2.CAP_PROP_POS_FRAMES, place)
            frames.append(cv2.resize(capture.read()[1], (EDGE, EDGE), interpolation=cv2.INTER_AREA)[..., ::-1])
        if self._kept_open:
            self._open[number] = capture
        else:
            capture.release()
        return numpy.stack(frames), self._paths[number].stem


@dataclass
class Passed:
    """What a pass took, and the frames by clip, of each the first that came."""

    seconds: float = 0.0
    batches: int = 0
    samples: int = 0
    frames: dict[str, Any] = field(default_factory=dict)

    @property
    def batch_ms(self) -> float:
        return 1e3 * self.seconds / self.batches

    @property
    def samples_s(self) -> float:
        return self.samples / self.seconds


def write_clips(folder: Path, count: int, shape: dict[str, int]) -> list[Path]:
    """``count`` clips of four kinds and no two alike, in files of their own and in a shard for each worker; the files."""
    kinds = [clip(seed, **shape) for seed in range(4)]
    paths = []
    for worker in range(WORKERS):
        with tarfile.open(folder / f"article-{worker}.tar", "w") as tar:
            for number in range(worker, count, WORKERS):
                data = kinds[number % 4] + struct.pack(">I4sI", 12, b"free", number)
                paths.append(folder / f"{number:05}.mp4")
                paths[-1].write_bytes(data)
                entry = tarfile.TarInfo(paths[-1].name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
    return sorted(paths)


def naive(paths: Sequence[Path], workers: int) -> Any:
    """OpenCV's loader."""
    return DataLoader(OpenCV(paths, workers > 0), BATCH, num_workers=workers, persistent_workers=workers > 0)


def loading(urls: Sequence[str], *stages: Any, epochs: int = 1) -> Any:
    """A loader of ``epochs`` passes in one, whose workers stay."""
    dataset = fb.WebDataset(list(urls), shardshuffle=False)
    for stage in stages:
        dataset = dataset.compose(stage)
    whole = dataset.repeat(epochs).to_tuple("frames", "__key__").batched(BATCH)
    return fb.WebLoader(whole, batch_size=None, num_workers=WORKERS, persistent_workers=True)


def even(urls: Sequence[str], memo: Path | None = None, epochs: int = 1) -> Any:
    """A loader of ``uniform(16)``; with ``memo`` its results are kept there."""
    stages = [fb.video(f"uniform({FRAMES})", size=(EDGE, EDGE))]
    return loading(urls, *stages, *([fb.memo(folder=memo, size="8GB", key="mp4")] if memo else []), epochs=epochs)


def passed(loader: Any) -> Passed:
    """One pass, as fast as batches come."""
    made, begin = Passed(), time.perf_counter()
    for frames, keys in loader:
        made.batches += 1
        made.samples += len(keys)
        for key, one in zip(keys, frames, strict=True):
            made.frames.setdefault(key, one)
    made.seconds = time.perf_counter() - begin
    return made


def busy(loader: Any, step_s: float) -> float:
    """The share of a pass, in percent, in which a step was under way."""
    worked_s, begin = 0.0, time.perf_counter()
    for _ in loader:
        started = time.perf_counter()
        time.sleep(step_s)
        worked_s += time.perf_counter() - started
    return 100 * worked_s / (time.perf_counter() - begin)


def random_frames(urls: Sequence[str], folder: Path | None, epochs: int = 1) -> Any:
    """A loader of other frames in each epoch; with ``folder`` by ``fb.frames``."""
    kept = None if folder is None else fb.frames(folder=folder, size="8GB")
    return loading(urls, fb.video(RANDOM, size=(EDGE, EDGE), frames=kept), epochs=epochs)


def filling(urls: Sequence[str], folder: Path, rounds: int) -> tuple[float, float]:
    """Seconds of ``rounds`` passes that decode, and of as many that also fill ``fb.frames``, each an empty folder. By turns."""
    took = [0.0, 0.0]
    for number in range(rounds):
        for keeping in (number % 2, 1 - number % 2):
            place = folder / str(number)
            took[keeping] += passed(random_frames(urls, place if keeping else None)).seconds
            if keeping:
                time.sleep(FILLER_ENDS_S)
                shutil.rmtree(place)
    return took[0], took[1]


def fill(urls: Sequence[str], folder: Path, clips: int) -> None:
    """Train over it until all frames of every clip are kept."""
    loader, hits, end_s = random_frames(urls, folder), 0, time.monotonic() + PATIENCE_S
    while hits < clips:
        if time.monotonic() > end_s:
            raise TimeoutError(f"only {hits} of {clips} clips are kept: {fb.counters()}")
        before = fb.counters()["frames_hits"]
        passed(loader)
        hits = fb.counters()["frames_hits"] - before
