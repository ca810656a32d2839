"""``fb.memo`` as people use it: what is kept is given again, bit for bit, and whatever changes is made anew."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import random
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import webdataset as wds
from support.clips import rendered
from support.seams import refuses
from torch.utils.data import DataLoader
from webdataset import filters

import forebay_loader as fb
from forebay_loader.base.counters import COUNTS
from forebay_loader.memos import opened_memo
from forebay_loader.memos.errors import MemoRefused
from forebay_loader.memos.stores.choice import STORES

pytestmark = pytest.mark.webdataset

CALLS: list[str] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    CALLS.clear()
    yield
    for one in opened_memo._OPEN.values():
        one.writer.end(5)
    opened_memo._OPEN.clear()


def written(folder: Path) -> None:
    """All that was handed over lies in the store."""
    assert opened_memo._OPEN[str(folder.resolve())].writer.drained(20)


def squared(sample: Any) -> Any:
    CALLS.append(sample["__key__"])
    return {**sample, "square": numpy.full((3, 50), sample["n"] ** 2, "f4"), "note": ("x", None)}


def samples(count: int = 5, **more: Any) -> list[dict[str, Any]]:
    return [{"__key__": str(number), "__url__": "s3://b/0.tar", "n": number, **more} for number in range(count)]


def same(found: Any, wanted: Any) -> bool:
    return [{**one, "square": one["square"].tobytes()} for one in found] == [{**one, "square": one["square"].tobytes()} for one in wanted]


@pytest.mark.parametrize("store", STORES)
def test_what_was_made_is_given_again(tmp_path: Path, store: str) -> None:
    """The second pass makes nothing, and gives the same with the same order of keys; a new sample is made."""
    stage = fb.memo(store=store, folder=tmp_path / "m", size="8MB")(filters.map(squared))
    first = list(stage(iter(samples())))
    written(tmp_path / "m")
    again = list(stage(iter(samples(6))))
    assert CALLS == ["0", "1", "2", "3", "4", "5"]
    assert same(again[:5], first)
    assert [list(one) for one in again[:5]] == [list(one) for one in first]
    counts = COUNTS.snapshot()
    assert (counts["memo_hits"], counts["memo_made"]) == (5, 6)


def test_a_function_is_decorated(tmp_path: Path) -> None:
    """And stays what it was by name; what is written to afterwards is the caller's own."""
    remembered = fb.memo(store="npz", folder=tmp_path / "m")(squared)
    (one,) = samples(1)
    first = remembered(one)
    first["square"][:] = 77
    written(tmp_path / "m")
    assert remembered(one)["square"].max() == 0
    assert (CALLS, remembered.__name__) == (["0"], "squared")


def test_another_argument_or_version_is_made(tmp_path: Path) -> None:
    """Each has results of its own in one store."""
    for version in (1, 2, 1):
        list(fb.memo(store="npz", folder=tmp_path / "m", version=version)(filters.map(squared))(iter(samples(1))))
        written(tmp_path / "m")
    assert len(CALLS) == 2


def drawing(sample: Any) -> Any:
    return {**sample, "x": random.random()}


def drawing_numpy(sample: Any) -> Any:
    return {**sample, "x": float(numpy.random.rand())}


@pytest.mark.parametrize(("function", "name"), [(drawing, "random"), (drawing_numpy, r"numpy\.random")])
def test_chance_is_refused_or_kept(tmp_path: Path, function: Any, name: str) -> None:
    """A function that drew is named with what it drew from; ``random="keep"`` gives the first draw again."""
    with pytest.raises(MemoRefused, match=rf"drawing\w* drew random numbers \({name}\)"):
        list(fb.memo(store="npz", folder=tmp_path / "m")(filters.map(function))(iter(samples(1))))
    stage = fb.memo(store="npz", folder=tmp_path / "m", random="keep")(filters.map(function))
    (first,) = stage(iter(samples(1)))
    written(tmp_path / "m")
    assert list(stage(iter(samples(1)))) == [first]


