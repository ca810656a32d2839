"""Fragments: what each adds to the tracks, where its bytes are, and what is refused."""

from __future__ import annotations

import struct

import pytest
from support.mp4_boxes import PCM, HandTrack, box, film, fragment, full, mvex, patched, places, reads_of

from forebay_loader.videos.errors import CorruptVideo, UnsupportedVideo
from forebay_loader.videos.mp4.index import Mp4Index, read_index
from forebay_loader.videos.mp4.sample_table import MAX_SAMPLES

EMPTY = HandTrack(sizes=())
TREX = mvex((1, 1, 10, 50, 0x01010000))
MOOF_BASE = 0x020000


def index_of(clip: bytes) -> Mp4Index:
    return read_index(reads_of(clip)[0], len(clip), "a.mp4")


def tfhd(*numbers: int, track: int = 1, flags: int = MOOF_BASE, form: str = "I") -> bytes:
    return full(b"tfhd", struct.pack(f">I{form * len(numbers)}", track, *numbers), flags=flags)


def tfdt(time: int, version: int = 0) -> bytes:
    return full(b"tfdt", struct.pack(">Q" if version else ">I", time), version=version)


def trun(total: int, *numbers: int, flags: int = 0) -> bytes:
    return full(b"trun", struct.pack(f">I{len(numbers)}i", total, *numbers), flags=flags)


def at_media(clip: bytes) -> list[int]:
    """First byte of each mdat's payload."""
    return [begin + 8 for begin, _ in places(clip, b"mdat")]


def test_fragments_follow_one_another() -> None:
    """In time where they say none, by tfdt where they do; offsets are from the moof."""
    head = film(EMPTY, more=TREX)
    size = len(fragment((tfhd(), trun(2, 0, flags=1)), media=0))
    first = fragment((tfhd(), trun(2, size, flags=1)), media=100)
    dated = len(fragment((tfhd(), tfdt(500), trun(1, 0, flags=1)), media=0))
    second = fragment((tfhd(), tfdt(500), trun(1, dated, flags=1)), media=50)
    clip = head + first + first + second
    video = index_of(clip).video
    assert video.pts.tolist() == [0, 10, 20, 30, 500]
    media = at_media(clip)[1:]
    assert video.offsets.tolist() == [media[0], media[0] + 50, media[1], media[1] + 50, media[2]]
    assert video.sizes.tolist() == [50] * 5


@pytest.mark.parametrize("version", [0, 1])
def test_a_decode_time_of_32_or_64_bits(version: int) -> None:
    """Both versions of tfdt."""
    clip = film(EMPTY, more=TREX) + fragment((tfhd(), tfdt(700, version), trun(1)), media=50)
    assert index_of(clip).video.dts.tolist() == [700]


def test_samples_of_moov_come_first() -> None:
    """A file that was finished as a fragmented one later: time goes on where moov ends."""
    clip = film(HandTrack(), more=TREX) + fragment((tfhd(), trun(1, 40, flags=1)), media=50)
    assert index_of(clip).video.pts.tolist() == [0, 10, 20, 30]


def test_the_fragment_s_defaults_go_before_the_track_s() -> None:
    """Description, duration, size and flags."""
    clip = film(EMPTY, more=TREX) + fragment((tfhd(1, 7, 8, 0, flags=MOOF_BASE | 0x3A), trun(2)), media=50)
    video = index_of(clip).video
    assert (video.durations.tolist(), video.sizes.tolist(), list(video.key)) == ([7, 7], [8, 8], [1, 1])


def test_offsets_from_a_byte_that_is_said() -> None:
    """The absolute one of older files."""
    head = film(EMPTY, more=TREX)
    clip = head + fragment((tfhd(len(head) + 1, flags=1, form="Q"), trun(1, 3, flags=1)), media=50)
    assert index_of(clip).video.offsets.tolist() == [len(head) + 4]


