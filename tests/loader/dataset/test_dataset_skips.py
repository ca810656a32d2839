"""What handlers pass over in fb.WebDataset, its stages and DataLoader workers: recorded, bounded, said."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fake_proxy import FakeServer
from support.tars import expected, tar_shard

import forebay_loader as fb
from forebay_loader.meter.skips.skips_file import SKIPS_FILE

wds = pytest.importorskip("webdataset")
torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.webdataset, pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("warm_starts", "shards")]

SHARDS = 4
PATTERN = f"s3://bucket/{{000..{SHARDS - 1:03d}}}.tar"
QUICK = fb.Limits(resume_s=0.3, open_s=0.1, pause_s=0.01, jitter_s=0.0)
KEYS = list(expected(SHARDS))
BAD = KEYS[7]  # in shard 001


@pytest.fixture
def said(tmp_path: Path) -> Iterator[Callable[[], list[str]]]:
    """Lines that begin with "forebay:", of this process and those it forks."""
    path = tmp_path / "log"
    handler = logging.FileHandler(path)
    logger = logging.getLogger("forebay_loader")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield lambda: [line for line in path.read_text().splitlines() if line.startswith("forebay:")]
    logger.removeHandler(handler)
    logger.setLevel(before)
    handler.close()


def dataset(urls: Any = PATTERN, **how: Any) -> Any:
    return fb.WebDataset(urls, **{"shardshuffle": False, "limits": QUICK, **how})


def listed() -> list[dict[str, Any]]:
    with open(SKIPS_FILE.path) as file:
        return [json.loads(line) for line in file]


def keys(samples: Any) -> list[str]:
    return [sample["__key__"] for sample in samples]


class FailsFor:
    """A stage's function that refuses some keys; it pickles."""

    def __init__(self, *bad: str) -> None:
        self.bad = bad

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        if not self.bad or sample["__key__"] in self.bad:
            raise ValueError(f"refused {sample['__key__']}")
        return sample


def decoder(key: str, data: bytes) -> Any:
    if key == ".txt" and data == BAD.encode():
        raise ValueError("not text")
    return None