def test_clips_that_differ_by_epoch_are_refused() -> None:
    """Before any is decoded; frames that do not differ are taken."""
    with pytest.raises(MemoRefused, match="draws by the epoch"):
        fb.memo()(fb.video("clip('random', 4)"))
    with pytest.raises(MemoRefused, match="neither"):
        fb.memo()(fb.video("uniform(4)", replace_corrupt=True))
    fb.memo()(fb.video("uniform(4)"))


def failing(sample: Any) -> Any:
    if sample["n"] == 1:
        raise ValueError("bad sample")
    return squared(sample)


def test_a_transform_that_raises(tmp_path: Path) -> None:
    """Its error is the pipeline's; with a handler the sample is left out, the others stay in order, and it is tried again each time."""
    made = fb.memo(store="npz", folder=tmp_path / "m")
    with pytest.raises(ValueError, match="bad sample"):
        list(made(filters.map(failing))(iter(samples())))
    written(tmp_path / "m")
    for _ in range(2):
        found = made(filters.map(failing, handler=wds.ignore_and_continue))(iter(samples()))
        assert [one["n"] for one in found] == [0, 2, 3, 4]
        written(tmp_path / "m")


class Numbered:
    """Gives its number, which may be set at any time."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, sample: Any) -> Any:
        return {**sample, "y": self.number * sample["n"]}


def test_a_value_set_after_the_pipeline_was_put_together_counts(tmp_path: Path) -> None:
    """As a stage and as a function: never the results of the value before."""
    for number, store in ((3, "a"), (5, "a"), (3, "a")):
        held = Numbered(2)
        stage, function = fb.memo(folder=tmp_path / store)(filters.map(held)), fb.memo(folder=tmp_path / store)(held)
        held.number = number
        assert [one["y"] for one in stage(iter(samples(3)))] == [0, number, 2 * number] == [function(one)["y"] for one in samples(3)]
        held.number = 7
        assert [one["y"] for one in stage(iter(samples(3)))] == [0, 7, 14] == [function(one)["y"] for one in samples(3)]
        written(tmp_path / store)
    assert COUNTS.snapshot()["memo_hits"] > 0


class Counting(Numbered):
    """Changes what it holds."""

    def __call__(self, sample: Any) -> Any:
        self.number += 1
        return {**sample, "y": self.number}


def test_a_transform_that_changes_itself_is_not_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody could tell which values a result is of: said once, counted, and each is made."""
    function = fb.memo(folder=tmp_path / "m")(Counting(0))
    assert [function(samples(1)[0])["y"] for _ in range(3)] == [1, 2, 3]
    assert COUNTS.snapshot()["memo_dropped"] == 3
    assert caplog.text.count("changed what it holds") == 1


def classified(sample: Any) -> Any:
    CALLS.append(sample["__key__"])
    return {**sample, "cls": LABELS[len(sample["png"])], "feature": numpy.ones(2)}


def numbered(sample: Any) -> Any:
    return {**sample, "__label__": len(sample["png"])}


@pytest.mark.parametrize("key", ["png", None])
def test_a_member_of_underscores_is_a_member(tmp_path: Path, key: Any) -> None:
    """Only the shard and the sample's own name are about where it lies."""
    kept = fb.memo(store="npz", folder=tmp_path / "m", key=key)(numbered)
    first = {"__key__": "a", "__url__": "1.tar", "png": b"1234567", "__label__": 7}
    assert kept(first)["__label__"] == 7
    written(tmp_path / "m")
    assert kept({**first, "__url__": "2.tar", "__label__": 3}) == {**first, "__url__": "2.tar"}


LABELS = (None, True, 7, "a", "a longer label", b"x", 1.5, (1, 2), b"label")


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("length", range(len(LABELS)))
def test_the_same_small_object_is_not_what_came_in(tmp_path: Path, store: str, length: int) -> None:
    """With ``key=`` a label that was the transform's by chance is the transform's for another sample too, whose label is another one."""
    function, png = fb.memo(store=store, folder=tmp_path / "m", key="png")(classified), b"p" * length
    for label in (LABELS[length], 3):
        assert function({"__key__": "a", "png": png, "cls": label})["cls"] == LABELS[length]
        written(tmp_path / "m")


