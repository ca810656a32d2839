"""Clips for benchmarks/video.py: pictures with enough in them to have the size of real ones, and one very long MP4."""

from __future__ import annotations

import io
import json
import random
import tarfile
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy

__all__ = ["CLIP_FRAMES", "LongClip", "clip", "long_clip", "write_shards"]

FPS = 30
CLIP_FRAMES = 300


def clip(seed: int, frames: int = CLIP_FRAMES, width: int = 640, height: int = 360, gop: int = 30) -> bytes:
    """H.264 with B-frames, and AAC: a texture that moves, with noise; about 2.5 Mbit/s."""
    chance = numpy.random.default_rng(seed)
    texture = chance.integers(0, 255, (height // 8, width // 8, 3), numpy.uint8).repeat(8, 0).repeat(8, 1)
    noise = chance.integers(0, 24, (8, len(texture), texture.shape[1], 3), numpy.uint8)
    made = io.BytesIO()
    with av.open(made, "w", format="mp4") as container:
        options = {"preset": "superfast", "threads": "2", "x264-params": f"scenecut=0:keyint={gop}:min-keyint={gop}"}
        picture: Any = container.add_stream("libx264", rate=FPS, options=options)
        picture.width, picture.height, picture.bit_rate = texture.shape[1], len(texture), 2_500_000
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


@dataclass(frozen=True)
class LongClip:
    """An MP4 of ``groups``: which kind of group each is. ``pictures[kind]`` is that group's first picture, height x width x 3 (RGB)."""

    path: Path
    gop: int
    groups: tuple[int, ...]
    pictures: tuple[Any, ...]

    @property
    def bytes(self) -> int:
        return self.path.stat().st_size

    def keyframe(self, number: int) -> Any:
        """What decoding all of it would show at frame ``number``, which begins a group."""
        assert number % self.gop == 0
        return self.pictures[self.groups[number // self.gop]]


def long_clip(path: Path, size_bytes: int, gop: int, width: int = 1280, height: int = 720, kinds: int = 4) -> LongClip:
    """An MP4 of about ``size_bytes``: closed groups of ``gop`` frames, of ``kinds`` different ones by chance and never two alike in a row,
    so that a wrong frame is seen. Only the kinds are encoded."""
    made = [clip(seed, frames=gop, width=width, height=height, gop=gop) for seed in range(kinds)]
    packets: list[list[Any]] = []
    pictures = []
    chance, groups, written = random.Random(7), [0], 0
    with av.open(io.BytesIO(made[0])) as first, av.open(str(path), "w", format="mp4") as container:
        stream = first.streams.video[0]
        tick, extradata = stream.time_base, stream.codec_context.extradata
        length = gop * int(1 / (FPS * tick))
        copy: Any = container.add_stream_from_template(stream)
        for data in made:
            with av.open(io.BytesIO(data)) as source:
                assert source.streams.video[0].codec_context.extradata == extradata, "groups of one track are of one decoder"
                packets.append([one for one in source.demux(video=0) if one.size])
                source.seek(0)
                pictures.append(next(source.decode(video=0)).to_ndarray(format="rgb24"))
        packed = [[(bytes(one), one.pts, one.dts, one.is_keyframe) for one in kind] for kind in packets]
        while True:
            for data, pts, dts, key in packed[groups[-1]]:
                packet = av.Packet(data)
                packet.stream, packet.time_base, packet.is_keyframe = copy, tick, key
                packet.pts, packet.dts = pts + (len(groups) - 1) * length, dts + (len(groups) - 1) * length
                container.mux(packet)
                written += len(data)
            if written >= size_bytes:
                break
            groups.append((groups[-1] + chance.randrange(1, kinds)) % kinds)
    return LongClip(path, gop, tuple(groups), tuple(pictures))


def write_shards(folder: Path, shards: int, clips: int, kinds: int = 4, **shape: int) -> list[bytes]:
    """``clips`` clips in each of ``shards`` tars, ``kinds`` different ones, made by ``clip`` with ``shape``; the kinds."""
    made = [clip(seed, **shape) for seed in range(kinds)]
    for shard in range(shards):
        with tarfile.open(folder / f"clips-{shard:03}.tar", "w") as tar:
            for number in range(shard * clips, (shard + 1) * clips):
                members = (("mp4", made[number % kinds]), ("json", json.dumps({"number": number, "shard": shard}).encode()))
                for suffix, data in members:
                    entry = tarfile.TarInfo(f"{number:05}.{suffix}")
                    entry.size = len(data)
                    tar.addfile(entry, io.BytesIO(data))
    return made
