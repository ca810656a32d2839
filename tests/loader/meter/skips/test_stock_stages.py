"""Handlers in webdataset's own pipelines, recorded where Forebay is enabled or has taken over, and given back."""

from __future__ import annotations

import importlib
import json
import logging
import os
import pickle
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fake_proxy import FakeServer
from support.tars import expected, tar_shard

import forebay_loader as fb
from forebay_loader.meter.skips import stock_stages
from forebay_loader.meter.skips.skips_file import SKIPS_FILE

wds = pytest.importorskip("webdataset")
from webdataset import handlers, tariterators  # noqa: E402  # it is there

pytestmark = pytest.mark.webdataset

KEYS = list(expected(2))
URLS = ["s3://bucket/000.tar", "s3://bucket/001.tar"]


@pytest.fixture(autouse=True)
def shards(proxy: FakeServer) -> Iterator[FakeServer]:
    for number in range(2):
        proxy.put(f"/s3/bucket/{number:03d}.tar", tar_shard(number))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield proxy


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions replaced as the takeover does it, before a user imports them."""
    for module, names in ((handlers, stock_stages._HANDLERS), (tariterators, ("url_opener", "tar_file_expander", "group_by_keys"))):
        for name in names:
            stock = getattr(module, name)
            for other in [one for key, one in sys.modules.items() if key.startswith("webdataset") and vars(one).get(name) is stock]:
                monkeypatch.delattr(other, name)  # put back at the end
            monkeypatch.setattr(module, name, stock, raising=False)
        stock_stages.take_early(module)


@pytest.fixture
def said(tmp_path: Path) -> Iterator[Path]:
    """A file with what this process and those that it forks log."""
    handler = logging.FileHandler(tmp_path / "log")
    logging.getLogger("forebay_loader").addHandler(handler)
    yield tmp_path / "log"
    logging.getLogger("forebay_loader").removeHandler(handler)
    handler.close()


def listed() -> list[dict[str, Any]]:
    if not os.path.exists(SKIPS_FILE.path):
        return []
    with open(SKIPS_FILE.path) as file:
        return [json.loads(line) for line in file]


def refuses_third(sample: Any) -> Any:
    if sample["__key__"] == KEYS[2]:
        raise ValueError("third")
    return sample


def lenient(_: Exception) -> bool:
    return True


def pipeline(urls: list[str] = URLS, handler: Any = lenient) -> Any:
    return wds.DataPipeline(
        wds.SimpleShardList(urls), wds.tarfile_to_samples(handler=handler), wds.shuffle(2), wds.map(refuses_third, handler=lambda _: True)
    )


def stock(urls: list[str] = URLS, handler: Any = lenient) -> Any:
    return wds.WebDataset(urls, shardshuffle=False, handler=handler).map(refuses_third, handler=lambda _: True)


def keys(data: Any) -> list[str]:
    return sorted(sample["__key__"] for sample in data)


@pytest.mark.parametrize("made", [pipeline, stock])
def test_stock_stages_are_recorded_once_enabled(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A lambda of the user's too; what comes out is as before, and each pass has its line."""
    fb.enable()
    with caplog.at_level(logging.INFO, "forebay_loader"):
        assert keys(made()) == KEYS[:2] + KEYS[3:]
    (line,) = listed()
    assert (line["stage"], line["key"], line["shard"], line["epoch"]) == ("map", KEYS[2], URLS[0], None)
    assert [text.partition("; see")[0] for text in caplog.messages if text.startswith("forebay:")] == [
        f"forebay: worker 0, a pass: 1 of {len(KEYS)} samples skipped (1 map); in 1 shard"
    ]


@pytest.mark.parametrize("made", [pipeline, stock])
def test_a_shard_that_is_missing_is_recorded_once_enabled(made: Any) -> None:
    """In whichever opener this version has."""
    fb.enable(limits=fb.Limits(resume_s=0.2, open_s=0.1, pause_s=0.01, jitter_s=0.0))
    assert keys(made(["s3://bucket/missing.tar", *URLS])) == KEYS[:2] + KEYS[3:]
    assert ("open", "shard", "s3://bucket/missing.tar") in [(line["stage"], line["what"], line["shard"]) for line in listed()]


def test_nothing_is_recorded_before_and_after() -> None:
    """webdataset's own again."""
    before = wds.filters.FilterFunction.__call__, wds.DataPipeline.iterator1
    fb.enable()
    fb.disable()
    assert (wds.filters.FilterFunction.__call__, wds.DataPipeline.iterator1) == before


