"""Frames that were decoded before, in an LMDB."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zlib
from pathlib import Path

import av
import lmdb
import numpy
import pytest
from support.clips import frame_number, painted

from forebay_loader.videos.errors import CorruptVideo, UnsupportedVideo, VideoError
from forebay_loader.videos.sources.choice import source_of
from forebay_loader.videos.sources.frames_source import FramesSource


def encoded(number: int, kind: str = "png") -> bytes:
    made = io.BytesIO()
    with av.open(made, "w", format="image2pipe") as container:
        stream = container.add_stream(kind, width=128, height=96, pix_fmt="rgb24" if kind == "png" else "yuvj420p")
        frame = av.VideoFrame.from_ndarray(painted(number), format="rgb24")
        for packet in [*stream.encode(frame), *stream.encode(None)]:
            container.mux(packet)
    return made.getvalue()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Two clips, twelve PNGs and three JPEGs; a third clip is no pictures."""
    with lmdb.open(str(tmp_path / "base"), map_size=1 << 24) as made, made.begin(write=True) as transaction:
        for number in range(12):
            transaction.put(f"a/{number:04}".encode(), encoded(number))
        for number in range(3):
            transaction.put(f"a2/{number:04}.jpg".encode(), encoded(number + 100, "mjpeg"))
        transaction.put(b"bad/0000", encoded(0)[:200])
        transaction.put(b"odd/0000", b"hello")
    return tmp_path / "base"


def test_frames_of_a_clip(base: Path) -> None:
    """By number, in any order; a PNG is what was painted. Another clip whose name begins alike is another clip."""
    source = FramesSource(base, "a", fps=24.0)
    info = source.open()
    assert (info.frames, info.duration_s, info.fps, info.width, info.height) == (12, 0.5, 24.0, 128, 96)
    assert info.keyframes == tuple(range(12))
    assert numpy.array_equal(source.frames([7, 0, 7]), numpy.stack([painted(number) for number in (7, 0, 7)]))
    assert source.audio(0.0, 1.0)[1] == 0


@pytest.mark.parametrize("form", ["n/{}.png", "n/img_{}", "n/{:02}.png"])
def test_frames_follow_each_other_by_their_numbers(tmp_path: Path, form: str) -> None:
    """An LMDB has 10 before 9; and what lies deeper is another clip."""
    with lmdb.open(str(tmp_path), map_size=1 << 24) as made, made.begin(write=True) as transaction:
        for number in range(12):
            transaction.put(form.format(number).encode(), encoded(number))
        transaction.put(b"n/deeper/3", encoded(99))
    with FramesSource(tmp_path, "n") as source:
        assert [frame_number(picture) for picture in source.frames(range(source.open().frames))] == list(range(12))


def test_an_lmdb_that_is_one_clip(tmp_path: Path) -> None:
    """Its keys are the frames' numbers and nothing else; without any, the error names its folder."""
    for name, count in (("clip7", 12), ("none", 0)):
        with lmdb.open(str(tmp_path / name), map_size=1 << 24) as made, made.begin(write=True) as transaction:
            for number in range(count):
                transaction.put(str(number).encode(), encoded(number))
    for what in (f"lmdb://{tmp_path}/clip7?fps=24", {"url": f"lmdb://{tmp_path}/clip7", "fps": 24}):
        with source_of(what) as source:
            assert source.open().fps == 24.0
            assert [frame_number(picture) for picture in source.frames(range(12))] == list(range(12))
    with source_of(f"lmdb://{tmp_path}/none") as source, pytest.raises(CorruptVideo, match=r"^none in .*no key is a frame's number"):
        source.open()


def test_two_keys_of_one_frame(tmp_path: Path) -> None:
    """Nobody can say which one it is."""
    with lmdb.open(str(tmp_path), map_size=1 << 24) as made, made.begin(write=True) as transaction:
        for key in (b"n/1.png", b"n/01.png"):
            transaction.put(key, encoded(1))
    with pytest.raises(CorruptVideo, match=r"n in .*: keys 'n/01\.png' and 'n/1\.png' are of the same frame"):
        FramesSource(tmp_path, "n").open()


def test_a_base_that_is_cut_short(base: Path) -> None:
    """It is mapped: a read behind the file's end would end the process."""
    os.truncate(base / "data.mdb", os.path.getsize(base / "data.mdb") // 2)
    with pytest.raises(CorruptVideo, match=r"a in .*: the LMDB is cut short"):
        FramesSource(base, "a").open()


def test_a_base_that_is_none(tmp_path: Path) -> None:
    """Bytes of another kind."""
    (tmp_path / "data.mdb").write_bytes(b"hello" * 5000)
    with pytest.raises(VideoError, match=r"a in .*"):
        FramesSource(tmp_path, "a").open()


def test_a_picture_that_says_it_is_huge(tmp_path: Path) -> None:
    """Nothing is made for it."""
    bomb = bytearray(encoded(1))
    struct.pack_into(">II", bomb, 16, 60_000, 60_000)
    struct.pack_into(">I", bomb, 29, zlib.crc32(bomb[12:29]))
    with lmdb.open(str(tmp_path), map_size=1 << 24) as made, made.begin(write=True) as transaction:
        transaction.put(b"n/1", bytes(bomb))
    with pytest.raises(CorruptVideo, match=r"n in .*: frame 0 cannot be decoded"):
        FramesSource(tmp_path, "n").open()


def test_two_clips_of_one_base(base: Path) -> None:
    """A process opens it once, and closes it with the last of them."""
    with source_of(f"lmdb://{base}?clip=a") as first, source_of(f"lmdb://{base}?clip=a2", size=48) as second:
        assert [frame_number(picture) for picture in second.frames([2, 0])] == [102, 100]
        assert frame_number(first.frame(5)) == 5
    lmdb.open(str(base)).close()  # nobody holds it


def test_it_pickles_and_goes_on_in_a_fork(base: Path) -> None:
    """Open or not."""
    source = FramesSource(base, "a")
    source.open()
    assert frame_number(pickle.loads(pickle.dumps(source)).frame(3)) == 3
    child = os.fork()
    if not child:
        os._exit(0 if frame_number(source.frame(4)) == 4 else 1)
    assert os.waitpid(child, 0)[1] == 0
    source.close()


def test_what_is_not_there(base: Path) -> None:
    """No such base, no such clip, no such frame."""
    with pytest.raises(UnsupportedVideo, match=r"a in .*nowhere"):
        FramesSource(base / "nowhere", "a").open()
    with pytest.raises(CorruptVideo, match="no key begins with 'b/'"):
        FramesSource(base, "b").open()
    with pytest.raises(IndexError, match="frame 12 of 12"):
        FramesSource(base, "a").frame(12)


@pytest.mark.parametrize("clip", ["bad", "odd"])
def test_what_is_no_picture(base: Path, clip: str) -> None:
    """Named with its number."""
    with pytest.raises(CorruptVideo, match=f"{clip} in .*: frame 0"):
        FramesSource(base, clip).open()