def test_without_a_base_each_track_follows_the_one_before() -> None:
    """The first begins at the moof, and the next where the first one's data ends: also where that track is not read."""
    text = HandTrack(sizes=(), handler=b"text", number=2)
    head = film(EMPTY, text, more=mvex((1, 1, 10, 50, 0), (2, 1, 10, 3, 0)))
    clip = head + fragment(
        (tfhd(track=2, flags=0), trun(4, 200, flags=1), trun(1)), (tfhd(flags=0), trun(1), trun(2), trun(1, 7, flags=1)), media=500
    )
    begin = len(head) + 200 + 15
    assert index_of(clip).video.offsets.tolist() == [begin, begin + 50, begin + 100, begin + 7]


def test_a_track_that_is_not_read_costs_nothing() -> None:
    """However many samples its runs have."""
    head = film(EMPTY, HandTrack(sizes=(), handler=b"text", number=2), more=mvex((1, 1, 10, 50, 0), (2, 1, 1, 0, 0)))
    clip = head + fragment((tfhd(track=2), trun(2**32 - 1)), (tfhd(), trun(1)), media=50)
    assert index_of(clip).video.frames == 1


def test_uncompressed_sound_comes_in_units() -> None:
    """A run of a sample a frame."""
    sound = HandTrack(sizes=(), handler=b"soun", number=2, entries=PCM, timescale=48000)
    head = film(EMPTY, sound, more=mvex((1, 1, 10, 50, 0), (2, 1, 1, 4, 0)))
    index = index_of(head + fragment((tfhd(track=2), trun(3000)), (tfhd(), trun(1)), media=12_000))
    assert index.audio is not None
    assert index.audio.durations.tolist() == [1024, 1024, 952]
    assert index.video.offsets[0] == index.audio.offsets[0] == len(head)  # both say that they count from the moof


@pytest.mark.parametrize(
    ("trafs", "match"),
    [
        ((tfhd(), trun(2, -9999, flags=1)), "a run has 100 bytes from byte -"),
        ((tfhd(), trun(1, 2**31 - 1, flags=1)), "a run has 50 bytes from byte 2147"),
        ((tfhd(2**64 - 1, flags=1, form="Q"), trun(1)), "a run has 50 bytes from byte 18446"),
        ((tfhd(), trun(2**32 - 1)), "a run has 214748364750 bytes"),
        ((tfhd(0, flags=MOOF_BASE | 0x10), trun(2**32 - 1)), "a run has 4294967295 samples of 0 bytes"),
        ((tfhd(0, flags=MOOF_BASE | 0x10), trun(1000)), "a run has 1000 samples of 0 bytes; the file has"),
        ((tfhd(1, flags=MOOF_BASE | 0x10), *[trun(40, 0, flags=1)] * 4), "a run has 40 samples of 1 bytes; the file has"),
        ((tfhd(), tfdt(2**63, 1), trun(1)), "begins at tick 9223372036854775808"),
        ((tfdt(0), trun(1)), "no box tfhd in traf"),
        ((tfhd(), tfhd(), trun(1)), "two boxes tfhd"),
    ],
)
def test_what_does_not_fit_is_refused(trafs: tuple[bytes, ...], match: str) -> None:
    """Bytes outside of the file, more samples than there may be, times beyond reason, headers missing."""
    with pytest.raises(CorruptVideo, match=match):
        index_of(film(EMPTY, more=TREX) + fragment(trafs, media=50))


