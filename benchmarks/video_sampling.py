"""Eight frames of a clip: beside decoding all of it, and beside torchcodec and SPDL, which are given the bytes first.

Of the processor, a clip, in one thread each; then by the clock with all processors. Ours come from a warm shard, out of its tar.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from figures import Figure, at_most
from video_bench import FRAMES, PROCESSORS, Scale, behind, farthest, say, spent
from video_clips import write_shards
from video_ways import others, spdl_threads, whole

import forebay_loader as fb

__all__ = ["figures"]

LEAST_TIMES = 3.0
SAME = 1.0  # mean difference, of 255


def figures(scale: Scale, folder: Path) -> list[Figure]:
    say("sampling: making clips")
    write_shards(folder, scale.shards, scale.clips, **scale.clip_shape())
    files = [folder / f"clips-{shard:03}.tar" for shard in range(scale.shards)]
    with behind(scale, folder) as origin:
        urls = [origin.url(file.name) for file in files]
        for _ in _samples(urls, "keyframes(1)"):  # it is warm, and indexed
            pass
        return [*_one_thread(scale, files[:2], urls[:2]), *_all_processors(files, urls)]


def _one_thread(scale: Scale, files: list[Path], urls: list[str]) -> list[Figure]:
    clips = list(_members(files))
    found, missing = others()
    say("sampling: ours, from a shard")
    ours_ms, frames = _of_a_shard(urls, f"uniform({FRAMES})")
    rows = [
        Figure(f"sampling: {FRAMES} of a clip's frames from a shard, of the processor", ours_ms, "ms"),
        Figure(f"sampling: the same, keyframes({FRAMES})", _of_a_shard(urls, f"keyframes({FRAMES})")[0], "ms"),
        Figure(f"sampling: the same, uniform({FRAMES}), 224 x 224", _of_a_shard(urls, f"uniform({FRAMES})", (224, 224))[0], "ms"),
    ]
    for name, way, least in (("all of it, by a temporary file", whole, LEAST_TIMES), *((*one, 1.0) for one in found.items())):
        say(f"sampling: {name}")
        way(clips[0])
        took, given = spent(lambda way=way: [way(data) for data in clips])  # type: ignore[misc]
        their_ms = 1e3 * took.processor_s / len(clips)
        apart = max(farthest(one, two) for one, two in zip(frames, given, strict=True))
        rows += [
            Figure(f"sampling: {name}", their_ms, "ms"),
            scale.times(f"sampling: times as fast as {name}", their_ms / ours_ms, least),
            at_most(f"sampling: mean difference to {name}, where it is largest", apart, SAME, "of 255"),
        ]
    for name, why in missing.items():
        say(f"sampling: no {name}: {why}")
        rows.append(Figure(f"sampling: {name} is not here", 0))
    return rows


def _all_processors(files: list[Path], urls: list[str]) -> list[Figure]:
    """Clips a second of the clock, each with as many threads or workers as there are processors, from the first result on."""
    clips = list(_members(files))
    say(f"sampling: ours, {PROCESSORS} workers and {PROCESSORS} threads")
    stage = fb.video(f"uniform({FRAMES})")
    dataset = fb.WebDataset(urls).compose(stage).to_tuple("frames")
    workers = _rate(iter(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=PROCESSORS)), len(clips))
    rows = [Figure(f"sampling: clips a second, {PROCESSORS} workers, from shards", workers, "/s")]
    with ThreadPoolExecutor(PROCESSORS) as pool:
        threads = _rate(pool.map(lambda data: stage(".mp4", data)[0], clips), len(clips))
    rows.append(Figure(f"sampling: the same, {PROCESSORS} threads, bytes given", threads, "/s"))
    for name, way in others()[0].items():
        say(f"sampling: {name}, {PROCESSORS} threads")
        if name == "SPDL":
            drawn = spdl_threads(clips, PROCESSORS)
            theirs = float("nan") if drawn is None else _rate(drawn, len(clips))
        else:
            with ThreadPoolExecutor(PROCESSORS) as pool:
                theirs = _rate(pool.map(way, clips), len(clips))
        rows.append(Figure(f"sampling: the same, {name}, {PROCESSORS} threads, bytes given", theirs, "/s"))
        rows.append(Figure(f"sampling: workers, times {name}'s threads", workers / theirs, "x"))
    return rows


def _rate(results: Iterator[Any], count: int) -> float:
    """Results a second, all of them counted but what came first, which waits for threads and workers to be made."""
    next(results)
    took, rest = spent(lambda: sum(1 for _ in results))
    assert rest == count - 1, f"{rest + 1} of {count} clips"
    return rest / took.wall_s


def _of_a_shard(urls: list[str], sampling: str, size: Any = None) -> tuple[float, list[Any]]:
    """Milliseconds of the processor a clip, and the frames of each."""
    took, frames = spent(lambda: [one["frames"] for one in _samples(urls, sampling, size)])
    return 1e3 * took.processor_s / len(frames), frames


def _samples(urls: list[str], sampling: str, size: Any = None) -> Iterable[Any]:
    return fb.WebDataset(urls).compose(fb.video(sampling, size=size))


def _members(files: list[Path]) -> Iterator[bytes]:
    for file in files:
        with tarfile.open(file) as tar:
            for member in tar:
                if member.name.endswith(".mp4") and (content := tar.extractfile(member)) is not None:
                    yield content.read()
