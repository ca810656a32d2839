"""The stage by itself: which members are clips, by what a sampler draws, and what becomes of a clip that cannot be decoded."""

from __future__ import annotations

import gc
import json
import pickle
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from support.clips import frame_number, rendered, sound_only
from support.painted_source import scan_here
from support.remuxing import remuxed

import forebay_loader as fb
from forebay_loader.base.counters import COUNTS
from forebay_loader.meter.skips.skips_file import SKIPS_FILE
from forebay_loader.videos.errors import CorruptVideo, VideoTimeout
from forebay_loader.videos.metadata.record import clip_name
from forebay_loader.videos.metadata.scan import ClipToScan
from forebay_loader.videos.sampling import NoFrames, NotScanned, Sampling, TooFewFrames
from forebay_loader.videos.sources.choice import source_of

CLIP = rendered()
BAD = CLIP[:1000]


def sample(key: str, **members: Any) -> dict[str, Any]:
    return {"__key__": key, "__url__": "s3://b/0.tar?X-Amz-Signature=secret", **members}


def samples(*clips: bytes) -> list[dict[str, Any]]:
    return [sample(f"{number}", mp4=clip, cls=number) for number, clip in enumerate(clips)]


def run(stage: Any, *clips: bytes) -> list[dict[str, Any]]:
    return list(stage(iter(samples(*clips))))


def test_all_frames_without_a_sampler() -> None:
    """And the sound of all of them."""
    (found,) = run(fb.video(audio=True), rendered(audio="aac"))
    assert [frame_number(picture) for picture in found["frames"]] == list(range(48))
    assert found["audio"].shape == (1, 96_000)
    assert found["mask"].tolist() == [True] * 48


def test_sound_is_that_of_the_frames() -> None:
    """From the begin of the first that was chosen to the end of the last."""
    (found,) = run(fb.video("clip(0.5, 12)", audio=True), rendered(audio="aac"))
    assert [frame_number(picture) for picture in found["frames"]] == list(range(12, 24))
    assert found["audio"].shape == (1, 24_000)


@pytest.mark.parametrize(("policy", "last"), [("repeat_last", [47, 47]), ("wrap", [42, 43])])
def test_places_that_are_only_filled_are_masked(policy: str, last: list[int]) -> None:
    """A clip that ends too early: its shape stays, by the policy, and the mask says what is real."""
    (found,) = run(fb.video(f"clip(1.75, 8, policy={policy!r})"), CLIP)
    assert [frame_number(picture) for picture in found["frames"]] == [42, 43, 44, 45, 46, 47, *last]
    assert found["mask"].tolist() == [True] * 6 + [False] * 2
    with pytest.raises(TooFewFrames, match=r"^0\.mp4 in s3://b/0\.tar: the clip has 6 of the 8"):
        run(fb.video("clip(1.75, 8, policy='error')"), CLIP)


@pytest.mark.parametrize(("asked", "rate_hz"), [(True, 48_000), (16_000, 16_000)])
def test_the_rate_of_the_sound_is_told(asked: int, rate_hz: int) -> None:
    """Beside it, as it is given; 0 of a clip without sound."""
    found, still = run(fb.video("uniform(2)", audio=asked), rendered(audio="aac"), CLIP)
    assert (found["audio_rate_hz"], still["audio_rate_hz"]) == (rate_hz, 0)


@pytest.mark.parametrize("others", [{"webm": CLIP}, {"frames": b"1"}, {"audio": b"1"}, {"video": b"1"}])
def test_nothing_is_overwritten(others: dict[str, bytes]) -> None:
    """Two clips of one name, or a member that is called as an array will be: both are named."""
    with pytest.raises(ValueError, match=r"a\.\w+ in s3://b/0\.tar: its \w+ would take the place of '\w+', which .* gives: name"):
        list(fb.video("uniform(1)", audio=True)([sample("a", mp4=CLIP, **others)]))


def test_two_clips_of_one_sample() -> None:
    """Each below the name it has."""
    stage = fb.video("uniform(2)")
    (found,) = list(stage([sample("a", **{"left.mp4": CLIP, "right.webm": rendered(codec="libvpx-vp9", container="webm")}, cls=1)]))
    names = {f"{side}.{what}" for side in ("left", "right") for what in ("frames", "mask", "video")}
    assert set(found) == {"__key__", "__url__", "cls", *names}