def test_the_limit_of_the_environment_ends_a_stock_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose code nobody changes."""
    monkeypatch.setenv("FOREBAY_MAX_SKIPPED", "0")
    fb.enable()
    with pytest.raises(fb.TooManySkips, match="worker 0, a pass: 1 skips, and max_skipped=0"):
        list(pipeline())


def behind(**how: Any) -> Any:
    """A stage with a handler behind webdataset's own loader, as OpenCLIP has them."""
    data = wds.DataPipeline(wds.SimpleShardList(URLS), wds.split_by_worker, wds.tarfile_to_samples())
    return wds.WebLoader(data, batch_size=None, **how).map(dict).map(refuses_third, handler=wds.ignore_and_continue)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_stages_behind_a_stock_loader_pass_over_has_its_line(workers: int, caplog: pytest.LogCaptureFixture) -> None:
    """Of what the loader gave, in the training process; the workers have lines of their own."""
    pytest.importorskip("torch")
    fb.enable()
    with caplog.at_level(logging.INFO, "forebay_loader"):
        assert keys(behind(num_workers=workers)) == KEYS[:2] + KEYS[3:]
    assert [(line["function"], line["key"]) for line in listed()] == [("map", KEYS[2])]
    lines = [text.partition("; see")[0] for text in caplog.messages if text.startswith("forebay:")]
    assert lines[-1] == f"forebay: behind a loader, a pass: 1 of {len(KEYS)} samples skipped (1 map); in 1 shard"
    assert lines[:-1] == [f"forebay: worker 0, a pass: 0 of {len(KEYS)} samples skipped"] * (workers == 0)


def refuses_last(sample: Any) -> Any:
    if sample["__key__"] == KEYS[-1]:
        raise ValueError("last")
    return sample


LOADERS = {"wds.WebLoader": lambda: wds.WebLoader, "fb.WebLoader": lambda: fb.WebLoader, "torch": lambda: torch_loader}


def torch_loader(data: Any, **how: Any) -> Any:
    return importlib.import_module("torch.utils.data").DataLoader(data, **how)


@pytest.fixture
def judged_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of skips is judged from the first sample on."""
    monkeypatch.setattr("forebay_loader.meter.skips.counts.FIRST", 0)


@pytest.mark.usefixtures("judged_at_once")
@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("workers", [0, 2])
def test_workers_behind_any_loader_skip_for_themselves(name: str, workers: int, said: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forked while the pipeline behind the loader is put together, they are no part of that: own number, own line, own judgement."""
    pytest.importorskip("torch")
    fb.enable()
    data = wds.DataPipeline(
        wds.SimpleShardList(URLS), wds.split_by_worker, wds.tarfile_to_samples(), wds.map(refuses_last, handler=lenient)
    )
    assert keys(LOADERS[name]()(data, batch_size=None, num_workers=workers)) == KEYS[:-1]
    assert [(line["worker"], line["key"]) for line in listed()] == [(max(0, workers - 1), KEYS[-1])]
    read = len(KEYS) // max(1, workers)
    line = f"forebay: worker {max(0, workers - 1)}, a pass: 1 of {read} samples skipped (1 map); in 1 shard; see {SKIPS_FILE.path}"
    assert line in said.read_text().splitlines()
    monkeypatch.setenv("FOREBAY_MAX_SKIPPED", "0.09")
    with pytest.raises(fb.TooManySkips, match=rf"worker {max(0, workers - 1)}, a pass: 1 of .* samples skipped"):
        list(LOADERS[name]()(data, batch_size=None, num_workers=workers))


