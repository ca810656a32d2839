"""What the parts of benchmarks/video.py share: how large all is, what is told meanwhile, seconds, and a slow origin with a sidecar."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy
from figures import Figure, at_least

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = str(ROOT / "examples")
sys.path[:0] = [EXAMPLES, str(ROOT / "tests")]

from support.sidecar import running  # noqa: E402

from demo.processes import OriginProcess  # noqa: E402  # the demo's own slow origin

__all__ = ["FRAMES", "PROCESSORS", "Scale", "Spent", "behind", "farthest", "say", "spent"]

T = TypeVar("T")
FRAMES = 8  # that are wanted of a clip
PROCESSORS = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Scale:
    """How large the run is. ``opencv_s``: seconds after which OpenCV seeks no more; it is compared by what it did until then.
    ``judged``: whether speeds are held to their limits, which say nothing of small clips.
    """

    gigabytes: float = 2.0
    keyframes: int = 100
    height: int = 720
    opencv_s: float = 40.0
    shards: int = 6
    clips: int = 8
    clip_height: int = 360
    clip_frames: int = 300
    latency_ms: float = 20.0
    rate_mb: float = 40.0
    workers: int = 2
    judged: int = 1

    def times(self, what: str, value: float, least: float) -> Figure:
        """How many times as fast something is."""
        return at_least(what, value, least, "x") if self.judged else Figure(what, value, "x")

    def clip_shape(self) -> dict[str, int]:
        """As ``video_clips.clip`` takes it."""
        return {"frames": self.clip_frames, "height": self.clip_height, "width": self.clip_height * 16 // 9 // 16 * 16}


QUICK = Scale(0.01, 8, 128, 5.0, 4, 8, 128, 120, 5.0, 40.0, judged=0)


@dataclass(frozen=True)
class Spent:
    """Seconds of the clock, and of the processor in this process with all its threads."""

    wall_s: float
    processor_s: float


def spent(what: Callable[[], T]) -> tuple[Spent, T]:
    wall, processor = time.perf_counter(), time.process_time()
    found = what()
    return Spent(time.perf_counter() - wall, time.process_time() - processor), found


def farthest(these: Sequence[Any], those: Sequence[Any]) -> float:
    """The mean difference of two pictures, in steps of 255, where it is largest. Pictures of other numbers or sizes are ``inf`` apart."""
    if len(these) != len(those) or any(one.shape != two.shape for one, two in zip(these, those, strict=True)):
        return float("inf")
    return max(float(numpy.abs(one.astype(numpy.int16) - two).mean()) for one, two in zip(these, those, strict=True))


_BEGAN = time.monotonic()


def say(what: str) -> None:
    print(f"video: {time.monotonic() - _BEGAN:5.0f} s  {what}", file=sys.stderr, flush=True)


@contextmanager
def behind(scale: Scale, folder: Path) -> Iterator[OriginProcess]:
    """``folder`` behind a slow origin, and before it a sidecar of our own with an empty cache."""
    with (
        _environment(PYTHONPATH=os.pathsep.join([EXAMPLES, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)),
        OriginProcess(folder, latency_ms=scale.latency_ms, rate_mb=scale.rate_mb) as origin,
        tempfile.TemporaryDirectory(prefix="forebay-video-") as cache,
        running(Path(cache), "--cache-size", "8GB", "--socket", f"{cache}/s", allow=[origin.base]) as sidecar,
        _environment(FOREBAY_URL=sidecar.url),
    ):
        yield origin


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})
