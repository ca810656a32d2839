"""Video: what sampling by index saves. Each row is one JSON line; all are of one run, and only ratios mean something elsewhere.

    python benchmarks/video.py [--gigabytes 2] [--keyframes 100] [--shards 6] [--clips 8] [--latency-ms 20] [--rate-mb 40] [ROW...]

| row | here | beside it |
|---|---|---|
| keyframes | 100 random keyframes of a large MP4 in a file | OpenCV seeking to each |
| keyframes-origin | the same MP4 behind a slow origin, through a sidecar, cold and warm | OpenCV over HTTP straight from that origin |
| sampling | 8 of 300 frames, from memory | all of the clip, by a temporary file, as ``torch_video`` does; torchcodec if it is there |
| cold | bytes of a cold remote clip that 8 of 300 frames move | the clip |
| batches | seconds a batch of 8 clips, and clips a second: workers and mapped shards | OpenCV frame by frame from the origin, no workers |

Times are of the clock, but for ``sampling``: seconds of the processor. The origin is ``demo.serve_origin``: so many ms to the first byte,
so many MB/s a connection. OpenCV and PyAV convert colours by different filters, so frames are compared by their mean difference, which is
below one step in 255 for the same frame.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import numpy
import torch
from video_clips import LONG_GOP, clip, long_clip, write_shards

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import forebay_loader as fb
from demo.processes import OriginProcess  # the demo's own slow origin
from forebay_loader.video.sources.choice import source_of

FRAMES, BATCH = 8, 8


def timed(what: Callable[[], Any]) -> tuple[float, Any]:
    begun = time.perf_counter()
    found = what()
    return time.perf_counter() - begun, found


def opencv_frames(path: str, numbers: list[int]) -> list[Any]:
    """As tutorials have it: set the position, read."""
    import cv2  # noqa: PLC0415  # the rows without it run where it is not

    capture = cv2.VideoCapture(path)
    found = []
    for number in numbers:
        capture.set(cv2.CAP_PROP_POS_FRAMES, number)
        found.append(capture.read()[1][..., ::-1])
    capture.release()
    return found


def ours(what: Any, numbers: list[int]) -> Any:
    with source_of(what) as source:
        return source.frames(numbers)


def differing(one: Any, two: Any) -> float:
    return max(float(numpy.abs(left.astype(numpy.int16) - right).mean()) for left, right in zip(one, two, strict=True))


def keyframes_row(given: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    path = folder / "long.mp4"
    frames = long_clip(path, int(given.gigabytes * 1e9))
    numbers = sorted(random.Random(1).sample(range(0, frames, LONG_GOP), min(given.keyframes, frames // LONG_GOP)))
    path.read_bytes() if given.gigabytes < 4 else None  # into the page cache, for both
    spent = time.process_time()
    here_s, found = timed(lambda: ours(str(path), numbers))
    between = time.process_time()
    opencv_s, there = timed(lambda: opencv_frames(str(path), numbers))
    processor = {"here_processor_s": between - spent, "opencv_processor_s": time.process_time() - between}
    shared = {"frames": len(numbers), "mp4_bytes": path.stat().st_size}
    yield {
        "row": "keyframes",
        **shared,
        "here_s": here_s,
        "opencv_s": opencv_s,
        "ratio": opencv_s / here_s,
        **processor,
        "differ": differing(found, there),
    }
    with behind(given, folder) as origin:
        url = origin.url("long.mp4")
        opencv_s, there = timed(lambda: opencv_frames(url, numbers))
        cold_s, found = timed(lambda: ours(url, numbers))
        warm_s, _ = timed(lambda: ours(url, numbers))
        row = {
            "here_cold_s": cold_s,
            "here_warm_s": warm_s,
            "opencv_s": opencv_s,
            "ratio_cold": opencv_s / cold_s,
            "ratio_warm": opencv_s / warm_s,
        }
        yield {"row": "keyframes-origin", **shared, **row, "differ": differing(found, there)}


def torchvision_way(data: bytes) -> Any:
    """A temporary file, every frame decoded and converted."""
    with tempfile.NamedTemporaryFile(suffix=".mp4") as file:
        file.write(data)
        file.flush()
        with av.open(file.name) as container:
            container.streams.video[0].thread_count = 1
            frames = numpy.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    return frames[numpy.linspace(0, len(frames) - 1, FRAMES).round().astype(int)]


def torchcodec_way(data: bytes) -> Any:
    decoders = importlib.import_module("torchcodec.decoders")
    decoder = decoders.VideoDecoder(data, num_ffmpeg_threads=1, dimension_order="NHWC")
    return decoder.get_frames_at(list(range(0, 300, 300 // FRAMES))[:FRAMES]).data


def sampling_row(given: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    clips = [clip(seed) for seed in range(4)] * 3
    stage, small = fb.video("uniform(8)"), fb.video("uniform(8)", size=224)
    ways: dict[str, Callable[[bytes], Any]] = {
        "whole": torchvision_way, "here": lambda data: stage(".mp4", data), "here_224": lambda data: small(".mp4", data),
        "here_keyframes": lambda data: fb.video("keyframes(8)")(".mp4", data),
    }  # fmt: skip
    if importlib.util.find_spec("torchcodec") is not None:
        ways["torchcodec"] = torchcodec_way
    spent = {name: processor_s(way, clips) for name, way in ways.items()}
    ratios = {f"ratio_{name}": spent["whole"] / each for name, each in spent.items() if name != "whole"}
    yield {"row": "sampling", **{f"{name}_ms": 1000 * each for name, each in spent.items()}, **ratios}


def processor_s(way: Callable[[bytes], Any], clips: list[bytes]) -> float:
    """Of this process, a clip: what else the machine does is no matter, and each way decodes in one thread."""
    way(clips[0])
    begun = time.process_time()
    for data in clips:
        way(data)
    return (time.process_time() - begun) / len(clips)


def cold_row(given: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    data = clip(3, frames=300, width=1920, height=1080, gop=10)
    (folder / "cold.mp4").write_bytes(data)
    for sampling in ("uniform(8)", "keyframes(8)"):
        before = fb.counters()["video_bytes"]
        with fb_source(folder / "cold.mp4") as source:
            info = source.open()
            from forebay_loader.video.sampling import sampler_of  # noqa: PLC0415

            source.frames(sampler_of(sampling)(info, 0).frames)
        moved = fb.counters()["video_bytes"] - before
        yield {"row": "cold", "sampling": sampling, "clip_bytes": len(data), "read_bytes": moved, "share": moved / len(data)}


def fb_source(path: Path) -> Any:
    return source_of(str(path))


def opencv_batches(urls: list[str], clips: int) -> Iterator[Any]:
    """Each clip frame by frame from the origin, resized, eight kept: what a first version does."""
    import cv2  # noqa: PLC0415

    for url in urls:
        for number in range(clips):
            capture = cv2.VideoCapture(f"{url}/{number}.mp4")
            frames = []
            while (read := capture.read())[0]:
                frames.append(cv2.resize(read[1], (224, 224)))
            yield numpy.stack([frames[at] for at in numpy.linspace(0, len(frames) - 1, FRAMES).round().astype(int)])


def batches_row(given: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    write_shards(folder, given.shards, given.clips)
    unpacked(folder, given)
    with behind(given, folder) as origin:
        plain = [f"{origin.base}/{shard:03}" for shard in range(1)]
        naive_s, batches = timed(lambda: list(opencv_batches(plain, min(given.clips, BATCH))))
        yield {"row": "batches", "kind": "opencv, no workers", "batch_s": naive_s, "clips_per_s": len(batches) / naive_s}
        urls = f"{origin.base}/clips-{{000..{given.shards - 1:03}}}.tar"
        for kind, workers in (("here, cold, 2 workers", 2), ("here, warm, 2 workers", 2), ("here, warm, no workers", 0)):
            seconds, count = timed(lambda workers=workers: passed(urls, workers))  # type: ignore[misc]
            yield {"row": "batches", "kind": kind, "batch_s": seconds * BATCH / count, "clips_per_s": count / seconds}


def passed(urls: str, workers: int) -> int:
    dataset = fb.WebDataset(urls).compose(fb.video("uniform(8)", size=(224, 224))).to_tuple("frames", "json").batched(BATCH, partial=True)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers)
    return sum(len(frames) for frames, _ in loader)


def unpacked(folder: Path, given: argparse.Namespace) -> None:
    """The first shard's clips as files, for OpenCV."""
    import tarfile  # noqa: PLC0415

    (folder / "000").mkdir()
    with tarfile.open(folder / "clips-000.tar") as tar:
        for number, member in enumerate(one for one in tar if one.name.endswith(".mp4")):
            content = tar.extractfile(member)
            assert content is not None
            (folder / "000" / f"{number}.mp4").write_bytes(content.read())


