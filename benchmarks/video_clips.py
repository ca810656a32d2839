"""Clips for benchmarks/video.py: pictures with enough in them to have the size of real ones, and one very long MP4."""

from __future__ import annotations

import io
import json
import tarfile
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy

__all__ = ["LONG_GOP", "clip", "long_clip", "write_shards"]

FPS = 30
LONG_GOP = 250


def clip(seed: int, frames: int = 300, width: int = 640, height: int = 360, gop: int = 30) -> bytes:
    """H.264 with B-frames, and AAC: a texture that moves, with noise; about 2.5 Mbit/s."""
    chance = numpy.random.default_rng(seed)
    texture = chance.integers(0, 255, (height // 8, width // 8, 3), numpy.uint8).repeat(8, 0).repeat(8, 1)
    noise = chance.integers(0, 24, (8, height, width, 3), numpy.uint8)
    made = io.BytesIO()
    with av.open(made, "w", format="mp4") as container:
        options = {"preset": "superfast", "threads": "2", "x264-params": f"scenecut=0:keyint={gop}:min-keyint={gop}"}
        picture: Any = container.add_stream("libx264", rate=FPS, options=options)
        picture.width, picture.height, picture.bit_rate = width, height, 2_500_000
        sound: Any = container.add_stream("aac", rate=48_000, layout="mono")
        for number in range(frames):
            image = numpy.roll(texture, (number * 2, number * 3), (0, 1)) // 2 + noise[number % 8]
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            container.mux(picture.encode(frame))
        container.mux(picture.encode(None))
        tone = 0.3 * numpy.sin(numpy.arange(48_000 * frames // FPS) / 17)
        heard = av.AudioFrame.from_ndarray(tone.astype(numpy.float32)[None], format="fltp", layout="mono")
        heard.sample_rate, heard.pts, heard.time_base = 48_000, 0, Fraction(1, 48_000)
        container.mux(sound.encode(heard))
        container.mux(sound.encode(None))
    return made.getvalue()


def long_clip(path: Path, size_bytes: int) -> int:
    """An MP4 of about ``size_bytes``: the packets of one clip of closed groups again and again. The number of its frames.

    ``LONG_GOP`` frames a group, which is what x264 makes unless it is told otherwise.
    """
    one = clip(1, frames=LONG_GOP, width=1280, height=720, gop=LONG_GOP)
    with av.open(io.BytesIO(one)) as source:
        stream = source.streams.video[0]
        packets = [(bytes(packet), packet.pts, packet.dts, packet.is_keyframe) for packet in source.demux(stream) if packet.size]
        tick, length = stream.time_base, LONG_GOP * int(1 / (FPS * stream.time_base))
        with av.open(str(path), "w", format="mp4") as container:
            copy: Any = container.add_stream_from_template(stream)
            written = turn = 0
            while written < size_bytes:
                for data, pts, dts, key in packets:
                    packet = av.Packet(data)
                    packet.stream, packet.time_base, packet.is_keyframe = copy, tick, key
                    packet.pts, packet.dts = pts + turn * length, dts + turn * length
                    container.mux(packet)
                    written += len(data)
                turn += 1
    return turn * LONG_GOP


def write_shards(folder: Path, shards: int, clips: int) -> int:
    """``clips`` clips of 300 frames in each of ``shards`` tars, four different ones; bytes of one."""
    kinds = [clip(seed) for seed in range(4)]
    for shard in range(shards):
        with tarfile.open(folder / f"clips-{shard:03}.tar", "w") as tar:
            for number in range(clips):
                content = kinds[(shard * clips + number) % len(kinds)]
                for suffix, data in (("mp4", content), ("json", json.dumps({"number": shard * clips + number}).encode())):
                    entry = tarfile.TarInfo(f"{shard:03}-{number:03}.{suffix}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
    return len(kinds[0])