def test_members_are_chosen_by_suffix() -> None:
    """Of any case in a decoder's key; others are left alone, as they came. A stage before may give a ``memoryview``."""
    plain = sample("a", jpg=b"x", cls=1)
    assert list(fb.video()([plain])) == [plain]
    assert fb.video()(".jpg", b"x") is None
    stage = fb.video("uniform(1)", members=("bin",))
    assert stage(".mp4", CLIP) is None
    assert stage(".BIN", CLIP)[0].shape == (1, 96, 128, 3)
    assert run(fb.video("uniform(2)"), memoryview(CLIP))[0]["frames"].shape == (2, 96, 128, 3)


def test_draws_are_the_samples_own() -> None:
    """By seed, epoch and key: whatever came before, and in whichever process."""

    def first(stage: Any, keys: list[str], epoch: int = 0) -> list[int]:
        stage.begin(epoch, 0, epoch)
        return [frame_number(found["frames"][0]) for found in stage([sample(key, mp4=CLIP) for key in keys])]

    stage = fb.video("clip('random', 4)")
    forwards = first(stage, ["a", "b", "c", "d"])
    assert first(pickle.loads(pickle.dumps(stage)), ["d", "c", "b", "a"]) == forwards[::-1]
    assert first(stage, ["a", "b", "c", "d"], 1) != forwards
    assert first(fb.video("clip('random', 4)", seed=1), ["a", "b", "c", "d"]) != forwards
    assert len(set(forwards)) > 1


def test_a_decoder_draws_by_the_clip() -> None:
    """It knows no key."""
    stage = fb.video("clip('random', 4)", epoch=0)
    other = rendered(gop=13)
    assert numpy.array_equal(stage(".mp4", CLIP)[0], stage(".mp4", CLIP)[0])
    pairs = [
        [frame_number(fb.video("clip('random', 1)", seed=seed, epoch=0)(".mp4", clip)[0][0]) for clip in (CLIP, other)] for seed in range(4)
    ]
    assert any(one != two for one, two in pairs)


def test_each_visit_draws_anew() -> None:
    """Whether a clip comes again in one pass, in another turn of the epoch, or in another epoch; the same each time it is run."""

    def seen() -> list[int]:
        stage, found = fb.video("clip('random', 1)"), []
        for epoch, turn in ((0, 0), (0, 1), (1, 0)):
            stage.begin(epoch, turn, epoch)
            found += [frame_number(one["frames"][0]) for one in stage([sample("a", mp4=CLIP)] * 4)]
        return found

    assert seen() == seen()
    assert len(set(seen())) > 8


def test_each_that_draws_shards_for_itself_draws_frames_for_itself() -> None:
    """Two workers that come to one clip would else give the same frames of it, visit for visit."""
    stage, found = fb.video("clip('random', 1)"), []
    for place in (0, 1, 2, 1):
        stage.begin(0, 0, 0, place)
        found.append([frame_number(one["frames"][0]) for one in stage([sample("a", mp4=CLIP)] * 4)])
        assert frame_number(stage.of_pass(0, 0, 0, place)(".mp4", CLIP)[0][0]) == frame_number(
            stage.of_pass(0, 0, 0, place)(".mp4", CLIP)[0][0]
        )
    assert found[1] == found[3]
    assert len({tuple(one) for one in found}) == 3


def test_a_table_that_may_stand_still_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """A pipeline that is not ours may draw without end: a clip that comes again in one pass is what can be seen of it."""
    caplog.set_level("INFO")
    table = {0: "uniform(1)", 1: "uniform(2)"}
    for sampling, epoch, told in (("uniform(1)", None, False), (table, 0, False), (table, None, True)):
        list(fb.video(sampling, epoch=epoch)([sample("a", mp4=CLIP)] * 2))
        assert ("'a' came again within one epoch, 0" in caplog.text) is told


@pytest.mark.parametrize("sampling", ["clip('random', 4)", {0: "uniform(2)", 1: "uniform(3)"}, "time_warp(uniform(4))", "own"])
def test_a_decoder_that_is_told_no_epoch_is_refused(sampling: Any) -> None:
    """Where frames would differ by it, with what to do; one that is told says which frames."""

    def own(info: Any, seed: int) -> Sampling:
        return Sampling((0,), (True,))

    asked = own if sampling == "own" else sampling
    with pytest.raises(ValueError, match=r"neither samples by number nor a decoder outside fb\.WebDataset.*epoch=…"):
        fb.video(asked)(".mp4", CLIP)
    with pytest.raises(ValueError, match="neither samples by number"):
        fb.video(asked).by_number(lambda number: sample("a", mp4=CLIP), 0, 1)
    assert len(fb.video(asked, epoch=1)(".mp4", CLIP)[0]) in (1, 3, 4)


