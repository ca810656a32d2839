"""``fb.video``: what it takes, and what it is in a pipeline of ours and of webdataset's."""

from __future__ import annotations

import importlib.util
import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy
import pytest
from support.clips import frame_number, rendered
from support.fake_proxy import FakeServer
from support.lengths import ordinarily
from support.tarmaking import shard_of_samples

import forebay_loader as fb

wds = pytest.importorskip("webdataset")

URL = "s3://bucket/0.tar"
STARTS = ordinarily(3, of=4, what="ways that workers of clips start")


@pytest.fixture
def shard(proxy: FakeServer) -> FakeServer:
    """Six clips of 48 frames, each with its number."""
    clip = rendered(audio="aac")
    proxy.put("/s3/bucket/0.tar", shard_of_samples(*({"mp4": clip, "json": json.dumps(number).encode()} for number in range(6))))
    return proxy


@pytest.mark.parametrize(
    ("how", "error", "match"),
    [
        ({"sampling": "uniformly(8)"}, ValueError, "uniformly"),
        ({"sampling": 8}, TypeError, "a sampler is"),
        ({"size": "224"}, TypeError, "size takes"),
        ({"audio": -1}, ValueError, "audio takes"),
        ({"audio": "yes"}, ValueError, "audio takes"),
        ({"epoch": "one"}, TypeError, "epoch"),
        ({"seed": "1"}, TypeError, "seed takes"),
        ({"seed": 1.5}, TypeError, "seed takes"),
        ({"threads": 0}, ValueError, "threads takes"),
        ({"threads": 1000}, ValueError, "threads takes at most"),
        ({"threads": "2"}, TypeError, "threads takes"),
        ({"time_limit_s": 0}, ValueError, "time_limit_s takes"),
        ({"time_limit_s": float("nan")}, ValueError, "time_limit_s takes"),
        ({"time_limit_s": "60"}, TypeError, "time_limit_s takes"),
        ({"members": ()}, TypeError, "members takes"),
        ({"members": ("mp4", 4)}, TypeError, "members takes"),
        ({"members": ""}, TypeError, "members takes"),
        ({"handler": True}, TypeError, "handler takes"),
    ],
)
def test_arguments_are_checked_where_they_are_given(how: dict[str, Any], error: type[Exception], match: str) -> None:
    """Not in a worker, an hour later."""
    with pytest.raises(error, match=match):
        fb.video(**how)


@pytest.mark.parametrize("members", ["mp4", ".MP4", ["mp4"], {"mp4", "mov"}])
def test_a_suffix_is_no_list_of_letters(members: Any) -> None:
    """One of them by itself, with its dot, of any case."""
    assert fb.video(members=members).wants("mp4")
    assert not fb.video(members=members).wants("p")


def test_without_pyav_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base install has none."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None)
    with pytest.raises(ModuleNotFoundError, match=r"forebay\[video\]"):
        fb.video()


def test_the_function_keeps_its_name() -> None:
    """Its package has the same, and modules of that are imported later."""
    importlib.import_module("forebay_loader.videos.decode.sound")
    assert callable(fb.video)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.webdataset
def test_a_stage_of_our_data_set(shard: FakeServer) -> None:
    """Frames, sound and mask beside what else a sample has; the clip's bytes are gone."""
    dataset = fb.WebDataset(URL).decode().compose(fb.video("uniform(8)", size=48, audio=16_000))
    found = list(dataset)
    assert [sample["json"] for sample in found] == list(range(6))
    assert all(set(sample) == {"__key__", "__url__", "json", "frames", "mask", "video", "audio", "audio_rate_hz"} for sample in found)
    assert found[0]["frames"].shape == (8, 48, 64, 3)
    assert found[0]["mask"].all()
    assert found[0]["video"].frames == 48
    assert found[0]["audio"].dtype == numpy.float32


@pytest.mark.filterwarnings("ignore")
@pytest.mark.webdataset
def test_a_decoder_of_our_data_set(shard: FakeServer) -> None:
    """As ``wds.torch_video`` stood there."""
    found = list(fb.WebDataset(URL).decode(fb.video("keyframes(2)", audio=True)).to_tuple("mp4", "json"))
    (frames, audio, info), number = found[3]
    assert number == 3
    assert [frame_number(picture) for picture in frames] == sorted(frame_number(picture) for picture in frames)
    assert (audio.ndim, info["video_fps"], info["audio_fps"]) == (2, 24.0, 48_000)


@pytest.mark.filterwarnings("ignore")
def test_the_data_set_tells_its_epoch(shard: FakeServer) -> None:
    """A sampler that draws draws others in each, the same again where an epoch is set."""
    dataset = fb.WebDataset(URL).compose(fb.video("clip('random', 4)"))

    def numbers() -> list[int]:
        return [frame_number(sample["frames"][0]) for sample in dataset]

    first, second = numbers(), numbers()
    assert first != second
    assert len(set(first)) > 2
    dataset.set_epoch(0)
    assert numbers() == first


