"""Sound between two times: sample for sample what a decode from the begin gives there."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from support.clips import rendered, sound_of
from support.remuxing import joined, remuxed

from forebay_loader.base.counters import COUNTS
from forebay_loader.videos.decode.sound import SoundParts, resampled
from forebay_loader.videos.errors import CorruptVideo, UnsupportedVideo, VideoTimeout
from forebay_loader.videos.mp4.index import read_index
from forebay_loader.videos.sources.choice import source_of

KINDS: dict[str, dict[str, Any]] = {
    "aac": {"audio": "aac"},
    "aac, stereo, 44.1 kHz": {"audio": "aac", "channels": 2, "audio_rate_hz": 44_100},
    "opus": {"audio": "libopus"},
    "flac": {"audio": "flac"},
    "alac": {"audio": "alac"},
    "ac3": {"audio": "ac3", "channels": 2},
    "pcm": {"audio": "pcm_s16le", "container": "mov", "channels": 2},
    "aac, fragments": {"audio": "aac", "fragmented": True},
    "opus in webm": {"audio": "libopus", "codec": "libvpx-vp9", "container": "webm"},
    "aac in matroska": {"audio": "aac", "container": "matroska"},
}


def as_floats(samples: Any) -> Any:
    return samples if samples.dtype.kind == "f" else (samples / float(1 << (8 * samples.dtype.itemsize - 1))).astype(numpy.float32)


@pytest.mark.parametrize("kind", KINDS)
def test_sound_is_that_of_a_decode_from_the_begin(kind: str) -> None:
    """Any span, to the sample. What loses nothing is the same to the bit; other decoders make up noise, and Opus hears what came before."""
    data = rendered(frames=96, gop=24, **KINDS[kind])
    whole, rate = sound_of(data)
    whole = as_floats(whole)
    with source_of(data) as source:
        assert source.open().audio_rate_hz == rate
        for begin_s, end_s in ((0.0, 0.5), (1.25, 2.0), (2.9, 3.6), (0.0, 3.9), (3.5, 9.0)):
            found, rate_hz = source.audio(begin_s, end_s)
            there = whole[:, round(begin_s * rate) : round(end_s * rate)]
            assert rate_hz == rate
            assert found.dtype == numpy.float32
            assert len(found) == len(there)
            filled = there.shape[1] - found.shape[1]  # a last packet is longer than the sound in it; PyAV gives all of it
            assert filled == 0 if end_s < 3.99 else 0 <= filled < 1536
            assert numpy.abs(found - there[:, : found.shape[1]]).max() <= (0.0 if kind in ("flac", "alac", "pcm") else 1e-2)


def test_sound_behind_its_end_is_none() -> None:
    """Shorter, or nothing; no silence is made up."""
    with source_of(rendered(frames=48, audio="aac")) as source:
        end_s = source.open().duration_s
        assert source.audio(end_s - 0.5, end_s + 9)[0].shape[1] == pytest.approx(24_000, abs=2)
        assert source.audio(end_s + 1, end_s + 2)[0].shape == (1, 0)


def test_a_clip_without_sound() -> None:
    """No channels, no rate."""
    with source_of(rendered()) as source:
        found, rate_hz = source.audio(0.0, 1.0)
    assert (found.shape, rate_hz) == ((0, 0), 0)


def tones(samples: Any, rate_hz: int) -> list[bool]:
    """Of each tenth of a second whether it sounds in its middle."""
    tenth = rate_hz // 10
    return [
        bool(numpy.abs(samples[0, at + tenth // 4 : at + 3 * tenth // 4]).max() > 0.1)
        for at in range(0, samples.shape[1] - tenth + 1, tenth)
    ]


GAPPED = {"matroska": "aac", "webm": "libopus", "mp4": "aac"}


@pytest.mark.parametrize("container", GAPPED)
def test_a_gap_is_silence(container: str) -> None:
    """Half a second of packets is missing; what follows stays beside its pictures."""
    codec = "libvpx-vp9" if container == "webm" else "libx264"
    whole = rendered(frames=48, codec=codec, container=container, audio=GAPPED[container])

    def without(kind: str, number: int, packet: Any) -> bool:
        return kind == "video" or not 0.6 <= float(packet.pts * packet.time_base) < 1.1

    data = remuxed(whole, container, without)
    with source_of(data) as source:
        found, rate_hz = source.audio(0.0, 1.9)
    assert found.shape[1] == pytest.approx(1.9 * rate_hz, abs=2)
    assert tones(found, rate_hz) == [True] * 6 + [False] * 5 + [True] * 8


@pytest.mark.parametrize("container", ["matroska", "mp4"])
def test_sound_that_begins_late(container: str) -> None:
    """Silence before it, also where all that is asked for lies before it."""

    def later(kind: str, number: int, packet: Any) -> bool:
        if kind == "audio":
            packet.pts += round(1 / packet.time_base)
            packet.dts += round(1 / packet.time_base)
        return True

    data = remuxed(rendered(frames=48, container=container, audio="aac"), container, later)
    with source_of(data) as source:
        found, rate_hz = source.audio(0.0, 2.0)
        assert tones(found, rate_hz) == [False] * 10 + [True] * 10
        before, _ = source.audio(0.1, 0.6)
    assert (before.shape, float(numpy.abs(before).max())) == ((1, round(0.5 * rate_hz)), 0.0)


def test_times_that_a_recorder_rounded() -> None:
    """A few milliseconds off are no gaps: the samples lie one after the other."""

    def shaken(kind: str, number: int, packet: Any) -> bool:
        if kind == "audio":
            packet.pts += number * 7 % 9 - 4
            packet.dts = packet.pts
        return True

    whole = rendered(frames=48, container="matroska", audio="flac")
    with source_of(whole) as source, source_of(remuxed(whole, "matroska", shaken)) as other:
        there, found = source.audio(0.0, 1.5)[0], other.audio(0.0, 1.5)[0]
    late = round(48_000 * 0.004)
    assert min(numpy.abs(found[:, :60_000] - there[:, at : at + 60_000]).max() for at in range(2 * late)) == 0.0


def test_sound_that_changes_its_channels() -> None:
    """A broadcast goes from one to two: it goes on as it began."""
    mono, stereo = (rendered(container="mpegts", audio="ac3", channels=channels) for channels in (1, 2))
    with source_of(joined(mono, stereo, 2.0)) as source:
        found, _ = source.audio(0.0, 9.0)
    assert len(found) == 1
    assert numpy.abs(found).max() > 0.1


def test_sound_that_changes_its_rate() -> None:
    """Told, and where."""
    low, high = (rendered(container="mpegts", audio="ac3", audio_rate_hz=rate) for rate in (32_000, 48_000))
    with (
        source_of(joined(low, high, 2.0), name="a.ts") as source,
        pytest.raises(UnsupportedVideo, match=r"a\.ts: .* from 32000 to 48000 Hz"),
    ):
        source.audio(0.0, 9.0)


@pytest.mark.parametrize(
    ("container", "known", "unknown"), [("mp4", b"mp4a", b"enca"), ("matroska", b"A_AAC", b"A_XXX")], ids=["encrypted mp4", "matroska"]
)
def test_sound_that_cannot_be_read(container: str, known: bytes, unknown: bytes) -> None:
    """Pictures are of use without it; who asks for it is told."""
    data = rendered(container=container, audio="aac").replace(known, unknown)
    with source_of(data, name="a", shard="s3://b/0.tar") as source:
        assert (source.open().audio_rate_hz, len(source.frames([3]))) == (0, 1)
        with pytest.raises(UnsupportedVideo, match=r"a in s3://b/0\.tar: its sound cannot be read"):
            source.audio(0.0, 1.0)


def test_sound_of_a_part_reads_a_part() -> None:
    """The packets of the span, and a little before."""
    data = rendered(frames=480, gop=48, audio="aac")
    with source_of(data) as source:
        source.open()
        before = COUNTS.snapshot()["video_bytes"]
        source.audio(10.0, 11.0)
    sizes = read_index(lambda at, size: data[at : at + size], len(data), "").audio.sizes  # type: ignore[union-attr]
    assert 0 < COUNTS.snapshot()["video_bytes"] - before < 0.25 * int(sizes.sum()) + 50_000


def test_damaged_sound_is_an_error() -> None:
    """It names the clip."""
    data = rendered(frames=96, audio="flac", moov_first=True)
    track = read_index(lambda at, size: data[at : at + size], len(data), "").audio
    assert track is not None
    at, size = int(track.offsets[10]), int(track.sizes[10])
    bad = data[:at] + bytes(size) + data[at + size :]
    with source_of(bad, name="a.mp4") as source, pytest.raises(CorruptVideo, match=r"a\.mp4: its sound cannot be decoded"):
        source.audio(0.0, 4.0)


CLIP: dict[str, Any] = {"container": "matroska", "frames": 240, "audio": "aac", "channels": 2}  # of ten seconds


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many samples each frame of sound had that was decoded."""
    found: list[int] = []
    take = SoundParts.take

    def counted(self: SoundParts, frame: Any, begin_s: Any) -> None:
        found.append(frame.samples)
        take(self, frame, begin_s)

    monkeypatch.setattr(SoundParts, "take", counted)
    return found


