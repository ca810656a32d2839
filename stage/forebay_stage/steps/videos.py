"""Which field of a sample is its video, and single pictures of it. Needs PyAV, numpy and Pillow.

Frames are decoded some at a time, so that memory does not grow with the length of the video.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from PIL import Image

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.decode.frame_size import sized
from forebay_loader.videos.sampling.sampler import even_places, frame_at
from forebay_loader.videos.sources.clip_bytes import MemoryClip
from forebay_loader.videos.sources.clip_source import ClipSource
from forebay_stage.steps.checks import Sample
from forebay_stage.steps.fields import video_field
from forebay_stage.steps.pictures import encoded

__all__ = ["frames_of"]

PIXEL_BYTES = 64 * 2**20  # that are decoded at a time


def frames_of(sample: Sample, *, rate: float, count: int, side: int, quality: int, format: str, field: str) -> Iterator[Sample]:
    """Samples of one picture each, as ``ready.frames`` says."""
    name = video_field(sample, field)
    if name is None:
        yield sample
        return
    others = {other: value for other, value in sample.items() if other != name}
    stem = name.rpartition(".")[0]
    called = f"{stem}.{format}" if stem else format
    if called in others:
        raise ValueError(f"the pictures of {name!r} would take the place of the field {called!r}")
    clip = MemoryClip(sample[name], name)
    with ClipSource(clip, time_limit_s=None) as source:
        info = source.open()
    if not info.frames:
        raise ValueError(f"{name}: there is no picture in it")
    wanted = _numbers(info, rate, count)
    size = side if 0 < side < min(info.width, info.height) else None
    height, width = sized(info.height, info.width, size)
    at_once = max(1, PIXEL_BYTES // (3 * height * width))
    with ClipSource(clip, size=size, time_limit_s=None) as source:  # no time limit: what comes out must not depend on the machine
        for at in range(0, len(wanted), at_once):
            numbers = wanted[at : at + at_once]
            for number, pixels in zip(numbers, source.frames(numbers), strict=True):
                picture = encoded(Image.fromarray(pixels), format, quality)
                yield {**others, "__key__": f"{sample['__key__']}_{number:05d}", called: picture}


def _numbers(info: ClipInfo, rate: float, count: int) -> list[int]:
    """The frames that are wanted, each once, ascending."""
    if count:
        return list(dict.fromkeys(even_places(0, info.frames - 1, count)))
    shown = math.ceil((info.duration_s - info.begin_s) * rate - 1e-6)
    return list(dict.fromkeys(frame_at(info, info.begin_s + k / rate) for k in range(max(1, shown))))
