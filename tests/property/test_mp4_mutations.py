"""Clips of a real encoder, mutated in their boxes: an index that keeps to the file, or a ``VideoError``, in bounded time and memory."""

from __future__ import annotations

import resource
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.lengths import examples, ordinarily
from support.mp4_boxes import Spans, places
from support.mp4_oracle import read_or_refused

pytest.importorskip("av", reason="the extra `video` is not installed")

from support.clips import rendered

from forebay_loader.videos.errors import VideoError
from forebay_loader.videos.sources.choice import source_of

CLIPS: list[dict[str, object]] = [
    {"b_frames": 2, "audio": "aac", "moov_first": True},
    {"codec": "libx265", "open_gop": True, "b_frames": 3, "audio": "libopus", "start_ms": 300},
    {"audio": "aac", "container": "mov", "frames": 12},
    {"audio": "flac", "b_frames": 2},
]
ABSURD = (2**32 - 1, 0, 2**31 - 1, 1, 2**31, 7, 2**32 - 8, 8, 2**22 - 99)  # the last is as many as samples may be, almost
SLOW = settings(max_examples=examples(900), suppress_health_check=[HealthCheck.too_slow])
KINDS = [
    b"ftyp", b"moov", b"mvhd", b"trak", b"tkhd", b"edts", b"elst", b"mdia", b"mdhd", b"hdlr", b"minf", b"dinf", b"dref", b"stbl",
    b"stsd", b"stts", b"ctts", b"stss", b"stsc", b"stsz", b"stco",
    b"mdat", b"avc1", b"avcC", b"hvc1", b"hvcC", b"mp4a", b"esds", b"Opus", b"dOps", b"fLaC", b"dfLa", b"wave", b"sbgp",
]  # fmt: skip
TRIED = ordinarily(1, of=5, what="absurd numbers in each place of a clip")  # of these, other ones in the next place
MEMORY_BYTES = 64 << 20  # far above what any of these clips takes, far below what one absurd count would


@lru_cache
def clip_of(number: int) -> tuple[bytes, Spans]:
    """A clip, and the spans of its boxes without the media."""
    clip = rendered(**CLIPS[number])
    media = sorted((begin + 8, end) for begin, end in places(clip, b"mdat"))
    edges = [0, *(edge for span in media for edge in span), len(clip)]
    return clip, [(begin, end) for begin, end in zip(edges[::2], edges[1::2], strict=True) if begin < end]


@lru_cache
def size_fields(number: int) -> list[int]:
    """Where the boxes' own sizes are, and the counts and sizes at the begin of tables."""
    clip, spans = clip_of(number)
    found = []
    for kind in KINDS:
        at = [place for begin, end in spans for place in range(begin, end - 3) if clip[place : place + 4] == kind]
        found += [place + offset for place in {*at[:2], *at[-1:]} for offset in (-4, 8, 12, 16)]
    return [at for at in found if 0 <= at <= len(clip) - 4]


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    number = draw(st.integers(0, len(CLIPS) - 1))
    clip, spans = clip_of(number)
    changed = bytearray(clip)
    for _ in range(draw(st.integers(1, 4))):
        begin, end = draw(st.sampled_from(spans))
        place = draw(st.integers(begin, end - 1))
        match draw(st.integers(0, 5)):
            case 0 | 1:
                struct.pack_into(
                    ">I", changed, draw(st.sampled_from(size_fields(number))), draw(st.sampled_from(ABSURD) | st.integers(0, 2**32 - 1))
                )
            case 2:
                changed[place] ^= 1 << draw(st.integers(0, 7))
            case 3:
                chunk = draw(st.binary(min_size=1, max_size=8))
                changed[place : place + len(chunk)] = chunk
            case 4:
                other, stop = draw(st.sampled_from(spans))
                changed[place:place] = clip[other : min(stop, other + draw(st.integers(1, 400)))]
                break  # what follows would fall into other places
            case _:
                del changed[place if draw(st.booleans()) else draw(st.integers(0, len(changed) - 1)) :]
                break
    return bytes(changed)


@contextmanager
def bounded() -> Iterator[None]:
    """Whoever makes an array of a count or a size that is not true gets a ``MemoryError``."""
    usual, most = resource.getrlimit(resource.RLIMIT_AS)
    held_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held_bytes + MEMORY_BYTES, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (usual, most))


def test_an_absurd_array_would_be_found_out() -> None:
    """By the limit that the tests below read under."""
    with bounded(), pytest.raises(MemoryError):
        numpy.empty(ABSURD[4], numpy.uint8)


@SLOW
@given(mutations())
def test_mutated_clips_are_read_or_refused(clip: bytes) -> None:
    """Never another exception, no byte read many times, no memory for what is not there, and what is read keeps to the file."""
    with bounded():
        read_or_refused(clip)


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.too_slow])
@given(clip=mutations())
def test_mutated_clips_are_decoded_alike_wherever_they_are(tmp_path_factory: pytest.TempPathFactory, clip: bytes) -> None:
    """A file gives what its bytes in memory give: the same frames and sound, or the same ``VideoError``."""
    path = tmp_path_factory.getbasetemp() / "clip.mp4"
    path.write_bytes(clip)
    assert outcome(path) == outcome(clip)


def outcome(what: Path | bytes) -> object:
    with source_of(what, size=48, time_limit_s=30, name="clip.mp4") as source:
        try:
            info = source.open()
            return info, source.frames([0, info.frames // 2, info.frames - 1]).tobytes(), source.audio(0, 1)[0].tobytes()
        except VideoError as error:
            return type(error), str(error)


@pytest.mark.parametrize("number", range(len(CLIPS)))
def test_each_absurd_number_in_each_place(number: int) -> None:
    """One at a time, where a size or a count is: whatever is made of it, no memory is."""
    clip, _ = clip_of(number)
    assert read_or_refused(clip)
    with bounded():
        for turn, at in enumerate(size_fields(number)):
            for value in [ABSURD[::2][(turn + more) % 5] for more in range(TRIED)]:
                changed = bytearray(clip)
                struct.pack_into(">I", changed, at, value)
                read_or_refused(bytes(changed))


@pytest.mark.parametrize("number", range(len(CLIPS)))
def test_each_cut_of_a_clip(number: int) -> None:
    """Every end of it, in steps that meet each box: refused, or whole where only what is not read was cut."""
    clip, spans = clip_of(number)
    cuts = {cut for begin, end in spans for cut in range(begin, end, 29)} | set(range(0, len(clip), 2003)) - {len(clip)}
    whole = read_or_refused(clip)
    assert whole
    for cut in sorted(cuts):
        index = read_or_refused(clip[:cut])
        assert index is None or index.video.frames == whole.video.frames
