"""``fb.video``: what it takes, and what it is in a pipeline of ours and of webdataset's."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy
import pytest
from support.clips import frame_number, rendered
from support.fake_proxy import FakeServer

import forebay_loader as fb

wds = pytest.importorskip("webdataset")
pytestmark = pytest.mark.webdataset

URL = "s3://bucket/0.tar"


def tar_of(*samples: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as out:
        for number, sample in enumerate(samples):
            for suffix, content in sample.items():
                entry = tarfile.TarInfo(f"{number:04}.{suffix}")
                entry.size = len(content)
                out.addfile(entry, io.BytesIO(content))
    return made.getvalue()


@pytest.fixture
def shard(proxy: FakeServer) -> FakeServer:
    """Six clips of 48 frames, each with its number."""
    clip = rendered(audio="aac")
    proxy.put("/s3/bucket/0.tar", tar_of(*({"mp4": clip, "json": json.dumps(number).encode()} for number in range(6))))
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
    ],
)
def test_arguments_are_checked_where_they_are_given(how: dict[str, Any], error: type[Exception], match: str) -> None:
    """Not in a worker, an hour later."""
    with pytest.raises(error, match=match):
        fb.video(**how)


def test_without_pyav_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base install has none."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None)
    with pytest.raises(ModuleNotFoundError, match=r"forebay\[video\]"):
        fb.video()


def test_naming_it_imports_neither_pyav_nor_numpy() -> None:
    """Importing the loader is no dearer for it."""
    code = "import sys, forebay_loader as fb; fb.video; print(sorted({'av', 'numpy', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(fb.__file__).parents[1], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]"]


def test_the_function_keeps_its_name() -> None:
    """Its package has the same, and modules of that are imported later."""
    importlib.import_module("forebay_loader.video.decode.resample")
    assert callable(fb.video)


@pytest.mark.filterwarnings("ignore")
def test_a_stage_of_our_data_set(shard: FakeServer) -> None:
    """Frames, sound and mask beside what else a sample has; the clip's bytes are gone."""
    dataset = fb.WebDataset(URL).decode().compose(fb.video("uniform(8)", size=48, audio=16_000))
    found = list(dataset)
    assert [sample["json"] for sample in found] == list(range(6))
    assert all(set(sample) == {"__key__", "__url__", "json", "frames", "mask", "video", "audio"} for sample in found)
    assert found[0]["frames"].shape == (8, 48, 64, 3)
    assert found[0]["mask"].all()
    assert found[0]["video"].frames == 48
    assert found[0]["audio"].dtype == numpy.float32


@pytest.mark.filterwarnings("ignore")
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
def test_a_stage_of_a_pipeline_of_webdatasets(shard: FakeServer) -> None:
    """Passes are counted there."""
    stage = fb.video({0: "uniform(2)", 1: "uniform(3)"})
    pipeline = wds.DataPipeline(wds.SimpleShardList(URL), fb.tarfile_to_samples(), stage)
    assert [[len(sample["frames"]) for sample in pipeline] for _ in range(2)] == [[2] * 6, [3] * 6]


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
    assert fb.counters()["video_scanned"] == 7  # six equal clips, which are known there by their bytes


@pytest.mark.filterwarnings("ignore")
def test_without_metadata_motion_is_unknown(shard: FakeServer) -> None:
    """And a sampler that needs it names the clip."""
    with pytest.raises(fb.VideoError, match=r"0000\.mp4 in s3://bucket/0\.tar: adaptive\(4\): nothing is known of the clip's motion"):
        list(fb.WebDataset(URL).compose(fb.video("adaptive(4)")))
