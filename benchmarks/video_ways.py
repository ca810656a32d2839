"""How others come to frames of a clip: OpenCV, all of it by a temporary file, torchcodec, SPDL. Imports are late: each may be missing.

SPDL and torchcodec need FFmpeg of the system (``apt-get install ffmpeg``); ``pip install spdl-io spdl-core torchcodec==0.13.0``.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import av
import numpy

from forebay_loader.videos.sampling.sampler import even_places

__all__ = ["FRAMES", "evenly", "opencv_seeking", "others", "whole"]

FRAMES = 8  # that are wanted of a clip
Way = Callable[[bytes], Any]  # a clip's bytes to FRAMES x height x width x 3


def evenly(frames: int) -> list[int]:
    """The frames that ``uniform(8)`` takes, and torchcodec's ``clips_at_regular_indices``."""
    return even_places(0, frames - 1, FRAMES)


def opencv_seeking(path: str, numbers: Sequence[int], limit_s: float) -> list[Any]:
    """As tutorials have it: set the position, read. No more of them once ``limit_s`` is over."""
    import cv2  # noqa: PLC0415

    capture = cv2.VideoCapture(path)
    found: list[Any] = []
    end_s = time.monotonic() + limit_s
    for number in numbers:
        capture.set(cv2.CAP_PROP_POS_FRAMES, number)
        found.append(capture.read()[1][..., ::-1])
        if time.monotonic() > end_s:
            break
    capture.release()
    return found


def whole(data: bytes) -> Any:
    """As ``torch_video`` did: a temporary file, every frame decoded and converted."""
    with tempfile.NamedTemporaryFile(suffix=".mp4") as file:
        file.write(data)
        file.flush()
        with av.open(file.name) as container:
            container.streams.video[0].thread_count = 1
            frames = numpy.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    return frames[evenly(len(frames))]


def others() -> tuple[dict[str, Way], dict[str, str]]:
    """Ways from bytes to eight frames in one thread, by name; and why one is missing."""
    ways: dict[str, Way] = {}
    missing: dict[str, str] = {}
    for name, make in (("torchcodec", _torchcodec), ("SPDL", _spdl)):
        try:
            ways.update(make())
        except (ImportError, OSError, RuntimeError) as error:  # also a library that finds no FFmpeg it can use
            missing[name] = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return ways, missing


def _torchcodec() -> dict[str, Way]:
    from torchcodec.decoders import VideoDecoder  # noqa: PLC0415
    from torchcodec.samplers import clips_at_regular_indices  # noqa: PLC0415

    def sampled(mode: str) -> Way:
        def way(data: bytes) -> Any:
            decoder = VideoDecoder(data, num_ffmpeg_threads=1, dimension_order="NHWC", seek_mode=mode)
            return clips_at_regular_indices(decoder, num_clips=FRAMES, num_frames_per_clip=1).data.numpy()[:, 0]

        return way

    return {"torchcodec, exact": sampled("exact"), "torchcodec, approximate": sampled("approximate")}


def _spdl() -> dict[str, Way]:
    import spdl.io  # noqa: PLC0415

    picture = spdl.io.get_video_filter_desc(pix_fmt="rgb24")

    def way(data: bytes) -> Any:
        packets = spdl.io.demux_video(data)
        frames = spdl.io.sample_decode_video(packets, evenly(len(packets)), filter_desc=picture)
        return spdl.io.to_numpy(spdl.io.convert_frames(frames))

    return {"SPDL": way}
