"""Batches of eight clips, eight frames of each, 224 x 224: a first version, with workers, and mapped; and how busy each keeps a trainer.

| row | reads | frames |
|---|---|---|
| naive | OpenCV, each clip from the origin, frame by frame | in the trainer (``num_workers=0``) |
| naive, workers | the same | in workers |
| mapped, cold | shards through a sidecar that has none of them, announced ahead | in workers |
| mapped | the same shards, of the sidecar's files | in workers |

The trainer is an emulated step: it sleeps for as long as its batch takes, as in plan_stall.py. It takes 1 / 1.1 of what *mapped* brings.
"""

from __future__ import annotations

import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from figures import Figure, at_least
from video_bench import FRAMES, Scale, behind, say
from video_clips import write_shards
from video_ways import opencv_whole

import forebay_loader as fb

__all__ = ["figures"]

BATCH = 8
SPARE = 1.1  # of what mapped brings, to what the step takes
LEAST_BUSY = 90.0
NAIVE_BATCHES = 2
SIDE = 224


class Naive(torch.utils.data.Dataset[Any]):
    """Clips at their URLs."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls

    def __len__(self) -> int:
        return len(self._urls)

    def __getitem__(self, number: int) -> Any:
        return opencv_whole(self._urls[number])


@dataclass(frozen=True)
class Pass:
    """Seconds of all of it, from before its workers are made; and, once each worker has brought a batch, of work, and of it and waiting."""

    seconds: float
    clips: int
    busy_s: float
    seen_s: float
    steps: int

    @property
    def batch_s(self) -> float:
        return self.seconds * BATCH / self.clips

    @property
    def busy(self) -> float:
        """In %; nan where there were too few batches."""
        return 100 * self.busy_s / self.seen_s if self.steps > 0 else float("nan")

    @property
    def wait_s(self) -> float:
        return (self.seen_s - self.busy_s) / self.steps if self.steps > 0 else float("nan")


def figures(scale: Scale, folder: Path) -> list[Figure]:
    say("batches: making clips")
    write_shards(folder, scale.shards, scale.clips, **scale.clip_shape())
    _unpacked(folder, scale)
    with behind(scale, folder) as origin:
        files = [origin.url(f"{number}.mp4") for number in range(scale.shards * scale.clips)]
        shards = [origin.url(f"clips-{shard:03}.tar") for shard in range(scale.shards)]
        workers = scale.workers
        naive = files[: BATCH * NAIVE_BATCHES * max(workers, 1)]
        ways: dict[str, tuple[int, Callable[[], Iterable[Any]]]] = {
            "naive": (0, lambda: _naive(naive[: BATCH * NAIVE_BATCHES], 0)),
            f"naive, {workers} workers": (workers, lambda: _naive(naive, workers)),
            f"mapped, cold, {workers} workers": (workers, lambda: _mapped(shards, workers)),
            f"mapped, {workers} workers": (workers, lambda: _mapped(shards, workers)),
            "mapped, no workers": (0, lambda: _mapped(shards, 0)),
        }
        ours = f"mapped, {workers} workers"
        loads = {}
        for name, (count, way) in ways.items():
            say(f"batches: {name}")
            loads[name] = passed(way(), 0.0, count)
        step_s = loads[ours].batch_s * SPARE
        trained = {}
        for name, (count, way) in ways.items():
            if "cold" not in name:  # it is warm by now
                say(f"batches: {name}, with a step of {1e3 * step_s:.0f} ms")
                trained[name] = passed(way(), step_s, count)
    return _rows(scale, loads, trained, step_s, ours)


def _rows(scale: Scale, loads: dict[str, Pass], trained: dict[str, Pass], step_s: float, ours: str) -> list[Figure]:
    rows = []
    for name, load in loads.items():
        rows += [
            Figure(f"batches, {name}: a batch", 1e3 * load.batch_s, "ms"),
            Figure(f"batches, {name}: samples", BATCH / load.batch_s, "/s"),
            Figure(f"batches, {name}: times naive", loads["naive"].batch_s / load.batch_s, "x"),
        ]
    for name, done in trained.items():
        what = f"batches, {name}: busy, of a step of {1e3 * step_s:.0f} ms a batch"
        rows.append(at_least(what, done.busy, LEAST_BUSY, "%") if name == ours and scale.judged else Figure(what, done.busy, "%"))
        rows.append(Figure(f"batches, {name}: the trainer waits for a batch", 1e3 * done.wait_s, "ms"))
    return rows


def passed(batches: Iterable[Any], step_s: float, workers: int) -> Pass:
    """One pass of a trainer that works ``step_s`` seconds on each batch. The workers' first batches come together, and say nothing."""
    begun = time.perf_counter()
    arrivals: list[float] = []
    clips = 0
    for frames in batches:
        arrivals.append(time.perf_counter())
        clips += len(frames)
        time.sleep(step_s)
    seen = arrivals[max(workers - 1, 0) :]
    steps = len(seen) - 1
    return Pass(time.perf_counter() - begun, clips, steps * step_s, seen[-1] - seen[0] if steps > 0 else 0.0, steps)


def _naive(urls: list[str], workers: int) -> Iterator[Any]:
    return iter(torch.utils.data.DataLoader(Naive(urls), batch_size=BATCH, num_workers=workers, collate_fn=numpy.stack))


def _mapped(urls: list[str], workers: int) -> Iterator[Any]:
    dataset = fb.WebDataset(urls).compose(fb.video(f"uniform({FRAMES})", size=(SIDE, SIDE))).to_tuple("frames")
    stacked = dataset.batched(BATCH, partial=True)
    return (frames for (frames,) in torch.utils.data.DataLoader(stacked, batch_size=None, num_workers=workers))


def _unpacked(folder: Path, scale: Scale) -> None:
    """The clips as files, for OpenCV."""
    for shard in range(scale.shards):
        with tarfile.open(folder / f"clips-{shard:03}.tar") as tar:
            for member in tar:
                if member.name.endswith(".mp4") and (content := tar.extractfile(member)) is not None:
                    (folder / f"{int(member.name[:-4])}.mp4").write_bytes(content.read())