def test_samples_of_all_fragments_are_counted() -> None:
    """No run has too many, but all have."""
    run = (tfhd(), trun(MAX_SAMPLES // 2, *[0] * (MAX_SAMPLES // 2), flags=0x200))
    clip = film(HandTrack(), more=TREX) + fragment(run, run, media=0)
    with pytest.raises(CorruptVideo, match="more than"):
        index_of(clip)


def test_a_long_run_of_sound_is_few_samples() -> None:
    """More frames than there may be samples, and one unit for a thousand."""
    bytewise = box(b"raw ", PCM[8:24], b"\0\1\0\x08", PCM[28:])
    head = film(EMPTY, HandTrack(sizes=(), handler=b"soun", number=2, entries=bytewise), more=mvex((1, 1, 10, 5, 0), (2, 1, 1, 1, 0)))
    frames = MAX_SAMPLES + 1
    audio = index_of(head + fragment((tfhd(track=2), trun(frames)), (tfhd(), trun(1)), media=frames)).audio
    assert audio is not None
    assert (audio.channels, len(audio.sizes), int(audio.sizes.sum())) == (1, MAX_SAMPLES // 1024 + 1, frames)


def test_units_of_sound_are_counted_too() -> None:
    """Runs may name the same bytes again and again."""
    head = film(EMPTY, HandTrack(sizes=(), handler=b"soun", number=2, entries=PCM), more=mvex((1, 1, 10, 50, 0), (2, 1, 1, 4, 0)))
    sound = (tfhd(track=2), *[trun(1 << 20, 0, flags=1)] * (MAX_SAMPLES // 1024 + 1))
    with pytest.raises(CorruptVideo, match="more than"):
        index_of(head + fragment(sound, media=5 << 20))


def test_a_description_that_changes() -> None:
    """Pictures are refused; sound is left out, with its reason."""
    other = tfhd(2, flags=MOOF_BASE | 0x2)
    with pytest.raises(UnsupportedVideo, match="from description 1 to 2"):
        index_of(film(EMPTY, more=TREX) + fragment((other, trun(1)), media=50))
    sound = HandTrack(sizes=(), handler=b"soun", number=2, entries=PCM)
    head = film(EMPTY, sound, more=mvex((1, 1, 10, 50, 0), (2, 1, 1, 4, 0)))
    index = index_of(head + fragment((tfhd(2, track=2, flags=MOOF_BASE | 0x2), trun(9)), (tfhd(), trun(1)), media=50))
    assert index.audio is None
    assert index.audio_fault == "its samples change from description 1 to 2"


def test_a_fragment_cut_short_is_refused() -> None:
    """Anywhere in its moof or mdat."""
    head = film(EMPTY, more=TREX) + fragment((tfhd(), trun(1, 80, flags=1)), media=50)
    clip = head + fragment((tfhd(), trun(1, 80, flags=1)), media=50)
    for cut in range(len(head) + 1, len(clip)):
        with pytest.raises(CorruptVideo):
            index_of(clip[:cut])


@pytest.mark.parametrize("version", [0, 1])
def test_an_index_of_segments_finds_a_cut_between_fragments(version: int) -> None:
    """Nothing else would: what is left is a whole file of fewer frames."""
    part = fragment((tfhd(), trun(1, 8, flags=1)), media=50)
    times = struct.pack(">QQ" if version else ">II", 0, 0)
    rows = b"".join(struct.pack(">III", size, 10, 0) for size in (len(part), len(part)))
    sidx = full(b"sidx", struct.pack(">II", 1, 1000), times, struct.pack(">HH", 0, 2), rows, version=version)
    head = film(EMPTY, more=TREX) + sidx
    assert index_of(head + part + part).video.frames == 2
    with pytest.raises(CorruptVideo, match="cut short: its index names segments up to byte"):
        index_of(head + part)


def test_no_fragment_is_no_frame() -> None:
    """The first part of a stream, alone."""
    with pytest.raises(CorruptVideo, match="shows none of its 0 samples"):
        index_of(film(EMPTY, more=TREX))


def test_a_fragment_without_a_movie_that_announces_it_is_not_read() -> None:
    """Without mvex moov is all there is."""
    clip = film(HandTrack()) + fragment((tfhd(), trun(1)), media=50)
    assert index_of(clip).video.frames == 3


def test_moof_in_other_boxes() -> None:
    """styp, prft and others between fragments are passed over."""
    clip = film(EMPTY, more=TREX) + box(b"styp", b"msdh") + fragment((tfhd(), trun(1)), media=50) + box(b"mfra", bytes(8))
    assert index_of(clip).video.frames == 1


def test_a_run_s_place_is_in_the_file() -> None:
    """The last byte of its last sample."""
    clip = film(EMPTY, more=TREX) + fragment((tfhd(), trun(1, 0, flags=1)), media=50)
    place = clip.rindex(b"trun") + 12
    moof = places(clip, b"moof")[0][0]
    assert index_of(patched(clip, place, ">i", len(clip) - 50 - moof)).video.offsets.tolist() == [len(clip) - 50]
    with pytest.raises(CorruptVideo, match="a run has 50 bytes"):
        index_of(patched(clip, place, ">i", len(clip) - 49 - moof))