@pytest.mark.filterwarnings("ignore")
@pytest.mark.webdataset
def test_a_stage_of_a_pipeline_of_webdatasets(shard: FakeServer) -> None:
    """Passes are counted there."""
    stage = fb.video({0: "uniform(2)", 1: "uniform(3)"})
    pipeline = wds.DataPipeline(wds.SimpleShardList(URL), fb.tarfile_to_samples(), stage)
    assert [[len(sample["frames"]) for sample in pipeline] for _ in range(2)] == [[2] * 6, [3] * 6]


TABLE = {0: "uniform(2)", 1: "uniform(3)", 2: "uniform(4)"}


def counts(found: Iterable[Any]) -> list[int]:
    """How many frames, each number once where it comes several times in a row."""
    return [count for count, _ in itertools.groupby(len(frames) for frames in found)]


def frames_of(one: Any) -> Any:
    """Of a sample, or of a tuple of a decoder's answer."""
    return one["frames"] if isinstance(one, dict) else one[0][0]


def as_stage(dataset: Any, sampling: Any, **how: Any) -> Any:
    return dataset.compose(fb.video(sampling, **how)).map(frames_of)


def as_decoder(dataset: Any, sampling: Any, **how: Any) -> Any:
    return dataset.decode(fb.video(sampling, **how)).to_tuple("mp4").map(frames_of)


both_forms = pytest.mark.parametrize("form", [as_stage, as_decoder])


@pytest.mark.filterwarnings("ignore")
@both_forms
def test_a_table_of_epochs_goes_on_with_iterations(shard: FakeServer, form: Any) -> None:
    """Of one data set, as a stage and as a decoder."""
    dataset = form(fb.WebDataset(URL), TABLE)
    assert [counts(dataset) for _ in range(3)] == [[2], [3], [4]]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.webdataset
@both_forms
def test_each_pass_of_a_repetition_is_an_epoch(shard: FakeServer, form: Any) -> None:
    """For the table; iterations count on behind it."""
    dataset = form(fb.WebDataset(URL), TABLE).repeat(2)
    assert [counts(dataset) for _ in range(2)] == [[2, 3], [4]]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.webdataset
@both_forms
def test_an_epoch_of_so_many_samples_is_an_epoch(shard: FakeServer, form: Any) -> None:
    """However many passes it is, drawn with replacement or not."""
    for how in ({"resampled": True}, {}):
        dataset = form(fb.WebDataset(URL, **how), TABLE).with_epoch(8)
        assert [counts(dataset) for _ in range(2)] == [[2], [3]]


@pytest.mark.filterwarnings("ignore")
@both_forms
def test_a_table_without_an_end_of_an_epoch_is_refused(shard: FakeServer, form: Any) -> None:
    """With what would say it."""
    for dataset in (form(fb.WebDataset(URL, resampled=True), TABLE), form(fb.WebDataset(URL), TABLE).repeat()):
        with pytest.raises(ValueError, match=r"is a table of epochs.*\.with_epoch\(n\) or \.repeat\(n\) does"):
            next(iter(dataset))
    told = form(fb.WebDataset(URL, resampled=True), TABLE, epoch=2)
    assert len(next(iter(told))) == 4
    assert len(next(iter(form(fb.WebDataset(URL, resampled=True, epoch=2), TABLE)))) == 4


@pytest.mark.filterwarnings("ignore")
@both_forms
def test_a_clip_that_comes_again_is_drawn_anew(shard: FakeServer, form: Any) -> None:
    """In another pass of an iteration, and in a stream without end; the same again in the next run."""

    def seen(**how: Any) -> list[int]:
        dataset = form(fb.WebDataset(URL, **how), "clip('random', 1)").repeat(4)
        return [frame_number(frames[0]) for frames in itertools.islice(dataset, 24)]

    for how in ({}, {"resampled": True}):
        found = seen(**how)
        assert seen(**how) == found
        assert all(found[0:6] != found[turn : turn + 6] for turn in (6, 12, 18))
        assert len(set(found[::6])) > 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("start", "persistent"),
    [("fork", True), ("fork", False), ("spawn", True), ("spawn", False)][:STARTS],
)
@pytest.mark.usefixtures("warm_starts")
def test_epochs_are_counted_over_workers(shard: FakeServer, start: str, persistent: bool) -> None:
    """Of any pipeline, whether workers live for one epoch or for all."""
    torch = pytest.importorskip("torch")
    stage = fb.video(TABLE)
    pipeline = wds.DataPipeline(wds.SimpleShardList([URL, URL]), wds.split_by_worker, fb.tarfile_to_samples(), stage, wds.map(frame_count))
    loader = torch.utils.data.DataLoader(
        pipeline, batch_size=None, num_workers=2, multiprocessing_context=start, persistent_workers=persistent
    )
    assert [list(loader) for _ in range(2)] == [[2] * 12, [3] * 12]


