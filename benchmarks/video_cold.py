"""Cold clips behind a slow origin: how much of them it sends for eight of 300 frames, and how long the first of a cold shard takes."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from pathlib import Path

from figures import Figure, at_most
from video_bench import FRAMES, Scale, behind, say
from video_clips import CLIP_FRAMES, clip, write_shards

import forebay_loader as fb
from forebay_loader.videos.sampling import sampler_of
from forebay_loader.videos.sources.choice import source_of

__all__ = ["figures"]

MOST_SHARE = 25.0
GOP = 10  # frames: of half a second and longer, eight of 300 need most of the clip
NEAR = 2.0  # times a warm shard: most of it is the machine's noise
STEP_S = 0.25  # of work a clip
FIRST_RATE_MB = 10.0


def figures(scale: Scale, folder: Path) -> list[Figure]:
    return [*_share(scale, folder), *_foresight(replace(scale, rate_mb=FIRST_RATE_MB, latency_ms=50.0), folder)]


def _share(scale: Scale, folder: Path) -> list[Figure]:
    say("cold: making a clip")
    data = clip(3, CLIP_FRAMES, width=scale.height * 24 // 9 // 16 * 16, height=scale.height * 3 // 2 // 8 * 8, gop=GOP)
    rows = []
    for sampling in (f"uniform({FRAMES})", f"keyframes({FRAMES})"):
        (folder / "cold.mp4").write_bytes(data)
        with behind(scale, folder) as origin:
            before = fb.counters()
            begun = time.perf_counter()
            with source_of(origin.url("cold.mp4")) as source:
                source.frames(sampler_of(sampling)(source.open(), 0).frames)
            took_s = time.perf_counter() - begun
            read = fb.counters()["bytes_proxy"] - before["bytes_proxy"]
            sent = origin.counts()["bytes"]
        name = f"cold: a clip of {CLIP_FRAMES} frames, {len(data) / 1e6:.1f} MB, groups of {GOP}, {sampling}"
        rows += [
            Figure(f"{name}: of its bytes read", 100 * read / len(data), "%"),
            at_most(f"{name}: of its bytes sent by the origin", 100 * sent / len(data), MOST_SHARE, "%"),
            Figure(f"{name}: until the frames are there", 1e3 * took_s, "ms"),
        ]
    (folder / "cold.mp4").unlink()
    return rows


def _foresight(scale: Scale, folder: Path) -> list[Figure]:
    """The wait for the first clip of each shard but the very first, of a reader that works ``STEP_S`` on each clip."""
    say("cold: making shards")
    write_shards(folder, scale.shards, scale.clips, **scale.clip_shape())
    waits: dict[str, tuple[float, float, float]] = {}
    with behind(scale, folder) as origin:
        urls = [origin.url(f"clips-{shard:03}.tar") for shard in range(scale.shards)]
        for name, ahead in (("announced", None), ("warm", None)):
            say(f"cold: first clips of shards, {name}")
            waits[name] = _first_waits(urls, ahead)
    with behind(scale, folder) as origin:
        say("cold: first clips of shards, not announced")
        urls = [origin.url(f"clips-{shard:03}.tar") for shard in range(scale.shards)]
        waits["not announced"] = _first_waits(urls, 0)
    return _told(f"cold: {scale.rate_mb:g} MB/s a connection, {scale.latency_ms:g} ms", scale, waits)


def _told(name: str, scale: Scale, waits: dict[str, tuple[float, float, float]]) -> list[Figure]:
    announced, direct, warm = waits["announced"][2], waits["not announced"][2], waits["warm"][2]
    near = announced / warm
    return [
        Figure(f"{name}: wait for a cold shard's first clip, announced ahead", 1e3 * announced, "ms"),
        Figure(f"{name}: the same, not announced", 1e3 * direct, "ms"),
        Figure(f"{name}: the same, warm", 1e3 * warm, "ms"),
        Figure(f"{name}: the same of the second shard, announced before the first is opened", 1e3 * waits["announced"][1], "ms"),
        Figure(f"{name}: the very first clip, which nothing can announce", 1e3 * waits["announced"][0], "ms"),
        at_most(f"{name}: announced, times warm", near, NEAR, "x") if scale.judged else Figure(f"{name}: announced, times warm", near, "x"),
        Figure(f"{name}: not announced, times announced", direct / announced, "x"),
    ]


def _first_waits(urls: list[str], ahead: int | None) -> tuple[float, float, float]:
    """Seconds: for the first clip of all, for the second shard's first, and for those of later shards, the median of these."""
    dataset = fb.WebDataset(urls, ahead=ahead).compose(fb.video("keyframes(2)", size=112))
    waits: list[float] = []
    seen = ""
    begun = time.perf_counter()
    for sample in dataset:
        if sample["__url__"] != seen:
            seen = sample["__url__"]
            waits.append(time.perf_counter() - begun)
        time.sleep(STEP_S)
        begun = time.perf_counter()
    assert len(waits) == len(urls), f"{len(waits)} of {len(urls)} shards"
    return waits[0], waits[1], statistics.median(waits[2:])