@pytest.mark.parametrize("container", ["matroska", "mpegts", "avi"])
def test_parts_are_those_of_the_whole(container: str, decoded: list[int]) -> None:
    """Sample by sample, and each is decoded once."""
    with source_of(rendered(**{**CLIP, "container": container})) as source:
        whole, rate_hz = source.audio(0.0, 10.0)
        decoded.clear()
        parts = [source.audio(begin, begin + 0.5)[0] for begin in numpy.arange(0.0, 10.0, 0.5)]
    assert numpy.array_equal(numpy.concatenate(parts, axis=1), whole)
    assert sum(decoded) <= 10.1 * rate_hz + 4096


def test_backwards_and_overlapping(decoded: list[int]) -> None:
    """As alone: what was let go of is decoded again."""
    with source_of(rendered(**CLIP)) as source:
        whole, rate_hz = source.audio(0.0, 10.0)
        for begin_s, end_s in ((4.0, 6.0), (5.0, 7.0), (1.0, 2.0), (2.0, 3.0), (8.0, 9.0)):
            found = source.audio(begin_s, end_s)[0]
            assert numpy.array_equal(found, whole[:, round(begin_s * rate_hz) : round(end_s * rate_hz)]), begin_s


def test_a_call_that_failed_leaves_nothing_behind() -> None:
    """The next one begins anew, and gives what it would have given."""
    data = rendered(**CLIP)
    with source_of(data) as source:
        whole = source.audio(0.0, 10.0)[0]
    with source_of(data) as source:
        source.audio(0.0, 1.0)
        source._time_limit_s = -1.0  # type: ignore[attr-defined]
        with pytest.raises(VideoTimeout):
            source.audio(1.0, 9.0)
        source._time_limit_s = 60.0  # type: ignore[attr-defined]
        assert numpy.array_equal(source.audio(1.0, 2.0)[0], whole[:, 48_000:96_000])


