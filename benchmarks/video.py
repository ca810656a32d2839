"""Video: what sampling by index saves, beside what others do on the same clips. One table, each figure with the limit it is held to.

    python benchmarks/video.py                                       all of it: two large MP4s of 2 GB, some six minutes on a quiet machine
    python benchmarks/video.py --quick                               small, in about two minutes: whether it is right, not how fast
    python benchmarks/video.py --json keyframes sampling             two parts, as one JSON object; what is done meanwhile goes to stderr

| part | here | beside it |
|---|---|---|
| keyframes | 100 random keyframes of a large MP4 in a file, groups of 250 and of 30 | OpenCV seeking to each, and what is in the file |
| origin | the same MP4 behind a slow origin, through a sidecar, cold and warm | OpenCV over HTTP straight from that origin |
| sampling | 8 of 300 frames, from a warm shard, of the processor | all of the clip; torchcodec and SPDL where they are |
| cold | bytes of a cold clip that 8 of 300 frames read | all of its bytes |
| article | an article's table, from a naive loader to all caches: see video_article.py | OpenCV, and decoding |

Times are of the clock unless a row says "of the processor"; only ratios mean something elsewhere. Beside it: ``pip install
opencv-python-headless torchcodec==0.13.0 spdl-io==0.8.0 spdl-core==0.8.0`` and the system's FFmpeg for the last three. Exit code 1 where a
limit is broken.

A keyframe costs us one picture that is decoded alone, and OpenCV a group of them: it seeks to 16 frames before the wanted one, which lie in
the group before, and decodes up to it. So its time goes with the length of a group, and ours does not.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy
from figures import Figure, as_json, at_least, at_most, exactly, lines
from video_article import STEP, Passed, busy, even, fill, filling, naive, passed, random_frames, write_clips
from video_clips import LongClip, clip, long_clip, write_shards
from video_ways import FRAMES, opencv_seeking, others, whole

import forebay_loader as fb
from forebay_loader.videos.sampling import sampler_of
from forebay_loader.videos.sources.choice import source_of

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = str(ROOT / "examples")
sys.path[:0] = [EXAMPLES, str(ROOT / "tests")]

from support.sidecar import running  # noqa: E402

from demo.processes import OriginProcess  # noqa: E402  # the demo's own slow origin

T = TypeVar("T")
LEAST_OF_250 = 20.0  # times as fast as OpenCV; groups of 250 are what x264 makes unless it is told otherwise
LEAST_OF_30 = 5.0  # OpenCV decodes 30 pictures, most of them cheaper than a keyframe
LEAST_OF_WHOLE = 3.0
SAME, OTHER = 1.0, 4.0  # mean difference, of 255: others convert colours by another filter; what another frame has at least
MOST_SHARE = 25.0
LEAST_SAMPLES, LEAST_BATCH, LEAST_BUSY = 55.0, 60.0, 94.0  # as the article has them, of all caches
LEAST_OF_DECODING, MOST_OF_FILLING = 5.0, 5.0
COLD_FRAMES, COLD_GOP = 300, 10  # groups of half a second and longer: eight of 300 frames need most of the clip


@dataclass(frozen=True)
class Scale:
    """How large the run is. ``opencv_s``: seconds after which OpenCV seeks no more; it is compared by what it did until then.
    ``judged``: whether speeds are held to their limits, which say nothing of small clips.
    """

    gigabytes: float = 2.0
    keyframes: int = 100
    height: int = 720
    opencv_s: float = 15.0
    clips: int = 8
    clip_height: int = 360
    clip_frames: int = 300
    article_clips: int = 32
    epochs: int = 10
    rounds: int = 3
    judged: bool = True

    def times(self, what: str, value: float, least: float) -> Figure:
        """How many times as fast something is."""
        return at_least(what, value, least, "x") if self.judged else Figure(what, value, "x")


QUICK = Scale(0.01, 8, 96, 5.0, 2, 128, 40, 8, 2, 0, judged=False)


@dataclass(frozen=True)
class Compared:
    """Frames of us and of OpenCV against those that are in the file. The second may be fewer."""

    ours: list[Any]
    opencv: list[Any]
    truth: list[Any]

    def judged(self, name: str, pictures: tuple[Any, ...]) -> list[Figure]:
        apart = min(farthest([one], [two]) for at, one in enumerate(pictures) for two in pictures[:at])
        differ = farthest(self.ours[: len(self.opencv)], self.opencv)
        return [
            exactly(f"{name}: frames that are not those of the file, bit for bit", _wrong(self.ours, self.truth, 0.0), 0),
            exactly(f"{name}: OpenCV's frames that are others", _wrong(self.opencv, self.truth, OTHER / 2), 0),
            at_most(f"{name}: mean difference to OpenCV's, where it is largest", differ, SAME, "of 255"),
            at_least(f"{name}: the same of two different keyframes", apart, OTHER, "of 255"),
        ]


def keyframes(scale: Scale, folder: Path) -> list[Figure]:
    """In a file, in groups of 250 and of 30."""
    rows = []
    for gop, least in ((250, LEAST_OF_250), (30, LEAST_OF_30)):
        made, numbers = _large(scale, folder, gop)
        name = f"keyframes, groups of {gop}"
        _ours(str(made.path), numbers[:1])
        wall_s, processor_s, found = spent(lambda made=made, numbers=numbers: _ours(str(made.path), numbers))
        say(f"{name}: OpenCV, {scale.opencv_s:g} s at most")
        opencv_s, their_s, there = spent(lambda made=made, numbers=numbers: opencv_seeking(str(made.path), numbers, scale.opencv_s))
        share = len(numbers) / len(there)
        rows += [
            Figure(f"{name}: of {len(numbers)} of a {made.bytes / 1e9:.2g} GB MP4, here", 1e3 * wall_s, "ms"),
            Figure(f"{name}: all of them, OpenCV, by {len(there)}", 1e3 * opencv_s * share, "ms"),
            scale.times(f"{name}: times as fast as OpenCV", opencv_s * share / wall_s, least),
            scale.times(f"{name}: the same, of the processor", their_s * share / processor_s, least),
            *Compared(list(found), there, [made.keyframe(number) for number in numbers]).judged(name, made.pictures),
        ]
        made.path.unlink()
    return rows


def origin(scale: Scale, folder: Path) -> list[Figure]:
    """Behind an origin: OpenCV straight from there, ours through a sidecar, cold and warm."""
    made, numbers = _large(scale, folder, 250)
    name = "keyframes from an origin, groups of 250"
    with behind(folder) as slow:
        url = slow.url(made.path.name)
        opencv_s, _, there = spent(lambda: opencv_seeking(url, numbers, scale.opencv_s))
        slow.reset()
        cold_s, _, found = spent(lambda: _ours(url, numbers))
        sent = slow.counts()["bytes"]
        warm_s, _, _ = spent(lambda: _ours(url, numbers))
    their_s = opencv_s * len(numbers) / len(there)
    return [
        Figure(f"{name}: cold, times as fast as OpenCV", their_s / cold_s, "x"),
        Figure(f"{name}: warm, times as fast as OpenCV", their_s / warm_s, "x"),
        Figure(f"{name}: what the origin sent for them, of the MP4", 100 * sent / made.bytes, "%"),
        *Compared(list(found), there, [made.keyframe(number) for number in numbers]).judged(name, made.pictures),
    ]


def sampling(scale: Scale, folder: Path) -> list[Figure]:
    """Eight frames of a clip, of the processor, in one thread: ours from a warm shard, out of its tar; others are given the bytes."""
    width = scale.clip_height * 16 // 9 // 16 * 16
    write_shards(folder, 1, scale.clips, frames=scale.clip_frames, height=scale.clip_height, width=width)
    with tarfile.open(folder / "clips-000.tar") as tar:
        clips = [content.read() for one in tar if one.name.endswith(".mp4") and (content := tar.extractfile(one)) is not None]
    with behind(folder) as slow:
        url = slow.url("clips-000.tar")
        list(_clips(url, "keyframes(1)"))  # it is warm, and indexed
        _, processor_s, frames = spent(lambda: list(_clips(url, f"uniform({FRAMES})")))
        _, keyframes_s, _ = spent(lambda: list(_clips(url, f"keyframes({FRAMES})")))
    rows = [
        Figure(f"sampling: {FRAMES} of a clip's frames from a shard, of the processor", 1e3 * processor_s / len(clips), "ms"),
        Figure(f"sampling: the same, keyframes({FRAMES})", 1e3 * keyframes_s / len(clips), "ms"),
    ]
    found, missing = others()
    for name, way, least in (("all of it, by a temporary file", whole, LEAST_OF_WHOLE), *((*one, 1.0) for one in found.items())):
        say(f"sampling: {name}")
        way(clips[0])
        _, their_s, given = spent(lambda way=way: [way(data) for data in clips])
        apart = max(farthest(one, two) for one, two in zip(frames, given, strict=True))
        rows += [
            scale.times(f"sampling: times as fast as {name}", their_s / processor_s, least),
            at_most(f"sampling: mean difference to {name}, where it is largest", apart, SAME, "of 255"),
        ]
    return [*rows, *(Figure(f"sampling: {name} is not here ({why})", 0) for name, why in missing.items())]


def cold(scale: Scale, folder: Path) -> list[Figure]:
    """How much of a cold clip a slow origin sends for eight of its 300 frames."""
    data = clip(3, COLD_FRAMES, width=scale.height * 24 // 9 // 16 * 16, height=scale.height * 3 // 2 // 8 * 8, gop=COLD_GOP)
    (folder / "cold.mp4").write_bytes(data)
    rows = []
    for drawn in (f"uniform({FRAMES})", f"keyframes({FRAMES})"):
        with behind(folder) as slow:
            with source_of(slow.url("cold.mp4")) as source:
                source.frames(sampler_of(drawn)(source.open(), 0).frames)
            sent = slow.counts()["bytes"]
        name = f"cold: a clip of {COLD_FRAMES} frames, {len(data) / 1e6:.1f} MB, groups of {COLD_GOP}, {drawn}"
        rows.append(at_most(f"{name}: of its bytes sent by the origin", 100 * sent / len(data), MOST_SHARE, "%"))
    return rows


def article(scale: Scale, folder: Path) -> list[Figure]:
    """The table; what is kept is what was decoded."""
    width = scale.clip_height * 16 // 9 // 16 * 16
    shape = {"frames": scale.clip_frames, "height": scale.clip_height // 8 * 8, "width": width}
    paths, clips, rows = write_clips(folder, scale.article_clips, shape), scale.article_clips, []

    def row(name: str, took: Passed, share: float) -> None:
        say(f"article: {name}: {took.batch_ms:.0f} ms a batch")
        told = ((took.batch_ms, "ms a batch", "ms"), (took.samples_s, "samples a second", ""), (share, "utilisation", "%"))
        rows.extend(Figure(f"article: {name}: {what}", value, unit) for value, what, unit in told)

    first = passed(naive(paths[: clips // 4], 0))
    step_s = STEP * first.batch_ms / 1e3
    row("naive", first, 100 * STEP / (1 + STEP))
    loader = naive(paths[: clips // 4], 2)
    row("lazily opened, two workers", passed(loader), busy(loader, step_s))
    names = [f"article-{worker}.tar" for worker in range(2)]
    with behind(folder) as slow:
        decoded = passed(even([slow.url(name) for name in names]))
    with behind(folder) as slow:  # with an empty cache again
        row("fb.video, cold", decoded, busy(even([slow.url(name) for name in names]), step_s))
    with behind(folder) as slow:
        urls = [slow.url(name) for name in names]
        passed(even(urls, folder / "memo"))
        loader = even(urls, folder / "memo", scale.epochs)
        passed(loader)
        memo = passed(loader)
        share = busy(loader, step_s)
        row("all caches", memo, share)
        loader = random_frames(urls, None)
        plain, later = passed(loader), passed(loader)
        row("random frames, decoded", later, busy(loader, step_s))
        say("article: keeping all frames")
        plain_s, filling_s = filling(urls, folder / "filled", scale.rounds)
        fill(urls, folder / "frames", clips)
        loader = random_frames(urls, folder / "frames", scale.epochs)
        drawn, kept = passed(loader), passed(loader)
        row("random frames, fb.frames", kept, busy(loader, step_s))
    rows += [
        scale.times("article: all caches, times the samples of the naive loader", memo.samples_s / first.samples_s, LEAST_SAMPLES),
        scale.times("article: all caches, times less time for a batch", first.batch_ms / memo.batch_ms, LEAST_BATCH),
        scale.times("article: fb.frames, times as fast as decoding", kept.samples_s / later.samples_s, LEAST_OF_DECODING),
        exactly("article: clips whose frames are others than OpenCV's", _other_frames(first, decoded), 0),
        exactly("article: clips whose frames from the memo are not those decoded, bit for bit", _other_bytes(decoded, memo), 0),
        exactly("article: clips whose frames from fb.frames are others than those decoded", _other_frames(plain, drawn), 0),
    ]
    if scale.judged:
        longer = 100 * (filling_s / plain_s - 1)
        rows += [
            at_least("article: all caches, utilisation", share, LEAST_BUSY, "%"),
            at_most("article: a pass that also fills fb.frames takes longer by", longer, MOST_OF_FILLING, "%"),
        ]
    return rows


def _other_bytes(these: Passed, those: Passed) -> int:
    """How many clips of the first pass have other frames in the second, or none."""
    return sum(key not in those.frames or not numpy.array_equal(one, those.frames[key]) for key, one in these.frames.items())


def _other_frames(these: Passed, those: Passed) -> int:
    """How many clips of the first pass have a frame that is another's in the second: of JPEG, and of other filters, nearest is the same."""
    wrong = 0
    for key, frames in these.frames.items():
        there = numpy.asarray(those.frames[key])[:, ::2, ::2].astype(numpy.int16)
        nearest = [int(numpy.abs(there - one).mean((1, 2, 3)).argmin()) for one in numpy.asarray(frames)[:, ::2, ::2]]
        wrong += nearest != list(range(len(there)))
    return wrong


