"""webdataset's decoding with decoders that are asked for one of each pass."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

from forebay_loader.base.epoch_stage import EpochDecoder
from forebay_loader.videos.errors import CorruptVideo

wds = pytest.importorskip("webdataset")
DecodeStage = pytest.importorskip("forebay_loader.dataset.decode_stage").DecodeStage
pytestmark = pytest.mark.webdataset


class Told(EpochDecoder):
    """Answers what it was told."""

    def of_pass(self, epoch: int, turn: int, phase: int | None, place: int = 0, sample: Any = None) -> Callable[[str, Any], Any]:
        return lambda key, data: (epoch, turn, phase, place) if key == ".clip" else None

    def __call__(self, key: str, data: bytes) -> Any:
        return "not told" if key == ".clip" else None


def samples() -> list[dict[str, Any]]:
    return [{"__key__": "a", "clip": b"x", "json": b"7", "txt": b"words"}]


def test_each_pass_has_a_decoder_of_its_own() -> None:
    """Though both are begun before one is read."""
    stage = DecodeStage([Told()], {})
    passes = []
    for told in ((0, 0, 0, 0), (3, 1, 7, 2)):
        stage.begin(*told)
        passes.append(stage(iter(samples())))
    assert [next(one)["clip"] for one in passes] == [(0, 0, 0, 0), (3, 1, 7, 2)]


def test_the_rest_is_webdatasets() -> None:
    """Other decoders, by name too, its own behind them, and its arguments; also from another process."""
    stage = pickle.loads(pickle.dumps(DecodeStage([Told(), "rgb8"], {"only": ["clip", "json"]})))
    stage.begin(1, 0, 1)
    (found,) = stage(iter(samples()))
    assert (found["clip"], found["json"], found["txt"]) == ((1, 0, 1, 0), 7, b"words")


class Bad(EpochDecoder):
    """A clip that cannot be decoded, of which a decoder sees the suffix alone."""

    def of_pass(self, epoch: int, turn: int, phase: int | None, place: int = 0, sample: Any = None) -> Callable[[str, Any], Any]:
        return self

    def __call__(self, key: str, data: bytes) -> Any:
        if key == ".clip":
            raise CorruptVideo("cut short", key)


def test_errors_of_clips_name_clip_and_shard() -> None:
    """The sample's that is decoded, and not the one that was read last."""
    several = [
        {"__key__": key, "__url__": "s3://b/0.tar?X-Amz-Signature=secret", member: b"7"} for key, member in (("a", "json"), ("b", "clip"))
    ]
    told: list[BaseException] = []

    def handler(error: BaseException) -> bool:
        told.append(error)
        return True

    stage = DecodeStage([Bad()], {"handler": handler})
    stage.begin(0, 0, 0)
    assert [sample["__key__"] for sample in stage(iter([*several, {"__key__": "c", "json": b"1"}]))] == ["a", "c"]
    (error,) = told
    cause = error if isinstance(error, CorruptVideo) else error.__cause__  # 1.x wraps it
    assert isinstance(cause, CorruptVideo)
    assert str(cause) == "b.clip in s3://b/0.tar: cut short"
    assert (cause.clip, cause.shard) == ("b.clip", "s3://b/0.tar")


def test_a_pass_that_nobody_began() -> None:
    """Its decoders are asked as they are: they know what they make of that."""
    (found,) = DecodeStage([Told()], {})(iter(samples()))
    assert found["clip"] == "not told"
