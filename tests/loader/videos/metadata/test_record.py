"""One clip as bytes, and bytes that are none."""

from __future__ import annotations

from array import array
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clip_infos import clip_infos, steady

from forebay_loader.videos.clip_info import ClipInfo
from forebay_loader.videos.metadata.record import ClipRecord, CorruptClipTable, clip_name, packed, unpacked

RECORD = ClipRecord("s3://b/1.tar\na.mp4", 1234, '"etag"', steady(5, motion=array("f", [0.5]), audio_energy=array("f", [0.25, 1.0])))


@given(clip_infos(spans=3) | clip_infos(), st.text(max_size=20), st.integers(0, 2**63), st.text(max_size=9))
def test_it_comes_back_equal(info: ClipInfo, name: str, clip_bytes: int, version: str) -> None:
    """In every value, to the bit of a double."""
    record = ClipRecord(name, clip_bytes, version, info)
    assert unpacked(packed(record)) == record


def test_unknown_is_not_empty_and_mirrored_stays_mirrored() -> None:
    """No scan has looked, or a scan found nothing to tell: samplers answer otherwise."""
    for motion in (None, array("f")):
        info = replace(RECORD.info, motion=motion, audio_energy=motion, mirrored=True)
        assert unpacked(packed(RECORD._replace(info=info))).info == info


def test_the_bytes_are_written_down() -> None:
    """What is written today is read tomorrow, on other machines too."""
    info = ClipInfo(1, array("d", [0.5]), 1.5, 640, 480, 90, (0,), 8000, array("f", [0.25]), None)
    numbers = '{"duration_s": 1.5, "width": 640, "height": 480, "rotation_deg": 90, "audio_rate_hz": 8000, "mirrored": false}'
    line = f'{{"name": "a b", "clip_bytes": 1234, "version": "v", "info": {numbers}, "lengths": [1, 1, 1, null]}}\n'
    assert packed(ClipRecord("a b", 1234, "v", info)) == line.encode() + bytes.fromhex("000000000000e03f000000000000803e")


@given(st.binary(max_size=200))
def test_any_bytes_are_a_record_or_refused(data: bytes) -> None:
    """By one error, and without memory for what they claim."""
    try:
        unpacked(data)
    except CorruptClipTable:
        with pytest.raises(CorruptClipTable):
            unpacked(memoryview(data))


@given(st.integers(0, len(packed(RECORD)) - 1), st.integers(1, 255), st.integers(0, 3))
def test_a_changed_record_is_one_or_refused(at: int, other: int, more: int) -> None:
    """Any byte of a true one changed, and bytes behind it or missing."""
    data = bytearray(packed(RECORD))
    data[at] ^= other
    for changed in (data, data + bytes(more), data[: len(data) - more]):
        with suppress(CorruptClipTable):
            assert isinstance(unpacked(bytes(changed)), ClipRecord)


@pytest.mark.parametrize(
    ("shard", "member", "name"),
    [
        ("s3://b/1.tar?x=secret", "a.mp4", "s3://b/1.tar\na.mp4"),
        ("https://h/a.mp4?token=1", "", "https://h/a.mp4"),
        ("1.tar", "a", "1.tar\na"),
    ],
)
def test_names_hold_no_query(shard: str, member: str, name: str) -> None:
    """A signature is of the request, and a secret."""
    assert clip_name(shard, member) == name
