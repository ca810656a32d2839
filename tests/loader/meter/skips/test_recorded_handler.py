"""Handlers that are asked as before, whose answers are noted."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from forebay_loader.base.counters import counters
from forebay_loader.meter.skips.counts import SkipLimits
from forebay_loader.meter.skips.recorded_handler import Place, RecordedHandler
from forebay_loader.meter.skips.skip_pass import SkipPass, SkipScope
from forebay_loader.meter.skips.skips_file import SKIPS_FILE

PLACE = Place("decode", "sample", "s3://b/0.tar?X-Amz-Signature=secret", "k-1", "video")


def skips(most: float | None = None, in_a_row: int | None = None) -> SkipPass:
    return SkipPass(SkipLimits(most, in_a_row), SkipScope(3, 1, 2, 0, 1))


def listed() -> list[dict[str, Any]]:
    with open(SKIPS_FILE.path) as file:
        return [json.loads(line) for line in file]


def stage(data: Iterable[dict[str, Any]], handler: Callable[[Exception], bool]) -> Iterator[dict[str, Any]]:
    """As webdataset's ``_map``."""
    for sample in data:
        try:
            if sample["bad"]:
                raise sample.get("error", ValueError)("no", "https://me:secret@h/x.tar?sig=secret")
        except Exception as exn:
            if handler(exn):
                continue
            break
        yield sample


def samples(pattern: str) -> list[dict[str, Any]]:
    return [{"__key__": f"k{n}", "__url__": "s3://b/0.tar", "bad": letter == "x"} for n, letter in enumerate(pattern)]


def test_what_it_raises_is_raised_and_nothing_was_skipped() -> None:
    """As ``reraise_exception`` does."""

    def handler(exn: Exception) -> bool:
        raise KeyError("mine") from exn

    with pytest.raises(KeyError, match="mine"):
        RecordedHandler(handler, skips()).at(ValueError("no"), PLACE)
    assert counters()["skipped_decode"] == 0


def test_a_skip_is_listed_with_what_why_and_where() -> None:
    """And who: the whole line, without a secret."""
    list(stage(samples(".x."), RecordedHandler(lambda _: True, skips())))
    (line,) = listed()
    assert line.pop("time")
    assert line == {
        "job": "job-1", "rank": 1, "worker": 0, "epoch": 3, "stage": "map", "what": "sample", "shard": "s3://b/0.tar", "key": "k1",
        "error": "ValueError", "message": "no", "function": "stage", "then": "continue",
    }  # fmt: skip


class Odd:
    """As an array is: neither true nor false."""

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


def test_a_stage_with_odd_variables_goes_on() -> None:
    """Where a skip was is read from a user's own variables: whatever they hold, the handler's answer counts, and so does the skip."""

    def own(handler: Callable[[Exception], bool]) -> bool:
        sample, url, fname = {"__url__": Odd(), "__key__": Odd()}, Odd(), Odd()
        try:
            raise ValueError("no")
        except ValueError as error:
            return handler(error)
        finally:
            del sample, url, fname

    assert own(RecordedHandler(lambda _: True, skips())) is True
    assert [(line["function"], line["shard"], line["key"]) for line in listed()] == [("own", "", "")]


def test_a_bad_sample_is_not_kept() -> None:
    """Neither it nor its exception, while the stage goes on: what was looked at in its frame is forgotten there."""

    class Bad(ValueError):
        pass

    class Kept(dict):  # type: ignore[type-arg]
        pass

    seen: list[weakref.ref[Any]] = []

    def handler(exn: Exception) -> bool:
        seen.append(weakref.ref(exn))
        return True

    def bad() -> Iterator[dict[str, Any]]:
        sample = Kept(__key__="k", bad=True, error=Bad)
        seen.append(weakref.ref(sample))
        yield sample
        del sample
        yield {"bad": False}

    gc.disable()
    try:
        running = stage(bad(), RecordedHandler(handler, skips()))
        next(running)
        assert [ref() for ref in seen] == [None, None]
    finally:
        gc.enable()
