"""Clips rendered by PyAV, small and cached: any codec, GOP, container and sound; each frame carries its number, each channel its tone.

A frame shows its number in the light and dark cells of its first rows, so that a decoded frame says which one it is (``frame_number``),
whatever the codec lost. Below, a square moves over a grey ramp.

H.264 (libx264), HEVC (libx265), AV1 (libsvtav1), MPEG-4 part 2, VP9 and Motion JPEG are in every wheel of PyAV 18.1.
"""

from __future__ import annotations

import io
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import av
import numpy

__all__ = ["ClipOrder", "frame_number", "painted", "pictures_of", "rendered", "sound_of", "sound_only"]


BITS = 12
CELLS = 16  # in a row; their height is a sixth of the picture's, and a decoded frame of another size has them in the same places
DARK, LIGHT = 40, 210
SAMPLES_A_PACKET = 1024

Options = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class ClipOrder:
    """What to render.

    ``times_ms`` gives each frame's presentation time and replaces ``fps`` (variable frame rate); ``start_ms`` delays the pictures alone,
    which an MP4 writes as an empty edit. ``movflags`` and ``codec_options`` go to FFmpeg as they are.
    """

    codec: str = "libx264"  # any encoder of PyAV's: libx265, libsvtav1, mpeg4, libvpx-vp9, mjpeg, prores_ks …
    frames: int = 48
    width: int = 128  # at least 96: the number's cells must outlive the quantiser
    height: int = 96
    fps: int = 24
    gop: int = 12  # frames from a keyframe to the next
    b_frames: int = 0
    open_gop: bool = False
    times_ms: tuple[int, ...] = ()
    start_ms: int = 0
    pix_fmt: str = "yuv420p"
    rotation_deg: int = 0  # counter-clockwise, as FFmpeg's display matrix says it
    mirrored: bool = False  # left to right, after that
    audio: str = ""  # an encoder's name: aac, libopus, flac, alac, ac3, pcm_s16le, libmp3lame; "" is silence
    audio_rate_hz: int = 48_000
    channels: int = 1
    audio_s: float = 0.0  # 0: as long as the pictures
    container: str = "mp4"  # mp4, mov, webm, matroska, mpegts, avi
    fragmented: bool = False
    moov_first: bool = False
    movflags: str = ""  # more of them, joined by +
    codec_options: Options = ()
    container_options: Options = ()


def rendered(**order: object) -> bytes:
    """The bytes of a clip, by the fields of ``ClipOrder``: ``rendered(codec="libx265", frames=30, audio="aac")``."""
    options = {name: tuple(value.items()) if isinstance(value, dict) else value for name, value in order.items()}
    return _rendered(replace(ClipOrder(), **options))  # type: ignore[arg-type]