PARTS: dict[str, Callable[[Scale, Path], list[Figure]]] = {
    "keyframes": keyframes,
    "sampling": sampling,
    "cold": cold,
    "origin": origin,
    "article": article,
}


def _large(scale: Scale, folder: Path, gop: int) -> tuple[LongClip, list[int]]:
    """A large MP4, and which of its frames, each a keyframe, are wanted."""
    say(f"keyframes, groups of {gop}: making an MP4 of {scale.gigabytes:g} GB")
    width = scale.height * 16 // 9 // 16 * 16
    made = long_clip(folder / f"long-{gop}.mp4", int(scale.gigabytes * 1e9), gop, width, scale.height // 8 * 8)
    chosen = random.Random(1).sample(range(len(made.groups)), min(scale.keyframes, len(made.groups)))
    return made, [gop * group for group in chosen]  # in no order: as a sampler draws them


def _ours(what: str, numbers: list[int]) -> Any:
    with source_of(what, threads=1) as source:
        return source.frames(numbers)


def _clips(url: str, drawn: str) -> Iterator[Any]:
    return (frames for (frames,) in fb.WebDataset([url]).compose(fb.video(drawn)).to_tuple("frames"))


def _wrong(found: Any, truth: list[Any], most: float) -> int:
    return sum(farthest([one], [two]) > most for one, two in zip(found, truth, strict=False))


def farthest(these: Sequence[Any], those: Sequence[Any]) -> float:
    """The mean difference of two pictures, in steps of 255, where it is largest. Pictures of other numbers or sizes are ``inf`` apart."""
    if len(these) != len(those) or any(one.shape != two.shape for one, two in zip(these, those, strict=True)):
        return float("inf")
    return max(float(numpy.abs(one.astype(numpy.int16) - two).mean()) for one, two in zip(these, those, strict=True))


def spent(what: Callable[[], T]) -> tuple[float, float, T]:
    """Seconds of the clock, of the processor in this process with all its threads, and what came of it."""
    wall, processor = time.perf_counter(), time.process_time()
    found = what()
    return time.perf_counter() - wall, time.process_time() - processor, found


def say(what: str) -> None:
    print(f"video: {what}", file=sys.stderr, flush=True)


@contextmanager
def behind(folder: Path) -> Iterator[OriginProcess]:
    """``folder`` behind an origin that gives a connection 40 MB/s after 20 ms, and before it a sidecar of our own with an empty cache."""
    os.environ["PYTHONPATH"] = os.pathsep.join([EXAMPLES, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    with (
        OriginProcess(folder, latency_ms=20.0, rate_mb=40.0) as slow,
        tempfile.TemporaryDirectory(prefix="forebay-video-") as cache,
        running(Path(cache), "--cache-size", "8GB", "--socket", f"{cache}/s", allow=[slow.base]) as sidecar,
    ):
        os.environ["FOREBAY_URL"] = sidecar.url
        yield slow


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="small clips")
    options.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    options.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[])
    given = options.parse_args(arguments)
    os.environ.setdefault("FOREBAY_JOB", "benchmark-video")
    rows: list[Figure] = []
    for part in given.parts or PARTS:
        say(part)
        with tempfile.TemporaryDirectory(prefix="forebay-video-") as folder:
            rows += PARTS[part](QUICK if given.quick else Scale(), Path(folder))
    command = " ".join(["video.py", *(sys.argv[1:] if arguments is None else arguments)])
    print(as_json("video", command, rows) if given.json else "\n".join(lines(rows)))
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
