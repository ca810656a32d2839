"""Ranges in a profile of torch's, of what the training process itself makes of its samples."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.clips import rendered
from support.fake_proxy import FakeServer
from support.tars import expected, tar_shard

import forebay_loader as fb
from forebay_loader.meter.profile_ranges import profiled, ranged

torch = pytest.importorskip("torch")
wds = pytest.importorskip("webdataset")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("metered")]


def profile() -> Any:
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])


def ranges(seen: Any) -> dict[str, int]:
    return {event.key: event.count for event in seen.key_averages() if event.key.startswith("forebay.")}


def test_a_clip_has_its_ranges() -> None:
    """One for all of it, and one for each part, within it."""
    stage = fb.video("uniform(2)", audio=True)
    with profile() as seen:
        list(stage([{"__key__": str(number), "mp4": rendered(audio="aac")} for number in range(3)]))
    counts = ranges(seen)
    assert set(counts) == {"forebay.video", "forebay.video.index", "forebay.video.decode", "forebay.video.audio"}
    assert counts["forebay.video"] == 3
    spans = {event.name: event.time_range for event in seen.events() if event.name.startswith("forebay.")}
    whole = spans["forebay.video"]
    assert all(whole.start <= span.start <= span.end <= whole.end for span in spans.values())


def test_torch_is_not_imported_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without torch has nobody to tell."""
    monkeypatch.delitem(sys.modules, "torch")
    with profiled("forebay.video") as told:
        assert told is None
    assert "torch" not in sys.modules


@pytest.mark.webdataset
def test_every_stage_of_an_in_process_loader_has_its_range(proxy: FakeServer) -> None:
    """With ``num_workers=0``: each sample is read, decoded, mapped, and put into a batch, all of it within ``next``."""
    proxy.put("/s3/bucket/000.tar", tar_shard(0))
    count = len(list(expected(1)))
    data = fb.WebDataset("s3://bucket/000.tar", shardshuffle=False).decode().map(dict).batched(2, collation_fn=len)
    made = fb.WebLoader(data, batch_size=None, num_workers=0).map(str)
    with profile() as seen:
        assert "".join(made).startswith("2")
    found = ranges(seen)
    assert set(found) == {"forebay.next", "forebay.read", "forebay.decode", "forebay.map", "forebay.collate"}
    assert found["forebay.decode"] == found["forebay.read"] == count + 1  # and the end
    spans = [(event.name, event.time_range) for event in seen.events()]
    calls = [span for name, span in spans if name == "forebay.next"]
    decodes = [span for name, span in spans if name == "forebay.decode"]
    assert all(any(call.start <= span.start <= span.end <= call.end for call in calls) for span in decodes)


def test_a_profile_that_begins_in_the_middle_is_noticed() -> None:
    """Nothing is asked for each sample, so it is noticed after some of them; none is lost, twice, or ahead of its time."""
    asked: list[int] = []
    numbers = ranged("read", (asked.append(number) or number for number in range(200)))
    assert [next(numbers) for _ in range(5)] == list(range(5))  # type: ignore[call-overload]
    with profile() as seen:
        assert next(numbers) == 5  # type: ignore[call-overload]
        assert asked == list(range(6))
        assert [next(numbers) for _ in range(94)] == list(range(6, 100))  # type: ignore[call-overload]
    assert 100 - 2 * 32 <= ranges(seen)["forebay.read"] <= 94
    assert list(numbers) == list(range(100, 200))


def test_nothing_of_what_passed_is_kept() -> None:
    """A batch is not held beyond its step."""

    lives = threading.Event()

    class Batch:
        def __del__(self) -> None:
            lives.clear()

    def batches() -> Iterator[Any]:
        lives.set()
        yield Batch()
        yield None

    made = iter(ranged("map", batches()))
    next(made)
    next(made)
    assert not lives.is_set()