def passing(sample: Any) -> Any:
    CALLS.append(sample["__key__"])
    sample["changed"].append(len(sample["png"]))
    return {**sample, "feature": numpy.ones(2)}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (7, 3), ("a", "b"), ({"label": 1}, {"label": 2}), (numpy.zeros(2), numpy.ones(2)), (b"x" * 2000, b"y" * 2000), ("x" * 2000, "y"),
        ((1,), (2,)),
    ],
)  # fmt: skip
def test_a_member_that_key_does_not_name_is_passed_on(tmp_path: Path, old: Any, new: Any) -> None:
    """Of the sample that asks, and not of the one that was kept; one that the transform changed in place is as it made it."""
    function = fb.memo(folder=tmp_path / "m", key="png")(passing)
    for label in (old, new, old):
        found = function({"__key__": "a", "png": b"picture", "label": label, "changed": []})
        assert (repr(found["label"]), found["changed"]) == (repr(label), [7])
        written(tmp_path / "m")
    assert len(CALLS) == (3 if type(old) in (int, tuple) or repr(old) == "'a'" else 1)


@pytest.mark.parametrize("key", ["png", ["n", "png"]])
def test_a_handler_is_asked_about_a_missing_member(tmp_path: Path, key: Any) -> None:
    """The stage's, else the data set's; without one the error names shard, key and what is there."""
    given = [{**one, **({"png": b"x"} if one["n"] % 2 else {})} for one in samples(4)]
    ask = fb.memo(folder=tmp_path / "m", key=key)
    for stage in (
        ask(filters.map(squared, handler=wds.ignore_and_continue)),
        ask(filters.map(squared), wds.ignore_and_continue),
        filters.map(ask(squared), handler=wds.ignore_and_continue),
    ):
        assert [one["n"] for one in stage(iter(given))] == [1, 3]
    for stage in (ask(filters.map(squared)), filters.map(ask(squared))):
        with pytest.raises(
            LookupError, match=r"the sample '0' of s3://b/0\.tar has no 'png', which fb\.memo\(key=…\) names; it has '__key__'"
        ):
            list(stage(iter(given)))


def test_the_data_set_s_handler_is_asked_and_recorded(shard: str, tmp_path: Path) -> None:
    """And what it passes over is counted as skipped."""
    made = fb.WebDataset([shard], shardshuffle=False, handler=wds.ignore_and_continue)
    assert list(made.decode().compose(fb.memo(folder=tmp_path / "m", key="flac"))) == []
    assert COUNTS.snapshot()["skipped_map"] == 6


@pytest.mark.usefixtures("warm_starts")
@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.once)])
def test_counters_are_summed_over_workers(shard: str, tmp_path: Path, context: str) -> None:
    """Also when they have ended; each worker's own are its own."""
    made = fb.WebDataset([shard] * 2, shardshuffle=False, empty_check=False).compose(filters.map(repeated), fb.memo(folder=tmp_path / "m"))
    before = fb.counters()
    for _ in range(2):
        assert len(list(DataLoader(made, batch_size=None, num_workers=2, multiprocessing_context=context))) == 12
    found = {name: fb.counters()[name] - before[name] for name in ("memo_hits", "memo_made")}
    assert sum(found.values()) == 24
    assert found["memo_hits"] > 0