STAGES: dict[str, tuple[Callable[[Any, Any], Any], str, str]] = {
    "map": (lambda data, h: data.map(FailsFor(BAD), handler=h), "map", "map"),
    "map, by position": (lambda data, h: data.map(FailsFor(BAD), h), "map", "map"),
    "composed": (lambda data, h: data.compose(wds.map(FailsFor(BAD), h)), "map", "map"),
    "decode": (lambda data, h: data.decode(decoder, handler=h), "decode", "map"),
    "composed decode": (lambda data, h: data.compose(wds.decode(decoder, handler=h)), "decode", "decode"),
    "map_dict": (lambda data, h: data.map_dict(txt=lambda text: 1 // (text != BAD.encode()), handler=h), "map", "map_dict"),
    "behind a buffer": (lambda data, h: data.shuffle(3).map(FailsFor(BAD), handler=h), "map", "map"),
}


@pytest.mark.parametrize("stage", STAGES)
def test_a_skip_is_recorded_by_stage_shard_and_key(stage: str) -> None:
    """What ignore_and_continue hid, in any stage; the other samples are as before."""
    make, called, function = STAGES[stage]
    assert sorted(keys(make(dataset(), wds.ignore_and_continue))) == sorted(set(KEYS) - {BAD})
    (line,) = listed()
    assert (line["stage"], line["function"], line["what"], line["key"]) == (called, function, "sample", BAD)
    assert (line["shard"], line["epoch"], line["then"]) == ("s3://bucket/001.tar", 0, "continue")
    assert fb.counters()[f"skipped_{called}"] == 1


def test_rename_and_to_tuple_are_recorded(shards: FakeServer) -> None:
    """They pass a sample over that lacks a file."""
    urls = PATTERN
    for stage in (
        lambda h: dataset(urls).to_tuple("bin", "nope", handler=h),
        lambda h: dataset(urls).compose(wds.rename(a="nope", handler=h)),
    ):
        assert list(stage(wds.ignore_and_continue)) == []
    found = listed()
    assert [line["function"] for line in found] == ["to_tuple"] * len(KEYS) + ["rename"] * len(KEYS)
    assert [line["key"] for line in found] == 2 * KEYS


def test_a_lambda_is_recorded_and_its_answer_obeyed() -> None:
    """False ends the reading, and hides no longer that it did."""
    seen: list[Exception] = []
    assert keys(dataset().map(FailsFor(BAD), handler=lambda exn: bool(seen.append(exn)))) == KEYS[:7]
    assert [str(error) for error in seen] == [f"refused {BAD}"]
    assert [line["then"] for line in listed()] == ["stop"]


def test_warnings_stay_as_they_were() -> None:
    """warn_and_continue warns, with the exception's own words."""
    with pytest.warns(UserWarning, match=rf"ValueError\('refused {BAD}'\)"):
        assert len(list(dataset().map(FailsFor(BAD), handler=wds.warn_and_continue))) == len(KEYS) - 1


def test_shards_that_cannot_be_opened_or_read_are_recorded(shards: FakeServer, said: Callable[[], list[str]]) -> None:
    """Missing, and cut inside a member, of which webdataset asks twice; samples before the cut are given, and one line says all."""
    shards.put("/s3/bucket/001.tar", tar_shard(1)[: 3 * 5120])
    del shards.shown["/s3/bucket/002.tar"]
    found = keys(dataset(handler=wds.ignore_and_continue))
    assert KEYS[:5] == found[:5]
    assert KEYS[15:] == found[-5:]
    assert [(line["stage"], line["what"], line["shard"][-7:]) for line in listed()] == [
        ("read", "file", "001.tar"), ("read", "shard", "001.tar"), ("open", "shard", "002.tar"),
    ]  # fmt: skip
    (line,) = said()
    assert line.startswith(
        f"forebay: epoch 0: 1 of {len(found)} samples skipped (1 file), 2 of 4 shards skipped (1 open, 1 read); in 2 shards; see /"
    )


def test_a_file_that_select_files_fails_for_is_recorded() -> None:
    """A file of a sample, by its name."""

    def select(name: str) -> bool:
        if name == f"{BAD}.txt":
            raise ValueError("no such name")
        return True

    assert len(keys(dataset(select_files=select, handler=wds.ignore_and_continue))) == len(KEYS)
    (line,) = listed()
    assert (line["stage"], line["what"], line["key"], line["shard"]) == ("read", "file", f"{BAD}.txt", "s3://bucket/001.tar")


def test_a_rest_that_on_tar_fault_leaves_is_recorded(shards: FakeServer) -> None:
    """Data behind the end marker is nobody's skip by a handler, and unread all the same."""
    shards.put("/s3/bucket/001.tar", tar_shard(1) + tar_shard(9))
    assert keys(dataset(on_tar_fault="warn")) == KEYS
    (line,) = listed()
    assert (line["stage"], line["shard"], line["function"], line["error"]) == ("read", "s3://bucket/001.tar", "on_tar_fault", "TarFault")


def test_an_epoch_without_a_skip_is_said_quietly(said: Callable[[], list[str]]) -> None:
    """One line all the same, and no file."""
    assert len(list(dataset())) == len(KEYS)
    assert said() == [f"forebay: epoch 0: 0 of {len(KEYS)} samples skipped"]
    assert not os.path.exists(SKIPS_FILE.path)


def test_more_than_max_skipped_is_an_error() -> None:
    """With the count, the limit, the last three and the file; no handler can pass it over."""
    data = dataset(max_skipped=4).map(FailsFor(), handler=wds.ignore_and_continue).map(FailsFor(), handler=wds.ignore_and_continue)
    with pytest.raises(fb.TooManySkips) as raised:
        list(data)
    text = str(raised.value)
    assert "epoch 0: 5 skips, and max_skipped=4" in text
    assert all(f"{key} of s3://bucket/000.tar: ValueError: refused {key} (map)" in text for key in KEYS[2:5])
    assert KEYS[1] not in text
    assert SKIPS_FILE.path in text


def test_a_member_handler_does_not_hide_it(shards: FakeServer) -> None:
    """Raised two handlers below the one that gets what comes through from there."""

    def select(name: str) -> bool:
        raise ValueError("never")

    with pytest.raises(fb.TooManySkips):
        list(dataset(select_files=select, handler=wds.ignore_and_continue, max_skipped=3))


def test_a_stage_that_swallows_it_does_not_hide_it() -> None:
    """It is raised again at the end of the pass."""

    def swallowing(samples: Iterator[Any]) -> Iterator[Any]:
        while True:
            try:
                yield next(samples)
            except StopIteration:
                return
            except Exception:
                continue

    seen = []
    with pytest.raises(fb.TooManySkips, match="max_consecutive_skips=1"):
        seen.extend(dataset(max_consecutive_skips=1).map(FailsFor(*KEYS[7:9]), handler=wds.ignore_and_continue).compose(swallowing))
    assert keys(seen) == KEYS[:7]


def test_a_share_bears_ten_and_is_exact_at_the_end() -> None:
    """Of 20 samples 9 fail, with a quarter borne: not before all are read, and then it is said."""
    seen = []
    with pytest.raises(fb.TooManySkips, match=r"9 of 20 samples skipped, 45.00%, and max_skipped=0.25 is 25.00%"):
        seen.extend(dataset(max_skipped=0.25).map(FailsFor(*KEYS[:9]), handler=wds.ignore_and_continue))
    assert keys(seen) == KEYS[9:]


def test_skips_in_a_row_are_bounded() -> None:
    """Of one stage."""
    data = dataset(max_consecutive_skips=3).map(FailsFor(*KEYS[:3], *KEYS[5:9]), handler=wds.ignore_and_continue)
    with pytest.raises(fb.TooManySkips, match="4 skips in a row in one stage, and max_consecutive_skips=3"):
        list(data)
    assert len(listed()) == 7


def test_the_environment_names_limits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """For code that nobody changes; an argument comes before it, and what is no number is an error."""
    monkeypatch.setenv("FOREBAY_MAX_SKIPPED", "0")
    failing = FailsFor(BAD)
    with pytest.raises(fb.TooManySkips, match="max_skipped=0"):
        list(dataset().map(failing, handler=wds.ignore_and_continue))
    assert len(list(dataset(max_skipped=1).map(failing, handler=wds.ignore_and_continue))) == len(KEYS) - 1
    monkeypatch.setenv("FOREBAY_MAX_SKIPPED", "few")
    with pytest.raises(ValueError, match="FOREBAY_MAX_SKIPPED is 'few'"):
        list(dataset())


def loaded(data: Any, workers: int = 2, start: str = "fork", **how: Any) -> Any:
    return torch.utils.data.DataLoader(data, batch_size=None, num_workers=workers, multiprocessing_context=start, **how)


@pytest.mark.parametrize("start", ["fork", "forkserver"])
def test_each_worker_counts_for_itself(start: str) -> None:
    """Two fail in each worker: two are borne by each, one is not, and the trainer gets the error as what it is."""
    bad = [KEYS[0], KEYS[5], KEYS[10], KEYS[15]]
    assert len(list(loaded(dataset(max_skipped=2).map(FailsFor(*bad), handler=wds.ignore_and_continue), start=start))) == len(KEYS) - 4
    assert {line["worker"] for line in listed()} == {0, 1}
    with pytest.raises(fb.TooManySkips, match=r"epoch 0, worker [01]: 2 skips, and max_skipped=1"):
        list(loaded(dataset(max_skipped=1).map(FailsFor(*bad), handler=wds.ignore_and_continue), start=start))


def test_each_worker_has_its_line(said: Callable[[], list[str]]) -> None:
    """Once an epoch, also where workers live on."""
    data = dataset().map(FailsFor(BAD, KEYS[0]), handler=wds.ignore_and_continue)
    loader = loaded(data, persistent_workers=True)
    for _ in range(2):
        assert len(list(loader)) == len(KEYS) - 2
    del loader
    assert sorted(line.partition("; see")[0] for line in said()) == [
        f"forebay: epoch {epoch}, worker {worker}: 1 of {len(KEYS) // 2} samples skipped (1 map); in 1 shard"
        for epoch in range(2)
        for worker in range(2)
    ]


def test_a_break_has_its_line_too(said: Callable[[], list[str]]) -> None:
    """Of what was read until then."""
    data = dataset().map(FailsFor(KEYS[0]), handler=wds.ignore_and_continue).repeat()
    for _ in loaded(data):
        break
    lines = said()
    assert lines
    assert all(line.startswith("forebay: epoch 0, worker ") and ", left early: " in line for line in lines)
    assert any("(" in line for line in lines)


KEPT: list[Any] = []


def stopped_and_resumed(resume: str, bad: list[str], **how: Any) -> Any:
    """A data set that goes on after four samples of another one, behind two that were passed over."""

    def made(**how: Any) -> Any:
        return dataset(resume=resume, **how).map(FailsFor(*bad), handler=wds.ignore_and_continue)

    first = made()
    samples = iter(first)
    assert [next(samples)["__key__"] for _ in range(4)] == [KEYS[at] for at in (0, 2, 4, 5)]
    state = first.state_dict()
    samples.close()
    again = made(**how)
    again.load_state_dict(state)
    return again


@pytest.mark.parametrize(("resume", "line"), [("replay", f"3 of {len(KEYS)} samples"), ("exact", f"1 of {len(KEYS) - 6} samples")])
def test_what_a_resume_reads_again_is_booked_once(resume: str, line: str, said: Callable[[], list[str]]) -> None:
    """Not listed or counted anew; but where the whole epoch is read, its line is of all of it."""
    bad = [KEYS[1], KEYS[3], KEYS[9]]
    again = stopped_and_resumed(resume, bad)
    assert ([each["key"] for each in listed()], fb.counters()["skipped_map"]) == (bad[:2], 2)
    assert keys(again) == [key for key in KEYS[6:] if key not in bad]
    assert ([each["key"] for each in listed()], fb.counters()["skipped_map"]) == (bad, 3)
    assert f"epoch 0: {line} skipped" in said()[-1]


def test_a_replayed_epoch_is_within_its_limits() -> None:
    """All of it, as if it had not been stopped."""
    with pytest.raises(fb.TooManySkips, match="3 skips, and max_skipped=2"):
        list(stopped_and_resumed("replay", [KEYS[1], KEYS[3], KEYS[9]], max_skipped=2))


def begun_and_kept() -> None:
    KEPT.append(iter(dataset()))
    next(KEPT[0])


def test_an_iteration_that_nobody_closes_ends_with_its_process(said: Callable[[], list[str]]) -> None:
    """As a worker's that another thread looks at while it is told to go."""
    process = multiprocessing.get_context("fork").Process(target=begun_and_kept)
    process.start()
    process.join()
    assert [line[:36] for line in said()] == ["forebay: epoch 0, left early: 0 of 1"]


def test_a_killed_worker_leaves_whole_lines() -> None:
    """Killed amid its writing."""
    data = dataset().map(FailsFor(*KEYS[1:]), handler=wds.ignore_and_continue).repeat()
    iterator = iter(loaded(data, prefetch_factor=1))
    for _ in range(20):
        next(iterator)
    os.kill(iterator._workers[0].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"exited unexpectedly|killed by signal"):
        for _ in iterator:
            pass
    del iterator
    assert len(listed()) > 20


def test_the_stage_alone_records_its_own() -> None:
    """fb.tarfile_to_samples in a pipeline of webdataset's."""
    urls = ["s3://bucket/missing.tar", "s3://bucket/000.tar"]
    data = wds.DataPipeline(wds.SimpleShardList(urls), fb.tarfile_to_samples(handler=wds.ignore_and_continue, limits=QUICK))
    assert keys(data) == KEYS[:5]
    assert [(line["stage"], line["shard"], line["epoch"]) for line in listed()] == [("open", "s3://bucket/missing.tar", None)]