def frame_count(sample: dict[str, Any]) -> int:
    return len(sample["frames"])


@pytest.mark.filterwarnings("ignore")
def test_ranks_draw_alike(shard: FakeServer) -> None:
    """What is drawn for a clip does not depend on whose share it is in."""

    def seen(rank: int) -> list[tuple[str, int]]:
        dataset = fb.WebDataset(URL, data_parallel=(rank, 2), nodesplitter=iter).compose(fb.video("clip('random', 1)")).repeat(2)
        return [(sample["__key__"], frame_number(sample["frames"][0])) for sample in dataset]

    assert seen(0) == seen(1)


@pytest.mark.filterwarnings("ignore")
@both_forms
def test_ranks_that_draw_shards_draw_frames_apart(shard: FakeServer, form: Any) -> None:
    """With replacement both come to the same clips, and would give the same frames of them; each draws the same again."""

    def seen(rank: int) -> list[int]:
        dataset = form(fb.WebDataset(URL, data_parallel=(rank, 2), resampled=True), "clip('random', 1)").with_epoch(12)
        return [frame_number(frames[0]) for frames in dataset]

    first, second = seen(0), seen(1)
    assert (first, second) == (seen(0), seen(1))
    assert sum(one == other for one, other in zip(first, second, strict=True)) < 6


@pytest.mark.filterwarnings("ignore")
@pytest.mark.webdataset
def test_workers_of_webdatasets_own_pipelines_draw_apart(shard: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose shards may be the same ones (``ResampledShards``): else each would give the same frames of a clip."""

    def seen(worker: int, rank: int) -> list[int]:
        for name, value in (("WORKER", worker), ("NUM_WORKERS", 2), ("RANK", rank), ("WORLD_SIZE", 2)):
            monkeypatch.setenv(name, str(value))
        shards = wds.ResampledShards([URL], nshards=2, deterministic=True)
        pipeline = wds.DataPipeline(shards, fb.tarfile_to_samples(), fb.video("clip('random', 1)"))
        return [frame_number(sample["frames"][0]) for sample in pipeline]

    found = [seen(worker, rank) for worker in range(2) for rank in range(2)]
    assert seen(1, 0) == found[2]
    assert len({tuple(one) for one in found}) == 4


@pytest.mark.filterwarnings("ignore")
def test_a_decoder_of_a_pipeline_of_webdatasets_is_refused(shard: FakeServer) -> None:
    """Nobody tells it an epoch, and each pass would have the same frames; what does not differ by epoch is decoded."""
    plain = wds.DataPipeline(wds.SimpleShardList(URL), fb.tarfile_to_samples(), wds.decode(fb.video(TABLE)))
    with pytest.raises(Exception) as error:  # noqa: PT011  # webdataset's own of 1.x, from ours
        next(iter(plain))
    assert "a decoder outside fb.WebDataset" in f"{error.value} {error.value.__cause__}"
    same = wds.DataPipeline(wds.SimpleShardList(URL), fb.tarfile_to_samples(), wds.decode(fb.video("uniform(2)")), wds.to_tuple("mp4"))
    assert len(next(iter(same))[0][0]) == 2


@pytest.mark.filterwarnings("ignore")
def test_motion_is_found_out_once(shard: FakeServer, tmp_path: Path) -> None:
    """When a clip is first used, without a scan; then it is known, to a stage and to a decoder."""
    stage = fb.video("adaptive(4)", metadata=tmp_path / "set.clips")
    first = list(fb.WebDataset(URL).compose(stage))
    assert [len(sample["video"].motion) for sample in first] == [32] * 6
    assert fb.counters()["video_scanned"] == 6
    again = list(fb.WebDataset(URL).compose(fb.video("adaptive(4)", metadata=str(tmp_path / "set.clips"))))
    assert [sample["video"] for sample in again] == [sample["video"] for sample in first]
    assert fb.counters()["video_scanned"] == 6
    decoded = list(fb.WebDataset(URL).decode(stage).to_tuple("mp4"))
    assert {len(info["video"].motion) for ((_, _, info),) in decoded} == {32}
    assert fb.counters()["video_scanned"] == 6


@pytest.mark.filterwarnings("ignore")
def test_a_decoder_that_is_told_no_sample_asks_no_scan(shard: FakeServer, tmp_path: Path) -> None:
    """A scan knows clips by their names: outside ``fb.WebDataset`` each would be scanned anew, in silence."""
    decoder = wds.decode(fb.video("adaptive(4)", metadata=tmp_path / "set.clips"))
    with pytest.raises(Exception) as error:  # noqa: PT011  # webdataset's own of 1.x, from ours
        next(iter(wds.DataPipeline(wds.SimpleShardList(URL), fb.tarfile_to_samples(), decoder)))
    assert "let fb.video(…) be a stage of its own" in f"{error.value} {error.value.__cause__}"