def repeated(sample: Any) -> Any:
    return {**sample, "twice": sample["json"] * 2}


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), OSError(30, "Read-only file system")])
def test_a_store_that_cannot_be_opened_ends_nothing(
    tmp_path: Path, store: str, error: OSError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All is made, a warning says why, and it is counted once."""
    refuses(monkeypatch, os, error, "makedirs")
    stage = fb.memo(store=store, folder=tmp_path / "m")(filters.map(squared))
    assert [len(list(stage(iter(samples())))) for _ in range(2)] == [5, 5]
    assert (COUNTS.snapshot()["memo_off"], len(CALLS)) == (1, 10)
    assert not caplog.text or error.strerror in caplog.text


def test_a_generator_or_another_stage_is_refused() -> None:
    """With what to write instead."""

    def stage(data: Any) -> Any:
        yield from data

    for what, said in ((stage, "is a generator"), (filters.batched(3), "neither"), (iter(()), r"fb\.memo\(…\)\(stage\)"), (3, "neither")):
        with pytest.raises(MemoRefused, match=said):
            fb.memo()(what)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"store": "redis"}, "store takes"), ({"size": "big"}, "size takes bytes"), ({"size": 5}, "a MiB at least"),
        ({"key": 3}, "key takes"), ({"version": 1.5}, "version takes"), ({"random": "yes"}, "random takes"), ({"size": True}, "size takes"),
    ],
)  # fmt: skip
def test_arguments_are_checked(how: dict[str, Any], said: str) -> None:
    """Where they are given."""
    with pytest.raises((TypeError, ValueError), match=said):
        fb.memo(**how)


@pytest.fixture
def shard(tmp_path: Path) -> str:
    path = tmp_path / "clips.tar"
    with tarfile.open(path, "w") as tar:
        for number in range(6):
            for suffix, data in (("mp4", rendered()), ("json", json.dumps({"n": number}).encode())):
                member = tarfile.TarInfo(f"{number}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return str(path)


def dataset(shard: str, folder: Path, size: int = 32) -> Any:
    made = fb.WebDataset([shard], shardshuffle=False)
    return made.decode().compose(fb.video("uniform(2)", size=size), fb.memo(folder=folder, size="64MB"))


def pictures(found: Any) -> list[Any]:
    return [(one["__key__"], one["frames"].tobytes(), one["frames"].shape, one["video"], one["json"]) for one in found]


def test_clips_of_a_data_set_are_decoded_once(shard: str, tmp_path: Path) -> None:
    """The memo stands around the stage before it; another size is decoded; frames and facts are the same."""
    data = dataset(shard, tmp_path / "m")
    first = pictures(data)
    written(tmp_path / "m")
    assert pictures(dataset(shard, tmp_path / "m")) == first
    assert COUNTS.snapshot()["video_clips"] == 6
    list(dataset(shard, tmp_path / "m", size=16))
    assert COUNTS.snapshot()["video_clips"] == 12


def test_a_data_set_with_a_memo_resumes_exactly(shard: str, tmp_path: Path) -> None:
    """Its stage is one for one, and no stranger to the state."""
    data = dataset(shard, tmp_path / "m")
    run = iter(data)
    keys = [next(run)["__key__"] for _ in range(2)]
    state = data.state_dict()
    assert state["resume"] == "exact"
    other = dataset(shard, tmp_path / "m")
    other.load_state_dict(state)
    assert keys + [one["__key__"] for one in other] == [str(number) for number in range(6)]


@pytest.mark.parametrize("store", STORES)
def test_workers_use_what_their_parent_has_open(shard: str, tmp_path: Path, store: str) -> None:
    """A look at one sample in the trainer, before the loader begins and while it runs: the memo stays on everywhere."""
    made = fb.WebDataset([shard] * 2, shardshuffle=False, empty_check=False)
    made = made.compose(filters.map(repeated), fb.memo(store=store, folder=tmp_path / "m"))
    before = fb.counters()
    for _ in range(3):
        next(iter(made))
        for _sample in DataLoader(made, batch_size=None, num_workers=2, multiprocessing_context="fork"):
            next(iter(made))
    found = {name: value - before[name] for name, value in fb.counters().items() if name.startswith("memo")}
    assert found["memo_off"] == found["memo_dropped"] == 0
    assert found["memo_hits"] > 36


def test_workers_share_one_store(shard: str, tmp_path: Path) -> None:
    """Two forked workers: what either made, both are given; and the parent too."""
    made = fb.WebDataset([shard] * 2, shardshuffle=False, empty_check=False)
    made = made.decode().compose(fb.video("uniform(2)", size=32), fb.memo(folder=tmp_path / "m", size="64MB", key="mp4"))
    context = multiprocessing.get_context("fork")
    end = time.monotonic() + 30
    while True:
        found = list(DataLoader(made, batch_size=None, num_workers=2, multiprocessing_context=context))
        assert len(found) == 12
        COUNTS.reset()
        list(made)
        if COUNTS.snapshot()["memo_hits"] == 12:
            break
        assert time.monotonic() < end
    assert COUNTS.snapshot()["video_clips"] == 0
