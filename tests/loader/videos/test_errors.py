"""Errors about clips name what they are about, and survive a DataLoader worker."""

from __future__ import annotations

import pickle

import pytest

from forebay_loader import LoaderError
from forebay_loader.videos.errors import CorruptVideo, UnsupportedVideo, VideoError, VideoTimeout

KINDS = [VideoError, CorruptVideo, UnsupportedVideo, VideoTimeout]


@pytest.mark.parametrize("kind", KINDS)
def test_the_text_names_clip_and_shard(kind: type[VideoError]) -> None:
    """What a person reads in a log is enough to find the bytes."""
    assert issubclass(kind, LoaderError)
    assert str(kind("no moov", "a.mp4", "s3://b/0.tar")) == "a.mp4 in s3://b/0.tar: no moov"
    assert str(kind("no moov", "a.mp4")) == "a.mp4: no moov"
    assert str(kind("no moov")) == "no moov"


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_s_error_is_rebuilt(kind: type[VideoError]) -> None:
    """From its text alone, and by pickle with its names."""
    error = kind("no moov", "a.mp4", "s3://b/0.tar")
    assert str(kind(str(error))) == str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.clip, copy.shard) == (kind, str(error), "a.mp4", "s3://b/0.tar")


def test_the_names_come_later() -> None:
    """The same kind and text, by whoever knows the clip and its shard."""
    error = CorruptVideo("no moov").of("a.mp4", "s3://b/0.tar")
    assert type(error) is CorruptVideo
    assert str(error) == "a.mp4 in s3://b/0.tar: no moov"