def test_an_epoch_that_is_told_counts() -> None:
    """A number, or what is asked for one."""
    stage = fb.video({0: "uniform(1)", 3: "uniform(2)"}, epoch=lambda: 3)
    stage.begin(0, 0, 0)
    assert len(run(stage, CLIP)[0]["frames"]) == 2
    assert len(stage(".mp4", CLIP)[0]) == 2


def test_what_a_scan_knows_is_what_a_sampler_is_told(tmp_path: Path) -> None:
    """And what the sample shows."""
    name = clip_name("s3://b/0.tar", "0.mp4")
    scan_here([ClipToScan(name, len(CLIP), "", lambda: source_of(CLIP, size=(32, 32)))], tmp_path / "clips", workers=1)
    stage = pickle.loads(pickle.dumps(fb.video("adaptive(4, 'motion')", metadata=tmp_path / "clips")))
    (found,) = run(stage, CLIP)
    assert found["video"].motion is not None
    assert found["frames"].shape == (4, 96, 128, 3)
    assert COUNTS.snapshot()["video_scanned"] == 0


def test_a_bad_clip_is_an_error_that_names_it() -> None:
    """With its shard and without what is secret; counted."""
    with pytest.raises(CorruptVideo, match=r"^1\.mp4 in s3://b/0\.tar: ") as error:
        run(fb.video("uniform(2)"), CLIP, BAD)
    assert "secret" not in str(error.value)
    assert COUNTS.snapshot()["video_corrupt"] == 1
    assert COUNTS.snapshot()["video_clips"] == 1


def test_a_samplers_error_names_the_clip() -> None:
    """A sampler knows none."""
    with pytest.raises(NoFrames, match=r"^0\.mp4 in s3://b/0\.tar: "):
        run(fb.video("uniform(2)"), sound_only())


@pytest.mark.parametrize(("answer", "keys"), [(True, ["0", "2"]), (False, ["0"])])
def test_a_handler_decides(answer: bool, keys: list[str]) -> None:
    """True goes on with the next sample, False ends the pass."""
    seen: list[Exception] = []

    def handler(error: Exception) -> bool:
        seen.append(error)
        return answer

    assert [found["__key__"] for found in run(fb.video(handler=handler), CLIP, BAD, CLIP)] == keys
    assert [type(error) for error in seen] == [CorruptVideo]


def test_batches_that_do_not_shrink() -> None:
    """The one before stands in, decoded anew; bad ones at the begin wait for the first that is good."""
    found = run(fb.video("uniform(2)", replace_corrupt=True), BAD, BAD, CLIP, BAD, CLIP)
    assert [(one["__key__"], one["__corrupt__"], one["cls"]) for one in found] == [
        ("2", "", 2), ("2", "0", 2), ("2", "1", 2), ("2", "3", 2), ("4", "", 4),
    ]  # fmt: skip
    assert found[0]["frames"] is not found[1]["frames"]
    assert COUNTS.snapshot()["video_replaced"] == 3