@pytest.mark.parametrize(("rate", "wanted"), [(48_000, 16_000), (44_100, 16_000), (16_000, 48_000)])
def test_a_tone_stays_a_tone(rate: int, wanted: int) -> None:
    """As long in seconds, the same wave; each channel by itself."""
    seconds = numpy.arange(rate) / rate
    tones = numpy.stack([numpy.sin(2 * numpy.pi * hertz * seconds) for hertz in (440, 880, 1320)]).astype(numpy.float32)
    found = resampled(tones, rate, wanted)
    there = numpy.arange(wanted) / wanted
    assert found.shape == (3, wanted)
    assert numpy.abs(found[:, -8:]).max() > 0.05  # to its end, which a filter holds back
    inner = slice(wanted // 10, -wanted // 10)
    for hertz, tone in zip((440, 880, 1320), found, strict=True):
        assert numpy.abs(tone - numpy.sin(2 * numpy.pi * hertz * there))[inner].max() < 0.01


@pytest.mark.parametrize("samples", [0, 1, 2, 5, 40])
def test_a_few_samples(samples: int) -> None:
    """As many as they last, though the filter gives none of them; at the same rate nothing is done."""
    tone = numpy.ones((1, samples), numpy.float32)
    assert resampled(tone, 48_000, 16_000).shape == (1, round(samples / 3))
    assert resampled(tone, 8_000, 8_000) is tone