def painted(number: int, width: int = 128, height: int = 96) -> numpy.ndarray:
    """Frame ``number`` as ``height x width x 3`` uint8 (RGB)."""
    image = numpy.empty((height, width, 3), numpy.uint8)
    image[:] = (60 + numpy.arange(width) * 80 // width)[None, :, None]
    for bit in range(BITS):
        image[: height // 6, bit * width // CELLS : (bit + 1) * width // CELLS] = LIGHT if number >> bit & 1 else DARK
    side = height // 4
    left, top = number * 3 % (width - side), height // 6 + number * 2 % (height - height // 6 - side)
    image[top : top + side, left : left + side] = (220, 60, 60)
    return image


def frame_number(image: numpy.ndarray) -> int:
    """The number that ``painted`` wrote, of a decoded frame of any size (``height x width x 3``, or grey ``height x width``)."""
    grey = image.mean(axis=2) if image.ndim == 3 else image
    return sum(1 << bit for bit in range(BITS) if _cell(grey, bit) > (DARK + LIGHT) / 2)


def _cell(grey: numpy.ndarray, bit: int) -> float:
    """The middle of a cell, where no neighbour smears into it."""
    height, width = grey.shape
    left, right = (bit * 4 + 1) * width // (4 * CELLS), (bit * 4 + 3) * width // (4 * CELLS)
    return float(grey[: max(height // 8, 1), left : max(right, left + 1)].mean())


@lru_cache(maxsize=256)
def _rendered(order: ClipOrder) -> bytes:
    with tempfile.TemporaryDirectory() as folder:  # a file: moov_first is written in a second pass over it
        path = Path(folder, "clip")
        with av.open(str(path), "w", format=order.container, options=_container_options(order)) as container:
            packets = [_video_packets(container, order)]
            if order.audio:
                packets.append(_audio_packets(container, order))
            for packet in sorted(chain.from_iterable(packets), key=lambda packet: packet.dts * packet.time_base):
                container.mux(packet)
        return path.read_bytes()


def _container_options(order: ClipOrder) -> dict[str, str]:
    flags = [order.movflags] if order.movflags else []
    if order.fragmented:
        flags += ["frag_keyframe", "empty_moov", "default_base_moof"]
    if order.moov_first:
        flags += ["faststart"]
    return ({"movflags": "+".join(flags)} if flags else {}) | dict(order.container_options)


def _video_options(order: ClipOrder) -> dict[str, str]:
    """Keyframes exactly where the order says: encoders move them to where the picture changes else."""
    open_gop, b_frames = int(order.open_gop), order.b_frames
    own = {
        "libx264": {"preset": "veryfast", "x264-params": f"scenecut=0:open-gop={open_gop}:b-adapt=0:bframes={b_frames}:threads=1"},
        "libx265": {
            "preset": "ultrafast",
            "x265-params": f"log-level=none:scenecut=0:open-gop={open_gop}:b-adapt=0:bframes={b_frames}:min-keyint={order.gop}"
            ":pools=none:frame-threads=1",
        },
        "libsvtav1": {"preset": "12", "svtav1-params": f"scd=0:lp=1:keyint={order.gop}:irefresh-type={2 - open_gop}"},
        "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8"},
    }
    return own.get(order.codec, {}) | dict(order.codec_options)


def _video_packets(container: av.container.OutputContainer, order: ClipOrder) -> list[av.Packet]:
    stream = container.add_stream(order.codec, rate=order.fps, options=_video_options(order))
    stream.width, stream.height, stream.pix_fmt = order.width, order.height, "yuvj420p" if order.codec == "mjpeg" else order.pix_fmt
    stream.codec_context.gop_size = order.gop
    if order.codec not in ("libsvtav1", "mjpeg", "prores_ks"):
        stream.codec_context.max_b_frames = order.b_frames
    stream.codec_context.thread_count = 1
    stream.codec_context.time_base = stream.time_base = Fraction(1, 1000) if order.times_ms else Fraction(1, order.fps)
    if order.rotation_deg or order.mirrored:
        stream.set_display_rotation(order.rotation_deg, hflip=order.mirrored)
    packets = [packet for frame in _frames(order, stream.codec_context.time_base) for packet in stream.encode(frame)]
    return [packet for packet in [*packets, *stream.encode(None)] if packet.dts is not None]


def _frames(order: ClipOrder, time_base: Fraction) -> Iterator[av.VideoFrame]:
    times = order.times_ms or range(order.frames)
    delay = round(Fraction(order.start_ms, 1000) / time_base)
    for number, time in enumerate(times):
        frame = av.VideoFrame.from_ndarray(painted(number, order.width, order.height), format="rgb24")
        frame.pts, frame.time_base = time + delay, time_base
        yield frame


def _audio_packets(container: av.container.OutputContainer, order: ClipOrder) -> list[av.Packet]:
    layout = {1: "mono", 2: "stereo", 6: "5.1"}[order.channels]
    stream = container.add_stream(order.audio, rate=order.audio_rate_hz, layout=layout)
    length_s = order.audio_s or (order.times_ms[-1] / 1000 if order.times_ms else order.frames / order.fps)
    packets = [packet for frame in _sounds(order, layout, round(length_s * order.audio_rate_hz)) for packet in stream.encode(frame)]
    return [packet for packet in [*packets, *stream.encode(None)] if packet.dts is not None]


def _sounds(order: ClipOrder, layout: str, length: int) -> Iterator[av.AudioFrame]:
    """A tone in each channel: 440 Hz in the first, 880 in the second …; PyAV cuts and converts it to what the encoder takes."""
    for begin in range(0, length, SAMPLES_A_PACKET):
        phase = 2 * math.pi * numpy.arange(begin, min(begin + SAMPLES_A_PACKET, length)) / order.audio_rate_hz
        tones = numpy.stack([0.4 * numpy.sin(440 * (channel + 1) * phase) for channel in range(order.channels)])
        frame = av.AudioFrame.from_ndarray(tones.astype(numpy.float32), format="fltp", layout=layout)
        frame.sample_rate, frame.pts, frame.time_base = order.audio_rate_hz, begin, Fraction(1, order.audio_rate_hz)
        yield frame


# What PyAV itself gives of a clip, decoded from its begin to its end: what ours is compared with.
@lru_cache(maxsize=32)
def pictures_of(data: bytes) -> list[Any]:
    """Every frame as ``height x width x 3`` uint8, as coded."""
    with av.open(io.BytesIO(data)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


@lru_cache(maxsize=32)
def sound_of(data: bytes) -> tuple[Any, int]:
    """(``channels x samples``, samples a second), in the decoder's own numbers where it is planar."""
    with av.open(io.BytesIO(data)) as container:
        frames = list(container.decode(audio=0))
    parts = [
        frame.to_ndarray() if frame.format.is_planar else frame.to_ndarray().reshape(-1, len(frame.layout.channels)).T for frame in frames
    ]
    return numpy.concatenate(parts, axis=1), frames[0].sample_rate


def sound_only() -> bytes:
    """A clip without a picture: Opus in Ogg."""
    made = io.BytesIO()
    with av.open(made, "w", format="ogg") as container:
        stream = container.add_stream("libopus", rate=48_000, layout="mono")
        frame = av.AudioFrame(format="flt", layout="mono", samples=960)
        frame.sample_rate = 48_000
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    return made.getvalue()
