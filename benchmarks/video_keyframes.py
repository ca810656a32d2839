"""Keyframes of a large MP4 by number: in a file, and behind a slow origin; beside OpenCV, which seeks to each.

A keyframe costs us one picture that is decoded alone, and OpenCV a group of them: it seeks to 16 frames before the wanted one, which lie in
the group before, and decodes up to it. So its time goes with the length of a group, and ours does not.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import Figure, at_least, at_most, exactly
from video_bench import PROCESSORS, Scale, behind, farthest, say, spent
from video_clips import LongClip, long_clip
from video_ways import opencv_seeking

from forebay_loader.videos.sources.choice import source_of

__all__ = ["figures", "origin_figures"]

LEAST_TIMES = 20.0  # of groups of 250, which is what x264 makes unless it is told otherwise
LEAST_OF_30 = 5.0  # see above: OpenCV decodes 30 pictures, most of them cheaper than a keyframe
SAME, OTHER = 1.0, 4.0  # mean difference, of 255: OpenCV converts colours by another filter; what another frame has at least
ORIGIN_OPENCV_S = 15.0


@dataclass(frozen=True)
class Compared:
    """Frames of us and of OpenCV against those that are in the file. The second may be fewer."""

    ours: list[Any]
    opencv: list[Any]
    truth: list[Any]

    def judged(self, name: str, pictures: tuple[Any, ...]) -> list[Figure]:
        apart = min(farthest([one], [two]) for at, one in enumerate(pictures) for two in pictures[:at])
        return [
            exactly(f"{name}: frames that are not those of the file, bit for bit", _wrong(self.ours, self.truth, 0.0), 0),
            exactly(f"{name}: OpenCV's frames that are others", _wrong(self.opencv, self.truth, OTHER / 2), 0),
            at_most(f"{name}: mean difference to OpenCV's, where it is largest", self._differ(), SAME, "of 255"),
            at_least(f"{name}: the same of two different keyframes", apart, OTHER, "of 255"),
        ]

    def _differ(self) -> float:
        return farthest(self.ours[: len(self.opencv)], self.opencv)


def figures(scale: Scale, folder: Path) -> list[Figure]:
    """In a file, in groups of 250 and of 30."""
    return [*_in_file(scale, folder, 250, LEAST_TIMES), *_in_file(scale, folder, 30, LEAST_OF_30)]


def _in_file(scale: Scale, folder: Path, gop: int, least: float) -> list[Figure]:
    made, numbers = _made(scale, folder, gop)
    name = f"keyframes, groups of {gop}"
    say(f"{name}: ours")
    _ours(str(made.path), numbers[:1], 1)
    ours, found = spent(lambda: _ours(str(made.path), numbers, 1))
    threads, again = spent(lambda: _ours(str(made.path), numbers, PROCESSORS))
    say(f"{name}: OpenCV, {scale.opencv_s:g} s at most")
    opencv, there = spent(lambda: opencv_seeking(str(made.path), numbers, scale.opencv_s))
    size = f"of {len(numbers)} of a {made.bytes / 1e9:.2g} GB MP4"
    share = len(numbers) / len(there)
    truth = [made.keyframe(number) for number in numbers]
    rows = [
        Figure(f"{name}: {size}, here", 1e3 * ours.wall_s, "ms"),
        Figure(f"{name}: the same, threads={PROCESSORS}", 1e3 * threads.wall_s, "ms"),
        Figure(f"{name}: a keyframe, of the processor", 1e3 * ours.processor_s / len(numbers), "ms"),
        Figure(f"{name}: the same, OpenCV", 1e3 * opencv.processor_s / len(there), "ms"),
        Figure(f"{name}: all of them, OpenCV, by {len(there)}", 1e3 * opencv.wall_s * share, "ms"),
        scale.times(f"{name}: times as fast as OpenCV", opencv.wall_s * share / ours.wall_s, least),
        scale.times(f"{name}: the same, threads={PROCESSORS}", opencv.wall_s * share / threads.wall_s, least),
        scale.times(f"{name}: the same, of the processor", opencv.processor_s * share / ours.processor_s, least),
        exactly(f"{name}: frames that more threads change", _wrong(again, list(found), 0.0), 0),
        *Compared(list(found), there, truth).judged(name, made.pictures),
    ]
    made.path.unlink()
    return rows


def origin_figures(scale: Scale, folder: Path) -> list[Figure]:
    """Behind an origin: OpenCV straight from there, ours through a sidecar, cold and warm."""
    made, numbers = _made(scale, folder, 250)
    name = "keyframes from an origin, groups of 250"
    with behind(scale, folder) as origin:
        url = origin.url(made.path.name)
        limit_s = min(ORIGIN_OPENCV_S, scale.opencv_s)
        say(f"{name}: OpenCV over HTTP, {limit_s:g} s at most")
        opencv, there = spent(lambda: opencv_seeking(url, numbers, limit_s))
        origin.reset()
        say(f"{name}: ours, cold and warm")
        cold, found = spent(lambda: _ours(url, numbers, 1))
        sent = origin.counts()["bytes"]
        warm, _ = spent(lambda: _ours(url, numbers, 1))
    share = len(numbers) / len(there)
    truth = [made.keyframe(number) for number in numbers]
    return [
        Figure(f"{name}: {len(numbers)} of them, cold", 1e3 * cold.wall_s, "ms"),
        Figure(f"{name}: the same, warm", 1e3 * warm.wall_s, "ms"),
        Figure(f"{name}: the same, OpenCV, by {len(there)} of them", 1e3 * opencv.wall_s * share, "ms"),
        Figure(f"{name}: cold, times as fast as OpenCV", opencv.wall_s * share / cold.wall_s, "x"),
        Figure(f"{name}: warm, times as fast as OpenCV", opencv.wall_s * share / warm.wall_s, "x"),
        Figure(f"{name}: what the origin sent for them, of the MP4", 100 * sent / made.bytes, "%"),
        *Compared(list(found), there, truth).judged(name, made.pictures),
    ]


def _made(scale: Scale, folder: Path, gop: int) -> tuple[LongClip, list[int]]:
    say(f"keyframes, groups of {gop}: making an MP4 of {scale.gigabytes:g} GB")
    width = scale.height * 16 // 9 // 16 * 16
    made = long_clip(folder / f"long-{gop}.mp4", int(scale.gigabytes * 1e9), gop, width, scale.height // 8 * 8)
    chosen = random.Random(1).sample(range(len(made.groups)), min(scale.keyframes, len(made.groups)))
    return made, [gop * group for group in chosen]  # in no order: as a sampler draws them


def _ours(what: str, numbers: list[int], threads: int) -> Any:
    with source_of(what, threads=threads) as source:
        return source.frames(numbers)


def _wrong(found: Any, truth: list[Any], most: float) -> int:
    return sum(farthest([one], [two]) > most for one, two in zip(found, truth, strict=False))