@contextmanager
def own_run_directory(folder: str) -> Iterator[None]:
    """So that no sidecar is joined that others use."""
    before = os.environ.get("XDG_RUNTIME_DIR")
    os.environ["XDG_RUNTIME_DIR"] = folder
    try:
        yield
    finally:
        os.environ.pop("XDG_RUNTIME_DIR")
        os.environ.update({} if before is None else {"XDG_RUNTIME_DIR": before})


@contextmanager
def behind(given: argparse.Namespace, folder: Path) -> Iterator[OriginProcess]:
    """``folder`` behind a slow origin, and a sidecar before it."""
    with (
        OriginProcess(folder, latency_ms=given.latency_ms, rate_mb=given.rate_mb) as origin,
        tempfile.TemporaryDirectory() as cache,
        own_run_directory(cache),
        fb.sidecar(cache_dir=f"{cache}/c", cache_size="8GB", allow_origin=[origin.base]),
    ):
        yield origin


ROWS = {"keyframes": keyframes_row, "sampling": sampling_row, "cold": cold_row, "batches": batches_row}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("gigabytes", 2.0), ("latency-ms", 20.0), ("rate-mb", 40.0)):
        options.add_argument(f"--{name}", type=float, default=default)
    options.add_argument("--keyframes", type=int, default=100)
    options.add_argument("--shards", type=int, default=6)
    options.add_argument("--clips", type=int, default=8)
    options.add_argument("rows", nargs="*", choices=[[], *ROWS], default=[])
    given = options.parse_args()
    os.environ.setdefault("FOREBAY_JOB", "benchmark-video")
    for row in given.rows or ROWS:
        with tempfile.TemporaryDirectory(prefix="forebay-video-") as folder:
            for line in ROWS[row](given, Path(folder)):
                print(
                    json.dumps({name: round(value, 4) if isinstance(value, float) else value for name, value in line.items()}), flush=True
                )


if __name__ == "__main__":
    main()