def test_a_childs_copy_of_a_pass_ends_without_a_word(said: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is the parent's, which reads on."""
    caplog.set_level(logging.INFO, "forebay_loader")
    given = iter(fb.WebDataset(URLS, shardshuffle=False))
    next(given)
    pid = os.fork()
    if not pid:
        given.close()
        os._exit(0)
    os.waitpid(pid, 0)
    assert "left early" not in said.read_text()
    assert len(list(given)) == len(KEYS) - 1
    assert f"rank 0, epoch 0: 0 of {len(KEYS)}" in said.read_text().replace("forebay: epoch", "rank 0, epoch")


def test_an_error_without_a_text_says_its_cause() -> None:
    """webdataset 1.x's ``DecodingError``: what the decoder said is listed."""
    fb.enable()

    def broken(key: str, data: bytes) -> Any:
        raise ValueError("cannot identify image file")

    data = wds.DataPipeline(wds.SimpleShardList(URLS), wds.tarfile_to_samples(), wds.decode(broken, handler=lenient))
    assert keys(data) == []
    assert len(listed()) == len(KEYS)
    assert all("cannot identify image file" in line["message"] for line in listed())


@pytest.mark.once  # 0.2.86 takes no loader for a stage
def test_a_pipeline_that_begins_with_a_loader_is_behind_it(caplog: pytest.LogCaptureFixture) -> None:
    """As the loader's own stages are."""
    pytest.importorskip("torch")
    fb.enable()
    given = wds.WebLoader(wds.DataPipeline(wds.SimpleShardList(URLS), wds.tarfile_to_samples()), batch_size=None, num_workers=1)
    with caplog.at_level(logging.INFO, "forebay_loader"):
        assert keys(wds.DataPipeline(given, wds.map(dict), wds.map(refuses_third, handler=wds.ignore_and_continue))) == KEYS[:2] + KEYS[3:]
    lines = [text.partition("; see")[0] for text in caplog.messages if text.startswith("forebay:")]
    assert lines[-1] == f"forebay: behind a loader, a pass: 1 of {len(KEYS)} samples skipped (1 map); in 1 shard"


@pytest.mark.usefixtures("judged_at_once")
def test_a_share_is_judged_behind_a_stock_loader_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the limit is a share, somebody must count what comes to the stage."""
    pytest.importorskip("torch")
    monkeypatch.setenv("FOREBAY_MAX_SKIPPED", "0.09")
    fb.enable()
    with pytest.raises(fb.TooManySkips, match=r"behind a loader, a pass: 1 of .* samples skipped"):
        list(behind(num_workers=0))


def test_our_data_set_is_recorded_once_though_enabled() -> None:
    """By its own way alone."""
    fb.enable()
    data = fb.WebDataset(URLS, shardshuffle=False).map(refuses_third, handler=wds.ignore_and_continue)
    assert len(list(data)) == len(KEYS) - 1
    assert [line["epoch"] for line in listed()] == [0]


def test_stages_still_pickle() -> None:
    """What was made before, and what is made while enabled."""
    before = pickle.dumps(wds.map(refuses_third, handler=wds.ignore_and_continue))
    fb.enable()
    for stage in (pickle.loads(before), pickle.loads(pickle.dumps(wds.map(refuses_third, handler=wds.ignore_and_continue)))):
        assert [sample["__key__"] for sample in stage([{"__key__": KEYS[2]}, {"__key__": KEYS[3]}])] == [KEYS[3]]
    assert [line["key"] for line in listed()] == [KEYS[2]] * 2


@pytest.mark.usefixtures("early")
def test_a_users_own_stage_that_asks_a_stock_handler_is_recorded() -> None:
    """By name, as the takeover has it; asked by a recorded handler it is not counted twice."""

    def stage(samples: Iterator[Any]) -> Iterator[Any]:
        for sample in samples:
            try:
                yield refuses_third(sample)
            except ValueError as error:
                if not handlers.ignore_and_continue(error):
                    return

    def through(error: Exception) -> bool:
        return bool(handlers.ignore_and_continue(error))

    fb.enable()
    assert keys(wds.DataPipeline(wds.SimpleShardList(URLS), wds.tarfile_to_samples(), stage)) == KEYS[:2] + KEYS[3:]
    assert keys(wds.DataPipeline(wds.SimpleShardList(URLS), wds.tarfile_to_samples(), wds.map(refuses_third, handler=through)))
    assert [(line["function"], line["key"]) for line in listed()] == [("stage", KEYS[2]), ("map", KEYS[2])]


@pytest.mark.usefixtures("early")
def test_a_users_own_reader_is_recorded(shards: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    """As OpenCLIP's, of webdataset's functions; its samples are counted where they come to the next stage."""
    shards.put("/s3/bucket/000.tar", tar_shard(0)[: 3 * 5120])

    def reader(data: Any, handler: Any = lenient) -> Any:
        files = tariterators.tar_file_expander(tariterators.url_opener(data, handler=handler), handler=handler)
        return tariterators.group_by_keys(files, handler=handler)

    fb.enable()
    with caplog.at_level(logging.INFO, "forebay_loader"):
        found = keys(wds.DataPipeline(wds.SimpleShardList(URLS), reader, wds.map(dict)))
    assert found[-5:] == KEYS[5:]
    assert [(line["stage"], line["what"], line["shard"]) for line in listed()] == [("read", "file", URLS[0]), ("read", "shard", URLS[0])]
    assert f"1 of {len(found)} samples skipped (1 file), 1 of 2 shards skipped (1 read); in 1 shard" in caplog.text