def test_what_stands_in_may_be_damaged_where_another_draw_looks() -> None:
    """It could be decoded once, and so it can be at that draw: a clip that is damaged in part ends nothing."""
    clip = bytearray(CLIP)
    at = CLIP.index(b"mdat") + 8
    clip[at + len(CLIP) // 4 : at + len(CLIP) // 3] = bytes(len(CLIP) // 3 - len(CLIP) // 4)
    stage = fb.video("keyframes(1, choice='random')", replace_corrupt=True)
    found = run(stage, CLIP, *[bytes(clip)] * 30, *[BAD] * 30)
    assert [one["__corrupt__"] for one in found[31:]] == [str(number) for number in range(31, 61)]
    assert COUNTS.snapshot()["video_corrupt"] > COUNTS.snapshot()["video_replaced"] > 30


def test_replaced_by_number_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a pipeline replaces: once for each that was asked for, by its own name, and within the limits of the environment."""
    clips = [CLIP, BAD, BAD, CLIP]

    def numbered(number: int) -> dict[str, Any]:
        return sample(str(number), mp4=clips[number])

    stage = pickle.loads(pickle.dumps(fb.video("uniform(2)", replace_corrupt=True)))
    assert [stage.by_number(numbered, number, 4)["__key__"] for number in range(4)] == ["0", "3", "3", "3"]
    with open(SKIPS_FILE.path) as file:
        lines = [json.loads(line) for line in file]
    assert [(line["key"], line["stage"], line["then"]) for line in lines] == [("1", "decode", "replaced"), ("2", "decode", "replaced")]
    assert all(line["message"].startswith(f"{line['key']}.mp4") for line in lines)
    assert COUNTS.snapshot()["skipped_decode"] == 2
    monkeypatch.setenv("FOREBAY_MAX_SKIPPED", "1")
    limited = fb.video("uniform(2)", replace_corrupt=True)
    with pytest.raises(fb.TooManySkips, match="2 skips, and max_skipped=1"):
        [limited.by_number(numbered, number, 4) for number in range(4)]


def test_bad_ones_at_the_begin_are_not_kept() -> None:
    """Only their names: a shard may begin with any number of them. One stands for all of its clip's bytes."""

    class Clip(bytearray):
        pass

    kept: list[weakref.ref[Clip]] = []

    def some() -> Iterator[dict[str, Any]]:
        for number in range(5):
            clip = Clip(BAD)
            kept.append(weakref.ref(clip))
            yield sample(f"{number}", mp4=clip)
            del clip
        gc.collect()
        alive.append(sum(one() is not None for one in kept))
        yield sample("5", mp4=CLIP)

    alive: list[int] = []
    found = list(fb.video("uniform(2)", replace_corrupt=True)(some()))
    assert [one["__corrupt__"] for one in found] == ["", "0", "1", "2", "3", "4"]
    assert alive[0] <= 2


def test_a_clip_that_no_scan_knows_is_no_bad_one() -> None:
    """What lacks is a scan: neither counted as corrupt nor replaced."""
    short = rendered(frames=4)  # of which all are taken, whatever moves
    with pytest.raises(NotScanned, match=r"^1\.mp4"):
        run(fb.video("adaptive(4)", replace_corrupt=True), short, CLIP, short)
    assert (COUNTS.snapshot()["video_corrupt"], COUNTS.snapshot()["video_replaced"]) == (0, 0)


@pytest.mark.parametrize("how", [{"container": "mp4"}, {"container": "mov"}, {"container": "mp4", "movflags": "frag_keyframe+delay_moov"}])
def test_a_clip_that_shows_no_keyframe(how: dict[str, str], tmp_path: Path) -> None:
    """As ``ffmpeg -ss … -c copy`` leaves it: its first frame is given, in a stage, by number, and after a scan."""

    def earlier(kind: str, number: int, packet: Any) -> bool:
        packet.pts, packet.dts = (time - round(9 / 24 / packet.time_base) for time in (packet.pts, packet.dts))
        return True

    cut = remuxed(rendered(frames=24, gop=24), change=earlier, **how)
    name = clip_name("s3://b/0.tar", "1.mp4")
    assert not scan_here([ClipToScan(name, len(cut), "", lambda: source_of(cut, size=(32, 32)))], tmp_path / "a").failed
    for stage in (fb.video("keyframes(2)", replace_corrupt=True), fb.video("keyframes(2)", metadata=tmp_path / "a")):
        for found in (run(stage, CLIP, cut)[1], stage.by_number(lambda _: sample("1", mp4=cut), 0, 1)):
            assert ([frame_number(frame) for frame in found["frames"]], found["mask"].tolist()) == ([9, 9], [True, False])
            assert found.get("__corrupt__", "") == ""


def test_nothing_but_bad_clips_is_an_error() -> None:
    """There is nothing to stand in."""
    with pytest.raises(CorruptVideo, match=r"^0\.mp4"):
        run(fb.video(replace_corrupt=True), BAD, BAD)


def test_other_errors_are_not_replaced() -> None:
    """What is no fault of a clip would hide behind another one."""
    with pytest.raises(TypeError):
        run(fb.video("uniform(1)", replace_corrupt=True), CLIP, 7)  # type: ignore[arg-type]


def test_a_clip_that_takes_too_long_is_counted() -> None:
    """As late, not as bad."""
    with pytest.raises(VideoTimeout):
        run(fb.video("uniform(2)", time_limit_s=1e-9), CLIP)
    assert (COUNTS.snapshot()["video_timeout"], COUNTS.snapshot()["video_corrupt"]) == (1, 0)
